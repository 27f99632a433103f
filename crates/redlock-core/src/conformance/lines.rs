//! Promises about lines of waiters, of nodes that listen: who is called when, and that a line grants nothing by itself.
//!
//! Wake-ups are a matter of order and speed. What is checked here is that they come while nothing is wrong.

use super::stage::{LONG, Outcome, Stage, answered, broken, due, not_offered, ttl};
use crate::bell::{Listener, Manner, Ticket};
use crate::node::{Acquisition, Holder, NodeError, Releasing};
use crate::owner::{OsRandomness, Ownership};
use futures_util::FutureExt as _;
use std::time::Duration;

/// How long a wake-up may take where nothing is lost.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// A line in which nobody stands yet.
struct Line<'a> {
    stage: &'a Stage<'a>,
    listener: Listener,
}

/// Somebody who waits in it.
struct Waiter {
    who: Ownership,
    ticket: Ticket,
}

impl<'a> Line<'a> {
    /// Begins to listen on behalf of somebody who wants a resource of the stage.
    async fn open(stage: &'a Stage<'a>, who: &Ownership) -> Outcome<Self> {
        let listener = Listener::new(&OsRandomness);
        match stage.node.listen(who.prefix(), &listener).await {
            Err(NodeError::Unsupported) => not_offered("the node does not listen for waiters"),
            listening => answered("the wish to listen", listening).map(|()| Self { stage, listener }),
        }
    }

    fn waiter(&self, name: &str) -> Waiter {
        Waiter { who: self.stage.somebody(name), ticket: self.listener.ticket() }
    }

    async fn ask(&self, waiter: &Waiter, manner: Manner) -> Outcome<Acquisition> {
        let place = waiter.ticket.place(manner);
        let answer = self.stage.node.acquire_in_line(&waiter.who, ttl(LONG), 0, &place).await;
        answered("an acquire in line", answer)
    }

    /// Stands in line for what somebody holds.
    async fn stand(&self, waiter: &Waiter) -> Outcome {
        match self.ask(waiter, Manner::Yield).await? {
            Acquisition::Held(_) => Ok(()),
            Acquisition::Granted { .. } => broken("what somebody holds was granted to a waiter in line"),
        }
    }

    async fn leave(&self, waiter: &Waiter) -> Outcome {
        let place = waiter.ticket.place(Manner::Yield);
        let left = self.stage.node.leave_line(waiter.who.prefix(), waiter.who.resources(), &place).await;
        answered("leaving the line", left)
    }

    async fn is_called(&self, waiter: &Waiter, which: &str) -> Outcome {
        match tokio::time::timeout(CALL_LIMIT, waiter.ticket.called()).await {
            Ok(true) => Ok(()),
            Ok(false) => broken(format!("{which} was called with all others, though nothing had broken")),
            Err(_) => broken(format!("{which} was not called within {CALL_LIMIT:?}")),
        }
    }

    fn is_not_called(&self, waiter: &Waiter, which: &str) -> Outcome {
        match waiter.ticket.called().now_or_never() {
            None => Ok(()),
            Some(_) => broken(format!("{which} was called")),
        }
    }
}

async fn releases(stage: &Stage<'_>, holder: &Ownership) -> Outcome {
    due("a release with a waiter in line", stage.release(holder).await?, Releasing::PassedOn)
}

pub(super) async fn the_first_in_line_is_called_when_the_lock_is_released(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let line = Line::open(stage, &holder).await?;
    let (first, second) = (line.waiter("a"), line.waiter("a"));
    stage.takes(&holder, LONG, 0).await?;
    line.stand(&first).await?;
    line.stand(&second).await?;
    // Whoever stands in line already keeps its place.
    line.stand(&first).await?;
    line.is_not_called(&first, "the first in line, before the release,")?;
    releases(stage, &holder).await?;
    line.is_called(&first, "the first in line").await?;
    line.is_not_called(&second, "the second in line, after one release,")
}

pub(super) async fn whoever_is_called_is_granted_as_anybody(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let line = Line::open(stage, &holder).await?;
    let (first, second) = (line.waiter("a"), line.waiter("a"));
    let counter = stage.takes(&holder, LONG, 0).await?;
    line.stand(&first).await?;
    line.stand(&second).await?;
    releases(stage, &holder).await?;
    let granted = line.ask(&first, Manner::Called).await?;
    due("an acquire by the one who was called", granted, Acquisition::Granted { counter: counter + 1 })?;
    stage.is_refused(&stage.somebody("a")).await?;
    // Granted here is not granted by a quorum: in case it gives that back, it is still the first in line.
    releases(stage, &first.who).await?;
    line.is_called(&first, "the first in line, after it gave back what it was granted,").await?;
    let granted = line.ask(&first, Manner::Called).await?;
    due("another acquire by the first", granted, Acquisition::Granted { counter: counter + 2 })?;
    line.leave(&first).await?;
    line.is_not_called(&second, "the second in line, while the lock is held,")?;
    releases(stage, &first.who).await?;
    line.is_called(&second, "the second in line, after the first has had its turn,").await?;
    let granted = line.ask(&second, Manner::Called).await?;
    due("an acquire by the second", granted, Acquisition::Granted { counter: counter + 3 })?;
    line.leave(&second).await?;
    due("a release with nobody in line", stage.release(&second.who).await?, Releasing::Released)?;
    stage.counter_is("a", counter + 3).await
}

pub(super) async fn whoever_yields_lets_the_first_in_line_go_first(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let line = Line::open(stage, &holder).await?;
    let (first, second) = (line.waiter("a"), line.waiter("a"));
    let counter = stage.takes(&holder, LONG, 0).await?;
    line.stand(&first).await?;
    releases(stage, &holder).await?;
    line.is_called(&first, "the first in line").await?;
    match line.ask(&second, Manner::Yield).await? {
        Acquisition::Held(held) => due("what is in the way of the second", held.holder, Holder::Line)?,
        Acquisition::Granted { .. } => return broken("the second was granted what the first in line was called for"),
    }
    line.is_called(&first, "the first in line, when the second asked,").await?;
    let granted = line.ask(&second, Manner::Overtake).await?;
    due("an acquire that overtakes", granted, Acquisition::Granted { counter: counter + 1 })?;
    line.leave(&second).await?;
    let released = stage.release(&second.who).await?;
    due("a release by the one who overtook, after which nobody is left in line,", released, Releasing::Released)
}

pub(super) async fn a_call_is_passed_on_by_leaving_the_line(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let line = Line::open(stage, &holder).await?;
    let (first, second) = (line.waiter("a"), line.waiter("a"));
    let counter = stage.takes(&holder, LONG, 0).await?;
    line.stand(&first).await?;
    line.stand(&second).await?;
    releases(stage, &holder).await?;
    line.is_called(&first, "the first in line").await?;
    line.leave(&first).await?;
    line.is_called(&second, "the second in line, after the first has left,").await?;
    for waiter in [&first, &second, &second] {
        line.leave(waiter).await?;
    }
    let next = stage.somebody("a");
    due("an acquire when all have left", stage.takes(&next, LONG, 0).await?, counter + 1)?;
    due("a release when all have left", stage.release(&next).await?, Releasing::Released)
}
