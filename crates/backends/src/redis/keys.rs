//! The names of keys.
//!
//! The lock key of a resource is the prefix followed by its name, since that is what other clients write. Everything
//! else that belongs to the resource must lie in the same hash slot, begin with the same prefix (so that one key pattern
//! grants access to all of it), and never be the lock key of any resource. The first is done with a hash tag, the last
//! because no resource's name begins with `~`:
//!
//! ```text
//!  resource a       lock:a        ~ counter  lock:~fence:{lock:a}       line  lock:~line:{lock:a}
//!  resource a{b}c   lock:a{b}c    ~ counter  lock:~fence:{b}:lock:a{b}c      (the slot of lock:a{b}c is that of b)
//!  resource a}b     lock:a}b      ~ counter  lock:~fence:{…}:lock:a}b        (no tag can hold a brace: letters in the
//!                                                                             same slot stand in)
//! ```

use redlock_core::{KeyPrefix, Ownership, Resource};

/// What the keys of one resource are called, for tools that look at a server themselves.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct KeyNames {
    /// The lock: the owner, a plain string.
    pub lock: String,
    /// The fence counter.
    pub counter: String,
    /// Who waits for the lock: a list, first come first.
    pub line: String,
    /// The marks of the node, the same for all resources under a prefix.
    pub record: String,
}

impl KeyNames {
    /// The names under a prefix.
    #[must_use]
    pub fn of(prefix: &KeyPrefix, resource: &Resource) -> Self {
        Self {
            lock: lock(prefix, resource),
            counter: counter(prefix, resource),
            line: line(prefix, resource),
            record: record(prefix),
        }
    }
}

/// The lock keys, the counter keys in the same order, the namespace record, the line keys in the same order.
pub(super) fn all(ownership: &Ownership) -> Vec<String> {
    let (prefix, resources) = (ownership.prefix(), ownership.resources());
    let mut keys = Vec::with_capacity(3 * resources.len() + 1);
    keys.extend(resources.iter().map(|resource| lock(prefix, resource)));
    keys.extend(resources.iter().map(|resource| counter(prefix, resource)));
    keys.push(record(prefix));
    keys.extend(resources.iter().map(|resource| line(prefix, resource)));
    keys
}

pub(super) fn lock(prefix: &KeyPrefix, resource: &Resource) -> String {
    [prefix.as_str(), resource.name()].concat()
}

pub(super) fn counter(prefix: &KeyPrefix, resource: &Resource) -> String {
    beside("~fence:", prefix, resource)
}

/// Who waits for the resource.
pub(super) fn line(prefix: &KeyPrefix, resource: &Resource) -> String {
    beside("~line:", prefix, resource)
}

/// The channel on which one client's waiters are called.
pub(super) fn channel(prefix: &KeyPrefix, listener: &str) -> String {
    [prefix.as_str(), "~call:", listener].concat()
}

/// The namespace record, one per prefix.
pub(super) fn record(prefix: &KeyPrefix) -> String {
    [prefix.as_str(), "~namespace"].concat()
}

/// The name of a key of `kind` in the same slot as the resource's lock key.
fn beside(kind: &str, prefix: &KeyPrefix, resource: &Resource) -> String {
    let lock = lock(prefix, resource);
    let prefix = prefix.as_str();
    if !lock.contains(['{', '}']) {
        return [prefix, kind, "{", &lock, "}"].concat();
    }
    match hash_tag(&lock) {
        Some(tag) => [prefix, kind, "{", tag, "}:", &lock].concat(),
        None => [prefix, kind, "{", &letters_in_slot(slot(lock.as_bytes())), "}:", &lock].concat(),
    }
}

/// The part of a key that decides its slot, if it is not the whole key: what stands between the first `{` and the first
/// `}` after it, unless that is nothing (Redis Cluster specification, *hash tags*).
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The slot of a text without hash tags: CRC16/XMODEM modulo 16384 (Redis Cluster specification, *key distribution*).
fn slot(text: &[u8]) -> u16 {
    text.iter().fold(0, |crc, byte| crc_of(crc, *byte)) % SLOTS
}

const SLOTS: u16 = 16_384;

fn crc_of(crc: u16, byte: u8) -> u16 {
    let shift = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
    (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| shift(crc))
}

