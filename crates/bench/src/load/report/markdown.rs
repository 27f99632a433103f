//! The report for a repository.

use std::fmt::Write as _;

use super::super::findings::Table;
use super::super::goals::Outcome;
use super::{Report, Score, word};

pub(super) fn page(report: &Report) -> String {
    let Score { met, missed, not_measured } = report.score();
    let mut page = format!("# What a lock costs\n\n{met} goals met, {missed} missed, {not_measured} not measured.\n");
    for (name, words) in report.facts() {
        let _ = write!(page, "\n- {name}: {}", if name == "command" { format!("`{words}`") } else { words });
    }
    page += "\n\n## Goals\n\n";
    page += &table(&goals(report));
    for section in &report.findings.sections {
        let _ = write!(page, "\n## {}\n\n{}\n", section.title, section.text);
        for part in &section.tables {
            let _ = write!(page, "\n{}", table(part));
        }
        for note in &section.notes {
            let _ = write!(page, "\n{note}\n");
        }
    }
    let failures: Vec<String> = report.failures().map(|line| format!("- {line}\n")).collect();
    if !failures.is_empty() {
        let _ = write!(page, "\n## Failed rounds\n\n{}", failures.concat());
    }
    page
}

fn goals(report: &Report) -> Table {
    let row = |verdict: &super::Verdict| {
        let measured = match &verdict.outcome {
            Outcome::NotMeasured(why) => why.clone(),
            _ => verdict.shown.clone(),
        };
        let outcome = match verdict.outcome {
            Outcome::Missed => "**missed**",
            ref other => word(other),
        };
        let goal = &verdict.goal;
        vec![format!("{}: {}", goal.row, goal.what), goal.bound.to_string(), measured, outcome.into()]
    };
    let head = ["figure", "goal", "measured", "verdict"].map(str::to_owned).into();
    Table { head, rows: report.verdicts.iter().map(row).collect() }
}

fn table(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = format!("|---|{}\n", "--:|".repeat(table.head.len().saturating_sub(1)));
    let rows: String = table.rows.iter().map(|row| line(row)).collect();
    [line(&table.head), rule, rows].concat()
}
