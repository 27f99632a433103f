//! What a won attempt hands out: the token, the time for which it is valid, and the duty to release.

use crate::clock::Moment;
use crate::error::{ExtendError, LossReason, NotEnoughValidity};
use crate::fan_out::{self, Answer, FanOut, Reply};
use crate::node::{Extension, NodeError, Releasing};
use crate::owner::Owner;
use crate::redlock::Client;
use crate::report::Report;
use crate::resource::{Resources, Ttl};
use crate::settings::Terms;
use crate::tally::{Decision, Tally, quorum_of};
use crate::telemetry;
use crate::token::{FencingToken, Grant};
use crate::undertaking::Undertaking;
use crate::validity::validity;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::Instrument as _;

/// A held lock.
///
/// The token and the resources ([`AsRef<Grant>`]) are what the storage needs. Everything here is remembered, nothing is
/// looked up: a holder that wakes up late finds its own old token, never its successor's.
///
/// # Dropping is not releasing
///
/// Dropping a guard, also while unwinding from a panic, hands the release over to the client's background task and
/// returns at once, from any context. It tells nobody what came of it. Where the client's runtime has been shut down, or
/// the program ends before the task has run, the lock stays until its ttl. [`Guard::release`] waits and tells;
/// [`Redlock::settled`](crate::Redlock::settled) waits for what goes on in the background.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    client: Arc<Client>,
    undertaking: Arc<Undertaking>,
    grant: Grant,
    lease: Mutex<Lease>,
    /// One extension at a time, so that the validity noted last is that of the ttl the nodes were sent last.
    extending: tokio::sync::Mutex<()>,
    terms: Terms,
    report: Report,
    released: bool,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    valid_until: Moment,
    lost: Option<LossReason>,
}

impl Guard {
    pub(crate) fn new(
        client: Arc<Client>,
        undertaking: Arc<Undertaking>,
        grant: Grant,
        valid_until: Moment,
        terms: Terms,
        report: Report,
    ) -> Self {
        let lease = Mutex::new(Lease { valid_until, lost: None });
        let extending = tokio::sync::Mutex::new(());
        Self { client, undertaking, grant, lease, extending, terms, report, released: false }
    }

