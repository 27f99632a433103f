//! What every promise is checked on: a connection, a prefix that nobody else uses, owners that were never there before.
//!
//! Turns answers that are not due into words, and releases in the end all that anybody may have held.

use super::Fixture;
use crate::clock::Moment;
use crate::node::{Acquisition, Extension, HeldBy, LockNode, NodeError, Raising, Releasing};
use crate::owner::{OsRandomness, Owner, Ownership, Randomness as _};
use crate::resource::{IntoResources, KeyPrefix, Ttl};
use std::error::Error;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A ttl that does not run out while a promise is checked.
pub(super) const LONG: Duration = Duration::from_secs(3_600);

/// A ttl whose end is waited for.
pub(super) const SHORT: Duration = Duration::from_millis(200);

/// The time that passes between two questions whether a lock has ended.
const STEP: Duration = Duration::from_millis(10);

/// What a check ends with if the promise was not found to be kept.
#[derive(Debug)]
pub(super) enum Deviation {
    /// The node did this instead.
    Broken(String),
    /// The node does not claim to keep it.
    NotOffered(String),
}

pub(super) type Outcome<T = ()> = Result<T, Deviation>;

pub(super) fn broken<T>(instead: impl Into<String>) -> Outcome<T> {
    Err(Deviation::Broken(instead.into()))
}

pub(super) fn not_offered<T>(why: impl Into<String>) -> Outcome<T> {
    Err(Deviation::NotOffered(why.into()))
}

/// Makes sure of an answer.
pub(super) fn due<T: Debug + PartialEq>(question: &str, answer: T, due: T) -> Outcome {
    if answer == due { Ok(()) } else { broken(format!("{question} was answered {answer:?}, where {due:?} is due")) }
}

/// Nothing disturbs the node, so an error is not an answer.
pub(super) fn answered<T>(question: &str, answer: Result<T, NodeError>) -> Outcome<T> {
    answer.or_else(|error| broken(format!("{question} failed, though nothing disturbed the node: {}", told(&error))))
}

/// An error with its causes.
fn told(error: &NodeError) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |told, cause| format!("{told}: {cause}"))
}

/// A ttl known to be one.
pub(super) fn ttl(duration: Duration) -> Ttl {
    Ttl::new(duration).expect("between a millisecond and a year")
}

/// How much earlier than its ttl a lock may seem to end: what a client allows for clocks that drift.
pub(super) fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

pub(super) struct Stage<'a> {
    pub(super) fixture: &'a dyn Fixture,
    pub(super) node: Arc<dyn LockNode>,
    prefix: KeyPrefix,
    /// Everybody who may hold something.
    cast: Mutex<Vec<Ownership>>,
}

impl<'a> Stage<'a> {
    pub(super) async fn open(fixture: &'a dyn Fixture) -> Self {
        Self { fixture, node: fixture.connect().await, prefix: new_prefix(), cast: Mutex::default() }
    }

    /// Releases what anybody may hold still.
    pub(super) async fn close(&self) {
        let cast = std::mem::take(&mut *self.cast.lock().unwrap_or_else(PoisonError::into_inner));
        for ownership in &cast {
            // It is taken back as far as that goes; whether a release works is another promise.
            let _ = self.node.release(ownership).await;
        }
        self.fixture.clean_up(&self.prefix).await;
    }

    /// Connections, of which some may be the same.
    pub(super) async fn connections<const N: usize>(&self) -> [Arc<dyn LockNode>; N] {
        let mut connections = Vec::with_capacity(N);
        for _ in 0..N {
            connections.push(self.fixture.connect().await);
        }
        connections.try_into().unwrap_or_else(|_| unreachable!("as many were made"))
    }

    /// Somebody new, who wants these resources.
    pub(super) fn somebody(&self, names: impl IntoResources) -> Ownership {
        self.owning(new_owner(), names)
    }

    /// The same owner with other resources.
    pub(super) fn same_owner(&self, as_of: &Ownership, names: impl IntoResources) -> Ownership {
        self.owning(as_of.owner().clone(), names)
    }

    /// Somebody new, who wants the same under another prefix.
    pub(super) fn under_another_prefix(&self, as_of: &Ownership) -> Ownership {
        self.cast(Ownership::new(new_prefix(), as_of.resources().clone(), new_owner()))
    }

