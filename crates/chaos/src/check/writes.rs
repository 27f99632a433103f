//! P3: no stale write was applied, by what the databases kept; and their answers were true.
//!
//! Every write leaves a row in a table beside what it writes, in the same transaction, by a trigger. Rows of one resource come
//! in the order in which they were written, since each write held the resource's row. Nothing excuses a violation.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use crate::history::{History, Micros, Outcome, Row, WriteKind};
use crate::life::{Life, Write};

/// Compares what was kept with tokens, with what was read, and with what was answered.
#[must_use]
pub fn check(history: &History, lives: &[Life]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut sent: BTreeMap<u64, (&Life, &Write)> = BTreeMap::new();
    for life in lives {
        for write in life.hold.iter().flat_map(|hold| &hold.writes).filter(|write| write.kind == WriteKind::Write) {
            sent.insert(write.write, (life, write));
        }
    }
    let sent_at = |row: &Row| sent.get(&row.write).map_or(history.end, |(_, write)| write.from);
    let finding = |at: Micros, resource: &str, what: String| Finding {
        promise: "P3".into(),
        at,
        resource: resource.into(),
        what,
        excuse: None,
    };

    let mut by_resource: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &history.rows {
        by_resource.entry(&row.resource).or_default().push(row);
    }
    for (resource, rows) in &by_resource {
        let mut highest = 0;
        let mut value = 0;
        let mut before = 0;
        for row in rows {
            if row.token < highest {
                let what = format!("a stale write was applied: token {} after token {highest}", row.token);
                findings.push(finding(sent_at(row), resource, what));
            }
            // Two grants with one token are a matter of P1.
            if row.value != value + 1 && row.token != before {
                let what =
                    format!("an update was lost: {value} was overwritten with {} (token {})", row.value, row.token);
                findings.push(finding(sent_at(row), resource, what));
            }
            highest = highest.max(row.token);
            (value, before) = (row.value, row.token);
        }
        if history.balances.get(*resource) != Some(&value) {
            let what = format!("the last write was of {value}, but there stands {:?}", history.balances.get(*resource));
            findings.push(finding(history.end, resource, what));
        }
    }

    let kept: BTreeSet<u64> = history.rows.iter().map(|row| row.write).collect();
    for (id, (life, write)) in &sent {
        let Some((at, outcome)) = &write.answer else { continue };
        let lie = match outcome {
            Outcome::Applied => !kept.contains(id),
            Outcome::Stale { .. } | Outcome::Failed { .. } => kept.contains(id),
            Outcome::Unknown { .. } => false,
        };
        if lie {
            let what = format!("a write was answered with {outcome:?}, and the table says otherwise");
            findings.push(finding(*at, &life.resource, what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::story::{S, Story};
    use super::*;
    use crate::life::lives;

    fn check(mut story: Story, rows: &[(i64, u64, i64)], balance: i64) -> Vec<String> {
        let row = |(token, write, value): &(i64, u64, i64)| Row {
            resource: "r".into(),
            token: *token,
            write: *write,
            value: *value,
        };
        story.0.rows = rows.iter().map(row).collect();
        story.0.balances.insert("r".into(), balance);
        let findings = super::check(&story.0, &lives(&story.0));
        assert!(findings.iter().all(Finding::is_violation));
        findings.into_iter().map(|finding| finding.what).collect()
    }

    fn two_writes() -> Story {
        Story::default()
            .grant(1, S, S + 10, 5)
            .write(1, 11, S + 20, S + 30, Outcome::Applied)
            .grant(2, 2 * S, 2 * S + 10, 6)
            .write(2, 21, 2 * S + 20, 2 * S + 30, Outcome::Applied)
    }

    #[test]
    fn writes_in_the_order_of_tokens_are_fine() {
        assert_eq!(check(two_writes(), &[(5, 11, 1), (6, 21, 2)], 2), [""; 0]);
    }

    /// Kleppmann's: both read the same, the newer one writes, the older one wakes up and writes over it.
    #[test]
    fn a_stale_write_and_the_update_it_destroys_are_found() {
        let found = check(two_writes(), &[(6, 21, 1), (5, 11, 1)], 1);
        assert_eq!(
            found,
            [
                "a stale write was applied: token 5 after token 6",
                "an update was lost: 1 was overwritten with 1 (token 5)"
            ]
        );
    }

    #[test]
    fn a_number_that_nobody_wrote_is_found() {
        assert_eq!(
            check(two_writes(), &[(5, 11, 1), (6, 21, 2)], 7),
            ["the last write was of 2, but there stands Some(7)"]
        );
    }

    #[test]
    fn an_answer_that_is_not_true_is_found() {
        assert!(check(two_writes(), &[(5, 11, 1)], 1)[0].starts_with("a write was answered with Applied"));
        let refused = two_writes().grant(3, 3 * S, 3 * S + 10, 7).write(
            3,
            31,
            3 * S + 20,
            3 * S + 30,
            Outcome::Stale { highest: 8 },
        );
        let found = check(refused, &[(5, 11, 1), (6, 21, 2), (7, 31, 3)], 3);
        assert!(found[0].starts_with("a write was answered with Stale"), "{found:?}");
    }

    #[test]
    fn an_unknown_answer_may_be_either() {
        let unknown = || {
            two_writes().grant(3, 3 * S, 3 * S + 10, 7).write(
                3,
                31,
                3 * S + 20,
                3 * S + 30,
                Outcome::Unknown { why: String::new() },
            )
        };
        assert_eq!(check(unknown(), &[(5, 11, 1), (6, 21, 2), (7, 31, 3)], 3), [""; 0]);
        assert_eq!(check(unknown(), &[(5, 11, 1), (6, 21, 2)], 2), [""; 0]);
    }
}
