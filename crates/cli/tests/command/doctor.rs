//! `redlock doctor`: silent on a set-up that is right, and on each that is wrong in one way it finds that, and nothing else.

use crate::support::*;
use redlock_bench::proxy::{Lane, Mode};
use redlock_bench::{Calendar, Proxy, RedisOptions, RedisServer, Servers, eventually};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const USER: &str = "locker";
const PASSWORD: &str = "sesame-open";

/// The rights of `docs/operating.md`, and those that `docs/command.md` adds for the doctor.
const RIGHTS: &str = "+evalsha +eval +script|load +set +get +del +exists +pexpire +pttl +type +time +hmget +hset +hdel +info \
                      +select +hello +subscribe +publish +lindex +lpos +lrem +ltrim +lpop +rpush +rpop \
                      +config|get +scan +cluster|myid +cluster|nodes";

fn with_rights(rights: &str, channels: &str) -> RedisOptions {
    let words = format!("{USER} on >{PASSWORD} resetkeys ~lock:* resetchannels {channels} -@all {rights}");
    let words: Vec<&str> = words.split_whitespace().collect();
    RedisOptions::new()
        .set("appendonly", ["yes"])
        .set("appendfsync", ["always"])
        .set("user", ["default", "off"])
        .set("user", words)
}

/// A server as it should be.
fn right() -> RedisOptions {
    with_rights(RIGHTS, "&lock:~call:*")
}

/// A client's settings for servers that are right.
fn client(urls: Vec<String>) -> Redlock {
    Redlock::at(urls).set("REDLOCK_USERNAME", USER).set("REDLOCK_PASSWORD", PASSWORD)
}

fn url(server: &RedisServer) -> String {
    format!("redis://{}", server.address())
}

/// Starts a server by its options and waits for it with a user who may `PING`: the bench's own look needs the default user.
async fn start(options: RedisOptions) -> RedisServer {
    RedisServer::start(options).await.expect("it starts")
}

/// What the doctor found: its code, and each finding with its severity and subject.
async fn examine(redlock: &Redlock, more: &[&str]) -> (i32, Vec<(String, String, String)>) {
    let ended = redlock.call(&[&["--json", "--node-timeout", "2s", "doctor"], more].concat()).await;
    assert!(!ended.stdout.contains(PASSWORD) && !ended.stderr.contains(PASSWORD), "{ended:?}");
    let said: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let word = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for finding in said["findings"].as_array().expect("a list") {
        for field in ["what", "harm", "mend"] {
            assert!(!word(finding, field).is_empty(), "{field} is missing: {finding}");
        }
        found.push((word(finding, "severity"), word(finding, "finding"), word(finding, "subject")));
    }
    (ended.code, found)
}

/// Findings as severity and word, and the code that goes with the worst of them.
fn check(found: (i32, Vec<(String, String, String)>), expected: &[(&str, &str)]) {
    let (code, found) = found;
    let words: Vec<(&str, &str)> = found.iter().map(|(severity, word, _)| (severity.as_str(), word.as_str())).collect();
    assert_eq!(words, expected, "{found:?}");
    let worst = ["note", "unread", "warning", "error"]
        .iter()
        .rposition(|word| words.iter().any(|(severity, _)| severity == word));
    assert_eq!(code, worst.map_or(0, |worst| [0, 10, 11, 12][worst]), "{found:?}");
}

/// Two servers that are right, and one that is wrong in this way.
async fn beside_right_ones(wrong: RedisOptions) -> (Redlock, Vec<RedisServer>) {
    let servers = vec![start(right()).await, start(right()).await, start(wrong).await];
    (client(servers.iter().map(url).collect()), servers)
}

/// Examines two servers that are right and one that is wrong: the findings are these, all about that one.
async fn finds(wrong: RedisOptions, expected: &[(&str, &str)]) {
    let (redlock, servers) = beside_right_ones(wrong).await;
    let found = examine(&redlock, &[]).await;
    let wrong = servers[2].address().to_string();
    assert!(found.1.iter().all(|(_, _, subject)| *subject == wrong), "{found:?}");
    check(found, expected);
}

#[tokio::test]
async fn a_right_set_up_is_met_with_silence() -> TestResult {
    let (redlock, servers) = beside_right_ones(right()).await;
    check(examine(&redlock, &[]).await, &[]);
    let said = redlock.call(&["--node-timeout", "2s", "doctor"]).await;
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, "3 nodes looked at: nothing found\n", ""));
    // Nothing of its own is left, and locks are no finding.
    for server in &servers {
        assert_eq!(keys(server).await, Vec::<String>::new());
    }
    assert_eq!(redlock.call(&["acquire", "r"]).await.code, 0);
    check(examine(&redlock, &[]).await, &[]);
    Ok(())
}

