//! What all nodes say of locks, and what it amounts to.
//!
//! Asked over connections of its own and judged by a pure function, so that one look serves `inspect`, `list`, `top` and
//! `force-release`. A look is not atomic over nodes, nor need it be: nothing is decided by it but what people are told. An owner
//! is read in full, since only so can its lock be broken, and shown as its first characters.

use crate::exit::{Exit, Failure};
use crate::remote::{Remote, Unanswered, command};
use crate::settings::Settings;
use crate::table::clean;
use futures_util::future::{join, join_all};
use redis::Value;
use redlock_backends::redis::KeyNames;
use redlock_core::tally::quorum_of;
use redlock_core::{Fingerprint, KeyPrefix, Owner, RESERVED_FIRST_CHARACTER, Resource};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How many keys a server is asked to look at in one step of a scan.
const SCAN_STEP: usize = 500;

/// How many steps a scan takes on one server at most: half a million keys.
const SCAN_STEPS_MAX: usize = 1_000;

/// How often nodes that do not answer are tried again, while somebody watches.
const TRY_AGAIN_EVERY: Duration = Duration::from_secs(3);

/// A lock as all nodes see it.
#[derive(Clone, Debug, Serialize)]
pub struct LockSeen {
    /// The resource's name.
    pub resource: String,
    /// What the nodes' answers amount to.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How many stand in line for it; `None` where no node says.
    pub waiting: Option<u64>,
    /// Node by node, in the order in which they are configured.
    pub nodes: Vec<LockOnNode>,
}

/// A lock as one node sees it.
#[derive(Clone, Debug, Serialize)]
pub struct LockOnNode {
    /// The node's name.
    pub node: String,
    /// Who holds it.
    #[serde(flatten)]
    pub state: State,
    /// Where its fence counter stands.
    pub counter: Option<u64>,
    /// How many stand in line on this node.
    pub waiting: Option<u64>,
}

/// Who holds a lock on one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Nobody.
    Free,
    /// An owner.
    Held {
        /// The beginning of the owner's value.
        holder: String,
        /// For how long, if nobody extends it; `None` for ever.
        remaining_ms: Option<u64>,
        /// The whole value. A secret.
        #[serde(skip)]
        owner: Secret,
    },
    /// The key holds data of another kind, so it is no lock.
    Foreign {
        /// What the server calls that kind of data.
        kind: String,
    },
    /// The node does not say.
    Unknown {
        /// Why not.
        why: String,
    },
}

/// An owner that is shown to nobody; none if the value is no text, so that it is not this library's.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Option<Owner>);

impl Secret {
    fn of(value: &[u8]) -> Self {
        Self(std::str::from_utf8(value).ok().map(Owner::assume))
    }

    /// The owner.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.0.as_ref()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What the answers of all nodes amount to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// A quorum of nodes holds it for one owner.
    Held {
        /// The beginning of the owner's value.
        holder: String,
        /// On how many nodes.
        on: usize,
        /// How long a quorum holds it if nobody extends it; `None` for ever.
        remaining_ms: Option<u64>,
        /// The fencing token, if a quorum of the owner's nodes agrees on a counter.
        token: Option<u64>,
    },
    /// On a quorum of nodes it is free.
    Free,
    /// No owner has a quorum, and neither is a quorum free: an attempt is under way, or nodes are down.
    Undecided,
    /// Less than a quorum of nodes answered.
    Unknown,
}

/// Judges the answers of all configured nodes.
#[must_use]
pub fn judge(nodes: &[LockOnNode]) -> Verdict {
    let quorum = quorum_of(nodes.len());
    let holders: BTreeSet<&str> = nodes
        .iter()
        .filter_map(|node| match &node.state {
            State::Held { holder, .. } => Some(holder.as_str()),
            _ => None,
        })
        .collect();
    if let Some(holder) = holders.into_iter().find(|holder| quorum <= held_by(nodes, holder).count()) {
        let mut remaining: Vec<u64> = held_by(nodes, holder).map(|node| remaining_of(&node.state)).collect();
        remaining.sort_unstable_by(|one, other| other.cmp(one));
        // As long as so many nodes hold it, a quorum does.
        let lasts = remaining[quorum - 1];
        let counters = || held_by(nodes, holder).filter_map(|node| node.counter);
        let token = counters().find(|counter| quorum <= counters().filter(|other| other == counter).count());
        let remaining_ms = (lasts != u64::MAX).then_some(lasts);
        return Verdict::Held { holder: holder.to_owned(), on: remaining.len(), remaining_ms, token };
    }
    let count = |is: fn(&State) -> bool| nodes.iter().filter(|node| is(&node.state)).count();
    if quorum <= count(|state| matches!(state, State::Free)) {
        Verdict::Free
    } else if count(|state| !matches!(state, State::Unknown { .. })) < quorum {
        Verdict::Unknown
    } else {
        Verdict::Undecided
    }
}

