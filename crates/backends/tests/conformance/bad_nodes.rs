//! Nodes with one fault each: what authors of backends get wrong, on top of the reference, which gets it right.

use crate::fixtures::HandClock;
use async_trait::async_trait;
use redlock_backends::MemoryNode;
use redlock_core::conformance::Fixture;
use redlock_core::{
    Acquisition, Clock, Extension, Health, HeldBy, Holder, Inspection, IntoResources, KeyPrefix, Listener, LockNode,
    Manner, NodeError, Owner, Ownership, Place, Raising, Releasing, Resource, Resources, Ttl,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::yield_now;

/// What is wrong with a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    TokenIsRandom,
    TokenIsConstant,
    TokenIsTheTimeOfAClockThatStepsBack,
    TokenIgnoresTheFloor,
    TokenIsReducedTo32Bits,
    TokensOfSeveralAreTheirOwn,
    CounterIsResetOnRelease,
    CounterIsResetOnExpiry,
    RefusalCounts,
    RefusalBlamesTheOneWhoAsks,
    RefusalProlongs,
    AcquireFails,
    AcquireOfManyFails,
    AcquireTakesOneAfterTheOther,
    AcquireChecksThenTakes,
    AcquireTakesWithPauses,
    AcquireReentersForTheOwner,
    AcquireArrivesLate,
    AcquireIsRepeatedAfterACut,
    NamesAreFolded,
    NamesEndAtAZeroByte,
    PrefixIsIgnored,
    ConnectionsAreNodesOfTheirOwn,
    RaiseIsIgnored,
    RaiseOfSeveralWithPauses,
    RaiseLowers,
    RaiseOfAnybody,
    RaiseOfOneOfSeveral,
    RaiseChecksThenRaises,
    RaiseAnswersWhatWasAsked,
    ExtensionRevives,
    ExtensionTakesAnew,
    ExtensionAdds,
    ExtensionIsIgnored,
    ExtensionOfAnybody,
    ExtensionOfOneOfSeveral,
    ExtensionChecksThenExtends,
    ExtensionCounts,
    ExtensionsInAnotherOrder,
    ReleaseOfAnybody,
    ReleaseChecksThenFrees,
    ReleaseOfAllOrNothing,
    ReleaseOfWhatIsGoneFails,
    ReleaseIsLeftToTheTtl,
    TtlNeverEnds,
    TtlIsHalf,
    ExpiredIsStillTheOwners,
    CutForgets,
    SilenceIsWaitedOutForEver,
    LineCallsTheLast,
    LineForgetsWhoeverWasGranted,
    LineIsNotHeeded,
    LineForgetsACallOnLeaving,
    InspectionGuesses,
    HealthIsThatOfAReplica,
    IdentityIsThatOfTheConnection,
    UnixTimeStandsStill,
    NameCountsCalls,
}

/// The server side, shared by all connections.
struct Server {
    memory: MemoryNode,
    clock: Arc<HandClock>,
    wrong: Wrong,
    calls: AtomicU64,
    was_cut: AtomicBool,
    silent: AtomicBool,
    /// Resources, or their owners, that were granted and not released since.
    unreleased: Mutex<HashSet<String>>,
    connections: AtomicU64,
    line: Mutex<Vec<Place>>,
}

/// The bad node's fixture.
pub(crate) struct Bad(Arc<Server>);

impl Bad {
    pub(crate) fn new(wrong: Wrong) -> Self {
        let clock = Arc::new(HandClock::default());
        Self(Arc::new(Server {
            memory: MemoryNode::with_clock("bad", Arc::clone(&clock) as _),
            clock,
            wrong,
            calls: AtomicU64::new(1),
            was_cut: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            unreleased: Mutex::default(),
            connections: AtomicU64::new(0),
            line: Mutex::default(),
        }))
    }
}

#[async_trait]
impl Fixture for Bad {
    async fn connect(&self) -> Arc<dyn LockNode> {
        if self.0.wrong == Wrong::ConnectionsAreNodesOfTheirOwn {
            return Arc::new(BadNode { server: Self::new(self.0.wrong).0, connection: 0 });
        }
        let connection = self.0.connections.fetch_add(1, Ordering::Relaxed);
        Arc::new(BadNode { server: Arc::clone(&self.0), connection })
    }

