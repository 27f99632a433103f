//! The client: drives attempts over its nodes, and decides whether and when to try again.
//!
//! ```text
//!  acquire(resources)
//!     │  one attempt: ask all nodes at once ─▶ attempt.rs says: wait / raise / won / lost
//!     │     won, and validity left ──▶ a guard
//!     │     anything else, or the future dropped ──▶ every node that may hold something is told, in the background
//!     └─ contended, unavailable, too slow: pause, and again while the time to wait lasts
//! ```
//!
//! Every path that does not return a guard undoes what it did, because an [`Undo`] is armed before the first request and
//! disarmed only by the guard that takes its place.

use crate::attempt::{AcquireVote, Attempt, RaiseVote, Step};
use crate::builder::RedlockBuilder;
use crate::clock::{Clock, Moment};
use crate::error::{AcquireError, SettingsError};
use crate::fan_out::{self, Answer, FanOut, Reply, Taking};
use crate::floor::{self, HighestTokens};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::lane::{self, Lane, Twins};
use crate::node::{Acquisition, Inspection, LockNode, NodeError, Raising, Refusal};
use crate::owner::{Owner, Ownership, Randomness};
use crate::report::{FailureClass, NodeOutcome, NodeReport, Report};
use crate::resource::{IntoResources, ResourceError, Resources, Ttl};
use crate::settings::{NODE_TIMEOUT, Retry, Settings, Terms};
use crate::telemetry;
use crate::token::{FencingToken, Grant};
use crate::undertaking::Undertaking;
use crate::validity::whole_validity;
use crate::watchdog::Watchdog;
use futures_util::future::{Either, select};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument as _;

/// A client of a set of nodes. Cheap to clone; clones share connections and the background task.
///
/// ```
/// # async fn example(nodes: Vec<std::sync::Arc<dyn redlock_core::LockNode>>) -> Result<(), Box<dyn std::error::Error>> {
/// use redlock_core::Redlock;
/// use std::time::Duration;
///
/// let redlock = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(10)).build()?;
/// let guard = redlock.acquire("orders/42").await?;
/// println!("work under token {} for at most {:?}", guard.token(), guard.remaining());
/// guard.release().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Redlock {
    client: Arc<Client>,
}

pub(crate) struct Client {
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) settings: Settings,
    pub(crate) ttl: Ttl,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) randomness: Arc<dyn Randomness>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) highest_tokens: HighestTokens,
}

impl Redlock {
    /// Begins the settings of a client.
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::new()
    }

    pub(crate) fn new(client: Client) -> Self {
        Self { client: Arc::new(client) }
    }

    /// Makes one attempt to lock `resources`: a name, or a list of names that are locked together or not at all.
    ///
    /// With a quorum reachable and nobody else asking this takes one round trip to the fastest quorum.
    ///
    /// # Errors
    /// [`AcquireError`], by what to do next. Whatever the attempt had taken is being given back in the background.
    ///
    /// # Cancel safety
    /// If the future is dropped, everything the attempt may have taken is given back in the background.
    ///
    /// # Panics
    /// Outside of a tokio runtime with its timer enabled. Programs without one use the feature `blocking`.
    pub async fn try_acquire(&self, resources: impl IntoResources) -> Result<Guard, AcquireError> {
        self.request(resources).try_acquire().await
    }

    /// Locks `resources`, waiting for them as long as the settings allow.
    ///
    /// # Errors
    /// [`AcquireError`], by what to do next; [`AcquireError::TimedOut`] with the last failure once the wait is over.
    ///
    /// # Cancel safety
    /// If the future is dropped, everything that was taken is given back in the background.
    ///
    /// # Panics
    /// As [`Redlock::try_acquire`].
    pub async fn acquire(&self, resources: impl IntoResources) -> Result<Guard, AcquireError> {
        self.request(resources).acquire().await
    }

    /// Begins a request that differs from the client's settings: another ttl, another time to wait.
    pub fn request(&self, resources: impl IntoResources) -> Request<'_> {
        Request {
            redlock: self,
            resources: resources.into_resources(),
            ttl: self.client.ttl.as_duration(),
            retry: self.client.settings.retry,
            min_validity: self.client.settings.min_validity,
        }
    }

    /// What each node says of `resources`: who holds them, for how long, and where their counters stand. All nodes are
    /// asked at once; one that has not answered within the per-node deadline is told as such. Changes nothing.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, resources: impl Into<Resources>) -> Vec<(String, Result<Vec<Inspection>, NodeError>)> {
        let client = &self.client;
        let resources = resources.into();
        let node_timeout = client.settings.node_timeout.unwrap_or(NODE_TIMEOUT);
        let mut fan_out = FanOut::new(Arc::clone(&client.keeper), node_timeout);
        let timeout = NodeError::Timeout { after: node_timeout };
        let named = |lane: &Arc<Lane>| (lane.node().name().to_owned(), Err(timeout.clone()));
        let mut answers: Vec<_> = client.lanes.iter().map(named).collect();
        for (node, pass) in lane::admit_to_all(&client.lanes, node_timeout).into_iter().enumerate() {
            match pass {
                Ok(pass) => fan_out.push(fan_out::inspect(pass, node, &client.settings.prefix, &resources)),
                Err(error) => answers[node].1 = Err(error),
            }
        }
        while let Some(reply) = fan_out.next().await {
            let Answer::Inspect(answer) = reply.answer else { unreachable!("only inspections were asked for") };
            answers[reply.node].1 = answer;
        }
        answers
    }

    #[cfg(feature = "blocking")]
    pub(crate) fn retry(&self) -> Retry {
        self.client.settings.retry
    }

    /// The nodes, in the order in which they were configured.
    pub fn nodes(&self) -> impl Iterator<Item = &dyn LockNode> {
        self.client.lanes.iter().map(|lane| lane.node())
    }

    /// Resolves once everything that goes on in the background has ended: releases of dropped guards, undone attempts,
    /// late answers. Worth awaiting, with a timeout, before a program ends.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn settled(&self) {
        self.client.keeper.settled().await;
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("lanes", &self.client.lanes).field("ttl", &self.client.ttl).finish()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.watchdog.stop();
        self.keeper.close();
    }
}

