//! A Redis primary as a node.
//!
//! Each call is one script, run by its digest; a server that has forgotten the script is sent its text, at the price of
//! one more round trip. All calls of one node travel in order on one connection (see `link` and `wire`), which is made anew
//! when it breaks. The lock key is a plain string written with `NX PX`, as every other Redlock client writes it;
//! the names of the other keys stand in `keys`.
//!
//! Works with Redis 6.2 or later, and with Valkey.

mod calls;
mod commands;
mod keys;
mod link;
mod reply;
mod scripts;
mod target;
mod trouble;
mod wire;

use self::calls::Calls;
use self::commands::{Command, Commands, Kept};
pub use self::keys::KeyNames;
use self::link::Link;
use self::scripts::{Argument, ENROLL, EXTEND, LEAVE_LINE, RELEASE, STANDING, Script};
#[cfg(feature = "tls")]
pub use self::target::Certificates;
use self::target::Target;
use self::trouble::Trouble;
use self::wire::Closed;
use ::redis::{Cmd, Value};
use async_trait::async_trait;
use redlock_core::{
    Acquisition, Enrolment, Extension, Health, Inspection, KeyPrefix, Listener, LockNode, Manner, NodeError, Ownership,
    Place, Raising, Refusal, Releasing, Resources, Standing, Ttl,
};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// A Redis primary.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use redlock_backends::RedisNode;
/// use redlock_core::Redlock;
///
/// let nodes = RedisNode::connect_all([
///     "redis://10.0.0.1", "redis://10.0.0.2", "rediss://locker:secret@10.0.0.3/0", "redis://10.0.0.4", "unix:///run/redis.sock",
/// ])
/// .await?;
/// let redlock = Redlock::builder().nodes(nodes).build()?;
/// # Ok(())
/// # }
/// ```
pub struct RedisNode {
    link: Arc<Link>,
    calls: Calls,
}

impl RedisNode {
    /// Checks a URL without connecting: the first call does that, within its caller's deadline.
    ///
    /// A URL is `redis://`, `rediss://` (TLS) or `unix://`, with user, password and database; or
    /// `redis-sentinel://[user:password@]host[:port][,host[:port]…][/database]?set=NAME`: the hosts are Sentinels, and the node
    /// is whichever server they call the primary of the set. Such a set is one node with one vote. Replication is asynchronous,
    /// so a primary that takes over may not have seen the latest locks: with the
    /// [crash-recovery guard](redlock_core::RedlockBuilder::crash_guard) on it waits until they have run out. Nothing helps if some
    /// clients still reach the old primary meanwhile: independent primaries are better nodes.
    ///
    /// # Errors
    /// [`UrlError`] if it is not such a URL.
    pub fn open(url: &str) -> Result<Self, UrlError> {
        Ok(Self::to(Target::parse(url)?))
    }

    fn to(target: Target) -> Self {
        Self { link: Link::to(target), calls: Calls::default() }
    }

    /// Checks a `rediss://` URL and certificates without connecting; see [`RedisNode::open`].
    ///
    /// # Errors
    /// [`UrlError`] if it is not such a URL, or the certificates are none.
    #[cfg(feature = "tls")]
    pub fn open_with(url: &str, certificates: &Certificates) -> Result<Self, UrlError> {
        Ok(Self::to(Target::parse_with(url, certificates)?))
    }

    /// Trusts the server to remember everything over a restart, so that under the crash-recovery guard it goes on at once instead
    /// of being in quarantine. Say so before the node is connected to.
    ///
    /// It is believed only if it says on connecting that `appendonly` is `yes`, `appendfsync` `always`, `aof-load-truncated` and
    /// `no-appendfsync-on-rewrite` `no`, and that no replica was promoted; otherwise a warning in the log says what is in the way.
    /// Needs the right to `CONFIG GET`. What it says is not all: it must have been set up so *before* it was restarted, the address
    /// must not lead to another server (a replica that was promoted and then restarted cannot be told from it), its disk must not
    /// lie about what it has written, and nobody may bring back an older copy of its files.
    #[must_use]
    pub fn trusted(self) -> Self {
        self.link.trust();
        self
    }

