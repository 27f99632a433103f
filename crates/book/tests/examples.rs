//! The examples, run for what they claim.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fence_store::{FenceError, FenceStore};
use metrics_exporter_prometheus::PrometheusBuilder;
use redlock_backends::{MemoryNode, RedisNode};
use redlock_bench::Servers;
use redlock_core::{LockNode, Redlock};
use sqlx::{Sqlite, SqlitePool};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[path = "../examples/batch.rs"]
mod batch;
#[path = "../../backends/examples/cache_rebuild.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod cache_rebuild;
#[path = "../examples/scheduler.rs"]
mod scheduler;
#[path = "../examples/service.rs"]
mod service;

type TestResult = Result<(), Box<dyn std::error::Error>>;

async fn in_memory() -> FenceStore<Sqlite> {
    FenceStore::new(SqlitePool::connect("sqlite::memory:").await.unwrap())
}

#[tokio::test]
async fn a_cache_entry_is_built_once_however_many_ask() -> TestResult {
    let redlock = Redlock::builder().node(MemoryNode::new("memory")).wait(Duration::from_secs(60)).build()?;
    let (cache, built) = (cache_rebuild::Cache::default(), AtomicUsize::new(0));
    let ask = || {
        cache_rebuild::cached(&redlock, &cache, "page", async || {
            built.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            "the page".to_owned()
        })
    };
    let pages = futures_util::future::join_all((0..50).map(|_| ask())).await;
    assert!(pages.iter().all(|page| page.as_deref().is_ok_and(|page| page == "the page")), "{pages:?}");
    assert_eq!(built.into_inner(), 1);

    // What was built under an older token comes too late.
    let guard = redlock.acquire("a").await?;
    let older = guard.token();
    guard.release().await;
    let newer = redlock.acquire("a").await?.token();
    assert!(cache.put("b", newer, "new".into()));
    assert!(!cache.put("b", older, "old".into()));
    assert_eq!(cache.get("b").as_deref(), Some("new"));
    Ok(())
}

#[tokio::test]
async fn a_batch_goes_on_where_a_worker_died_and_does_each_item_once() -> TestResult {
    let redlock = Redlock::builder().node(MemoryNode::new("memory")).build()?;
    let store = in_memory().await;
    batch::prepare(&store, 12).await?;

    let died = tokio::sync::Notify::new();
    let dies = batch::work(&redlock, &store, async |item| {
        if item == 5 {
            died.notify_one();
            pending::<()>().await;
        }
    });
    tokio::select! {
        done = dies => panic!("it did not die: {done:?}"),
        () = died.notified() => {}
    }
    let (done, token) = batch::work(&redlock, &store, async |_| {}).await?;

    assert_eq!(done, 7);
    let items: Vec<(i64, i64, i64)> =
        sqlx::query_as("SELECT id, times, done_under FROM items ORDER BY id").fetch_all(store.pool()).await?;
    assert_eq!(items.len(), 12);
    assert!(items.iter().all(|(_, times, _)| *times == 1), "{items:?}");
    let (first, second): (Vec<_>, Vec<_>) = items.iter().partition(|(id, ..)| *id <= 5);
    assert!(second.iter().all(|(_, _, under)| *under == token.get()), "{items:?}");
    assert!(first.iter().all(|(_, _, under)| *under < token.get()), "{items:?}");
    Ok(())
}

#[tokio::test]
async fn a_scheduler_goes_on_in_a_later_term_and_a_former_leader_is_refused() -> TestResult {
    let node = Arc::new(MemoryNode::new("memory"));
    let nodes = || [Arc::clone(&node) as Arc<dyn LockNode>];
    let client = || Redlock::builder().nodes(nodes()).ttl(Duration::from_secs(10)).build();
    let (one, two) = (client()?, client()?);
    let store = in_memory().await;
    scheduler::prepare(&store).await?;

    // It leads, and stands still for longer than its term lasts, without a clock that tells it so.
    let former = one.try_acquire("offices/scheduler").await?;
    assert_eq!(scheduler::schedule_next(&store, &former.held(), "first", 6).await?, Some(1));
    node.clock().advance(Duration::from_secs(11));
    scheduler::instance(&two, &store, "second", 6, async |_| {}).await?;

    let late = scheduler::schedule_next(&store, &former.held(), "first", 9).await;
    assert!(matches!(late, Err(FenceError::Stale { .. })), "{late:?}");
    let runs = scheduler::runs(&store).await?;
    assert_eq!(runs.iter().map(|(minute, ..)| *minute).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(runs.iter().filter(|(.., instance)| instance == "first").count(), 1, "{runs:?}");
    assert!(runs.windows(2).all(|pair| pair[0].1 <= pair[1].1) && runs[0].1 < runs[1].1, "{runs:?}");
    Ok(())
}

/// One request, as plain as can be; gives the status and the body.
async fn ask(address: std::net::SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let text = format!("{request} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_loses_no_deposit_and_shows_its_metrics() -> TestResult {
    let servers = Servers::start(5).await?;
    let urls = servers.urls();
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(30)).wait(Duration::from_secs(60)).build()?;
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display());
    let store = FenceStore::connect(&url).await?;
    service::prepare(&store).await?;
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let shop = Arc::new(service::Shop { redlock, store, metrics });
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, service::router(shop)).await.unwrap() });

    // Reading, adding and writing back from twenty requests at once loses some, unless one has the account at a time.
    let deposits = (0..20).map(|_| ask(address, "POST /accounts/42/deposits/10"));
    let answers = futures_util::future::join_all(deposits).await;
    assert!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let mut balances: Vec<u64> = answers.iter().map(|(_, body)| body.parse().unwrap()).collect();
    balances.sort_unstable();
    assert_eq!(balances, (1..=20).map(|number| 100 + 10 * number).collect::<Vec<_>>());

    assert_eq!(ask(address, "POST /accounts/7/deposits/10").await.0, 404);
    let (status, scraped) = ask(address, "GET /metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str| {
        let line =
            scraped.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {scraped}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(21.0 <= value("redlock_attempts_total{outcome=\"granted\"}"));
    assert!(0.0 < value("redlock_releases_total"));
    assert!(scraped.contains("fence_store_operations_total{"), "{scraped}");
    Ok(())
}
