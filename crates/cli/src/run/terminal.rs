//! Who may read from the terminal: one process group at a time.
//!
//! A program in a group of its own would be stopped as soon as it reads what is typed. So it is given the terminal if the
//! command has it, as a shell does, and the command takes it back afterwards.

use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::io;

/// Whether stdin is a terminal that this process' group may read from.
pub(super) fn is_ours() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|foreground| foreground == rustix::process::getpgrp())
}

/// Gives the terminal to a group, also from the background: the signal by which the kernel would object is held back
/// meanwhile.
pub(super) fn take(group: u32) -> io::Result<()> {
    let Some(group) = i32::try_from(group).ok().and_then(Pid::from_raw) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut objection = SigSet::empty();
    objection.add(Signal::SIGTTOU);
    objection.thread_block()?;
    let taken = tcsetpgrp(io::stdin(), group);
    objection.thread_unblock()?;
    Ok(taken?)
}

/// Takes the terminal back for this process' group.
pub(super) fn take_back() {
    let group = rustix::process::getpgrp().as_raw_nonzero().get().unsigned_abs();
    // A terminal that is gone is nobody's.
    let _ = take(group);
}
