//! What these tests have in common: servers, the command as a child that never outlives its test, and looks at processes.

use redlock_bench::{Process, RedisServer, Servers, eventually};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The program under test.
pub(crate) fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_redlock").into()
}

/// The command, set up for these servers and for nothing of the environment's.
pub(crate) struct Redlock {
    /// Where its output is kept, and programs may leave notes.
    pub(crate) directory: TempDir,
    urls: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A call that is under way.
pub(crate) struct Call {
    pub(crate) process: Process,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its code, or 128 and the signal that ended it.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Redlock {
    pub(crate) fn of(servers: &Servers) -> Self {
        Self::at(servers.urls())
    }

    pub(crate) fn at(urls: Vec<String>) -> Self {
        // A busy machine is no outage: the deadline of a node is a tenth of the ttl at most.
        Self { directory: tempfile::tempdir().expect("a directory"), urls, environment: Vec::new() }
    }

    pub(crate) fn set(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// A file in which a program leaves a note.
    pub(crate) fn note(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Begins a call; these arguments follow the command's name.
    pub(crate) fn begin(&self, arguments: &[&str]) -> Call {
        self.begin_with(arguments, |_| {})
    }

    pub(crate) fn begin_with(&self, arguments: &[&str], configure: impl FnOnce(&mut Command)) -> Call {
        let unique = tempfile::Builder::new().tempdir_in(self.directory.path()).expect("a directory").keep();
        let (stdout, stderr) = (unique.join("stdout"), unique.join("stderr"));
        let process = Process::spawn(program(), |command| {
            command.args(arguments).stdin(Stdio::null());
            command.stdout(File::create(&stdout).expect("a file")).stderr(File::create(&stderr).expect("a file"));
            self.prepare(command);
            configure(command);
        });
        Call { process: process.expect("the command starts"), stdout, stderr }
    }

    /// Gives a command the settings of this one.
    pub(crate) fn prepare(&self, command: &mut Command) {
        let ours = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REDLOCK_"));
        for (name, _) in ours {
            command.env_remove(name);
        }
        command.env("REDLOCK_NODES", self.urls.join(","));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.directory.path());
    }

    /// Makes a call and waits for its end.
    pub(crate) async fn call(&self, arguments: &[&str]) -> Ended {
        self.begin(arguments).end().await
    }
}

impl Call {
    /// Waits for the end.
    pub(crate) async fn end(self) -> Ended {
        let status = eventually(LONG, || async { self.process.exited().ok_or("the command is still running") })
            .await
            .unwrap_or_else(|late| panic!("{late}; stderr: {}", read(&self.stderr)));
        use std::os::unix::process::ExitStatusExt as _;
        let code = status.code().or(status.signal().map(|signal| 128 + signal)).expect("one of the two");
        Ended { code, stdout: read(&self.stdout), stderr: read(&self.stderr) }
    }

    pub(crate) fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.process.pid()).expect("a pid")).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

pub(crate) fn read(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

/// Waits for a note that a program leaves, a whole line.
pub(crate) async fn note_in(file: &Path) -> String {
    let look = || async {
        let text = read(file);
        if text.ends_with('\n') {
            Ok(text.trim_end().to_owned())
        } else {
            Err(format!("no note in {}", file.display()))
        }
    };
    eventually(LONG, look).await.unwrap_or_else(|late| panic!("{late}"))
}

/// The live processes of a group; those that have ended and were not reaped are not among them.
pub(crate) fn alive_in_group(group: i32) -> Vec<i32> {
    let pids = fs::read_dir("/proc").expect("Linux").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = read(Path::new(&format!("/proc/{pid}/stat")));
        let fields: Vec<&str> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        fields.first().is_some_and(|state| *state != "Z")
            && fields.get(2).and_then(|field| field.parse().ok()) == Some(group)
    })
    .collect()
}

/// The children of a process.
pub(crate) fn children_of(parent: u32) -> Vec<i32> {
    let pids = fs::read_dir("/proc").expect("Linux").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = read(Path::new(&format!("/proc/{pid}/stat")));
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace());
        fields.and_then(|mut fields| fields.nth(1)).and_then(|field| field.parse().ok()) == Some(parent)
    })
    .collect()
}

/// Waits until nobody of a group is alive.
pub(crate) async fn assert_group_gone(group: i32, within: Duration) {
    let gone = eventually(within, || async {
        let alive = alive_in_group(group);
        if alive.is_empty() { Ok(()) } else { Err(format!("alive: {alive:?}")) }
    });
    gone.await.unwrap_or_else(|late| panic!("{late}"));
}

/// Waits until no server has a lock key.
pub(crate) async fn assert_no_locks(servers: &[RedisServer], within: Duration) {
    let none = eventually(within, || async {
        let mut left = Vec::new();
        for server in servers.iter().filter(|server| server.is_running()) {
            let keys = server.probe().keys("lock:*").await.map_err(|error| error.to_string())?;
            left.extend(keys.into_iter().filter(|key| !key.starts_with("lock:~")));
        }
        if left.is_empty() { Ok(()) } else { Err(format!("locks are left: {left:?}")) }
    });
    none.await.unwrap_or_else(|late| panic!("{late}"));
}

/// Locks a resource as another client would.
pub(crate) async fn hold_elsewhere(servers: &[RedisServer], resource: &str) {
    for server in servers {
        let key = format!("lock:{resource}");
        server.command(&["SET", &key, "0123456789abcdef0123456789abcdef", "PX", "600000"]).await.expect("it answers");
    }
}
