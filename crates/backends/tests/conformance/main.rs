//! The conformance kit: the nodes of this package pass it, again and again, and bad ones fail it by the rule that they break.

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared with other test programs, each of which uses a part")]
mod common;

mod bad;
mod bad_nodes;
#[cfg(feature = "etcd")]
mod etcd;
mod fixtures;
mod memory;
#[cfg(all(feature = "etcd", feature = "postgres", feature = "redis"))]
mod mixed;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "postgres")]
mod postgres;
