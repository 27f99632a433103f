//! The crash-recovery guard: takes nodes back that have lost their memory, and refuses to guess when too many have.
//!
//! A node that comes back empty would vote for locks that it has forgotten, and start counting again below tokens that were
//! issued. So it stays in quarantine until the locks of before have run out, and is then told where the counters stand: its
//! base becomes the greatest mark of a quorum of the *other* nodes, each of which remembers. The marks are fetched after the
//! quarantine, never before: an attempt that was under way at the crash may still count what the node said then, and raise
//! the others. That, and the rest of the argument, is explored by the model in `crates/evidence`.
//!
//! ```text
//!  enrolled ──restarted, emptied, replaced──▶ quarantined ──longest lease + drift──▶ waits to be enrolled
//!      ▲                                                                                    │
//!      └──────── base := greatest mark of a quorum of the others ◀── the next call finds it so
//! ```
//!
//! Nothing here runs by itself: whoever is refused by a node whose quarantine is over has it enrolled in the background. When
//! fewer than a quorum remember, nobody is granted anything until somebody says where to go on from ([`Redlock::reseed`]).

use crate::client::Client;
use crate::clock::Moment;
use crate::fan_out::{Answer, Call, Reply};
use crate::lane::{Lane, Twins};
use crate::node::{Enrolment, NodeError, Service, Standing};
use crate::redlock::Redlock;
use crate::resource::KeyPrefix;
use crate::settings::NODE_TIMEOUT;
use crate::tally::quorum_of;
use crate::telemetry;
use crate::token::FencingToken;
use futures_util::future::join_all;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The least time between two tries to enroll one node; longer after one that failed.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// The least time that a node is given to say how it stands; a few round trips, and connecting.
const PATIENCE_MIN: Duration = Duration::from_millis(500);

/// When each node was last tried to be enrolled, and whether that failed.
#[derive(Clone, Debug)]
pub(crate) struct Recovery(Arc<Mutex<Vec<Tried>>>);

#[derive(Clone, Copy, Default, Debug)]
struct Tried {
    at: Option<Moment>,
    failed: bool,
}

impl Recovery {
    pub(crate) fn new(nodes: usize) -> Self {
        Self(Arc::new(Mutex::new(vec![Tried::default(); nodes])))
    }

    /// Whether it is time to try a node (again).
    fn is_due(&self, node: usize, now: Moment) -> bool {
        let tried = &mut self.tried()[node];
        let pause = if tried.failed { PAUSE.1 } else { PAUSE.0 };
        let due = tried.at.is_none_or(|at| pause <= now.since(at));
        if due {
            tried.at = Some(now);
        }
        due
    }

    /// Notes how it went. Says whether that is news.
    fn went(&self, node: usize, failed: bool) -> bool {
        std::mem::replace(&mut self.tried()[node].failed, failed) != failed
    }

