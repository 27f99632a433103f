//! Promises about raise: who may, and what it does to the counter.

use super::stage::{LONG, Outcome, Stage, due};
use crate::node::Raising;

pub(super) async fn the_holder_raises_the_counter(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let counter = stage.takes(&holder, LONG, 0).await?;
    due("the holder's raise", stage.raise(&holder, counter + 10).await?, Raising::At(counter + 10))?;
    stage.gives_back(&holder).await?;
    stage.counter_is("a", counter + 10).await
}

pub(super) async fn a_raise_never_lowers(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let counter = stage.takes(&holder, LONG, 100).await?;
    for to in [0, counter - 1, counter] {
        let question = format!("a raise to {to} at counter {counter}");
        due(&question, stage.raise(&holder, to).await?, Raising::At(counter))?;
    }
    stage.gives_back(&holder).await?;
    stage.counter_is("a", counter).await
}

pub(super) async fn only_the_holder_raises(stage: &Stage<'_>) -> Outcome {
    let (holder, stranger) = (stage.somebody("a"), stage.somebody("a"));
    let counter = stage.takes(&holder, LONG, 0).await?;
    let to = counter + 500;
    due("a stranger's raise", stage.raise(&stranger, to).await?, Raising::NotOwner)?;
    stage.gives_back(&holder).await?;
    due("a raise by the last holder", stage.raise(&holder, to).await?, Raising::NotOwner)?;
    due("a raise while nobody holds it", stage.raise(&stranger, to).await?, Raising::NotOwner)?;
    stage.counter_is("a", counter).await
}

pub(super) async fn a_raise_needs_all_resources(stage: &Stage<'_>) -> Outcome {
    let (holder, other) = (stage.somebody("a"), stage.somebody("b"));
    let counter = stage.takes(&holder, LONG, 0).await?;
    let both = stage.same_owner(&holder, ["a", "b"]);
    let to = counter + 500;
    due("a raise of two, one of them free", stage.raise(&both, to).await?, Raising::NotOwner)?;
    let others = stage.takes(&other, LONG, 0).await?;
    due("a raise of two, one of them another's", stage.raise(&both, to).await?, Raising::NotOwner)?;
    stage.gives_back(&holder).await?;
    stage.gives_back(&other).await?;
    stage.counter_is("a", counter).await?;
    stage.counter_is("b", others).await
}

pub(super) async fn a_raise_answers_the_greatest_counter(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    stage.takes(&holder, LONG, 99).await?;
    stage.takes(&stage.same_owner(&holder, "b"), LONG, 199).await?;
    let both = stage.same_owner(&holder, ["a", "b"]);
    due("a raise of counters 100 and 200 to 150", stage.raise(&both, 150).await?, Raising::At(200))?;
    stage.gives_back(&both).await?;
    stage.counter_is("a", 150).await?;
    stage.counter_is("b", 200).await
}
