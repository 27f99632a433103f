//! Asks one server directly, with a client of forty lines that shares no code with the one under test.
//!
//! A [`Probe`] connects when first asked and keeps its connection; after an error it connects anew. Every question has a
//! deadline, so a frozen server is an error and not a hang.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};

use crate::BenchError;

/// How long an answer is awaited unless the probe is told otherwise.
pub const DEADLINE: Duration = Duration::from_secs(2);

/// A direct line to one server.
#[derive(Debug)]
pub struct Probe {
    endpoint: Endpoint,
    credentials: Option<(String, String)>,
    deadline: Duration,
    connection: Option<Connection>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a socket file.
    Unix(PathBuf),
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A short text such as `OK`.
    Status(String),
    /// The server refused; the text begins with a code such as `NOAUTH`.
    Error(String),
    /// A number.
    Integer(i64),
    /// A value of any bytes.
    Bulk(Vec<u8>),
    /// A list.
    Array(Vec<Reply>),
    /// There is nothing.
    Nil,
}

impl Probe {
    /// A probe of the server at `endpoint`: an address, or the path of a socket file.
    #[must_use]
    pub fn new(endpoint: impl Into<Endpoint>) -> Self {
        Self { endpoint: endpoint.into(), credentials: None, deadline: DEADLINE, connection: None }
    }

    /// Logs in on every connection.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((name.into(), password.into()));
        self
    }

    /// Awaits an answer for so long, connecting included.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Whether the next question goes over a connection that has been used before.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Asks one question. A refusal is an answer: [`Reply::Error`].
    ///
    /// # Errors
    /// [`BenchError::NoAnswer`] and [`BenchError::Io`], after which the next question goes over a new connection.
    ///
    /// # Cancel safety
    /// The server may have carried out the command. The next question goes over a new connection.
    pub async fn command<W: AsRef<[u8]> + Sync>(&mut self, words: &[W]) -> Result<Reply, BenchError> {
        let mut replies = self.pipeline(&[words]).await?;
        Ok(replies.pop().expect("one question has one answer"))
    }

    /// Asks several questions at once and gives the answers in the same order.
    ///
    /// # Errors
    /// As [`Probe::command`].
    ///
    /// # Cancel safety
    /// As [`Probe::command`], for each of the commands.
    pub async fn pipeline<W: AsRef<[u8]> + Sync>(&mut self, commands: &[&[W]]) -> Result<Vec<Reply>, BenchError> {
        let asked = commands.iter().map(|words| shown(words)).collect::<Vec<_>>().join("; ");
        let request: Vec<u8> = commands.iter().flat_map(|words| encode(words)).collect();
        // Taken out for the time of the question: an answer that was not awaited must not meet the next question.
        let connection = self.connection.take();

        let answered = async {
            let mut connection = match connection {
                Some(connection) => connection,
                None => Connection::open(&self.endpoint, self.credentials.as_ref()).await?,
            };
            let replies = connection.ask(&request, commands.len()).await?;
            Ok((connection, replies))
        };
        match tokio::time::timeout(self.deadline, answered).await {
            Ok(Ok((connection, replies))) => {
                self.connection = Some(connection);
                Ok(replies)
            }
            Ok(Err(source)) => Err(BenchError::io(format!("ask {} {asked}", self.endpoint))(source)),
            Err(_) => Err(BenchError::NoAnswer { asked, deadline: self.deadline }),
        }
    }

    /// The value under a key.
    ///
    /// # Errors
    /// As [`Probe::command`], and [`BenchError::Unexpected`] if the key holds something else than a string.
    pub async fn get(&mut self, key: &str) -> Result<Option<String>, BenchError> {
        match self.command(&["GET", key]).await? {
            Reply::Nil => Ok(None),
            reply => reply.into_text("GET").map(Some),
        }
    }

    /// The rest of a key's life in milliseconds; −1 if it has no end, −2 if there is no such key.
    ///
    /// # Errors
    /// As [`Probe::command`].
    pub async fn pttl(&mut self, key: &str) -> Result<i64, BenchError> {
        self.command(&["PTTL", key]).await?.into_integer("PTTL")
    }

    /// The names of all keys that match a pattern, sorted.
    ///
    /// # Errors
    /// As [`Probe::command`].
    pub async fn keys(&mut self, pattern: &str) -> Result<Vec<String>, BenchError> {
        let reply = self.command(&["KEYS", pattern]).await?;
        let mut keys =
            reply.into_array("KEYS")?.into_iter().map(|key| key.into_text("KEYS")).collect::<Result<Vec<_>, _>>()?;
        keys.sort();
        Ok(keys)
    }

    /// A field of `INFO`, such as `run_id`, `role` or `total_connections_received`.
    ///
    /// # Errors
    /// As [`Probe::command`], and [`BenchError::Unexpected`] if there is no such field.
    pub async fn info_field(&mut self, field: &str) -> Result<String, BenchError> {
        let info = self.command(&["INFO", "everything"]).await?.into_text("INFO")?;
        let value = info_value(&info, field).map(str::to_owned);
        value.ok_or_else(|| BenchError::Unexpected { asked: "INFO".into(), answer: format!("no field {field}") })
    }

    /// How often a command has been called since the server's start, by clients and by scripts.
    ///
    /// # Errors
    /// As [`Probe::command`].
    pub async fn command_calls(&mut self, command: &str) -> Result<u64, BenchError> {
        let info = self.command(&["INFO", "commandstats"]).await?.into_text("INFO")?;
        let statistics = info_value(&info, &format!("cmdstat_{}", command.to_lowercase()));
        let calls = statistics.and_then(|text| text.strip_prefix("calls=")?.split(',').next()?.parse().ok());
        Ok(calls.unwrap_or(0))
    }
}

