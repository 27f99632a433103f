//! The ways in which people reach their Redis: URL forms, users with few rights, sockets, databases, TLS.

use redlock_backends::RedisNode;
use redlock_bench::process::find_program;
use redlock_bench::{Probe, Process, RedisOptions, RedisServer, Reply, eventually};
use redlock_core::{
    AcquireError, Acquisition, Holder, IntoResources as _, KeyPrefix, Listener, LockNode as _, Manner, NodeError,
    OsRandomness, Owner, Ownership, Place, Redlock, Refusal, ReleaseOutcome, Releasing, Retry, Ttl,
};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Every kind of call through one node.
async fn check_all_calls(url: &str) -> TestResult {
    let node = RedisNode::connect(url).await?;
    assert!(node.unix_time().is_some());
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(10)).build()?;
    let guard = redlock.try_acquire(["a", "b{c}d"]).await?;
    guard.extend().await?;
    let node = redlock.nodes().next().expect("there is one node");
    let inspections = node.inspect(&redlock_core::KeyPrefix::default(), guard.resources()).await?;
    assert!(inspections.iter().all(|seen| seen.held.is_some()), "{inspections:?}");
    assert!(inspections.iter().all(|seen| seen.counter == Some(guard.token().as_counter())), "{inspections:?}");
    assert_eq!(guard.release().await.outcome, ReleaseOutcome::Everywhere);
    check_guard(url).await?;
    check_waiting(url).await
}

/// Under the crash-recovery guard, with everything that it asks of a node.
async fn check_guard(url: &str) -> TestResult {
    let ttl = Duration::from_secs(10);
    let redlock = Redlock::builder().node(RedisNode::connect(url).await?).ttl(ttl).crash_guard(ttl).build()?;
    redlock.enroll_fresh().await?;
    let guard = redlock.try_acquire(["guarded", "by-two"]).await?;
    guard.extend().await?;
    assert_eq!(guard.release().await.outcome, ReleaseOutcome::Everywhere);
    Ok(())
}

/// Somebody who would ask by itself after twenty seconds is called; and what is done for waiters on the way is allowed.
async fn check_waiting(url: &str) -> TestResult {
    let client = |node| {
        let retry = Retry { delay: Duration::from_secs(5), ..Retry::default() };
        Redlock::builder().node(node).retry(retry).build()
    };
    let (holder, waiter) = (client(RedisNode::connect(url).await?)?, client(RedisNode::connect(url).await?)?);
    let guard = holder.try_acquire("a").await?;
    let release = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        guard.release().await
    };
    let (released, granted) = tokio::join!(release, waiter.acquire("a"));
    assert_eq!(released.outcome, ReleaseOutcome::Everywhere);
    let guard = granted?;

    let node = RedisNode::connect(url).await?;
    let (prefix, resources) = (KeyPrefix::default(), "a".into_resources()?);
    let ownership = Ownership::new(prefix.clone(), resources.clone(), Owner::from_random_bytes([1; 16]));
    let ttl = Ttl::new(Duration::from_secs(1))?;
    let listener = Listener::new(&OsRandomness);
    node.listen(&prefix, &listener).await?;
    for ticket in [1, 2, 3] {
        let place = Place::new(&listener, ticket, Manner::Yield);
        let held = node.acquire_in_line(&ownership, ttl, 0, &place).await?;
        assert!(matches!(&held, Acquisition::Held(held) if held.holder != Holder::Line), "{held:?}");
    }
    node.leave_line(&prefix, &resources, &Place::new(&listener, 1, Manner::Yield)).await?;
    guard.release().await;
    let overtaking = Place::new(&listener, 3, Manner::Overtake);
    let granted = node.acquire_in_line(&ownership, ttl, 0, &overtaking).await?;
    assert!(matches!(granted, Acquisition::Granted { .. }), "{granted:?}");
    node.leave_line(&prefix, &resources, &overtaking).await?;
    assert_eq!(node.release(&ownership).await?, Releasing::Released, "nobody stands in line any more");
    Ok(())
}

