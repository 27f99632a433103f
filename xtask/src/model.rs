//! `cargo xtask model [--long] [WORD…]`: the protocol in every order of events, with optimisations.
//!
//! Without `--long` it is what the tests of `redlock-evidence` explore; with it, minutes or hours more.

use anyhow::Result;

use crate::run::{self, cargo};

pub(crate) fn run(words: &[&str]) -> Result<()> {
    let mut model = cargo("run --release --package redlock-evidence --bin model --");
    run::run(model.args(words))
}
