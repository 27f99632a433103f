//! `cargo xtask test [--install] [FILTER…]`: all tests, against real servers that the tests start themselves.
//!
//! Ends with one line of counts over all runs, `N passed, N failed`, alone on a line. What could not even be built or run
//! counts as one failure, so that the line never says more than was seen.

mod counts;

use anyhow::{Result, bail, ensure};

use self::counts::Counts;
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

    let counts = match servers::ensure_installed(install) {
        Ok(()) => everything(&filter)?,
        Err(error) => {
            eprintln!("error: {error:#}");
            Counts::ONE_FAILURE
        }
    };
    println!("\n{counts}");
    ensure!(counts.failed == 0, "not everything passed");
    Ok(())
}

fn everything(filter: &[&str]) -> Result<Counts> {
    let runner = Runner::installed();
    let mut counts = runner.count("--workspace --all-features", filter)?;
    if filter.is_empty() {
        counts += doctests()?;
        for package in packages()?.iter().filter(|package| package.has_library && !package.features.is_empty()) {
            for selection in package.alone() {
                counts += runner.count(&format!("{selection} --lib"), &[])?;
            }
        }
    }
    Ok(counts)
}

/// Nextest has no notion of doctests.
fn doctests() -> Result<Counts> {
    let (status, heard) = watch(&mut cargo("test --doc --workspace --all-features --no-fail-fast"))?;
    Ok(Counts::of_libtest(&heard).or_one_failure(status))
}

/// Who runs the tests.
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

    fn count(&self, selection: &str, filter: &[&str]) -> Result<Counts> {
        match self {
            Self::Nextest => {
                // A feature may have no tests of its own; a filter that matches nothing is a mistake.
                let no_tests = if filter.is_empty() { "pass" } else { "fail" };
                let mut nextest = cargo(&format!("nextest run {selection} --no-fail-fast --no-tests {no_tests}"));
                let (status, heard) = watch(nextest.args(filter))?;
                let summary = Counts::of_nextest(&heard)?;
                ensure!(summary.is_some() || !status.success(), "nextest ended well and gave no summary");
                let mut counts = summary.unwrap_or_default().or_one_failure(status);
                if !filter.is_empty() {
                    // What the filter leaves out was not asked for.
                    counts.skipped = 0;
                }
                Ok(counts)
            }
            Self::Cargo => {
                let targets = if selection.contains("--lib") { "" } else { "--lib --bins --tests" };
                let mut test = cargo(&format!("test {selection} {targets} --no-fail-fast --"));
                // One after the other: the cases that judge by the clock have the machine for themselves, as with nextest.
                let (status, heard) = watch(test.args(filter).env("RUST_TEST_THREADS", "1"))?;
                Ok(Counts::of_libtest(&heard).or_one_failure(status))
            }
        }
    }
}
