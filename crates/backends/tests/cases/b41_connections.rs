//! B41: one connection per node and client, however many locks.

use super::support::*;

async fn connections(server: &RedisServer) -> Result<u64, Box<dyn std::error::Error>> {
    Ok(server.probe().info_field("connected_clients").await?.parse()?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b41_many_tasks_share_one_connection_per_node() -> TestResult {
    let servers = five().await;
    let mut received = Vec::new();
    for server in servers.iter() {
        received.push(server.probe().info_field("total_connections_received").await?.parse::<u64>()?);
    }
    let redlock = client(&servers).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..100 {
        let redlock = redlock.clone();
        tasks.spawn(async move {
            for _ in 0..50 {
                // Busy as this machine is, the time to answer is not what is measured here.
                acquire_within(&redlock, &format!("r{task}"), ms(10_000)).await.release().await;
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task?;
    }
    for (server, before) in servers.iter().zip(received) {
        let after = server.probe().info_field("total_connections_received").await?.parse::<u64>()?;
        // One of them is this look's own.
        assert!(after - before <= 4, "{} connections", after - before - 1);
    }
    redlock.settled().await;
    drop(redlock);
    for server in servers.iter() {
        redlock_bench::eventually(ms(5_000), || async {
            match connections(server).await {
                Ok(1) => Ok(()),
                other => Err(format!("{other:?} connections, one of them this look's own")),
            }
        })
        .await?;
    }
    assert_no_keys(&servers, ms(500)).await;
    Ok(())
}
