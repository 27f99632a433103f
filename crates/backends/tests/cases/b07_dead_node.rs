//! B07: one node's error is one missing vote, not the failure of the whole.

use super::support::*;
use redlock_core::AcquireError;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b07_dead_nodes_are_missing_votes_and_come_back() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    for dead in [4, 3] {
        servers[dead].kill();
        let mut samples = Vec::new();
        for _ in 0..100 {
            let (took, guard) = timed(redlock.try_acquire("r")).await;
            let guard = guard.map_err(|error| chain(&error))?;
            samples.push(took);
            guard.extend().await?;
            guard.release().await;
        }
        assert!(p99(&mut samples) < ms(500), "{:?}", p99(&mut samples));
    }

    servers[2].kill();
    let (took, result) = timed(redlock.try_acquire("r")).await;
    let Err(AcquireError::Unavailable(report)) = result else { panic!("{result:?}") };
    assert!(took < ms(500), "{took:?}");
    assert!(1 <= report.failed().count(), "{report}");
    assert_no_keys_on(&[&servers[0], &servers[1]], ms(1_000)).await;

    for back in [2, 3, 4] {
        servers[back].restart().await?;
    }
    // The same client, within two seconds, with every node voting again.
    redlock_bench::eventually(ms(2_000), || async {
        match redlock.try_acquire("r").await {
            Ok(guard) => {
                let failed: Vec<String> =
                    guard.report().failed().map(|(name, error)| format!("{name} {error}")).collect();
                guard.release().await;
                if failed.is_empty() { Ok(()) } else { Err(failed.join(", ")) }
            }
            Err(error) => Err(chain(&error)),
        }
    })
    .await?;
    Ok(())
}
