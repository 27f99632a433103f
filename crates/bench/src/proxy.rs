//! A relay in front of a server that can be told to misbehave, live, in each direction on its own.
//!
//! ```text
//!   client ── requests ──▶ │ lane │ ── requests ──▶ server          a lane passes, delays, holds back or swallows
//!          ◀── replies ─── │ lane │ ◀── replies ───
//! ```
//!
//! Bytes are delayed, not connections: what a client sends while earlier bytes are under way follows them at its own
//! distance, in order, as over a long cable. The proxy has a thread and a runtime of its own, so that a test may block or
//! shut down its runtime without stopping the network.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::BenchError;
use crate::ports::bind_free;

/// The largest piece that is relayed at once.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// How many pieces may be under way in one direction; beyond that the sender is slowed down, as by a full cable.
const PIECES_MAX: usize = 1024;

/// A running relay. Dropping it closes its port and all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: Option<mpsc::UnboundedSender<Order>>,
    accepted: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// How the proxy treats its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Accepts, and relays each direction as its lane says.
    Relay {
        /// From the client to the server.
        requests: Lane,
        /// From the server to the client.
        replies: Lane,
    },
    /// Accepts, and neither reads nor says anything, like a machine that hangs.
    Silent,
    /// Closes all connections and the port, like a machine without the server.
    Refuse,
}

/// What happens to the bytes that travel in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// They arrive.
    Pass,
    /// They arrive so much later.
    Delay(Duration),
    /// They wait, and arrive when the lane is changed: a cut that heals.
    Hold,
    /// They are lost, and with them the connection: it says nothing more in this direction, stays open until the lane is
    /// changed, and is closed then, because a stream with a hole would be misread.
    Swallow,
}

impl Mode {
    /// Everything arrives.
    pub const PASS: Self = Self::Relay { requests: Lane::Pass, replies: Lane::Pass };

    /// What happens to requests while replies pass.
    #[must_use]
    pub const fn requests(lane: Lane) -> Self {
        Self::Relay { requests: lane, replies: Lane::Pass }
    }

    /// What happens to replies while requests pass.
    #[must_use]
    pub const fn replies(lane: Lane) -> Self {
        Self::Relay { requests: Lane::Pass, replies: lane }
    }

    /// Whether connections that lived in this mode can be of use afterwards.
    fn leaves_connections_whole(self) -> bool {
        match self {
            Self::Relay { requests, replies } => requests != Lane::Swallow && replies != Lane::Swallow,
            Self::Silent | Self::Refuse => false,
        }
    }

    fn lane(self, direction: Direction) -> Lane {
        match (self, direction) {
            (Self::Relay { requests, .. }, Direction::Requests) => requests,
            (Self::Relay { replies, .. }, Direction::Replies) => replies,
            // Existing connections fall silent by holding back; both modes close them when they end.
            (Self::Silent | Self::Refuse, _) => Lane::Hold,
        }
    }
}

impl Proxy {
    /// Starts a relay to `target` that lets everything pass.
    ///
    /// # Errors
    /// [`BenchError::Io`] if there is no port or no thread to be had.
    ///
    /// # Cancel safety
    /// Dropping the future stops the relay.
    pub async fn start(target: SocketAddr) -> Result<Self, BenchError> {
        let accepted = Arc::new(AtomicU64::new(0));
        let (orders, received) = mpsc::unbounded_channel();
        let (ready, address) = oneshot::channel();
        let counter = Arc::clone(&accepted);
        let thread = std::thread::Builder::new()
            .name("bench-proxy".into())
            .spawn(move || run(target, counter, received, ready))
            .map_err(BenchError::io("start a thread for the proxy"))?;
        let mut proxy =
            Self { address: (Ipv4Addr::LOCALHOST, 0).into(), orders: Some(orders), accepted, thread: Some(thread) };
        proxy.address = answer(address.await).map_err(BenchError::io("start the proxy"))?;
        Ok(proxy)
    }

    /// Where clients connect; the same in all modes.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port of [`Proxy::address`].
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL for Redis clients without a password; for others see
    /// [`RedisServer::url_through`](crate::RedisServer::url_through).
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// How many connections have been accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Changes the mode. It holds when this returns: ports are closed or open again, and connections that cannot be of use
    /// any more are closed. Those are all connections when a mode begins that refuses, or when one ends that refused,
    /// swallowed or was silent.
    ///
    /// # Errors
    /// [`BenchError::Io`] if the port cannot be opened again.
    ///
    /// # Cancel safety
    /// The mode is changed nevertheless, soon.
    pub async fn set(&self, mode: Mode) -> Result<(), BenchError> {
        self.order(Change::Mode(mode)).await
    }

    /// Relays everything.
    ///
    /// # Errors
    /// As [`Proxy::set`].
    ///
    /// # Cancel safety
    /// As [`Proxy::set`].
    pub async fn pass(&self) -> Result<(), BenchError> {
        self.set(Mode::PASS).await
    }

    /// Leads to another server from now on: closes all connections and connects new ones to `target`.
    ///
    /// # Errors
    /// As [`Proxy::set`].
    ///
    /// # Cancel safety
    /// As [`Proxy::set`].
    pub async fn lead_to(&self, target: SocketAddr) -> Result<(), BenchError> {
        self.order(Change::Target(target)).await
    }

