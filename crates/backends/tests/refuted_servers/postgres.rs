//! A node on Postgres, whatever the database has by default and whoever else works on its rows.

use crate::support::{
    LONG, ownership, refusal, serves, serves_others_than_those_who_wait_for_a_locked_row, takes, ttl,
};
use redlock_backends::PostgresNode;
use redlock_bench::eventually;
use redlock_bench::sql::Postgres;
use redlock_core::{Acquisition, LockNode as _, NodeError, Refusal};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Connection as _, Executor as _};
use std::time::Duration;
use tokio::runtime::Runtime;

async fn administrator(server: &Postgres) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}

async fn installed(server: &Postgres) -> PostgresNode {
    let node = PostgresNode::connect(server.url()).await.unwrap();
    node.install().await.unwrap();
    node
}

/// Looks until so many sessions wait for locks.
async fn wait_until_sessions_wait(server: &Postgres, enough: fn(i64) -> bool) {
    let observer = PgPool::connect(server.url()).await.unwrap();
    eventually(Duration::from_secs(30), || async {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&observer).await.unwrap();
        if enough(waiting) { Ok(()) } else { Err(format!("{waiting} sessions wait")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_database_without_the_functions_says_how_to_bring_them() {
    let server = Postgres::start().unwrap();
    let node = PostgresNode::connect(server.url()).await.unwrap();
    let (reason, said) = refusal(node.acquire(&ownership("o", "r"), ttl(LONG), 0).await);
    assert_eq!(reason, Refusal::Configuration);
    assert!(said.contains("PostgresNode::install"), "{said}");
}

#[tokio::test]
async fn an_installation_that_is_refused_leaves_the_node_as_it_was() {
    let server = Postgres::start().unwrap();
    installed(&server).await;
    let rights = "CREATE ROLE locker LOGIN; GRANT SELECT, INSERT, UPDATE ON redlock_node TO locker";
    administrator(&server).await.execute(rights).await.unwrap();
    let node = PostgresNode::connect(&server.url().replace("postgres@", "locker@")).await.unwrap();
    assert_eq!(refusal(node.install().await).0, Refusal::Permission);
    serves(&node).await;
}

#[tokio::test]
async fn a_role_without_the_rights_is_refused() {
    let server = Postgres::start().unwrap();
    installed(&server).await;
    administrator(&server).await.execute("CREATE ROLE locker LOGIN").await.unwrap();
    let node = PostgresNode::connect(&server.url().replace("postgres@", "locker@")).await.unwrap();
    let answer = node.acquire(&ownership("o", "r"), ttl(LONG), 0).await;
    assert_eq!(refusal(answer).0, Refusal::Permission);
}

#[tokio::test]
async fn a_database_that_is_serializable_by_default_serves() {
    let server = Postgres::start().unwrap();
    let stricter = "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'";
    administrator(&server).await.execute(stricter).await.unwrap();
    serves(&installed(&server).await).await;
}

#[tokio::test]
async fn a_row_that_stays_locked_does_not_take_the_node_away_from_others() {
    let server = Postgres::start().unwrap();
    let node = installed(&server).await;
    takes(&node, &ownership("o", "locked"), 0).await;
    let mut somebody = administrator(&server).await;
    somebody.execute("BEGIN; SELECT * FROM redlock_node WHERE key = 'lock:locked' FOR UPDATE").await.unwrap();
    serves_others_than_those_who_wait_for_a_locked_row(&node).await;
    // Nor are sessions left that wait for as long as it stays so.
    wait_until_sessions_wait(&server, |waiting| waiting == 0).await;
}

/// Freezes the sessions of a node, or lets them go on; they are processes of their own.
async fn signal_sessions_but_of(observer: &mut PgConnection, signal: Signal) -> usize {
    let others = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let others: Vec<i32> = sqlx::query_scalar(others).fetch_all(observer).await.unwrap();
    for pid in &others {
        kill_process(Pid::from_raw(*pid).unwrap(), signal).unwrap();
    }
    others.len()
}

#[tokio::test]
async fn a_call_does_without_the_connections_behind_which_nobody_answers() {
    let server = Postgres::start().unwrap();
    let node = installed(&server).await;
    let calls = (0..10).map(|n| {
        let node = &node;
        async move { takes(node, &ownership("o", format!("r{n}")), 0).await }
    });
    futures_util::future::join_all(calls).await;
    let mut observer = administrator(&server).await;
    let frozen = signal_sessions_but_of(&mut observer, Signal::STOP).await;
    let answers = [
        node.acquire(&ownership("o", "s"), ttl(LONG), 0).await,
        node.acquire(&ownership("o", "t"), ttl(LONG), 0).await,
    ];
    signal_sessions_but_of(&mut observer, Signal::CONT).await;
    assert!(1 < frozen, "{frozen} connections");
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Acquisition::Granted { .. }))), "{answers:?}");
}

#[tokio::test]
async fn a_row_that_is_deleted_while_a_call_waits_for_it_is_not_granted() {
    let server = Postgres::start().unwrap();
    let node = installed(&server).await;
    let (who, next) = (ownership("o", ["a", "b"]), ownership("p", ["a", "b"]));
    takes(&node, &who, 0).await;
    node.release(&who).await.unwrap();
    let mut somebody = administrator(&server).await;
    somebody.execute("BEGIN; SELECT * FROM redlock_node WHERE key = 'lock:a' FOR UPDATE").await.unwrap();
    let deletes = async {
        wait_until_sessions_wait(&server, |waiting| 0 < waiting).await;
        somebody.execute("DELETE FROM redlock_node WHERE key = 'lock:a'; COMMIT").await.unwrap();
    };
    let (answer, ()) = tokio::join!(node.acquire(&who, ttl(LONG), 0), deletes);
    assert!(matches!(answer, Err(NodeError::Unreachable(_))), "{answer:?}");
    // What was not granted is not held, and what is granted is.
    takes(&node, &next, 0).await;
    assert!(matches!(node.acquire(&who, ttl(LONG), 0).await, Ok(Acquisition::Held(_))));
}

#[test]
fn a_call_may_be_dropped_when_its_runtime_is_gone() {
    let server = Postgres::start().unwrap();
    let (runtime, other) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let node = runtime.block_on(installed(&server));
    let (holder, who) = (ownership("o", "r"), ownership("p", "r"));
    runtime.block_on(takes(&node, &holder, 0));
    let mut somebody = other.block_on(administrator(&server));
    other.block_on(somebody.execute("BEGIN; SELECT * FROM redlock_node FOR UPDATE")).unwrap();
    let mut call = node.release(&who);
    let begun = async {
        tokio::select! {
            answer = &mut call => panic!("{answer:?}"),
            () = wait_until_sessions_wait(&server, |waiting| waiting == 1) => {}
        }
    };
    runtime.block_on(begun);
    drop(runtime);
    drop(call);
}
