//! Nodes for [`redlock_core`]: what a quorum is made of.
//!
//! * [`RedisNode`]: a Redis primary, version 6.2 or later, or Valkey (feature `redis`, on by default).
//! * [`EtcdNode`]: an etcd cluster, by leases and transactions (feature `etcd`).
//! * [`PostgresNode`], [`MySqlNode`], [`SqliteNode`]: a Postgres, MySQL or MariaDB server, or an SQLite file; one row per
//!   resource (features `postgres`, `mysql`, `sqlite`).
//! * [`MemoryNode`]: the reference implementation, with a clock that can be set, skewed and stopped.
//! * [`Faulty`]: wraps any node and injects delay, loss and errors.
//!
//! Anything else that implements [`redlock_core::LockNode`] is as good a node as these.
//!
//! ```no_run
//! # #[cfg(feature = "redis")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use redlock_backends::RedisNode;
//! use redlock_core::Redlock;
//!
//! // A node that cannot be reached at present is kept, with a warning in the log, and votes once it is there. An error is
//! // what somebody must change: a URL that is none, a password, a replica, a server named twice.
//! let nodes = RedisNode::connect_all(["redis://10.0.0.1", "redis://10.0.0.2", "rediss://locker:secret@10.0.0.3"]).await?;
//! let redlock = Redlock::builder().nodes(nodes).build()?;
//! let guard = redlock.acquire("orders/42").await?;
//! println!("work under token {} for {:?}", guard.token(), guard.remaining());
//! guard.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! In tests, three nodes in memory do: `Redlock::builder().node(MemoryNode::new("a")).node(…)`. Programs to run and to copy
//! from are in the package's `examples/`. The book, in the repository's `docs/`, says how to set servers up
//! (`docs/operating.md`) and what a node of one's own has to do (`docs/custom-nodes.md`).

#[macro_use]
mod mutants;
pub mod memory;
pub mod faulty;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "etcd")]
pub mod etcd;

#[cfg(feature = "etcd")]
pub use etcd::EtcdNode;
pub use faulty::Faulty;
pub use memory::MemoryNode;
#[cfg(feature = "mysql")]
pub use mysql::MySqlNode;
#[cfg(feature = "postgres")]
pub use postgres::PostgresNode;
#[cfg(feature = "redis")]
pub use redis::RedisNode;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteNode;
