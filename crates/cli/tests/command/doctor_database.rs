//! `redlock doctor` on databases: the ledger, fence columns, guards, and whether the database keeps its word.

use crate::support::*;
use redlock_bench::sql::{MariaDb, Postgres};
use redlock_bench::{RedisOptions, Servers};
use serde_json::Value;

/// The findings about the database, as severity and word.
async fn examine(redlock: &Redlock, tables: &[&str]) -> Vec<(String, String)> {
    let mut arguments = vec!["--json", "--node-timeout", "2s", "doctor"];
    for table in tables {
        arguments.extend(["--table", table]);
    }
    let ended = redlock.call(&arguments).await;
    let said: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let findings = said["findings"].as_array().expect("a list").iter();
    let word = |finding: &Value, field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    findings
        .filter(|finding| finding["subject"] == "database")
        .map(|finding| (word(finding, "severity"), word(finding, "finding")))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(severity, word)| ((*severity).to_owned(), (*word).to_owned())).collect()
}

async fn nodes() -> Servers {
    Servers::start_with(3, |_| RedisOptions::new().set("appendonly", ["yes"])).await.expect("they start")
}

#[tokio::test]
async fn a_fenced_database_is_met_with_silence_and_each_gap_is_found() -> TestResult {
    let servers = nodes().await;
    let redlock = Redlock::of(&servers);
    let url = format!("sqlite:{}?mode=rwc", redlock.note("shop.db").display());
    let pool = sqlx::SqlitePool::connect(&url).await?;
    let run = async |sql: &str| sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&pool).await;
    run("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)").await?;
    let redlock = redlock.set("REDLOCK_DATABASE", &url);

    assert_eq!(examine(&redlock, &["orders"]).await, pairs(&[("error", "no-ledger"), ("error", "fence-column")]));
    let sql = redlock.call(&["fence", "sql", "--dialect", "sqlite", "--table", "orders", "--key", "id"]).await;
    let (before_guard, guard) = sql.stdout.split_at(sql.stdout.find("fence_token\" BIGINT").unwrap());
    let (column, guard) = guard.split_at(guard.find(';').unwrap() + 1);
    run(&format!("{before_guard}{column}")).await?;
    assert_eq!(examine(&redlock, &["orders"]).await, pairs(&[("error", "guard")]));
    run(guard).await?;
    assert_eq!(examine(&redlock, &["orders"]).await, pairs(&[]));

    // Somebody takes a trigger away.
    let trigger: String =
        sqlx::query_scalar("SELECT name FROM sqlite_master WHERE type = 'trigger' LIMIT 1").fetch_one(&pool).await?;
    run(&format!("DROP TRIGGER \"{trigger}\"")).await?;
    assert_eq!(examine(&redlock, &["orders"]).await, pairs(&[("error", "guard")]));

    assert_eq!(examine(&redlock, &["no_such_table"]).await, pairs(&[("error", "no-table")]));
    run("CREATE TABLE narrow (id INTEGER PRIMARY KEY, fence_token TEXT)").await?;
    assert_eq!(examine(&redlock, &["narrow"]).await, pairs(&[("error", "fence-column")]));

    run("INSERT INTO fence_ledger (resource, token) VALUES ('r', 9007199254740990)").await?;
    assert_eq!(examine(&redlock, &[]).await, pairs(&[("warning", "ledger-ahead")]));
    Ok(())
}

#[tokio::test]
async fn a_database_that_cannot_be_asked_is_found() -> TestResult {
    let servers = nodes().await;
    for (url, secret) in [
        ("postgres://shop:hunter2@127.0.0.1:1/shop", "hunter2"),
        ("mysql://shop:hunter2@127.0.0.1:1/shop", "hunter2"),
        ("oracle://shop:hunter2@localhost", "hunter2"),
    ] {
        let redlock = Redlock::of(&servers).set("REDLOCK_DATABASE", url);
        assert_eq!(examine(&redlock, &[]).await, pairs(&[("error", "database")]));
        let text = redlock.call(&["doctor"]).await;
        assert!(!text.stdout.contains(secret) && !text.stderr.contains(secret), "{text:?}");
    }
    Ok(())
}

