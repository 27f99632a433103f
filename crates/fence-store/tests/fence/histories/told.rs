//! What the holders were told, and between which moments.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use fence_store::FenceError;

/// An order of all moments at which holders began something or were told something.
static MOMENTS: AtomicU64 = AtomicU64::new(1);

/// One write of one holder: what it does if it is applied, and what its holder was told.
#[derive(Clone, Debug)]
pub(super) struct Deed {
    pub(super) token: i64,
    /// All of this, or nothing.
    pub(super) effects: Vec<(Effect, i64)>,
    pub(super) told: Told,
    pub(super) since: u64,
    /// After this moment it takes effect no more. As late as can be if the answer was lost.
    pub(super) until: u64,
}

/// What a write does to a key, as the journal shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    /// Inserts the row, or writes it and counts up.
    Put,
    Claim,
    /// Condemns the row and deletes it.
    Delete,
    /// Raises the resource's row in the ledger.
    Raise,
    /// The same, but only if the row is not there.
    MayRaise,
    /// Counts up what the ledger protects.
    Vault,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Applied,
    /// Claimed, and this is the counter that was read.
    Read(i64),
    Stale(i64),
    AlreadyWritten,
    NoSuchRow,
    /// Nothing was written: conflict, rolled back, an error of the database.
    Nothing,
    /// The answer was lost, or the future dropped.
    Unknown,
    /// What no holder of a history should be told.
    Unexpected(String),
}

impl Told {
    pub(super) fn by<T>(result: &Result<T, FenceError>) -> Self {
        match result {
            Ok(_) => Self::Applied,
            Err(FenceError::Stale { highest, .. }) => Self::Stale(*highest),
            Err(FenceError::AlreadyWritten { .. }) => Self::AlreadyWritten,
            Err(FenceError::NoSuchRow { .. }) => Self::NoSuchRow,
            Err(FenceError::Unknown { .. }) => Self::Unknown,
            Err(FenceError::Conflict { .. }) => Self::Nothing,
            // A connection that was killed, or an insertion of what is there already.
            Err(FenceError::Database { source }) if is_planned(source) => Self::Nothing,
            Err(other) => Self::Unexpected(format!("{other:?}").replace('\n', " ")),
        }
    }
}

fn is_planned(error: &sqlx::Error) -> bool {
    error.as_database_error().is_none_or(|reported| {
        let killed = ["57P01", "70100", "08S01"];
        reported.is_unique_violation()
            || reported.code().is_some_and(|code| killed.contains(&code.as_ref()))
            // MariaDB, where it is killed while it reads a trigger: "Unknown trigger has an error in its body".
            || reported.message().contains("Query execution was interrupted")
    })
}

/// What one holder was told so far. Kept outside of its future, which may be dropped.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Vec<Deed>>);

impl Log {
    /// Notes that a write begins. What becomes of it is unknown until it is told.
    pub(super) fn begin(&self, token: i64, effects: impl IntoIterator<Item = (Effect, i64)>) -> usize {
        let effects = effects.into_iter().collect();
        let deed = Deed { token, effects, told: Told::Unknown, since: now(), until: u64::MAX };
        self.with(|deeds| {
            deeds.push(deed);
            deeds.len() - 1
        })
    }

    pub(super) fn tell(&self, place: usize, told: Told) {
        let until = if told == Told::Unknown { u64::MAX } else { now() };
        self.with(|deeds| {
            deeds[place].told = told;
            deeds[place].until = until;
        });
    }

    pub(super) fn is_unknown(&self, place: usize) -> bool {
        self.with(|deeds| deeds[place].told == Told::Unknown)
    }

    pub(super) fn deeds(&self) -> Vec<Deed> {
        self.with(|deeds| deeds.clone())
    }

    fn with<T>(&self, look: impl FnOnce(&mut Vec<Deed>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn now() -> u64 {
    MOMENTS.fetch_add(1, Ordering::SeqCst)
}

/// As a line, for a holder in another process. Moments of two processes cannot be compared, so they are not in it.
impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = match &self.told {
            Told::Applied => "applied 0".to_owned(),
            Told::Read(n) => format!("read {n}"),
            Told::Stale(highest) => format!("stale {highest}"),
            Told::AlreadyWritten => "already 0".to_owned(),
            Told::NoSuchRow => "absent 0".to_owned(),
            Told::Nothing => "nothing 0".to_owned(),
            Told::Unknown => "unknown 0".to_owned(),
            Told::Unexpected(what) => format!("unexpected {what}"),
        };
        write!(f, "{}|", self.token)?;
        for (effect, key) in &self.effects {
            write!(f, "{effect:?} {key},")?;
        }
        write!(f, "|{told}")
    }
}

impl FromStr for Deed {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let broken = || format!("not a deed: {line:?}");
        let number = |text: &str| text.parse::<i64>().map_err(|_| broken());
        let mut parts = line.splitn(3, '|');
        let mut part = || parts.next().ok_or_else(broken);
        let token = number(part()?)?;
        let mut effects = Vec::new();
        for effect in part()?.split_terminator(',') {
            let (name, key) = effect.split_once(' ').ok_or_else(broken)?;
            let all = [Effect::Put, Effect::Claim, Effect::Delete, Effect::Raise, Effect::MayRaise, Effect::Vault];
            let known = all.into_iter().find(|effect| format!("{effect:?}") == name);
            effects.push((known.ok_or_else(broken)?, number(key)?));
        }
        let (word, rest) = part()?.split_once(' ').ok_or_else(broken)?;
        let told = match word {
            "applied" => Told::Applied,
            "read" => Told::Read(number(rest)?),
            "stale" => Told::Stale(number(rest)?),
            "already" => Told::AlreadyWritten,
            "absent" => Told::NoSuchRow,
            "nothing" => Told::Nothing,
            "unknown" => Told::Unknown,
            _ => Told::Unexpected(rest.to_owned()),
        };
        Ok(Self { token, effects, told, since: 0, until: u64::MAX })
    }
}
