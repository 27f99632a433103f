//! The oracle: replays the journal one line after the other, and holds every verdict against it.
//!
//! What the fence promises is [`Model::take`], ten lines of rules over fence, counter and tombstone of each key. All else
//! here compares: what each holder was told with what the journal shows of its token, in its own time, and the table with
//! what the replay ends in.

use std::collections::BTreeMap;

use super::journal::{Line, What};
use super::plan::Work;
use super::told::{Deed, Effect, Told};

/// What a key holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) present: bool,
    pub(super) fence: i64,
    pub(super) n: i64,
    pub(super) value: i64,
    /// The ledger's token: what the key remembers when its row is gone.
    pub(super) tombstone: i64,
    /// Last writer and counter of what only the ledger protects.
    pub(super) vault: (i64, i64),
}

/// All keys, after some lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model(pub(super) BTreeMap<i64, Key>);

impl Model {
    /// Takes the next line, or says that no fence would have let it pass.
    fn take(&mut self, line: Line) -> Result<(), String> {
        let key = self.0.entry(line.key).or_default();
        let legal = match line.what {
            What::Insert => !key.present && key.tombstone == line.fence.1,
            What::Update => {
                key.present && key.fence <= line.fence.1.abs() && (key.fence, key.n) == (line.fence.0, line.n.0)
            }
            What::Delete => key.present && key.fence < 0 && key.tombstone == -key.fence,
            What::Raise => key.tombstone == line.fence.0 && key.tombstone <= line.fence.1,
            What::Vault => key.vault == (line.fence.0, line.n.0) && key.tombstone == line.fence.1,
        };
        let counted = line.n.1 == line.n.0 + 1 || (line.n.1 == line.n.0 && line.what == What::Update);
        if !legal || !(counted || matches!(line.what, What::Raise | What::Delete) || line.fence.1 == 0) {
            return Err(format!("{line:?} does not follow from {key:?}"));
        }
        match line.what {
            What::Raise => key.tombstone = line.fence.1,
            What::Vault => key.vault = (line.fence.1, line.n.1),
            What::Delete => *key = Key { tombstone: key.tombstone, vault: key.vault, ..Key::default() },
            What::Insert | What::Update => {
                let (fence, n, value) = (line.fence.1, line.n.1, line.value);
                *key = Key { present: true, fence, n, value, ..*key };
            }
        }
        Ok(())
    }
}

/// A history: what was planned, told and done.
pub(super) struct History<'h> {
    works: Vec<&'h Work>,
    deeds: BTreeMap<i64, Vec<Deed>>,
    journal: Vec<Line>,
}

/// Where a fence stood at a value, or a row was away: from the writer of that to the next one's, if there was one.
struct Span {
    key: i64,
    fence: i64,
    is_absent: bool,
    from: i64,
    to: Option<i64>,
}

impl<'h> History<'h> {
    /// Work of which nothing was told is that of holders who were killed: whatever the journal shows of it is right, if it
    /// follows from what was before.
    pub(super) fn new(works: impl IntoIterator<Item = &'h Work>, told: Vec<Deed>, journal: Vec<Line>) -> Self {
        let mut deeds: BTreeMap<i64, Vec<Deed>> = BTreeMap::new();
        for deed in told {
            deeds.entry(deed.token).or_default().push(deed);
        }
        Self { works: works.into_iter().collect(), deeds, journal }
    }

    /// Everything in which the verdicts and the journal disagree, and what the table should hold.
    pub(super) fn judge(&self) -> (Vec<String>, Model) {
        let mut model = Model::default();
        let mut wrong: Vec<String> = self.journal.iter().filter_map(|line| model.take(*line).err()).collect();
        wrong.extend(self.order());
        let spans = self.spans();
        for work in &self.works {
            let Some(deeds) = self.deeds.get(&work.token) else { continue };
            let mut found = self.counts(work.token, deeds);
            found.extend(deeds.iter().filter_map(|deed| self.verdict(deed, &work.keys, &spans).err()));
            wrong.extend(found.into_iter().map(|what| format!("{what}, in {work:?} told {deeds:?}")));
        }
        (wrong, model)
    }

    /// From when to when a token's writes can have taken effect.
    fn time_of(&self, token: i64) -> (u64, u64) {
        let deeds = || self.deeds.get(&token).into_iter().flatten();
        let since = deeds().map(|deed| deed.since).min().unwrap_or(0);
        (since, if token == 0 { 0 } else { deeds().map(|deed| deed.until).max().unwrap_or(u64::MAX) })
    }

    /// Changes of one row stand in the order of time: none was told to be done before an earlier one was begun.
    fn order(&self) -> Vec<String> {
        let mut last = BTreeMap::new();
        let mut wrong = Vec::new();
        for line in &self.journal {
            let is_ledgers = matches!(line.what, What::Raise | What::Vault);
            let token = token_of(*line);
            if let Some(before) = last.insert((is_ledgers, line.key), token)
                && before != token
                && self.time_of(token).1 < self.time_of(before).0
            {
                wrong.push(format!("{line:?} came after {before}, which was begun when it had been done"));
            }
        }
        wrong
    }

