//! A real etcd that a test starts: one member, in a folder of its own, on free ports of loopback.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ports::{BIND_TRIES, free_port};
use crate::process::{Process, find_program};
use crate::{BenchError, eventually};

/// How long a member may take until it has elected itself.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// A running etcd. Dropping it kills it and removes its folder.
#[derive(Debug)]
pub struct EtcdServer {
    port: u16,
    _process: Process,
    _folder: TempDir,
}

impl EtcdServer {
    /// Starts a cluster of one and waits until it takes writes.
    ///
    /// # Errors
    /// [`BenchError::NotInstalled`] if there is no such program, [`BenchError::DidNotStart`] with its log if it does not come up.
    ///
    /// # Cancel safety
    /// Dropping the future kills the server that was starting.
    pub async fn start() -> Result<Self, BenchError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match Self::start_on(free_port(), free_port()).await {
                Err(BenchError::DidNotStart { log, .. })
                    if log.contains("address already in use") && tries < BIND_TRIES => {}
                other => return other,
            }
        }
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    async fn start_on(port: u16, peers: u16) -> Result<Self, BenchError> {
        let program = find_program("etcd")
            .ok_or_else(|| BenchError::NotInstalled { program: "etcd".into(), package: "etcd-server" })?;
        let folder =
            tempfile::Builder::new().prefix("redlock-etcd-").tempdir().map_err(BenchError::io("make a directory"))?;
        let log_file = folder.path().join("log");
        let log = File::create(&log_file).map_err(BenchError::io("open the server's log"))?;
        let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
        let process = Process::spawn(program, |command| {
            command.arg("--data-dir").arg(folder.path().join("data"));
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            command.arg("--initial-cluster").arg(format!("default={peers}"));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        })?;
        let ready = eventually(START_DEADLINE, || async {
            match process.exited() {
                // It will not come up any more; what it said is told below.
                Some(status) => Ok(Err(format!("it ended: {status}"))),
                None => is_healthy(port).await.map(Ok),
            }
        });
        let why = match ready.await {
            Ok(Ok(())) => return Ok(Self { port, _process: process, _folder: folder }),
            Ok(Err(ended)) => ended,
            Err(not_yet) => not_yet.to_string(),
        };
        let log = std::fs::read_to_string(&log_file).unwrap_or_default();
        let tail = log.len().saturating_sub(4_000);
        let log = log.get(tail..).unwrap_or(&log).to_owned();
        Err(BenchError::DidNotStart { program: "etcd".into(), why, log })
    }
}

async fn is_healthy(port: u16) -> Result<(), String> {
    let said = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await.map(|_| said)
    };
    match said.await {
        Ok(said) if said.contains("\"true\"") => Ok(()),
        Ok(said) => Err(said),
        Err(error) => Err(error.to_string()),
    }
}
