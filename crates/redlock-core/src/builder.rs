//! Puts a client together and refuses what cannot work.

use crate::bell::Listener;
use crate::client::Client;
use crate::clock::{Clock, SystemClock};
use crate::error::SettingsError;
use crate::floor::HighestTokens;
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::line::Lines;
use crate::node::LockNode;
use crate::owner::{OsRandomness, Randomness};
use crate::recovery::Recovery;
use crate::redlock::Redlock;
use crate::resource::{KeyPrefix, Ttl};
use crate::settings::{Retry, Settings};
use crate::token::FencingToken;
use crate::validity::Drift;
use crate::watchdog::Watchdog;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a [`Redlock`], with defaults that suit a data centre: a ttl of ten seconds, 50 ms for each node, up to
/// ten seconds of waiting.
#[derive(Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RedlockBuilder {
    nodes: Vec<Arc<dyn LockNode>>,
    allow_even_nodes: bool,
    ttl: Duration,
    node_timeout: Option<Duration>,
    drift_factor: f64,
    drift_constant: Duration,
    retry: Retry,
    min_validity: Duration,
    key_prefix: String,
    clock_floor: bool,
    floor: Option<FencingToken>,
    lock_delay: Duration,
    crash_guard: Option<Duration>,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
}

impl RedlockBuilder {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            allow_even_nodes: false,
            ttl: Duration::from_secs(10),
            node_timeout: None,
            drift_factor: 0.01,
            drift_constant: Duration::from_millis(2),
            retry: Retry::default(),
            min_validity: Duration::ZERO,
            key_prefix: KeyPrefix::default().as_str().to_owned(),
            clock_floor: true,
            floor: None,
            lock_delay: Duration::ZERO,
            crash_guard: None,
            clock: Arc::new(SystemClock),
            randomness: Arc::new(OsRandomness),
        }
    }

    /// Adds a node. A lock over a single node works, and is worth exactly what that node is: while it is down nobody
    /// locks, and if it forgets, two may hold the same lock.
    pub fn node(mut self, node: impl LockNode + 'static) -> Self {
        self.nodes.push(Arc::new(node));
        self
    }

    /// Adds nodes that are shared, or of different kinds.
    pub fn nodes(mut self, nodes: impl IntoIterator<Item = Arc<dyn LockNode>>) -> Self {
        self.nodes.extend(nodes);
        self
    }

    /// Accepts an even number of nodes, which cost one more than they are worth: four tolerate one failure, as three do.
    pub fn allow_even_nodes(mut self) -> Self {
        self.allow_even_nodes = true;
        self
    }

    /// How long a lock lives on its nodes when nobody extends it. Ten seconds by default; a single request may differ.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long each node may take to answer, connecting included. By default 50 ms, or a tenth of the ttl if that is
    /// less.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.node_timeout = Some(node_timeout);
        self
    }

    /// How far clocks may run apart during one ttl: `ttl × factor + constant`, 0.01 and 2 ms by default.
    pub fn drift(mut self, factor: f64, constant: Duration) -> Self {
        self.drift_factor = factor;
        self.drift_constant = constant;
        self
    }

    /// When and how often `acquire` tries again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The longest time that `acquire` waits; see [`Retry::wait`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.retry.wait = wait;
        self
    }

    /// The least validity that a grant must have left when it is handed out. None by default, which means: any at all.
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.min_validity = min_validity;
        self
    }

    /// What stands before every key, `lock:` by default. Two programs exclude each other only under the same prefix.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Keeps tokens small by not lifting them to the nodes' time in microseconds.
    ///
    /// That is for people who read tokens. Without it, nodes that were all wiped start again at 1, and the database
    /// refuses every write until the tokens have caught up.
    pub fn without_clock_floor(mut self) -> Self {
        self.clock_floor = false;
        self
    }

    /// Issues no token that is not above `highest`: the greatest one that your databases have accepted (see
    /// `FenceStore::highest_token_of_all` and `highest_fence`). For nodes that lost their counters and whose calendars are not
    /// to be trusted; otherwise the nodes' time keeps new tokens above old ones.
    pub fn tokens_above(mut self, highest: FencingToken) -> Self {
        self.floor = Some(highest);
        self
    }

    /// Switches the crash-recovery guard on: a node that restarted, was emptied, or whose address leads to another server now
    /// neither votes nor mints until the locks that it may have forgotten have run out, and it has been told by a quorum of the
    /// other nodes where the counters stand.
    ///
    /// `longest_ttl` is the longest ttl that any client of this key prefix uses; requests for more are refused. Every client of
    /// the prefix has to have the guard on. The nodes of a fresh deployment are enrolled once, with
    /// [`Redlock::enroll_fresh`]; a node that comes back later is enrolled by whichever client asks it for a lock when its
    /// quarantine is over. When fewer than a quorum of nodes remember anything, nobody is granted a lock until
    /// [`Redlock::reseed`].
    ///
    /// Nothing is paid for it per call where a counter exists. See `docs/operating.md`.
    pub fn crash_guard(mut self, longest_ttl: Duration) -> Self {
        self.crash_guard = Some(longest_ttl);
        self
    }

    /// How long nobody is granted a lock after its holder was lost, as opposed to having released it: nodes hold the lock for
    /// the ttl and this much longer, and its holder relies on it for the ttl only. None by default.
    ///
    /// For stores that cannot check a fencing token: what a holder sent before its validity ended has this long to arrive. It
    /// makes a stale write unlikely, not impossible; a fence does that.
    pub fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.lock_delay = lock_delay;
        self
    }

    /// The clock by which validity is measured; for tests and simulation.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The randomness of owners and pauses; for tests and simulation.
    pub fn randomness(mut self, randomness: Arc<dyn Randomness>) -> Self {
        self.randomness = randomness;
        self
    }

    /// Checks everything. Sends nothing.
    ///
    /// # Errors
    /// [`SettingsError`] for the first setting that cannot work, with what to change.
    pub fn build(self) -> Result<Redlock, SettingsError> {
        if self.nodes.is_empty() {
            return Err(SettingsError::NoNodes);
        }
        if self.nodes.len().is_multiple_of(2) && !self.allow_even_nodes {
            return Err(SettingsError::EvenNodes { nodes: self.nodes.len() });
        }
        refuse_twins(&self.nodes)?;
        if let (Some(_), Some(node)) = (self.crash_guard, self.nodes.iter().find(|node| !node.keeps_record())) {
            return Err(SettingsError::NodeWithoutRecord { node: node.name().into() });
        }
        if self.node_timeout == Some(Duration::ZERO) {
            return Err(SettingsError::NoNodeTimeout);
        }
        if self.retry.attempts == 0 {
            return Err(SettingsError::NoAttempts);
        }
        let drift = Drift::new(self.drift_factor, self.drift_constant);
        let settings = Settings {
            prefix: KeyPrefix::new(&self.key_prefix)?,
            drift: drift.ok_or(SettingsError::DriftFactor(self.drift_factor))?,
            node_timeout: self.node_timeout,
            retry: self.retry,
            min_validity: self.min_validity,
            clock_floor: self.clock_floor,
            floor: self.floor,
            lock_delay: self.lock_delay,
            guarded_ttl: self.crash_guard.map(Ttl::new).transpose()?,
        };
        let terms = settings.terms(self.ttl, self.min_validity)?;
        let lines = Arc::new(Lines::default());
        let lane = |node: Arc<dyn LockNode>| Arc::new(Lane::new(node, Arc::clone(&self.clock), Arc::clone(&lines)));
        Ok(Redlock::new(Client {
            recovery: Recovery::new(self.nodes.len()),
            lanes: self.nodes.into_iter().map(lane).collect(),
            settings,
            ttl: terms.ttl,
            clock: self.clock.clone(),
            listener: Listener::new(&*self.randomness),
            randomness: self.randomness,
            lines,
            keeper: Arc::new(Keeper::default()),
            watchdog: Arc::new(Watchdog::default()),
            highest_tokens: HighestTokens::default(),
        }))
    }
}

/// Two nodes with one name or one identity, or one node given twice, would be one vote counted twice.
fn refuse_twins(nodes: &[Arc<dyn LockNode>]) -> Result<(), SettingsError> {
    for (position, first) in nodes.iter().enumerate() {
        for second in &nodes[position + 1..] {
            let same_identity = first.identity().is_some_and(|identity| Some(identity) == second.identity());
            if Arc::ptr_eq(first, second) || first.name() == second.name() || same_identity {
                return Err(SettingsError::SameNode { first: first.name().into(), second: second.name().into() });
            }
        }
    }
    Ok(())
}

impl std::fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<&str> = self.nodes.iter().map(|node| node.name()).collect();
        f.debug_struct("RedlockBuilder").field("nodes", &nodes).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}
