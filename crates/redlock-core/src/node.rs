//! The contract: one independent node, one vote, a few questions.
//!
//! A node is a Redis primary, a row in a database, a process of your own: anything that can do the following
//! *atomically* and remembers it independently of the other nodes. Promises here are about one node; what a quorum of
//! them adds up to is [`crate::mint`]'s and [`crate::redlock`]'s business.
//!
//! # What every call has in common
//!
//! * **Atomic.** Concurrent calls behave as if they had come one after the other.
//! * **May be dropped at any moment.** A dropped future may or may not have taken effect.
//! * **`Err` means unknown.** The call may have taken effect, may take effect later, or never. It is neither a grant
//!   nor a refusal, and the caller treats it as neither.
//! * **Bounded.** A call ends by itself within a time that the node chooses (a few seconds, say), even if the other end
//!   never answers. The caller has a deadline of its own, far shorter, and does not rely on this one for it; it goes on
//!   polling late calls so that it learns what became of them.
//! * **In order, if possible.** Calls of one client on one node should take effect in the order in which their futures
//!   were first polled, as commands on one connection do, and [`LockNode::order`] says whether they do. A release that
//!   may have overtaken its acquire is repeated by the caller.
//! * **Once.** A call must not be repeated inside a node after it may have taken effect.

use crate::bell::{Listener, Place};
use crate::owner::{Fingerprint, Ownership};
use crate::resource::{KeyPrefix, Resource, Resources, Ttl};
use async_trait::async_trait;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// One independent node.
///
/// `acquire`, `raise`, `extend` and `release` are the contract. The rest are optional capabilities whose defaults
/// answer, honestly, "not known here": a small backend stays small, and the core works with less to say.
#[async_trait]
pub trait LockNode: Send + Sync {
    /// How people call this node in errors, logs and metrics, such as `127.0.0.1:6379`. Free of secrets.
    fn name(&self) -> &str;

    /// Takes all resources for the owner, if every one of them is free on this node; otherwise takes none.
    ///
    /// On a grant, the lock of each resource is held by the owner for `ttl` from the moment at which the node executes
    /// the call, and the fence counter of every resource is set to one common value `1 + max(floor, counters)`, which
    /// is the answer. A counter outlives the lock: it only ever grows. A resource without a counter starts from what
    /// the node knows to be at least as great as any counter it has ever dropped (zero if it never drops one).
    ///
    /// A resource that the same owner already holds is not free.
    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError>;

    /// Sets the counter of every resource to `max(counter, to)` if the owner holds all of them, and answers the greatest
    /// of the counters as they stand afterwards.
    ///
    /// The owner check and the raise are one atomic step. Without it two grants can carry one token.
    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError>;

    /// Sets the remaining time to live of every resource to `ttl` if the owner holds all of them.
    ///
    /// Sets, never adds. Never brings back a lock that is gone, and never touches a counter.
    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError>;

    /// Answers [`LockNode::extend`] for many ownerships at once, in their order; each of them is atomic, all of them
    /// together need not be.
    ///
    /// A client that keeps many locks alive asks this. The default asks one after the other; a node on the other end of
    /// a network does better in one round trip.
    async fn extend_many(&self, leases: &[(&Ownership, Ttl)]) -> Result<Vec<Extension>, NodeError> {
        let mut extensions = Vec::with_capacity(leases.len());
        for (ownership, ttl) in leases {
            extensions.push(self.extend(ownership, *ttl).await?);
        }
        Ok(extensions)
    }

    /// Frees those of the resources that the owner holds.
    ///
    /// Idempotent; never frees what another owner holds, and never touches a counter. A node with lines of waiters (see
    /// [`LockNode::listen`]) wakes the first one in the line of each resource that is free afterwards.
    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError>;

    /// Makes sure that wake-ups for the waiters of `listener` reach its bell from now on; returns once they do. Asked again
    /// before each wait, so it has to be cheap where they do already.
    ///
    /// A node that can no longer deliver (its connection broke, say) calls [`Bell::ring_all`](crate::Bell::ring_all) once and
    /// listens no more until it is asked again. It stops by itself when the bell is gone, and may stop when nobody has waited
    /// for a while. Wake-ups are a matter of order and speed, never of safety: a lost one is made up for by asking again.
    ///
    /// The default offers none: waiters then ask again at intervals.
    async fn listen(&self, prefix: &KeyPrefix, listener: &Listener) -> Result<(), NodeError> {
        let _ = (prefix, listener);
        Err(NodeError::Unsupported)
    }

