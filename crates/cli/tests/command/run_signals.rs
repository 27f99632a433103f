//! `redlock run`: signals, while it waits and while its program runs.

use crate::support::*;
use redlock_bench::{Servers, eventually};
use rustix::process::Signal;

#[tokio::test]
async fn a_signal_ends_the_wait_and_leaves_nothing() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    hold_elsewhere(&servers, "r").await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let call = redlock.begin(&["run", "--wait", "10m", "r", "--", "touch", "started"]);
        // It stands in line once it has been refused.
        eventually(LONG, || async {
            for server in servers.iter() {
                if !server.probe().keys("lock:~line:*").await.map_err(|error| error.to_string())?.is_empty() {
                    return Ok(());
                }
            }
            Err("nobody stands in line yet".to_owned())
        })
        .await?;
        call.signal(signal);
        let ended = call.end().await;
        assert_eq!(ended.code, code, "{ended:?}");
        assert!(!redlock.note("started").exists());
        for server in servers.iter() {
            let lines = server.probe().keys("lock:~line:*").await?;
            assert_eq!(lines, Vec::<String>::new(), "nobody stands in line any more");
        }
    }
    Ok(())
}

#[tokio::test]
async fn signals_reach_the_program_and_all_it_started() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let script = "trap 'echo parent > usr1' USR1; trap 'exit 9' TERM; \
                  (trap 'echo child > child' USR1; echo up > up; while :; do sleep 0.02; done) & \
                  while :; do sleep 0.02; done";
    let call = redlock.begin(&["run", "r", "--", "sh", "-c", script]);
    note_in(&redlock.note("up")).await;
    call.signal(Signal::USR1);
    assert_eq!(note_in(&redlock.note("usr1")).await, "parent");
    assert_eq!(note_in(&redlock.note("child")).await, "child");
    assert!(call.process.exited().is_none(), "a signal that the program handles ends nobody");
    call.signal(Signal::TERM);
    let ended = call.end().await;
    assert_eq!(ended.code, 9, "the program's own answer to TERM: {ended:?}");
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

#[tokio::test]
async fn a_signal_that_ends_the_program_is_told_as_one() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let call = redlock.begin(&["run", "r", "--", "sh", "-c", "echo up > up; exec sleep 300"]);
    note_in(&redlock.note("up")).await;
    call.signal(Signal::INT);
    assert_eq!(call.end().await.code, 130);
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

/// One that is stopped would hear of it when it goes on, and nobody else would let it.
#[tokio::test]
async fn a_stopped_program_is_ended_as_well() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let script = "trap 'exit 5' TERM; trap 'exit 6' HUP; echo $$ > up; while :; do sleep 0.02; done";
    for (signal, code) in [(Signal::TERM, 5), (Signal::HUP, 6)] {
        let call = redlock.begin(&["run", "--ttl", "5m", "r", "--", "sh", "-c", script]);
        let program = rustix::process::Pid::from_raw(note_in(&redlock.note("up")).await.parse()?).unwrap();
        rustix::process::kill_process(program, Signal::STOP)?;
        call.signal(signal);
        assert_eq!(call.end().await.code, code);
        std::fs::remove_file(redlock.note("up"))?;
    }
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

/// Under `nohup` a hang-up ends neither the command nor its program.
#[tokio::test]
async fn an_ignored_signal_stays_ignored() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let script = format!(
        "trap '' HUP; exec {} run r -- sh -c 'echo up > up; while ! [ -e go ]; do sleep 0.02; done'",
        program().display()
    );
    let call = {
        let redlock = &redlock;
        let mut command = tokio::process::Command::new("sh");
        command.args(["-c", &script]).kill_on_drop(true);
        redlock.prepare(command.as_std_mut());
        command.spawn()?
    };
    note_in(&redlock.note("up")).await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(call.id().unwrap())?).unwrap();
    rustix::process::kill_process(pid, Signal::HUP)?;
    std::fs::write(redlock.note("go"), "")?;
    let mut call = call;
    let status = tokio::time::timeout(LONG, call.wait()).await??;
    assert_eq!(status.code(), Some(0));
    Ok(())
}
