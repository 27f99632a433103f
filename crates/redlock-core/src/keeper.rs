//! Polls to the end what nobody waits for any more: calls whose answer came too late, and releases.
//!
//! A request whose future is dropped may never be sent, or be sent and never undone. So calls that an attempt no longer
//! waits for, and releases of dropped guards, are handed over here. One task per client, owned by the client: it starts
//! on the runtime of whoever first needs it, moves to another if that one is gone, and ends soon after the client does.
//!
//! Handing over never blocks, awaits or panics, from whatever context: inside a runtime, outside, while unwinding.

use crate::fan_out::{Call, Reply};
use crate::telemetry;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};

/// Calls kept at most; beyond them new ones are given up, and their keys are left to their ttl.
const KEPT_MAX: usize = 65_536;

/// The longest that one call is polled, as the last resort against a node that breaks its contract and never ends one.
const CALL_LIMIT: Duration = Duration::from_secs(600);

/// How long calls that have been sent already may wait to be taken in hand: most of them have their answer by then, and are
/// looked at once. Far below any per-node deadline, since an answer is also a sign of life.
const SENT_WAIT: Duration = Duration::from_millis(5);

/// How often calls in hand are searched for such as never end.
const SEARCH_EVERY: Duration = Duration::from_secs(60);

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
    TakeInHand,
    CallEnded,
    Search,
    Lingered,
}

#[derive(Default)]
struct State {
    incoming: Vec<Call>,
    /// Whether one of them has not been sent yet, or somebody waits for all of them to end.
    urgent: bool,
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
    /// Takes over calls that have not been polled yet. Those of one node are first polled in the order in which they were
    /// handed over.
    pub(crate) fn keep(self: &Arc<Self>, calls: impl IntoIterator<Item = Call>) {
        self.take_over(calls, true);
    }

    /// Takes over calls that have not been polled yet, and polls them once where there is a runtime, which sends them: it may be at
    /// its end when its tasks are run next.
    pub(crate) fn begin(self: &Arc<Self>, calls: impl IntoIterator<Item = Call>) {
        // Nobody could say what becomes of a panic in the middle of another.
        if Handle::try_current().is_err() || std::thread::panicking() {
            return self.keep(calls);
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut is_under_way = |call: &mut Call| {
            let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut context)));
            // What panicked cannot be polled again.
            matches!(polled, Ok(Poll::Pending))
        };
        let under_way: Vec<Call> =
            calls.into_iter().filter_map(|mut call| is_under_way(&mut call).then_some(call)).collect();
        self.keep_sent(under_way);
    }

    /// Takes over calls that have been polled, so that they may have been sent.
    pub(crate) fn keep_sent(self: &Arc<Self>, calls: impl IntoIterator<Item = Call>) {
        self.take_over(calls, false);
    }

    fn take_over(self: &Arc<Self>, calls: impl IntoIterator<Item = Call>, urgent: bool) {
        let mut given_up = 0_u64;
        let tell = {
            let mut state = self.state();
            let tell = (urgent && !state.urgent) || state.incoming.is_empty();
            state.urgent |= urgent;
            for call in calls {
                if state.incoming.len() + state.in_hand < KEPT_MAX {
                    state.waiting_since.get_or_insert_with(Instant::now);
                    state.incoming.push(call);
                } else {
                    given_up += 1;
                }
            }
            tell
        };
        if 0 < given_up {
            metrics::counter!(telemetry::ABANDONED).increment(given_up);
            tracing::warn!(given_up, "too many calls wait in the background; keys are left to their ttl");
        }
        if tell {
            self.handed_over.notify_one();
        }
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
                let mut state = self.state();
                if state.incoming.is_empty() && state.in_hand == 0 {
                    return;
                }
                state.urgent = true;
            }
            self.handed_over.notify_one();
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
        let mut take_in_hand = pin!(None::<Sleep>);
        let mut search = pin!(tokio::time::sleep(SEARCH_EVERY));
        let mut linger = None;
        loop {
            let (incoming, over) = {
                let mut state = self.state();
                let over = state.closing || generation != state.generation;
                let due = take_in_hand.as_ref().as_pin_ref().is_some_and(|sleep| sleep.is_elapsed());
                let incoming = if state.urgent || over || due {
                    take_in_hand.set(None);
                    state.waiting_since = None;
                    state.urgent = false;
                    std::mem::take(&mut state.incoming)
                } else {
                    if !state.incoming.is_empty() && take_in_hand.is_none() {
                        take_in_hand.set(Some(tokio::time::sleep(SENT_WAIT)));
                    }
                    Vec::new()
                };
                state.in_hand += incoming.len();
                in_hand.count += incoming.len();
                (incoming, over)
            };
            for mut call in incoming {
                // In order, and before anything else: this may be what sends them.
                let at_once = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
                if at_once {
                    in_hand.ended(1);
                } else {
                    calls.push(Kept { call, since: Instant::now() });
                }
            }
            if calls.is_empty() {
                self.settled.notify_waiters();
                if over {
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
                } else if take_in_hand.as_mut().as_pin_mut().is_some_and(|sleep| sleep.poll(cx).is_ready()) {
                    Poll::Ready(Event::TakeInHand)
                } else if matches!(calls.poll_next_unpin(cx), Poll::Ready(Some(_))) {
                    Poll::Ready(Event::CallEnded)
                } else if !calls.is_empty() && search.as_mut().poll(cx).is_ready() {
                    Poll::Ready(Event::Search)
                } else if linger.as_mut().is_some_and(|linger| linger.as_mut().poll(cx).is_ready()) {
                    Poll::Ready(Event::Lingered)
                } else {
                    Poll::Pending
                }
            });
            match event.await {
                Event::HandedOver | Event::TakeInHand => {}
                Event::CallEnded => in_hand.ended(1),
                Event::Search => {
                    let before = calls.len();
                    calls = calls.into_iter().filter(|kept| kept.since.elapsed() < CALL_LIMIT).collect();
                    in_hand.ended(before - calls.len());
                    search.as_mut().reset(Instant::now() + SEARCH_EVERY);
                }
                Event::Lingered => return,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call in hand.
struct Kept {
    call: Call,
    since: Instant,
}

impl Future for Kept {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        self.call.as_mut().poll(cx)
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
