//! The commands of one attempt, made once for all nodes that are asked.
//!
//! Every node of a quorum is sent the same bytes. The first one asked makes them, and they stay with the ownership.

use super::keys;
use super::scripts::{ACQUIRE, Argument, RELEASE};
use redis::Cmd;
use redlock_core::{Ownership, Ttl};
use std::sync::OnceLock;

pub(super) struct Commands {
    /// The lock keys, the counter keys in the same order, the namespace record, the line keys in the same order.
    keys: Vec<String>,
    resources: usize,
    acquire: OnceLock<(Ttl, u64, Cmd)>,
    release: OnceLock<Cmd>,
}

impl Commands {
    pub(super) fn new(ownership: &Ownership) -> Self {
        Self {
            keys: keys::all(ownership),
            resources: ownership.resources().len(),
            acquire: OnceLock::new(),
            release: OnceLock::new(),
        }
    }

    pub(super) fn all_keys(&self) -> &[String] {
        &self.keys
    }

    /// The lock keys, the counter keys in the same order, and the namespace record.
    pub(super) fn lock_and_counter_keys(&self) -> &[String] {
        &self.keys[..2 * self.resources + 1]
    }

    pub(super) fn lock_keys(&self) -> &[String] {
        &self.keys[..self.resources]
    }

    pub(super) fn line_keys(&self) -> &[String] {
        &self.keys[2 * self.resources + 1..]
    }

    /// The acquire by digest, if it is the one that was asked for first: there is hardly ever another.
    pub(super) fn acquire(&self, arguments: &[Argument<'_>], ttl: Ttl, floor: u64) -> Option<&Cmd> {
        let make = || (ttl, floor, ACQUIRE.by_digest(&[self.lock_and_counter_keys()], arguments));
        let (made_for, floor_then, command) = self.acquire.get_or_init(make);
        ((*made_for, *floor_then) == (ttl, floor)).then_some(command)
    }

    /// The release by digest.
    pub(super) fn release(&self, arguments: &[Argument<'_>]) -> &Cmd {
        self.release.get_or_init(|| RELEASE.by_digest(&[self.lock_keys(), self.line_keys()], arguments))
    }
}
