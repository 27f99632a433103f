//! Polls to the end what nobody waits for any more: calls whose answer came too late, and releases.
//!
//! A request whose future is dropped may never be sent, or be sent and never undone. So calls that an attempt no longer
//! waits for, and releases of dropped guards, are handed over here. One task per client, owned by the client: it starts
//! on the runtime of whoever first needs it, moves to another if that one is gone, and ends soon after the client does.
//!
//! Handing over never blocks, awaits or panics, from whatever context: inside a runtime, outside, while unwinding.

use crate::fan_out::Call;
use crate::telemetry;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Calls kept at most; beyond them new ones are given up, and their keys are left to their ttl.
const KEPT_MAX: usize = 65_536;

/// The longest that one call is polled, as the last resort against a node that breaks its contract and never ends one.
const CALL_LIMIT: Duration = Duration::from_secs(600);

/// How long the task outlives its client, to see releases through.
const LINGER: Duration = Duration::from_secs(2);

/// How long a call may wait to be taken in hand before another task is started: the one there is belongs to a runtime that
/// nobody drives, such as a `current_thread` one outside of its `block_on`.
const TAKEN_IN_HAND_WITHIN: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Keeper {
    state: Mutex<State>,
    handed_over: Notify,
    settled: Notify,
}

/// What the task woke up for.
enum Event {
    HandedOver,
    CallEnded,
    Lingered,
}

#[derive(Default)]
struct State {
    incoming: Vec<Call>,
    /// Since when the first of them has been waiting.
    waiting_since: Option<Instant>,
    /// Calls that tasks poll at present.
    in_hand: usize,
    task: Option<AbortHandle>,
    /// Counts the tasks: only the latest lives on when it has nothing to do.
    generation: u64,
    closing: bool,
}

impl Keeper {
    /// Takes calls over. Those of one node are first polled in the order in which they were handed over.
    pub(crate) fn keep(self: &Arc<Self>, calls: impl IntoIterator<Item = Call>) {
        let mut given_up = 0_u64;
        {
            let mut state = self.state();
            for call in calls {
                if state.incoming.len() + state.in_hand < KEPT_MAX {
                    state.waiting_since.get_or_insert_with(Instant::now);
                    state.incoming.push(call);
                } else {
                    given_up += 1;
                }
            }
        }
        if 0 < given_up {
            metrics::counter!(telemetry::ABANDONED).increment(given_up);
            tracing::warn!(given_up, "too many calls wait in the background; keys are left to their ttl");
        }
        self.handed_over.notify_one();
        self.ensure_task();
    }

    /// Starts the task if there is none that works, and the present context has a runtime to run it.
    pub(crate) fn ensure_task(self: &Arc<Self>) {
        let mut state = self.state();
        let gone = state.task.as_ref().is_none_or(AbortHandle::is_finished);
        let stuck = state.waiting_since.is_some_and(|since| TAKEN_IN_HAND_WITHIN < since.elapsed());
        if (gone || stuck)
            && let Ok(runtime) = Handle::try_current()
        {
            state.generation += 1;
            state.waiting_since = None;
            let task = runtime.spawn(Arc::clone(self).run(state.generation));
            state.task = Some(task.abort_handle());
        }
    }

    /// Resolves once nothing is left to poll.
    pub(crate) async fn settled(self: &Arc<Self>) {
        loop {
            let mut settled = pin!(self.settled.notified());
            settled.as_mut().enable();
            {
                let state = self.state();
                if state.incoming.is_empty() && state.in_hand == 0 {
                    return;
                }
            }
            // A task that ends says so; one that is stuck does not, so look again now and then.
            self.ensure_task();
            let _ = tokio::time::timeout(TAKEN_IN_HAND_WITHIN, settled).await;
        }
    }

    /// The client is gone: finish what can be finished soon, then end.
    pub(crate) fn close(self: &Arc<Self>) {
        self.state().closing = true;
        self.handed_over.notify_one();
    }

    async fn run(self: Arc<Self>, generation: u64) {
        let mut in_hand = InHand { keeper: &self, count: 0 };
        let mut calls = FuturesUnordered::new();
        let mut linger = None;
        loop {
            let closing = {
                let mut state = self.state();
                let incoming = std::mem::take(&mut state.incoming);
                state.waiting_since = None;
                state.in_hand += incoming.len();
                in_hand.count += incoming.len();
                calls.extend(incoming.into_iter().map(|call| tokio::time::timeout(CALL_LIMIT, call)));
                state.closing || generation != state.generation
            };
            if calls.is_empty() {
                self.settled.notify_waiters();
                if closing {
                    return;
                }
            }
            // A task that was replaced sees its own calls through, however long that takes; a closed one only for a while.
            if self.state().closing && linger.is_none() {
                linger = Some(Box::pin(tokio::time::sleep(LINGER)));
            }
            let mut handed_over = pin!(self.handed_over.notified());
            let event = poll_fn(|cx| {
                if handed_over.as_mut().poll(cx).is_ready() {
                    Poll::Ready(Event::HandedOver)
                } else if matches!(calls.poll_next_unpin(cx), Poll::Ready(Some(_))) {
                    Poll::Ready(Event::CallEnded)
                } else if linger.as_mut().is_some_and(|linger| linger.as_mut().poll(cx).is_ready()) {
                    Poll::Ready(Event::Lingered)
                } else {
                    Poll::Pending
                }
            });
            match event.await {
                Event::HandedOver => {}
                Event::CallEnded => in_hand.ended(1),
                Event::Lingered => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one task has in hand; a task that ends early, whatever the reason, leaves nobody waiting for it.
struct InHand<'a> {
    keeper: &'a Keeper,
    count: usize,
}

impl InHand<'_> {
    fn ended(&mut self, calls: usize) {
        self.count -= calls;
        self.keeper.state().in_hand -= calls;
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.ended(self.count);
        self.keeper.settled.notify_waiters();
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Keeper")
            .field("incoming", &state.incoming.len())
            .field("in_hand", &state.in_hand)
            .field("closing", &state.closing)
            .finish()
    }
}
