//! One server, asked what the library has no question for.
//!
//! The library's own calls go through `RedisNode`. Here are the questions of operators: how many wait, which names there are,
//! how the server is set up. A connection of its own, with a limit for each question; what cannot be read is an error with the
//! server's words, never a guess.

use crate::exit::with_causes;
use crate::quorum;
use crate::settings::Settings;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, ServerErrorKind};
use redlock_core::{LockNode as _, NodeError};
use std::time::Duration;
use tokio::time::timeout;

/// How long a server may take to accept a connection, and to answer a question.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A server, connected to.
#[derive(Clone)]
pub struct Remote {
    /// What people call it; free of secrets.
    pub name: String,
    connection: MultiplexedConnection,
}

/// Why a question has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unanswered {
    /// The user may not ask.
    #[error("not allowed: {0}")]
    NotAllowed(String),
    /// The credentials are not accepted.
    #[error("the credentials are not accepted: {0}")]
    Credentials(String),
    /// The server knows no such command.
    #[error("no such command: {0}")]
    NoSuchCommand(String),
    /// It does not answer, or not in time.
    #[error("{0}")]
    Silent(String),
    /// It answers that something else is wrong.
    #[error("{0}")]
    Refused(String),
}

impl Remote {
    /// What people call a node, by its position in the settings.
    #[must_use]
    pub fn name_of(settings: &Settings, position: usize) -> String {
        // A URL that is none has no name; it is not shown, as it may hold a password.
        let node = quorum::open_one(&settings.nodes[position], &settings.tls);
        node.map_or_else(|_| format!("node {}", position + 1), |node| node.name().to_owned())
    }

    /// Connects to a node, by its position in the settings.
    ///
    /// # Errors
    /// Why the server cannot be asked.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(settings: &Settings, position: usize) -> Result<Self, Unanswered> {
        let name = Self::name_of(settings, position);
        let connect = async {
            let client = client(settings, position).await?;
            client.get_multiplexed_async_connection().await.map_err(|error| sort(&error))
        };
        match timeout(PATIENCE, connect).await {
            Ok(connection) => Ok(Self { name, connection: connection? }),
            Err(_) => Err(Unanswered::Silent(format!("no connection within {PATIENCE:?}"))),
        }
    }

    /// Connects to all nodes of a set-up at once.
    ///
    /// # Cancel safety
    /// As [`Remote::connect`].
    pub async fn connect_all(settings: &Settings) -> Vec<(String, Result<Self, Unanswered>)> {
        let connect = async |position| (Self::name_of(settings, position), Self::connect(settings, position).await);
        join_all((0..settings.nodes.len()).map(connect)).await
    }

    /// Asks one question.
    ///
    /// # Errors
    /// Why there is no answer.
    ///
    /// # Cancel safety
    /// The server may have carried out the command.
    pub async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Unanswered> {
        let mut connection = self.connection.clone();
        match timeout(PATIENCE, command.query_async(&mut connection)).await {
            Ok(answer) => answer.map_err(|error| sort(&error)),
            Err(_) => Err(Unanswered::Silent(format!("no answer within {PATIENCE:?}"))),
        }
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How to connect to a node: the library's own reading of the URL, with the certificates that were named, or wherever its
/// Sentinels say that the primary is.
pub(crate) async fn client(settings: &Settings, position: usize) -> Result<redis::Client, Unanswered> {
    let node = quorum::open_one(&settings.nodes[position], &settings.tls);
    let node = node.map_err(|error| Unanswered::Refused(with_causes(&error)))?;
    node.client().await.map_err(|error| match error {
        NodeError::Refused { .. } => Unanswered::Refused(with_causes(&error)),
        _ => Unanswered::Silent(with_causes(&error)),
    })
}

/// A command of words.
#[must_use]
pub fn command(words: &[&str]) -> Cmd {
    let (name, arguments) = words.split_first().expect("a command has a name");
    let mut command = redis::cmd(name);
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

pub(crate) fn sort(error: &redis::RedisError) -> Unanswered {
    let said = with_causes(error);
    let says = |what: &str| said.to_ascii_lowercase().contains(what);
    match error.code() {
        Some("NOPERM") => Unanswered::NotAllowed(said),
        Some("NOAUTH" | "WRONGPASS") => Unanswered::Credentials(said),
        _ if error.kind() == ErrorKind::AuthenticationFailed => Unanswered::Credentials(said),
        _ if says("unknown command") || says("unknown subcommand") => Unanswered::NoSuchCommand(said),
        _ if says("no permissions") => Unanswered::NotAllowed(said),
        _ if error.kind() == ErrorKind::Server(ServerErrorKind::BusyLoading) => Unanswered::Silent(said),
        _ if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() => Unanswered::Silent(said),
        _ => Unanswered::Refused(said),
    }
}
