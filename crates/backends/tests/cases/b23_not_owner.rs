//! B23: who does not hold a lock can neither release it nor learn that he did.

use super::support::*;
use redlock_backends::RedisNode;
use redlock_core::{KeyPrefix, LockNode as _, Owner, Ownership, ReleaseOutcome, Releasing, Resource};

#[tokio::test]
async fn b23_a_late_release_does_not_touch_the_next_holder() -> TestResult {
    let servers = five().await;
    let (a, b) = (client(&servers).await, client(&servers).await);
    let late = a.request("r").ttl(ms(300)).try_acquire().await?;
    let ownership = Ownership::new(KeyPrefix::default(), late.resources().clone(), late.owner().clone());
    assert_no_keys(&servers, ms(2_000)).await;
    let guard = acquire_within(&b, "r", ms(1_000)).await;
    let before = holders(&servers, "r").await;

    assert_eq!(late.release().await.outcome, ReleaseOutcome::AlreadyGone);
    for server in servers.iter() {
        let node = RedisNode::connect(&server.url()).await?;
        // Twice more by the old owner, and once by somebody who guesses.
        for _ in 0..2 {
            assert_ne!(node.release(&ownership).await?, Releasing::Released);
        }
        let guess = Owner::assume("00000000000000000000000000000000");
        let resources = Resource::new("r")?.into();
        let guessed = Ownership::new(KeyPrefix::default(), resources, guess);
        assert_ne!(node.release(&guessed).await?, Releasing::Released);
    }
    assert_eq!(holders(&servers, "r").await, before);
    assert!(before.iter().flatten().all(|value| value == guard.owner().expose()));
    assert_eq!(guard.extend().await.map(|_| ()).map_err(|error| error.to_string()), Ok(()));
    Ok(())
}

#[tokio::test]
async fn b23_a_second_release_of_the_same_ownership_is_harmless() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let node = RedisNode::connect(&server.url()).await?;
    let ownership = Ownership::new(KeyPrefix::default(), Resource::new("r")?.into(), Owner::from_random_bytes([1; 16]));
    node.acquire(&ownership, redlock_core::Ttl::new(ms(10_000))?, 0).await?;
    assert_eq!(node.release(&ownership).await?, Releasing::Released);
    assert_eq!(node.release(&ownership).await?, Releasing::Gone);
    Ok(())
}
