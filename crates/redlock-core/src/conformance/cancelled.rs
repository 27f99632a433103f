//! Promises about futures that are dropped: at any poll, and the call after it is right.
//!
//! Each call is begun anew and polled once more than the last time before it is dropped, until it comes to an end.

use super::stage::{LONG, Outcome, Stage, broken, due, ttl};
use crate::node::{Acquisition, Extension, NodeError, Raising, Releasing};
use std::pin::pin;
use std::task::Poll;

/// The most polls after which a call is dropped.
const POLLS_MAX: usize = 64;

/// Polls a call so many times, each time when it wants to be, and drops it. Says whether it came to an end before.
async fn dropped_after<T>(polls: usize, call: impl Future<Output = Result<T, NodeError>>) -> bool {
    let mut call = pin!(call);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(super) async fn a_dropped_acquire_took_all_or_none(stage: &Stage<'_>) -> Outcome {
    for polls in 0..POLLS_MAX {
        let names = ["a", "b"].map(|name| format!("{name}{polls}"));
        let who = stage.somebody(&names[..]);
        let came_to_an_end = dropped_after(polls, stage.node.acquire(&who, ttl(LONG), 0)).await;
        // Whoever is granted one of them keeps it, so that the dropped acquire cannot take effect after that.
        let mut taken = Vec::new();
        for name in &names {
            let rival = stage.somebody(name);
            taken.push(matches!(stage.acquire(&rival, LONG, 0).await?, Acquisition::Held(_)));
        }
        // The second question may find what the first did not, if the acquire arrived in between; never the other way round.
        if taken == [true, false] {
            return broken(format!("an acquire dropped after {polls} polls holds {} and not {}", names[0], names[1]));
        }
        if taken == [false, true] {
            return broken(format!(
                "an acquire dropped after {polls} polls holds {}, though {} was free",
                names[1], names[0]
            ));
        }
        if polls == 0 && taken != [false, false] {
            return broken("an acquire took effect that was never polled");
        }
        if came_to_an_end {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) async fn a_dropped_acquire_is_undone_by_a_release(stage: &Stage<'_>) -> Outcome {
    for polls in 1..POLLS_MAX {
        let names = ["a", "b"].map(|name| format!("{name}{polls}"));
        let (who, next) = (stage.somebody(&names[..]), stage.somebody(&names[..]));
        let order = stage.node.order();
        let came_to_an_end = dropped_after(polls, stage.node.acquire(&who, ttl(LONG), 0)).await;
        let dropped = stage.now();
        loop {
            stage.release(&who).await?;
            let Acquisition::Held(held) = stage.acquire(&next, LONG, 0).await? else { break };
            if order.is_some() && order == stage.node.order() {
                return broken(format!(
                    "an acquire dropped after {polls} polls overtook, or was not undone by, the release after it, though \
                     the node claims to keep order: {held}"
                ));
            }
            // Without an order the release may have come first, and is repeated.
            if stage.fixture.lateness() < stage.now().since(dropped) {
                return broken(format!("an acquire dropped after {polls} polls is not undone by releases: {held}"));
            }
            stage.step().await;
        }
        if came_to_an_end {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) async fn a_dropped_raise_happened_or_not(stage: &Stage<'_>) -> Outcome {
    for polls in 1..POLLS_MAX {
        let names = ["a", "b"].map(|name| format!("{name}{polls}"));
        let holder = stage.somebody(&names[..]);
        let counter = stage.takes(&holder, LONG, 0).await?;
        let to = counter + 100;
        let came_to_an_end = dropped_after(polls, stage.node.raise(&holder, to)).await;
        let counted = stage.raise(&holder, 0).await?;
        if counted != Raising::At(counter) && counted != Raising::At(to) {
            return broken(format!(
                "after a dropped raise from {counter} to {to}, a raise to 0 was answered {counted:?}"
            ));
        }
        stage.gives_back(&holder).await?;
        let mut next = [0; 2];
        for (name, next) in names.iter().zip(&mut next) {
            *next = stage.takes(&stage.somebody(name), LONG, 0).await?;
        }
        if next != [counter + 1; 2] && next != [to + 1; 2] {
            return broken(format!("after a dropped raise from {counter} to {to} the next counters are {next:?}"));
        }
        if came_to_an_end {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) async fn a_dropped_extension_leaves_the_lock(stage: &Stage<'_>) -> Outcome {
    for polls in 1..POLLS_MAX {
        let names = ["a", "b"].map(|name| format!("{name}{polls}"));
        let holder = stage.somebody(&names[..]);
        stage.takes(&holder, LONG, 0).await?;
        let came_to_an_end = dropped_after(polls, stage.node.extend(&holder, ttl(LONG))).await;
        due("the extension after a dropped one", stage.extend(&holder, LONG).await?, Extension::Extended)?;
        stage.gives_back(&holder).await?;
        stage.takes(&stage.somebody(&names[..]), LONG, 0).await?;
        if came_to_an_end {
            return Ok(());
        }
    }
    Ok(())
}

pub(super) async fn a_dropped_release_can_be_repeated(stage: &Stage<'_>) -> Outcome {
    for polls in 1..POLLS_MAX {
        let names = ["a", "b"].map(|name| format!("{name}{polls}"));
        let (holder, next) = (stage.somebody(&names[..]), stage.somebody(&names[..]));
        stage.takes(&holder, LONG, 0).await?;
        let came_to_an_end = dropped_after(polls, stage.node.release(&holder)).await;
        let again = stage.release(&holder).await?;
        if again == Releasing::NotOwner {
            return broken("a release after a dropped one found another owner, though nobody else had asked");
        }
        stage.takes(&next, LONG, 0).await?;
        due("the release once more", stage.release(&holder).await?, Releasing::NotOwner)?;
        if came_to_an_end {
            return Ok(());
        }
    }
    Ok(())
}
