//! What one server's facts mean. Values in, findings out.

use super::Terms;
use super::facts::{Facts, Info, Seen};
use super::finding::{Finding, Severity};
use super::keys;
use crate::remote::Unanswered;
use crate::table::time;
use redlock_core::{Service, Standing};
use std::time::Duration;

/// The oldest version whose commands suffice.
const OLDEST: (u64, u64) = (6, 2);

/// The part of the memory limit from which there is too little headroom, in hundredths.
const MEMORY_FULL: u64 = 90;

/// The part of the connections allowed from which there are too few, in hundredths.
const CLIENTS_FULL: u64 = 90;

/// More cached scripts than all programs of a house write by hand: some program makes them up as it goes.
const SCRIPTS_MANY: u64 = 1_000;

/// Judges one server.
pub(super) fn judge(facts: &Facts, terms: &Terms) -> Vec<Finding> {
    let name = &facts.name;
    let seen = match &facts.reached {
        Ok(seen) => seen,
        Err(error) => return vec![not_reached(name, error)],
    };
    let mut findings = Vec::new();
    match &seen.info {
        Ok(info) => {
            findings.extend(role(name, info, seen, terms));
            findings.extend(version(name, info));
            findings.extend(persistence(name, info, seen, terms));
            findings.extend(memory(name, info));
            findings.extend(cluster_mode(name, info, terms));
            findings.extend(load(name, info, seen));
        }
        Err(error) => findings.push(
            unread(name, "info", "identity, role, version, persistence, memory and cluster mode", error)
                .mend("allow the user +info"),
        ),
    }
    findings.extend(standing(name, seen));
    if seen.behind_sentinels && !terms.guarded {
        findings.push(
            Finding::new(Severity::Warning, name, "sentinels", "Sentinels decide who is its primary")
                .harm("replication is asynchronous: a primary that takes over may lack the latest locks, and vote a second time")
                .mend("switch the crash-recovery guard on, in all clients"),
        );
    }
    findings.extend(latency(name, seen, terms));
    findings.extend(rights(name, seen));
    findings.extend(writes(name, seen));
    if let Err(error) = &seen.ahead_us {
        findings.push(unread(name, "clock", "the clock", error).mend("allow the user +time"));
    }
    match &seen.sample {
        Ok(sample) => findings.extend(keys::judge(name, sample)),
        Err(error) => findings.push(
            unread(name, "keys", "what lies under the prefix", error)
                .mend("allow the user +scan, for the doctor at least"),
        ),
    }
    let unread_settings: Vec<&str> =
        seen.configuration.iter().filter(|(_, value)| value.is_err()).map(|(setting, _)| *setting).collect();
    if let Some(Err(error)) = seen.configuration.values().find(|value| value.is_err()) {
        findings.push(
            unread(name, "config", &unread_settings.join(", "), error)
                .mend("allow the user +config|get, for the doctor at least; a managed service may not let anybody"),
        );
    }
    if seen.open_to_all {
        findings.push(
            Finding::new(Severity::Note, name, "no-password", "it lets everybody in without a password")
                .harm("whoever reaches the port can break every lock")
                .mend("give it an ACL user (docs/operating.md) or a password"),
        );
    }
    findings
}

fn unread(name: &str, finding: &'static str, what: &str, error: &Unanswered) -> Finding {
    Finding::new(Severity::Unread, name, finding, format!("{what} cannot be read: {error}"))
        .harm("whatever is wrong with it stays unnoticed")
}

fn not_reached(name: &str, error: &Unanswered) -> Finding {
    let said = error.to_string();
    match error {
        Unanswered::Credentials(_) => Finding::new(Severity::Error, name, "credentials", said)
            .harm("it does not vote")
            .mend("check user and password: in the node's URL, or REDLOCK_USERNAME and REDLOCK_PASSWORD"),
        Unanswered::NotAllowed(_) => Finding::new(Severity::Error, name, "credentials", said)
            .harm("it does not vote")
            .mend("give the user the rights in docs/operating.md"),
        Unanswered::Silent(_) => {
            Finding::new(Severity::Error, name, "unreachable", format!("it cannot be reached: {said}"))
                .harm("it does not vote; with as many nodes down as are up, nobody locks")
                .mend("start it, or check address, network and firewall")
        }
        Unanswered::NoSuchCommand(_) | Unanswered::Refused(_) => {
            Finding::new(Severity::Error, name, "not-a-server", format!("it does not speak as a Redis server: {said}"))
                .harm("it does not vote")
                .mend("check the port, and whether it wants TLS (rediss://)")
        }
    }
}

