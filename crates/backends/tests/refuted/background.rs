//! The client's task: a node that panics takes nothing with it, and nobody waits for a task that is gone.

use crate::common::meddled::{Meddled, Panicking, meddled};
use crate::common::{in_virtual_time, ms, shared};
use futures_util::future::poll_immediate;
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{Redlock, TokioClock};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

/// Shorter than the ttl, longer than releases take.
const UNDONE_WITHIN: Duration = ms(10_000);

fn world() -> (Vec<Arc<Meddled<Panicking>>>, Redlock) {
    let clock = Arc::new(TokioClock::starting_now());
    let nodes = meddled(3, &clock, Panicking::default);
    let redlock = Redlock::builder().nodes(shared(&nodes)).ttl(ms(60_000)).clock(clock).build().unwrap();
    (nodes, redlock)
}

fn assert_nothing_on(nodes: &[Arc<Meddled<Panicking>>]) {
    for node in nodes {
        assert_eq!(node.memory.locks(), [], "{}", redlock_core::LockNode::name(&node.memory));
    }
}

#[test]
fn a_node_that_panics_in_a_release_does_not_take_the_others_releases_with_it() {
    in_virtual_time(async {
        let (nodes, redlock) = world();
        let guards = [redlock.try_acquire("a").await.unwrap(), redlock.try_acquire("b").await.unwrap()];
        nodes[0].by.when_asked([Question::Release]);
        drop(guards);
        sleep(UNDONE_WITHIN).await;
        assert_nothing_on(&nodes[1..]);
    });
}

#[test]
fn a_node_that_panics_in_an_acquire_does_not_take_the_others_releases_with_it() {
    in_virtual_time(async {
        let (nodes, redlock) = world();
        nodes[2].by.when_asked([Question::Acquire]);
        // Given up while the call that will panic is under way: the client's task is what polls it then.
        let given_up = timeout(Duration::ZERO, redlock.try_acquire("a")).await;
        assert!(given_up.is_err(), "{given_up:?}");
        let granted = redlock.try_acquire("b").await.unwrap();
        drop(granted);
        sleep(UNDONE_WITHIN).await;
        assert_nothing_on(&nodes);
    });
}

#[test]
fn settling_ends_although_a_node_panicked() {
    in_virtual_time(async {
        let (nodes, redlock) = world();
        let guard = redlock.try_acquire("r").await.unwrap();
        nodes[0].by.when_asked([Question::Release]);
        drop(guard);
        timeout(ms(100_000), redlock.settled()).await.expect("it settles");
    });
}

/// In real time: one runtime is shut down while another waits for what was going on there.
#[test]
fn settling_ends_although_the_runtime_that_worked_on_it_is_shut_down() {
    let works = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = Arc::new(Faulty::new(Arc::new(MemoryNode::new("n"))));
    let redlock = Redlock::builder().nodes(shared(&[Arc::clone(&node)])).build().unwrap();
    let guard = works.block_on(redlock.try_acquire("r")).unwrap();
    node.always(|_| Fault::lose_reply());
    {
        let _works = works.enter();
        drop(guard);
    }
    let (tell, told) = mpsc::channel();
    let waits = std::thread::spawn(move || {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let mut settled = pin!(redlock.settled());
            let at_once = poll_immediate(settled.as_mut()).await.is_some();
            tell.send(at_once).unwrap();
            timeout(ms(30_000), settled).await.is_ok()
        })
    });
    assert!(!told.recv().unwrap(), "the release is under way");
    works.shutdown_timeout(ms(1_000));
    assert!(waits.join().unwrap(), "it never settles");
}
