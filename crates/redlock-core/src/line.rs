//! Who waits inside this process: one line per resource, first come, first served.
//!
//! Whoever has the [`Turn`] of a line holds the lock, or is the only one here that asks nodes for it. The turn goes with the
//! guard and passes on when the guard's release has been sent, so that the next one's acquire travels right behind it on the
//! same connections.
//!
//! Nobody is kept waiting by somebody who has gone to sleep: a turn whose holder has lost its lock, or that gives no sign for
//! longer than it said it would, is taken from it, and who was called and does not come loses its place.
//!
//! Between [`crate::waiting`], which stands in line, and [`crate::guard`], which carries the turn.

use crate::hold::{Hold, LOOK_AT_LEAST_EVERY};
use crate::resource::Resources;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a task may take to come when it is called, or to give a sign of itself beyond what it announced.
const GRACE: Duration = Duration::from_millis(500);

/// For how long a resource counts as crowded after others were found to wait for it.
const CROWDED_FOR: Duration = Duration::from_millis(250);

/// Resources that are remembered as crowded at most.
const CROWDED_MAX: usize = 1_024;

/// The lines of one client.
#[derive(Default)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<Resources, Line>>,
    crowded: Mutex<HashMap<Resources, Crowd>>,
    /// Numbers turns, so that one that was taken away is never mistaken for another, not even in a later line.
    turns: AtomicU64,
}

/// Others, elsewhere, wait for the same resources.
#[derive(Clone, Copy)]
struct Crowd {
    /// When a node last said so.
    noted: Instant,
    /// When that was last known to count: somebody here who has held the lock since has only now let go of it.
    counted: Instant,
}

struct Line {
    /// Tells the turn that counts from one that was taken away.
    number: u64,
    turn: State,
    waiters: VecDeque<Waiter>,
    seats: u64,
}

enum State {
    /// Somebody asks nodes, and gives another sign by then.
    Asking { until: Instant },
    /// Somebody holds the lock.
    Holding(Weak<Hold>),
    /// The first in line has been called.
    Free { since: Instant },
}

struct Waiter {
    seat: u64,
    /// Called when the turn is free, or when it has come to be the first in line.
    call: Arc<Notify>,
}

/// What a waiter finds when it looks.
enum Look {
    Turn(Turn),
    Wait(Duration),
    /// It was called and did not come in time.
    Gone,
}

impl Lines {
    /// The turn, if nobody has it; then nobody waits for it either.
    pub(crate) fn turn_at_once(self: &Arc<Self>, resources: &Resources) -> Option<Turn> {
        let mut lines = self.lines();
        if lines.contains_key(resources) {
            return None;
        }
        let (began, number) = (Instant::now(), self.next_number());
        let turn = State::Asking { until: began + GRACE };
        lines.insert(resources.clone(), Line { number, turn, waiters: VecDeque::new(), seats: 0 });
        drop(lines);
        Some(Turn { lines: Arc::clone(self), resources: resources.clone(), number, began })
    }

    fn next_number(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for the turn, for at most `patience`.
    ///
    /// *Cancel safety*: whoever leaves gives up its place, and a turn that has come to it meanwhile passes on.
    pub(crate) async fn turn(self: &Arc<Self>, resources: &Resources, patience: Duration) -> Option<Turn> {
        if let Some(turn) = self.turn_at_once(resources) {
            return Some(turn);
        }
        let began = Instant::now();
        let mut seat = None;
        loop {
            let Some(sitting) = seat.take().or_else(|| self.sit_down(resources)) else {
                // The line has gone meanwhile.
                match self.turn_at_once(resources) {
                    Some(turn) => return Some(turn),
                    None => continue,
                }
            };
            let pause = match sitting.look() {
                Look::Turn(turn) => return Some(turn),
                Look::Gone => continue,
                Look::Wait(pause) => pause,
            };
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                return None;
            }
            let _ = tokio::time::timeout(pause.min(left), sitting.call.notified()).await;
            seat = Some(sitting);
        }
    }

