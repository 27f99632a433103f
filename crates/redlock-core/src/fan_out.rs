//! Asks nodes at the same time, under one deadline: the only I/O loop.
//!
//! Calls are polled where the caller waits; no task is spawned for them. What is still unanswered when the caller stops
//! waiting (because the matter is decided, the deadline has passed, or the caller's future was dropped) goes to the
//! [`Keeper`], which polls it to the end.

use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::node::{Acquisition, Extension, Inspection, NodeError, Raising, Releasing};
use crate::resource::{KeyPrefix, Resources, Ttl};
use crate::telemetry;
use crate::token::FencingToken;
use crate::undertaking::Undertaking;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use tokio::time::Sleep;

/// One question to one node, on its way.
pub(crate) type Call = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// What came back from one node.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) node: usize,
    pub(crate) took: Duration,
    pub(crate) answer: Answer,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Acquire(Result<Acquisition, NodeError>),
    Raise(FencingToken, Result<Raising, NodeError>),
    /// One answer for each hold of the renewal, in order.
    Extend(Range<usize>, Result<Vec<Extension>, NodeError>),
    Release(Result<Releasing, NodeError>),
    Inspect(Result<Vec<Inspection>, NodeError>),
}

pub(crate) struct FanOut {
    keeper: Arc<Keeper>,
    calls: Vec<Call>,
    replies: VecDeque<Reply>,
    node_timeout: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl FanOut {
    /// An empty round whose deadline starts to run now.
    pub(crate) fn new(keeper: Arc<Keeper>, node_timeout: Duration) -> Self {
        keeper.ensure_task();
        let deadline = Box::pin(tokio::time::sleep(node_timeout));
        Self { keeper, calls: Vec::new(), replies: VecDeque::new(), node_timeout, deadline }
    }

    /// Adds a call; it is first polled, after those added before it, when the next reply is waited for.
    pub(crate) fn push(&mut self, call: Call) {
        self.calls.push(call);
    }

    /// Lets the deadline run anew, for another trip to the same nodes.
    pub(crate) fn restart_deadline(&mut self) {
        self.deadline = Box::pin(tokio::time::sleep(self.node_timeout));
    }

    /// The next reply, or `None` once the deadline has passed or nothing is left to wait for.
    ///
    /// *Cancel safety*: nothing is lost; a reply that was not returned is returned by the next call.
    pub(crate) async fn next(&mut self) -> Option<Reply> {
        poll_fn(|cx| {
            if self.replies.is_empty() {
                let replies = &mut self.replies;
                // All of them each time: whoever woke us, every call gets its first poll, and in order.
                self.calls.retain_mut(|call| match call.as_mut().poll(cx) {
                    Poll::Ready(reply) => {
                        replies.push_back(reply);
                        false
                    }
                    Poll::Pending => true,
                });
            }
            if let Some(reply) = self.replies.pop_front() {
                Poll::Ready(Some(reply))
            } else if self.calls.is_empty() {
                Poll::Ready(None)
            } else {
                self.deadline.as_mut().poll(cx).map(|()| None)
            }
        })
        .await
    }
}

impl FanOut {
    /// A reply that has arrived already, beside the one that decided.
    pub(crate) fn arrived(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        if !self.calls.is_empty() {
            self.keeper.keep(self.calls.drain(..));
        }
    }
}

impl fmt::Debug for FanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanOut").field("under_way", &self.calls.len()).field("replies", &self.replies).finish()
    }
}

/// The acquire of an undertaking on one node.
pub(crate) fn acquire(
    lane: &Arc<Lane>,
    undertaking: &Arc<Undertaking>,
    node: usize,
    patience: Duration,
    keeper: &Arc<Keeper>,
) -> Result<Call, NodeError> {
    let pass = lane.admit(patience)?;
    undertaking.acquire_sent(node);
    let (lane, undertaking, keeper) = (Arc::clone(lane), Arc::clone(undertaking), Arc::downgrade(keeper));
    Ok(Box::pin(async move {
        let answer = lane.node().acquire(undertaking.ownership(), undertaking.ttl(), undertaking.floor()).await;
        let took = pass.answered(&answer);
        note(&lane, &answer, took);
        let released_before = undertaking.acquire_answered(node);
        if matches!(answer, Ok(Acquisition::Held(_))) {
            undertaking.nothing_there(node);
        } else if released_before {
            release_again(&lane, &undertaking, node, &keeper);
        }
        Reply { node, took, answer: Answer::Acquire(answer) }
    }))
}

/// The acquire came back after the release that was to undo it: on this node the two may have taken effect in the wrong
/// order, so release once more.
fn release_again(lane: &Arc<Lane>, undertaking: &Arc<Undertaking>, node: usize, keeper: &Weak<Keeper>) {
    if let Some(keeper) = keeper.upgrade() {
        keeper.keep([release(lane, undertaking, node)]);
    }
}

