//! A simulated world: it owns the time, carries every message, and lets things go wrong.
//!
//! ```text
//!   next event ──▶ every process that runs goes on until then, or until it sends something
//!        ▲                                   │
//!        └── delivered, executed, broken ◀───┘ what it sent is put on its way
//! ```
//!
//! Three parts: the storm, in which faults happen; the calm, in which everything that was begun has to come to its end and
//! leave nothing behind; and the contest, in which everybody wants the same lock and has to get it.

use super::audit::LOOKS_EVERY;
use super::faults::{Fault, Link};
use super::history::{Counts, History};
use super::plan::{FaultKind, Millis, Plan, Sabotage, millis};
use super::process::{Answer, Birth, Condition, Delivery, Emission, Pause, Process, lock};
use super::random::{ClientRandomness, Random, mix};
use super::remote::{Destination, GIVES_UP_AFTER, Remote, Reply, Request};
use super::server::{Called, Server, Storage, WorldClock};
use super::workload::{Desk, Worker};
use redlock_core::{Acquisition, Extension, LockNode, Manner, NodeError, Redlock, Service, Standing};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// The calendars' time when a world begins: some time after 1970, as tokens follow it.
const CALENDAR: Duration = Duration::from_secs(1_750_000_000);

/// The longest that one way takes. A request that is on its way for longer than locks live would outlast the patience of
/// the release behind it.
const DELAY_MAX: Millis = 1_000;

/// The longest that a request dawdles on its way to the storage.
const DAWDLING_MAX: Millis = 12_000;

/// One request and what has become of it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) process: usize,
    pub(crate) incarnation: u64,
    pub(crate) to: Destination,
    pub(crate) request: Request,
    sender: Option<oneshot::Sender<Answer>>,
    /// Of the connection that carries it.
    pub(crate) connection: u64,
    giving_up: bool,
}

impl Call {
    pub(crate) fn is_ended(&self) -> bool {
        self.sender.is_none()
    }
}

#[derive(Debug)]
pub(crate) enum Event {
    Arrives { call: usize, again: bool },
    Answered { call: usize, answer: Answer },
    GivesUp { call: usize },
    Breaks { call: usize },
    WakesUp { server: usize, called: Called },
    HangsUp { server: usize, process: usize, incarnation: u64 },
    Look,
    Begins(FaultKind),
    Ends(Fault),
}

