//! What is locked, by whom, and for how long: checked once at the door, types from there on.
//!
//! First stop in the life of a lock. Promises that whoever holds a [`Resource`], a [`Resources`], a [`KeyPrefix`] or a
//! [`Ttl`] need not check it again. Knows nothing of nodes or votes; the next stop is [`crate::node`].

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest resource name, in bytes.
///
/// Redis itself would take 512 MiB; a name is sent to every node with every call, so it is kept short.
pub const RESOURCE_NAME_LEN_MAX: usize = 1024;

/// The most resources that one lock may cover.
pub const RESOURCES_MAX: usize = 64;

/// The first character of names that the library keeps for its own keys (counters, records).
pub const RESERVED_FIRST_CHARACTER: char = '~';

/// The name of a thing that two workers must not handle at once: an order, a file, a job.
///
/// Any UTF-8 text of 1 to [`RESOURCE_NAME_LEN_MAX`] bytes that does not begin with `~`. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(Arc<str>);

impl Resource {
    /// Checks a name.
    ///
    /// # Errors
    /// [`ResourceError`] if the name is empty, too long, or begins with the reserved character.
    pub fn new(name: impl AsRef<str>) -> Result<Self, ResourceError> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(ResourceError::Empty);
        }
        if RESOURCE_NAME_LEN_MAX < name.len() {
            return Err(ResourceError::TooLong { len: name.len() });
        }
        if name.starts_with(RESERVED_FIRST_CHARACTER) {
            return Err(ResourceError::Reserved);
        }
        Ok(Self(name.into()))
    }

    /// The name as it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resource({:?})", self.name())
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl AsRef<str> for Resource {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

impl Borrow<str> for Resource {
    fn borrow(&self) -> &str {
        self.name()
    }
}

/// One or several resources that are locked together: all or none, under one token.
///
/// Sorted and without duplicates, so that the order in which names are given cannot make two clients wait for each
/// other, and a name given twice cannot make a client wait for itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Resources(Arc<[Resource]>);

impl Resources {
    /// Sorts and checks a list of resources.
    ///
    /// # Errors
    /// [`ResourceError::None`] for an empty list, [`ResourceError::TooMany`] for more than [`RESOURCES_MAX`] of them.
    pub fn new(resources: impl IntoIterator<Item = Resource>) -> Result<Self, ResourceError> {
        let mut resources: Vec<Resource> = resources.into_iter().collect();
        resources.sort_unstable();
        resources.dedup();
        if resources.is_empty() {
            return Err(ResourceError::None);
        }
        if RESOURCES_MAX < resources.len() {
            return Err(ResourceError::TooMany { count: resources.len() });
        }
        Ok(Self(resources.into()))
    }

    /// The resources in their sorted order; never empty.
    pub fn iter(&self) -> std::slice::Iter<'_, Resource> {
        self.0.iter()
    }

    /// How many there are; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a set of resources is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether `name` is one of them.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.0.binary_search_by(|resource| resource.name().cmp(name)).is_ok()
    }
}

impl From<Resource> for Resources {
    fn from(resource: Resource) -> Self {
        Self(Arc::from([resource]))
    }
}

impl From<&Resource> for Resources {
    fn from(resource: &Resource) -> Self {
        resource.clone().into()
    }
}

impl From<&Resources> for Resources {
    fn from(resources: &Resources) -> Self {
        resources.clone()
    }
}

impl<'a> IntoIterator for &'a Resources {
    type Item = &'a Resource;
    type IntoIter = std::slice::Iter<'a, Resource>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Resource::name)).finish()
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, resource) in self.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{resource}")?;
        }
        Ok(())
    }
}

/// What callers may pass where resources are asked for: one name, a list of names, or values checked before.
pub trait IntoResources {
    /// Checks the names and puts them in order.
    ///
    /// # Errors
    /// [`ResourceError`] for the first name that is not one, or for none or too many of them.
    fn into_resources(self) -> Result<Resources, ResourceError>;
}

impl IntoResources for &str {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        Resource::new(self).map(Resources::from)
    }
}

impl IntoResources for String {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        self.as_str().into_resources()
    }
}

impl IntoResources for &String {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        self.as_str().into_resources()
    }
}

impl IntoResources for Resource {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        Ok(self.into())
    }
}

impl IntoResources for &Resource {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        Ok(self.clone().into())
    }
}

impl IntoResources for Resources {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        Ok(self)
    }
}

impl IntoResources for &Resources {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        Ok(self.clone())
    }
}

impl<T: AsRef<str>, const N: usize> IntoResources for [T; N] {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        self.as_slice().into_resources()
    }
}

impl<T: AsRef<str>> IntoResources for Vec<T> {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        self.as_slice().into_resources()
    }
}

