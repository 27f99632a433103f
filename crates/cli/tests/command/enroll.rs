//! `redlock enroll` and `redlock reseed`: nodes that are new, that have lost their memory, and too many of those.

use crate::support::*;
use fence_store::{FenceStore, Row};
use redlock_bench::Servers;
use redlock_core::Grant;
use sea_query::Query;

/// Short, as a quarantine is waited for.
const LONGEST: &str = "1s";

fn guarded(servers: &Servers) -> Redlock {
    Redlock::of(servers).set("REDLOCK_CRASH_GUARD", LONGEST).set("REDLOCK_TTL", LONGEST)
}

#[tokio::test]
async fn a_deployment_is_enrolled_once_and_nodes_that_forget_are_taken_back() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = guarded(&servers);
    let off = Redlock::of(&servers).call(&["enroll"]).await;
    assert_eq!(off.code, 78, "{off:?}");
    assert!(off.stderr.contains("--crash-guard"), "{off:?}");

    let fresh = redlock.call(&["run", "--no-wait", "r", "--", "true"]).await;
    assert_eq!(fresh.code, 69, "nobody is granted anything yet: {fresh:?}");
    assert!(fresh.stderr.contains("quarantined for"), "{fresh:?}");
    let unsure = redlock.call(&["enroll"]).await;
    assert_eq!(unsure.code, 69, "{unsure:?}");
    assert!(unsure.stderr.contains("--fresh"), "{unsure:?}");
    assert_eq!(redlock.call(&["enroll", "--fresh"]).await.code, 0);
    assert_eq!(redlock.call(&["run", "--no-wait", "r", "--", "true"]).await.code, 0);
    assert_eq!(redlock.call(&["enroll", "--fresh"]).await.code, 78, "it is not fresh any more");

    servers[1].restart().await?;
    let check = redlock.call(&["--json", "enroll", "--check"]).await;
    assert_eq!(check.code, 69, "{check:?}");
    assert!(check.stdout.contains("\"enrolled\":2") && check.stdout.contains("\"quarantined_ms\""), "{check:?}");
    let inspected = redlock.call(&["inspect", "r"]).await;
    assert_eq!(inspected.code, 0, "{inspected:?}");
    assert!(inspected.stderr.contains("does not vote, quarantined for"), "{inspected:?}");
    let taken_back = redlock.call(&["enroll"]).await;
    assert_eq!(taken_back.code, 0, "after waiting for the quarantine: {taken_back:?}");
    assert_eq!(taken_back.stdout.matches("enrolled").count(), 3, "{taken_back:?}");
    assert_eq!(redlock.call(&["enroll", "--check"]).await.code, 0);
    Ok(())
}

/// What `redlock acquire` has taken is extended under the guard as well.
#[tokio::test]
async fn scripts_hold_locks_under_the_guard() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = guarded(&servers);
    assert_eq!(redlock.call(&["enroll", "--fresh"]).await.code, 0);
    let owner = redlock.note("owner").display().to_string();
    assert_eq!(redlock.call(&["acquire", "--owner-file", &owner, "r"]).await.code, 0);
    assert_eq!(redlock.call(&["extend", "--ttl", "1s", "--owner-file", &owner, "r"]).await.code, 0);
    assert_eq!(redlock.call(&["release", "--owner-file", &owner, "r"]).await.code, 0);
    Ok(())
}

#[tokio::test]
async fn a_quorum_that_forgot_goes_on_above_what_the_database_has_accepted() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = guarded(&servers);
    assert_eq!(redlock.call(&["enroll", "--fresh"]).await.code, 0);

    // Far above all clocks, so that it can come from nowhere else.
    let (in_ledger, in_row) = (3_000_000_000_000_001, 3_000_000_000_000_007);
    let file = redlock.note("shop.db");
    let url = format!("sqlite:{}?mode=rwc", file.display());
    let pool = sqlx::SqlitePool::connect(&url).await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, n INTEGER, fence_token BIGINT NOT NULL DEFAULT 0)")
        .execute(&pool)
        .await?;
    sqlx::query("INSERT INTO orders (id, n) VALUES (1, 0)").execute(&pool).await?;
    let store = FenceStore::new(pool);
    store.install_schema().await?;
    store.begin(&Grant::assume_granted("r", in_ledger)?).await?.commit().await?;
    store
        .update(&Grant::assume_granted("r", in_row)?, &Row::new("orders", "id", 1), Query::update().value("n", 1))
        .await?;
    store.pool().close().await;

    let remembered = redlock.call(&["reseed", "--from", &url]).await;
    assert_eq!(remembered.code, 78, "nothing has to be guessed: {remembered:?}");
    servers[0].restart().await?;
    servers[1].restart().await?;
    let too_few = redlock.call(&["enroll"]).await;
    assert_eq!(too_few.code, 69, "{too_few:?}");
    assert!(too_few.stderr.contains("reseed"), "{too_few:?}");
    assert_eq!(redlock.call(&["run", "--no-wait", "r", "--", "true"]).await.code, 69);

    let reseeded = redlock.call(&["reseed", "--from", &url]).await;
    assert_eq!(reseeded.code, 0, "{reseeded:?}");
    let token = || async {
        let printed = redlock.call(&["run", "r", "--", "sh", "-c", "echo $REDLOCK_FENCING_TOKEN"]).await;
        assert_eq!(printed.code, 0, "{printed:?}");
        printed.stdout.trim().parse::<i64>().expect("a token")
    };
    assert!(in_ledger < token().await);

    // The configuration file names tables with a fence of their own as well, and a URL with a password may stand in it.
    servers[0].restart().await?;
    servers[2].restart().await?;
    let config = redlock.note("redlock.toml");
    std::fs::write(&config, format!("[database]\nurl = \"{url}\"\n[[database.tables]]\nname = \"orders\"\n"))?;
    let config = config.display().to_string();
    let reseeded = redlock.call(&["--config", &config, "reseed", "--from", "file"]).await;
    assert_eq!(reseeded.code, 0, "{reseeded:?}");
    assert!(in_row < token().await);

    for url in ["postgres://shop:secret@localhost/shop", "postgres://localhost/shop?user=shop&password=secret"] {
        let typed = redlock.call(&["reseed", "--from", url]).await;
        assert_eq!(typed.code, 64, "{typed:?}");
        assert!(!typed.stderr.contains("secret"), "{typed:?}");
    }
    Ok(())
}
