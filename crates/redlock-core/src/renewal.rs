//! Extends one hold or many on all nodes: one call per node and some hundred holds.
//!
//! Decided per hold, as an acquire is: extended by a quorum; or lost, because so many nodes no longer hold it for us that
//! no quorum is left; or unconfirmed. The former two are noted in the hold at the reply that decides, whoever is still
//! being listened to. Silence is not a refusal. While a quorum confirms ownership, nodes that have become
//! free (restarted, flushed, or not reached by the acquire) are taken again, so that a thin majority grows; without a
//! quorum nothing is taken, so a lost lock is never brought back.

use crate::client::Client;
use crate::clock::Moment;
use crate::error::{ExtendError, LossReason};
use crate::fan_out::{self, Answer, Extended, FanOut, Reply, Taking};
use crate::hold::{Hold, HoldState};
use crate::lane::{self, Twins};
use crate::node::{Extension, NodeError};
use crate::recovery;
use crate::resource::Ttl;
use crate::settings::Terms;
use crate::tally::{Decision, Tally, quorum_of};
use crate::telemetry;
use crate::undertaking::Undertaking;
use std::sync::Arc;
use std::time::Duration;

/// Holds that are extended in one call to a node: enough that a thousand cost four calls, few enough that a server is not
/// kept from others by one of them.
const PART: usize = 256;

/// How long a renewal listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Until every hold is decided.
    UntilDecided,
    /// Until all nodes have answered or the deadline has passed, so that nodes that have become free are noticed.
    UntilHeard,
}

/// One renewal in progress.
struct Renewal<'a> {
    client: &'a Arc<Client>,
    holds: Vec<Ballot>,
    failed: Vec<Option<NodeError>>,
    twins: Twins,
    /// Per node that has answered, whether it is the first of its server.
    admitted: Vec<Option<bool>>,
}

/// One hold's votes.
struct Ballot {
    hold: Arc<Hold>,
    terms: Terms,
    new_end: Moment,
    tally: Tally,
    gone: usize,
    free: Vec<usize>,
}

/// Extends the holds, each on its terms; answers in their order. Holds that are lost already are not asked for.
///
/// *Cancel safety*: if the future is dropped, some nodes may have been extended; no validity has grown.
pub(crate) async fn renew(
    client: &Arc<Client>,
    holds: Vec<(Arc<Hold>, Terms)>,
    patience: Patience,
) -> Vec<Result<Duration, ExtendError>> {
    // Counted from before the first request.
    let started = client.clock.now();
    let mut renewal = Renewal {
        client,
        holds: holds.into_iter().map(|(hold, terms)| Ballot::new(client, hold, terms, started)).collect(),
        failed: vec![None; client.lanes.len()],
        twins: Twins::default(),
        admitted: vec![None; client.lanes.len()],
    };
    renewal.run(patience).await;
    recovery::tend(client);
    renewal.conclude()
}

/// What came of an extension, in a word.
pub(crate) fn outcome(result: &Result<Duration, ExtendError>) -> &'static str {
    match result {
        Ok(_) => "extended",
        Err(ExtendError::Lost { .. }) => "lost",
        Err(_) => "unconfirmed",
    }
}

impl Ballot {
    fn new(client: &Client, hold: Arc<Hold>, terms: Terms, started: Moment) -> Self {
        let new_end = started.after(terms.validity);
        Self { hold, terms, new_end, tally: Tally::new(client.lanes.len()), gone: 0, free: Vec::new() }
    }

    fn is_over(&self) -> bool {
        !self.hold.state().is_held()
    }

    fn count(&mut self, node: usize, answer: Option<Extended>) {
        let extension = answer.map(|answer| answer.extension);
        let relied_on = answer.is_some_and(|answer| answer.relied_on);
        self.tally.count(node, relied_on && extension == Some(Extension::Extended));
        match extension {
            Some(Extension::Gone) => {
                self.gone += 1;
                self.free.push(node);
            }
            Some(Extension::NotOwner) => self.gone += 1,
            Some(Extension::Extended) | None => {}
        }
    }

    fn is_decided(&self) -> bool {
        self.tally.decision() != Decision::Pending
    }

    /// Whether a quorum has extended, and something is left of the new validity.
    fn is_extended(&self, now: Moment) -> bool {
        (self.tally.decision() == Decision::Won || mutant!("an extension needs no quorum")) && now < self.new_end
    }

    /// Tells the hold what is certain by now; nothing that comes later changes it.
    fn settle(&self, nodes: usize, now: Moment) {
        if self.is_extended(now) {
            let end =
                mutant!("an extension counts from its answer", self.new_end, now.after(self.terms.ttl.as_duration()));
            self.hold.extended(end, self.terms);
        } else if nodes - quorum_of(nodes) < self.gone {
            self.hold.lose(LossReason::NotOwner { gone: self.gone, nodes });
        }
    }
}