async fn keys(server: &RedisServer) -> Vec<String> {
    let mut probe = redlock_bench::Probe::new(server.socket()).user(USER, PASSWORD);
    let answer = probe.command(&["SCAN", "0", "COUNT", "100000"]).await.expect("it answers");
    let redlock_bench::Reply::Array(parts) = answer else { panic!("{answer:?}") };
    let keys = parts.into_iter().nth(1).expect("two parts").into_array("SCAN").expect("a list");
    keys.into_iter().map(|key| key.into_text("SCAN").expect("a name")).collect()
}

#[tokio::test]
async fn it_finds_a_node_that_is_down_or_silent() -> TestResult {
    let (redlock, servers) = beside_right_ones(right()).await;
    servers[2].freeze()?;
    check(examine(&redlock, &[]).await, &[("error", "unreachable")]);
    servers[2].kill();
    check(examine(&redlock, &[]).await, &[("error", "unreachable")]);
    servers[1].kill();
    check(examine(&redlock, &[]).await, &[("error", "unreachable"), ("error", "unreachable"), ("error", "no-quorum")]);
    Ok(())
}

#[tokio::test]
async fn it_finds_a_node_that_is_slow_for_its_deadline() -> TestResult {
    let servers = [start(right()).await, start(right()).await, start(right()).await];
    let proxy = Proxy::start(servers[2].address()).await?;
    proxy.set(Mode::replies(Lane::Delay(ms(300)))).await?;
    let redlock = client(vec![url(&servers[0]), url(&servers[1]), proxy.url()]);
    let ended = redlock.call(&["--json", "--node-timeout", "500ms", "doctor"]).await;
    let said: Value = serde_json::from_str(&ended.stdout)?;
    assert_eq!(said["findings"].as_array().unwrap().len(), 1, "{said}");
    assert_eq!((&said["findings"][0]["finding"], ended.code), (&Value::from("slow"), 11), "{said}");
    Ok(())
}

/// B13: a replica, and replicas.
#[tokio::test]
async fn b13_it_finds_replicas_on_both_sides() -> TestResult {
    let primary = start(RedisOptions::new()).await;
    let servers = [start(RedisOptions::new()).await, start(RedisOptions::new().replica_of(&primary)).await];
    eventually(LONG, || async {
        let linked = servers[1].probe().info_field("master_link_status").await.map_err(|error| error.to_string())?;
        if linked == "up" { Ok(()) } else { Err(linked) }
    })
    .await?;
    let redlock = Redlock::at(vec![primary.url(), servers[0].url(), servers[1].url()]);
    let (code, found) = examine(&redlock, &[]).await;
    let about = |finding: &str| {
        found.iter().filter(|(_, word, _)| word == finding).map(|(_, _, subject)| subject.clone()).collect()
    };
    let (replica, replicas): (Vec<String>, Vec<String>) = (about("replica"), about("replicas"));
    assert_eq!(
        (replica, replicas),
        (vec![servers[1].address().to_string()], vec![primary.address().to_string()]),
        "{found:?}"
    );
    assert_eq!(code, 12);
    Ok(())
}

/// B13: one server under several names, and by several databases.
#[tokio::test]
async fn b13_it_finds_a_server_that_is_named_twice() -> TestResult {
    let servers = [start(right()).await, start(right()).await];
    let port = servers[0].port();
    let twins = [format!("redis://localhost:{port}"), format!("redis://127.0.0.1:{port}/1")];
    for twin in twins {
        let redlock = client(vec![url(&servers[0]), url(&servers[1]), twin]);
        check(examine(&redlock, &[]).await, &[("error", "same-server")]);
    }
    Ok(())
}

#[tokio::test]
async fn it_finds_cluster_mode() -> TestResult {
    let (redlock, servers) = beside_right_ones(right().set("cluster-enabled", ["yes"])).await;
    // Without slots it refuses keys.
    let mut probe = redlock_bench::Probe::new(servers[2].socket()).user(USER, PASSWORD);
    drop(probe.command(&["GET", "lock:r"]).await?);
    let (code, found) = examine(&redlock, &[]).await;
    assert!(found.iter().any(|(severity, word, _)| severity == "error" && word == "cluster-slots"), "{found:?}");
    assert_eq!(code, 12);
    Ok(())
}

