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
use tokio::time::Instant;

use super::LoadError;

/// How long the plain client waits for one answer: what our client gives a node unless told otherwise.
const ANSWER_LIMIT: Duration = Duration::from_millis(50);

/// Commands queued for one socket at most. Ours has the same, so that neither reorders while it waits for room.
const QUEUE_MAX: usize = 4_096;

const TTL_MILLIS: u64 = 10_000;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The text of our own scripts, as our node sends them.
const OUR_ACQUIRE: &str = concat!(
    include_str!("../../../backends/src/redis/scripts/record.lua"),
    include_str!("../../../backends/src/redis/scripts/held.lua"),
    include_str!("../../../backends/src/redis/scripts/acquire.lua")
);
const OUR_RELEASE: &str = concat!(
    include_str!("../../../backends/src/redis/scripts/line.lua"),
    include_str!("../../../backends/src/redis/scripts/release.lua")
);

type Call = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// What is sent to lock and to unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commands {
    /// `SET NX PX`, and a script that compares and deletes.
    Plain,
    /// The scripts that our nodes run, so that servers have the same to do.
    OurScripts,
}

pub(super) struct FanOut {
    commands: Commands,
    key: String,
    acquire: String,
    release: String,
    connections: Vec<MultiplexedConnection>,
    lagging: FuturesUnordered<Call>,
    /// Nobody else's, since it begins with the process id, and counted up from round to round. A fair client draws a
    /// random one; this is the floor.
    owner: u128,
    /// What the first server's clock showed on connecting, and when that was: what our nodes make their floor of.
    time: (Duration, Instant),
}

impl FanOut {
    pub(super) async fn connect(urls: &[String], commands: Commands, key: &str) -> Result<Self, LoadError> {
        let (acquire, release) = match commands {
            // Not a script.
            Commands::Plain => ("", COMPARE_AND_DELETE),
            Commands::OurScripts => (OUR_ACQUIRE, OUR_RELEASE),
        };
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_LIMIT)).set_pipeline_buffer_size(QUEUE_MAX);
        let mut connections = Vec::with_capacity(urls.len());
        let mut time = (0, 0);
        for url in urls {
            let client = redis::Client::open(url.as_str())?;
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            for text in [acquire, release].into_iter().filter(|text| !text.is_empty()) {
                let _: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut connection).await?;
            }
            time = redis::cmd("TIME").query_async(&mut connection).await?;
            connections.push(connection);
        }
        Ok(Self {
            commands,
            key: key.to_owned(),
            acquire: Script::new(acquire).get_hash().to_owned(),
            release: Script::new(release).get_hash().to_owned(),
            connections,
            lagging: FuturesUnordered::new(),
            owner: u128::from(std::process::id()) << 96,
            time: (Duration::new(time.0, time.1 * 1_000), Instant::now()),
        })
    }

    /// Locks and unlocks on a majority, or says in a word which of them did not work.
    pub(super) async fn round(&mut self) -> Result<(), &'static str> {
        self.owner += 1;
        let owner = format!("{:032x}", self.owner);
        let acquire = self.acquire_command(&owner);
        let locked = match self.commands {
            Commands::Plain => self.ask(acquire, |answer| matches!(answer, Value::Okay)).await,
            Commands::OurScripts => self.ask(acquire, |answer| matches!(answer, Value::Int(_))).await,
        };
        let mut release = redis::cmd("EVALSHA");
        match self.commands {
            Commands::Plain => release.arg(&self.release).arg(1).arg(&self.key),
            Commands::OurScripts => {
                release.arg(&self.release).arg(2).arg(&self.key).arg(format!("lock:~line:{{{}}}", self.key))
            }
        };
        release.arg(&owner);
        let unlocked = self.ask(release, |answer| matches!(answer, Value::Int(1))).await;
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

    fn acquire_command(&self, owner: &str) -> Cmd {
        match self.commands {
            Commands::Plain => {
                let mut command = redis::cmd("SET");
                command.arg(&self.key).arg(owner).arg("NX").arg("PX").arg(TTL_MILLIS);
                command
            }
            Commands::OurScripts => {
                let (shown, at) = self.time;
                let floor = u64::try_from((shown + at.elapsed()).as_micros()).unwrap_or(u64::MAX);
                let mut command = redis::cmd("EVALSHA");
                command.arg(&self.acquire).arg(3).arg(&self.key);
                command.arg(format!("lock:~fence:{{{}}}", self.key)).arg("lock:~namespace");
                command.arg(owner).arg(TTL_MILLIS).arg(floor);
                command
            }
        }
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
        f.debug_struct("FanOut").field("commands", &self.commands).field("key", &self.key).finish_non_exhaustive()
    }
}
