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
const RELEASE_BEGUN: u8 = 32;
const NOTHING_THERE: u8 = 8;
const TAKEN_AGAIN: u8 = 16;

#[derive(Debug)]
pub(crate) struct Undertaking {
    ownership: Ownership,
    ttl: Ttl,
    floor: u64,
    longest_ttl_millis: AtomicU64,
    progress: Box<[AtomicU8]>,
    /// Per node, the ttls of extensions that were sent and whose effect is unknown: not answered yet, or never.
    unanswered: Mutex<Vec<Unanswered>>,
    release_errors: Mutex<Vec<(usize, NodeError)>>,
}

/// Extensions of one node to one ttl whose effect is unknown.
#[derive(Debug)]
struct Unanswered {
    node: usize,
    ttl: Ttl,
    count: u32,
}

impl Undertaking {
    pub(crate) fn new(ownership: Ownership, ttl: Ttl, floor: u64, nodes: usize) -> Self {
        Self {
            ownership,
            ttl,
            floor,
            longest_ttl_millis: AtomicU64::new(ttl.as_millis()),
            progress: (0..nodes).map(|_| AtomicU8::new(0)).collect(),
            unanswered: Mutex::default(),
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

    pub(crate) fn extension_sent(&self, node: usize, ttl: Ttl) {
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        match unanswered.iter_mut().find(|sent| (sent.node, sent.ttl) == (node, ttl)) {
            Some(sent) => sent.count = sent.count.saturating_add(1),
            None => unanswered.push(Unanswered { node, ttl, count: 1 }),
        }
    }

    /// The node has answered an extension to `ttl`. Says whether that may be relied on: an earlier one to less, whose
    /// effect is unknown, may still take effect after it and end the lease early.
    pub(crate) fn extension_answered(&self, node: usize, ttl: Ttl) -> bool {
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sent) = unanswered.iter_mut().find(|sent| (sent.node, sent.ttl) == (node, ttl)) {
            sent.count = sent.count.saturating_sub(1);
        }
        unanswered.retain(|sent| 0 < sent.count);
        unanswered
            .iter()
            .all(|sent| sent.node != node || ttl <= sent.ttl || mutant!("late shorter extensions forgotten"))
    }

    /// Notes that an acquire is on its way, the first one or one that takes a node again.
    pub(crate) fn acquire_sent(&self, node: usize) {
        let again = if self.may_be_on(node) { TAKEN_AGAIN } else { 0 };
        self.progress[node].store(ACQUIRE_SENT | again, Ordering::Release);
    }

    /// Whether a release has been sent since the acquire was noted.
    pub(crate) fn release_has_begun(&self, node: usize) -> bool {
        self.progress[node].load(Ordering::Acquire) & RELEASE_BEGUN != 0
    }

    pub(crate) fn release_begun(&self, node: usize) {
        self.progress[node].fetch_or(RELEASE_BEGUN, Ordering::AcqRel);
    }

    /// The node said that somebody is in the way, so it took nothing for us. If it was being taken again, that may be we:
    /// of several resources some were gone and the others are still ours.
    pub(crate) fn nothing_there(&self, node: usize) {
        if self.progress[node].load(Ordering::Acquire) & TAKEN_AGAIN == 0 {
            self.progress[node].fetch_or(NOTHING_THERE, Ordering::AcqRel);
        }
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
        undertaking.acquire_sent(0);
        undertaking.nothing_there(0);
        assert!(undertaking.may_be_on(0));
    }

    #[test]
    fn an_extension_is_relied_on_unless_a_shorter_one_may_still_come() {
        let undertaking = undertaking();
        let [short, long] = [1, 10].map(|seconds| Ttl::new(Duration::from_secs(seconds)).unwrap());
        undertaking.extension_sent(0, short);
        undertaking.extension_sent(0, short);
        undertaking.extension_sent(0, long);
        undertaking.extension_sent(1, long);
        assert!(undertaking.extension_answered(0, short));
        assert!(!undertaking.extension_answered(0, long), "one to the shorter ttl may still take effect");
        assert!(undertaking.extension_answered(1, long), "on this node there is none");
        undertaking.extension_sent(0, long);
        assert!(undertaking.extension_answered(0, short));
        assert!(undertaking.extension_answered(0, long));
    }

    #[test]
    fn a_release_counts_from_the_acquire_that_was_noted_last() {
        let undertaking = undertaking();
        undertaking.acquire_sent(0);
        assert!(!undertaking.release_has_begun(0));
        undertaking.release_begun(0);
        assert!(undertaking.release_has_begun(0));
        assert!(!undertaking.release_has_begun(1));
        undertaking.acquire_sent(0);
        assert!(!undertaking.release_has_begun(0));
    }
}
