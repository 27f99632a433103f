//! A client's lines put together: each piece of work with its grant, its looks, its writes and its end.
//!
//! Pure. Lines come in any order of processes; within one work they are in order, as one worker wrote them.

use std::collections::BTreeMap;

use crate::history::{Granted, History, Micros, Outcome, Said, WriteKind};

/// One attempt to get something done under a lock.
#[derive(Debug, Clone, PartialEq)]
pub struct Life {
    /// Unique in the run.
    pub work: u64,
    /// Which process.
    pub process: u32,
    /// Which place it has among the clients.
    pub client: usize,
    /// Which of its workers.
    pub worker: u32,
    /// What was to be locked.
    pub resource: String,
    /// When it was asked for.
    pub asked: Micros,
    /// Why there was no grant, if that was said.
    pub refused: Option<String>,
    /// The grant.
    pub hold: Option<Hold>,
}

/// From the grant on.
#[derive(Debug, Clone, PartialEq)]
pub struct Hold {
    /// When the caller had it.
    pub at: Micros,
    /// What was granted.
    pub granted: Granted,
    /// The end of the validity as it was last seen.
    pub valid_until: Micros,
    /// Looks at the lock: when, and what it said.
    pub looks: Vec<(Micros, bool)>,
    /// When the loss was heard of, and whether the end of the validity was the reason.
    pub lost: Option<(Micros, bool)>,
    /// When it began to be given back.
    pub released: Option<Micros>,
    /// Claims and writes, in order.
    pub writes: Vec<Write>,
}

/// A claim or a write.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Unique in the run.
    pub write: u64,
    /// Which of the two.
    pub kind: WriteKind,
    /// When it was sent.
    pub from: Micros,
    /// When it was answered, and with what; nothing if the process did not live to hear it.
    pub answer: Option<(Micros, Outcome)>,
}

impl Hold {
    /// Until when its holder could rely on it: to the end of its validity, or to when it gave it back or heard of its loss.
    #[must_use]
    pub fn relied_until(&self) -> Micros {
        let ends = [self.released, self.lost.map(|(at, _)| at)];
        ends.into_iter().flatten().fold(self.valid_until, Micros::min).max(self.at)
    }
}

/// All lives of a run, in the order in which they began.
#[must_use]
pub fn lives(history: &History) -> Vec<Life> {
    let mut lives: BTreeMap<u64, Life> = BTreeMap::new();
    for line in &history.lines {
        if let Said::Asks { resource } = &line.said {
            lives.insert(
                line.work,
                Life {
                    work: line.work,
                    process: line.process,
                    client: line.client,
                    worker: line.worker,
                    resource: resource.clone(),
                    asked: line.at,
                    refused: None,
                    hold: None,
                },
            );
            continue;
        }
        if let Some(life) = lives.get_mut(&line.work) {
            life.on(line.at, &line.said);
        }
    }
    let mut lives: Vec<Life> = lives.into_values().collect();
    lives.sort_by_key(|life| life.asked);
    lives
}

impl Life {
    fn on(&mut self, at: Micros, said: &Said) {
        match (said, &mut self.hold) {
            (Said::Refused { why }, None) => self.refused = Some(why.clone()),
            (Said::Granted(granted), None) => {
                self.hold = Some(Hold {
                    at,
                    valid_until: granted.valid_until,
                    granted: granted.clone(),
                    looks: Vec::new(),
                    lost: None,
                    released: None,
                    writes: Vec::new(),
                });
            }
            (Said::Looked { held, valid_until }, Some(hold)) => {
                hold.looks.push((at, *held));
                if *held {
                    hold.valid_until = hold.valid_until.max(*valid_until);
                }
            }
            (Said::Lost { expired, .. }, Some(hold)) => hold.lost = Some((at, *expired)),
            (Said::Releases, Some(hold)) => hold.released = Some(at),
            (Said::Writes { write, kind }, Some(hold)) => {
                hold.writes.push(Write { write: *write, kind: *kind, from: at, answer: None });
            }
            (Said::Wrote { write, outcome }, Some(hold)) => {
                if let Some(known) = hold.writes.iter_mut().rfind(|known| known.write == *write) {
                    known.answer = Some((at, outcome.clone()));
                }
            }
            _ => {}
        }
    }
}
