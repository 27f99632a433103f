//! One simulated process: a client and its tasks on a runtime of their own, whose time stands still until the world says
//! how far it may go.
//!
//! Because the client's own background tasks live there too, a process that is stopped stops as a whole, at whichever await
//! its tasks are, and finds all its deadlines passed and all its mail unread when it goes on.
//!
//! Between [`super::world`], which owns the time, and [`super::workload`], which is what runs in here.

use super::audit::Watched;
use super::history::History;
use super::plan::Millis;
use super::remote::{Destination, Reply, Request};
use redlock_core::{Clock, Moment, NodeError};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// What a stopped process is like when it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pause {
    /// Timers and clock have gone on: the process was not scheduled.
    Stopped,
    /// The clock has gone on, the timers have not: the machine slept.
    Suspended,
    /// Neither has.
    Standing,
}

#[derive(Debug)]
pub(crate) enum Condition {
    Running,
    Paused { until: Millis, since: Millis, how: Pause },
    Dead { until: Millis },
}

/// A request on its way out.
#[derive(Debug)]
pub(crate) struct Emission {
    pub(crate) at: Millis,
    pub(crate) to: Destination,
    pub(crate) request: Request,
    pub(crate) sender: oneshot::Sender<Answer>,
}

/// What comes back for one request.
pub(crate) type Answer = Result<Reply, NodeError>;

/// Something that arrives.
#[derive(Debug)]
pub(crate) enum Delivery {
    Answer {
        sender: oneshot::Sender<Answer>,
        answer: Answer,
        calendar: Option<(usize, Duration)>,
    },
    WakeUp {
        server: usize,
        listener: Arc<str>,
        ticket: u64,
    },
    /// The connection over which wake-ups came is gone.
    Deaf {
        server: usize,
    },
}

/// What the parts of a process, and the world, share.
pub(crate) struct Shared {
    pub(crate) number: usize,
    pub(crate) incarnation: u64,
    origin: Instant,
    timing: Mutex<Timing>,
    dead: AtomicBool,
    outbox: Mutex<Vec<Emission>>,
    root: Mutex<Option<Waker>>,
    pause_asked: AtomicU64,
    /// How often it has been paused; whoever measures looks whether that has happened meanwhile.
    pub(crate) pauses: AtomicU64,
    pub(crate) resumed_at: AtomicU64,
    /// The storm is over: finish what is under way and begin nothing new.
    pub(crate) winding_down: Arc<AtomicBool>,
    pub(crate) tasks_left: AtomicUsize,
    pub(crate) watched: Mutex<Vec<Watched>>,
    pub(crate) calendars: Mutex<Vec<Option<(Duration, Moment)>>>,
    pub(crate) ears: Mutex<Vec<super::remote::Ear>>,
    pub(crate) orders: Vec<AtomicU64>,
    pub(crate) history: Arc<Mutex<History>>,
}

/// How the process's time relates to the world's.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// The world's time at which the runtime's began, later by every time for which the runtime stood still.
    offset: Millis,
    /// What the clock showed at some time of the world, in microseconds, and how fast it is, in parts per million.
    shown_micros: u64,
    at: Millis,
    ppm: i64,
}

impl Shared {
    /// The world's time, as far as this process has come in it.
    pub(crate) fn now(&self) -> Millis {
        let elapsed = self.origin.elapsed();
        self.timing().offset + super::plan::millis(elapsed)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Hands a request over to the world.
    pub(crate) fn emit(&self, to: Destination, request: Request, sender: oneshot::Sender<Answer>) {
        if self.is_dead() {
            return;
        }
        lock(&self.outbox).push(Emission { at: self.now(), to, request, sender });
        self.wake_root();
    }

    /// Asks the world to pause this process, now.
    pub(crate) fn ask_for_pause(&self, duration: Millis) {
        self.pause_asked.store(duration, Ordering::Relaxed);
        self.wake_root();
    }

    /// How long `span` of the clock lasts in the world.
    pub(crate) fn in_world(&self, span: Duration) -> Millis {
        let micros = i128::try_from(span.as_micros()).unwrap_or(i128::MAX);
        let ppm = i128::from(self.timing().ppm);
        u64::try_from(micros * 1_000_000 / (1_000_000 + ppm) / 1_000).unwrap_or(u64::MAX)
    }

    fn timing(&self) -> MutexGuard<'_, Timing> {
        lock(&self.timing)
    }

    fn wake_root(&self) {
        if let Some(root) = lock(&self.root).take() {
            root.wake();
        }
    }

    /// Runs until `limit`, or until the world has something to do.
    async fn until(&self, limit: Millis) {
        let wait = limit.saturating_sub(self.now());
        let mut time = pin!(tokio::time::sleep(Duration::from_millis(wait)));
        poll_fn(|cx| {
            if !lock(&self.outbox).is_empty() || self.pause_asked.load(Ordering::Relaxed) != 0 {
                return Poll::Ready(());
            }
            *lock(&self.root) = Some(cx.waker().clone());
            time.as_mut().poll(cx)
        })
        .await;
    }
}

