//! Asks nodes at the same time, under one deadline: the only I/O loop.
//!
//! Calls are polled where the caller waits; no task is spawned for them. What is still unanswered when the caller stops
//! waiting (because the matter is decided, the deadline has passed, or the caller's future was dropped) goes to the
//! [`Keeper`], which polls it to the end.

use crate::bell::Place;
use crate::keeper::Keeper;
use crate::lane::{Lane, Pass};
use crate::line::Turn;
use crate::node::{Acquisition, Extension, HeldBy, Holder, Inspection, NodeError, Raising, Releasing};
use crate::resource::{KeyPrefix, Resources, Ttl};
use crate::token::FencingToken;
use crate::undertaking::Undertaking;
use futures_util::FutureExt as _;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

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
    Extend(Range<usize>, Result<Vec<Extended>, NodeError>),
    Release(Result<Releasing, NodeError>),
    /// A call whose answer nobody looks at.
    Done,
    Inspect(Result<Vec<Inspection>, NodeError>),
}

/// A node's answer to an extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extended {
    pub(crate) extension: Extension,
    /// Whether no earlier extension to less can still take effect after this one.
    pub(crate) relied_on: bool,
}

pub(crate) struct FanOut {
    keeper: Arc<Keeper>,
    calls: Vec<Call>,
    /// How many of the calls, the first ones, have been polled: these may have been sent.
    polled: usize,
    replies: VecDeque<Reply>,
    node_timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    /// The deadline has passed, and everybody else has been let run once more.
    yielded: bool,
}

impl FanOut {
    /// An empty round whose deadline starts to run now.
    pub(crate) fn new(keeper: Arc<Keeper>, node_timeout: Duration, nodes: usize) -> Self {
        keeper.ensure_task();
        let deadline = Box::pin(tokio::time::sleep(node_timeout));
        let (calls, replies) = (Vec::with_capacity(nodes), VecDeque::with_capacity(nodes));
        Self { keeper, calls, polled: 0, replies, node_timeout, deadline, yielded: false }
    }

    /// Adds a call; it is first polled, after those added before it, when the next reply is waited for.
    pub(crate) fn push(&mut self, call: Call) {
        self.calls.push(call);
    }

    /// Lets the deadline run anew, for another trip to the same nodes.
    pub(crate) fn restart_deadline(&mut self) {
        self.deadline = Box::pin(tokio::time::sleep(self.node_timeout));
        self.yielded = false;
    }

    /// The next reply, or `None` once the deadline has passed or nothing is left to wait for.
    ///
    /// *Cancel safety*: nothing is lost; a reply that was not returned is returned by the next call.
    pub(crate) async fn next(&mut self) -> Option<Reply> {
        poll_fn(|cx| {
            if self.replies.is_empty() {
                self.poll_calls(cx);
            }
            if let Some(reply) = self.replies.pop_front() {
                return Poll::Ready(Some(reply));
            }
            if self.calls.is_empty() {
                return Poll::Ready(None);
            }
            if self.deadline.as_mut().poll(cx).is_pending() || mutant!("no deadline") {
                return Poll::Pending;
            }
            if self.yielded {
                return Poll::Ready(None);
            }
            // Whoever was not scheduled for a while finds the deadline passed and the answers unread: let those who read
            // them run once before nodes are said to have been silent.
            self.yielded = true;
            let now = Instant::now();
            if self.node_timeout <= now.saturating_duration_since(self.deadline.deadline()) {
                // So long that the requests may not even have been sent: the nodes have not had their time yet.
                self.deadline.as_mut().reset(now + self.node_timeout);
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// A reply that has arrived already, beside the one that decided.
    pub(crate) fn arrived(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    /// Whether nothing is under way and nothing has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.replies.is_empty()
    }

    /// Polls all of them: whoever woke us, every call gets its first poll, and in order.
    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        let replies = &mut self.replies;
        self.calls.retain_mut(|call| match call.as_mut().poll(cx) {
            Poll::Ready(reply) => {
                replies.push_back(reply);
                false
            }
            Poll::Pending => true,
        });
        self.polled = self.calls.len();
    }
}

impl Drop for FanOut {
    fn drop(&mut self) {
        // What was never polled was never sent.
        self.calls.truncate(self.polled);
        if !self.calls.is_empty() && !mutant!("stragglers forgotten") {
            self.keeper.keep_sent(self.calls.drain(..));
        }
    }
}

impl fmt::Debug for FanOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanOut").field("under_way", &self.calls.len()).field("replies", &self.replies).finish()
    }
}

/// Whose acquire it is: this matters for when a node counts as asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taking {
    /// An attempt's: the node counts as asked once the call has been polled.
    First,
    /// A renewal's, which has noted already that the node is being asked again.
    Again,
}

