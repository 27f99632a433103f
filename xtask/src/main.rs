//! The project's tasks: `cargo xtask <verb>`. One file per verb; this one only chooses.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a task talks to whoever runs it")]

mod bench;
mod chaos;
mod demo;
mod docs;
mod fix;
mod model;
mod mutants;
mod packages;
mod recovery;
mod run;
mod servers;
mod sim;
mod test;
mod tidy;
mod verify;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask <verb>

  demo [--help]                the story of a lock, a frozen holder and a database that refuses its late write
  bench [--quick] [--only X]   what a lock costs: alone, in a crowd, with servers down, next to others; docs/performance.md
  verify                       everything that reads and nothing that writes: format, lints, docs, tidy, each feature alone
  docs [--write]               the book: builds it, runs its code and its commands, checks its links
  fix                          lets rustfmt and clippy write what they can
  tidy                         the rules of this code base that no general tool knows
  model [--long] [WORD…]       the protocol in every order of events; with --long for hours
  chaos [--minutes M] [--seed N]  real servers, clients and databases under faults, with a verdict and a timeline
  recovery [--runs N]          a node that loses its memory in the middle of a lock, in five ways, N times each
  sim --seeds N [--jobs J]     whole clients in N simulated worlds where everything goes wrong; --seed S tells one of them
  mutants [WORD…]              deliberate bugs, one at a time: a test has to fail; --write writes their page
  test [--install] [FILTER…]   all tests, against real servers; --install brings missing servers through apt";

fn main() -> ExitCode {
    if let Some(code) = mutants::as_compiler() {
        return code;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match choose(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn choose(words: &[&str]) -> Result<()> {
    match words {
        ["demo", rest @ ..] => demo::run(rest),
        ["verify"] => verify::run(),
        ["docs", rest @ ..] => docs::run(rest),
        ["fix"] => fix::run(),
        ["tidy"] => tidy::run(),
        ["test", rest @ ..] => test::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["model", rest @ ..] => model::run(rest),
        ["recovery", rest @ ..] => recovery::run(rest),
        ["chaos", rest @ ..] => chaos::run(rest),
        ["sim", rest @ ..] => sim::run(rest),
        ["mutants", rest @ ..] => mutants::choose(rest),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("no such task: {}\n{USAGE}", words.join(" ")),
    }
}