impl Reply {
    /// The text of a status or a value.
    ///
    /// # Errors
    /// [`BenchError::Unexpected`], naming what was `asked`.
    pub fn into_text(self, asked: &str) -> Result<String, BenchError> {
        match self {
            Self::Status(text) => Ok(text),
            Self::Bulk(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            other => Err(other.unexpected(asked)),
        }
    }

    /// The number.
    ///
    /// # Errors
    /// [`BenchError::Unexpected`], naming what was `asked`.
    pub fn into_integer(self, asked: &str) -> Result<i64, BenchError> {
        match self {
            Self::Integer(number) => Ok(number),
            other => Err(other.unexpected(asked)),
        }
    }

    /// The list.
    ///
    /// # Errors
    /// [`BenchError::Unexpected`], naming what was `asked`.
    pub fn into_array(self, asked: &str) -> Result<Vec<Self>, BenchError> {
        match self {
            Self::Array(replies) => Ok(replies),
            other => Err(other.unexpected(asked)),
        }
    }

    /// Whether the server refused.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    fn unexpected(self, asked: &str) -> BenchError {
        BenchError::Unexpected { asked: asked.into(), answer: format!("{self:?}") }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Bytes in both directions, whatever carries them.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

struct Connection(BufReader<Box<dyn Stream>>);

impl Connection {
    async fn open(endpoint: &Endpoint, credentials: Option<&(String, String)>) -> io::Result<Self> {
        let stream: Box<dyn Stream> = match endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        let mut connection = Self(BufReader::new(stream));
        if let Some((name, password)) = credentials {
            let replies = connection.ask(&encode(&["AUTH", name, password]), 1).await?;
            if let [Reply::Error(refusal)] = replies.as_slice() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal.clone()));
            }
        }
        Ok(connection)
    }

    async fn ask(&mut self, request: &[u8], questions: usize) -> io::Result<Vec<Reply>> {
        self.0.get_mut().write_all(request).await?;
        let mut replies = Vec::with_capacity(questions);
        for _ in 0..questions {
            replies.push(self.reply().await?);
        }
        Ok(replies)
    }

    /// Reads one reply; boxed, because a list contains replies.
    fn reply(&mut self) -> Pin<Box<dyn Future<Output = io::Result<Reply>> + Send + '_>> {
        Box::pin(async {
            let mut line = String::new();
            if self.0.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
                return Err(malformed(&line));
            };
            match kind {
                "+" => Ok(Reply::Status(rest.into())),
                "-" => Ok(Reply::Error(rest.into())),
                ":" => rest.parse().map(Reply::Integer).map_err(|_| malformed(&line)),
                "$" | "*" if rest == "-1" => Ok(Reply::Nil),
                "$" => {
                    let len: usize = rest.parse().map_err(|_| malformed(&line))?;
                    let mut bytes = vec![0; len + 2];
                    self.0.read_exact(&mut bytes).await?;
                    bytes.truncate(len);
                    Ok(Reply::Bulk(bytes))
                }
                "*" => {
                    let len: usize = rest.parse().map_err(|_| malformed(&line))?;
                    let mut replies = Vec::new();
                    for _ in 0..len {
                        replies.push(self.reply().await?);
                    }
                    Ok(Reply::Array(replies))
                }
                _ => Err(malformed(&line)),
            }
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"))
}

fn encode<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

fn shown<W: AsRef<[u8]>>(words: &[W]) -> String {
    words.iter().map(|word| String::from_utf8_lossy(word.as_ref())).collect::<Vec<Cow<'_, str>>>().join(" ")
}

fn info_value<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
}