    async fn let_pass(&self, duration: Duration) {
        self.0.clock.advance(duration);
        yield_now().await;
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.0.clock) as _
    }

    fn lateness(&self) -> Duration {
        Duration::ZERO
    }

    async fn disconnect(&self) -> bool {
        self.0.was_cut.store(true, Ordering::Relaxed);
        if self.0.wrong == Wrong::CutForgets {
            self.0.memory.forget();
        }
        true
    }

    async fn silence(&self, silent: bool) -> bool {
        self.0.silent.store(silent, Ordering::Relaxed);
        true
    }
}

struct BadNode {
    server: Arc<Server>,
    connection: u64,
}

/// One resource of an ownership, for the same owner.
fn single(ownership: &Ownership, resource: &Resource) -> Ownership {
    Ownership::new(ownership.prefix().clone(), resource.into(), ownership.owner().clone())
}

fn singles(ownership: &Ownership) -> Vec<Ownership> {
    ownership.resources().iter().map(|resource| single(ownership, resource)).collect()
}

impl BadNode {
    fn is(&self, wrong: Wrong) -> bool {
        self.server.wrong == wrong
    }

    fn is_unreleased(&self, what: &str) -> bool {
        self.server.unreleased.lock().unwrap().contains(what)
    }

    fn memory(&self) -> &MemoryNode {
        &self.server.memory
    }

    /// As if whoever holds the resource asked.
    fn as_holder(&self, single: &Ownership) -> Option<Ownership> {
        let resource = single.resources().iter().next()?;
        let key = format!("{}{}", single.prefix().as_str(), resource.name());
        let (_, owner, _) = self.memory().locks().into_iter().find(|(held, ..)| *held == key)?;
        Some(Ownership::new(single.prefix().clone(), resource.into(), Owner::assume(&owner)))
    }

    fn remaining(&self, single: &Ownership) -> Option<Duration> {
        let key = format!("{}{}", single.prefix().as_str(), single.resources());
        self.memory().locks().into_iter().find(|(held, ..)| *held == key).map(|(_, _, remaining)| remaining)
    }

    async fn counters(&self, ownership: &Ownership) -> Vec<u64> {
        let seen = self.memory().inspect(ownership.prefix(), ownership.resources()).await.unwrap();
        seen.into_iter().map(|one| one.counter.unwrap_or(0)).collect()
    }

    fn set_counters(&self, ownership: &Ownership, value: impl Fn(u64) -> u64, old: &[u64]) {
        for (resource, old) in ownership.resources().iter().zip(old) {
            self.memory().set_counter(ownership.prefix(), resource, value(*old));
        }
    }

    async fn holds_all(&self, ownership: &Ownership) -> bool {
        singles(ownership)
            .iter()
            .all(|one| self.as_holder(one).is_some_and(|holder| holder.owner() == ownership.owner()))
    }

    /// The name under which the node files what it is asked for.
    fn filed(&self, ownership: &Ownership) -> Ownership {
        let file = |name: &str| match self.server.wrong {
            Wrong::NamesAreFolded => name.trim_end().to_lowercase(),
            Wrong::NamesEndAtAZeroByte => name.split('\0').next().unwrap_or_default().to_owned(),
            _ => name.to_owned(),
        };
        let names: Vec<String> = ownership.resources().iter().map(|resource| file(resource.name())).collect();
        let prefix = if self.is(Wrong::PrefixIsIgnored) { KeyPrefix::default() } else { ownership.prefix().clone() };
        Ownership::new(prefix, names.into_resources().unwrap(), ownership.owner().clone())
    }

    /// What comes before every call, whatever it asks.
    async fn arrive(&self) -> Result<(), NodeError> {
        while self.is(Wrong::SilenceIsWaitedOutForEver) && self.server.silent.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if self.server.silent.load(Ordering::Relaxed) {
            return Err(NodeError::Timeout { after: Duration::from_secs(1) });
        }
        Ok(())
    }