    /// What the storage needs: the resources and their token.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The fencing token, as it was minted with this grant. Extending does not change it.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.grant.token()
    }

    /// The resources that are held.
    #[must_use]
    pub fn resources(&self) -> &Resources {
        self.grant.resources()
    }

    /// The value under the lock keys. A secret: whoever knows it can release the lock.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.undertaking.ownership().owner()
    }

    /// How long the lock may still be relied on by this holder's own clock; zero once that is over or the lock is known
    /// to be lost. No request is made.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let lease = self.lease();
        match lease.lost {
            Some(_) => Duration::ZERO,
            None => lease.valid_until.since(self.client.clock.now()),
        }
    }

    /// Gates work that needs more time than may be left. No request is made.
    ///
    /// # Errors
    /// [`NotEnoughValidity`] unless the lock may be relied on for longer than `required` from now.
    pub fn require(&self, required: Duration) -> Result<Duration, NotEnoughValidity> {
        let remaining = self.remaining();
        if required < remaining { Ok(remaining) } else { Err(NotEnoughValidity { remaining, required }) }
    }

    /// What every node said when the lock was granted.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Extends the lock to its whole ttl again, counted from now, and returns the new validity.
    ///
    /// # Errors
    /// [`ExtendError::Lost`] if the lock is lost; a lock whose validity is over is lost for good, and no request is made
    /// for it. [`ExtendError::Unconfirmed`] if too few nodes answered: the earlier validity stands.
    ///
    /// # Cancel safety
    /// If the future is dropped, some nodes may have been extended; the validity noted here stays the earlier one.
    pub async fn extend(&self) -> Result<Duration, ExtendError> {
        self.extend_on(self.terms).await
    }

    /// Extends the lock to `ttl`, counted from now, and returns the new validity. A shorter ttl shortens the validity at
    /// once, whatever the nodes answer.
    ///
    /// # Errors
    /// As [`Guard::extend`], and [`ExtendError::Invalid`] for a ttl that leaves no useful validity.
    ///
    /// # Cancel safety
    /// As [`Guard::extend`].
    pub async fn extend_to(&self, ttl: Duration) -> Result<Duration, ExtendError> {
        let terms = self.client.settings.terms(ttl, self.terms.min_validity)?;
        self.extend_on(terms).await
    }

    async fn extend_on(&self, terms: Terms) -> Result<Duration, ExtendError> {
        let span = tracing::debug_span!(telemetry::EXTEND_SPAN, token = self.token().get());
        let result = async {
            let _one_at_a_time = self.extending.lock().await;
            self.ask_to_extend(terms).await
        }
        .instrument(span)
        .await;
        let outcome = match &result {
            Ok(_) => "extended",
            Err(ExtendError::Lost { .. }) => "lost",
            Err(_) => "unconfirmed",
        };
        metrics::counter!(telemetry::EXTENSIONS, "outcome" => outcome).increment(1);
        result
    }

    async fn ask_to_extend(&self, terms: Terms) -> Result<Duration, ExtendError> {
        let started = self.client.clock.now();
        self.check_not_lost(started)?;
        let drift = self.client.settings.drift;
        let new_end = started.after(validity(terms.ttl, Duration::ZERO, drift).unwrap_or_default());
        // A node that executes a shorter ttl ends the lock earlier, whether or not we hear of it.
        self.shorten_to(new_end, terms.ttl);
        self.undertaking.extended_to(terms.ttl);

        let (decision, gone, failed) = self.poll_nodes(terms).await;
        let now = self.client.clock.now();
        match decision {
            Decision::Won => {
                let mut lease = self.lease();
                // Granted by a quorum, but so late that the new validity is over as well: not a reason to give up yet.
                if now < new_end {
                    lease.valid_until = new_end;
                    return Ok(new_end.since(now));
                }
            }
            _ if self.client.lanes.len() - quorum_of(self.client.lanes.len()) < gone => {
                return Err(self.lose(LossReason::NotOwner { gone, nodes: self.client.lanes.len() }));
            }
            _ => {}
        }
        self.check_not_lost(now)?;
        Err(ExtendError::Unconfirmed { remaining: self.remaining(), failed })
    }

    /// Asks every node that may hold the lock, until a quorum has extended, a quorum is out of reach because too many no
    /// longer hold it, or the deadline passes. Silence is not a refusal: it is waited for until the deadline.
    async fn poll_nodes(&self, terms: Terms) -> (Decision, usize, Vec<(String, NodeError)>) {
        let nodes = self.client.lanes.len();
        let mut tally = Tally::new(nodes);
        let mut open = vec![true; nodes];
        let mut failed: Vec<(usize, NodeError)> = Vec::new();
        let mut gone = 0;
        let mut fan_out = FanOut::new(Arc::clone(&self.client.keeper), terms.node_timeout);
        for (node, lane) in self.client.lanes.iter().enumerate() {
            match fan_out::extend(lane, &self.undertaking, node, terms.ttl, terms.node_timeout) {
                Ok(call) => fan_out.push(call),
                Err(error) => {
                    open[node] = false;
                    failed.push((node, error));
                    tally.count(node, false);
                }
            }
        }
        while tally.decision() == Decision::Pending {
            let Some(reply) = fan_out.next().await else { break };
            let Answer::Extend(answer) = reply.answer else { unreachable!("only extensions were asked for") };
            open[reply.node] = false;
            tally.count(reply.node, matches!(answer, Ok(Extension::Extended)));
            match answer {
                Ok(Extension::Extended) => {}
                Ok(Extension::Gone | Extension::NotOwner) => gone += 1,
                Err(error) => failed.push((reply.node, error)),
            }
        }
        let timeout = NodeError::Timeout { after: terms.node_timeout };
        failed.extend((0..nodes).filter(|node| open[*node]).map(|node| (node, timeout.clone())));
        let name = |(node, error): (usize, NodeError)| (self.client.lanes[node].node().name().to_owned(), error);
        (tally.decision(), gone, failed.into_iter().map(name).collect())
    }

    fn check_not_lost(&self, now: Moment) -> Result<(), ExtendError> {
        let lease = *self.lease();
        match lease.lost {
            Some(reason) => Err(ExtendError::Lost { reason }),
            None if now < lease.valid_until => Ok(()),
            None => Err(self.lose(LossReason::Expired)),
        }
    }

    fn shorten_to(&self, end: Moment, ttl: Ttl) {
        if ttl < self.undertaking.longest_ttl() {
            let mut lease = self.lease();
            lease.valid_until = lease.valid_until.min(end);
        }
    }

    fn lose(&self, reason: LossReason) -> ExtendError {
        self.lease().lost = Some(reason);
        ExtendError::Lost { reason }
    }

    fn lease(&self) -> std::sync::MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock and tells what came of it, as soon as a quorum has answered or the per-node deadline passes.
    /// Nodes that have not answered by then are told in the background.
    ///
    /// Never fails: a lock that could not be released everywhere ends with its ttl.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(mut self) -> Release {
        let span = tracing::debug_span!(telemetry::RELEASE_SPAN, token = self.token().get());
        let release = self.ask_to_release().instrument(span).await;
        metrics::counter!(telemetry::RELEASES, "outcome" => release.outcome.as_str()).increment(1);
        release
    }

    async fn ask_to_release(&mut self) -> Release {
        let nodes = self.client.lanes.len();
        let mut answers: Vec<NodeRelease> = (0..nodes).map(|_| NodeRelease::NotThere).collect();
        let mut fan_out = FanOut::new(Arc::clone(&self.client.keeper), self.terms.node_timeout);
        for (node, lane) in self.client.lanes.iter().enumerate() {
            if self.undertaking.may_be_on(node) {
                answers[node] = NodeRelease::NotHeard;
                fan_out.push(fan_out::release(lane, &self.undertaking, node));
            }
        }
        // From here on the calls are owned by the round, which hands them over if this future is dropped.
        self.released = true;
        while ReleaseOutcome::decided(&answers).is_none() {
            let Some(reply) = fan_out.next().await else { break };
            hear(&mut answers, reply);
        }
        while let Some(reply) = fan_out.arrived() {
            hear(&mut answers, reply);
        }
        for (node, answer) in answers.iter_mut().enumerate() {
            if matches!(answer, NodeRelease::NotHeard)
                && let Some(error) = self.undertaking.release_error(node)
            {
                *answer = NodeRelease::Failed(error);
            }
        }
        let outcome = ReleaseOutcome::decided(&answers).unwrap_or(ReleaseOutcome::Partly);
        let names = self.client.lanes.iter().map(|lane| lane.node().name().to_owned());
        Release { outcome, nodes: names.zip(answers).collect() }
    }
}

