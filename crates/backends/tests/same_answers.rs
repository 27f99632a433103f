//! The in-memory reference and real Redis answer alike on the same random traces of calls and of time that passes.
//!
//! Time passes at once: on the reference by its clock, on Redis by shortening what the lock keys have left, or deleting
//! them, over another connection. Lengths are minutes and the ends of locks lie half a minute beside them, so that the
//! seconds that a run really takes change no answer. Counters live for weeks and are not aged.
//!
//! A trace that is answered differently is shown from its beginning, with the seed; `SAME_ANSWERS_SEED` in the environment
//! runs one seed alone.

#[path = "common/mod.rs"]
#[allow(dead_code, reason = "shared with other test programs, each of which uses a part")]
mod common;

use common::Random;
use redlock_backends::{MemoryNode, RedisNode};
use redlock_bench::{Probe, RedisOptions, RedisServer};
use redlock_core::{
    Acquisition, Clock, HeldBy, IntoResources as _, KeyPrefix, LockNode, Moment, Owner, Ownership, Remaining,
    Resources, Ttl,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SETS: [&[&str]; 7] = [&["a"], &["b"], &["a", "b"], &["a", "b", "c{d}"], &["c{d}"], &["e}f", "a"], &["\u{e9} \0"]];

const OWNERS: u64 = 4;
const SEEDS: u64 = 60;
const CALLS: usize = 150;

const MINUTE: Duration = Duration::from_secs(60);
const LENGTHS: [u32; 4] = [1, 3, 10, 60];

/// How far apart what remains may be: the time that the trace has really taken.
const REMAINING_APART: Duration = Duration::from_secs(30);

/// Shortens by ARGV[1] milliseconds what the lock keys have left, as that time would.
const LET_PASS: &str = "
for _, key in ipairs(KEYS) do
  local rest = redis.call('PTTL', key)
  if rest >= 0 then
    if rest <= tonumber(ARGV[1]) then redis.call('DEL', key) else redis.call('PEXPIRE', key, rest - ARGV[1]) end
  end
end
return #KEYS";

#[derive(Debug, Default)]
struct HandClock(Mutex<Duration>);

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_origin(*self.0.lock().unwrap())
    }
}

/// One step of a trace.
#[derive(Clone, Debug)]
enum Step {
    Acquire { who: Ownership, ttl: Ttl, floor: u64 },
    Raise { who: Ownership, to: u64 },
    Extend { who: Ownership, ttl: Ttl },
    ExtendMany { leases: Vec<(Ownership, Ttl)> },
    Release { who: Ownership },
    Inspect { what: Ownership },
    TimePasses { by: Duration },
}

/// Draws the steps of a trace.
struct Author<'a> {
    random: Random,
    prefix: &'a KeyPrefix,
    sets: &'a [Resources],
}

impl Author<'_> {
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(u64::try_from(bound).unwrap())).unwrap()
    }

    fn who(&mut self) -> Ownership {
        let owner = u8::try_from(self.random.below(OWNERS)).unwrap();
        let resources = self.sets[self.below(self.sets.len())].clone();
        Ownership::new(self.prefix.clone(), resources, Owner::from_random_bytes([owner; 16]))
    }

    fn length(&mut self) -> Duration {
        LENGTHS[self.below(LENGTHS.len())] * MINUTE
    }

    fn ttl(&mut self) -> Ttl {
        Ttl::new(self.length() + MINUTE / 2).unwrap()
    }

    /// Small numbers, so that floors and counters overtake each other, and now and then a step of the marks.
    fn number(&mut self) -> u64 {
        self.random.below(20) * [1, 10, 1 << 36, 1 << 40][self.below(4)]
    }

    fn step(&mut self) -> Step {
        match self.below(16) {
            0..=5 => Step::Acquire { who: self.who(), ttl: self.ttl(), floor: self.number() },
            6 | 7 => Step::Raise { who: self.who(), to: self.number() },
            8 => Step::Extend { who: self.who(), ttl: self.ttl() },
            9 => {
                let count = self.below(4);
                Step::ExtendMany { leases: (0..count).map(|_| (self.who(), self.ttl())).collect() }
            }
            10 | 11 => Step::Release { who: self.who() },
            12 | 13 => Step::Inspect { what: self.who() },
            _ => Step::TimePasses { by: self.length() },
        }
    }
}

/// An answer: its words, and what is said to remain, which is compared with patience.
#[derive(Debug)]
struct Answer {
    words: String,
    remaining: Vec<Duration>,
}

impl Answer {
    fn agrees_with(&self, other: &Self) -> bool {
        self.words == other.words
            && self.remaining.len() == other.remaining.len()
            && self.remaining.iter().zip(&other.remaining).all(|(one, two)| one.abs_diff(*two) <= REMAINING_APART)
    }
}

fn take_time(held: &mut HeldBy, remaining: &mut Vec<Duration>) {
    if let Remaining::For(duration) = &mut held.remaining {
        remaining.push(std::mem::take(duration));
    }
}

