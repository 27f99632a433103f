//! What the processes of a simulated world do: they lock in every way there is, write under their locks, some of them
//! carelessly, and let go in every way there is.

use super::audit::Watched;
use super::history::{Asked, Granted};
use super::invariants::told_in_time;
use super::plan::{FaultKind, Millis, Plan};
use super::process::{Shared, lock};
use super::random::Random;
use super::remote::{Destination, Reply, Request};
use futures_util::future::{Either, select};
use redlock_core::{
    AcquireError, Election, EnrollError, FencingToken, Guard, Held, KeepAlive, OnLoss, Redlock, ReleaseOutcome,
    Resource, Retry, WorkError,
};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// One task of a process.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) desk: Desk,
    pub(crate) redlock: Redlock,
    pub(crate) random: Random,
}

/// Where the work under a lock is done.
#[derive(Clone, Debug)]
pub(crate) struct Desk {
    pub(crate) process: Arc<Shared>,
    pub(crate) plan: Arc<Plan>,
}

/// A resource's name by its number, as far as there are any.
pub(crate) const RESOURCES: [&str; 3] = ["orders/42", "reports", "stock"];

/// A quarantine lasts for eight pauses and a little, or half as long again by a calendar that is far too slow.
const LOOKS_AFTER_NODES_MAX: usize = 40;

/// Nobody holds a lock on purpose for longer than this many ttls, nor than this.
const HELD_TTLS_MAX: u64 = 2;
const HELD_MAX: Millis = 4_000;

const fn ms(millis: Millis) -> Duration {
    Duration::from_millis(millis)
}

/// A lock in somebody's hands, on record until it is let go.
struct Tenure {
    process: Arc<Shared>,
    grant: usize,
}

impl Tenure {
    /// Puts a lock on record. Asks for the signal of its loss in most cases.
    fn new(desk: &Desk, random: &mut Random, held: &Held, owner: Option<String>, asked: Millis) -> Self {
        let process = Arc::clone(&desk.process);
        let now = process.now();
        let numbers = held.grant().resources().iter().map(|resource| number_of(resource.name())).collect();
        let told = random.happens(700).then(|| held.lost_token());
        let mut history = lock(&process.history);
        let began = owner.as_ref().and_then(|owner| history.attempts.get(owner).copied()).unwrap_or(asked);
        let grant = history.grants.len();
        history.grants.push(Granted {
            process: process.number,
            incarnation: process.incarnation,
            resources: numbers,
            token: held.token().get(),
            owner: owner.map(|owner| owner.chars().take(8).collect()),
            began,
            finished: now,
            believed_until: now + process.in_world(held.remaining()),
            ended: None,
        });
        drop(history);
        lock(&process.watched).push(Watched::new(grant, held.clone(), told, &process));
        Self { process, grant }
    }

    fn valid_until(&self) -> Option<redlock_core::Moment> {
        let watched = lock(&self.process.watched);
        watched.iter().find(|lock| lock.grant == self.grant).map(|lock| lock.valid_until)
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        if self.process.is_dead() {
            return;
        }
        let now = self.process.now();
        lock(&self.process.watched).retain(|lock| lock.grant != self.grant);
        lock(&self.process.history).grants[self.grant].ended.get_or_insert(now);
    }
}

fn number_of(name: &str) -> usize {
    RESOURCES.iter().position(|known| *known == name).unwrap_or(0)
}

impl Worker {
    /// Works until the storm is over.
    pub(crate) async fn work(mut self) {
        while !self.desk.process.winding_down.load(Ordering::Relaxed) {
            match self.random.below(100) {
                0..40 => self.with_a_guard().await,
                40..50 => self.with_many().await,
                50..65 => self.in_one_call().await,
                65..77 => self.in_office().await,
                77..90 => self.and_thinks_better_of_it().await,
                _ => self.looks().await,
            }
            let ttl = self.desk.plan.ttl_millis();
            let longest = if self.random.happens(700) { ttl / 20 + 5 } else { ttl / 2 };
            let pause = self.random.below(longest);
            sleep(ms(pause)).await;
        }
    }

    async fn looks(&mut self) {
        let resource = Resource::new(self.a_resource()).expect("a name");
        drop(self.redlock.inspect(resource).await);
    }

