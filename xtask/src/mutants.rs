//! `cargo xtask mutants [WORD…]`: puts one deliberate bug after the other into the code, and demands that a test fails.
//!
//! The bugs stand in the libraries' sources, behind `mutant!`; see `mutants.rs` in each of them. They are built once, all
//! together, with a compiler wrapper that sets a flag for the packages of this workspace and leaves what they depend on as
//! it was built before. Then each is switched on alone, and the test named in [`MUTANTS`], the cheapest that catches it, has
//! to fail; without any of them all these tests have to pass.
//!
//! Which mutants there are is written down three times: in the sources, here, and for the reader in `docs/mutants.md`.
//! [`complaints`], for `cargo xtask tidy`, says where these disagree.

mod list;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

pub(crate) use self::list::complaints;
use self::list::{MUTANTS, Mutant, TestIn, page};
use crate::run::{cargo, output_with_errors_shown, target};

/// Tells this program that it has been called as a compiler, or rather in front of one.
const WRAPS: &str = "XTASK_WRAPS_RUSTC";

/// Which mutant is switched on.
const SWITCH: &str = "REDLOCK_MUTANT";

/// A test that takes longer is stopped: with a mutant in it, it waits for what does not come, which is a way to fail.
const LIMIT: Duration = Duration::from_secs(90);