    /// How to connect to the server that is the node at present, for questions that a [`LockNode`] has none for. Connections that
    /// are made of it are the caller's; the node does not use them.
    ///
    /// # Errors
    /// [`NodeError`] if it is up to Sentinels and none of them says where the primary is.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn client(&self) -> Result<::redis::Client, NodeError> {
        link::client(self.link.target()).await
    }

    /// Opens a node and connects.
    ///
    /// # Errors
    /// [`ConnectError`] if the URL is none, the server cannot be reached, refuses, or is a replica.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        let node = Self::open(url).map_err(|source| ConnectError::Url { position: 1, source })?;
        match node.link.connection().await {
            Ok(_) => Ok(node),
            Err(source) => Err(ConnectError::Node { node: node.name().to_owned(), source }),
        }
    }

    /// Opens the nodes of one quorum and connects to all of them at once, ready for
    /// [`RedlockBuilder::nodes`](redlock_core::RedlockBuilder::nodes).
    ///
    /// Nodes that cannot be reached at present are kept: they are connected to when they come up, and checked then. A server
    /// under two names has one vote at any time; here it is an error as well.
    ///
    /// # Errors
    /// [`ConnectError`] if a URL is none, or a server that can be reached refuses, is a replica, or is named twice: what
    /// somebody has to change.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect_all<'a>(
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Arc<dyn LockNode>>, ConnectError> {
        let open = |(position, url)| Self::open(url).map_err(|source| ConnectError::Url { position, source });
        let nodes: Vec<Self> = (1..).zip(urls).map(open).collect::<Result<_, _>>()?;
        for node in &nodes {
            node.link.begin_connecting();
        }
        for (position, node) in nodes.iter().enumerate() {
            let refused = |source| Err(ConnectError::Node { node: node.name().to_owned(), source });
            match node.link.connection().await {
                Err(error @ NodeError::Unreachable(_)) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(node = node.name(), error, "not reachable at present; it does not vote until it is");
                }
                Err(source) => return refused(source),
                Ok(_) => {
                    let twin = nodes[..position]
                        .iter()
                        .find(|other| node.identity().is_some_and(|identity| Some(identity) == other.identity()));
                    if let Some(twin) = twin {
                        let cause = format!("it has the run_id of {}", twin.name());
                        return refused(NodeError::refused(Refusal::SameServer, cause));
                    }
                }
            }
        }
        Ok(nodes.into_iter().map(|node| Arc::new(node) as Arc<dyn LockNode>).collect())
    }

    /// Opens the nodes of one quorum without connecting: the first calls do that, within their callers' deadline.
    ///
    /// # Errors
    /// [`UrlError`] for the first URL that is none.
    pub fn open_all<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Vec<Arc<dyn LockNode>>, UrlError> {
        urls.into_iter().map(|url| Ok(Arc::new(Self::open(url)?) as Arc<dyn LockNode>)).collect()
    }

    /// Runs a script by its digest, and by its text if the server does not know it (any more).
    async fn run(&self, by_digest: &Command, by_text: impl FnOnce() -> Cmd) -> Result<Value, NodeError> {
        match self.link.send(by_digest).await {
            Err(trouble) if trouble::script_is_unknown(&trouble) => {
                // The text teaches the server the script again, so this costs one more round trip per flush.
                self.link.order_is_lost();
                Ok(self.link.send(&Command::new(by_text())).await?)
            }
            answer => Ok(answer?),
        }
    }

    async fn run_with(
        &self,
        script: &Script,
        keys: &[&[String]],
        arguments: &[Argument<'_>],
    ) -> Result<Value, NodeError> {
        self.run(&Command::new(script.by_digest(keys, arguments)), || script.by_text(keys, arguments)).await
    }

    /// Runs a script that votes. Under the crash-recovery guard it is sent only where the node has said that it serves, and is
    /// made for the node's base.
    async fn vote<C: Deref<Target = Command>>(
        &self,
        ownership: &Ownership,
        by_digest: impl Fn(u64) -> C + Sync,
        by_text: impl Fn(u64) -> Cmd + Sync,
    ) -> Result<Value, NodeError> {
        let Some(quarantine) = ownership.quarantine() else { return self.run(&by_digest(0), || by_text(0)).await };
        let mut closed = None;
        // Once more on another connection if it was certainly not sent on the first.
        for _ in 0..2 {
            let (mut connection, base) = self.link.serving(ownership.prefix(), quarantine).await?;
            let mut sent = self.link.send_on(&mut connection, &by_digest(base)).await;
            if matches!(&sent, Ok(Err(trouble)) if trouble::script_is_unknown(trouble)) {
                self.link.order_is_lost();
                sent = self.link.send_on(&mut connection, &Command::new(by_text(base))).await;
            }
            match sent {
                Err(Closed(error)) => closed = Some(error),
                Ok(answer) => {
                    let answer = answer?;
                    if reply::is_quarantine(&answer) {
                        self.link.serves_no_more(&connection, ownership.prefix());
                        self.link.serving(ownership.prefix(), quarantine).await?;
                    }
                    return Ok(answer);
                }
            }
        }
        Err(closed.map_or_else(|| NodeError::unreachable("not connected"), |error| Trouble::Answered(error).into()))
    }

    async fn ask(&self, command: &Cmd) -> Result<Value, NodeError> {
        Ok(self.link.send(&Command::new(command.clone())).await?)
    }
}

