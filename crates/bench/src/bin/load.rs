//! `cargo xtask bench` runs this: the load comparison on servers that it starts itself.
//!
//! The report goes to standard output and into files, progress to standard error. Missed goals are shown, and fail the
//! program only when it is told to (`--strict`): a figure depends on the machine, and finding it out is no failure.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to whoever runs it")]

use std::error::Error;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use redlock_bench::load::report::{BOOK, Report};
use redlock_bench::load::{self, LoadError, Places, Plan, Scenario};
use tokio::runtime::Runtime;

const USAGE: &str = "\
usage: load [--quick] [--only SCENARIO]… [--json] [--docs FOLDER] [--strict] [--threads N] [--out FOLDER]
       load --repeat CONTESTANT ROUNDS [--on URLS]

  --quick                      under two minutes instead of under ten
  --only SCENARIO              alone, network, throughput, resources, crowd, waiters, cost or fence; may be repeated
  --json                       the report as JSON on standard output
  --docs FOLDER                refreshes the measured page and the pictures of the book in this folder
  --strict                     fails if a goal is missed
  --threads N                  worker threads of the runtime; 0, the default, for everything on one thread
  --out FOLDER                 where the report goes: report.html, report.json, report.md
  --repeat CONTESTANT ROUNDS   one contestant alone, unmeasured, for a profiler to look at";

/// What the command line asks for.
struct Wish {
    plan: Plan,
    only: Vec<Scenario>,
    json: bool,
    docs: Option<PathBuf>,
    strict: bool,
    threads: usize,
    out: PathBuf,
    repeat: Option<(String, usize)>,
    on: Option<String>,
    /// Hidden: what a worker process of the comparison is.
    worker: Option<(String, String)>,
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
    let mut wish = Wish {
        plan: Plan::whole(),
        only: Vec::new(),
        json: false,
        docs: None,
        strict: false,
        threads: 0,
        out: target().join("bench"),
        repeat: None,
        on: None,
        worker: None,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => wish.plan = Plan::quick(),
            // Not for people: to see that everything works.
            "--tiny" => wish.plan = Plan::tiny(),
            "--only" => {
                let name = words.next()?;
                wish.only.push(Scenario::ALL.into_iter().find(|scenario| scenario.name() == name)?);
            }
            "--json" => wish.json = true,
            "--docs" => wish.docs = Some(words.next()?.into()),
            "--strict" => wish.strict = true,
            "--threads" => wish.threads = words.next()?.parse().ok()?,
            "--out" => wish.out = words.next()?.into(),
            "--repeat" => wish.repeat = Some((words.next()?.clone(), words.next()?.parse().ok()?)),
            "--on" => wish.on = Some(words.next()?.clone()),
            "--worker" => wish.worker = Some((words.next()?.clone(), words.next()?.clone())),
            _ => return None,
        }
    }
    if !wish.only.is_empty() {
        wish.plan.scenarios = std::mem::take(&mut wish.only);
    }
    Some(wish)
}

fn carry_out(wish: Wish, words: &[String]) -> Result<bool, Box<dyn Error>> {
    let runtime = runtime(wish.threads);
    if let Some((kind, urls)) = wish.worker {
        on_a_worker(&runtime, async move { load::work(&kind, &urls).await })?;
        return Ok(true);
    }
    if let Some((contestant, rounds)) = wish.repeat {
        let failed = on_a_worker(&runtime, async move { load::repeat(&contestant, rounds, wish.on.as_deref()).await })?;
        eprintln!("{failed} of {rounds} rounds failed");
        return Ok(failed == 0);
    }
    let command = command(words);
    let (plan, places) = (wish.plan, places()?);
    let meter = Meter::default();
    let report = on_a_worker(&runtime, async move {
        load::compare(&plan, &places, command, &|scenario, done, all| meter.show(scenario, done, all)).await
    })?;
    write_files(&report, &wish.out, wish.docs.as_deref())?;
    if wish.json {
        println!("{:#}", report.to_json());
    } else {
        println!("{}", report.to_terminal(std::io::stdout().is_terminal()));
    }
    eprintln!("the whole report: {}", wish.out.join("report.html").display());
    Ok(!wish.strict || report.score().missed == 0)
}

/// What one types to do the same again: the task knows by itself where the book is.
fn command(words: &[String]) -> String {
    let is_the_book = |place: usize| place.checked_sub(1).is_some_and(|before| words[before] == "--docs");
    let typed = words.iter().enumerate().filter(|(place, _)| !is_the_book(*place)).map(|(_, word)| word.as_str());
    std::iter::once("cargo xtask bench").chain(typed).collect::<Vec<_>>().join(" ")
}

fn write_files(report: &Report, out: &Path, docs: Option<&Path>) -> std::io::Result<()> {
    std::fs::create_dir_all(out)?;
    std::fs::write(out.join("report.html"), report.to_html())?;
    std::fs::write(out.join("report.json"), format!("{:#}\n", report.to_json()))?;
    std::fs::write(out.join("report.md"), report.to_markdown())?;
    if let Some(docs) = docs {
        let images = docs.join("images");
        std::fs::create_dir_all(&images)?;
        std::fs::write(docs.join("measured.md"), report.to_markdown())?;
        for (name, picture) in report.pictures() {
            if name.strip_suffix(".svg").is_some_and(|name| BOOK.contains(&name)) {
                std::fs::write(images.join(name), picture)?;
            }
        }
    }
    Ok(())
}

/// Where builds go, which is where reports and other libraries go as well.
fn target() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(own, PathBuf::from)
}

fn places() -> std::io::Result<Places> {
    let program = std::env::current_exe()?;
    Ok(Places {
        scripts: Path::new(env!("CARGO_MANIFEST_DIR")).join("peers"),
        libraries: target().join("bench/peers"),
        counter: program.with_file_name("counted"),
        program,
    })
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build().expect("the system gives a runtime its threads")
}

/// Runs a future where the tasks of a program run, and not on the thread that waits for them all.
fn on_a_worker<T: Send + 'static>(
    runtime: &Runtime,
    future: impl Future<Output = Result<T, LoadError>> + Send + 'static,
) -> Result<T, LoadError> {
    let task = runtime.spawn(future);
    runtime.block_on(task).expect("the comparison does not panic")
}

/// Shows how far it is: one line that is written over in a terminal, now and then a line elsewhere.
struct Meter {
    began: Instant,
    last: Mutex<(String, usize)>,
}

impl Default for Meter {
    #[expect(clippy::disallowed_methods, reason = "a meter for people; nothing is measured by it")]
    fn default() -> Self {
        Self { began: Instant::now(), last: Mutex::default() }
    }
}

impl Meter {
    const WIDTH: usize = 24;

    fn show(&self, scenario: &str, done: usize, all: usize) {
        let filled = (done * Self::WIDTH).checked_div(all).unwrap_or_default();
        let Ok(mut last) = self.last.lock() else { return };
        let is_new = *last != (scenario.to_owned(), filled);
        *last = (scenario.to_owned(), filled);
        let seconds = self.began.elapsed().as_secs();
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(Self::WIDTH - filled));
        let line = format!("{:>2}:{:02}  {scenario:<11} {bar}", seconds / 60, seconds % 60);
        if std::io::stderr().is_terminal() {
            eprint!("\r{line}{}", if done == all { "\n" } else { "" });
        } else if is_new && filled.is_multiple_of(6) {
            eprintln!("{line}");
        }
    }
}
