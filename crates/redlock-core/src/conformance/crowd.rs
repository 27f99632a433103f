//! Promises about many at once: atomic means that calls behave as if they had come one after the other.
//!
//! The calls race in tasks of their own, over several connections. The tasks belong to a set that ends with the check.

use super::stage::{LONG, Outcome, SHORT, Stage, answered, broken, due, ttl};
use crate::node::{Acquisition, Extension, LockNode, Raising, Releasing};
use crate::owner::Ownership;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::{JoinError, JoinSet};

/// How many ask at once.
const CROWD: usize = 12;

/// The connections over which they ask.
const CONNECTIONS: usize = 4;

/// How often a race is run.
const ROUNDS: usize = 12;

/// How often somebody is granted who asks again and again.
const GRANTS_EACH: usize = 6;

/// How often somebody asks again who is refused.
const TRIES_MAX: u32 = 4_000;

/// The longest pause before asking again. The first is short; a crowd that waits must not be what keeps the node busy.
const PAUSE_MAX: Duration = Duration::from_millis(16);

fn ended<T>(task: Result<Outcome<T>, JoinError>) -> Outcome<T> {
    task.unwrap_or_else(|error| broken(format!("a call ended in a panic: {error}")))
}

/// Asks until it is granted, and says the counter.
async fn wait_for_turn(node: &dyn LockNode, who: &Ownership) -> Outcome<u64> {
    for tries in 1..=TRIES_MAX {
        match answered("an acquire in a crowd", node.acquire(who, ttl(LONG), 0).await)? {
            Acquisition::Granted { counter } => return Ok(counter),
            Acquisition::Held(_) => tokio::time::sleep((tries * Duration::from_millis(1)).min(PAUSE_MAX)).await,
        }
    }
    broken(format!("{} was never granted in {TRIES_MAX} tries, though every holder gave it back", who.resources()))
}

async fn give_back(node: &dyn LockNode, who: &Ownership) -> Outcome {
    let released = answered("a release in a crowd", node.release(who).await)?;
    due("a holder's release in a crowd", released, Releasing::Released)
}

/// Lets the other side of a race begin first, by a little more from round to round.
async fn let_begin(round: usize) {
    for _ in 0..round % 4 {
        tokio::task::yield_now().await;
    }
}

pub(super) async fn one_of_a_crowd_is_granted(stage: &Stage<'_>) -> Outcome {
    let connections: [_; CONNECTIONS] = stage.connections().await;
    for round in 0..ROUNDS {
        // One resource and several in turn: a node may treat them differently.
        let names = if round % 2 == 0 { vec!["a"] } else { vec!["a", "b", "c"] };
        let names: Vec<String> = names.into_iter().map(|name| format!("{name}{round}")).collect();
        let start = Arc::new(Barrier::new(CROWD));
        let mut crowd = JoinSet::new();
        for member in 0..CROWD {
            let (who, node) = (stage.somebody(&names[..]), Arc::clone(&connections[member % CONNECTIONS]));
            let start = Arc::clone(&start);
            crowd.spawn(async move {
                start.wait().await;
                answered("an acquire in a crowd", node.acquire(&who, ttl(LONG), 0).await)
            });
        }
        let mut granted = 0;
        while let Some(answer) = crowd.join_next().await {
            granted += usize::from(matches!(ended(answer)?, Acquisition::Granted { .. }));
        }
        if granted != 1 {
            return broken(format!("{granted} of {CROWD} were granted {names:?}, which were free, at once"));
        }
    }
    Ok(())
}

pub(super) async fn counters_of_a_crowd_are_distinct_and_leave_no_gap(stage: &Stage<'_>) -> Outcome {
    let connections: [_; CONNECTIONS] = stage.connections().await;
    let first = stage.somebody("a");
    let before = stage.takes(&first, LONG, 0).await?;
    stage.gives_back(&first).await?;
    let mut crowd = JoinSet::new();
    for member in 0..CROWD {
        let node = Arc::clone(&connections[member % CONNECTIONS]);
        let turns: Vec<_> = (0..GRANTS_EACH).map(|_| stage.somebody("a")).collect();
        crowd.spawn(async move {
            let mut counters = Vec::with_capacity(turns.len());
            for who in &turns {
                counters.push(wait_for_turn(&*node, who).await?);
                give_back(&*node, who).await?;
            }
            Ok(counters)
        });
    }
    let mut counters = Vec::new();
    while let Some(of_one) = crowd.join_next().await {
        let of_one = ended(of_one)?;
        if !of_one.is_sorted() {
            return broken(format!("one client's grants, one after the other, have the counters {of_one:?}"));
        }
        counters.extend(of_one);
    }
    counters.sort_unstable();
    let count = counters.len();
    let expected: Vec<u64> = (before + 1..).take(count).collect();
    if counters == expected {
        return Ok(());
    }
    let distinct = {
        let mut distinct = counters.clone();
        distinct.dedup();
        distinct.len()
    };
    let range = (counters.first(), counters.last());
    broken(format!("{count} grants after counter {before} have {distinct} counters between {range:?}"))
}

/// Who holds what, as those who were granted it know.
#[derive(Default)]
struct Ledger {
    holders: HashMap<String, String>,
    counters: HashMap<String, u64>,
}

