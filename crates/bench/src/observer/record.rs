//! From readings to a verdict, without I/O or a clock: readings and instants come in, holdings and overlaps go out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// What one look at one node showed.
#[derive(Debug)]
pub(super) struct Reading {
    /// The node's identity, if this look began a new connection.
    pub(super) run_id: Option<String>,
    /// Each key's name, and what is in it.
    pub(super) values: Vec<(String, Option<Value>)>,
}

/// What is in a lock key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) owner: String,
    /// The rest of the key's life; nothing if it has no end, which is a fault.
    pub(super) left: Option<Duration>,
}

/// Everything seen so far.
#[derive(Debug)]
pub(super) struct Record {
    period: Duration,
    nodes: Vec<Node>,
    looks: u64,
    without_expiry: BTreeSet<WithoutExpiry>,
    /// Who holds each key now, and since when.
    holders: BTreeMap<(String, String), Instant>,
    holdings: Vec<Holding>,
    /// Two holders of one key now, and since when.
    doubles: BTreeMap<(String, [String; 2]), Instant>,
    overlaps: Vec<Overlap>,
}

#[derive(Debug, Default)]
struct Node {
    run_id: Option<String>,
    votes: BTreeMap<String, Vote>,
    /// Given before a restart: the node does not know them any more, their owners do.
    forgotten: Vec<(String, Vote)>,
}

#[derive(Debug)]
struct Vote {
    owner: String,
    /// Nothing if it never ends.
    until: Option<Instant>,
}

/// What an [`Observer`](super::Observer) saw.
#[derive(Debug, Clone)]
pub struct Report {
    /// Who held a majority of the nodes and when, in the order of the beginnings.
    pub holdings: Vec<Holding>,
    /// Two majorities at once for longer than the observer's period.
    pub overlaps: Vec<Overlap>,
    /// Lock keys that would have stayed for ever.
    pub without_expiry: Vec<WithoutExpiry>,
    /// How many answers all this rests on.
    pub looks: u64,
}

/// One owner's majority on one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The lock key.
    pub key: String,
    /// The value that a majority of the nodes had.
    pub owner: String,
    /// When it was first seen.
    pub from: Instant,
    /// When it was first seen no more, or when the report was made.
    pub until: Instant,
}

/// Two owners' majorities on one key at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The lock key.
    pub key: String,
    /// The two values.
    pub owners: [String; 2],
    /// For how long both were seen.
    pub lasted: Duration,
}

/// A lock key without an end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WithoutExpiry {
    /// The node's index.
    pub node: usize,
    /// The lock key.
    pub key: String,
    /// The value in it.
    pub owner: String,
}

impl Record {
    pub(super) fn new(nodes: usize, period: Duration) -> Self {
        Self {
            period,
            nodes: std::iter::repeat_with(Node::default).take(nodes).collect(),
            looks: 0,
            without_expiry: BTreeSet::new(),
            holders: BTreeMap::new(),
            holdings: Vec::new(),
            doubles: BTreeMap::new(),
            overlaps: Vec::new(),
        }
    }

    pub(super) fn on_reading(&mut self, node: usize, reading: Reading, now: Instant) {
        self.looks += 1;
        for (key, value) in &reading.values {
            if let Some(Value { owner, left: None }) = value {
                self.without_expiry.insert(WithoutExpiry { node, key: key.clone(), owner: owner.clone() });
            }
        }
        self.nodes[node].on_reading(reading, now);

        let holders = self.majorities(now);
        let doubles = doubles_among(&holders);
        let ended = follow(&mut self.holders, holders, now);
        self.holdings.extend(ended.map(|((key, owner), from)| Holding { key, owner, from, until: now }));
        let ended = follow(&mut self.doubles, doubles, now);
        self.overlaps.extend(ended.map(|((key, owners), since)| Overlap { key, owners, lasted: now - since }));
    }

