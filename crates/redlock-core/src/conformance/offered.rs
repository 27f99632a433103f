//! Promises about what a node need not offer: where it claims something, it has to be true.

use super::stage::{LONG, Outcome, Stage, answered, broken, drift, due, not_offered, ttl};
use crate::node::{Acquisition, Holder, NodeError, Releasing, Remaining};
use crate::resource::IntoResources as _;
use futures_util::future::join_all;
use std::pin::Pin;
use std::time::Duration;

/// How many acquires and releases are under way at once when an order is claimed.
const AT_ONCE: usize = 12;

/// How often the order may be lost, and said to be lost, before it counts as not offered.
const ORDER_TRIES: usize = 3;

/// How far two looks at one calendar may lie apart: it is carried forward by another clock in between.
const CALENDARS_APART: Duration = Duration::from_secs(5);

type Call<'a> = Pin<Box<dyn Future<Output = Result<String, NodeError>> + Send + 'a>>;

pub(super) async fn the_name_stays_the_same(stage: &Stage<'_>) -> Outcome {
    let before = stage.node.name().to_owned();
    if before.is_empty() {
        return broken("the name is empty");
    }
    stage.takes(&stage.somebody("a"), LONG, 0).await?;
    due("the name after a call", stage.node.name(), &before)
}

pub(super) async fn calls_keep_the_order_they_claim(stage: &Stage<'_>) -> Outcome {
    for attempt in 0..ORDER_TRIES {
        let Some(order) = stage.node.order() else {
            return not_offered("the node claims no order");
        };
        let names: Vec<String> = (0..AT_ONCE).map(|n| format!("a{attempt}-{n}")).collect();
        let owners: Vec<_> = names.iter().map(|name| stage.somebody(name)).collect();
        // They are first polled in the order of this list: each acquire before its release.
        let mut calls: Vec<Call<'_>> = Vec::with_capacity(2 * owners.len());
        for who in &owners {
            calls.push(Box::pin(async {
                stage.node.acquire(who, ttl(LONG), 0).await.map(|answer| format!("{answer:?}"))
            }));
            calls.push(Box::pin(async { stage.node.release(who).await.map(|answer| format!("{answer:?}")) }));
        }
        let answers = join_all(calls).await;
        if stage.node.order() != Some(order) {
            continue;
        }
        for (position, answer) in answers.into_iter().enumerate() {
            let answer = answered("one of many calls at once", answer)?;
            if position % 2 == 1 {
                let released = format!("{:?}", Releasing::Released);
                due("a release that was polled first just after its acquire", answer, released)?;
            }
        }
        for name in &names {
            if let Acquisition::Held(held) = stage.acquire(&stage.somebody(name), LONG, 0).await? {
                return broken(format!("an acquire took effect after the release that followed it: {held}"));
            }
        }
        return Ok(());
    }
    not_offered(format!("the order was lost, and said to be, {ORDER_TRIES} times"))
}

pub(super) async fn inspection_tells_what_is_there(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("b");
    let asked = ["a", "b"].into_resources().expect("names");
    let before = stage.now();
    let counter = stage.takes(&holder, LONG, 70).await?;
    let seen = match stage.node.inspect(holder.prefix(), &asked).await {
        Err(NodeError::Unsupported) => return not_offered("the node cannot be inspected"),
        seen => answered("an inspection", seen)?,
    };
    let elapsed = stage.now().since(before);
    due("the inspected resources", seen.iter().map(|one| one.resource.name()).collect(), vec!["a", "b"])?;
    if let Some(held) = &seen[0].held {
        return broken(format!("a free resource was said to be held: {held}"));
    }
    due("the counter of a held resource", seen[1].counter, Some(counter))?;
    let Some(held) = &seen[1].held else { return broken("a held resource was said to be free") };
    due("the resource that is held", held.resource.name(), "b")?;
    match &held.holder {
        Holder::Owner(fingerprint) => due("the holder", fingerprint, &holder.owner().fingerprint())?,
        Holder::Line => return broken("a lock that is held was called free for those in line"),
        Holder::Unknown => {}
        Holder::Foreign { kind } => return broken(format!("a lock of this library was called foreign: {kind}")),
    }
    match held.remaining {
        Remaining::For(remaining)
            if remaining + elapsed + drift(LONG) < LONG || LONG + stage.fixture.lateness() < remaining =>
        {
            return broken(format!("{remaining:?} were said to remain {elapsed:?} after an acquire for {LONG:?}"));
        }
        Remaining::WithoutExpiry => return broken("a lock with a ttl was said to have no expiry"),
        Remaining::For(_) | Remaining::Unknown => {}
    }
    stage.gives_back(&holder).await?;
    let seen = answered("an inspection", stage.node.inspect(holder.prefix(), holder.resources()).await)?;
    due("the counter after the release", seen.iter().map(|one| one.counter).collect(), vec![Some(counter)])?;
    if let Some(held) = &seen[0].held {
        return broken(format!("a released resource was said to be held: {held}"));
    }
    stage.counter_is("b", counter).await
}

pub(super) async fn health_is_that_of_a_node_that_decides(stage: &Stage<'_>) -> Outcome {
    let health = match stage.node.health().await {
        Err(NodeError::Unsupported) => return not_offered("the node does not tell its health"),
        health => answered("the question for the health", health)?,
    };
    if health.primary == Some(false) {
        return broken("the node calls itself a replica, and yet is to vote");
    }
    Ok(())
}

pub(super) async fn the_identity_stays_the_same(stage: &Stage<'_>) -> Outcome {
    stage.takes(&stage.somebody("a"), LONG, 0).await?;
    let Some(identity) = stage.node.identity() else {
        return not_offered("the node does not know what tells its server from others");
    };
    let [other] = stage.connections().await;
    // A connection may learn it with its first call.
    answered("an acquire", other.acquire(&stage.somebody("b"), ttl(LONG), 0).await)?;
    due("the identity on another connection", other.identity(), Some(identity.clone()))?;
    due("the identity after a call", stage.node.identity(), Some(identity.clone()))?;
    match stage.node.health().await {
        Ok(health) if health.identity.is_some() => {
            due("the identity in the node's health", health.identity.as_deref(), Some(&*identity))
        }
        Ok(_) | Err(NodeError::Unsupported) => Ok(()),
        Err(error) => answered("the question for the health", Err(error)),
    }
}

pub(super) async fn unix_time_goes_on(stage: &Stage<'_>) -> Outcome {
    stage.takes(&stage.somebody("a"), LONG, 0).await?;
    let Some(before) = stage.node.unix_time() else { return not_offered("the node knows no calendar time") };
    let health = stage.node.health().await.ok().and_then(|health| health.unix_time);
    if let Some(asked) = health.filter(|asked| CALENDARS_APART < asked.abs_diff(before)) {
        return broken(format!("its calendar time is {before:?} without asking, and {asked:?} in its health"));
    }
    let passes = Duration::from_millis(50);
    stage.fixture.let_pass(passes).await;
    match stage.node.unix_time() {
        Some(after) if before + passes / 2 <= after => Ok(()),
        after => broken(format!("its calendar time was {before:?}, and is {after:?} when {passes:?} have passed")),
    }
}