    async fn force(&self, one: &Ownership, ttl: Ttl, floor: u64) -> u64 {
        loop {
            match self.memory().acquire(one, ttl, floor).await.unwrap() {
                Acquisition::Granted { counter } => return counter,
                Acquisition::Held(_) => {
                    let holder = self.as_holder(one).unwrap();
                    self.memory().release(&holder).await.unwrap();
                }
            }
        }
    }

    async fn acquired(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        let answer = self.memory().acquire(ownership, ttl, floor).await?;
        let Acquisition::Granted { counter } = answer else { return Ok(answer) };
        if self.is(Wrong::ExpiredIsStillTheOwners) {
            self.server.unreleased.lock().unwrap().insert(ownership.owner().expose().to_owned());
        }
        let calls = self.server.calls.fetch_add(1, Ordering::Relaxed);
        let counter = match self.server.wrong {
            Wrong::TokenIsRandom => calls.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11,
            Wrong::TokenIsConstant => 7,
            // Every eighth reading of the clock is earlier than the one before.
            Wrong::TokenIsTheTimeOfAClockThatStepsBack => {
                1_700_000_000_000_000 + calls - 5 * u64::from(calls.is_multiple_of(8))
            }
            Wrong::TokenIsReducedTo32Bits => counter & u64::from(u32::MAX),
            _ => counter,
        };
        Ok(Acquisition::Granted { counter })
    }
}

