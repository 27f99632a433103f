//! The numbers with which the command ends, and the failures that lead to them.
//!
//! A script decides by the number alone, so there is one for each thing that it may do next. They stay away from 1 and 2,
//! which every program uses for anything, from 126, 127 and 128 + n, which are the shell's, and follow `sysexits.h` where
//! that has the same meaning. `docs/command.md` has them in a table, which a test holds against [`Exit::ALL`].

use redlock_core::{AcquireError, Report, SettingsError};
use serde::Serialize;
use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

/// How the command itself ended; `redlock run` passes on the number of its child besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// The doctor could not look at everything, and found nothing worse.
    Unread,
    /// The doctor found something that will do harm one day.
    Warning,
    /// The doctor found something that does harm now.
    Error,
    /// The command was called wrongly.
    Usage,
    /// No quorum of nodes answered, or not in time: an outage.
    Unavailable,
    /// The program could not be started; the lock was given back.
    CannotStart,
    /// A file could not be read, or output could not be written.
    Output,
    /// Others hold the lock, and the time to wait is over.
    Contended,
    /// The lock was lost: the program under it was stopped, or what was to be extended or released is not ours any more.
    Lost,
    /// Somebody was asked, and did not say yes.
    Declined,
    /// Settings that cannot work, or nodes that refuse because of how they are set up.
    Misconfigured,
}

impl Exit {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::Unread,
        Self::Warning,
        Self::Error,
        Self::Usage,
        Self::Unavailable,
        Self::CannotStart,
        Self::Output,
        Self::Contended,
        Self::Lost,
        Self::Declined,
        Self::Misconfigured,
    ];

    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Unread => 10,
            Self::Warning => 11,
            Self::Error => 12,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::CannotStart => 71,
            Self::Output => 74,
            Self::Contended => 75,
            Self::Lost => 76,
            Self::Declined => 77,
            Self::Misconfigured => 78,
        }
    }

    /// The word for it in JSON and in the docs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Usage => "usage",
            Self::Unavailable => "unavailable",
            Self::CannotStart => "cannot_start",
            Self::Output => "output",
            Self::Contended => "contended",
            Self::Lost => "lost",
            Self::Declined => "declined",
            Self::Misconfigured => "misconfigured",
        }
    }
}

impl Exit {
    /// What it means, in a line.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Unread => "doctor: not everything could be looked at, nothing worse was found",
            Self::Warning => "doctor: something will do harm one day",
            Self::Error => "doctor: something does harm now",
            Self::Usage => "the command was called wrongly",
            Self::Unavailable => "too few nodes answered, or not in time: an outage",
            Self::CannotStart => "the program could not be started; the lock was given back",
            Self::Output => "a file could not be read or written, or output not be written",
            Self::Contended => "somebody else holds the lock",
            Self::Lost => "the lock was lost, or is not ours any more",
            Self::Declined => "nobody said yes",
            Self::Misconfigured => "settings cannot work, or nodes refuse because of their set-up",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// The number for a program that a signal ended, as shells have it.
#[must_use]
pub fn of_signal(signal: i32) -> u8 {
    u8::try_from(128_i32.saturating_add(signal)).unwrap_or(u8::MAX)
}

/// Why the command did not do what it was asked for.
#[derive(Debug)]
pub struct Failure {
    /// What a script may do next.
    pub exit: Exit,
    /// What happened and what to do about it, for people; free of secrets.
    pub message: String,
    /// What every node said, if nodes were asked.
    pub nodes: Vec<NodeSaid>,
}

/// What one node said.
#[derive(Clone, Debug, Serialize)]
pub struct NodeSaid {
    /// The node's name.
    pub node: String,
    /// Its answer, in words.
    pub said: String,
}

impl Failure {
    /// A failure that needs no further explanation.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), nodes: Vec::new() }
    }

    /// A failure with its cause and the causes of that.
    pub fn caused(exit: Exit, message: &str, cause: &dyn Error) -> Self {
        Self::new(exit, format!("{message}: {}", with_causes(cause)))
    }
}

/// An error and its causes in one line, without those that only repeat what the one above has said.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut said = text.clone();
    let mut source = error.source();
    while let Some(cause) = source {
        let says = cause.to_string();
        if !said.ends_with(&says) {
            // A string takes everything.
            let _ = write!(text, ": {says}");
        }
        (said, source) = (says, cause.source());
    }
    text
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        // A name that is none was typed; all else stands in settings.
        let exit = if matches!(error, SettingsError::Resource(_)) { Exit::Usage } else { Exit::Misconfigured };
        Self::new(exit, with_causes(&error))
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        let exit = exit_of(&error);
        let nodes = error.report().map(said).unwrap_or_default();
        match error {
            AcquireError::Invalid(settings) => settings.into(),
            error => Self { exit, message: summary(&error), nodes },
        }
    }
}

/// What a script may do next: the time to wait being over is no reason of its own, the last attempt's is.
fn exit_of(error: &AcquireError) -> Exit {
    match error {
        AcquireError::Contended(_) => Exit::Contended,
        AcquireError::Misconfigured(_) | AcquireError::Invalid(_) => Exit::Misconfigured,
        AcquireError::TimedOut { last, .. } => exit_of(last),
        // Whoever cancels knows; an unknown reason is not to be taken for contention.
        _ => Exit::Unavailable,
    }
}

/// The error without the answers of all nodes, which stand on lines of their own.
fn summary(error: &AcquireError) -> String {
    let granted = |report: &Report| {
        format!("{} of {} nodes granted, {} needed", report.granted(), report.nodes.len(), report.quorum())
    };
    match error {
        AcquireError::Contended(report) => format!("contended, somebody else holds it: {}", granted(report)),
        AcquireError::Unavailable(report) => {
            format!("unavailable, too few nodes answered: {}; mend the nodes below", granted(report))
        }
        AcquireError::Misconfigured(report) => {
            format!(
                "misconfigured, nodes refuse to vote: {}; change what they say, or run `redlock doctor`",
                granted(report)
            )
        }
        AcquireError::TooSlow { report } => format!(
            "too slow, won after {:.1?} with no useful validity left: the nodes are slow for this ttl, use a longer one",
            report.elapsed
        ),
        AcquireError::TimedOut { waited, attempts, last } => {
            format!("{} (after waiting for {waited:.1?}, {attempts} attempts)", summary(last))
        }
        other => with_causes(other),
    }
}

fn said(report: &Report) -> Vec<NodeSaid> {
    let said =
        |node: &redlock_core::NodeReport| NodeSaid { node: node.node.to_string(), said: node.outcome.to_string() };
    report.nodes.iter().map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_distinct_and_not_the_shells() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert!(codes.is_sorted_by(|one, next| one < next), "{codes:?}");
        assert!(codes.iter().all(|code| 2 < *code && *code < 126), "{codes:?}");
    }

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!(of_signal(9), 137);
        assert_eq!(of_signal(i32::MAX), 255);
    }
}
