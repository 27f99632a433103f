//! `cargo xtask fix`: what `verify` would complain about and a program can mend.

use anyhow::Result;

use crate::run::{self, cargo};

pub(crate) fn run() -> Result<()> {
    run::run(&mut cargo("clippy --fix --allow-dirty --allow-staged --workspace --all-targets --all-features"))?;
    run::run(&mut cargo("fmt --all"))
}
