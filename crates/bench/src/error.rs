//! What can go wrong with the bench itself, as opposed to with what it tests.

use std::io;
use std::time::Duration;

/// The bench could not do what the test asked of it. One variant for each thing one would do about it.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server program is not on this machine: install it.
    #[error("{program} is not installed: run `cargo xtask test --install`, or `apt-get install {package}`")]
    NotInstalled {
        /// The program that was looked for.
        program: String,
        /// The package that brings it.
        package: &'static str,
    },

    /// The server program ran and gave up, or never became ready: read its log.
    #[error("{program} did not start: {why}; it wrote:\n{log}")]
    DidNotStart {
        /// The program that was started.
        program: String,
        /// What was waited for in vain.
        why: String,
        /// The end of its log.
        log: String,
    },

    /// A server did not answer in time: it is frozen, or the time was too short.
    #[error("no answer to {asked} within {deadline:?}")]
    NoAnswer {
        /// The command that was sent.
        asked: String,
        /// How long the answer was awaited.
        deadline: Duration,
    },

    /// A server answered with something else than the test expects: fix the question or the server's set-up.
    #[error("unexpected answer to {asked}: {answer}")]
    Unexpected {
        /// The command that was sent.
        asked: String,
        /// What came back.
        answer: String,
    },

    /// The operating system refused.
    #[error("could not {doing}")]
    Io {
        /// What the bench was about to do.
        doing: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl BenchError {
    /// Says what was being done when the system refused.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