impl<T: AsRef<str>> IntoResources for &[T] {
    fn into_resources(self) -> Result<Resources, ResourceError> {
        let resources: Result<Vec<_>, _> = self.iter().map(Resource::new).collect();
        Resources::new(resources?)
    }
}

/// What stands before every key that this library writes on a node, `lock:` by default.
///
/// The lock key of a resource is the prefix followed by the name, which is what other Redlock clients write, so a
/// program in another language that uses the same key excludes ours and is excluded by it. The prefix keeps a resource
/// from ever being the very key that its owner stores data under.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyPrefix(Arc<str>);

impl KeyPrefix {
    /// Checks a prefix.
    ///
    /// # Errors
    /// [`KeyPrefixError`] if it is over-long, or has a brace that is not part of one complete, non-empty hash tag
    /// (`{app}:` is one): a lone brace would tear the keys of a resource apart on a Redis Cluster.
    pub fn new(prefix: impl AsRef<str>) -> Result<Self, KeyPrefixError> {
        let prefix = prefix.as_ref();
        if RESOURCE_NAME_LEN_MAX < prefix.len() {
            return Err(KeyPrefixError::TooLong { len: prefix.len() });
        }
        let complete_tag = prefix.split_once('{').and_then(|(_, rest)| rest.find('}')).is_some_and(|end| 0 < end);
        if prefix.contains(['{', '}']) && !complete_tag {
            return Err(KeyPrefixError::LoneBrace);
        }
        Ok(Self(prefix.into()))
    }

    /// The prefix as it was given; may be empty.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for KeyPrefix {
    fn default() -> Self {
        Self("lock:".into())
    }
}

/// How long a node keeps a lock key that nobody extends: whole milliseconds, at least one, at most [`Ttl::MAX`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ttl(Duration);

impl Ttl {
    /// One year. Redis would take more, but a lock that outlives its holder by a year is a mistake in a unit.
    pub const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// Checks a time to live; a fraction of a millisecond is cut off, since nodes count in milliseconds.
    ///
    /// # Errors
    /// [`TtlError`] if less than one millisecond or more than [`Ttl::MAX`] is asked for.
    pub fn new(ttl: Duration) -> Result<Self, TtlError> {
        if Self::MAX < ttl {
            return Err(TtlError::TooLong(ttl));
        }
        match u64::try_from(ttl.as_millis()) {
            Ok(0) | Err(_) => Err(TtlError::TooShort(ttl)),
            Ok(millis) => Ok(Self(Duration::from_millis(millis))),
        }
    }

    /// The time to live as a duration.
    #[must_use]
    pub fn as_duration(self) -> Duration {
        self.0
    }

    /// The time to live in milliseconds, as nodes take it.
    #[must_use]
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).expect("at most a year of milliseconds, checked on construction")
    }
}

/// Why a name, or a list of names, is not what a lock can cover.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The name is empty.
    #[error("the resource name is empty; name the thing that must not be worked on twice, such as \"orders/42\"")]
    Empty,
    /// The name is longer than [`RESOURCE_NAME_LEN_MAX`].
    #[error("the resource name has {len} bytes, more than {RESOURCE_NAME_LEN_MAX}; use a hash of it instead")]
    TooLong {
        /// The length of the name in bytes.
        len: usize,
    },
    /// The name begins with `~`.
    #[error("the resource name begins with {RESERVED_FIRST_CHARACTER:?}, which is kept for the library's own keys")]
    Reserved,
    /// No resource at all was named.
    #[error("no resource was named; a lock covers at least one")]
    None,
    /// More than [`RESOURCES_MAX`] were named.
    #[error("{count} resources were named, more than {RESOURCES_MAX}; lock one resource that stands for all of them")]
    TooMany {
        /// How many different names were given.
        count: usize,
    },
}

/// Why a key prefix is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyPrefixError {
    /// The prefix is longer than [`RESOURCE_NAME_LEN_MAX`].
    #[error("the key prefix has {len} bytes, more than {RESOURCE_NAME_LEN_MAX}; shorten it")]
    TooLong {
        /// The length of the prefix in bytes.
        len: usize,
    },
    /// A brace that is not part of a complete hash tag.
    #[error("the key prefix has a brace outside a complete hash tag; write it like \"{{app}}:\" or leave braces out")]
    LoneBrace,
}

