//! A node of one's own: in-memory nodes that other processes reach over a socket, one line of JSON for each question.
//!
//! ```text
//!  LockNode for WireNode ── {"Acquire":{…}} ──▶ Host ──▶ MemoryNode        where no Redis is installed
//!                        ◀── {"Granted":{…}} ──
//! ```
//!
//! It also shows how little a [`LockNode`] has to do: send the question, give the answer, and call everything that goes
//! wrong on the way an error, which means "unknown".

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use redlock_backends::MemoryNode;
use redlock_core::{
    Acquisition, Extension, Fingerprint, HeldBy, Holder, Inspection, KeyPrefix, LockNode, NodeError, Owner, Ownership,
    Raising, Releasing, Remaining, Resource, Resources, Ttl,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The longest that a question may take, whatever its caller's deadline is.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, Deserialize)]
enum Question {
    Time,
    Acquire { claim: Claim, ttl_ms: u64, floor: u64 },
    Raise { claim: Claim, to: u64 },
    Extend { claim: Claim, ttl_ms: u64 },
    Release { claim: Claim },
    Inspect { prefix: String, resources: Vec<String> },
}

/// An [`Ownership`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    prefix: String,
    resources: Vec<String>,
    owner: String,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Time { since_1970: Duration },
    Granted { counter: u64 },
    Held(Seen),
    At(u64),
    Extended,
    Released,
    Gone,
    NotOwner,
    Inspected(Vec<(Option<Seen>, Option<u64>)>),
    NotUnderstood(String),
}

/// A [`HeldBy`] on the wire.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    resource: String,
    holder: Option<String>,
    remaining: Option<Duration>,
}

/// A node at the other end of a socket.
#[derive(Debug)]
pub(crate) struct WireNode {
    name: String,
    address: SocketAddr,
    /// One question at a time, in the order in which they were asked.
    line: tokio::sync::Mutex<Option<BufReader<TcpStream>>>,
    /// What the node's calendar showed when it was last connected to.
    calendar: Mutex<Option<(Duration, Instant)>>,
}

impl WireNode {
    /// Connects at once, so that the node's calendar is known before the first lock. A node that cannot be reached is
    /// connected to when it is asked.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let (line, calendar) = (tokio::sync::Mutex::default(), Mutex::default());
        let node = Self { name: address.to_string(), address, line, calendar };
        let _ = node.ask(&Question::Time).await;
        node
    }

    async fn ask(&self, question: &Question) -> Result<Answer, NodeError> {
        let asked = async {
            let mut line = self.line.lock().await;
            // Taken out for the time of the question: an answer that nobody waited for must not meet the next one.
            let mut connection = match line.take() {
                Some(connection) => connection,
                None => self.dial().await?,
            };
            let answer = exchange(&mut connection, question).await?;
            *line = Some(connection);
            Ok(answer)
        };
        match tokio::time::timeout(ANSWER_LIMIT, asked).await {
            Ok(Ok(Answer::NotUnderstood(why))) => Err(NodeError::protocol(why)),
            Ok(answer) => answer,
            Err(_) => Err(NodeError::Timeout { after: ANSWER_LIMIT }),
        }
    }

    async fn dial(&self) -> Result<BufReader<TcpStream>, NodeError> {
        let stream = TcpStream::connect(self.address).await.map_err(NodeError::unreachable)?;
        stream.set_nodelay(true).map_err(NodeError::unreachable)?;
        let mut connection = BufReader::new(stream);
        if let Answer::Time { since_1970 } = exchange(&mut connection, &Question::Time).await? {
            *self.calendar.lock().unwrap_or_else(PoisonError::into_inner) = Some((since_1970, Instant::now()));
        }
        Ok(connection)
    }
}

async fn exchange(connection: &mut BufReader<TcpStream>, question: &Question) -> Result<Answer, NodeError> {
    let mut line = serde_json::to_string(question).map_err(NodeError::protocol)?;
    line.push('\n');
    connection.get_mut().write_all(line.as_bytes()).await.map_err(NodeError::unreachable)?;
    line.clear();
    match connection.read_line(&mut line).await {
        Ok(0) => Err(NodeError::unreachable("the connection was closed")),
        Ok(_) => serde_json::from_str(&line).map_err(NodeError::protocol),
        Err(error) => Err(NodeError::unreachable(error)),
    }
}

