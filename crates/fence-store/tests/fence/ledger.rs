//! Ledger transactions: first writes in a crowd, installation in a crowd, errors that are passed over.

use std::sync::Arc;

use fence_store::{FenceError, Flavor, Upsert};
use redlock_core::{Grant, Resource};
use sea_query::{Expr, ExprTrait, Query};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{Bench, TestDb, account, assert_stale, grant, grant_of, on_every_database};

on_every_database! {
    b67_the_first_write_of_a_resource_in_a_crowd_postgres
    b67_the_first_write_of_a_resource_in_a_crowd_mariadb
    b67_the_first_write_of_a_resource_in_a_crowd_sqlite
        => first_writes;
    processes_that_install_at_once_do_not_collide_postgres
    processes_that_install_at_once_do_not_collide_mariadb
    processes_that_install_at_once_do_not_collide_sqlite
        => racing_installs;
    a_transaction_keeps_all_or_nothing_postgres
    a_transaction_keeps_all_or_nothing_mariadb
    a_transaction_keeps_all_or_nothing_sqlite
        => all_or_nothing;
    an_error_that_was_passed_over_is_not_committed_postgres
    an_error_that_was_passed_over_is_not_committed_mariadb
    an_error_that_was_passed_over_is_not_committed_sqlite
        => errors_passed_over;
    a_transaction_cannot_be_ended_by_a_statement_postgres
    a_transaction_cannot_be_ended_by_a_statement_mariadb
    a_transaction_cannot_be_ended_by_a_statement_sqlite
        => ended_by_a_statement;
    resources_granted_together_are_fenced_together_postgres
    resources_granted_together_are_fenced_together_mariadb
    resources_granted_together_are_fenced_together_sqlite
        => granted_together;
}

/// A grant of several resources raises the fence of each, or of none.
async fn granted_together<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let of = |resources: &[&str], token: i64| Grant::assume_granted(resources, token).unwrap();
    let highest = async |name: &str| bench.store.highest_token(&Resource::new(name).unwrap()).await.unwrap();

    bench.store.begin(&of(&["b", "a"], 5)).await.unwrap().commit().await.unwrap();
    assert_eq!((highest("a").await, highest("b").await), (Some(5), Some(5)));
    assert_stale(bench.store.begin(&of(&["a"], 4)).await, 4, 5);
    assert_stale(bench.store.begin(&of(&["b"], 4)).await, 4, 5);

    // One of them stale: nothing ran, and the other is where it was.
    assert_stale(bench.store.begin(&of(&["0", "a"], 4)).await, 4, 5);
    assert_eq!(highest("0").await, None);
    bench.store.begin(&of(&["a", "c"], 6)).await.unwrap().commit().await.unwrap();
    assert_eq!((highest("a").await, highest("b").await, highest("c").await), (Some(6), Some(5), Some(6)));
}

pub(crate) const CROWD: i64 = 32;
pub(crate) const RESOURCES: i64 = 200;

/// 32 connections write the first fenced row of each of 200 resources, with tokens 1 to 32.
async fn first_writes<DB: TestDb>() {
    let bench = Bench::<DB>::new(32).await;
    // Long enough for SQLite, where all 32 wait for one file.
    if DB::FLAVOR == Flavor::Sqlite {
        let patient = bench.another(32, Some("PRAGMA busy_timeout = 60000")).await;
        crowd(&bench, patient).await;
    } else {
        crowd(&bench, bench.store.clone()).await;
    }
}

pub(crate) async fn crowd<DB: TestDb>(bench: &Bench<DB>, store: fence_store::FenceStore<DB>) {
    let barrier = Arc::new(Barrier::new(32));
    let mut writers = JoinSet::new();
    for token in 1..=CROWD {
        let (store, barrier) = (store.clone(), Arc::clone(&barrier));
        writers.spawn(async move {
            barrier.wait().await;
            let mut applied = 0;
            for resource in 0..RESOURCES {
                let grant = grant_of(&resource.to_string(), token);
                let write =
                    Upsert::new().value("balance", token).on_insert("n", 1).on_update("n", Expr::col("n").add(1));
                match store.upsert(&grant, &account(resource), &write).await {
                    Ok(_) => applied += 1,
                    Err(FenceError::Stale { highest, .. }) => assert!(token < highest),
                    Err(other) => panic!("token {token}, resource {resource}: {other:?}"),
                }
            }
            applied
        });
    }
    let applied: i64 = writers.join_all().await.into_iter().sum();

    let right = "SELECT COUNT(*) FROM accounts WHERE balance = 32 AND fence_token = 32";
    assert_eq!(bench.number(right).await, Some(RESOURCES));
    // Whoever was told "applied" was counted by the row, and nobody else was.
    let counted =
        bench.number("SELECT CAST(SUM(n) AS DECIMAL(20)) = ".to_owned() + &applied.to_string() + " FROM accounts");
    let counted = match DB::FLAVOR {
        Flavor::Postgres => {
            bench.number(format!("SELECT COUNT(*) FROM (SELECT SUM(n) s FROM accounts) a WHERE s = {applied}")).await
        }
        _ => counted.await,
    };
    assert_eq!(counted, Some(1), "{applied} were told that they had written");
}

async fn racing_installs<DB: TestDb>() {
    let bench = Bench::<DB>::empty(16).await;
    let mut installers = JoinSet::new();
    for _ in 0..16 {
        let store = bench.another(1, None).await;
        installers.spawn(async move { store.install_schema().await });
    }
    for installed in installers.join_all().await {
        installed.unwrap();
    }
    bench.store.claim_resources(&grant(1)).await.unwrap();
}

