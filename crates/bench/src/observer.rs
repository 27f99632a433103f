//! Reads the lock keys on all nodes directly and says who held a majority when: the verdict of a test on safety.
//!
//! It runs in a thread, runtime and connections of its own, so that the clients it judges neither slow it down nor lend it
//! their opinion. `record` is the pure part: readings in, holdings and overlaps out.
//!
//! What it takes for a vote:
//!
//! - A key it can read is a vote for the value in it, until the key's expiry.
//! - A node that does not answer keeps the votes it had, until their expiry: it may be frozen and come back.
//! - A node that restarted has given its votes nevertheless: they count until their expiry, beside those it gives now. So
//!   a node that forgot a lock and votes again makes two majorities visible, which the keys alone never do.
//! - A key that vanishes from a node that did not restart is a vote withdrawn: released, expired, or deleted by hand. A
//!   flushed node looks the same; where a test flushes, its verdict rests on the tokens.

mod record;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};

pub use self::record::{Holding, Overlap, Report, WithoutExpiry};
use self::record::{Reading, Record, Value};
use crate::{BenchError, Probe, Reply};

/// How often each node is looked at, unless a test wants otherwise. Shorter than any handover that includes a round trip
/// through a scheduler with two cores would be noise.
pub const PERIOD: Duration = Duration::from_millis(5);

/// An observer at work. Dropping it ends it without a report.
#[derive(Debug)]
pub struct Observer {
    record: Arc<Mutex<Record>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    /// Begins to watch `keys` on `nodes`. When this returns, every node has been looked at once.
    ///
    /// # Errors
    /// [`BenchError::Io`] if there is no thread to be had.
    ///
    /// # Cancel safety
    /// Dropping the future ends the observer.
    pub async fn start<K: Into<String>>(
        nodes: impl IntoIterator<Item = Probe>,
        keys: impl IntoIterator<Item = K>,
        period: Duration,
    ) -> Result<Self, BenchError> {
        let nodes: Vec<Probe> = nodes.into_iter().collect();
        let keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        let record = Arc::new(Mutex::new(Record::new(nodes.len(), period)));
        let (stop, stopped) = oneshot::channel();
        let (ready, looked) = oneshot::channel();

        let shared = Arc::clone(&record);
        let thread = std::thread::Builder::new()
            .name("bench-observer".into())
            .spawn(move || run(nodes, keys, period, &shared, ready, stopped))
            .map_err(BenchError::io("start a thread for the observer"))?;
        let observer = Self { record, stop: Some(stop), thread: Some(thread) };
        // An observer that could not begin shows in its report: it has looked at nothing.
        let _ = looked.await;
        Ok(observer)
    }

    /// What has been seen up to now.
    #[must_use]
    pub fn report(&self) -> Report {
        lock(&self.record).report(Instant::now())
    }

    /// Ends the observation and says what was seen.
    #[must_use]
    pub fn stop(mut self) -> Report {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.end();
    }
}

/// The observer's thread. Ends when `stopped` does.
fn run(
    nodes: Vec<Probe>,
    keys: Vec<String>,
    period: Duration,
    record: &Mutex<Record>,
    ready: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    runtime.block_on(async {
        let mut watchers: Vec<_> =
            nodes.into_iter().enumerate().map(|(node, probe)| Watcher { node, probe, keys: &keys, record }).collect();
        join_all(watchers.iter_mut().map(Watcher::look)).await;
        let _ = ready.send(());

        // Each node at its own pace: one that is frozen leaves its watcher waiting and nobody else.
        let watching = join_all(watchers.iter_mut().map(|watcher| watcher.watch(period)));
        tokio::select! {
            _ = watching => {}
            _ = stopped => {}
        }
    });
}

/// Watches one node.
struct Watcher<'a> {
    node: usize,
    probe: Probe,
    keys: &'a [String],
    record: &'a Mutex<Record>,
}

impl Watcher<'_> {
    /// Looks for ever; the observer's end drops it.
    async fn watch(&mut self, period: Duration) {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        // A node that does not answer leaves the record as it is.
        if let Ok(reading) = self.read().await {
            lock(self.record).on_reading(self.node, reading, Instant::now());
        }
    }

    async fn read(&mut self) -> Result<Reading, BenchError> {
        // A restart ends the connection, so the identity is asked for once per connection.
        let run_id = match self.probe.is_connected() {
            true => None,
            false => Some(self.probe.info_field("run_id").await?),
        };
        let questions: Vec<[&str; 2]> =
            self.keys.iter().flat_map(|key| [["GET", key.as_str()], ["PTTL", key.as_str()]]).collect();
        let questions: Vec<&[&str]> = questions.iter().map(<[&str; 2]>::as_slice).collect();
        let replies = self.probe.pipeline(&questions).await?;

        let values = replies.chunks(2).zip(self.keys).map(|(pair, key)| (key.clone(), value(pair))).collect();
        Ok(Reading { run_id, values })
    }
}

/// A key's value and rest of life; nothing if it is absent, went while it was read, or is no lock (a list, a hash).
fn value(replies: &[Reply]) -> Option<Value> {
    match replies {
        [Reply::Bulk(owner), Reply::Integer(left)] => {
            let owner = String::from_utf8_lossy(owner).into_owned();
            match (u64::try_from(*left), left) {
                (Ok(left), _) => Some(Value { owner, left: Some(Duration::from_millis(left)) }),
                (Err(_), -1) => Some(Value { owner, left: None }),
                (Err(_), _) => None,
            }
        }
        _ => None,
    }
}

fn lock(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}
