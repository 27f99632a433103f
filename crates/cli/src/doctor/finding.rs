//! Something that the doctor has found.

use crate::exit::Exit;
use crate::table::clean;
use serde::Serialize;

/// The words for all that can be found. A test holds `docs/command.md` against them.
pub const FINDINGS: [&str; 58] = [
    "unreachable",
    "credentials",
    "not-a-server",
    "no-quorum",
    "replica",
    "same-server",
    "same-cluster",
    "cluster-slots",
    "cluster",
    "sentinel",
    "sentinels",
    "replicas",
    "slow",
    "eviction",
    "memory",
    "no-persistence",
    "snapshots-only",
    "appendfsync",
    "restarted",
    "disk",
    "cannot-write",
    "min-replicas",
    "rights",
    "rights-line",
    "commands",
    "version",
    "clock",
    "our-clock",
    "scripts",
    "clients",
    "no-password",
    "quarantined",
    "guard-unknown",
    "counter-beyond-tokens",
    "no-expiry",
    "no-lock",
    "info",
    "config",
    "keys",
    "not-tried",
    "settings",
    "one-node",
    "even-nodes",
    "readable-secret",
    "database",
    "no-ledger",
    "ledger",
    "ledger-ahead",
    "no-table",
    "fence-column",
    "guard",
    "not-durable",
    "read-only",
    "isolation",
    "idle-transactions",
    "autocommit",
    "table-unread",
    "database-unread",
];

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing has to be done.
    Note,
    /// Could not be looked at, so it may be anything.
    Unread,
    /// Will do harm one day.
    Warning,
    /// Does harm now.
    Error,
}

impl Severity {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Note => 0,
            Self::Unread => Exit::Unread.code(),
            Self::Warning => Exit::Warning.code(),
            Self::Error => Exit::Error.code(),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Unread => "unread",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    pub(super) fn counted(self, count: usize) -> String {
        match (self, count) {
            (Self::Unread, _) => format!("{count} not to be read"),
            (_, 1) => format!("1 {}", self.word()),
            _ => format!("{count} {}s", self.word()),
        }
    }
}

/// Something that the doctor has found, about one subject.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A node's name, `settings`, or `database`.
    pub subject: String,
    /// A word for programs; `docs/command.md` lists all of them.
    pub finding: &'static str,
    /// What was found.
    pub what: String,
    /// What it can cause.
    pub harm: String,
    /// How to mend it.
    pub mend: String,
}

impl Finding {
    pub(super) fn new(severity: Severity, subject: &str, finding: &'static str, what: impl Into<String>) -> Self {
        assert!(FINDINGS.contains(&finding), "{finding} is no word that the docs know");
        let (subject, what) = (clean(subject), clean(&what.into()));
        Self { severity, subject, finding, what, harm: String::new(), mend: String::new() }
    }

    #[must_use]
    pub(super) fn harm(mut self, harm: impl Into<String>) -> Self {
        self.harm = harm.into();
        self
    }

    #[must_use]
    pub(super) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = mend.into();
        self
    }

    pub(super) fn lines(&self) -> String {
        let Self { severity, subject, finding, what, harm, mend } = self;
        format!("{:7} {subject}: {what}  [{finding}]\n        so   {harm}\n        mend {mend}\n\n", severity.word())
    }
}