fn role(name: &str, info: &Info, seen: &Seen, terms: &Terms) -> Vec<Finding> {
    let mut findings = Vec::new();
    if info.is("redis_mode", "sentinel") {
        findings.push(
            Finding::new(Severity::Error, name, "sentinel", "it is a Sentinel, not a primary")
                .harm("it does not vote")
                .mend("name the primary that it watches"),
        );
    }
    if info.is("role", "slave") {
        let primary = info.text("master_host").unwrap_or("another server");
        findings.push(
            Finding::new(Severity::Error, name, "replica", format!("it is a replica of {primary}"))
                .harm("it cannot vote; and one server with its replicas is one vote, not several")
                .mend("name primaries that are independent of each other"),
        );
    }
    // With the guard on, one that is promoted does not vote before it can do no harm.
    let expected = terms.guarded || seen.behind_sentinels;
    if let Some(replicas) = info.number("connected_slaves").filter(|replicas| 0 < *replicas && !expected) {
        findings.push(
            Finding::new(Severity::Warning, name, "replicas", format!("{replicas} replicas follow it"))
                .harm(
                    "replication is asynchronous: if a replica is promoted, it lacks the latest locks, and its vote can be \
                     given a second time",
                )
                .mend("run lock nodes without fail-over, or switch the crash-recovery guard on, in all clients"),
        );
    }
    findings
}

fn version(name: &str, info: &Info) -> Option<Finding> {
    if info.text("valkey_version").is_some() {
        return None;
    }
    let version = info.text("redis_version")?;
    let mut parts = version.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    (number < OLDEST).then(|| {
        Finding::new(Severity::Error, name, "version", format!("it is Redis {version}"))
            .harm("commands are missing that locks need")
            .mend("run Redis 6.2 or later, or Valkey")
    })
}

fn persistence(name: &str, info: &Info, seen: &Seen, terms: &Terms) -> Vec<Finding> {
    let mut findings = Vec::new();
    let setting = |name: &str| seen.configuration.get(name).and_then(|value| value.as_ref().ok()?.as_deref());
    let logs = info.is("aof_enabled", "1");
    let forgets = "a restart inside the ttl forgets live locks, so that two may hold one, and forgets fence counters";
    if logs {
        match setting("appendfsync") {
            None | Some("always") => {}
            Some(_) if terms.guarded => {}
            Some(other) => findings.push(
                Finding::new(
                    Severity::Warning,
                    name,
                    "appendfsync",
                    format!("its log is synced to the disk {other}, not always"),
                )
                .harm("a power loss cuts off the latest locks and counters, and it starts again without a word")
                .mend("appendfsync always"),
            ),
        }
        if info.is("aof_last_write_status", "err") {
            findings.push(
                Finding::new(Severity::Error, name, "disk", "its log could not be written the last time")
                    .harm("it refuses writes, so it does not vote")
                    .mend("give the disk room, or repair it"),
            );
        }
    } else if terms.guarded {
        // It does not vote before what it has forgotten has run out.
    } else if setting("save").is_some_and(|save| !save.is_empty()) {
        findings.push(
            Finding::new(Severity::Warning, name, "snapshots-only", "it keeps snapshots only, no log")
                .harm(forgets)
                .mend("appendonly yes, appendfsync always; or the crash-recovery guard, in all clients"),
        );
    } else if info.text("aof_enabled").is_some() {
        findings.push(
            Finding::new(Severity::Warning, name, "no-persistence", "it keeps no log on disk")
                .harm(forgets)
                .mend("appendonly yes, appendfsync always; or the crash-recovery guard, in all clients"),
        );
    }
    if !logs
        && !terms.guarded
        && info.number("uptime_in_seconds").is_some_and(|uptime| Duration::from_secs(uptime) < terms.ttl)
    {
        findings.push(
            Finding::new(
                Severity::Warning,
                name,
                "restarted",
                "it was started less than a ttl ago, and remembers nothing",
            )
            .harm("locks that it had granted may be granted again; fenced writes are safe")
            .mend("wait for the longest ttl before you trust it"),
        );
    }
    if info.is("rdb_last_bgsave_status", "err") && setting("stop-writes-on-bgsave-error") != Some("no") {
        findings.push(
            Finding::new(Severity::Error, name, "disk", "its last snapshot failed")
                .harm("it refuses writes, so it does not vote")
                .mend("give the disk room, or switch snapshots off"),
        );
    }
    findings
}

