//! `cargo xtask recovery [--runs N]`: a node that loses its memory in the middle of a lock, in each way N times, on real servers.

use anyhow::{Context as _, Result, bail};

use crate::run::{self, cargo};

/// What the book says was shown.
const RUNS: &str = "200";

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let runs = match words {
        [] => RUNS,
        ["--runs", runs] => runs,
        _ => bail!("usage: cargo xtask recovery [--runs N]"),
    };
    runs.parse::<usize>().context("--runs takes a number")?;
    let mut tests = cargo("test --release --package redlock-chaos --test crash_recovery -- --nocapture");
    run::run(tests.env("REDLOCK_RECOVERY_RUNS", runs))
}
