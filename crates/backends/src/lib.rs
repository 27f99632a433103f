//! Nodes for [`redlock_core`]: what a quorum is made of.
//!
//! * [`RedisNode`]: a Redis primary, version 6.2 or later, or Valkey (feature `redis`, on by default).
//! * [`MemoryNode`]: the reference implementation, with a clock that can be set, skewed and stopped.
//! * [`Faulty`]: wraps any node and injects delay, loss and errors.
//!
//! Anything else that implements [`redlock_core::LockNode`] is as good a node as these.

pub mod memory;
pub mod faulty;
#[cfg(feature = "redis")]
pub mod redis;

pub use faulty::Faulty;
pub use memory::MemoryNode;
#[cfg(feature = "redis")]
pub use redis::RedisNode;