    pub(super) fn report(&self, now: Instant) -> Report {
        let open = self.holders.iter();
        let open = open.map(|((key, owner), from)| Holding {
            key: key.clone(),
            owner: owner.clone(),
            from: *from,
            until: now,
        });
        let mut holdings: Vec<Holding> = self.holdings.iter().cloned().chain(open).collect();
        holdings.sort_by_key(|holding| holding.from);

        let open = self.doubles.iter();
        let open = open.map(|((key, owners), since)| Overlap {
            key: key.clone(),
            owners: owners.clone(),
            lasted: now - *since,
        });
        let overlaps =
            self.overlaps.iter().cloned().chain(open).filter(|overlap| self.period < overlap.lasted).collect();

        let without_expiry = self.without_expiry.iter().cloned().collect();
        Report { holdings, overlaps, without_expiry, looks: self.looks }
    }

    /// Each key with each owner that a majority of all nodes voted for.
    fn majorities(&self, now: Instant) -> BTreeSet<(String, String)> {
        let quorum = self.nodes.len() / 2 + 1;
        let mut votes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for node in &self.nodes {
            for choice in node.choices(now) {
                *votes.entry(choice).or_default() += 1;
            }
        }
        let won = votes.into_iter().filter(|(_, count)| quorum <= *count);
        won.map(|((key, owner), _)| (key.to_owned(), owner.to_owned())).collect()
    }
}

impl Node {
    fn on_reading(&mut self, reading: Reading, now: Instant) {
        if let Some(run_id) = reading.run_id
            && self.run_id.replace(run_id.clone()).is_some_and(|before| before != run_id)
        {
            self.forgotten.extend(std::mem::take(&mut self.votes));
        }
        self.forgotten.retain(|(_, vote)| vote.stands(now));
        for (key, value) in reading.values {
            match value {
                Some(Value { owner, left }) => {
                    self.votes.insert(key, Vote { owner, until: left.map(|left| now + left) });
                }
                None => drop(self.votes.remove(&key)),
            }
        }
    }

    /// The owners this node stands for, each once per key.
    fn choices(&self, now: Instant) -> BTreeSet<(&str, &str)> {
        let forgotten = self.forgotten.iter().map(|(key, vote)| (key, vote));
        let standing = self.votes.iter().chain(forgotten).filter(|(_, vote)| vote.stands(now));
        standing.map(|(key, vote)| (key.as_str(), vote.owner.as_str())).collect()
    }
}

