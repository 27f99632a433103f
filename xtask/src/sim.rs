//! `cargo xtask sim --seeds N [--from S] [--jobs J]`, `cargo xtask sim --seed S`: simulated worlds, with optimisations.
//!
//! Hands every word over to the simulation; its usage is the simulation's.

use anyhow::Result;

use crate::run::{self, cargo};

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let mut sim = cargo("run --release --package redlock-evidence --bin sim --");
    run::run(sim.args(words))
}