    fn owning(&self, owner: Owner, names: impl IntoResources) -> Ownership {
        let resources = names.into_resources().expect("names that a lock can cover");
        self.cast(Ownership::new(self.prefix.clone(), resources, owner))
    }

    fn cast(&self, ownership: Ownership) -> Ownership {
        self.cast.lock().unwrap_or_else(PoisonError::into_inner).push(ownership.clone());
        ownership
    }

    pub(super) fn now(&self) -> Moment {
        self.fixture.clock().now()
    }

    /// Lets a moment pass before the next question.
    pub(super) async fn step(&self) {
        self.fixture.let_pass(STEP).await;
    }

    pub(super) async fn acquire(&self, who: &Ownership, for_: Duration, floor: u64) -> Outcome<Acquisition> {
        answered("an acquire", self.node.acquire(who, ttl(for_), floor).await)
    }

    pub(super) async fn raise(&self, who: &Ownership, to: u64) -> Outcome<Raising> {
        answered("a raise", self.node.raise(who, to).await)
    }

    pub(super) async fn extend(&self, who: &Ownership, for_: Duration) -> Outcome<Extension> {
        answered("an extension", self.node.extend(who, ttl(for_)).await)
    }

    pub(super) async fn release(&self, who: &Ownership) -> Outcome<Releasing> {
        answered("a release", self.node.release(who).await)
    }

    /// Takes what must be free, and says the counter.
    pub(super) async fn takes(&self, who: &Ownership, for_: Duration, floor: u64) -> Outcome<u64> {
        match self.acquire(who, for_, floor).await? {
            Acquisition::Granted { counter } => Ok(counter),
            Acquisition::Held(held) => {
                broken(format!("an acquire of {}, which are free, was refused: {held}", who.resources()))
            }
        }
    }

    /// Asks for what is not free, and must be refused.
    pub(super) async fn is_refused(&self, who: &Ownership) -> Outcome<HeldBy> {
        match self.acquire(who, LONG, 0).await? {
            Acquisition::Held(held) => Ok(held),
            Acquisition::Granted { counter } => broken(format!(
                "an acquire of {}, not all of which are free, was granted with counter {counter}",
                who.resources()
            )),
        }
    }

    /// Gives back what somebody must hold.
    pub(super) async fn gives_back(&self, who: &Ownership) -> Outcome {
        due(&format!("the holder's release of {}", who.resources()), self.release(who).await?, Releasing::Released)
    }

    /// Makes sure where the counter of a free resource stands, by the next grant, which raises it by one.
    pub(super) async fn counter_is(&self, name: &str, counter: u64) -> Outcome {
        let next = self.somebody(name);
        let granted = self.takes(&next, LONG, 0).await?;
        self.gives_back(&next).await?;
        if granted == counter + 1 {
            return Ok(());
        }
        broken(format!("the next grant of {name} has the counter {granted}, where {} is due", counter + 1))
    }

    /// Waits until resources are free that have to be at `end`, and lets somebody take them; says who, and the counter.
    pub(super) async fn ends_by(&self, names: impl IntoResources, end: Moment) -> Outcome<(Ownership, u64)> {
        let latest = end.after(self.fixture.lateness());
        let next = self.somebody(names);
        loop {
            // Read before the question, so that a slow machine can excuse nothing and cannot be blamed either.
            let asked = self.now();
            match self.acquire(&next, LONG, 0).await? {
                Acquisition::Granted { counter } => return Ok((next, counter)),
                Acquisition::Held(held) if latest < asked => {
                    let overdue = asked.since(end);
                    return broken(format!("the lock had not ended {overdue:?} after it should have: {held}"));
                }
                Acquisition::Held(_) => self.step().await,
            }
        }
    }

    /// Lets so much time pass that a lock of [`SHORT`] has ended for certain.
    pub(super) async fn let_short_end(&self) {
        self.fixture.let_pass(SHORT + self.fixture.lateness() + drift(SHORT)).await;
    }
}

fn new_owner() -> Owner {
    let mut bytes = [0; 16];
    OsRandomness.fill(&mut bytes);
    Owner::from_random_bytes(bytes)
}

fn new_prefix() -> KeyPrefix {
    KeyPrefix::new(format!("conformance-{}:", new_owner().expose())).expect("no braces, and short")
}
