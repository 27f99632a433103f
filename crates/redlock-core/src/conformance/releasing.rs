//! Promises about release: idempotent, and of what one holds oneself.

use super::stage::{LONG, Outcome, Stage, due};
use crate::node::{Extension, Releasing};

pub(super) async fn a_release_frees(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody(["a", "b"]);
    stage.takes(&holder, LONG, 0).await?;
    stage.gives_back(&holder).await?;
    stage.takes(&stage.somebody(["b", "a"]), LONG, 0).await?;
    Ok(())
}

pub(super) async fn a_second_release_finds_it_gone(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody(["a", "b"]);
    due("a release of what was never taken", stage.release(&holder).await?, Releasing::Gone)?;
    stage.takes(&holder, LONG, 0).await?;
    stage.gives_back(&holder).await?;
    for _ in 0..2 {
        due("a release of what was released", stage.release(&holder).await?, Releasing::Gone)?;
    }
    stage.takes(&stage.somebody(["a", "b"]), LONG, 0).await?;
    Ok(())
}

pub(super) async fn only_the_holder_releases(stage: &Stage<'_>) -> Outcome {
    let (holder, stranger) = (stage.somebody("a"), stage.somebody("a"));
    let counter = stage.takes(&holder, LONG, 0).await?;
    due("a stranger's release", stage.release(&stranger).await?, Releasing::NotOwner)?;
    stage.is_refused(&stranger).await?;
    due("the holder's extension", stage.extend(&holder, LONG).await?, Extension::Extended)?;
    stage.gives_back(&holder).await?;
    stage.counter_is("a", counter).await
}

pub(super) async fn a_repeated_release_does_not_touch_the_next_holder(stage: &Stage<'_>) -> Outcome {
    let (holder, next) = (stage.somebody("a"), stage.somebody("a"));
    stage.takes(&holder, LONG, 0).await?;
    stage.gives_back(&holder).await?;
    stage.takes(&next, LONG, 0).await?;
    due("a repeated release", stage.release(&holder).await?, Releasing::NotOwner)?;
    stage.is_refused(&holder).await?;
    due("the next holder's extension", stage.extend(&next, LONG).await?, Extension::Extended)
}

pub(super) async fn a_release_frees_what_is_held_of_several(stage: &Stage<'_>) -> Outcome {
    let (holder, other) = (stage.somebody("a"), stage.somebody("b"));
    stage.takes(&holder, LONG, 0).await?;
    stage.takes(&other, LONG, 0).await?;
    let all = stage.same_owner(&holder, ["a", "b", "c"]);
    due("a release of one's own, another's and a free one", stage.release(&all).await?, Releasing::NotOwner)?;
    stage.takes(&holder, LONG, 0).await?;
    stage.is_refused(&stage.somebody("b")).await?;
    let two = stage.same_owner(&holder, ["a", "c"]);
    due("a release of one's own and a free one", stage.release(&two).await?, Releasing::Gone)?;
    stage.takes(&stage.somebody(["a", "c"]), LONG, 0).await?;
    due("the other holder's extension", stage.extend(&other, LONG).await?, Extension::Extended)
}