    fn tried(&self) -> MutexGuard<'_, Vec<Tried>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has every node enrolled, in the background, that has said that it waits for that; however late its answer came.
pub(crate) fn tend(client: &Arc<Client>) {
    let Some(quarantine) = client.settings.quarantine() else { return };
    for (node, lane) in client.lanes.iter().enumerate() {
        if lane.began_to_wait() && client.recovery.is_due(node, client.clock.now()) {
            let (lanes, prefix) = (client.lanes.clone(), client.settings.prefix.clone());
            let recovery = client.recovery.clone();
            client.keeper.keep([re_enroll(lanes, node, prefix, quarantine, patience(client), recovery)]);
        }
    }
}

fn patience(client: &Client) -> Duration {
    client.settings.node_timeout.unwrap_or(NODE_TIMEOUT).max(PATIENCE_MIN)
}

fn re_enroll(
    lanes: Vec<Arc<Lane>>,
    node: usize,
    prefix: KeyPrefix,
    quarantine: Duration,
    patience: Duration,
    recovery: Recovery,
) -> Call {
    Box::pin(async move {
        let name = lanes[node].name();
        let enrolled = enroll_from_others(&lanes, node, &prefix, quarantine, patience).await;
        let outcome = match &enrolled {
            Ok(Standing { service: Service::Enrolled, base, .. }) => {
                recovery.went(node, false);
                tracing::info!(node = &*name, base, "a node that had lost its memory is enrolled again");
                "enrolled"
            }
            Ok(Standing { service: Service::Quarantined { .. }, .. }) => "quarantined",
            Err(error) => {
                let news = recovery.went(node, true);
                let error: &dyn std::error::Error = error;
                if news {
                    tracing::warn!(node = &*name, error, "a node that has lost its memory cannot be enrolled yet");
                } else {
                    tracing::debug!(node = &*name, error, "a node that has lost its memory still cannot be enrolled");
                }
                "failed"
            }
        };
        metrics::counter!(telemetry::ENROLMENTS, "outcome" => outcome).increment(1);
        Reply { node, took: Duration::ZERO, answer: Answer::Done }
    })
}

/// Enrolls one node with the marks of a quorum of the others, if its quarantine is over.
///
/// In this order: first the node says which loss of memory it waits after, then the others say their marks, then the node is
/// enrolled for that loss. What an attempt under way has raised by then is in the marks; and if the node loses its memory once
/// more meanwhile, it refuses.
async fn enroll_from_others(
    lanes: &[Arc<Lane>],
    node: usize,
    prefix: &KeyPrefix,
    quarantine: Duration,
    patience: Duration,
) -> Result<Standing, EnrollError> {
    let unanswered = |source| EnrollError::NotAnswering { node: lanes[node].name(), source };
    let found = ask_standings(&[&lanes[node]], prefix, quarantine, patience).await.remove(0).map_err(unanswered)?;
    if found.service != (Service::Quarantined { remaining: Duration::ZERO }) && !mutant!("marks from before") {
        return Ok(found);
    }
    let others: Vec<&Arc<Lane>> =
        lanes.iter().enumerate().filter(|(other, _)| *other != node).map(|(_, lane)| lane).collect();
    let standings = ask_standings(&others, prefix, quarantine, patience).await;
    let mut twins = Twins::default();
    // Its own server, under whatever name, knows nothing that it has forgotten.
    twins.admit(lanes[node].node());
    let marks = others.iter().zip(&standings).filter_map(|(lane, standing)| match standing {
        Ok(standing) if standing.service == Service::Enrolled && twins.admit(lane.node()) => Some(standing),
        _ => None,
    });
    let (mut base, mut count, mut longest) = (0, 0, quarantine.max(found.quarantine));
    for mark in marks {
        (base, count, longest) = (mark.high.max(base), count + 1, mark.quarantine.max(longest));
    }
    let needed = quorum_of(lanes.len());
    if count < needed && !mutant!("marks from too few") {
        return Err(EnrollError::TooFewOthers { enrolled: count, needed });
    }
    let enrolment = Enrolment { base, quarantine: longest, at_once: false, loss: found.loss };
    within(patience, lanes[node].node().enroll(prefix, &enrolment)).await.map_err(unanswered)
}

async fn ask_standings(
    lanes: &[&Arc<Lane>],
    prefix: &KeyPrefix,
    quarantine: Duration,
    patience: Duration,
) -> Vec<Result<Standing, NodeError>> {
    let ask = |lane: &Arc<Lane>| {
        let lane = Arc::clone(lane);
        async move {
            match within(patience, lane.node().standing(prefix, quarantine)).await {
                // A node that was restarted is found out by the first question over a connection that is gone.
                Err(NodeError::Unreachable(_)) => within(patience, lane.node().standing(prefix, quarantine)).await,
                answer => answer,
            }
        }
    };
    join_all(lanes.iter().copied().map(ask)).await
}

async fn within<T>(patience: Duration, call: impl Future<Output = Result<T, NodeError>>) -> Result<T, NodeError> {
    match tokio::time::timeout(patience, call).await {
        Ok(answer) => answer,
        Err(_) => Err(NodeError::Timeout { after: patience }),
    }
}

/// How one node stands.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStanding {
    /// The node's name.
    pub node: Arc<str>,
    /// What it says, or why it does not.
    pub standing: Result<Standing, NodeError>,
}

impl NodeStanding {
    /// Whether the node serves.
    #[must_use]
    pub fn is_enrolled(&self) -> bool {
        matches!(&self.standing, Ok(standing) if standing.service == Service::Enrolled)
    }
}

impl fmt::Display for NodeStanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.standing {
            Ok(Standing { service: Service::Enrolled, .. }) => write!(f, "{}: enrolled", self.node),
            Ok(Standing { service: Service::Quarantined { remaining }, .. }) => {
                write!(f, "{}: {}", self.node, NodeError::Quarantined { remaining: *remaining })
            }
            Err(error) => write!(f, "{}: {error}", self.node),
        }
    }
}

