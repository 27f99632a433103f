//! B39: the deadline covers connecting and reconnecting, whatever the other end does.

use super::support::*;
use redlock_bench::DeafPort;
use redlock_bench::proxy::Mode;
use redlock_core::Redlock;

async fn rounds(redlock: &Redlock, n: usize) -> Result<std::time::Duration, Box<dyn std::error::Error>> {
    let mut samples = Vec::new();
    for _ in 0..n {
        let (took, guard) = timed(redlock.try_acquire("r")).await;
        samples.push(took);
        guard.map_err(|error| chain(&error))?.release().await;
    }
    Ok(p99(&mut samples))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b39_ports_that_do_not_speak_cost_nothing_once_a_majority_is_there() -> TestResult {
    let servers = redlock_bench::Servers::start(5).await?;
    let silent = Proxy::start(servers[4].address()).await?;
    silent.set(Mode::Silent).await?;
    let deaf = DeafPort::open().await?;
    let mut urls = servers.urls();
    urls[4] = silent.url();
    urls[3] = format!("redis://{}", deaf.address());
    let nodes = redlock_backends::RedisNode::open_all(urls.iter().map(String::as_str))?;
    let redlock = builder(nodes).build()?;
    let began = tokio::time::Instant::now();
    acquire_within(&redlock, "r", ms(2_000)).await.release().await;

    let p99 = rounds(&redlock, 500).await?;
    assert!(p99 < ms(300), "{p99:?}");
    let (opened, seconds) = (silent.connections(), began.elapsed().as_secs() + 1);
    assert!(opened <= 6 * seconds, "{opened} connections in {seconds} s");

    // A real server in its place votes within two seconds.
    silent.pass().await?;
    eventually_votes(&redlock, 4).await?;

    // And the same after a healthy phase.
    silent.set(Mode::Silent).await?;
    let p99 = rounds(&redlock, 500).await?;
    assert!(p99 < ms(300), "{p99:?}");
    silent.set(Mode::Refuse).await?;
    let p99 = rounds(&redlock, 100).await?;
    assert!(p99 < ms(300), "{p99:?}");
    silent.pass().await?;
    eventually_votes(&redlock, 4).await
}

async fn eventually_votes(redlock: &Redlock, node: usize) -> TestResult {
    let name = redlock.nodes().nth(node).expect("the node exists").name().to_owned();
    redlock_bench::eventually(ms(2_000), || async {
        let guard = redlock.try_acquire("other").await.map_err(|error| chain(&error))?;
        let failed = guard.report().failed().find(|(failed, _)| *failed == name).map(|(_, error)| chain(error));
        guard.release().await;
        failed.map_or(Ok(()), Err)
    })
    .await?;
    // Not failed is not yet a vote: the server must have been told of a lock.
    Ok(())
}
