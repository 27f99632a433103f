//! What came of a run, in numbers and in one word.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::check::{self, Finding};
use crate::fault::Kind;
use crate::history::{History, Outcome, WriteKind};
use crate::life::{Life, lives};

/// What came of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// What does not agree with a promise, excused or not.
    pub findings: Vec<Finding>,
    /// What the harness itself failed to do.
    pub trouble: Vec<String>,
    /// How often each kind of fault was planned, and how often it was seen to happen.
    pub faults: Vec<(Kind, usize, usize)>,
    /// What there was to judge.
    pub counts: Counts,
}

/// What there was to judge.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Locks that were asked for.
    pub asked: usize,
    /// And granted.
    pub granted: usize,
    /// Why not, and how often.
    pub refused: BTreeMap<String, usize>,
    /// Writes (without claims) that were applied, by what was answered.
    pub applied: usize,
    /// Claims and writes that were refused as stale.
    pub stale: usize,
    /// Claims and writes of which nothing was kept, for other reasons.
    pub failed: usize,
    /// Claims and writes whose answer was lost.
    pub unknown: usize,
    /// Holds whose loss was announced.
    pub lost: usize,
    /// Rows that the databases kept.
    pub rows: usize,
    /// Majorities that the observer saw.
    pub majorities: usize,
    /// Grants whose owner was among them.
    pub seen: usize,
    /// Client processes.
    pub processes: usize,
}

impl Verdict {
    /// Judges a history.
    #[must_use]
    pub fn of(history: &History) -> Self {
        let lives = lives(history);
        let happened = history.happened();
        let planned = |kind| history.setup.planned.get(kind).copied().unwrap_or(0);
        Self {
            findings: check::all(history, &lives),
            trouble: history.trouble.clone(),
            faults: happened.iter().map(|(kind, happened)| (*kind, planned(kind), *happened)).collect(),
            counts: Counts::of(history, &lives),
        }
    }

    /// What no assumption excuses.
    pub fn violations(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_violation())
    }

    /// Whether the run shows what it is to show: no violation, and a harness that did what it was to do.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations().next().is_none() && self.trouble.is_empty()
    }

    /// The kinds of faults that were to happen and never did.
    pub fn never(&self) -> impl Iterator<Item = Kind> {
        self.faults.iter().filter(|(_, _, happened)| *happened == 0).map(|(kind, _, _)| *kind)
    }
}

impl Counts {
    fn of(history: &History, lives: &[Life]) -> Self {
        let mut counts = Self {
            asked: lives.len(),
            rows: history.rows.len(),
            majorities: history.holdings.len(),
            processes: history.lines.iter().map(|line| line.process).collect::<BTreeSet<_>>().len(),
            ..Self::default()
        };
        let seen: BTreeSet<&str> = history.holdings.iter().map(|holding| holding.owner.as_str()).collect();
        for life in lives {
            if let Some(why) = &life.refused {
                *counts.refused.entry(why.clone()).or_default() += 1;
            }
            let Some(hold) = &life.hold else { continue };
            counts.granted += 1;
            counts.seen += usize::from(seen.contains(hold.granted.owner.as_str()));
            counts.lost += usize::from(hold.lost.is_some());
            for write in &hold.writes {
                match write.answer.as_ref().map(|(_, outcome)| outcome) {
                    Some(Outcome::Applied) => counts.applied += usize::from(write.kind == WriteKind::Write),
                    Some(Outcome::Stale { .. }) => counts.stale += 1,
                    Some(Outcome::Failed { .. }) => counts.failed += 1,
                    Some(Outcome::Unknown { .. }) => counts.unknown += 1,
                    None => {}
                }
            }
        }
        counts
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            asked,
            granted,
            refused,
            applied,
            stale,
            failed,
            unknown,
            lost,
            rows,
            majorities,
            seen,
            processes,
        } = &self.counts;
        writeln!(f, "faults (happened of planned):")?;
        for (kind, planned, happened) in &self.faults {
            let never = if *happened == 0 { "   NEVER HAPPENED" } else { "" };
            writeln!(f, "  {happened:>5} of {planned:<5} {kind}{never}")?;
        }
        let refused: Vec<String> = refused.iter().map(|(why, count)| format!("{count} {why}")).collect();
        writeln!(f, "locks: {asked} asked for, {granted} granted; {}", refused.join(", "))?;
        writeln!(
            f,
            "  {lost} lost and told so; the observer saw {majorities} majorities, {seen} of them of those grants; \
             {processes} client processes"
        )?;
        writeln!(
            f,
            "writes: {applied} applied, {rows} rows kept; {stale} refused as stale, {failed} failed, {unknown} unknown"
        )?;

        let (violations, excused): (Vec<_>, Vec<_>) = self.findings.iter().partition(|finding| finding.is_violation());
        let mut by_excuse: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for finding in &excused {
            let excuse = finding.excuse.as_deref().unwrap_or_default();
            *by_excuse.entry((&finding.promise, excuse)).or_default() += 1;
        }
        for ((promise, excuse), count) in by_excuse {
            writeln!(f, "excused: {count} × {promise}, {excuse}")?;
        }
        for finding in violations.iter().take(20) {
            writeln!(f, "VIOLATION {finding}")?;
        }
        for trouble in &self.trouble {
            writeln!(f, "TROUBLE with the harness: {trouble}")?;
        }
        let word = if self.is_good() { "good" } else { "BAD" };
        write!(f, "verdict: {word}; {} violations, {} excused", violations.len(), excused.len())
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, millis) = (self.at / 1_000_000, self.at / 1_000 % 1_000);
        write!(f, "{} at {seconds}.{millis:03} s, {}: {}", self.promise, self.resource, self.what)
    }
}
