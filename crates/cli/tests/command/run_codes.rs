//! `redlock run`: what its exit code says, and what is left behind.

use crate::support::*;
use redlock_bench::{RedisOptions, Servers, eventually};

#[tokio::test]
async fn the_code_of_the_program_passes_through() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)] {
        let ended = redlock.call(&["run", "r", "--", "sh", "-c", script]).await;
        assert_eq!(ended.code, code, "{script}: {ended:?}");
        assert_eq!(ended.stderr, "", "{script}");
        assert_no_locks(&servers, LONG).await;
    }
    Ok(())
}

/// A program may end with a number that the command uses itself: only what it says tells them apart, and it says nothing.
#[tokio::test]
async fn a_program_that_fails_like_us_is_passed_through_in_silence() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    for code in [71, 75, 76, 127] {
        let ended = redlock.call(&["run", "r", "--", "sh", "-c", &format!("exit {code}")]).await;
        assert_eq!((ended.code, ended.stderr.as_str()), (code, ""));
    }
    Ok(())
}

#[tokio::test]
async fn a_program_that_is_none_cannot_start_and_leaves_nothing() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let text = redlock.note("text");
    std::fs::write(&text, "no program")?;
    for program in ["no-such-program-anywhere", text.to_str().unwrap(), "/"] {
        let ended = redlock.call(&["run", "r", "--", program]).await;
        assert_eq!(ended.code, 71, "{program}: {ended:?}");
        assert!(ended.stderr.contains("cannot be started"), "{ended:?}");
        assert_no_locks(&servers, LONG).await;
    }
    Ok(())
}

/// B71: no room for another process. Nobody who has all rights is limited, so then it runs as somebody who has none.
#[tokio::test]
async fn b71_without_room_for_a_process_nothing_starts_and_nothing_is_left() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let copy = redlock.note("redlock-copy");
    std::fs::copy(program(), &copy)?;
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(redlock.directory.path(), open)?;
    let mut command = std::process::Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        // A user of whom there is nobody else.
        command.args(["--reuid=64123", "--regid=64123", "--clear-groups"]);
    }
    command.args(["prlimit", "--nproc=1"]).arg(&copy).args(["run", "r", "--", "true"]);
    redlock.prepare(&mut command);
    let ended = tokio::task::spawn_blocking(move || command.output()).await??;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(71), "{stderr}");
    assert!(stderr.contains("cannot be started"), "{stderr}");
    let token = servers[0].probe().keys("lock:~fence:*").await?;
    assert_eq!(token.len(), 1, "the lock was taken before: {token:?}");
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

/// B11: a rival, an outage and a wrong set-up are three numbers.
#[tokio::test]
async fn b11_exit_codes_tell_contended_unavailable_and_misconfigured_apart() -> TestResult {
    let options = |n| if n < 3 { RedisOptions::new().password("sesame-open") } else { RedisOptions::new() };
    let servers = Servers::start_with(5, options).await?;
    let run = ["run", "--no-wait", "r", "--", "true"];
    let redlock = Redlock::of(&servers);

    hold_elsewhere(&servers, "r").await;
    let contended = redlock.call(&run).await;
    assert_eq!(contended.code, 75, "{contended:?}");
    assert!(contended.stderr.contains("held by 01234567…"), "{contended:?}");
    assert!(!contended.stderr.contains("0123456789abcdef"), "the owner is a secret: {contended:?}");
    let waited = redlock.call(&["run", "--wait", "200ms", "r", "--", "true"]).await;
    assert_eq!(waited.code, 75, "waiting in vain is contention: {waited:?}");

    let locked_out = Redlock::at(servers.iter().map(|server| format!("redis://{}", server.address())).collect());
    let refused = locked_out.call(&run).await;
    assert_eq!(refused.code, 78, "{refused:?}");
    assert!(refused.stderr.contains("does not accept the credentials"), "{refused:?}");

    for dead in 0..3 {
        servers[dead].kill();
    }
    let unavailable = redlock.call(&run).await;
    assert_eq!(unavailable.code, 69, "{unavailable:?}");
    assert!(unavailable.stderr.contains(&servers[0].address().to_string()), "the node is named: {unavailable:?}");
    for ended in [contended, refused, unavailable] {
        assert!(!ended.stderr.contains("sesame"), "{ended:?}");
    }
    Ok(())
}

