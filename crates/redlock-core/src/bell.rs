//! Where wake-ups arrive: which waiters of one client stand in line at nodes, and how they are called.
//!
//! A client listens under one name of its own; each of its waiters has a ticket. A node that wakes a waiter names both, and
//! the [`Bell`] finds the task. Ringing never blocks, and a wake-up that comes while its waiter is busy is not lost.
//!
//! Knows neither locks nor nodes. [`crate::waiting`] takes the tickets, a [`LockNode`](crate::LockNode) rings.

use crate::owner::Randomness;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// One client as nodes know it that are to wake its waiters.
#[derive(Clone, Debug)]
pub struct Listener {
    name: Arc<str>,
    bell: Arc<Bell>,
}

impl Listener {
    /// A listener of a new random name, for whose waiters the returned bell is rung.
    #[must_use]
    pub fn new(randomness: &dyn Randomness) -> Self {
        let mut bytes = [0; 16];
        randomness.fill(&mut bytes);
        let name = format!("{:032x}", u128::from_le_bytes(bytes)).into();
        Self { name, bell: Arc::default() }
    }

    /// The name under which wake-ups are sent: letters and digits, and nobody else's.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What is to be rung.
    #[must_use]
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// A ticket for a new waiter.
    pub(crate) fn ticket(&self) -> Ticket {
        let number = self.bell.next.fetch_add(1, Ordering::Relaxed);
        let call = Arc::new(Call::default());
        self.bell.waiting().insert(number, Arc::clone(&call));
        Ticket { listener: self.clone(), number, call }
    }
}

/// Who of a client's waiters is to be called.
#[derive(Default)]
pub struct Bell {
    waiting: Mutex<BTreeMap<u64, Arc<Call>>>,
    next: AtomicU64,
}

#[derive(Default, Debug)]
struct Call {
    notify: Notify,
    by_ticket: AtomicBool,
}

impl Bell {
    /// Calls one waiter. Says whether it still waits.
    pub fn ring(&self, ticket: u64) -> bool {
        let waiting = self.waiting();
        let call = waiting.get(&ticket);
        if let Some(call) = call {
            call.by_ticket.store(true, Ordering::Release);
            call.notify.notify_one();
        }
        call.is_some()
    }

    /// Calls all waiters, in the order in which they came: wake-ups may have been lost, so each should look for itself.
    pub fn ring_all(&self) {
        for call in self.waiting().values() {
            call.notify.notify_one();
        }
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting().is_empty()
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Call>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("waiting", &self.waiting().len()).finish_non_exhaustive()
    }
}

/// One waiter's right to be called, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    listener: Listener,
    number: u64,
    call: Arc<Call>,
}

impl Ticket {
    pub(crate) fn place(&self, manner: Manner) -> Place {
        Place { listener: Arc::clone(self.listener.name()), ticket: self.number, manner }
    }

    /// Resolves when the waiter is called, or has been since it last waited. Says whether it was it alone, rather than all
    /// who wait.
    pub(crate) async fn called(&self) -> bool {
        self.call.notify.notified().await;
        self.call.by_ticket.swap(false, Ordering::AcqRel)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.listener.bell.waiting().remove(&self.number);
    }
}

/// Who stands in line, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Place {
    /// The name of the waiter's [`Listener`].
    pub listener: Arc<str>,
    /// Its ticket.
    pub ticket: u64,
    /// What others in the line mean to it.
    pub manner: Manner,
}

impl Place {
    /// A place in line, for tests of nodes.
    #[must_use]
    pub fn new(listener: &Listener, ticket: u64, manner: Manner) -> Self {
        Self { listener: Arc::clone(listener.name()), ticket, manner }
    }
}

/// What the others in a line mean to a waiter that finds the resources free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// Those before it come first: it takes the resources only if it is the first in line of those who still listen.
    Yield,
    /// It was called: it takes them wherever it stands.
    Called,
    /// Those before it were called and have not come: it takes them, and these leave the line.
    Overtake,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::OsRandomness;
    use futures_util::FutureExt as _;

    #[test]
    fn a_waiter_is_called_by_its_ticket_and_a_call_that_comes_early_is_kept() {
        let listener = Listener::new(&OsRandomness);
        let (first, second) = (listener.ticket(), listener.ticket());
        assert!(listener.bell().ring(first.number));
        assert!(second.called().now_or_never().is_none());
        assert_eq!(first.called().now_or_never(), Some(true));
        assert!(first.called().now_or_never().is_none(), "one call, one answer");
        listener.bell().ring_all();
        assert_eq!(second.called().now_or_never(), Some(false));
    }

    #[test]
    fn who_has_left_is_not_called() {
        let listener = Listener::new(&OsRandomness);
        let number = listener.ticket().number;
        assert!(!listener.bell().ring(number));
        assert!(listener.bell().is_idle());
    }
}
