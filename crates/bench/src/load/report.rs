//! What came out: a table for people, JSON for programs, and a verdict for each goal.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::Plan;
use super::contestant::Who;
use super::figures::{Ratio, Samples, Spread};
pub use super::origin::Origin;

/// What everything is compared to.
const FLOOR: Who = Who::Scripts;

/// All goals that this comparison can judge.
pub const GOALS: [Goal; 3] = [
    Goal { of: Who::RedlockTwoDown, to: Who::Redlock, at_most: 1.2, binding: true },
    Goal { of: Who::Redlock, to: Who::Scripts, at_most: 1.02, binding: false },
    Goal { of: Who::Redlock, to: Who::Plain, at_most: 1.25, binding: false },
];

/// How many times as long one contestant may take as another, at the median.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Whose time is judged.
    pub of: Who,
    /// By whose.
    pub to: Who,
    /// The greatest ratio that meets the goal.
    pub at_most: f64,
    /// Whether missing it fails the run; otherwise it is shown for information.
    pub binding: bool,
}

/// What one contestant took.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Who it is.
    pub who: Who,
    /// Its times; those of rounds that failed are [`FAILED`](super::figures::FAILED).
    pub samples: Samples,
    /// How many rounds failed, by the reason.
    pub failures: BTreeMap<&'static str, usize>,
}

impl Entry {
    /// One of whom nothing has been measured yet.
    #[must_use]
    pub fn of(who: Who) -> Self {
        Self { who, samples: Samples::default(), failures: BTreeMap::new() }
    }
}

/// A goal and how it turned out.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    /// The goal.
    pub goal: Goal,
    /// What was measured; `None` if one of the two has no median, because it failed or did not take part.
    pub ratio: Option<Ratio>,
}

impl Verdict {
    /// Whether the goal was met. What was not measured was not met.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.ratio.is_some_and(|ratio| ratio.value <= self.goal.at_most)
    }
}

/// One comparison.
#[derive(Debug, Clone)]
pub struct Report {
    plan: Plan,
    origin: Origin,
    entries: Vec<Entry>,
}

impl Report {
    /// Puts together what was measured.
    #[must_use]
    pub fn new(plan: Plan, origin: Origin, entries: Vec<Entry>) -> Self {
        Self { plan, origin, entries }
    }

    /// All goals with their outcome.
    #[must_use]
    pub fn verdicts(&self) -> Vec<Verdict> {
        GOALS.into_iter().map(|goal| Verdict { goal, ratio: self.ratio(goal.of, goal.to) }).collect()
    }

    /// Whether every binding goal was met.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.verdicts().iter().all(|verdict| !verdict.goal.binding || verdict.is_met())
    }

    /// Everything, for programs. Times in microseconds.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let contestants: Vec<Value> = self.entries.iter().map(|entry| self.entry_to_json(entry)).collect();
        let goals: Vec<Value> = self.verdicts().iter().map(verdict_to_json).collect();
        json!({
            "what": "acquire + release, one task, one resource for each contestant",
            "origin": self.origin,
            "plan": { "blocks": self.plan.blocks, "rounds_of_a_block": self.plan.rounds, "lead_in": self.plan.lead_in },
            "contestants": contestants,
            "goals": goals,
            "passed": self.passed(),
        })
    }

    fn entry_to_json(&self, Entry { who, samples, failures }: &Entry) -> Value {
        json!({
            "name": who.name(),
            "what": who.to_string(),
            "rounds": samples.rounds(),
            "failed": failures,
            "p50_us": samples.p50().map(micros),
            "p50_of_blocks_us": samples.p50_of_blocks().map(|spread| [micros(spread.low), micros(spread.high)]),
            "p99_us": samples.percentile(0.99).map(micros),
            "to_floor": self.ratio(*who, FLOOR).map(JsonRatio::from),
            "to_healthy": who.when_healthy().and_then(|healthy| self.ratio(*who, healthy)).map(JsonRatio::from),
        })
    }

    fn ratio(&self, of: Who, to: Who) -> Option<Ratio> {
        let samples = |who| self.entries.iter().find(|entry| entry.who == who).map(|entry| &entry.samples);
        samples(of)?.ratio_to(samples(to)?)
    }
}