async fn all_or_nothing<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    let store = &bench.store;
    let resource = Resource::new("accounts").unwrap();

    let mut transaction = store.begin(&grant(5)).await.unwrap();
    transaction.execute("INSERT INTO accounts (id, balance) VALUES (1, 10)").await.unwrap();
    let insert = Query::insert()
        .into_table("accounts")
        .columns(["id", "balance"])
        .values_panic([2.into(), 20.into()])
        .to_owned();
    assert_eq!(transaction.run(&insert).await.unwrap(), 1);
    transaction.upsert(&account(3), &Upsert::new().value("balance", 30)).await.unwrap();
    transaction.update(&account(1), Query::update().value("balance", 11)).await.unwrap();
    transaction.delete(&account(2)).await.unwrap();
    let read = Query::select().column("balance").from("accounts").to_owned();
    assert_eq!(transaction.read(&read).await.unwrap().len(), 2);
    transaction.commit().await.unwrap();
    assert_eq!((bench.balance(1).await, bench.balance(3).await), (Some(11), Some(30)));
    assert_eq!(store.highest_token(&resource).await.unwrap(), Some(5));

    // A grant may open several; an older one opens none.
    store.begin(&grant(5)).await.unwrap().commit().await.unwrap();
    assert_stale(store.begin(&grant(4)).await, 4, 5);

    // Rolled back by hand, by dropping, by a refusal: nothing is kept, the raise included.
    let mut transaction = store.begin(&grant(6)).await.unwrap();
    transaction.execute("DELETE FROM accounts").await.unwrap();
    transaction.rollback().await;
    let mut transaction = store.begin(&grant(6)).await.unwrap();
    transaction.execute("DELETE FROM accounts").await.unwrap();
    drop(transaction);
    let mut transaction = store.begin(&grant(6)).await.unwrap();
    transaction.execute("DELETE FROM accounts WHERE id = 3").await.unwrap();
    let refused = transaction.update(&account(404), Query::update().value("balance", 0)).await;
    assert!(matches!(refused, Err(FenceError::NoSuchRow { .. })), "{refused:?}");
    assert!(transaction.commit().await.is_err());
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(2));
    assert_eq!(store.highest_token(&resource).await.unwrap(), Some(5));
}

async fn errors_passed_over<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
    transaction.execute("INSERT INTO accounts (id, balance) VALUES (1, 10)").await.unwrap();
    let duplicate = transaction.execute("INSERT INTO accounts (id) VALUES (1)").await;
    assert!(matches!(duplicate, Err(FenceError::Database { .. })));
    // Nothing is run any more, and a commit does not pretend. (Postgres answers COMMIT with success then.)
    assert!(transaction.execute("INSERT INTO accounts (id) VALUES (2)").await.is_err());
    assert!(transaction.commit().await.is_err());
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(0));

    // The same on the bare connection, whose errors go by unseen: only Postgres gives the transaction up.
    let mut transaction = bench.store.begin(&grant(2)).await.unwrap();
    let connection = transaction.connection().await.unwrap();
    DB::execute(connection, "INSERT INTO accounts (id) VALUES (1)").await.unwrap();
    assert!(DB::execute(connection, "INSERT INTO accounts (id) VALUES (1)").await.is_err());
    let committed = transaction.commit().await;
    assert_eq!(committed.is_ok(), DB::FLAVOR != Flavor::Postgres, "{committed:?}");
    let kept = i64::from(committed.is_ok());
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(kept));
}

/// A COMMIT by hand gives the ledger's row away; what comes after it would run outside the fence.
async fn ended_by_a_statement<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    for text in ["COMMIT", "commit", " /* now */ COMMIT", "-- now\nROLLBACK", "BEGIN", "END"] {
        let mut old = bench.store.begin(&grant(1)).await.unwrap();
        old.execute("UPDATE accounts SET balance = 1").await.unwrap();
        let refused = old.execute(text).await.map(|_| ());
        assert!(matches!(refused, Err(FenceError::Statement(_))), "{text}: {refused:?}");
        // It did not reach the database: the transaction is as it was, and can be given up or kept.
        old.rollback().await;
        assert_eq!(bench.balance(1).await, Some(0), "{text}");
    }
    let mut old = bench.store.begin(&grant(1)).await.unwrap();
    let refused = old.fetch_all("COMMIT").await.map(|_| ());
    assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");
    let refused = old.fetch_optional("ROLLBACK").await.map(|_| ());
    assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");

    // Savepoints are the caller's.
    old.execute("SAVEPOINT mine").await.unwrap();
    old.execute("UPDATE accounts SET balance = 9").await.unwrap();
    old.execute("ROLLBACK TO SAVEPOINT mine").await.unwrap();
    old.execute("RELEASE SAVEPOINT mine").await.unwrap();
    old.execute("UPDATE accounts SET balance = balance + 1").await.unwrap();
    old.commit().await.unwrap();
    assert_eq!(bench.balance(1).await, Some(1));

    // What hides from the first word is noticed at the end.
    let mut old = bench.store.begin(&grant(1)).await.unwrap();
    let hidden = old.execute("SELECT 1; COMMIT").await;
    assert!(hidden.is_err() || old.commit().await.is_err());
}
