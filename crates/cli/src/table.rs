//! Columns of text, and words for times.
//!
//! Names of resources and values of owners come from whoever wrote them, so nothing is printed that a terminal would obey.

use std::fmt::Write as _;
use std::time::Duration;

/// A text without anything that a terminal would obey.
#[must_use]
pub fn clean(text: &str) -> String {
    let safe = |character: char| {
        if character.is_control() { character.escape_default().collect() } else { String::from(character) }
    };
    text.chars().map(safe).collect()
}

/// Lines of cells, each column as wide as its widest cell; the last one is not filled up.
#[must_use]
pub fn columns(rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = cell.chars().count();
            match widths.get_mut(column) {
                Some(widest) => *widest = width.max(*widest),
                None => widths.push(width),
            }
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // A string takes everything.
            let _ = write!(line, "{cell:width$}   ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A time as people read it: three digits at most.
#[must_use]
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration.as_secs() {
        0 if duration < Duration::from_millis(1) => format!("{:.2} ms", seconds * 1_000.0),
        0 => format!("{:.0} ms", seconds * 1_000.0),
        1..=59 => format!("{seconds:.1} s"),
        60..=3_599 => format!("{:.0} min", seconds / 60.0),
        3_600..=172_799 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.0} d", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        assert_eq!(clean("a\u{1b}[2J\nb ü"), "a\\u{1b}[2J\\nb ü");
    }

    #[test]
    fn columns_are_as_wide_as_they_must() {
        let row = |cells: [&str; 2]| cells.map(String::from).to_vec();
        assert_eq!(columns(&[row(["a", "b"]), row(["äää", ""])]), "a     b\näää\n");
    }

    #[test]
    fn times_have_few_digits() {
        let shown: Vec<String> =
            [250_u64, 8_240_000, 90_000_000, 7_200_000_000].map(Duration::from_micros).map(time).to_vec();
        assert_eq!(shown, ["0.25 ms", "8.2 s", "2 min", "2.0 h"]);
    }
}
