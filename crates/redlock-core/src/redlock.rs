//! What callers hold: a client of a set of nodes, and a request to it.
//!
//! ```text
//!  acquire(resources)
//!     │  waiting.rs: whose turn is it in this process, and among processes?
//!     │  round.rs: ask all nodes at once ─▶ attempt.rs says: wait / raise / won / lost
//!     │     won, and validity left ──▶ a guard
//!     │     anything else, or the future dropped ──▶ every node that may hold something is told, in the background
//!     └─ contended, unavailable, too slow: wait to be called, or pause, and again while the time to wait lasts
//! ```

use crate::builder::RedlockBuilder;
use crate::client::Client;
use crate::error::{AcquireError, SettingsError};
use crate::fan_out::{self, Answer, FanOut};
use crate::guard::Guard;
use crate::lane::{self, Lane};
use crate::node::{Inspection, LockNode, NodeError};
use crate::resource::{IntoResources, ResourceError, Resources};
use crate::settings::{NODE_TIMEOUT, Retry};
use crate::telemetry;
use crate::waiting::Waiting;
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
        let mut fan_out = FanOut::new(Arc::clone(&client.keeper), node_timeout, client.lanes.len());
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

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
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
            votes = tracing::field::Empty,
            token = tracing::field::Empty,
        );
        let mut attempts = 0;
        let result = {
            let wait = Waiting::new(client, &resources, terms, self.retry).run(&mut attempts).instrument(span.clone());
            match select(pin!(wait), pin!(cancelled)).await {
                Either::Left((result, _)) => Some(result),
                Either::Right(_) => None,
            }
        };
        let result = result.unwrap_or(Err(AcquireError::Cancelled { attempts }));
        span.record("attempts", attempts);
        let report = result.as_ref().map_or_else(AcquireError::report, |guard| Some(guard.report()));
        if let Some(report) = report {
            span.record("votes", report.granted());
        }
        match &result {
            Ok(guard) => span.record("outcome", "granted").record("token", guard.token().get()),
            Err(error) => span.record("outcome", error.class()),
        };
        result
    }
}