/// One request, with settings of its own.
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited with `acquire` or `try_acquire`"]
pub struct Request<'a> {
    redlock: &'a Redlock,
    resources: Result<Resources, ResourceError>,
    ttl: Duration,
    retry: Retry,
    min_validity: Duration,
}

impl Request<'_> {
    /// How long the lock lives on its nodes when nobody extends it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// The longest time to wait; zero for a single attempt.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.retry.wait = wait;
        self
    }

    /// When and how often to try again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The least validity that the grant must have left when it is handed out.
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.min_validity = min_validity;
        self
    }

    /// Makes one attempt; see [`Redlock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn try_acquire(self) -> Result<Guard, AcquireError> {
        self.wait(Duration::ZERO).acquire().await
    }

    /// Waits for the lock; see [`Redlock::acquire`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        self.acquire_unless(std::future::pending()).await
    }

    /// Waits for the lock until `cancelled` resolves, which ends the wait at once with [`AcquireError::Cancelled`].
    ///
    /// # Errors
    /// As at [`Redlock::acquire`].
    ///
    /// # Cancel safety
    /// As at [`Redlock::acquire`].
    pub async fn acquire_unless(self, cancelled: impl Future<Output = ()> + Send) -> Result<Guard, AcquireError> {
        let resources = self.resources.map_err(SettingsError::from)?;
        let client = &self.redlock.client;
        let terms = client.settings.terms(self.ttl, self.min_validity)?;
        if self.retry.attempts == 0 {
            return Err(SettingsError::NoAttempts.into());
        }
        let span = tracing::debug_span!(
            telemetry::ACQUIRE_SPAN,
            %resources,
            attempts = tracing::field::Empty,
            outcome = tracing::field::Empty,
            token = tracing::field::Empty,
        );
        let mut attempts = 0;
        let result = {
            let wait = client.wait_for(&resources, terms, self.retry, &mut attempts).instrument(span.clone());
            match select(pin!(wait), pin!(cancelled)).await {
                Either::Left((result, _)) => Some(result),
                Either::Right(_) => None,
            }
        };
        let result = result.unwrap_or(Err(AcquireError::Cancelled { attempts }));
        span.record("attempts", attempts);
        match &result {
            Ok(guard) => span.record("outcome", "granted").record("token", guard.token().get()),
            Err(error) => span.record("outcome", error.class()),
        };
        result
    }
}

