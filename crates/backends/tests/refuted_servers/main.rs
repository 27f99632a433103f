//! What a hostile review of the nodes on etcd and on databases refuted, each claim now held by a test against the real server.
//!
//! ```text
//!  etcd      clusters that were set up alike, leases that end too early, clusters with users
//!  postgres  defaults of a database, rows that stay locked or go, an installation that is refused
//!  mysql     defaults of a server, rows that stay locked, rights, and the last millisecond
//!  sqlite    databases in memory, tables that have gone, the greatest counter, and the last millisecond
//! ```

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod support;
