//! What an error of the server or the connection means for the quorum.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use redlock_core::{NodeError, Refusal};

/// Why a command has no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// There is no connection to send it on.
    NotConnected(NodeError),
    /// It was sent, and this came back.
    Answered(RedisError),
}

impl From<Trouble> for NodeError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::NotConnected(error) => error,
            Trouble::Answered(error) => classify(error),
        }
    }
}

/// Whether the server does not know the script that it was asked to run by its digest.
pub(super) fn script_is_unknown(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Answered(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}

/// Whether the connection that gave this error is of no more use.
pub(super) fn connection_is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error() || error.is_timeout() || error.is_connection_dropped()
}

/// Whether the server turned out not to be what it was when it was connected to.
pub(super) fn role_has_changed(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Sorts an error by what can be done about it. None of them is a vote.
pub(super) fn classify(error: RedisError) -> NodeError {
    let refused = |reason| NodeError::refused(reason, error.clone());
    match error.kind() {
        ErrorKind::AuthenticationFailed => refused(Refusal::Authentication),
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => refused(Refusal::Configuration),
        ErrorKind::Server(ServerErrorKind::ReadOnly) => refused(Refusal::Replica),
        ErrorKind::Server(ServerErrorKind::NoPerm) => refused(Refusal::Permission),
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::CrossSlot) => {
            refused(Refusal::Configuration)
        }
        // Not now; nobody has to change anything.
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown,
        ) => NodeError::unreachable(error),
        ErrorKind::Io => NodeError::unreachable(error),
        _ => classify_by_code(error),
    }
}

fn classify_by_code(error: RedisError) -> NodeError {
    let unknown_command = error.detail().is_some_and(|detail| detail.contains("unknown command"));
    match error.code() {
        Some("NOAUTH" | "WRONGPASS") => NodeError::refused(Refusal::Authentication, error),
        Some("NOPERM") => NodeError::refused(Refusal::Permission, error),
        Some("READONLY") => NodeError::refused(Refusal::Replica, error),
        Some("OOM" | "MISCONF" | "NOREPLICAS") => NodeError::refused(Refusal::CannotWrite, error),
        Some("BUSY" | "UNKILLABLE") => NodeError::unreachable(error),
        Some("ERR") if unknown_command => NodeError::refused(Refusal::UnknownCommand, error),
        _ if connection_is_broken(&error) => NodeError::unreachable(error),
        _ => NodeError::protocol(error),
    }
}
