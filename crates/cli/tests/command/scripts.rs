//! `redlock acquire`, `extend` and `release`, as scripts use them.

use crate::support::*;
use redlock_bench::{RedisServer, Servers};
use std::os::unix::fs::PermissionsExt as _;

async fn remaining(server: &RedisServer) -> i64 {
    server.probe().pttl("lock:r").await.expect("it answers")
}

/// The whole life of a lock in a shell.
#[tokio::test]
async fn a_shell_evaluates_what_acquire_prints() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let script = format!(
        "set -e; lock=$({0} acquire --ttl 1m \"it's mine\" b); eval \"$lock\"; \
         echo \"$REDLOCK_FENCING_TOKEN\"; echo \"$REDLOCK_RESOURCE\"; echo $((REDLOCK_DEADLINE - $(date +%s))); \
         {0} extend --ttl 2m \"it's mine\" b; {0} release b \"it's mine\"; ! {0} release b \"it's mine\"",
        program().display()
    );
    let mut shell = std::process::Command::new("sh");
    redlock.prepare(&mut shell);
    shell.args(["-c", &script]);
    let ended = tokio::task::spawn_blocking(move || shell.output()).await??;
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{stdout} {stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    let counter = servers[0].probe().get("lock:~fence:{lock:b}").await?;
    assert_eq!(Some(lines[0]), counter.as_deref());
    assert_eq!(&lines[1..3], ["b", "it's mine"]);
    let left: i64 = lines[3].parse()?;
    assert!(20 < left && left < 60, "{left}");
    assert!(lines[4].starts_with("valid for 2 min"), "{stdout}");
    assert!(stderr.contains("not ours any more"), "{stderr}");
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

#[tokio::test]
async fn an_owner_in_a_file_is_printed_nowhere() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let file = redlock.note("owner");
    // Readable for all, as one that was there before might be.
    std::fs::write(&file, "old")?;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666))?;
    let path = file.to_str().unwrap();
    let acquired = redlock.call(&["-vv", "--json", "acquire", "--owner-file", path, "r"]).await;
    assert_eq!(acquired.code, 0, "{acquired:?}");
    let owner = read(&file).trim().to_owned();
    assert_eq!(servers[0].probe().get("lock:r").await?.as_deref(), Some(owner.as_str()));
    assert_eq!(std::fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    let said: serde_json::Value = serde_json::from_str(&acquired.stdout)?;
    assert!(said["owner"].is_null() && 0 < said["token"].as_i64().unwrap(), "{said}");

    let extended = redlock.call(&["-vv", "extend", "--ttl", "5m", "--owner-file", path, "r"]).await;
    assert_eq!(extended.code, 0, "{extended:?}");
    assert!(60_000 < remaining(&servers[0]).await);
    let released = redlock.call(&["-vv", "release", "--owner-file", path, "r"]).await;
    assert_eq!(released.code, 0, "{released:?}");
    for ended in [acquired, extended, released] {
        assert!(!ended.stdout.contains(&owner) && !ended.stderr.contains(&owner), "{ended:?}");
    }
    Ok(())
}

/// A rival that is refused leaves the holder's file alone, though it names the same: a script that is called twice does.
#[tokio::test]
async fn an_owner_in_a_file_outlives_a_rivals_attempt() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let file = redlock.note("owner");
    let path = file.to_str().unwrap();
    // What is longer than an owner leaves nothing behind it.
    std::fs::write(&file, "x".repeat(1_000))?;
    let acquire = ["acquire", "--no-wait", "--ttl", "5m", "--owner-file", path, "r"];
    assert_eq!(redlock.call(&acquire).await.code, 0);
    let owner = read(&file);
    assert_eq!(servers[0].probe().get("lock:r").await?.as_deref(), Some(owner.trim_end()));

    assert_eq!(redlock.call(&acquire).await.code, 75);

    assert_eq!(read(&file), owner);
    assert_eq!(redlock.call(&["release", "--owner-file", path, "r"]).await.code, 0);
    assert_eq!(redlock.call(&acquire).await.code, 0, "and the next owner takes its place");
    assert_ne!(read(&file), owner);
    Ok(())
}

/// A lock that has been broken, or is somebody else's now, is lost; nodes that are down are an outage.
#[tokio::test]
async fn what_is_not_ours_any_more_is_lost_and_what_cannot_be_asked_is_not() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = Redlock::of(&servers);
    let acquired = redlock.call(&["--json", "acquire", "--ttl", "10m", "r"]).await;
    let said: serde_json::Value = serde_json::from_str(&acquired.stdout)?;
    let redlock = redlock.set("REDLOCK_OWNER", said["owner"].as_str().unwrap());

    for dead in 0..2 {
        servers[dead].kill();
    }
    assert_eq!(redlock.call(&["extend", "r"]).await.code, 0, "a quorum is enough");
    servers[2].command(&["DEL", "lock:r"]).await?;
    let doubtful = redlock.call(&["extend", "r"]).await;
    assert_eq!(doubtful.code, 69, "two dead nodes may hold it still: {doubtful:?}");
    assert!(doubtful.stderr.contains(&servers[0].address().to_string()), "{doubtful:?}");
    for restarted in 0..2 {
        servers[restarted].restart().await?;
    }
    hold_elsewhere(&servers[0..2], "r").await;
    for verb in ["extend", "release"] {
        let lost = redlock.call(&[verb, "r"]).await;
        assert_eq!(lost.code, 76, "{verb}: {lost:?}");
    }
    assert!(servers[0].probe().get("lock:r").await?.is_some(), "the other's lock is left alone");
    assert_eq!(redlock.call(&["release", "other"]).await.code, 76, "never held");
    Ok(())
}

#[tokio::test]
async fn without_an_owner_nothing_is_asked() -> TestResult {
    let redlock = Redlock::at(vec!["redis://127.0.0.1:1".into()]);
    assert_eq!(redlock.call(&["extend", "r"]).await.code, 64);
    assert_eq!(redlock.call(&["release", "--owner-file", "no-such-file", "r"]).await.code, 74);
    let redlock = redlock.set("REDLOCK_OWNER", "two words of hunter2");
    let strange = redlock.call(&["release", "r"]).await;
    assert_eq!(strange.code, 64);
    assert!(!strange.stderr.contains("hunter2"), "{strange:?}");
    Ok(())
}

/// A lock whose owner nobody could read would block everybody for its ttl.
#[tokio::test]
async fn a_lock_that_cannot_be_told_is_given_back() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let call = redlock.begin_with(&["acquire", "--ttl", "10m", "r"], |command| {
        command.stdout(std::fs::File::options().write(true).open("/dev/full").expect("Linux"));
    });
    let ended = call.end().await;
    assert_eq!(ended.code, 74, "{ended:?}");
    assert_no_locks(&servers, LONG).await;
    let nowhere = redlock.call(&["acquire", "--owner-file", "no/such/folder", "r"]).await;
    assert_eq!(nowhere.code, 74, "{nowhere:?}");
    let counters = servers[0].probe().keys("lock:~fence:*").await?;
    assert_eq!(counters.len(), 1, "the second was not even tried");
    Ok(())
}

/// A slow node holds the lock as well, though a quorum was enough.
#[tokio::test]
async fn all_nodes_hold_what_was_acquired() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = Redlock::of(&servers);
    assert_eq!(redlock.call(&["acquire", "r"]).await.code, 0);
    for server in servers.iter() {
        assert!(server.probe().get("lock:r").await?.is_some(), "{}", server.address());
    }
    Ok(())
}
