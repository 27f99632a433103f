//! `cargo xtask bench [--quick] [--json] …`: what a lock costs, compared in one interleaved run on servers of its own.
//!
//! Builds the load generator with optimisations and hands every word over to it; its usage is the load generator's.

use anyhow::Result;

use crate::run::{self, cargo};

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let mut load = cargo("run --release --package redlock-bench --features load --bin load --");
    run::run(load.args(words))
}