    fn a_resource(&mut self) -> &'static str {
        RESOURCES[self.random.index(self.desk.plan.resources)]
    }

    fn retry(&mut self) -> Retry {
        let ttl = self.desk.plan.ttl_millis();
        let wait = match self.random.below(4) {
            0 => 0,
            1 => self.random.below(ttl),
            _ => self.random.below(2 * ttl + 500),
        };
        let delay = ms(self.random.between(2, 30));
        Retry { wait: ms(wait), delay, jitter: ms(self.random.between(0, 50)), ..Retry::default() }
    }

    /// Acquires with a guard, on record.
    async fn acquire(&mut self, names: &[&str], retry: Retry) -> Option<(Guard, Tenure)> {
        let asked = self.desk.process.now();
        let pauses = self.desk.process.pauses.load(Ordering::Relaxed);
        let result = self.redlock.request(names).retry(retry).acquire().await;
        let took = self.desk.process.now() - asked;
        {
            let mut history = lock(&self.desk.process.history);
            if self.desk.process.pauses.load(Ordering::Relaxed) == pauses {
                let wait = super::plan::millis(retry.wait);
                history.asked.push(Asked { process: self.desk.process.number, wait, took });
            }
            history.note("acquire");
            history.note(outcome(result.as_ref().err()));
        }
        let guard = result.ok()?;
        if guard.report().raised {
            lock(&self.desk.process.history).note("granted after a raise");
        }
        let owner = Some(guard.owner().expose().to_owned());
        let tenure = Tenure::new(&self.desk, &mut self.random, &guard.held(), owner, asked);
        Some((guard, tenure))
    }

    async fn with_a_guard(&mut self) {
        let (name, retry) = (self.a_resource(), self.retry());
        let Some((guard, tenure)) = self.acquire(&[name], retry).await else { return };
        self.hold(&guard, &tenure).await;
        self.let_go(guard, tenure).await;
    }

    async fn with_many(&mut self) {
        let mut names: Vec<&str> = RESOURCES[..self.desk.plan.resources].to_vec();
        self.random.shuffle(&mut names);
        let retry = self.retry();
        let Some((guard, tenure)) = self.acquire(&names, retry).await else { return };
        self.hold(&guard, &tenure).await;
        self.let_go(guard, tenure).await;
    }

    /// Keeps the lock in one way or another while it works under it.
    async fn hold(&mut self, guard: &Guard, tenure: &Tenure) {
        let ttl = self.desk.plan.ttl_millis();
        if self.random.happens(400) {
            let most = ms(self.random.between(ttl, HELD_TTLS_MAX * ttl + HELD_MAX));
            guard.keep_alive(KeepAlive::default().every_fraction(self.random.pick(&[2, 3, 5])).max_hold(most));
        }
        self.desk.perhaps_pause(&mut self.random);
        let careless = self.random.happens(400);
        let held = guard.held();
        let mut random = self.random.fork();
        let work = self.desk.use_it(&held, tenure.grant, &mut random, Some(guard));
        if careless {
            work.await;
            return;
        }
        if let Either::Right(_) = select(pin!(work), pin!(guard.lost())).await {
            self.desk.was_told(tenure);
        }
    }

    async fn let_go(&mut self, guard: Guard, tenure: Tenure) {
        drop(tenure);
        match self.random.below(10) {
            0..6 => {
                let release = guard.release().await;
                lock(&self.desk.process.history).note(match release.outcome {
                    ReleaseOutcome::Everywhere => "released everywhere",
                    ReleaseOutcome::Quorum => "released on a quorum",
                    ReleaseOutcome::AlreadyGone => "release found it gone",
                    _ => "released on a part",
                });
            }
            6..9 => drop(guard),
            _ => {
                let patience = ms(self.random.below(5));
                drop(timeout(patience, guard.release()).await);
            }
        }
    }

    async fn in_one_call(&mut self) {
        let (name, retry) = (self.a_resource(), self.retry());
        let asked = self.desk.process.now();
        let on_loss = if self.random.happens(600) { OnLoss::Drop } else { OnLoss::Tell };
        let ttl = self.desk.plan.ttl_millis();
        let keep = KeepAlive::default().max_hold(ms(HELD_TTLS_MAX * ttl + HELD_MAX));
        let (desk, mut random) = (self.desk.clone(), self.random.fork());
        let work = self.redlock.request(name).retry(retry).work().on_loss(on_loss).keep_alive(keep);
        let result = work
            .run(async move |held: Held| {
                let tenure = Tenure::new(&desk, &mut random, &held, None, asked);
                desk.use_it(&held, tenure.grant, &mut random, None).await;
            })
            .await;
        let mut history = lock(&self.desk.process.history);
        history.note("acquire");
        history.note(match &result {
            Ok(()) => "granted",
            Err(WorkError::Acquire(error)) => outcome(Some(error)),
            Err(_) => "work lost its lock",
        });
    }

    async fn in_office(&mut self) {
        let (name, retry) = (self.a_resource(), self.retry());
        let ttl = self.desk.plan.ttl_millis();
        let term = ms(self.random.between(ttl, HELD_TTLS_MAX * ttl + HELD_MAX));
        let election = Election::new(&self.redlock, name).expect("a name").retry(retry);
        let election = election.keep_alive(KeepAlive::default().max_hold(term));
        let asked = self.desk.process.now();
        lock(&self.desk.process.history).note("acquire");
        if self.random.happens(500) {
            let Ok(leadership) = election.campaign().await else { return };
            lock(&self.desk.process.history).note("elected");
            let owner = Some(leadership.guard().owner().expose().to_owned());
            let tenure = Tenure::new(&self.desk, &mut self.random, &leadership.held(), owner, asked);
            let mut random = self.random.fork();
            self.desk.use_it(&leadership.held(), tenure.grant, &mut random, None).await;
            drop(tenure);
            if self.random.happens(700) {
                leadership.resign().await;
            }
            return;
        }
        let patience = ms(self.random.between(500, 2 * ttl + 1_000));
        let (desk, mut forks, mut asked) = (self.desk.clone(), self.random.fork(), asked);
        let serve = election.serve(move |held: Held| {
            // Before the first term it was asked for here; before the next, not before this one.
            let (desk, mut random, since) = (desk.clone(), forks.fork(), asked);
            asked = desk.process.now();
            async move {
                let tenure = Tenure::new(&desk, &mut random, &held, None, since);
                lock(&desk.process.history).note("elected");
                desk.use_it(&held, tenure.grant, &mut random, None).await;
            }
        });
        // Nobody stands for election for ever.
        drop(timeout(patience, serve).await);
    }

    /// Asks, and is gone before the answer is there; or just after.
    async fn and_thinks_better_of_it(&mut self) {
        let (name, retry) = (self.a_resource(), self.retry());
        let longest = if self.random.happens(500) { 15 } else { self.desk.plan.ttl_millis() };
        let patience = ms(self.random.below(longest));
        lock(&self.desk.process.history).note("acquire");
        let acquire = self.redlock.request(name).retry(retry);
        let cancelled = match self.random.below(2) {
            0 => timeout(patience, acquire.acquire()).await.map_or(true, |result| {
                drop(result);
                false
            }),
            _ => matches!(acquire.acquire_unless(sleep(patience)).await, Err(AcquireError::Cancelled { .. })),
        };
        lock(&self.desk.process.history).note(if cancelled { "cancelled" } else { "not cancelled in time" });
    }

    /// Goes on after most nodes have lost their memory. Whoever does this has to know the highest token of all, as a storage
    /// does in which every holder claims before anything else.
    pub(crate) async fn look_after_nodes(self) {
        let highest = lock(&self.desk.process.history).grants.iter().map(|grant| grant.token).max();
        let highest = FencingToken::assume_granted(highest.unwrap_or(1)).expect("it was one");
        let pause = ms(self.desk.plan.ttl_millis() / 4 + 100);
        for _ in 0..LOOKS_AFTER_NODES_MAX {
            match self.redlock.reseed(highest).await {
                // Most of them remember, and take in the others.
                Err(EnrollError::EnrolledAlready { .. }) => return,
                Ok(_) => lock(&self.desk.process.history).note("reseeded"),
                Err(_) => {}
            }
            sleep(pause).await;
        }
        let what = "most nodes have lost their memory and cannot be enrolled again".to_owned();
        lock(&self.desk.process.history).violated("somebody_wins", what);
    }

    /// After the storm: everybody wants the same, and everybody gets it.
    pub(crate) async fn contest(mut self, patience: Millis) {
        let retry = Retry { wait: ms(patience), ..Retry::default() };
        match self.acquire(&RESOURCES[..1], retry).await {
            Some((guard, tenure)) => {
                lock(&self.desk.process.history).contest.push(tenure.grant);
                sleep(ms(self.random.below(20))).await;
                drop(tenure);
                guard.release().await;
            }
            None => {
                let what = format!(
                    "{:?} was granted nothing within {patience} ms after the faults had stopped",
                    self.desk.process
                );
                lock(&self.desk.process.history).violated("somebody_wins", what);
            }
        }
    }
}

