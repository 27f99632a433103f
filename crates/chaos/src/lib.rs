//! Chaos on real servers: clients, five Redis servers and three databases under faults, and a verdict on what came of it.
//!
//! ```text
//!   plan      which fault hits whom and when: pure, from one seed                     dice, fault
//!     ▼
//!   run       drives it ──▶ world   servers, proxies, calendars, databases: does the harm, and sees whether it was done
//!     │                 ──▶ client  a process of its own; desk  what it writes where
//!     ▼
//!   history   what was written down meanwhile, by clients, world, observer and databases: plain data
//!     ▼
//!   life      one client's lines put together ──▶ check  one file per promise, pure ──▶ verdict ──▶ timeline  for people
//! ```
//!
//! One seed decides the plan and what clients set out to do. It does not decide who runs first: what comes of it differs from
//! run to run, which is why everything is written down.

pub mod check;
pub mod client;
pub mod clock;
pub mod desk;
pub mod dice;
pub mod fault;
pub mod history;
pub mod life;
pub mod plan;
pub mod run;
pub mod verdict;
pub mod timeline;
mod world;