/// The acquire of an undertaking on one node; with a place in the node's line, if it keeps one for us.
pub(crate) fn acquire(
    pass: Pass,
    undertaking: &Arc<Undertaking>,
    node: usize,
    taking: Taking,
    place: Option<Place>,
    keeper: &Arc<Keeper>,
) -> Call {
    let (undertaking, keeper) = (Arc::clone(undertaking), Arc::downgrade(keeper));
    Box::pin(async move {
        let lane = Arc::clone(pass.lane());
        if taking == Taking::First && !mutant!("release only where granted") {
            undertaking.acquire_sent(node);
        }
        // On a node that keeps order, only a release that was sent before can take effect before.
        let (order, released_before) = (lane.node().order(), undertaking.release_has_begun(node));
        let (ownership, ttl, floor) = (undertaking.ownership(), undertaking.ttl(), undertaking.floor());
        let answer = match place {
            None => caught(lane.node().acquire(ownership, ttl, floor)).await,
            Some(place) => caught(lane.node().acquire_in_line(ownership, ttl, floor, &place)).await,
        };
        let answer = answer.and_then(|acquisition| match acquisition {
            // Not somebody else's: the request was delivered twice, or the node is known under two names.
            Acquisition::Held(HeldBy { holder: Holder::Owner(holder), .. })
                if holder == ownership.owner().fingerprint() && taking == Taking::First =>
            {
                Err(NodeError::protocol("it is held by this very attempt, which asked this server before"))
            }
            acquisition => Ok(acquisition),
        });
        let took = pass.answered(&answer);
        if mutant!("release only where granted") && matches!(answer, Ok(Acquisition::Granted { .. })) {
            undertaking.acquire_sent(node);
        }
        let in_order = order.is_some() && order == lane.node().order();
        let released_before = if in_order { released_before } else { undertaking.release_has_begun(node) };
        if matches!(answer, Ok(Acquisition::Held(_))) {
            undertaking.nothing_there(node);
        } else if released_before && !mutant!("an overtaken release is not repeated") {
            release_again(&lane, &undertaking, node, &keeper);
        }
        Reply { node, took, answer: Answer::Acquire(answer) }
    })
}

/// One node's bug is one node's failure.
async fn caught<T>(call: impl Future<Output = Result<T, NodeError>>) -> Result<T, NodeError> {
    match AssertUnwindSafe(call).catch_unwind().await {
        Ok(answer) => answer,
        Err(_) => Err(NodeError::protocol("the node's own code panicked; its message has been printed")),
    }
}

/// Awaits a call, and says when it has been polled for the first time: on its way, as far as that is up to us.
async fn sent<T>(call: impl Future<Output = T>, then: impl FnOnce()) -> T {
    let mut call = pin!(call);
    let at_once = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
    then();
    match at_once {
        Poll::Ready(answer) => answer,
        Poll::Pending => call.await,
    }
}

/// The acquire came back after the release that was to undo it: on this node the two may have taken effect in the wrong
/// order, so release once more.
fn release_again(lane: &Arc<Lane>, undertaking: &Arc<Undertaking>, node: usize, keeper: &Weak<Keeper>) {
    if let Some(keeper) = keeper.upgrade() {
        keeper.keep([release(lane, undertaking, node, None)]);
    }
}

/// The raise of an undertaking's counters on one node.
pub(crate) fn raise(pass: Pass, undertaking: &Arc<Undertaking>, node: usize, to: FencingToken) -> Call {
    let undertaking = Arc::clone(undertaking);
    Box::pin(async move {
        let lane = Arc::clone(pass.lane());
        let answer = caught(lane.node().raise(undertaking.ownership(), to.as_counter())).await;
        let took = pass.answered(&answer);
        Reply { node, took, answer: Answer::Raise(to, answer) }
    })
}

