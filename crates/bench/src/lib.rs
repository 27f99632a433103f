//! The test bench: what the tests of every crate stand on when they need something real.
//!
//! ```text
//!   client under test ──▶ proxy ──▶ redis_server ◀── probe      what a test asks a server directly
//!                                        ▲
//!                                        └────────── observer   who held a majority, and when: the verdict
//!
//!   eventually   the one way in which a test waits        process   what starts, freezes and kills all servers
//! ```
//!
//! It does not know the library: nothing of this depends on the crates that are tested, so that a mistake in them cannot
//! hide in the instrument that should find it. (`load`, which compares what a lock costs, does know it, behind the
//! feature of that name.) A server that is not installed is an error that says how to get it, never a reason to skip.
//!
//! Waiting is real here. Do not use it under tokio's paused clock, where a timeout passes while a server is starting.

pub mod calendar;
pub mod deaf_port;
mod error;
pub mod etcd_server;
pub mod eventually;
#[cfg(feature = "load")]
pub mod load;
pub mod observer;
pub mod ports;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod redis_server;
pub mod sql;

pub use calendar::Calendar;
pub use deaf_port::DeafPort;
pub use error::BenchError;
pub use etcd_server::EtcdServer;
pub use eventually::eventually;
pub use observer::Observer;
pub use probe::{Probe, Reply};
pub use process::Process;
pub use proxy::Proxy;
pub use redis_server::{RedisOptions, RedisServer, Servers};
