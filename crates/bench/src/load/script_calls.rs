//! What our own client sends for one lock and one release, as a pattern that can be sent again by anybody.
//!
//! The floor that shall do "the same without the algorithm" must send what we send now, not what we sent when this was
//! written. So it is heard on the servers: two rounds are listened to, and what differs between them is what differs from
//! round to round, the owner and the floor of the counters.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::{Cmd, Value};
use redlock_backends::RedisNode;
use redlock_core::Redlock;
use tokio::time::Instant;

use super::LoadError;
use super::monitor::Monitor;
use crate::RedisServer;

/// Commands that run scripts; others, such as what a connection begins with, are no part of a round.
const RUNS_SCRIPTS: [&str; 3] = ["evalsha", "eval", "fcall"];

/// A number so great is microseconds since 1970.
const MICROS_MIN: u64 = 1_000_000_000_000_000;

/// What is sent to one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Calls {
    acquire: Vec<Word>,
    release: Vec<Word>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Same(String),
    Resource { before: String, after: String },
    Owner,
    Floor,
}

/// How often it is listened before that is given up.
const TRIES: usize = 5;

/// The name that our client locks while it is listened to; short, and in no other word.
const NAME: &str = "load/heard";

impl Calls {
    /// Listens to our client on these servers. The pattern is the same for all of them, or the floor is not to be had.
    ///
    /// On a machine that is very busy a server may be heard too late, or one more script be needed; so it listens again.
    pub(super) async fn heard(servers: &[RedisServer]) -> Result<Self, LoadError> {
        let mut heard = Self::heard_once(servers).await;
        for _ in 1..TRIES {
            match heard {
                Err(LoadError::NoPattern(_)) => heard = Self::heard_once(servers).await,
                other => return other,
            }
        }
        heard
    }

    async fn heard_once(servers: &[RedisServer]) -> Result<Self, LoadError> {
        let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
        let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
        let redlock = Redlock::builder().nodes(nodes).build()?;
        let mut monitors = Vec::new();
        for server in servers {
            monitors.push(Monitor::of(server).await?);
        }
        // Before the first round servers do not know the scripts yet.
        let mut rounds = Vec::new();
        for _ in 0..3 {
            let guard = redlock.try_acquire(NAME).await.map_err(|_| LoadError::NoPattern("our client got no lock"))?;
            let acquires = hear(&mut monitors).await?;
            guard.release().await;
            rounds.push((acquires, hear(&mut monitors).await?));
        }
        let (one, other) = (&rounds[1], &rounds[2]);
        let mut patterns = (0..servers.len()).map(|server| {
            pattern([&one.0[server], &one.1[server]], [&other.0[server], &other.1[server]])
                .ok_or(LoadError::NoPattern("more differs between two rounds than an owner and a floor"))
        });
        let first = patterns.next().ok_or(LoadError::NoPattern("there is no server"))??;
        for pattern in patterns {
            if pattern? != first {
                return Err(LoadError::NoPattern("not every server is sent the same"));
            }
        }
        Ok(first)
    }

    pub(super) fn acquire(&self, name: &str, owner: &str, time: &Time) -> Cmd {
        command(&self.acquire, name, owner, time)
    }

    pub(super) fn release(&self, name: &str, owner: &str, time: &Time) -> Cmd {
        command(&self.release, name, owner, time)
    }

    /// A granted acquire answers with the counter; a refused one with a list.
    pub(super) fn is_granted(answer: &Value) -> bool {
        matches!(answer, Value::Int(_))
    }

    /// A release that found what it was to release answers with a count.
    pub(super) fn is_released(answer: &Value) -> bool {
        match answer {
            Value::Int(released) => 0 < *released,
            Value::Array(parts) => parts.first().is_some_and(Self::is_released),
            _ => false,
        }
    }
}

/// The calendar of the machine, carried forward by the clock: what our nodes do with a server's.
#[derive(Debug, Clone)]
pub(super) struct Time {
    micros: u64,
    at: Instant,
}

impl Time {
    #[expect(clippy::disallowed_methods, reason = "the floor of a counter is a calendar's; nothing else depends on it")]
    pub(super) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { micros: u64::try_from(since.as_micros()).unwrap_or(u64::MAX), at: Instant::now() }
    }

    fn micros(&self) -> u64 {
        self.micros + u64::try_from(self.at.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

fn command(words: &[Word], name: &str, owner: &str, time: &Time) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        match word {
            Word::Same(word) => command.arg(word),
            Word::Resource { before, after } => command.arg([before, name, after].concat()),
            Word::Owner => command.arg(owner),
            Word::Floor => command.arg(time.micros()),
        };
    }
    command
}

/// For each server the one script it was told to run.
async fn hear(monitors: &mut [Monitor]) -> Result<Vec<Vec<String>>, LoadError> {
    let mut calls = Vec::new();
    for monitor in monitors {
        let heard = monitor.heard().await?;
        let mut scripts =
            heard.into_iter().filter(|heard| !heard.from_script && RUNS_SCRIPTS.contains(&&*heard.words[0]));
        let call = scripts.next().ok_or(LoadError::NoPattern("a server was told to run no script"))?;
        calls.push(call.words);
    }
    Ok(calls)
}

fn pattern(one: [&Vec<String>; 2], other: [&Vec<String>; 2]) -> Option<Calls> {
    let owner = one[1].iter().zip(other[1]).find(|(one, other)| one != other).map(|(one, _)| one.clone())?;
    Some(Calls { acquire: words(one[0], other[0], &owner)?, release: words(one[1], other[1], &owner)? })
}

fn words(one: &[String], other: &[String], owner: &str) -> Option<Vec<Word>> {
    let word = |(one, other): (&String, &String)| match one.split_once(NAME) {
        _ if one == owner => Some(Word::Owner),
        Some((before, after)) if one == other => {
            Some(Word::Resource { before: before.to_owned(), after: after.to_owned() })
        }
        None if one == other => Some(Word::Same(one.clone())),
        _ => one.parse().is_ok_and(|number: u64| MICROS_MIN < number).then_some(Word::Floor),
    };
    (one.len() == other.len()).then(|| one.iter().zip(other).map(word).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(words: &str) -> Vec<String> {
        words.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_differs_is_the_owner_and_the_floor() {
        let one =
            [&said("evalsha ab 2 lock:load/heard fence:{load/heard} o1 10 1700000000000001"), &said("evalsha cd o1")];
        let other =
            [&said("evalsha ab 2 lock:load/heard fence:{load/heard} o2 10 1700000000000009"), &said("evalsha cd o2")];
        let calls = pattern(one, other).unwrap();
        assert_eq!(calls.acquire[3], Word::Resource { before: "lock:".into(), after: String::new() });
        assert_eq!(calls.acquire[5..], [Word::Owner, Word::Same("10".into()), Word::Floor]);
        assert_eq!(calls.release[2], Word::Owner);
        assert_eq!(pattern(one, [one[0], &said("evalsha cd o1")]), None, "no owner");
        assert_eq!(pattern(one, [&said("evalsha xy 2 a b o2 10 17"), other[1]]), None, "another script");
    }
}
