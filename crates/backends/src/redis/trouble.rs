//! What an error of the server or the connection means for the quorum.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use redlock_core::{NodeError, Refusal};
use std::error::Error;

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
        || error.detail().and_then(inner_code) == Some("READONLY")
}

/// Sorts an error by what can be done about it. None of them is a vote.
pub(super) fn classify(error: RedisError) -> NodeError {
    let kind = error.kind();
    let detail = error.detail().unwrap_or_default().to_owned();
    let code = inner_code(&detail).or(error.code()).unwrap_or_default().to_owned();
    let broken = connection_is_broken(&error);
    let said: Box<dyn Error + Send + Sync> = match without_arguments(&error) {
        Some(said) => said.into(),
        None => Box::new(error),
    };
    match code.as_str() {
        "NOAUTH" | "WRONGPASS" => return NodeError::refused(Refusal::Authentication, said),
        "NOPERM" => return NodeError::refused(Refusal::Permission, said),
        "READONLY" => return NodeError::refused(Refusal::Replica, said),
        "OOM" | "MISCONF" | "NOREPLICAS" => return NodeError::refused(Refusal::CannotWrite, said),
        "MOVED" | "ASK" | "CROSSSLOT" => return NodeError::refused(Refusal::Configuration, said),
        // Not now; nobody has to change anything.
        "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "BUSY" | "UNKILLABLE" => {
            return NodeError::unreachable(said);
        }
        _ => {}
    }
    let says = |what: &str| detail.to_ascii_lowercase().contains(what);
    match kind {
        // What was not understood may be anything, and of any length; only that it was not is said.
        ErrorKind::Parse => NodeError::refused(Refusal::NotAServer, "its answer is none of the Redis protocol"),
        ErrorKind::AuthenticationFailed => NodeError::refused(Refusal::Authentication, said),
        ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
            NodeError::refused(Refusal::Configuration, said)
        }
        _ if broken => NodeError::unreachable(said),
        _ if says("can't run this command") || says("no permissions") => NodeError::refused(Refusal::Permission, said),
        _ if says("unknown command") || says("unknown redis command") => {
            NodeError::refused(Refusal::UnknownCommand, said)
        }
        _ if says("db index") => NodeError::refused(Refusal::Configuration, said),
        _ => NodeError::protocol(said),
    }
}

/// The code of an error that happened inside a script. Before Redis 7 the server wraps it: `Error running script …:
/// @user_script: 1: -READONLY You can't write …`.
fn inner_code(detail: &str) -> Option<&str> {
    let (_, inner) = detail.split_once("@user_script")?;
    let (_, inner) = inner.split_once(": -")?;
    inner.split_whitespace().next()
}

/// What the server said, without the arguments of ours that it repeats: the owner is among them, and it is a secret.
fn without_arguments(error: &RedisError) -> Option<String> {
    let said = error.to_string();
    let at = said.find(", with args")?;
    Some(said[..at].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_says(line: &str) -> NodeError {
        let parsed = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).and_then(redis::Value::extract_error);
        classify(parsed.expect_err("an error"))
    }

    fn refusal(line: &str) -> Option<Refusal> {
        match server_says(line) {
            NodeError::Refused { reason, .. } => Some(reason),
            _ => None,
        }
    }

    #[test]
    fn what_the_server_says_is_sorted_by_what_to_do() {
        assert_eq!(refusal("NOAUTH Authentication required."), Some(Refusal::Authentication));
        assert_eq!(refusal("WRONGPASS invalid username-password pair"), Some(Refusal::Authentication));
        assert_eq!(refusal("NOPERM this user has no permissions"), Some(Refusal::Permission));
        assert_eq!(
            refusal(
                "ERR The user executing the script can't run this command or subcommand script: abc, on @user_script:1."
            ),
            Some(Refusal::Permission)
        );
        assert_eq!(refusal("READONLY You can't write against a read only replica."), Some(Refusal::Replica));
        assert_eq!(refusal("OOM command not allowed when used memory > 'maxmemory'."), Some(Refusal::CannotWrite));
        assert_eq!(refusal("ERR DB index is out of range"), Some(Refusal::Configuration));
        assert_eq!(
            refusal("ERR Unknown Redis command called from script script: abc, on @user_script:1."),
            Some(Refusal::UnknownCommand)
        );
        assert!(matches!(server_says("LOADING Redis is loading the dataset in memory"), NodeError::Unreachable(_)));
        assert!(matches!(server_says("BUSY Redis is busy running a script."), NodeError::Unreachable(_)));
        assert!(matches!(server_says("ERR something else"), NodeError::Protocol(_)));
    }

    #[test]
    fn before_redis_7_the_code_is_inside() {
        let wrapped = |inner: &str| {
            refusal(&format!("ERR Error running script (call to f_abc): @user_script:8: @user_script: 8: -{inner}"))
        };
        assert_eq!(wrapped("READONLY You can't write against a read only replica."), Some(Refusal::Replica));
        assert_eq!(wrapped("OOM command not allowed when used memory > 'maxmemory'."), Some(Refusal::CannotWrite));
    }

    #[test]
    fn our_arguments_are_not_shown() {
        let error =
            server_says("ERR unknown command 'EVALSHA', with args beginning with: 'abc' '3' 'lock:r' '9924985d0f96'");
        assert!(matches!(error, NodeError::Refused { reason: Refusal::UnknownCommand, .. }));
        assert!(!format!("{error:?}").contains("9924985d"), "{error:?}");
    }
}
