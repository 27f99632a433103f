//! The program: started, waited for, buried, with its guardian.

use super::group::Group;
use super::guardian;
use super::shim::{self, Orders};
use super::terminal::{self, Terminal};
use crate::exit::{Exit, Failure};
use redlock_core::Moment;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process_group, waitid};
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// How long the guardian may take to end once it is told to.
const GUARDIAN_PATIENCE: Duration = Duration::from_secs(1);

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

/// A running program.
pub(super) struct Child {
    program: String,
    process: std::process::Child,
    pid: Pid,
    /// Where the shim says why the program could not be started.
    status: (PipeReader, PipeWriter),
    guardian: Guardian,
    children: SignalStream,
    terminal: Option<Terminal>,
    /// It was stopped because it wants the terminal, which we do not have.
    waits_for_terminal: bool,
    /// Whether an INT or QUIT has come through us, and not from the terminal.
    was_interrupted: bool,
}

struct Guardian {
    process: std::process::Child,
    pipe: PipeWriter,
    told: Option<Moment>,
    gone: bool,
}

impl Child {
    /// Starts a program in a process group of its own.
    ///
    /// That it was started does not mean that there is such a program; see [`Child::bury`].
    pub(super) fn start(
        command: &[OsString],
        environment: &[(&str, String)],
        valid_until: Moment,
    ) -> Result<Self, Failure> {
        let (program, _) = command.split_first().expect("the options ask for a command");
        let program = program.to_string_lossy().into_owned();
        let failed =
            |error: io::Error| Failure::caused(Exit::CannotStart, &format!("{program} cannot be started"), &error);
        let children = signal(SignalKind::child()).map_err(failed)?;
        let mut guardian = Guardian::start().map_err(failed)?;
        // Before there is anything to watch: we may be frozen as soon as there is.
        guardian.tell(valid_until);

        let status = io::pipe().map_err(failed)?;
        let terminal = Terminal::find();
        let takes_terminal =
            terminal.as_ref().is_some_and(|terminal| terminal.is_of(getpgrp())) && terminal::is_for_the_program();
        let orders = Orders {
            parent: std::process::id(),
            status: status.1.as_raw_fd(),
            guardian: guardian.pipe.as_raw_fd(),
            takes_terminal,
        };
        // From this thread, which is the program's first and last: the kernel kills the child when the *thread* that started
        // it ends.
        let spawned = ourselves(shim::MODE)
            .map_err(failed)?
            .args(orders.to_arguments())
            .args(command)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .process_group(0)
            .spawn();
        match spawned {
            Ok(process) => {
                let pid = Pid::from_child(&process);
                let (waits_for_terminal, was_interrupted) = (false, false);
                Ok(Self {
                    program,
                    process,
                    pid,
                    status,
                    guardian,
                    children,
                    terminal,
                    waits_for_terminal,
                    was_interrupted,
                })
            }
            Err(error) => {
                guardian.end();
                // Nothing to watch for, so it ends at once.
                let _ = guardian.process.wait();
                Err(failed(error))
            }
        }
    }

    pub(super) fn group(&self) -> Group {
        Group::led_by(self.pid)
    }