/// Why nodes are not enrolled.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrollError {
    /// The client was built without [`RedlockBuilder::crash_guard`](crate::RedlockBuilder::crash_guard).
    #[error("the crash-recovery guard is off; build the client with `crash_guard`")]
    GuardIsOff,
    /// So few nodes remember that what they know may not be all.
    #[error(
        "only {enrolled} nodes are enrolled and answer, and {needed} are needed to enroll others; bring more of them up, enroll a \
         fresh deployment, or reseed one that has lost its memory"
    )]
    TooFewEnrolled {
        /// How many are enrolled and answer.
        enrolled: usize,
        /// How many are needed.
        needed: usize,
    },
    /// Fewer than a quorum of the *other* nodes remember. With one node or two there is no such quorum.
    #[error(
        "only {enrolled} of the other nodes are enrolled and answer, and {needed} are needed to tell it what it has forgotten; bring \
         more of them up, or reseed"
    )]
    TooFewOthers {
        /// How many of the others are enrolled and answer.
        enrolled: usize,
        /// How many are needed.
        needed: usize,
    },
    /// Some nodes are enrolled already, so this is no fresh deployment, or has not lost its memory.
    #[error(
        "{enrolled} nodes are enrolled already, so what they remember counts; enroll the others from them. Where they are fewer than \
         a quorum, reseed"
    )]
    EnrolledAlready {
        /// How many are enrolled.
        enrolled: usize,
    },
    /// A node that does not answer may remember what the others do not.
    #[error("{node} does not answer, and a fresh deployment is enrolled as a whole; bring it up")]
    NotAnswering {
        /// The node.
        node: Arc<str>,
        /// Why.
        #[source]
        source: NodeError,
    },
    /// A highest token that leaves no room for others, so it is no token that was ever accepted.
    #[error("{highest} leaves too few tokens above it; name the greatest one that your databases have accepted")]
    BeyondTokens {
        /// What was named.
        highest: FencingToken,
    },
    /// Too few nodes answer for any quorum.
    #[error("only {answering} nodes answer, and a quorum of {needed} is needed; bring more of them up")]
    TooFewAnswer {
        /// How many answer.
        answering: usize,
        /// How many are needed.
        needed: usize,
    },
}

impl Redlock {
    /// How long a node that has lost its memory is in quarantine; `None` if the crash-recovery guard is off.
    #[must_use]
    pub fn quarantine(&self) -> Option<Duration> {
        self.client().settings.quarantine()
    }

