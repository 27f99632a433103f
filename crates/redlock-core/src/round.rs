//! One attempt in progress: asks, hears, and does what [`crate::attempt`] says.
//!
//! Every path that does not end in a guard undoes what it did, because an [`Undo`] is armed before the first request and
//! disarmed only by the guard that takes its place.

use crate::attempt::{AcquireVote, Attempt, RaiseVote, Step};
use crate::bell::Place;
use crate::client::Client;
use crate::clock::Moment;
use crate::error::AcquireError;
use crate::fan_out::{self, Answer, FanOut, Reply, Taking};
use crate::floor;
use crate::guard::Guard;
use crate::lane::{self, Lane, Pass, Twins};
use crate::node::{Acquisition, NodeError, Raising, Refusal};
use crate::report::{FailureClass, NodeOutcome, NodeReport, Report};
use crate::resource::Resources;
use crate::settings::Terms;
use crate::telemetry;
use crate::token::{FencingToken, Grant};
use crate::undertaking::Undertaking;
use std::sync::Arc;
use std::time::Duration;

/// Whom an attempt asks, and in which order.
#[derive(Clone, Debug)]
pub(crate) enum Approach {
    /// All nodes at once: nothing is known of others who want the same.
    AllAtOnce,
    /// All nodes at once, the arbiter in its line: it has called, or it is time to look around.
    Called { arbiter: usize, place: Place },
    /// The arbiter, in its line if it keeps one; then the others.
    ArbiterFirst { arbiter: usize, place: Option<Place> },
}

/// One attempt in progress.
pub(crate) struct Round<'a> {
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
    pub(crate) fn begin(client: &'a Arc<Client>, resources: &Resources, terms: Terms) -> Self {
        // Counted from before the first request is sent: a reply's delay must shorten our validity, never the lease.
        let started = client.clock.now();
        let nodes = client.lanes.len();
        let time = client.nodes_time();
        Self {
            client,
            fan_out: FanOut::new(Arc::clone(&client.keeper), terms.node_timeout, nodes),
            undo: Undo::arm(client, client.undertaking(resources, terms.lease, time)),
            time_is_awaited: client.settings.clock_floor && time.is_none(),
            terms,
            started,
            valid_until: mutant!(
                "wall clock for validity",
                started,
                Moment::from_origin(Duration::from_micros(time.unwrap_or(0)))
            )
            .after(terms.validity),
            twins: Twins::default(),
            attempt: Attempt::new(nodes),
            outcomes: (0..nodes).map(|_| (NodeOutcome::NotHeard, None)).collect(),
            raised: false,
        }
    }

    pub(crate) async fn run(mut self, approach: Approach) -> Result<Guard, AcquireError> {
        let mut step = match approach {
            Approach::AllAtOnce => self.ask_all(None),
            Approach::Called { arbiter, place } => self.ask_all(Some((arbiter, place))),
            Approach::ArbiterFirst { arbiter, place } => match self.ask_arbiter(arbiter, place).await {
                Some(step) => step,
                None => return Err(self.lost(FailureClass::Contended)),
            },
        };
        loop {
            step = match step {
                Step::Won(_) if mutant!("waits for the slow") && !self.fan_out.is_empty() => self.listen().await,
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

    /// Asks the arbiter alone, and the others only if it grants (or says nothing, so that nobody keeps order). `None` if
    /// it says that others come first: contenders that ask one node do not split the vote.
    async fn ask_arbiter(&mut self, arbiter: usize, place: Option<Place>) -> Option<Step> {
        let step = match self.client.lanes[arbiter].admit(self.terms.node_timeout) {
            Ok(pass) => {
                self.ask(pass, arbiter, place);
                let step = match self.fan_out.next().await {
                    Some(reply) => self.hear(reply),
                    None => {
                        self.outcomes[arbiter].0 = self.timed_out();
                        self.attempt.on_acquire(arbiter, AcquireVote::Failed)
                    }
                };
                if matches!(self.outcomes[arbiter].0, NodeOutcome::Held(_)) {
                    return None;
                }
                // Its answer, should it still come, is nobody's any more; and the others have their own time.
                self.fan_out =
                    FanOut::new(Arc::clone(&self.client.keeper), self.terms.node_timeout, self.client.lanes.len());
                step
            }
            Err(error) => {
                self.outcomes[arbiter].0 = NodeOutcome::Failed(error);
                self.attempt.on_acquire(arbiter, AcquireVote::Failed)
            }
        };
        // A single node has decided already.
        Some(if step == Step::Wait { self.ask_all(None) } else { step })
    }

    /// Asks all nodes that have not been asked yet, one of them in its line.
    fn ask_all(&mut self, mut in_line: Option<(usize, Place)>) -> Step {
        let patience = self.terms.node_timeout;
        let mut step = Step::Wait;
        for (node, pass) in lane::admit_to_all(&self.client.lanes, patience).into_iter().enumerate() {
            match pass {
                _ if !matches!(self.outcomes[node].0, NodeOutcome::NotHeard) => {}
                Ok(pass) => {
                    let place = in_line.take_if(|(arbiter, _)| *arbiter == node).map(|(_, place)| place);
                    self.ask(pass, node, place);
                }
                Err(error) => {
                    self.outcomes[node].0 = NodeOutcome::Failed(error);
                    step = self.attempt.on_acquire(node, AcquireVote::Failed);
                }
            }
        }
        if step == Step::Lost {
            // Lost before anything was sent: nothing is.
            self.fan_out = FanOut::new(Arc::clone(&self.client.keeper), patience, self.client.lanes.len());
        }
        step
    }

    fn ask(&mut self, pass: Pass, node: usize, place: Option<Place>) {
        let (undertaking, keeper) = (&self.undo.undertaking, &self.client.keeper);
        self.fan_out.push(fan_out::acquire(pass, undertaking, node, Taking::First, place, keeper));
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
            Answer::Extend(..) | Answer::Release(_) | Answer::Done | Answer::Inspect(_) => {
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
        for node in 0..self.outcomes.len() {
            if matches!(self.outcomes[node].0, NodeOutcome::NotHeard) || self.attempt.wants_raise(node) {
                self.outcomes[node].0 = self.timed_out();
            }
        }
    }

    fn timed_out(&self) -> NodeOutcome {
        NodeOutcome::Failed(NodeError::Timeout { after: self.terms.node_timeout })
    }

    /// What is left of the validity, unless it is less than is useful.
    fn validity(&self) -> Option<Duration> {
        let now = mutant!("elapsed ignored", self.client.clock.now(), self.started);
        let left = self.valid_until.since(now);
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
        let Self { client, undo, terms, .. } = self;
        let valid_until = mutant!(
            "validity from the last reply",
            self.valid_until,
            client.clock.now().after(terms.ttl.as_duration())
        );
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
            node: lane.name(),
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
        if self.armed && !mutant!("drop without undo") {
            self.client.release_in_background(&self.undertaking, None);
        }
    }
}
