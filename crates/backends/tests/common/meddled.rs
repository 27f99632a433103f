//! Memory nodes with somebody in between who meddles: calls that take effect in another order than they were made in, or
//! twice, and a node that has a bug.
//!
//! Unlike the wire of [`Faulty`](redlock_backends::faulty::Faulty) these keep no order and do not say that they do, as a
//! node of somebody else's making.

use async_trait::async_trait;
use redlock_backends::MemoryNode;
use redlock_backends::faulty::Question;
use redlock_core::{Acquisition, Clock, Extension, LockNode, NodeError, Ownership, Raising, Releasing, Ttl};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

/// A node and who meddles with its calls.
#[derive(Debug)]
pub(crate) struct Meddled<M> {
    pub(crate) memory: MemoryNode,
    pub(crate) by: M,
}

/// What happens to a call on its way to the node and back.
#[async_trait]
pub(crate) trait Meddle: Send + Sync {
    /// On the way there. Says how long the way back takes.
    async fn travel(&self, _: Question) -> Duration {
        Duration::ZERO
    }

    /// How often the node is told.
    fn deliveries(&self, _: Question) -> usize {
        1
    }

    /// What takes the answer's place.
    fn failure(&self, _: Question) -> Option<NodeError> {
        None
    }
}

/// So many nodes on one clock, each with a meddler of its own.
pub(crate) fn meddled<M>(nodes: usize, clock: &Arc<impl Clock + 'static>, by: impl Fn() -> M) -> Vec<Arc<Meddled<M>>> {
    let node = |n| Meddled { memory: MemoryNode::with_clock(format!("n{n}"), Arc::clone(clock) as _), by: by() };
    (0..nodes).map(|n| Arc::new(node(n))).collect()
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, NodeError>> + Send + 'a>>;

impl<M: Meddle> Meddled<M> {
    async fn meddle<'a, T: Send>(
        &self,
        question: Question,
        call: impl Fn() -> Answer<'a, T> + Send,
    ) -> Result<T, NodeError> {
        let way_back = self.by.travel(question).await;
        for _ in 1..self.by.deliveries(question) {
            call().await?;
        }
        let answer = call().await;
        if !way_back.is_zero() {
            sleep(way_back).await;
        }
        self.by.failure(question).map_or(answer, Err)
    }
}

#[async_trait]
impl<M: Meddle> LockNode for Meddled<M> {
    fn name(&self) -> &str {
        self.memory.name()
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        self.meddle(Question::Acquire, || self.memory.acquire(ownership, ttl, floor)).await
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        self.meddle(Question::Raise, || self.memory.raise(ownership, to)).await
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        self.meddle(Question::Extend, || self.memory.extend(ownership, ttl)).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        self.meddle(Question::Release, || self.memory.release(ownership)).await
    }
}

/// Lets the calls that ask a question take their time to arrive, and their answers to come back: first those that were
/// announced with `next`, one each, then what was said with `always`.
#[derive(Debug, Default)]
pub(crate) struct Timed {
    next: Mutex<VecDeque<Travel>>,
    always: Mutex<Vec<Travel>>,
}

#[derive(Clone, Copy, Debug)]
struct Travel {
    question: Question,
    there: Duration,
    back: Duration,
}

impl Timed {
    pub(crate) fn next(&self, question: Question, there: Duration, back: Duration) {
        self.next.lock().unwrap().push_back(Travel { question, there, back });
    }

    pub(crate) fn always(&self, question: Question, there: Duration, back: Duration) {
        self.always.lock().unwrap().push(Travel { question, there, back });
    }

    fn travel_of(&self, question: Question) -> Option<Travel> {
        let mut next = self.next.lock().unwrap();
        let announced = next.iter().position(|travel| travel.question == question);
        announced.and_then(|position| next.remove(position)).or_else(|| {
            let always = self.always.lock().unwrap();
            always.iter().rev().find(|travel| travel.question == question).copied()
        })
    }
}

#[async_trait]
impl Meddle for Timed {
    async fn travel(&self, question: Question) -> Duration {
        let Some(Travel { there, back, .. }) = self.travel_of(question) else { return Duration::ZERO };
        if !there.is_zero() {
            sleep(there).await;
        }
        back
    }
}

/// Delivers every acquire twice.
#[derive(Debug, Default)]
pub(crate) struct Twice;

#[async_trait]
impl Meddle for Twice {
    fn deliveries(&self, question: Question) -> usize {
        if question == Question::Acquire { 2 } else { 1 }
    }
}

/// Has a bug: panics when it is asked certain questions, a moment after the caller has begun to wait.
#[derive(Debug, Default)]
pub(crate) struct Panicking(Mutex<Vec<Question>>);

impl Panicking {
    pub(crate) fn when_asked(&self, questions: impl IntoIterator<Item = Question>) {
        self.0.lock().unwrap().extend(questions);
    }
}

#[async_trait]
impl Meddle for Panicking {
    async fn travel(&self, question: Question) -> Duration {
        sleep(Duration::from_millis(1)).await;
        let panics = self.0.lock().unwrap().contains(&question);
        assert!(!panics, "a bug in this node");
        Duration::ZERO
    }
}

/// Loses the answer to the first release, as a connection that breaks does.
#[derive(Debug, Default)]
pub(crate) struct LosesFirstReleaseReply(AtomicBool);

#[async_trait]
impl Meddle for LosesFirstReleaseReply {
    fn failure(&self, question: Question) -> Option<NodeError> {
        let first = question == Question::Release && !self.0.swap(true, Ordering::Relaxed);
        first.then(|| NodeError::unreachable("connection reset"))
    }
}
