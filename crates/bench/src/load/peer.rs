//! A contestant in a process of its own: our own workers, and libraries in other languages.
//!
//! Both are told what to do in lines of words, and answer in lines of words:
//!
//! ```text
//!   ◀ ready NAME VERSION                     or: absent WHY
//!   ▶ alone RESOURCE TTL_MS LEAD_IN ROUNDS LIMIT_MS
//!   ◀ times NANOS NANOS x …                  one for each measured round; x for one that failed
//!   ▶ many RESOURCE TTL_MS TASKS MILLIS      each task locks and unlocks a resource of its own for so long
//!   ◀ rounds DONE FAILED
//!   ▶ crowd RESOURCE TTL_MS FIRST_TASK TASKS HOLD_US GRANTS START END
//!   ◀ grant TASK ASKED GRANTED RELEASED …    from START on, each task has the lock so often, or gives up at END
//!   ◀ done FAILED
//! ```
//!
//! Moments are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share. RELEASED is taken before the
//! release is sent. A process ends when its standard input does.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::contestant::{Outcome, Turn};
use super::crowd::Grant;
use super::{TTL, clock};

/// How long a process may take until it is ready; interpreters on a busy machine are the slowest case.
const READY_MAX: Duration = Duration::from_secs(30);

/// How much longer than it was told a process may take to answer.
const ANSWER_SLACK: Duration = Duration::from_secs(5);

/// The same for a single task, of which it is known that some never come back.
const ALONE_SLACK: Duration = Duration::from_secs(3);

/// A running process.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) version: String,
    /// Why it will not answer any more, and how long it was waited for.
    stalled: Option<(String, Duration)>,
    /// Killed when dropped, if it has not ended by itself when its input did.
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What a crowd of tasks in one process is to do.
#[derive(Debug, Clone)]
pub(super) struct Errand {
    pub(super) resource: String,
    pub(super) tasks: usize,
    pub(super) hold: Duration,
    pub(super) grants: usize,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Peer {
    /// Starts a process and waits until it is ready, or says why it cannot be.
    pub(super) async fn start(
        program: &Path,
        arguments: &[OsString],
        urls: &[String],
        libraries: &Path,
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(arguments).arg(urls.join(",")).env("PEERS", libraries);
        command.env("PYTHONDONTWRITEBYTECODE", "1").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("has no standard input or output".into());
        };
        let mut peer =
            Self { version: String::new(), stalled: None, _child: child, input, output: BufReader::new(output) };
        let greeting = peer.line(READY_MAX).await?;
        match greeting.split_once(' ') {
            Some(("ready", version)) => peer.version = version.to_owned(),
            Some(("absent", why)) => return Err(why.to_owned()),
            _ => return Err(format!("began with {greeting:?}")),
        }
        Ok(peer)
    }

    /// Rounds of one task. One that does not come back, as on a frozen server without a time limit, counts as failed and
    /// with the time that it was waited for, which is less than it would have taken; and it is not waited for again.
    pub(super) async fn alone(&mut self, resource: &str, turn: Turn) -> Outcome {
        let Turn { lead_in, rounds, limit } = turn;
        let (ttl, limit_ms) = (TTL.as_millis(), limit.as_millis());
        let mut outcome = Outcome::default();
        if self.stalled.is_none() {
            let asked = Instant::now();
            let question = format!("alone {resource} {ttl} {lead_in} {rounds} {limit_ms}");
            match self.ask(&question, limit + ALONE_SLACK).await {
                Ok(line) => {
                    for word in line.split(' ').skip(1) {
                        match word.parse() {
                            Ok(nanos) => outcome.add(Duration::from_nanos(nanos), Ok::<(), &str>(())),
                            Err(_) => outcome.add(Duration::ZERO, Err("not_locked")),
                        }
                    }
                }
                Err(why) => self.stalled = Some((why, asked.elapsed())),
            }
        }
        if let Some((why, waited)) = &self.stalled {
            outcome.times.push(*waited);
            outcome.failures.insert(why.clone(), 1);
        }
        outcome
    }

    /// Rounds of many tasks on resources of their own: how many were done, and how many failed.
    pub(super) async fn many(
        &mut self,
        resource: &str,
        tasks: usize,
        time: Duration,
    ) -> Result<(usize, usize), String> {
        let (ttl, millis) = (TTL.as_millis(), time.as_millis());
        let line = self.ask(&format!("many {resource} {ttl} {tasks} {millis}"), time + ANSWER_SLACK).await?;
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["rounds", done, failed] => Some((done.parse().ok(), failed.parse().ok())),
            _ => None,
        }
        .and_then(|(done, failed)| Some((done?, failed?)))
        .ok_or_else(|| format!("answered {line:?}"))
    }

    /// Begins what [`Peer::grants`] gives the result of.
    pub(super) async fn begin_crowd(&mut self, errand: &Errand, first_task: usize) -> Result<(), String> {
        let Errand { resource, tasks, hold, grants, start, end } = errand;
        let (ttl, hold) = (TTL.as_millis(), hold.as_micros());
        self.say(&format!("crowd {resource} {ttl} {first_task} {tasks} {hold} {grants} {start} {end}")).await
    }

    /// What came of it: all grants, and how many were not had.
    pub(super) async fn grants(&mut self, end: u64) -> Result<(Vec<Grant>, usize), String> {
        let limit = Duration::from_nanos(end.saturating_sub(clock::nanos())) + ANSWER_SLACK;
        let mut grants = Vec::new();
        loop {
            let line = self.line(limit).await?;
            let numbers: Vec<u64> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
            match (line.split(' ').next(), &numbers[..]) {
                (Some("grant"), [task, asked, granted, released]) => {
                    let task = usize::try_from(*task).unwrap_or(usize::MAX);
                    grants.push(Grant { task, asked: *asked, granted: *granted, released: *released });
                }
                (Some("done"), [failed]) => return Ok((grants, usize::try_from(*failed).unwrap_or(usize::MAX))),
                _ => return Err(format!("answered {line:?}")),
            }
        }
    }

    async fn ask(&mut self, question: &str, limit: Duration) -> Result<String, String> {
        self.say(question).await?;
        self.line(limit).await
    }

    async fn say(&mut self, line: &str) -> Result<(), String> {
        let said = self.input.write_all(format!("{line}\n").as_bytes()).await;
        said.map_err(|error| format!("does not listen: {error}"))
    }

    async fn line(&mut self, limit: Duration) -> Result<String, String> {
        let mut line = String::new();
        match tokio::time::timeout(limit, self.output.read_line(&mut line)).await {
            Err(_) => Err(format!("said nothing for {} s", limit.as_secs())),
            Ok(Err(error)) => Err(format!("cannot be heard: {error}")),
            Ok(Ok(0)) => Err("has ended".into()),
            Ok(Ok(_)) => Ok(line.trim_end().to_owned()),
        }
    }
}
