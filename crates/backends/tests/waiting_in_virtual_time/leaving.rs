//! A waiter that is dropped at whichever await leaves no place, and a call that has come for it goes to the next.

use crate::common::{in_virtual_time, ms};
use crate::world::{World, begin, cancelled_after, lined_up};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The release comes while the waiter that is dropped stands in line in front of another one, which is granted the lock
/// because it is called: sooner than anybody asks by itself.
#[test]
fn p5_a_waiter_dropped_at_any_await_leaves_no_place_and_the_next_is_called() {
    for same_client in [false, true] {
        for polls in 0.. {
            let ended = in_virtual_time(async {
                let story = format!("dropped after {polls} polls, same client: {same_client}");
                let world = World::new(3, 1);
                let guard = world.client().redlock.acquire("r").await.unwrap();
                let first = world.client();
                let second = if same_client { first.clone() } else { world.client() };
                let release = async {
                    sleep(ms(200)).await;
                    let at = Instant::now();
                    guard.release().await;
                    at
                };
                let leaves = async {
                    let granted = cancelled_after(polls, first.redlock.acquire("r")).await;
                    let ended = granted.is_some();
                    drop(granted);
                    (ended, Instant::now())
                };
                let next = async {
                    lined_up().await;
                    let guard = second.redlock.acquire("r").await.unwrap();
                    let at = Instant::now();
                    guard.release().await;
                    at
                };
                let (released, (ended, left), granted) = tokio::join!(release, leaves, next);
                let delay = granted.saturating_duration_since(released.max(left));
                assert!(delay <= ms(15), "{story}: {delay:?} until the next one was granted");
                sleep(ms(2_000)).await;
                world.assert_nothing_left(&story);
                ended
            });
            if ended {
                assert!(5 < polls, "it was dropped at several awaits");
                break;
            }
        }
    }
}

#[test]
fn a_client_that_is_dropped_while_it_waits_leaves_no_place() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let guard = world.client().redlock.acquire("r").await.unwrap();
        let client = world.client();
        let mut waiting = Box::pin(client.redlock.acquire("r"));
        tokio::select! {
            _ = &mut waiting => panic!("the lock is held"),
            () = lined_up() => {}
        }
        assert_eq!(world.in_line(), 1);
        drop(waiting);
        drop(client.redlock);
        lined_up().await;
        assert_eq!(world.in_line(), 0);
        drop(guard);
    });
}

/// Whoever waits for two resources stands in the way of nobody who waits for one of them, as long as it cannot have both.
#[test]
fn a_waiter_for_two_keeps_nobody_from_one_of_them_and_gets_both() {
    for (first, second) in [("x", "y"), ("y", "x")] {
        in_virtual_time(async {
            let world = World::new(5, 1);
            let holder = world.client();
            let (holds_first, holds_second) =
                (holder.redlock.acquire(first).await.unwrap(), holder.redlock.acquire(second).await.unwrap());
            let wants_both = world.client();
            let both = begin(async move {
                let guard = wants_both.redlock.acquire(["x", "y"]).await.unwrap();
                (Instant::now(), guard)
            });
            lined_up().await;
            let wants_one = world.client();
            let name = first.to_owned();
            let one = begin(async move {
                let guard = wants_one.redlock.acquire(name).await.unwrap();
                (Instant::now(), guard)
            });
            lined_up().await;
            let released = Instant::now();
            holds_first.release().await;
            let (granted, guard) = one.await.unwrap();
            assert!(granted - released <= ms(20), "{first}: {:?} for a lock that is free", granted - released);
            holds_second.release().await;
            lined_up().await;
            let released = Instant::now();
            guard.release().await;
            let (granted, guard) = both.await.unwrap();
            assert!(granted - released < Duration::from_secs(1), "{:?}", granted - released);
            guard.release().await;
            sleep(ms(2_000)).await;
            world.assert_nothing_left("all have been served");
        });
    }
}