fn memory(name: &str, info: &Info) -> Vec<Finding> {
    let mut findings = Vec::new();
    let limit = info.number("maxmemory").unwrap_or(0);
    if let Some(policy) = info.text("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        let (severity, when) = match limit {
            0 => (Severity::Warning, "as soon as somebody sets a memory limit"),
            _ => (Severity::Error, "when memory runs out"),
        };
        findings.push(
            Finding::new(severity, name, "eviction", format!("its eviction policy is {policy}"))
                .harm(format!("{when}, locks and fence counters are dropped without a word"))
                .mend("maxmemory-policy noeviction"),
        );
    }
    let used = info.number("used_memory").unwrap_or(0);
    if 0 < limit && limit.saturating_mul(MEMORY_FULL) <= used.saturating_mul(100) {
        let full = used.saturating_mul(100) / limit;
        let severity = if limit <= used { Severity::Error } else { Severity::Warning };
        findings.push(
            Finding::new(severity, name, "memory", format!("{full} % of its memory limit are in use"))
                .harm("at the limit it refuses writes, so it does not vote")
                .mend("raise maxmemory, or find out who fills it"),
        );
    }
    findings
}

fn cluster_mode(name: &str, info: &Info, terms: &Terms) -> Option<Finding> {
    let has_tag =
        terms.prefix.split_once('{').and_then(|(_, rest)| rest.split_once('}')).is_some_and(|(tag, _)| !tag.is_empty());
    info.is("cluster_enabled", "1").then_some(())?;
    Some(if has_tag {
        Finding::new(Severity::Warning, name, "cluster", "it runs in cluster mode")
            .harm("a cluster is one vote, and one that forgets: its fail-over promotes replicas that may lack the latest locks")
            .mend("name primaries that are independent of each other, outside of any cluster")
    } else {
        Finding::new(Severity::Error, name, "cluster-slots", "it runs in cluster mode, and the prefix has no hash tag")
            .harm("a lock and the marks of the node lie in different slots, so it cannot vote")
            .mend("a prefix with a hash tag: --prefix '{app}:'")
    })
}

/// Whether it serves clients with the crash-recovery guard.
fn standing(name: &str, seen: &Seen) -> Option<Finding> {
    match seen.standing.as_ref()? {
        Ok(Standing { service: Service::Enrolled, .. }) => None,
        Ok(Standing { service: Service::Quarantined { remaining }, .. }) => {
            let what = match remaining.is_zero() {
                true => "it has lost its memory, or was never enrolled, and waits to be enrolled".to_owned(),
                false => format!(
                    "it has lost its memory, or was never enrolled, and is in quarantine for {}",
                    time(*remaining)
                ),
            };
            Some(
                Finding::new(Severity::Error, name, "quarantined", what)
                    .harm("it does not vote until it is enrolled")
                    .mend(
                        "nothing, if a quorum of the others serves; otherwise `redlock enroll --fresh`, or `redlock reseed`",
                    ),
            )
        }
        Err(error) => Some(
            Finding::new(
                Severity::Error,
                name,
                "guard-unknown",
                format!("how it stands with the guard is not known: {error}"),
            )
            .harm("clients that have the crash-recovery guard on do not count its vote")
            .mend("see what it says"),
        ),
    }
}

