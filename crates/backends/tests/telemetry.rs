//! What is documented as reported is reported, and nothing else, and nothing secret.

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty};
use redlock_core::{KeyPrefix, LockNode, NodeError, Redlock, Resource, TokioClock, telemetry};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

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

/// The spans that are documented, with their fields.
const SPANS: [(&str, &[&str]); 3] = [
    (telemetry::ACQUIRE_SPAN, &["attempts", "outcome", "resources", "token", "votes"]),
    (telemetry::EXTEND_SPAN, &["outcome", "token"]),
    (telemetry::RELEASE_SPAN, &["outcome", "token"]),
];

/// Remembers every value of every field of every span, and nothing else.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(&'static str, Values)>>>);

type Values = BTreeMap<&'static str, String>;

struct Fields<'a>(&'a mut Values);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = BTreeMap::new();
        span.record(&mut Fields(&mut fields));
        let mut spans = self.0.lock().unwrap();
        spans.push((span.metadata().name(), fields));
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let position = usize::try_from(span.into_u64()).unwrap() - 1;
        values.record(&mut Fields(&mut self.0.lock().unwrap()[position].1));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn the_documented_spans_say_what_came_of_it() {
    let spans = Spans::default();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    tracing::subscriber::with_default(spans.clone(), || runtime.block_on(a_life()));

    let seen = spans.0.lock().unwrap();
    for (name, fields) in SPANS {
        let of_this = || seen.iter().filter(|(span, _)| *span == name).map(|(_, fields)| fields);
        let mut names: Vec<&str> = of_this().flat_map(BTreeMap::keys).copied().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names, fields, "{name}");
        assert!(of_this().all(|fields| fields.contains_key("outcome")), "{name}");
    }
    let with = |name: &str, field: &str, value: &str| {
        let is =
            |(span, fields): &&(&str, Values)| *span == name && fields.get(field).is_some_and(|seen| seen == value);
        seen.iter().filter(is).count()
    };
    assert_eq!(with(telemetry::ACQUIRE_SPAN, "outcome", "\"granted\""), 8);
    assert!(1 <= with(telemetry::ACQUIRE_SPAN, "votes", "3"));
    assert_eq!(with(telemetry::EXTEND_SPAN, "outcome", "\"unconfirmed\""), 1);
    assert_eq!(with(telemetry::RELEASE_SPAN, "outcome", "\"everywhere\""), 1);
    for (name, _) in seen.iter() {
        assert!(SPANS.iter().any(|(documented, _)| documented == name), "{name} is not documented");
    }
}

/// What operators copy asks for metrics that there are, and for all of them.
#[test]
fn the_dashboard_shows_what_is_reported() {
    let dashboard = include_str!("../../../docs/dashboards/redlock.json");
    let names: Vec<&str> = dashboard
        .split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))
        .filter(|word| word.starts_with("redlock_") || word.starts_with("fence_store_"))
        .map(|word| word.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count"))
        .collect();
    for name in &names {
        assert!(DOCUMENTED.contains(name) || *name == "fence_store_operations_total", "{name} is not reported");
    }
    for documented in DOCUMENTED {
        assert!(names.contains(&documented), "{documented} is not shown");
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
