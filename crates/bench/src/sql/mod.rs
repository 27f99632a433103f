//! Real SQL servers: [`Postgres`] and [`MariaDb`], each in a temporary folder, on a free port of loopback.
//!
//! ```text
//!   template     initdb once per machine, copied for every server        (seconds become milliseconds)
//!      ▼
//!   caretaker    runs the server, ends it and removes its folder when its test process ends, however that ends
//!      ▼
//!   postgres, mariadb     what differs: programs, options, the line in the log that says "ready"
//! ```
//!
//! Tests of one process share a server ([`Postgres::shared`], [`MariaDb::shared`]) and make a database of their own on
//! it. `FENCE_TEST_POSTGRES_URL` and `FENCE_TEST_MARIADB_URL` name running servers to use instead, so that one pair
//! serves a whole run. Servers are set up for speed: nothing here survives a power cut.
//!
//! All of it is synchronous, so that it can be called before there is a runtime.

mod caretaker;
mod mariadb;
mod postgres;
mod template;

pub use mariadb::MariaDb;
pub use postgres::Postgres;