fn load(name: &str, info: &Info, seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let scripts = info.number("number_of_cached_scripts").unwrap_or(0);
    if SCRIPTS_MANY < scripts {
        findings.push(
            Finding::new(Severity::Warning, name, "scripts", format!("{scripts} scripts are cached"))
                .harm("some program makes up scripts as it goes; they fill the memory until a restart")
                .mend("find the program; pass values as arguments instead of writing them into scripts"),
        );
    }
    let most =
        seen.configuration.get("maxclients").and_then(|value| value.as_ref().ok()?.as_deref()?.parse::<u64>().ok());
    if let (Some(clients), Some(most)) = (info.number("connected_clients"), most)
        && most.saturating_mul(CLIENTS_FULL) <= clients.saturating_mul(100)
    {
        findings.push(
            Finding::new(Severity::Warning, name, "clients", format!("{clients} of {most} connections are in use"))
                .harm("further clients are turned away, so it does not vote for them")
                .mend("raise maxclients, or find out who connects so often"),
        );
    }
    let wanted = seen.configuration.get("min-replicas-to-write").and_then(|value| value.as_ref().ok()?.as_deref());
    if let Some(wanted) = wanted.filter(|wanted| *wanted != "0") {
        findings.push(
            Finding::new(
                Severity::Warning,
                name,
                "min-replicas",
                format!("it writes only while {wanted} replicas follow"),
            )
            .harm("without them it does not vote, so that replicas take part in every vote")
            .mend("min-replicas-to-write 0"),
        );
    }
    findings
}

fn latency(name: &str, seen: &Seen, terms: &Terms) -> Option<Finding> {
    let latency = seen.latency()?;
    let deadline = terms.node_timeout;
    let severity = match latency {
        slow if deadline <= slow => Severity::Error,
        slow if deadline / 2 <= slow => Severity::Warning,
        _ => return None,
    };
    let what = format!("it answers within {}, and its deadline is {}", time(latency), time(deadline));
    Some(
        Finding::new(severity, name, "slow", what)
            .harm("its votes come late or not at all, and locks are lost that could have been extended")
            .mend("a greater node timeout (--node-timeout) and ttl, or a node that is nearer"),
    )
}

fn rights(name: &str, seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let granted =
        |commands: &[&str]| commands.iter().map(|command| format!("+{command}")).collect::<Vec<_>>().join(" ");
    if !seen.rights.unknown.is_empty() {
        let commands = seen.rights.unknown.join(", ");
        findings.push(
            Finding::new(Severity::Error, name, "commands", format!("it knows no {commands}"))
                .harm("it cannot vote, or nobody waits in line on it")
                .mend("run Redis 6.2 or later, or Valkey, without renamed commands"),
        );
    }
    if !seen.rights.missing.is_empty() {
        let commands = granted(&seen.rights.missing);
        findings.push(
            Finding::new(Severity::Error, name, "rights", format!("the user lacks {commands}"))
                .harm("it cannot vote")
                .mend(format!("ACL SETUSER … {commands}, on the keys under the prefix")),
        );
    }
    if !seen.rights.missing_for_lines.is_empty() {
        let commands = granted(&seen.rights.missing_for_lines);
        findings.push(
            Finding::new(Severity::Warning, name, "rights-line", format!("the user lacks {commands}, or the channels"))
                .harm("nobody waits in line: waiters ask at intervals, and are served in no order")
                .mend(format!("ACL SETUSER … {commands}, and the channels PREFIX~call:*")),
        );
    }
    findings
}

