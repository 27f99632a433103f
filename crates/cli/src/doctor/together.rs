//! What the servers mean together. Values in, findings out.

use super::facts::{Facts, Seen, our_calendar_us};
use super::finding::{Finding, Severity};
use crate::table::time;
use redlock_core::tally::quorum_of;
use std::time::Duration;

/// How far a calendar may be off, in microseconds, before somebody should look.
const CLOCK_OFF_US: i64 = 500_000;

/// Judges all servers.
pub(super) fn judge(facts: &[Facts]) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(quorum(facts));
    findings.extend(twins(facts));
    findings.extend(one_cluster(facts));
    findings.extend(clocks(facts));
    findings
}

fn seen(facts: &[Facts]) -> impl Iterator<Item = (&str, &Seen)> {
    facts.iter().filter_map(|facts| Some((facts.name.as_str(), facts.reached.as_ref().ok()?)))
}

/// The calendar time of the nodes, in microseconds since 1970: the one in the middle.
pub(super) fn nodes_time(facts: &[Facts]) -> Option<i64> {
    Some(our_calendar_us().saturating_add(middle(facts)?))
}

/// How far the middle one of the calendars is ahead of ours.
fn middle(facts: &[Facts]) -> Option<i64> {
    let mut ahead: Vec<i64> = seen(facts).filter_map(|(_, seen)| seen.ahead_us.as_ref().ok().copied()).collect();
    ahead.sort_unstable();
    ahead.get(ahead.len() / 2).copied()
}

fn quorum(facts: &[Facts]) -> Option<Finding> {
    let (all, up) = (facts.len(), seen(facts).count());
    (up < quorum_of(all)).then(|| {
        let what = format!("{up} of {all} nodes can be asked, and {} are needed", quorum_of(all));
        Finding::new(Severity::Error, "settings", "no-quorum", what)
            .harm("nobody locks anything")
            .mend("mend the nodes first")
    })
}

fn twins(facts: &[Facts]) -> Vec<Finding> {
    let identities: Vec<(&str, &str)> =
        seen(facts).filter_map(|(name, seen)| Some((name, seen.info.as_ref().ok()?.text("run_id")?))).collect();
    let mut findings = Vec::new();
    for (position, (name, identity)) in identities.iter().enumerate() {
        if let Some((first, _)) = identities[..position].iter().find(|(_, other)| other == identity) {
            findings.push(
                Finding::new(Severity::Error, name, "same-server", format!("it is the same server as {first}"))
                    .harm("its vote would count twice, so it is refused; what looks like several nodes is one that can fail")
                    .mend("name each server once; another database of it is no other server"),
            );
        }
    }
    findings
}

fn one_cluster(facts: &[Facts]) -> Vec<Finding> {
    let members: Vec<(&str, &(String, String))> =
        seen(facts).filter_map(|(name, seen)| Some((name, seen.cluster.as_ref()?.as_ref().ok()?))).collect();
    let mut findings = Vec::new();
    for (position, (name, (own, _))) in members.iter().enumerate() {
        if let Some((first, _)) = members[..position].iter().find(|(_, (_, known))| known.contains(own.as_str())) {
            findings.push(
                Finding::new(
                    Severity::Error,
                    name,
                    "same-cluster",
                    format!("it is a member of one cluster with {first}"),
                )
                .harm("they fail, are reconfigured and fail over together, so they are not independent votes")
                .mend("name one endpoint of a cluster at most; better, primaries outside of any cluster"),
            );
        }
    }
    findings
}

fn clocks(facts: &[Facts]) -> Vec<Finding> {
    let Some(middle) = middle(facts) else { return Vec::new() };
    let off = |ahead: i64| {
        let by = Duration::from_micros(ahead.unsigned_abs());
        format!("{} {}", time(by), if 0 < ahead { "ahead of" } else { "behind" })
    };
    let mut findings = Vec::new();
    for (name, seen) in seen(facts) {
        let Ok(ahead) = seen.ahead_us else { continue };
        let from_middle = ahead.saturating_sub(middle);
        if CLOCK_OFF_US < from_middle.abs() {
            findings.push(
                Finding::new(
                    Severity::Warning,
                    name,
                    "clock",
                    format!("its calendar is {} the nodes'", off(from_middle)),
                )
                .harm("if it is set right in one step, its locks end early (set forward) or stay for longer (set back)")
                .mend("run NTP on it, and let it slew rather than step"),
            );
        }
    }
    if CLOCK_OFF_US < middle.abs() {
        findings.push(
            Finding::new(Severity::Note, "settings", "our-clock", format!("the nodes' calendar is {} ours", off(middle)))
                .harm("REDLOCK_DEADLINE is wrong by as much for whoever compares it on another machine; locks are not affected")
                .mend("run NTP on this machine"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::facts::Info;
    use super::super::keys::Sample;
    use super::super::rights::Rights;
    use super::*;
    use crate::remote::Unanswered;
    use std::collections::BTreeMap;

    fn facts(number: usize, ahead_us: Option<i64>) -> Facts {
        let silent = || Unanswered::Silent("no".into());
        let seen = |ahead_us| Seen {
            latencies: Vec::new(),
            ahead_us: Ok(ahead_us),
            info: Ok(Info::parse(&format!("run_id:{number}"))),
            configuration: BTreeMap::new(),
            cluster: None,
            open_to_all: false,
            rights: Rights::default(),
            sample: Ok(Sample::default()),
            standing: None,
            behind_sentinels: false,
        };
        Facts { name: number.to_string(), reached: ahead_us.map(seen).ok_or_else(silent) }
    }

    /// How far each calendar is ahead, in milliseconds (`None`: down), and what is found about whom.
    fn check(ahead_ms: &[Option<i64>], expected: &[(&str, &str)]) {
        let facts: Vec<Facts> =
            ahead_ms.iter().enumerate().map(|(number, ms)| facts(number, ms.map(|ms| ms * 1_000))).collect();
        let findings = judge(&facts);
        let found: Vec<_> = findings.iter().map(|finding| (finding.finding, finding.subject.as_str())).collect();
        assert_eq!(found, expected, "{ahead_ms:?}");
    }

    #[test]
    fn calendars_are_compared_with_the_one_in_the_middle() {
        check(&[Some(0), Some(300), Some(-300)], &[]);
        check(&[Some(0), Some(0), Some(3_600_000)], &[("clock", "2")]);
        check(&[Some(0), Some(i64::MIN / 1_000), Some(0)], &[("clock", "1")]);
        check(&[Some(900), Some(1_000), Some(1_100)], &[("our-clock", "settings")]);
    }

    #[test]
    fn a_quorum_of_all_nodes_has_to_be_up() {
        check(&[Some(0), None, Some(0)], &[]);
        check(&[Some(0), None, None], &[("no-quorum", "settings")]);
        check(&[None, None, None], &[("no-quorum", "settings")]);
    }
}
