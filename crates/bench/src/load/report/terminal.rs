//! The report for a terminal: tables in columns, and the goals at the end, where one looks first.

use std::fmt::Write as _;

use super::super::findings::Table;
use super::super::goals::Outcome;
use super::{Report, Score, word};

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

pub(super) fn page(report: &Report, colours: bool) -> String {
    let paint = |colour: &str, text: &str| if colours { [colour, text, PLAIN].concat() } else { text.to_owned() };
    let mut page = String::new();
    for section in &report.findings.sections {
        let _ = writeln!(page, "\n{}\n", paint(BOLD, &section.title));
        for table in &section.tables {
            page += &columns(table);
            page.push('\n');
        }
        for note in &section.notes {
            let _ = writeln!(page, "{note}");
        }
    }
    let failures: Vec<String> = report.failures().collect();
    if !failures.is_empty() {
        let _ = writeln!(page, "\n{}\n\n{}", paint(BOLD, "Failed rounds"), failures.join("\n"));
    }
    let _ = writeln!(page, "\n{}", paint(BOLD, "Goals"));
    let mut row = "";
    for verdict in &report.verdicts {
        if row != verdict.goal.row {
            row = verdict.goal.row;
            let _ = writeln!(page, "\n{row}");
        }
        let colour = match verdict.outcome {
            Outcome::Met => GREEN,
            Outcome::Missed => RED,
            Outcome::NotMeasured(_) => DIM,
        };
        let goal = verdict.goal.bound.to_string();
        let measured = match &verdict.outcome {
            Outcome::NotMeasured(why) => why.clone(),
            _ => verdict.shown.clone(),
        };
        let line = format!("  {:<13}{:<50}{goal:>8}  {measured}", word(&verdict.outcome), verdict.goal.what);
        let _ = writeln!(page, "{}", paint(colour, line.trim_end()));
    }
    let Score { met, missed, not_measured } = report.score();
    let _ = writeln!(page, "\n{met} met, {missed} missed, {not_measured} not measured\n");
    for (name, words) in report.facts() {
        let _ = writeln!(page, "{name:<10}{words}");
    }
    page
}

fn columns(table: &Table) -> String {
    let all = || std::iter::once(&table.head).chain(&table.rows);
    let width = |column: usize| {
        all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..table.head.len()).map(width).collect();
    let mut text = String::new();
    for row in all() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = width - cell.chars().count();
            match column {
                0 => text += &format!("{cell}{}", " ".repeat(gap)),
                _ => text += &format!("  {}{cell}", " ".repeat(gap)),
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}
