//! Waiters, in this process and in processes of their own, and looks at the lines they stand in.

use crate::support::*;
use redlock_bench::{Process, Servers, eventually};
use redlock_core::{Guard, Redlock, Retry};
use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::Stdio;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// As the settings have it unless they are set.
pub(crate) const RETRY: Retry = Retry { wait: ms(60_000), attempts: u32::MAX, delay: ms(25), jitter: ms(50) };

/// Begins something that goes on beside the test.
#[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
pub(crate) fn begin<T: Send + 'static>(what: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(what)
}

/// Begins to wait for the lock, and tells when it was granted.
pub(crate) fn waits(redlock: &Redlock, resource: &str) -> JoinHandle<(Instant, Guard)> {
    let (redlock, resource) = (redlock.clone(), resource.to_owned());
    begin(async move {
        let guard = redlock.request(resource).retry(RETRY).acquire().await.unwrap_or_else(|e| panic!("{}", chain(&e)));
        (Instant::now(), guard)
    })
}

/// How many stand in line for a resource on each server that answers.
pub(crate) async fn lines(servers: &Servers, resource: &str) -> Vec<i64> {
    let mut lines = Vec::new();
    for server in servers.iter().filter(|server| server.is_running()) {
        let answer =
            server.probe().deadline(ms(200)).command(&["LLEN", &format!("lock:~line:{{lock:{resource}}}")]).await;
        lines.push(answer.ok().and_then(|answer| answer.into_integer("LLEN").ok()).unwrap_or(0));
    }
    lines
}

/// Awaits that so many stand in line, and says on which server most of them do.
pub(crate) async fn stand_in_line(servers: &Servers, resource: &str, count: i64) -> usize {
    let lines = eventually(ms(10_000), || async {
        let lines = lines(servers, resource).await;
        if lines.iter().sum::<i64>() == count { Ok(lines) } else { Err(format!("in line: {lines:?}")) }
    })
    .await
    .unwrap();
    let longest = lines.iter().max().copied();
    lines.iter().position(|line| Some(*line) == longest).unwrap()
}

/// A process that does what it is told by its environment, and says what becomes of it.
pub(crate) struct Elsewhere {
    pub(crate) process: Process,
    said: BufReader<PipeReader>,
}

impl Elsewhere {
    /// Starts this program again, at the test that is named, which finds `variable` set.
    pub(crate) fn start(servers: &Servers, test: &str, variable: &str) -> Self {
        let (output, input) = std::io::pipe().unwrap();
        let process = Process::spawn(std::env::current_exe().unwrap(), |command| {
            command.args(["--exact", test, "--nocapture"]).env(variable, servers.urls().join(","));
            command.stdin(Stdio::null()).stdout(input);
        })
        .unwrap();
        Self { process, said: BufReader::new(output) }
    }

    /// What it says after `word`, once it does.
    pub(crate) async fn says(mut self, word: &'static str) -> (Self, String) {
        // Ends at the latest with the process, whose end of the pipe closes then.
        tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            loop {
                line.clear();
                assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it ended without saying {word:?}");
                if let Some((_, rest)) = line.split_once(word) {
                    let rest = rest.trim().to_owned();
                    return (self, rest);
                }
            }
        })
        .await
        .unwrap()
    }
}

/// The client of a process that was started with the servers in its environment.
pub(crate) async fn client_elsewhere(urls: &str) -> Redlock {
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    builder(connect(&urls).await).build().unwrap()
}