impl Client {
    /// Attempts until one is won or the patience of `retry` is at an end.
    async fn wait_for(
        self: &Arc<Self>,
        resources: &Resources,
        terms: Terms,
        retry: Retry,
        attempts: &mut u32,
    ) -> Result<Guard, AcquireError> {
        let began = self.clock.now();
        loop {
            let out_of_time = retry.wait <= self.clock.now().since(began);
            *attempts += 1;
            let error = match self.attempt(resources, terms).await {
                Err(error) if error.is_worth_retrying() => error,
                decided => return decided,
            };
            if retry.attempts <= *attempts || retry.wait.is_zero() {
                return Err(error);
            }
            let waited = self.clock.now().since(began);
            if out_of_time || retry.wait <= waited {
                return Err(AcquireError::TimedOut { waited, attempts: *attempts, last: Box::new(error) });
            }
            // A pause that would outlast the wait ends with it, and one last attempt is made then.
            let pause = retry.delay.saturating_add(self.random_part_of(retry.jitter));
            tokio::time::sleep(pause.min(retry.wait.saturating_sub(waited))).await;
        }
    }

    /// One attempt, with its metrics.
    async fn attempt(self: &Arc<Self>, resources: &Resources, terms: Terms) -> Result<Guard, AcquireError> {
        let result = Round::begin(self, resources, terms).run().await;
        let outcome = match &result {
            Ok(guard) => {
                metrics::histogram!(telemetry::ACQUIRE_SECONDS).record(guard.report().elapsed);
                metrics::histogram!(telemetry::VALIDITY_SECONDS).record(guard.remaining());
                "granted"
            }
            Err(error) => error.class(),
        };
        metrics::counter!(telemetry::ATTEMPTS, "outcome" => outcome).increment(1);
        result
    }

    fn undertaking(&self, resources: &Resources, ttl: Ttl, time: Option<u64>) -> Undertaking {
        let mut bytes = [0; 16];
        self.randomness.fill(&mut bytes);
        let owner = Owner::from_random_bytes(bytes);
        let ownership = Ownership::new(self.settings.prefix.clone(), resources.clone(), owner);
        let highest = self.highest_tokens.highest(resources);
        Undertaking::new(ownership, ttl, floor::floor(highest, time), self.lanes.len())
    }

    /// The nodes' time, if tokens are to be lifted to it and it is known.
    fn nodes_time(&self) -> Option<u64> {
        if !self.settings.clock_floor {
            return None;
        }
        floor::nodes_time(self.lanes.iter().map(|lane| lane.node().unix_time()))
    }

    fn random_part_of(&self, duration: Duration) -> Duration {
        let mut bytes = [0; 4];
        self.randomness.fill(&mut bytes);
        // Whoever asks for more than a year of jitter gets a year's.
        duration.min(Ttl::MAX).mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
    }
}

/// One attempt in progress.
struct Round<'a> {
    client: &'a Arc<Client>,
    /// Dropped before `undo`: what is under way is handed over before what undoes it.
    fan_out: FanOut,
    undo: Undo,
    terms: Terms,
    started: Moment,
    /// When the validity of a grant ends: fixed before anything is sent, so that no pause on the way can move it.
    valid_until: Moment,
    twins: Twins,
    /// The nodes' time was not known when the acquire was sent, as when these calls are what connects to them.
    time_is_awaited: bool,
    attempt: Attempt,
    outcomes: Vec<(NodeOutcome, Option<Duration>)>,
    raised: bool,
}

impl<'a> Round<'a> {
    fn begin(client: &'a Arc<Client>, resources: &Resources, terms: Terms) -> Self {
        // Counted from before the first request is sent: a reply's delay must shorten our validity, never the lease.
        let started = client.clock.now();
        let nodes = client.lanes.len();
        let time = client.nodes_time();
        Self {
            client,
            fan_out: FanOut::new(Arc::clone(&client.keeper), terms.node_timeout),
            undo: Undo::arm(client, client.undertaking(resources, terms.ttl, time)),
            time_is_awaited: client.settings.clock_floor && time.is_none(),
            terms,
            started,
            valid_until: started.after(whole_validity(terms.ttl, client.settings.drift)),
            twins: Twins::default(),
            attempt: Attempt::new(nodes),
            outcomes: (0..nodes).map(|_| (NodeOutcome::NotHeard, None)).collect(),
            raised: false,
        }
    }

    async fn run(mut self) -> Result<Guard, AcquireError> {
        let mut step = self.ask_all();
        loop {
            step = match step {
                Step::Won(token) => return self.won(token),
                Step::Lost => match self.failure_class() {
                    Some(class) => return Err(self.lost(class)),
                    None if self.fan_out.is_empty() => return Err(self.lost(FailureClass::Unavailable)),
                    // Lost it is; what it was lost to hangs on answers that are still to come.
                    None => self.listen().await,
                },
                // The raise is another trip, worth making only if something would be left after it.
                Step::Raise(_) if self.validity().is_none() => return Err(self.too_slow()),
                Step::Raise(to) => self.raise_all(to),
                Step::Wait => self.listen().await,
            }
        }
    }

