//! Promises about the fence counter: what a grant makes of it, and what it outlives.

use super::stage::{LONG, Outcome, SHORT, Stage, broken, due};
use crate::node::Raising;
use crate::token::FencingToken;

pub(super) async fn a_grant_answers_one_above_floor_and_counter(stage: &Stage<'_>) -> Outcome {
    let first = stage.somebody("a");
    let started = stage.takes(&first, LONG, 10).await?;
    if started < 11 {
        return broken(format!("the first grant with floor 10 has the counter {started}"));
    }
    stage.gives_back(&first).await?;
    // The floor below, at, and above where the counter stands.
    for (floor, counter) in [(0, started + 1), (started + 1, started + 2), (started + 50, started + 51)] {
        let next = stage.somebody("a");
        let granted = stage.takes(&next, LONG, floor).await?;
        due(&format!("an acquire with floor {floor} at counter {}", counter - 1), granted, counter)?;
        stage.gives_back(&next).await?;
    }
    Ok(())
}

pub(super) async fn several_resources_get_one_common_counter(stage: &Stage<'_>) -> Outcome {
    for (name, floor) in [("a", 10), ("b", 200)] {
        let one = stage.somebody(name);
        stage.takes(&one, LONG, floor).await?;
        stage.gives_back(&one).await?;
    }
    let together = stage.somebody(["a", "b", "c"]);
    due("an acquire of counters 11, 201 and none", stage.takes(&together, LONG, 0).await?, 202)?;
    stage.gives_back(&together).await?;
    for name in ["a", "b", "c"] {
        stage.counter_is(name, 202).await?;
    }
    let above = stage.somebody(["a", "b"]);
    due("an acquire of counters 203 and 203 with floor 300", stage.takes(&above, LONG, 300).await?, 301)
}

pub(super) async fn a_counter_outlives_release(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let counter = stage.takes(&holder, LONG, 1_000).await?;
    stage.gives_back(&holder).await?;
    stage.counter_is("a", counter).await
}

pub(super) async fn a_counter_outlives_expiry(stage: &Stage<'_>) -> Outcome {
    let counter = stage.takes(&stage.somebody("a"), SHORT, 1_000).await?;
    let (_, next) = stage.ends_by("a", stage.now().after(SHORT)).await?;
    due("the first acquire after the lock expired", next, counter + 1)
}

pub(super) async fn counters_are_exact_up_to_the_highest_token(stage: &Stage<'_>) -> Outcome {
    let highest = FencingToken::MAX.as_counter();
    for floor in [1 << 31, 1 << 32, (1 << 52) + 1, highest - 4] {
        let holder = stage.somebody("a");
        due(&format!("an acquire with floor {floor}"), stage.takes(&holder, LONG, floor).await?, floor + 1)?;
        stage.gives_back(&holder).await?;
    }
    let holder = stage.somebody("a");
    due("the next acquire", stage.takes(&holder, LONG, 0).await?, highest - 2)?;
    due("a raise by one", stage.raise(&holder, highest - 1).await?, Raising::At(highest - 1))?;
    stage.gives_back(&holder).await?;
    due("the last acquire", stage.takes(&stage.somebody("a"), LONG, 0).await?, highest)
}
