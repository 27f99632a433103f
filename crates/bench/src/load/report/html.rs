//! The report for a browser: one page that needs no network and no script, for a phone and for a desk, dark and light.

use std::fmt::Write as _;

use super::super::findings::{Section, Table};
use super::super::goals::{Outcome, Verdict};
use super::super::plot::{STYLE, escaped};
use super::{Report, Score, word};

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1f2430;--soft:#5d6675;--line:#e4e7ec;--card:#f8f9fb;--met:#15803d;--missed:#c1272d}\
@media(prefers-color-scheme:dark){:root{--paper:#14171d;--ink:#e6e9ef;--soft:#98a2b3;--line:#2c333f;--card:#1b2029;--met:#5ad17f;\
--missed:#ff7a7a}}\
*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}\
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.25rem;margin:2.5rem 0 .5rem;line-height:1.3}\
p{max-width:48rem}.soft{color:var(--soft)}\
nav{display:flex;flex-wrap:wrap;gap:.25rem 1rem;margin:.75rem 0;font-size:.95rem}a{color:inherit}\
.score{display:flex;flex-wrap:wrap;gap:.5rem;margin:1rem 0;padding:0;list-style:none}\
.score li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.5rem 1rem;min-width:7rem}\
.score b{display:block;font-size:1.6rem;line-height:1.2}\
.wide{overflow-x:auto;margin:1rem 0;border:1px solid var(--line);border-radius:8px}\
table{border-collapse:collapse;width:100%;font-size:.875rem}\
th,td{padding:.4rem .7rem;text-align:right;white-space:nowrap;border-top:1px solid var(--line);font-variant-numeric:tabular-nums;\
vertical-align:top}\
thead th{border-top:0;color:var(--soft);font-weight:600;background:var(--card);vertical-align:bottom}\
thead th:first-child{background:var(--card)}\
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}small{color:var(--soft)}\
.goals td:first-child{white-space:normal;padding-left:1.4rem}.goals td:last-child{white-space:normal}\
.goals .row td{font-weight:600;background:var(--card);white-space:normal;padding-left:.7rem;text-align:left}\
@media(max-width:32rem){body{padding:.75rem}th,td{padding:.35rem .5rem}.goals td:first-child{padding-left:.8rem}}\
.met{color:var(--met)}.missed{color:var(--missed);font-weight:700}.none{color:var(--soft)}\
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:.75rem;margin:1rem 0}\
.plots>svg{display:block;width:100%;max-width:34rem;height:auto;background:var(--card);border:1px solid var(--line);border-radius:8px;\
padding:.25rem}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem;font-size:.9rem}dt{color:var(--soft)}dd{margin:0;\
overflow-wrap:anywhere}code{font-family:ui-monospace,monospace}ul.plain{padding-left:1.2rem;font-size:.9rem}\
footer{margin:3rem 0 1rem}";

pub(super) fn page(report: &Report) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>What a lock costs</title><style>{PAGE_STYLE}\n{STYLE}</style></head><body>\n<h1>What a lock costs</h1>\n\
         <p>Everybody ran interleaved in one run, in an order that changed from block to block: on a machine that others \
         share, ratios tell more than times. Figures are medians; in brackets, and as whiskers, between which the 10th and \
         the 90th percentile of the blocks lie.</p>\n"
    );
    page += &score(report.score());
    page += "<nav><a href=\"#goals\">Goals</a>";
    for section in &report.findings.sections {
        let _ = write!(page, "<a href=\"#{}\">{}</a>", section.id, escaped(&section.title));
    }
    page += "<a href=\"#origin\">Machine and command</a></nav>\n<h2 id=\"goals\">Goals</h2>\n";
    page += &goals(&report.verdicts);
    for part in &report.findings.sections {
        page += &section(part);
    }
    page += &list("failures", "Failed rounds", report.failures().collect());
    let missing = report.findings.missing.iter().map(|missing| format!("{}: {}", missing.what, missing.why));
    page += &list("missing", "Not measured", missing.collect());
    page += "<h2 id=\"origin\">Machine and command</h2>\n<dl>";
    for (name, words) in report.facts() {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", escaped(&words));
    }
    page + "</dl>\n<footer></footer>\n</body></html>\n"
}

fn score(Score { met, missed, not_measured }: Score) -> String {
    let item = |class: &str, count: usize, word: &str| format!("<li><b class=\"{class}\">{count}</b>{word}</li>");
    let missed_class = if missed == 0 { "met" } else { "missed" };
    let items = [
        item("met", met, "goals met"),
        item(missed_class, missed, "missed"),
        item("none", not_measured, "not measured"),
    ];
    format!("<ul class=\"score\">{}</ul>\n", items.concat())
}

fn goals(verdicts: &[Verdict]) -> String {
    let mut rows = String::new();
    let mut row = "";
    for Verdict { goal, shown, outcome, .. } in verdicts {
        if row != goal.row {
            row = goal.row;
            let _ = write!(rows, "<tr class=\"row\"><td colspan=\"4\">{}</td></tr>", escaped(row));
        }
        let (class, why) = match outcome {
            Outcome::Met => ("met", String::new()),
            Outcome::Missed => ("missed", String::new()),
            Outcome::NotMeasured(why) => ("none", format!("<br><small>{}</small>", escaped(why))),
        };
        let _ = write!(
            rows,
            "<tr><td>{}{why}</td><td>{}</td><td class=\"{class}\">{}</td><td class=\"{class}\">{}</td></tr>",
            escaped(&goal.what),
            goal.bound,
            escaped(shown),
            word(outcome)
        );
    }
    format!(
        "<div class=\"wide\"><table class=\"goals\"><thead><tr><th>figure</th><th>goal</th><th>measured</th><th>verdict</th>\
         </tr></thead><tbody>{rows}</tbody></table></div>\n"
    )
}

fn section(section: &Section) -> String {
    let mut part = format!(
        "<h2 id=\"{}\">{}</h2>\n<p>{}</p>\n<div class=\"plots\">",
        section.id,
        escaped(&section.title),
        escaped(&section.text)
    );
    for plot in &section.plots {
        part += &plot.svg(false);
        part.push('\n');
    }
    part += "</div>\n";
    for wide in &section.tables {
        part += &table(wide);
    }
    for note in &section.notes {
        let _ = writeln!(part, "<p class=\"soft\">{}</p>", escaped(note));
    }
    part
}

fn table(Table { head, rows }: &Table) -> String {
    let line = |cell: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|text| format!("<{cell}>{}</{cell}>", escaped(text))).collect();
        format!("<tr>{cells}</tr>")
    };
    let rows: String = rows.iter().map(|row| line("td", row)).collect();
    format!("<div class=\"wide\"><table><thead>{}</thead><tbody>{rows}</tbody></table></div>\n", line("th", head))
}

fn list(id: &str, title: &str, items: Vec<String>) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("<li>{}</li>", escaped(item))).collect();
    format!("<h2 id=\"{id}\">{title}</h2>\n<ul class=\"plain\">{items}</ul>\n")
}
