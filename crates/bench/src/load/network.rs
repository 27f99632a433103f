//! A network of a given round trip, exact to some ten microseconds.
//!
//! `Proxy` counts time in milliseconds, as tokio's timer does; half a millisecond of round trip needs better. Here one
//! thread relays all connections and sleeps to the nanosecond. It is not perfect: what it adds by itself is measured
//! ([`Network::error`]) and printed next to what was measured through it.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::clock::{nanos, wake_me_exactly};
use super::figures::{Spread, median_and_spread};
use crate::BenchError;

/// How soon the thread notices that nobody needs it any more.
const LOOK_UP_NANOS: u64 = 50_000_000;

/// The largest piece that is relayed at once.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// How often the error is measured.
const PINGS: usize = 300;

/// A relay in front of some servers. Dropping it closes all its connections.
#[derive(Debug)]
pub(super) struct Network {
    round_trip: Duration,
    addresses: Vec<SocketAddr>,
    targets: Vec<SocketAddr>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    pub(super) fn start(targets: Vec<SocketAddr>, round_trip: Duration) -> Result<Self, BenchError> {
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let listeners: std::io::Result<Vec<_>> = targets.iter().map(|_| listen()).collect();
        let (addresses, listeners): (Vec<_>, Vec<_>) =
            listeners.map_err(BenchError::io("listen for a relay"))?.into_iter().unzip();
        let ended = Arc::new(AtomicBool::new(false));
        let one_way = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX);
        let relay = Relay {
            listeners: listeners.into_iter().zip(targets.clone()).collect(),
            one_way,
            lines: Vec::new(),
            ended: Arc::clone(&ended),
        };
        let thread = std::thread::Builder::new()
            .name("bench-network".into())
            .spawn(move || relay.serve())
            .map_err(BenchError::io("start a thread for a relay"))?;
        Ok(Self { round_trip, addresses, targets, ended, thread: Some(thread) })
    }

    pub(super) fn urls(&self) -> Vec<String> {
        self.addresses.iter().map(|address| format!("redis://{address}")).collect()
    }

    /// By how many microseconds a question through this network takes longer than a direct one and the round trip
    /// together: the median, and where most lie.
    pub(super) async fn error(&self) -> Result<(f64, Spread<f64>), BenchError> {
        let (through, direct) = (self.addresses[0], self.targets[0]);
        let nominal = self.round_trip.as_secs_f64() * 1e6;
        let measure = move || {
            let (through, direct) = (pings(through)?, pings(direct)?);
            let direct = median_and_spread(&direct).map_or(0.0, |(median, _)| median);
            let errors: Vec<f64> = through.iter().map(|micros| micros - direct - nominal).collect();
            median_and_spread(&errors).ok_or_else(|| ErrorKind::UnexpectedEof.into())
        };
        let measured = tokio::task::spawn_blocking(measure).await;
        measured.unwrap_or_else(|_| Err(ErrorKind::Other.into())).map_err(BenchError::io("measure a relay"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Microseconds that a server takes to say PONG.
fn pings(address: SocketAddr) -> std::io::Result<Vec<f64>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let asked = nanos();
        stream.write_all(b"PING\r\n")?;
        stream.read_exact(&mut [0; 7])?;
        times.push(Duration::from_nanos(nanos() - asked).as_secs_f64() * 1e6);
    }
    Ok(times)
}

struct Relay {
    listeners: Vec<(TcpListener, SocketAddr)>,
    one_way: u64,
    lines: Vec<Line>,
    ended: Arc<AtomicBool>,
}

/// One direction of one connection.
struct Line {
    from: TcpStream,
    to: TcpStream,
    under_way: VecDeque<(u64, Vec<u8>)>,
    /// The sender has finished.
    is_at_end: bool,
}

impl Relay {
    fn serve(mut self) {
        wake_me_exactly();
        while !self.ended.load(Ordering::Relaxed) {
            let (ready, heard) = self.wait();
            for (place, is_ready) in ready.into_iter().enumerate() {
                if is_ready {
                    self.accept(place);
                }
            }
            let now = nanos();
            for (line, is_ready) in self.lines.iter_mut().zip(heard) {
                if is_ready {
                    line.take_in(now + self.one_way);
                }
            }
            for line in &mut self.lines {
                line.give_out(now);
            }
            self.lines.retain(|line| !line.is_at_end || !line.under_way.is_empty());
        }
    }

    /// Waits until something can be read or is due. Says which listeners and which lines have something.
    fn wait(&self) -> (Vec<bool>, Vec<bool>) {
        let due = self.lines.iter().filter_map(|line| line.under_way.front().map(|(due, _)| *due)).min();
        let wait = due.map_or(LOOK_UP_NANOS, |due| due.saturating_sub(nanos()).min(LOOK_UP_NANOS));
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::try_from(wait).unwrap_or(0) };
        let listeners =
            self.listeners.iter().map(|(listener, _)| PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
        let lines = self.lines.iter().map(|line| {
            let wanted = if line.is_at_end { PollFlags::empty() } else { PollFlags::IN };
            PollFd::from_borrowed_fd(line.from.as_fd(), wanted)
        });
        let mut all: Vec<PollFd<'_>> = listeners.chain(lines).collect();
        // An interrupted wait is a short one.
        let _ = poll(&mut all, Some(&wait));
        let mut ready = all.iter().map(|fd| !fd.revents().is_empty());
        let listeners = ready.by_ref().take(self.listeners.len()).collect();
        (listeners, ready.collect())
    }

    fn accept(&mut self, place: usize) {
        let (listener, target) = &self.listeners[place];
        // A connection that does not come about is the client's to notice.
        let _ = (|| {
            let (client, _) = listener.accept()?;
            let server = TcpStream::connect(target)?;
            for stream in [&client, &server] {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
            }
            let line = |from, to| Line { from, to, under_way: VecDeque::new(), is_at_end: false };
            self.lines.push(line(client.try_clone()?, server.try_clone()?));
            self.lines.push(line(server, client));
            std::io::Result::Ok(())
        })();
    }
}

impl Line {
    fn take_in(&mut self, due: u64) {
        let mut piece = vec![0; PIECE_BYTES_MAX];
        match self.from.read(&mut piece) {
            Ok(len) => {
                piece.truncate(len);
                self.is_at_end |= len == 0;
                self.under_way.push_back((due, piece));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => {
                self.is_at_end = true;
                self.under_way.push_back((due, Vec::new()));
            }
        }
    }

    fn give_out(&mut self, now: u64) {
        while let Some((due, piece)) = self.under_way.front_mut() {
            if now < *due {
                return;
            }
            if piece.is_empty() {
                let _ = self.to.shutdown(Shutdown::Write);
            } else {
                match self.to.write(piece) {
                    Ok(written) if written < piece.len() => {
                        piece.drain(..written);
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    // Gone: what is left for it is too.
                    Ok(_) | Err(_) => {}
                }
            }
            self.under_way.pop_front();
        }
    }
}
