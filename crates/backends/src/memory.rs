//! The reference implementation of a node: a map behind a mutex, with a clock of its own.
//!
//! Short enough to be checked by reading, so that others can be checked against it. Behaves as Redis does where the
//! contract leaves room: leases follow the node's calendar, so setting it forward ends them early and setting it back
//! makes them outlive their ttl.

use async_trait::async_trait;
use redlock_core::{
    Acquisition, Bell, Clock, Enrolment, Extension, Fingerprint, Health, HeldBy, Holder, Inspection, KeyPrefix,
    Listener, LockNode, Manner, Moment, NodeError, Ownership, Place, Raising, Releasing, Remaining, Resource,
    Resources, Service, Standing, SystemClock, Ttl,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long a counter is kept after it was last raised; what it stood at lives on in the node's base.
const COUNTER_LIFETIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Entries below which sweeping out what has expired is not worth the time.
const SWEEP_FROM: usize = 1_024;

/// A node in this process's memory.
#[derive(Debug)]
pub struct MemoryNode {
    name: String,
    clock: MemoryClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    locks: HashMap<String, Lock>,
    counters: HashMap<String, Counter>,
    /// At least as great as any counter that was ever dropped.
    base: u64,
    sweep_at: usize,
    /// Who waits for a resource, by key: listener and ticket, first come first.
    lines: HashMap<String, VecDeque<(Arc<str>, u64)>>,
    bells: HashMap<Arc<str>, Weak<Bell>>,
    /// What the crash-recovery guard knows, by prefix; a prefix that is not in here was never asked about.
    records: HashMap<KeyPrefix, Record>,
    /// How often memory was lost, or something was noticed as such: the number of the latest loss.
    losses: u64,
}

/// One prefix under the crash-recovery guard.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Since when it has been known that the node does not serve; `None` while it does.
    noticed: Option<Duration>,
    quarantine: Duration,
    loss: u64,
}

#[derive(Debug)]
struct Lock {
    owner: String,
    expires_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    value: u64,
    raised_at: Duration,
}

