//! Promises about a node whose connections break or fall silent, as far as the fixture can make them.

use super::stage::{LONG, Outcome, Stage, broken, not_offered, ttl};
use crate::node::{Acquisition, NodeError, Releasing};
use futures_util::future::join;
use std::time::Duration;
use tokio::time::timeout;

/// How often a node is asked that does not answer yet, and the pause in between: more than half a minute.
const TRIES_MAX: usize = 1_500;
const PAUSE: Duration = Duration::from_millis(20);

/// The end of every call. The contract leaves the time to the node ("a few seconds, say"); this is generous.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// How often connections are cut in the middle of a call.
const CUTS: usize = 25;

/// Asks until there is an answer, for a question that may be asked twice.
async fn until_answered<T, F>(question: &str, ask: impl Fn() -> F) -> Outcome<T>
where
    F: Future<Output = Result<T, NodeError>> + Send,
{
    let mut last = String::new();
    for _ in 0..TRIES_MAX {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error.to_string(),
        }
        tokio::time::sleep(PAUSE).await;
    }
    broken(format!("{question} still failed after {TRIES_MAX} tries: {last}"))
}

pub(super) async fn the_node_comes_back_after_its_connections_broke(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let counter = stage.takes(&holder, LONG, 500).await?;
    if !stage.fixture.disconnect().await {
        return not_offered("the fixture does not cut connections");
    }
    let rival = stage.somebody("a");
    let held = until_answered("an acquire after the cut", || stage.node.acquire(&rival, ttl(LONG), 0)).await?;
    if let Acquisition::Granted { .. } = held {
        return broken("what was held before the connections broke was granted to somebody else");
    }
    let released = until_answered("a release after the cut", || stage.node.release(&holder)).await?;
    if released == Releasing::NotOwner {
        return broken("a release after the cut was answered NotOwner, though nobody else was granted the lock");
    }
    stage.counter_is("a", counter).await
}

pub(super) async fn a_call_is_made_once(stage: &Stage<'_>) -> Outcome {
    for round in 0..CUTS {
        let who = stage.somebody(format!("a{round}"));
        // The call and the cut run side by side, so that some of the cuts come between effect and answer.
        let (acquired, cut) = join(stage.node.acquire(&who, ttl(LONG), 0), stage.fixture.disconnect()).await;
        if !cut {
            return not_offered("the fixture does not cut connections");
        }
        match acquired {
            Ok(Acquisition::Held(held)) => {
                return broken(format!("an acquire of what nobody else wants was refused, by itself: {held}"));
            }
            Err(_) => continue,
            Ok(Acquisition::Granted { .. }) => {}
        }
        let (released, _) = join(stage.node.release(&who), stage.fixture.disconnect()).await;
        match released {
            Ok(Releasing::Gone) => return broken("the only release of what was held was answered Gone"),
            Ok(Releasing::NotOwner) => return broken("the only release of what was held was answered NotOwner"),
            Ok(Releasing::PassedOn) => return broken("a release with nobody in line was answered PassedOn"),
            Ok(Releasing::Released) | Err(_) => {}
        }
    }
    let last = stage.somebody("b");
    until_answered("an acquire after the last cut", || stage.node.acquire(&last, ttl(LONG), 0)).await?;
    Ok(())
}

pub(super) async fn a_call_ends_though_nobody_answers(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    stage.takes(&holder, LONG, 0).await?;
    if !stage.fixture.silence(true).await {
        return not_offered("the fixture does not keep the other end from answering");
    }
    let rival = stage.somebody("b");
    // Measured by tokio's clock: the node's own may stand still with its other end.
    let acquired = timeout(CALL_LIMIT, stage.node.acquire(&rival, ttl(LONG), 0)).await.map(|answer| answer.is_ok());
    let released = timeout(CALL_LIMIT, stage.node.release(&holder)).await.map(|answer| answer.is_ok());
    stage.fixture.silence(false).await;
    for (question, answered) in [("an acquire", acquired), ("a release", released)] {
        match answered {
            Ok(false) => {}
            Ok(true) => return broken(format!("{question} was answered while the other end was silent")),
            Err(_) => return broken(format!("{question} did not end within {CALL_LIMIT:?} of silence")),
        }
    }
    until_answered("a release after the silence", || stage.node.release(&holder)).await?;
    let last = stage.somebody("c");
    until_answered("an acquire after the silence", || stage.node.acquire(&last, ttl(LONG), 0)).await?;
    Ok(())
}
