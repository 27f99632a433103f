//! What a hostile review of the nodes on etcd and on databases refuted, each claim now held by a test against the real server.
//!
//! ```text
//!  etcd      clusters that were set up alike, leases that end too early, clusters with users
//! ```

#[cfg(feature = "etcd")]
mod etcd;
mod support;