#[async_trait]
impl LockNode for BadNode {
    fn name(&self) -> &str {
        let calls = self.server.calls.load(Ordering::Relaxed);
        if self.is(Wrong::NameCountsCalls) && calls.is_multiple_of(2) { "bad, called evenly" } else { "bad" }
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        self.arrive().await?;
        let ownership = &self.filed(ownership);
        let names = || ownership.resources().iter().map(|resource| resource.name().to_owned());
        let (ttl, floor) = match self.server.wrong {
            Wrong::TtlNeverEnds => (Ttl::new(Ttl::MAX).unwrap(), floor),
            Wrong::TtlIsHalf => (Ttl::new(ttl.as_duration() / 2).unwrap(), floor),
            Wrong::TokenIgnoresTheFloor => (ttl, 0),
            _ => (ttl, floor),
        };
        match self.server.wrong {
            Wrong::AcquireFails => return Err(NodeError::unreachable("nobody is there")),
            Wrong::AcquireOfManyFails if 16 < ownership.resources().len() => {
                return Err(NodeError::protocol("too many for one statement"));
            }
            Wrong::AcquireArrivesLate => {
                yield_now().await;
                yield_now().await;
            }
            Wrong::AcquireTakesOneAfterTheOther | Wrong::AcquireTakesWithPauses | Wrong::TokensOfSeveralAreTheirOwn => {
                let (mut taken, mut greatest) = (Vec::new(), 0);
                for one in singles(ownership) {
                    match self.memory().acquire(&one, ttl, floor).await? {
                        Acquisition::Granted { counter } => greatest = greatest.max(counter),
                        held @ Acquisition::Held(_) => {
                            if !self.is(Wrong::AcquireTakesOneAfterTheOther) {
                                for one in &taken {
                                    self.memory().release(one).await?;
                                }
                            }
                            return Ok(held);
                        }
                    }
                    taken.push(one);
                    if self.is(Wrong::AcquireTakesWithPauses) {
                        yield_now().await;
                    }
                }
                if !self.is(Wrong::TokensOfSeveralAreTheirOwn) {
                    self.set_counters(ownership, |_| greatest, &self.counters(ownership).await);
                }
                return Ok(Acquisition::Granted { counter: greatest });
            }
            Wrong::AcquireChecksThenTakes => {
                for one in self.memory().inspect(ownership.prefix(), ownership.resources()).await? {
                    if let Some(held) = one.held {
                        return Ok(Acquisition::Held(held));
                    }
                }
                yield_now().await;
                let mut greatest = 0;
                for one in singles(ownership) {
                    greatest = greatest.max(self.force(&one, ttl, floor).await);
                }
                self.set_counters(ownership, |_| greatest, &self.counters(ownership).await);
                return Ok(Acquisition::Granted { counter: greatest });
            }
            Wrong::AcquireReentersForTheOwner if self.holds_all(ownership).await => {
                self.memory().extend(ownership, ttl).await?;
                let counter = self.counters(ownership).await.into_iter().max().unwrap_or(0);
                return Ok(Acquisition::Granted { counter });
            }
            Wrong::CounterIsResetOnExpiry => {
                for one in singles(ownership) {
                    let name = one.resources().to_string();
                    if self.is_unreleased(&name) && self.as_holder(&one).is_none() {
                        self.set_counters(&one, |_| 0, &[0]);
                    }
                }
                self.server.unreleased.lock().unwrap().extend(names());
            }
            _ => {}
        }
        let answer = self.acquired(ownership, ttl, floor).await?;
        if self.is(Wrong::AcquireIsRepeatedAfterACut) {
            self.server.was_cut.store(false, Ordering::Relaxed);
            yield_now().await;
            if self.server.was_cut.swap(false, Ordering::Relaxed) {
                return self.acquired(ownership, ttl, floor).await;
            }
        }
        match (self.server.wrong, answer) {
            (Wrong::RefusalCounts, Acquisition::Held(held)) => {
                self.set_counters(ownership, |old| old + 1, &self.counters(ownership).await);
                Ok(Acquisition::Held(held))
            }
            (Wrong::RefusalProlongs, Acquisition::Held(held)) => {
                for one in singles(ownership) {
                    if let Some(holder) = self.as_holder(&one) {
                        self.memory().extend(&holder, ttl).await?;
                    }
                }
                Ok(Acquisition::Held(held))
            }
            (Wrong::RefusalBlamesTheOneWhoAsks, Acquisition::Held(held)) => {
                let holder = Holder::Owner(ownership.owner().fingerprint());
                Ok(Acquisition::Held(HeldBy { holder, ..held }))
            }
            (_, answer) => Ok(answer),
        }
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        self.arrive().await?;
        let ownership = &self.filed(ownership);
        match self.server.wrong {
            Wrong::RaiseIsIgnored if self.holds_all(ownership).await => {
                Ok(Raising::At(self.counters(ownership).await.into_iter().fold(to, u64::max)))
            }
            Wrong::RaiseOfSeveralWithPauses if self.holds_all(ownership).await => {
                let mut greatest = to;
                for one in singles(ownership) {
                    if let Raising::At(counter) = self.memory().raise(&one, to).await? {
                        greatest = greatest.max(counter);
                    }
                    yield_now().await;
                }
                Ok(Raising::At(greatest))
            }
            Wrong::RaiseLowers if self.holds_all(ownership).await => {
                self.set_counters(ownership, |_| to, &self.counters(ownership).await);
                Ok(Raising::At(to))
            }
            Wrong::RaiseOfAnybody => {
                let old = self.counters(ownership).await;
                self.set_counters(ownership, |old| old.max(to), &old);
                Ok(Raising::At(old.into_iter().fold(to, u64::max)))
            }
            Wrong::RaiseOfOneOfSeveral => {
                let mut answer = Raising::NotOwner;
                for one in singles(ownership) {
                    if let raised @ Raising::At(_) = self.memory().raise(&one, to).await? {
                        answer = raised;
                    }
                }
                Ok(answer)
            }
            Wrong::RaiseChecksThenRaises => {
                if !self.holds_all(ownership).await {
                    return Ok(Raising::NotOwner);
                }
                for _ in 0..3 {
                    yield_now().await;
                }
                let old = self.counters(ownership).await;
                self.set_counters(ownership, |old| old.max(to), &old);
                Ok(Raising::At(old.into_iter().fold(to, u64::max)))
            }
            Wrong::RaiseAnswersWhatWasAsked => match self.memory().raise(ownership, to).await? {
                Raising::At(_) => Ok(Raising::At(to)),
                Raising::NotOwner => Ok(Raising::NotOwner),
            },
            Wrong::ExpiredIsStillTheOwners if self.is_unreleased(ownership.owner().expose()) => {
                let old = self.counters(ownership).await;
                self.set_counters(ownership, |old| old.max(to), &old);
                Ok(Raising::At(old.into_iter().fold(to, u64::max)))
            }
            _ => self.memory().raise(ownership, to).await,
        }
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        self.arrive().await?;
        let ownership = &self.filed(ownership);
        match self.server.wrong {
            Wrong::ExtensionRevives => match self.memory().extend(ownership, ttl).await? {
                Extension::Gone => match self.memory().acquire(ownership, ttl, 0).await? {
                    Acquisition::Granted { .. } => Ok(Extension::Extended),
                    Acquisition::Held(_) => Ok(Extension::Gone),
                },
                answer => Ok(answer),
            },
            Wrong::ExtensionTakesAnew if self.holds_all(ownership).await => {
                let counters = self.counters(ownership).await;
                self.memory().release(ownership).await?;
                yield_now().await;
                self.memory().acquire(ownership, ttl, 0).await?;
                self.set_counters(ownership, |old| old, &counters);
                Ok(Extension::Extended)
            }
            Wrong::ExtensionAdds => {
                let rest = self.remaining(&singles(ownership)[0]).unwrap_or_default();
                self.memory().extend(ownership, Ttl::new(ttl.as_duration() + rest).unwrap()).await
            }
            Wrong::ExtensionIsIgnored if self.holds_all(ownership).await => Ok(Extension::Extended),
            Wrong::ExtensionOfAnybody => {
                for one in singles(ownership) {
                    let Some(holder) = self.as_holder(&one) else { return Ok(Extension::Gone) };
                    self.memory().extend(&holder, ttl).await?;
                }
                Ok(Extension::Extended)
            }
            Wrong::ExtensionOfOneOfSeveral => {
                let answer = self.memory().extend(ownership, ttl).await?;
                for one in singles(ownership) {
                    self.memory().extend(&one, ttl).await?;
                }
                Ok(answer)
            }
            Wrong::ExtensionChecksThenExtends => {
                let answer = match self.holds_all(ownership).await {
                    true => Extension::Extended,
                    false => return self.memory().extend(ownership, ttl).await,
                };
                for _ in 0..3 {
                    yield_now().await;
                }
                for one in singles(ownership) {
                    if let Some(holder) = self.as_holder(&one) {
                        self.memory().extend(&holder, ttl).await?;
                    }
                }
                Ok(answer)
            }
            Wrong::ExtensionCounts => {
                self.set_counters(ownership, |old| old + 1, &self.counters(ownership).await);
                self.memory().extend(ownership, ttl).await
            }
            _ => self.memory().extend(ownership, ttl).await,
        }
    }