impl Desk {
    /// Hears from `lost()` that the lock is lost; that must not be late either.
    fn was_told(&self, tenure: &Tenure) {
        let (now, clock) = (self.process.now(), self.process.clock_now());
        let valid_until = tenure.valid_until();
        let mut history = lock(&self.process.history);
        history.note("loss announced by `lost`");
        if let Some(valid_until) = valid_until
            && let Some(what) = told_in_time::check(&self.process, tenure.grant, valid_until, (now, clock))
        {
            history.violated("told_in_time", what);
        }
    }

    /// Reads and writes under the lock, and thinks in between.
    async fn use_it(&self, held: &Held, grant: usize, random: &mut Random, guard: Option<&Guard>) {
        let ttl = self.plan.ttl_millis();
        let most = (HELD_TTLS_MAX * ttl).min(HELD_MAX);
        let numbers: Vec<usize> = held.grant().resources().iter().map(|resource| number_of(resource.name())).collect();
        for _ in 0..random.between(1, 3) {
            if random.happens(600) && !self.write(random.pick(&numbers), held, grant, random).await {
                return;
            }
            let think = if random.happens(600) { random.below(ttl / 10 + 5) } else { random.below(most / 3) };
            sleep(ms(think)).await;
            if let Some(guard) = guard {
                match random.below(10) {
                    0..2 => drop(guard.extend().await),
                    2 if !self.plan.has(FaultKind::DuplicatedRequests) => {
                        drop(guard.extend_to(ms(random.between(ttl * 3 / 4, 2 * ttl))).await)
                    }
                    3 => drop(timeout(ms(random.below(20)), guard.extend()).await),
                    _ => {}
                }
            }
        }
    }

