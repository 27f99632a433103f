//! All of it at once: the history of each resource is that of a fenced lock which does one thing at a time.
//!
//! The specification is the smallest object that could be behind it: a number of the last token issued, and a number of the
//! last token that the fence has let pass. A grant carries a greater token than any before; a write passes if no greater
//! token has passed before it, and a refusal names the token that stands there. An order of all operations has to exist that
//! agrees with this and with time: what had ended before something else began comes before it. stateright's
//! `LinearizabilityTester` looks for it.
//!
//! A write that nobody heard the answer of may have happened at any later time, or not at all.
//!
//! The search is exponential at worst, so a history is cut where nothing is going on. That loses nothing: both numbers only
//! grow, so they are the same in every order of what lies before the cut; and a write with an unknown end is carried over.

use std::collections::BTreeMap;

use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use super::Finding;
use crate::history::{History, Micros, Outcome};
use crate::life::Life;

/// The fenced lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct FencedLock {
    issued: i64,
    passed: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Acquire,
    Write { token: i64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    Granted { token: i64 },
    Applied,
    Stale { highest: i64 },
}

impl SequentialSpec for FencedLock {
    type Op = Call;
    type Ret = Return;

    /// One of the answers there could be; used for operations without an answer only.
    fn invoke(&mut self, call: &Call) -> Return {
        match call {
            Call::Acquire => {
                self.issued += 1;
                Return::Granted { token: self.issued }
            }
            Call::Write { token } if *token < self.passed => Return::Stale { highest: self.passed },
            Call::Write { token } => {
                self.passed = *token;
                Return::Applied
            }
        }
    }

    fn is_valid_step(&mut self, call: &Call, answer: &Return) -> bool {
        match (call, answer) {
            (Call::Acquire, Return::Granted { token }) => {
                let above = self.issued < *token;
                self.issued = *token;
                above
            }
            (Call::Write { .. }, answer) => self.invoke(call) == *answer,
            (Call::Acquire, _) => false,
        }
    }
}

/// One operation; without an end, nobody knows whether it happened.
#[derive(Debug, Clone, Copy)]
struct Operation {
    from: Micros,
    end: Option<(Micros, Return)>,
    call: Call,
}

/// The most operations between two cuts that are looked at. Beyond it the search may take for ever, which is a finding too.
const PIECE_MAX: usize = 400;

/// How much stack the search gets: it recurses once per operation.
const STACK_BYTES: usize = 256 << 20;

/// Looks at each resource. Grants that are out of order with an excuse are left out, `known`; what was written under them is
/// not.
#[must_use]
pub fn check(history: &History, lives: &[Life], known: &[Finding]) -> Vec<Finding> {
    if !history.setup.fenced {
        // There is no fence whose answers could be judged.
        return Vec::new();
    }
    let search = || {
        let pieces = operations(lives, known).into_iter();
        pieces.flat_map(|(resource, operations)| judge(resource, operations)).collect()
    };
    std::thread::scope(|scope| {
        let search = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, search);
        search.expect("the system has room for one more thread").join().expect("the search does not panic")
    })
}

fn operations<'a>(lives: &'a [Life], known: &[Finding]) -> BTreeMap<&'a str, Vec<Operation>> {
    let mut by_resource: BTreeMap<&str, Vec<Operation>> = BTreeMap::new();
    for life in lives {
        let Some(hold) = &life.hold else { continue };
        let operations = by_resource.entry(&life.resource).or_default();
        let token = hold.granted.token;
        let excused = known
            .iter()
            .any(|finding| !finding.is_violation() && finding.at == hold.at && finding.resource == life.resource);
        if !excused {
            let end = Some((hold.at, Return::Granted { token }));
            operations.push(Operation { from: hold.granted.attempt_began, end, call: Call::Acquire });
        }
        for write in &hold.writes {
            let end = match &write.answer {
                Some((at, Outcome::Applied)) => Some((*at, Return::Applied)),
                Some((at, Outcome::Stale { highest })) => Some((*at, Return::Stale { highest: *highest })),
                // It says so itself: nothing was written.
                Some((_, Outcome::Failed { .. })) => continue,
                Some((_, Outcome::Unknown { .. })) | None => None,
            };
            operations.push(Operation { from: write.from, end, call: Call::Write { token } });
        }
    }
    by_resource
}

fn judge(resource: &str, mut operations: Vec<Operation>) -> Vec<Finding> {
    operations.sort_by_key(|operation| operation.from);
    let mut state = FencedLock::default();
    let mut open: Vec<Operation> = Vec::new();
    let mut piece: Vec<Operation> = Vec::new();
    let mut quiet_from = 0;
    let mut findings = Vec::new();
    let mut cut = |piece: &mut Vec<Operation>, open: &mut Vec<Operation>| {
        if let Some(what) = complaint(state, piece, open) {
            let at = piece.first().map_or(0, |operation| operation.from);
            let resource = resource.to_owned();
            findings.push(Finding { promise: "P1, P3".into(), at, resource, what, excuse: None });
        }
        for operation in piece.drain(..) {
            match (operation.call, operation.end) {
                (_, Some((_, Return::Granted { token }))) => state.issued = state.issued.max(token),
                (Call::Write { token }, Some((_, Return::Applied))) => state.passed = state.passed.max(token),
                // A refusal proves that a token has passed which may be known from nowhere else.
                (_, Some((_, Return::Stale { highest }))) => state.passed = state.passed.max(highest),
                (_, None) => open.push(operation),
                (Call::Acquire, Some((_, Return::Applied))) => {}
            }
        }
        // What can no longer make a difference.
        open.retain(|operation| matches!(operation.call, Call::Write { token } if state.passed < token));
    };
    for operation in operations {
        if !piece.is_empty() && quiet_from < operation.from {
            cut(&mut piece, &mut open);
        }
        quiet_from = operation.end.map_or(quiet_from, |(at, _)| quiet_from.max(at));
        piece.push(operation);
    }
    cut(&mut piece, &mut open);
    findings
}

