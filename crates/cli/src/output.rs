//! What the command says: lines for people or JSON for programs, results on one stream and failures on the other.
//!
//! With `--json` every result is one JSON value on a line of its own on stdout, and a failure is one on stderr, so that a
//! program never has to take words apart. A reader that has gone away (`redlock list | head -1`) is no failure of ours to
//! talk about; the number says that not everything was read.

use crate::exit::{Exit, Failure, with_causes};
use crate::table::clean;
use serde::Serialize;
use std::io::{self, Write};

/// Where and in which form to say things.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
}

#[derive(Serialize)]
struct SaidFailure<'a> {
    error: &'static str,
    code: u8,
    message: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    nodes: &'a [crate::exit::NodeSaid],
}

impl Output {
    /// In JSON, or for people.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether programs read it.
    #[must_use]
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Says a result: `value` to programs, `text` to people.
    ///
    /// # Errors
    /// A [`Failure`] if nobody can read it.
    pub fn result(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        let said = if self.json { json(value)? } else { text() };
        print(&mut io::stdout().lock(), &said)
            .map_err(|error| Failure::caused(Exit::Output, "the result could not be written", &error))
    }

    /// Says why the command failed.
    pub fn failure(self, failure: &Failure) {
        let Failure { exit, message, nodes } = failure;
        let said = if self.json {
            json(&SaidFailure { error: exit.word(), code: exit.code(), message, nodes }).unwrap_or_default()
        } else {
            let width = nodes.iter().map(|node| node.node.chars().count()).max().unwrap_or_default();
            // What servers say, and names and values that lie there, are anybody's.
            let lines = nodes.iter().map(|node| format!("\n  {:width$}  {}", node.node, clean(&node.said)));
            let message: Vec<String> = message.lines().map(clean).collect();
            format!("redlock: {}{}", message.join("\n"), lines.collect::<String>())
        };
        // The number says it too, should the stream of errors be closed.
        let _ = print(&mut io::stderr().lock(), &said);
    }

    /// Says something that people should know while the command goes on.
    pub fn notice(self, word: &str, text: &str) {
        #[derive(Serialize)]
        struct Notice<'a> {
            notice: &'a str,
            message: &'a str,
        }
        let said = match self.json {
            true => json(&Notice { notice: word, message: text }).unwrap_or_default(),
            false => format!("redlock: {}", clean(text)),
        };
        let _ = print(&mut io::stderr().lock(), &said);
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::new(Exit::Output, with_causes(&error)))
}

fn print(stream: &mut impl Write, said: &str) -> io::Result<()> {
    stream.write_all(said.as_bytes())?;
    if !said.ends_with('\n') {
        stream.write_all(b"\n")?;
    }
    stream.flush()
}