#[tokio::test]
async fn it_finds_members_of_one_cluster() -> TestResult {
    let options = || RedisOptions::new().set("cluster-enabled", ["yes"]).set("cluster-require-full-coverage", ["no"]);
    let servers = [start(options()).await, start(options()).await, start(RedisOptions::new()).await];
    servers[0].command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).await?;
    let port = servers[1].port().to_string();
    servers[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port]).await?;
    eventually(LONG, || async {
        let known = servers[1].command(&["CLUSTER", "NODES"]).await.map_err(|error| error.to_string())?;
        let known = known.into_text("CLUSTER NODES").map_err(|error| error.to_string())?;
        if known.lines().count() == 2 && !known.contains("handshake") { Ok(()) } else { Err(known) }
    })
    .await?;
    let redlock = Redlock::at(servers.iter().map(RedisServer::url).collect());
    let (code, found) = examine(&redlock, &["--prefix", "{app}:"]).await;
    let words: Vec<&str> = found.iter().map(|(_, word, _)| word.as_str()).collect();
    assert!(
        words.contains(&"same-cluster") && words.contains(&"cluster") && !words.contains(&"cluster-slots"),
        "{found:?}"
    );
    assert_eq!(code, 12);
    Ok(())
}

#[tokio::test]
async fn it_finds_a_server_that_would_forget() {
    finds(right().set("appendonly", ["no"]), &[("warning", "no-persistence"), ("warning", "restarted")]).await;
    let snapshots = right().set("appendonly", ["no"]).set("save", ["3600 1"]);
    finds(snapshots, &[("warning", "snapshots-only"), ("warning", "restarted")]).await;
    finds(right().set("appendfsync", ["everysec"]), &[("warning", "appendfsync")]).await;
}

#[tokio::test]
async fn it_finds_what_memory_would_do_to_locks() {
    let evicting = right().set("maxmemory-policy", ["allkeys-lru"]);
    finds(evicting.clone().set("maxmemory", ["200mb"]), &[("error", "eviction")]).await;
    finds(evicting, &[("warning", "eviction")]).await;
    finds(right().set("maxmemory", ["500kb"]), &[("error", "memory"), ("error", "cannot-write")]).await;
}

/// B05: a calendar that is off by an hour.
#[tokio::test]
async fn b05_it_finds_a_calendar_that_is_wrong() -> TestResult {
    let mut calendar = Calendar::new()?;
    let (redlock, _servers) = beside_right_ones(calendar.of(right())).await;
    check(examine(&redlock, &[]).await, &[]);
    calendar.set_forward(std::time::Duration::from_secs(3_600))?;
    check(examine(&redlock, &[]).await, &[("warning", "clock")]);
    Ok(())
}

#[tokio::test]
async fn it_finds_rights_that_are_missing() {
    for missing in ["+pexpire", "+evalsha", "+hdel"] {
        finds(with_rights(&RIGHTS.replace(missing, ""), "&lock:~call:*"), &[("error", "rights")]).await;
    }
    finds(with_rights(&RIGHTS.replace("+publish", ""), "&lock:~call:*"), &[("warning", "rights-line")]).await;
    finds(with_rights(RIGHTS, ""), &[("warning", "rights-line")]).await;
}

#[tokio::test]
async fn what_it_may_not_read_it_says() {
    finds(with_rights(&RIGHTS.replace("+config|get", ""), "&lock:~call:*"), &[("unread", "config")]).await;
    finds(with_rights(&RIGHTS.replace("+scan", ""), "&lock:~call:*"), &[("unread", "keys")]).await;
    finds(with_rights(&RIGHTS.replace("+info", ""), "&lock:~call:*"), &[("unread", "info")]).await;
    let (redlock, servers) = beside_right_ones(right()).await;
    check(examine(&redlock, &["--read-only"]).await, &[("unread", "not-tried"); 3]);
    drop(servers);
}

#[tokio::test]
async fn it_finds_credentials_that_are_not_accepted() -> TestResult {
    let (_, servers) = beside_right_ones(right()).await;
    let urls = servers.iter().map(url).collect();
    let redlock = Redlock::at(urls).set("REDLOCK_USERNAME", USER).set("REDLOCK_PASSWORD", "sesame-shut");
    let (code, found) = examine(&redlock, &[]).await;
    assert_eq!(found.iter().filter(|(_, word, _)| word == "credentials").count(), 3, "{found:?}");
    assert_eq!(code, 12);
    Ok(())
}

