//! The scripts, and how they are sent. Their text, with the argument for each one's atomicity, is in `scripts/*.lua`.

use redis::Cmd;
use std::sync::LazyLock;

macro_rules! script {
    ($($part:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $part, ".lua"))),+)))
    };
}

static ACQUIRE: LazyLock<Script> = script!("unguarded", "record", "held", "acquire");
static ACQUIRE_GUARDED: LazyLock<Script> = script!("guarded", "record", "held", "acquire");
static ACQUIRE_IN_LINE: LazyLock<Script> = script!("unguarded", "record", "held", "line", "acquire_in_line", "acquire");
static ACQUIRE_IN_LINE_GUARDED: LazyLock<Script> =
    script!("guarded", "record", "held", "line", "acquire_in_line", "acquire");
static RAISE: LazyLock<Script> = script!("unguarded", "record", "raise");
static RAISE_GUARDED: LazyLock<Script> = script!("guarded", "record", "raise");
pub(super) static EXTEND: LazyLock<Script> = script!("extend");
pub(super) static RELEASE: LazyLock<Script> = script!("line", "release");
pub(super) static LEAVE_LINE: LazyLock<Script> = script!("line", "leave_line");
pub(super) static STANDING: LazyLock<Script> = script!("standing", "ask_standing");
pub(super) static ENROLL: LazyLock<Script> = script!("unguarded", "record", "standing", "enroll");

/// Those that every client needs, to be taught to a server on connecting. Others are taught with their first call.
pub(super) fn all() -> [&'static Script; 6] {
    [&ACQUIRE, &ACQUIRE_IN_LINE, &RAISE, &EXTEND, &RELEASE, &LEAVE_LINE]
}

/// The scripts that grant, with the crash-recovery guard or without.
#[derive(Clone, Copy)]
pub(super) struct Granting {
    pub(super) acquire: &'static LazyLock<Script>,
    pub(super) acquire_in_line: &'static LazyLock<Script>,
    pub(super) raise: &'static LazyLock<Script>,
}

impl Granting {
    pub(super) fn of(guarded: bool) -> Self {
        match guarded {
            false => Self { acquire: &ACQUIRE, acquire_in_line: &ACQUIRE_IN_LINE, raise: &RAISE },
            true => {
                Self { acquire: &ACQUIRE_GUARDED, acquire_in_line: &ACQUIRE_IN_LINE_GUARDED, raise: &RAISE_GUARDED }
            }
        }
    }
}

/// A text and the digest by which a server that has seen it knows it.
pub(super) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        #[cfg(redlock_mutants)]
        let text = crate::mutants::script(text);
        Self { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Runs the script on a server that knows it; costs no more than its digest.
    pub(super) fn by_digest(&self, keys: &[&[String]], arguments: &[Argument<'_>]) -> Cmd {
        command("EVALSHA", &self.digest, keys, arguments)
    }

    /// Runs the script on any server, which knows it from then on.
    pub(super) fn by_text(&self, keys: &[&[String]], arguments: &[Argument<'_>]) -> Cmd {
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

fn command(name: &str, script: &str, keys: &[&[String]], arguments: &[Argument<'_>]) -> Cmd {
    let keys = || keys.iter().copied().flatten();
    let count = keys().count();
    // Room for everything at once: numbers have 20 digits at most.
    let text = name.len() + script.len() + keys().map(String::len).sum::<usize>();
    let mut command = Cmd::with_capacity(3 + count + arguments.len(), text + 40 * (1 + arguments.len()));
    command.arg(name).arg(script).arg(count);
    for key in keys() {
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
