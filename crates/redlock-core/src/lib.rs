//! A quorum lock over independent nodes (Redlock) whose grants carry a fencing token.
//!
//! The algorithm, and nothing else: this crate knows no backend and no database. Nodes are whatever implements
//! [`LockNode`]; `redlock-backends` has Redis primaries and an in-memory reference. A [`Guard`] says for how long the
//! lock may be relied on, and carries the [`FencingToken`] that `fence-store` (or your own storage) checks.
//!
//! ```
//! # async fn example(nodes: Vec<std::sync::Arc<dyn redlock_core::LockNode>>) -> Result<(), Box<dyn std::error::Error>> {
//! # use std::time::Duration;
//! # async fn write(_: &impl AsRef<redlock_core::Grant>) {}
//! use redlock_core::{Election, KeepAlive, Redlock};
//!
//! let redlock = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(3)).build()?;
//! let guard = redlock.acquire("orders/42").await?;
//! guard.keep_alive(KeepAlive::default()); // Extended in the background until it is released, dropped or lost.
//! write(&guard).await;
//! guard.release().await;
//! // All of that in one call; the work is dropped if the lock is lost:
//! redlock.with_lock("reports/2026-11", async |held| write(&held).await).await?;
//! // And again after every loss, under a new token each time:
//! Election::new(&redlock, "scheduler")?.serve(async |held| write(&held).await).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! Two grants of one resource do not overlap in validity *while clocks stay within the drift allowance and no node
//! forgets a live lock*. That makes locks good for not doing work twice. It does not stop a process that was paused past
//! its ttl from waking up and writing: it does not know that its time is over. What stops it is the token: tokens of one
//! resource grow from grant to grant, whatever clocks, networks and pauses do, so a storage that refuses a lower token
//! than it has seen never applies a stale write. If mutual exclusion itself has to be correct, use a consensus system
//! such as etcd, ZooKeeper or Consul.
//!
//! # Map
//!
//! | what for | items |
//! |---|---|
//! | a client | [`Redlock::builder`], [`RedlockBuilder`], [`Retry`], [`SettingsError`] |
//! | what is locked | [`Resource`], [`Resources`] (all or none), [`Ttl`], [`KeyPrefix`] |
//! | to lock | [`Redlock::acquire`], [`Redlock::try_acquire`], [`Redlock::request`] for other terms; [`AcquireError`], by what to do next, with a [`Report`] of what every node said |
//! | what one gets | [`Guard`]: its [`Grant`] with the [`FencingToken`], its [`HoldState`]; [`Held`] lends it to the work |
//! | to keep it | [`Guard::extend`], [`Guard::keep_alive`] with [`KeepAlive`], [`Guard::lost`] with [`LossReason`] |
//! | all of it in one call | [`Redlock::with_lock`], [`Request::work`], [`OnLoss`], [`WorkError`] |
//! | leader election | [`Election`], [`Leadership`], [`Leader`] |
//! | to look | [`Redlock::inspect`]; names of metrics and spans in [`telemetry`] |
//! | a node of one's own | [`LockNode`], the contract; [`Ownership`], [`Owner`], [`NodeError`]; [`Listener`] and [`Place`] to wake waiters |
//! | to test such a node | `conformance` (feature `conformance`): every promise of the contract, one by one |
//! | the decisions, without clock, await and randomness | [`tally`], [`validity`], [`mint`], [`attempt`] |
//! | tests and simulation | [`Clock`], [`Randomness`] |
//! | programs without async | `blocking` (feature `blocking`) |
//!
//! In the source, modules are declared in the order in which a lock passes through them:
//!
//! ```text
//!  name, ttl, owner     resource, owner, clock, token
//!        │
//!        ▼
//!     LockNode          node, bell      the contract; how a node wakes who waits
//!        │              line, lane      who waits inside this process; one node as one client sees it
//!        ▼
//!     ask them all      fan_out         under one deadline; keeper polls to the end what nobody waits for
//!        │
//!     replies ──▶       tally, validity, mint, attempt: what does it amount to?
//!        ▼
//!     Redlock           waiting, round  one attempt after the other, each undone unless it is won
//!        │              arbiter         the node that keeps the order among processes
//!        ▼
//!      Guard            guard           token, validity; extend, release, drop
//!        │              watchdog        keeps it extended, announces its loss
//!        │              recovery        takes nodes back that have lost their memory
//!        ▼
//!   with_lock, Election                 work, leader
//! ```
//!
//! The book, in the repository's `docs/`, explains the algorithm, what is safe and what is not, how to keep a lock
//! (`docs/holding.md`) and how to operate it.

#[macro_use]
mod mutants;
mod resource;
mod owner;
mod clock;
mod token;
mod bell;
mod node;
mod line;
mod lane;
mod undertaking;
mod keeper;
mod fan_out;
pub mod tally;
pub mod validity;
pub mod mint;
pub mod attempt;
mod report;
mod error;
mod settings;
mod floor;
mod arbiter;
mod builder;
mod client;
mod waiting;
mod round;
mod redlock;
mod hold;
mod renewal;
mod recovery;
mod watchdog;
mod guard;
mod work;
mod leader;
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod telemetry;
#[cfg(feature = "conformance")]
pub mod conformance;

#[cfg(test)]
mod testing;

pub use bell::{Bell, Listener, Manner, Place};
pub use builder::RedlockBuilder;
pub use clock::{Clock, Moment, SystemClock, TokioClock};
pub use error::{AcquireError, ExtendError, LossReason, NotEnoughValidity, SettingsError};
pub use guard::{Guard, Held, NodeRelease, Release, ReleaseOutcome};
pub use hold::HoldState;
pub use leader::{Election, Leader, Leadership, ObserveError};
pub use node::{
    Acquisition, Enrolment, Extension, Health, HeldBy, Holder, Inspection, LockNode, NodeError, Raising, Refusal,
    Releasing, Remaining, Service, Source, Standing,
};
pub use owner::{Fingerprint, OsRandomness, Owner, Ownership, Randomness};
pub use recovery::{EnrollError, NodeStanding};
pub use redlock::{Redlock, Request};
pub use report::{NodeOutcome, NodeReport, Report};
pub use resource::{
    IntoResources, KeyPrefix, KeyPrefixError, RESERVED_FIRST_CHARACTER, RESOURCE_NAME_LEN_MAX, RESOURCES_MAX, Resource,
    ResourceError, Resources, Ttl, TtlError,
};
pub use settings::Retry;
pub use token::{AssumeGrantedError, FencingToken, Grant, TokenOutOfRange};
pub use watchdog::KeepAlive;
pub use work::{OnLoss, Work, WorkError};