#[tokio::test]
async fn it_finds_a_server_that_lets_everybody_in() -> TestResult {
    let servers =
        Servers::start_with(3, |_| RedisOptions::new().set("appendonly", ["yes"]).set("appendfsync", ["always"]))
            .await?;
    check(examine(&Redlock::of(&servers), &[]).await, &[("note", "no-password"); 3]);
    Ok(())
}

/// A port on which something else listens.
#[tokio::test]
async fn it_finds_what_is_no_redis_server() -> TestResult {
    let servers = [start(right()).await, start(right()).await];
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let serve = async {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    };
    let redlock = client(vec![url(&servers[0]), url(&servers[1]), format!("redis://{address}")]);
    tokio::select! {
        () = serve => unreachable!("it listens for ever"),
        found = examine(&redlock, &[]) => check(found, &[("error", "not-a-server")]),
    }
    Ok(())
}

#[tokio::test]
async fn it_finds_settings_that_cannot_work() -> TestResult {
    let servers = [start(right()).await, start(right()).await];
    let redlock = client(servers.iter().map(url).collect());
    check(examine(&redlock, &[]).await, &[("error", "settings")]);
    check(examine(&redlock, &["--allow-even-nodes"]).await, &[("note", "even-nodes")]);
    let one = client(vec![url(&servers[0])]);
    check(examine(&one, &[]).await, &[("warning", "one-node")]);
    let short = client(vec![url(&servers[0])]).set("REDLOCK_TTL", "3s");
    check(examine(&short, &[]).await, &[("error", "settings"), ("warning", "one-node")]);
    Ok(())
}

#[tokio::test]
async fn it_finds_a_file_with_passwords_that_others_may_read() -> TestResult {
    let (_, servers) = beside_right_ones(right()).await;
    let redlock = Redlock::at(Vec::new());
    let file = redlock.note("redlock.toml");
    let urls: Vec<String> =
        servers.iter().map(|server| format!("redis://{USER}:{PASSWORD}@{}", server.address())).collect();
    std::fs::write(&file, format!("nodes = {urls:?}\n"))?;
    let set_mode = |mode| std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode));
    let redlock = redlock.set("REDLOCK_CONFIG", file.to_str().unwrap());
    set_mode(0o644)?;
    check(examine(&redlock, &[]).await, &[("warning", "readable-secret")]);
    set_mode(0o600)?;
    check(examine(&redlock, &[]).await, &[]);
    Ok(())
}

#[tokio::test]
async fn it_finds_what_does_not_belong_under_the_prefix() -> TestResult {
    let (redlock, servers) = beside_right_ones(right()).await;
    let mut probe = redlock_bench::Probe::new(servers[2].socket()).user(USER, PASSWORD);
    probe.command(&["SET", "lock:forever", "0123456789abcdef"]).await?;
    probe.command(&["HSET", "lock:hash", "field", "value"]).await?;
    probe.command(&["SET", "lock:~fence:{lock:r}", "9007199254740993"]).await?;
    check(
        examine(&redlock, &[]).await,
        &[("error", "counter-beyond-tokens"), ("warning", "no-expiry"), ("warning", "no-lock")],
    );
    Ok(())
}

#[tokio::test]
async fn it_finds_a_server_that_waits_for_replicas() {
    finds(right().set("min-replicas-to-write", ["1"]), &[("error", "cannot-write"), ("warning", "min-replicas")]).await;
}

#[tokio::test]
async fn it_finds_scripts_without_end() -> TestResult {
    let (redlock, servers) = beside_right_ones(right()).await;
    let mut probe = redlock_bench::Probe::new(servers[2].socket()).user(USER, PASSWORD);
    for number in 0..1_100 {
        let script = format!("return {number}");
        probe.command(&["SCRIPT", "LOAD", &script]).await?;
    }
    check(examine(&redlock, &[]).await, &[("warning", "scripts")]);
    Ok(())
}

/// With the crash-recovery guard on, nodes that remember nothing are in quarantine, and need no log on disk.
#[tokio::test]
async fn it_finds_nodes_in_quarantine() -> TestResult {
    let options = || right().set("appendonly", ["no"]);
    let servers = [start(options()).await, start(options()).await, start(options()).await];
    let redlock = client(servers.iter().map(url).collect());
    check(examine(&redlock, &["--crash-guard", "1m"]).await, &[("error", "quarantined"); 3]);
    Ok(())
}