#[async_trait]
impl LockNode for WireNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        match self.ask(&Question::Acquire { claim: ownership.into(), ttl_ms: ttl.as_millis(), floor }).await? {
            Answer::Granted { counter } => Ok(Acquisition::Granted { counter }),
            Answer::Held(seen) => Ok(Acquisition::Held(seen.try_into()?)),
            other => Err(unexpected(&other)),
        }
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        match self.ask(&Question::Raise { claim: ownership.into(), to }).await? {
            Answer::At(counter) => Ok(Raising::At(counter)),
            Answer::NotOwner => Ok(Raising::NotOwner),
            other => Err(unexpected(&other)),
        }
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        match self.ask(&Question::Extend { claim: ownership.into(), ttl_ms: ttl.as_millis() }).await? {
            Answer::Extended => Ok(Extension::Extended),
            Answer::Gone => Ok(Extension::Gone),
            Answer::NotOwner => Ok(Extension::NotOwner),
            other => Err(unexpected(&other)),
        }
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        match self.ask(&Question::Release { claim: ownership.into() }).await? {
            Answer::Released => Ok(Releasing::Released),
            Answer::Gone => Ok(Releasing::Gone),
            Answer::NotOwner => Ok(Releasing::NotOwner),
            other => Err(unexpected(&other)),
        }
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let question = Question::Inspect { prefix: prefix.as_str().to_owned(), resources: names(resources) };
        let seen = match self.ask(&question).await? {
            Answer::Inspected(seen) => seen,
            other => return Err(unexpected(&other)),
        };
        let pairs = resources.iter().zip(seen);
        pairs
            .map(|(resource, (seen, counter))| {
                Ok(Inspection { resource: resource.clone(), held: seen.map(HeldBy::try_from).transpose()?, counter })
            })
            .collect()
    }

    fn unix_time(&self) -> Option<Duration> {
        let calendar = *self.calendar.lock().unwrap_or_else(PoisonError::into_inner);
        calendar.map(|(shown, at)| shown.saturating_add(at.elapsed()))
    }
}

fn unexpected(answer: &Answer) -> NodeError {
    NodeError::protocol(format!("an answer to another question: {answer:?}"))
}

fn names(resources: &Resources) -> Vec<String> {
    resources.iter().map(|resource| resource.name().to_owned()).collect()
}

impl From<&Ownership> for Claim {
    fn from(ownership: &Ownership) -> Self {
        Self {
            prefix: ownership.prefix().as_str().to_owned(),
            resources: names(ownership.resources()),
            owner: ownership.owner().expose().to_owned(),
        }
    }
}

impl Claim {
    fn ownership(&self) -> Result<Ownership> {
        let owner = Owner::assume(&self.owner);
        Ok(Ownership::new(KeyPrefix::new(&self.prefix)?, resources(&self.resources)?, owner))
    }
}

fn resources(names: &[String]) -> Result<Resources> {
    let resources: Result<Vec<Resource>, _> = names.iter().map(Resource::new).collect();
    Ok(Resources::new(resources?)?)
}

impl From<&HeldBy> for Seen {
    fn from(held: &HeldBy) -> Self {
        Self {
            resource: held.resource.name().to_owned(),
            holder: match &held.holder {
                Holder::Owner(fingerprint) => Some(fingerprint.to_string()),
                _ => None,
            },
            remaining: match held.remaining {
                Remaining::For(remaining) => Some(remaining),
                _ => None,
            },
        }
    }
}

impl TryFrom<Seen> for HeldBy {
    type Error = NodeError;

    fn try_from(seen: Seen) -> Result<Self, NodeError> {
        Ok(Self {
            resource: Resource::new(&seen.resource).map_err(NodeError::protocol)?,
            holder: seen.holder.map_or(Holder::Unknown, |shown| Holder::Owner(fingerprint(&shown))),
            remaining: seen.remaining.map_or(Remaining::Unknown, Remaining::For),
        })
    }
}

/// A fingerprint as it was shown. The beginning of a value that is twice as long, or more, is shown whole.
fn fingerprint(shown: &str) -> Fingerprint {
    Fingerprint::of(&shown.trim_end_matches('…').repeat(2))
}

/// An in-memory node behind a port, which can be closed as if its server had been killed.
#[derive(Debug)]
pub(crate) struct Host {
    address: SocketAddr,
    node: Arc<MemoryNode>,
    /// The listener's task, which owns those of its connections; none while the port is closed.
    tasks: tokio::sync::Mutex<JoinSet<()>>,
}