    /// Resolves when the program has ended. It is not reaped: its number, which is its group's, stays taken.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn ended(&mut self) -> Ended {
        loop {
            if let Some(ended) = self.has_ended() {
                return ended;
            }
            self.follow_stops();
            self.children.recv().await;
        }
    }

    fn has_ended(&self) -> Option<Ended> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.pid), look).ok().flatten()?;
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Some(Ended::Code(u8::try_from(code & 0xff).unwrap_or(u8::MAX))),
            (None, Some(signal)) => Some(Ended::Signal(signal)),
            (None, None) => None,
        }
    }

    /// Passes a signal on to the program's group.
    pub(super) fn pass_on(&mut self, signal: Signal) {
        self.was_interrupted |= matches!(signal, Signal::INT | Signal::QUIT);
        self.group().signal(signal);
        if matches!(signal, Signal::HUP | Signal::TERM) {
            // One that is stopped would hear of it when it goes on, and nobody would let it.
            self.group().signal(Signal::CONT);
        }
    }

    /// At a terminal, a program that is stopped (Ctrl-Z) stops the command's group as well, so that the shell has its prompt. The
    /// lock runs out meanwhile, and the guardian sees to that. One that is stopped because it wants the terminal gets it as soon
    /// as it is ours.
    fn follow_stops(&mut self) {
        let Some(terminal) = &self.terminal else { return };
        let ours = getpgrp();
        let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.pid), look) {
            let wants = [Signal::TTIN, Signal::TTOU].map(|signal| Some(signal.as_raw()));
            self.waits_for_terminal = wants.contains(&status.stopping_signal());
            let had = terminal.is_of(self.pid);
            if !self.waits_for_terminal || !terminal.is_of(ours) {
                if had {
                    let _ = terminal.give(ours);
                }
                stop_ourselves();
            }
            if !self.waits_for_terminal {
                // Somebody has let us go on: `fg` with the terminal, `bg` without.
                if had && terminal.is_of(ours) {
                    let _ = terminal.give(self.pid);
                }
                self.group().signal(Signal::CONT);
            }
        }
        if self.waits_for_terminal && terminal.is_of(ours) && terminal.give(self.pid).is_ok() {
            self.waits_for_terminal = false;
            self.group().signal(Signal::CONT);
        }
    }

    /// Tells the guardian until when the lock is valid. `false` once, when it is found to be gone.
    pub(super) fn tell_guardian(&mut self, valid_until: Moment) -> bool {
        self.guardian.tell(valid_until)
    }

    /// Takes leave of a program that has ended so, and of its guardian. `Some` if there never was a program.
    pub(super) async fn bury(mut self, ended: Option<Ended>) -> Option<Failure> {
        self.guardian.end();
        if let Some(terminal) = self.terminal.take().filter(|terminal| terminal.is_of(self.pid)) {
            // A terminal that is gone is nobody's.
            let _ = terminal.give(getpgrp());
            let typed = [Signal::INT, Signal::QUIT];
            let by = typed.into_iter().find(|signal| ended == Some(Ended::Signal(signal.as_raw())));
            if let Some(signal) = by.filter(|_| !self.was_interrupted) {
                // Somebody has typed it, and it has reached the program alone: a script that calls us in a loop is meant, too.
                let _ = kill_process_group(getpgrp(), signal);
            }
        }
        // It has ended, so this does not wait.
        let _ = self.process.wait();
        self.guardian.bury(&mut self.children).await;
        let (mut reader, writer) = self.status;
        drop(writer);
        let mut reason = String::new();
        // Nobody else has the other end, so this does not wait either.
        let _ = reader.read_to_string(&mut reason);
        (!reason.is_empty()).then(|| {
            let (code, said) = reason.split_once(' ').unwrap_or(("", &reason));
            let error = match code.parse() {
                Ok(code) if code != 0 => io::Error::from_raw_os_error(code),
                _ => io::Error::other(said.to_owned()),
            };
            Failure::caused(Exit::CannotStart, &format!("{} cannot be started", self.program), &error)
        })
    }
}

/// This very program in one of its private modes: where the system allows it, not by its path, under which a newer one may lie since we
/// wait for the lock.
fn ourselves(mode: &str) -> io::Result<Command> {
    #[cfg(target_os = "linux")]
    let program = "/proc/self/exe";
    #[cfg(not(target_os = "linux"))]
    let program = std::env::current_exe()?;
    let mut command = Command::new(program);
    command.arg0("redlock").arg(mode);
    Ok(command)
}

/// Stops all of the command's group, as typing Ctrl-Z does. Nothing stops where nobody could let it go on: by the signal that
/// a reader in the background gets, as TSTP is passed on.
pub(crate) fn stop_ourselves() {
    let _ = kill_process_group(getpgrp(), Signal::TTIN);
}

impl Guardian {
    fn start() -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // A guardian that does not read must not stop us.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let process = ourselves(guardian::MODE)?
            .env_clear()
            .current_dir("/")
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { process, pipe, told: None, gone: false })
    }

    fn tell(&mut self, valid_until: Moment) -> bool {
        if self.gone || self.told == Some(valid_until) {
            return true;
        }
        match self.pipe.write_all(guardian::until(valid_until).as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.gone = true;
                false
            }
            _ => {
                self.told = Some(valid_until);
                true
            }
        }
    }

    fn end(&mut self) {
        // Err: it is gone already.
        let _ = self.pipe.write_all(guardian::END.as_bytes());
    }

    /// Closes the pipe, which ends it, and reaps it.
    async fn bury(self, children: &mut SignalStream) {
        let Self { mut process, pipe, .. } = self;
        drop(pipe);
        let reaped = async {
            while matches!(process.try_wait(), Ok(None)) {
                children.recv().await;
            }
        };
        if tokio::time::timeout(GUARDIAN_PATIENCE, reaped).await.is_err() {
            // Frozen by somebody. It has been told that all is over.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
