//! `redlock run`: a program under a lock, and neither without the other.
//!
//! ```text
//!   redlock ── acquires, keeps alive, passes signals on ──┐
//!      │ │                                                ▼
//!      │ └─ pipe ─▶ guardian     kills the group        ┌─ process group ───────────┐
//!      │            when redlock is gone, or frozen  ──▶│ shim, becomes the program │
//!      │            past the end of the validity        │   and all it starts       │
//!      └────────── TERM, grace, KILL on loss ──────────▶└───────────────────────────┘
//! ```
//!
//! What the program leaves running in its group is ended before the lock is given back, since it would go on without it. What
//! leaves the group (`setsid`) is out of reach, which is how a program starts something that is to outlive the lock.
//!
//! The end of the validity is the end: if an extension is not confirmed, TERM is sent early enough for KILL to come before it,
//! and if the loss is noticed late, after a suspend say, KILL is sent at once. What was written meanwhile is the fence's
//! business.

mod child;
mod group;
pub mod guardian;
pub mod shim;
mod terminal;

pub(crate) use self::child::stop_ourselves;
use self::child::{Child, Ended};
use crate::exit::{Exit, Failure, of_signal};
use crate::lock::{self, Locked, Taken};
use crate::options::{Common, RunOptions};
use crate::output::Output;
use crate::settings::Settings;
use crate::signals::Signals;
use redlock_core::{Clock as _, Guard, HoldState, KeepAlive, Moment, ReleaseOutcome, SystemClock};
use rustix::process::Signal;
use std::time::Duration;

/// The part of the ttl that is the grace time unless one is given.
const GRACE_PART: u32 = 4;

/// The part of the ttl from which an unconfirmed lock counts as about to be lost at the earliest: before that, renewals are
/// on their ordinary way.
const EARLY_PART: u32 = 3;

/// How long a killed group may take to be gone: a process in the middle of a system call that cannot be interrupted dies
/// when that ends.
const BURIAL_PATIENCE: Duration = Duration::from_secs(2);

/// Runs a program under a lock and gives the number with which the command ends.
///
/// # Errors
/// Why the program did not run, or was stopped.
///
/// # Cancel safety
/// Not to be dropped: the program would lose its supervisor.
pub async fn run(options: RunOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    let mut signals = Signals::listen()?;
    let Locked { redlock, guard, nodes_took } = match lock::take(&options.lock, &settings, &mut signals).await {
        Ok(Taken::Locked(locked)) => *locked,
        Ok(Taken::Interrupted(code)) => return Ok(code),
        Err(failure) if options.skip_if_held && failure.exit == Exit::Contended => return Ok(0),
        Err(failure) => return Err(failure),
    };
    guard.keep_alive(KeepAlive::default().max_hold(options.max_hold));
    let child = lock::calendar_in(options.max_hold).and_then(|deadline| {
        let names: Vec<&str> = guard.resources().iter().map(redlock_core::Resource::name).collect();
        let environment = [
            ("REDLOCK_FENCING_TOKEN", guard.token().get().to_string()),
            ("REDLOCK_RESOURCE", names.join("\n")),
            ("REDLOCK_DEADLINE", deadline.to_string()),
        ];
        Child::start(&options.command, &environment, SystemClock.now().after(guard.remaining()))
    });
    let outcome = match child {
        Ok(child) => {
            let ttl = lock::ttl(&options.lock, &settings);
            let watch = Watch::new(&guard, ttl, options.grace, *output);
            watch.until_over(child, &mut signals, options.leave_running).await
        }
        Err(failure) => Err(failure),
    };
    let release = guard.release().await;
    lock::settle(&redlock, nodes_took).await;
    let code = outcome?;
    if release.outcome == ReleaseOutcome::AlreadyGone {
        return Err(lost("it was gone when it was to be given back, so somebody else may have had it meanwhile"));
    }
    Ok(code)
}

fn lost(how: &str) -> Failure {
    Failure::new(Exit::Lost, format!("the lock was lost while the program ran: {how}"))
}

/// Why the group is being ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// The lock is lost, or cannot be kept.
    Lost(String),
    /// The program has ended and has left something running.
    LeftOver,
}

/// The end of a group: TERM has been sent, and KILL follows.
#[derive(Clone, Debug)]
struct Ending {
    why: Why,
    kill_at: Moment,
    killed_at: Option<Moment>,
}

/// Looks after a program while its lock lasts.
struct Watch<'a> {
    guard: &'a Guard,
    grace: Duration,
    /// With less validity than this, a program is told to end, so that there is time for it.
    too_little: Duration,
    /// How long before the end of the validity KILL is sent.
    margin: Duration,
    /// How often to look.
    period: Duration,
    valid_until: Moment,
    ending: Option<Ending>,
    output: Output,
}

