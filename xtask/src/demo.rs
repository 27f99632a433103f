//! `cargo xtask demo`: builds the demo, which brings the whole library with it, and becomes it.
//!
//! The demo is a program of its own (`bin/demo`), so that the other tasks stay small. Becoming it, instead of waiting for
//! it, leaves one process for Ctrl-C to reach and one exit code.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::run::cargo;

/// Shown without building anything; the demo shows the same.
const USAGE: &str = include_str!("demo.txt");

pub(crate) fn run(words: &[&str]) -> Result<()> {
    if words.iter().any(|word| matches!(*word, "--help" | "-h")) {
        print!("{USAGE}");
        return Ok(());
    }
    let program = build()?;
    let error = Command::new(&program).args(words).exec();
    Err(error).context("the demo cannot be run")
}

/// Builds the demo and says where it is. Standard output stays clean, as the demo's may be read by a program.
fn build() -> Result<String> {
    let build = "build --package xtask --features demo --bin demo --message-format json-render-diagnostics";
    let mut child =
        cargo(build).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cargo cannot be run")?;
    let stdout = child.stdout.take().context("no output")?;
    let stderr = child.stderr.take().context("no output")?;

    // On a thread of its own, so that neither pipe fills up while the other is read.
    let aside = std::thread::spawn(move || show_progress(BufReader::new(stderr)));
    let mut program = None;
    for line in BufReader::new(stdout).lines() {
        let message: Value = serde_json::from_str(&line?).unwrap_or_default();
        if message["target"]["name"] == "demo"
            && let Some(executable) = message["executable"].as_str()
        {
            program = Some(executable.to_owned());
        }
    }
    aside.join().expect("relaying lines does not panic");
    let status = child.wait()?;
    ensure!(status.success(), "building the demo ended with {status}");
    program.context("cargo built no demo")
}

/// Shows what cargo does, but not that there was nothing to do.
fn show_progress(stderr: impl BufRead) {
    let mut announced = false;
    for line in stderr.lines().map_while(Result::ok) {
        if line.trim_start().starts_with("Finished") {
            continue;
        }
        if !announced && line.trim_start().starts_with("Compiling") {
            announced = true;
            eprintln!("building the demo; the first time takes a few minutes");
        }
        eprintln!("{line}");
    }
}