#[async_trait]
impl LockNode for RedisNode {
    fn name(&self) -> &str {
        self.link.name()
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        let commands = ownership.derived(|| Commands::new(ownership));
        let (owner, keys) = (Argument::Text(ownership.owner().expose()), [commands.lock_and_counter_keys()]);
        let arguments = |base| [owner, Argument::Number(ttl.as_millis()), Argument::Number(floor.max(base))];
        let by_digest = |base| commands.acquire(&arguments(base), ttl, floor.max(base));
        let by_text = |base| commands.granting().acquire.by_text(&keys, &arguments(base));
        reply::acquisition(&self.vote(ownership, by_digest, by_text).await?, ownership.resources())
    }

    async fn listen(&self, prefix: &KeyPrefix, listener: &Listener) -> Result<(), NodeError> {
        self.calls.listen(&self.link, prefix, listener).await
    }

    async fn acquire_in_line(
        &self,
        ownership: &Ownership,
        ttl: Ttl,
        floor: u64,
        place: &Place,
    ) -> Result<Acquisition, NodeError> {
        let commands = ownership.derived(|| Commands::new(ownership));
        let (owner, waiter) = (ownership.owner().expose(), waiter(ownership.prefix(), place));
        let ttl = Argument::Number(ttl.as_millis());
        let manner = match place.manner {
            Manner::Yield => "yield",
            Manner::Called => "called",
            Manner::Overtake => "overtake",
        };
        let (owner, waiter, manner) = (Argument::Text(owner), Argument::Text(&waiter), Argument::Text(manner));
        let arguments = |base| [owner, ttl, Argument::Number(floor.max(base)), waiter, manner];
        let (script, keys) = (commands.granting().acquire_in_line, [commands.all_keys()]);
        let by_digest = |base| Kept::Own(Command::new(script.by_digest(&keys, &arguments(base))));
        let by_text = |base| script.by_text(&keys, &arguments(base));
        reply::acquisition(&self.vote(ownership, by_digest, by_text).await?, ownership.resources())
    }

    async fn leave_line(&self, prefix: &KeyPrefix, resources: &Resources, place: &Place) -> Result<(), NodeError> {
        let locks: Vec<String> = resources.iter().map(|resource| keys::lock(prefix, resource)).collect();
        let lines: Vec<String> = resources.iter().map(|resource| keys::line(prefix, resource)).collect();
        let waiter = waiter(prefix, place);
        self.run_with(&LEAVE_LINE, &[&locks, &lines], &[Argument::Text(&waiter)]).await.map(drop)
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        let commands = ownership.derived(|| Commands::new(ownership));
        let arguments = |base| [Argument::Text(ownership.owner().expose()), Argument::Number(to.max(base))];
        let (script, keys) = (commands.granting().raise, [commands.lock_and_counter_keys()]);
        let by_digest = |base| Kept::Own(Command::new(script.by_digest(&keys, &arguments(base))));
        let by_text = |base| script.by_text(&keys, &arguments(base));
        reply::raising(&self.vote(ownership, by_digest, by_text).await?)
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        let answers = self.extend_many(&[(ownership, ttl)]).await?;
        answers.first().copied().ok_or_else(|| NodeError::protocol("no answer for the only extension"))
    }

    async fn extend_many(&self, leases: &[(&Ownership, Ttl)]) -> Result<Vec<Extension>, NodeError> {
        let commands: Vec<_> =
            leases.iter().map(|(ownership, _)| ownership.derived(|| Commands::new(ownership))).collect();
        let keys: Vec<String> = commands.iter().flat_map(|commands| commands.lock_keys()).cloned().collect();
        let arguments: Vec<Argument<'_>> = leases
            .iter()
            .flat_map(|(ownership, ttl)| {
                let count = u64::try_from(ownership.resources().len()).unwrap_or(u64::MAX);
                let owner = Argument::Text(ownership.owner().expose());
                [Argument::Number(count), owner, Argument::Number(ttl.as_millis())]
            })
            .collect();
        // All of them are one client's: guarded alike.
        let Some((first, _)) = leases.first() else { return Ok(Vec::new()) };
        let by_digest = |_| Kept::Own(Command::new(EXTEND.by_digest(&[&keys], &arguments)));
        let answer = self.vote(first, by_digest, |_| EXTEND.by_text(&[&keys], &arguments)).await?;
        reply::extensions(&answer, leases.len())
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        let commands = ownership.derived(|| Commands::new(ownership));
        let arguments = [Argument::Text(ownership.owner().expose())];
        let by_text = || RELEASE.by_text(&[commands.lock_keys(), commands.line_keys()], &arguments);
        let answer = self.run(commands.release(&arguments), by_text).await?;
        reply::releasing(&answer)
    }