impl Clock for Shared {
    fn now(&self) -> Moment {
        let now = Self::now(self);
        let Timing { shown_micros, at, ppm, .. } = *self.timing();
        let passed = i128::from(now.saturating_sub(at)) * (1_000_000 + i128::from(ppm)) / 1_000;
        let micros = shown_micros + u64::try_from(passed).unwrap_or(0);
        Moment::from_origin(Duration::from_micros(micros))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("number", &self.number).field("incarnation", &self.incarnation).finish()
    }
}

/// A process as the world drives it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) shared: Arc<Shared>,
    pub(crate) condition: Condition,
    pub(crate) inbox: VecDeque<Delivery>,
    runtime: Runtime,
    /// For how long the timers are behind.
    behind: Millis,
    mail_first: bool,
}

/// What a new process is like.
#[derive(Debug)]
pub(crate) struct Birth {
    pub(crate) number: usize,
    pub(crate) incarnation: u64,
    pub(crate) at: Millis,
    pub(crate) ppm: i64,
    /// Nobody's clock begins at the same point.
    pub(crate) clock_micros: u64,
    pub(crate) servers: usize,
    pub(crate) winding_down: Arc<AtomicBool>,
    pub(crate) history: Arc<Mutex<History>>,
}

impl Process {
    pub(crate) fn born(birth: Birth) -> Self {
        let Birth { number, incarnation, at, ppm, clock_micros, servers, winding_down, history } = birth;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without threads and sockets needs nothing that can fail");
        let origin = {
            let _inside = runtime.enter();
            Instant::now()
        };
        let shared = Arc::new(Shared {
            number,
            incarnation,
            origin,
            timing: Mutex::new(Timing { offset: at, shown_micros: clock_micros, at, ppm }),
            dead: AtomicBool::new(false),
            outbox: Mutex::default(),
            root: Mutex::default(),
            pause_asked: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            resumed_at: AtomicU64::new(0),
            winding_down,
            tasks_left: AtomicUsize::new(0),
            watched: Mutex::default(),
            calendars: Mutex::new(vec![None; servers]),
            ears: Mutex::new((0..servers).map(|_| super::remote::Ear::default()).collect()),
            orders: (0..servers).map(|_| AtomicU64::new(0)).collect(),
            history,
        });
        let (condition, inbox) = (Condition::Running, VecDeque::new());
        Self { shared, condition, inbox, runtime, behind: 0, mail_first: false }
    }

    /// Starts a task of the process's own.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.shared.tasks_left.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(async move {
            task.await;
            shared.tasks_left.fetch_sub(1, Ordering::Relaxed);
        });
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.condition, Condition::Running)
    }

    /// Lets the process go on until `limit` by the world's time, or until it sends something; gives what it sends.
    pub(crate) fn run_to(&mut self, limit: Millis) -> Vec<Emission> {
        let (shared, behind, mail_first) = (&*self.shared, std::mem::take(&mut self.behind), self.mail_first);
        let inbox = &mut self.inbox;
        self.runtime.block_on(async {
            if 0 < behind && !mail_first {
                tokio::time::advance(Duration::from_millis(behind)).await;
            }
            for delivery in inbox.drain(..) {
                shared.receive(delivery);
            }
            if 0 < behind && mail_first {
                tokio::time::advance(Duration::from_millis(behind)).await;
            }
            shared.until(limit).await;
            super::audit::look(shared);
        });
        std::mem::take(&mut *lock(&self.shared.outbox))
    }

    /// Whether it has come as far as it may.
    pub(crate) fn has_reached(&self, limit: Millis) -> bool {
        limit <= self.now()
    }

    fn now(&self) -> Millis {
        let _inside = self.runtime.enter();
        self.shared.now()
    }

    /// The pause that it has asked for itself.
    pub(crate) fn pause_asked(&self) -> Option<Millis> {
        match self.shared.pause_asked.swap(0, Ordering::Relaxed) {
            0 => None,
            duration => Some(duration),
        }
    }

    pub(crate) fn pause(&mut self, until: Millis, how: Pause) {
        // It may be stopped again before it has made up for the time it missed.
        let since = self.now() + self.behind;
        self.condition = Condition::Paused { until, since, how };
    }

    /// Lets a paused process go on at `now`.
    pub(crate) fn resume(&mut self, now: Millis, mail_first: bool) {
        let Condition::Paused { since, how, .. } = self.condition else { return };
        let missed = now.saturating_sub(since);
        self.mail_first = mail_first;
        let mut timing = self.shared.timing();
        match how {
            Pause::Stopped => self.behind += missed,
            Pause::Suspended => timing.offset += missed,
            Pause::Standing => {
                timing.offset += missed;
                timing.at += missed;
            }
        }
        drop(timing);
        self.shared.resumed_at.store(now, Ordering::Relaxed);
        self.condition = Condition::Running;
    }

    /// Ends the process as a signal does that it cannot catch: nothing leaves it any more.
    pub(crate) fn kill(&self) {
        self.shared.dead.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
