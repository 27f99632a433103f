//! The servers and the probe, against what they promise to the tests that stand on them.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use redlock_bench::{BenchError, Probe, RedisOptions, RedisServer, Reply, Servers, eventually};
use tokio::time::Instant;

type Outcome = Result<(), Box<dyn Error>>;

#[tokio::test]
async fn five_servers_are_independent_primaries_and_start_side_by_side() -> Outcome {
    let started = Instant::now();
    let servers = Servers::start(5).await?;
    // An order of magnitude: one after the other, or with sleeps, it would take longer.
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());

    servers[0].command(&["SET", "k", "v", "PX", "60000"]).await?;
    let mut run_ids = Vec::new();
    for server in servers.iter() {
        assert_eq!(server.probe().info_field("role").await?, "master");
        assert_eq!(server.probe().info_field("process_id").await?, server.pid().to_string());
        run_ids.push(server.probe().info_field("run_id").await?);
    }
    run_ids.sort();
    run_ids.dedup();
    assert_eq!(run_ids.len(), 5);
    assert_eq!(servers.keys("*").await?, [vec!["k".to_owned()], vec![], vec![], vec![], vec![]]);
    Ok(())
}

#[tokio::test]
async fn the_probe_reads_every_kind_of_reply() -> Outcome {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let mut probe = Probe::new(server.address());
    assert_eq!(probe.command(&["PING"]).await?, Reply::Status("PONG".into()));
    assert_eq!(probe.command(&["INCR", "n"]).await?, Reply::Integer(1));
    assert_eq!(probe.command(&["GET", "absent"]).await?, Reply::Nil);
    assert_eq!(probe.command(&["SET", "b", "two\r\nlines"]).await?, Reply::Status("OK".into()));
    assert_eq!(probe.get("b").await?, Some("two\r\nlines".into()));
    assert_eq!(probe.pttl("b").await?, -1);
    assert_eq!(probe.pttl("absent").await?, -2);
    assert_eq!(probe.keys("*").await?, ["b", "n"]);
    assert!(probe.command(&["LPUSH", "n", "x"]).await?.is_error());
    assert_eq!(
        probe.command(&["EVAL", "return {1, 'a', {false}}", "0"]).await?,
        Reply::Array(vec![Reply::Integer(1), Reply::Bulk(b"a".into()), Reply::Array(vec![Reply::Nil])])
    );
    assert_eq!(
        probe.pipeline(&[["GET", "n"], ["PTTL", "n"]].each_ref().map(|words| words.as_slice())).await?,
        [Reply::Bulk(b"1".into()), Reply::Integer(-1)]
    );
    assert_eq!(probe.command_calls("incr").await?, 1);
    assert_eq!(probe.command_calls("decr").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_probe_whose_connection_was_killed_errs_once_and_goes_on() -> Outcome {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let mut probe = Probe::new(server.address());
    probe.command(&["PING"]).await?;
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await?;
    assert!(matches!(probe.command(&["PING"]).await, Err(BenchError::Io { .. })));
    assert_eq!(probe.command(&["PING"]).await?, Reply::Status("PONG".into()));
    Ok(())
}

#[tokio::test]
async fn a_frozen_server_answers_nothing_and_carries_on_when_thawed() -> Outcome {
    let server = RedisServer::start(RedisOptions::new()).await?;
    server.freeze()?;
    let mut probe = server.probe().deadline(Duration::from_millis(50));
    assert!(matches!(probe.command(&["SET", "late", "1"]).await, Err(BenchError::NoAnswer { .. })));
    server.thaw()?;
    // The client has gone, its command has not.
    eventually(Duration::from_secs(2), async || match server.probe().get("late").await {
        Ok(Some(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_restarted_server_keeps_its_port_and_forgets() -> Outcome {
    let server = RedisServer::start(RedisOptions::new().set("appendonly", ["yes"])).await?;
    server.command(&["SET", "k", "v"]).await?;
    let before = (server.port(), server.probe().info_field("run_id").await?);

    server.restart_with_data().await?;
    assert_eq!(server.probe().get("k").await?, Some("v".into()));
    assert_eq!(server.port(), before.0);
    assert_ne!(server.probe().info_field("run_id").await?, before.1);

    server.restart().await?;
    assert_eq!(server.probe().get("k").await?, None);
    Ok(())
}

#[tokio::test]
async fn a_killed_server_is_gone_even_if_it_was_frozen() -> Outcome {
    let server = RedisServer::start(RedisOptions::new()).await?;
    server.freeze()?;
    server.kill();
    assert!(!server.is_running());
    assert!(matches!(Probe::new(server.address()).command(&["PING"]).await, Err(BenchError::Io { .. })));
    server.restart().await?;
    assert!(server.is_running());

    let (pid, directory) = (server.pid(), server.data_directory());
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(!directory.exists());
    Ok(())
}

/// Runs itself a second time as the process that is killed; that one is told so by the environment.
#[tokio::test]
async fn a_server_dies_with_the_process_that_started_it() -> Outcome {
    const VICTIM: &str = "REDLOCK_BENCH_VICTIM";
    if std::env::var_os(VICTIM).is_some() {
        let server = RedisServer::start(RedisOptions::new()).await?;
        writeln!(std::io::stdout(), "server {}", server.pid())?;
        return std::future::pending().await;
    }

    // It cannot clean up after itself.
    let leavings = tempfile::tempdir()?;
    let mut victim = Command::new(std::env::current_exe()?)
        .args(["--exact", "a_server_dies_with_the_process_that_started_it", "--nocapture"])
        .env(VICTIM, "yes")
        .env("TMPDIR", leavings.path())
        .stdout(Stdio::piped())
        .spawn()?;
    let said = BufReader::new(victim.stdout.take().ok_or("no output")?).lines().map_while(Result::ok);
    let pid = said.filter_map(|line| Some(line.split_once("server ")?.1.to_owned())).next().ok_or("no server")?;
    let process = PathBuf::from(format!("/proc/{pid}"));
    assert!(process.exists());

    victim.kill()?;
    victim.wait()?;
    let running = || std::fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z "));
    eventually(Duration::from_secs(2), async || if running() { Err("still running") } else { Ok(()) }).await?;
    Ok(())
}

#[tokio::test]
async fn passwords_users_and_replicas_can_be_set_up() -> Outcome {
    let primary = RedisServer::start(
        RedisOptions::new().password("secret").set("user", ["worker", "on", ">work", "~lock:*", "+@all"]),
    )
    .await?;
    assert_eq!(primary.url(), format!("redis://:secret@127.0.0.1:{}", primary.port()));
    let refused = Probe::new(primary.address()).command(&["GET", "k"]).await?;
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with("NOAUTH")), "{refused:?}");
    let mut worker = Probe::new(primary.address()).user("worker", "work");
    assert!(worker.command(&["GET", "other"]).await?.is_error());
    assert_eq!(worker.get("lock:k").await?, None);

    let replica = RedisServer::start(RedisOptions::new().replica_of(&primary).set("masterauth", ["secret"])).await?;
    assert_eq!(replica.probe().info_field("role").await?, "slave");
    eventually(Duration::from_secs(5), async || match replica.probe().info_field("master_link_status").await {
        Ok(status) if status == "up" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    let refused = replica.command(&["SET", "k", "v"]).await?;
    assert!(matches!(&refused, Reply::Error(text) if text.starts_with("READONLY")), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_with_tls_speaks_it_on_a_second_port() -> Outcome {
    let server = RedisServer::start(RedisOptions::new().tls().password("secret")).await?;
    assert!(server.tls_url().starts_with("rediss://:secret@127.0.0.1:"), "{}", server.tls_url());
    let port: u16 = server.tls_url().rsplit(':').next().unwrap().parse()?;
    assert_ne!(port, server.port());

    let handshake = Command::new("openssl")
        .args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-verify_return_error", "-verify_ip", "127.0.0.1"])
        .arg("-CAfile")
        .arg(server.certificate())
        .stdin(Stdio::null())
        .output()?;
    assert!(handshake.status.success(), "{}", String::from_utf8_lossy(&handshake.stderr));
    Ok(())
}

#[tokio::test]
async fn a_missing_program_says_how_to_get_it() {
    let error = RedisServer::start(RedisOptions::new().program("no-such-server")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no-such-server is not installed: run `cargo xtask test --install`, or `apt-get install redis-server`"
    );
}

#[tokio::test]
async fn a_server_that_gives_up_shows_its_log() {
    let error = RedisServer::start(RedisOptions::new().set("no-such-directive", ["1"])).await.unwrap_err();
    assert!(error.to_string().contains("no-such-directive"), "{error}");
}
