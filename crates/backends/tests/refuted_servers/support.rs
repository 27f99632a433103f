//! What the tests of all nodes ask.

#![allow(dead_code, reason = "which of it is used depends on the features")]

use redlock_core::{
    Acquisition, Extension, IntoResources, KeyPrefix, LockNode, NodeError, Owner, Ownership, Raising, Refusal,
    Releasing, Ttl,
};
use std::error::Error;
use std::time::Duration;

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// How long a call is awaited before it is dropped: long enough for it to arrive.
const DROPPED_AFTER: Duration = Duration::from_millis(500);

/// More calls than any node has connections.
const CROWD: usize = 10;

pub(crate) fn ttl(duration: Duration) -> Ttl {
    Ttl::new(duration).unwrap()
}

pub(crate) fn ownership(owner: &str, names: impl IntoResources) -> Ownership {
    Ownership::new(KeyPrefix::default(), names.into_resources().unwrap(), Owner::assume(owner))
}

pub(crate) async fn takes(node: &dyn LockNode, who: &Ownership, floor: u64) -> u64 {
    match node.acquire(who, ttl(LONG), floor).await {
        Ok(Acquisition::Granted { counter }) => counter,
        other => panic!("{other:?}"),
    }
}

/// Every kind of call does what it should, and in whatever order.
pub(crate) async fn serves(node: &dyn LockNode) {
    let who = ownership("somebody", ["a", "b"]);
    for _ in 0..3 {
        let counter = takes(node, &who, 0).await;
        node.inspect(who.prefix(), who.resources()).await.unwrap();
        assert_eq!(node.raise(&who, counter + 5).await.unwrap(), Raising::At(counter + 5));
        node.health().await.unwrap();
        assert_eq!(node.extend(&who, ttl(LONG)).await.unwrap(), Extension::Extended);
        node.inspect(who.prefix(), who.resources()).await.unwrap();
        assert_eq!(node.release(&who).await.unwrap(), Releasing::Released);
    }
}

/// Calls that wait for a row which somebody keeps locked take nothing away from calls that want other rows, once they were
/// dropped. The row is the one of the resource "locked".
pub(crate) async fn serves_others_than_those_who_wait_for_a_locked_row(node: &dyn LockNode) {
    let waiting = (0..CROWD).map(|n| async move {
        let who = ownership(&format!("waiting-{n}"), "locked");
        tokio::time::timeout(DROPPED_AFTER, node.acquire(&who, ttl(LONG), 0)).await
    });
    let waited = futures_util::future::join_all(waiting).await;
    assert!(waited.iter().all(Result::is_err), "{waited:?}");
    takes(node, &ownership("else", "other"), 0).await;
}

/// The class of a refusal, and everything that it says.
pub(crate) fn refusal<T>(result: Result<T, NodeError>) -> (Refusal, String) {
    let error = result.err().expect("an error");
    let NodeError::Refused { reason, .. } = &error else { panic!("{error:?}") };
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = [said, error.to_string()].join(": ");
        cause = error.source();
    }
    (*reason, said)
}
