//! `redlock force-release`: asked for, shown, and no more than that.

use crate::support::*;
use redlock_bench::{RedisServer, Servers};
use std::io::Write as _;
use std::process::Stdio;

const OWNER: &str = "0123456789abcdef0123456789abcdef";

async fn holders(servers: &[RedisServer]) -> Vec<Option<String>> {
    let mut holders = Vec::new();
    for server in servers {
        holders.push(server.probe().get("lock:r").await.expect("it answers"));
    }
    holders
}

async fn answer(redlock: &Redlock, typed: &str) -> Ended {
    let mut question = std::process::Command::new(program());
    redlock.prepare(&mut question);
    question.args(["force-release", "r"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let typed = typed.to_owned();
    let answered = move || {
        let mut child = question.spawn()?;
        // It may have ended without asking.
        let _ = child.stdin.take().expect("a pipe").write_all(typed.as_bytes());
        child.wait_with_output()
    };
    let ended = tokio::task::spawn_blocking(answered).await.expect("no panic").expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: ended.status.code().unwrap_or(-1), stdout: text(&ended.stdout), stderr: text(&ended.stderr) }
}

#[tokio::test]
async fn it_says_whose_lock_it_is_and_does_nothing_without_a_yes() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    hold_elsewhere(&servers, "r").await;
    for typed in ["", "n\n", "what?\n"] {
        let ended = answer(&redlock, typed).await;
        assert_eq!(ended.code, 77, "{ended:?}");
        assert!(ended.stderr.contains("r   held by 01234567… on 3 of 3 nodes"), "{ended:?}");
        assert!(!ended.stderr.contains(OWNER), "{ended:?}");
    }
    assert_eq!(redlock.call(&["--json", "force-release", "r"]).await.code, 77);
    assert_eq!(holders(&servers).await, vec![Some(OWNER.to_owned()); 3]);
    let ended = answer(&redlock, "y\n").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "r was broken on 3 of 3 nodes\n"), "{ended:?}");
    assert_eq!(holders(&servers).await, [None, None, None]);
    Ok(())
}

#[tokio::test]
async fn a_kept_lock_that_is_broken_stops_its_program() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let call = redlock.begin(&["run", "--ttl", "3s", "r", "--", "sh", "-c", "echo up > up; exec sleep 300"]);
    note_in(&redlock.note("up")).await;
    let waiter = redlock.begin(&["run", "--wait", "10m", "r", "--", "true"]);
    let broken = redlock.call(&["force-release", "--yes", "r"]).await;
    assert_eq!(broken.code, 0, "{broken:?}");
    assert_eq!(call.end().await.code, 76);
    assert_eq!(waiter.end().await.code, 0, "whoever waits is next");
    Ok(())
}

/// Other libraries hold locks by random bytes. What cannot be done is told, not called done.
#[tokio::test]
async fn a_holder_that_is_no_text_is_told_and_left_alone() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    for server in servers.iter() {
        server
            .command(&["EVAL", "return redis.call('SET', 'lock:r', '\\255\\254\\0bytes', 'PX', 600000)", "0"])
            .await?;
    }

    let ended = redlock.call(&["force-release", "--yes", "r"]).await;

    assert_eq!((ended.code, ended.stdout.as_str()), (78, ""), "{ended:?}");
    assert!(ended.stderr.contains("the key lock:r"), "it says which key to delete: {ended:?}");
    assert_eq!(servers[0].probe().keys("lock:r").await?, ["lock:r"]);
    Ok(())
}

#[tokio::test]
async fn what_is_free_or_no_lock_is_left_alone() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let free = redlock.call(&["force-release", "--yes", "r"]).await;
    assert_eq!((free.code, free.stdout.as_str()), (0, "r is free\n"));
    servers[0].command(&["HSET", "lock:r", "field", "value"]).await?;
    let foreign = redlock.call(&["force-release", "--yes", "r"]).await;
    assert_eq!(foreign.code, 78, "{foreign:?}");
    assert_eq!(servers[0].probe().keys("lock:r").await?, ["lock:r"]);
    Ok(())
}
