//! One file per promise: a history comes in, findings come out. Pure, so that each is shown a bad history by hand.
//!
//! ```text
//!  order     P1  tokens are distinct and in the order of time
//!  overlap   P2  grants do not overlap in validity (by what clients were told)
//!  seen      P2  majorities do not overlap (by what the observer saw)
//!  writes    P3  no stale write was applied (by what the databases kept)
//!  left      P5  no key is left, none is without an end
//!  told      P7  the loss of a lock is told in time
//!  wins      P8  somebody is granted each lock once the faults have stopped
//!  linear        all of it at once, as one fenced lock that does one thing at a time
//! ```
//!
//! A finding is a violation, or it is *excused*: what the promise is said to need was not there. Excuses are looked for on the
//! very nodes on which the finding rests, so that a fault somewhere else excuses nothing.

pub mod left;
pub mod linear;
pub mod order;
pub mod overlap;
pub mod seen;
pub mod told;
pub mod wins;
pub mod writes;

use serde::{Deserialize, Serialize};

use crate::history::{History, Micros};
use crate::life::Life;

/// What does not agree with a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which promise.
    pub promise: String,
    /// When.
    pub at: Micros,
    /// Of which resource.
    pub resource: String,
    /// What.
    pub what: String,
    /// Which assumption of the promise did not hold, if one did not; otherwise it is a violation.
    pub excuse: Option<String>,
}

impl Finding {
    /// Whether no assumption was broken.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        self.excuse.is_none()
    }
}

/// All findings of all checks, in the order of time.
#[must_use]
pub fn all(history: &History, lives: &[Life]) -> Vec<Finding> {
    let mut findings = order::check(history, lives);
    findings.extend(linear::check(history, lives, &findings));
    findings.extend(overlap::check(history, lives));
    findings.extend(seen::check(history));
    findings.extend(writes::check(history, lives));
    findings.extend(left::check(history));
    findings.extend(told::check(history, lives));
    findings.extend(wins::check(history, lives));
    findings.sort_by_key(|finding| finding.at);
    findings
}

/// How many nodes a majority is.
pub(crate) const QUORUM: usize = crate::plan::NODES / 2 + 1;

/// Which of the nodes that both grants rest on kept what they had to keep between the two moments.
pub(crate) fn faithful(
    history: &History,
    first: &[usize],
    second: &[usize],
    from: Micros,
    to: Micros,
    counters: bool,
) -> Vec<usize> {
    let common = first.iter().filter(|node| second.contains(node)).copied();
    common.filter(|node| history.forgetting(*node, from, to, counters).next().is_none()).collect()
}

/// Stories for the tests of the checks.
#[cfg(test)]
pub(crate) mod story {
    use crate::fault::{Kind, Target};
    use crate::history::{Fault, Granted, History, Line, Micros, Outcome, Said, WriteKind};

    /// A second.
    pub(crate) const S: Micros = 1_000_000;

    /// A history that is told in lines; every `work` has its own worker.
    #[derive(Default)]
    pub(crate) struct Story(pub(crate) History);

    impl Story {
        pub(crate) fn line(mut self, at: Micros, work: u64, said: Said) -> Self {
            let worker = u32::try_from(work).unwrap();
            self.0.lines.push(Line { at, process: worker, client: usize::try_from(work).unwrap(), worker, work, said });
            self.0.lines.sort_by_key(|line| line.at);
            self.0.end = self.0.end.max(at);
            self
        }

        /// Asked at `began` and granted at `at`, on nodes 0 to 2, for a second and a half.
        pub(crate) fn grant(self, work: u64, began: Micros, at: Micros, token: i64) -> Self {
            self.grant_on(work, began, at, token, &[0, 1, 2])
        }

        pub(crate) fn grant_on(self, work: u64, began: Micros, at: Micros, token: i64, nodes: &[usize]) -> Self {
            let granted = Granted {
                token,
                owner: format!("owner{work}"),
                attempt_began: began,
                valid_until: began + 3 * S / 2,
                nodes: nodes.to_vec(),
                kept: false,
            };
            self.line(began, work, Said::Asks { resource: "r".into() }).line(at, work, Said::Granted(granted))
        }

        pub(crate) fn release(self, work: u64, at: Micros) -> Self {
            self.line(at, work, Said::Releases)
        }

        pub(crate) fn write(self, work: u64, write: u64, from: Micros, to: Micros, outcome: Outcome) -> Self {
            self.line(from, work, Said::Writes { write, kind: WriteKind::Write }).line(
                to,
                work,
                Said::Wrote { write, outcome },
            )
        }

        pub(crate) fn fault(mut self, kind: Kind, target: Target, at: Micros, until: Micros) -> Self {
            self.0.faults.push(Fault { kind, target, at, until, happened: true, note: String::new() });
            self
        }
    }
}
