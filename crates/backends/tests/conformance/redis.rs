//! A node on a real Redis keeps every promise, also among many others and behind connections that break.

use crate::fixtures::OnRedis;
use futures_util::future::join_all;
use redlock_bench::{RedisOptions, RedisServer};
use redlock_core::conformance::{Kept, PROMISES};
use std::sync::Arc;

redlock_core::conformance_tests!(OnRedis::start().await);

/// All promises, a hundred times: side by side on few servers, so that each run meets the load of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_times_over() {
    let servers = join_all((0..4).map(|_| RedisServer::start(RedisOptions::new()))).await;
    let servers: Vec<_> = servers.into_iter().map(|server| Arc::new(server.unwrap())).collect();
    let runs = (0..100).map(async |run| {
        let server = &servers[run % servers.len()];
        let direct = OnRedis::directly_on(Arc::clone(server));
        let through_relay = OnRedis::on(Arc::clone(server)).await;
        let mut kept = 0;
        for promise in PROMISES {
            let mut verdict = promise.check(&direct).await.unwrap();
            if verdict != Kept::Yes {
                verdict = promise.check(&through_relay).await.unwrap();
            }
            assert_eq!(verdict, Kept::Yes, "{}: a node on Redis offers all there is", promise.name);
            kept += 1;
        }
        kept
    });
    let kept: usize = join_all(runs).await.into_iter().sum();
    assert_eq!(kept, 100 * PROMISES.len());
}
