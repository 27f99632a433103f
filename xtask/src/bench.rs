//! `cargo xtask bench [--quick] [--only SCENARIO] [--json] [--docs] [--install-peers] …`: what a lock costs, compared in one
//! interleaved run on servers of its own.
//!
//! Builds the load generator with optimisations and hands the words over to it; its usage is the load generator's. Two
//! words are looked at here: `--install-peers` brings the libraries in other languages first, and `--docs` means the
//! folder of the book.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::run::{self, cargo, root, target};

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
    let python = peers().join("python");
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv"]).arg(&python);
    let mut pip = Command::new(python.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(scripts().join("requirements.txt"));
    let brought = [install_node_peers().is_ok(), run::run(&mut environment).is_ok() && run::run(&mut pip).is_ok()];
    ensure!(brought.contains(&true), "neither npm nor pip could bring the other libraries");
    Ok(())
}

/// Brings the libraries in JavaScript, unless they are there. A test asks for them as well.
pub(crate) fn install_node_peers() -> Result<()> {
    let node = peers().join("node");
    let wanted = scripts().join("package.json");
    let is_there = || {
        let same = std::fs::read(node.join("package.json")).ok()? == std::fs::read(&wanted).ok()?;
        (same && node.join("node_modules/redlock").exists()).then_some(())
    };
    if is_there().is_some() {
        return Ok(());
    }
    std::fs::create_dir_all(&node)?;
    std::fs::copy(&wanted, node.join("package.json"))?;
    let mut npm = Command::new("npm");
    run::run(npm.args(["install", "--no-audit", "--no-fund"]).current_dir(&node))
}

/// Where the libraries of the peers are: in the folder of builds.
fn peers() -> PathBuf {
    target().join("bench/peers")
}

/// What is in the repository for the peers.
fn scripts() -> PathBuf {
    root().join("crates/bench/peers")
}
