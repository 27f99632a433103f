//! The real decision code, with a note of what it was told.
//!
//! An [`Attempt`] cannot be asked to swap two nodes. Told the same things with the nodes' names swapped, it becomes the
//! attempt that it would have been; and if it then said something else than it did, it would treat nodes differently, and
//! the replay fails.

use super::NODES;
use redlock_core::FencingToken;
use redlock_core::attempt::{AcquireVote, Attempt, RaiseVote, Step};
use std::hash::{Hash, Hasher};

/// What decides. Two are equal if their attempts are, however these came to be.
#[derive(Clone, Debug)]
pub struct Mind {
    attempt: Attempt,
    told: Vec<(Told, Step)>,
}

/// What an attempt can be told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Told {
    Vote(usize, AcquireVote),
    Raised(usize, FencingToken, RaiseVote),
    NotBelow(FencingToken),
}

impl Mind {
    pub(super) fn new() -> Self {
        Self { attempt: Attempt::new(NODES), told: Vec::new() }
    }

    pub(super) fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    pub(super) fn tell(&mut self, told: Told) -> Step {
        let step = match told {
            Told::Vote(node, vote) => self.attempt.on_acquire(node, vote),
            Told::Raised(node, to, vote) => self.attempt.on_raise(node, to, vote),
            Told::NotBelow(floor) => {
                self.attempt.not_below(floor);
                Step::Wait
            }
        };
        self.told.push((told, step));
        step
    }

    /// Whether it was told that the node failed to answer its acquire.
    pub(super) fn gave_up(&self, node: usize) -> bool {
        self.told.iter().any(|(told, _)| *told == Told::Vote(node, AcquireVote::Failed))
    }

    /// The attempt that it would be if `becomes` said which node is which.
    pub(super) fn renamed(&self, becomes: [usize; NODES]) -> Self {
        let mut renamed = Self::new();
        for (told, step) in &self.told {
            let said = renamed.tell(match *told {
                Told::Vote(node, vote) => Told::Vote(becomes[node], vote),
                Told::Raised(node, to, vote) => Told::Raised(becomes[node], to, vote),
                told @ Told::NotBelow(_) => told,
            });
            assert_eq!(said, *step, "an attempt treats nodes alike: {self:?} as {becomes:?}");
        }
        renamed
    }
}

impl PartialEq for Mind {
    fn eq(&self, other: &Self) -> bool {
        self.attempt == other.attempt
    }
}

impl Eq for Mind {}

impl Hash for Mind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.attempt.hash(state);
    }
}