impl Vote {
    fn stands(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Report {
    /// The owners who held `key`, one after the other.
    #[must_use]
    pub fn owners_of(&self, key: &str) -> Vec<&str> {
        self.holdings.iter().filter(|holding| holding.key == key).map(|holding| holding.owner.as_str()).collect()
    }

    /// Fails a test unless all was well.
    ///
    /// # Panics
    /// If two majorities overlapped, if a lock key had no expiry, or if the observer saw nothing at all.
    #[track_caller]
    pub fn assert_safe(&self) {
        assert!(0 < self.looks, "the observer has not reached a single node");
        assert!(self.overlaps.is_empty(), "{self}");
        assert!(self.without_expiry.is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} looks, {} majorities", self.looks, self.holdings.len())?;
        for Overlap { key, owners: [first, second], lasted } in &self.overlaps {
            write!(f, "\n{key}: {first} and {second} both held a majority for {lasted:?}")?;
        }
        for WithoutExpiry { node, key, owner } in &self.without_expiry {
            write!(f, "\n{key}: {owner} without expiry on node {node}")?;
        }
        Ok(())
    }
}

/// Every two owners of one key.
fn doubles_among(holders: &BTreeSet<(String, String)>) -> BTreeSet<(String, [String; 2])> {
    let pairs = holders.iter().flat_map(|first| holders.iter().map(move |second| (first, second)));
    pairs
        .filter(|((key, first), (other_key, second))| key == other_key && first < second)
        .map(|((key, first), (_, second))| (key.clone(), [first.clone(), second.clone()]))
        .collect()
}

/// Brings what is going on up to date with what is the case `now`; gives what has ended, and when it had begun.
fn follow<T: Ord + Clone>(
    open: &mut BTreeMap<T, Instant>,
    present: BTreeSet<T>,
    now: Instant,
) -> impl Iterator<Item = (T, Instant)> {
    let ended: Vec<_> = open.extract_if(.., |what, _| !present.contains(what)).collect();
    for what in present {
        open.entry(what).or_insert(now);
    }
    ended.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(5);

    /// Three nodes and a story told in lines of `at_ms node reading`, a reading being an owner with the milliseconds left
    /// (`A 100`), an owner without end (`A -`), or nothing (`.`); a `!` before it is a restart of the node.
    fn told(story: &str) -> Report {
        let start = Instant::now();
        let mut record = Record::new(3, PERIOD);
        let mut restarts = 0;
        let mut end = start;
        for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [at, node, reading @ ..] = words.as_slice() else { panic!("{line}") };
            let (restarted, reading) = match reading {
                ["!", rest @ ..] => (true, rest),
                rest => (false, rest),
            };
            restarts += u32::from(restarted);
            let value = match reading {
                ["."] => None,
                [owner, "-"] => Some(Value { owner: (*owner).into(), left: None }),
                [owner, left] => Some(Value { owner: (*owner).into(), left: Some(ms(left)) }),
                _ => panic!("{line}"),
            };
            end = start + ms(at);
            let run_id = Some(format!("incarnation {restarts}")).filter(|_| restarted || at == &"0");
            record.on_reading(node.parse().unwrap(), Reading { run_id, values: vec![("r".into(), value)] }, end);
        }
        record.report(end)
    }

    fn ms(text: &str) -> Duration {
        Duration::from_millis(text.parse().unwrap())
    }

    #[test]
    fn a_minority_holds_nothing() {
        assert_eq!(told("0 0 A 100\n 0 1 .\n 0 2 .").owners_of("r"), [""; 0]);
    }

    #[test]
    fn a_handover_is_two_holdings_and_no_overlap() {
        let report = told(
            "0 0 A 100
             0 1 A 100
             0 2 A 100
            10 0 .
            10 1 B 100
            10 2 B 100",
        );
        assert_eq!(report.owners_of("r"), ["A", "B"]);
        assert_eq!(report.holdings[0].until - report.holdings[0].from, Duration::from_millis(10));
        report.assert_safe();
    }

    #[test]
    fn a_holding_ends_with_its_keys() {
        let report = told(
            "0 0 A 50
             0 1 A 50
             0 2 A 50
            60 2 .",
        );
        assert_eq!(report.holdings[0].until - report.holdings[0].from, Duration::from_millis(60));
    }

    #[test]
    fn a_node_that_does_not_answer_keeps_its_votes_until_they_expire() {
        let report = told(
            "0 0 A 50
             0 1 A 50
             0 2 .
            40 2 .
            60 2 .",
        );
        assert_eq!(report.holdings[0].until - report.holdings[0].from, Duration::from_millis(60));
    }

    /// The classic scenario: a node comes back empty and votes a second time.
    const AMNESIA: &str = "0 0 A 100
                           0 1 A 100
                           0 2 .
                          10 1 ! B 100
                          10 2 B 100
                          20 0 A 80";

    #[test]
    fn a_node_that_forgot_and_votes_again_makes_an_overlap() {
        let report = told(AMNESIA);
        assert_eq!(report.overlaps.len(), 1);
        assert_eq!(report.overlaps[0].owners, ["A", "B"]);
        assert_eq!(report.overlaps[0].lasted, Duration::from_millis(10));
        assert!(report.to_string().contains("r: A and B both held a majority for 10ms"), "{report}");
    }

    #[test]
    fn the_overlap_ends_with_the_first_holders_release() {
        let report = told(&format!("{AMNESIA}\n 30 0 .\n 90 0 ."));
        assert_eq!(report.overlaps[0].lasted, Duration::from_millis(20));
    }

    #[test]
    fn an_overlap_no_longer_than_the_period_may_be_an_artefact() {
        let report = told(&AMNESIA.replace("20 0 A 80", "14 0 ."));
        assert_eq!(report.overlaps, []);
    }

    #[test]
    fn a_restarted_node_may_vote_again_once_its_old_vote_has_expired() {
        told(&AMNESIA.replace("10 1 !", "110 1 !").replace("10 2 B", "110 2 B").replace("20 0 A 80", "120 0 ."))
            .assert_safe();
    }

    #[test]
    fn a_key_without_expiry_is_reported_once() {
        let report = told("0 0 .\n 0 1 A -\n 5 1 A -");
        assert_eq!(report.without_expiry, [WithoutExpiry { node: 1, key: "r".into(), owner: "A".into() }]);
    }

    #[test]
    #[should_panic = "has not reached a single node"]
    fn having_seen_nothing_is_no_verdict() {
        told("").assert_safe();
    }
}
