//! Transactions that the caller began with sqlx, fenced from within.

use fence_store::{FenceError, Flavor, Settled, StatementProblem, Upsert};
use redlock_core::{Grant, Resource};
use sea_query::Query;

use crate::support::{Bench, TestDb, account, assert_stale, grant, on_every_database};

on_every_database! {
    a_transaction_of_the_callers_is_fenced_from_within_postgres
    a_transaction_of_the_callers_is_fenced_from_within_mariadb
    a_transaction_of_the_callers_is_fenced_from_within_sqlite
        => fenced_from_within;
    a_connection_without_a_transaction_cannot_be_joined_postgres
    a_connection_without_a_transaction_cannot_be_joined_mariadb
    a_connection_without_a_transaction_cannot_be_joined_sqlite
        => without_a_transaction;
    a_joined_transaction_keeps_others_waiting_until_it_ends_postgres
    a_joined_transaction_keeps_others_waiting_until_it_ends_mariadb
    a_joined_transaction_keeps_others_waiting_until_it_ends_sqlite
        => others_wait;
    statements_made_elsewhere_run_in_a_fenced_transaction_postgres
    statements_made_elsewhere_run_in_a_fenced_transaction_mariadb
    statements_made_elsewhere_run_in_a_fenced_transaction_sqlite
        => statements_made_elsewhere;
}

async fn fenced_from_within<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 100).await;
    let pair = Grant::assume_granted(["accounts", "audit"], 5).unwrap();

    let mut callers = bench.store.pool().begin().await.unwrap();
    let mut joined = bench.store.join(&mut callers, &pair).await.unwrap();
    let ticket = joined.ticket();
    let row = joined.claim(&account(1), ["balance"]).await.unwrap();
    assert_eq!(DB::integer(&row, 0).unwrap(), Some(100));
    joined.update(&account(1).may_rewrite(), Query::update().value("balance", 90)).await.unwrap();
    joined.upsert(&account(2), &Upsert::new().value("balance", 10)).await.unwrap();
    joined.upsert(&account(3), &Upsert::new().value("balance", 10)).await.unwrap();
    joined.delete(&account(3).may_rewrite()).await.unwrap();
    DB::execute(joined.connection(), "UPDATE accounts SET n = 1 WHERE id = 1").await.unwrap();
    drop(joined);
    callers.commit().await.unwrap();

    assert_eq!((bench.balance(1).await, bench.balance(2).await, bench.balance(3).await), (Some(90), Some(10), None));
    assert_eq!(bench.number("SELECT n FROM accounts WHERE id = 1").await, Some(1));
    assert_eq!(bench.store.settle(&ticket).await.unwrap(), Settled::Committed);
    for name in ["accounts", "audit"] {
        assert_eq!(bench.store.highest_token(&Resource::new(name).unwrap()).await.unwrap(), Some(5));
    }

    // An older holder is refused before it has done anything; what it rolls back leaves nothing.
    let mut late = bench.store.pool().begin().await.unwrap();
    assert_stale(bench.store.join(&mut late, &grant(4)).await, 4, 5);
    late.rollback().await.unwrap();
    let mut given_up = bench.store.pool().begin().await.unwrap();
    let joined = bench.store.join(&mut given_up, &grant(6)).await.unwrap();
    let ticket = joined.ticket();
    drop(joined);
    given_up.rollback().await.unwrap();
    assert_eq!(bench.store.settle(&ticket).await.unwrap(), Settled::NotCommitted);
    bench.store.begin(&grant(5)).await.unwrap().commit().await.unwrap();
}

/// There the raise would be committed at once, and the rows be anybody's for the statements that follow.
async fn without_a_transaction<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let mut connection = bench.store.pool().acquire().await.unwrap();
    let refused = bench.store.join(&mut connection, &grant(5)).await.map(|_| ());
    assert!(matches!(refused, Err(FenceError::Statement(StatementProblem::NoTransaction))), "{refused:?}");
    assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
}

/// Also while the `Joined` is gone, and the caller has its transaction to itself.
async fn others_wait<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    let mut callers = bench.store.pool().begin().await.unwrap();
    bench.store.join(&mut callers, &grant(2)).await.map(|_| ()).unwrap();
    let impatient = match DB::FLAVOR {
        Flavor::Postgres => bench.another(1, Some("SET lock_timeout = '100ms'")).await,
        Flavor::MySql => bench.another(1, Some("SET SESSION innodb_lock_wait_timeout = 1")).await,
        _ => bench.another(1, Some("PRAGMA busy_timeout = 100")).await,
    };
    let waited = impatient.begin(&grant(1)).await;
    assert!(waited.as_ref().is_err_and(FenceError::is_conflict), "{waited:?}");
    callers.commit().await.unwrap();
    assert_stale(impatient.begin(&grant(1)).await, 1, 2);
}

/// What a program has built with sea-query, or written as text, before it knew of fences.
async fn statements_made_elsewhere<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    let insert = Query::insert()
        .into_table("accounts")
        .columns(["id", "balance"])
        .values_panic([1.into(), 10.into()])
        .values_panic([2.into(), 20.into()])
        .values_panic([3.into(), 30.into()])
        .to_owned();
    let update = Query::update().table("accounts").value("balance", 11).and_where(by_id(1)).to_owned();
    let delete = Query::delete().from_table("accounts").and_where(by_id(2)).to_owned();
    let copy = Query::insert()
        .into_table("accounts")
        .columns(["id", "balance"])
        .select_from(Query::select().exprs([sea_query::Expr::val(4), 40.into()]).to_owned())
        .unwrap()
        .to_owned();

    let mut transaction = bench.store.begin(&grant(5)).await.unwrap();
    assert_eq!(transaction.run(&insert).await.unwrap(), 3);
    assert_eq!(transaction.run(&update).await.unwrap(), 1);
    assert_eq!(transaction.run(&delete).await.unwrap(), 1);
    assert_eq!(transaction.run(&copy).await.unwrap(), 1);
    transaction.execute("UPDATE accounts SET n = 7 WHERE id = 3").await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!((bench.balance(1).await, bench.balance(2).await, bench.balance(4).await), (Some(11), None, Some(40)));
    assert_eq!(bench.number("SELECT n FROM accounts WHERE id = 3").await, Some(7));

    // Under an older token none of them gets so far.
    assert_stale(bench.store.begin(&grant(4)).await, 4, 5);
}

fn by_id(id: i64) -> sea_query::Expr {
    sea_query::ExprTrait::eq(sea_query::Expr::col("id"), id)
}