    async fn extend_many(&self, leases: &[(&Ownership, Ttl)]) -> Result<Vec<Extension>, NodeError> {
        let mut extensions = Vec::with_capacity(leases.len());
        for (ownership, ttl) in leases {
            extensions.push(self.extend(ownership, *ttl).await?);
        }
        if self.is(Wrong::ExtensionsInAnotherOrder) {
            extensions.sort_by_key(|extension| *extension == Extension::Extended);
        }
        Ok(extensions)
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        self.arrive().await?;
        let ownership = &self.filed(ownership);
        match self.server.wrong {
            Wrong::CounterIsResetOnRelease => {
                let answer = self.memory().release(ownership).await?;
                if answer == Releasing::Released {
                    self.set_counters(ownership, |_| 0, &self.counters(ownership).await);
                }
                return Ok(answer);
            }
            Wrong::ExpiredIsStillTheOwners => {
                self.server.unreleased.lock().unwrap().remove(ownership.owner().expose());
            }
            Wrong::CounterIsResetOnExpiry => {
                for resource in ownership.resources() {
                    self.server.unreleased.lock().unwrap().remove(resource.name());
                }
            }
            Wrong::ReleaseOfAnybody => {
                for one in singles(ownership) {
                    if let Some(holder) = self.as_holder(&one) {
                        self.memory().release(&holder).await?;
                    }
                }
                return Ok(Releasing::Released);
            }
            Wrong::ReleaseChecksThenFrees if self.holds_all(ownership).await => {
                for _ in 0..3 {
                    yield_now().await;
                }
                for one in singles(ownership) {
                    if let Some(holder) = self.as_holder(&one) {
                        self.memory().release(&holder).await?;
                    }
                }
                return Ok(Releasing::Released);
            }
            Wrong::ReleaseOfAllOrNothing if !self.holds_all(ownership).await => {
                let none =
                    Ownership::new(ownership.prefix().clone(), ownership.resources().clone(), Owner::assume("-"));
                return self.memory().release(&none).await;
            }
            Wrong::ReleaseOfWhatIsGoneFails => {
                return match self.memory().release(ownership).await? {
                    Releasing::Gone => Err(NodeError::protocol("there was nothing to release")),
                    answer => Ok(answer),
                };
            }
            Wrong::ReleaseIsLeftToTheTtl if self.holds_all(ownership).await => return Ok(Releasing::Released),
            _ => {}
        }
        self.memory().release(ownership).await
    }

