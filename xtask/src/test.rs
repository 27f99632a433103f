//! `cargo xtask test [--install] [FILTER…]`: all tests, against real servers that the tests start themselves.
//!
//! Names each test that failed with the command that runs it again, and ends with one line of counts over all runs,
//! `N passed, N failed`, alone on a line. What could not even be built or run counts as one failure, so that the line never
//! says more than was seen.

mod counts;
mod failures;

use std::process::ExitStatus;

use anyhow::{Result, bail, ensure};

use self::counts::Counts;
use self::failures::Failure;
use crate::mutants;
use crate::packages::packages;
use crate::run::{cargo, succeeds, watch};
use crate::servers;

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (flags, filter): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
    let install = match flags.as_slice() {
        [] => false,
        ["--install"] => true,
        _ => bail!("test knows only --install, not {}", flags.join(" ")),
    };

    let outcome = match servers::ensure_installed(install) {
        Ok(()) => everything(&filter)?,
        Err(error) => {
            eprintln!("error: {error:#}");
            Outcome { counts: Counts::ONE_FAILURE, failed: Vec::new() }
        }
    };
    let matched = filter.is_empty() || !outcome.counts.nothing_ran();
    ensure!(matched, "no test has {} in its name", filter.join(" or "));
    println!();
    for line in &outcome.failed {
        println!("{line}");
    }
    println!("{}", outcome.counts);
    ensure!(outcome.counts.failed == 0, "not everything passed");
    Ok(())
}

/// What came of one run, or of several.
#[derive(Debug, Default)]
struct Outcome {
    counts: Counts,
    /// A line for each test that failed: its name, and how to run it again.
    failed: Vec<String>,
}

impl Outcome {
    /// `again` gives the command for one test; `whole` is the command of the run, which may have failed without naming any.
    fn new(
        counts: Counts,
        status: ExitStatus,
        failures: &[Failure],
        again: impl Fn(&str) -> String,
        whole: &str,
    ) -> Self {
        let counts = counts.or_one_failure(status);
        let mut failed: Vec<String> = failures.iter().map(|failure| told(failure, &again(&failure.test))).collect();
        if failed.is_empty() && 0 < counts.failed {
            failed.push(format!("failed: a run that named no test, see above; again with: {whole}"));
        }
        Self { counts, failed }
    }

    fn add(&mut self, more: Self) {
        self.counts += more.counts;
        self.failed.extend(more.failed);
    }
}

fn told(Failure { binary, test }: &Failure, again: &str) -> String {
    match binary {
        Some(binary) => format!("failed: {binary} {test}; again with: {again}"),
        None => format!("failed: {test}; again with: {again}"),
    }
}

fn everything(filter: &[&str]) -> Result<Outcome> {
    let runner = Runner::installed();
    let mut outcome = runner.run(WHOLE, filter)?;
    if filter.is_empty() {
        outcome.add(doctests()?);
        for package in packages()?.iter().filter(|package| package.has_library && !package.features.is_empty()) {
            for selection in package.alone() {
                outcome.add(runner.run(&format!("{selection} --lib"), &[])?);
            }
        }
        outcome.add(hunt()?);
    }
    Ok(outcome)
}

/// A mutant that is caught has passed; so has, in the first run, the test that catches it, without the mutant.
fn hunt() -> Result<Outcome> {
    let mutants::Hunted { caught, wrong } = mutants::hunted(&[])?;
    let counts = Counts { passed: caught, failed: wrong.len() as u64, skipped: 0 };
    let failed = wrong.iter().map(|wrong| format!("failed: {wrong}; again with: cargo xtask mutants")).collect();
    Ok(Outcome { counts, failed })
}

/// The selection that `cargo xtask test` with a filter runs as well.
const WHOLE: &str = "--workspace --all-features";

/// Nextest has no notion of doctests.
fn doctests() -> Result<Outcome> {
    let command = "test --doc --workspace --all-features --no-fail-fast";
    let (status, heard) = watch(&mut cargo(command))?;
    // Their names have spaces and parentheses in them.
    let again = |test: &str| format!("cargo test --doc {WHOLE} -- '{test}'");
    let counts = Counts::of_libtest(&heard);
    Ok(Outcome::new(counts, status, &Failure::of_libtest(&heard), again, &format!("cargo {command}")))
}