    fn sit_down(self: &Arc<Self>, resources: &Resources) -> Option<Seat> {
        let mut lines = self.lines();
        let line = lines.get_mut(resources)?;
        let (number, call) = (line.seats, Arc::new(Notify::new()));
        line.seats += 1;
        line.waiters.push_back(Waiter { seat: number, call: Arc::clone(&call) });
        drop(lines);
        Some(Seat { lines: Arc::clone(self), resources: resources.clone(), number, call })
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Resources, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that others, elsewhere, wait for the resources.
    pub(crate) fn note_crowd(&self, resources: &Resources) {
        let now = Instant::now();
        let mut crowded = self.crowded();
        if CROWDED_MAX <= crowded.len() {
            crowded.retain(|_, crowd| now.duration_since(crowd.counted) < CROWDED_FOR);
        }
        if crowded.len() < CROWDED_MAX {
            crowded.insert(resources.clone(), Crowd { noted: now, counted: now });
        }
    }

    /// Whether others, elsewhere, have been found to wait for the resources of late.
    pub(crate) fn are_crowded(&self, resources: &Resources) -> bool {
        let mut crowded = self.crowded();
        let Some(crowd) = crowded.get(resources) else { return false };
        let of_late = crowd.counted.elapsed() < CROWDED_FOR;
        if !of_late {
            crowded.remove(resources);
        }
        of_late
    }

    /// A turn that began then ends. A crowd that was noted meanwhile waits still, however long the turn took: what a node
    /// says of it comes back after a release, when the next turn has begun already.
    fn turn_ends(&self, resources: &Resources, began: Instant) {
        if let Some(crowd) = self.crowded().get_mut(resources)
            && began <= crowd.noted
        {
            crowd.counted = Instant::now();
        }
    }

    fn crowded(&self) -> MutexGuard<'_, HashMap<Resources, Crowd>> {
        self.crowded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Whether the turn may be taken, or else when to look again.
    fn free(&self) -> Result<(), Duration> {
        let now = Instant::now();
        match &self.turn {
            State::Free { .. } => Ok(()),
            State::Asking { until } if *until <= now => Ok(()),
            State::Asking { until } => Err(until.saturating_duration_since(now)),
            State::Holding(hold) => match hold.upgrade() {
                Some(hold) if hold.state().is_held() => Err(hold.remaining().min(LOOK_AT_LEAST_EVERY)),
                _ => Ok(()),
            },
        }
    }

    /// Calls the first in line.
    fn call_first(&self) {
        if let Some(first) = self.waiters.front() {
            first.call.notify_one();
        }
    }
}

/// A place in a line, until it is dropped.
struct Seat {
    lines: Arc<Lines>,
    resources: Resources,
    number: u64,
    call: Arc<Notify>,
}

impl Seat {
    fn look(&self) -> Look {
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(&self.resources) else { return Look::Gone };
        if let State::Free { since } = line.turn
            && GRACE <= since.elapsed()
            && line.waiters.front().is_some_and(|first| first.seat != self.number)
        {
            line.waiters.pop_front();
            line.turn = State::Free { since: Instant::now() };
            line.call_first();
        }
        match line.waiters.iter().position(|waiter| waiter.seat == self.number) {
            None => Look::Gone,
            Some(0) => match line.free() {
                Ok(()) => {
                    line.waiters.pop_front();
                    let (began, number) = (Instant::now(), self.lines.next_number());
                    line.number = number;
                    line.turn = State::Asking { until: began + GRACE };
                    // The next one is the first now, and watches.
                    line.call_first();
                    let (lines, resources) = (Arc::clone(&self.lines), self.resources.clone());
                    Look::Turn(Turn { lines, resources, number, began })
                }
                Err(again_in) => Look::Wait(again_in.max(Duration::from_millis(1))),
            },
            // Whoever comes to be the first is called.
            Some(_) => Look::Wait(GRACE),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(&self.resources) else { return };
        let first = line.waiters.front().is_some_and(|first| first.seat == self.number);
        line.waiters.retain(|waiter| waiter.seat != self.number);
        if first {
            line.call_first();
        }
        if line.waiters.is_empty() && matches!(line.turn, State::Free { .. }) {
            lines.remove(&self.resources);
        }
    }
}

/// The right to hold the lock, or to be the only one here that asks for it; passes on when it is dropped.
pub(crate) struct Turn {
    lines: Arc<Lines>,
    resources: Resources,
    number: u64,
    began: Instant,
}

impl Turn {
    /// Gives a sign: the next one comes within `pause`.
    pub(crate) fn asking(&self, pause: Duration) {
        let now = Instant::now();
        let until = now.checked_add(pause.saturating_add(GRACE)).unwrap_or(now + GRACE);
        self.set(State::Asking { until });
    }

    /// The lock is held now.
    pub(crate) fn holding(&self, hold: &Arc<Hold>) {
        self.set(State::Holding(Arc::downgrade(hold)));
    }

