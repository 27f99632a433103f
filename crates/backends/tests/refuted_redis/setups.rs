//! Set-ups that cannot work are told for what they are, and odd names cost what others do.

use crate::support::*;
use futures_util::future::poll_immediate;
use redlock_backends::RedisNode;
use redlock_backends::redis::ConnectError;
use redlock_bench::eventually;
use redlock_core::{AcquireError, IntoResources as _, KeyPrefix, LockNode as _, NodeError, Owner, Ownership};
use redlock_core::{Redlock, Refusal, ReleaseOutcome, Ttl};
use std::pin::pin;
use std::time::Duration;

async fn client_of(url: &str) -> Result<Redlock, Box<dyn std::error::Error>> {
    Ok(Redlock::builder().node(RedisNode::connect(url).await?).build()?)
}

/// Nobody is granted anything, for the reason given; and no owner, which is a secret, is shown.
async fn check_refused(options: RedisOptions, user: &str, expected: Refusal) -> TestResult {
    let server = RedisServer::start(options).await?;
    let redlock = client_of(&format!("redis://{user}{}", server.address())).await?;
    let error = redlock.try_acquire("r").await.expect_err("nothing can be granted");
    let AcquireError::Misconfigured(report) = &error else { panic!("{}", chain(&error)) };
    let (_, NodeError::Refused { reason, .. }) = report.failed().next().expect("the node failed") else {
        panic!("{report}")
    };
    assert_eq!(*reason, expected, "{report}");
    let shown = format!("{error:?} {}", chain(&error));
    // An owner has 32 hexadecimal digits, of which a server may repeat only the first ones; a script's digest has 40.
    let mut words = shown.split(|character: char| !character.is_ascii_hexdigit());
    assert!(words.all(|word| word.len() < 8 || word.len() == 40), "{shown}");
    Ok(())
}

#[tokio::test]
async fn a_right_that_is_missing_inside_a_script_is_named() -> TestResult {
    let rights = ["worker", "on", ">sesame-open", "~*", "+@all", "-set"];
    check_refused(RedisOptions::new().set("user", rights), "worker:sesame-open@", Refusal::Permission).await
}

#[tokio::test]
async fn a_command_that_was_renamed_is_named_and_our_arguments_are_not() -> TestResult {
    for command in ["SET", "EVALSHA"] {
        let options = RedisOptions::new().set("rename-command", [command, "\"\""]);
        check_refused(options, "", Refusal::UnknownCommand).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_primary_without_the_replicas_that_it_wants_cannot_write() -> TestResult {
    check_refused(RedisOptions::new().set("min-replicas-to-write", ["1"]), "", Refusal::CannotWrite).await
}

#[tokio::test]
async fn a_database_that_is_not_there_is_refused_at_connect() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let url = format!("{}/99", server.url());
    let refused = |error: &ConnectError| {
        matches!(error, ConnectError::Node { source: NodeError::Refused { reason: Refusal::Configuration, .. }, .. })
    };
    let error = RedisNode::connect(&url).await.expect_err("there are sixteen");
    assert!(refused(&error), "{error:?}");
    let Err(error) = RedisNode::connect_all([url.as_str()]).await else { panic!("there are sixteen") };
    assert!(refused(&error), "{error:?}");
    Ok(())
}

/// Each database is a node of its own name; the server has one vote all the same.
#[tokio::test]
async fn one_server_under_three_databases_is_no_quorum() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let urls: Vec<String> = (0..3).map(|database| format!("{}/{database}", server.url())).collect();
    let nodes = RedisNode::open_all(urls.iter().map(String::as_str))?;
    let redlock = Redlock::builder().nodes(nodes).build()?;
    let report = assert_misconfigured(&redlock).await;
    let twins =
        report.failed().filter(|(_, error)| matches!(error, NodeError::Refused { reason: Refusal::SameServer, .. }));
    assert_eq!(twins.count(), 2, "{report}");
    Ok(())
}

async fn cluster_of_one() -> Result<RedisServer, Box<dyn std::error::Error>> {
    let server = RedisServer::start(RedisOptions::new().set("cluster-enabled", ["yes"])).await?;
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await?;
    eventually(ms(10_000), || async {
        let info = server.command(&["CLUSTER", "INFO"]).await.and_then(|info| info.into_text("CLUSTER INFO"));
        match info {
            Ok(info) if info.contains("cluster_state:ok") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(server)
}

#[tokio::test]
async fn a_primary_in_cluster_mode_serves_a_prefix_with_a_hash_tag() -> TestResult {
    let server = cluster_of_one().await?;
    let node = RedisNode::connect(&server.url()).await?;
    let redlock = Redlock::builder().node(node).key_prefix("{app}:").build()?;
    let guard = redlock.try_acquire(["a", "b{c}d", "e}f"]).await.map_err(|error| chain(&error))?;
    guard.extend().await?;
    assert_eq!(guard.release().await.outcome, ReleaseOutcome::Everywhere);
    Ok(())
}

#[tokio::test]
async fn a_primary_in_cluster_mode_without_a_hash_tag_is_a_wrong_set_up() -> TestResult {
    let server = cluster_of_one().await?;
    let error = client_of(&server.url()).await?.try_acquire("r").await.expect_err("two slots are in the way");
    let AcquireError::Misconfigured(report) = &error else { panic!("{}", chain(&error)) };
    let refused = |error: &NodeError| matches!(error, NodeError::Refused { reason: Refusal::Configuration, .. });
    assert!(report.failed().all(|(_, error)| refused(error)), "{report}");
    Ok(())
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time that has passed")
}

/// The letters that stand in for a hash tag are searched for, but not for long. Measured in this thread's own time on the
/// processor, against plain names, in turns, by the best of each: so a busy machine does not matter.
#[tokio::test]
async fn odd_names_cost_what_others_do() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let node = RedisNode::connect(&server.url()).await?;
    let ttl = Ttl::new(ms(1_000))?;
    let mut best = [Duration::MAX; 2];
    for round in 0..20 {
        for (odd, best) in best.iter_mut().enumerate() {
            let brace = ["-", "}"][odd];
            let names: Vec<String> = (0..64).map(|n| format!("a{brace}{round}.{n}")).collect();
            let owner = Owner::from_random_bytes([1; 16]);
            let ownership = Ownership::new(KeyPrefix::default(), names.into_resources()?, owner);
            let began = processor_time();
            // The first poll makes the keys and queues the command.
            let answer = poll_immediate(pin!(node.acquire(&ownership, ttl, 0))).await;
            *best = (processor_time() - began).min(*best);
            assert!(answer.is_none(), "{answer:?}");
        }
    }
    let [plain, odd] = best;
    assert!(odd <= 200 * plain, "64 odd names take {odd:?}, 64 plain ones {plain:?}");
    Ok(())
}
