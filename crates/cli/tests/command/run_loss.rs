//! `redlock run`: what becomes of the program when its lock is lost, and when the command itself is.

use crate::support::*;
use redlock_bench::{Servers, eventually};
use rustix::process::Signal;

/// Leaves the number of its group, then waits with a grandchild beside it.
const WITH_GRANDCHILD: &str = "sleep 300 & echo $$ > group; wait; sleep 300";

/// The same, and no polite request ends it.
const STUBBORN: &str = "trap '' TERM; (trap '' TERM; sleep 300) & echo $$ > group; sleep 300; sleep 300";

async fn begin(redlock: &Redlock, options: &[&str], script: &str) -> (Call, i32) {
    let call = redlock.begin(&[&["run"], options, &["r", "--", "sh", "-c", script]].concat());
    let group: i32 = note_in(&redlock.note("group")).await.parse().expect("a number");
    eventually(LONG, || async { if 1 < alive_in_group(group).len() { Ok(()) } else { Err("no grandchild yet") } })
        .await
        .expect("the grandchild runs");
    (call, group)
}

async fn delete_on(servers: &Servers, count: usize) {
    for server in servers.iter().take(count) {
        server.command(&["DEL", "lock:r"]).await.expect("it answers");
    }
}

/// B69: the lock is deleted on a quorum. Nobody of the group is left, well before the validity would have ended.
#[tokio::test]
async fn b69_grandchildren_end_with_the_lock() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = Redlock::of(&servers);
    let (call, group) = begin(&redlock, &["--ttl", "3s"], WITH_GRANDCHILD).await;
    delete_on(&servers, 3).await;
    assert_group_gone(group, LONG).await;
    let ended = call.end().await;
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.stderr.contains("nodes do not hold it for us any more"), "{ended:?}");
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

/// B69: who ignores TERM is killed after the grace time, grandchildren too.
#[tokio::test]
async fn b69_who_ignores_term_is_killed_after_the_grace_time() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = Redlock::of(&servers);
    let (call, group) = begin(&redlock, &["--ttl", "3s", "--grace", "400ms"], STUBBORN).await;
    delete_on(&servers, 3).await;
    eventually(LONG, || async {
        if call.stderr().contains("stopping") { Ok(()) } else { Err("not told to stop yet") }
    })
    .await?;
    let told = tokio::time::Instant::now();
    assert_group_gone(group, LONG).await;
    // The validity and the grace time, an order of magnitude more generous.
    assert!(told.elapsed() < ms(30_000), "{:?}", told.elapsed());
    assert_eq!(call.end().await.code, 76);
    Ok(())
}

/// Nodes that fall silent: TERM comes while the lock is still valid, and KILL before it ends.
#[tokio::test]
async fn b69_a_lock_that_cannot_be_extended_ends_the_program_while_it_is_valid() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let script =
        "trap 'redlock_left=told; echo told > told' TERM; echo $$ > group; (sleep 300) & while :; do sleep 0.02; done";
    let (call, group) = begin(&redlock, &["--ttl", "4s"], script).await;
    for server in servers.iter() {
        server.freeze()?;
    }
    assert_eq!(note_in(&redlock.note("told")).await, "told");
    assert_group_gone(group, LONG).await;
    let ended = call.end().await;
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.stderr.contains("extending it was not confirmed, and it is valid for"), "before its end: {ended:?}");
    Ok(())
}

#[tokio::test]
async fn a_program_is_stopped_when_the_longest_hold_is_over() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let ended = redlock.call(&["run", "--ttl", "2s", "--max-hold", "1s", "r", "--", "sleep", "300"]).await;
    assert_eq!(ended.code, 76, "{ended:?}");
    assert!(ended.stderr.contains("longest time allowed"), "{ended:?}");
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

/// What a program leaves running would go on without the lock.
#[tokio::test]
async fn what_is_left_running_ends_before_the_lock_is_given_back() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let script = "(trap 'sleep 0.3; echo ended > ended; exit' TERM; echo $$ > group; while :; do sleep 0.02; done) & \
                  while ! [ -s group ]; do sleep 0.01; done; exit 3";
    let ended = redlock.call(&["run", "--ttl", "8s", "r", "--", "sh", "-c", script]).await;
    assert_eq!(ended.code, 3, "the program's own code: {ended:?}");
    assert!(ended.stderr.contains("left processes running"), "{ended:?}");
    assert_eq!(read(&redlock.note("ended")).trim(), "ended", "it had the time it needed");
    assert_eq!(alive_in_group(note_in(&redlock.note("group")).await.parse()?), Vec::<i32>::new());

    let script = "sleep 30 & echo $! > left";
    let ended = redlock.call(&["run", "--leave-running", "r", "--", "sh", "-c", script]).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let left: i32 = note_in(&redlock.note("left")).await.parse()?;
    let left = rustix::process::Pid::from_raw(left).unwrap();
    rustix::process::kill_process(left, Signal::KILL)?;
    Ok(())
}

/// B71: the command is killed. The kernel kills the program, the guardian the rest, and the lock runs out.
#[tokio::test]
async fn b71_a_killed_wrapper_takes_its_group_along() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let (call, group) = begin(&redlock, &["--ttl", "3s"], STUBBORN).await;
    call.process.kill();
    assert_group_gone(group, LONG).await;
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

/// Somebody ends the guardian as well: the program itself still dies with the command. What it has started does not, and the page
/// says so.
#[tokio::test]
async fn b71_without_its_guardian_the_program_itself_still_dies() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let (call, group) = begin(&redlock, &["--ttl", "3s"], STUBBORN).await;
    let is_guardian = |pid: &i32| read(std::path::Path::new(&format!("/proc/{pid}/cmdline"))).contains("__guardian");
    let guardian = children_of(call.process.pid()).into_iter().find(is_guardian).expect("there is one");
    rustix::process::kill_process(rustix::process::Pid::from_raw(guardian).unwrap(), Signal::KILL)?;
    eventually(LONG, || async { if call.stderr().contains("guardian") { Ok(()) } else { Err("not told yet") } })
        .await?;
    call.process.kill();
    eventually(LONG, || async { if alive_in_group(group).contains(&group) { Err("it lives") } else { Ok(()) } })
        .await?;
    let group = rustix::process::Pid::from_raw(group).unwrap();
    // Err: nobody was left.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    Ok(())
}

/// The fate of a command that was only frozen is the same: the guardian does not let the group outlive the validity.
#[tokio::test]
async fn b71_a_frozen_wrapper_does_not_let_its_program_outlive_the_lock() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let (call, group) = begin(&redlock, &["--ttl", "2s"], STUBBORN).await;
    call.process.freeze()?;
    assert_group_gone(group, LONG).await;
    call.process.thaw()?;
    let ended = call.end().await;
    assert_eq!(ended.code, 76, "{ended:?}");
    Ok(())
}

/// B71: the token in the environment is the grant's, and greater than the one before.
#[tokio::test]
async fn b71_tokens_grow_from_run_to_run() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let mut before = 0;
    for _ in 0..3 {
        let ended = redlock.call(&["run", "r", "--", "sh", "-c", "echo $REDLOCK_FENCING_TOKEN"]).await;
        let token: u64 = ended.stdout.trim().parse()?;
        assert!(before < token, "{before} then {token}");
        before = token;
    }
    Ok(())
}
