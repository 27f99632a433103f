//! Waiting in line, where every moment and every await counts: on in-memory nodes in virtual time, so nothing here waits.
//!
//! ```text
//!  order      who comes first is served first, and nobody is served for ever
//!  deadlines  a wait ends when it should, wherever in line it is
//!  heads      whoever stands in front and does not come costs those behind less than a second
//!  leaving    a waiter that is dropped at whichever await leaves no place, and its call goes to the next
//!  nodes      arbiters that are deaf, mute, slow, forgetful or stuck; nodes that keep no lines
//!  herd       many who start at one instant: somebody wins at once
//!  safety     tokens and validities of waiters on bad networks, seed by seed
//! ```
//!
//! What takes real servers is in `waiting`.

#[allow(dead_code, reason = "what tests in virtual time share; not all of it is needed here")]
#[path = "../common/mod.rs"]
mod common;

mod deadlines;
mod heads;
mod herd;
mod leaving;
mod nodes;
mod order;
mod safety;
mod world;
