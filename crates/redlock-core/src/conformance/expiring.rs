//! Promises about time: when a lock ends, and what its owner is afterwards.

use super::stage::{LONG, Outcome, SHORT, Stage, broken, drift, due};
use crate::node::{Extension, Raising, Releasing};

pub(super) async fn a_lock_does_not_end_early(stage: &Stage<'_>) -> Outcome {
    for ttl in [SHORT, 5 * SHORT] {
        let name = format!("a{}", ttl.as_millis());
        let before = stage.now();
        stage.takes(&stage.somebody(&name), ttl, 0).await?;
        stage.ends_by(&name, stage.now().after(ttl)).await?;
        let held = stage.now().since(before);
        if held + drift(ttl) < ttl {
            return broken(format!("a lock of {ttl:?} had ended after no more than {held:?}"));
        }
    }
    Ok(())
}

pub(super) async fn a_lock_ends_after_its_ttl(stage: &Stage<'_>) -> Outcome {
    stage.takes(&stage.somebody(["a", "b"]), SHORT, 0).await?;
    stage.ends_by(["a", "b"], stage.now().after(SHORT)).await?;
    Ok(())
}

pub(super) async fn what_has_expired_is_nobodys(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let counter = stage.takes(&holder, SHORT, 0).await?;
    stage.let_short_end().await;
    due("a raise of what has expired", stage.raise(&holder, counter + 500).await?, Raising::NotOwner)?;
    due("an extension of what has expired", stage.extend(&holder, LONG).await?, Extension::Gone)?;
    due("a release of what has expired", stage.release(&holder).await?, Releasing::Gone)?;
    stage.counter_is("a", counter).await?;
    // Whoever held it once can hold it again, by the same door as everybody.
    stage.takes(&holder, LONG, 0).await?;
    Ok(())
}

pub(super) async fn a_late_release_does_not_touch_the_next_holder(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    stage.takes(&holder, SHORT, 0).await?;
    let (next, counter) = stage.ends_by("a", stage.now().after(SHORT)).await?;
    due("a late release", stage.release(&holder).await?, Releasing::NotOwner)?;
    due("a late extension", stage.extend(&holder, LONG).await?, Extension::NotOwner)?;
    due("a late raise", stage.raise(&holder, counter + 500).await?, Raising::NotOwner)?;
    stage.is_refused(&holder).await?;
    stage.gives_back(&next).await?;
    stage.counter_is("a", counter).await
}
