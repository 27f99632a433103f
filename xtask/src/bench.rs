//! `cargo xtask bench [--quick] [--only SCENARIO] [--json] [--docs] [--install-peers] …`: what a lock costs, compared in one
//! interleaved run on servers of its own.
//!
//! Builds the load generator with optimisations and hands the words over to it; its usage is the load generator's. Two
//! words are looked at here: `--install-peers` brings the libraries in other languages first, and `--docs` means the
//! folder of the book.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::run::{self, cargo, root};

/// The book.
const BOOK: &str = "docs";

pub(crate) fn run(words: &[&str]) -> Result<()> {
    if words.contains(&"--install-peers") {
        install_peers()?;
    }
    // All at once, as the generator runs a second program that counts allocations.
    run::run(&mut cargo("build --release --package redlock-bench --features load --bins"))?;
    let mut load = cargo("run --release --package redlock-bench --features load --bin load --");
    for word in words.iter().filter(|word| **word != "--install-peers") {
        load.arg(word);
        if *word == "--docs" {
            load.arg(BOOK);
        }
    }
    run::run(&mut load)
}

/// Brings the libraries that the peers need, into the folder of builds. What a machine does not have is left out, and named
/// in the report.
fn install_peers() -> Result<()> {
    let own = root().join("target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(own, Into::into);
    let (peers, scripts) = (target.join("bench/peers"), root().join("crates/bench/peers"));
    let (node, python) = (peers.join("node"), peers.join("python"));
    std::fs::create_dir_all(&node)?;
    std::fs::copy(scripts.join("package.json"), node.join("package.json"))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund"]).current_dir(&node);
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv"]).arg(&python);
    let mut pip = Command::new(python.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(scripts.join("requirements.txt"));
    let brought = [run::run(&mut npm).is_ok(), run::run(&mut environment).is_ok() && run::run(&mut pip).is_ok()];
    ensure!(brought.contains(&true), "neither npm nor pip could bring the other libraries");
    Ok(())
}