    /// What the journal shows of a token, against what its holder was told.
    fn counts(&self, token: i64, deeds: &[Deed]) -> Vec<String> {
        let mut shown: BTreeMap<(Effect, i64), usize> = BTreeMap::new();
        for line in self.journal.iter().filter(|line| token_of(**line) == token) {
            if let Some(effect) = effect_of(*line) {
                *shown.entry((effect, line.key)).or_default() += 1;
            }
        }
        let mut bounds: BTreeMap<(Effect, i64), (usize, usize)> =
            shown.keys().map(|effect| (*effect, (0, 0))).collect();
        for deed in deeds {
            for (effect, key) in &deed.effects {
                let is_sure = matches!(deed.told, Told::Applied | Told::Read(_)) && *effect != Effect::MayRaise;
                let effect = if *effect == Effect::MayRaise { Effect::Raise } else { *effect };
                let (least, most) = bounds.entry((effect, *key)).or_default();
                // Both may be repeated within, after a lost race.
                let may_repeat = matches!(effect, Effect::Raise | Effect::Claim);
                *most = match (&deed.told, effect) {
                    // Whoever finds no row to delete or to claim leaves a tombstone; and where a claim takes two statements,
                    // somebody newer may have come in between.
                    (Told::NoSuchRow, Effect::Raise | Effect::Claim) | (Told::Stale(_), Effect::Claim) => usize::MAX,
                    (Told::NoSuchRow | Told::Stale(_) | Told::AlreadyWritten | Told::Nothing, _) => *most,
                    _ if may_repeat => usize::MAX,
                    _ => most.saturating_add(1),
                };
                *least = if may_repeat { (*least).max(is_sure.into()) } else { *least + usize::from(is_sure) };
            }
        }
        let mut wrong: Vec<String> = bounds
            .into_iter()
            .filter_map(|(effect, (least, most))| {
                let count = shown.get(&effect).copied().unwrap_or(0);
                let fits = least <= count && count <= most;
                (!fits).then(|| format!("{effect:?} was done {count} times, not {least} to {most}"))
            })
            .collect();
        // What belongs together was done together.
        for deed in deeds.iter().filter(|deed| deed.told == Told::Unknown) {
            let once = deed
                .effects
                .iter()
                .filter(|(effect, _)| !matches!(effect, Effect::Raise | Effect::MayRaise | Effect::Claim));
            let done: Vec<bool> = once.map(|effect| shown.contains_key(effect)).collect();
            if done.contains(&true) && done.contains(&false) {
                wrong.push(format!("half of {:?} was done", deed.effects));
            }
        }
        wrong
    }

    /// Whether a verdict was true at some moment between the question and the answer.
    fn verdict(&self, deed: &Deed, keys: &[i64], spans: &[Span]) -> Result<(), String> {
        let meets = |span: &&Span| {
            let ended = span.to.is_some_and(|to| self.time_of(to).1 < deed.since);
            self.time_of(span.from).0 <= deed.until && !ended
        };
        let own = |line: &&Line| token_of(**line) == deed.token && deed.effects.iter().any(|(_, key)| line.key == *key);
        let is_true = match &deed.told {
            Told::Applied | Told::Nothing | Told::Unknown => true,
            Told::Unexpected(_) => false,
            Told::Stale(highest) => {
                let fits = |span: &&Span| keys.contains(&span.key) && span.fence == *highest;
                deed.token < *highest && spans.iter().filter(meets).any(|span| fits(&span))
            }
            Told::NoSuchRow => {
                let named = |span: &&Span| deed.effects.iter().any(|(_, key)| span.key == *key);
                spans.iter().filter(meets).any(|span| span.is_absent && named(&span))
            }
            Told::AlreadyWritten => self.journal.iter().filter(own).any(|line| line.what != What::Raise),
            Told::Read(n) => {
                self.journal.iter().filter(own).any(|line| effect_of(*line) == Some(Effect::Claim) && line.n.1 == *n)
            }
        };
        if is_true { Ok(()) } else { Err(format!("{:?} was never true", deed.told)) }
    }

    /// Where the fences stood, of rows and in the ledger.
    fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let mut open: BTreeMap<(bool, i64), usize> = BTreeMap::new();
        let keys = self.works.iter().flat_map(|work| &work.keys);
        let before = keys.map(|key| ((false, *key), (0, true, 0)));
        let lines = self.journal.iter().filter(|line| line.what != What::Vault).map(|line| {
            let is_ledgers = line.what == What::Raise;
            let is_absent = line.what == What::Delete;
            ((is_ledgers, line.key), (line.fence.1, is_absent, token_of(*line)))
        });
        for ((is_ledgers, key), (fence, is_absent, token)) in before.chain(lines) {
            if let Some(last) = open.insert((is_ledgers, key), spans.len()) {
                spans[last].to = Some(token);
            }
            spans.push(Span { key, fence, is_absent, from: token, to: None });
        }
        spans
    }
}

/// Whose change it was.
fn token_of(line: Line) -> i64 {
    if line.what == What::Delete { line.fence.0.abs() } else { line.fence.1.abs() }
}

/// What a line is an effect of; nothing for the first half of a deletion, and for what was there at the beginning.
fn effect_of(line: Line) -> Option<Effect> {
    Some(match line.what {
        What::Insert => Effect::Put,
        What::Update if line.fence.1 < 0 => return None,
        What::Update if line.n.0 == line.n.1 => Effect::Claim,
        What::Update => Effect::Put,
        What::Delete => Effect::Delete,
        What::Raise => Effect::Raise,
        What::Vault => Effect::Vault,
    })
}