async fn ask(node: &dyn LockNode, step: &Step) -> Answer {
    let mut remaining = Vec::new();
    let words = match step {
        Step::Acquire { who, ttl, floor } => {
            let mut answer = node.acquire(who, *ttl, *floor).await.unwrap();
            if let Acquisition::Held(held) = &mut answer {
                take_time(held, &mut remaining);
            }
            format!("{answer:?}")
        }
        Step::Raise { who, to } => format!("{:?}", node.raise(who, *to).await.unwrap()),
        Step::Extend { who, ttl } => format!("{:?}", node.extend(who, *ttl).await.unwrap()),
        Step::ExtendMany { leases } => {
            let leases: Vec<_> = leases.iter().map(|(who, ttl)| (who, *ttl)).collect();
            format!("{:?}", node.extend_many(&leases).await.unwrap())
        }
        Step::Release { who } => format!("{:?}", node.release(who).await.unwrap()),
        Step::Inspect { what } => {
            let mut seen = node.inspect(what.prefix(), what.resources()).await.unwrap();
            seen.iter_mut().filter_map(|one| one.held.as_mut()).for_each(|held| take_time(held, &mut remaining));
            format!("{seen:?}")
        }
        Step::TimePasses { .. } => "time passes".to_owned(),
    };
    Answer { words, remaining }
}

/// Both nodes, and how time passes on each.
struct Pair<'a> {
    memory: MemoryNode,
    clock: Arc<HandClock>,
    redis: &'a RedisNode,
    probe: Probe,
    lock_keys: Vec<String>,
}

impl Pair<'_> {
    async fn take(&mut self, step: &Step) -> (Answer, Answer) {
        if let Step::TimePasses { by } = step {
            *self.clock.0.lock().unwrap() += *by;
            let mut script = vec!["EVAL".to_owned(), LET_PASS.to_owned(), self.lock_keys.len().to_string()];
            script.extend(self.lock_keys.iter().cloned());
            script.push(by.as_millis().to_string());
            let aged = self.probe.command(&script).await.unwrap().into_integer("keys").unwrap();
            assert_eq!(usize::try_from(aged).unwrap(), self.lock_keys.len());
        }
        (ask(&self.memory, step).await, ask(self.redis, step).await)
    }
}

async fn answers_are_alike(server: &RedisServer, redis: &RedisNode, seed: u64) {
    let sets: Vec<Resources> = SETS.iter().map(|names| names.into_resources().unwrap()).collect();
    let prefix = KeyPrefix::new(format!("{seed}:")).unwrap();
    let names = sets.iter().flatten();
    let mut lock_keys: Vec<String> = names.map(|name| format!("{}{name}", prefix.as_str())).collect();
    lock_keys.sort_unstable();
    lock_keys.dedup();
    let clock = Arc::new(HandClock::default());
    let memory = MemoryNode::with_clock("memory", Arc::clone(&clock) as _);
    let mut pair = Pair { memory, clock, redis, probe: server.probe(), lock_keys };
    let mut author = Author { random: Random(seed), prefix: &prefix, sets: &sets };
    let mut trace = String::new();
    for number in 0..CALLS {
        let step = author.step();
        let (expected, got) = pair.take(&step).await;
        trace += &format!("{number:4} {step:?}\n     {}\n", expected.words);
        assert!(
            got.agrees_with(&expected),
            "again with SAME_ANSWERS_SEED={seed}; in memory {expected:?}, on Redis {got:?}, after\n{trace}"
        );
    }
}

#[tokio::test]
async fn memory_and_redis_answer_alike_while_time_passes() {
    let server = RedisServer::start(RedisOptions::new()).await.unwrap();
    let redis = RedisNode::connect(&server.url()).await.unwrap();
    let one = std::env::var("SAME_ANSWERS_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let seeds = one.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    for seed in seeds {
        answers_are_alike(&server, &redis, seed).await;
    }
}

/// The traces reach what they are there for; otherwise agreement would say little.
#[tokio::test]
async fn the_traces_reach_every_kind_of_answer() {
    let clock = Arc::new(HandClock::default());
    let sets: Vec<Resources> = SETS.iter().map(|names| names.into_resources().unwrap()).collect();
    let prefix = KeyPrefix::default();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let memory = MemoryNode::with_clock("memory", Arc::clone(&clock) as _);
        let mut author = Author { random: Random(seed), prefix: &prefix, sets: &sets };
        for _ in 0..CALLS {
            let step = author.step();
            if let Step::TimePasses { by } = step {
                *clock.0.lock().unwrap() += by;
            }
            let kind = |text: &str| text.split(['(', ' ', '{', '[']).next().unwrap_or_default().to_owned();
            let answer = ask(&memory, &step).await;
            seen.insert(format!("{} {}", kind(&format!("{step:?}")), kind(&answer.words)));
        }
    }
    let expected = [
        "Acquire Granted",
        "Acquire Held",
        "Extend Extended",
        "Extend Gone",
        "Extend NotOwner",
        "ExtendMany ",
        "Inspect ",
        "Raise At",
        "Raise NotOwner",
        "Release Gone",
        "Release NotOwner",
        "Release Released",
        "TimePasses time",
    ];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
