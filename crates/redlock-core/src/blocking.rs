//! The same lock for programs without async.
//!
//! The names are those of the async items. Everything runs on a background runtime that the client owns; the caller's
//! thread only waits for it. So these calls work outside of any runtime and inside one alike, without dead-lock: inside,
//! they block the thread they are called on, which is what a blocking call does.
//!
//! Give it nodes that have not connected yet (`RedisNode::open_all`): they connect on the background runtime. Connections
//! that were made on a runtime of the caller's stand still while a call blocks that runtime's only thread, until they are
//! given up and made anew.
//!
//! ```
//! # fn example(nodes: Vec<std::sync::Arc<dyn redlock_core::LockNode>>) -> Result<(), Box<dyn std::error::Error>> {
//! use redlock_core::blocking::Redlock;
//!
//! let redlock = Redlock::start(redlock_core::Redlock::builder().nodes(nodes))?;
//! let guard = redlock.acquire("orders/42")?;
//! println!("work under token {}", guard.token());
//! guard.release();
//! # Ok(())
//! # }
//! ```

use crate::builder::RedlockBuilder;
use crate::error::{AcquireError, ExtendError, LossReason, NotEnoughValidity, SettingsError};
use crate::guard::{Held, Release, ReleaseOutcome};
use crate::hold::HoldState;
use crate::report::Report;
use crate::resource::{IntoResources, ResourceError, Resources};
use crate::settings::Retry;
use crate::token::{FencingToken, Grant};
use crate::watchdog::KeepAlive;
use crate::work::WorkError;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use tokio::runtime::Runtime;

/// How long the background runtime outlives its last client, to give back what was dropped.
const LINGER: Duration = Duration::from_secs(2);

/// A client of a set of nodes. Cheap to clone; clones share connections and the background runtime.
#[derive(Clone, Debug)]
pub struct Redlock {
    inner: crate::Redlock,
    background: Arc<Background>,
}

impl Redlock {
    /// Starts a background runtime, with one thread, and a client on it.
    ///
    /// # Errors
    /// [`StartError`] for settings that cannot work, or if the system gives no thread.
    pub fn start(settings: RedlockBuilder) -> Result<Self, StartError> {
        let inner = settings.build()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redlock")
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        let background = Background { runtime: Some(runtime), client: inner.clone() };
        Ok(Self { inner, background: Arc::new(background) })
    }

    /// Makes one attempt; see [`crate::Redlock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self, resources: impl IntoResources) -> Result<Guard, AcquireError> {
        self.request(resources).try_acquire()
    }

    /// Waits for the lock; see [`crate::Redlock::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self, resources: impl IntoResources) -> Result<Guard, AcquireError> {
        self.request(resources).acquire()
    }

    /// Begins a request that differs from the client's settings.
    pub fn request(&self, resources: impl IntoResources) -> Request<'_> {
        Request { redlock: self, resources: resources.into_resources(), ttl: None, retry: None, min_validity: None }
    }

    /// Locks `resources`, keeps them locked while `work` runs on this thread, and releases them.
    ///
    /// Work on a thread cannot be dropped when the lock is lost: it is told through [`Held`].
    ///
    /// # Errors
    /// [`WorkError`]: the lock was not acquired, or it was lost while the work ran.
    pub fn with_lock<T>(&self, resources: impl IntoResources, work: impl FnOnce(Held) -> T) -> Result<T, WorkError> {
        let guard = self.acquire(resources)?;
        guard.keep_alive(KeepAlive::default());
        let value = work(guard.held());
        let state = guard.state();
        let release = guard.release();
        match state {
            HoldState::Lost(reason) => Err(WorkError::Lost { reason }),
            _ if release.outcome == ReleaseOutcome::AlreadyGone => Err(WorkError::Lost { reason: LossReason::Expired }),
            _ => Ok(value),
        }
    }

    /// Waits until everything that goes on in the background has ended, at most for `within`; says whether it has.
    #[must_use]
    pub fn settled(&self, within: Duration) -> bool {
        let inner = self.inner.clone();
        self.background.run(async move { tokio::time::timeout(within, inner.settled()).await.is_ok() })
    }
}

/// One request, with settings of its own.
#[derive(Debug)]
#[must_use = "a request does nothing until `acquire` or `try_acquire` is called"]
pub struct Request<'a> {
    redlock: &'a Redlock,
    resources: Result<Resources, ResourceError>,
    ttl: Option<Duration>,
    retry: Option<Retry>,
    min_validity: Option<Duration>,
}