    /// As [`LockNode::acquire`], for a waiter in this node's line for the resources; in one atomic step.
    ///
    /// A waiter that is not granted stands in the line of the resource that is in its way, at the end unless it stands there
    /// already. One that is granted, and stands in line, stays there until it leaves: it may not get its quorum. [`Place::manner`] says what a line of others means to it; if they are what is in its
    /// way, the answer names [`Holder::Line`], and the first of them has been woken.
    ///
    /// Only asked of nodes that listen. The default knows no line.
    async fn acquire_in_line(
        &self,
        ownership: &Ownership,
        ttl: Ttl,
        floor: u64,
        place: &Place,
    ) -> Result<Acquisition, NodeError> {
        let _ = place;
        self.acquire(ownership, ttl, floor).await
    }

    /// Takes a waiter out of the lines of the resources, and wakes the first of those that are left in the line of each
    /// resource that is free: a wake-up that may have come for this waiter is passed on. Idempotent.
    async fn leave_line(&self, prefix: &KeyPrefix, resources: &Resources, place: &Place) -> Result<(), NodeError> {
        let _ = (prefix, resources, place);
        Ok(())
    }

    /// Tells who holds each resource, for how long, and where its counter stands. Changes nothing, and need not be atomic.
    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let _ = (prefix, resources);
        Err(NodeError::Unsupported)
    }

    /// Tells what can be found out about the node's fitness. What cannot be read is said in [`Health::unread`].
    async fn health(&self) -> Result<Health, NodeError> {
        Err(NodeError::Unsupported)
    }

    /// Tells whether the node serves clients that have the crash-recovery guard on, and where its marks stand.
    ///
    /// A node that has a record of the prefix which is its own serves. One that has none (it is empty, or was emptied), or
    /// whose record belongs to another server (it was restarted, or stands in for another), begins its quarantine with this
    /// question: it serves again when it has been enrolled, which is not before `quarantine` has passed. The longest
    /// `quarantine` that anybody asked for is kept with the record.
    ///
    async fn standing(&self, prefix: &KeyPrefix, quarantine: Duration) -> Result<Standing, NodeError> {
        let _ = (prefix, quarantine);
        Err(NodeError::Unsupported)
    }

    /// Whether the node keeps a record of each prefix, as [`LockNode::standing`] and [`LockNode::enroll`] need it, and refuses
    /// [guarded](Ownership::quarantine) owners with [`NodeError::Quarantined`] while it does not serve.
    ///
    /// The default keeps none. A client with the crash-recovery guard on is not built over such a node.
    fn keeps_record(&self) -> bool {
        false
    }

    /// Takes the node into service if its quarantine is over, and it has lost nothing more since [`Enrolment::loss`]: base becomes at least [`Enrolment::base`] and everything that
    /// the node itself remembers, for resources whose counters are gone and for those whose counters came back too low.
    ///
    /// In one atomic step; the answer says how the node stands then. A node that serves already stays in service, and its
    /// base is raised all the same.
    async fn enroll(&self, prefix: &KeyPrefix, enrolment: &Enrolment) -> Result<Standing, NodeError> {
        let _ = (prefix, enrolment);
        Err(NodeError::Unsupported)
    }

    /// A number that stays the same for as long as calls take effect in the order in which their futures were first polled.
    /// `None`, the default, makes no such promise; a node whose connection was replaced, or that had to send a call again,
    /// has another number from then on.
    fn order(&self) -> Option<u64> {
        None
    }

    /// What tells this node's server from all others (on Redis the `run_id`), as far as it is known without asking.
    ///
    /// Two nodes with one identity are one vote counted twice, and are refused.
    fn identity(&self) -> Option<Arc<str>> {
        None
    }

    /// The node's calendar time now, as a duration since 1970: what it answered when it was last connected to, carried
    /// forward by a monotonic clock, without asking anew. `None` while that is not known.
    ///
    /// Lifts new tokens above those of a node that was wiped. No promise rests on its being right. A node that connects
    /// with its first call knows no time before that; then the first grant of its client costs a second round trip.
    fn unix_time(&self) -> Option<Duration> {
        None
    }
}

/// The answer to [`LockNode::acquire`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Acquisition {
    /// The owner holds all resources on this node.
    Granted {
        /// The common value to which the counters of all resources were set.
        counter: u64,
    },
    /// At least one resource is not free; nothing was changed.
    Held(HeldBy),
}