    /// The next step after the next reply, or after the deadline.
    async fn listen(&mut self) -> Step {
        match self.fan_out.next().await {
            Some(reply) => self.hear(reply),
            None => {
                self.deadline_passed();
                Step::Lost
            }
        }
    }

    fn ask_all(&mut self) -> Step {
        let patience = self.terms.node_timeout;
        let mut step = Step::Wait;
        for (node, pass) in lane::admit_to_all(&self.client.lanes, patience).into_iter().enumerate() {
            match pass {
                Ok(pass) => {
                    let keeper = &self.client.keeper;
                    self.fan_out.push(fan_out::acquire(pass, &self.undo.undertaking, node, Taking::First, keeper));
                }
                Err(error) => {
                    self.outcomes[node].0 = NodeOutcome::Failed(error);
                    step = self.attempt.on_acquire(node, AcquireVote::Failed);
                }
            }
        }
        if step == Step::Lost {
            // Lost before anything was sent: nothing is.
            self.fan_out = FanOut::new(Arc::clone(&self.client.keeper), patience);
        }
        step
    }

    fn raise_all(&mut self, to: FencingToken) -> Step {
        self.raised = true;
        metrics::counter!(telemetry::RAISES).increment(1);
        self.fan_out.restart_deadline();
        let mut step = Step::Wait;
        for (node, pass) in lane::admit_to_all(&self.client.lanes, self.terms.node_timeout).into_iter().enumerate() {
            match pass {
                _ if !self.attempt.wants_raise(node) => {}
                Ok(pass) => self.fan_out.push(fan_out::raise(pass, &self.undo.undertaking, node, to)),
                Err(error) => {
                    self.outcomes[node].0 = NodeOutcome::Failed(error);
                    step = self.attempt.on_raise(node, to, RaiseVote::Failed);
                }
            }
        }
        step
    }

    fn hear(&mut self, reply: Reply) -> Step {
        let Reply { node, took, answer } = reply;
        if self.time_is_awaited
            && let Some(time) = self.client.nodes_time()
        {
            self.time_is_awaited = false;
            if let Ok(floor) = FencingToken::assume_granted(floor::floor(None, Some(time))) {
                self.attempt.not_below(floor);
            }
        }
        match answer {
            Answer::Acquire(answer) => {
                let (vote, outcome) = match self.one_vote_each(node, answer) {
                    Ok(Acquisition::Granted { counter }) => {
                        (AcquireVote::Granted { counter }, NodeOutcome::Granted { counter })
                    }
                    Ok(Acquisition::Held(held)) => (AcquireVote::Held, NodeOutcome::Held(held)),
                    Err(error) => (AcquireVote::Failed, NodeOutcome::Failed(error)),
                };
                self.outcomes[node] = (outcome, Some(took));
                self.attempt.on_acquire(node, vote)
            }
            Answer::Raise(to, answer) => {
                let vote = match answer {
                    Ok(Raising::At(counter)) => {
                        self.outcomes[node] = (NodeOutcome::Granted { counter }, Some(took));
                        RaiseVote::At(counter)
                    }
                    Ok(Raising::NotOwner) => {
                        if matches!(self.outcomes[node].0, NodeOutcome::Granted { .. }) {
                            self.outcomes[node] = (NodeOutcome::Lapsed, Some(took));
                        }
                        RaiseVote::NotOwner
                    }
                    Err(error) => {
                        self.outcomes[node] = (NodeOutcome::Failed(error), Some(took));
                        RaiseVote::Failed
                    }
                };
                self.attempt.on_raise(node, to, vote)
            }
            Answer::Extend(..) | Answer::Release(_) | Answer::Inspect(_) => {
                unreachable!("a round only acquires and raises")
            }
        }
    }

