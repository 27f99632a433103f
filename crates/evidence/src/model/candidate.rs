//! One attempt, and what lies between it and each node.

use super::mind::Mind;
use super::{Counter, NODES};
use redlock_core::attempt::{AcquireVote, RaiseVote};
use redlock_core::tally::quorum_of;
use std::hash::{Hash, Hasher};

/// One attempt: an owner of its own, one try at the lock, and what became of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Candidate {
    /// How far it is.
    pub phase: Phase,
    /// What lies between it and each node.
    pub seats: [Seat; NODES],
    /// What has happened on the way.
    pub story: Story,
}

/// How far an attempt is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Not begun.
    Idle,
    /// Under way.
    Open {
        /// What decides.
        mind: Mind,
        /// The greatest token that had been issued when it began.
        after: Counter,
        /// The floor its acquire carries.
        floor: Counter,
        /// A floor that becomes known with the first answer.
        late_floor: Option<Counter>,
    },
    /// Won, and the grant is in force.
    Won(Won),
    /// Won, and the grant has ended.
    Over(Won),
    /// Lost.
    Lost,
}

/// What is known of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Won {
    /// The token.
    pub token: Counter,
    /// Whether it is greater than every token that had been issued when the attempt began.
    pub in_order: bool,
    /// Whether a quorum of nodes did stand at exactly this token while the attempt held the resource there.
    pub behind_it: bool,
    /// Whether a node was behind it whose answer to the acquire had been lost, which only the raise found out.
    pub unheard: bool,
    /// Whether it was granted although a node refused because of its quarantine.
    pub without: bool,
}

/// What happened on the way. Nothing depends on it but the proof that it can happen, so worlds that differ in nothing else
/// are one world: a story that is told is true, but not every true story is told.
#[derive(Clone, Copy, Default, Debug)]
pub struct Story {
    /// A second trip was made.
    pub raised: bool,
    /// And a third, because a node answered more.
    pub raised_again: bool,
    /// A node said that it is held by somebody else.
    pub contended: bool,
    /// A node whose answer to the acquire was given up confirmed the raise.
    pub silent_grant: bool,
    /// A node that had lost its lock refused the raise.
    pub lapsed: bool,
    /// A node in quarantine refused.
    pub quarantined: bool,
    /// A node that had been restarted granted.
    pub taken_back: bool,
    /// The token lies above a floor that lies above all tokens before.
    pub lifted: bool,
}

impl PartialEq for Story {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Story {}

impl Hash for Story {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// What lies between one attempt and one node.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Seat {
    /// The node holds the resource for the attempt.
    pub holds: bool,
    /// Values that the counter stood at while it did: a bit for each. The checker's own book, which no decision looks at.
    pub stood: u16,
    /// The acquire has been sent and has not been executed.
    pub acquire: bool,
    /// So have raises, to these values: a bit for each.
    pub raises: u16,
    /// The acquire is waited for.
    pub awaits_acquire: bool,
    /// The raises to these values are waited for.
    pub awaits_raises: u16,
    /// The answer to the acquire is on its way.
    pub vote: Option<AcquireVote>,
    /// Answers to raises are on their way.
    pub raised: Vec<(Counter, RaiseVote)>,
    /// The node restarted while the attempt was under way, and is not to serve before it is over.
    pub quarantine: bool,
}

impl Candidate {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Idle, seats: Default::default(), story: Story::default() }
    }

    /// The grant, if there was one.
    #[must_use]
    pub fn won(&self) -> Option<&Won> {
        match &self.phase {
            Phase::Won(won) | Phase::Over(won) => Some(won),
            _ => None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open { .. })
    }

    /// It can no longer come to rely on the lock, or rely on it still.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_) | Phase::Lost)
    }

    /// Whether a quorum stood at the token, by the checker's own book.
    pub(super) fn stood_at(&self, token: Counter) -> bool {
        let stood = self.seats.iter().filter(|seat| seat.stood & bit(token) != 0).count();
        quorum_of(NODES) <= stood
    }

    /// Decided: answers do not matter any more. What was sent may still be executed.
    pub(super) fn end(&mut self, phase: Phase) {
        for seat in &mut self.seats {
            seat.stood = 0;
            seat.awaits_acquire = false;
            seat.awaits_raises = 0;
            seat.vote = None;
            seat.raised.clear();
        }
        self.phase = phase;
    }

    /// No quarantine waits for it any longer.
    pub(super) fn let_go(&mut self) {
        for seat in &mut self.seats {
            seat.quarantine = false;
        }
    }

    /// Forgets what can have no effect any more.
    pub(super) fn forget(&mut self) {
        let acquires = self.seats.iter().any(|seat| seat.acquire);
        match &mut self.phase {
            Phase::Open { floor, .. } if !acquires => *floor = 0,
            Phase::Open { .. } => {}
            _ => {
                for seat in &mut self.seats {
                    // Nobody waits for the refusal.
                    if !seat.holds && !seat.acquire {
                        seat.raises = 0;
                    }
                }
            }
        }
    }
}

pub(super) fn bit(counter: Counter) -> u16 {
    assert!(counter < 16, "the model's counters stay small");
    1 << counter
}

pub(super) fn bits(set: u16) -> impl Iterator<Item = Counter> {
    (0..16).filter(move |counter| set & bit(*counter) != 0)
}
