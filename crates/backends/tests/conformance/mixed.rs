//! Nodes of different kinds make one quorum, whichever of them is silent.

use crate::fixtures::{OnEtcd, OnMySql, OnPostgres, OnRedis, OnSqlite};
use redlock_core::conformance::Fixture;
use redlock_core::{AcquireError, Redlock, ReleaseOutcome};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_redis_an_etcd_and_a_postgres_are_a_quorum_while_two_neighbours_are_silent() {
    let fixtures: [Box<dyn Fixture>; 5] = [
        Box::new(OnRedis::start().await),
        Box::new(OnRedis::start().await),
        Box::new(OnRedis::start().await),
        Box::new(OnEtcd::start().await),
        Box::new(OnPostgres::start().await),
    ];
    let mut nodes = Vec::new();
    for fixture in &fixtures {
        nodes.push(fixture.connect().await);
    }
    let builder = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(30)).wait(Duration::from_secs(20));
    let redlock = builder.node_timeout(Duration::from_secs(1)).build().unwrap();
    let mut last = 0;
    // Two neighbours at a time, and nobody in the end.
    let pairs = (0..fixtures.len()).map(|first| vec![first, (first + 1) % fixtures.len()]);
    for silent in pairs.chain([Vec::new()]) {
        for node in &silent {
            assert!(fixtures[*node].silence(true).await);
        }
        for _ in 0..3 {
            let guard = redlock.acquire(["r", "s"]).await.unwrap();
            assert!(last < guard.token().get(), "{} after {last}", guard.token());
            last = guard.token().get();
            assert!(matches!(redlock.try_acquire("s").await, Err(AcquireError::Contended(_))));
            let released = guard.release().await.outcome;
            assert!(matches!(released, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum), "{released:?}");
        }
        for node in &silent {
            fixtures[*node].silence(false).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_a_mariadb_and_a_file_are_a_quorum_while_one_server_is_silent() {
    let fixtures: [Box<dyn Fixture>; 3] =
        [Box::new(OnPostgres::start().await), Box::new(OnMySql::start().await), Box::new(OnSqlite::start().await)];
    let mut nodes = Vec::new();
    for fixture in &fixtures {
        nodes.push(fixture.connect().await);
    }
    let builder = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(30)).wait(Duration::from_secs(20));
    let redlock = builder.node_timeout(Duration::from_secs(1)).build().unwrap();
    let mut last = 0;
    for silent in [Some(0), Some(1), None] {
        if let Some(node) = silent {
            assert!(fixtures[node].silence(true).await);
        }
        for _ in 0..3 {
            let guard = redlock.acquire(["r", "s"]).await.unwrap();
            assert!(last < guard.token().get(), "{} after {last}", guard.token());
            last = guard.token().get();
            assert!(matches!(redlock.try_acquire("s").await, Err(AcquireError::Contended(_))));
            let released = guard.release().await.outcome;
            assert!(matches!(released, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum), "{released:?}");
        }
        if let Some(node) = silent {
            fixtures[node].silence(false).await;
        }
    }
}
