//! `redlock doctor`: what is wrong with a set-up, what that can cause, and how to mend it.
//!
//! ```text
//!   facts     asks each server once, and keeps what it says, also that it may not say
//!     │
//!     ├─▶ node       what one server's facts mean      ┐
//!     ├─▶ together   what the servers mean together    │ pure: facts in, findings out
//!     ├─▶ keys       what lies under the prefix        ┘
//!   database         the ledger, fenced tables, the server's promises
//!     │
//!     ▼
//!   finding          severity, what, why it matters, how to mend it; the greatest severity is the exit code
//! ```
//!
//! What cannot be read is a finding of its own, never a guess. Rights are tried, not read: a command that may be run is run, on
//! keys of the doctor's own that are gone afterwards (`--read-only` leaves those out that write).

mod database;
mod facts;
mod finding;
mod keys;
mod node;
mod rights;
mod together;

pub use self::finding::{FINDINGS, Finding, Severity};

use self::facts::Facts;
use crate::exit::Failure;
use crate::options::{Common, DoctorOptions};
use crate::output::Output;
use crate::quorum;
use crate::settings::{DatabaseSettings, SecretUrl, Settings, TableSettings};
use crate::survey;
use futures_util::future::join_all;
use serde::Serialize;
use std::time::Duration;

/// The per-node deadline of a client that sets none.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);

/// The terms under which facts are judged.
#[derive(Clone, Debug)]
struct Terms {
    prefix: String,
    ttl: Duration,
    node_timeout: Duration,
    /// Whether nodes that forget are kept from voting.
    guarded: bool,
}

#[derive(Serialize)]
struct Diagnosis<'a> {
    nodes: Vec<&'a str>,
    severity: Option<Severity>,
    findings: &'a [Finding],
}

/// Looks at everything and says what was found.
///
/// # Errors
/// If there is nothing to look at; whatever is wrong with what there is, is a finding.
///
/// # Cancel safety
/// Keys of the doctor's own may be left for a few seconds.
pub async fn doctor(options: DoctorOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let mut settings = Settings::gather(common)?;
    add_typed(&mut settings, &options)?;
    let prefix = survey::prefix(&settings)?;
    let node_timeout = settings.node_timeout.unwrap_or_else(|| NODE_TIMEOUT.min(settings.ttl / 10));
    let guarded = settings.crash_guard.is_some();
    let terms = Terms { prefix: settings.prefix.clone(), ttl: settings.ttl, node_timeout, guarded };

    let read = async |position| Facts::read(&settings, position, &prefix, options.read_only).await;
    let facts = join_all((0..settings.nodes.len()).map(read)).await;
    let mut findings = settings_of(&settings);
    for facts in &facts {
        findings.extend(node::judge(facts, &terms));
    }
    findings.extend(together::judge(&facts));
    if let Some(database) = &settings.database {
        findings.extend(database::look(database, together::nodes_time(&facts)).await);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let severity = findings.iter().map(|finding| finding.severity).max();
    let names = facts.iter().map(|facts| facts.name.as_str()).collect();
    let diagnosis = Diagnosis { nodes: names, severity, findings: &findings };
    output.result(&diagnosis, || screen(&diagnosis, settings.database.is_some()))?;
    Ok(severity.map_or(0, Severity::code))
}

/// A database that was typed takes the place of the file's.
fn add_typed(settings: &mut Settings, options: &DoctorOptions) -> Result<(), Failure> {
    let url = std::env::var("REDLOCK_DATABASE").ok().filter(|url| !url.is_empty());
    if let Some(url) = url {
        let database = settings.database.get_or_insert_with(|| DatabaseSettings {
            url: SecretUrl::new(String::new()),
            ledger: None,
            tables: Vec::new(),
        });
        database.url = SecretUrl::new(url);
    }
    if !options.table.is_empty() {
        let Some(database) = &mut settings.database else {
            let message = "in which database is the table? set REDLOCK_DATABASE to its URL, or name it in the file";
            return Err(Failure::new(crate::exit::Exit::Usage, message));
        };
        database.tables = options.table.iter().map(|name| TableSettings::guarded(name)).collect();
    }
    Ok(())
}

/// What is wrong with the settings themselves, whatever the servers say.
fn settings_of(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    let built = quorum::open(settings)
        .and_then(|nodes| quorum::builder(settings, nodes, settings.ttl).build().map_err(Failure::from));
    if let Err(failure) = built {
        findings.push(
            Finding::new(Severity::Error, "settings", "settings", failure.message)
                .harm("no program with these settings locks anything")
                .mend("change the setting that it names"),
        );
    }
    match settings.nodes.len() {
        1 => findings.push(
            Finding::new(Severity::Warning, "settings", "one-node", "there is one node")
                .harm("while it is down nobody locks, and if it forgets its locks two may hold one")
                .mend("name three or five independent primaries"),
        ),
        nodes if nodes.is_multiple_of(2) && settings.allow_even_nodes => findings.push(
            Finding::new(Severity::Note, "settings", "even-nodes", format!("there are {nodes} nodes, an even number"))
                .harm("they tolerate no more failures than one less, and there is one more to fail")
                .mend("add or remove one"),
        ),
        _ => {}
    }
    findings.extend(settings.file.as_deref().and_then(|file| readable_secret(file, settings)));
    findings
}

/// A file with passwords that others may read.
fn readable_secret(file: &std::path::Path, settings: &Settings) -> Option<Finding> {
    use std::os::unix::fs::PermissionsExt as _;
    let has_secret = settings.nodes.iter().any(SecretUrl::has_password)
        || settings.database.as_ref().is_some_and(|database| database.url.has_password());
    let mode = std::fs::metadata(file).ok()?.permissions().mode();
    (has_secret && mode & 0o077 != 0).then(|| {
        let what =
            format!("{} may be read by others (mode {:o}), and passwords are in use", file.display(), mode & 0o777);
        Finding::new(Severity::Warning, "settings", "readable-secret", what)
            .harm("whoever reads a password can break every lock")
            .mend(format!("chmod 600 {}", file.display()))
    })
}

fn screen(diagnosis: &Diagnosis<'_>, with_database: bool) -> String {
    let looked = format!(
        "{} node{} looked at{}",
        diagnosis.nodes.len(),
        if diagnosis.nodes.len() == 1 { "" } else { "s" },
        if with_database { ", and the database" } else { "" }
    );
    if diagnosis.findings.is_empty() {
        return format!("{looked}: nothing found");
    }
    let findings: String = diagnosis.findings.iter().map(Finding::lines).collect();
    format!("{looked}: {}\n\n{findings}", count(diagnosis.findings))
}

fn count(findings: &[Finding]) -> String {
    let of = |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let counts =
        [Severity::Error, Severity::Warning, Severity::Unread, Severity::Note].map(|severity| (severity, of(severity)));
    let words = counts.iter().filter(|(_, count)| 0 < *count).map(|(severity, count)| severity.counted(*count));
    words.collect::<Vec<_>>().join(", ")
}
