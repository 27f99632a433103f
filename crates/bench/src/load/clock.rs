//! The clock that all processes of a machine share, and a pause that is as long as it says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

/// Nanoseconds on a clock that starts with the machine and is never set.
#[must_use]
pub fn nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// Lets this thread be woken when it asked for, and not up to 50 µs later, as the kernel likes to.
pub(super) fn wake_me_exactly() {
    // Where that cannot be had, pauses are a little longer, for everybody.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Waits for so long, to some ten microseconds. The runtime's own timer counts in milliseconds, and a lock that is held
/// "for 1 ms" would be held for anything up to two.
///
/// # Cancel safety
/// Dropping the future ends the wait.
pub async fn pause(time: Duration) {
    static KEEPER: OnceLock<Sender<(u64, oneshot::Sender<()>)>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (orders, received) = channel::<(u64, oneshot::Sender<()>)>();
        let keep_time = move || {
            wake_me_exactly();
            let mut waiting = BinaryHeap::<Reverse<Due>>::new();
            // Runs until the program ends, by design: the sending side is never dropped.
            loop {
                let next = waiting.peek().map_or(u64::MAX, |Reverse(due)| due.at);
                match received.recv_timeout(Duration::from_nanos(next.saturating_sub(nanos()))) {
                    Ok((at, wake)) => waiting.push(Reverse(Due { at, wake })),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                let now = nanos();
                while waiting.peek().is_some_and(|Reverse(due)| due.at <= now) {
                    // Whoever does not wait any more is not woken.
                    let _ = waiting.pop().map(|Reverse(due)| due.wake.send(()));
                }
            }
        };
        std::thread::Builder::new()
            .name("bench-time".into())
            .spawn(keep_time)
            .expect("the system has room for one more thread");
        orders
    });
    let (wake, woken) = oneshot::channel();
    let at = nanos() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2);
    let _ = keeper.send((at, wake));
    let _ = woken.await;
}

struct Due {
    at: u64,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pauses_end_in_the_order_of_their_length_and_not_before_it() {
        let started = nanos();
        let ended = async |millis| {
            pause(Duration::from_millis(millis)).await;
            nanos() - started
        };
        let (long, short) = tokio::join!(ended(20), ended(1));
        assert!(1_000_000 <= short && short < long && 20_000_000 <= long, "{short} {long}");
    }
}
