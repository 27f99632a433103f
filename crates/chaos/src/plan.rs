//! Which fault hits whom, when, and for how long: all of it from one seed.
//!
//! Pure. What the operating system makes of it (how long a start takes, who runs first) is not decided here, so one seed
//! gives one plan and not one history. Kinds are dealt like cards, so that each comes about as often as it should. One target has
//! one fault at a time, and as a rule no more than two nodes have one, so that a quorum is there to make mistakes with.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::fault::{Database, Kind, Target};

/// How many servers there are.
pub const NODES: usize = 5;

/// How many client processes there are.
pub const CLIENTS: usize = 4;

/// The last part of a run, in which nothing is done any more: what is left by then has to be gone, and somebody has to win.
pub const CALM: Duration = Duration::from_secs(8);

/// The pause between the beginnings of two faults, in milliseconds from and to.
const PAUSE: (u64, u64) = (120, 700);

/// How many nodes have a fault at once, as a rule and at most.
const NODES_AT_ONCE: (usize, usize) = (2, 3);

/// How often the rule is broken.
const BROKEN_PERCENT: u64 = 12;

/// One fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// What.
    pub kind: Kind,
    /// Whom.
    pub target: Target,
    /// When, from the beginning of the run.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
    /// A number between 0 and 99 for what the kind leaves open, such as the direction.
    pub variant: u64,
}

/// All faults of a run of this length, in the order of their beginnings.
#[must_use]
pub fn plan(seed: u64, length: Duration, kinds: &[Kind]) -> Vec<Planned> {
    let mut dice = Dice::new(seed);
    let end = length.saturating_sub(CALM);
    let mut busy: BTreeMap<Target, Duration> = BTreeMap::new();
    let mut planned = Vec::new();
    let mut deck = Vec::new();
    let mut at = Duration::from_secs(1);
    while at < end && !kinds.is_empty() {
        if deck.is_empty() {
            deck = kinds.iter().flat_map(|kind| std::iter::repeat_n(*kind, kind.cards())).collect();
            dice.shuffle(&mut deck);
        }
        // Drawn whether or not they are used, so that what comes later does not hang on it.
        let broken = dice.percent(BROKEN_PERCENT);
        let (pause, variant) = (dice.millis(PAUSE.0, PAUSE.1), dice.below(100));
        let kind = *deck.last().expect("it was filled");
        let (from, to) = kind.lasts();
        let lasts = dice.millis(from, to);
        let first = dice.position(NODES.max(CLIENTS));

        let nodes_at_once = if broken { NODES_AT_ONCE.1 } else { NODES_AT_ONCE.0 };
        match free_target(kind, first, at, &busy, nodes_at_once) {
            Some(target) if at + lasts < end => {
                deck.pop();
                busy.insert(target, at + lasts);
                planned.push(Planned { kind, target, at, lasts, variant });
            }
            // Not now; the card stays on top.
            _ => {}
        }
        at += pause;
    }
    planned
}

/// Whom a kind could hit now, beginning with the one whose turn it is.
fn free_target(
    kind: Kind,
    first: usize,
    at: Duration,
    busy: &BTreeMap<Target, Duration>,
    nodes_at_once: usize,
) -> Option<Target> {
    let is_free = |target: &Target| busy.get(target).is_none_or(|until| *until <= at);
    let turns = |count: usize| (0..count).map(move |turn| (first + turn) % count);
    match kind {
        Kind::KillPostgres => Some(Target::Database(Database::Postgres)).filter(is_free),
        Kind::KillMariaDb => Some(Target::Database(Database::MariaDb)).filter(is_free),
        Kind::BusySqlite => Some(Target::Database(Database::Sqlite)).filter(is_free),
        Kind::FreezeClient | Kind::KillClient => turns(CLIENTS).map(Target::Client).find(is_free),
        _ => {
            let now = (0..NODES).filter(|node| !is_free(&Target::Node(*node))).count();
            turns(NODES).map(Target::Node).find(|target| now < nodes_at_once && is_free(target))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(110);

    #[test]
    fn a_seed_decides_the_plan() {
        assert_eq!(plan(1, LENGTH, &Kind::ALL), plan(1, LENGTH, &Kind::ALL));
        assert_ne!(plan(1, LENGTH, &Kind::ALL), plan(2, LENGTH, &Kind::ALL));
    }

    #[test]
    fn every_kind_comes_about_as_often_as_it_has_cards() {
        for seed in 0..20 {
            let planned = plan(seed, LENGTH, &Kind::ALL);
            let rounds = Kind::ALL.map(|kind| {
                let count = planned.iter().filter(|fault| fault.kind == kind).count();
                (count / kind.cards(), count.div_ceil(kind.cards()))
            });
            let least = rounds.iter().map(|(whole, _)| *whole).min().unwrap();
            let most = rounds.iter().map(|(_, begun)| *begun).max().unwrap();
            assert!(3 <= least, "seed {seed}: {rounds:?}");
            assert!(most - least <= 1, "seed {seed}: {rounds:?}");
        }
    }

    #[test]
    fn a_target_has_one_fault_at_a_time_and_the_end_is_calm() {
        for seed in 0..20 {
            let planned = plan(seed, LENGTH, &Kind::ALL);
            for (index, fault) in planned.iter().enumerate() {
                assert!(fault.at + fault.lasts < LENGTH - CALM, "{fault:?}");
                let later = planned[index + 1..].iter();
                let mut clashes =
                    later.filter(|other| other.target == fault.target && other.at < fault.at + fault.lasts);
                assert_eq!(clashes.next(), None, "{fault:?}");
            }
        }
    }

    #[test]
    fn a_majority_of_the_nodes_is_hit_at_once_now_and_then_and_never_more_than_three() {
        let most = (0..20).map(|seed| {
            let planned = plan(seed, LENGTH, &Kind::ALL);
            let at = |moment| {
                let going_on = planned.iter().filter(|fault| fault.at <= moment && moment < fault.at + fault.lasts);
                going_on.filter(|fault| matches!(fault.target, Target::Node(_))).count()
            };
            planned.iter().map(|fault| at(fault.at)).max().unwrap()
        });
        assert_eq!(most.max(), Some(3));
    }
}
