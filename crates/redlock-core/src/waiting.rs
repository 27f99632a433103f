//! When to try again: whose turn it is in this process, and who is called among processes.
//!
//! ```text
//!  acquire ──▶ the turn in this process (line.rs) ──▶ all nodes at once ──▶ won
//!                                                          │ contended
//!                                                          ▼
//!               called, or the interval is over ◀── the arbiter, in its line ──▶ it granted: the others ──▶ won
//!                      │                                   ▲ held, or others come first
//!                      └───────────────────────────────────┘
//! ```
//!
//! Whoever met contention asks the arbiter first, so that contenders do not split the vote, and stands in its line from the
//! very step in which it found the lock held: a release cannot fall in between. Whoever is called asks all nodes at once. A
//! call that gets lost costs an interval, and an arbiter that is gone costs the order. No promise about who holds what
//! depends on any of this.
//!
//! Between [`crate::redlock`], which takes the request, and [`crate::round`], which makes one attempt.

use crate::arbiter;
use crate::bell::{Manner, Ticket};
use crate::client::Client;
use crate::clock::Moment;
use crate::error::AcquireError;
use crate::fan_out;
use crate::guard::Guard;
use crate::line::Turn;
use crate::node::{Holder, NodeError, Remaining};
use crate::report::NodeOutcome;
use crate::resource::Resources;
use crate::round::Approach;
use crate::settings::{Retry, Terms};
use crate::telemetry;
use std::sync::Arc;
use std::time::Duration;

/// The shortest pause, whatever was asked for: nodes are not asked without any.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Whoever stands in line asks again by itself after so many pauses: in case a call was lost, or nobody calls because the
/// holder has died.
const INTERVAL_PAUSES: u32 = 4;

/// The longest that somebody in line goes without asking, so that no node forgets its place: a node may drop a line to which
/// nobody has come for a minute.
const INTERVAL_MAX: Duration = Duration::from_secs(20);

/// When the arbiter has named the same holder so often in a row, the other nodes are asked as well…
const LOOK_AROUND_AFTER_MIN: u32 = 3;

/// …and again after twice as many answers each time, up to this.
const LOOK_AROUND_AFTER_MAX: u32 = 12;

/// How often in a row a waiter that finds the lock free lets those before it go first, before it overtakes them.
const YIELDS_MAX: u32 = 3;

/// The shortest time after which somebody whom the arbiter had granted, and others had not, asks again: they are about to hear
/// of a release, or to give back what they took. It doubles each time in a row, up to the pause.
const SOON: Duration = Duration::from_millis(1);

/// Beyond a lease's end by the node's own word, for rounding.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);