/// The extension of some of a renewal's undertakings on one node, in one call.
pub(crate) fn extend(pass: Pass, node: usize, leases: &Arc<[(Arc<Undertaking>, Ttl)]>, part: Range<usize>) -> Call {
    let leases = Arc::clone(leases);
    Box::pin(async move {
        let lane = Arc::clone(pass.lane());
        let leases = &leases[part.clone()];
        for (undertaking, ttl) in leases {
            undertaking.extension_sent(node, *ttl);
        }
        let answer = match leases {
            [(undertaking, ttl)] => {
                caught(lane.node().extend(undertaking.ownership(), *ttl)).await.map(|extension| vec![extension])
            }
            leases => {
                let leases: Vec<_> = leases.iter().map(|(undertaking, ttl)| (undertaking.ownership(), *ttl)).collect();
                caught(lane.node().extend_many(&leases)).await
            }
        };
        let answer = answer.and_then(|extensions| {
            let complete = extensions.len() == part.len();
            if complete { Ok(extensions) } else { Err(NodeError::protocol("not one answer for each extension")) }
        });
        let answer = answer.map(|extensions| {
            let relied_on = leases.iter().map(|(undertaking, ttl)| undertaking.extension_answered(node, *ttl));
            extensions
                .into_iter()
                .zip(relied_on)
                .map(|(extension, relied_on)| Extended { extension, relied_on })
                .collect()
        });
        let took = pass.answered(&answer);
        Reply { node, took, answer: Answer::Extend(part, answer) }
    })
}

/// What one node says of resources.
pub(crate) fn inspect(pass: Pass, node: usize, prefix: &KeyPrefix, resources: &Resources) -> Call {
    let (prefix, resources) = (prefix.clone(), resources.clone());
    Box::pin(async move {
        let lane = Arc::clone(pass.lane());
        let answer = caught(lane.node().inspect(&prefix, &resources)).await;
        let took = pass.answered(&answer);
        Reply { node, took, answer: Answer::Inspect(answer) }
    })
}

/// The first pause before a release is tried again; it doubles up to [`RELEASE_PAUSE_MAX`].
const RELEASE_PAUSE_MIN: Duration = Duration::from_millis(20);

/// The longest pause between two tries of a release.
const RELEASE_PAUSE_MAX: Duration = Duration::from_millis(500);

/// The longest that a release is tried for; a lock that lives longer is then left to its ttl.
const RELEASE_PATIENCE_MAX: Duration = Duration::from_secs(300);

/// The release of an undertaking on one node: tried again until the node answers, or for the longest ttl that it was asked for,
/// after which what the call would remove has expired by itself. (Unless the node carries out an extension only after that: then
/// the lock lives there for another ttl at most.) Each failure on the way is noted in the undertaking. The turn, if this call
/// carries it, passes on as soon as the release has been sent for the first time.
pub(crate) fn release(lane: &Arc<Lane>, undertaking: &Arc<Undertaking>, node: usize, turn: Option<Turn>) -> Call {
    let (lane, undertaking) = (Arc::clone(lane), Arc::clone(undertaking));
    Box::pin(async move {
        let patience = undertaking.longest_ttl().as_duration().min(RELEASE_PATIENCE_MAX);
        let mut waited = Duration::ZERO;
        let mut pause = RELEASE_PAUSE_MIN;
        let mut tried_before = false;
        let mut turn = turn;
        loop {
            let pass = lane.admit_release();
            undertaking.release_begun(node);
            let answer = sent(caught(lane.node().release(undertaking.ownership())), || drop(turn.take())).await;
            let answer = answer.map(|releasing| match releasing {
                // An earlier try may have done it, with its answer lost.
                Releasing::Gone if tried_before => Releasing::Released,
                Releasing::PassedOn => {
                    lane.note_crowd(undertaking.ownership().resources());
                    Releasing::Released
                }
                releasing => releasing,
            });
            tried_before = true;
            let took = pass.answered(&answer);
            waited = waited.saturating_add(took);
            match &answer {
                Ok(_) => {}
                // The node is alive and will say the same again.
                Err(NodeError::Refused { .. } | NodeError::Unsupported) => {}
                Err(error) if waited < patience && !mutant!("a release is tried once") => {
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

/// Leaves the lines for an undertaking's resources on one node. Tried once: a place that stays is overtaken.
pub(crate) fn leave(lane: &Arc<Lane>, node: usize, prefix: &KeyPrefix, resources: &Resources, place: Place) -> Call {
    let (lane, prefix, resources) = (Arc::clone(lane), prefix.clone(), resources.clone());
    Box::pin(async move {
        let pass = lane.admit_release();
        let answer = caught(lane.node().leave_line(&prefix, &resources, &place)).await;
        let took = pass.answered(&answer);
        Reply { node, took, answer: Answer::Done }
    })
}
