//! Keeps locks extended while their holders work, and says when they are lost.
//!
//! One task per client looks after all kept holds. It renews at a fraction of the ttl, many holds in one call per node; it
//! tries again soon, inside what is left of the validity, when a renewal is not confirmed; and it announces the end of
//! validity while renewals are still under way. It only borrows holds: a guard that is released, dropped, or lost with its
//! task ends the renewal of its lock, and so does the ceiling on the time it may be held.
//!
//! Owned by the client, which aborts the task when it goes; ends by itself when nothing is left to look after.

use crate::clock::Moment;
use crate::error::{ExtendError, LossReason};
use crate::hold::{Hold, HoldState, LOOK_AT_LEAST_EVERY};
use crate::redlock::Client;
use crate::renewal::{self, Patience};
use crate::settings::Terms;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// How a lock is kept alive.
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use]
pub struct KeepAlive {
    fraction: u32,
    max_hold: Duration,
}

impl KeepAlive {
    /// Renews after so many parts of the ttl, one third by default: `every_fraction(3)`. More often costs calls; less
    /// often leaves fewer tries before the validity ends.
    ///
    /// # Panics
    /// If `parts` is less than two: a renewal after the whole ttl comes too late.
    pub fn every_fraction(mut self, parts: u32) -> Self {
        assert!(2 <= parts, "a lock is renewed at half of its ttl at the latest");
        self.fraction = parts;
        self
    }

    /// The longest time, counted from when keeping alive began, for which a lock is held: a worker that hangs, or a guard
    /// that was forgotten, keeps others out no longer than this and one ttl. One hour by default.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = max_hold;
        self
    }
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { fraction: 3, max_hold: Duration::from_secs(3_600) }
    }
}

#[derive(Default)]
pub(crate) struct Watchdog {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    incoming: Vec<Charge>,
    task: Option<AbortHandle>,
}

/// A hold that is looked after.
struct Charge {
    hold: Weak<Hold>,
    /// `None`: the end of its validity is announced, nothing is renewed.
    keep: Option<Keep>,
}

#[derive(Clone, Copy)]
struct Keep {
    fraction: u32,
    max_hold: Duration,
    until: Moment,
    due: Moment,
    under_way: bool,
}

impl Watchdog {
    /// Keeps a hold alive. Without a runtime in the present context it begins with the next call that has one.
    pub(crate) fn keep(self: &Arc<Self>, client: &Arc<Client>, hold: &Arc<Hold>, keep_alive: KeepAlive) {
        let now = client.clock.now();
        let KeepAlive { fraction, max_hold } = keep_alive;
        let due = now.after(period(hold.terms(), fraction));
        let keep = Keep { fraction, max_hold, until: now.after(max_hold), due, under_way: false };
        self.look_after(client, Charge { hold: Arc::downgrade(hold), keep: Some(keep) });
    }

    /// Announces the loss of a hold without keeping it alive.
    pub(crate) fn watch(self: &Arc<Self>, client: &Arc<Client>, hold: &Arc<Hold>) {
        if !hold.watched.swap(true, Ordering::AcqRel) {
            self.look_after(client, Charge { hold: Arc::downgrade(hold), keep: None });
        }
    }

