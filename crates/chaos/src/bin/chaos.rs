//! `chaos [--minutes M | --seconds S] [--seed N] [--without-fence] [--guard] [--only KIND,…] [--judge FILE]
//! [--out FOLDER]`: one run, its verdict, its
//! history and its timeline. Ends well only if the verdict is good.
//!
//! Started with orders in its environment it is one of its own clients.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it talks to whoever runs it")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use redlock_chaos::client;
use redlock_chaos::fault::Kind;
use redlock_chaos::run::{Options, run};
use redlock_chaos::timeline;
use redlock_chaos::verdict::Verdict;

const USAGE: &str = "\
usage: chaos [--minutes M | --seconds S] [--seed N] [--without-fence] [--guard] [--only KIND,KIND] [--judge FILE]
             [--out FOLDER]

  --minutes, --seconds   how long, faults and the calm after them together; two minutes unless said otherwise
  --seed N               decides which fault hits whom and when, and what clients are up to; 1 unless said otherwise
  --without-fence        the databases refuse nothing, as for programs that trust their lock: stale writes are applied
  --guard                the crash-recovery guard is on, so that nodes that forget excuse nothing; somebody looks after them
  --only KIND,KIND       these kinds of faults only, such as freeze_client,kill_client
  --judge FILE           runs nothing: judges and draws the history of an earlier run
  --out FOLDER           where to put history.json and timeline.html; target/chaos/seed-N unless said otherwise";

fn main() -> ExitCode {
    if let Ok(orders) = std::env::var(client::VARIABLE) {
        return ended(client::run(&orders).map(|()| true));
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| matches!(word.as_str(), "--help" | "-h")) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    ended(chaos(&words))
}

fn ended(result: Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn chaos(words: &[String]) -> Result<bool> {
    let mut options = Options {
        seed: 1,
        length: Duration::from_secs(120),
        fenced: true,
        guarded: false,
        kinds: Kind::ALL.to_vec(),
        program: std::env::current_exe()?,
    };
    let mut out = None;
    let mut judged = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value\n{USAGE}"));
        match word.as_str() {
            "--minutes" => options.length = Duration::from_secs(60 * value()?.parse::<u64>()?),
            "--seconds" => options.length = Duration::from_secs(value()?.parse()?),
            "--seed" => options.seed = value()?.parse()?,
            "--guard" => options.guarded = true,
            "--without-fence" => options.fenced = false,
            "--only" => {
                let kind =
                    |name: &str| serde_json::from_value(name.into()).with_context(|| format!("no kind {name:?}"));
                options.kinds = value()?.split(',').map(kind).collect::<Result<_>>()?;
            }
            "--judge" => judged = Some(PathBuf::from(value()?)),
            "--out" => out = Some(PathBuf::from(value()?)),
            _ => bail!("{word} is not known\n{USAGE}"),
        }
    }
    let out = out.unwrap_or_else(|| PathBuf::from(format!("target/chaos/seed-{}", options.seed)));
    std::fs::create_dir_all(&out)?;

    let history = match judged {
        Some(file) => serde_json::from_slice(&std::fs::read(file)?)?,
        None => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let history = runtime.block_on(run(&options, |line| println!("{line}")))?;
            std::fs::write(out.join("history.json"), serde_json::to_vec(&history)?)?;
            history
        }
    };
    let verdict = Verdict::of(&history);
    std::fs::write(out.join("timeline.html"), timeline::page(&history, &verdict))?;
    println!("{verdict}");
    println!("history and timeline: {}", out.display());
    Ok(verdict.is_good())
}