fn held_by<'a>(nodes: &'a [LockOnNode], wanted: &'a str) -> impl Iterator<Item = &'a LockOnNode> {
    nodes.iter().filter(move |node| matches!(&node.state, State::Held { holder, .. } if holder == wanted))
}

fn remaining_of(state: &State) -> u64 {
    match state {
        State::Held { remaining_ms, .. } => remaining_ms.unwrap_or(u64::MAX),
        _ => 0,
    }
}

/// The nodes of a set-up, connected to as far as they can be.
#[derive(Debug)]
pub struct Survey {
    settings: Settings,
    prefix: KeyPrefix,
    nodes: Vec<(String, Result<Remote, Unanswered>)>,
    /// When nodes that do not answer are tried again.
    again: Instant,
    /// What comes of trying, node by node; nobody waits for it.
    tries: JoinSet<(usize, Result<Remote, Unanswered>)>,
}

/// The names of locks that were found.
#[derive(Debug, Default)]
pub struct Found {
    /// Sorted.
    pub resources: Vec<Resource>,
    /// Whether there may be more than those.
    pub more: bool,
    /// Nodes that could not be looked through, each with the reason.
    pub unread: Vec<(String, String)>,
}

impl Survey {
    /// Connects to all nodes.
    ///
    /// # Errors
    /// [`Exit::Misconfigured`] if the prefix is none, [`Exit::Unavailable`] if no node at all can be asked.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn begin(settings: &Settings) -> Result<Self, Failure> {
        let prefix = prefix(settings)?;
        let nodes = Remote::connect_all(settings).await;
        if nodes.iter().all(|(_, node)| node.is_err()) {
            let refused = |error: &Unanswered| !matches!(error, Unanswered::Silent(_));
            let misconfigured = nodes.iter().all(|(_, node)| node.as_ref().is_err_and(refused));
            let exit = if misconfigured { Exit::Misconfigured } else { Exit::Unavailable };
            let said = |(name, node): &(String, Result<Remote, Unanswered>)| {
                let said = node.as_ref().err().map(ToString::to_string).unwrap_or_default();
                crate::exit::NodeSaid { node: name.clone(), said }
            };
            let nodes = nodes.iter().map(said).collect();
            return Err(Failure { exit, message: "no node can be asked".into(), nodes });
        }
        let (settings, again) = (settings.clone(), Instant::now() + TRY_AGAIN_EVERY);
        Ok(Self { settings, prefix, nodes, again, tries: JoinSet::new() })
    }

    /// Looks which nodes still answer, all at once, and connects to the others now and then, beside what else goes on: a node that
    /// is frozen takes its time to say nothing.
    ///
    /// # Cancel safety
    /// As [`Survey::begin`].
    pub async fn reconnect(&mut self) {
        while let Some(tried) = self.tries.try_join_next() {
            if let Ok((position, node)) = tried {
                self.nodes[position].1 = node;
            }
        }
        if self.again <= Instant::now() && self.tries.is_empty() {
            self.again = Instant::now() + TRY_AGAIN_EVERY;
            let silent = self.nodes.iter().enumerate().filter(|(_, (_, node))| node.is_err());
            for (position, _) in silent {
                let settings = self.settings.clone();
                self.tries.spawn(async move { (position, Remote::connect(&settings, position).await) });
            }
        }
        let looks = self.nodes.iter_mut().map(async |(_, node)| {
            if let Ok(remote) = node
                && let Err(error) = remote.ask::<Value>(&command(&["TIME"])).await
            {
                *node = Err(error);
            }
        });
        join_all(looks).await;
    }

    /// What stands before every key.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.prefix.as_str()
    }

    /// The nodes, connected to or not.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Result<Remote, Unanswered>)> {
        self.nodes.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// Looks at locks, all nodes and all locks at once.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn look_at(&self, resources: &[Resource]) -> Vec<LockSeen> {
        let nodes = self.nodes.iter().map(async |(name, node)| match node {
            Ok(remote) => look_on(remote, &self.prefix, resources).await,
            Err(error) => resources.iter().map(|_| unknown(name, error)).collect(),
        });
        let mut answers: Vec<_> = join_all(nodes).await.into_iter().map(Vec::into_iter).collect();
        let mut seen = Vec::with_capacity(resources.len());
        for resource in resources {
            let nodes: Vec<LockOnNode> = answers.iter_mut().filter_map(Iterator::next).collect();
            // A line stands on one node; where clients disagreed on which, on more.
            let waiting = nodes.iter().filter_map(|node| node.waiting).reduce(|one, other| one + other);
            seen.push(LockSeen { resource: resource.name().into(), verdict: judge(&nodes), waiting, nodes });
        }
        seen
    }

    /// Looks for the names of locks, at most `limit` of them, through a bounded number of keys.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn find(&self, limit: usize) -> Found {
        let nodes = self.nodes.iter().map(async |(name, node)| match node {
            Ok(remote) => (name, scan(remote, &self.prefix, limit).await),
            Err(error) => (name, Err(error.clone())),
        });
        let mut found = Found::default();
        let mut names = BTreeSet::new();
        for (name, answer) in join_all(nodes).await {
            match answer {
                Ok((some, more)) => {
                    names.extend(some);
                    found.more |= more;
                }
                Err(error) => found.unread.push((name.clone(), error.to_string())),
            }
        }
        found.more |= limit < names.len();
        found.resources = names.into_iter().take(limit).collect();
        found
    }
}