impl Ledger {
    fn granted(&mut self, who: &Ownership, counter: u64) -> Outcome {
        let me = who.owner().fingerprint().to_string();
        let names = || who.resources().iter().map(|resource| resource.name().to_owned());
        for name in names() {
            if let Some(other) = self.holders.insert(name.clone(), me.clone()) {
                return broken(format!("{} were granted to {me} while {other} held {name}", who.resources()));
            }
        }
        let greatest = names().filter_map(|name| self.counters.get(&name).copied()).max().unwrap_or(0);
        for name in names() {
            self.counters.insert(name, counter);
        }
        due(&format!("an acquire of {} whose greatest counter is {greatest}", who.resources()), counter, greatest + 1)
    }

    fn given_back(&mut self, who: &Ownership) {
        for resource in who.resources() {
            self.holders.remove(resource.name());
        }
    }
}

pub(super) async fn several_resources_stay_together_in_a_crowd(stage: &Stage<'_>) -> Outcome {
    const SETS: [&[&str]; 5] = [&["a", "b"], &["b", "c"], &["c", "a"], &["c", "b", "a"], &["b"]];
    let connections: [_; CONNECTIONS] = stage.connections().await;
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let first = stage.somebody(["a", "b", "c"]);
    let counter = stage.takes(&first, LONG, 0).await?;
    ledger.lock().unwrap_or_else(PoisonError::into_inner).counters =
        ["a", "b", "c"].map(|name| (name.to_owned(), counter)).into();
    stage.gives_back(&first).await?;

    let mut crowd = JoinSet::new();
    for member in 0..CROWD {
        let (node, ledger) = (Arc::clone(&connections[member % CONNECTIONS]), Arc::clone(&ledger));
        let turns: Vec<_> = (0..GRANTS_EACH).map(|turn| stage.somebody(SETS[(member + turn) % SETS.len()])).collect();
        crowd.spawn(async move {
            let ledger = || ledger.lock().unwrap_or_else(PoisonError::into_inner);
            for who in &turns {
                let counter = wait_for_turn(&*node, who).await?;
                ledger().granted(who, counter)?;
                tokio::task::yield_now().await;
                ledger().given_back(who);
                give_back(&*node, who).await?;
            }
            Ok(())
        });
    }
    while let Some(member) = crowd.join_next().await {
        ended(member)?;
    }
    stage.takes(&stage.somebody(["a", "b", "c"]), LONG, 0).await?;
    Ok(())
}

pub(super) async fn a_raise_is_one_step(stage: &Stage<'_>) -> Outcome {
    let [one, other] = stage.connections().await;
    for round in 0..ROUNDS {
        let name = format!("a{round}");
        let (holder, next) = (stage.somebody(&name), stage.somebody(&name));
        let counter = stage.takes(&holder, LONG, 0).await?;
        let to = counter + 1_000;

        let mut aside = JoinSet::new();
        let (node, who) = (Arc::clone(&one), holder.clone());
        aside.spawn(async move { answered("a raise", node.raise(&who, to).await) });
        let_begin(round).await;
        give_back(&*other, &holder).await?;
        let next_counter = wait_for_turn(&*other, &next).await?;
        let Some(raised) = aside.join_next().await else { unreachable!("one task was spawned") };

        match ended(raised)? {
            // It came before the release, and the next grant is above it.
            Raising::At(at) => due("a raise just before the release", (at, next_counter), (to, to + 1))?,
            Raising::NotOwner => due("the acquire after the release", next_counter, counter + 1)?,
        }
        stage.gives_back(&next).await?;
        stage.counter_is(&name, next_counter).await?;
    }
    Ok(())
}

pub(super) async fn an_extension_is_one_step(stage: &Stage<'_>) -> Outcome {
    let [one, other] = stage.connections().await;
    let mut ends = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("a{round}");
        let (holder, next) = (stage.somebody(&name), stage.somebody(&name));
        stage.takes(&holder, LONG, 0).await?;

        let mut aside = JoinSet::new();
        let (node, who) = (Arc::clone(&one), holder.clone());
        aside.spawn(async move { answered("an extension", node.extend(&who, ttl(LONG)).await) });
        let_begin(round).await;
        give_back(&*other, &holder).await?;
        let taken = answered("an acquire", other.acquire(&next, ttl(SHORT), 0).await)?;
        let end = stage.now().after(SHORT);
        let Some(extended) = aside.join_next().await else { unreachable!("one task was spawned") };

        let extended: Extension = ended(extended)?;
        if let Acquisition::Held(held) = taken {
            return broken(format!("an extension that was answered {extended:?} left after the release: {held}"));
        }
        ends.push((name, end));
    }
    for (name, end) in ends {
        stage.ends_by(&name, end).await?;
    }
    Ok(())
}

pub(super) async fn a_release_is_one_step(stage: &Stage<'_>) -> Outcome {
    let [one, other] = stage.connections().await;
    for round in 0..ROUNDS {
        let name = format!("a{round}");
        let (holder, next) = (stage.somebody(&name), stage.somebody(&name));
        stage.takes(&holder, LONG, 0).await?;

        let mut aside = JoinSet::new();
        let (node, who) = (Arc::clone(&one), holder.clone());
        aside.spawn(async move { answered("a release", node.release(&who).await) });
        let_begin(round).await;
        answered("a release", other.release(&holder).await)?;
        wait_for_turn(&*other, &next).await?;
        let Some(released) = aside.join_next().await else { unreachable!("one task was spawned") };

        let released: Releasing = ended(released)?;
        let kept = stage.extend(&next, LONG).await?;
        due(
            &format!("after a second release at the same time ({released:?}), the next holder's extension"),
            kept,
            Extension::Extended,
        )?;
    }
    Ok(())
}
