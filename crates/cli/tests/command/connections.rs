//! The command over connections as people have them: every look and every lock works over each.

use crate::support::*;
use redlock_bench::process::find_program;
use redlock_bench::{Probe, Process, RedisOptions, RedisServer, Reply, eventually};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Stdio;

fn json(ended: &Ended) -> Value {
    let line = ended.stdout.lines().next().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// What the doctor finds, by its words.
async fn findings(redlock: &Redlock) -> Vec<String> {
    let said = json(&redlock.call(&["--json", "--node-timeout", "2s", "doctor"]).await);
    let findings = said["findings"].as_array().expect("a list").iter();
    findings.map(|finding| finding["finding"].as_str().expect("a word").to_owned()).collect()
}

/// Locks, looks and breaks over the only node; the doctor finds nothing that a single open node has not.
async fn works(redlock: &Redlock, more: &[&str]) {
    let ran = redlock.call(&["run", "r", "--", "sh", "-c", "exit 7"]).await;
    assert_eq!(ran.code, 7, "{ran:?}");
    let acquired = redlock.call(&["--json", "acquire", "--ttl", "10m", "r"]).await;
    let token = json(&acquired)["token"].clone();
    let seen = json(&redlock.call(&["--json", "inspect", "r"]).await);
    assert_eq!((&seen["verdict"], &seen["token"]), (&Value::from("held"), &token), "{seen}");
    let listed = json(&redlock.call(&["--json", "list"]).await);
    assert_eq!(listed["locks"][0]["resource"], "r", "{listed}");
    assert_eq!(redlock.call(&["force-release", "--yes", "r"]).await.code, 0);
    let found = findings(redlock).await;
    let mut expected = vec!["one-node", "no-persistence", "restarted"];
    expected.extend(more);
    for finding in &found {
        assert!(expected.contains(&finding.as_str()), "{finding} of {found:?}");
    }
    for finding in more {
        assert!(found.iter().any(|word| word == finding), "{finding} is not among {found:?}");
    }
}

#[tokio::test]
async fn over_tls_with_an_authority_and_a_certificate_of_ones_own() -> TestResult {
    let server = RedisServer::start(RedisOptions::new().tls().set("tls-auth-clients", ["yes"])).await?;
    let redlock = Redlock::at(vec![server.tls_url()]);
    let file = redlock.note("redlock.toml");
    let (certificate, key) = (server.certificate(), server.key());
    let files = format!("[tls]\nca = {certificate:?}\ncertificate = {certificate:?}\nkey = {key:?}\n");
    std::fs::write(&file, files)?;
    let stranger = redlock.call(&["run", "-n", "r", "--", "true"]).await;
    assert!([69, 78].contains(&stranger.code), "nobody vouches for it: {stranger:?}");
    let redlock = redlock.set("REDLOCK_CONFIG", file.to_str().unwrap());
    works(&redlock, &["no-password"]).await;
    Ok(())
}

#[tokio::test]
async fn over_a_socket_file_with_a_password() -> TestResult {
    let server = RedisServer::start(RedisOptions::new().password("sesame-open")).await?;
    let redlock = Redlock::at(vec![format!("unix://{}", server.socket().display())]);
    works(&redlock.set("REDLOCK_PASSWORD", "sesame-open"), &[]).await;
    Ok(())
}

#[tokio::test]
async fn over_version_six_and_in_another_database() -> TestResult {
    let server = RedisServer::start(RedisOptions::new().set("bind", ["127.0.0.1", "::1"])).await?;
    let redlock = Redlock::at(vec![format!("redis://[::1]:{}/3", server.port())]);
    works(&redlock, &["no-password"]).await;
    let mut probe = server.probe();
    assert_eq!(probe.keys("lock:*").await?, Vec::<String>::new(), "the first database is left alone");
    probe.command(&["SELECT", "3"]).await?;
    assert!(!probe.keys("lock:*").await?.is_empty());
    Ok(())
}

/// A set that Sentinels watch is one node. A Sentinel itself is none, and the doctor says so.
#[tokio::test]
async fn wherever_sentinels_say_that_the_primary_is() -> TestResult {
    let primary = RedisServer::start(RedisOptions::new()).await?;
    let folder = tempfile::tempdir()?;
    let (port, config) = (redlock_bench::ports::free_port(), folder.path().join("sentinel.conf"));
    let watch = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor jobs 127.0.0.1 {} 1\n",
        folder.path().display(),
        primary.port()
    );
    std::fs::write(&config, watch)?;
    let _sentinel = Process::spawn(find_program("redis-server").expect("one is running"), |command| {
        command.arg(&config).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    })?;
    eventually(LONG, || async {
        let mut probe = Probe::new(SocketAddr::from(([127, 0, 0, 1], port)));
        match probe.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "jobs"]).await {
            Ok(Reply::Array(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let nowhere = redlock_bench::ports::free_port();
    let url = format!("redis-sentinel://127.0.0.1:{nowhere},127.0.0.1:{port}?set=jobs");
    works(&Redlock::at(vec![url.clone()]), &["sentinels", "no-password"]).await;

    let unknown = Redlock::at(vec![url.replace("set=jobs", "set=other")]).call(&["inspect", "r"]).await;
    assert!(unknown.stderr.contains("know no set called"), "{unknown:?}");
    let itself = findings(&Redlock::at(vec![format!("redis://127.0.0.1:{port}")])).await;
    assert!(itself.iter().any(|word| word == "sentinel"), "{itself:?}");
    Ok(())
}