#[tokio::test]
async fn a_unix_socket() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    check_all_calls(&format!("unix://{}", server.socket().display())).await
}

#[tokio::test]
async fn a_database_of_its_own() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    check_all_calls(&format!("{}/3", server.url())).await?;
    assert_eq!(server.probe().keys("*").await?, Vec::<String>::new(), "nothing in database 0");
    Ok(())
}

#[tokio::test]
async fn a_password() -> TestResult {
    let server = RedisServer::start(RedisOptions::new().password("sesame-open")).await?;
    check_all_calls(&server.url()).await
}

/// The commands that the documentation lists, on the keys under the prefix, and nothing else.
const RIGHTS: [&str; 8] =
    ["worker", "on", ">sesame-open", "resetkeys", "~lock:*", "resetchannels", "&lock:~call:*", "-@all"];
const COMMANDS: [&str; 26] = [
    "+evalsha",
    "+eval",
    "+script|load",
    "+set",
    "+get",
    "+del",
    "+exists",
    "+pexpire",
    "+pttl",
    "+type",
    "+time",
    "+hmget",
    "+hset",
    "+hdel",
    "+info",
    "+select",
    "+hello",
    "+subscribe",
    "+publish",
    "+lindex",
    "+lpos",
    "+lrem",
    "+ltrim",
    "+lpop",
    "+rpush",
    "+rpop",
];

#[tokio::test]
async fn a_user_with_the_documented_rights() -> TestResult {
    let rights = RIGHTS.into_iter().chain(COMMANDS);
    let server = RedisServer::start(RedisOptions::new().set("user", rights)).await?;
    check_all_calls(&format!("redis://worker:sesame-open@{}", server.address())).await?;

    let documented = include_str!("../../../docs/operating.md");
    let line = format!("{} {}", RIGHTS[3..].join(" "), COMMANDS.join(" "));
    assert!(documented.contains(&line), "docs/operating.md lists others than {line}");
    Ok(())
}

/// A line is bounded: whoever comes when it is full stands in none, asks at intervals, and is in nobody's way.
#[tokio::test]
async fn a_user_with_the_documented_rights_meets_a_full_line() -> TestResult {
    let server = RedisServer::start(RedisOptions::new().set("user", RIGHTS.into_iter().chain(COMMANDS))).await?;
    let url = format!("redis://worker:sesame-open@{}", server.address());
    let node = RedisNode::connect(&url).await?;
    let resources = "a".into_resources()?;
    let ownership = |n| Ownership::new(KeyPrefix::default(), resources.clone(), Owner::from_random_bytes([n; 16]));
    let ttl = Ttl::new(Duration::from_secs(60))?;
    node.acquire(&ownership(1), ttl, 0).await?;
    let line = "lock:~line:{lock:a}";
    let full: Vec<String> = (0..10_000).map(|n| format!("{n}@lock:~call:nobody")).collect();
    let words = ["RPUSH".to_owned(), line.to_owned()].into_iter().chain(full);
    assert!(!server.command(&words.collect::<Vec<_>>()).await?.is_error());
    let place = Place::new(&Listener::new(&OsRandomness), 1, Manner::Yield);
    let held = node.acquire_in_line(&ownership(2), ttl, 0, &place).await?;
    assert!(matches!(held, Acquisition::Held(_)), "{held:?}");
    assert_eq!(server.command(&["LLEN", line]).await?, redlock_bench::Reply::Integer(10_000));
    // Those who do not listen any more leave it a few at a time, so that no script takes long.
    assert_eq!(node.release(&ownership(1)).await?, Releasing::Released);
    let left = server.command(&["LLEN", line]).await?.into_integer("LLEN")?;
    assert!(9_000 < left && left < 10_000, "{left}");
    Ok(())
}