impl MemoryNode {
    /// An empty node whose calendar starts at 1970 and runs with the system's clock.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self::with_clock(name, Arc::new(SystemClock))
    }

    /// An empty node whose calendar runs with `clock`.
    #[must_use]
    pub fn with_clock(name: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        Self { name: name.into(), clock: MemoryClock::new(clock), state: Mutex::default() }
    }

    /// The node's own clock, to be set, skewed or stopped.
    #[must_use]
    pub fn clock(&self) -> &MemoryClock {
        &self.clock
    }

    /// Loses everything, as a server without persistence does when it restarts; who waits is told to look for itself, as by a
    /// connection that breaks.
    pub fn forget(&self) {
        let forgotten = {
            let mut state = self.state();
            let blank = State { losses: state.losses, ..State::default() };
            std::mem::replace(&mut *state, blank)
        };
        for bell in forgotten.bells.into_values().filter_map(|bell| bell.upgrade()) {
            bell.ring_all();
        }
    }

    /// Goes back to a moment before any lock that is held now was taken, and stands `steps` lower with every counter: what a server
    /// does whose log was cut off. As it is another server from then on, it is in quarantine under the crash-recovery guard.
    pub fn lose_the_tail(&self, steps: u64) {
        let now = self.clock.now();
        let mut state = self.state();
        state.locks.clear();
        state.lines.clear();
        for counter in state.counters.values_mut() {
            counter.value = counter.value.saturating_sub(steps);
        }
        state.losses += 1;
        let loss = state.losses;
        for record in state.records.values_mut() {
            (record.noticed, record.loss) = (Some(now), loss);
        }
    }

    /// The owner and remaining time of each lock that is held now, by key, sorted.
    #[must_use]
    pub fn locks(&self) -> Vec<(String, String, Duration)> {
        let now = self.clock.now();
        let state = self.state();
        let mut locks: Vec<_> = state
            .locks
            .iter()
            .filter(|(_, lock)| now < lock.expires_at)
            .map(|(key, lock)| (key.clone(), lock.owner.clone(), lock.expires_at.saturating_sub(now)))
            .collect();
        locks.sort_unstable();
        locks
    }

    /// How many wait in the line of each resource that has one, by key, sorted.
    #[must_use]
    pub fn lines(&self) -> Vec<(String, usize)> {
        let mut lines: Vec<_> = self.state().lines.iter().map(|(key, line)| (key.clone(), line.len())).collect();
        lines.sort_unstable();
        lines
    }

    /// Sets a counter as if it had been raised to `value` before, for tests of counters that have drifted apart.
    pub fn set_counter(&self, prefix: &KeyPrefix, resource: &Resource, value: u64) {
        let raised_at = self.clock.now();
        self.state().counters.insert(key(prefix, resource), Counter { value, raised_at });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(prefix: &KeyPrefix, resource: &Resource) -> String {
    format!("{}{}", prefix.as_str(), resource.name())
}

fn keys(ownership: &Ownership) -> impl Iterator<Item = String> {
    ownership.resources().iter().map(|resource| key(ownership.prefix(), resource))
}

fn is_place((listener, ticket): &(Arc<str>, u64), place: &Place) -> bool {
    *listener == place.listener && *ticket == place.ticket
}

/// Whether the owner holds all of an ownership's resources, and if not, why not.
enum Hold {
    All,
    SomeGone,
    SomeOthers,
}

impl State {
    /// Refuses to vote under the guard unless the node serves.
    fn admit(&mut self, ownership: &Ownership, now: Duration) -> Result<(), NodeError> {
        let Some(quarantine) = ownership.quarantine() else { return Ok(()) };
        match self.standing(ownership.prefix(), quarantine, now).service {
            Service::Enrolled => Ok(()),
            Service::Quarantined { remaining } => Err(NodeError::Quarantined { remaining }),
        }
    }

    fn standing(&mut self, prefix: &KeyPrefix, quarantine: Duration, now: Duration) -> Standing {
        let record = self.records.entry(prefix.clone()).or_insert_with(|| {
            self.losses += 1;
            Record { noticed: Some(now), quarantine, loss: self.losses }
        });
        record.quarantine = quarantine.max(record.quarantine);
        // A calendar that was set back says nothing about how much time has passed.
        record.noticed = record.noticed.map(|noticed| if now < noticed { now } else { noticed });
        let service = match record.noticed {
            None => Service::Enrolled,
            Some(noticed) => {
                Service::Quarantined { remaining: noticed.saturating_add(record.quarantine).saturating_sub(now) }
            }
        };
        let (quarantine, loss) = (record.quarantine, record.noticed.map(|_| record.loss));
        let high = self.counters.values().map(|counter| counter.value).max().unwrap_or(0).max(self.base);
        Standing { service, base: self.base, high, quarantine, loss }
    }

    fn enroll(&mut self, prefix: &KeyPrefix, enrolment: &Enrolment, now: Duration) -> Standing {
        let found = self.standing(prefix, enrolment.quarantine, now);
        let waits = matches!(found.service, Service::Quarantined { remaining } if !remaining.is_zero());
        if waits && !enrolment.at_once || found.loss.is_some() && found.loss != enrolment.loss {
            return found;
        }
        self.base = self.base.max(enrolment.base);
        if found.service != Service::Enrolled {
            self.base = self.base.max(found.high);
        }
        // Also where counters have come back too low.
        for counter in self.counters.values_mut() {
            counter.value = counter.value.max(self.base);
        }
        if let Some(record) = self.records.get_mut(prefix) {
            record.noticed = None;
        }
        self.standing(prefix, enrolment.quarantine, now)
    }

    fn acquire(&mut self, ownership: &Ownership, ttl: Ttl, floor: u64, now: Duration) -> Acquisition {
        for resource in ownership.resources() {
            if let Some(held) = self.held(&key(ownership.prefix(), resource), resource, now) {
                return Acquisition::Held(held);
            }
        }
        self.sweep(now);
        let greatest = keys(ownership).map(|key| self.counter(&key)).max().unwrap_or(0);
        let counter = greatest.max(floor).saturating_add(1);
        for key in keys(ownership) {
            let owner = ownership.owner().expose().to_owned();
            let expires_at = now.saturating_add(ttl.as_duration());
            self.counters.insert(key.clone(), Counter { value: counter, raised_at: now });
            self.locks.insert(key, Lock { owner, expires_at });
        }
        Acquisition::Granted { counter }
    }

    fn lock(&self, key: &str, now: Duration) -> Option<&Lock> {
        self.locks.get(key).filter(|lock| now < lock.expires_at)
    }

    fn hold(&self, ownership: &Ownership, now: Duration) -> Hold {
        let owner = ownership.owner().expose();
        let mut hold = Hold::All;
        for key in keys(ownership) {
            match self.lock(&key, now) {
                Some(lock) if lock.owner == owner => {}
                Some(_) => return Hold::SomeOthers,
                None => hold = Hold::SomeGone,
            }
        }
        hold
    }

    fn held(&self, key: &str, resource: &Resource, now: Duration) -> Option<HeldBy> {
        self.lock(key, now).map(|lock| HeldBy {
            resource: resource.clone(),
            holder: Holder::Owner(Fingerprint::of(&lock.owner)),
            remaining: Remaining::For(lock.expires_at.saturating_sub(now)),
        })
    }

    /// Calls the first of those who wait for a key and can still be called; others leave the line.
    fn call_first(&mut self, key: &str) -> Option<(Arc<str>, u64)> {
        let line = self.lines.get_mut(key)?;
        while let Some((listener, ticket)) = line.front() {
            if self.bells.get(listener).and_then(Weak::upgrade).is_some_and(|bell| bell.ring(*ticket)) {
                return line.front().cloned();
            }
            line.pop_front();
        }
        self.lines.remove(key);
        None
    }

    /// Calls the first in the line of each key that is free. Says whether anybody was called.
    fn pass_on<'a>(&mut self, keys: impl Iterator<Item = &'a String>, now: Duration) -> bool {
        let mut called = false;
        for key in keys {
            called |= self.lock(key, now).is_none() && self.call_first(key).is_some();
        }
        called
    }

    fn line_up(&mut self, key: &str, place: &Place) {
        let line = self.lines.entry(key.to_owned()).or_default();
        let waiter = (Arc::clone(&place.listener), place.ticket);
        if !line.contains(&waiter) {
            line.push_back(waiter);
        }
    }

    /// Takes those before a waiter out of the line for a key.
    fn overtake(&mut self, key: &str, place: &Place) {
        let Some(line) = self.lines.get_mut(key) else { return };
        if let Some(position) = line.iter().position(|waiter| is_place(waiter, place)) {
            line.drain(..position);
        }
    }

    /// Takes a waiter out of the line for a key. Says whether it was there.
    fn leave(&mut self, key: &str, place: &Place) -> bool {
        let Some(line) = self.lines.get_mut(key) else { return false };
        let before = line.len();
        line.retain(|waiter| !is_place(waiter, place));
        let left = line.len() < before;
        if line.is_empty() {
            self.lines.remove(key);
        }
        left
    }

    fn counter(&self, key: &str) -> u64 {
        self.counters.get(key).map_or(self.base, |counter| counter.value)
    }

    /// Drops what has expired, once in a while: each time the maps have doubled.
    fn sweep(&mut self, now: Duration) {
        let entries = self.locks.len() + self.counters.len();
        if entries < self.sweep_at.max(SWEEP_FROM) {
            return;
        }
        self.locks.retain(|_, lock| now < lock.expires_at);
        let base = &mut self.base;
        self.counters.retain(|_, counter| {
            let lives = now < counter.raised_at.saturating_add(COUNTER_LIFETIME);
            if !lives {
                *base = counter.value.max(*base);
            }
            lives
        });
        self.sweep_at = 2 * (self.locks.len() + self.counters.len());
    }
}

