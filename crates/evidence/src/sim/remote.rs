//! A node as a process sees it: questions go out into the world, answers come back some time, or never.
//!
//! Keeps what a real connection keeps: a number that changes when the connection does, the server's calendar as it was last
//! heard, and the ear for wake-ups.

use super::plan::Millis;
use super::process::{Delivery, Shared, lock};
use async_trait::async_trait;
use redlock_core::{
    Acquisition, Enrolment, Extension, Inspection, KeyPrefix, Listener, LockNode, NodeError, Ownership, Place, Raising,
    Releasing, Resources, Standing, Ttl,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    Server(usize),
    Storage,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Acquire(Ownership, Ttl, u64, Option<Place>),
    Raise(Ownership, u64),
    Extend(Vec<(Ownership, Ttl)>),
    Release(Ownership),
    Listen(Arc<str>),
    Leave(KeyPrefix, Resources, Place),
    Inspect(KeyPrefix, Resources),
    Standing(KeyPrefix, Duration),
    Enroll(KeyPrefix, Enrolment),
    /// Raises the fence, and reads.
    Claim {
        resource: usize,
        token: i64,
        grant: usize,
    },
    /// Writes under the fence.
    Write {
        resource: usize,
        token: i64,
        grant: usize,
        read: i64,
        value: i64,
    },
}

/// What is answered.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Acquire(Acquisition),
    Raise(Raising),
    Extend(Vec<Extension>),
    Release(Releasing),
    Done,
    Inspect(Vec<Inspection>),
    Stands(Standing),
    Claimed(i64),
    Stale,
}

/// The ear of one process at one server.
#[derive(Debug, Default)]
pub(crate) struct Ear {
    /// Who listens, and over which connection.
    pub(crate) listening: Option<(u64, Listener)>,
}

impl Shared {
    /// Takes in what has arrived.
    pub(crate) fn receive(&self, delivery: Delivery) {
        match delivery {
            Delivery::Answer { sender, answer, calendar } => {
                if let Some((server, shown)) = calendar {
                    lock(&self.calendars)[server] = Some((shown, redlock_core::Clock::now(self)));
                }
                // Whoever asked may have gone.
                let _ = sender.send(answer);
            }
            Delivery::WakeUp { server, listener, ticket } => {
                let ears = lock(&self.ears);
                if let Some((_, ear)) = &ears[server].listening
                    && *ear.name() == listener
                {
                    ear.bell().ring(ticket);
                }
            }
            Delivery::Deaf { server } => {
                let ear = lock(&self.ears)[server].listening.take();
                if let Some((_, ear)) = ear {
                    ear.bell().ring_all();
                }
            }
        }
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&self, to: Destination, request: Request) -> Result<Reply, NodeError> {
        let (sender, answered) = oneshot::channel();
        self.emit(to, request, sender);
        answered.await.unwrap_or_else(|_| Err(NodeError::unreachable("the process is dead")))
    }
}

/// One node of one process.
#[derive(Debug)]
pub(crate) struct Remote {
    name: String,
    server: usize,
    ordered: bool,
    process: Arc<Shared>,
}

impl Remote {
    pub(crate) fn new(server: usize, ordered: bool, process: Arc<Shared>) -> Self {
        Self { name: format!("n{server}"), server, ordered, process }
    }

    async fn ask(&self, request: Request) -> Result<Reply, NodeError> {
        self.process.ask(Destination::Server(self.server), request).await
    }
}

fn unexpected<T>(reply: &Reply) -> Result<T, NodeError> {
    unreachable!("a server answers what it was asked, not {reply:?}")
}

#[async_trait]
impl LockNode for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        match self.ask(Request::Acquire(ownership.clone(), ttl, floor, None)).await? {
            Reply::Acquire(acquisition) => Ok(acquisition),
            reply => unexpected(&reply),
        }
    }

    async fn acquire_in_line(
        &self,
        ownership: &Ownership,
        ttl: Ttl,
        floor: u64,
        place: &Place,
    ) -> Result<Acquisition, NodeError> {
        match self.ask(Request::Acquire(ownership.clone(), ttl, floor, Some(place.clone()))).await? {
            Reply::Acquire(acquisition) => Ok(acquisition),
            reply => unexpected(&reply),
        }
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        match self.ask(Request::Raise(ownership.clone(), to)).await? {
            Reply::Raise(raising) => Ok(raising),
            reply => unexpected(&reply),
        }
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        let extensions = self.extend_many(&[(ownership, ttl)]).await?;
        Ok(extensions[0])
    }

    async fn extend_many(&self, leases: &[(&Ownership, Ttl)]) -> Result<Vec<Extension>, NodeError> {
        let leases = leases.iter().map(|(ownership, ttl)| ((*ownership).clone(), *ttl)).collect();
        match self.ask(Request::Extend(leases)).await? {
            Reply::Extend(extensions) => Ok(extensions),
            reply => unexpected(&reply),
        }
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        match self.ask(Request::Release(ownership.clone())).await? {
            Reply::Release(releasing) => Ok(releasing),
            reply => unexpected(&reply),
        }
    }

    async fn listen(&self, _: &KeyPrefix, listener: &Listener) -> Result<(), NodeError> {
        let connection = || self.process.orders[self.server].load(Ordering::Relaxed);
        let before = connection();
        let listens = {
            let ears = lock(&self.process.ears);
            ears[self.server].listening.as_ref().is_some_and(|(over, _)| *over == before)
        };
        if listens {
            return Ok(());
        }
        self.ask(Request::Listen(Arc::clone(listener.name()))).await?;
        if connection() != before {
            return Err(NodeError::unreachable("the connection broke meanwhile"));
        }
        lock(&self.process.ears)[self.server].listening = Some((before, listener.clone()));
        Ok(())
    }

    async fn leave_line(&self, prefix: &KeyPrefix, resources: &Resources, place: &Place) -> Result<(), NodeError> {
        self.ask(Request::Leave(prefix.clone(), resources.clone(), place.clone())).await.map(drop)
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        match self.ask(Request::Inspect(prefix.clone(), resources.clone())).await? {
            Reply::Inspect(inspections) => Ok(inspections),
            reply => unexpected(&reply),
        }
    }

    async fn standing(&self, prefix: &KeyPrefix, quarantine: Duration) -> Result<Standing, NodeError> {
        match self.ask(Request::Standing(prefix.clone(), quarantine)).await? {
            Reply::Stands(standing) => Ok(standing),
            reply => unexpected(&reply),
        }
    }

    fn keeps_record(&self) -> bool {
        true
    }

    async fn enroll(&self, prefix: &KeyPrefix, enrolment: &Enrolment) -> Result<Standing, NodeError> {
        match self.ask(Request::Enroll(prefix.clone(), *enrolment)).await? {
            Reply::Stands(standing) => Ok(standing),
            reply => unexpected(&reply),
        }
    }

    fn order(&self) -> Option<u64> {
        self.ordered.then(|| self.process.orders[self.server].load(Ordering::Relaxed))
    }

    fn unix_time(&self) -> Option<Duration> {
        let (shown, at) = lock(&self.process.calendars)[self.server]?;
        Some(shown.saturating_add(redlock_core::Clock::now(&*self.process).since(at)))
    }
}

/// The longest that a call waits for an answer before it ends by itself.
pub(crate) const GIVES_UP_AFTER: Millis = 2_000;
