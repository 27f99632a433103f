//! One attempt as its calls share it: what was asked for, and how far it has come on each node.
//!
//! Answers the question that decides whether a node still has to be told: may something of ours be there?

use crate::node::NodeError;
use crate::owner::Ownership;
use crate::resource::Ttl;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const ACQUIRE_SENT: u8 = 1;
const ACQUIRE_ANSWERED: u8 = 2;
const RELEASE_ANSWERED: u8 = 4;
const NOTHING_THERE: u8 = 8;
const TAKEN_AGAIN: u8 = 16;

#[derive(Debug)]
pub(crate) struct Undertaking {
    ownership: Ownership,
    ttl: Ttl,
    floor: u64,
    longest_ttl_millis: AtomicU64,
    progress: Box<[AtomicU8]>,
    release_errors: Mutex<Vec<(usize, NodeError)>>,
}

impl Undertaking {
    pub(crate) fn new(ownership: Ownership, ttl: Ttl, floor: u64, nodes: usize) -> Self {
        Self {
            ownership,
            ttl,
            floor,
            longest_ttl_millis: AtomicU64::new(ttl.as_millis()),
            progress: (0..nodes).map(|_| AtomicU8::new(0)).collect(),
            release_errors: Mutex::default(),
        }
    }

    pub(crate) fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    pub(crate) fn ttl(&self) -> Ttl {
        self.ttl
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// The longest time to live that any node was asked for, by the acquire or an extension.
    pub(crate) fn longest_ttl(&self) -> Ttl {
        let millis = self.longest_ttl_millis.load(Ordering::Relaxed);
        Ttl::new(Duration::from_millis(millis)).unwrap_or(self.ttl)
    }

    pub(crate) fn extended_to(&self, ttl: Ttl) {
        self.longest_ttl_millis.fetch_max(ttl.as_millis(), Ordering::Relaxed);
    }

    /// Notes that an acquire is on its way, the first one or one that takes a node again.
    pub(crate) fn acquire_sent(&self, node: usize) {
        let again = if self.may_be_on(node) { TAKEN_AGAIN } else { 0 };
        self.progress[node].store(ACQUIRE_SENT | again, Ordering::Release);
    }

    /// Notes the answer to the acquire; `true` if a release was answered before it.
    pub(crate) fn acquire_answered(&self, node: usize) -> bool {
        self.progress[node].fetch_or(ACQUIRE_ANSWERED, Ordering::AcqRel) & RELEASE_ANSWERED != 0
    }

    /// The node said that somebody is in the way, so it took nothing for us. If it was being taken again, that may be we:
    /// of several resources some were gone and the others are still ours.
    pub(crate) fn nothing_there(&self, node: usize) {
        if self.progress[node].load(Ordering::Acquire) & TAKEN_AGAIN == 0 {
            self.progress[node].fetch_or(NOTHING_THERE, Ordering::AcqRel);
        }
    }

    pub(crate) fn release_answered(&self, node: usize) {
        self.progress[node].fetch_or(RELEASE_ANSWERED, Ordering::AcqRel);
    }

    pub(crate) fn release_failed(&self, node: usize, error: &NodeError) {
        let mut errors = self.release_errors.lock().unwrap_or_else(PoisonError::into_inner);
        match errors.iter_mut().find(|(failed, _)| *failed == node) {
            Some((_, latest)) => *latest = error.clone(),
            None => errors.push((node, error.clone())),
        }
    }

    /// The latest reason why `node` has not answered the release.
    pub(crate) fn release_error(&self, node: usize) -> Option<NodeError> {
        let errors = self.release_errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.iter().find(|(failed, _)| *failed == node).map(|(_, error)| error.clone())
    }

    /// Whether the node may hold something of ours: the acquire was sent, and the node has not said that it took nothing.
    pub(crate) fn may_be_on(&self, node: usize) -> bool {
        self.progress[node].load(Ordering::Acquire) & (ACQUIRE_SENT | NOTHING_THERE) == ACQUIRE_SENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::Owner;
    use crate::resource::{KeyPrefix, Resource};

    fn undertaking() -> Undertaking {
        let resources = Resource::new("r").unwrap().into();
        let ownership = Ownership::new(KeyPrefix::default(), resources, Owner::from_random_bytes([1; 16]));
        Undertaking::new(ownership, Ttl::new(Duration::from_secs(1)).unwrap(), 0, 2)
    }

    #[test]
    fn a_node_is_told_unless_it_was_never_asked_or_said_that_it_took_nothing() {
        let undertaking = undertaking();
        assert!(!undertaking.may_be_on(0));
        undertaking.acquire_sent(0);
        assert!(undertaking.may_be_on(0));
        assert!(!undertaking.may_be_on(1));
        undertaking.nothing_there(0);
        assert!(!undertaking.may_be_on(0));
    }

    #[test]
    fn a_node_that_is_taken_again_in_vain_is_told_nevertheless() {
        let undertaking = undertaking();
        undertaking.acquire_sent(0);
        undertaking.acquire_answered(0);
        undertaking.acquire_sent(0);
        undertaking.nothing_there(0);
        assert!(undertaking.may_be_on(0));
    }

    #[test]
    fn an_acquire_that_is_answered_after_its_release_is_noticed() {
        let undertaking = undertaking();
        assert!(!undertaking.acquire_answered(0));
        undertaking.release_answered(1);
        assert!(undertaking.acquire_answered(1));
    }
}