impl Host {
    pub(crate) async fn start() -> Result<Self> {
        let listener = redlock_bench::ports::bind_free().await?;
        let address = listener.local_addr()?;
        let host = Self { address, node: Arc::new(MemoryNode::new(address.to_string())), tasks: Default::default() };
        host.node.clock().set(since_1970());
        host.serve(listener).await;
        Ok(host)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many locks are held on this node.
    pub(crate) fn locks(&self) -> usize {
        self.node.locks().len()
    }

    /// Closes the port and all connections, and forgets everything, as a killed server does.
    pub(crate) async fn kill(&self) {
        self.tasks.lock().await.shutdown().await;
        self.node.forget();
    }

    /// Opens the port again.
    pub(crate) async fn restart(&self) -> Result<()> {
        let listener =
            TcpListener::bind(self.address).await.with_context(|| format!("port {} is taken", self.address.port()))?;
        self.serve(listener).await;
        Ok(())
    }

    async fn serve(&self, listener: TcpListener) {
        let node = Arc::clone(&self.node);
        self.tasks.lock().await.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    // An error concerns the connection that was about to come in.
                    Ok((client, _)) = listener.accept() => drop(connections.spawn(attend(client, Arc::clone(&node)))),
                    Some(_) = connections.join_next() => {}
                }
            }
        });
    }
}

/// Answers one client until it goes.
async fn attend(client: TcpStream, node: Arc<MemoryNode>) {
    let _ = client.set_nodelay(true);
    let mut client = BufReader::new(client);
    let mut line = String::new();
    while let Ok(1..) = client.read_line(&mut line).await {
        let answer = match serde_json::from_str(&line) {
            Ok(question) => {
                answer(&node, question).await.unwrap_or_else(|error| Answer::NotUnderstood(format!("{error:#}")))
            }
            Err(error) => Answer::NotUnderstood(error.to_string()),
        };
        line = serde_json::to_string(&answer).unwrap_or_default();
        line.push('\n');
        if client.get_mut().write_all(line.as_bytes()).await.is_err() {
            return;
        }
        line.clear();
    }
}

async fn answer(node: &MemoryNode, question: Question) -> Result<Answer> {
    Ok(match question {
        Question::Time => Answer::Time { since_1970: node.clock().now() },
        Question::Acquire { claim, ttl_ms, floor } => {
            match node.acquire(&claim.ownership()?, ttl(ttl_ms)?, floor).await? {
                Acquisition::Granted { counter } => Answer::Granted { counter },
                Acquisition::Held(held) => Answer::Held((&held).into()),
            }
        }
        Question::Raise { claim, to } => match node.raise(&claim.ownership()?, to).await? {
            Raising::At(counter) => Answer::At(counter),
            Raising::NotOwner => Answer::NotOwner,
        },
        Question::Extend { claim, ttl_ms } => match node.extend(&claim.ownership()?, ttl(ttl_ms)?).await? {
            Extension::Extended => Answer::Extended,
            Extension::Gone => Answer::Gone,
            Extension::NotOwner => Answer::NotOwner,
        },
        Question::Release { claim } => match node.release(&claim.ownership()?).await? {
            Releasing::Released | Releasing::PassedOn => Answer::Released,
            Releasing::Gone => Answer::Gone,
            Releasing::NotOwner => Answer::NotOwner,
        },
        Question::Inspect { prefix, resources: names } => {
            let inspections = node.inspect(&KeyPrefix::new(&prefix)?, &resources(&names)?).await?;
            let seen = |inspection: &Inspection| (inspection.held.as_ref().map(Seen::from), inspection.counter);
            Answer::Inspected(inspections.iter().map(seen).collect())
        }
    })
}

fn ttl(millis: u64) -> Result<Ttl> {
    Ok(Ttl::new(Duration::from_millis(millis))?)
}

#[expect(clippy::disallowed_methods, reason = "an in-memory node has a calendar as a server has one")]
fn since_1970() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_comes_over_the_wire_as_it_was() {
        for owner in ["0123456789abcdef0123456789abcdef", "short", ""] {
            let sent = Fingerprint::of(owner);
            assert_eq!(fingerprint(&sent.to_string()), sent, "{owner}");
        }
    }
}
