//! Whatever durations somebody sets, there is a lock with a sound validity or a typed error: no panic, no wait without end.
//!
//! Durations come from `Duration::ZERO` to `Duration::MAX`, with the lengths that matter in between. Time is virtual, so a
//! pause of a year takes no time; the limit on a whole acquire is what a wait may at most be, and some.

#[path = "common/mod.rs"]
#[allow(dead_code, reason = "shared with other test programs, each of which uses a part")]
mod common;

use common::in_virtual_time;
use proptest::prelude::*;
use redlock_backends::MemoryNode;
use redlock_core::{AcquireError, Clock, KeepAlive, LockNode, Redlock, Retry, SettingsError, TokioClock};
use std::sync::Arc;
use std::time::Duration;

/// How long an acquire may take in virtual time: beyond the longest wait that is asked for here and waited out.
const LIMIT: Duration = Duration::from_secs(3_600);

const LONGEST_WAIT: Duration = Duration::from_secs(60);

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        (1_u64..20_000).prop_map(Duration::from_millis),
        Just(Duration::from_secs(365 * 24 * 60 * 60)),
        Just(Duration::from_secs(i64::MAX.unsigned_abs())),
        Just(Duration::MAX),
        (any::<u64>(), 0_u32..1_000_000_000).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos)),
    ]
}

#[derive(Clone, Debug)]
struct Set {
    ttl: Duration,
    node_timeout: Option<Duration>,
    drift: (f64, Duration),
    min_validity: Duration,
    retry: Retry,
    other_ttl: Duration,
    max_hold: Duration,
}

fn anything() -> impl Strategy<Value = Set> {
    let drift =
        (prop_oneof![Just(0.01), any::<f64>()], prop_oneof![3 => Just(Duration::from_millis(2)), 1 => any_duration()]);
    let min_validity = prop_oneof![2 => Just(Duration::ZERO), 1 => any_duration()];
    let retry = (any_duration(), prop_oneof![Just(u32::MAX), 0_u32..4], any_duration(), any_duration());
    let timeout = proptest::option::of(any_duration());
    (any_duration(), timeout, drift, min_validity, retry, any_duration(), any_duration()).prop_map(
        |(ttl, node_timeout, drift, min_validity, (wait, attempts, delay, jitter), other_ttl, max_hold)| {
            // Without any pause somebody who is refused asks as fast as the nodes answer; here that takes no time at all, so
            // that the end of the wait would never come.
            let retry = Retry { wait, attempts, delay: delay.max(Duration::from_micros(1)), jitter };
            Set { ttl, node_timeout, drift, min_validity, retry, other_ttl, max_hold }
        },
    )
}

fn build(set: &Set, clock: Arc<dyn Clock>) -> Result<Redlock, SettingsError> {
    let node = |n| Arc::new(MemoryNode::with_clock(format!("n{n}"), Arc::clone(&clock))) as Arc<dyn LockNode>;
    let mut builder = Redlock::builder()
        .nodes((0..3).map(node))
        .clock(Arc::clone(&clock))
        .ttl(set.ttl)
        .drift(set.drift.0, set.drift.1)
        .min_validity(set.min_validity)
        .retry(set.retry);
    if let Some(node_timeout) = set.node_timeout {
        builder = builder.node_timeout(node_timeout);
    }
    builder.build()
}

async fn try_out(set: Set) -> Result<(), TestCaseError> {
    let Ok(redlock) = build(&set, Arc::new(TokioClock::starting_now())) else { return Ok(()) };
    let guard = redlock.acquire("r").await.map_err(|error| TestCaseError::fail(format!("free, and yet {error:?}")))?;
    prop_assert!(set.min_validity <= guard.remaining() && guard.remaining() <= set.ttl);
    guard.keep_alive(KeepAlive::default().max_hold(set.max_hold));
    let wait = set.retry.wait.min(LONGEST_WAIT);
    let rival = tokio::time::timeout(LIMIT, redlock.request("r").wait(wait).acquire()).await;
    let rival = rival.map_err(|_| TestCaseError::fail("a rival waited longer than it was told to"))?;
    if let Err(AcquireError::Invalid(error)) = &rival {
        return Err(TestCaseError::fail(format!("valid for the first and not for the second: {error}")));
    }
    drop(rival);
    let extended = guard.extend_to(set.other_ttl).await;
    if extended.is_ok() {
        prop_assert!(guard.remaining() <= set.other_ttl);
    }
    guard.release().await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_durations_make_a_sound_lock_or_a_typed_error(set in anything()) {
        in_virtual_time(try_out(set))?;
    }
}

/// Otherwise the property would hold because everything is refused at the door.
#[test]
fn enough_of_the_settings_are_accepted() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = std::cell::Cell::new(0);
    let clock: Arc<dyn Clock> = Arc::new(redlock_core::SystemClock);
    runner
        .run(&anything(), |set| {
            accepted.set(accepted.get() + usize::from(build(&set, Arc::clone(&clock)).is_ok()));
            Ok(())
        })
        .unwrap();
    assert!(8 < accepted.get(), "only {} of 256", accepted.get());
}
