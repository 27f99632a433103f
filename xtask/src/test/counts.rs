//! Counting what test runners say at their end. Pure: text in, numbers out.

use std::fmt;
use std::ops::AddAssign;
use std::process::ExitStatus;

use anyhow::{Context, Result, bail};

/// How many tests went how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
}

impl Counts {
    pub(super) const ONE_FAILURE: Self = Self { passed: 0, failed: 1, skipped: 0 };

    /// Reads the summary of nextest, such as `3 tests run: 1 passed (1 slow), 1 failed, 1 timed out, 0 skipped`, if there
    /// is one.
    pub(super) fn of_nextest(heard: &str) -> Result<Option<Self>> {
        let plain = without_colour(heard);
        let mut summaries = plain.lines().filter_map(|line| line.trim().strip_prefix("Summary")?.split_once("run:"));
        let Some((_, summary)) = summaries.next_back() else {
            return Ok(None);
        };
        let mut counts = Self::default();
        for part in without_parentheses(summary).split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (count, how) = part.split_once(' ').with_context(|| format!("not a count: {part}"))?;
            let count: u64 = count.parse().with_context(|| format!("not a count: {part}"))?;
            match how.trim() {
                "passed" => counts.passed += count,
                "failed" | "exec failed" | "timed out" => counts.failed += count,
                "skipped" => counts.skipped += count,
                _ => bail!("nextest counts in a way that is not known here: {part}"),
            }
        }
        Ok(Some(counts))
    }

    /// Adds up all lines such as `test result: ok. 9 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out`.
    pub(super) fn of_libtest(heard: &str) -> Self {
        let plain = without_colour(heard);
        let mut counts = Self::default();
        for summary in plain.lines().filter_map(|line| line.trim().strip_prefix("test result: ")) {
            for part in summary.split(['.', ';']).map(str::trim) {
                let Some((Ok(count), how)) = part.split_once(' ').map(|(count, how)| (count.parse::<u64>(), how))
                else {
                    continue;
                };
                match how {
                    "passed" => counts.passed += count,
                    "failed" => counts.failed += count,
                    "ignored" => counts.skipped += count,
                    _ => {}
                }
            }
        }
        counts
    }

    /// Whether no test was asked for, passed or not.
    pub(super) fn nothing_ran(self) -> bool {
        self.passed + self.failed == 0
    }

    /// A run that ended badly without naming a test has failed as a whole: it did not compile, or it was killed.
    pub(super) fn or_one_failure(self, status: ExitStatus) -> Self {
        match status.success() || 0 < self.failed {
            true => self,
            false => Self { failed: 1, ..self },
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.skipped {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

/// Takes out the escape sequences with which terminals are told colours: `ESC [ … m`.
pub(super) fn without_colour(text: &str) -> String {
    let mut pieces = text.split('\u{1b}');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| plain + piece.split_once('m').map_or(piece, |(_, rest)| rest))
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0_u32;
    text.chars()
        .filter(|character| {
            depth += u32::from(*character == '(');
            let is_outside = depth == 0;
            depth = depth.saturating_sub(u32::from(*character == ')'));
            is_outside
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts { passed, failed, skipped }
    }

    #[test]
    fn the_summary_of_nextest_is_read() {
        let check =
            |summary: &str, expected| assert_eq!(Counts::of_nextest(summary).unwrap(), Some(expected), "{summary}");
        check("     Summary [   1.311s] 47 tests run: 47 passed, 0 skipped", counts(47, 0, 0));
        check("Summary [ 5.6s] 29 tests run: 28 passed, 1 failed, 2 skipped\n  FAIL [ 5.0s] a b", counts(28, 1, 2));
        check(
            "Summary [ 9s] 5/9 tests run: 2 passed (1 slow, 1 leaky), 1 timed out, 2 exec failed, 0 skipped",
            counts(2, 3, 0),
        );
        check(
            "\u{1b}[32m\u{1b}[1m     Summary\u{1b}[0m [ 1s] \u{1b}[1m3\u{1b}[0m tests run: \u{1b}[1m3\u{1b}[0m \u{1b}[32mpassed\u{1b}[0m",
            counts(3, 0, 0),
        );
        assert_eq!(Counts::of_nextest("error: could not compile").unwrap(), None);
    }

    #[test]
    fn an_unknown_kind_of_count_is_no_silent_zero() {
        assert!(Counts::of_nextest("Summary [ 1s] 2 tests run: 1 passed, 1 exploded").is_err());
    }

    #[test]
    fn the_summaries_of_libtest_are_added_up() {
        let heard = "test result: ok. 9 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 1.05s\n\
                     test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(Counts::of_libtest(heard), counts(10, 2, 1));
    }

    #[test]
    fn a_run_that_ends_badly_has_failed() {
        assert_eq!(counts(0, 0, 0).or_one_failure(ExitStatus::from_raw(101 << 8)), Counts::ONE_FAILURE);
        assert_eq!(counts(3, 2, 0).or_one_failure(ExitStatus::from_raw(101 << 8)), counts(3, 2, 0));
        assert_eq!(counts(3, 0, 0).or_one_failure(ExitStatus::from_raw(0)), counts(3, 0, 0));
    }

    #[test]
    fn the_closing_line_is_plain() {
        assert_eq!(counts(3, 0, 0).to_string(), "3 passed, 0 failed");
        assert_eq!(counts(3, 1, 2).to_string(), "3 passed, 1 failed, 2 skipped");
    }
}
