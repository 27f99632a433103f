//! Wraps a node in a bad network: delay, lost requests, lost replies, errors, by script or by seed.
//!
//! Behaves as a connection does. Requests travel in order and, once sent, are executed even if the caller no longer
//! waits. A lost request never arrives; a lost reply leaves the caller without an answer although the node has done what
//! it was asked. Both end in an error only after [`Faulty::GIVES_UP_AFTER`], as a real client's would.

use async_trait::async_trait;
use redlock_core::{
    Acquisition, Enrolment, Extension, Health, Inspection, KeyPrefix, Listener, LockNode, NodeError, Ownership, Place,
    Raising, Releasing, Resources, Standing, Ttl,
};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Requests that may be on their way to the node at once; further callers wait.
const ON_THE_WAY_MAX: usize = 4_096;

/// What happens to one call.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Fault {
    /// How long the request travels.
    pub request_delay: Duration,
    /// How long the reply travels.
    pub reply_delay: Duration,
    /// Whether, and how, the call fails.
    pub failure: Option<Failure>,
}

/// How a call fails.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The request never arrives.
    LoseRequest,
    /// The node does what it was asked, and the answer never arrives.
    LoseReply,
    /// The call fails at once, and never reaches the node.
    Error(NodeError),
}

impl Fault {
    /// No fault at all.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The request travels for so long.
    #[must_use]
    pub fn request_delay(delay: Duration) -> Self {
        Self { request_delay: delay, ..Self::default() }
    }

    /// The reply travels for so long.
    #[must_use]
    pub fn reply_delay(delay: Duration) -> Self {
        Self { reply_delay: delay, ..Self::default() }
    }

    /// The request never arrives.
    #[must_use]
    pub fn lose_request() -> Self {
        Self { failure: Some(Failure::LoseRequest), ..Self::default() }
    }

    /// The answer never arrives.
    #[must_use]
    pub fn lose_reply() -> Self {
        Self { failure: Some(Failure::LoseReply), ..Self::default() }
    }

    /// The call fails at once with `error`.
    #[must_use]
    pub fn error(error: NodeError) -> Self {
        Self { failure: Some(Failure::Error(error)), ..Self::default() }
    }
}

/// Which question a call asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the names are those of the trait's methods")]
pub enum Question {
    Acquire,
    Raise,
    Extend,
    Release,
    Listen,
    AcquireInLine,
    LeaveLine,
    Standing,
    Enroll,
    Inspect,
    Health,
}

/// A node in a bad network.
pub struct Faulty<N> {
    inner: Arc<N>,
    plan: Mutex<Plan>,
    network: Mutex<Option<Network<N>>>,
}

type Decide = Box<dyn FnMut(Question) -> Fault + Send>;

struct Plan {
    script: VecDeque<Fault>,
    otherwise: Decide,
}

