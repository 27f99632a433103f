//! Who may read from the terminal: one process group at a time.
//!
//! A program in a group of its own would be stopped as soon as it reads what is typed. So it is given the terminal if the
//! command has it, as a shell does, and the command takes it back afterwards. It takes it from nobody but the program: a command
//! that was sent to the background meanwhile leaves it to the shell, which would end without.

use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;

/// The terminal that controls this process. It need not be stdin: whoever is fed by a pipe asks for a password here.
pub(super) struct Terminal(File);

impl Terminal {
    /// The one that there is, if there is one.
    pub(super) fn find() -> Option<Self> {
        File::options().read(true).write(true).open("/dev/tty").ok().map(Self)
    }

    /// Whether this group may read from it.
    pub(super) fn is_of(&self, group: Pid) -> bool {
        tcgetpgrp(&self.0).is_ok_and(|foreground| foreground == group)
    }

    /// Gives it to a group, also from the background: the signal by which the kernel would object is held back meanwhile.
    ///
    /// # Errors
    /// That of the system, if there is no such group or the terminal is gone.
    pub(super) fn give(&self, group: Pid) -> io::Result<()> {
        let mut objection = SigSet::empty();
        objection.add(Signal::SIGTTOU);
        objection.thread_block()?;
        let given = tcsetpgrp(&self.0, group);
        objection.thread_unblock()?;
        Ok(given?)
    }
}

/// Whether a program may be given the terminal before it asks for it: if it reads what is typed, and nobody else what it writes. In a
/// pipeline others of the command's group may want it themselves, a pager say, and what a script has sent to the background is not
/// to have it.
pub(super) fn is_for_the_program() -> bool {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let feeds_a_pipe = stdout.and_then(|stdout| stdout.metadata()).is_ok_and(|metadata| metadata.file_type().is_fifo());
    io::stdin().is_terminal() && !feeds_a_pipe
}