/// Called in front of the compiler for a package of this workspace: sets the flag, and is the compiler. Otherwise `None`.
pub(crate) fn as_compiler() -> Option<ExitCode> {
    std::env::var_os(WRAPS)?;
    let mut words = std::env::args_os().skip(1);
    let compiler = words.next()?;
    let status = Command::new(compiler).args(words).args(["--cfg", "redlock_mutants"]).status();
    Some(if status.is_ok_and(|status| status.success()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(words: &[&str]) -> Result<()> {
    let hunted = hunted(words)?;
    ensure!(hunted.wrong.is_empty(), "not as it should be:\n  {}", hunted.wrong.join("\n  "));
    println!("{} mutants, all of them caught", hunted.caught);
    Ok(())
}

/// What came of a hunt.
#[derive(Debug)]
pub(crate) struct Hunted {
    /// Mutants that were caught.
    pub(crate) caught: u64,
    /// Mutants that were not, and tests that failed without any.
    pub(crate) wrong: Vec<String>,
}

/// Hunts the mutants whose names have all of these words.
pub(crate) fn hunted(words: &[&str]) -> Result<Hunted> {
    let wanted = MUTANTS.iter().filter(|mutant| words.iter().all(|word| mutant.name.contains(word)));
    let wanted: Vec<&Mutant> = wanted.collect();
    ensure!(!wanted.is_empty(), "no mutant has {} in its name", words.join(" and "));
    Ok(hunt(&wanted, &build(&wanted)?))
}

/// The page of the book that lists them, to be written by `cargo xtask mutants --write`.
fn write() -> Result<()> {
    let path = crate::run::root().join(list::PAGE);
    std::fs::write(&path, page()).with_context(|| format!("{} cannot be written", path.display()))
}

/// This program under a name that nobody builds anew: in `target/debug` there may be another one by now, or none.
fn own_copy() -> Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    let own = match running.exists() {
        true => std::fs::read(running),
        false => std::env::current_exe().and_then(std::fs::read),
    };
    let own = own.context("this program cannot read itself")?;
    let folder = target().join("mutants");
    std::fs::create_dir_all(&folder)?;
    let copy = folder.join("compiler");
    // Left alone if it is the same, so that what was compiled with it counts as new still.
    if std::fs::read(&copy).ok().as_ref() != Some(&own) {
        std::fs::write(&copy, own)?;
        #[cfg(unix)]
        std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    Ok(copy)
}

/// Builds the test programs with all mutants in them; gives where they are. In one go and with the features of the whole
/// workspace, so that what the packages depend on is what the tests have had built.
fn build(wanted: &[&Mutant]) -> Result<BTreeMap<TestIn, PathBuf>> {
    let tests: BTreeSet<TestIn> = wanted.iter().map(|mutant| mutant.test).collect();
    let targets: BTreeSet<&str> = tests.iter().map(|test| test.target).collect();
    let mut command = "test --no-run --message-format json-render-diagnostics --workspace --all-features".to_owned();
    for target in targets {
        command += &if target == LIB { " --lib".to_owned() } else { format!(" --test {target}") };
    }
    let wrapper = own_copy()?;
    let messages = output_with_errors_shown(cargo(&command).env("RUSTC_WORKSPACE_WRAPPER", wrapper).env(WRAPS, "1"))?;
    let messages = messages.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    let programs: Vec<_> = messages.iter().filter(|message| message["executable"].is_string()).collect();
    let program = |test: &TestIn| {
        let program = programs.iter().find(|message| {
            // `…/fence-store#0.1.0`, or `…/backends#redlock-backends@0.1.0` in a folder of another name.
            let package = message["package_id"].as_str().unwrap_or_default();
            let is_its =
                package.contains(&format!("/{}#", test.package)) || package.contains(&format!("#{}@", test.package));
            let (name, kind) = (&message["target"]["name"], &message["target"]["kind"][0]);
            is_its && if test.target == LIB { kind == "lib" } else { kind == "test" && name == test.target }
        });
        program
            .and_then(|program| program["executable"].as_str())
            .with_context(|| format!("there is no program of {test}"))
    };
    tests.iter().map(|test| Ok((*test, program(test)?.into()))).collect()
}

/// The unit tests of a package, as a target.
const LIB: &str = "lib";

/// How a test ended.
#[derive(Debug, PartialEq)]
enum End {
    Passed,
    Failed,
    Hung,
    /// It did not even run, and why.
    Unclear(String),
}

/// Runs every test without and then with its mutants, as many at once as there are processors.
fn hunt(wanted: &[&Mutant], programs: &BTreeMap<TestIn, PathBuf>) -> Hunted {
    let alone = programs.keys().map(|test| (None, *test));
    let runs: Vec<(Option<&str>, TestIn)> =
        alone.chain(wanted.iter().map(|mutant| (Some(mutant.name), mutant.test))).collect();

    let (next, caught, wrong) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(Vec::new()));
    let hunters = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..hunters {
            scope.spawn(|| {
                while let Some((mutant, test)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let end = ended(&programs[test], test.name, *mutant);
                    let told = match (mutant, &end) {
                        (None, End::Passed) => continue,
                        (None, end) => format!("{test} does not pass without any mutant: {end:?}"),
                        (Some(mutant), End::Failed | End::Hung) => {
                            println!("{mutant}: caught by {}", test.name);
                            caught.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        (Some(mutant), end) => format!("{mutant}: {end:?}: {test}"),
                    };
                    wrong.lock().expect("nobody panics with this lock held").push(told);
                }
            });
        }
    });
    Hunted { caught: caught.into_inner(), wrong: wrong.into_inner().expect("nobody panicked") }
}

/// Runs one test in a process of its own.
fn ended(program: &PathBuf, test: &str, mutant: Option<&str>) -> End {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--test-threads", "1"]).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::null()).env_remove(SWITCH).env("RUST_BACKTRACE", "0");
    if let Some(mutant) = mutant {
        command.env(SWITCH, mutant);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return End::Unclear(error.to_string()),
    };
    let Some(mut stdout) = child.stdout.take() else { return End::Unclear("no output".to_owned()) };
    let reader = std::thread::spawn(move || {
        let mut heard = String::new();
        // What is not text ends it; the exit code is what counts, the text says that a test has run.
        let _ = stdout.read_to_string(&mut heard);
        heard
    });
    let status = match wait(&mut child) {
        Ok(Some(status)) => status,
        Ok(None) => return End::Hung,
        Err(error) => return End::Unclear(error.to_string()),
    };
    let heard = reader.join().unwrap_or_default();
    if !heard.contains("running 1 test\n") {
        return End::Unclear(format!("there is no such test, {status}"));
    }
    match status.success() {
        true => End::Passed,
        false => End::Failed,
    }
}

/// Waits for a test's end; `None` if it had to be stopped.
fn wait(child: &mut std::process::Child) -> std::io::Result<Option<std::process::ExitStatus>> {
    #[expect(clippy::disallowed_methods, reason = "a task of the project's own waits for a real process")]
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if LIMIT < began.elapsed() {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a process cannot be awaited with a limit by the standard library"
        )]
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn choose(words: &[&str]) -> Result<()> {
    match words {
        ["--write"] => write(),
        [flag, ..] if flag.starts_with('-') => bail!("mutants knows only --write, not {flag}"),
        words => run(words),
    }
}
