//! Keeps locks extended while their holders work, and says when they are lost.
//!
//! One task per client looks after all kept holds. It renews at a fraction of the ttl, many holds in one call per node; it
//! tries again soon, inside what is left of the validity, when a renewal is not confirmed; and it announces the end of
//! validity while renewals are still under way. It only borrows holds: a guard that is released, dropped, or lost with its
//! task ends the renewal of its lock, and so does the ceiling on the time it may be held.
//!
//! Owned by the client, which aborts the task when it goes; ends by itself when nothing is left to look after. It runs on
//! the runtime on which a lock was acquired, and if that one ends, on that of another lock that is still looked after.

use crate::client::Client;
use crate::clock::Moment;
use crate::error::{ExtendError, LossReason};
use crate::hold::{Hold, LOOK_AT_LEAST_EVERY};
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
    charges: Vec<Charge>,
    /// How many charges were ever added.
    added: u64,
    task: Task,
}

#[derive(Default)]
enum Task {
    #[default]
    None,
    /// Being spawned by somebody; it may fall with its runtime before it is known to run.
    Starting {
        fallen: bool,
    },
    Running(AbortHandle),
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
    /// Since when it is being renewed, if it is.
    under_way: Option<Moment>,
}

impl Watchdog {
    /// Keeps a hold alive, from now on in this way and in no other.
    pub(crate) fn keep(self: &Arc<Self>, client: &Arc<Client>, hold: &Arc<Hold>, keep_alive: KeepAlive) {
        let now = client.clock.now();
        let KeepAlive { fraction, max_hold } = keep_alive;
        let due = now.after(period(hold.terms(), fraction));
        let keep = Keep { fraction, max_hold, until: now.after(max_hold), due, under_way: None };
        let kept_before = hold.kept.swap(true, Ordering::AcqRel);
        let mut state = self.state();
        if kept_before {
            state.charges.retain(|charge| charge.keep.is_none() || charge.hold.as_ptr() != Arc::as_ptr(hold));
        }
        self.look_after(client, state, Charge { hold: Arc::downgrade(hold), keep: Some(keep) });
    }

    /// Announces the loss of a hold without keeping it alive.
    pub(crate) fn watch(self: &Arc<Self>, client: &Arc<Client>, hold: &Arc<Hold>) {
        if !hold.watched.swap(true, Ordering::AcqRel) {
            self.look_after(client, self.state(), Charge { hold: Arc::downgrade(hold), keep: None });
        }
    }

    fn look_after(self: &Arc<Self>, client: &Arc<Client>, mut state: MutexGuard<'_, State>, charge: Charge) {
        state.charges.push(charge);
        state.added += 1;
        drop(state);
        self.ensure_task(&Arc::downgrade(client));
        self.changed.notify_one();
    }

    /// Starts the task unless there is one, on a runtime of those whom it serves: the present context may belong to another
    /// one, whose thread is blocked by what it does under the lock.
    fn ensure_task(self: &Arc<Self>, client: &Weak<Client>) {
        loop {
            let (runtimes, added) = {
                let mut state = self.state();
                if !matches!(state.task, Task::None) || state.charges.is_empty() {
                    return;
                }
                state.task = Task::Starting { fallen: false };
                let holds = state.charges.iter().rev().filter_map(|charge| charge.hold.upgrade());
                let runtimes = holds.filter_map(|hold| hold.runtime().cloned()).chain(Handle::try_current());
                (runtimes.collect::<Vec<_>>(), state.added)
            };
            if runtimes.iter().any(|runtime| self.start_on(runtime, client)) {
                return;
            }
            let mut state = self.state();
            state.task = Task::None;
            // Whoever came meanwhile left it to us, and may know a runtime that lives.
            if state.added == added {
                return;
            }
        }
    }

    /// Not under the lock: a runtime that has been shut down drops a task, with its [`Shift`], instead of spawning it.
    fn start_on(self: &Arc<Self>, runtime: &Handle, client: &Weak<Client>) -> bool {
        let shift = Shift { watchdog: Arc::clone(self), client: Weak::clone(client), ended: false };
        let task = runtime.spawn(run(shift)).abort_handle();
        let mut state = self.state();
        match state.task {
            Task::Starting { fallen: true } => {
                state.task = Task::Starting { fallen: false };
                return false;
            }
            Task::Starting { fallen: false } => state.task = Task::Running(task),
            // It has run already, and found nothing to look after.
            Task::None | Task::Running(_) => {}
        }
        true
    }

    /// The end of a validity comes earlier than it did at the last look.
    pub(crate) fn look_again(&self) {
        self.changed.notify_one();
    }

