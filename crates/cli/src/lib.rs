//! The `redlock` command: what operators and scripts hold in their hands.
//!
//! ```text
//!   arguments ─▶ options ─▶ settings (file, environment, options) ─▶ quorum (nodes, client)
//!                                    │
//!       run        the lock, and a program under it: shim, group, guardian
//!       scripts    acquire, extend, release, for programs that hold a lock between two calls
//!       survey     what all nodes say of locks: inspect, list, top, force-release look through it
//!       enroll     nodes that have lost their memory: enroll, reseed
//!       doctor     what is wrong with the set-up, why it matters and how to mend it
//!       fence      the SQL of fence-store
//!                                    │
//!                                    ▼
//!                          output, exit: text or JSON, and a number that says what to do next
//! ```
//!
//! It is a library for the sake of its tests alone: what it promises is the command, described in `docs/command.md`. The
//! algorithm is redlock-core's, and so is every decision about who holds what; this crate asks, shows, and looks after
//! processes.

pub mod exit;
#[allow(rustdoc::broken_intra_doc_links, reason = "what is documented here is what people read in a terminal")]
pub mod options;
pub mod settings;
pub mod output;
pub mod quorum;
pub mod signals;
pub mod lock;
pub mod run;
pub mod scripts;
pub mod table;
pub mod remote;
pub mod survey;
pub mod inspect;
pub mod top;
pub mod force_release;
pub mod enroll;
pub mod fence;
pub mod doctor;

use crate::exit::{Exit, Failure};
use crate::options::{Command, FenceCommand, Options};
use crate::output::Output;
use clap::{CommandFactory as _, Parser as _};
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// Runs the command with these arguments, the first of which is its own name, and says how it ended.
///
/// The private modes in which the command starts itself come first, as they are to be over as soon as can be.
#[must_use]
pub fn command(arguments: Vec<OsString>) -> ExitCode {
    match arguments.get(1).and_then(|mode| mode.to_str()) {
        Some(run::shim::MODE) => return run::shim::become_child(&arguments[2..]),
        Some(run::guardian::MODE) => return run::guardian::keep_watch(),
        _ => {}
    }
    // Known before the rest is, so that what is wrong with the rest is said in the same way.
    let json = arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json");
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(asked_for_help) if !asked_for_help.use_stderr() => {
            return if asked_for_help.print().is_ok() { ExitCode::SUCCESS } else { Exit::Output.into() };
        }
        Err(error) if json => {
            let failure = Failure::new(Exit::Usage, error.render().to_string().trim_end());
            Output::new(true).failure(&failure);
            return failure.exit.into();
        }
        Err(error) => {
            // Nowhere to say it if the stream of errors is closed; the number says it all the same.
            let _ = error.print();
            return Exit::Usage.into();
        }
    };
    listen_to_the_log(options.common.verbose);
    let output = Output::new(options.common.json);
    let ended = match options.command {
        Command::Completions { shell } => completions(shell),
        Command::Manual => manual(),
        command => with_runtime(dispatch(command, &options.common, &output)),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            failure.exit.into()
        }
    }
}

async fn dispatch(command: Command, common: &options::Common, output: &Output) -> Result<u8, Failure> {
    match command {
        Command::Run(options) => run::run(options, common, output).await,
        Command::Acquire(options) => scripts::acquire(options, common, output).await,
        Command::Extend(options) => scripts::extend(options, common, output).await,
        Command::Release(options) => scripts::release(options, common, output).await,
        Command::Inspect { resources } => inspect::inspect(&resources, common, output).await,
        Command::List(options) => inspect::list(options, common, output).await,
        Command::Top(options) => top::top(options, common, output).await,
        Command::ForceRelease(options) => force_release::force_release(options, common, output).await,
        Command::Enroll(options) => enroll::enroll(&options, common, output).await,
        Command::Reseed(options) => enroll::reseed(&options, common, output).await,
        Command::Doctor(options) => doctor::doctor(options, common, output).await,
        Command::Fence(FenceCommand::Sql(options)) => fence::sql(&options, output),
        Command::Completions { .. } | Command::Manual => unreachable!("they need no runtime"),
    }
}

fn with_runtime(work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    // One thread: nothing here keeps it busy, and what starts a program must not end before the program does.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::caused(Exit::CannotStart, "the runtime does not start", &error))?;
    let ended = runtime.block_on(work);
    // Whatever is still under way has had its time.
    runtime.shutdown_background();
    ended
}

fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), "redlock", &mut script);
    write_out(&script)
}

fn manual() -> Result<u8, Failure> {
    let mut page = Vec::new();
    options::manual(&mut page).map_err(|error| Failure::caused(Exit::Output, "the manual was not written", &error))?;
    write_out(&page)
}

fn write_out(bytes: &[u8]) -> Result<u8, Failure> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.map(|()| 0).map_err(|error| Failure::caused(Exit::Output, "the output was not written", &error))
}

/// What the library has to say goes to the stream of errors: warnings, and with `--verbose` the rest.
fn listen_to_the_log(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    // Err: a test in this process listens already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_ansi(false)
        .try_init();
}
