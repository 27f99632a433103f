//! What nodes on SQL databases share: the limit of a call, numbers as SQL has them, and how keys are written.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use redlock_core::{Extension, Releasing};
use redlock_core::{Fingerprint, HeldBy, Holder, Inspection, NodeError, Ownership, Remaining, Resource};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest that a call may take: a free connection and a reconnect included, and the wait for the disk.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// Runs a statement within the limit; `classify` says what an error means.
pub(crate) async fn limited<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
    classify: impl FnOnce(sqlx::Error) -> NodeError,
) -> Result<T, NodeError> {
    match tokio::time::timeout(CALL_LIMIT, statement).await {
        Ok(answer) => answer.map_err(classify),
        Err(_) => Err(NodeError::Timeout { after: CALL_LIMIT }),
    }
}

/// A number as SQL takes it. One that does not fit is above all tokens, and the highest that fits is so, too.
pub(crate) fn signed(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

pub(crate) fn counter(number: i64) -> Result<u64, NodeError> {
    number.try_into().map_err(|_| NodeError::protocol("a counter is negative"))
}

pub(crate) fn held_by(resource: &Resource, owner: &str, millis: i64) -> HeldBy {
    let remaining = Remaining::For(Duration::from_millis(millis.try_into().unwrap_or(0)));
    HeldBy { resource: resource.clone(), holder: Holder::Owner(Fingerprint::of(owner)), remaining }
}

/// A resource as its row has it: the counter, the owner if there is one now, and for how many milliseconds.
pub(crate) fn inspection(
    resource: &Resource,
    seen: Option<(i64, Option<String>, i64)>,
) -> Result<Inspection, NodeError> {
    let (value, owner, millis) = seen.unwrap_or_default();
    Ok(Inspection {
        resource: resource.clone(),
        held: owner.map(|owner| held_by(resource, &owner, millis)),
        // A row without a grant has the counter zero, which is none.
        counter: (0 < value).then(|| counter(value)).transpose()?,
    })
}

/// How an owner stood: 1 it held all, 0 some were gone, otherwise some were another's.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn extension(standing: i64) -> Extension {
    match standing {
        1 => Extension::Extended,
        0 => Extension::Gone,
        _ => Extension::NotOwner,
    }
}

/// The same of a release.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn releasing(standing: i64) -> Releasing {
    match standing {
        1 => Releasing::Released,
        0 => Releasing::Gone,
        _ => Releasing::NotOwner,
    }
}

/// What a server said of itself when it was connected to.
pub(crate) struct Greeting {
    identity: Arc<str>,
    /// What its calendar showed, and when.
    shown: Duration,
    at: Instant,
}

impl Greeting {
    /// Heard just now.
    pub(crate) fn new(identity: String, shown: Duration) -> Self {
        Self { identity: identity.into(), shown, at: Instant::now() }
    }

    pub(crate) fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// What its calendar shows by now.
    pub(crate) fn unix_time(&self) -> Duration {
        self.shown.saturating_add(self.at.elapsed())
    }
}

/// The key of a resource in letters that no database understands in a way of its own, and so as distinct as the names are.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn hexadecimal(prefix: &redlock_core::KeyPrefix, resource: &Resource) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = prefix.as_str().bytes().chain(resource.name().bytes());
    bytes.flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// All keys of an ownership, in its order, as a JSON array: one parameter, however many there are.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn json_keys(ownership: &Ownership) -> String {
    let keys = ownership.resources().iter().map(|resource| hexadecimal(ownership.prefix(), resource));
    let quoted: Vec<String> = keys.map(|key| ["\"", &key, "\""].concat()).collect();
    ["[", &quoted.join(","), "]"].concat()
}

/// The resource that stands at a position, counted from 0.
pub(crate) fn resource_at(ownership: &Ownership, position: Option<usize>) -> Result<&Resource, NodeError> {
    let resource = position.and_then(|position| ownership.resources().iter().nth(position));
    resource.ok_or_else(|| NodeError::protocol("no such resource was asked for"))
}

#[cfg(all(test, any(feature = "mysql", feature = "sqlite")))]
mod tests {
    use super::*;
    use redlock_core::{KeyPrefix, Owner, Resources};

    #[test]
    fn keys_are_an_array_of_digits() {
        let resources = Resources::new(["a\"", "\u{1F512}"].map(|name| Resource::new(name).unwrap())).unwrap();
        let ownership = Ownership::new(KeyPrefix::new("l:").unwrap(), resources, Owner::assume("o"));
        assert_eq!(json_keys(&ownership), "[\"6c3a6122\",\"6c3af09f9492\"]");
    }
}
