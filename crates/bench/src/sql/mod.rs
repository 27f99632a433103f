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

use crate::BenchError;
use crate::ports::{BIND_TRIES, free_port};

/// Starts a server on a free port, and on another one if its log says that somebody else took the first in between.
fn on_free_port<S>(
    program: &str,
    port_is_taken: &str,
    start_on: impl Fn(u16) -> Result<S, BenchError>,
) -> Result<S, BenchError> {
    let mut last = None;
    for _ in 0..BIND_TRIES {
        match start_on(free_port()) {
            Err(BenchError::DidNotStart { log, .. }) if log.contains(port_is_taken) => last = Some(log),
            other => return other,
        }
    }
    Err(BenchError::DidNotStart {
        program: program.to_owned(),
        why: "every port that was free is taken".into(),
        log: last.unwrap_or_default(),
    })
}