#[async_trait]
impl LockNode for MemoryNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        state.admit(ownership, now)?;
        Ok(state.acquire(ownership, ttl, floor, now))
    }

    async fn listen(&self, _: &KeyPrefix, listener: &Listener) -> Result<(), NodeError> {
        let mut state = self.state();
        state.bells.retain(|_, bell| 0 < bell.strong_count());
        state.bells.insert(Arc::clone(listener.name()), Arc::downgrade(listener.bell()));
        Ok(())
    }

    async fn acquire_in_line(
        &self,
        ownership: &Ownership,
        ttl: Ttl,
        floor: u64,
        place: &Place,
    ) -> Result<Acquisition, NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        state.admit(ownership, now)?;
        for resource in ownership.resources() {
            let key = key(ownership.prefix(), resource);
            let mut in_the_way = state.held(&key, resource, now);
            if in_the_way.is_none() && place.manner == Manner::Yield {
                let first = state.call_first(&key);
                if first.is_some_and(|first| !is_place(&first, place)) {
                    let (holder, remaining) = (Holder::Line, Remaining::Unknown);
                    in_the_way = Some(HeldBy { resource: resource.clone(), holder, remaining });
                }
            }
            if let Some(held) = in_the_way {
                state.line_up(&key, place);
                // One that waits for this resource cannot take the others: whoever waits for them is not to wait for it.
                let mut elsewhere = place.clone();
                elsewhere.manner = Manner::Yield;
                for other in keys(ownership).filter(|other| *other != key) {
                    if state.leave(&other, &elsewhere) {
                        state.pass_on([&other].into_iter(), now);
                    }
                }
                return Ok(Acquisition::Held(held));
            }
        }
        if place.manner == Manner::Overtake {
            for key in keys(ownership) {
                state.overtake(&key, place);
            }
        }
        Ok(state.acquire(ownership, ttl, floor, now))
    }

    async fn leave_line(&self, prefix: &KeyPrefix, resources: &Resources, place: &Place) -> Result<(), NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        let keys: Vec<String> = resources.iter().map(|resource| key(prefix, resource)).collect();
        for key in &keys {
            state.leave(key, place);
        }
        state.pass_on(keys.iter(), now);
        Ok(())
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        state.admit(ownership, now)?;
        let hold = state.hold(ownership, now);
        if !matches!(hold, Hold::All) && !mutant!("a raise in memory does not look at the owner") {
            return Ok(Raising::NotOwner);
        }
        let mut greatest = to;
        for key in keys(ownership) {
            let value = state.counter(&key).max(to);
            greatest = greatest.max(value);
            state.counters.insert(key, Counter { value, raised_at: now });
        }
        Ok(Raising::At(greatest))
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        state.admit(ownership, now)?;
        match state.hold(ownership, now) {
            Hold::SomeGone => return Ok(Extension::Gone),
            Hold::SomeOthers => return Ok(Extension::NotOwner),
            Hold::All => {}
        }
        for key in keys(ownership) {
            if let Some(lock) = state.locks.get_mut(&key) {
                lock.expires_at = now.saturating_add(ttl.as_duration());
            }
        }
        Ok(Extension::Extended)
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        let hold = state.hold(ownership, now);
        for key in keys(ownership) {
            if state.lock(&key, now).is_some_and(|lock| lock.owner == ownership.owner().expose()) {
                state.locks.remove(&key);
            }
        }
        let called = state.pass_on(keys(ownership).collect::<Vec<_>>().iter(), now);
        Ok(match hold {
            Hold::All if called => Releasing::PassedOn,
            Hold::All => Releasing::Released,
            Hold::SomeGone => Releasing::Gone,
            Hold::SomeOthers => Releasing::NotOwner,
        })
    }

    async fn standing(&self, prefix: &KeyPrefix, quarantine: Duration) -> Result<Standing, NodeError> {
        let now = self.clock.now();
        Ok(self.state().standing(prefix, quarantine, now))
    }

    fn keeps_record(&self) -> bool {
        true
    }

    async fn enroll(&self, prefix: &KeyPrefix, enrolment: &Enrolment) -> Result<Standing, NodeError> {
        let now = self.clock.now();
        Ok(self.state().enroll(prefix, enrolment, now))
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let now = self.clock.now();
        let state = self.state();
        let inspect = |resource: &Resource| {
            let key = key(prefix, resource);
            Inspection {
                resource: resource.clone(),
                held: state.held(&key, resource, now),
                counter: state.counters.get(&key).map(|counter| counter.value),
            }
        };
        Ok(resources.iter().map(inspect).collect())
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let mut health = Health::default();
        health.primary = Some(true);
        health.replicas = Some(0);
        health.version = Some(env!("CARGO_PKG_VERSION").to_owned());
        health.persistence = Some("none".to_owned());
        health.eviction_policy = Some("none".to_owned());
        health.unix_time = Some(self.clock.now());
        Ok(health)
    }

    fn unix_time(&self) -> Option<Duration> {
        Some(self.clock.now())
    }

    fn order(&self) -> Option<u64> {
        // Each call does its work in its first poll.
        Some(0)
    }
}

