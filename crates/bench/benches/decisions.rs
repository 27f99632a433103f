//! What does a decision cost, apart from all I/O? And what does the whole way through the client cost when nodes answer
//! at once, from memory? Run with `cargo bench -p redlock-bench --features load`.
//!
//! These catch a rule that has become expensive. What a lock costs in the world is the business of `cargo xtask bench`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use redlock_backends::MemoryNode;
use redlock_core::attempt::{AcquireVote, Attempt, RaiseVote, Step};
use redlock_core::mint::Mint;
use redlock_core::tally::Tally;
use redlock_core::validity::{Drift, whole_validity};
use redlock_core::{FencingToken, LockNode, Redlock, Ttl};

const NODES: usize = 5;

fn token(value: i64) -> FencingToken {
    FencingToken::assume_granted(value).expect("a small positive number is a token")
}

fn pure(c: &mut Criterion) {
    c.bench_function("tally/three of five", |b| {
        b.iter(|| {
            let mut tally = Tally::new(black_box(NODES));
            for node in 0..3 {
                tally.count(node, true);
                black_box(tally.decision());
            }
        });
    });

    c.bench_function("mint/a quorum that agrees", |b| {
        b.iter(|| {
            let mut mint = Mint::new(black_box(NODES));
            for node in 0..3 {
                mint.heard(node, token(7));
            }
            black_box(mint.minting())
        });
    });

    let (ttl, drift) = (Ttl::new(Duration::from_secs(10)).expect("ten seconds are a ttl"), Drift::default());
    c.bench_function("validity", |b| {
        b.iter(|| whole_validity(black_box(ttl), black_box(drift)));
    });

    c.bench_function("attempt/won at the third vote", |b| {
        b.iter(|| {
            let mut attempt = Attempt::new(black_box(NODES));
            (0..3).map(|node| attempt.on_acquire(node, AcquireVote::Granted { counter: 7 })).last()
        });
    });

    c.bench_function("attempt/won after a raise", |b| {
        b.iter(|| {
            let mut attempt = Attempt::new(black_box(NODES));
            let counters = [101, 2, 2].into_iter().enumerate();
            let votes = counters.map(|(node, counter)| attempt.on_acquire(node, AcquireVote::Granted { counter }));
            let Some(Step::Raise(to)) = votes.last() else { unreachable!("the counters differ") };
            (1..3).map(|node| attempt.on_raise(node, to, RaiseVote::At(to.as_counter()))).last()
        });
    });
}

/// Our client on so many nodes that answer at once.
fn client_of(nodes: usize) -> Redlock {
    let nodes = (0..nodes).map(|node| Arc::new(MemoryNode::new(format!("memory {node}"))) as Arc<dyn LockNode>);
    Redlock::builder().nodes(nodes).build().expect("the defaults suit an odd number of nodes")
}

fn in_memory(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for nodes in [1, 3, 5, 7] {
        let redlock = &client_of(nodes);
        c.bench_function(&format!("acquire + release/{nodes} nodes in memory"), |b| {
            b.to_async(&runtime).iter(|| async move {
                let guard = redlock.try_acquire("orders/42").await.expect("nobody else is there");
                guard.release().await.outcome
            });
        });
    }

    let redlock = &client_of(NODES);
    let names: Vec<String> = (0..16).map(|number| format!("orders/{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let names = names.as_slice();
    c.bench_function("acquire + release/five nodes in memory, 16 resources", |b| {
        b.to_async(&runtime).iter(|| async move {
            let guard = redlock.try_acquire(names).await.expect("nobody else is there");
            guard.release().await.outcome
        });
    });

    let holder = runtime.block_on(redlock.try_acquire("held")).expect("nobody else is there");
    c.bench_function("refused/five nodes in memory", |b| {
        b.to_async(&runtime).iter(|| async move { redlock.try_acquire("held").await.is_err() });
    });
    c.bench_function("extend/five nodes in memory", |b| {
        b.to_async(&runtime).iter(|| async { holder.extend().await.is_ok() });
    });

    // Eight tasks that take turns: what the queue inside the process adds to the lock.
    c.bench_function("eight tasks take turns/five nodes in memory", |b| {
        b.to_async(&runtime).iter(|| async move {
            let turn = async || {
                let guard = redlock.acquire("turns").await.expect("everybody gives it back");
                guard.release().await.outcome
            };
            tokio::join!(turn(), turn(), turn(), turn(), turn(), turn(), turn(), turn())
        });
    });
    runtime.block_on(holder.release());
}

criterion_group!(benches, pure, in_memory);
criterion_main!(benches);