/// The bench's Postgres does not sync, to be fast; that is one of the findings.
#[tokio::test]
async fn a_postgres_that_forgets_is_found() -> TestResult {
    let servers = nodes().await;
    let postgres = Postgres::start()?;
    let redlock = Redlock::of(&servers).set("REDLOCK_DATABASE", postgres.url());
    let pool = sqlx::PgPool::connect(postgres.url()).await?;
    sqlx::raw_sql("CREATE TABLE orders (id BIGINT PRIMARY KEY, fence_token INTEGER NOT NULL DEFAULT 0)")
        .execute(&pool)
        .await?;
    let expected =
        [("error", "no-ledger"), ("error", "fence-column"), ("warning", "not-durable"), ("note", "idle-transactions")];
    assert_eq!(examine(&redlock, &["orders"]).await, pairs(&expected));

    for sql in [
        "ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '30s'",
        "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'",
        "ALTER DATABASE postgres SET synchronous_commit = off",
    ] {
        sqlx::raw_sql(sql).execute(&pool).await?;
    }
    let expected =
        [("error", "no-ledger"), ("warning", "not-durable"), ("warning", "not-durable"), ("note", "isolation")];
    assert_eq!(examine(&redlock, &[]).await, pairs(&expected));
    Ok(())
}

#[tokio::test]
async fn a_mariadb_that_cannot_roll_back_is_found() -> TestResult {
    let servers = nodes().await;
    let mariadb = MariaDb::start()?;
    let redlock = Redlock::of(&servers).set("REDLOCK_DATABASE", mariadb.url());
    let pool = sqlx::MySqlPool::connect(mariadb.url()).await?;
    let sql = redlock.call(&["fence", "sql", "--dialect", "mariadb", "--only", "ledger"]).await;
    // MyISAM's keys are shorter.
    let sql = sql.stdout.replace("InnoDB", "MyISAM").replace("varbinary(1024)", "varbinary(255)");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await?;
    let flush: i64 =
        sqlx::query_scalar("SELECT CAST(@@global.innodb_flush_log_at_trx_commit AS SIGNED)").fetch_one(&pool).await?;
    let mut expected = vec![("error", "fence-column")];
    if flush != 1 {
        expected.push(("warning", "not-durable"));
    }
    assert_eq!(examine(&redlock, &[]).await, pairs(&expected));
    sqlx::raw_sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2").execute(&pool).await?;
    assert_eq!(examine(&redlock, &[]).await, pairs(&[("error", "fence-column"), ("warning", "not-durable")]));
    for sql in ["SET GLOBAL read_only = 1", "SET GLOBAL autocommit = 0"] {
        sqlx::raw_sql(sql).execute(&pool).await?;
    }
    let expected =
        [("error", "read-only"), ("error", "fence-column"), ("warning", "not-durable"), ("note", "autocommit")];
    assert_eq!(examine(&redlock, &[]).await, pairs(&expected));
    Ok(())
}

/// A user who may log in and no more.
#[tokio::test]
async fn what_may_not_be_read_of_a_database_is_said() -> TestResult {
    let servers = nodes().await;
    let postgres = Postgres::start()?;
    let pool = sqlx::PgPool::connect(postgres.url()).await?;
    for sql in [
        "CREATE ROLE stranger LOGIN PASSWORD 'hunter2'",
        "ALTER ROLE stranger SET idle_in_transaction_session_timeout = '30s'",
        "ALTER DATABASE postgres SET synchronous_commit = on",
    ] {
        sqlx::raw_sql(sql).execute(&pool).await?;
    }
    let sql = Redlock::of(&servers).call(&["fence", "sql", "--dialect", "postgres", "--only", "ledger"]).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.stdout)).execute(&pool).await?;
    let url = postgres.url().replacen("postgres@", "stranger:hunter2@", 1);
    assert_ne!(url, postgres.url());
    let redlock = Redlock::of(&servers).set("REDLOCK_DATABASE", url);
    assert_eq!(examine(&redlock, &[]).await, pairs(&[("warning", "not-durable"), ("unread", "table-unread")]));

    sqlx::raw_sql("REVOKE EXECUTE ON FUNCTION pg_is_in_recovery() FROM PUBLIC").execute(&pool).await?;
    let expected = [("warning", "not-durable"), ("unread", "database-unread"), ("unread", "table-unread")];
    assert_eq!(examine(&redlock, &[]).await, pairs(&expected));
    Ok(())
}

#[tokio::test]
async fn a_ledger_of_no_name_is_found() -> TestResult {
    let servers = nodes().await;
    let redlock = Redlock::of(&servers);
    let file = redlock.note("redlock.toml");
    std::fs::write(&file, "[database]\nurl = \"sqlite::memory:\"\nledger = \"drop table\"\n")?;
    let redlock = redlock.set("REDLOCK_CONFIG", file.to_str().unwrap());
    assert_eq!(examine(&redlock, &[]).await, pairs(&[("error", "ledger")]));
    Ok(())
}