impl Request<'_> {
    /// How long the lock lives on its nodes when nobody extends it.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// When and how often to try again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// The longest time to wait; zero for a single attempt.
    pub fn wait(mut self, wait: Duration) -> Self {
        let retry = self.retry.unwrap_or(self.redlock.inner.retry());
        self.retry = Some(Retry { wait, ..retry });
        self
    }

    /// The least validity that the grant must have left when it is handed out.
    pub fn min_validity(mut self, min_validity: Duration) -> Self {
        self.min_validity = Some(min_validity);
        self
    }

    /// Makes one attempt.
    ///
    /// # Errors
    /// As [`crate::Redlock::try_acquire`].
    pub fn try_acquire(self) -> Result<Guard, AcquireError> {
        self.wait(Duration::ZERO).acquire()
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// As [`crate::Redlock::acquire`].
    pub fn acquire(self) -> Result<Guard, AcquireError> {
        let Self { redlock, resources, ttl, retry, min_validity } = self;
        let resources = resources.map_err(SettingsError::from)?;
        let inner = redlock.inner.clone();
        let guard = redlock.background.run(async move {
            let mut request = inner.request(resources);
            if let Some(ttl) = ttl {
                request = request.ttl(ttl);
            }
            if let Some(retry) = retry {
                request = request.retry(retry);
            }
            if let Some(min_validity) = min_validity {
                request = request.min_validity(min_validity);
            }
            request.acquire().await
        })?;
        Ok(Guard { guard: Arc::new(guard), background: Arc::clone(&redlock.background) })
    }
}

/// A held lock; see [`crate::Guard`]. Dropping it gives the lock back in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    guard: Arc<crate::Guard>,
    background: Arc<Background>,
}

impl Guard {
    /// What the storage needs: the resources and their token.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        self.guard.grant()
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// How long the lock may still be relied on.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Held, uncertain, or lost.
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.guard.state()
    }

    /// Whether the lock may still be relied on.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Gates work that needs more time than may be left.
    ///
    /// # Errors
    /// As [`crate::Guard::require`].
    pub fn require(&self, required: Duration) -> Result<Duration, NotEnoughValidity> {
        self.guard.require(required)
    }

    /// What every node said when the lock was granted.
    #[must_use]
    pub fn report(&self) -> &Report {
        self.guard.report()
    }

    /// A handle for the work that is done under the lock.
    #[must_use]
    pub fn held(&self) -> Held {
        self.guard.held()
    }

    /// Keeps the lock extended on the background runtime.
    pub fn keep_alive(&self, keep_alive: KeepAlive) {
        let guard = Arc::clone(&self.guard);
        self.background.run(async move { guard.keep_alive(keep_alive) });
    }

    /// Extends the lock to its whole ttl again.
    ///
    /// # Errors
    /// As [`crate::Guard::extend`].
    pub fn extend(&self) -> Result<Duration, ExtendError> {
        let guard = Arc::clone(&self.guard);
        self.background.run(async move { guard.extend().await })
    }

    /// Releases the lock and tells what came of it.
    ///
    /// # Panics
    /// Never: nobody else has the guard once its own calls have returned.
    pub fn release(self) -> Release {
        let Self { guard, background } = self;
        let guard = Arc::into_inner(guard).expect("calls on the guard have returned, and with them their clones");
        background.run(guard.release())
    }
}

impl AsRef<Grant> for Guard {
    fn as_ref(&self) -> &Grant {
        self.grant()
    }
}

/// The background runtime; ends soon after its last client.
struct Background {
    /// `Some` until it is dropped.
    runtime: Option<Runtime>,
    client: crate::Redlock,
}

impl Background {
    /// Runs a future to its end while this thread waits.
    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().expect("there until it is dropped");
        let (answer, answered) = mpsc::sync_channel(1);
        let task = runtime.spawn(async move {
            let value = future.await;
            // Only a panic of the waiting thread leaves nobody to tell.
            let _ = answer.send(value);
        });
        match answered.recv() {
            Ok(value) => value,
            // The sender went without a value: the future panicked, and its own message has been printed.
            Err(_) => panic!("the call panicked on the background runtime, in task {}", task.id()),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let client = self.client.clone();
        // A runtime must not be dropped, nor waited for, on a thread that may belong to another runtime.
        let shared = Arc::new(Mutex::new(Some(runtime)));
        let take = |shared: &Mutex<Option<Runtime>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let for_thread = Arc::clone(&shared);
        let linger = std::thread::Builder::new().name("redlock-linger".into()).spawn(move || {
            if let Some(runtime) = take(&for_thread) {
                runtime.block_on(async { tokio::time::timeout(LINGER, client.settled()).await.ok() });
                runtime.shutdown_background();
            }
        });
        if linger.is_err()
            && let Some(runtime) = take(&shared)
        {
            // No thread to be had: locks end with their ttl.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

/// Why a blocking client cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting cannot work.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The system gives no thread or no event queue.
    #[error("the background runtime cannot be started; check the limits on threads and open files")]
    Runtime(#[source] std::io::Error),
}
