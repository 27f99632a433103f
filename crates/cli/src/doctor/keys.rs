//! What lies under the prefix: a bounded sample of it.

use super::finding::{Finding, Severity};
use crate::remote::{Remote, Unanswered, command};
use redlock_core::{FencingToken, KeyPrefix, RESERVED_FIRST_CHARACTER};

/// How many steps of a scan, and how many keys of each kind, are looked at.
const STEPS_MAX: usize = 20;
const KEYS_MAX: usize = 200;

/// How many names a finding shows.
const NAMES_SHOWN: usize = 3;

/// What was found among the keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Locks that no time ends.
    pub(super) without_expiry: Vec<String>,
    /// Names of locks under which data of another kind lies.
    pub(super) no_locks: Vec<String>,
    /// Counters that no token can be minted from.
    pub(super) beyond_tokens: Vec<String>,
}

impl Sample {
    pub(super) async fn take(remote: &Remote, prefix: &KeyPrefix) -> Result<Self, Unanswered> {
        let (mut locks, mut counters) = (Vec::new(), Vec::new());
        let mut cursor = 0_u64;
        for _ in 0..STEPS_MAX {
            let mut step = command(&["SCAN"]);
            step.arg(cursor)
                .arg("MATCH")
                .arg(format!("{}*", crate::survey::glob_of(prefix.as_str())))
                .arg("COUNT")
                .arg(500);
            let (next, keys): (u64, Vec<Vec<u8>>) = remote.ask(&step).await?;
            for key in keys.iter().filter_map(|key| std::str::from_utf8(key).ok()) {
                let Some(name) = key.strip_prefix(prefix.as_str()) else { continue };
                match name.strip_prefix(RESERVED_FIRST_CHARACTER) {
                    None if locks.len() < KEYS_MAX => locks.push(key.to_owned()),
                    Some(own) if own.starts_with("fence:") && counters.len() < KEYS_MAX => {
                        counters.push(key.to_owned())
                    }
                    _ => {}
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let mut sample = Self::default();
        for key in locks {
            let kind = remote.ask::<String>(&command(&["TYPE", &key])).await?;
            let remaining = remote.ask::<i64>(&command(&["PTTL", &key])).await?;
            match kind.as_str() {
                "none" => {}
                "string" if remaining == -1 => sample.without_expiry.push(key),
                "string" => {}
                _ => sample.no_locks.push(key),
            }
        }
        for key in counters {
            let value = remote.ask::<Option<String>>(&command(&["GET", &key])).await?;
            let fits = |text: String| text.parse::<i64>().is_ok_and(|value| value < FencingToken::MAX.get());
            if value.is_some_and(|text| !fits(text)) {
                sample.beyond_tokens.push(key);
            }
        }
        Ok(sample)
    }
}

/// What the keys of one server mean.
pub(super) fn judge(name: &str, sample: &Sample) -> Vec<Finding> {
    let found = |severity, finding, keys: &[String], what: &str| {
        let shown = keys.iter().take(NAMES_SHOWN).map(|key| format!("{key:?}")).collect::<Vec<_>>().join(", ");
        let more =
            if NAMES_SHOWN < keys.len() { format!(" and {} more", keys.len() - NAMES_SHOWN) } else { String::new() };
        (!keys.is_empty()).then(|| Finding::new(severity, name, finding, format!("{what}: {shown}{more}")))
    };
    let without_expiry =
        found(Severity::Warning, "no-expiry", &sample.without_expiry, "locks without expiry").map(|finding| {
            finding
                .harm("nobody ever gets what they lock; another program wrote them, or data lies under the prefix")
                .mend("find who wrote them; `redlock force-release` removes one")
        });
    let no_locks = found(Severity::Warning, "no-lock", &sample.no_locks, "data of another kind under names of locks")
        .map(|finding| {
            finding
                .harm("a resource of such a name can never be locked on this node")
                .mend("give locks a prefix of their own (--prefix), or move the data")
        });
    let beyond =
        found(Severity::Error, "counter-beyond-tokens", &sample.beyond_tokens, "fence counters beyond all tokens").map(
            |finding| {
                finding
                    .harm("the node cannot vote for these resources")
                    .mend("somebody has written them: delete these keys while nobody locks")
            },
        );
    [beyond, without_expiry, no_locks].into_iter().flatten().collect()
}