    /// The client is gone, and with it all guards.
    pub(crate) fn stop(&self) {
        let task = std::mem::take(&mut self.state().task);
        if let Task::Running(task) = task {
            task.abort();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").field("charges", &self.state().charges.len()).finish_non_exhaustive()
    }
}

fn period(terms: Terms, fraction: u32) -> Duration {
    terms.ttl.as_duration() / fraction
}

/// What became of each hold of a renewal.
type Renewed = Vec<(Arc<Hold>, Result<Duration, ExtendError>)>;
type Renewal = Pin<Box<dyn Future<Output = Renewed> + Send>>;

/// Notices that the task is dropped before its end, together with its runtime, and lets another runtime take over.
struct Shift {
    watchdog: Arc<Watchdog>,
    client: Weak<Client>,
    ended: bool,
}

impl Drop for Shift {
    fn drop(&mut self) {
        if self.ended || self.client.strong_count() == 0 {
            return;
        }
        let starting = {
            let mut state = self.watchdog.state();
            let starting = matches!(state.task, Task::Starting { .. });
            state.task = if starting { Task::Starting { fallen: true } } else { Task::None };
            starting
        };
        // After a panic it would come to the same again and again; the next lock that is kept starts it anew.
        if !starting && !std::thread::panicking() {
            self.watchdog.ensure_task(&self.client);
        }
    }
}

/// The task: looks, renews what is due, waits for the next moment at which something may have changed.
async fn run(mut shift: Shift) {
    let (watchdog, client) = (Arc::clone(&shift.watchdog), Weak::clone(&shift.client));
    let mut renewals: FuturesUnordered<Renewal> = FuturesUnordered::new();
    for keep in watchdog.state().charges.iter_mut().filter_map(|charge| charge.keep.as_mut()) {
        // Renewals that were under way have ended with the task before this one.
        keep.under_way = None;
    }
    loop {
        // Borrowed while there is something to do, not while waiting: a client that is dropped ends this task.
        let Some(strong) = client.upgrade() else { return };
        let pause = {
            let mut state = watchdog.state();
            let now = strong.clock.now();
            state.charges.retain(|charge| look(charge, now));
            if state.charges.is_empty() && renewals.is_empty() {
                // Under the lock: whoever adds a charge from here on finds no task, and starts another.
                state.task = Task::None;
                shift.ended = true;
                None
            } else {
                renewals.extend(renew_what_is_due(&strong, &mut state.charges));
                Some(until_next(&state.charges, strong.clock.now()))
            }
        };
        // Not under the lock: the last one to drop a client takes it to stop this task.
        drop(strong);
        let Some(pause) = pause else { return };
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
            let now = client.clock.now();
            plan_next(&mut watchdog.state().charges, &renewed, now);
        }
    }
}

/// Looks at one hold; `false` if it needs no more looking after.
fn look(charge: &Charge, now: Moment) -> bool {
    let Some(hold) = charge.hold.upgrade() else { return false };
    if let Some(keep) = charge.keep
        && keep.until <= now
    {
        hold.lose(LossReason::HeldTooLong { max_hold: keep.max_hold });
    }
    hold.state().is_held()
}

/// Everything that is due, and what is due soon with it: holds that are renewed together once stay together.
fn renew_what_is_due(client: &Arc<Client>, charges: &mut [Charge]) -> Option<Renewal> {
    let now = client.clock.now();
    let keeps = |charge: &Charge| charge.keep.filter(|keep| keep.under_way.is_none());
    if !charges.iter().filter_map(keeps).any(|keep| keep.due <= now) {
        return None;
    }
    let mut due = Vec::new();
    for charge in charges {
        let Some(hold) = charge.hold.upgrade() else { continue };
        let Some(keep) = charge.keep.as_mut().filter(|keep| keep.under_way.is_none()) else { continue };
        let soon = now.after(period(hold.terms(), keep.fraction) / 2);
        if keep.due <= soon {
            keep.under_way = Some(now);
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

/// After success the next renewal comes a period after this one began, however long slow nodes were listened to; after a
/// failure soon, as long as there is validity to save.
fn plan_next(charges: &mut [Charge], renewed: &Renewed, now: Moment) {
    let renewed: HashMap<*const Hold, _> = renewed.iter().map(|(hold, result)| (Arc::as_ptr(hold), result)).collect();
    for charge in charges {
        let Some(hold) = charge.hold.upgrade() else { continue };
        let Some(keep) = charge.keep.as_mut() else { continue };
        let (Some(began), Some(result)) = (keep.under_way, renewed.get(&Arc::as_ptr(&hold))) else { continue };
        let terms = hold.terms();
        keep.under_way = None;
        keep.due = match result {
            Ok(_) => began.after(period(terms, keep.fraction)),
            Err(_) => now.after(terms.node_timeout.min(period(terms, keep.fraction) / 4)),
        };
    }
}

/// How long until something may have to be done: a renewal, the end of a validity, a ceiling, or a look at the clock.
fn until_next(charges: &[Charge], now: Moment) -> Duration {
    let mut pause = LOOK_AT_LEAST_EVERY;
    for charge in charges {
        if let Some(hold) = charge.hold.upgrade() {
            pause = pause.min(hold.remaining());
        }
        if let Some(keep) = charge.keep {
            pause = pause.min(keep.until.since(now));
            if keep.under_way.is_none() {
                pause = pause.min(keep.due.since(now));
            }
        }
    }
    pause
}