    async fn standing(&self, prefix: &KeyPrefix, quarantine: Duration) -> Result<Standing, NodeError> {
        self.link.standing(&STANDING, prefix, quarantine, &[]).await
    }

    fn keeps_record(&self) -> bool {
        true
    }

    async fn enroll(&self, prefix: &KeyPrefix, enrolment: &Enrolment) -> Result<Standing, NodeError> {
        let loss = enrolment.loss.unwrap_or(0);
        let at_once = u64::from(enrolment.at_once);
        let more = [Argument::Number(enrolment.base), Argument::Number(at_once), Argument::Number(loss)];
        self.link.standing(&ENROLL, prefix, enrolment.quarantine, &more).await
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let mut inspections = Vec::with_capacity(resources.len());
        for resource in resources {
            let lock = keys::lock(prefix, resource);
            let remaining = self.ask(::redis::cmd("PTTL").arg(&lock)).await?;
            let kind = self.ask(::redis::cmd("TYPE").arg(&lock)).await?;
            let holder = match reply::text(&kind).as_deref() {
                Some("string") => self.ask(::redis::cmd("GET").arg(&lock)).await?,
                _ => Value::Nil,
            };
            let counter = self.ask(::redis::cmd("GET").arg(keys::counter(prefix, resource))).await?;
            inspections.push(reply::inspection(resource, &remaining, &kind, &holder, &counter));
        }
        Ok(inspections)
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let mut health = Health::default();
        match self.ask(::redis::cmd("INFO").arg("default")).await {
            Ok(info) => reply::read_info(&mut health, &reply::text(&info).unwrap_or_default()),
            Err(NodeError::Refused { reason: Refusal::Permission, source }) => {
                health.unread.push(format!("identity, role, version and persistence: {source}"));
            }
            Err(error) => return Err(error),
        }
        match self.ask(&::redis::cmd("TIME")).await {
            Ok(time) => health.unix_time = reply::time(&time),
            Err(error) => health.unread.push(format!("clock: {error}")),
        }
        Ok(health)
    }

    fn order(&self) -> Option<u64> {
        Some(self.link.order())
    }

    fn identity(&self) -> Option<Arc<str>> {
        self.link.identity()
    }

    fn unix_time(&self) -> Option<Duration> {
        self.link.unix_time()
    }
}

/// A waiter as lines hold it: its ticket, and the channel on which its client listens.
fn waiter(prefix: &KeyPrefix, place: &Place) -> String {
    format!("{}@{}", place.ticket, keys::channel(prefix, &place.listener))
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// Why a URL cannot lead to a node. Does not show the URL, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Not a Redis URL.
    #[error(
        "not a Redis URL; write redis://[user:password@]host[:port][/database], rediss:// for TLS, \
         unix:///path/to/socket, or redis-sentinel://host,host?set=NAME, and in user and password %40 for @, %2F for /, \
         %3A for :, %23 for #"
    )]
    Malformed,
    /// TLS is asked for, and this program was built without it.
    #[error("rediss:// needs TLS; build redlock-backends with its feature \"tls\"")]
    NoTls,
    /// Certificates are given for a URL without TLS.
    #[error("certificates are for TLS; write rediss:// instead")]
    NotTls,
    /// The certificates, or the key, are not in PEM.
    #[error("the certificates or the key cannot be read; give the contents of PEM files")]
    Certificates,
}

/// Why nodes cannot be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A URL is none.
    #[error("the URL of node {position}: {source}")]
    Url {
        /// Which one, counted from 1. The URL is not shown, as it may hold a password.
        position: usize,
        /// What is wrong with it.
        source: UrlError,
    },
    /// A node refuses, or (where a single one is connected to) cannot be reached.
    #[error("node {node}: {source}")]
    Node {
        /// The node's name.
        node: String,
        /// What is wrong with it.
        source: NodeError,
    },
}
