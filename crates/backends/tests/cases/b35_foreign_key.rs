//! B35: data under the name of a lock is not mistaken for a holder, and survives.

use super::support::*;
use redlock_core::{AcquireError, Holder, LockNode as _, Remaining};

async fn store(servers: &redlock_bench::Servers, key: &str, words: &[&str]) {
    for server in servers.iter() {
        let command: Vec<&str> = [words[0], key].into_iter().chain(words[1..].iter().copied()).collect();
        let reply = server.command(&command).await.expect("the server answers");
        assert!(!reply.is_error(), "{reply:?}");
    }
}

#[tokio::test]
async fn b35_the_raw_name_never_meets_the_lock() -> TestResult {
    let servers = five().await;
    store(&servers, "hash", &["HSET", "field", "value"]).await;
    store(&servers, "list", &["RPUSH", "value"]).await;
    store(&servers, "string", &["SET", "value"]).await;
    let redlock = client(&servers).await;
    for resource in ["hash", "list", "string"] {
        redlock.try_acquire(resource).await?.release().await;
    }
    assert_eq!(servers[0].probe().get("string").await?.as_deref(), Some("value"));
    Ok(())
}

#[tokio::test]
async fn b35_data_under_the_very_key_is_named_as_such() -> TestResult {
    let servers = five().await;
    store(&servers, "lock:hash", &["HSET", "field", "value"]).await;
    store(&servers, "lock:list", &["RPUSH", "value"]).await;
    store(&servers, "lock:string", &["SET", "somebody's data"]).await;
    let redlock = client(&servers).await;
    for (resource, kind) in [("hash", Some("hash")), ("list", Some("list")), ("string", None)] {
        let result = redlock.try_acquire(resource).await;
        let Err(AcquireError::Contended(report)) = &result else { panic!("{result:?}") };
        let (_, held) = report.held().next().expect("the report says what is in the way");
        assert_eq!(held.remaining, Remaining::WithoutExpiry);
        match kind {
            Some(kind) => assert_eq!(held.holder, Holder::Foreign { kind: kind.to_owned() }),
            None => assert!(matches!(held.holder, Holder::Owner(_))),
        }
        assert!(report.to_string().contains("without expiry"), "{report}");
    }
    let node = redlock_backends::RedisNode::connect(&servers[0].url()).await?;
    let resources = redlock_core::IntoResources::into_resources(["hash", "string"])?;
    let inspections = node.inspect(&redlock_core::KeyPrefix::default(), &resources).await?;
    assert!(
        inspections
            .iter()
            .all(|seen| seen.held.as_ref().is_some_and(|held| held.remaining == Remaining::WithoutExpiry))
    );
    // Untouched, also by the undoing of the attempts.
    redlock.settled().await;
    assert_eq!(servers[0].probe().get("lock:string").await?.as_deref(), Some("somebody's data"));
    assert_eq!(servers[0].command(&["HGET", "lock:hash", "field"]).await?.into_text("HGET")?, "value");
    Ok(())
}