/// What a stand-in for a hash tag is written with.
const LETTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

/// The first three letters that lie in `slot`; a quarter of a million combinations cover every slot several times.
fn letters_in_slot(slot_wanted: u16) -> String {
    for first in LETTERS {
        let one = crc_of(0, *first);
        for second in LETTERS {
            let two = crc_of(one, *second);
            for third in LETTERS {
                if crc_of(two, *third) % SLOTS == slot_wanted {
                    return [*first, *second, *third].map(char::from).iter().collect();
                }
            }
        }
    }
    unreachable!("every slot has three letters, as a test shows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn counter_of(name: &str) -> String {
        counter(&KeyPrefix::default(), &Resource::new(name).unwrap())
    }

    fn slot_of(key: &str) -> u16 {
        slot(hash_tag(key).unwrap_or(key).as_bytes())
    }

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot_of("foo{hash_tag}"), slot_of("hash_tag"));
        assert_eq!(slot_of("foo{}{bar}"), slot(b"foo{}{bar}"));
        assert_eq!(slot_of("foo{{bar}}zap"), slot(b"{bar"));
    }

    #[test]
    fn a_plain_name_is_its_own_tag() {
        assert_eq!(counter_of("a"), "lock:~fence:{lock:a}");
        assert_eq!(counter_of("a{b}c"), "lock:~fence:{b}:lock:a{b}c");
    }

    #[test]
    fn tools_are_told_the_names_that_scripts_are_given() {
        let (prefix, resource) = (KeyPrefix::default(), Resource::new("a").unwrap());
        let names = KeyNames::of(&prefix, &resource);
        let owner = redlock_core::Owner::from_random_bytes([7; 16]);
        let given = all(&Ownership::new(prefix, resource.into(), owner));
        assert_eq!(given, [names.lock, names.counter, names.record, names.line]);
    }

    #[test]
    fn every_slot_has_letters() {
        let mut missing: HashSet<u16> = (0..SLOTS).collect();
        for first in LETTERS {
            for second in LETTERS {
                for third in LETTERS {
                    missing.remove(&slot(&[*first, *second, *third]));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
        for wanted in [0, 1, 12_345, SLOTS - 1] {
            assert_eq!(slot(letters_in_slot(wanted).as_bytes()), wanted);
        }
    }

    /// Names of few characters, which meet the more easily, and of any.
    fn any_name() -> impl Strategy<Value = String> {
        prop_oneof![4 => "[a-c{}:~]{1,8}", 1 => "\\PC{1,12}", 1 => "[\\x00-\\x7f]{1,12}"]
    }

    proptest! {
        /// The kind of fault behind B35 and B37: whatever bytes names contain, different resources have different keys,
        /// all keys of one lie in one slot, and no counter is any resource's lock.
        #[test]
        fn names_never_meet(
            first in any_name(), second in any_name(), prefix in "(lock:|\\{app\\}:|x\\{y\\}z|\\PC{0,3}|)"
        ) {
            let (Ok(one), Ok(two)) = (Resource::new(&first), Resource::new(&second)) else {
                return Err(TestCaseError::reject("no names"));
            };
            let Ok(prefix) = KeyPrefix::new(prefix) else { return Err(TestCaseError::reject("no prefix")) };
            prop_assert_eq!(slot_of(&lock(&prefix, &one)), slot_of(&counter(&prefix, &one)));
            prop_assert_eq!(slot_of(&lock(&prefix, &one)), slot_of(&line(&prefix, &one)));
            prop_assert_ne!(line(&prefix, &one), lock(&prefix, &two));
            prop_assert_ne!(line(&prefix, &one), counter(&prefix, &two));
            prop_assert_ne!(counter(&prefix, &one), lock(&prefix, &two));
            prop_assert_ne!(counter(&prefix, &one), record(&prefix));
            prop_assert_ne!(lock(&prefix, &one), record(&prefix));
            if first != second {
                prop_assert_ne!(lock(&prefix, &one), lock(&prefix, &two));
                prop_assert_ne!(counter(&prefix, &one), counter(&prefix, &two));
                prop_assert_ne!(line(&prefix, &one), line(&prefix, &two));
            }
        }
    }
}
