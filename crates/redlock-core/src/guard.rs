//! What a won attempt hands out: the token, the time for which it is valid, and the duty to release.

use crate::client::Client;
use crate::clock::Moment;
use crate::error::{ExtendError, LossReason, NotEnoughValidity};
use crate::fan_out::{Answer, FanOut, Reply};
use crate::hold::{Hold, HoldState};
use crate::line::Turn;
use crate::node::{NodeError, Releasing};
use crate::owner::Owner;
use crate::renewal::{self, Patience};
use crate::report::Report;
use crate::resource::Resources;
use crate::settings::Terms;
use crate::tally::quorum_of;
use crate::telemetry;
use crate::token::{FencingToken, Grant};
use crate::undertaking::Undertaking;
use crate::watchdog::KeepAlive;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

/// A held lock.
///
/// The token and the resources ([`AsRef<Grant>`]) are what the storage needs. Everything here is remembered, nothing is
/// looked up: a holder that wakes up late finds its own old token, never its successor's.
///
/// # Dropping is not releasing
///
/// Dropping a guard, also while unwinding from a panic, hands the release over to the client's background task and
/// returns at once, from any context. Inside a runtime the nodes are told before that, as far as they can be without waiting, so
/// that it does no harm if the runtime ends next. It tells nobody what came of it. Where the client's runtime has been shut down,
/// or the program ends without dropping it, the lock stays until its ttl. [`Guard::release`] waits and tells;
/// [`Redlock::settled`](crate::Redlock::settled) waits for what goes on in the background.
///
/// A guard that is forgotten ([`std::mem::forget`]) is never released: the lock ends with its ttl or, if it is kept
/// alive, with the ceiling of [`KeepAlive::max_hold`] and one ttl.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    client: Arc<Client>,
    hold: Arc<Hold>,
    report: Report,
    turn: Option<Turn>,
    released: bool,
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
        let hold = Arc::new(Hold::new(undertaking, grant, valid_until, terms, Arc::clone(&client.clock)));
        Self { client, hold, report, turn: None, released: false }
    }

    /// From now on those who wait in this process wait for this guard.
    pub(crate) fn take_turn(&mut self, turn: Turn) {
        turn.holding(&self.hold);
        self.turn = Some(turn);
    }

    /// What the storage needs: the resources and their token.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        self.hold.grant()
    }

    /// The fencing token, as it was minted with this grant. Extending does not change it.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        if mutant!("token looked up when it is needed") {
            return self.client.highest_tokens.highest(self.resources()).unwrap_or(FencingToken::MIN);
        }
        self.grant().token()
    }

    /// The resources that are held.
    #[must_use]
    pub fn resources(&self) -> &Resources {
        self.grant().resources()
    }

    /// The value under the lock keys. A secret: whoever knows it can release the lock.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.hold.undertaking().ownership().owner()
    }

    /// What every node said when the lock was granted.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// How long the lock may still be relied on by this holder's own clock; zero once that is over or the lock is known
    /// to be lost. No request is made.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Held, uncertain, or lost. No request is made.
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.hold.state()
    }

    /// Whether the lock may still be relied on. No request is made.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.state().is_held()
    }

    /// Gates work that needs more time than may be left. No request is made.
    ///
    /// # Errors
    /// [`NotEnoughValidity`] unless the lock may be relied on for longer than `required` from now.
    pub fn require(&self, required: Duration) -> Result<Duration, NotEnoughValidity> {
        require(&self.hold, required)
    }

    /// A handle to this lock for the work that is done under it: everything but the right to give it back.
    #[must_use]
    pub fn held(&self) -> Held {
        Held { hold: Arc::clone(&self.hold), client: Arc::downgrade(&self.client) }
    }

    /// Keeps the lock extended in the background, for as long as the guard is there and the ceiling allows.
    ///
    /// Nothing else changes: [`Guard::lost`] tells when it failed, and releasing or dropping the guard ends it. Goes on on
    /// the runtime on which the lock was acquired, or another one that is there if that has ended. Called again, it
    /// replaces what was asked for before.
    pub fn keep_alive(&self, keep_alive: KeepAlive) {
        self.client.watchdog.keep(&self.client, &self.hold, keep_alive);
    }

    /// Resolves once the lock is lost, no later than the end of its validity on a clock that counts suspend.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LossReason {
        self.hold.lost().await
    }

    /// A token that is cancelled once the lock is lost, for work that cannot be dropped and looks for itself.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        self.held().lost_token()
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
        self.extend_on(self.hold.terms()).await
    }

    /// Extends the lock to `ttl`, counted from now, and returns the new validity. A shorter ttl shortens the validity at
    /// once, whatever the nodes answer. Keeping alive goes on with the ttl that was last confirmed.
    ///
    /// # Errors
    /// As [`Guard::extend`], and [`ExtendError::Invalid`] for a ttl that leaves no useful validity.
    ///
    /// # Cancel safety
    /// As [`Guard::extend`].
    pub async fn extend_to(&self, ttl: Duration) -> Result<Duration, ExtendError> {
        let terms = self.client.settings.terms(ttl, self.hold.terms().min_validity)?;
        self.extend_on(terms).await
    }

    async fn extend_on(&self, terms: Terms) -> Result<Duration, ExtendError> {
        let token = self.token().get();
        let span = tracing::debug_span!(telemetry::EXTEND_SPAN, token, outcome = tracing::field::Empty);
        let extended = async {
            let _one_at_a_time = self.hold.extending.lock().await;
            let hold = (Arc::clone(&self.hold), terms);
            let mut results = renewal::renew(&self.client, vec![hold], Patience::UntilDecided).await;
            results.pop().expect("one result for one hold")
        };
        let result = extended.instrument(span.clone()).await;
        span.record("outcome", renewal::outcome(&result));
        result
    }

    /// Releases the lock and tells what came of it, as soon as a quorum has answered or the per-node deadline passes.
    /// Nodes that have not answered by then are told in the background.
    ///
    /// Never fails: a lock that could not be released everywhere ends with its ttl.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background.
    pub async fn release(mut self) -> Release {
        let token = self.token().get();
        let span = tracing::debug_span!(telemetry::RELEASE_SPAN, token, outcome = tracing::field::Empty);
        let stays = self.stays_after_its_loss();
        self.hold.release();
        let release = if stays { self.leave() } else { self.ask_to_release().instrument(span.clone()).await };
        span.record("outcome", release.outcome.as_str());
        metrics::counter!(telemetry::RELEASES, "outcome" => release.outcome.as_str()).increment(1);
        release
    }

    /// Whether the lock was lost and others are to be kept out for a while all the same: then nodes keep it to its end.
    fn stays_after_its_loss(&self) -> bool {
        let terms = self.hold.terms();
        terms.ttl != terms.lease && matches!(self.hold.state(), HoldState::Lost(_))
    }

    /// Leaves a lost lock to the nodes, for the lock delay.
    fn leave(&mut self) -> Release {
        self.released = true;
        self.turn = None;
        let names = self.client.lanes.iter().map(|lane| lane.name());
        let nodes = names.map(|name| (name, NodeRelease::AlreadyGone)).collect();
        Release { outcome: ReleaseOutcome::AlreadyGone, nodes }
    }

    async fn ask_to_release(&mut self) -> Release {
        let undertaking = Arc::clone(self.hold.undertaking());
        let nodes = self.client.lanes.len();
        let mut answers: Vec<NodeRelease> = (0..nodes).map(|_| NodeRelease::NotThere).collect();
        let mut fan_out = FanOut::new(Arc::clone(&self.client.keeper), self.hold.terms().node_timeout, nodes);
        for (node, release) in self.client.releases(&undertaking, self.turn.take()) {
            answers[node] = NodeRelease::NotHeard;
            fan_out.push(release);
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
                && let Some(error) = undertaking.release_error(node)
            {
                *answer = NodeRelease::Failed(error);
            }
        }
        let outcome = ReleaseOutcome::decided(&answers).unwrap_or(ReleaseOutcome::Partly);
        let names = self.client.lanes.iter().map(|lane| lane.name());
        Release { outcome, nodes: names.zip(answers).collect() }
    }
}