type Job<N> = Box<dyn FnOnce(Arc<N>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The wire: one task that carries requests to the node in order.
struct Network<N> {
    wire: mpsc::Sender<Parcel<N>>,
    carrier: AbortHandle,
}

struct Parcel<N> {
    arrives: Instant,
    job: Job<N>,
}

impl<N> Drop for Network<N> {
    fn drop(&mut self) {
        self.carrier.abort();
    }
}

impl<N: LockNode + 'static> Faulty<N> {
    /// How long a caller waits for an answer that never comes before the call ends in an error.
    pub const GIVES_UP_AFTER: Duration = Duration::from_secs(5);

    /// Wraps a node; no faults at first.
    #[must_use]
    pub fn new(inner: Arc<N>) -> Self {
        let plan = Plan { script: VecDeque::new(), otherwise: Box::new(|_| Fault::none()) };
        Self { inner, plan: Mutex::new(plan), network: Mutex::new(None) }
    }

    /// The node behind the network.
    #[must_use]
    pub fn inner(&self) -> &Arc<N> {
        &self.inner
    }

    /// Lets the next calls meet these faults, one each, in order.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().script.extend(faults);
    }

    /// Lets every call that the script does not cover meet what `decide` says.
    pub fn always(&self, decide: impl FnMut(Question) -> Fault + Send + 'static) {
        self.plan().otherwise = Box::new(decide);
    }

    /// Lets calls meet random faults drawn from `seed`: each of lost request, lost reply and immediate error with
    /// probability `p`, and delays of up to `delay_max` either way.
    pub fn seeded(&self, seed: u64, p: f64, delay_max: Duration) {
        let mut random = SplitMix(seed);
        self.always(move |_| {
            let failure = match random.fraction() {
                x if x < p => Some(Failure::LoseRequest),
                x if x < 2.0 * p => Some(Failure::LoseReply),
                x if x < 3.0 * p => Some(Failure::Error(NodeError::unreachable("injected fault"))),
                _ => None,
            };
            let request_delay = delay_max.mul_f64(random.fraction());
            Fault { request_delay, reply_delay: delay_max.mul_f64(random.fraction()), failure }
        });
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_fault(&self, question: Question) -> Fault {
        let mut plan = self.plan();
        match plan.script.pop_front() {
            Some(fault) => fault,
            None => (plan.otherwise)(question),
        }
    }

    /// Sends one call over the network.
    async fn send<T, F>(&self, question: Question, call: F) -> Result<T, NodeError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<N>) -> Pin<Box<dyn Future<Output = Result<T, NodeError>> + Send>> + Send + 'static,
    {
        let Fault { request_delay, reply_delay, failure } = self.next_fault(question);
        if let Some(Failure::Error(error)) = failure {
            return Err(error);
        }
        let (answer, answered) = oneshot::channel();
        if !matches!(failure, Some(Failure::LoseRequest)) {
            let job: Job<N> = Box::new(move |node| {
                Box::pin(async move {
                    // The caller may have gone; the node does what it was asked all the same.
                    let _ = answer.send(call(node).await);
                })
            });
            let parcel = Parcel { arrives: Instant::now() + request_delay, job };
            self.wire().try_send(parcel).map_err(|_| NodeError::unreachable("the wire is full"))?;
        }
        if failure.is_some() {
            tokio::time::sleep(Self::GIVES_UP_AFTER).await;
            return Err(NodeError::unreachable("the answer was lost"));
        }
        let answer = answered.await.map_err(NodeError::unreachable)?;
        if !reply_delay.is_zero() {
            tokio::time::sleep(reply_delay).await;
        }
        answer
    }

    fn wire(&self) -> mpsc::Sender<Parcel<N>> {
        let mut network = self.network.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(network) = &*network
            && !network.carrier.is_finished()
        {
            return network.wire.clone();
        }
        let (wire, mut parcels) = mpsc::channel::<Parcel<N>>(ON_THE_WAY_MAX);
        let node = Arc::clone(&self.inner);
        let carry = async move {
            while let Some(parcel) = parcels.recv().await {
                tokio::time::sleep_until(parcel.arrives).await;
                (parcel.job)(Arc::clone(&node)).await;
            }
        };
        let carrier = tokio::runtime::Handle::current().spawn(carry).abort_handle();
        *network = Some(Network { wire: wire.clone(), carrier });
        wire
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<N: LockNode + 'static> LockNode for Faulty<N> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        let ownership = ownership.clone();
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.acquire(&ownership, ttl, floor).await })
        };
        self.send(Question::Acquire, call).await
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        let ownership = ownership.clone();
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.raise(&ownership, to).await })
        };
        self.send(Question::Raise, call).await
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        let ownership = ownership.clone();
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.extend(&ownership, ttl).await })
        };
        self.send(Question::Extend, call).await
    }

    async fn extend_many(&self, leases: &[(&Ownership, Ttl)]) -> Result<Vec<Extension>, NodeError> {
        let leases: Vec<(Ownership, Ttl)> =
            leases.iter().map(|(ownership, ttl)| ((*ownership).clone(), *ttl)).collect();
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move {
                let leases: Vec<(&Ownership, Ttl)> = leases.iter().map(|(ownership, ttl)| (ownership, *ttl)).collect();
                node.extend_many(&leases).await
            })
        };
        self.send(Question::Extend, call).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        let ownership = ownership.clone();
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.release(&ownership).await })
        };
        self.send(Question::Release, call).await
    }

    async fn listen(&self, prefix: &KeyPrefix, listener: &Listener) -> Result<(), NodeError> {
        let (prefix, listener) = (prefix.clone(), listener.clone());
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.listen(&prefix, &listener).await })
        };
        self.send(Question::Listen, call).await
    }

    async fn acquire_in_line(
        &self,
        ownership: &Ownership,
        ttl: Ttl,
        floor: u64,
        place: &Place,
    ) -> Result<Acquisition, NodeError> {
        let (ownership, place) = (ownership.clone(), place.clone());
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.acquire_in_line(&ownership, ttl, floor, &place).await })
        };
        self.send(Question::AcquireInLine, call).await
    }

    async fn leave_line(&self, prefix: &KeyPrefix, resources: &Resources, place: &Place) -> Result<(), NodeError> {
        let (prefix, resources, place) = (prefix.clone(), resources.clone(), place.clone());
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.leave_line(&prefix, &resources, &place).await })
        };
        self.send(Question::LeaveLine, call).await
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let (prefix, resources) = (prefix.clone(), resources.clone());
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.inspect(&prefix, &resources).await })
        };
        self.send(Question::Inspect, call).await
    }

    async fn standing(&self, prefix: &KeyPrefix, quarantine: Duration) -> Result<Standing, NodeError> {
        let prefix = prefix.clone();
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.standing(&prefix, quarantine).await })
        };
        self.send(Question::Standing, call).await
    }

    fn keeps_record(&self) -> bool {
        self.inner.keeps_record()
    }

    async fn enroll(&self, prefix: &KeyPrefix, enrolment: &Enrolment) -> Result<Standing, NodeError> {
        let (prefix, enrolment) = (prefix.clone(), *enrolment);
        let call = move |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> {
            Box::pin(async move { node.enroll(&prefix, &enrolment).await })
        };
        self.send(Question::Enroll, call).await
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let call =
            |node: Arc<N>| -> Pin<Box<dyn Future<Output = _> + Send>> { Box::pin(async move { node.health().await }) };
        self.send(Question::Health, call).await
    }

    fn order(&self) -> Option<u64> {
        // One wire keeps what order the node keeps, unless its carrier had to be started anew.
        self.inner.order()
    }

    fn identity(&self) -> Option<Arc<str>> {
        self.inner.identity()
    }

    fn unix_time(&self) -> Option<Duration> {
        self.inner.unix_time()
    }
}

impl<N> fmt::Debug for Faulty<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, good enough to choose faults.
struct SplitMix(u64);

impl SplitMix {
    fn fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        f64::from(u32::try_from(z >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX)
    }
}