/// The answer to [`LockNode::raise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Raising {
    /// The owner holds all resources, and this is the greatest of their counters now.
    At(u64),
    /// The owner does not hold all resources; nothing was changed.
    NotOwner,
}

/// The answer to [`LockNode::extend`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension {
    /// The owner holds all resources, now for the whole ttl again.
    Extended,
    /// Some of the resources are held by nobody, none by somebody else; nothing was changed.
    Gone,
    /// Some of the resources are held by somebody else; nothing was changed.
    NotOwner,
}

/// The answer to [`LockNode::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Releasing {
    /// The owner held all resources and holds none of them any more.
    Released,
    /// The same, and somebody who waits in line for one of them was woken.
    PassedOn,
    /// Some of the resources were held by nobody, none by somebody else. The owner holds none of them any more.
    Gone,
    /// Some of the resources are held by somebody else. The owner holds none of them any more.
    NotOwner,
}

/// What stands in the way of a grant on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldBy {
    /// The first resource that is not free.
    pub resource: Resource,
    /// Who holds it.
    pub holder: Holder,
    /// For how long, if nobody extends it.
    pub remaining: Remaining,
}

/// Who holds a resource on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// An owner, of this library or of another one that writes the same key.
    Owner(Fingerprint),
    /// Not a lock at all: data of another kind under the lock's key, such as a `hash`.
    Foreign {
        /// What the node calls that kind of data.
        kind: String,
    },
    /// Nobody yet: it is free, and others who wait in line for it come first.
    Line,
    /// The node does not say.
    Unknown,
}

/// How long a lock remains if nobody extends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remaining {
    /// This long.
    For(Duration),
    /// For ever: the key has no expiry, so no lock of this library wrote it.
    WithoutExpiry,
    /// The node does not say.
    Unknown,
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, holder, remaining } = self;
        let name = resource.name();
        match holder {
            Holder::Owner(fingerprint) => write!(f, "{name:?} held by {fingerprint}")?,
            Holder::Foreign { kind } => {
                write!(f, "the key of {name:?} exists with foreign type {kind}, so it is data and not a lock")?;
            }
            Holder::Line => write!(f, "{name:?} free, and others are first in line for it")?,
            Holder::Unknown => write!(f, "{name:?} held")?,
        }
        match remaining {
            Remaining::For(duration) => write!(f, " for {duration:?}"),
            Remaining::WithoutExpiry => write!(f, " without expiry"),
            Remaining::Unknown => Ok(()),
        }
    }
}

/// One resource as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// The resource.
    pub resource: Resource,
    /// Who holds it and for how long; `None` if it is free.
    pub held: Option<HeldBy>,
    /// Where its fence counter stands; `None` if it has none.
    pub counter: Option<u64>,
}

/// How a node stands that keeps a record of a prefix, and where the marks in it stand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Whether it serves.
    pub service: Service,
    /// What a resource without a counter starts from.
    pub base: u64,
    /// At least as great as every counter that was ever set there, as far as the node remembers.
    pub high: u64,
    /// The longest quarantine that any client has asked for.
    pub quarantine: Duration,
    /// What tells this loss of memory from others of this node; `None` while it serves.
    pub loss: Option<u64>,
}

/// Whether a node serves clients that have the crash-recovery guard on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// It does: it remembers, and was told what it had forgotten.
    Enrolled,
    /// It does not: it has lost its memory, or was never enrolled.
    Quarantined {
        /// How long it will not be taken back in any case; zero once it only waits to be enrolled.
        remaining: Duration,
    },
}

/// What a node is told when it is taken into service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enrolment {
    /// At least as great as every counter that counted for a grant before.
    pub base: u64,
    /// How long the node must have been in quarantine, unless somebody has asked for longer.
    pub quarantine: Duration,
    /// The node has nothing to wait for, since no lock was ever given out: a fresh deployment.
    pub at_once: bool,
    /// The loss after which this was found out, as [`Standing::loss`] had it. A node that has lost its memory since then, once
    /// more, is not enrolled by it.
    pub loss: Option<u64>,
}

