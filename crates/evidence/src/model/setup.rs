//! Which world is explored: how many attempts, what may go wrong, and which rule is followed.

use super::{Counter, NODES};

/// When a lock may expire on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// At any moment: nothing is assumed of clocks. What is promised about tokens has to stand this.
    AtAnyMoment,
    /// Only when the attempt is lost or its grant is over: clocks keep within the drift allowance. What is promised about
    /// overlaps needs this.
    OnlyWhenOver,
}

/// What attempts know of a floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Floor {
    /// Nothing: floors are switched off.
    Off,
    /// Nothing or this much, and in the latter case either from the beginning or with the first answer. Clients have
    /// clocks and memories of their own, so attempts differ in what they know.
    Some(Counter),
}

/// What a node that restarts comes back with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Restart {
    /// Nothing at all.
    Empty,
    /// Everything; but nobody can tell.
    Whole,
    /// Counters as they stood some time ago, and no locks: the tail of a log was cut off.
    Truncated,
}

/// The rule that is followed: the right one, or the right one with one mistake in it.
///
/// No mistake replaces the decision code. Each is a misunderstanding around it, of the kind an implementation could have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// As it is.
    Right,
    /// The greatest counter of a granting quorum is taken for the token, and nobody is raised to it.
    GreatestReply,
    /// Nodes raise without looking at who holds the lock.
    RaiseWithoutOwnerCheck,
    /// Any node that raised without complaint counts as standing at the token, even if it stands higher.
    AnyRaiseIsAnAck,
    /// A node that restarted serves at once with what it came back with: no guard.
    NoGuard,
    /// A node that restarted is taken back as soon as its marks are fetched, without waiting for what is under way.
    NoQuarantine,
    /// Marks are fetched from one other node; a quorum would be two.
    MarksFromTooFew,
    /// Marks are fetched while the node is still in quarantine, and used after it.
    MarksFromBefore,
    /// The base covers resources without a counter, but not counters that came back too low.
    BaseForMissingOnly,
}

/// A world to explore.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many attempts there are; each may begin at any moment, also after others are over.
    pub attempts: usize,
    /// Whether an attempt may give up on a node at any moment: requests and replies are lost, or late.
    pub loss: bool,
    /// When locks may expire.
    pub expiry: Expiry,
    /// What attempts know of a floor.
    pub floor: Floor,
    /// What the counters stand at in the beginning; one world for each.
    pub counters: Vec<[Counter; NODES]>,
    /// What nodes may come back with after a restart.
    pub restarts: Vec<Restart>,
    /// How many restarts there may be.
    pub restarts_max: u8,
    /// The rule that is followed.
    pub rule: Rule,
}

impl Setup {
    /// So many attempts under the right rule, with counters that begin at nothing, no floor, and nodes that never restart.
    #[must_use]
    pub fn attempts(attempts: usize) -> Self {
        Self {
            attempts,
            loss: false,
            expiry: Expiry::AtAnyMoment,
            floor: Floor::Off,
            counters: vec![[0; NODES]],
            restarts: Vec::new(),
            restarts_max: 0,
            rule: Rule::Right,
        }
    }

    /// With messages lost.
    #[must_use]
    pub fn loss(self) -> Self {
        Self { loss: true, ..self }
    }

    /// With other counters to begin with.
    #[must_use]
    pub fn counters(self, counters: impl Into<Vec<[Counter; NODES]>>) -> Self {
        Self { counters: counters.into(), ..self }
    }

    /// With floors.
    #[must_use]
    pub fn floor(self, floor: Counter) -> Self {
        Self { floor: Floor::Some(floor), ..self }
    }

    /// With clocks that keep within their allowance.
    #[must_use]
    pub fn clocks_agree(self) -> Self {
        Self { expiry: Expiry::OnlyWhenOver, ..self }
    }

    /// With at most `max` restarts, each of one of these kinds.
    #[must_use]
    pub fn restarts(self, max: u8, kinds: impl Into<Vec<Restart>>) -> Self {
        Self { restarts_max: max, restarts: kinds.into(), ..self }
    }

    /// With a mistake.
    #[must_use]
    pub fn rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }
}
