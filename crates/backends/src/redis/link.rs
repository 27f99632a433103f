//! One connection to one server, made anew when it breaks.
//!
//! Every call goes through the same connection ([`super::wire`], or the redis crate's multiplexed one where there is TLS),
//! and its first poll queues the command there: commands travel in the order in which calls were first polled, so a release
//! does not overtake the acquire it undoes. Connecting goes
//! on in a task of its own, under a limit of its own, so that a caller's short deadline bounds how long *it* waits and
//! does not cut off a handshake that takes longer. Whoever waits for a connection that then fails gets the failure;
//! nothing piles up.
//!
//! Under the crash-recovery guard a call travels only on a connection on which the node has said that it serves: once for each
//! connection and prefix, since a server that restarts, or is replaced by another, ends its connections.

#[cfg(not(feature = "tls"))]
use super::UrlError;
use super::commands::Command;
use super::keys;
use super::reply;
use super::scripts::{self, Argument, Script};
use super::target::{Sentinels, TCP_PATIENCE, Target, keepalive};
use super::trouble::{self, Trouble};
use super::wire::{Closed, Stream, Wire};
use futures_util::future::join_all;
use redis::io::tcp::socket2::SockRef;
use redis::{Cmd, ConnectionAddr, RedisConnectionInfo, RedisResult, Value};
use redlock_core::{KeyPrefix, NodeError, Refusal, Service, Standing};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// The longest that connecting may take, with TLS, authentication and the first questions.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// How long connecting may go without an outcome before it is begun anew: its task has a limit, but the runtime that should
/// run it may not be driven any more.
const ABANDONED_AFTER: Duration = Duration::from_millis(1_500);

/// The longest that a server may take to answer before the connection is given up: far beyond any caller's deadline. What
/// was sent stays in the server's buffers, ahead of anything that a new connection will send.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The longest that one Sentinel may take to say where the primary is, before the next one is asked.
const SENTINEL_LIMIT: Duration = Duration::from_millis(300);

/// How long after a failure to connect calls fail at once, before one of them connects again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Commands queued for the socket at most. More than tasks of one program wait for at a time, so that queueing never waits,
/// and waiting never reorders.
#[cfg(feature = "tls")]
const QUEUE_MAX: usize = 65_536;

pub(super) struct Link {
    name: String,
    target: Arc<Target>,
    state: Mutex<State>,
    known: Mutex<Known>,
    /// Counts the occasions on which the order of commands may have been lost.
    order: AtomicU64,
    /// The server is said to remember everything over a restart.
    trusted: AtomicBool,
}

/// What was learned about the server when it was last connected to.
#[derive(Clone, Debug, Default)]
struct Known {
    identity: Option<Arc<str>>,
    time: Option<(Duration, Instant)>,
}

enum State {
    Idle,
    Connecting(Connecting),
    Up(Connection),
    Down { error: NodeError, until: Instant },
}

struct Connecting {
    outcome: watch::Receiver<Option<Result<Connection, NodeError>>>,
    task: AbortHandle,
    since: Instant,
}

#[derive(Clone)]
pub(super) struct Connection {
    transport: Transport,
    /// When it was made, to tell it from its successors.
    since: Instant,
    server: Arc<Server>,
}

/// Who is at the other end of a connection, and what it has said there.
struct Server {
    /// Its `run_id`, as far as it may be read.
    identity: Option<Arc<str>>,
    /// Why it cannot be relied on to keep anything.
    evicts: Option<String>,
    /// It keeps everything over a restart, as far as it says.
    durable: bool,
    /// The prefixes for which it serves under the crash-recovery guard.
    serves: Mutex<Vec<Serves>>,
}

/// The server serves one prefix.
struct Serves {
    prefix: KeyPrefix,
    base: u64,
    /// The longest quarantine that it has been told of on this connection.
    quarantine: Duration,
}

