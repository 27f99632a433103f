//! One server, asked what the library has no question for.
//!
//! The library's own calls go through `RedisNode`. Here are the questions of operators: how many wait, which names there are,
//! how the server is set up. A connection of its own, with a limit for each question; what cannot be read is an error with the
//! server's words, never a guess.

use crate::exit::with_causes;
use crate::quorum;
use crate::settings::{SENTINEL, Settings};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, ServerErrorKind};
use redlock_core::LockNode as _;
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
    let (url, tls) = (&settings.nodes[position], &settings.tls);
    // Opening a node checks the URL, and prepares TLS where there is any.
    quorum::open_one(url, tls).map_err(|error| Unanswered::Refused(with_causes(&error)))?;
    if let Some((hosts, set)) = sentinels(url.expose()) {
        return primary_of(url.expose(), &hosts, &set).await;
    }
    let client = if tls.is_plain() || !url.expose().starts_with("rediss:") {
        redis::Client::open(url.expose())
    } else {
        let client_tls = tls.client.clone();
        let client_tls = client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        let certificates = redis::TlsCertificates { client_tls, root_cert: tls.authority.clone() };
        redis::Client::build_with_tls(url.expose(), certificates)
    };
    client.map_err(|error| sort(&error))
}

/// The hosts and the set of a URL of Sentinels.
fn sentinels(url: &str) -> Option<(Vec<String>, String)> {
    let rest = url.strip_prefix(SENTINEL)?.strip_prefix("//")?;
    let (rest, set) = rest.split_once("?set=")?;
    let hosts = rest.split('/').next()?;
    let hosts = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
    let with_port = |host: &str| {
        let has_port = host.rsplit_once(']').map_or(host, |(_, after)| after).contains(':');
        if has_port { host.to_owned() } else { format!("{host}:26379") }
    };
    Some((hosts.split(',').map(with_port).collect(), set.to_owned()))
}

/// Asks one Sentinel after the other.
async fn primary_of(url: &str, hosts: &[String], set: &str) -> Result<redis::Client, Unanswered> {
    let mut last = Unanswered::Silent("no Sentinel is named".into());
    for host in hosts {
        let asked = async {
            let client = redis::Client::open(format!("redis://{host}"))?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            let question = command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", set]);
            question.query_async::<Option<(String, u16)>>(&mut connection).await
        };
        match timeout(PATIENCE / 2, asked).await {
            Ok(Ok(Some((host, port)))) => {
                let at = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
                // The primary's URL is the Sentinels', with another address and without the set.
                let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
                let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
                let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
                let credentials =
                    hosts.rsplit_once('@').map(|(credentials, _)| format!("{credentials}@")).unwrap_or_default();
                return redis::Client::open(format!("redis://{credentials}{at}/{database}"))
                    .map_err(|error| sort(&error));
            }
            Ok(Ok(None)) => last = Unanswered::Refused(format!("the Sentinel {host} knows no set {set:?}")),
            Ok(Err(error)) => last = sort(&error),
            Err(_) => last = Unanswered::Silent(format!("the Sentinel {host} does not answer")),
        }
    }
    Err(last)
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