    fn set(&self, state: State) {
        if let Some(line) = self.lines.lines().get_mut(&self.resources)
            && line.number == self.number
        {
            line.turn = state;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.lines.turn_ends(&self.resources, self.began);
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(&self.resources) else { return };
        if line.number != self.number {
            // It was taken away.
            return;
        }
        if line.waiters.is_empty() {
            lines.remove(&self.resources);
        } else {
            line.turn = State::Free { since: Instant::now() };
            line.call_first();
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("lines", &self.lines().len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("resources", &self.resources).field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::IntoResources as _;
    use futures_util::FutureExt as _;
    use std::pin::pin;

    const LONG: Duration = Duration::from_secs(3600);

    fn resources() -> Resources {
        "r".into_resources().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_turn_passes_in_the_order_of_arrival_and_an_empty_line_is_forgotten() {
        let (lines, resources) = (Arc::new(Lines::default()), resources());
        let turn = lines.turn_at_once(&resources).unwrap();
        let (mut first, mut second) = (Box::pin(lines.turn(&resources, LONG)), Box::pin(lines.turn(&resources, LONG)));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        turn.asking(LONG);
        drop(turn);
        assert!((&mut second).now_or_never().is_none(), "the first one's turn");
        let turn = first.await.unwrap();
        turn.asking(LONG);
        assert!((&mut second).now_or_never().is_none());
        drop(turn);
        drop(second.await.unwrap());
        assert!(lines.lines().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_and_leaves_no_trace() {
        let (lines, resources) = (Arc::new(Lines::default()), resources());
        let turn = lines.turn_at_once(&resources).unwrap();
        turn.asking(LONG);
        let began = Instant::now();
        assert!(lines.turn(&resources, Duration::from_secs(5)).await.is_none());
        assert_eq!(began.elapsed(), Duration::from_secs(5));
        drop(turn);
        assert!(lines.lines().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_gives_no_sign_is_taken_away_and_then_counts_for_nothing() {
        let (lines, resources) = (Arc::new(Lines::default()), resources());
        let asleep = lines.turn_at_once(&resources).unwrap();
        let taken = lines.turn(&resources, LONG).await.expect("taken from who sleeps");
        taken.asking(LONG);
        drop(asleep);
        let mut next = pin!(lines.turn(&resources, LONG));
        assert!((&mut next).now_or_never().is_none(), "the turn that was taken away passes nothing on");
        drop(taken);
        assert!(next.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_called_and_does_not_come_does_not_keep_the_others() {
        let (lines, resources) = (Arc::new(Lines::default()), resources());
        let turn = lines.turn_at_once(&resources).unwrap();
        let mut asleep = Box::pin(lines.turn(&resources, LONG));
        assert!((&mut asleep).now_or_never().is_none());
        let awake = lines.turn(&resources, LONG);
        drop(turn);
        let turn = awake.await.expect("it is passed over");
        drop(turn);
        assert!(asleep.await.is_some(), "and comes again when it wakes up");
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_while_it_is_called_passes_the_call_on() {
        let (lines, resources) = (Arc::new(Lines::default()), resources());
        let turn = lines.turn_at_once(&resources).unwrap();
        let (mut first, mut second) = (Box::pin(lines.turn(&resources, LONG)), Box::pin(lines.turn(&resources, LONG)));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(turn);
        drop(first);
        assert!((&mut second).now_or_never().flatten().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_was_taken_away_does_not_count_in_a_later_line_either() {
        let (lines, resources) = (Arc::new(Lines::default()), resources());
        let asleep = lines.turn_at_once(&resources).unwrap();
        drop(lines.turn(&resources, LONG).await.expect("taken from who sleeps"));
        let turn = lines.turn_at_once(&resources).expect("the line had gone");
        turn.asking(LONG);
        drop(asleep);
        assert!(lines.turn_at_once(&resources).is_none(), "somebody has the turn");
        drop(turn);
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_is_remembered_for_a_while_after_the_turn_in_which_it_was_noted() {
        let (lines, resources) = (Arc::new(Lines::default()), resources());
        assert!(!lines.are_crowded(&resources));
        lines.note_crowd(&resources);
        assert!(lines.are_crowded(&resources));
        tokio::time::advance(CROWDED_FOR).await;
        assert!(!lines.are_crowded(&resources));

        let turn = lines.turn_at_once(&resources).unwrap();
        lines.note_crowd(&resources);
        tokio::time::advance(4 * CROWDED_FOR).await;
        drop(turn);
        assert!(lines.are_crowded(&resources), "however long the turn took");
        tokio::time::advance(CROWDED_FOR / 2).await;
        let turn = lines.turn_at_once(&resources).unwrap();
        tokio::time::advance(CROWDED_FOR).await;
        drop(turn);
        assert!(!lines.are_crowded(&resources), "nobody was noted in the later turn");
    }
}