/// The prefix, checked.
///
/// # Errors
/// [`Exit::Misconfigured`] says what is wrong with it.
pub fn prefix(settings: &Settings) -> Result<KeyPrefix, Failure> {
    KeyPrefix::new(&settings.prefix).map_err(|error| Failure::new(Exit::Misconfigured, error.to_string()))
}

/// A name that was typed, checked.
///
/// # Errors
/// [`Exit::Usage`] says what is wrong with it.
pub fn resource(name: &str) -> Result<Resource, Failure> {
    Resource::new(name).map_err(|error| Failure::new(Exit::Usage, error.to_string()))
}

fn unknown(name: &str, error: &Unanswered) -> LockOnNode {
    LockOnNode { node: name.to_owned(), state: State::Unknown { why: error.to_string() }, counter: None, waiting: None }
}

async fn look_on(remote: &Remote, prefix: &KeyPrefix, resources: &[Resource]) -> Vec<LockOnNode> {
    // All questions are on their way before the first is answered: one round trip.
    let looks = resources.iter().map(async |resource| {
        let keys = KeyNames::of(prefix, resource);
        let (lock, beside) = join(lock_on(remote, &keys), beside(remote, &keys)).await;
        let (counter, waiting) = beside;
        match lock {
            Ok(state) => LockOnNode { node: remote.name.clone(), state, counter, waiting },
            Err(error) => LockOnNode { counter, waiting, ..unknown(&remote.name, &error) },
        }
    });
    join_all(looks).await
}

async fn lock_on(remote: &Remote, keys: &KeyNames) -> Result<State, Unanswered> {
    let (kind, get, pttl) =
        (command(&["TYPE", &keys.lock]), command(&["GET", &keys.lock]), command(&["PTTL", &keys.lock]));
    let (kind, (value, remaining)) =
        join(remote.ask::<String>(&kind), join(remote.ask::<Option<Vec<u8>>>(&get), remote.ask::<i64>(&pttl))).await;
    match kind?.as_str() {
        "none" => Ok(State::Free),
        "string" => Ok(match value? {
            // It went between two questions.
            None => State::Free,
            Some(value) => State::Held {
                holder: clean(&Fingerprint::of(&String::from_utf8_lossy(&value)).to_string()),
                remaining_ms: u64::try_from(remaining?).ok(),
                owner: Secret::of(&value),
            },
        }),
        kind => Ok(State::Foreign { kind: kind.to_owned() }),
    }
}

