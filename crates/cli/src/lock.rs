//! Takes a lock for a command: opens the nodes, waits as long as was asked for, and leaves nothing behind if it comes to
//! nothing.

use crate::exit::{Exit, Failure, of_signal};
use crate::options::LockOptions;
use crate::quorum;
use crate::settings::Settings;
use crate::signals::Signals;
use redlock_core::{AcquireError, Guard, Redlock};
use std::time::Duration;
use tokio::time::Instant;

/// How long a command waits, before it ends, for what goes on in the background (releases, and late answers): so many times as
/// long as a quorum took to answer at first, within these limits. A node that is down or frozen is not waited for any longer;
/// what was sent to it lies in its buffers, in order.
const SETTLE_TIMES: u32 = 10;
const SETTLE_PATIENCE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// A lock, and the client that holds it.
#[derive(Debug)]
pub struct Locked {
    /// The client.
    pub redlock: Redlock,
    /// The lock.
    pub guard: Guard,
    /// How long a quorum of nodes took to answer at first.
    pub nodes_took: Duration,
}

/// How the wait for a lock ended.
#[derive(Debug)]
pub enum Taken {
    /// With the lock.
    Locked(Box<Locked>),
    /// With a signal; the number is what the command ends with. Nothing is left behind.
    Interrupted(u8),
}

/// The terms of a request, with what the settings say where nothing was typed.
#[must_use]
pub fn ttl(options: &LockOptions, settings: &Settings) -> Duration {
    options.ttl.unwrap_or(settings.ttl)
}

/// Waits for a lock.
///
/// # Errors
/// Why it was not granted, with what every node said.
///
/// # Cancel safety
/// What was taken is given back if the runtime runs on.
pub async fn take(options: &LockOptions, settings: &Settings, signals: &mut Signals) -> Result<Taken, Failure> {
    let nodes = quorum::open(settings)?;
    let redlock = quorum::builder(settings, nodes.clone(), ttl(options, settings)).build()?;
    let wait = match options.no_wait {
        true => Duration::ZERO,
        false => options.wait.unwrap_or(settings.wait),
    };
    let (began, request) = (Instant::now(), redlock.request(options.resources.as_slice()));
    let (mut interrupted, mut nodes_took) = (None, Duration::ZERO);
    let acquired = {
        let interrupt = async { interrupted = Some(signals.next_to_end().await) };
        tokio::select! {
            biased;
            () = interrupt => Err(AcquireError::Cancelled { attempts: 0 }),
            acquired = async {
                nodes_took = quorum::warm_up(&nodes).await;
                // Connecting is waiting, too, and leaves time for one attempt at the least.
                request.wait(wait.saturating_sub(began.elapsed())).acquire().await
            } => acquired,
        }
    };
    match acquired {
        Ok(guard) => Ok(Taken::Locked(Box::new(Locked { redlock, guard, nodes_took }))),
        Err(error) => {
            settle(&redlock, nodes_took).await;
            match interrupted {
                Some(signal) => Ok(Taken::Interrupted(of_signal(signal.as_raw()))),
                None => Err(error.into()),
            }
        }
    }
}

/// Waits for what goes on in the background, within reason: as nodes that took so long to answer deserve.
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn settle(redlock: &Redlock, nodes_took: Duration) {
    let patience = nodes_took.saturating_mul(SETTLE_TIMES).clamp(SETTLE_PATIENCE.0, SETTLE_PATIENCE.1);
    // What is not done by then ends with its ttl.
    let _ = tokio::time::timeout(patience, redlock.settled()).await;
}

/// A moment of the calendar, as whole seconds since 1970, so that a shell can compare it with `date +%s`.
///
/// The calendar is asked for people and programs that have no other clock in common with us; nothing here relies on it.
///
/// # Errors
/// [`Exit::CannotStart`] if the calendar stands before 1970.
pub fn calendar_in(time: Duration) -> Result<u64, Failure> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec)
        .map_err(|_| Failure::new(Exit::CannotStart, "this machine's calendar stands before 1970; set it"))?;
    Ok(seconds.saturating_add(time.as_secs()))
}