    async fn order(&self, change: Change) -> Result<(), BenchError> {
        let (done, answered) = oneshot::channel();
        // If the proxy's thread is gone, the answer says so.
        let _ = self.orders.as_ref().map(|orders| orders.send(Order { change, done }));
        answer(answered.await).map_err(BenchError::io(format!("change the proxy to {change:?}")))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Without orders to come the relay ends, and takes its connections with it.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Order {
    change: Change,
    done: oneshot::Sender<io::Result<()>>,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Mode(Mode),
    Target(SocketAddr),
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Requests,
    Replies,
}

fn answer<T>(received: Result<io::Result<T>, oneshot::error::RecvError>) -> io::Result<T> {
    received.unwrap_or_else(|_| Err(io::Error::other("the proxy's thread has ended")))
}

/// The proxy's thread.
fn run(
    target: SocketAddr,
    accepted: Arc<AtomicU64>,
    orders: mpsc::UnboundedReceiver<Order>,
    ready: oneshot::Sender<io::Result<SocketAddr>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    runtime.block_on(async {
        let bound = bind_free().await.and_then(|listener| Ok((listener.local_addr()?, listener)));
        match bound {
            Ok((address, listener)) => {
                let mode = watch::Sender::new(Mode::PASS);
                let relay =
                    Relay { address, listener: Some(listener), target, mode, accepted, connections: JoinSet::new() };
                if ready.send(Ok(address)).is_ok() {
                    relay.serve(orders).await;
                }
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    });
}

struct Relay {
    address: SocketAddr,
    /// Absent while refusing.
    listener: Option<TcpListener>,
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    accepted: Arc<AtomicU64>,
    connections: JoinSet<()>,
}

impl Relay {
    /// Runs until nobody can give orders any more.
    async fn serve(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            tokio::select! {
                order = orders.recv() => {
                    let Some(Order { change, done }) = order else { return };
                    let changed = self.apply(change).await;
                    let _ = done.send(changed);
                }
                client = accept(self.listener.as_ref()) => {
                    self.accepted.fetch_add(1, Ordering::Relaxed);
                    self.connections.spawn(connection(client, self.target, self.mode.subscribe()));
                }
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    async fn apply(&mut self, change: Change) -> io::Result<()> {
        match change {
            Change::Target(target) => {
                self.target = target;
                self.connections.shutdown().await;
            }
            Change::Mode(mode) => {
                let before = self.mode.send_replace(mode);
                if mode == Mode::Refuse {
                    self.listener = None;
                }
                if mode == Mode::Refuse || (mode != before && !before.leaves_connections_whole()) {
                    self.connections.shutdown().await;
                }
                if mode != Mode::Refuse && self.listener.is_none() {
                    self.listener = Some(TcpListener::bind(self.address).await?);
                }
            }
        }
        Ok(())
    }
}

/// The next client; never, while there is no listener.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    loop {
        // An error concerns the one connection that was about to come in; there is nothing to do about it.
        if let Ok((client, _)) = listener.accept().await {
            return client;
        }
    }
}

/// The life of one connection: until both directions have ended, or the relay closes it.
async fn connection(mut client: TcpStream, target: SocketAddr, mode: watch::Receiver<Mode>) {
    if *mode.borrow() == Mode::Silent {
        // The relay closes it when the mode ends.
        return std::future::pending().await;
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
        return;
    }
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::join!(
        pump(from_client, to_server, Direction::Requests, mode.clone()),
        pump(from_server, to_client, Direction::Replies, mode),
    );
}

/// Some bytes under way, and when they are to arrive.
struct Piece {
    bytes: Vec<u8>,
    due: Instant,
}

/// Relays one direction until its sender has finished, then passes that on.
async fn pump(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    direction: Direction,
    mode: watch::Receiver<Mode>,
) {
    let (enter, leave) = mpsc::channel(PIECES_MAX);
    tokio::join!(take_in(from, enter, direction, mode.clone()), give_out(to, leave, direction, mode));
}

async fn take_in(
    mut from: impl AsyncRead + Unpin,
    pieces: mpsc::Sender<Piece>,
    direction: Direction,
    mode: watch::Receiver<Mode>,
) {
    let mut buffer = vec![0; PIECE_BYTES_MAX];
    loop {
        // A reset ends the direction like a regular end does.
        let len = from.read(&mut buffer).await.unwrap_or(0);
        let delay = match mode.borrow().lane(direction) {
            Lane::Delay(delay) => delay,
            Lane::Pass | Lane::Hold | Lane::Swallow => Duration::ZERO,
        };
        // The end, an empty piece, travels as long as the bytes before it.
        let piece = Piece { bytes: buffer[..len].to_vec(), due: Instant::now() + delay };
        if pieces.send(piece).await.is_err() || len == 0 {
            return;
        }
    }
}

async fn give_out(
    mut to: impl AsyncWrite + Unpin,
    mut pieces: mpsc::Receiver<Piece>,
    direction: Direction,
    mut mode: watch::Receiver<Mode>,
) {
    while let Some(piece) = pieces.recv().await {
        tokio::time::sleep_until(piece.due).await;
        // An error means that the relay is ending, and this connection with it.
        let Ok(lane) = mode.wait_for(|mode| mode.lane(direction) != Lane::Hold).await.map(|mode| mode.lane(direction))
        else {
            return;
        };
        if lane == Lane::Swallow {
            // Goes on reading, so that the sender notices nothing, until the relay closes the connection.
            while pieces.recv().await.is_some() {}
            return std::future::pending().await;
        }
        let given = if piece.bytes.is_empty() { to.shutdown().await } else { to.write_all(&piece.bytes).await };
        if given.is_err() {
            return;
        }
    }
}
