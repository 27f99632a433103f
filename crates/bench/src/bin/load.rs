//! `cargo xtask bench` runs this: the load comparison on servers that it starts itself.
//!
//! The report goes to standard output, progress to standard error. Ends with a failure if a binding goal is missed in a
//! whole run; a quick one is too short to fail anybody.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to whoever runs it")]

use std::error::Error;
use std::process::ExitCode;

use redlock_bench::load::{self, LoadError, Plan};
use tokio::runtime::Runtime;

const USAGE: &str = "\
usage: load [--quick] [--json] [--threads N]
       load --repeat CONTESTANT ROUNDS

  --quick                      a few seconds instead of half a minute; a missed goal is no failure then
  --json                       the report as one JSON object
  --threads N                  worker threads of the runtime; 0, the default, for everything on one thread
  --repeat CONTESTANT ROUNDS   one contestant alone, unmeasured, for a profiler to look at";

/// What the command line asks for.
struct Wish {
    plan: Plan,
    json: bool,
    threads: usize,
    repeat: Option<(String, usize)>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(wish) = read(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    match carry_out(wish, &words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn read(words: &[String]) -> Option<Wish> {
    let mut wish = Wish { plan: Plan::WHOLE, json: false, threads: 0, repeat: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => wish.plan = Plan::QUICK,
            "--json" => wish.json = true,
            "--threads" => wish.threads = words.next()?.parse().ok()?,
            "--repeat" => wish.repeat = Some((words.next()?.clone(), words.next()?.parse().ok()?)),
            _ => return None,
        }
    }
    Some(wish)
}

fn carry_out(wish: Wish, words: &[String]) -> Result<bool, LoadError> {
    let runtime = runtime(wish.threads);
    if let Some((contestant, rounds)) = wish.repeat {
        let failed = on_a_worker(&runtime, async move { load::repeat(&contestant, rounds).await })?;
        eprintln!("{failed} of {rounds} rounds failed");
        return Ok(failed == 0);
    }
    let command = [&["cargo xtask bench".to_owned()], words].concat().join(" ");
    let plan = wish.plan;
    let report = on_a_worker(&runtime, async move { load::compare(plan, command, show_progress).await })?;
    if wish.json {
        println!("{:#}", report.to_json());
    } else {
        println!("{report}");
    }
    Ok(report.passed() || plan == Plan::QUICK)
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build().expect("the system gives a runtime its threads")
}

/// Runs a future where the tasks of a program run, and not on the thread that waits for them all.
fn on_a_worker<T: Send + 'static>(runtime: &Runtime, future: impl Future<Output = T> + Send + 'static) -> T {
    let task = runtime.spawn(future);
    runtime.block_on(task).expect("the comparison does not panic")
}

fn show_progress(done: usize, all: usize) {
    if done == 0 {
        eprintln!("five healthy servers, and five of which one is frozen and one killed; measuring");
    } else if done.is_multiple_of(all.div_ceil(10)) || done == all {
        eprintln!("  {done} of {all} blocks");
    }
}
