//! Counts the allocations of a client: `counted CONTESTANT ROUNDS URLS` says how many there were in so many rounds of
//! acquire and release, of how many bytes together, and how many rounds failed.
//!
//! A program of its own, so that what is timed elsewhere does not pay for the counting.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to whoever runs it")]

use std::alloc::System;
use std::process::ExitCode;

use redlock_bench::load::Rehearsal;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Rounds before the count begins, in which buffers grow to the size that they keep.
const LEAD_IN: usize = 100;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, rounds, urls] = &words[..] else {
        eprintln!("usage: counted CONTESTANT ROUNDS URLS");
        return ExitCode::FAILURE;
    };
    let Ok(rounds) = rounds.parse() else {
        eprintln!("{rounds} is not a number of rounds");
        return ExitCode::FAILURE;
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("the system gives a runtime");
    let counted = runtime.block_on(async {
        let mut rehearsal = Rehearsal::of(name, Some(urls)).await?;
        rehearsal.rounds(LEAD_IN).await;
        let region = Region::new(ALLOCATOR);
        let failed = rehearsal.rounds(rounds).await;
        Ok::<_, redlock_bench::load::LoadError>((region.change(), failed))
    });
    match counted {
        Ok((change, failed)) => {
            let count = change.allocations + change.reallocations;
            println!("{count} {} {failed}", change.bytes_allocated);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
