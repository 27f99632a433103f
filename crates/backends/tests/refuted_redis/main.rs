//! What a hostile review refuted and only real servers can show, each claim now held by a test.
//!
//! ```text
//!  records      the namespace record covers expired counters, whatever the server's calendar showed
//!  setups       clusters, databases, rights and renamed commands are told for what they are
//!  connections  restarts, runtimes that stand still, and calls that wait for one connection together
//!  pauses       a client that was frozen does not take its own pause for an outage
//! ```
//!
//! What virtual time can show is in `refuted`.

#[path = "../cases/support.rs"]
#[allow(dead_code, unused_imports, reason = "what the cases share; not all of it is needed here")]
mod support;

mod connections;
mod endings;
mod pauses;
mod records;
mod setups;
