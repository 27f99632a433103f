//! What is documented as reported is reported, and nothing else, and nothing secret.

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty};
use redlock_core::{KeyPrefix, LockNode, NodeError, Redlock, Resource, TokioClock, telemetry};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const DOCUMENTED: [&str; 14] = [
    telemetry::ATTEMPTS,
    telemetry::ACQUIRE_SECONDS,
    telemetry::WAIT_SECONDS,
    telemetry::WAKE_UPS,
    telemetry::VALIDITY_SECONDS,
    telemetry::VOTES,
    telemetry::RAISES,
    telemetry::NODE_ERRORS,
    telemetry::NODE_SECONDS,
    telemetry::EXTENSIONS,
    telemetry::RELEASES,
    telemetry::DROPPED_GUARDS,
    telemetry::ABANDONED,
    telemetry::ENROLMENTS,
];

/// Name and labels of everything that was reported, with its value.
fn reported(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let snapshot = snapshotter.snapshot().into_vec();
    let name = |key: metrics::Key| {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        format!("{}{{{}}}", key.name(), labels.join(","))
    };
    snapshot.into_iter().map(|(key, _, _, value)| (name(key.into_parts().1), value)).collect()
}

fn count(reported: &BTreeMap<String, DebugValue>, name: &str) -> u64 {
    match reported.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{name}: {other:?} among {:?}", reported.keys()),
    }
}

#[test]
fn everything_documented_is_reported() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    metrics::with_local_recorder(&recorder, || runtime.block_on(a_life()));

    let reported = reported(&snapshotter);
    assert_eq!(count(&reported, "redlock_attempts_total{outcome=granted}"), 8);
    assert_eq!(count(&reported, "redlock_attempts_total{outcome=contended}"), 3);
    assert_eq!(count(&reported, "redlock_attempts_total{outcome=unavailable}"), 1);
    assert_eq!(count(&reported, "redlock_token_raises_total{}"), 1);
    assert_eq!(count(&reported, "redlock_extensions_total{outcome=extended}"), 1);
    assert_eq!(count(&reported, "redlock_extensions_total{outcome=unconfirmed}"), 1);
    assert_eq!(count(&reported, "redlock_releases_total{outcome=everywhere}"), 1);
    assert_eq!(count(&reported, "redlock_dropped_guards_total{}"), 7);
    assert_eq!(count(&reported, "redlock_enrolments_total{outcome=enrolled}"), 1);
    assert!(1 <= count(&reported, "redlock_node_errors_total{node=g2,class=quarantined}"));
    assert_eq!(count(&reported, "redlock_wake_ups_total{by=call}"), 1);
    let waits = match reported.get("redlock_wait_seconds{}") {
        Some(DebugValue::Histogram(waits)) => waits.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(waits, 2, "of a client that was called, and of a task whose turn it was");
    assert!(1 <= count(&reported, "redlock_node_errors_total{node=n1,class=unreachable}"));

    let names: Vec<&str> = reported.keys().filter_map(|key| key.split('{').next()).collect();
    for name in &names {
        assert!(DOCUMENTED.contains(name), "{name} is reported and not documented");
    }
    for documented in DOCUMENTED.iter().filter(|documented| **documented != telemetry::ABANDONED) {
        assert!(names.contains(documented), "{documented} is documented and not reported");
    }
}

/// Granted with a raise, extended, released; contended; granted and dropped; waited for by another client, and by a task of that
/// one; an outage.
async fn a_life() {
    let clock = Arc::new(TokioClock::starting_now());
    let nodes: Vec<_> = (0..3)
        .map(|n| Arc::new(Faulty::new(Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone())))))
        .collect();
    let client = || {
        let nodes = nodes.iter().map(|node| Arc::clone(node) as Arc<dyn LockNode>);
        Redlock::builder().nodes(nodes).clock(clock.clone()).build().expect("the settings are right")
    };
    let redlock = client();

    let resource = Resource::new("r").expect("a name");
    for (node, counter) in nodes.iter().zip([1 << 40, 2, 3]) {
        node.inner().set_counter(&KeyPrefix::default(), &resource, counter);
    }
    let guard = redlock.try_acquire("r").await.expect("the nodes are well");
    guard.extend().await.expect("the nodes are well");
    redlock.try_acquire("r").await.expect_err("it is held");
    redlock.settled().await;
    guard.release().await;

    drop(redlock.try_acquire("r").await.expect("the nodes are well"));
    redlock.settled().await;

    let waiter = client();
    let guard = redlock.try_acquire("w").await.expect("the nodes are well");
    let release = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(guard);
    };
    let wait = async || drop(waiter.acquire("w").await.expect("the nodes are well"));
    tokio::join!(release, wait(), wait());

    let guard = redlock.try_acquire("s").await.expect("the nodes are well");
    for node in &nodes[..2] {
        node.always(|_| Fault::error(NodeError::unreachable("down")));
    }
    guard.extend().await.expect_err("too few nodes answer");
    redlock.try_acquire("r").await.expect_err("too few nodes answer");
    drop(guard);
    tokio::time::sleep(Duration::from_secs(60)).await;

    a_node_forgets(&clock).await;
}

/// Under the crash-recovery guard, a node forgets and is enrolled again when its quarantine is over.
async fn a_node_forgets(clock: &Arc<TokioClock>) {
    let nodes: Vec<_> = (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("g{n}"), clock.clone()))).collect();
    let shared = nodes.iter().map(|node| Arc::clone(node) as Arc<dyn LockNode>);
    let redlock = Redlock::builder().nodes(shared).clock(clock.clone()).crash_guard(Duration::from_secs(10)).build();
    let redlock = redlock.expect("the settings are right");
    redlock.enroll_fresh().await.expect("the nodes are well");
    nodes[2].forget();
    for _ in 0..2 {
        drop(redlock.try_acquire("r").await.expect("two nodes remember"));
        redlock.settled().await;
        tokio::time::sleep(Duration::from_secs(11)).await;
    }
}
