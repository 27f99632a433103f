//! What happened, as far as verdicts need it. Filled in by the processes and by the world; read by the invariants.

use super::plan::Millis;
use std::collections::BTreeMap;
use std::fmt;

/// One grant, by the world's time.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) process: usize,
    pub(crate) incarnation: u64,
    pub(crate) resources: Vec<usize>,
    pub(crate) token: i64,
    /// The beginning of its owner's value, as logs show it.
    pub(crate) owner: Option<String>,
    /// When it was asked for, or when the attempt began that won it, if that is known.
    pub(crate) began: Millis,
    /// When its holder got it.
    pub(crate) finished: Millis,
    /// Until when the holder believed in it when that was last looked at.
    pub(crate) believed_until: Millis,
    /// When the holder let go of it, was told that it is lost, or died.
    pub(crate) ended: Option<Millis>,
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, incarnation, token, began, finished, .. } = self;
        let owner = self.owner.as_deref().unwrap_or("?");
        let until = self.until();
        write!(
            f,
            "token {token} of p{process}.{incarnation} ({owner}; asked {began}, got {finished}, relied on until {until})"
        )
    }
}

impl Granted {
    /// When the holder stopped relying on it.
    pub(crate) fn until(&self) -> Millis {
        self.ended.map_or(self.believed_until, |ended| ended.min(self.believed_until))
    }
}

/// One request for a lock that came to an end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) process: usize,
    pub(crate) wait: Millis,
    pub(crate) took: Millis,
}

/// How often something happened, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    /// Counts one more.
    pub(crate) fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add_many(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    /// Adds the counts of another world.
    pub fn add(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    /// How often it happened.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// All of them, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(what, times)| (*what, *times))
    }
}

/// A promise that was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub what: String,
}

/// Everything that verdicts are found from.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) grants: Vec<Granted>,
    pub(crate) asked: Vec<Asked>,
    /// When the first acquire of each owner was sent.
    pub(crate) attempts: BTreeMap<String, Millis>,
    pub(crate) violations: Vec<Violation>,
    pub(crate) seen: Counts,
    /// The grants of the contest after the storm.
    pub(crate) contest: Vec<usize>,
    /// Whether keys of dead holders were left when the contest began.
    pub(crate) left_by_the_dead: bool,
}

impl History {
    pub(crate) fn note(&mut self, what: &'static str) {
        self.seen.note(what);
    }

    pub(crate) fn violated(&mut self, invariant: &'static str, what: String) {
        self.violations.push(Violation { invariant, what });
    }
}
