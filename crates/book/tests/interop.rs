//! Clients in other languages, and other libraries, share locks, tokens and fences with ours.

use std::error::Error;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fence_store::{FenceError, FenceStore, Row};
use redlock_backends::RedisNode;
use redlock_bench::{Servers, eventually};
use redlock_core::{AcquireError, Redlock};
use rslock::LockManager;
use sea_query::Query;
use sqlx::Sqlite;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

type TestResult = Result<(), Box<dyn Error>>;

/// A program that is told something in a line, and answers in a line.
struct Program {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    async fn start(interpreter: &str, script: &str, servers: &Servers) -> Self {
        let libraries = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench").join("peers/node");
        let mut process = Command::new(interpreter)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(script))
            .args(servers.urls())
            .env("PEERS", libraries)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{interpreter}: {error}; `cargo xtask test --install` brings it"));
        let input = process.stdin.take().expect("its input is piped");
        let output = BufReader::new(process.stdout.take().expect("its output is piped")).lines();
        let mut program = Self { _process: process, input, output };
        assert_eq!(program.line().await, "ready");
        program
    }

    async fn ask(&mut self, question: &str) -> String {
        self.input.write_all(format!("{question}\n").as_bytes()).await.expect("the program reads");
        self.line().await
    }

    async fn line(&mut self) -> String {
        let line = self.output.next_line().await.expect("its output is text");
        line.expect("the program goes on; what it lacks, `cargo xtask test --install` brings")
    }
}

/// Time enough for any machine: what is asked is who gets the lock, not how fast.
async fn ours(servers: &Servers) -> Result<Redlock, Box<dyn Error>> {
    let urls = servers.urls();
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let builder = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(60)).wait(Duration::from_secs(20));
    Ok(builder.node_timeout(Duration::from_secs(2)).build()?)
}

async fn python(servers: &Servers) -> Program {
    // The one that Debian's package belongs to, whatever else there is.
    Program::start("/usr/bin/python3", "ours_in_python.py", servers).await
}