impl<'a> Watch<'a> {
    fn new(guard: &'a Guard, ttl: Duration, grace: Option<Duration>, output: Output) -> Self {
        let grace = grace.unwrap_or(ttl / GRACE_PART);
        let margin = (ttl / 50).clamp(Duration::from_millis(5), Duration::from_millis(100));
        Self {
            guard,
            grace,
            too_little: grace.min(ttl / EARLY_PART) + margin,
            margin,
            period: (ttl / 50).clamp(Duration::from_millis(10), Duration::from_millis(200)),
            valid_until: SystemClock.now().after(guard.remaining()),
            ending: None,
            output,
        }
    }

    /// Waits until the program has ended, and with it, unless it may leave them, all processes of its group.
    async fn until_over(mut self, mut child: Child, signals: &mut Signals, leave: bool) -> Result<u8, Failure> {
        let mut ended = None;
        loop {
            self.look(&mut child);
            if ended.is_some() && self.is_over(&child, leave) {
                break;
            }
            tokio::select! {
                how = child.ended(), if ended.is_none() => ended = Some(how),
                signal = signals.next() => child.pass_on(signal),
                reason = self.guard.lost(), if !self.is_losing() => self.end(&child, Why::Lost(reason.to_string())),
                () = tokio::time::sleep(self.period) => {}
            }
        }
        let failure = child.bury(ended).await;
        if let Some(failure) = failure {
            return Err(failure);
        }
        match (self.ending, self.guard.state()) {
            (Some(Ending { why: Why::Lost(how), .. }), _) => Err(lost(&how)),
            (_, HoldState::Lost(reason)) => Err(lost(&reason.to_string())),
            _ => Ok(match ended.expect("the loop ends after the program has") {
                Ended::Code(code) => code,
                Ended::Signal(signal) => of_signal(signal),
            }),
        }
    }

    /// Notes how long the lock is valid, tells the guardian, and does what is due.
    fn look(&mut self, child: &mut Child) {
        let now = SystemClock.now();
        match self.guard.state() {
            HoldState::Held { remaining } | HoldState::Uncertain { remaining } => {
                self.valid_until = now.after(remaining);
                if remaining <= self.too_little && !self.is_losing() {
                    let how = format!("extending it was not confirmed, and it is valid for {remaining:.1?} only");
                    self.end(child, Why::Lost(how));
                }
            }
            HoldState::Lost(reason) if !self.is_losing() => self.end(child, Why::Lost(reason.to_string())),
            _ => {}
        }
        if !child.tell_guardian(self.valid_until) {
            self.output.notice(
                "guardian_gone",
                "the guardian process was ended by somebody; should redlock be killed now, what the program has started \
                 goes on without the lock",
            );
        }
        if let Some(ending) = &mut self.ending
            && ending.killed_at.is_none()
            && ending.kill_at <= now
        {
            child.group().signal(Signal::KILL);
            ending.killed_at = Some(now);
        }
    }

    fn is_losing(&self) -> bool {
        matches!(&self.ending, Some(Ending { why: Why::Lost(_), .. }))
    }

    /// Begins to end the group.
    fn end(&mut self, child: &Child, why: Why) {
        let now = SystemClock.now();
        let kill_at = match &why {
            // A program that has ended has no validity to be careful with: what it left is stopped, and the lock is kept
            // for as long as that takes.
            Why::LeftOver => now.after(self.grace),
            Why::Lost(_) => {
                let validity = self.valid_until.since(now).saturating_sub(self.margin);
                now.after(self.grace.min(validity))
            }
        };
        match &why {
            Why::LeftOver => self.output.notice(
                "left_running",
                "the program has ended and has left processes running; they are ended too (--leave-running lets them go on \
                 without the lock)",
            ),
            Why::Lost(how) => self.output.notice("stopping", &format!("stopping the program: {how}")),
        }
        child.group().signal(Signal::TERM);
        // One that was stopped would hear of it when it goes on.
        child.group().signal(Signal::CONT);
        self.ending = Some(Ending { why, kill_at, killed_at: None });
    }

    /// Whether nothing of the group is left to wait for, now that the program itself has ended.
    fn is_over(&mut self, child: &Child, leave: bool) -> bool {
        if (leave && !self.is_losing()) || child.group().is_empty() {
            return true;
        }
        match &self.ending {
            None => {
                self.end(child, Why::LeftOver);
                false
            }
            Some(Ending { killed_at: Some(killed_at), .. }) => BURIAL_PATIENCE < SystemClock.now().since(*killed_at),
            Some(_) => false,
        }
    }
}
