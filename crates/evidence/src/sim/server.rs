//! The servers of a simulated world: nodes, which are the reference implementation with the lines of waiters kept as a
//! remote server keeps them, and the storage.

use super::process::lock;
use super::remote::{Reply, Request};
use futures_util::FutureExt as _;
use redlock_backends::MemoryNode;
use redlock_core::{
    Acquisition, Clock, Enrolment, HeldBy, Holder, KeyPrefix, LockNode as _, Manner, Moment, NodeError, Ownership,
    Place, Releasing, Remaining, Resource, Resources, Service,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The world's own time.
#[derive(Debug, Default)]
pub(crate) struct WorldClock(pub(crate) AtomicU64);

impl Clock for WorldClock {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_millis(self.0.load(Ordering::Relaxed)))
    }
}

/// Whom a server calls: over which process's connection, and which of its waiters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Called {
    pub(crate) process: usize,
    pub(crate) incarnation: u64,
    pub(crate) listener: Arc<str>,
    pub(crate) ticket: u64,
}

/// One node.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) memory: MemoryNode,
    pub(crate) up: bool,
    pub(crate) frozen: bool,
    /// What arrived while it was frozen, in order.
    pub(crate) backlog: VecDeque<usize>,
    lines: BTreeMap<String, VecDeque<(Arc<str>, u64)>>,
    /// Whose connections are there to hear wake-ups.
    listeners: BTreeMap<Arc<str>, (usize, u64)>,
    /// It lies: what it says it has released it keeps.
    hoards: bool,
}

impl Server {
    pub(crate) fn new(number: usize, clock: Arc<WorldClock>, ppm: i64, calendar: Duration, hoards: bool) -> Self {
        let memory = MemoryNode::with_clock(format!("n{number}"), clock);
        memory.clock().set(calendar);
        #[expect(clippy::cast_precision_loss, reason = "a few million are exact")]
        memory.clock().set_rate((1_000_000 + ppm) as f64 / 1_000_000.0);
        let (lines, listeners) = (BTreeMap::new(), BTreeMap::new());
        Self { memory, up: true, frozen: false, backlog: VecDeque::new(), lines, listeners, hoards }
    }

    /// Is taken into service under the crash-recovery guard, as a node of a fresh deployment.
    pub(crate) fn enroll_fresh(&self, quarantine: Duration) {
        let found = at_once(self.memory.standing(&KeyPrefix::default(), quarantine));
        let enrolment = Enrolment { base: 0, quarantine, at_once: true, loss: found.loss };
        at_once(self.memory.enroll(&KeyPrefix::default(), &enrolment));
    }

    /// Loses everything that is not a connection.
    pub(crate) fn forget(&mut self) {
        self.memory.forget();
        self.lines.clear();
    }

    /// A process's connection is gone.
    pub(crate) fn hang_up(&mut self, process: usize) {
        self.listeners.retain(|_, (listening, _)| *listening != process);
    }

    /// Does what it is asked, at once, as a script does.
    pub(crate) fn execute(&mut self, from: (usize, u64), request: &Request) -> (Result<Reply, NodeError>, Vec<Called>) {
        let mut called = Vec::new();
        let refused = match request {
            Request::Acquire(ownership, ..) | Request::Raise(ownership, _) => self.refusal(ownership),
            Request::Extend(leases) => leases.first().and_then(|(ownership, _)| self.refusal(ownership)),
            _ => None,
        };
        match refused {
            Some(refused) => (Err(refused), called),
            None => (Ok(self.reply(from, request, &mut called)), called),
        }
    }

    /// What a node in quarantine answers whoever has the guard on.
    fn refusal(&self, ownership: &Ownership) -> Option<NodeError> {
        let standing = at_once(self.memory.standing(ownership.prefix(), ownership.quarantine()?));
        match standing.service {
            Service::Enrolled => None,
            Service::Quarantined { remaining } => Some(NodeError::Quarantined { remaining }),
        }
    }

    fn reply(&mut self, from: (usize, u64), request: &Request, called: &mut Vec<Called>) -> Reply {
        match request {
            Request::Acquire(ownership, ttl, floor, place) => {
                let in_the_way = place
                    .as_ref()
                    .and_then(|place| self.in_the_way(ownership.prefix(), ownership.resources(), place, called));
                Reply::Acquire(match in_the_way {
                    Some(held) => Acquisition::Held(held),
                    None => {
                        if let Some(place) = place.as_ref().filter(|place| place.manner == Manner::Overtake) {
                            self.overtake(ownership.resources(), place);
                        }
                        at_once(self.memory.acquire(ownership, *ttl, *floor))
                    }
                })
            }
            Request::Raise(ownership, to) => Reply::Raise(at_once(self.memory.raise(ownership, *to))),
            Request::Extend(leases) => {
                let leases: Vec<_> = leases.iter().map(|(ownership, ttl)| (ownership, *ttl)).collect();
                Reply::Extend(at_once(self.memory.extend_many(&leases)))
            }
            Request::Release(_) if self.hoards => Reply::Release(Releasing::Released),
            Request::Release(ownership) => {
                let releasing = at_once(self.memory.release(ownership));
                self.call_for_what_is_free(ownership.prefix(), ownership.resources(), called);
                let passed_on = releasing == Releasing::Released && !called.is_empty();
                Reply::Release(if passed_on { Releasing::PassedOn } else { releasing })
            }
            Request::Listen(listener) => {
                self.listeners.insert(Arc::clone(listener), from);
                Reply::Done
            }
            Request::Leave(prefix, resources, place) => {
                self.leave(resources, place);
                self.call_for_what_is_free(prefix, resources, called);
                Reply::Done
            }
            Request::Inspect(prefix, resources) => Reply::Inspect(at_once(self.memory.inspect(prefix, resources))),
            Request::Standing(prefix, quarantine) => Reply::Stands(at_once(self.memory.standing(prefix, *quarantine))),
            Request::Enroll(prefix, enrolment) => Reply::Stands(at_once(self.memory.enroll(prefix, enrolment))),
            Request::Claim { .. } | Request::Write { .. } => unreachable!("nodes store no data"),
        }
    }