fn writes(name: &str, seen: &Seen) -> Option<Finding> {
    let is_replica = seen.info.as_ref().is_ok_and(|info| info.is("role", "slave"));
    if seen.rights.not_tried && !is_replica {
        let what = "whether it can write, and the rights for that, were not tried";
        return Some(
            Finding::new(Severity::Unread, name, "not-tried", what)
                .harm("whatever is wrong with it stays unnoticed")
                .mend("run the doctor without --read-only; what it writes is gone afterwards"),
        );
    }
    let failed = seen.rights.failed.as_ref()?;
    Some(
        Finding::new(Severity::Error, name, "cannot-write", format!("it refuses: {failed}"))
            .harm("it does not vote")
            .mend("see what it says; memory, disk, role or replicas as a rule"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::keys::Sample;
    use super::super::rights::Rights;
    use super::*;
    use redlock_core::Service;
    use std::collections::BTreeMap;

    const RIGHT: &str = "redis_version:7.0.15\nrole:master\naof_enabled:1\nmaxmemory_policy:noeviction\n";

    fn seen(info: &str) -> Seen {
        Seen {
            latencies: vec![Duration::from_millis(1); 3],
            ahead_us: Ok(0),
            info: Ok(Info::parse(info)),
            configuration: BTreeMap::from([("appendfsync", Ok(Some("always".to_owned())))]),
            cluster: None,
            open_to_all: false,
            rights: Rights::default(),
            sample: Ok(Sample::default()),
            standing: None,
            behind_sentinels: false,
        }
    }

    fn judged(seen: Seen, guarded: bool) -> Vec<(&'static str, Severity)> {
        let terms = Terms {
            prefix: "lock:".into(),
            ttl: Duration::from_secs(10),
            node_timeout: Duration::from_millis(50),
            guarded,
        };
        let findings = judge(&Facts { name: "n".into(), reached: Ok(seen) }, &terms);
        findings.iter().map(|finding| (finding.finding, finding.severity)).collect()
    }

    /// What `INFO` says besides what is right, and what is found.
    fn check(info: &str, expected: &[(&'static str, Severity)]) {
        assert_eq!(judged(seen(&format!("{RIGHT}{info}")), false), expected, "{info}");
    }

    #[test]
    fn what_info_says_is_judged() {
        check("", &[]);
        check("redis_version:6.0.16", &[("version", Severity::Error)]);
        check("redis_version:6.2.0", &[]);
        check("redis_version:2.8.0\nvalkey_version:8.1.0", &[]);
        check("redis_mode:sentinel\nrole:sentinel", &[("sentinel", Severity::Error)]);
        check("aof_last_write_status:err", &[("disk", Severity::Error)]);
        check("rdb_last_bgsave_status:err", &[("disk", Severity::Error)]);
        check("maxmemory:100\nused_memory:95", &[("memory", Severity::Warning)]);
        check("maxmemory:100\nused_memory:89", &[]);
        check("maxmemory:18446744073709551615\nused_memory:18446744073709551615", &[("memory", Severity::Error)]);
        check("aof_enabled:0\nuptime_in_seconds:11", &[("no-persistence", Severity::Warning)]);
    }

    #[test]
    fn what_else_is_seen_is_judged() {
        let mut slow = seen(RIGHT);
        slow.latencies = vec![Duration::from_millis(1), Duration::from_millis(60), Duration::from_millis(90)];
        assert_eq!(judged(slow, false), [("slow", Severity::Error)]);
        let mut full = seen(&format!("{RIGHT}connected_clients:95"));
        full.configuration.insert("maxclients", Ok(Some("100".into())));
        assert_eq!(judged(full, false), [("clients", Severity::Warning)]);
        let mut old = seen(RIGHT);
        old.rights.unknown = vec!["lpos"];
        assert_eq!(judged(old, false), [("commands", Severity::Error)]);
        let mut silent = seen(RIGHT);
        silent.ahead_us = Err(Unanswered::NotAllowed("no".into()));
        assert_eq!(judged(silent, false), [("clock", Severity::Unread)]);
    }

    #[test]
    fn with_the_guard_on_forgetting_is_no_finding_and_quarantine_is() {
        let forgetful = || seen(&format!("{RIGHT}aof_enabled:0\nconnected_slaves:2\nuptime_in_seconds:1"));
        let found =
            [("replicas", Severity::Warning), ("no-persistence", Severity::Warning), ("restarted", Severity::Warning)];
        assert_eq!(judged(forgetful(), false), found);
        assert_eq!(judged(forgetful(), true), []);
        let mut sentinels = seen(RIGHT);
        sentinels.behind_sentinels = true;
        assert_eq!(judged(sentinels, false), [("sentinels", Severity::Warning)]);
        let with = |standing| Seen { standing: Some(standing), ..seen(RIGHT) };
        let standing =
            |service| Ok(Standing { service, base: 1, high: 1, quarantine: Duration::from_secs(1), loss: None });
        assert_eq!(judged(with(standing(Service::Enrolled)), true), []);
        let quarantined = Service::Quarantined { remaining: Duration::from_secs(1) };
        assert_eq!(judged(with(standing(quarantined)), true), [("quarantined", Severity::Error)]);
        assert_eq!(judged(with(Err("no".into())), true), [("guard-unknown", Severity::Error)]);
    }
}
