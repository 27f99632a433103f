//! `cargo xtask chaos [--minutes M | --seconds S] [--seed N] [--without-fence]`: clients, five Redis servers and three databases
//! under faults, with a verdict, a history and a timeline at the end.
//!
//! Built as the tests are: arithmetic that overflows and assertions that fail are to be heard of.

use anyhow::Result;

use crate::run::{self, cargo};

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let mut chaos = cargo("run --package redlock-chaos --bin chaos --");
    run::run(chaos.args(words))
}