/// Owner and token of a grant.
fn granted(answer: &str) -> (String, i64) {
    let (owner, token) = answer.split_once(' ').unwrap_or_else(|| panic!("not granted: {answer}"));
    (owner.to_owned(), token.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_in_python_excludes_ours_and_mints_tokens_in_order_with_it() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = ours(&servers).await?;
    let mut python = python(&servers).await;
    let mut last = 0;
    for _ in 0..3 {
        let guard = redlock.acquire("orders/42").await?;
        assert!(last < guard.token().get());
        last = guard.token().get();
        assert_eq!(python.ask("acquire orders/42 60000").await, "refused");
        guard.release().await;
        redlock.settled().await;

        let (owner, token) = granted(&python.ask("acquire orders/42 60000").await);
        assert!(last < token, "{token} after {last}");
        last = token;
        let refused = redlock.try_acquire("orders/42").await;
        assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
        assert_eq!(python.ask(&format!("release orders/42 {owner}")).await, "released");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_in_python_levels_counters_that_lie_apart() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = ours(&servers).await?;
    let mut python = python(&servers).await;
    let guard = redlock.acquire("orders/42").await?;
    let before = guard.token().get();
    guard.release().await;
    redlock.settled().await;
    // Counters that run ahead of all clocks, each by another distance, so that no three agree.
    let key = "lock:~fence:{lock:orders/42}";
    for (server, ahead) in servers.iter().zip([50_000_000_000_u64, 10, 40_000_000_000, 30_000_000_000, 20]) {
        let counter = (before.unsigned_abs() + ahead).to_string();
        server.command(&["SET", key, counter.as_str()]).await?;
    }

    let (owner, token) = granted(&python.ask("acquire orders/42 60000").await);

    assert_eq!(token, before + 50_000_000_001);
    for server in servers.iter() {
        let counter = server.command(&["GET", key]).await?.into_text("the counter")?;
        assert_eq!(counter, token.to_string());
    }
    python.ask(&format!("release orders/42 {owner}")).await;
    let after = redlock.acquire("orders/42").await?.token().get();
    assert!(token < after);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_in_python_and_ours_write_through_one_fence() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = ours(&servers).await?;
    let mut python = python(&servers).await;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");
    let store: FenceStore<Sqlite> = FenceStore::connect(&format!("sqlite:{}?mode=rwc", file.display())).await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, fence_token BIGINT NOT NULL DEFAULT 0)")
        .execute(store.pool())
        .await?;
    sqlx::query("INSERT INTO orders (id, status) VALUES (42, 'new')").execute(store.pool()).await?;
    store.install_schema().await?;
    let order = Row::new("orders", "id", 42);
    let write = |status: &'static str, token: i64| format!("write {} 42 {status} {token}", file.display());

    // Python is granted first, and writes last: it is refused.
    let (owner, early) = granted(&python.ask("acquire orders/42 60000").await);
    python.ask(&format!("release orders/42 {owner}")).await;
    let guard = redlock.acquire("orders/42").await?;
    store.update(&guard, &order, Query::update().value("status", "packed")).await?;
    assert_eq!(python.ask(&write("lost", early)).await, "stale");

    // And the other way round.
    let late = guard.grant().clone();
    guard.release().await;
    redlock.settled().await;
    let (owner, token) = granted(&python.ask("acquire orders/42 60000").await);
    assert_eq!(python.ask(&write("sent", token)).await, "applied");
    python.ask(&format!("release orders/42 {owner}")).await;
    let refused = store.update(&late, &order, Query::update().value("status", "lost")).await;
    assert!(matches!(refused, Err(FenceError::Stale { highest, .. }) if highest == token), "{refused:?}");
    let status: String = sqlx::query_scalar("SELECT status FROM orders").fetch_one(store.pool()).await?;
    assert_eq!(status, "sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rslock_and_ours_exclude_each_other() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = ours(&servers).await?;
    let rslock = LockManager::new(servers.urls());
    let ttl = Duration::from_secs(60);

    // It names the key in full, as we write it: prefix and resource.
    let lock = rslock.lock("lock:orders/42", ttl).await.map_err(|error| format!("{error:?}"))?;
    let refused = redlock.try_acquire("orders/42").await;
    assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
    rslock.unlock(&lock).await;

    let guard = redlock.acquire("orders/42").await?;
    redlock.settled().await;
    assert!(rslock.lock("lock:orders/42", ttl).await.is_err());
    guard.release().await;
    redlock.settled().await;
    let lock = rslock.lock("lock:orders/42", ttl).await.map_err(|error| format!("{error:?}"))?;
    rslock.unlock(&lock).await;
    nothing_is_locked(&servers).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_redlock_and_ours_exclude_each_other() -> TestResult {
    let servers = Servers::start(5).await?;
    let redlock = ours(&servers).await?;
    let mut node = Program::start("node", "node_redlock.mjs", &servers).await;

    assert_eq!(node.ask("acquire lock:orders/42 60000").await, "granted");
    let refused = redlock.try_acquire("orders/42").await;
    assert!(matches!(refused, Err(AcquireError::Contended(_))), "{refused:?}");
    assert_eq!(node.ask("release").await, "released");

    let guard = redlock.acquire("orders/42").await?;
    redlock.settled().await;
    assert_eq!(node.ask("acquire lock:orders/42 60000").await, "refused");
    guard.release().await;
    redlock.settled().await;
    assert_eq!(node.ask("acquire lock:orders/42 60000").await, "granted");
    assert_eq!(node.ask("release").await, "released");
    nothing_is_locked(&servers).await;
    Ok(())
}

async fn nothing_is_locked(servers: &Servers) {
    let free = eventually(Duration::from_secs(20), || async {
        let keys = servers.keys("lock:orders*").await.map_err(|error| error.to_string())?;
        if keys.iter().all(Vec::is_empty) { Ok(()) } else { Err(format!("{keys:?}")) }
    });
    free.await.unwrap();
}
