//! Runs seeds: `sim --seed S` tells one of them, `sim --seeds N [--from S] [--jobs J]` many.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to whoever runs it")]

use anyhow::{Context as _, Result, bail, ensure};
use redlock_evidence::sim::{self, Counts, Sabotage};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const USAGE: &str = "\
usage: cargo xtask sim --seeds N [--from S] [--jobs J]   many seeds, from S on, on J threads
       cargo xtask sim --seed S                          one seed, told event by event
       … [--sabotage WHAT]                               with something broken on purpose: must fail; fence-off,
                                                         wild-clocks, amnesia, secret-pauses, hoarding-nodes, endless-storm,
                                                         guard-off";

/// Failing seeds that are told before a run gives up.
const FAILURES_MAX: usize = 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match read(&words).and_then(|task| task.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is to be run.
struct Task {
    seed: Option<u64>,
    seeds: u64,
    from: u64,
    jobs: u64,
    sabotage: Sabotage,
}

fn read(words: &[String]) -> Result<Task> {
    let mut task = Task { seed: None, seeds: 0, from: 0, jobs: 1, sabotage: Sabotage::None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().with_context(|| format!("{word} needs a value\n{USAGE}"))?;
        let number = || value.parse().with_context(|| format!("{word} needs a number, not {value}"));
        match word.as_str() {
            "--seed" => task.seed = Some(number()?),
            "--seeds" => task.seeds = number()?,
            "--from" => task.from = number()?,
            "--jobs" => task.jobs = number()?,
            "--sabotage" => {
                let known = Sabotage::ALL.into_iter().find(|(name, _)| name == value);
                (_, task.sabotage) = known.with_context(|| format!("no such sabotage: {value}\n{USAGE}"))?;
            }
            _ => bail!("no such option: {word}\n{USAGE}"),
        }
    }
    ensure!(task.seed.is_some() || 0 < task.seeds, "{USAGE}");
    ensure!(0 < task.jobs, "at least one job");
    Ok(task)
}

#[derive(Default)]
struct Sum {
    seeds: u64,
    lasted_ms: u64,
    seen: Counts,
    faults: Counts,
    failures: Vec<String>,
}

impl Task {
    fn run(&self) -> Result<()> {
        match self.seed {
            Some(seed) => self.tell(seed),
            None => self.many(),
        }
    }

    fn tell(&self, seed: u64) -> Result<()> {
        let outcome = sim::run(seed, self.sabotage, true);
        for line in &outcome.log {
            println!("{line}");
        }
        println!("digest {:016x}", outcome.digest);
        for violation in &outcome.violations {
            println!("violated: {}: {}", violation.invariant, violation.what);
        }
        ensure!(outcome.violations.is_empty(), "seed {seed} violates {} invariants", outcome.violations.len());
        println!("seed {seed}: no violation");
        Ok(())
    }

    fn many(&self) -> Result<()> {
        #[expect(clippy::disallowed_methods, reason = "how long the whole run took, for people")]
        let began = Instant::now();
        let (next, enough, sum) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Sum::default()));
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| {
                    while !enough.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if self.seeds <= number {
                            break;
                        }
                        self.one(self.from + number, &sum, &enough);
                    }
                });
            }
        });
        let sum = sum.into_inner().expect("no job panics");
        self.report(&sum, began.elapsed().as_secs())
    }

    fn one(&self, seed: u64, sum: &Mutex<Sum>, enough: &AtomicBool) {
        let outcome = sim::run(seed, self.sabotage, false);
        let mut sum = sum.lock().expect("no job panics");
        sum.seeds += 1;
        sum.lasted_ms += outcome.lasted_ms;
        sum.seen.add(&outcome.seen);
        sum.faults.add(&outcome.faults);
        if let Some(first) = outcome.violations.first() {
            let failure = format!(
                "seed {seed}: {} violations, the first of {}: {}\n  again with: cargo xtask sim --seed {seed}",
                outcome.violations.len(),
                first.invariant,
                first.what
            );
            println!("{failure}");
            sum.failures.push(failure);
            enough.fetch_or(FAILURES_MAX <= sum.failures.len(), Ordering::Relaxed);
        }
        if sum.seeds.is_multiple_of((self.seeds / 20).max(1)) {
            eprintln!("{} of {} seeds, {} grants", sum.seeds, self.seeds, sum.seen.of("grant"));
        }
    }

    fn report(&self, sum: &Sum, seconds: u64) -> Result<()> {
        let hours = sum.lasted_ms / 3_600_000;
        println!("\nfaults by kind");
        sum.faults.iter().for_each(|(kind, times)| println!("{times:>12} {kind}"));
        println!("\nwhat happened");
        sum.seen.iter().for_each(|(what, times)| println!("{times:>12} {what}"));
        let never: Vec<_> = sim::SOMETIMES.iter().filter(|what| sum.seen.of(what) == 0).collect();
        println!(
            "\n{} seeds, {} acquisitions asked for in {} attempts, {} grants, {} stale claims and writes refused, {hours} \
             simulated hours, {} faults, {seconds} s",
            sum.seeds,
            sum.seen.of("acquire"),
            sum.seen.of("attempt"),
            sum.seen.of("grant"),
            sum.seen.of("stale claim refused") + sum.seen.of("stale write refused"),
            sum.faults.iter().map(|(_, times)| times).sum::<u64>(),
        );
        ensure!(sum.failures.is_empty(), "verdict: {} seeds violate a promise", sum.failures.len());
        ensure!(
            never.is_empty() || self.seeds < 200,
            "verdict: nothing was violated, but these never happened: {never:?}"
        );
        println!("verdict: no violation");
        Ok(())
    }
}