/// Why a time to live is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TtlError {
    /// Less than one millisecond.
    #[error("a ttl of {0:?} is less than a millisecond; choose one several times as long as the work takes")]
    TooShort(Duration),
    /// More than [`Ttl::MAX`].
    #[error("a ttl of {0:?} is more than a year; choose a short one and extend the lock while the work goes on")]
    TooLong(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_checked_once() {
        assert_eq!(Resource::new("").unwrap_err(), ResourceError::Empty);
        assert_eq!(Resource::new("~fence:a").unwrap_err(), ResourceError::Reserved);
        let long = "x".repeat(RESOURCE_NAME_LEN_MAX + 1);
        assert_eq!(Resource::new(&long).unwrap_err(), ResourceError::TooLong { len: long.len() });
        assert_eq!(Resource::new(&long[1..]).unwrap().name(), &long[1..]);
    }

    #[test]
    fn order_and_repetition_of_names_do_not_matter() {
        let there = ["x", "y", "x"].into_resources().unwrap();
        let back = vec!["y", "x"].into_resources().unwrap();
        assert_eq!(there, back);
        assert_eq!(there.to_string(), "x, y");
        assert!(there.contains("y"));
        assert!(!there.contains("z"));
    }

    #[test]
    fn a_lock_covers_at_least_one_resource_and_not_too_many() {
        assert_eq!(Vec::<String>::new().into_resources().unwrap_err(), ResourceError::None);
        let many: Vec<String> = (0..=RESOURCES_MAX).map(|n| n.to_string()).collect();
        assert_eq!(many.into_resources().unwrap_err(), ResourceError::TooMany { count: RESOURCES_MAX + 1 });
    }

    #[test]
    fn names_next_to_each_other_stay_apart() {
        // Another library joins the names, so that ("ab", "c") and ("a", "bc") were one lock.
        assert_ne!(["ab", "c"].into_resources().unwrap(), ["a", "bc"].into_resources().unwrap());
    }

    #[test]
    fn prefixes_may_carry_one_complete_hash_tag() {
        for good in ["", "lock:", "{app}:", "a{b}c"] {
            assert_eq!(KeyPrefix::new(good).unwrap().as_str(), good);
        }
        for lone in ["{", "}", "{}", "a}b{c", "x{y"] {
            assert_eq!(KeyPrefix::new(lone).unwrap_err(), KeyPrefixError::LoneBrace, "{lone}");
        }
    }

    proptest! {
        /// Any bytes are a name or are refused with the reason, and a name is what was given.
        #[test]
        fn a_name_is_kept_as_it_is_or_refused(name in ".{0,20}|~.{0,5}|x{1020,1030}") {
            match Resource::new(&name) {
                Ok(resource) => prop_assert_eq!(resource.name(), &name),
                Err(ResourceError::Empty) => prop_assert!(name.is_empty()),
                Err(ResourceError::TooLong { len }) => prop_assert!(RESOURCE_NAME_LEN_MAX < len && len == name.len()),
                Err(error) => prop_assert!(error == ResourceError::Reserved && name.starts_with('~')),
            }
        }

        /// Two lists are one lock exactly if they have the same names.
        #[test]
        fn lists_of_names_are_sets(one in names(), other in names()) {
            let set = |names: &[String]| names.iter().cloned().collect::<std::collections::BTreeSet<_>>();
            let same = one.as_slice().into_resources().unwrap() == other.as_slice().into_resources().unwrap();
            prop_assert_eq!(same, set(&one) == set(&other));
        }

        #[test]
        fn a_prefix_is_kept_as_it_is_or_refused(prefix in "[a-c{}]{0,8}|\\PC{0,8}") {
            match KeyPrefix::new(&prefix) {
                Ok(kept) => prop_assert_eq!(kept.as_str(), &prefix),
                Err(error) => {
                    let has_brace = prefix.contains(['{', '}']);
                    prop_assert!(error == KeyPrefixError::LoneBrace && has_brace);
                }
            }
        }

        /// Any duration is a ttl of its whole milliseconds or is refused.
        #[test]
        fn a_ttl_is_at_most_what_was_asked_for(seconds in prop_oneof![0_u64..100, any::<u64>()], nanos in 0_u32..1_000_000_000) {
            let asked = Duration::new(seconds, nanos);
            match Ttl::new(asked) {
                Ok(ttl) => {
                    prop_assert_eq!(u128::from(ttl.as_millis()), asked.as_millis());
                    prop_assert!(ttl.as_duration() <= asked && asked < ttl.as_duration() + Duration::from_millis(1));
                }
                Err(TtlError::TooShort(_)) => prop_assert!(asked < Duration::from_millis(1)),
                Err(TtlError::TooLong(_)) => prop_assert!(Ttl::MAX < asked),
            }
        }
    }

    fn names() -> impl Strategy<Value = Vec<String>> {
        proptest::collection::vec("[ab]{1,2}", 1..5)
    }

    #[test]
    fn a_ttl_is_whole_milliseconds_between_one_and_a_year() {
        assert!(matches!(Ttl::new(Duration::ZERO), Err(TtlError::TooShort(_))));
        assert!(matches!(Ttl::new(Duration::from_micros(999)), Err(TtlError::TooShort(_))));
        assert_eq!(Ttl::new(Duration::from_micros(1_999)).unwrap().as_millis(), 1);
        assert!(Ttl::new(Ttl::MAX).is_ok());
        assert!(matches!(Ttl::new(Duration::MAX), Err(TtlError::TooLong(_))));
    }
}