    fn held(&self, prefix: &KeyPrefix, resource: &Resource) -> Option<HeldBy> {
        let inspections = at_once(self.memory.inspect(prefix, &resource.into()));
        inspections.into_iter().next().and_then(|inspection| inspection.held)
    }

    /// What keeps a waiter from a grant; then it stands in line from this very step.
    fn in_the_way(
        &mut self,
        prefix: &KeyPrefix,
        resources: &Resources,
        place: &Place,
        called: &mut Vec<Called>,
    ) -> Option<HeldBy> {
        let waiter = (Arc::clone(&place.listener), place.ticket);
        for resource in resources {
            let mut in_the_way = self.held(prefix, resource);
            if in_the_way.is_none() && place.manner == Manner::Yield {
                let first = self.call_first(resource.name(), called);
                if first.is_some_and(|first| first != waiter) {
                    let (holder, remaining) = (Holder::Line, Remaining::Unknown);
                    in_the_way = Some(HeldBy { resource: resource.clone(), holder, remaining });
                }
            }
            if in_the_way.is_some() {
                let line = self.lines.entry(resource.name().to_owned()).or_default();
                if !line.contains(&waiter) {
                    line.push_back(waiter);
                }
                // One that waits for this resource cannot take the others: whoever waits for them is not to wait for it.
                for other in resources.iter().filter(|other| *other != resource) {
                    let line = self.lines.entry(other.name().to_owned()).or_default();
                    let before = line.len();
                    line.retain(|waiter| !is_place(waiter, place));
                    if line.len() < before {
                        self.call_for_what_is_free(prefix, &other.into(), called);
                    }
                }
                return in_the_way;
            }
        }
        None
    }

    /// Takes a waiter out of the lines of resources.
    fn leave(&mut self, resources: &Resources, place: &Place) {
        for resource in resources {
            if let Some(line) = self.lines.get_mut(resource.name()) {
                line.retain(|waiter| !is_place(waiter, place));
            }
        }
    }

    /// Takes those before a waiter out of the lines.
    fn overtake(&mut self, resources: &Resources, place: &Place) {
        for resource in resources {
            if let Some(line) = self.lines.get_mut(resource.name())
                && let Some(position) = line.iter().position(|waiter| is_place(waiter, place))
            {
                line.drain(..position);
            }
        }
    }

    fn call_for_what_is_free(&mut self, prefix: &KeyPrefix, resources: &Resources, called: &mut Vec<Called>) {
        for resource in resources {
            if self.held(prefix, resource).is_none() {
                self.call_first(resource.name(), called);
            }
        }
    }

    /// Calls the first whose connection is there. Whether it still waits, or hears, is not known here.
    fn call_first(&mut self, name: &str, called: &mut Vec<Called>) -> Option<(Arc<str>, u64)> {
        let line = self.lines.get_mut(name)?;
        while let Some((listener, ticket)) = line.front() {
            if let Some((process, incarnation)) = self.listeners.get(listener) {
                let (process, incarnation) = (*process, *incarnation);
                called.push(Called { process, incarnation, listener: Arc::clone(listener), ticket: *ticket });
                return line.front().cloned();
            }
            line.pop_front();
        }
        None
    }
}

fn is_place((listener, ticket): &(Arc<str>, u64), place: &Place) -> bool {
    *listener == place.listener && *ticket == place.ticket
}

/// Each call of a node in memory does its work in its first poll.
fn at_once<T>(call: impl Future<Output = Result<T, NodeError>>) -> T {
    let answer = call.now_or_never().expect("a node in memory answers at once");
    answer.expect("a node in memory does not fail")
}

/// A write that took effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applied {
    pub(crate) resource: usize,
    pub(crate) grant: usize,
    /// What the writer had read, and what stood there when it wrote.
    pub(crate) read: i64,
    pub(crate) found: i64,
    /// A claim, which raises the fence and writes nothing.
    pub(crate) is_claim: bool,
}

/// The storage: a row per resource, behind a fence.
#[derive(Debug)]
pub(crate) struct Storage {
    rows: Vec<(i64, i64)>,
    fence: bool,
    pub(crate) applied: Arc<Mutex<Vec<Applied>>>,
}

impl Storage {
    pub(crate) fn new(resources: usize, fence: bool) -> Self {
        Self { rows: vec![(0, 0); resources], fence, applied: Arc::default() }
    }

    pub(crate) fn execute(&mut self, request: &Request) -> Reply {
        let (resource, token) = match request {
            Request::Claim { resource, token, .. } | Request::Write { resource, token, .. } => (*resource, *token),
            _ => unreachable!("the storage knows no locks"),
        };
        let (highest, value) = &mut self.rows[resource];
        if self.fence && token < *highest {
            return Reply::Stale;
        }
        *highest = token.max(*highest);
        let found = *value;
        let mut applied = lock(&self.applied);
        match *request {
            Request::Write { grant, read, value: new, .. } => {
                *value = new;
                applied.push(Applied { resource, grant, read, found, is_claim: false });
                Reply::Done
            }
            Request::Claim { grant, .. } => {
                applied.push(Applied { resource, grant, read: found, found, is_claim: true });
                Reply::Claimed(found)
            }
            _ => unreachable!("seen above"),
        }
    }
}