    /// Reads, thinks, writes one more. `false` if the storage has refused, or what became of it is unknown: whoever does not
    /// know whether its last write has arrived must not write again.
    async fn write(&self, resource: usize, held: &Held, grant: usize, random: &mut Random) -> bool {
        let token = held.token().get();
        let claim = Request::Claim { resource, token, grant };
        let read = match self.process.ask(Destination::Storage, claim).await {
            Ok(Reply::Claimed(read)) => read,
            Ok(_) => {
                lock(&self.process.history).note("stale claim refused");
                return false;
            }
            Err(_) => {
                lock(&self.process.history).note("claim without an answer");
                return false;
            }
        };
        sleep(ms(random.below(10))).await;
        if random.happens(60) {
            self.process.ask_for_pause(random.between(self.plan.ttl_millis(), 2 * self.plan.ttl_millis()));
            // The world takes the process out at its next look; until then this does nothing.
            sleep(ms(1)).await;
        }
        let write = Request::Write { resource, token, grant, read, value: read + 1 };
        match self.process.ask(Destination::Storage, write).await {
            Ok(Reply::Done) => {
                lock(&self.process.history).note("write applied");
                true
            }
            Ok(_) => {
                lock(&self.process.history).note("stale write refused");
                false
            }
            Err(_) => {
                lock(&self.process.history).note("write without an answer");
                false
            }
        }
    }

    fn perhaps_pause(&self, random: &mut Random) {
        if random.happens(30) {
            self.process.ask_for_pause(random.below(2 * self.plan.ttl_millis()));
        }
    }
}

fn outcome(error: Option<&AcquireError>) -> &'static str {
    match error {
        None => "granted",
        Some(AcquireError::Contended(_)) => "contended",
        Some(AcquireError::Unavailable(_)) => "unavailable",
        Some(AcquireError::TooSlow { .. }) => "too slow",
        Some(AcquireError::TimedOut { .. }) => "timed out",
        Some(AcquireError::Misconfigured(_)) => "misconfigured",
        Some(_) => "other error",
    }
}
