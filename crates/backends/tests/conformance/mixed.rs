//! Nodes of different kinds make one quorum, whichever of them is silent.

use crate::fixtures::{OnPostgres, OnRedis};
use redlock_core::conformance::Fixture;
use redlock_core::{AcquireError, Redlock, ReleaseOutcome};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_redis_and_a_postgres_are_a_quorum_whichever_of_them_is_silent() {
    let fixtures: [Box<dyn Fixture>; 3] =
        [Box::new(OnRedis::start().await), Box::new(OnRedis::start().await), Box::new(OnPostgres::start().await)];
    let mut nodes = Vec::new();
    for fixture in &fixtures {
        nodes.push(fixture.connect().await);
    }
    let builder = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(30)).wait(Duration::from_secs(20));
    let redlock = builder.node_timeout(Duration::from_secs(1)).build().unwrap();
    let mut last = 0;
    for silent in fixtures.iter().map(Some).chain([None]) {
        if let Some(silent) = silent {
            assert!(silent.silence(true).await);
        }
        for _ in 0..3 {
            let guard = redlock.acquire(["r", "s"]).await.unwrap();
            assert!(last < guard.token().get(), "{} after {last}", guard.token());
            last = guard.token().get();
            assert!(matches!(redlock.try_acquire("s").await, Err(AcquireError::Contended(_))));
            assert!(matches!(guard.release().await.outcome, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum));
        }
        if let Some(silent) = silent {
            silent.silence(false).await;
        }
    }
}
