//! The in-memory reference and real Redis answer alike on the same random traces of calls.
//!
//! Time does not pass between calls here, so leases end only by release; what depends on time is tested where time can be
//! moved. The trace's seed is printed when it fails.

use redlock_backends::{MemoryNode, RedisNode};
use redlock_bench::{RedisOptions, RedisServer};
use redlock_core::{
    Acquisition, HeldBy, IntoResources as _, KeyPrefix, LockNode, Owner, Ownership, Remaining, Resources, Ttl,
};
use std::time::Duration;

const SETS: [&[&str]; 6] = [&["a"], &["b"], &["a", "b"], &["a", "b", "c{d}"], &["c{d}"], &["e}f"]];

/// Splitmix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(bound).unwrap()).unwrap()
    }
}

/// Remaining times pass with the clock, so only their kind is compared.
fn without_time(held: HeldBy) -> HeldBy {
    let remaining = match held.remaining {
        Remaining::For(_) => Remaining::For(Duration::ZERO),
        other => other,
    };
    HeldBy { remaining, ..held }
}

async fn answer(node: &dyn LockNode, call: usize, ownership: &Ownership, number: u64) -> String {
    let ttl = Ttl::new(Duration::from_secs(3_600)).unwrap();
    match call {
        0..=2 => match node.acquire(ownership, ttl, number).await.unwrap() {
            Acquisition::Held(held) => format!("{:?}", without_time(held)),
            granted => format!("{granted:?}"),
        },
        3 => format!("{:?}", node.raise(ownership, number).await.unwrap()),
        4 => format!("{:?}", node.extend(ownership, ttl).await.unwrap()),
        5 | 6 => format!("{:?}", node.release(ownership).await.unwrap()),
        _ => {
            let mut seen = node.inspect(ownership.prefix(), ownership.resources()).await.unwrap();
            for inspection in &mut seen {
                inspection.held = inspection.held.take().map(without_time);
            }
            format!("{seen:?}")
        }
    }
}

#[tokio::test]
async fn memory_and_redis_answer_alike() {
    let server = RedisServer::start(RedisOptions::new()).await.unwrap();
    let redis = RedisNode::connect(&server.url()).await.unwrap();
    let sets: Vec<Resources> = SETS.iter().map(|names| names.into_resources().unwrap()).collect();
    for seed in 0..40 {
        let memory = MemoryNode::new("memory");
        let prefix = KeyPrefix::new(format!("{seed}:")).unwrap();
        let mut random = Random(seed);
        let mut trace = Vec::new();
        for _ in 0..150 {
            let owner = Owner::from_random_bytes([u8::try_from(random.below(3)).unwrap(); 16]);
            let ownership = Ownership::new(prefix.clone(), sets[random.below(sets.len())].clone(), owner);
            let call = random.below(8);
            // Small numbers, so that floors and counters overtake each other, and now and then a step of the marks.
            let scale = [1, 10, 1 << 36, 1 << 40][random.below(4)];
            let number = u64::try_from(random.below(20)).unwrap() * scale;
            let (expected, got) =
                (answer(&memory, call, &ownership, number).await, answer(&redis, call, &ownership, number).await);
            trace.push(format!("{call} {ownership:?} {number}: {expected}"));
            assert_eq!(got, expected, "seed {seed}, after\n{}", trace.join("\n"));
        }
    }
}
