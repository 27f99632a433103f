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
#[cfg(all(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis", feature = "sqlite"))]
mod mixed;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
