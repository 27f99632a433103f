//! Who takes part, one task each, with a resource of its own, so that nobody stands in anybody's way.

use std::collections::BTreeMap;
use std::time::Duration;

use redlock_backends::RedisNode;
use redlock_core::{IntoResources, Redlock, ReleaseOutcome};
use rslock::LockManager;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fan_out::{Commands, FanOut};
use super::figures;
use super::peer::Peer;
use super::{LoadError, TTL};

/// The pause after a round that failed. Nobody asks again at once; and a client that does gives its own runtime no time
/// to take in the answers that it missed.
const AFTER_FAILURE: Duration = Duration::from_millis(1);

/// How long a client may take to end what goes on in the background after its turn.
const SETTLE_MAX: Duration = Duration::from_millis(25);

/// A client that is ready to lock and unlock.
#[derive(Debug)]
pub(super) struct Contestant {
    /// What figures are filed under.
    pub(super) name: String,
    /// What people read.
    pub(super) what: String,
    client: Client,
    resource: String,
}

/// Whose lock.
#[derive(Debug)]
pub(super) enum Client {
    Ours(Redlock),
    Raw(FanOut),
    Rslock(LockManager),
    Peer(Box<Peer>),
}

/// How much of a turn there is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// Rounds that are not measured: the contestant before has left its traces in every cache.
    pub(super) lead_in: usize,
    /// Rounds that are.
    pub(super) rounds: usize,
    /// When no further round is begun.
    pub(super) limit: Duration,
}

/// What came of a turn.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The times; those of rounds that failed are [`figures::FAILED`].
    pub(super) times: Vec<Duration>,
    /// How many rounds failed, by the reason.
    pub(super) failures: BTreeMap<String, usize>,
}

/// Our client as anybody would set it up, with every default.
pub(super) async fn ours(urls: &[String]) -> Result<Redlock, LoadError> {
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    Ok(Redlock::builder().nodes(nodes).build()?)
}

/// The same with the crash-recovery guard on, under a prefix of its own: whoever shares one has it on, too.
async fn guarded(urls: &[String]) -> Result<Redlock, LoadError> {
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = Redlock::builder().nodes(nodes).key_prefix("guarded:").crash_guard(TTL).build()?;
    redlock.enroll_fresh().await?;
    Ok(redlock)
}

/// The same with time for a profiler, under which everything is slow.
pub(super) async fn ours_with_time(urls: &[String], node_timeout: Duration) -> Result<Redlock, LoadError> {
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    Ok(Redlock::builder().nodes(nodes).node_timeout(node_timeout).build()?)
}

/// The rslock crate as its readme sets it up, with every default.
pub(super) fn rslock(urls: &[String]) -> LockManager {
    LockManager::new(urls.to_vec())
}

impl Contestant {
    pub(super) fn new(name: impl Into<String>, what: impl Into<String>, client: Client) -> Self {
        let name = name.into();
        Self { resource: format!("load/{name}"), name, what: what.into(), client }
    }

    pub(super) async fn ours(name: &str, what: &str, urls: &[String]) -> Result<Self, LoadError> {
        Ok(Self::new(name, what, Client::Ours(ours(urls).await?)))
    }

    pub(super) async fn guarded(name: &str, what: &str, urls: &[String]) -> Result<Self, LoadError> {
        Ok(Self::new(name, what, Client::Ours(guarded(urls).await?)))
    }

    pub(super) async fn raw(name: &str, what: &str, urls: &[String], commands: Commands) -> Result<Self, LoadError> {
        let fan_out = FanOut::connect(urls, commands, &format!("load/{name}")).await?;
        Ok(Self::new(name, what, Client::Raw(fan_out)))
    }

    /// Locks and unlocks again and again.
    pub(super) async fn turn(&mut self, turn: Turn) -> Outcome {
        if let Client::Peer(peer) = &mut self.client {
            return peer.alone(&self.resource, turn).await;
        }
        let mut outcome = Outcome::default();
        let end = Instant::now() + turn.limit;
        for round in 0..turn.lead_in + turn.rounds {
            let started = Instant::now();
            if 0 < round && end < started {
                break;
            }
            let result = self.round().await;
            let time = started.elapsed();
            if result.is_err() {
                tokio::time::sleep(AFTER_FAILURE).await;
            }
            // Whoever is so slow that the lead-in fills the turn is measured by it.
            if turn.lead_in <= round || end < started + time {
                outcome.add(time, result);
            }
        }
        self.settle().await;
        outcome
    }

