//! What nobody can do without: the same commands to all servers, until a majority has said yes, on the plain client.
//!
//! No algorithm: no validity, no deadline of its own, no token, nobody left alone, nothing undone. Nothing is spawned
//! either; answers that were not waited for are polled to the end here, in later rounds.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisResult, Script, Value};
use redlock_core::tally::quorum_of;

use super::script_calls::{Calls, Time};
use super::{LoadError, clock};

/// How long the plain client waits for one answer: what our client gives a node unless told otherwise.
const ANSWER_LIMIT: Duration = Duration::from_millis(50);

/// Commands queued for one socket at most. Ours has the same, so that neither reorders while it waits for room.
const QUEUE_MAX: usize = 4_096;

const TTL_MILLIS: u64 = 10_000;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

type Call = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// What is sent to lock and to unlock.
#[derive(Debug, Clone)]
pub(super) enum Commands {
    /// `SET NX PX`, and a script that compares and deletes.
    Plain,
    /// What our own client sends, so that servers have the same to do.
    Ours(Arc<Calls>),
}

pub(super) struct FanOut {
    commands: Commands,
    name: String,
    release: Arc<str>,
    connections: Vec<MultiplexedConnection>,
    lagging: FuturesUnordered<Call>,
    /// Nobody else's, and counted up from round to round. A fair client draws a random one; this is the floor.
    owner: u128,
    time: Time,
}

impl FanOut {
    pub(super) async fn connect(urls: &[String], commands: Commands, name: &str) -> Result<Self, LoadError> {
        Self::connect_with_time(urls, commands, name, ANSWER_LIMIT).await
    }

    /// The same with another limit for an answer, for a profiler, under which everything is slow.
    pub(super) async fn connect_with_time(
        urls: &[String],
        commands: Commands,
        name: &str,
        answer_limit: Duration,
    ) -> Result<Self, LoadError> {
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(answer_limit)).set_pipeline_buffer_size(QUEUE_MAX);
        let mut connections = Vec::with_capacity(urls.len());
        for url in urls {
            let client = redis::Client::open(url.as_str())?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            let _: String =
                redis::cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut connection).await?;
            connections.push(connection);
        }
        Ok(Self {
            commands,
            name: name.to_owned(),
            release: Script::new(COMPARE_AND_DELETE).get_hash().into(),
            connections,
            lagging: FuturesUnordered::new(),
            owner: (u128::from(std::process::id()) << 96) + (u128::from(clock::nanos()) << 24),
            time: Time::now(),
        })
    }

    /// One more client on the same connections, of another resource.
    pub(super) fn another(&self, name: &str, number: u32) -> Self {
        Self {
            commands: self.commands.clone(),
            name: name.to_owned(),
            release: Arc::clone(&self.release),
            connections: self.connections.clone(),
            lagging: FuturesUnordered::new(),
            owner: self.owner + (u128::from(number) << 80),
            time: self.time.clone(),
        }
    }

    /// Locks and unlocks on a majority, or says in a word which of them did not work.
    pub(super) async fn round(&mut self) -> Result<(), &'static str> {
        self.owner += 1;
        let owner = format!("{:032x}", self.owner);
        let (locked, unlocked) = match self.commands.clone() {
            Commands::Plain => {
                let key = ["lock:", &self.name].concat();
                let mut acquire = redis::cmd("SET");
                acquire.arg(&key).arg(&owner).arg("NX").arg("PX").arg(TTL_MILLIS);
                let locked = self.ask(acquire, |answer| matches!(answer, Value::Okay)).await;
                let mut release = redis::cmd("EVALSHA");
                release.arg(&*self.release).arg(1).arg(&key).arg(&owner);
                (locked, self.ask(release, |answer| matches!(answer, Value::Int(1))).await)
            }
            Commands::Ours(calls) => {
                let acquire = calls.acquire(&self.name, &owner, &self.time);
                let locked = self.ask(acquire, Calls::is_granted).await;
                let release = calls.release(&self.name, &owner, &self.time);
                (locked, self.ask(release, Calls::is_released).await)
            }
        };
        match (locked, unlocked) {
            (true, true) => Ok(()),
            (true, false) => Err("not_unlocked"),
            (false, _) => Err("not_locked"),
        }
    }

    /// Waits for the answers that nobody has waited for, so that they do not fall into somebody else's turn.
    pub(super) async fn settle(&mut self) {
        while self.lagging.next().await.is_some() {}
    }

    /// Sends one command to all servers and waits until a majority has said yes or cannot any more.
    async fn ask(&mut self, command: Cmd, is_yes: fn(&Value) -> bool) -> bool {
        let command = Arc::new(command);
        let nodes = self.connections.len();
        let quorum = quorum_of(nodes);
        let mut calls: Vec<Call> = Vec::with_capacity(nodes);
        for connection in &self.connections {
            let (mut connection, command) = (connection.clone(), Arc::clone(&command));
            calls.push(Box::pin(async move { connection.send_packed_command(&command).await }));
        }
        let (mut yes, mut others) = (0, 0);
        let lagging = &mut self.lagging;
        let agreed = std::future::poll_fn(|cx| {
            calls.retain_mut(|call| match call.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    let counted = if answer.is_ok_and(|answer| is_yes(&answer)) { &mut yes } else { &mut others };
                    *counted += 1;
                    false
                }
                Poll::Pending => true,
            });
            while let Poll::Ready(Some(_)) = lagging.poll_next_unpin(cx) {}
            if quorum <= yes {
                Poll::Ready(true)
            } else if nodes < quorum + others {
                Poll::Ready(false)
            } else {
                Poll::Pending
            }
        })
        .await;
        self.lagging.extend(calls);
        agreed
    }
}

impl std::fmt::Debug for FanOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FanOut").field("commands", &self.commands).field("name", &self.name).finish_non_exhaustive()
    }
}
