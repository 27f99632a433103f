//! Runs one server, and ends it when the process that asked for it ends, even by SIGKILL.
//!
//! Shared servers live in statics, which are never dropped, so no `Drop` can be relied upon. A small shell waits for the
//! end of a pipe that only the test process holds; then it stops the server in its own way (Postgres leaves shared
//! memory behind when killed) and removes the folder.

use std::fs;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::BenchError;
use crate::process::find_program;

/// `$1` folder, `$2` log, `$3` signal that stops the server; the rest is the server's command line.
///
/// The pipe moves to descriptor 3, as a shell's background jobs lose their standard input; the server must not have it,
/// though nobody waits for the server to close it: the end comes when the writing side, the test process, is gone.
const SCRIPT: &str = r#"
exec 3<&0 </dev/null
folder=$1; log=$2; signal=$3; shift 3
"$@" 3<&- >>"$log" 2>&1 &
server=$!
cat <&3 >/dev/null
kill -"$signal" "$server" 2>/dev/null
wait "$server"
rm -rf "$folder"
"#;

/// How long a server may take until its log says that it is ready.
const READY_LOOKS_MAX: u32 = 3_000;

/// The pause between two looks into the log.
const READY_PERIOD: Duration = Duration::from_millis(10);

/// How much of a log an error message carries, in lines.
const LOG_LINES_MAX: usize = 20;

/// A running server with its folder.
#[derive(Debug)]
pub(super) struct Caretaker {
    program: String,
    shell: Child,
    /// Closing it is the order to stop.
    alive: Option<PipeWriter>,
    log: PathBuf,
}

impl Caretaker {
    /// Starts `command` as `user`, in a folder that is removed afterwards, and waits until its log says `ready`.
    pub(super) fn start(
        program: &str,
        user: &str,
        folder: TempDir,
        signal: &str,
        ready: &str,
        command: &[&Path],
    ) -> Result<Self, BenchError> {
        let log = folder.path().join("log");
        let (reader, alive) = io::pipe().map_err(BenchError::io("make a pipe"))?;
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", SCRIPT, "caretaker"])
            // From here on the shell removes it.
            .arg(folder.keep())
            .arg(&log)
            .arg(signal)
            .args(as_user(user)?)
            .args(command)
            .stdin(Stdio::from(reader))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A signal to the test's process group must not take the caretaker before it has done its work.
            .process_group(0);
        let shell = shell.spawn().map_err(BenchError::io("start a shell"))?;
        let mut caretaker = Self { program: program.to_owned(), shell, alive: Some(alive), log };
        caretaker.wait_until_ready(ready)?;
        Ok(caretaker)
    }

    /// What the server wrote so far.
    pub(super) fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The server's folder, which goes when the server goes.
    #[cfg(test)]
    pub(super) fn folder(&self) -> PathBuf {
        self.log.parent().map(Path::to_owned).unwrap_or_default()
    }

    fn wait_until_ready(&mut self, ready: &str) -> Result<(), BenchError> {
        for _ in 0..READY_LOOKS_MAX {
            let log = self.log();
            if log.contains(ready) {
                return Ok(());
            }
            // A server that gave up says so on its last line; its caretaker stays until we let go of the pipe.
            if ["Aborting", "FATAL:", "FATAL ERROR"].iter().any(|end| log.contains(end)) {
                return Err(self.did_not_start("it gave up"));
            }
            #[expect(clippy::disallowed_methods, reason = "a log file offers nothing to wait for")]
            std::thread::sleep(READY_PERIOD);
        }
        Err(self.did_not_start("its log did not say that it is ready"))
    }

    fn did_not_start(&self, why: &str) -> BenchError {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        BenchError::DidNotStart {
            program: self.program.clone(),
            why: why.to_owned(),
            log: lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n"),
        }
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        self.alive = None;
        // Short: the server stops at once when asked, and nothing is synced.
        let _ = self.shell.wait();
    }
}

/// Runs `command` to its end, as `user`.
pub(super) fn run_as(user: &str, command: &[&Path]) -> Result<(), BenchError> {
    let mut words = as_user(user)?;
    words.extend(command.iter().map(|word| word.to_path_buf()));
    let program = command[0].display().to_string();
    let output = Command::new(&words[0])
        .args(&words[1..])
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::io(format!("run {program}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(BenchError::DidNotStart {
        program,
        why: output.status.to_string(),
        log: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// What to put before a command so that it runs as `user`: nothing unless we are root, which servers refuse to be.
fn as_user(user: &str) -> Result<Vec<PathBuf>, BenchError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Vec::new());
    }
    let setpriv =
        find_program("setpriv").ok_or(BenchError::NotInstalled { program: "setpriv".into(), package: "util-linux" })?;
    let arguments = [format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_owned()];
    Ok(std::iter::once(setpriv).chain(arguments.into_iter().map(PathBuf::from)).collect())
}
