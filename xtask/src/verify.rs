//! `cargo xtask verify`: everything that reads and nothing that writes. Goes on after a failure, so that one run shows all.

use anyhow::{Result, ensure};

use crate::packages::packages;
use crate::run::{self, cargo};
use crate::tidy;

pub(crate) fn run() -> Result<()> {
    let mut docs = cargo("doc --workspace --all-features --no-deps");
    docs.env("RUSTDOCFLAGS", "-D warnings");

    let steps = [
        ("format", run::run(&mut cargo("fmt --all --check"))),
        ("tidy", tidy::run()),
        (
            "lints",
            run::run(&mut cargo(
                "clippy --workspace --all-targets --all-features -- -D warnings",
            )),
        ),
        ("docs", run::run(&mut docs)),
        ("each feature alone", each_feature_alone()),
    ];
    let failures = steps
        .into_iter()
        .filter_map(|(name, outcome)| Some(format!("{name}: {:#}", outcome.err()?)));
    let failures: Vec<String> = failures.collect();
    ensure!(failures.is_empty(), "verify found:\n{}", failures.join("\n"));
    println!("verified");
    Ok(())
}

/// A feature must not lean on another one, nor on what only the tests' dependencies switch on: so each library is checked
/// by itself, and then again with its tests. Clippy, since its results for the dependencies are there already.
fn each_feature_alone() -> Result<()> {
    for package in packages()? {
        for selection in package.alone() {
            if package.has_library {
                run::run(&mut cargo(&format!("clippy --quiet {selection} --lib -- -D warnings")))?;
            }
            run::run(&mut cargo(&format!(
                "clippy --quiet {selection} --all-targets -- -D warnings"
            )))?;
        }
    }
    Ok(())
}
