//! What the user may do, found out by doing it: on keys of the doctor's own, which are gone afterwards.
//!
//! A server that is asked what it allows needs rights for the question, and may be one that cannot answer it (before Redis 7). So
//! every command of `docs/operating.md` is tried with arguments that harm nobody. A refusal for any other reason than rights is
//! kept as well: it is how a server says that it cannot write.

use crate::remote::{PATIENCE, Remote, Unanswered, client, command, sort};
use crate::settings::Settings;
use redlock_backends::redis::KeyNames;
use redlock_core::{KeyPrefix, OsRandomness, Owner, Randomness as _, Resource};

/// What came of trying.
#[derive(Clone, Debug, Default)]
pub(super) struct Rights {
    /// Commands without which nothing is locked.
    pub(super) missing: Vec<&'static str>,
    /// Commands, or channels, without which nobody waits in line.
    pub(super) missing_for_lines: Vec<&'static str>,
    /// Commands that the server does not know.
    pub(super) unknown: Vec<&'static str>,
    /// Why something else did not work.
    pub(super) failed: Option<String>,
    /// Whether commands that write were left out.
    pub(super) not_tried: bool,
}

/// What a command is for, and whether it writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Reading,
    Locks,
    Lines,
}

/// Tries every command.
pub(super) async fn try_all(
    remote: &Remote,
    settings: &Settings,
    position: usize,
    prefix: &KeyPrefix,
    read_only: bool,
) -> Rights {
    let mut random = [0; 16];
    OsRandomness.fill(&mut random);
    let name = format!("redlock-doctor-{}", Owner::from_random_bytes(random).expose());
    let resource = Resource::new(&name).expect("a short name");
    let keys = KeyNames::of(prefix, &resource);
    let (lock, line) = (keys.lock.as_str(), keys.line.as_str());
    // Beside the counter, and as such gone with the rest.
    let record = keys.record.as_str();
    let hash = format!("{}:hash", keys.counter);
    let channel = format!("{}~call:{name}", prefix.as_str());
    let life = "5000";
    let tried: [(For, &'static str, &[&str]); 26] = [
        (For::Reading, "get", &["GET", lock]),
        (For::Reading, "exists", &["EXISTS", lock]),
        (For::Reading, "pttl", &["PTTL", lock]),
        (For::Reading, "type", &["TYPE", lock]),
        (For::Reading, "time", &["TIME"]),
        (For::Reading, "hmget", &["HMGET", record, "base"]),
        (For::Reading, "script|load", &["SCRIPT", "LOAD", "return 1"]),
        (For::Reading, "eval", &["EVAL", "return 1", "0"]),
        (For::Reading, "evalsha", &["EVALSHA", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "0"]),
        (For::Locks, "set", &["SET", lock, "doctor", "NX", "PX", life]),
        (For::Locks, "pexpire", &["PEXPIRE", lock, life]),
        (For::Locks, "hset", &["HSET", &hash, "doctor", "1"]),
        (For::Locks, "hdel", &["HDEL", &hash, "other"]),
        (For::Locks, "pexpire", &["PEXPIRE", &hash, life]),
        (For::Locks, "del", &["DEL", &hash]),
        (For::Locks, "del", &["DEL", lock]),
        (For::Lines, "publish", &["PUBLISH", &channel, "0"]),
        (For::Lines, "rpush", &["RPUSH", line, "doctor"]),
        (For::Lines, "pexpire", &["PEXPIRE", line, life]),
        (For::Lines, "lindex", &["LINDEX", line, "0"]),
        (For::Lines, "lpos", &["LPOS", line, "doctor"]),
        (For::Lines, "lrem", &["LREM", line, "1", "doctor"]),
        (For::Lines, "ltrim", &["LTRIM", line, "0", "-1"]),
        (For::Lines, "lpop", &["LPOP", line]),
        (For::Lines, "rpop", &["RPOP", line]),
        (For::Lines, "del", &["DEL", line]),
    ];
    let mut rights = Rights { not_tried: read_only, ..Rights::default() };
    for (wanted_for, name, words) in tried {
        if read_only && wanted_for != For::Reading {
            continue;
        }
        let answer = remote.ask::<redis::Value>(&command(words)).await;
        rights.note(wanted_for, name, answer.err());
    }
    if !read_only {
        rights.note(For::Lines, "subscribe", subscribe(settings, position, &channel).await.err());
    }
    rights
}

impl Rights {
    fn note(&mut self, wanted_for: For, name: &'static str, error: Option<Unanswered>) {
        let list = match error {
            None => return,
            // Said already, and worse.
            Some(Unanswered::NotAllowed(_)) if self.missing.contains(&name) => return,
            Some(Unanswered::NotAllowed(_)) if wanted_for == For::Lines => &mut self.missing_for_lines,
            Some(Unanswered::NotAllowed(_)) => &mut self.missing,
            Some(Unanswered::NoSuchCommand(_)) => &mut self.unknown,
            // A script of that digest need not be there.
            Some(Unanswered::Refused(said)) if said.contains("NOSCRIPT") || said.contains("NoScript") => return,
            Some(other) => {
                self.failed.get_or_insert_with(|| format!("{name}: {other}"));
                return;
            }
        };
        if !list.contains(&name) {
            list.push(name);
        }
    }
}

/// Whether calls would be heard. On a connection of its own, which is closed again.
async fn subscribe(settings: &Settings, position: usize, channel: &str) -> Result<(), Unanswered> {
    let listen = async {
        let client = client(settings, position).await?;
        let mut connection = client.get_async_pubsub().await.map_err(|error| sort(&error))?;
        connection.subscribe(channel).await.map_err(|error| sort(&error))
    };
    match tokio::time::timeout(PATIENCE, listen).await {
        Ok(answer) => answer,
        Err(_) => Err(Unanswered::Silent(format!("no answer within {PATIENCE:?}"))),
    }
}
