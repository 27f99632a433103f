//! Waiting in line on real Redis servers: what only processes, connections and a real clock can tell.
//!
//! ```text
//!  crowds     many who start at one instant, many who wait: who wins, what it costs
//!  heads      whoever stands in front and is killed, frozen or out of time
//!  calls      the connections on which calls are heard
//!  arbiters   the node that keeps the line is frozen, killed, restarted empty, or known by two names
//!  leftovers  lines and subscriptions, when all is done
//! ```
//!
//! What virtual time can tell is in `waiting_in_virtual_time`; B43 and B45 are among the cases.

#[allow(dead_code, unused_imports, reason = "what the tests on five servers share; not all of it is needed here")]
#[path = "../cases/support.rs"]
mod support;

mod arbiters;
mod calls;
mod crowds;
mod heads;
mod leftovers;
mod waiter;
