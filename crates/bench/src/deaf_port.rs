//! A port on which a connection is neither made nor refused, as on a machine that is switched off.
//!
//! The queue of a listener that never accepts is filled, after which the kernel drops further requests to connect. A
//! client notices this by its own deadline only.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::BenchError;
use crate::ports::{BIND_TRIES, free_port};

/// How long a connection on loopback may take before the queue counts as full.
const PATIENCE: Duration = Duration::from_millis(100);

/// More connections than a queue of one ever takes.
const FILLERS_MAX: usize = 16;

/// Such a port. Dropping it closes it, so that connecting is refused from then on.
#[derive(Debug)]
pub struct DeafPort {
    address: SocketAddr,
    // Both only have to live.
    _listener: TcpListener,
    _fillers: Vec<TcpStream>,
}

impl DeafPort {
    /// Takes a port and fills its queue.
    ///
    /// # Errors
    /// [`BenchError::Io`] if the system gives no port or keeps on connecting.
    ///
    /// # Cancel safety
    /// Dropping the future closes the port.
    pub async fn open() -> Result<Self, BenchError> {
        let listener = listen().map_err(BenchError::io("open a deaf port"))?;
        let address = listener.local_addr().map_err(BenchError::io("open a deaf port"))?;
        let mut fillers = Vec::new();
        while fillers.len() < FILLERS_MAX {
            match tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await {
                Ok(connected) => fillers.push(connected.map_err(BenchError::io("fill the queue of a deaf port"))?),
                Err(_) => {
                    return Ok(Self { address, _listener: listener, _fillers: fillers });
                }
            }
        }
        Err(BenchError::io("fill the queue of a deaf port")(std::io::Error::other("it takes every connection")))
    }

    /// Where clients try to connect in vain.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn listen() -> std::io::Result<TcpListener> {
    let mut tries = 0;
    loop {
        tries += 1;
        let socket = TcpSocket::new_v4()?;
        // As the look for a free port does: connections of a server that was killed there may still be fading away.
        socket.set_reuseaddr(true)?;
        match socket.bind((Ipv4Addr::LOCALHOST, free_port()).into()).and_then(|()| socket.listen(1)) {
            // Somebody else took it in between.
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tries < BIND_TRIES => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connecting_hangs_until_the_port_is_closed_and_is_refused_then() {
        let deaf = DeafPort::open().await.unwrap();
        let address = deaf.address();
        assert!(tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await.is_err());
        drop(deaf);
        let refused = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await.unwrap();
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
