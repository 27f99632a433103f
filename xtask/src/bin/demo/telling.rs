//! The story for people: a title, steps with the nodes beside them, and a summary that fits a screen.
//!
//! Colours on a terminal only, and not where `NO_COLOR` asks for none. Says nothing at all in front of a program.

use std::env::var_os;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::database::OPENING_BALANCE;
use crate::facts::{Facts, outage_name};

/// Where lines end.
const WIDTH: usize = 79;

/// How far the text of a step stands to the right.
const INDENT: usize = 5;

/// How far the second column of a list stands to the right of the first.
const COLUMN: usize = 23;

/// Who tells it.
#[derive(Debug)]
pub(crate) struct Telling {
    aloud: bool,
    colored: bool,
}

/// How a piece of text stands out.
#[derive(Debug, Clone, Copy)]
enum Style {
    Bold,
    Dim,
    Good,
    Bad,
    Token,
}

impl Telling {
    pub(crate) fn new(aloud: bool) -> Self {
        let wanted =
            var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && var_os("TERM").is_none_or(|term| term != "dumb");
        Self { aloud, colored: wanted && std::io::stdout().is_terminal() }
    }

    /// What the story is about.
    pub(crate) fn title(&self, title: &str) {
        self.line(&format!("\n  {}\n", self.paint(Style::Bold, title)));
    }

    /// One line of a list: a name, and what it stands for.
    pub(crate) fn item(&self, name: &str, text: &str) {
        let name = format!("{name:COLUMN$}");
        let margin = " ".repeat(INDENT);
        let first = format!("{margin}{}", self.paint(Style::Dim, &name));
        self.wrapped(&first, INDENT + COLUMN, text);
    }

    /// A step begins. The marks show which nodes are alive.
    pub(crate) fn step(&self, number: usize, title: &str, alive: &[bool]) {
        let marks: Vec<String> = alive
            .iter()
            .map(|alive| if *alive { self.paint(Style::Good, "●") } else { self.paint(Style::Bad, "○") })
            .collect();
        let gap = WIDTH.saturating_sub(INDENT + width(title) + 2 * alive.len());
        let title = self.paint(Style::Bold, title);
        self.line(&format!("\n  {number}  {title}{}{}", " ".repeat(gap), marks.join(" ")));
    }

    /// A sentence or two of a step.
    pub(crate) fn say(&self, text: &str) {
        self.wrapped(&" ".repeat(INDENT), INDENT, text);
    }

    pub(crate) fn token(&self, token: i64) -> String {
        self.paint(Style::Token, &token.to_string())
    }

    pub(crate) fn good(&self, text: &str) -> String {
        self.paint(Style::Good, text)
    }

    pub(crate) fn bad(&self, text: &str) -> String {
        self.paint(Style::Bad, text)
    }

    /// Everything once more, on one screen.
    pub(crate) fn summary(&self, facts: &Facts) {
        self.line(&format!("\n  {}\n", self.paint(Style::Bold, "In short")));
        self.grants(facts);
        if facts.refusal.is_some() {
            self.item("A's late write", &format!("{}: its token is less than B's", self.good("refused")));
        }
        for (down, outcome) in &facts.outages {
            self.item(&outage_name(*down).replace('_', " "), outcome);
        }
        if let Some(outcome) = facts.with_all_nodes_back {
            self.item("with all nodes back", outcome);
        }
        if let Some(balance) = facts.balance {
            self.item("the balance", &format!("{balance}: {OPENING_BALANCE} and every deposit that was not refused"));
        }
        if let Some(keys) = facts.keys_left {
            self.item("lock keys left", &keys.to_string());
        }
        self.line("\n  Next: README.md, \"Twenty lines\"; docs/fencing.md\n");
    }

    /// A table of them.
    fn grants(&self, facts: &Facts) {
        let token_width = facts.grants.iter().map(|grant| grant.token.to_string().len()).max().unwrap_or_default();
        let heads = format!("{:token_width$}   {:8}{:10}{}", "token", "votes", "took", "valid for");
        self.item("", &self.paint(Style::Dim, &heads));
        for grant in &facts.grants {
            let votes = format!("{} of {}", grant.votes, facts.nodes);
            let took = duration(Duration::from_secs_f64(grant.elapsed_ms / 1e3));
            let valid = duration(Duration::from_millis(grant.validity_ms));
            let ttl = setting(Duration::from_millis(grant.ttl_ms));
            let token = self.token(grant.token);
            let gap = " ".repeat(token_width - grant.token.to_string().len());
            self.item(
                &format!("{:?} was granted", grant.holder),
                &format!("{token}{gap}   {votes:8}{took:10}{valid} of {ttl}"),
            );
        }
    }

    fn wrapped(&self, first: &str, indent: usize, text: &str) {
        let mut line = first.to_owned();
        let mut used = indent;
        let mut fresh = true;
        for word in text.split(' ') {
            let needed = width(word) + usize::from(!fresh);
            if WIDTH < used + needed && !fresh {
                self.line(&line);
                line = " ".repeat(indent);
                used = indent;
                fresh = true;
            }
            if !fresh {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += width(word);
            fresh = false;
        }
        self.line(&line);
    }

    fn line(&self, line: &str) {
        if self.aloud {
            // Nobody reads on: the story goes on nevertheless, and its end counts.
            let mut stdout = std::io::stdout().lock();
            let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        }
    }

    fn paint(&self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Good => "32",
            Style::Bad => "31",
            Style::Token => "36",
        };
        if self.colored { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A time as people say it.
pub(crate) fn duration(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    match millis {
        ..10.0 => format!("{millis:.1} ms"),
        ..1000.0 => format!("{millis:.0} ms"),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

/// A time that was set rather than measured.
pub(crate) fn setting(time: Duration) -> String {
    if time.subsec_nanos() == 0 { format!("{} s", time.as_secs()) } else { duration(time) }
}

/// An error with its causes. Some errors say what their cause says; that is said once.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.last().is_some_and(|last| last.ends_with(&cause)) {
            said.push(cause);
        }
    }
    said.join(": ")
}

/// How many columns a text takes, without the codes of its colours.
fn width(text: &str) -> usize {
    let mut inside = false;
    let shown = text.chars().filter(|character| {
        let was_inside = inside;
        inside = match character {
            '\x1b' => true,
            'm' if inside => false,
            _ => inside,
        };
        !was_inside && !inside
    });
    shown.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_take_no_room() {
        let telling = Telling { aloud: false, colored: true };
        assert_eq!(width(&telling.good("granted")), 7);
        assert_eq!(width("● ○"), 3);
    }

    #[test]
    fn causes_are_said_once() {
        let error = anyhow::anyhow!("refused").context("connection: refused").context("the database");
        assert_eq!(causes(&error), "the database: connection: refused");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(duration(Duration::from_micros(1_234)), "1.2 ms");
        assert_eq!(duration(Duration::from_millis(976)), "976 ms");
        assert_eq!(duration(Duration::from_millis(2_049)), "2.05 s");
        assert_eq!(setting(Duration::from_secs(2)), "2 s");
        assert_eq!(setting(Duration::from_millis(2_049)), "2.05 s");
    }
}