#[derive(Debug)]
struct Entry {
    at: Millis,
    /// Shuffles what happens in one millisecond, but keeps the order of what has one origin.
    shuffled: u64,
    number: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> (Millis, u64, u64) {
        (self.at, self.shuffled, self.number)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// What came of a world.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) history: History,
    pub(crate) applied: Vec<super::server::Applied>,
    pub(crate) faults: Counts,
    pub(crate) lasted: Millis,
    pub(crate) digest: u64,
    pub(crate) log: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) random: Random,
    pub(crate) clock: Arc<WorldClock>,
    pub(crate) now: Millis,
    events: BinaryHeap<Reverse<Entry>>,
    numbers: u64,
    pub(crate) processes: Vec<Process>,
    clients: Vec<Redlock>,
    pub(crate) servers: Vec<Server>,
    storage: Storage,
    pub(crate) links: Vec<Vec<Link>>,
    pub(crate) calls: Vec<Call>,
    pub(crate) history: Arc<Mutex<History>>,
    pub(crate) winding_down: Arc<AtomicBool>,
    pub(crate) storm: bool,
    pub(crate) sabotage: Sabotage,
    pub(crate) faults: Counts,
    /// Owners whose key may rightly be left on a server.
    loose: BTreeSet<(usize, String)>,
    /// Owners that a server has granted to.
    granted_to: BTreeSet<(usize, String)>,
    /// The first call with which an owner wanted to be released on a server.
    released_by: BTreeMap<(usize, String), usize>,
    digest: u64,
    log: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, sabotage: Sabotage, told: bool) -> Self {
        let plan = Arc::new(Plan::of(seed, sabotage));
        let random = Random::new(mix(seed ^ 0x0057_0124));
        let clock = Arc::new(WorldClock::default());
        let hoards = sabotage == Sabotage::HoardingNodes;
        let servers = (0..plan.nodes).map(|n| Server::new(n, Arc::clone(&clock), plan.node_ppm[n], CALENDAR, hoards));
        let mut world = Self {
            servers: servers.collect(),
            storage: Storage::new(plan.resources, sabotage != Sabotage::FenceOff),
            links: (0..plan.processes).map(|_| (0..=plan.nodes).map(|_| Link::default()).collect()).collect(),
            random,
            clock,
            now: 0,
            events: BinaryHeap::new(),
            numbers: 0,
            processes: Vec::new(),
            clients: Vec::new(),
            calls: Vec::new(),
            history: Arc::default(),
            winding_down: Arc::default(),
            storm: true,
            sabotage,
            faults: Counts::default(),
            loose: BTreeSet::new(),
            granted_to: BTreeSet::new(),
            released_by: BTreeMap::new(),
            digest: seed,
            log: told.then(Vec::new),
            plan,
        };
        if world.log.is_some() {
            let plan = format!("{:?}", world.plan);
            world.tell(|| plan);
        }
        if world.plan.guarded {
            world.servers.iter().for_each(|server| server.enroll_fresh(world.plan.longest_ttl()));
        }
        for number in 0..world.plan.processes {
            let (process, client) = world.give_birth(number, 0);
            world.processes.push(process);
            world.clients.push(client);
            world.put_to_work(number);
        }
        world.schedule(LOOKS_EVERY, 0, Event::Look);
        for kind in world.plan.faults.clone() {
            world.foresee(kind);
        }
        world
    }

    /// Runs the whole of it.
    pub(crate) fn run(mut self) -> Ended {
        self.run_until(self.plan.storm, |_| false);
        self.calm_down();
        let ttl = self.plan.ttl_millis();
        let patience = 10 * ttl + 60_000;
        if !self.run_until(self.now + patience, |world| world.tasks_left() == 0) {
            let left = self.tasks_left();
            let what = format!("{left} tasks have not ended {patience} ms after the faults had stopped");
            self.violated("somebody_wins", what);
        }
        self.settle();
        self.be_looked_after();
        self.contest();
        self.end()
    }

    /// Everything that goes on in the background ends; then nothing is left (P5).
    fn settle(&mut self) {
        for (process, client) in self.processes.iter().zip(&self.clients) {
            let client = client.clone();
            process.start(async move { client.settled().await });
        }
        // What was lost on the way ends by itself; a release is tried again after a pause of at most half a second.
        let patience = 2 * GIVES_UP_AFTER + 6_000;
        if !self.run_until(self.now + patience, |world| world.tasks_left() == 0) {
            self.violated(
                "nothing_left",
                format!("the background is not settled {patience} ms after all work has ended"),
            );
        }
        let left: Vec<_> = self.servers.iter().map(|server| server.memory.locks()).collect();
        let mut history = lock(&self.history);
        history.left_by_the_dead = left.iter().any(|locks| !locks.is_empty());
        let violations = super::invariants::nothing_left::check(&self.plan, left, &self.loose);
        history.violations.extend(violations);
    }

    /// Under the crash-recovery guard somebody looks after nodes of which most have lost their memory.
    fn be_looked_after(&mut self) {
        if self.plan.guarded {
            let operator = self.worker(0);
            self.processes[0].start(operator.look_after_nodes());
            self.run_until(Millis::MAX, |world| world.tasks_left() == 0);
        }
    }

    fn contest(&mut self) {
        // What the dead have left lives until its end by each node's calendar, which may be slow or have been set back.
        let left = self.servers.iter().flat_map(|server| server.memory.locks()).map(|(.., left)| left);
        let patience = 2 * millis(left.max().unwrap_or_default()) + 30_000;
        for number in 0..self.processes.len() {
            for _ in 0..self.plan.tasks_per_process {
                let worker = self.worker(number);
                self.processes[number].start(worker.contest(patience));
            }
        }
        self.run_until(self.now + 2 * patience, |world| world.tasks_left() == 0);
    }

    fn end(self) -> Ended {
        let applied = std::mem::take(&mut *lock(&self.storage.applied));
        for process in &self.processes {
            process.kill();
        }
        drop((self.clients, self.processes));
        let mut history = std::mem::take(&mut *lock(&self.history));
        for grant in &mut history.grants {
            grant.ended.get_or_insert(self.now);
        }
        let log = self.log.unwrap_or_default();
        Ended { history, applied, faults: self.faults, lasted: self.now, digest: self.digest, log }
    }

    fn tasks_left(&self) -> usize {
        self.processes.iter().map(|process| process.shared.tasks_left.load(Ordering::Relaxed)).sum()
    }

    /// Lets time pass until `end`, or until `enough`; says which.
    fn run_until(&mut self, end: Millis, enough: impl Fn(&Self) -> bool) -> bool {
        loop {
            if enough(self) {
                return true;
            }
            self.let_processes_run(end);
            let next = self.next_at().min(end);
            if end <= next {
                self.set_now(end);
                return enough(self);
            }
            self.set_now(next);
            while self.next_at() == next
                && let Some(Reverse(entry)) = self.events.pop()
            {
                self.handle(entry.event);
            }
        }
    }

    fn let_processes_run(&mut self, end: Millis) {
        for number in 0..self.processes.len() {
            loop {
                // What this one sends may come before what was to be the next event.
                let limit = self.next_at().min(end);
                let process = &mut self.processes[number];
                if !process.is_running() || process.has_reached(limit) && process.inbox.is_empty() {
                    break;
                }
                let sent = process.run_to(limit);
                let pause = process.pause_asked();
                for emission in sent {
                    self.send(number, emission);
                }
                if let Some(duration) = pause
                    && self.storm
                {
                    self.pause(number, duration, Pause::Stopped);
                }
                if self.processes[number].has_reached(limit) {
                    break;
                }
            }
        }
    }

    fn next_at(&self) -> Millis {
        self.events.peek().map_or(Millis::MAX, |Reverse(entry)| entry.at)
    }

    fn set_now(&mut self, now: Millis) {
        self.now = now.max(self.now);
        self.clock.0.store(self.now, Ordering::Relaxed);
    }

    /// Lets something happen after `delay`; what has the same origin keeps its order.
    pub(crate) fn schedule(&mut self, delay: Millis, origin: u64, event: Event) {
        self.schedule_at(self.now + delay, origin, event);
    }

    pub(crate) fn schedule_at(&mut self, at: Millis, origin: u64, event: Event) {
        self.numbers += 1;
        let at = at.max(self.now);
        let shuffled = mix(origin ^ mix(at ^ 0x0FEE));
        self.events.push(Reverse(Entry { at, shuffled, number: self.numbers, event }));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Look => self.schedule(LOOKS_EVERY, 0, Event::Look),
            Event::Arrives { call, again } => self.arrive(call, again),
            Event::Answered { call, answer } => self.answer(call, answer),
            Event::GivesUp { call } => {
                let error = NodeError::unreachable("no answer came, and none is waited for any more");
                self.deliver(call, Err(error), None);
            }
            Event::Breaks { call } => {
                self.deliver(call, Err(NodeError::unreachable("the connection broke")), None);
            }
            Event::WakesUp { server, called } => self.wake_up(server, called),
            Event::HangsUp { server, process, incarnation } => {
                if self.processes[process].shared.incarnation == incarnation {
                    self.processes[process].inbox.push_back(Delivery::Deaf { server });
                }
            }
            Event::Begins(kind) => self.begin(kind),
            Event::Ends(fault) => self.end_fault(fault),
        }
    }

    /// Puts a request on its way.
    fn send(&mut self, process: usize, emission: Emission) {
        let Emission { at, to, request, sender } = emission;
        if let Request::Acquire(ownership, _, _, _) = &request {
            let mut history = lock(&self.history);
            history.attempts.entry(ownership.owner().expose().to_owned()).or_insert(at);
        }
        let server = self.number_of(to);
        let call = self.calls.len();
        if let Request::Release(ownership) = &request {
            self.released_by.entry((server, ownership.owner().expose().to_owned())).or_insert(call);
        }
        let incarnation = self.processes[process].shared.incarnation;
        let connection = self.links[process][server].connection;
        self.fold(3, at ^ mix(u64::try_from(call).unwrap_or(0)));
        let sender = Some(sender);
        self.calls.push(Call { process, incarnation, to, request, sender, connection, giving_up: false });
        if to == Destination::Storage && self.is_struck(FaultKind::LossyStorage, 60)
            || to != Destination::Storage && self.is_struck(FaultKind::LostMessages, self.plan.links.lost_per_mille)
        {
            self.give_up_later(call, at);
            return;
        }
        let arrives = self.arrival(process, server, at, true) + self.dawdling(to);
        let origin = self.origin(process, server);
        self.schedule_at(arrives, origin, Event::Arrives { call, again: false });
        if to != Destination::Storage && self.storm && self.random.happens(self.plan.links.doubled_per_mille) {
            self.faults.note("DuplicatedRequests");
            let later = self.random.below(200);
            self.schedule_at(arrives + later, origin, Event::Arrives { call, again: true });
        }
    }

    /// Whether a fault that lasts throughout strikes one message; counted if so.
    fn is_struck(&mut self, kind: FaultKind, per_mille: u64) -> bool {
        let struck = self.storm && self.plan.has(kind) && self.random.happens(per_mille);
        if struck {
            self.faults.note(kind.name());
        }
        struck
    }

    pub(crate) fn number_of(&self, to: Destination) -> usize {
        match to {
            Destination::Server(server) => server,
            Destination::Storage => self.plan.nodes,
        }
    }

    fn origin(&self, process: usize, server: usize) -> u64 {
        let connection = self.links[process][server].connection;
        let numbers = u64::try_from(process * 100 + server + 1).unwrap_or(0);
        mix(numbers ^ (connection << 32))
    }

    /// When a message that is sent at `at` is there.
    fn arrival(&mut self, process: usize, server: usize, at: Millis, is_request: bool) -> Millis {
        let links = self.plan.links;
        let link = &mut self.links[process][server];
        let typical = links.typical + if self.storm && at < link.slow_until { link.slow_by } else { 0 };
        let delay = self.random.long_tailed(typical, if self.storm { links.stretch } else { 0 }).clamp(1, DELAY_MAX);
        let mut arrives = at.max(self.now) + delay;
        let is_storage = server == self.plan.nodes;
        if links.ordered && !is_storage {
            let latest = if is_request { &mut link.latest_request } else { &mut link.latest_answer };
            arrives = arrives.max(*latest);
            *latest = arrives;
        } else if self.storm && self.plan.has(FaultKind::ReorderedMessages) && self.random.happens(100) {
            self.faults.note(FaultKind::ReorderedMessages.name());
            arrives += self.random.below(200);
        }
        arrives
    }

    /// How much longer than others a request to the storage takes: so long now and then that its lock is somebody else's by
    /// then.
    fn dawdling(&mut self, to: Destination) -> Millis {
        if to != Destination::Storage || !self.is_struck(FaultKind::SlowStorage, 80) {
            return 0;
        }
        let ttl = self.plan.ttl_millis();
        self.random.between(ttl / 2, (2 * ttl).min(DAWDLING_MAX))
    }

    /// A call that is in trouble ends by itself, some time.
    pub(crate) fn give_up_later(&mut self, call: usize, since: Millis) {
        if !self.calls[call].giving_up && !self.calls[call].is_ended() {
            self.calls[call].giving_up = true;
            let at = since.max(self.now) + GIVES_UP_AFTER;
            self.schedule_at(at, 0, Event::GivesUp { call });
        }
    }

    pub(crate) fn arrive(&mut self, call: usize, again: bool) {
        let Call { process, to, connection, .. } = self.calls[call];
        let server = self.number_of(to);
        let link = &self.links[process][server];
        if connection != link.connection && link.old_until < self.now {
            // The rest of what a broken connection carried.
        } else if link.cut_there {
            self.links[process][server].held_requests.push(call);
            self.give_up_later(call, self.now);
        } else if to == Destination::Storage {
            self.execute_on_storage(call);
        } else if !self.servers[server].up {
            let error = NodeError::unreachable("connection refused");
            self.reply(call, Err(error));
        } else if self.servers[server].frozen {
            self.servers[server].backlog.push_back(call);
            self.give_up_later(call, self.now);
        } else {
            self.execute(call, again);
        }
    }

    fn execute_on_storage(&mut self, call: usize) {
        let reply = self.storage.execute(&self.calls[call].request);
        self.fold(5, u64::try_from(call).unwrap_or(0));
        let (number, request) = (self.calls[call].process, self.calls[call].request.clone());
        self.tell(|| format!("p{number} storage {request:?} -> {reply:?}"));
        if self.is_struck(FaultKind::LossyStorage, 60) {
            self.give_up_later(call, self.now);
        } else {
            self.reply(call, Ok(reply));
        }
    }

    /// A server does what it is asked.
    pub(crate) fn execute(&mut self, call: usize, again: bool) {
        let Call { process, incarnation, to, .. } = self.calls[call];
        let server = self.number_of(to);
        let (reply, called) = self.servers[server].execute((process, incarnation), &self.calls[call].request);
        self.note_execution(call, server, &reply);
        for called in called {
            self.put_wake_up_on_its_way(server, called);
        }
        if again {
            return;
        }
        if self.is_struck(FaultKind::LostMessages, self.plan.links.lost_per_mille) {
            self.give_up_later(call, self.now);
        } else {
            self.reply(call, reply);
        }
    }

    fn note_execution(&mut self, call: usize, server: usize, reply: &Answer) {
        let Call { process, incarnation, ref request, .. } = self.calls[call];
        let ended = self.calls[call].is_ended();
        let is_dead = self.processes[process].shared.incarnation != incarnation;
        let mut history = lock(&self.history);
        match (request, reply) {
            (Request::Acquire(ownership, _, _, place), Ok(Reply::Acquire(Acquisition::Granted { .. }))) => {
                let key = (server, ownership.owner().expose().to_owned());
                if ended || is_dead {
                    // Nobody heard of it who could give it back.
                    self.loose.insert(key.clone());
                }
                if !self.granted_to.insert(key) {
                    history.note("node taken again");
                }
                match place.as_ref().map(|place| place.manner) {
                    Some(Manner::Called) => history.note("granted after a call"),
                    Some(Manner::Overtake) => history.note("granted by overtaking"),
                    Some(Manner::Yield) | None => {}
                }
                if self.servers.iter().any(|server| server.frozen) {
                    history.note("vote while another node was frozen");
                }
            }
            (Request::Acquire(..), Err(_)) => history.note("vote refused in quarantine"),
            (Request::Raise(..), _) => history.note("raise"),
            (Request::Extend(leases), Ok(Reply::Extend(extensions))) => {
                if 1 < leases.len() {
                    history.note("many extended in one call");
                }
                let extended = leases.iter().zip(extensions).filter(|(_, done)| **done == Extension::Extended);
                for ((ownership, _), _) in extended {
                    let key = (server, ownership.owner().expose().to_owned());
                    // Releases that are lost on their way are tried for as long as a lock lives, not for as long as one that
                    // is prolonged meanwhile.
                    if self.released_by.get(&key).is_some_and(|release| call < *release) {
                        self.loose.insert(key);
                    }
                }
            }
            (Request::Enroll(..), Ok(Reply::Stands(Standing { service: Service::Enrolled, .. }))) => {
                history.note("node enrolled again");
            }
            _ => {}
        }
        drop(history);
        let summary = match reply {
            Err(_) => 3,
            Ok(Reply::Acquire(Acquisition::Granted { counter })) => *counter,
            Ok(Reply::Acquire(_)) => 1,
            Ok(Reply::Raise(raising)) => mix(match raising {
                redlock_core::Raising::At(counter) => *counter,
                redlock_core::Raising::NotOwner => 2,
            }),
            Ok(Reply::Extend(extensions)) => u64::try_from(extensions.len()).unwrap_or(0) + 10,
            Ok(Reply::Release(releasing)) => 20 + u64::from(*releasing == redlock_core::Releasing::Released),
            Ok(_) => 30,
        };
        self.fold(4, summary ^ mix(u64::try_from(call).unwrap_or(0)));
        if self.log.is_some() {
            let (number, request) = (self.calls[call].process, self.calls[call].request.clone());
            self.tell(|| format!("p{number} n{server} {request:?} -> {reply:?}"));
        }
    }

    /// An answer sets out.
    fn reply(&mut self, call: usize, answer: Answer) {
        let Call { process, to, .. } = self.calls[call];
        let server = self.number_of(to);
        let arrives = self.arrival(process, server, self.now, false);
        let origin = self.origin(process, server) ^ 1;
        self.schedule_at(arrives, origin, Event::Answered { call, answer });
    }

    /// An answer arrives.
    pub(crate) fn answer(&mut self, call: usize, answer: Answer) {
        let Call { process, to, connection, .. } = self.calls[call];
        let server = self.number_of(to);
        let link = &mut self.links[process][server];
        if link.connection != connection && self.plan.links.ordered && to != Destination::Storage {
            return;
        }
        if link.cut_back {
            link.held_answers.push((call, answer));
            self.give_up_later(call, self.now);
            return;
        }
        let calendar = match to {
            Destination::Server(server) if answer.is_ok() => Some((server, self.servers[server].memory.clock().now())),
            _ => None,
        };
        self.deliver(call, answer, calendar);
    }

    /// Ends a call.
    pub(crate) fn deliver(&mut self, call: usize, answer: Answer, calendar: Option<(usize, Duration)>) {
        let Call { process, incarnation, .. } = self.calls[call];
        let Some(sender) = self.calls[call].sender.take() else { return };
        self.fold(6, u64::try_from(call).unwrap_or(0) ^ u64::from(answer.is_ok()));
        if self.processes[process].shared.incarnation == incarnation {
            self.processes[process].inbox.push_back(Delivery::Answer { sender, answer, calendar });
        }
    }

    fn put_wake_up_on_its_way(&mut self, server: usize, called: Called) {
        if self.is_struck(FaultKind::LostWakeUps, 300) {
            return;
        }
        let arrives = self.arrival(called.process, server, self.now, false);
        let origin = self.origin(called.process, server) ^ 1;
        self.schedule_at(arrives, origin, Event::WakesUp { server, called });
    }

    fn wake_up(&mut self, server: usize, called: Called) {
        let Called { process, incarnation, listener, ticket } = called;
        if self.processes[process].shared.incarnation != incarnation || self.links[process][server].cut_back {
            return;
        }
        lock(&self.history).note("wake-up delivered");
        self.processes[process].inbox.push_back(Delivery::WakeUp { server, listener, ticket });
    }

    pub(crate) fn give_birth(&mut self, number: usize, incarnation: u64) -> (Process, Redlock) {
        let process = Process::born(Birth {
            number,
            incarnation,
            at: self.now,
            ppm: self.plan.process_ppm[number],
            clock_micros: self.random.below(1 << 40),
            servers: self.plan.nodes,
            winding_down: Arc::clone(&self.winding_down),
            history: Arc::clone(&self.history),
        });
        let ordered = self.plan.links.ordered;
        let remote = |n| Arc::new(Remote::new(n, ordered, Arc::clone(&process.shared))) as Arc<dyn LockNode>;
        let mut nodes: Vec<_> = (0..self.plan.nodes).map(remote).collect();
        // Nobody configures them in the same order.
        self.random.shuffle(&mut nodes);
        let randomness = Arc::new(ClientRandomness::new(self.random.fork()));
        let builder = Redlock::builder().nodes(nodes).ttl(self.plan.ttl).node_timeout(self.plan.node_timeout);
        let builder = builder.clock(Arc::clone(&process.shared) as _).randomness(randomness);
        let builder = if self.plan.clock_floor { builder } else { builder.without_clock_floor() };
        let builder = if self.plan.guarded { builder.crash_guard(self.plan.longest_ttl()) } else { builder };
        let client = builder.build().expect("a plan's settings work");
        (process, client)
    }

    pub(crate) fn be_reborn(&mut self, number: usize) {
        let incarnation = self.processes[number].shared.incarnation + 1;
        let (process, client) = self.give_birth(number, incarnation);
        // What was on its way to the old one, or through its connections, is nobody's.
        self.processes[number] = process;
        self.clients[number] = client;
        self.put_to_work(number);
    }

    fn worker(&mut self, number: usize) -> Worker {
        let process = Arc::clone(&self.processes[number].shared);
        let desk = Desk { process, plan: Arc::clone(&self.plan) };
        Worker { desk, redlock: self.clients[number].clone(), random: self.random.fork() }
    }

    fn put_to_work(&mut self, number: usize) {
        for _ in 0..self.plan.tasks_per_process {
            let worker = self.worker(number);
            self.processes[number].start(worker.work());
        }
    }

    pub(crate) fn pause(&mut self, number: usize, duration: Millis, how: Pause) {
        if !self.processes[number].is_running() {
            return;
        }
        let until = self.now + duration.max(1);
        self.faults.note(match how {
            Pause::Stopped => FaultKind::StoppedProcess.name(),
            Pause::Suspended => FaultKind::SuspendedMachine.name(),
            Pause::Standing => FaultKind::StandingClock.name(),
        });
        self.tell(|| format!("p{number} {how:?} until {until}"));
        self.processes[number].pause(until, how);
        if self.sabotage != Sabotage::SecretPauses {
            self.processes[number].shared.pauses.fetch_add(1, Ordering::Relaxed);
        }
        self.schedule_at(until, 0, Event::Ends(Fault::Paused(number)));
    }

    pub(crate) fn is_dead(&self, number: usize) -> bool {
        matches!(self.processes[number].condition, Condition::Dead { .. })
    }

    /// Owners of a process that dies: nobody gives their keys back.
    pub(crate) fn let_loose(&mut self, number: usize) {
        let incarnation = self.processes[number].shared.incarnation;
        let all = 0..self.plan.nodes;
        for call in &self.calls {
            if (call.process, call.incarnation) == (number, incarnation)
                && let Request::Acquire(ownership, ..) = &call.request
            {
                let owner = ownership.owner().expose();
                self.loose.extend(all.clone().map(|server| (server, owner.to_owned())));
            }
        }
        for grant in &mut lock(&self.history).grants {
            if (grant.process, grant.incarnation) == (number, incarnation) {
                grant.ended.get_or_insert(self.now);
            }
        }
    }

    fn violated(&mut self, invariant: &'static str, what: String) {
        lock(&self.history).violated(invariant, what);
    }

    /// Every event leaves its mark: two worlds with one digest went the same way.
    fn fold(&mut self, kind: u64, what: u64) {
        self.digest = mix(self.digest ^ mix(self.now ^ (kind << 56)) ^ what);
    }

    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>7} {}", self.now, line()));
        }
    }
}