/// What is wrong with one piece, if anything.
fn complaint(state: FencedLock, piece: &[Operation], open: &[Operation]) -> Option<String> {
    if PIECE_MAX < piece.len() {
        return Some(format!("{} operations without a pause are too many to be judged", piece.len()));
    }
    let mut tester = LinearizabilityTester::new(state);
    // (time, end before beginning at one time would forbid what is allowed, operation)
    let mut events: Vec<(Micros, bool, usize)> = Vec::new();
    let all: Vec<&Operation> = open.iter().chain(piece).collect();
    for (index, operation) in all.iter().enumerate() {
        events.push((operation.from, false, index));
        events.extend(operation.end.map(|(at, _)| (at.max(operation.from), true, index)));
    }
    events.sort_unstable();
    for (_, ends, index) in events {
        let Operation { call, end, .. } = all[index];
        let noted = match (ends, end) {
            (true, Some((_, answer))) => tester.on_return(index, *answer).map(drop),
            _ => tester.on_invoke(index, *call).map(drop),
        };
        noted.expect("each operation begins once and ends at most once");
    }
    (!tester.is_consistent()).then(|| {
        let told: Vec<String> = piece.iter().take(12).map(told).collect();
        format!("no order of these explains the answers: {}", told.join("; "))
    })
}

fn told(operation: &Operation) -> String {
    let from = operation.from / 1_000;
    match (operation.call, operation.end) {
        (call, Some((at, answer))) => format!("{call:?} → {answer:?} ({from} to {} ms)", at / 1_000),
        (call, None) => format!("{call:?} → ? (from {from} ms)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{S, Story};
    use super::*;
    use crate::life::lives;

    fn check(mut story: Story) -> Vec<Finding> {
        story.0.setup.fenced = true;
        super::check(&story.0, &lives(&story.0), &[])
    }

    fn unknown() -> Outcome {
        Outcome::Unknown { why: String::new() }
    }

    fn good() -> Story {
        Story::default()
            .grant(1, S, S + 10, 5)
            .write(1, 11, S + 20, S + 30, Outcome::Applied)
            .grant(2, 3 * S, 3 * S + 10, 6)
            .write(2, 21, 3 * S + 20, 3 * S + 30, Outcome::Applied)
    }

    #[test]
    fn a_history_of_one_thing_at_a_time_is_fine() {
        assert_eq!(check(good()), []);
        assert_eq!(check(good().write(1, 12, 4 * S, 4 * S + 10, Outcome::Stale { highest: 6 })), []);
    }

    #[test]
    fn a_stale_write_that_passed_is_found_also_across_a_cut() {
        let findings = check(good().write(1, 12, 4 * S, 4 * S + 10, Outcome::Applied));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].what.contains("Write { token: 5 } → Applied"), "{findings:?}");
    }

    #[test]
    fn a_refusal_of_the_newest_and_one_with_the_wrong_token_are_found() {
        assert_eq!(check(good().write(2, 22, 4 * S, 4 * S + 10, Outcome::Stale { highest: 7 })).len(), 1);
        assert_eq!(check(good().write(1, 12, 4 * S, 4 * S + 10, Outcome::Stale { highest: 9 })).len(), 1);
    }

    #[test]
    fn tokens_out_of_order_are_found() {
        assert_eq!(check(good().grant(3, 5 * S, 5 * S + 10, 6)).len(), 1);
        assert_eq!(check(good().grant(3, 3 * S + 15, 3 * S + 25, 4)).len(), 1);
    }

    #[test]
    fn what_went_on_at_once_may_have_happened_in_any_order() {
        let story = good()
            .grant(3, 5 * S, 6 * S, 9)
            .grant(4, 5 * S, 5 * S + 10, 10)
            .write(4, 41, 5 * S + 20, 5 * S + 90, Outcome::Applied)
            .write(1, 13, 5 * S + 30, 5 * S + 80, Outcome::Stale { highest: 6 });
        assert_eq!(check(story), []);
    }

    #[test]
    fn a_write_without_an_answer_may_explain_what_came_later_and_only_then() {
        let lost = |from| {
            good()
                .grant(3, 4 * S, 4 * S + 10, 8)
                .line(from, 3, crate::history::Said::Writes { write: 31, kind: crate::history::WriteKind::Write })
                .write(2, 22, 6 * S, 6 * S + 10, Outcome::Stale { highest: 8 })
        };
        assert_eq!(check(lost(5 * S)), []);
        assert_eq!(check(lost(7 * S)).len(), 1);
        let told = good().grant(3, 4 * S, 4 * S + 10, 8).write(3, 31, 5 * S, 5 * S + 10, unknown());
        assert_eq!(check(told.write(2, 22, 6 * S, 6 * S + 10, Outcome::Applied)), []);
    }
}