    async fn listen(&self, prefix: &KeyPrefix, listener: &Listener) -> Result<(), NodeError> {
        self.memory().listen(prefix, listener).await
    }

    async fn acquire_in_line(
        &self,
        ownership: &Ownership,
        ttl: Ttl,
        floor: u64,
        place: &Place,
    ) -> Result<Acquisition, NodeError> {
        match self.server.wrong {
            // Whoever comes last is served first: all others are put behind it.
            Wrong::LineCallsTheLast if place.manner == Manner::Yield => {
                let line = {
                    let mut line = self.server.line.lock().unwrap();
                    line.retain(|other| other.listener == place.listener);
                    if !line.contains(place) {
                        line.insert(0, place.clone());
                    }
                    line.clone()
                };
                for other in &line {
                    self.memory().leave_line(ownership.prefix(), ownership.resources(), other).await?;
                }
                let mut answer = Ok(Acquisition::Granted { counter: 0 });
                for other in &line {
                    let asked = self.memory().acquire_in_line(ownership, ttl, floor, other).await;
                    if other == place {
                        answer = asked;
                    }
                }
                answer
            }
            Wrong::LineForgetsWhoeverWasGranted => {
                let answer = self.memory().acquire_in_line(ownership, ttl, floor, place).await?;
                if let Acquisition::Granted { .. } = answer {
                    self.memory().leave_line(ownership.prefix(), ownership.resources(), place).await?;
                }
                Ok(answer)
            }
            Wrong::LineIsNotHeeded => {
                let answer = self.memory().acquire(ownership, ttl, floor).await?;
                if let Acquisition::Held(_) = answer {
                    return self.memory().acquire_in_line(ownership, ttl, floor, place).await;
                }
                self.memory().leave_line(ownership.prefix(), ownership.resources(), place).await?;
                Ok(answer)
            }
            _ => self.memory().acquire_in_line(ownership, ttl, floor, place).await,
        }
    }

    async fn leave_line(&self, prefix: &KeyPrefix, resources: &Resources, place: &Place) -> Result<(), NodeError> {
        if self.is(Wrong::LineForgetsACallOnLeaving) {
            return Ok(());
        }
        self.memory().leave_line(prefix, resources, place).await
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let mut seen = self.memory().inspect(prefix, resources).await?;
        if self.is(Wrong::InspectionGuesses) {
            seen.iter_mut().for_each(|one| one.counter = one.counter.map(|counter| counter - 1));
        }
        Ok(seen)
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let mut health = self.memory().health().await?;
        health.primary = Some(!self.is(Wrong::HealthIsThatOfAReplica));
        Ok(health)
    }

    fn order(&self) -> Option<u64> {
        Some(0)
    }

    fn identity(&self) -> Option<Arc<str>> {
        let of_connection = if self.is(Wrong::IdentityIsThatOfTheConnection) { self.connection } else { 0 };
        Some(of_connection.to_string().into())
    }

    fn unix_time(&self) -> Option<Duration> {
        if self.is(Wrong::UnixTimeStandsStill) { Some(Duration::from_secs(1)) } else { self.memory().unix_time() }
    }
}
