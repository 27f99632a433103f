//! Finding in what test runners say which tests failed. Pure: text in, names out.

use super::counts::without_colour;

/// How nextest marks, in the list below its summary, tests that did not fail.
const NOT_FAILED: [&str; 5] = ["PASS", "SLOW", "LEAK", "FLAKY", "SKIP"];

/// A test that failed, as its runner calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// The binary it is in, where the runner says so.
    pub(super) binary: Option<String>,
    pub(super) test: String,
}

impl Failure {
    /// Reads the list below the last summary of nextest, such as `FAIL [   0.135s] (3/6) sample::it a_test`. A test that
    /// hangs is marked `TIMEOUT`, one that is killed with its signal.
    pub(super) fn of_nextest(heard: &str) -> Vec<Self> {
        let plain = without_colour(heard);
        let lines: Vec<&str> = plain.lines().map(str::trim).collect();
        let summary =
            lines.iter().rposition(|line| line.strip_prefix("Summary").is_some_and(|rest| rest.contains("run:")));
        let below = lines.into_iter().skip(summary.map_or(usize::MAX, |summary| summary + 1));
        below.filter_map(Self::of_nextest_line).collect()
    }

    fn of_nextest_line(line: &str) -> Option<Self> {
        let (mark, rest) = line.split_once('[')?;
        let (_time, rest) = rest.split_once(']')?;
        if NOT_FAILED.iter().any(|fine| mark.split_whitespace().next() == Some(fine)) {
            return None;
        }
        // The place in the run, which not all versions say.
        let rest = rest.trim();
        let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
        let (binary, test) = rest.trim().split_once(' ')?;
        Some(Self { binary: Some(binary.to_owned()), test: test.trim().to_owned() })
    }

    /// Reads the lists above lines such as `test result: FAILED. 9 passed; 1 failed`. What failing tests wrote stands above
    /// them, so a list begins where the word stands last.
    pub(super) fn of_libtest(heard: &str) -> Vec<Self> {
        let plain = without_colour(heard);
        let mut failures = Vec::new();
        let mut list = Vec::new();
        for line in plain.lines() {
            if line == "failures:" {
                list.clear();
            } else if let Some(test) = line.strip_prefix("    ") {
                list.push(Self { binary: None, test: test.trim().to_owned() });
            } else if line.starts_with("test result: ") {
                let failed = line.starts_with("test result: FAILED");
                failures.extend(list.drain(..).filter(|_| failed));
            }
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: &[Failure], expected: &[(Option<&str>, &str)]) {
        let found: Vec<_> = found.iter().map(|failure| (failure.binary.as_deref(), failure.test.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_nextest_lists_below_its_summary_has_failed() {
        let heard = "        FAIL [   0.135s] (3/6) sample tests::bad
  stderr ───
    Summary of what the test did, in [brackets] of its own
────────────
     Summary [   2.140s] 6 tests run: 1 passed (1 slow), 3 failed, 1 timed out, 0 skipped
        SLOW [   1.200s] (2/6) sample tests::slow
     SIGABRT [   0.010s] (1/6) sample tests::aborts
        FAIL [   0.112s] (5/6) sample::it b07_other
        FAIL [   0.112s] sample::bin/tool older
     TIMEOUT [   2.004s] (6/6) sample tests::hangs
error: test run failed";
        let expected = [
            (Some("sample"), "tests::aborts"),
            (Some("sample::it"), "b07_other"),
            (Some("sample::bin/tool"), "older"),
            (Some("sample"), "tests::hangs"),
        ];
        check(&Failure::of_nextest(heard), &expected);
    }

    #[test]
    fn colours_do_not_hide_a_failure() {
        let heard = "\u{1b}[31;1m     Summary\u{1b}[0m [ 1s] 1 test run: 0 passed, 1 failed\n\
                     \u{1b}[31;1m        FAIL\u{1b}[0m [   0.1s] \u{1b}[35m(1/1)\u{1b}[0m \u{1b}[35;1msample\u{1b}[0m \u{1b}[36mtests::\u{1b}[34;1mbad\u{1b}[0m";
        check(&Failure::of_nextest(heard), &[(Some("sample"), "tests::bad")]);
    }

    #[test]
    fn without_a_summary_nextest_has_named_nobody() {
        check(&Failure::of_nextest("        FAIL [   0.1s] (3/6) sample tests::bad\nerror: could not compile"), &[]);
    }

    #[test]
    fn what_libtest_lists_above_its_result_has_failed() {
        let heard = "running 3 tests
test tests::good ... ok
test tests::bad ... FAILED

failures:

---- tests::bad stdout ----
failures:
    written by the test
note: run with `RUST_BACKTRACE=1`

failures:
    tests::bad
    crates/a/src/../../../README.md - Readme (line 31)

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.07s

running 1 test
    indented, by a test that is fine
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        check(
            &Failure::of_libtest(heard),
            &[(None, "tests::bad"), (None, "crates/a/src/../../../README.md - Readme (line 31)")],
        );
    }
}
