//! What every node said in one attempt: attached to each grant and to each refusal.

use crate::node::{HeldBy, NodeError};
use crate::tally::quorum_of;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What became of an acquire on one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// It granted.
    Granted {
        /// Where its fence counter stood.
        counter: u64,
    },
    /// It is held by somebody else there.
    Held(HeldBy),
    /// It granted, and no longer held the lock for us when its counter was to be raised: the lease had ended by then.
    Lapsed,
    /// It did not answer, or answered that it does not vote.
    Failed(NodeError),
    /// The matter was decided before its answer came.
    NotHeard,
}

/// One node's part in an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's name.
    pub node: Arc<str>,
    /// What became of the acquire there.
    pub outcome: NodeOutcome,
    /// How long the node took to answer; `None` if no answer was heard.
    pub took: Option<Duration>,
}

/// What every node said in one attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// In the order in which the nodes were configured.
    pub nodes: Vec<NodeReport>,
    /// From before the first request of the attempt to its decision.
    pub elapsed: Duration,
    /// Whether the counters of the quorum disagreed, which cost a second round trip.
    pub raised: bool,
}

impl Report {
    /// How many of the configured nodes had granted when the attempt was decided.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.count(|outcome| matches!(outcome, NodeOutcome::Granted { .. }))
    }

    /// How many nodes a quorum is.
    #[must_use]
    pub fn quorum(&self) -> usize {
        quorum_of(self.nodes.len())
    }

    /// The names of the nodes that failed to answer, each with its cause.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &NodeError)> {
        self.nodes.iter().filter_map(|report| match &report.outcome {
            NodeOutcome::Failed(error) => Some((&*report.node, error)),
            _ => None,
        })
    }

    /// What stands in the way, node by node.
    pub fn held(&self) -> impl Iterator<Item = (&str, &HeldBy)> {
        self.nodes.iter().filter_map(|report| match &report.outcome {
            NodeOutcome::Held(held) => Some((&*report.node, held)),
            _ => None,
        })
    }

    fn count(&self, is: impl Fn(&NodeOutcome) -> bool) -> usize {
        self.nodes.iter().filter(|report| is(&report.outcome)).count()
    }
}

/// What would have to change for an attempt to be won.
///
/// Not one cause among several, but the least that helps: if the holders' letting go gives a quorum, the attempt is
/// contended, even though other nodes are down; if it takes nodes coming back as well, it is unavailable; if even that
/// does not help, somebody has to change the set-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FailureClass {
    Contended,
    Unavailable,
    Misconfigured,
}

impl FailureClass {
    /// The class of a lost attempt; `None` while nodes that have not been heard could still change it.
    pub(crate) fn of<'a>(outcomes: impl Iterator<Item = &'a NodeOutcome> + Clone) -> Option<Self> {
        let count = |is: fn(&NodeOutcome) -> bool| outcomes.clone().filter(|outcome| is(outcome)).count();
        let quorum = quorum_of(outcomes.clone().count());
        let open = count(|outcome| matches!(outcome, NodeOutcome::NotHeard));
        let granted_or_held = count(|outcome| matches!(outcome, NodeOutcome::Granted { .. } | NodeOutcome::Held(_)));
        let not_refused = count(|outcome| !matches!(outcome, NodeOutcome::Failed(NodeError::Refused { .. })));
        if quorum <= granted_or_held {
            Some(Self::Contended)
        } else if quorum <= granted_or_held + open {
            None
        } else if quorum <= not_refused - open {
            Some(Self::Unavailable)
        } else if quorum <= not_refused {
            None
        } else {
            Some(Self::Misconfigured)
        }
    }
}

impl fmt::Display for NodeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted { counter } => write!(f, "granted (counter {counter})"),
            Self::Held(held) => held.fmt(f),
            Self::Failed(error) => write_with_causes(f, error),
            Self::Lapsed => f.write_str("granted, but the lease ended before the token was settled"),
            Self::NotHeard => f.write_str("not waited for, as it was decided without it"),
        }
    }
}

/// An error and its causes, without those that only repeat what the one above has said.
fn write_with_causes(f: &mut fmt::Formatter<'_>, error: &NodeError) -> fmt::Result {
    let mut said = error.to_string();
    f.write_str(&said)?;
    let mut source = error.source();
    while let Some(cause) = source {
        let says = cause.to_string();
        if !said.ends_with(&says) {
            write!(f, ": {says}")?;
        }
        (said, source) = (says, cause.source());
    }
    Ok(())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} nodes granted, {} needed", self.granted(), self.nodes.len(), self.quorum())?;
        for report in &self.nodes {
            write!(f, "; {}: {}", report.node, report.outcome)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Holder, Refusal, Remaining};
    use crate::resource::Resource;

    /// One character per node: `g` granted, `h` held, `u` unreachable, `c` refused by configuration, `_` not heard.
    fn check(outcomes: &str, expected: Option<FailureClass>) {
        let outcome = |class| match class {
            'g' => NodeOutcome::Granted { counter: 1 },
            'h' => NodeOutcome::Held(HeldBy {
                resource: Resource::new("r").unwrap(),
                holder: Holder::Unknown,
                remaining: Remaining::Unknown,
            }),
            'u' => NodeOutcome::Failed(NodeError::unreachable("down")),
            'c' => NodeOutcome::Failed(NodeError::refused(Refusal::Authentication, "NOAUTH")),
            _ => NodeOutcome::NotHeard,
        };
        let outcomes: Vec<_> = outcomes.chars().map(outcome).collect();
        assert_eq!(FailureClass::of(outcomes.iter()), expected, "{outcomes:?}");
    }

    /// B11: an outage, contention and a wrong set-up are three things.
    #[test]
    fn b11_the_class_is_the_least_that_would_have_to_change() {
        check("hhhhh", Some(FailureClass::Contended));
        check("ghhuu", Some(FailureClass::Contended));
        check("gguuu", Some(FailureClass::Unavailable));
        check("ggccc", Some(FailureClass::Misconfigured));
        check("gguuc", Some(FailureClass::Unavailable));
        check("c", Some(FailureClass::Misconfigured));
        check("u", Some(FailureClass::Unavailable));
        check("h", Some(FailureClass::Contended));
    }

    #[test]
    fn a_cause_that_repeats_the_one_above_is_not_written_again() {
        let io = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused by 127.0.0.1");
        let outcome = NodeOutcome::Failed(NodeError::unreachable(std::io::Error::other(io)));
        assert_eq!(outcome.to_string(), "unreachable: connection refused by 127.0.0.1");
    }

    #[test]
    fn the_class_is_told_as_soon_as_no_answer_can_change_it() {
        check("hhh__", Some(FailureClass::Contended));
        check("uuu__", Some(FailureClass::Unavailable));
        check("ccc__", Some(FailureClass::Misconfigured));
        // A holder on one more node makes it contention.
        check("hhu__", None);
        check("hhuu_", None);
        // One more refusal makes it a wrong set-up.
        check("ccu__", None);
    }
}
