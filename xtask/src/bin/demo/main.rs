//! The demo: a lock that a quorum grants, a holder that is frozen, and a database that refuses it.
//!
//! Launched by `cargo xtask demo`, which builds it first. The same program is also the frozen one: the demo runs itself
//! again as a worker, with connections of its own.
//!
//! ```text
//!  options ──▶ nodes, database      what the story is played on
//!                    │
//!                    ▼
//!                  story ──▶ holder ══ pipe ══ worker     the process that is frozen
//!                    │
//!                    ├─▶ telling    for people
//!                    └─▶ facts      for programs
//! ```

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a demo talks to whoever runs it")]

mod options;
mod story;
mod nodes;
mod wire;
mod database;
mod holder;
mod worker;
mod telling;
mod facts;
mod address;

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use self::facts::Facts;
use self::options::{Options, USAGE, Wish};
use self::story::Stage;
use self::telling::{Telling, causes};

/// How long tidying up may take.
const CLEAR_PATIENCE: Duration = Duration::from_secs(5);

/// How long after a failure a signal may come that explains it.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(200);

/// The exit code of a shell's command that was interrupted.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let wish = match options::read(std::env::args().skip(1)) {
        Ok(wish) => wish,
        Err(error) => {
            eprintln!("error: {error:#}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let options = match wish {
        Wish::Help => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Wish::Work => return run(worker::run()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
        Wish::Demo(options) => options,
    };
    match run(demo(&options)) {
        Ok(Ending::Told) => ExitCode::SUCCESS,
        Ok(Ending::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            eprintln!("\nerror: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}

fn run<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(future)
}

enum Ending {
    Told,
    Interrupted,
}

async fn demo(options: &Options) -> Result<Ending> {
    let telling = Telling::new(!options.json);
    let mut facts = Facts::default();
    let mut interrupted = pin!(interrupted());

    // From here on every process and every file belongs to the stage, which takes them away when it is dropped.
    let stage = tokio::select! {
        stage = Stage::set(options, &telling, &mut facts) => stage,
        () = &mut interrupted => return Ok(Ending::Interrupted),
    };
    let outcome = match stage {
        Ok(stage) => {
            let outcome = tokio::select! {
                outcome = story::tell(&stage, &telling, &mut facts) => Some(outcome),
                () = &mut interrupted => None,
            };
            let cleared = clear(stage).await;
            match outcome {
                Some(outcome) => outcome.and(cleared),
                None => return cleared.map(|()| Ending::Interrupted),
            }
        }
        Err(error) => Err(error),
    };
    // Ctrl-C reaches the servers as well, and what becomes of them may be noticed before the signal is.
    if outcome.is_err() && timeout(SIGNAL_PATIENCE, interrupted).await.is_ok() {
        return Ok(Ending::Interrupted);
    }
    facts.conclude(&outcome);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&facts)?);
    }
    if outcome.is_ok() {
        telling.summary(&facts);
    }
    outcome.map(|()| Ending::Told)
}

async fn clear(stage: Stage) -> Result<()> {
    let cleared = timeout(CLEAR_PATIENCE, stage.clear()).await;
    cleared.unwrap_or_else(|_| bail!("not within {CLEAR_PATIENCE:?}")).context("tidying up")
}

/// Resolves when somebody wants the demo to end.
async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}
