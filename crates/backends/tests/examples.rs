//! The examples do what they say, against real servers.

#[path = "cases/support.rs"]
#[allow(dead_code, unused_imports, reason = "what the cases share; not all of it is needed here")]
mod support;

#[path = "../examples/blocking.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod blocking;

#[path = "../examples/kept_lock.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod kept_lock;

#[path = "../examples/leader.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod leader;

use self::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_lock_rebuilds_one_report_at_a_time() -> TestResult {
    let servers = five().await;
    let nodes = || async { connect(&servers.urls()).await };
    // The deadline of the example is that of its short ttl; on a busy machine a longer one is kinder.
    let client = || async { builder(nodes().await).wait(ms(60_000)).build() };
    let (one, two) = (client().await?, client().await?);
    // Both take longer than the ttl of a second.
    let (took, tokens) = timed(async { tokio::join!(kept_lock::rebuild(&one, 5), kept_lock::rebuild(&two, 5)) }).await;
    let (one, two) = (tokens.0.map_err(|error| chain(&error))?, tokens.1.map_err(|error| chain(&error))?);
    assert_ne!(one, two);
    assert!(ms(3_000) <= took, "{took:?}: they ran side by side");
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_is_one_after_the_other() -> TestResult {
    let servers = five().await;
    let (one, two) = (client(&servers).await, client(&servers).await);
    let leading = async { tokio::join!(leader::lead(&one, "one", 5), leader::lead(&two, "two", 5)) };
    let (took, terms) = timed(leading).await;
    let (one, two) = (terms.0.map_err(|error| chain(&error))?, terms.1.map_err(|error| chain(&error))?);
    assert_ne!(one, two);
    assert!(ms(2_000) <= took, "{took:?}: they led side by side");
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

#[test]
fn blocking_does_the_job_once() -> TestResult {
    let runtime = tokio::runtime::Runtime::new()?;
    let servers = runtime.block_on(five());
    let (one, two) = (blocking::client(&servers.urls())?, blocking::client(&servers.urls())?);
    // The first attempt of each connects; on a busy machine that may take longer than an attempt.
    let connected = |redlock: &redlock_core::blocking::Redlock| {
        drop(redlock.request("warm-up").wait(ms(20_000)).acquire().map_err(|error| chain(&error)));
    };
    connected(&one);
    connected(&two);

    let mut other = Ok(None);
    let done = blocking::once(&one, |held| {
        assert!(held.is_held());
        other = blocking::once(&two, |_| panic!("done twice"));
    })?;
    assert!(done.is_some());
    assert!(matches!(other, Ok(None)), "{other:?}");
    assert!(blocking::once(&two, |_| {})?.is_some(), "the job is done again the next time");
    drop((one, two));
    runtime.block_on(assert_no_keys(&servers, ms(5_000)));
    Ok(())
}