    /// How every node stands with the crash-recovery guard. A node that has lost its memory begins its quarantine with this
    /// question, if nobody has noticed before.
    ///
    /// # Errors
    /// [`EnrollError::GuardIsOff`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn standings(&self) -> Result<Vec<NodeStanding>, EnrollError> {
        let client = self.client();
        let quarantine = client.settings.quarantine().ok_or(EnrollError::GuardIsOff)?;
        let lanes: Vec<_> = client.lanes.iter().collect();
        let standings = ask_standings(&lanes, &client.settings.prefix, quarantine, patience(client)).await;
        Ok(named(client, standings))
    }

    /// Enrolls every node that has lost its memory and whose quarantine is over, from a quorum of the others; what any client
    /// does by itself when it is refused by such a node. Worth calling after each step of a rolling restart, when nobody may
    /// have asked for a lock in between. Says how every node stands afterwards.
    ///
    /// # Errors
    /// [`EnrollError::GuardIsOff`]; [`EnrollError::TooFewEnrolled`] or [`EnrollError::TooFewOthers`] if fewer than a quorum of nodes, or
    /// of the others, remember anything.
    ///
    /// # Cancel safety
    /// If the future is dropped, some nodes may have been enrolled.
    pub async fn enroll(&self) -> Result<Vec<NodeStanding>, EnrollError> {
        let client = self.client();
        let before = self.standings().await?;
        let (enrolled, needed) = (enrolled(&before), quorum_of(client.lanes.len()));
        if enrolled < needed {
            return Err(EnrollError::TooFewEnrolled { enrolled, needed });
        }
        let quarantine = client.settings.quarantine().ok_or(EnrollError::GuardIsOff)?;
        let mut after = before;
        for (node, found) in after.iter_mut().enumerate() {
            if matches!(&found.standing, Ok(standing) if standing.service != Service::Enrolled) {
                let (prefix, patience) = (&client.settings.prefix, patience(client));
                match enroll_from_others(&client.lanes, node, prefix, quarantine, patience).await {
                    Ok(standing) => found.standing = Ok(standing),
                    Err(EnrollError::NotAnswering { source, .. }) => found.standing = Err(source),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(after)
    }

    /// Enrolls all nodes of a deployment in which no lock was ever given out, or whose nodes have all kept their memory so far,
    /// as when the guard is switched on. They serve at once.
    ///
    /// Not for nodes that have lost their memory: two could hold one lock then. That is what [`Redlock::reseed`] is for.
    ///
    /// # Errors
    /// [`EnrollError`]: a node does not answer, or is enrolled already.
    ///
    /// # Cancel safety
    /// If the future is dropped, some nodes may have been enrolled; [`Redlock::enroll`] or [`Redlock::reseed`] goes on.
    pub async fn enroll_fresh(&self) -> Result<Vec<NodeStanding>, EnrollError> {
        let standings = self.standings().await?;
        for found in &standings {
            if let Err(source) = &found.standing {
                return Err(EnrollError::NotAnswering { node: found.node.clone(), source: source.clone() });
            }
        }
        match enrolled(&standings) {
            0 => self.enroll_all(&standings, 0, true).await,
            enrolled => Err(EnrollError::EnrolledAlready { enrolled }),
        }
    }

    /// Goes on after a quorum of nodes has lost its memory: their quarantine over, the nodes that answer are enrolled with a base
    /// above `highest`, the greatest token that your databases have accepted (`FenceStore::highest_token_of_all` and
    /// `highest_fence`), and above everything that any of the nodes remembers. Says how every node stands afterwards: one whose
    /// quarantine is not over is not enrolled, and this has to be called again.
    ///
    /// # Errors
    /// [`EnrollError`]: a quorum remembers, so that nothing has to be guessed; too few nodes answer; or `highest` is no token that
    /// any database can have accepted.
    ///
    /// # Cancel safety
    /// If the future is dropped, some nodes may have been enrolled; calling this again goes on.
    pub async fn reseed(&self, highest: FencingToken) -> Result<Vec<NodeStanding>, EnrollError> {
        // As many have to be left as there ever were.
        if FencingToken::MAX.get() / 2 < highest.get() {
            return Err(EnrollError::BeyondTokens { highest });
        }
        let standings = self.standings().await?;
        let needed = quorum_of(standings.len());
        let answering = standings.iter().filter(|found| found.standing.is_ok()).count();
        match enrolled(&standings) {
            enrolled if needed <= enrolled => Err(EnrollError::EnrolledAlready { enrolled }),
            _ if answering < needed => Err(EnrollError::TooFewAnswer { answering, needed }),
            _ => self.enroll_all(&standings, highest.as_counter(), false).await,
        }
    }

    /// Enrolls all nodes that answer with one base, above all that any of them remembers.
    async fn enroll_all(
        &self,
        standings: &[NodeStanding],
        base: u64,
        at_once: bool,
    ) -> Result<Vec<NodeStanding>, EnrollError> {
        let client = self.client();
        let mut quarantine = client.settings.quarantine().ok_or(EnrollError::GuardIsOff)?;
        let mut base = base;
        for standing in standings.iter().filter_map(|found| found.standing.as_ref().ok()) {
            (base, quarantine) = (standing.high.max(base), standing.quarantine.max(quarantine));
        }
        let enrolling = standings.iter().zip(&client.lanes).map(|(found, lane)| async move {
            match &found.standing {
                Ok(found) => {
                    let enrolment = Enrolment { base, quarantine, at_once, loss: found.loss };
                    within(patience(client), lane.node().enroll(&client.settings.prefix, &enrolment)).await
                }
                Err(error) => Err(error.clone()),
            }
        });
        Ok(named(client, join_all(enrolling).await))
    }
}

fn named(client: &Client, standings: Vec<Result<Standing, NodeError>>) -> Vec<NodeStanding> {
    let named = client.lanes.iter().zip(standings);
    named.map(|(lane, standing)| NodeStanding { node: lane.name(), standing }).collect()
}

fn enrolled(standings: &[NodeStanding]) -> usize {
    standings.iter().filter(|found| found.is_enrolled()).count()
}
