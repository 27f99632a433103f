//! `redlock inspect` and `redlock list`: who holds what, node by node and in sum.

use crate::exit::{Exit, Failure, of_signal};
use crate::options::{Common, ListOptions};
use crate::output::Output;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::survey::{self, LockOnNode, LockSeen, State, Survey, Verdict, millis};
use crate::table::{clean, columns, time};
use redlock_core::tally::quorum_of;
use serde::Serialize;

/// Shows locks, node by node; and, with the crash-recovery guard on, which nodes do not vote.
///
/// # Errors
/// If no node can be asked.
///
/// # Cancel safety
/// Changes nothing, but that the quarantine of a node that has lost its memory begins when somebody notices.
pub async fn inspect(names: &[String], common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    let resources = names.iter().map(|name| survey::resource(name)).collect::<Result<Vec<_>, _>>()?;
    let survey = Survey::begin(&settings).await?;
    let mut unknown = false;
    for lock in survey.look_at(&resources).await {
        unknown |= lock.verdict == Verdict::Unknown;
        output.result(&lock, || screen(&lock))?;
    }
    for node in crate::enroll::left_out_of(&settings).await? {
        output.notice("does_not_vote", &format!("{} does not vote, {}", node.node, node.said));
    }
    Ok(if unknown { Exit::Unavailable.code() } else { 0 })
}

/// One lock as a screen.
#[must_use]
pub fn screen(lock: &LockSeen) -> String {
    let all = lock.nodes.len();
    let quorum = quorum_of(all);
    let mut text = format!("{}   {}", clean(&lock.resource), verdict(&lock.verdict, all, quorum));
    if let Verdict::Held { token, .. } = &lock.verdict {
        match token {
            Some(token) => text.push_str(&format!("\n   token {token}")),
            None => text.push_str("\n   the nodes' counters disagree, so the token cannot be told from here"),
        }
    }
    match lock.waiting {
        Some(0) => {}
        Some(waiting) => text.push_str(&format!("\n   {waiting} waiting in line")),
        None => text.push_str("\n   who waits cannot be read (it needs LLEN)"),
    }
    let heading =
        ["node", "holder", "for", "counter", "waiting"].map(|title| format!("   {title}").trim_end().to_owned());
    let mut rows = vec![heading.to_vec()];
    rows.extend(lock.nodes.iter().map(row));
    for row in &mut rows {
        for cell in row.iter_mut().skip(1) {
            *cell = cell.trim().to_owned();
        }
    }
    format!("{text}\n\n{}", columns(&rows))
}

fn row(node: &LockOnNode) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let (holder, remaining) = match &node.state {
        State::Free => ("free".to_owned(), "-".to_owned()),
        State::Held { holder, remaining_ms, .. } => (holder.clone(), lasting(*remaining_ms)),
        State::Foreign { kind } => (format!("no lock: a {}", clean(kind)), "-".to_owned()),
        State::Unknown { why } => (format!("unknown: {}", clean(why)), "-".to_owned()),
    };
    vec![format!("   {}", node.node), holder, remaining, number(node.counter), number(node.waiting)]
}

/// How long a lock lasts if nobody extends it.
#[must_use]
pub fn lasting(remaining_ms: Option<u64>) -> String {
    remaining_ms.map_or_else(|| "ever".to_owned(), |remaining| time(millis(remaining)))
}

fn verdict(verdict: &Verdict, all: usize, quorum: usize) -> String {
    match verdict {
        Verdict::Held { holder, on, remaining_ms, .. } => format!(
            "held by {holder} on {on} of {all} nodes ({quorum} needed), for {} unless extended",
            lasting(*remaining_ms)
        ),
        Verdict::Free => "free".to_owned(),
        Verdict::Undecided => {
            format!("undecided: neither does anybody hold it on {quorum} of {all} nodes, nor are {quorum} free")
        }
        Verdict::Unknown => format!("unknown: fewer than {quorum} of {all} nodes answered"),
    }
}

#[derive(Serialize)]
struct Listed<'a> {
    locks: &'a [LockSeen],
    /// Whether there may be more.
    more: bool,
    unread: Vec<Unread<'a>>,
}

#[derive(Serialize)]
struct Unread<'a> {
    node: &'a str,
    why: &'a str,
}

/// Lists locks, once or again and again.
///
/// # Errors
/// If no node can be asked.
///
/// # Cancel safety
/// Changes nothing.
pub async fn list(options: ListOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    let mut survey = Survey::begin(&settings).await?;
    let Some(period) = options.watch else {
        return show(&survey, options.limit, false, output).await;
    };
    let mut signals = Signals::listen()?;
    loop {
        show(&survey, options.limit, true, output).await?;
        tokio::select! {
            signal = signals.next_to_end() => return Ok(of_signal(signal.as_raw())),
            () = tokio::time::sleep(period) => survey.reconnect().await,
        }
    }
}

async fn show(survey: &Survey, limit: usize, again: bool, output: &Output) -> Result<u8, Failure> {
    let found = survey.find(limit).await;
    let mut locks = survey.look_at(&found.resources).await;
    // Locks that went between the two looks.
    locks.retain(|lock| lock.nodes.iter().any(|node| node.state != State::Free));
    let unread = found.unread.iter().map(|(node, why)| Unread { node, why }).collect();
    let listed = Listed { locks: &locks, more: found.more, unread };
    output.result(&listed, || {
        let clear =
            if again && std::io::IsTerminal::is_terminal(&std::io::stdout()) { "\u{1b}[2J\u{1b}[H" } else { "" };
        let more =
            if found.more { format!("more than {limit} locks or keys; --limit shows more\n") } else { String::new() };
        let unread: String =
            found.unread.iter().map(|(node, why)| format!("{node} was not looked through: {}\n", clean(why))).collect();
        format!("{clear}{}{more}{unread}", rows(&locks))
    })?;
    let nodes = survey.nodes().count();
    Ok(if nodes - found.unread.len() < quorum_of(nodes) { Exit::Unavailable.code() } else { 0 })
}

/// Locks, one on each line.
#[must_use]
pub fn rows(locks: &[LockSeen]) -> String {
    if locks.is_empty() {
        return "no locks\n".to_owned();
    }
    let mut rows = vec![["resource", "holder", "for", "nodes", "token", "waiting"].map(String::from).to_vec()];
    rows.extend(locks.iter().map(cells));
    columns(&rows)
}

/// One lock as a row: resource, holder, time left, nodes, token, waiters.
#[must_use]
pub fn cells(lock: &LockSeen) -> Vec<String> {
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let all = lock.nodes.len();
    let busy =
        lock.nodes.iter().filter(|node| matches!(node.state, State::Held { .. } | State::Foreign { .. })).count();
    let (holder, remaining, on, token) = match &lock.verdict {
        Verdict::Held { holder, on, remaining_ms, token } => (holder.clone(), lasting(*remaining_ms), *on, *token),
        Verdict::Free => ("free".into(), "-".into(), busy, None),
        Verdict::Undecided => ("undecided".into(), "-".into(), busy, None),
        Verdict::Unknown => ("unknown".into(), "-".into(), busy, None),
    };
    vec![clean(&lock.resource), holder, remaining, format!("{on}/{all}"), or_dash(token), or_dash(lock.waiting)]
}