impl Renewal<'_> {
    async fn run(&mut self, patience: Patience) {
        let live: Vec<usize> = (0..self.holds.len()).filter(|hold| !self.holds[*hold].is_over()).collect();
        let leases: Arc<[(Arc<Undertaking>, Ttl)]> = live
            .iter()
            .map(|hold| {
                let ballot = &self.holds[*hold];
                if ballot.hold.extending_to(ballot.new_end, ballot.terms) {
                    self.client.watchdog.look_again();
                }
                (Arc::clone(ballot.hold.undertaking()), ballot.terms.lease)
            })
            .collect();
        if live.is_empty() {
            return;
        }
        let node_timeout = self.holds.iter().map(|ballot| ballot.terms.node_timeout).max().unwrap_or_default();
        let mut fan_out = FanOut::new(Arc::clone(&self.client.keeper), node_timeout, self.client.lanes.len());
        for from in (0..live.len()).step_by(PART) {
            let part = from..live.len().min(from + PART);
            for (node, pass) in lane::admit_to_all(&self.client.lanes, node_timeout).into_iter().enumerate() {
                match pass {
                    Ok(pass) => fan_out.push(fan_out::extend(pass, node, &leases, part.clone())),
                    Err(error) => self.count(node, &live[part.clone()], Err(error)),
                }
            }
        }
        while patience == Patience::UntilHeard || !live.iter().all(|hold| self.holds[*hold].is_decided()) {
            let Some(reply) = fan_out.next().await else { break };
            self.hear(&live, reply);
        }
        while let Some(reply) = fan_out.arrived() {
            self.hear(&live, reply);
        }
    }

    fn hear(&mut self, live: &[usize], reply: Reply) {
        let Answer::Extend(part, answer) = reply.answer else { unreachable!("only extensions were asked for") };
        // A node's parts are one node's answer: it is looked at once.
        if self.admitted[reply.node].is_none() {
            self.admitted[reply.node] = Some(self.twins.admit(self.client.lanes[reply.node].node()));
        }
        self.count(reply.node, &live[part.clone()], answer);
        let now = self.client.clock.now();
        for hold in &live[part] {
            self.holds[*hold].settle(self.client.lanes.len(), now);
        }
    }

    fn count(&mut self, node: usize, holds: &[usize], answer: Result<Vec<Extended>, NodeError>) {
        let twin = self.admitted[node] == Some(false);
        match answer {
            Ok(_) if twin => {
                for hold in holds {
                    self.holds[*hold].count(node, None);
                }
            }
            Ok(extensions) => {
                for (hold, extension) in holds.iter().zip(extensions) {
                    self.holds[*hold].count(node, Some(extension));
                }
            }
            Err(error) => {
                for hold in holds {
                    self.holds[*hold].count(node, None);
                }
                self.failed[node] = Some(error);
            }
        }
    }

    fn conclude(self) -> Vec<Result<Duration, ExtendError>> {
        self.holds.iter().map(|ballot| self.conclude_one(ballot)).collect()
    }

    fn conclude_one(&self, ballot: &Ballot) -> Result<Duration, ExtendError> {
        let result = self.verdict(ballot);
        metrics::counter!(telemetry::EXTENSIONS, "outcome" => outcome(&result)).increment(1);
        result
    }

    fn verdict(&self, ballot: &Ballot) -> Result<Duration, ExtendError> {
        if ballot.is_extended(self.client.clock.now()) {
            self.take_again(ballot);
        } else {
            // Also if a quorum granted, but so late that the new validity is over as well: no reason to give up yet.
            ballot.hold.unconfirmed();
            if mutant!("a failed extension ends the lock") {
                ballot.hold.lose(LossReason::Expired);
            }
        }
        match ballot.hold.state() {
            HoldState::Lost(reason) => Err(ExtendError::Lost { reason }),
            HoldState::Held { remaining } => Ok(remaining),
            HoldState::Uncertain { remaining } => Err(ExtendError::Unconfirmed { remaining, failed: self.failures() }),
            // Given back while the renewal was under way: nobody waits for this.
            HoldState::Released => Err(ExtendError::Unconfirmed { remaining: Duration::ZERO, failed: Vec::new() }),
        }
    }

    fn failures(&self) -> Vec<(String, NodeError)> {
        let named = self.client.lanes.iter().zip(&self.failed);
        named.filter_map(|(lane, error)| Some((lane.node().name().to_owned(), error.clone()?))).collect()
    }

    /// Takes nodes that have become free for a hold that a quorum has just confirmed. The answers come in the background.
    fn take_again(&self, ballot: &Ballot) {
        for node in &ballot.free {
            let lane = &self.client.lanes[*node];
            let undertaking = ballot.hold.undertaking();
            // Under the hold's lock: either the release that follows knows of this, or this knows of the release.
            let call = ballot.hold.unless_over(|| {
                let pass = lane.admit(ballot.terms.node_timeout).ok()?;
                undertaking.acquire_sent(*node);
                Some(fan_out::acquire(pass, undertaking, *node, Taking::Again, None, &self.client.keeper))
            });
            if let Some(call) = call.flatten() {
                self.client.keeper.keep([call]);
            }
        }
    }
}
