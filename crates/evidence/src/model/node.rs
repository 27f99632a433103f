//! A node as the contract describes it, with the crash-recovery guard's namespace record.
//!
//! Who holds the resource is noted with the attempts ([`Seat::holds`](super::Seat)), so that these can be put in any
//! order. The record's *high* mark is as low as it may be: what the counter stands at, or the base.

use super::{Counter, NODES, Restart, Rule};

/// One node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node {
    /// The resource's fence counter; none if the node has lost it.
    pub counter: Option<Counter>,
    /// What a resource without a counter starts from.
    pub base: Counter,
    /// Whether it votes.
    pub service: Service,
}

/// Whether a node votes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Service {
    /// It does.
    Serving {
        /// It has been restarted, and taken back if there is a guard.
        again: bool,
    },
    /// It has been restarted, and its record is missing or foreign.
    Quarantined {
        /// The high marks of the others, as far as they have been fetched.
        marks: [Option<Counter>; NODES],
    },
}

impl Node {
    pub(super) fn new(counter: Counter) -> Self {
        Self { counter: Some(counter), base: 0, service: Service::Serving { again: false } }
    }

    /// The same node where `order[0]` is the first, and so on.
    pub(super) fn renamed(self, order: [usize; NODES]) -> Self {
        match self.service {
            Service::Quarantined { marks } => {
                Self { service: Service::Quarantined { marks: order.map(|node| marks[node]) }, ..self }
            }
            Service::Serving { .. } => self,
        }
    }

    pub(super) fn serves(&self) -> bool {
        matches!(self.service, Service::Serving { .. })
    }

    pub(super) fn serves_again(&self) -> bool {
        self.service == Service::Serving { again: true }
    }

    /// At least as great as every counter that was ever set here, since the record was written.
    pub(super) fn high(&self) -> Counter {
        self.base.max(self.counter.unwrap_or(0))
    }

    /// What a grant here has to exceed.
    fn stands_at(&self, rule: Rule) -> Counter {
        match (self.counter, rule) {
            (Some(counter), Rule::BaseForMissingOnly) => counter,
            (counter, _) => counter.unwrap_or(0).max(self.base),
        }
    }

    /// Sets the counter above everything it has been, and answers it.
    pub(super) fn grant(&mut self, floor: Counter, rule: Rule) -> Counter {
        let counter = 1 + self.stands_at(rule).max(floor);
        self.counter = Some(counter);
        counter
    }

    /// Sets the counter to at least this, and answers it.
    pub(super) fn raise(&mut self, to: Counter, rule: Rule) -> Counter {
        let counter = self.stands_at(rule).max(to);
        self.counter = Some(counter);
        counter
    }

    /// All that a node may be after such a restart.
    pub(super) fn restarted(self, restart: Restart, rule: Rule) -> Vec<Self> {
        let service = match rule {
            Rule::NoGuard => Service::Serving { again: true },
            _ => Service::Quarantined { marks: [None; NODES] },
        };
        let back = Self { service, ..self };
        match restart {
            Restart::Empty => vec![Self { counter: None, base: 0, ..back }],
            Restart::Whole => vec![back],
            Restart::Truncated => {
                let earlier = 0..self.counter.unwrap_or(0);
                earlier.map(|counter| Self { counter: Some(counter), ..back }).collect()
            }
        }
    }

    /// Takes the node back with the marks that were fetched. Base only grows.
    pub(super) fn enrol(&mut self) {
        if let Service::Quarantined { marks } = self.service {
            self.base = marks.into_iter().flatten().fold(self.base, Counter::max);
            self.service = Service::Serving { again: true };
        }
    }
}