/// For cron, which mails whatever is printed: a job that is done elsewhere is no news, and anything else is.
#[tokio::test]
async fn a_job_that_is_held_elsewhere_is_skipped_in_silence_and_an_outage_is_not() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let run = ["run", "--no-wait", "--skip-if-held", "r", "--", "sh", "-c", "echo at it; exit 7"];
    let done = redlock.call(&run).await;
    assert_eq!((done.code, done.stdout.as_str()), (7, "at it\n"), "{done:?}");

    hold_elsewhere(&servers, "r").await;
    let skipped = redlock.call(&run).await;
    assert_eq!((skipped.code, skipped.stdout.as_str(), skipped.stderr.as_str()), (0, "", ""), "{skipped:?}");

    servers[0].kill();
    servers[1].kill();
    let unavailable = redlock.call(&run).await;
    assert_eq!(unavailable.code, 69, "{unavailable:?}");
    Ok(())
}

/// What lies under a lock's key is anybody's, and a terminal obeys it.
#[tokio::test]
async fn a_refusal_says_nothing_that_a_terminal_obeys() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let resource = "\u{1b}[2J";
    servers[0].command(&["SET", &format!("lock:{resource}"), "\u{1b}]0;title\u{7}", "PX", "600000"]).await?;
    for arguments in [["run", "-n", resource, "--", "true"], ["-vv", "run", "-n", resource, "--"]] {
        let ended = redlock.call(&[&arguments[..], &["true"]].concat()).await;
        assert_eq!(ended.code, 75, "{ended:?}");
        assert!(!ended.stderr.contains(|character: char| character.is_control() && character != '\n'), "{ended:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_password_comes_from_the_environment_and_goes_nowhere() -> TestResult {
    let servers = Servers::start_with(3, |_| RedisOptions::new().password("sesame-open")).await?;
    let bare = || Redlock::at(servers.iter().map(|server| format!("redis://{}", server.address())).collect());
    let redlock = bare().set("REDLOCK_PASSWORD", "sesame-open");
    let ended = redlock.call(&["-vv", "run", "r", "--", "true"]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    let refused = bare().set("REDLOCK_PASSWORD", "sesame-shut").call(&["-vv", "run", "-n", "r", "--", "true"]).await;
    assert_eq!(refused.code, 78, "{refused:?}");
    for said in [ended, refused] {
        assert!(!said.stdout.contains("sesame") && !said.stderr.contains("sesame"), "{said:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_typed_wrongly_is_usage_and_what_is_set_wrongly_is_not() -> TestResult {
    let redlock = Redlock::at(vec!["redis://127.0.0.1:1".into()]);
    for wrong in [&["run", "r"][..], &["run", "--", "true"], &["walk"], &["run", "--wait", "soon", "r", "--", "true"]] {
        assert_eq!(redlock.call(wrong).await.code, 64, "{wrong:?}");
    }
    let typed = redlock.call(&["--nodes", "redis://:hunter2@127.0.0.1:1", "run", "r", "--", "true"]).await;
    assert_eq!(typed.code, 64, "{typed:?}");
    assert!(!typed.stderr.contains("hunter2"), "{typed:?}");
    let reserved = redlock.call(&["run", "~r", "--", "true"]).await;
    assert_eq!(reserved.code, 64, "{reserved:?}");
    let even = redlock.call(&["--nodes", "127.0.0.1:1,127.0.0.1:2", "run", "r", "--", "true"]).await;
    assert_eq!(even.code, 78, "{even:?}");
    let short = redlock.call(&["run", "--ttl", "3ms", "--node-timeout", "2ms", "r", "--", "true"]).await;
    assert_eq!(short.code, 78, "{short:?}");
    Ok(())
}

#[tokio::test]
async fn a_failure_is_json_if_that_is_asked_for() -> TestResult {
    let servers = Servers::start(1).await?;
    hold_elsewhere(&servers, "r").await;
    let ended = Redlock::of(&servers).call(&["--json", "run", "-n", "r", "--", "true"]).await;
    let said: serde_json::Value = serde_json::from_str(&ended.stderr)?;
    assert_eq!(said["error"], "contended");
    assert_eq!(said["code"], 75);
    assert!(said["nodes"][0]["said"].as_str().unwrap().contains("held by"), "{said}");
    let typed = Redlock::of(&servers).call(&["--json", "run", "r"]).await;
    let said: serde_json::Value = serde_json::from_str(&typed.stderr)?;
    assert_eq!((&said["error"], typed.code), (&"usage".into(), 64), "{typed:?}");
    Ok(())
}

/// Nodes that are down or frozen cost no more than a moment at the beginning and at the end.
#[tokio::test]
async fn a_dead_and_a_frozen_node_hold_nobody_up() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = Redlock::of(&servers);
    servers[3].kill();
    servers[4].freeze()?;
    let began = tokio::time::Instant::now();
    let ended = redlock.call(&["run", "r", "--", "true"]).await;
    assert_eq!(ended.code, 0, "{ended:?}");
    hold_elsewhere(&servers[..3], "r").await;
    assert_eq!(redlock.call(&["run", "-n", "r", "--", "true"]).await.code, 75);
    // An order of magnitude more than both take on a machine that has nothing else to do.
    assert!(began.elapsed() < ms(10_000), "{:?}", began.elapsed());
    Ok(())
}

/// Under a command that waits there may be a newer one when it is its turn.
#[tokio::test]
async fn a_command_that_is_replaced_while_it_waits_runs_its_program() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let copy = redlock.note("redlock-copy");
    std::fs::copy(program(), &copy)?;
    hold_elsewhere(&servers, "r").await;
    let mut command = tokio::process::Command::new(&copy);
    command.args(["run", "--wait", "10m", "r", "--", "sh", "-c", "echo ran > ran"]).kill_on_drop(true);
    redlock.prepare(command.as_std_mut());
    let mut waiting = command.spawn()?;
    eventually(LONG, || async {
        let lines = servers[0].probe().keys("lock:~line:*").await.map_err(|error| error.to_string())?;
        if lines.is_empty() { Err("nobody stands in line yet".to_owned()) } else { Ok(()) }
    })
    .await?;

    std::fs::remove_file(&copy)?;
    servers[0].command(&["DEL", "lock:r"]).await?;

    let status = tokio::time::timeout(LONG, waiting.wait()).await??;
    assert_eq!((status.code(), read(&redlock.note("ran")).as_str()), (Some(0), "ran\n"));
    Ok(())
}

#[tokio::test]
async fn the_program_knows_its_token_its_resources_and_its_deadline() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::of(&servers);
    let script =
        "echo \"$REDLOCK_FENCING_TOKEN\"; echo \"$REDLOCK_RESOURCE\"; echo $((REDLOCK_DEADLINE - $(date +%s)))";
    let ended = redlock.call(&["run", "--max-hold", "30m", "b/2", "a 1", "--", "sh", "-c", script]).await;
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let counter = servers[0].probe().get("lock:~fence:{lock:b/2}").await?;
    assert_eq!(Some(lines[0]), counter.as_deref(), "{ended:?}");
    assert_eq!(&lines[1..3], ["a 1", "b/2"]);
    let left: i64 = lines[3].parse()?;
    assert!(1_700 < left && left <= 1_800, "{left}");
    Ok(())
}