impl Server {
    fn serves(&self) -> MutexGuard<'_, Vec<Serves>> {
        self.serves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server is called whose identity may not be read. That it restarts is noticed then only if it comes back empty.
const UNREADABLE: &str = "unreadable";

/// What commands travel on.
#[derive(Clone)]
enum Transport {
    Wire(Wire),
    #[cfg(feature = "tls")]
    Multiplexed(redis::aio::MultiplexedConnection),
}

impl Transport {
    /// Sends one command; the first poll does. `Closed` if it was certainly not sent.
    async fn send(&mut self, command: &Command) -> Result<RedisResult<Value>, Closed> {
        let answer = match self {
            Self::Wire(wire) => wire.send(command.packed()).await?,
            #[cfg(feature = "tls")]
            Self::Multiplexed(multiplexed) => send_multiplexed(multiplexed, command).await?,
        };
        Ok(answer.and_then(Value::extract_error))
    }
}

#[cfg(feature = "tls")]
async fn send_multiplexed(
    multiplexed: &mut redis::aio::MultiplexedConnection,
    command: &Command,
) -> Result<RedisResult<Value>, Closed> {
    use std::future::poll_fn;
    use std::task::Poll;
    // Outside tokio's budget: a poll that yields before the command is queued would let another one overtake it.
    let mut sending = std::pin::pin!(tokio::task::unconstrained(multiplexed.send_packed_command(command.unpacked())));
    match poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await {
        // A command that fails in the very poll that was to queue it was not queued: nobody reads the queue any more.
        Poll::Ready(Err(error)) if trouble::connection_is_broken(&error) => Err(Closed(error)),
        Poll::Ready(answer) => Ok(answer),
        Poll::Pending => Ok(sending.await),
    }
}

impl Connecting {
    /// Whether nobody connects here any more: the task ended with its runtime, or its runtime is not driven.
    fn is_abandoned(&self) -> bool {
        self.task.is_finished() || ABANDONED_AFTER < self.since.elapsed()
    }
}

impl Link {
    pub(super) fn to(target: Target) -> Arc<Self> {
        let (state, known, order) = (Mutex::new(State::Idle), Mutex::default(), AtomicU64::new(0));
        let trusted = AtomicBool::new(false);
        Arc::new(Self { name: target.name(), target: Arc::new(target), state, known, order, trusted })
    }

