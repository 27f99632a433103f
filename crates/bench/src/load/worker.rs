//! Our side of a crowd: a process with some tasks that all want the same lock. The words are those of `peer`.

use std::sync::Arc;
use std::time::Duration;

use redlock_core::Redlock;
use rslock::LockManager;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use super::contestant::{ours, rslock};
use super::crowd::Grant;
use super::{LoadError, TTL, clock};

/// Whose lock the tasks use.
#[derive(Clone)]
enum Lock {
    Ours(Redlock),
    /// A fair queue in the process, and whoever is its head locks and unlocks with nobody else there: as good as it gets.
    Ideal(Redlock, Arc<Mutex<()>>),
    Rslock(LockManager),
}

/// The kinds of workers that this program can be.
pub(super) const OURS: &str = "redlock";
pub(super) const IDEAL: &str = "ideal";
pub(super) const RSLOCK: &str = "rslock";

/// Does what standard input says, until it ends.
///
/// # Errors
/// [`LoadError`] if the servers cannot be reached, or a line makes no sense.
///
/// # Cancel safety
/// Dropping the future ends all tasks.
pub async fn work(kind: &str, urls: &str) -> Result<(), LoadError> {
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let lock = match kind {
        OURS => Lock::Ours(ours(&urls).await?),
        IDEAL => Lock::Ideal(ours(&urls).await?, Arc::default()),
        RSLOCK => Lock::Rslock(rslock(&urls)),
        _ => return Err(LoadError::NoSuchContestant(kind.to_owned())),
    };
    // Connects those that connect when they are first used.
    lock.once(&format!("load/hello/{}", std::process::id())).await;
    say(&format!("ready {}\n", env!("CARGO_PKG_VERSION"))).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.map_err(crate::BenchError::io("read what to do"))? {
        let words: Vec<&str> = line.split(' ').collect();
        let ["crowd", resource, _, numbers @ ..] = &words[..] else {
            return Err(LoadError::NoSuchContestant(line));
        };
        let numbers: Vec<u64> = numbers.iter().filter_map(|word| word.parse().ok()).collect();
        let [first, tasks, hold_us, grants, start, end] = numbers[..] else {
            return Err(LoadError::NoSuchContestant(line.clone()));
        };
        let errand = Errand { resource: (*resource).into(), hold: Duration::from_micros(hold_us), grants, start, end };
        let mut crowd = JoinSet::new();
        for task in first..first + tasks {
            crowd.spawn(errand.clone().run(lock.clone(), usize::try_from(task).unwrap_or(usize::MAX)));
        }
        let (mut answer, mut failed) = (String::new(), 0);
        for (grants, missing) in crowd.join_all().await {
            for Grant { task, asked, granted, released } in grants {
                answer += &format!("grant {task} {asked} {granted} {released}\n");
            }
            failed += missing;
        }
        say(&(answer + &format!("done {failed}\n"))).await?;
    }
    Ok(())
}

async fn say(text: &str) -> Result<(), LoadError> {
    let mut output = tokio::io::stdout();
    output.write_all(text.as_bytes()).await.map_err(crate::BenchError::io("answer"))?;
    output.flush().await.map_err(crate::BenchError::io("answer"))?;
    Ok(())
}

#[derive(Clone)]
struct Errand {
    resource: Arc<str>,
    hold: Duration,
    grants: u64,
    start: u64,
    end: u64,
}

impl Errand {
    async fn run(self, lock: Lock, task: usize) -> (Vec<Grant>, u64) {
        clock::pause(Duration::from_nanos(self.start.saturating_sub(clock::nanos()))).await;
        let mut grants = Vec::new();
        for done in 0..self.grants {
            let asked = clock::nanos();
            match lock.grant(&self, asked).await {
                Some((granted, released)) => grants.push(Grant { task, asked, granted, released }),
                None => return (grants, self.grants - done),
            }
        }
        (grants, 0)
    }

    fn time_left(&self) -> Duration {
        Duration::from_nanos(self.end.saturating_sub(clock::nanos()))
    }

    /// What is done under the lock: nothing, for a while.
    async fn hold(&self) -> (u64, u64) {
        let granted = clock::nanos();
        clock::pause(self.hold).await;
        (granted, clock::nanos())
    }
}

impl Lock {
    /// Gets the lock, holds it and gives it back; says when it had it and when it began to give it back.
    async fn grant(&self, errand: &Errand, asked: u64) -> Option<(u64, u64)> {
        if errand.end <= asked {
            return None;
        }
        match self {
            Self::Ours(redlock) => {
                let guard = redlock.request(&*errand.resource).wait(errand.time_left()).acquire().await.ok()?;
                let held = errand.hold().await;
                guard.release().await;
                Some(held)
            }
            Self::Ideal(redlock, queue) => {
                let _head = queue.lock().await;
                let guard = redlock.request(&*errand.resource).wait(errand.time_left()).acquire().await.ok()?;
                let held = errand.hold().await;
                guard.release().await;
                Some(held)
            }
            Self::Rslock(manager) => {
                let wanted = manager.acquire(&*errand.resource, TTL);
                let guard = tokio::time::timeout(errand.time_left(), wanted).await.ok()?.ok()?;
                let held = errand.hold().await;
                guard.release().await;
                Some(held)
            }
        }
    }

    async fn once(&self, resource: &str) {
        let errand = Errand { resource: resource.into(), hold: Duration::ZERO, grants: 1, start: 0, end: u64::MAX / 2 };
        let _ = self.grant(&errand, clock::nanos()).await;
    }
}
