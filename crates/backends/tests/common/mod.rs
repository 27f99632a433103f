//! What tests in virtual time have in common: time that a test moves, chance that a seed repeats, and nodes that misbehave
//! in ways in which no network does.

pub(crate) mod meddled;

use redlock_core::{Clock, LockNode, Moment, TokioClock};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs a test whose time passes only while everybody waits.
pub(crate) fn in_virtual_time<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test)
}

/// The nodes as a builder takes them.
pub(crate) fn shared<N: LockNode + 'static>(nodes: &[Arc<N>]) -> impl Iterator<Item = Arc<dyn LockNode>> {
    nodes.iter().map(|node| Arc::clone(node) as Arc<dyn LockNode>)
}

/// What is left of a ttl of `ttl` when nothing has been spent yet: less the drift allowance.
pub(crate) fn whole_validity(ttl: Duration) -> Duration {
    ttl - ttl / 100 - ms(2)
}

/// Tokio's clock, and the time for which the machine was suspended on top: timers know nothing of the latter.
#[derive(Debug)]
pub(crate) struct SuspendableClock {
    awake: TokioClock,
    suspended: Mutex<Duration>,
}

impl SuspendableClock {
    pub(crate) fn starting_now() -> Arc<Self> {
        Arc::new(Self { awake: TokioClock::starting_now(), suspended: Mutex::default() })
    }

    pub(crate) fn suspend(&self, duration: Duration) {
        *self.suspended.lock().unwrap() += duration;
    }
}

impl Clock for SuspendableClock {
    fn now(&self) -> Moment {
        self.awake.now().after(*self.suspended.lock().unwrap())
    }
}

/// SplitMix64: small, and the same everywhere.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}
