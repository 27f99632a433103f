//! The signals that end a wait, and that are passed on to a program.
//!
//! A signal that was ignored when the command began (`nohup`) stays ignored, for the command and for its program.

use crate::exit::{Exit, Failure};
use rustix::process::Signal;
use std::future::poll_fn;
use std::task::Poll;
use tokio::signal::unix::{SignalKind, signal};

/// Those that are listened to, in the order in which they are looked for.
const HEARD: [Signal; 8] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::TSTP, Signal::USR1, Signal::USR2, Signal::WINCH];

/// Signals that come in from now on.
#[derive(Debug)]
pub struct Signals {
    heard: Vec<(Signal, tokio::signal::unix::Signal)>,
}

impl Signals {
    /// Begins to listen. From now on these signals do not end this process any more.
    ///
    /// # Errors
    /// [`Exit::CannotStart`] if the system does not let us.
    pub fn listen() -> Result<Self, Failure> {
        let ignored = ignored();
        let listen = |name: &Signal| {
            let stream = signal(SignalKind::from_raw(name.as_raw()))
                .map_err(|error| Failure::caused(Exit::CannotStart, "signals cannot be listened to", &error))?;
            Ok::<_, Failure>((*name, stream))
        };
        let heard = HEARD.iter().filter(|signal| !is_in(ignored, signal.as_raw()));
        Ok(Self { heard: heard.map(listen).collect::<Result<_, Failure>>()? })
    }

    /// The next signal.
    ///
    /// # Cancel safety
    /// No signal is lost.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (name, stream) in &mut self.heard {
                if stream.poll_recv(context) == Poll::Ready(Some(())) {
                    return Poll::Ready(*name);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks a process to end. One that asks it to stop (Ctrl-Z) is obeyed meanwhile.
    ///
    /// # Cancel safety
    /// As [`Signals::next`].
    pub async fn next_to_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if matches!(signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT) {
                return signal;
            }
            if signal == Signal::TSTP {
                crate::run::stop_ourselves();
            }
        }
    }
}

/// The mask of signals that this process ignores; none where the system does not say.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(mask: u64, signal: i32) -> bool {
    u32::try_from(signal - 1).ok().and_then(|bit| 1_u64.checked_shl(bit)).is_some_and(|bit| mask & bit != 0)
}