fn hear(answers: &mut [NodeRelease], reply: Reply) {
    let Answer::Release(answer) = reply.answer else { unreachable!("only releases were asked for") };
    answers[reply.node] = match answer {
        Ok(Releasing::Released | Releasing::PassedOn) => NodeRelease::Released,
        Ok(Releasing::Gone | Releasing::NotOwner) => NodeRelease::AlreadyGone,
        Err(error) => NodeRelease::Failed(error),
    };
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released && !mutant!("guard dropped without release") {
            metrics::counter!(telemetry::DROPPED_GUARDS).increment(1);
            let stays = self.stays_after_its_loss();
            self.hold.release();
            if stays {
                return;
            }
            self.client.release_in_background(self.hold.undertaking(), self.turn.take());
        }
    }
}

impl AsRef<Grant> for Guard {
    fn as_ref(&self) -> &Grant {
        self.grant()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("resources", self.resources())
            .field("token", &self.token())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// A handle to a held lock for the work that is done under it. Cheap to clone; says what it is and whether it is still
/// held, and cannot give it back.
#[derive(Clone)]
pub struct Held {
    hold: Arc<Hold>,
    client: Weak<Client>,
}

impl Held {
    /// What the storage needs: the resources and their token.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        self.hold.grant()
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.grant().token()
    }

    /// How long the lock may still be relied on; zero once it is lost or given back.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Held, uncertain, lost, or given back by the guard.
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.hold.state()
    }

    /// Whether the lock may still be relied on.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.state().is_held()
    }

    /// Gates work that needs more time than may be left; see [`Guard::require`].
    ///
    /// # Errors
    /// As there.
    pub fn require(&self, required: Duration) -> Result<Duration, NotEnoughValidity> {
        require(&self.hold, required)
    }

    /// Resolves once the lock is lost; see [`Guard::lost`]. For a lock that the guard gave back it resolves at the end of
    /// what was its validity, when nobody can rely on it any more.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LossReason {
        self.hold.lost().await
    }

    /// A token that is cancelled once the lock is lost, no later than the end of its validity. A lock that the guard gave
    /// back is not lost.
    #[must_use]
    pub fn lost_token(&self) -> CancellationToken {
        if let Some(client) = self.client.upgrade() {
            client.watchdog.watch(&client, &self.hold);
        }
        self.hold.lost_token()
    }
}

impl AsRef<Grant> for Held {
    fn as_ref(&self) -> &Grant {
        self.grant()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("grant", self.grant()).field("state", &self.state()).finish()
    }
}

fn require(hold: &Hold, required: Duration) -> Result<Duration, NotEnoughValidity> {
    let remaining = hold.remaining();
    if required < remaining { Ok(remaining) } else { Err(NotEnoughValidity { remaining, required }) }
}

/// What came of a release.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Release {
    /// The sum of it.
    pub outcome: ReleaseOutcome,
    /// Each node's name and its part.
    pub nodes: Vec<(Arc<str>, NodeRelease)>,
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