#[derive(Serialize)]
struct JsonRatio {
    ratio: f64,
    of_blocks: [f64; 2],
}

impl From<Ratio> for JsonRatio {
    fn from(ratio: Ratio) -> Self {
        Self { ratio: ratio.value, of_blocks: [ratio.blocks.low, ratio.blocks.high] }
    }
}

fn verdict_to_json(verdict: &Verdict) -> Value {
    let Verdict { goal, ratio } = verdict;
    json!({
        "of": goal.of.name(),
        "to": goal.to.name(),
        "at_most": goal.at_most,
        "binding": goal.binding,
        "measured": ratio.map(JsonRatio::from),
        "met": verdict.is_met(),
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The width of a row.
const WIDTH: usize = 116;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { blocks, rounds, .. } = self.plan;
        writeln!(f, "acquire + release, one task, one resource each; {blocks} blocks of {rounds} rounds, all in turn")?;
        writeln!(f, "(in brackets: from the 10th to the 90th percentile of the blocks' medians)\n")?;
        writeln!(
            f,
            "{:<36}{:>8}  {:<15}{:>9}{:>9}  {:<14}{:>9}  {:<14}",
            "", "p50 µs", "(blocks)", "p99 µs", "÷ floor", "(blocks)", "÷ healthy", "(blocks)"
        )?;
        writeln!(f, "{}", "─".repeat(WIDTH))?;
        for entry in &self.entries {
            self.write_row(f, entry)?;
        }
        writeln!(f)?;
        for Entry { who, samples, failures } in self.entries.iter().filter(|entry| !entry.failures.is_empty()) {
            let reasons: Vec<String> = failures.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            writeln!(f, "failed  {}: {} of {} rounds", who.name(), reasons.join(", "), samples.rounds())?;
        }
        for verdict in self.verdicts() {
            writeln!(f, "{verdict}")?;
        }
        write!(f, "\n{}", self.origin)
    }
}

impl Report {
    fn write_row(&self, f: &mut fmt::Formatter<'_>, Entry { who, samples, .. }: &Entry) -> fmt::Result {
        let time = |time: Option<Duration>| time.map_or("failed".to_owned(), |time| format!("{:.0}", micros(time)));
        let spread = samples.p50_of_blocks();
        let spread = spread.map_or(String::new(), |it| format!("({:.0} – {:.0})", micros(it.low), micros(it.high)));
        write!(f, "{who:<36}{:>8}  {spread:<15}{:>9}", time(samples.p50()), time(samples.percentile(0.99)))?;
        let healthy = who.when_healthy().and_then(|healthy| self.ratio(*who, healthy));
        for ratio in [self.ratio(*who, FLOOR), healthy] {
            let value = ratio.map_or(String::new(), |ratio| format!("{:.2}", ratio.value));
            let blocks = ratio
                .map_or(String::new(), |Ratio { blocks: Spread { low, high }, .. }| format!("({low:.2} – {high:.2})"));
            write!(f, "{value:>9}  {blocks:<14}")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match (self.is_met(), self.goal.binding) {
            (true, _) => "met   ",
            (false, true) => "MISSED",
            (false, false) => "missed",
        };
        let Goal { of, to, at_most, binding } = self.goal;
        let measured = self.ratio.map_or("nothing".to_owned(), |ratio| format!("{:.3}", ratio.value));
        let note = if binding { "" } else { " (for information)" };
        write!(f, "{word}  {} / {} at p50: {measured}, goal at most {at_most}{note}", of.name(), to.name())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "machine   {}; {}; load average {}", self.processor, self.system, self.load_average)?;
        writeln!(f, "versions  server {}, redis crate {}, redlock {}", self.server, self.redis_crate, self.redlock)?;
        let how = if self.optimised { "optimised" } else { "NOT OPTIMISED: these figures are worth nothing" };
        writeln!(f, "built by  {}; {how}", self.compiler)?;
        writeln!(f, "commit    {}", self.commit)?;
        write!(f, "command   {}", self.command)
    }
}
