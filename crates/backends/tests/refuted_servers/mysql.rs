//! A node on MariaDB, whatever the server has by default and whoever else works on its rows.

use crate::support::{
    LONG, ownership, refusal, serves, serves_others_than_those_who_wait_for_a_locked_row, takes, ttl,
};
use redlock_backends::MySqlNode;
use redlock_bench::eventually;
use redlock_bench::sql::MariaDb;
use redlock_core::{Extension, LockNode as _, Refusal};
use sqlx::mysql::{MySqlConnection, MySqlPool};
use sqlx::{Connection as _, Executor as _};
use std::time::Duration;

async fn administrator(server: &MariaDb) -> MySqlConnection {
    MySqlConnection::connect(server.url()).await.unwrap()
}

async fn installed(server: &MariaDb) -> MySqlNode {
    MySqlNode::install(server.url()).await.unwrap();
    MySqlNode::connect(server.url()).await.unwrap()
}

#[tokio::test]
async fn a_database_without_the_procedures_says_how_to_bring_them() {
    let server = MariaDb::start().unwrap();
    let (reason, said) = refusal(MySqlNode::connect(server.url()).await);
    assert_eq!(reason, Refusal::Configuration);
    assert!(said.contains("MySqlNode::install"), "{said}");
}

#[tokio::test]
async fn a_server_that_commits_nothing_by_itself_serves() {
    let server = MariaDb::start().unwrap();
    let node = installed(&server).await;
    drop(node);
    administrator(&server).await.execute("SET GLOBAL autocommit = 0").await.unwrap();
    serves(&installed(&server).await).await;
}

#[tokio::test]
async fn a_server_that_begins_a_transaction_after_each_serves() {
    let server = MariaDb::start().unwrap();
    administrator(&server).await.execute("SET GLOBAL completion_type = 'CHAIN'").await.unwrap();
    serves(&installed(&server).await).await;
}

#[tokio::test]
async fn a_server_that_speaks_the_language_of_another_serves() {
    let server = MariaDb::start().unwrap();
    administrator(&server).await.execute("SET GLOBAL sql_mode = 'ORACLE'").await.unwrap();
    serves(&installed(&server).await).await;
}

#[tokio::test]
async fn who_may_execute_and_read_is_served() {
    let server = MariaDb::start().unwrap();
    let root = installed(&server).await;
    let mut administrator = administrator(&server).await;
    for statement in [
        "CREATE USER locker IDENTIFIED BY 'sesame'",
        "GRANT EXECUTE ON mysql.* TO locker",
        "GRANT SELECT ON mysql.redlock_node TO locker",
        "GRANT SELECT ON mysql.redlock_node_identity TO locker",
    ] {
        administrator.execute(statement).await.unwrap();
    }
    let node = MySqlNode::connect(&server.url().replace("root@", "locker:sesame@")).await.unwrap();
    assert_eq!(node.identity(), root.identity());
    serves(&node).await;
    administrator.execute("REVOKE EXECUTE ON mysql.* FROM locker").await.unwrap();
    let node = MySqlNode::connect(&server.url().replace("root@", "locker:sesame@")).await.unwrap();
    assert_eq!(refusal(node.release(&ownership("o", "r")).await).0, Refusal::Permission);
}

#[tokio::test]
async fn a_row_that_stays_locked_does_not_take_the_node_away_from_others() {
    let server = MariaDb::start().unwrap();
    let node = installed(&server).await;
    takes(&node, &ownership("o", "locked"), 0).await;
    let mut somebody = administrator(&server).await;
    somebody.execute("BEGIN").await.unwrap();
    somebody.execute("SELECT * FROM redlock_node WHERE id = 'lock:locked' FOR UPDATE").await.unwrap();
    serves_others_than_those_who_wait_for_a_locked_row(&node).await;
    // Nor are sessions left that wait for as long as it stays so.
    let observer = MySqlPool::connect(server.url()).await.unwrap();
    eventually(Duration::from_secs(30), || async {
        let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                       WHERE command = 'Execute' AND id <> CONNECTION_ID()";
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&observer).await.unwrap();
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} sessions wait")) }
    })
    .await
    .unwrap();
}

/// The server's calendar, to the microsecond.
async fn micros(connection: &mut MySqlConnection) -> i64 {
    let asked = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";
    sqlx::query_scalar(asked).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_lock_lasts_for_its_whole_ttl() {
    let server = MariaDb::start().unwrap();
    let node = installed(&server).await;
    let mut observer = administrator(&server).await;
    let who = ownership("o", "r");
    takes(&node, &who, 0).await;
    for _ in 0..50 {
        let before = micros(&mut observer).await;
        assert_eq!(node.extend(&who, ttl(LONG)).await.unwrap(), Extension::Extended);
        let end: i64 =
            sqlx::query_scalar("SELECT expires_at FROM redlock_node").fetch_one(&mut observer).await.unwrap();
        // No call asks in between, so the extension may be as early as the question before it.
        let least = before + i64::try_from(LONG.as_micros()).unwrap();
        assert!(least <= end * 1_000, "{} µs too short", least - end * 1_000);
    }
}

#[tokio::test]
async fn a_server_that_is_read_only_is_refused_whoever_asks() {
    let server = MariaDb::start().unwrap();
    let root = installed(&server).await;
    let mut administrator = administrator(&server).await;
    administrator.execute("CREATE USER locker IDENTIFIED BY 'sesame'").await.unwrap();
    administrator.execute("GRANT ALL ON mysql.* TO locker").await.unwrap();
    let locker = MySqlNode::connect(&server.url().replace("root@", "locker:sesame@")).await.unwrap();
    let (who, next) = (ownership("o", "r"), ownership("p", "s"));
    takes(&locker, &who, 0).await;
    administrator.execute("SET GLOBAL read_only = 1").await.unwrap();
    // A replica is read-only; what is written there goes its own way, and the primary does not know of it.
    for node in [&root, &locker] {
        assert_eq!(refusal(node.acquire(&next, ttl(LONG), 0).await).0, Refusal::Replica);
        assert_eq!(refusal(node.raise(&who, 100).await).0, Refusal::Replica);
        assert_eq!(refusal(node.extend(&who, ttl(LONG)).await).0, Refusal::Replica);
        assert_eq!(refusal(node.release(&who).await).0, Refusal::Replica);
        assert_eq!(node.health().await.unwrap().primary, Some(false));
    }
    administrator.execute("SET GLOBAL read_only = 0").await.unwrap();
    serves(&locker).await;
}

#[tokio::test]
async fn a_database_of_any_character_set_serves() {
    let server = MariaDb::start().unwrap();
    let mut administrator = administrator(&server).await;
    for name in ["binary", "latin1", "sjis", "ucs2", "utf16", "utf32"] {
        let create = ["CREATE DATABASE in_", name, " CHARACTER SET ", name].concat();
        administrator.execute(sqlx::AssertSqlSafe(create)).await.unwrap();
        let url = [server.url().strip_suffix("mysql").unwrap(), "in_", name].concat();
        MySqlNode::install(&url).await.unwrap();
        let node = MySqlNode::connect(&url).await.unwrap();
        serves(&node).await;
        takes(&node, &ownership("o", ["\u{1F512}", "ä", "a\u{308}", "a", "A", "a ", "a\0"]), 0).await;
    }
}
