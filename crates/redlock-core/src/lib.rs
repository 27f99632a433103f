//! A quorum lock over independent nodes (Redlock) whose grants carry a fencing token.
//!
//! The algorithm, and nothing else: this crate knows no backend and no database. Nodes are whatever implements
//! [`LockNode`]; `redlock-backends` has Redis primaries and an in-memory reference. A [`Guard`] says for how long the
//! lock may be relied on, and carries the [`FencingToken`] that `fence-store` (or your own storage) checks.
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
//! The modules are declared in the order in which a lock passes through them. Those that decide ([`tally`],
//! [`validity`], [`mint`], [`attempt`]) are pure: no clock, no await, no randomness.
//!
//! ```text
//!  name, ttl, owner     resource, owner, clock, token
//!        │
//!        ▼
//!     LockNode          node            the contract
//!        │              lane            one node as one client sees it
//!        ▼
//!     ask them all      fan_out         under one deadline; keeper polls to the end what nobody waits for
//!        │
//!     replies ──▶       tally, validity, mint, attempt: what does it amount to?
//!        ▼
//!     Redlock           redlock         drives attempts, tries again
//!        ▼
//!      Guard            guard           token, validity; extend, release, drop
//! ```

mod resource;
mod owner;
mod clock;
mod token;
mod node;
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
mod builder;
mod client;
mod round;
mod redlock;
mod hold;
mod renewal;
mod watchdog;
mod guard;
mod work;
mod leader;
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod telemetry;

#[cfg(test)]
mod testing;

pub use builder::RedlockBuilder;
pub use clock::{Clock, Moment, SystemClock, TokioClock};
pub use error::{AcquireError, ExtendError, LossReason, NotEnoughValidity, SettingsError};
pub use guard::{Guard, Held, NodeRelease, Release, ReleaseOutcome};
pub use hold::HoldState;
pub use leader::{Election, Leader, Leadership, ObserveError};
pub use node::{
    Acquisition, Extension, Health, HeldBy, Holder, Inspection, LockNode, NodeError, Raising, Refusal, Releasing,
    Remaining, Source,
};
pub use owner::{Fingerprint, OsRandomness, Owner, Ownership, Randomness};
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
