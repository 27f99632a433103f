//! The moment between this command and the program: its own process, already, and still our code.
//!
//! `unsafe` is forbidden here, so nothing can be done between fork and exec. Instead the command starts itself in this mode, as
//! the leader of a new process group, and the shim
//!
//! 1. asks the kernel to be killed when its parent dies, and looks whether it is dead already,
//! 2. tells the guardian which group to watch,
//! 3. takes the terminal, if the command had it, and
//! 4. becomes the program: same process, same streams, same group.
//!
//! It speaks to its parent and to the guardian through pipes that it opens by their names under `/proc`, so that the program
//! inherits nothing of them. If the program cannot be started, the parent finds the reason in its pipe; so every exit code of
//! a program that did start is the program's.

use super::terminal::Terminal;
use crate::exit::Exit;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// The first argument that makes the command a shim.
pub const MODE: &str = "__child";

/// What the shim is told.
pub(super) struct Orders {
    pub(super) parent: u32,
    /// The parent's end of the pipe that takes the reason why the program could not be started.
    pub(super) status: i32,
    /// The parent's end of the guardian's pipe.
    pub(super) guardian: i32,
    pub(super) takes_terminal: bool,
}

impl Orders {
    pub(super) fn to_arguments(&self) -> [OsString; 4] {
        [self.parent.to_string(), self.status.to_string(), self.guardian.to_string(), self.takes_terminal.to_string()]
            .map(OsString::from)
    }

    fn from_arguments(arguments: &[OsString]) -> Option<(Self, &OsString, &[OsString])> {
        let [parent, status, guardian, takes_terminal, program, rest @ ..] = arguments else { return None };
        let orders = Self {
            parent: parent.to_str()?.parse().ok()?,
            status: status.to_str()?.parse().ok()?,
            guardian: guardian.to_str()?.parse().ok()?,
            takes_terminal: takes_terminal.to_str()?.parse().ok()?,
        };
        Some((orders, program, rest))
    }
}

/// Becomes the program. Returns only if that failed.
#[must_use]
pub fn become_child(arguments: &[OsString]) -> ExitCode {
    let Some((orders, program, rest)) = Orders::from_arguments(arguments) else { return Exit::Usage.into() };
    let Err(error) = prepare(&orders) else {
        let error = Command::new(program).args(rest).exec();
        report(&orders, &error);
        return Exit::CannotStart.into();
    };
    report(&orders, &error);
    Exit::CannotStart.into()
}

fn prepare(orders: &Orders) -> io::Result<()> {
    die_with_parent(orders.parent)?;
    let mut guardian = pipe_of_parent(orders, orders.guardian)?;
    guardian.write_all(super::guardian::watch(std::process::id()).as_bytes())?;
    if orders.takes_terminal
        && let Some(terminal) = Terminal::find()
    {
        // Without it the program is stopped when it reads, and the command gives it then.
        let _ = terminal.give(rustix::process::getpgrp());
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn die_with_parent(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // It may have died before it was asked for.
    if std::os::unix::process::parent_id() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(parent: u32) -> io::Result<()> {
    if std::os::unix::process::parent_id() == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn report(orders: &Orders, error: &io::Error) {
    // A parent that is gone has nobody to tell.
    if let Ok(mut status) = pipe_of_parent(orders, orders.status) {
        let code = error.raw_os_error().unwrap_or_default();
        let _ = status.write_all(format!("{code} {error}").as_bytes());
    }
}

fn pipe_of_parent(orders: &Orders, descriptor: i32) -> io::Result<std::fs::File> {
    OpenOptions::new().write(true).open(format!("/proc/{}/fd/{descriptor}", orders.parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_were_given() {
        let orders = Orders { parent: 7, status: 3, guardian: 5, takes_terminal: true };
        let mut arguments = orders.to_arguments().to_vec();
        arguments.extend(["cat".into(), "-u".into()]);
        let (read, program, rest) = Orders::from_arguments(&arguments).unwrap();
        assert_eq!((read.parent, read.status, read.guardian, read.takes_terminal), (7, 3, 5, true));
        assert_eq!((program, rest), (&OsString::from("cat"), &[OsString::from("-u")][..]));
        assert!(Orders::from_arguments(&arguments[..4]).is_none());
    }
}
