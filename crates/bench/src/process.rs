//! A child process that never outlives its test: started, frozen, thawed, killed.
//!
//! Three things end it, whichever comes first: [`Process::kill`], dropping the value, and the end of the program that
//! started it, however that ends (where `setpriv` exists, which is every Linux with util-linux). Freezing and killing go
//! by pid, so that they work on a process that answers nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::BenchError;

/// How long a stop signal may take to arrive before the process is taken for dead.
const FREEZE_MS_MAX: u32 = 2_000;

/// A running child.
#[derive(Debug)]
pub struct Process {
    program: String,
    pid: Pid,
    child: Mutex<Child>,
}

impl Process {
    /// Starts a program; `configure` adds arguments, environment and streams.
    ///
    /// # Errors
    /// [`BenchError::Io`] if there is no such program, or the system cannot run it.
    pub fn spawn(program: impl AsRef<Path>, configure: impl FnOnce(&mut Command)) -> Result<Self, BenchError> {
        let doing = format!("run {}", program.as_ref().display());
        // Looked for here, because under `setpriv` a missing program would show as an early exit only.
        let Some(program) = find_program(program) else {
            return Err(BenchError::io(doing)(io::ErrorKind::NotFound.into()));
        };
        let mut command = match find_program("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL"]).arg(&program);
                command
            }
            None => Command::new(&program),
        };
        configure(&mut command);

        let child = spawn_in_nursery(command).map_err(BenchError::io(doing))?;
        let program = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { pid: Pid::from_child(&child), program, child: Mutex::new(child) })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Stops the process as if its machine had been suspended (SIGSTOP). When this returns, it runs no more.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it has ended already.
    pub fn freeze(&self) -> Result<(), BenchError> {
        self.signal(Signal::STOP, "freeze")?;
        for _ in 0..FREEZE_MS_MAX {
            // `NOWAIT` leaves the news where it is: reaping is the business of `kill`.
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            if matches!(rustix::process::waitid(WaitId::Pid(self.pid), options), Ok(Some(_))) {
                return Ok(());
            }
            #[expect(clippy::disallowed_methods, reason = "the kernel offers no bounded wait for a stopped child")]
            std::thread::sleep(Duration::from_millis(1));
        }
        let source = io::Error::new(io::ErrorKind::TimedOut, "it does not stop; has it ended?");
        Err(BenchError::io(format!("freeze {}", self.program))(source))
    }

    /// Lets a frozen process go on (SIGCONT).
    ///
    /// # Errors
    /// [`BenchError::Io`] if it has ended already.
    pub fn thaw(&self) -> Result<(), BenchError> {
        self.signal(Signal::CONT, "thaw")
    }

    /// Asks the process to end (SIGTERM) without waiting for it.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it has ended already.
    pub fn terminate(&self) -> Result<(), BenchError> {
        self.signal(Signal::TERM, "terminate")
    }

    /// Ends the process as a power cut would (SIGKILL), frozen or not, and waits until it is gone. Idempotent.
    pub fn kill(&self) {
        let mut child = self.child();
        // An error means that it has ended and been waited for: what was asked for.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// How the process ended, or nothing while it lives.
    #[must_use]
    pub fn exited(&self) -> Option<ExitStatus> {
        self.child().try_wait().ok().flatten()
    }

    fn signal(&self, signal: Signal, verb: &str) -> Result<(), BenchError> {
        // The lock keeps the pid ours: it cannot be given to another process before `kill` or `exited` has reaped it.
        let mut child = self.child();
        let result = match child.try_wait() {
            Ok(Some(status)) => Err(io::Error::new(io::ErrorKind::NotFound, format!("it has ended: {status}"))),
            Ok(None) => rustix::process::kill_process(self.pid, signal).map_err(Into::into),
            Err(error) => Err(error),
        };
        result.map_err(BenchError::io(format!("{verb} {}", self.program)))
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a program is: on the search path, in the places where servers live, or at the absolute path it is named by.
#[must_use]
pub fn find_program(name: impl AsRef<Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let elsewhere = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(elsewhere).map(|directory| directory.join(&name)).find(|file| file.is_file())
}

/// Starts all children of this program from one thread that lives as long as the program.
///
/// Linux sends the parent-death signal when the *thread* that forked ends. The threads of a test, or of a runtime, end
/// earlier than the servers they started.
fn spawn_in_nursery(command: Command) -> io::Result<Child> {
    type Order = (Command, SyncSender<io::Result<Child>>);
    static NURSERY: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();

    let orders = NURSERY.get_or_init(|| {
        let (orders, received) = channel::<Order>();
        let nursery = move || {
            // Runs until the program ends, by design: the sending side is never dropped.
            for (mut command, answer) in received {
                let _ = answer.send(command.spawn());
            }
        };
        std::thread::Builder::new()
            .name("bench-nursery".into())
            .spawn(nursery)
            .expect("the system has room for one more thread");
        Mutex::new(orders)
    });

    let (answer, child) = sync_channel(1);
    orders
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .expect("the nursery takes orders until the program ends");
    child.recv().expect("the nursery answers every order")
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn sleeper() -> Process {
        Process::spawn("sleep", |command| {
            command.arg("60").stdin(Stdio::null());
        })
        .unwrap()
    }

    fn state(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next()).unwrap()
    }

    #[test]
    fn a_frozen_process_is_stopped_when_freeze_returns_and_can_be_killed() {
        let process = sleeper();
        process.freeze().unwrap();
        assert_eq!(state(process.pid()), 'T');
        process.kill();
        assert!(process.exited().is_some());
        assert!(process.thaw().unwrap_err().to_string().contains("thaw sleep"));
    }

    #[test]
    fn freezing_and_thawing_can_be_repeated() {
        let process = sleeper();
        for _ in 0..3 {
            process.freeze().unwrap();
            process.thaw().unwrap();
        }
        assert!(process.exited().is_none());
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let process = sleeper();
        process.freeze().unwrap();
        let pid = process.pid();
        drop(process);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_child_survives_the_thread_that_asked_for_it() {
        let process = std::thread::spawn(sleeper).join().unwrap();
        process.freeze().unwrap();
        assert!(process.exited().is_none());
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Process::spawn("no-such-program", |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "could not run no-such-program");
    }
}