/// The counter and the length of the line, as far as the user may read them.
async fn beside(remote: &Remote, keys: &KeyNames) -> (Option<u64>, Option<u64>) {
    let (get, llen) = (command(&["GET", &keys.counter]), command(&["LLEN", &keys.line]));
    let (counter, line) = join(remote.ask::<Option<u64>>(&get), remote.ask::<u64>(&llen)).await;
    (counter.ok().flatten(), line.ok())
}

async fn scan(remote: &Remote, prefix: &KeyPrefix, limit: usize) -> Result<(BTreeSet<Resource>, bool), Unanswered> {
    let (mut names, mut cursor) = (BTreeSet::new(), 0_u64);
    let pattern = format!("{}[^{RESERVED_FIRST_CHARACTER}]*", glob_of(prefix.as_str()));
    for _ in 0..SCAN_STEPS_MAX {
        let mut step = command(&["SCAN"]);
        step.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCAN_STEP);
        let (next, keys): (u64, Vec<Vec<u8>>) = remote.ask(&step).await?;
        let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok()?.strip_prefix(prefix.as_str()));
        // What is no name is no lock of this library's.
        names.extend(keys.filter_map(|name| Resource::new(name).ok()));
        cursor = next;
        if cursor == 0 {
            return Ok((names, false));
        }
        if limit < names.len() {
            break;
        }
    }
    Ok((names, true))
}

/// A pattern that matches this text and nothing else.
pub(crate) fn glob_of(text: &str) -> String {
    let escape = |character: char| match character {
        '*' | '?' | '[' | ']' | '\\' | '^' => format!("\\{character}"),
        other => String::from(other),
    };
    text.chars().map(escape).collect()
}

/// Milliseconds as a time.
#[must_use]
pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One word per node: `-` free, `?` unknown, `#` foreign, or a holder with its remaining time and counter: `a:50:7`.
    fn nodes(words: &str) -> Vec<LockOnNode> {
        let node = |word: &str| {
            let mut parts = word.split(':');
            let (state, counter) = match parts.next().unwrap() {
                "-" => (State::Free, None),
                "?" => (State::Unknown { why: "down".into() }, None),
                "#" => (State::Foreign { kind: "hash".into() }, None),
                holder => {
                    let remaining_ms = parts.next().and_then(|millis| millis.parse().ok());
                    let owner = Secret::of(holder.as_bytes());
                    (
                        State::Held { holder: holder.into(), remaining_ms, owner },
                        parts.next().and_then(|c| c.parse().ok()),
                    )
                }
            };
            LockOnNode { node: "n".into(), state, counter, waiting: None }
        };
        words.split(' ').map(node).collect()
    }

    #[test]
    fn a_quorum_of_all_configured_nodes_decides() {
        for (words, expected) in [
            ("- - - - -", Verdict::Free),
            ("- - - a:9:1 ?", Verdict::Free),
            ("a:9:1 a:9:1 - b:9:1 -", Verdict::Undecided),
            ("a:9:1 a:9:1 - ? ?", Verdict::Undecided),
            ("a:9:1 a:9:1 ? ? ?", Verdict::Unknown),
            ("# # # - -", Verdict::Undecided),
            ("?", Verdict::Unknown),
        ] {
            assert_eq!(judge(&nodes(words)), expected, "{words}");
        }
    }

    #[test]
    fn a_lock_lasts_as_long_as_a_quorum_holds_it() {
        let held = |remaining_ms, on, token| Verdict::Held { holder: "a".into(), on, remaining_ms, token };
        assert_eq!(judge(&nodes("a:10:7 a:50:7 a:30:7 b:99:9 -")), held(Some(10), 3, Some(7)));
        assert_eq!(judge(&nodes("a:10:7 a:50:7 a:30:7 a:20:6 a:40:5")), held(Some(30), 5, Some(7)));
        assert_eq!(
            judge(&nodes("a:10:7 a:50:8 a:30:9 - -")),
            held(Some(10), 3, None),
            "counters that disagree are no token"
        );
        assert_eq!(judge(&nodes("a:x:7 a:x:7 a:x:7 - -")), held(None, 3, Some(7)), "without expiry");
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(glob_of("l?ck*[a]:"), "l\\?ck\\*\\[a\\]:");
    }
}
