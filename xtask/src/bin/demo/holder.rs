//! A's process, as seen from outside: started, listened to, frozen, thawed. Killed when dropped, frozen or not.

use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use redlock_bench::Process;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::database::Place;
use crate::facts::GrantFacts;
use crate::nodes::Way;
use crate::options::WORK;

/// The longest that A may stay silent while it runs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What A is told, first of all.
#[derive(Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) way: Way,
    pub(crate) resource: String,
    pub(crate) place: Place,
}

/// What A is told later, and may act on only after it has been frozen in between.
pub(crate) const GO_ON: &str = "go on";

/// What A says, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It was granted the lock.
    Granted(GrantFacts),
    /// It claimed the account and read its balance.
    Claimed { balance: i64 },
    /// It made sure that the lock is its own, and is about to write. It does nothing more until it is told to go on.
    Checked { remaining_ms: u64 },
    /// Its write took effect.
    Applied,
    /// Its write was refused as stale. Then it looked at its clock again.
    Refused { presented: i64, highest: i64, said: String, remaining_ms: u64 },
    /// Something else went wrong.
    Failed { why: String },
}

/// A's process.
pub(crate) struct Holder {
    process: Process,
    orders: PipeWriter,
    words: mpsc::UnboundedReceiver<Word>,
}

impl Holder {
    pub(crate) fn start(orders: &Orders) -> Result<Self> {
        let (its_input, to_it) = io::pipe()?;
        let (from_it, its_output) = io::pipe()?;
        let program = std::env::current_exe().context("the demo does not find itself")?;
        let process = Process::spawn(program, |command| {
            command.arg(WORK).stdin(its_input).stdout(its_output);
        })?;

        // Ends with A, whose end closes the pipe.
        let (say, words) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(from_it).lines().map_while(Result::ok) {
                let word = serde_json::from_str(&line).unwrap_or(Word::Failed { why: line });
                let _ = say.send(word);
            }
        });
        let mut holder = Self { process, orders: to_it, words };
        holder.tell(&serde_json::to_string(orders)?)?;
        Ok(holder)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The next thing that A says. A failure of A's is one of ours.
    pub(crate) async fn word(&mut self) -> Result<Word> {
        match tokio::time::timeout(PATIENCE, self.words.recv()).await {
            Ok(Some(Word::Failed { why })) => bail!("A failed: {why}"),
            Ok(Some(word)) => Ok(word),
            Ok(None) => bail!("A's process has ended"),
            Err(_) => bail!("A said nothing for {PATIENCE:?}"),
        }
    }

    /// Stops the process where it stands. When this returns, it runs no more.
    pub(crate) fn freeze(&self) -> Result<()> {
        Ok(self.process.freeze()?)
    }

    /// Lets A go on, from where it stands.
    pub(crate) fn thaw(&mut self) -> Result<()> {
        self.tell(GO_ON)?;
        Ok(self.process.thaw()?)
    }

    /// Waits for A to come to its end.
    pub(crate) async fn end(mut self) -> Result<()> {
        match tokio::time::timeout(PATIENCE, self.words.recv()).await {
            Ok(None) => Ok(()),
            Ok(Some(word)) => bail!("A said {word:?} in place of ending"),
            Err(_) => bail!("A did not end within {PATIENCE:?}"),
        }
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        self.orders.write_all(line.as_bytes()).and_then(|()| self.orders.write_all(b"\n")).context("A does not listen")
    }
}
