//! `cargo xtask verify`: everything that reads and nothing that writes. Goes on after a failure, so that one run shows all.

use anyhow::{Result, ensure};

use crate::packages::packages;
use crate::run::{self, cargo};
use crate::tidy;

pub(crate) fn run() -> Result<()> {
    let mut docs = cargo("doc --workspace --all-features --no-deps");
    docs.env("RUSTDOCFLAGS", "-D warnings");

    let mut outcomes = vec![
        run::run(&mut cargo("fmt --all --check")),
        tidy::run(),
        run::run(&mut cargo("clippy --workspace --all-targets --all-features -- -D warnings")),
        run::run(&mut docs),
    ];
    for selection in alone()? {
        outcomes.push(run::run(&mut cargo(&format!("clippy --quiet {selection} -- -D warnings"))));
    }

    let failures = outcomes.into_iter().filter_map(|outcome| Some(format!("\n{:#}", outcome.err()?)));
    let failures: Vec<String> = failures.collect();
    ensure!(failures.is_empty(), "verify found:{}", failures.concat());
    println!("verified");
    Ok(())
}

/// Each package with no feature and with each of its features alone: a feature must not lean on another one.
///
/// A library is checked twice, by itself and then with its tests, because what the tests depend on switches on features
/// of shared dependencies that the library may have forgotten to ask for. Clippy checks, as it did for the whole
/// workspace, so that most of what it needs is there already.
fn alone() -> Result<Vec<String>> {
    let mut selections = Vec::new();
    for package in packages()? {
        for selection in package.alone() {
            if package.has_library {
                selections.push(format!("{selection} --lib"));
            }
            selections.push(format!("{selection} --all-targets"));
        }
    }
    Ok(selections)
}
