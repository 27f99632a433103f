//! What a crowd on one resource went through: from a list of grants to figures. Pure.

use super::figures::{as_f64, percentile};

/// One grant of one task. Nanoseconds on the clock that all processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Whose.
    pub task: usize,
    /// When it began to ask.
    pub asked: u64,
    /// When it had the lock.
    pub granted: u64,
    /// When it began to release it, before anything was sent.
    pub released: u64,
}

/// One run of a crowd.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// From the start to the last release, in microseconds; to the end of the time if somebody did not get the lock.
    pub total_us: f64,
    /// How many grants there were.
    pub grants: usize,
    /// How many were not had in time.
    pub failed: usize,
    /// From the moment before a release is sent to the moment another party has the lock, in microseconds, where somebody
    /// was waiting.
    pub handovers_us: Vec<f64>,
    /// How often somebody was waiting when the lock was released.
    pub releases: usize,
    /// How often it then went to the very task that had it before.
    pub to_oneself: usize,
    /// The longest wait as a multiple of the mean one.
    pub unfairness: Option<f64>,
    /// How often a grant began before the one before it had ended: two holders at once.
    pub overlaps: usize,
}

impl Run {
    /// Reads the figures from the grants, in any order, of a run that was to go on from `start` to `end` at most. Every
    /// `party` tasks are one party, such as a process; a lock that stays within one is not handed over.
    #[must_use]
    pub fn of(mut grants: Vec<Grant>, failed: usize, (start, end): (u64, u64), party: usize) -> Self {
        grants.sort_unstable_by_key(|grant| grant.granted);
        let last = grants.iter().map(|grant| grant.released).max().unwrap_or(end);
        let ended = if failed == 0 { last } else { end.max(last) };
        let mut run = Self {
            total_us: micros(start, ended),
            grants: grants.len(),
            failed,
            handovers_us: Vec::new(),
            releases: 0,
            to_oneself: 0,
            unfairness: unfairness(&grants, failed, end),
            overlaps: 0,
        };
        for pair in grants.windows(2) {
            let [before, after] = pair else { continue };
            if after.granted < before.released {
                run.overlaps += 1;
            } else if grants.iter().any(|other| other.asked < before.released && before.released <= other.granted) {
                if before.task / party.max(1) != after.task / party.max(1) {
                    run.handovers_us.push(micros(before.released, after.granted));
                }
                run.releases += 1;
                run.to_oneself += usize::from(before.task == after.task);
            }
        }
        run
    }

    /// The time that `share` of the hand-overs do not exceed.
    #[must_use]
    pub fn handover(&self, share: f64) -> Option<f64> {
        percentile(self.handovers_us.clone(), share)
    }

    /// How often a task took the lock back while others were waiting.
    #[must_use]
    pub fn to_oneself_share(&self) -> Option<f64> {
        (0 < self.releases).then(|| as_f64(self.to_oneself) / as_f64(self.releases))
    }
}

/// Whoever did not get the lock has waited to the end, at least; so giving up does not look like patience.
fn unfairness(grants: &[Grant], failed: usize, end: u64) -> Option<f64> {
    let mut waits: Vec<f64> = grants.iter().map(|grant| micros(grant.asked, grant.granted)).collect();
    let start = grants.iter().map(|grant| grant.asked).min()?;
    if 0 < failed {
        waits.push(micros(start, end));
    }
    let mean = waits.iter().sum::<f64>() / as_f64(waits.len());
    let longest = percentile(waits, 1.0)?;
    (0.0 < mean).then(|| longest / mean)
}

fn micros(from: u64, to: u64) -> f64 {
    std::time::Duration::from_nanos(to.saturating_sub(from)).as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn grant(task: usize, asked: u64, granted: u64, released: u64) -> Grant {
        Grant { task, asked: asked * 1_000, granted: granted * 1_000, released: released * 1_000 }
    }

    const TIME: (u64, u64) = (0, 100_000);

    #[test]
    fn a_hand_over_lasts_from_the_release_to_the_next_grant() {
        let run = Run::of(vec![grant(1, 0, 30, 40), grant(0, 0, 10, 20), grant(1, 41, 45, 50)], 0, TIME, 1);
        assert_eq!(run.total_us, 50.0);
        assert_eq!(run.handovers_us, [10.0], "nobody waited at 40");
        assert_eq!((run.to_oneself, run.overlaps, run.grants), (0, 0, 3));
    }

    #[test]
    fn whoever_takes_it_again_while_others_wait_hands_nothing_over() {
        let run = Run::of(vec![grant(0, 0, 10, 20), grant(0, 20, 21, 30), grant(1, 0, 50, 60)], 0, TIME, 1);
        assert_eq!(run.handovers_us, [20.0]);
        assert_eq!(run.to_oneself_share(), Some(0.5));
        assert_eq!(run.unfairness, Some(50.0 / (61.0 / 3.0)));
    }

    #[test]
    fn what_stays_within_a_party_is_not_handed_over() {
        let grants = vec![grant(0, 0, 10, 20), grant(1, 0, 21, 30), grant(2, 0, 33, 40)];
        let run = Run::of(grants, 0, TIME, 2);
        assert_eq!(run.handovers_us, [3.0]);
        assert_eq!((run.releases, run.to_oneself), (2, 0));
    }

    #[test]
    fn two_holders_at_once_are_seen() {
        assert_eq!(Run::of(vec![grant(0, 0, 10, 20), grant(1, 0, 19, 30)], 0, TIME, 1).overlaps, 1);
    }

    #[test]
    fn whoever_gives_up_has_waited_to_the_end() {
        let run = Run::of(vec![grant(0, 0, 10, 20)], 1, TIME, 1);
        assert_eq!((run.total_us, run.failed), (100.0, 1));
        assert_eq!(run.unfairness, Some(100.0 / 55.0));
        assert_eq!(Run::of(Vec::new(), 3, TIME, 1).unfairness, None);
    }
}