fn hear(answers: &mut [NodeRelease], reply: Reply) {
    let Answer::Release(answer) = reply.answer else { unreachable!("only releases were asked for") };
    answers[reply.node] = match answer {
        Ok(Releasing::Released) => NodeRelease::Released,
        Ok(Releasing::Gone | Releasing::NotOwner) => NodeRelease::AlreadyGone,
        Err(error) => NodeRelease::Failed(error),
    };
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            metrics::counter!(telemetry::DROPPED_GUARDS).increment(1);
            self.client.release_in_background(&self.undertaking);
        }
    }
}

impl AsRef<Grant> for Guard {
    fn as_ref(&self) -> &Grant {
        &self.grant
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("resources", self.resources())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// What came of a release.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Release {
    /// The sum of it.
    pub outcome: ReleaseOutcome,
    /// Each node's name and its part.
    pub nodes: Vec<(String, NodeRelease)>,
}

/// A release over all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// No node holds anything of this grant any more.
    Everywhere,
    /// A quorum has released, so others can lock at once. The rest is being told in the background.
    Quorum,
    /// Too few nodes could be reached: others may have to wait, at the longest until the ttl. Still being tried in the
    /// background.
    Partly,
    /// The lock was gone already: it had expired, or somebody broke it. Work done meanwhile may have been done twice.
    AlreadyGone,
}

impl ReleaseOutcome {
    /// What the answers amount to, once no further one can change whether a quorum is free.
    fn decided(answers: &[NodeRelease]) -> Option<Self> {
        let count = |is: fn(&NodeRelease) -> bool| answers.iter().filter(|answer| is(answer)).count();
        let released = count(|answer| matches!(answer, NodeRelease::Released));
        let gone = count(|answer| matches!(answer, NodeRelease::AlreadyGone));
        let not_there = count(|answer| matches!(answer, NodeRelease::NotThere));
        let quorum = quorum_of(answers.len());
        if quorum <= released {
            let everywhere = released + gone + not_there == answers.len();
            Some(if everywhere { Self::Everywhere } else { Self::Quorum })
        } else if 0 < gone && answers.len() < quorum + gone + not_there {
            Some(Self::AlreadyGone)
        } else {
            None
        }
    }

    /// A short word for it, for metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Everywhere => "everywhere",
            Self::Quorum => "quorum",
            Self::Partly => "partly",
            Self::AlreadyGone => "already_gone",
        }
    }
}

/// A release on one node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeRelease {
    /// It held the lock for us, and does no more.
    Released,
    /// It no longer held the lock for us.
    AlreadyGone,
    /// It never held anything of this grant, so it was not asked.
    NotThere,
    /// It could not be told yet; the attempt goes on in the background until the lock has expired by itself.
    Failed(NodeError),
    /// The matter was decided before its answer came.
    NotHeard,
}
