//! Ports for servers that will be killed and must come back where they were.
//!
//! They lie below the range from which the kernel serves outgoing connections (32768 and up on Linux). So no client takes
//! the port of a server that is down, and a client that asks for a closed port is refused: within that range it may, on
//! loopback, be connected to itself.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the bench's servers listen.
pub const PORTS: Range<u16> = 12_000..32_000;

/// How many ports in a row may be taken before something else must be wrong.
const TRIES_MAX: u16 = 1_000;

/// How often another port is tried because somebody else took the first in between.
pub(crate) const BIND_TRIES: usize = 5;

/// A port on loopback that nobody listened on a moment ago.
///
/// Between this answer and the server's own bind somebody else may take it; who starts a server tries again then. Within
/// one process no port is given out twice until all have been.
///
/// # Panics
/// If a thousand ports in a row are taken.
#[must_use]
pub fn free_port() -> u16 {
    // Test processes run side by side, so each begins somewhere else.
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one(std::process::id()) >> 1));

    let count = u64::from(PORTS.end - PORTS.start);
    (0..TRIES_MAX)
        .filter_map(|_| u16::try_from(next.fetch_add(1, Ordering::Relaxed) % count).ok())
        .map(|offset| PORTS.start + offset)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .unwrap_or_else(|| panic!("no free port among {TRIES_MAX} between {} and {}", PORTS.start, PORTS.end))
}

/// A listener on such a port; another one is tried if somebody else takes it in between.
///
/// # Errors
/// What the system says if it gives no port.
pub async fn bind_free() -> io::Result<tokio::net::TcpListener> {
    let mut tries = 0;
    loop {
        tries += 1;
        match tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < BIND_TRIES => {}
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_given_out_once_and_lie_below_those_of_clients() {
        let ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }
}
