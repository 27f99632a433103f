//! P7: the holder is told that its lock is lost no later than the end of its validity, by its own clock.
//!
//! Two ways to be told. To look: exact, as the look reads the same clock, so a look after the end that says *held* is a
//! violation whatever else happened. And the signal: it needs the process to run, so the time for which it was frozen does not
//! count, and a busy machine gets a second.
//!
//! Judged for locks that are not extended in the background, whose end is known from the outside.

use super::Finding;
use crate::history::{History, Micros};
use crate::life::{Hold, Life};

/// How late the signal may be on a busy machine: far less than a lock's life.
const SIGNAL_LATE_MAX: Micros = 1_000_000;

/// By so much the end of the validity may be known wrongly.
const READING: Micros = 2_000;

/// Looks at every hold whose end is known.
#[must_use]
pub fn check(history: &History, lives: &[Life]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for life in lives {
        let Some(hold) = life.hold.as_ref().filter(|hold| !hold.granted.kept) else { continue };
        let end = hold.granted.valid_until;
        let mut find = |at, what| {
            let resource = life.resource.clone();
            findings.push(Finding { promise: "P7".into(), at, resource, what, excuse: None });
        };
        for (at, held) in &hold.looks {
            if *held && end + READING < *at {
                find(
                    *at,
                    format!("a look {} ms after the end of the validity says that it is held", (at - end) / 1_000),
                );
            }
        }
        let heard = hold.lost.map(|(at, _)| at);
        // Whoever released or was killed before did not have to be told.
        let Some(at) = heard.or(last_sign(hold)) else { continue };
        let late = at.saturating_sub(end).saturating_sub(history.frozen(life.client, end, at));
        if SIGNAL_LATE_MAX < late {
            let how = if heard.is_some() { "came" } else { "had not come" };
            find(at, format!("the signal of the loss {how} {} ms after the end of the validity", late / 1_000));
        }
    }
    findings
}

/// The last moment at which the holder is known to have been there and at work under the lock.
fn last_sign(hold: &Hold) -> Option<Micros> {
    let answers = hold.writes.iter().filter_map(|write| write.answer.as_ref().map(|(at, _)| *at));
    let looks = hold.looks.iter().map(|(at, _)| *at);
    hold.released.or_else(|| answers.chain(looks).max())
}

#[cfg(test)]
mod tests {
    use super::super::story::{S, Story};
    use super::*;
    use crate::fault::{Kind, Target};
    use crate::history::Said;
    use crate::life::lives;

    fn check(story: Story) -> Vec<Finding> {
        super::check(&story.0, &lives(&story.0))
    }

    /// Valid until 2.5 s.
    fn held() -> Story {
        Story::default().grant(1, S, S + 10, 5)
    }

    fn lost() -> Said {
        Said::Lost { why: "its validity is over".into(), expired: true }
    }

    #[test]
    fn a_look_that_says_held_after_the_end_is_found() {
        let look = |at| held().line(at, 1, Said::Looked { held: true, valid_until: 5 * S / 2 });
        assert_eq!(check(look(2 * S)), []);
        assert!(check(look(5 * S / 2 + 10_000))[0].what.contains("a look 10 ms after"));
    }

    #[test]
    fn a_late_signal_is_found_and_one_in_time_is_not() {
        assert_eq!(check(held().line(5 * S / 2 + 5_000, 1, lost())), []);
        assert!(check(held().line(4 * S, 1, lost()))[0].what.contains("came 1500 ms after"));
    }

    #[test]
    fn a_signal_that_never_came_is_found() {
        assert_eq!(check(held().release(1, 2 * S)), []);
        assert!(check(held().release(1, 4 * S))[0].what.contains("had not come 1500 ms after"));
    }

    #[test]
    fn a_frozen_process_is_told_when_it_runs_again() {
        let freeze = |client| held().fault(Kind::FreezeClient, Target::Client(client), 2 * S, 4 * S);
        assert_eq!(check(freeze(1).line(4 * S + 5_000, 1, lost())), []);
        assert_eq!(check(freeze(2).line(4 * S + 5_000, 1, lost())).len(), 1);
    }
}