    /// An answer is no vote if it comes from a server that has voted already, or with a counter that cannot be a token.
    fn one_vote_each(&mut self, node: usize, answer: Result<Acquisition, NodeError>) -> Result<Acquisition, NodeError> {
        let first_of_its_server = self.twins.admit(self.client.lanes[node].node());
        match answer {
            // Asked under another name before, such a server finds our own key in the way.
            Ok(_) | Err(NodeError::Protocol(_)) if !first_of_its_server => {
                Err(NodeError::refused(Refusal::SameServer, "its server has voted already under another name"))
            }
            Ok(Acquisition::Granted { counter }) if FencingToken::assume_granted(counter).is_err() => {
                Err(NodeError::refused(Refusal::CounterBeyondTokens, format!("the counter stands at {counter}")))
            }
            answer => answer,
        }
    }

    fn deadline_passed(&mut self) {
        for (node, (outcome, _)) in self.outcomes.iter_mut().enumerate() {
            if matches!(outcome, NodeOutcome::NotHeard) || self.attempt.wants_raise(node) {
                *outcome = NodeOutcome::Failed(NodeError::Timeout { after: self.terms.node_timeout });
            }
        }
    }

    /// What is left of the validity, unless it is less than is useful.
    fn validity(&self) -> Option<Duration> {
        let left = self.valid_until.since(self.client.clock.now());
        (Duration::ZERO < left && self.terms.min_validity <= left).then_some(left)
    }

    /// Replies that came together with the deciding one belong into the report.
    fn hear_arrived(&mut self) {
        while let Some(reply) = self.fan_out.arrived() {
            self.hear(reply);
        }
    }

    fn won(mut self, token: FencingToken) -> Result<Guard, AcquireError> {
        self.hear_arrived();
        self.client.highest_tokens.remember(self.undo.undertaking.ownership().resources(), token);
        // Looked at anew, now that the token is minted.
        if self.validity().is_none() {
            return Err(self.too_slow());
        }
        metrics::histogram!(telemetry::VOTES).record(self.votes());
        let report = self.report();
        let Self { client, undo, valid_until, terms, .. } = self;
        let undertaking = undo.disarm();
        let grant = Grant::new(undertaking.ownership().resources().clone(), token);
        Ok(Guard::new(Arc::clone(client), undertaking, grant, valid_until, terms, report))
    }

    fn failure_class(&self) -> Option<FailureClass> {
        FailureClass::of(self.outcomes.iter().map(|(outcome, _)| outcome))
    }

    fn lost(mut self, class: FailureClass) -> AcquireError {
        self.hear_arrived();
        metrics::histogram!(telemetry::VOTES).record(self.votes());
        let report = Box::new(self.report());
        match class {
            FailureClass::Contended => AcquireError::Contended(report),
            FailureClass::Unavailable => AcquireError::Unavailable(report),
            FailureClass::Misconfigured => AcquireError::Misconfigured(report),
        }
    }

    fn too_slow(self) -> AcquireError {
        AcquireError::TooSlow { report: Box::new(self.report()) }
    }

    fn votes(&self) -> f64 {
        f64::from(u32::try_from(self.attempt.granted()).unwrap_or(u32::MAX))
    }

    fn report(&self) -> Report {
        let node_report = |(lane, (outcome, took)): (&Arc<Lane>, &(NodeOutcome, Option<Duration>))| NodeReport {
            node: lane.node().name().to_owned(),
            outcome: outcome.clone(),
            took: *took,
        };
        Report {
            nodes: self.client.lanes.iter().zip(&self.outcomes).map(node_report).collect(),
            elapsed: self.client.clock.now().since(self.started),
            raised: self.raised,
        }
    }
}

/// Takes back on every node what an attempt may have taken there, unless a guard takes over.
struct Undo {
    client: Arc<Client>,
    undertaking: Arc<Undertaking>,
    armed: bool,
}

impl Undo {
    fn arm(client: &Arc<Client>, undertaking: Undertaking) -> Self {
        Self { client: Arc::clone(client), undertaking: Arc::new(undertaking), armed: true }
    }

    fn disarm(mut self) -> Arc<Undertaking> {
        self.armed = false;
        Arc::clone(&self.undertaking)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.armed {
            self.client.release_in_background(&self.undertaking);
        }
    }
}

impl Client {
    /// Tells every node that may hold something of the undertaking's, without waiting for any.
    pub(crate) fn release_in_background(&self, undertaking: &Arc<Undertaking>) {
        let lanes = self.lanes.iter().enumerate();
        let releases: Vec<_> = lanes
            .filter(|(node, _)| undertaking.may_be_on(*node))
            .map(|(node, lane)| fan_out::release(lane, undertaking, node))
            .collect();
        if !releases.is_empty() {
            self.keeper.keep(releases);
        }
    }
}
