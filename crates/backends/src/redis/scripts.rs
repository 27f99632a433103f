//! The scripts, and how they are sent. Their text, with the argument for each one's atomicity, is in `scripts/*.lua`.

use redis::Cmd;
use std::sync::LazyLock;

pub(super) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("scripts/record.lua"), include_str!("scripts/acquire.lua"))));
pub(super) static RAISE: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("scripts/record.lua"), include_str!("scripts/raise.lua"))));
pub(super) static EXTEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/extend.lua")));
pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));

/// All of them, to be taught to a server on connecting.
pub(super) fn all() -> [&'static Script; 4] {
    [&ACQUIRE, &RAISE, &EXTEND, &RELEASE]
}

/// A text and the digest by which a server that has seen it knows it.
pub(super) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Runs the script on a server that knows it; costs no more than its digest.
    pub(super) fn by_digest(&self, keys: &[String], arguments: &[Argument<'_>]) -> Cmd {
        command("EVALSHA", &self.digest, keys, arguments)
    }

    /// Runs the script on any server, which knows it from then on.
    pub(super) fn by_text(&self, keys: &[String], arguments: &[Argument<'_>]) -> Cmd {
        command("EVAL", self.text, keys, arguments)
    }

    /// Teaches the script to a server without running it.
    pub(super) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.text);
        command
    }
}

/// One argument of a script.
#[derive(Clone, Copy)]
pub(super) enum Argument<'a> {
    Text(&'a str),
    Number(u64),
}

fn command(name: &str, script: &str, keys: &[String], arguments: &[Argument<'_>]) -> Cmd {
    // Room for everything at once: numbers have 20 digits at most.
    let text = name.len() + script.len() + keys.iter().map(String::len).sum::<usize>();
    let mut command = Cmd::with_capacity(3 + keys.len() + arguments.len(), text + 40 * (1 + arguments.len()));
    command.arg(name).arg(script).arg(keys.len());
    for key in keys {
        command.arg(key.as_str());
    }
    for argument in arguments {
        match argument {
            Argument::Text(text) => command.arg(*text),
            Argument::Number(number) => command.arg(*number),
        };
    }
    command
}
