//! `redlock inspect` and `redlock list`.

use crate::support::*;
use redlock_bench::{RedisOptions, Servers, eventually};
use serde_json::Value;

fn json(ended: &Ended) -> Value {
    serde_json::from_str(ended.stdout.lines().next().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

#[tokio::test]
async fn inspect_says_who_holds_it_where_and_for_how_long() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = Redlock::of(&servers);
    let free = redlock.call(&["inspect", "r"]).await;
    assert_eq!(free.code, 0);
    assert!(free.stdout.starts_with("r   free\n"), "{}", free.stdout);

    let acquired = json(&redlock.call(&["--json", "acquire", "--ttl", "10m", "r"]).await);
    let owner = acquired["owner"].as_str().unwrap();
    servers[4].command(&["DEL", "lock:r"]).await?;
    servers[3].command(&["PEXPIRE", "lock:r", "300000"]).await?;
    let seen = redlock.call(&["--json", "inspect", "r"]).await;
    assert!(!seen.stdout.contains(owner), "{}", seen.stdout);
    let seen = json(&seen);
    assert_eq!(seen["verdict"], "held");
    assert_eq!(seen["holder"], format!("{}…", &owner[..8]));
    assert_eq!((&seen["on"], &seen["token"]), (&Value::from(4), &acquired["token"]));
    let remaining = seen["remaining_ms"].as_u64().unwrap();
    assert!(400_000 < remaining && remaining <= 600_000, "a quorum has it for ten minutes: {remaining}");
    assert_eq!(seen["nodes"][4]["state"], "free");
    assert!(seen["nodes"][3]["remaining_ms"].as_u64().unwrap() <= 300_000);

    let screen = redlock.call(&["inspect", "r"]).await.stdout;
    assert!(screen.starts_with(&format!("r   held by {}… on 4 of 5 nodes (3 needed), for", &owner[..8])), "{screen}");
    assert!(screen.contains(&format!("token {}", acquired["token"])), "{screen}");
    Ok(())
}

#[tokio::test]
async fn inspect_counts_who_waits() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    hold_elsewhere(&servers, "r").await;
    let waiters: Vec<Call> = (0..2).map(|_| redlock.begin(&["run", "--wait", "10m", "r", "--", "true"])).collect();
    eventually(LONG, || async {
        let seen = json(&redlock.call(&["--json", "inspect", "r"]).await);
        if seen["waiting"] == 2 { Ok(()) } else { Err(seen.to_string()) }
    })
    .await?;
    drop(waiters);
    Ok(())
}

#[tokio::test]
async fn inspect_tells_free_undecided_and_unknown_apart() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = Redlock::of(&servers);
    hold_elsewhere(&servers[..2], "r").await;
    servers[2].command(&["HSET", "lock:r", "field", "value"]).await?;
    let undecided = redlock.call(&["inspect", "r"]).await;
    assert_eq!(undecided.code, 0);
    assert!(undecided.stdout.starts_with("r   undecided"), "{}", undecided.stdout);
    assert!(undecided.stdout.contains("no lock: a hash"), "{}", undecided.stdout);
    for dead in 2..5 {
        servers[dead].kill();
    }
    let unknown = redlock.call(&["inspect", "r"]).await;
    assert_eq!(unknown.code, 69);
    assert!(unknown.stdout.starts_with("r   unknown"), "{}", unknown.stdout);
    for dead in 0..2 {
        servers[dead].kill();
    }
    assert_eq!(redlock.call(&["inspect", "r"]).await.code, 69, "nobody can be asked");
    Ok(())
}

/// What others wrote into names and values does not command a terminal.
#[tokio::test]
async fn a_terminal_is_told_nothing_by_names_and_values() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    servers[0].command(&["SET", "lock:a\u{1b}[2Jb", "\u{1b}[31mred and long enough", "PX", "60000"]).await?;
    for arguments in [&["list"][..], &["inspect", "a\u{1b}[2Jb"], &["--json", "list"]] {
        let ended = redlock.call(arguments).await;
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(!ended.stdout.contains('\u{1b}'), "{ended:?}");
        assert!(ended.stdout.contains("[2Jb"), "{ended:?}");
    }
    Ok(())
}

#[tokio::test]
async fn list_finds_locks_and_nothing_else() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    assert_eq!(redlock.call(&["list"]).await.stdout, "no locks\n");
    for name in ["b", "a 1", "[x]*"] {
        assert_eq!(redlock.call(&["acquire", "--ttl", "10m", name]).await.code, 0);
    }
    servers[1].command(&["SET", "elsewhere:c", "x"]).await?;
    servers[1].command(&["SET", "lock:only here", "0123456789abcdef", "PX", "600000"]).await?;
    let listed = json(&redlock.call(&["--json", "list"]).await);
    let names: Vec<&str> =
        listed["locks"].as_array().unwrap().iter().map(|lock| lock["resource"].as_str().unwrap()).collect();
    assert_eq!(names, ["[x]*", "a 1", "b", "only here"]);
    assert_eq!(listed["more"], false);
    let text = redlock.call(&["list"]).await.stdout;
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.lines().nth(1).unwrap().contains("3/3"), "{text}");

    let limited = json(&redlock.call(&["--json", "list", "--limit", "2"]).await);
    assert_eq!((limited["locks"].as_array().unwrap().len(), &limited["more"]), (2, &Value::from(true)));
    let other = redlock.call(&["--prefix", "elsewhere:", "list"]).await.stdout;
    assert!(other.lines().nth(1).unwrap().starts_with("c "), "{other}");
    Ok(())
}

#[tokio::test]
async fn list_looks_again_until_it_is_told_to_end() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let call = redlock.begin(&["--json", "list", "--watch", "20ms"]);
    let shows = async |wanted: usize| {
        let look = || async {
            let text = call.stdout();
            let last = text.lines().rev().nth(1).unwrap_or("{}");
            let locks = serde_json::from_str::<Value>(last).map_err(|error| error.to_string())?["locks"].clone();
            if locks.as_array().is_some_and(|locks| locks.len() == wanted) { Ok(()) } else { Err(locks.to_string()) }
        };
        eventually(LONG, look).await
    };
    shows(0).await?;
    hold_elsewhere(&servers, "r").await;
    shows(1).await?;
    // A server that was away is found again.
    servers[0].restart().await?;
    shows(0).await?;
    call.signal(rustix::process::Signal::INT);
    assert_eq!(call.end().await.code, 130);
    Ok(())
}

/// A user who may not scan is told so, not that there are no locks.
#[tokio::test]
async fn what_may_not_be_read_is_said() -> TestResult {
    let user =
        ["locker", "on", ">sesame-open", "resetkeys", "~lock:*", "-@all", "+get", "+type", "+pttl", "+info", "+time"];
    let servers = Servers::start_with(1, |_| RedisOptions::new().set("user", user)).await?;
    let redlock = Redlock::of(&servers).set("REDLOCK_USERNAME", "locker").set("REDLOCK_PASSWORD", "sesame-open");
    let listed = redlock.call(&["list"]).await;
    assert_eq!(listed.code, 69, "{listed:?}");
    assert!(listed.stdout.contains("not allowed"), "{listed:?}");
    let seen = redlock.call(&["inspect", "r"]).await;
    assert!(seen.stdout.contains("who waits cannot be read"), "{seen:?}");
    Ok(())
}
