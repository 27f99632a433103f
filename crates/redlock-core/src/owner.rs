//! Who holds a lock: random, new for every attempt, and a secret as good as the lock itself.
//!
//! Whoever knows the owner of a grant can release it, so neither `Debug` nor an error ever shows more than a
//! [fingerprint](Owner::fingerprint).

use crate::resource::{KeyPrefix, Resources};
use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The value stored under a lock key: 122 random bits (a version 4 UUID, RFC 9562), new for every attempt.
///
/// Ownership is per attempt, not per process or client: a release that arrives late can hurt nobody, and the same
/// process asking twice excludes itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Makes an owner of 16 random bytes.
    #[must_use]
    pub fn from_random_bytes(bytes: [u8; 16]) -> Self {
        let mut text = [0; uuid::fmt::Simple::LENGTH];
        let text: &str = uuid::Builder::from_random_bytes(bytes).into_uuid().as_simple().encode_lower(&mut text);
        Self(text.into())
    }

    /// Trusts that `text` is the owner of a grant, for one that was handed over by another program.
    #[must_use]
    pub fn assume(text: &str) -> Self {
        Self(text.into())
    }

    /// The whole value, for a node to store and compare. A secret: keep it out of logs and errors.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Enough of the value to recognise it in a log, too little to release with.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.fingerprint())
    }
}

/// The beginning of an owner's value, for people.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint(Box<str>);

impl Fingerprint {
    /// At most the first eight characters, and never more than half of the value.
    #[must_use]
    pub fn of(value: &str) -> Self {
        let shown = 8.min(value.chars().count() / 2);
        Self(value.chars().take(shown).chain(['…']).collect::<String>().into())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which resources, under which prefix, for which owner: what every call of one attempt has in common.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ownership {
    prefix: KeyPrefix,
    resources: Resources,
    owner: Owner,
    quarantine: Option<Duration>,
    derived: Derived,
}

impl Ownership {
    /// Puts the three together.
    #[must_use]
    pub fn new(prefix: KeyPrefix, resources: Resources, owner: Owner) -> Self {
        Self { prefix, resources, owner, quarantine: None, derived: Derived::default() }
    }

    /// With the crash-recovery guard on: only nodes that are enrolled serve it, and others are in quarantine for so long.
    #[must_use]
    pub fn guarded(self, quarantine: Duration) -> Self {
        Self { quarantine: Some(quarantine), ..self }
    }

    /// How long a node that has lost its memory is in quarantine; `None` if the crash-recovery guard is off.
    #[must_use]
    pub fn quarantine(&self) -> Option<Duration> {
        self.quarantine
    }

    /// Something that a kind of node derives from the three, such as its keys: made once for all nodes of the kind that are
    /// asked for the same ownership. Where kinds are mixed, the first one's is kept, and the others' made each time.
    pub fn derived<T: Send + Sync + 'static>(&self, derive: impl Fn() -> T) -> Arc<T> {
        let kept = Arc::clone(self.derived.0.get_or_init(|| Arc::new(derive())));
        kept.downcast().unwrap_or_else(|_| Arc::new(derive()))
    }

    /// What stands before every key.
    #[must_use]
    pub fn prefix(&self) -> &KeyPrefix {
        &self.prefix
    }

    /// What is to be held, all of it or none.
    #[must_use]
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Who is to hold it.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }
}

/// What was derived from an ownership; no part of what it is.
#[derive(Clone, Default)]
struct Derived(OnceLock<Arc<dyn Any + Send + Sync>>);

impl PartialEq for Derived {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Derived {}

impl Hash for Derived {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "kept" } else { "nothing" })
    }
}

/// Where the randomness of owners and of waiting times comes from; a test or a simulation puts its seed in here.
pub trait Randomness: Send + Sync + fmt::Debug {
    /// Fills `bytes` with random bits that nobody can guess.
    fn fill(&self, bytes: &mut [u8]);
}

/// The operating system's random bits.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRandomness;

impl Randomness for OsRandomness {
    /// # Panics
    /// If the operating system has no randomness to give, which on the supported ones means that it is broken.
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the operating system gives random bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_a_random_uuid_and_debug_hides_it() {
        let owner = Owner::from_random_bytes([7; 16]);
        assert_eq!(owner.expose(), "07070707070747078707070707070707");
        assert_eq!(format!("{owner:?}"), "Owner(07070707…)");
    }

    #[test]
    fn what_is_derived_is_derived_once_for_a_kind() {
        let resources = crate::resource::Resource::new("r").unwrap().into();
        let ownership = Ownership::new(KeyPrefix::default(), resources, Owner::from_random_bytes([7; 16]));
        let first = ownership.derived(|| String::from("keys"));
        assert!(Arc::ptr_eq(&first, &ownership.derived(|| unreachable!("it is kept"))));
        assert_eq!(*ownership.derived(|| 7_u8), 7, "another kind makes its own");
        assert_eq!(
            ownership,
            Ownership::new(KeyPrefix::default(), ownership.resources().clone(), ownership.owner().clone())
        );
    }

    #[test]
    fn a_fingerprint_never_shows_more_than_half() {
        assert_eq!(Fingerprint::of("").to_string(), "…");
        assert_eq!(Fingerprint::of("ab").to_string(), "a…");
        assert_eq!(Fingerprint::of("é".repeat(40).as_str()).to_string(), format!("{}…", "é".repeat(8)));
    }
}
