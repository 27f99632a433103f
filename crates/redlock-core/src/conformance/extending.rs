//! Promises about extend: it sets, for the holder alone, and brings nothing back.

use super::stage::{LONG, Outcome, SHORT, Stage, answered, broken, drift, due, ttl};
use crate::node::{Acquisition, Extension, Releasing};
use std::time::Duration;

/// First leases of a lock that is extended before it ends; a busy machine may need the longer ones.
const FIRST_LEASES: [Duration; 3] = [SHORT, Duration::from_secs(2), Duration::from_secs(10)];

pub(super) async fn an_extension_prolongs(stage: &Stage<'_>) -> Outcome {
    for lease in FIRST_LEASES {
        let name = format!("a{}", lease.as_millis());
        let (holder, rival) = (stage.somebody(&name), stage.somebody(&name));
        let before = stage.now();
        stage.takes(&holder, lease, 0).await?;
        let extension = stage.extend(&holder, LONG).await?;
        if lease.saturating_sub(drift(lease)) <= stage.now().since(before) {
            // So much time has passed that the lock may have ended before the extension arrived.
            continue;
        }
        due("the holder's extension", extension, Extension::Extended)?;
        stage.fixture.let_pass(lease + stage.fixture.lateness() + drift(lease)).await;
        stage.is_refused(&rival).await?;
        return due("the holder's release", stage.release(&holder).await?, Releasing::Released);
    }
    let longest = FIRST_LEASES[FIRST_LEASES.len() - 1];
    broken(format!("an acquire and an extension took longer than the ttl of {longest:?}"))
}

pub(super) async fn an_extension_sets_and_never_adds(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody(["a", "b"]);
    stage.takes(&holder, LONG, 0).await?;
    due("an extension to less than remains", stage.extend(&holder, SHORT).await?, Extension::Extended)?;
    stage.ends_by(["a", "b"], stage.now().after(SHORT)).await?;
    Ok(())
}

pub(super) async fn an_extension_revives_nothing(stage: &Stage<'_>) -> Outcome {
    let released = stage.somebody("a");
    stage.takes(&released, LONG, 0).await?;
    stage.gives_back(&released).await?;
    due("an extension of what was released", stage.extend(&released, LONG).await?, Extension::Gone)?;
    stage.takes(&stage.somebody("a"), LONG, 0).await?;
    due("an extension of what another owner has taken", stage.extend(&released, LONG).await?, Extension::NotOwner)?;

    let expired = stage.somebody(["b", "c"]);
    stage.takes(&expired, SHORT, 0).await?;
    stage.let_short_end().await;
    due("an extension of what has expired", stage.extend(&expired, LONG).await?, Extension::Gone)?;
    stage.takes(&stage.somebody(["b", "c"]), LONG, 0).await?;
    Ok(())
}

pub(super) async fn only_the_holder_extends(stage: &Stage<'_>) -> Outcome {
    let (holder, stranger) = (stage.somebody("a"), stage.somebody("a"));
    due("an extension of what nobody holds", stage.extend(&stranger, LONG).await?, Extension::Gone)?;
    stage.takes(&holder, LONG, 0).await?;
    due("a stranger's extension", stage.extend(&stranger, LONG).await?, Extension::NotOwner)?;
    due("the holder's extension", stage.extend(&holder, SHORT).await?, Extension::Extended)?;
    let end = stage.now().after(SHORT);
    // The lock may end meanwhile, so that the answer may be either; it must not be prolonged.
    if stage.extend(&stranger, LONG).await? == Extension::Extended {
        return broken("a stranger's extension was answered Extended");
    }
    stage.ends_by("a", end).await?;
    Ok(())
}

pub(super) async fn an_extension_needs_all_resources(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let both = stage.same_owner(&holder, ["a", "b"]);
    stage.takes(&holder, SHORT, 0).await?;
    let end = stage.now().after(SHORT);
    due("an extension of two, one of them free", stage.extend(&both, LONG).await?, Extension::Gone)?;
    stage.takes(&stage.somebody("b"), LONG, 0).await?;
    due("an extension of two, one of them another's", stage.extend(&both, LONG).await?, Extension::NotOwner)?;
    stage.ends_by("a", end).await?;
    Ok(())
}

pub(super) async fn an_extension_touches_no_counter(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let counter = stage.takes(&holder, LONG, 7).await?;
    due("the holder's extension", stage.extend(&holder, LONG).await?, Extension::Extended)?;
    stage.gives_back(&holder).await?;
    due("an extension of what was released", stage.extend(&holder, LONG).await?, Extension::Gone)?;
    stage.counter_is("a", counter).await
}

pub(super) async fn many_extensions_are_answered_each_in_their_order(stage: &Stage<'_>) -> Outcome {
    let (first, gone, second) = (stage.somebody(["a", "b"]), stage.somebody(["c", "d"]), stage.somebody("e"));
    let stranger = stage.somebody(["b", "c"]);
    stage.takes(&first, LONG, 0).await?;
    stage.takes(&second, LONG, 0).await?;
    let leases = [(&first, SHORT), (&stranger, LONG), (&gone, LONG), (&second, LONG)];
    let leases = leases.map(|(who, lease)| (who, ttl(lease)));
    let extended = answered("extending many", stage.node.extend_many(&leases).await)?;
    let end = stage.now().after(SHORT);
    let expected = vec![Extension::Extended, Extension::NotOwner, Extension::Gone, Extension::Extended];
    due("extending the holder's, a stranger's, what is gone, and another holder's", extended, expected)?;
    due("extending none", answered("extending none", stage.node.extend_many(&[]).await)?, Vec::new())?;
    stage.ends_by(["a", "b"], end).await?;
    match stage.acquire(&stage.somebody("e"), LONG, 0).await? {
        Acquisition::Held(_) => Ok(()),
        Acquisition::Granted { .. } => broken("the last of many was not extended by its own ttl"),
    }
}