#[tokio::test]
async fn a_user_who_may_not_run_scripts_is_told_so() -> TestResult {
    let rights = RIGHTS.into_iter().chain(["+info", "+time"]);
    let server = RedisServer::start(RedisOptions::new().set("user", rights)).await?;
    let node = RedisNode::connect(&format!("redis://worker:sesame-open@{}", server.address())).await?;
    let result = Redlock::builder().node(node).build()?.try_acquire("r").await;
    let Err(AcquireError::Misconfigured(report)) = &result else { panic!("{result:?}") };
    let (_, error) = report.failed().next().expect("one node failed");
    assert!(matches!(error, NodeError::Refused { reason: Refusal::Permission, .. }), "{error:?}");
    Ok(())
}

/// Where INFO is forbidden, as on some managed services, everything works, with less known.
#[tokio::test]
async fn a_user_who_may_not_read_info() -> TestResult {
    let commands = COMMANDS.into_iter().filter(|command| *command != "+info");
    let rights = RIGHTS.into_iter().chain(commands);
    let server = RedisServer::start(RedisOptions::new().set("user", rights)).await?;
    let url = format!("redis://worker:sesame-open@{}", server.address());
    check_all_calls(&url).await?;
    let node = RedisNode::connect(&url).await?;
    assert_eq!(node.identity(), None);
    assert!(!node.health().await?.unread.is_empty());
    Ok(())
}

/// At its memory limit a server refuses to lock, says why, and still releases.
#[tokio::test]
async fn a_server_without_memory_refuses_to_lock_and_still_releases() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let redlock = Redlock::builder().node(RedisNode::connect(&server.url()).await?).build()?;
    let guard = redlock.try_acquire("held").await?;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let result = redlock.try_acquire("r").await;
    let Err(AcquireError::Misconfigured(report)) = &result else { panic!("{result:?}") };
    let (_, error) = report.failed().next().expect("one node failed");
    assert!(matches!(error, NodeError::Refused { reason: Refusal::CannotWrite, .. }), "{error:?}");
    guard.extend().await?;
    assert_eq!(guard.release().await.outcome, ReleaseOutcome::Everywhere);
    Ok(())
}

/// A `rediss://` URL, with a certificate that the system's store vouches for. The store is named in the environment, which
/// a test may not change while it runs, so this runs itself once more with the environment set.
#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_with_a_certificate_that_the_system_trusts() -> TestResult {
    const URL: &str = "REDLOCK_TEST_TLS_URL";
    if let Ok(url) = std::env::var(URL) {
        return check_all_calls(&url).await;
    }
    let server = RedisServer::start(RedisOptions::new().tls()).await?;
    let again = tokio::process::Command::new(std::env::current_exe()?)
        .args(["--exact", "tls_with_a_certificate_that_the_system_trusts", "--nocapture"])
        .env("SSL_CERT_FILE", server.certificate())
        .env(URL, server.tls_url())
        .output()
        .await?;
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&again.stderr));

    // And one that nobody vouches for is refused.
    let unknown = RedisNode::connect(&server.tls_url()).await;
    assert!(unknown.is_err(), "a certificate that nobody vouches for is accepted");
    Ok(())
}