/// What a node says about its own fitness. A field that is `None` is not known, and [`Health::unread`] says why.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Health {
    /// What tells this server from all others.
    pub identity: Option<String>,
    /// `true` for a node that decides itself, `false` for a replica of another.
    pub primary: Option<bool>,
    /// How many replicas follow it.
    pub replicas: Option<u64>,
    /// The server's version.
    pub version: Option<String>,
    /// Whether writes reach a disk, in the server's own words.
    pub persistence: Option<String>,
    /// What the server does when memory runs out, in its own words.
    pub eviction_policy: Option<String>,
    /// The server's calendar time, since 1970.
    pub unix_time: Option<Duration>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
}

/// Why a node did not answer, grouped by what can be done about it. In every case the outcome is unknown.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// No answer within the per-node deadline.
    #[error("no answer within {after:?}")]
    Timeout {
        /// The deadline that passed.
        after: Duration,
    },
    /// The node could not be reached, or the connection broke.
    #[error("unreachable")]
    Unreachable(#[source] Source),
    /// The node failed to answer several times and is not asked again just yet, so that nothing piles up behind it.
    #[error("left alone after it failed to answer; it is asked again within {again_within:?}")]
    LeftAlone {
        /// The longest time until the next call is let through to it, once it shows life.
        again_within: Duration,
    },
    /// The node answered, and refuses because of how it is set up: credentials, rights, role, memory limit.
    #[error("refused: {reason}")]
    Refused {
        /// What is wrong.
        reason: Refusal,
        /// What the node said.
        source: Source,
    },
    /// The node lost its memory, or was never enrolled, and the crash-recovery guard is on: it does not vote until the locks
    /// it may have forgotten have run out, and it has been told where the counters stand.
    #[error("{}", quarantined(*remaining))]
    Quarantined {
        /// How long it will still not vote in any case; zero once it only waits to be enrolled.
        remaining: Duration,
    },
    /// The node answered something that is not in the contract.
    #[error("answered something unexpected")]
    Protocol(#[source] Source),
    /// The node cannot answer this kind of question.
    #[error("not known here")]
    Unsupported,
}

fn quarantined(remaining: Duration) -> String {
    if remaining.is_zero() {
        "quarantined until it is enrolled: a client does that as soon as a quorum of the other nodes is enrolled and answers; \
         if there is no such quorum, enroll a fresh deployment or reseed one that has lost its memory"
            .to_owned()
    } else {
        format!("quarantined for {remaining:?}, since it has lost its memory or was never enrolled")
    }
}

impl NodeError {
    /// Wraps a cause.
    pub fn unreachable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreachable(Source::new(source))
    }

    /// Wraps a cause.
    pub fn refused(reason: Refusal, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused { reason, source: Source::new(source) }
    }

    /// Wraps a cause.
    pub fn protocol(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Protocol(Source::new(source))
    }

    /// A short word for the class of the error, for metrics.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "timeout",
            Self::Unreachable(_) => "unreachable",
            Self::LeftAlone { .. } => "left_alone",
            Self::Refused { .. } => "refused",
            Self::Quarantined { .. } => "quarantined",
            Self::Protocol(_) => "protocol",
            Self::Unsupported => "unsupported",
        }
    }
}

/// The cause of a [`NodeError`], shared so that an error can be shown in more than one report.
#[derive(Clone)]
pub struct Source(Arc<dyn Error + Send + Sync>);

impl Source {
    /// Wraps a cause.
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(source.into().into())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for Source {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// What is wrong with a node's set-up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It wants credentials, or others.
    #[error("it does not accept the credentials; check user and password in the node's URL")]
    Authentication,
    /// The user may not run a command or touch a key.
    #[error("the user lacks a right; grant the commands and keys listed in the documentation on access rights")]
    Permission,
    /// It is a replica of another server, not a primary.
    #[error("it is a read-only replica; name primaries that are independent of each other")]
    Replica,
    /// It is the same server as another node.
    #[error("it is the same server as another node; name each server once")]
    SameServer,
    /// It has no memory left, or may not write.
    #[error("it cannot write; give it memory or repair its disk")]
    CannotWrite,
    /// Its fence counter for a resource is beyond all tokens.
    #[error("its fence counter is beyond all tokens, so somebody has written it; delete that key while nobody locks")]
    CounterBeyondTokens,
    /// It is no such server at all.
    #[error("it does not speak the protocol; check the port")]
    NotAServer,
    /// It lacks a command that is needed.
    #[error("it lacks a command; run Redis 6.2 or later, or Valkey")]
    UnknownCommand,
    /// Something else about the set-up.
    #[error("its configuration does not allow it")]
    Configuration,
}
