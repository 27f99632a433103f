//! What came out: findings, verdicts, and where they come from; told in the terminal, in Markdown, in HTML and in JSON.

mod html;
mod markdown;
mod terminal;

use serde_json::{Value, json};

use super::findings::Findings;
use super::goals::{Outcome, Verdict, judge};
use super::origin::Origin;

/// The pictures that the book shows.
pub const BOOK: [&str; 18] = [
    "alone",
    "alone-sizes",
    "alone-peers",
    "alone-frozen",
    "alone-killed",
    "alone-slowed",
    "network-0-5",
    "network-5",
    "throughput",
    "throughput-tasks",
    "resources",
    "one-process-total",
    "processes-total",
    "processes-handover-p50",
    "waiters-commands",
    "waiters-time",
    "cost-instructions",
    "cost-allocations",
];

/// One comparison.
#[derive(Debug, Clone)]
pub struct Report {
    origin: Origin,
    findings: Findings,
    verdicts: Vec<Verdict>,
}

/// How many goals turned out how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Score {
    /// As demanded.
    pub met: usize,
    /// Not as demanded.
    pub missed: usize,
    /// Not measured.
    pub not_measured: usize,
}

impl Report {
    /// Puts together what was measured, and judges it.
    #[must_use]
    pub fn new(origin: Origin, findings: Findings) -> Self {
        let verdicts = judge(&findings);
        Self { origin, findings, verdicts }
    }

    /// All goals with their outcome, in order.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// What was found.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// How many goals turned out how.
    #[must_use]
    pub fn score(&self) -> Score {
        let mut score = Score::default();
        for verdict in &self.verdicts {
            match verdict.outcome {
                Outcome::Met => score.met += 1,
                Outcome::Missed => score.missed += 1,
                Outcome::NotMeasured(_) => score.not_measured += 1,
            }
        }
        score
    }

    /// Everything, for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let score = self.score();
        json!({
            "what": "what a lock costs, and how that compares; see docs/performance.md",
            "origin": self.origin,
            "score": { "met": score.met, "missed": score.missed, "not_measured": score.not_measured },
            "goals": self.verdicts,
            "figures": self.findings.figures,
            "failures": self.findings.failures,
            "missing": self.findings.missing,
        })
    }

    /// One page for a browser, which needs nothing else.
    #[must_use]
    pub fn to_html(&self) -> String {
        html::page(self)
    }

    /// The same for a repository.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        markdown::page(self)
    }

    /// The same for a terminal, the goals last; with colours, if that is one.
    #[must_use]
    pub fn to_terminal(&self, colours: bool) -> String {
        terminal::page(self, colours)
    }

    /// All pictures by file name, each to stand alone.
    #[must_use]
    pub fn pictures(&self) -> Vec<(String, String)> {
        let plots = self.findings.sections.iter().flat_map(|section| &section.plots);
        plots.map(|plot| (format!("{}.svg", plot.id()), plot.svg(true))).collect()
    }

    /// Failed rounds in words, one line for each contestant that has any.
    fn failures(&self) -> impl Iterator<Item = String> {
        self.findings.failures.iter().map(|(contestant, reasons)| {
            let reasons: Vec<String> = reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            format!("{contestant}: {}", reasons.join(", "))
        })
    }

    /// Where it comes from, as names and words.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Origin {
            command,
            commit,
            processor,
            system,
            load_average,
            server,
            redis_crate,
            rslock_crate,
            redlock,
            compiler,
            optimised,
        } = &self.origin;
        let how = if *optimised { "optimised" } else { "NOT OPTIMISED: these figures are worth nothing" };
        vec![
            ("machine", format!("{processor}; {system}; load average {load_average}")),
            (
                "versions",
                format!("server {server}, redis crate {redis_crate}, rslock crate {rslock_crate}, redlock {redlock}"),
            ),
            ("built by", format!("{compiler}; {how}")),
            ("commit", commit.clone()),
            ("command", command.clone()),
        ]
    }
}

/// A verdict in a word.
fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Met => "met",
        Outcome::Missed => "missed",
        Outcome::NotMeasured(_) => "not measured",
    }
}