    /// Locks and unlocks on a majority, or says in a word why that did not work.
    pub(super) async fn round(&mut self) -> Result<(), &'static str> {
        match &mut self.client {
            Client::Ours(redlock) => our_round(redlock, self.resource.as_str()).await,
            Client::Raw(fan_out) => fan_out.round().await,
            Client::Rslock(manager) => rslock_round(manager, &self.resource).await,
            Client::Peer(_) => Err("not_in_this_process"),
        }
    }

    /// Ends what would otherwise go on in somebody else's turn.
    async fn settle(&mut self) {
        match &mut self.client {
            Client::Ours(redlock) => {
                // What takes longer than this is with a server in trouble, and bounded by the client.
                let _ = tokio::time::timeout(SETTLE_MAX, redlock.settled()).await;
            }
            Client::Raw(fan_out) => fan_out.settle().await,
            Client::Rslock(_) | Client::Peer(_) => {}
        }
    }
}

pub(super) async fn our_round(redlock: &Redlock, resource: impl IntoResources) -> Result<(), &'static str> {
    let guard = redlock.try_acquire(resource).await.map_err(|error| error.class())?;
    match guard.release().await.outcome {
        ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum => Ok(()),
        outcome => Err(outcome.as_str()),
    }
}

pub(super) async fn rslock_round(manager: &LockManager, resource: &str) -> Result<(), &'static str> {
    let lock = manager.lock(resource, TTL).await.map_err(|_| "not_locked")?;
    manager.unlock(&lock).await;
    Ok(())
}

impl Outcome {
    pub(super) fn add(&mut self, time: Duration, result: Result<(), impl Into<String>>) {
        match result {
            Ok(()) => self.times.push(time),
            Err(reason) => {
                self.times.push(figures::FAILED);
                *self.failures.entry(reason.into()).or_default() += 1;
            }
        }
    }
}

/// What many tasks did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Many {
    pub(super) done: usize,
    pub(super) failed: usize,
}

impl Contestant {
    /// Many tasks at once, each with a resource of its own, as often as they can for so long.
    pub(super) async fn many(&mut self, tasks: usize, time: Duration) -> Result<Many, String> {
        if let Client::Peer(peer) = &mut self.client {
            let (done, failed) = peer.many(&self.resource, tasks, time).await?;
            return Ok(Many { done, failed });
        }
        let mut running = JoinSet::new();
        let end = Instant::now() + time;
        for task in 0..tasks {
            let resource = format!("{}/{task}", self.resource);
            match &self.client {
                Client::Ours(redlock) => {
                    let redlock = redlock.clone();
                    running.spawn(async move {
                        let mut many = Many::default();
                        while Instant::now() < end {
                            many.add(our_round(&redlock, resource.as_str()).await);
                        }
                        many
                    });
                }
                Client::Raw(fan_out) => {
                    let mut fan_out = fan_out.another(&resource, u32::try_from(task + 1).unwrap_or(u32::MAX));
                    running.spawn(async move {
                        let mut many = Many::default();
                        while Instant::now() < end {
                            many.add(fan_out.round().await);
                        }
                        fan_out.settle().await;
                        many
                    });
                }
                Client::Rslock(manager) => {
                    let manager = manager.clone();
                    running.spawn(async move {
                        let mut many = Many::default();
                        while Instant::now() < end {
                            many.add(rslock_round(&manager, &resource).await);
                        }
                        many
                    });
                }
                Client::Peer(_) => {}
            }
        }
        let mut all = Many::default();
        for Many { done, failed } in running.join_all().await {
            all.done += done;
            all.failed += failed;
        }
        self.settle().await;
        Ok(all)
    }
}

impl Many {
    fn add(&mut self, result: Result<(), &'static str>) {
        match result {
            Ok(()) => self.done += 1,
            Err(_) => self.failed += 1,
        }
    }
}
