//! Nodes in memory, and clients that each reach them by a network of their own.

use crate::common::{Random, ms, shared};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty};
use redlock_core::{Guard, Randomness, Redlock, RedlockBuilder, Retry, TokioClock};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) const TTL: Duration = ms(60_000);
pub(crate) const NODE_TIMEOUT: Duration = ms(50);
/// One way to a node.
pub(crate) const WAY: Duration = ms(1);
/// As the settings have it unless they are set.
pub(crate) const RETRY: Retry = Retry { wait: ms(30_000), attempts: u32::MAX, delay: ms(25), jitter: ms(50) };
/// The longest pause, and the longest that somebody in line goes without asking by itself.
pub(crate) const PAUSE_MAX: Duration = ms(75);
pub(crate) const INTERVAL_MAX: Duration = ms(4 * 75);

pub(crate) type Node = Arc<Faulty<MemoryNode>>;

pub(crate) struct World {
    pub(crate) clock: Arc<TokioClock>,
    pub(crate) memory: Vec<Arc<MemoryNode>>,
    clients: Mutex<u64>,
    seed: u64,
}

/// A client and its ways to the nodes.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) redlock: Redlock,
    pub(crate) nodes: Vec<Node>,
}

impl World {
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        let clock = Arc::new(TokioClock::starting_now());
        let node = |n| Arc::new(MemoryNode::with_clock(format!("n{n}"), Arc::clone(&clock) as _));
        Self { memory: (0..nodes).map(node).collect(), clock, clients: Mutex::new(0), seed }
    }

    pub(crate) fn client(&self) -> Client {
        let nodes: Vec<Node> = self.memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        for node in &nodes {
            node.always(|_| on_its_way());
        }
        let redlock = self.builder().nodes(shared(&nodes)).build().unwrap();
        Client { redlock, nodes }
    }

    pub(crate) fn builder(&self) -> RedlockBuilder {
        let mut clients = self.clients.lock().unwrap();
        *clients += 1;
        let randomness = Seeded(Mutex::new(Random(self.seed * 1_000_003 + *clients)));
        let builder = Redlock::builder().ttl(TTL).node_timeout(NODE_TIMEOUT).retry(RETRY);
        builder.clock(self.clock.clone()).randomness(Arc::new(randomness))
    }

    /// The places in line on all nodes.
    pub(crate) fn in_line(&self) -> usize {
        self.memory.iter().flat_map(|node| node.lines()).map(|(_, waiters)| waiters).sum()
    }

    /// The node that keeps a line now.
    pub(crate) fn arbiter(&self) -> usize {
        self.memory.iter().position(|node| !node.lines().is_empty()).expect("somebody stands in line")
    }

    pub(crate) fn assert_nothing_left(&self, story: &str) {
        for node in &self.memory {
            assert_eq!(node.locks(), [], "{story}: locks");
            assert_eq!(node.lines(), [], "{story}: lines");
        }
    }
}

/// A call that meets nothing but its way.
pub(crate) fn on_its_way() -> Fault {
    let mut fault = Fault::request_delay(WAY);
    fault.reply_delay = WAY;
    fault
}

#[derive(Debug)]
struct Seeded(Mutex<Random>);

impl Randomness for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        let mut random = self.0.lock().unwrap();
        bytes.fill_with(|| u8::try_from(random.below(256)).unwrap());
    }
}

/// Begins something that goes on beside the test.
#[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
pub(crate) fn begin<T: Send + 'static>(what: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(what)
}

/// Lets time pass until somebody has come to stand in line, or has been granted.
pub(crate) async fn lined_up() {
    tokio::time::sleep(20 * WAY).await;
}

/// Releases a lock, and says when.
pub(crate) async fn release(guard: Guard) -> Instant {
    let at = Instant::now();
    guard.release().await;
    at
}

/// Polls a future at most `polls` times, then drops it; `None` if it was dropped.
pub(crate) async fn cancelled_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}