/// The raise of an undertaking's counters on one node.
pub(crate) fn raise(
    lane: &Arc<Lane>,
    undertaking: &Arc<Undertaking>,
    node: usize,
    to: FencingToken,
    patience: Duration,
) -> Result<Call, NodeError> {
    let pass = lane.admit(patience)?;
    let (lane, undertaking) = (Arc::clone(lane), Arc::clone(undertaking));
    Ok(Box::pin(async move {
        let answer = lane.node().raise(undertaking.ownership(), to.as_counter()).await;
        let took = pass.answered(&answer);
        note(&lane, &answer, took);
        Reply { node, took, answer: Answer::Raise(to, answer) }
    }))
}

/// The extension of some of a renewal's undertakings on one node, in one call.
pub(crate) fn extend(
    lane: &Arc<Lane>,
    node: usize,
    leases: &Arc<[(Arc<Undertaking>, Ttl)]>,
    part: Range<usize>,
    patience: Duration,
) -> Result<Call, NodeError> {
    let pass = lane.admit(patience)?;
    let (lane, leases) = (Arc::clone(lane), Arc::clone(leases));
    Ok(Box::pin(async move {
        let answer = match &leases[part.clone()] {
            [(undertaking, ttl)] => {
                lane.node().extend(undertaking.ownership(), *ttl).await.map(|extension| vec![extension])
            }
            leases => {
                let leases: Vec<_> = leases.iter().map(|(undertaking, ttl)| (undertaking.ownership(), *ttl)).collect();
                lane.node().extend_many(&leases).await
            }
        };
        let answer = answer.and_then(|extensions| {
            let complete = extensions.len() == part.len();
            if complete { Ok(extensions) } else { Err(NodeError::protocol("not one answer for each extension")) }
        });
        let took = pass.answered(&answer);
        note(&lane, &answer, took);
        Reply { node, took, answer: Answer::Extend(part, answer) }
    }))
}

/// What one node says of resources.
pub(crate) fn inspect(
    lane: &Arc<Lane>,
    node: usize,
    prefix: &KeyPrefix,
    resources: &Resources,
    patience: Duration,
) -> Result<Call, NodeError> {
    let pass = lane.admit(patience)?;
    let (lane, prefix, resources) = (Arc::clone(lane), prefix.clone(), resources.clone());
    Ok(Box::pin(async move {
        let answer = lane.node().inspect(&prefix, &resources).await;
        let took = pass.answered(&answer);
        note(&lane, &answer, took);
        Reply { node, took, answer: Answer::Inspect(answer) }
    }))
}

/// The first pause before a release is tried again; it doubles up to [`RELEASE_PAUSE_MAX`].
const RELEASE_PAUSE_MIN: Duration = Duration::from_millis(20);

/// The longest pause between two tries of a release.
const RELEASE_PAUSE_MAX: Duration = Duration::from_millis(500);

/// The longest that a release is tried for; a lock that lives longer is then left to its ttl.
const RELEASE_PATIENCE_MAX: Duration = Duration::from_secs(300);

/// The release of an undertaking on one node: tried again until the node answers, or until what it would remove has
/// expired by itself. Each failure on the way is noted in the undertaking.
pub(crate) fn release(lane: &Arc<Lane>, undertaking: &Arc<Undertaking>, node: usize) -> Call {
    let (lane, undertaking) = (Arc::clone(lane), Arc::clone(undertaking));
    Box::pin(async move {
        let patience = undertaking.longest_ttl().as_duration().min(RELEASE_PATIENCE_MAX);
        let mut waited = Duration::ZERO;
        let mut pause = RELEASE_PAUSE_MIN;
        loop {
            let pass = lane.admit_release();
            let answer = lane.node().release(undertaking.ownership()).await;
            let took = pass.answered(&answer);
            note(&lane, &answer, took);
            waited = waited.saturating_add(took);
            match &answer {
                Ok(_) => undertaking.release_answered(node),
                // The node is alive and will say the same again.
                Err(NodeError::Refused { .. } | NodeError::Unsupported) => {}
                Err(error) if waited < patience => {
                    undertaking.release_failed(node, error);
                    tokio::time::sleep(pause).await;
                    waited = waited.saturating_add(pause);
                    pause = pause.saturating_mul(2).min(RELEASE_PAUSE_MAX);
                    continue;
                }
                Err(_) => {}
            }
            return Reply { node, took, answer: Answer::Release(answer) };
        }
    })
}

fn note<T>(lane: &Lane, answer: &Result<T, NodeError>, took: Duration) {
    match answer {
        Ok(_) => telemetry::node_answered(lane.node().name(), took),
        Err(error) => telemetry::node_failed(lane.node().name(), error),
    }
}