/// Who runs the tests.
#[derive(Debug, Clone, Copy)]
enum Runner {
    /// Each test in a process of its own, with the limits of `.config/nextest.toml`.
    Nextest,
    /// What every toolchain has.
    Cargo,
}

impl Runner {
    fn installed() -> Self {
        match succeeds(&mut cargo("nextest --version")) {
            true => Self::Nextest,
            false => Self::Cargo,
        }
    }

    fn run(self, selection: &str, filter: &[&str]) -> Result<Outcome> {
        let again = |test: &str| self.again(selection, test);
        match self {
            Self::Nextest => {
                // A feature may have no tests of its own; whether a filter matched anything is seen in the counts.
                let threads = test_threads();
                let command =
                    format!("nextest run {selection} --test-threads {threads} --no-fail-fast --no-tests pass");
                let (status, heard) = watch(cargo(&command).args(filter))?;
                let summary = Counts::of_nextest(&heard)?;
                ensure!(summary.is_some() || !status.success(), "nextest ended well and gave no summary");
                let mut counts = summary.unwrap_or_default();
                if !filter.is_empty() {
                    // What the filter leaves out was not asked for.
                    counts.skipped = 0;
                }
                let whole = format!("cargo nextest run {selection}");
                Ok(Outcome::new(counts, status, &Failure::of_nextest(&heard), again, &whole))
            }
            Self::Cargo => {
                let targets = if selection.contains("--lib") { "" } else { "--lib --bins --tests" };
                let mut test = cargo(&format!("test {selection} {targets} --no-fail-fast --"));
                // One after the other: the cases that judge by the clock have the machine for themselves, as with nextest.
                let (status, heard) = watch(test.args(filter).env("RUST_TEST_THREADS", "1"))?;
                let whole = format!("cargo test {selection}");
                let counts = Counts::of_libtest(&heard);
                Ok(Outcome::new(counts, status, &Failure::of_libtest(&heard), again, &whole))
            }
        }
    }

    /// The command that runs one test of a selection again.
    fn again(self, selection: &str, test: &str) -> String {
        match self {
            _ if selection == WHOLE => format!("cargo xtask test {test}"),
            Self::Nextest => format!("cargo nextest run {selection} {test}"),
            Self::Cargo => format!("cargo test {selection} {test}"),
        }
    }
}

/// Half as many again as there are processors: most tests wait for a server or a clock most of the time.
fn test_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors + processors.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const FAILED: i32 = 101 << 8;

    fn failure(binary: Option<&str>, test: &str) -> Failure {
        Failure { binary: binary.map(str::to_owned), test: test.to_owned() }
    }

    #[test]
    fn each_failure_is_told_with_the_command_that_runs_it_again() {
        let counts = Counts { passed: 9, failed: 1, skipped: 0 };
        let failures = [failure(Some("redlock-backends::cases"), "b45_wait::b45_no_wait_is_one_attempt")];
        let again = |test: &str| Runner::Nextest.again(WHOLE, test);
        let outcome = Outcome::new(counts, ExitStatus::from_raw(FAILED), &failures, again, "");
        let expected = "failed: redlock-backends::cases b45_wait::b45_no_wait_is_one_attempt; \
                        again with: cargo xtask test b45_wait::b45_no_wait_is_one_attempt";
        assert_eq!(outcome.failed, [expected]);
        assert_eq!(outcome.counts, counts);
    }

    #[test]
    fn a_feature_alone_is_run_again_alone() {
        let alone = "--package a --no-default-features --lib";
        assert_eq!(Runner::Nextest.again(alone, "tests::b"), format!("cargo nextest run {alone} tests::b"));
        assert_eq!(Runner::Cargo.again(alone, "tests::b"), format!("cargo test {alone} tests::b"));
        assert_eq!(Runner::Cargo.again(WHOLE, "tests::b"), "cargo xtask test tests::b");
    }

    #[test]
    fn a_run_that_broke_off_is_told_as_a_whole() {
        let outcome =
            Outcome::new(Counts::default(), ExitStatus::from_raw(FAILED), &[], str::to_owned, "cargo nextest run");
        assert_eq!(outcome.failed, ["failed: a run that named no test, see above; again with: cargo nextest run"]);
        assert_eq!(outcome.counts, Counts::ONE_FAILURE);
        let fine = Outcome::new(Counts::default(), ExitStatus::from_raw(0), &[], str::to_owned, "");
        assert!(fine.failed.is_empty() && fine.counts.nothing_ran());
    }
}
