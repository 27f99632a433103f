//! The floor below which a new token must not fall, and where it comes from.
//!
//! Counters that have drifted apart agree again after one grant, because every node sets its counter above one common
//! floor; and a node, or a whole deployment, that was wiped does not start again at 1, which would make the database
//! refuse every write. No promise about tokens rests on the floor being right: a wrong one costs the healing, no more.

use crate::resource::Resources;
use crate::tally::quorum_of;
use crate::token::FencingToken;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Resources whose highest token a client remembers; the ones granted longest ago are forgotten first.
const REMEMBERED_MAX: usize = 4_096;

/// The highest tokens that this client was granted, per resource.
#[derive(Debug, Default)]
pub(crate) struct HighestTokens(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    tokens: HashMap<Box<str>, FencingToken>,
    order: VecDeque<Box<str>>,
}

impl HighestTokens {
    pub(crate) fn remember(&self, resources: &Resources, token: FencingToken) {
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Remembered { tokens, order } = &mut *remembered;
        for resource in resources {
            if let Some(highest) = tokens.get_mut(resource.name()) {
                *highest = token.max(*highest);
                continue;
            }
            if REMEMBERED_MAX <= order.len()
                && let Some(oldest) = order.pop_front()
            {
                tokens.remove(&oldest);
            }
            tokens.insert(resource.name().into(), token);
            order.push_back(resource.name().into());
        }
    }

    pub(crate) fn highest(&self, resources: &Resources) -> Option<FencingToken> {
        let remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        resources.iter().filter_map(|resource| remembered.tokens.get(resource.name())).max().copied()
    }
}

/// The nodes' calendar time in microseconds since 1970, such that no minority of nodes with a wrong calendar can push
/// it into the future: of the times that are known, the greatest that is not above all times of a correct majority.
///
/// `None` if so few are known that a wrong one could not be told.
pub(crate) fn nodes_time(times: impl IntoIterator<Item = Option<Duration>>) -> Option<u64> {
    let times: Vec<Option<Duration>> = times.into_iter().collect();
    let may_be_wrong = times.len() - quorum_of(times.len());
    let mut known: Vec<Duration> = times.into_iter().flatten().collect();
    known.sort_unstable();
    let position = known.len().checked_sub(may_be_wrong + 1)?;
    u64::try_from(known[position].as_micros()).ok()
}

/// Puts both together; zero is no floor at all. A value that would leave no room for tokens above it is dropped.
pub(crate) fn floor(highest: Option<FencingToken>, time: Option<u64>) -> u64 {
    let highest = highest.map_or(0, FencingToken::as_counter);
    let time = time.filter(|time| *time < FencingToken::MAX.as_counter() / 2).unwrap_or(0);
    mutant!("floor ignored", highest.max(time), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::IntoResources as _;

    fn token(value: i64) -> FencingToken {
        FencingToken::assume_granted(value).unwrap()
    }

    fn check_time(seconds: &[u64], expected: Option<u64>) {
        let times = seconds.iter().map(|seconds| (*seconds != 0).then(|| Duration::from_secs(*seconds)));
        assert_eq!(nodes_time(times), expected.map(|seconds| seconds * 1_000_000), "{seconds:?}");
    }

    #[test]
    fn a_minority_with_a_wrong_calendar_does_not_move_the_floor_into_the_future() {
        check_time(&[100, 100, 100, 100, 100], Some(100));
        check_time(&[100, 101, 102, 900, 901], Some(102));
        check_time(&[100, 0, 0, 900, 901], Some(100));
        check_time(&[100, 101, 0, 900, 901], Some(101));
        check_time(&[0, 0, 0, 900, 901], None);
        check_time(&[100], Some(100));
        check_time(&[0], None);
    }

    #[test]
    fn the_floor_is_the_greater_of_both_and_leaves_room() {
        assert_eq!(floor(None, None), 0);
        assert_eq!(floor(Some(token(7)), None), 7);
        assert_eq!(floor(Some(token(7)), Some(9)), 9);
        assert_eq!(floor(Some(token(7)), Some(u64::MAX)), 7);
    }

    #[test]
    fn the_highest_token_of_all_resources_counts_and_never_falls() {
        let tokens = HighestTokens::default();
        let both = ["a", "b"].into_resources().unwrap();
        tokens.remember(&"a".into_resources().unwrap(), token(5));
        tokens.remember(&"b".into_resources().unwrap(), token(3));
        tokens.remember(&"a".into_resources().unwrap(), token(4));
        assert_eq!(tokens.highest(&both), Some(token(5)));
        assert_eq!(tokens.highest(&"c".into_resources().unwrap()), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let tokens = HighestTokens::default();
        for n in 0..=REMEMBERED_MAX {
            tokens.remember(&n.to_string().into_resources().unwrap(), token(1));
        }
        assert_eq!(tokens.highest(&"0".into_resources().unwrap()), None);
        assert_eq!(tokens.highest(&"1".into_resources().unwrap()), Some(token(1)));
    }
}