/// An authority of one's own, and a certificate for a server that asks for one: for calls and for wake-ups.
#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_with_an_authority_and_a_client_certificate_of_ones_own() -> TestResult {
    use redlock_backends::redis::{Certificates, UrlError};

    let server = RedisServer::start(RedisOptions::new().tls().set("tls-auth-clients", ["yes"])).await?;
    let (certificate, key) = (std::fs::read(server.certificate())?, std::fs::read(server.key())?);
    let trusting = Certificates::new().authority(certificate.clone());
    let both = trusting.clone().client(certificate, key);
    let open = |certificates: &Certificates| RedisNode::open_with(&server.tls_url(), certificates);

    let ttl = Duration::from_secs(10);
    let client =
        |certificates| Redlock::builder().node(open(certificates).unwrap()).ttl(ttl).node_timeout(ttl / 10).build();
    let (holder, waiter) = (client(&both)?, client(&both)?);
    let guard = holder.acquire("a").await?;
    let release = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        guard.release().await
    };
    let (released, granted) = tokio::join!(release, waiter.acquire("a"));
    assert_eq!(released.outcome, ReleaseOutcome::Everywhere);
    granted?.release().await;

    for (why, certificates) in [("no certificate is shown", &trusting), ("nobody vouches", &Certificates::new())] {
        let refused = client(certificates)?.try_acquire("a").await;
        assert!(matches!(refused, Err(AcquireError::Unavailable(_))), "{why}: {refused:?}");
    }
    assert_eq!(RedisNode::open_with(&server.url(), &both).unwrap_err(), UrlError::NotTls);
    let nonsense = Certificates::new().authority("nonsense");
    assert_eq!(open(&nonsense).unwrap_err(), UrlError::Certificates);
    assert!(!format!("{both:?}").contains("BEGIN"), "no key in Debug");
    Ok(())
}

/// A server that watches a set of servers, and says which is its primary.
struct Sentinel {
    port: u16,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    async fn watch(primary: &RedisServer) -> Result<Self, Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let (port, config) = (redlock_bench::ports::free_port(), folder.path().join("sentinel.conf"));
        let watch = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor jobs 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds jobs 300\nsentinel failover-timeout jobs 2000\n",
            folder.path().display(),
            primary.port()
        );
        std::fs::write(&config, watch)?;
        let program = find_program("redis-server").expect("a server is running already");
        let process = Process::spawn(program, |command| {
            command.arg(&config).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        })?;
        let sentinel = Self { port, _process: process, _folder: folder };
        // It has to know the replica before it can promote it.
        eventually(Duration::from_secs(30), || async {
            let mut probe = Probe::new(SocketAddr::from(([127, 0, 0, 1], port)));
            match probe.command(&["SENTINEL", "REPLICAS", "jobs"]).await {
                Ok(Reply::Array(replicas)) if !replicas.is_empty() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await?;
        Ok(sentinel)
    }
}

/// A set that Sentinels watch is one node, whoever is its primary. The one that takes over may not know what the first one
/// granted, so the crash-recovery guard has it wait.
#[tokio::test]
async fn a_primary_that_sentinels_know() -> TestResult {
    let primary = RedisServer::start(RedisOptions::new()).await?;
    let replica = RedisServer::start(RedisOptions::new().replica_of(&primary)).await?;
    let sentinel = Sentinel::watch(&primary).await?;
    // The first one is not there: another is asked.
    let nowhere = redlock_bench::ports::free_port();
    let url = format!("redis-sentinel://127.0.0.1:{nowhere},127.0.0.1:{}?set=jobs", sentinel.port);
    check_all_calls(&url).await?;

    let node = RedisNode::connect(&url).await?;
    assert_eq!(node.name(), "sentinel:jobs");
    let (first, ttl) = (node.identity().expect("INFO is allowed"), Duration::from_millis(500));
    let redlock = Redlock::builder().node(node).ttl(ttl).crash_guard(ttl).node_timeout(ttl / 5).build()?;
    redlock.try_acquire("r").await?.release().await;
    primary.kill();
    eventually(Duration::from_secs(60), || async {
        match redlock.try_acquire("r").await {
            Err(error) if error.to_string().contains("quarantined") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let second = redlock.nodes().next().and_then(|node| node.identity()).expect("INFO is allowed");
    assert_ne!(first, second);
    assert!(replica.is_running());

    let unknown = RedisNode::connect(&url.replace("set=jobs", "set=other")).await.unwrap_err();
    assert!(format!("{unknown:?}").contains("no set called other"), "{unknown:?}");
    Ok(())
}

#[tokio::test]
async fn an_address_of_version_six() -> TestResult {
    let server = RedisServer::start(RedisOptions::new().set("bind", ["127.0.0.1", "::1"])).await?;
    check_all_calls(&format!("redis://[::1]:{}", server.port())).await
}