    fn look_after(self: &Arc<Self>, client: &Arc<Client>, charge: Charge) {
        let mut state = self.state();
        state.incoming.push(charge);
        if state.task.as_ref().is_none_or(AbortHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            state.task = Some(runtime.spawn(run(Arc::clone(self), Arc::downgrade(client))).abort_handle());
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The client is gone, and with it all guards.
    pub(crate) fn stop(&self) {
        if let Some(task) = self.state().task.take() {
            task.abort();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("incoming", &self.state().incoming.len()).finish_non_exhaustive()
    }
}

fn period(terms: Terms, fraction: u32) -> Duration {
    terms.ttl.as_duration() / fraction
}

/// What became of each hold of a renewal.
type Renewed = Vec<(Arc<Hold>, Result<Duration, ExtendError>)>;
type Renewal = Pin<Box<dyn Future<Output = Renewed> + Send>>;

/// The task: looks, renews what is due, waits for the next moment at which something may have changed.
async fn run(watchdog: Arc<Watchdog>, client: Weak<Client>) {
    let mut charges: Vec<Charge> = Vec::new();
    let mut renewals: FuturesUnordered<Renewal> = FuturesUnordered::new();
    loop {
        // Borrowed while there is something to do, not while waiting: a client that is dropped ends this task.
        let Some(strong) = client.upgrade() else { return };
        {
            let mut state = watchdog.state();
            charges.append(&mut state.incoming);
            let now = strong.clock.now();
            charges.retain(|charge| look(charge, now));
            if charges.is_empty() && renewals.is_empty() {
                // Under the lock: whoever adds a charge from here on finds a task that has ended, and starts another.
                state.task = None;
                return;
            }
        }
        if let Some(renewal) = renew_what_is_due(&strong, &mut charges) {
            renewals.push(renewal);
        }
        let pause = until_next(&charges, strong.clock.now());
        drop(strong);
        let mut changed = pin!(watchdog.changed.notified());
        let mut time = pin!(tokio::time::sleep(pause));
        let renewed = poll_fn(|cx| {
            if let Poll::Ready(Some(renewed)) = renewals.poll_next_unpin(cx) {
                return Poll::Ready(Some(renewed));
            }
            let woken = changed.as_mut().poll(cx).is_ready() || time.as_mut().poll(cx).is_ready();
            if woken { Poll::Ready(None) } else { Poll::Pending }
        })
        .await;
        if let (Some(renewed), Some(client)) = (renewed, client.upgrade()) {
            plan_next(&mut charges, renewed, client.clock.now());
        }
    }
}

/// Looks at one hold; `false` if it needs no more looking after.
fn look(charge: &Charge, now: Moment) -> bool {
    let Some(hold) = charge.hold.upgrade() else { return false };
    if hold.is_released() {
        return false;
    }
    if let Some(keep) = charge.keep
        && keep.until <= now
    {
        hold.lose(LossReason::HeldTooLong { max_hold: keep.max_hold });
    }
    !matches!(hold.state(), HoldState::Lost(_))
}

/// Everything that is due, and what is due soon with it: holds that are renewed together once stay together.
fn renew_what_is_due(client: &Arc<Client>, charges: &mut [Charge]) -> Option<Renewal> {
    let now = client.clock.now();
    let keeps = |charge: &Charge| charge.keep.filter(|keep| !keep.under_way);
    if !charges.iter().filter_map(keeps).any(|keep| keep.due <= now) {
        return None;
    }
    let mut due = Vec::new();
    for charge in charges {
        let Some(hold) = charge.hold.upgrade() else { continue };
        let Some(keep) = charge.keep.as_mut().filter(|keep| !keep.under_way) else { continue };
        let soon = now.after(period(hold.terms(), keep.fraction) / 2);
        if keep.due <= soon {
            keep.under_way = true;
            due.push(hold);
        }
    }
    let client = Arc::clone(client);
    Some(Box::pin(async move {
        // A holder that is extending by hand at the moment needs no help.
        let (mut locked, mut busy) = (Vec::new(), Vec::new());
        for hold in &due {
            match hold.extending.try_lock() {
                Ok(extending) => locked.push((Arc::clone(hold), extending)),
                Err(_) => busy.push(Arc::clone(hold)),
            }
        }
        let holds = locked.iter().map(|(hold, _)| (Arc::clone(hold), hold.terms())).collect();
        let results = renewal::renew(&client, holds, Patience::UntilHeard).await;
        let renewed = locked.iter().map(|(hold, _)| Arc::clone(hold)).zip(results);
        let by_hand = busy.into_iter().map(|hold| {
            let remaining = hold.remaining();
            (hold, Ok(remaining))
        });
        renewed.chain(by_hand).collect()
    }))
}

/// After success the next renewal comes a period later; after a failure soon, as long as there is validity to save.
fn plan_next(charges: &mut [Charge], renewed: Renewed, now: Moment) {
    let renewed: HashMap<*const Hold, (Arc<Hold>, Result<Duration, ExtendError>)> =
        renewed.into_iter().map(|(hold, result)| (Arc::as_ptr(&hold), (hold, result))).collect();
    for charge in charges {
        let Some(keep) = charge.keep.as_mut().filter(|keep| keep.under_way) else { continue };
        let Some((hold, result)) = renewed.get(&charge.hold.as_ptr()) else { continue };
        keep.under_way = false;
        let terms = hold.terms();
        let pause = match result {
            Ok(_) => period(terms, keep.fraction),
            Err(_) => terms.node_timeout.min(period(terms, keep.fraction) / 4),
        };
        keep.due = now.after(pause);
    }
}

/// How long until something may have to be done: a renewal, the end of a validity, a ceiling, or a look at the clock.
fn until_next(charges: &[Charge], now: Moment) -> Duration {
    let mut pause = LOOK_AT_LEAST_EVERY;
    for charge in charges {
        if let Some(hold) = charge.hold.upgrade() {
            pause = pause.min(hold.remaining());
        }
        if let Some(keep) = charge.keep.filter(|keep| !keep.under_way) {
            pause = pause.min(keep.due.since(now)).min(keep.until.since(now));
        }
    }
    pause
}
