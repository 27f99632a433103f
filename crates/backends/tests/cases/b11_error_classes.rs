//! B11: contention, an outage and a wrong set-up are three different errors.

use super::support::*;
use redlock_backends::RedisNode;
use redlock_core::{AcquireError, Holder, NodeError, Redlock, Refusal};

#[tokio::test]
async fn b11_a_rival_on_all_nodes_is_contention_with_details() -> TestResult {
    let servers = five().await;
    let (rival, redlock) = (client(&servers).await, client(&servers).await);
    let guard = rival.try_acquire("r").await?;
    let result = redlock.try_acquire("r").await;
    let Err(AcquireError::Contended(report)) = &result else { panic!("{result:?}") };
    let (_, held) = report.held().next().expect("somebody is named");
    assert_eq!(held.holder, Holder::Owner(guard.owner().fingerprint()));
    let text = format!("{result:?} {}", report);
    assert!(!text.contains(guard.owner().expose()), "the owner is a secret: {text}");
    Ok(())
}

#[tokio::test]
async fn b11_three_dead_nodes_are_an_outage() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    for dead in 0..3 {
        servers[dead].kill();
    }
    let result = redlock.try_acquire("r").await;
    assert!(matches!(result, Err(AcquireError::Unavailable(_))), "{result:?}");
    Ok(())
}

#[tokio::test]
async fn b11_two_dead_and_a_rival_on_two_is_told_node_by_node() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    for held in [0, 1] {
        servers[held].command(&["SET", "lock:r", "a rival's value", "PX", "60000"]).await?;
    }
    for dead in [2, 3] {
        servers[dead].kill();
    }
    let result = redlock.try_acquire("r").await;
    let Err(AcquireError::Contended(report) | AcquireError::Unavailable(report)) = &result else {
        panic!("{result:?}")
    };
    assert!(1 <= report.held().count(), "{report}");
    assert!(1 <= report.failed().count(), "{report}");
    Ok(())
}

fn without_password(servers: &redlock_bench::Servers) -> Redlock {
    let urls: Vec<String> = servers.iter().map(|server| format!("redis://{}", server.address())).collect();
    builder(RedisNode::open_all(urls.iter().map(String::as_str)).unwrap()).build().unwrap()
}

#[tokio::test]
async fn b11_three_nodes_that_want_a_password_are_a_wrong_set_up() -> TestResult {
    let options = |n| if n < 3 { RedisOptions::new().password("sesame-open") } else { RedisOptions::new() };
    let servers = redlock_bench::Servers::start_with(5, options).await?;
    let report = assert_misconfigured(&without_password(&servers)).await;
    let refused = |error: &NodeError| matches!(error, NodeError::Refused { reason: Refusal::Authentication, .. });
    assert!(report.failed().all(|(_, error)| refused(error)), "{report}");
    let wrong: Vec<String> = servers.iter().map(|server| format!("redis://:hunter2@{}", server.address())).collect();
    let error =
        RedisNode::connect_all(wrong.iter().map(String::as_str)).await.err().expect("a wrong password is refused");
    assert!(!format!("{error:?} {}", chain(&error)).contains("hunter2"));
    Ok(())
}
