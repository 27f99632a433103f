//! What a run found out, before anybody judges it: figures by name, what could not be measured and why, and the sections
//! that show it to people.
//!
//! A figure's name is a path, `scenario/contestant/what`; goals refer to figures by that name, and JSON has them under it.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::Spread;
use super::plot::Plot;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// So many times as much.
    Ratio,
    /// Rounds in a second.
    PerSecond,
    /// Pieces.
    Count,
    /// A part of all, from 0 to 1.
    Share,
    /// Network round trips.
    RoundTrips,
}

/// One measured value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// The value: a median over blocks, unless its name says otherwise.
    pub value: f64,
    /// How the blocks' values spread, where there is more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread<f64>>,
    /// What is counted.
    pub unit: Unit,
}

/// What was not measured, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The beginning of the figures' names, or a word in them between slashes.
    pub what: String,
    /// Why; and what brings it.
    pub why: String,
}

/// A part of the report.
#[derive(Debug, Clone, Default)]
pub struct Section {
    /// A short name, for links and files.
    pub id: &'static str,
    /// The headline.
    pub title: String,
    /// What was done, and how to read it.
    pub text: String,
    /// The figures.
    pub tables: Vec<Table>,
    /// The pictures.
    pub plots: Vec<Plot>,
    /// What else has to be known.
    pub notes: Vec<String>,
}

/// Rows of text, the first column being a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// The names of the columns.
    pub head: Vec<String>,
    /// One row for each contestant.
    pub rows: Vec<Vec<String>>,
}

/// Everything that was found out.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// All figures by name.
    pub figures: BTreeMap<String, Figure>,
    /// What was not measured.
    pub missing: Vec<Missing>,
    /// What people read, in order.
    pub sections: Vec<Section>,
    /// Rounds that failed: by contestant, the reasons and how often.
    pub failures: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Figure {
    /// A value without spread.
    #[must_use]
    pub const fn plain(value: f64, unit: Unit) -> Self {
        Self { value, spread: None, unit }
    }

    /// The median of one value for each block; `None` without any.
    #[must_use]
    pub fn median(values: &[f64], unit: Unit) -> Option<Self> {
        let (value, spread) = super::figures::median_and_spread(values)?;
        Some(Self { value, spread: (1 < values.len()).then_some(spread), unit })
    }
}

impl Findings {
    /// Files a figure, if there is one.
    pub fn put(&mut self, name: impl Into<String>, figure: impl Into<Option<Figure>>) {
        if let Some(figure) = figure.into() {
            self.figures.insert(name.into(), figure);
        }
    }

    /// Says that figures are not there, and why.
    pub fn miss(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let missing = Missing { what: what.into(), why: why.into() };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }

    /// A figure's value.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.get(name).map(|figure| figure.value)
    }

    /// Why there is no figure of this name.
    #[must_use]
    pub fn why_missing(&self, name: &str) -> String {
        let concerns = |what: &str| name.starts_with(what) || name.split('/').any(|part| part == what);
        let missing = self.missing.iter().find(|missing| concerns(&missing.what));
        missing.map_or_else(|| "it failed, or had too few rounds".to_owned(), |missing| missing.why.clone())
    }

    /// Counts failures of a contestant.
    pub fn failed(&mut self, contestant: &str, reasons: &BTreeMap<String, usize>) {
        for (reason, count) in reasons {
            *self.failures.entry(contestant.to_owned()).or_default().entry(reason.clone()).or_default() += count;
        }
    }
}

/// A value and its spread for a table, with as many digits as it deserves.
#[must_use]
pub fn shown(figure: Option<&Figure>) -> String {
    match figure {
        None => "–".into(),
        Some(Figure { value, spread: None, unit }) => number(*value, *unit),
        Some(Figure { value, spread: Some(Spread { low, high }), unit }) => {
            format!("{} ({} – {})", number(*value, *unit), number(*low, *unit), number(*high, *unit))
        }
    }
}

/// A number with as many digits as it deserves.
#[must_use]
pub fn number(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Share => format!("{:.0} %", value * 100.0),
        Unit::Ratio | Unit::RoundTrips if value.abs() < 10.0 => format!("{value:.2}"),
        Unit::Ratio | Unit::RoundTrips if value.abs() < 100.0 => format!("{value:.1}"),
        _ if value == 0.0 => "0".into(),
        _ if value.abs() < 10.0 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

/// 12345.6 as 12 346, with spaces that do not break.
fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if 0 < place && (digits.len() - place).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    if value < -0.5 { format!("−{grouped}") } else { grouped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_they_deserve() {
        assert_eq!(number(12_345.6, Unit::Micros), "12\u{202f}346");
        assert_eq!(number(9.96, Unit::Count), "10.0");
        assert_eq!(number(999.4, Unit::PerSecond), "999");
        assert_eq!(number(-1_234.0, Unit::Micros), "−1\u{202f}234");
        assert_eq!(number(0.767, Unit::Share), "77 %");
        assert_eq!(number(1.0249, Unit::Ratio), "1.02");
        assert_eq!(number(12.34, Unit::Ratio), "12.3");
        assert_eq!(number(4_375.16, Unit::Ratio), "4\u{202f}375");
    }

    #[test]
    fn what_is_missing_says_why_by_its_beginning_or_by_a_part() {
        let mut findings = Findings::default();
        findings.miss("node-redlock", "no node");
        findings.miss("fence/postgres", "no postgres");
        assert_eq!(findings.why_missing("alone/node-redlock/p50"), "no node");
        assert_eq!(findings.why_missing("fence/postgres/update"), "no postgres");
        assert!(findings.why_missing("fence/sqlite/update").contains("failed"));
    }
}