/// A node's calendar: follows another clock, at a rate of its own, until it is set or stopped.
#[derive(Debug)]
pub struct MemoryClock {
    source: Arc<dyn Clock>,
    reading: Mutex<Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// What the calendar showed when the source showed `at`.
    shown: Duration,
    at: Moment,
    rate: f64,
    stopped: bool,
}

impl MemoryClock {
    fn new(source: Arc<dyn Clock>) -> Self {
        let at = source.now();
        Self { source, reading: Mutex::new(Reading { shown: Duration::ZERO, at, rate: 1.0, stopped: false }) }
    }

    /// What the calendar shows: the time since 1970.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.reading().shown_at(self.source.now())
    }

    /// Sets the calendar, forward or back.
    pub fn set(&self, unix_time: Duration) {
        self.change(|reading| reading.shown = unix_time);
    }

    /// Sets the calendar forward.
    pub fn advance(&self, by: Duration) {
        self.change(|reading| reading.shown = reading.shown.saturating_add(by));
    }

    /// Lets the calendar run faster (above one) or slower than its source.
    ///
    /// # Panics
    /// If the rate is negative or not finite.
    pub fn set_rate(&self, rate: f64) {
        assert!(rate.is_finite() && 0.0 <= rate, "a clock runs at a finite rate that is not negative");
        self.change(|reading| reading.rate = rate);
    }

    /// Stops the calendar.
    pub fn freeze(&self) {
        self.change(|reading| reading.stopped = true);
    }

    /// Lets it run on.
    pub fn thaw(&self) {
        self.change(|reading| reading.stopped = false);
    }

    fn change(&self, change: impl FnOnce(&mut Reading)) {
        let at = self.source.now();
        let mut reading = self.reading();
        *reading = Reading { shown: reading.shown_at(at), at, ..*reading };
        change(&mut reading);
    }

    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    fn shown_at(&self, source: Moment) -> Duration {
        if self.stopped { self.shown } else { self.shown.saturating_add(source.since(self.at).mul_f64(self.rate)) }
    }
}
