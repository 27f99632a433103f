//! The commands of one attempt, made once for all nodes that are asked.
//!
//! Every node of a quorum is sent the same bytes. The first one asked makes them, and they stay with the ownership.

use super::keys;
use super::scripts::{Argument, Granting, RELEASE};
use redis::Cmd;
use redlock_core::{Ownership, Ttl};
use std::ops::Deref;
use std::sync::OnceLock;

/// A command with its bytes on the wire, which are made once for all nodes that are sent it.
pub(super) struct Command {
    packed: Vec<u8>,
    #[cfg(feature = "tls")]
    unpacked: Cmd,
}

impl Command {
    #[cfg_attr(not(feature = "tls"), expect(clippy::needless_pass_by_value, reason = "the feature keeps it"))]
    pub(super) fn new(command: Cmd) -> Self {
        Self {
            packed: command.get_packed_command(),
            #[cfg(feature = "tls")]
            unpacked: command,
        }
    }

    pub(super) fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// For a connection that packs commands itself.
    #[cfg(feature = "tls")]
    pub(super) fn unpacked(&self) -> &Cmd {
        &self.unpacked
    }
}

/// A command that is shared, or not.
pub(super) enum Kept<'a> {
    Shared(&'a Command),
    Own(Command),
}

impl Deref for Kept<'_> {
    type Target = Command;

    fn deref(&self) -> &Command {
        match self {
            Self::Shared(command) => command,
            Self::Own(command) => command,
        }
    }
}

pub(super) struct Commands {
    /// The lock keys, the counter keys in the same order, the namespace record, the line keys in the same order.
    keys: Vec<String>,
    resources: usize,
    granting: Granting,
    acquire: OnceLock<(Ttl, u64, Command)>,
    release: OnceLock<Command>,
}

impl Commands {
    pub(super) fn new(ownership: &Ownership) -> Self {
        Self {
            keys: keys::all(ownership),
            resources: ownership.resources().len(),
            granting: Granting::of(ownership.quarantine().is_some()),
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

    pub(super) fn granting(&self) -> Granting {
        self.granting
    }

    /// The acquire by digest. It is kept for all nodes; there is hardly ever another than the one that was asked for first.
    pub(super) fn acquire(&self, arguments: &[Argument<'_>], ttl: Ttl, floor: u64) -> Kept<'_> {
        let make = || Command::new(self.granting.acquire.by_digest(&[self.lock_and_counter_keys()], arguments));
        let (made_for, floor_then, command) = self.acquire.get_or_init(|| (ttl, floor, make()));
        if (*made_for, *floor_then) == (ttl, floor) { Kept::Shared(command) } else { Kept::Own(make()) }
    }

    /// The release by digest.
    pub(super) fn release(&self, arguments: &[Argument<'_>]) -> &Command {
        self.release.get_or_init(|| Command::new(RELEASE.by_digest(&[self.lock_keys(), self.line_keys()], arguments)))
    }
}