/// One acquire, from its first attempt to its last.
pub(crate) struct Waiting<'a> {
    client: &'a Arc<Client>,
    resources: &'a Resources,
    terms: Terms,
    retry: Retry,
    began: Moment,
    turn: Option<Turn>,
    /// It has waited for its turn.
    queued: bool,
    ticket: Option<Ticket>,
    /// The nodes in whose lines this waiter may stand.
    in_line: Vec<usize>,
    /// How often in a row it has found the lock free and let others go first.
    yielded: u32,
    look_out: LookOut,
    /// How often in a row something else than a holder on the arbiter stood in its way.
    unsettled: u32,
    /// What comes next is to stand in line, right after an attempt.
    lining_up: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(client: &'a Arc<Client>, resources: &'a Resources, terms: Terms, retry: Retry) -> Self {
        let began = client.clock.now();
        let (turn, ticket, in_line) = (None, None, Vec::new());
        let (queued, yielded, look_out, unsettled, lining_up) = (false, 0, LookOut::default(), 0, false);
        Self {
            client,
            resources,
            terms,
            retry,
            began,
            turn,
            queued,
            ticket,
            in_line,
            yielded,
            look_out,
            unsettled,
            lining_up,
        }
    }

    /// Attempts until one is won or patience is at an end.
    pub(crate) async fn run(mut self, attempts: &mut u32) -> Result<Guard, AcquireError> {
        let single = self.retry.wait.is_zero() || self.retry.attempts == 1;
        self.turn = self.client.lines.turn_at_once(self.resources);
        let mut in_time = true;
        if !single && self.turn.is_none() {
            self.queued = true;
            self.turn = self.client.lines.turn(self.resources, self.left()).await;
            in_time = self.turn.is_some();
        }
        let mut next = if !single && in_time { self.first_approach().await } else { Approach::AllAtOnce };
        loop {
            let out_of_time = !in_time || self.left().is_zero();
            // To stand in line for what was found held just now is no other attempt.
            *attempts += u32::from(!std::mem::take(&mut self.lining_up) || out_of_time);
            let last = out_of_time || self.retry.attempts <= *attempts;
            if last {
                // Whoever comes first: the last one is there for what the nodes say, too.
                next = Approach::AllAtOnce;
            }
            let error = match self.client.attempt(self.resources, self.terms, next.clone()).await {
                Ok(guard) => return Ok(self.granted(guard, *attempts)),
                Err(error) if error.is_worth_retrying() => error,
                Err(error) => return Err(error),
            };
            if self.retry.attempts <= *attempts || self.retry.wait.is_zero() {
                return Err(error);
            }
            if !out_of_time && self.left().is_zero() && matches!(next, Approach::ArbiterFirst { .. }) {
                // The last word is not to be that of a single node.
                continue;
            }
            if out_of_time || self.left().is_zero() {
                let waited = self.waited();
                return Err(AcquireError::TimedOut { waited, attempts: *attempts, last: Box::new(error) });
            }
            next = self.next_approach(&error, next).await;
        }
    }

    fn waited(&self) -> Duration {
        self.client.clock.now().since(self.began)
    }

    fn left(&self) -> Duration {
        self.retry.wait.saturating_sub(self.waited())
    }

    fn granted(mut self, mut guard: Guard, attempts: u32) -> Guard {
        if let Some(turn) = self.turn.take() {
            guard.take_turn(turn);
        }
        if self.queued || 1 < attempts {
            metrics::histogram!(telemetry::WAIT_SECONDS).record(self.waited());
        }
        guard
    }

    /// Behind whoever waits elsewhere, if somebody does.
    async fn first_approach(&mut self) -> Approach {
        if self.client.lines.are_crowded(self.resources) {
            self.ask_arbiter(Manner::Yield).await
        } else {
            Approach::AllAtOnce
        }
    }

    /// Waits for the next attempt's moment, and says whom it asks.
    async fn next_approach(&mut self, error: &AcquireError, tried: Approach) -> Approach {
        let pause = self.retry.delay.saturating_add(self.client.random_part_of(self.retry.jitter)).max(PAUSE_MIN);
        let AcquireError::Contended(report) = error else {
            // Whoever stands in line may have been called just now: a node or two that were late once are no outage.
            let soon = if self.in_line.is_empty() { pause } else { self.soon(self.terms.node_timeout) };
            self.pause(pause.min(soon)).await;
            return Approach::AllAtOnce;
        };
        let (arbiter, in_line) = match tried {
            Approach::AllAtOnce => {
                // Nobody knows of us yet: that is to be changed at once.
                let next = self.ask_arbiter(Manner::Yield).await;
                self.lining_up = matches!(next, Approach::ArbiterFirst { place: Some(_), .. });
                if !self.lining_up {
                    self.pause(pause).await;
                }
                return next;
            }
            Approach::Called { arbiter, .. } | Approach::ArbiterFirst { arbiter, place: Some(_) } => (arbiter, true),
            Approach::ArbiterFirst { arbiter, place: None } => (arbiter, false),
        };
        if let NodeOutcome::Failed(_) = &report.nodes[arbiter].outcome {
            let next = self.ask_arbiter(Manner::Yield).await;
            if let Approach::ArbiterFirst { arbiter: other, place: Some(_) } = next
                && other != arbiter
            {
                // Another keeps the line now: to stand in that one is no other attempt.
                self.lining_up = true;
                return next;
            }
        }
        let NodeOutcome::Held(held) = &report.nodes[arbiter].outcome else {
            // It granted, or said nothing, and others are ahead elsewhere: that will not take long to be settled.
            let soon = self.soon(report.elapsed);
            self.pause(pause.min(soon)).await;
            return self.ask_arbiter(Manner::Called).await;
        };
        self.unsettled = 0;
        let mut patience = if in_line { pause.saturating_mul(INTERVAL_PAUSES).min(INTERVAL_MAX) } else { pause };
        self.yielded = if held.holder == Holder::Line { self.yielded + 1 } else { 0 };
        if 1 < self.yielded {
            patience = pause;
        }
        let look_around = self.look_out.is_due(&held.holder);
        if let Remaining::For(remaining) = held.remaining {
            patience = patience.min(remaining.saturating_add(AFTER_EXPIRY));
        }
        let called = in_line && self.called_within(patience).await;
        if !in_line {
            self.pause(patience).await;
        }
        metrics::counter!(telemetry::WAKE_UPS, "by" => if called { "call" } else { "interval" }).increment(1);
        if called && let Some(ticket) = &self.ticket {
            return Approach::Called { arbiter, place: ticket.place(Manner::Called) };
        }
        if look_around {
            return match self.ask_arbiter(Manner::Yield).await {
                Approach::ArbiterFirst { arbiter, place: Some(place) } => Approach::Called { arbiter, place },
                _ => Approach::AllAtOnce,
            };
        }
        self.ask_arbiter(if self.yielded < YIELDS_MAX { Manner::Yield } else { Manner::Overtake }).await
    }

    /// A while in which what is under way comes through, longer each time in a row.
    fn soon(&mut self, trip: Duration) -> Duration {
        let soon = SOON.max(trip).saturating_mul(1 << self.unsettled.min(16));
        self.unsettled += 1;
        soon.saturating_add(self.client.random_part_of(soon))
    }

    /// Whether this waiter was called by the node before `patience` was over.
    async fn called_within(&self, patience: Duration) -> bool {
        let Some(ticket) = &self.ticket else { return false };
        let patience = patience.min(self.left());
        self.announce(patience);
        tokio::time::timeout(patience, ticket.called()).await.unwrap_or(false)
    }

    async fn pause(&self, pause: Duration) {
        let pause = pause.min(self.left());
        self.announce(pause);
        tokio::time::sleep(pause).await;
    }

    /// Those who wait for the turn hear that we are still there.
    fn announce(&self, pause: Duration) {
        if let Some(turn) = &self.turn {
            turn.asking(pause.saturating_add(self.terms.node_timeout.saturating_mul(3)));
        }
    }

    /// The first node, in the order that all agree on, which can be used now; in its line, if it keeps one.
    async fn ask_arbiter(&mut self, manner: Manner) -> Approach {
        let client = self.client;
        let nodes = client.lanes.iter().map(|lane| lane.node());
        let order = arbiter::order(self.resources, nodes);
        for (position, arbiter) in order.iter().copied().enumerate() {
            let lane = &client.lanes[arbiter];
            if !lane.is_open(self.terms.node_timeout) {
                continue;
            }
            let listening = lane.node().listen(&client.settings.prefix, &client.listener);
            match tokio::time::timeout(self.terms.node_timeout, listening).await {
                Ok(Ok(())) => {
                    let place = self.ticket.get_or_insert_with(|| client.listener.ticket()).place(manner);
                    // One that stood in for it keeps the line no more.
                    self.leave(&order[position + 1..]);
                    if !self.in_line.contains(&arbiter) {
                        self.in_line.push(arbiter);
                    }
                    return Approach::ArbiterFirst { arbiter, place: Some(place) };
                }
                // It keeps no line, for us at least; it is the one to ask all the same.
                Ok(Err(NodeError::Unsupported | NodeError::Refused { .. })) => {
                    return Approach::ArbiterFirst { arbiter, place: None };
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
        Approach::AllAtOnce
    }

    /// Leaves the lines of those of the nodes where this waiter may stand in one.
    fn leave(&mut self, nodes: &[usize]) {
        let Some(ticket) = &self.ticket else { return };
        let client = self.client;
        let calls: Vec<_> = self
            .in_line
            .extract_if(.., |node| nodes.contains(node))
            .map(|node| {
                let place = ticket.place(Manner::Yield);
                fan_out::leave(&client.lanes[node], node, &client.settings.prefix, self.resources, place)
            })
            .collect();
        if !calls.is_empty() {
            client.keeper.keep(calls);
        }
    }
}

/// Says when to ask the other nodes whether the lock is held at all: the arbiter may be the only one on which it is, because
/// a release did not reach it, a holder died half way, or its clock was set back. Then it is a missing vote like any other.
#[derive(Debug, Default)]
struct LookOut {
    holder: Option<Holder>,
    answers: u32,
    looked: u32,
}

impl LookOut {
    /// The arbiter has named this holder again.
    fn is_due(&mut self, holder: &Holder) -> bool {
        if self.holder.as_ref() != Some(holder) {
            *self = Self { holder: Some(holder.clone()), ..Self::default() };
        }
        self.answers += 1;
        let after = LOOK_AROUND_AFTER_MIN.saturating_mul(1_u32.checked_shl(self.looked).unwrap_or(u32::MAX));
        let is_due = *holder != Holder::Line && after.min(LOOK_AROUND_AFTER_MAX) <= self.answers;
        if is_due {
            (self.answers, self.looked) = (0, self.looked + 1);
        }
        is_due
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.leave(&self.in_line.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_others_are_asked_now_and_then_whether_the_same_holder_is_there_at_all() {
        let mut look_out = LookOut::default();
        let due: Vec<u32> = (1..=50).filter(|_| look_out.is_due(&Holder::Unknown)).collect();
        assert_eq!(due, [3, 9, 21, 33, 45]);
        assert!((0..50).all(|_| !look_out.is_due(&Holder::Line)), "nobody holds it");
        let another = Holder::Foreign { kind: "hash".into() };
        assert!(!look_out.is_due(&another));
        assert!(!look_out.is_due(&another));
        assert!(look_out.is_due(&another), "counted anew");
    }
}