    /// From the next connection on, the server is taken at its word when it says that it keeps everything.
    pub(super) fn trust(&self) {
        self.trusted.store(true, Ordering::Relaxed);
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    pub(super) fn identity(&self) -> Option<Arc<str>> {
        self.known().identity.clone()
    }

    /// What the server's calendar showed on connecting, carried forward.
    pub(super) fn unix_time(&self) -> Option<Duration> {
        self.known().time.map(|(shown, at)| shown.saturating_add(at.elapsed()))
    }

    /// A number that changes whenever the order of commands may have been lost.
    pub(super) fn order(&self) -> u64 {
        self.order.load(Ordering::Acquire)
    }

    /// Commands may take effect in another order than they were given in: they waited for a connection together, belong to
    /// two connections, or one of them is sent again.
    pub(super) fn order_is_lost(&self) {
        self.order.fetch_add(1, Ordering::AcqRel);
    }

    /// Sends one command and waits for its answer.
    pub(super) async fn send(self: &Arc<Self>, command: &Command) -> Result<Value, Trouble> {
        let mut connection = self.connection().await.map_err(Trouble::NotConnected)?;
        if let Ok(answer) = self.send_on(&mut connection, command).await {
            return answer;
        }
        // The server had closed the connection while nothing was going on, and the command was never sent.
        let mut connection = self.connection().await.map_err(Trouble::NotConnected)?;
        match self.send_on(&mut connection, command).await {
            Ok(answer) => answer,
            Err(Closed(error)) => Err(Trouble::Answered(error)),
        }
    }

    /// Sends one command on one connection; `Closed` if it was certainly not sent.
    pub(super) async fn send_on(
        &self,
        connection: &mut Connection,
        command: &Command,
    ) -> Result<Result<Value, Trouble>, Closed> {
        match connection.transport.send(command).await {
            Ok(answer) => Ok(self.heard(connection, answer)),
            Err(closed) => {
                self.lose(connection);
                Err(closed)
            }
        }
    }

    /// A connection on which the node serves under the crash-recovery guard, and its base.
    pub(super) async fn serving(
        self: &Arc<Self>,
        prefix: &KeyPrefix,
        quarantine: Duration,
    ) -> Result<(Connection, u64), NodeError> {
        let connection = self.connection().await?;
        let told = |serves: &&Serves| serves.prefix == *prefix && quarantine <= serves.quarantine;
        let known = connection.server.serves().iter().find(told).map(|serves| serves.base);
        if let Some(base) = known {
            return Ok((connection, base));
        }
        // What was asked for before may be sent while this is being asked.
        self.order_is_lost();
        let standing = self.standing_on(connection.clone(), &scripts::STANDING, prefix, quarantine, &[]).await?;
        match standing.service {
            Service::Enrolled => Ok((connection, standing.base)),
            Service::Quarantined { remaining } => Err(NodeError::Quarantined { remaining }),
        }
    }

    /// How the node stands, on whichever connection there is.
    pub(super) async fn standing(
        self: &Arc<Self>,
        script: &Script,
        prefix: &KeyPrefix,
        quarantine: Duration,
        more: &[Argument<'_>],
    ) -> Result<Standing, NodeError> {
        let connection = self.connection().await?;
        self.standing_on(connection, script, prefix, quarantine, more).await
    }

    async fn standing_on(
        &self,
        mut connection: Connection,
        script: &Script,
        prefix: &KeyPrefix,
        quarantine: Duration,
        more: &[Argument<'_>],
    ) -> Result<Standing, NodeError> {
        let server = Arc::clone(&connection.server);
        if let Some(policy) = &server.evicts {
            let cause =
                format!("maxmemory-policy is {policy}, so it may throw locks and counters away; set noeviction");
            return Err(NodeError::refused(Refusal::Configuration, cause));
        }
        let (identity, durable) = (Argument::Text(server.identity.as_deref().unwrap_or(UNREADABLE)), server.durable);
        let millis = u64::try_from(quarantine.as_millis()).unwrap_or(u64::MAX);
        let arguments: Vec<Argument<'_>> = [identity, Argument::Number(millis), Argument::Number(u64::from(durable))]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        let keys = [keys::record(prefix)];
        let answer = self.run_on(&mut connection, script, &[&keys], &arguments).await;
        let mut standing = reply::standing(&answer?)?;
        if mutant!("counters that came back count") {
            standing.base = 0;
        }
        let mut serves = server.serves();
        serves.retain(|serves| serves.prefix != *prefix);
        if standing.service == Service::Enrolled {
            serves.push(Serves { prefix: prefix.clone(), base: standing.base, quarantine: standing.quarantine });
        }
        Ok(standing)
    }

    /// Runs a script on one connection, by its text if the server does not know it.
    async fn run_on(
        &self,
        connection: &mut Connection,
        script: &Script,
        keys: &[&[String]],
        arguments: &[Argument<'_>],
    ) -> Result<Value, NodeError> {
        let gone = |Closed(error)| NodeError::from(Trouble::Answered(error));
        let by_digest = Command::new(script.by_digest(keys, arguments));
        match self.send_on(connection, &by_digest).await.map_err(gone)? {
            Err(trouble) if trouble::script_is_unknown(&trouble) => {
                let by_text = Command::new(script.by_text(keys, arguments));
                Ok(self.send_on(connection, &by_text).await.map_err(gone)??)
            }
            answer => Ok(answer?),
        }
    }

    /// The node has said on this connection that it does not serve after all.
    pub(super) fn serves_no_more(&self, connection: &Connection, prefix: &KeyPrefix) {
        connection.server.serves().retain(|serves| serves.prefix != *prefix);
    }

    /// Gives up a connection whose answer says that it is of no more use.
    fn heard(&self, connection: &Connection, answer: RedisResult<Value>) -> Result<Value, Trouble> {
        answer.map_err(|error| {
            if trouble::connection_is_broken(&error) || trouble::role_has_changed(&error) {
                self.lose(connection);
            }
            Trouble::Answered(error)
        })
    }

    /// The connection, made first if need be.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Connection, NodeError> {
        let mut outcome = {
            let mut state = self.state();
            match &*state {
                State::Up(connection) => return Ok(connection.clone()),
                State::Down { error, until } if Instant::now() < *until => return Err(error.clone()),
                State::Connecting(connecting) if !connecting.is_abandoned() => connecting.outcome.clone(),
                _ => self.connect_in_background(&mut state),
            }
        };
        let wait = async { outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone()) };
        let connected = tokio::time::timeout(ABANDONED_AFTER, wait).await.ok().flatten();
        connected
            .unwrap_or_else(|| Err(NodeError::unreachable("the runtime that was connecting does not run any more")))
    }

    /// Starts connecting without waiting for it.
    pub(super) fn begin_connecting(self: &Arc<Self>) {
        let mut state = self.state();
        if matches!(*state, State::Idle) {
            self.connect_in_background(&mut state);
        }
    }

    fn connect_in_background(
        self: &Arc<Self>,
        state: &mut State,
    ) -> watch::Receiver<Option<Result<Connection, NodeError>>> {
        let (tell, outcome) = watch::channel(None);
        let (target, trusted) = (Arc::clone(&self.target), self.trusted.load(Ordering::Relaxed));
        let link = Arc::downgrade(self);
        let connect = async move {
            let greeting = match tokio::time::timeout(CONNECT_LIMIT, greet(&target, trusted)).await {
                Ok(greeting) => greeting,
                Err(_) => Err(NodeError::unreachable(format!("no connection within {CONNECT_LIMIT:?}"))),
            };
            // A link that is gone has nobody who waits.
            if let Some(link) = link.upgrade() {
                let connected = greeting.and_then(|greeting| link.accept(greeting));
                link.settle(&connected);
                let _ = tell.send(Some(connected));
            }
        };
        let task = tokio::runtime::Handle::current().spawn(connect).abort_handle();
        self.order_is_lost();
        if let State::Connecting(abandoned) = &*state {
            abandoned.task.abort();
        }
        *state = State::Connecting(Connecting { outcome: outcome.clone(), task, since: Instant::now() });
        outcome
    }

    /// Decides whether a server that has answered may be this node.
    fn accept(&self, greeting: Greeting) -> Result<Connection, NodeError> {
        let Greeting { transport, identity, primary, evicts, durable, time } = greeting;
        if primary == Some(false) {
            let cause = "the server calls itself a replica";
            return Err(NodeError::refused(Refusal::Replica, cause));
        }
        if identity.is_none() {
            tracing::warn!(
                node = self.name,
                "the server's identity cannot be read, so a server named twice would not be noticed; allow INFO"
            );
        }
        if let Some(Err(why)) = &durable {
            tracing::warn!(
                node = self.name,
                why,
                "said to be trusted over restarts, and is not: it will be in quarantine"
            );
        }
        let (now, durable) = (Instant::now(), matches!(durable, Some(Ok(()))));
        let server = Arc::new(Server { identity: identity.clone(), evicts, durable, serves: Mutex::default() });
        *self.known() = Known { identity, time: time.map(|time| (time, now)) };
        Ok(Connection { transport, since: now, server })
    }

    fn settle(&self, connected: &Result<Connection, NodeError>) {
        *self.state() = match connected {
            Ok(connection) => State::Up(connection.clone()),
            Err(error) => State::Down { error: error.clone(), until: Instant::now() + RECONNECT_PAUSE },
        };
    }

    /// The connection is of no more use; the next call makes another.
    fn lose(&self, connection: &Connection) {
        let mut state = self.state();
        if matches!(&*state, State::Up(current) if current.since == connection.since) {
            *state = State::Idle;
            self.order_is_lost();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let State::Connecting(connecting) = &*self.state() {
            connecting.task.abort();
        }
    }
}

/// What a server says when it is first spoken to.
struct Greeting {
    transport: Transport,
    identity: Option<Arc<str>>,
    primary: Option<bool>,
    evicts: Option<String>,
    /// Whether it keeps everything over a restart, or why not; `None` if nobody has said so.
    durable: Option<Result<(), String>>,
    time: Option<Duration>,
}

/// Connects, asks who is there, and teaches the scripts: one round trip after the handshake.
async fn greet(target: &Target, trusted: bool) -> Result<Greeting, NodeError> {
    let transport = connect(&client(target).await?).await?;
    let ask = |command: Cmd| {
        let mut transport = transport.clone();
        async move { transport.send(&Command::new(command)).await.unwrap_or_else(|Closed(error)| Err(error)) }
    };
    let questions = [redis::cmd("INFO"), redis::cmd("TIME")];
    let mut answers =
        join_all(questions.into_iter().chain(scripts::all().map(Script::load)).map(ask)).await.into_iter();
    // Further answers do not matter: a script that cannot be taught ahead is sent with its first call.
    let (info, time) = (answers.next().expect("one answer each"), answers.next().expect("one answer each"));
    let info = match info {
        Ok(info) => reply::text(&info),
        Err(error) => match trouble::classify(error) {
            NodeError::Refused { reason: Refusal::Permission, .. } => None,
            error => return Err(error),
        },
    };
    let identity = info.as_deref().and_then(|info| reply::info_field(info, "run_id")).map(Arc::from);
    let primary = info.as_deref().and_then(reply::is_primary);
    let evicts = info.as_deref().and_then(reply::evicts).map(str::to_owned);
    let durable = match trusted {
        true => Some(durable(info.as_deref(), &ask(durability()).await)),
        false => None,
    };
    let time = time.ok().as_ref().and_then(reply::time);
    Ok(Greeting { transport, identity, primary, evicts, durable, time })
}

/// What a server is asked that is said to keep everything.
fn durability() -> Cmd {
    let mut config = redis::cmd("CONFIG");
    config.arg("GET").arg("append*").arg("aof-load-truncated").arg("no-appendfsync-on-rewrite");
    config
}

/// Whether everything that a server has answered is there after a restart; or why not.
fn durable(info: Option<&str>, config: &RedisResult<Value>) -> Result<(), String> {
    let config = config.as_ref().map_err(|_| "CONFIG GET is not allowed, so it cannot be known".to_owned())?;
    let words: Vec<String> = match config {
        Value::Array(words) => words.iter().filter_map(reply::text).collect(),
        Value::Map(words) => words.iter().flat_map(|(name, value)| [name, value]).filter_map(reply::text).collect(),
        _ => Vec::new(),
    };
    let setting = |name: &str| words.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1));
    for (name, wanted) in [
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("aof-load-truncated", "no"),
        ("no-appendfsync-on-rewrite", "no"),
    ] {
        match setting(name) {
            Some(value) if value == wanted => {}
            value => return Err(format!("{name} is {}, not {wanted}", value.map_or("unknown", String::as_str))),
        }
    }
    // A replica that was promoted remembers what it was sent, not what was answered.
    match info.and_then(|info| reply::info_field(info, "second_repl_offset")) {
        Some("-1") => Ok(()),
        Some(_) => Err("it was a replica of another server".to_owned()),
        None => Err("INFO is not allowed, so it cannot be known".to_owned()),
    }
}

/// How to connect to the server that is the node at present.
pub(super) async fn client(target: &Target) -> Result<redis::Client, NodeError> {
    match target {
        Target::Address(client) => Ok(client.clone()),
        Target::Sentinels(sentinels) => primary_of(sentinels).await,
    }
}

/// Asks one Sentinel after the other where the primary is.
async fn primary_of(sentinels: &Sentinels) -> Result<redis::Client, NodeError> {
    let mut last = NodeError::unreachable("there is no Sentinel to ask");
    for sentinel in &sentinels.all {
        match tokio::time::timeout(SENTINEL_LIMIT, ask_sentinel(sentinel, &sentinels.set)).await {
            Ok(Ok((host, port))) => return sentinels.primary_at(host, port).map_err(trouble::classify),
            Ok(Err(error)) => last = error,
            Err(_) => last = NodeError::unreachable(format!("a Sentinel did not answer within {SENTINEL_LIMIT:?}")),
        }
    }
    Err(last)
}

async fn ask_sentinel(sentinel: &redis::Client, set: &str) -> Result<(String, u16), NodeError> {
    let mut transport = connect(sentinel).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(set);
    let answer = transport.send(&Command::new(question)).await.unwrap_or_else(|Closed(error)| Err(error));
    match answer.map_err(trouble::classify)? {
        Value::Array(address) => {
            let address: Vec<String> = address.iter().filter_map(reply::text).collect();
            let [host, port] = address.as_slice() else { return Err(NodeError::protocol("no address")) };
            Ok((host.clone(), port.parse().map_err(NodeError::protocol)?))
        }
        Value::Nil => {
            Err(NodeError::refused(Refusal::Configuration, format!("the Sentinels know no set called {set}")))
        }
        _ => Err(NodeError::protocol("a Sentinel's answer is no address")),
    }
}

/// A connection on which commands may be sent: authenticated, and on the right database.
async fn connect(client: &redis::Client) -> Result<Transport, NodeError> {
    let info = client.get_connection_info();
    let stream = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Stream::tcp(host, *port, set_tcp_options).await,
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Stream::unix(path).await,
        _ => return connect_with_tls(client).await,
    };
    let wire = Wire::new(stream.map_err(NodeError::unreachable)?, ANSWER_LIMIT);
    let mut transport = Transport::Wire(wire);
    for command in handshake(info.redis_settings()) {
        let answer = transport.send(&Command::new(command)).await.unwrap_or_else(|Closed(error)| Err(error));
        answer.map_err(|error| match trouble::classify(error) {
            // Such as a password for a server that has none.
            NodeError::Protocol(said) => NodeError::refused(Refusal::Authentication, said),
            error => error,
        })?;
    }
    Ok(transport)
}

/// What is said before anything else.
fn handshake(settings: &RedisConnectionInfo) -> Vec<Cmd> {
    let mut commands = Vec::new();
    if let Some(password) = settings.password() {
        let mut auth = redis::cmd("AUTH");
        if let Some(username) = settings.username() {
            auth.arg(username);
        }
        auth.arg(password);
        commands.push(auth);
    }
    if settings.db() != 0 {
        let mut select = redis::cmd("SELECT");
        select.arg(settings.db());
        commands.push(select);
    }
    commands
}

fn set_tcp_options(socket: SockRef<'_>) -> std::io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&keepalive())?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(TCP_PATIENCE))?;
    Ok(())
}

#[cfg(feature = "tls")]
async fn connect_with_tls(client: &redis::Client) -> Result<Transport, NodeError> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        .set_response_timeout(Some(ANSWER_LIMIT))
        .set_pipeline_buffer_size(QUEUE_MAX);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await;
    connection.map(Transport::Multiplexed).map_err(trouble::classify)
}

#[cfg(not(feature = "tls"))]
async fn connect_with_tls(_: &redis::Client) -> Result<Transport, NodeError> {
    Err(NodeError::refused(Refusal::Configuration, UrlError::NoTls))
}
