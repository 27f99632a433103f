//! What the cases have in common: five servers, clients on them, and looks at what is left on the servers.

use redlock_backends::RedisNode;
use redlock_bench::{Servers, eventually};
use redlock_core::{AcquireError, Guard, LockNode, Redlock, RedlockBuilder, Report, Retry};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use redlock_bench::{Proxy, RedisOptions, RedisServer};

pub(crate) type TestResult = Result<(), Box<dyn std::error::Error>>;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn five() -> Servers {
    Servers::start(5).await.expect("five servers start")
}

/// The settings of the cases: lease 10 s, retry delay 50 ms, per-node deadline 50 ms.
pub(crate) fn builder(nodes: Vec<Arc<dyn LockNode>>) -> RedlockBuilder {
    let retry = Retry { wait: ms(10_000), delay: ms(50), jitter: ms(10), ..Retry::default() };
    Redlock::builder().nodes(nodes).ttl(ms(10_000)).node_timeout(ms(50)).retry(retry)
}

pub(crate) async fn connect(urls: &[String]) -> Vec<Arc<dyn LockNode>> {
    RedisNode::connect_all(urls.iter().map(String::as_str)).await.expect("the nodes connect")
}

pub(crate) async fn client(servers: &Servers) -> Redlock {
    builder(connect(&servers.urls()).await).build().expect("the settings are right")
}

/// The lock keys on each server; counters and the namespace record are not among them.
pub(crate) async fn lock_keys(servers: &[&RedisServer]) -> Vec<Vec<String>> {
    let mut keys = Vec::new();
    for server in servers {
        let found = server.probe().keys("*").await.unwrap_or_else(|error| vec![format!("unread: {error}")]);
        keys.push(found.into_iter().filter(|key| !key.contains('~')).collect());
    }
    keys
}

/// Awaits that none of these servers has a lock key.
pub(crate) async fn assert_no_keys_on(servers: &[&RedisServer], within: Duration) {
    eventually(within, || async {
        let keys = lock_keys(servers).await;
        if keys.iter().all(Vec::is_empty) { Ok(()) } else { Err(format!("lock keys are left: {keys:?}")) }
    })
    .await
    .unwrap();
}

pub(crate) async fn assert_no_keys(servers: &Servers, within: Duration) {
    assert_no_keys_on(&servers.iter().collect::<Vec<_>>(), within).await;
}

/// The value of a lock key on each server.
pub(crate) async fn holders(servers: &Servers, resource: &str) -> Vec<Option<String>> {
    let mut holders = Vec::new();
    for server in servers.iter() {
        holders.push(server.probe().get(&format!("lock:{resource}")).await.expect("the server answers"));
    }
    holders
}

/// Awaits that a lock can be taken.
pub(crate) async fn acquire_within(redlock: &Redlock, resource: &str, within: Duration) -> Guard {
    let request =
        redlock.request(resource).retry(Retry { wait: within, delay: ms(10), jitter: ms(5), ..Retry::default() });
    request.acquire().await.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// An error with all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, ": {cause}").expect("a string takes everything");
        source = cause.source();
    }
    text
}

/// The duration below which 99 in 100 of the samples lie.
pub(crate) fn p99(samples: &mut [Duration]) -> Duration {
    samples.sort_unstable();
    samples[samples.len() * 99 / 100 - 1]
}

pub(crate) fn is_contended(result: &Result<Guard, AcquireError>) -> bool {
    matches!(result, Err(AcquireError::Contended(_)))
}

/// How long a future takes by the test's own clock, and what it gave.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> (Duration, T) {
    let began = tokio::time::Instant::now();
    let value = future.await;
    (began.elapsed(), value)
}

/// Nobody is ever granted, and as soon as the nodes have been connected to, the error says that the set-up is wrong: on a
/// busy machine the first attempts may end before that.
pub(crate) async fn assert_misconfigured(redlock: &Redlock) -> Report {
    let said = eventually(ms(5_000), || async {
        match redlock.try_acquire("r").await {
            Err(AcquireError::Misconfigured(report)) => Ok(Ok(*report)),
            Err(error) => Err(chain(&error)),
            Ok(guard) => Ok(Err(guard)),
        }
    })
    .await
    .unwrap();
    said.unwrap_or_else(|guard| panic!("granted: {guard:?}"))
}
