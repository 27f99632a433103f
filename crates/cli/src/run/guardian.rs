//! A process that outlives `redlock run` for a moment, to end what the program has started.
//!
//! The kernel kills the program when the command dies, but not the program's children. The guardian does: it reads from a pipe
//! whose other end only the command has, and the end of that pipe is the end of the command. It also hears until when the lock
//! is valid, and if that moment passes without a word, because the command is frozen say, it ends the group as well.
//!
//! It is in a process group of its own, with no streams but that pipe, so that nothing that is sent to the command's group or
//! to the program's ends it. Somebody who kills both the command and the guardian leaves the program's children alive; they
//! have the fence between them and the data.

use redlock_core::{Clock as _, Moment, SystemClock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Read as _};
use std::process::ExitCode;
use std::time::Duration;

/// The first argument that makes the command a guardian.
pub const MODE: &str = "__guardian";

/// What it is told when everything has ended as it should.
pub(super) const END: &str = "end\n";

/// The longest that it goes without looking at the clock: timers may stand still while the machine sleeps, the clock does not.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(200);

/// Which group to watch, as it is told.
pub(super) fn watch(leader: u32) -> String {
    format!("watch {leader}\n")
}

/// Until when the lock is valid, as it is told.
pub(super) fn until(moment: Moment) -> String {
    format!("until {}\n", moment.since_origin().as_millis())
}

/// What it knows.
#[derive(Default, Debug, PartialEq, Eq)]
struct Watched {
    group: Option<i32>,
    until: Option<Moment>,
    ended: bool,
}

impl Watched {
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            None => self.ended |= line == END.trim_end(),
            Some(("watch", group)) => self.group = group.parse().ok(),
            Some(("until", millis)) => {
                self.until = millis.parse().ok().map(|millis| Moment::from_origin(Duration::from_millis(millis)));
            }
            Some(_) => {}
        }
    }

    fn end_group(&self) {
        if let Some(group) = self.group.and_then(Pid::from_raw) {
            // Err: nobody is left.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Watches until the command says that all is over, is gone, or lets the validity pass.
#[must_use]
pub fn keep_watch() -> ExitCode {
    let mut watched = Watched::default();
    let mut heard = Vec::new();
    loop {
        let patience = match watched.until {
            None => LOOK_AT_LEAST_EVERY,
            Some(until) => {
                let left = until.since(SystemClock.now());
                if left.is_zero() {
                    watched.end_group();
                    // It may go on, and be granted more time, when nobody is left to use it.
                    watched.until = None;
                }
                left.min(LOOK_AT_LEAST_EVERY)
            }
        };
        match read_within(patience, &mut heard) {
            Ok(true) => {}
            // The pipe has ended, or is of no use: so is the command.
            Ok(false) | Err(_) => break,
        }
        while let Some(end) = heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = heard.drain(..=end).collect();
            watched.hear(String::from_utf8_lossy(&line).trim_end());
        }
    }
    if !watched.ended {
        watched.end_group();
    }
    ExitCode::SUCCESS
}

/// Reads what there is, waiting for it for so long. `false` at the end of the pipe.
fn read_within(patience: Duration, heard: &mut Vec<u8>) -> io::Result<bool> {
    let stdin = io::stdin();
    let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(true),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut buffer = [0; 4096];
    match stdin.lock().read(&mut buffer) {
        Ok(0) => Ok(false),
        Ok(bytes) => {
            heard.extend_from_slice(&buffer[..bytes]);
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard() {
        let mut watched = Watched::default();
        let moment = Moment::from_origin(Duration::from_millis(12_345));
        for line in [watch(42), until(moment), "something else\n".into()] {
            watched.hear(line.trim_end());
        }
        assert_eq!(watched, Watched { group: Some(42), until: Some(moment), ended: false });
        watched.hear(END.trim_end());
        assert!(watched.ended);
    }
}
