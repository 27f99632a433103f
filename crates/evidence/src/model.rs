//! The protocol in every order of events: three nodes, some attempts, and a world that does its worst.
//!
//! What decides is the real thing: each attempt in here *is* a [`redlock_core::attempt::Attempt`], which counts with the
//! core's own tally and minting rule. What is modelled is what surrounds it: nodes as the contract describes them
//! ([`Node`]), messages that are lost or late and keep no order, locks that expire whenever they like, nodes that restart
//! with less than they had, and the crash-recovery guard that takes them back.
//!
//! There is no time in here. "At any moment" covers every clock, every delay and every pause. Only where a promise needs
//! time does a [`Setup`] say which moments are ruled out: [`Expiry::OnlyWhenOver`], and the end of a quarantine, which
//! comes when the attempts that were under way at the restart are over.
//!
//! ```text
//!   Idle ──begin──▶ Open ──acquire──▶ node ──vote──▶ Attempt says: wait / raise / won / lost
//!                    │                  │                               │      │
//!                    └── gives up ◀─────┴── lost, late                  ▼      ▼
//!                                                                      Won ─▶ Over
//! ```
//!
//! A release is not modelled: a lock that expires at any moment is gone as early as any release could make it.
//!
//! Attempts are interchangeable, so worlds that differ only in which attempt is which count as one: every successor is
//! brought into one order (`World::settled`). Nodes are interchangeable too, but an [`Attempt`] cannot be asked to swap
//! them, and a decision that treats nodes differently would be a bug worth finding.
//!
//! [`Attempt`]: redlock_core::attempt::Attempt

mod candidate;
mod checked;
mod mind;
mod node;
mod plan;
mod properties;
mod setup;
mod world;

pub use candidate::{Candidate, Phase, Seat, Story, Won};
pub use checked::{Checked, check, refute};
pub use mind::Mind;
pub use node::{Node, Service};
pub use plan::{Exploration, Refutation, explorations, refutations};
pub use properties::{DISTINCT, IN_ORDER, ONE_HOLDER, QUORUM};
pub use setup::{Expiry, Floor, Restart, Rule, Setup};
pub use world::{Event, World};

/// How many nodes there are.
pub const NODES: usize = 3;

/// What a counter can stand at in the model; small enough for a set of them to be a word.
pub type Counter = u8;
