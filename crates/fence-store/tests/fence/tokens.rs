//! Numbers and names: what a token may be, what a column must be, which resources are the same.

use fence_store::{ColumnProblem, FenceError, FenceStore, Flavor, Row, Upsert};
use redlock_core::{FencingToken, Resource};
use sea_query::Query;

use crate::support::{Bench, TestDb, account, assert_stale, grant, grant_of, on_every_database};

on_every_database! {
    b55_a_stale_grant_is_refused_by_every_form_of_write_postgres
    b55_a_stale_grant_is_refused_by_every_form_of_write_mariadb
    b55_a_stale_grant_is_refused_by_every_form_of_write_sqlite
        => a_stale_grant_is_refused;
    b57_tokens_are_stored_exactly_up_to_the_highest_postgres
    b57_tokens_are_stored_exactly_up_to_the_highest_mariadb
    b57_tokens_are_stored_exactly_up_to_the_highest_sqlite
        => tokens_are_stored_exactly;
    b57_a_token_that_does_not_fit_the_column_is_refused_postgres
    b57_a_token_that_does_not_fit_the_column_is_refused_mariadb
    b57_a_token_that_does_not_fit_the_column_is_refused_sqlite
        => unfit_columns_are_refused;
    names_with_wide_and_empty_characters_are_told_apart_postgres
    names_with_wide_and_empty_characters_are_told_apart_mariadb
    names_with_wide_and_empty_characters_are_told_apart_sqlite
        => wide_names;
    errors_say_what_to_do_and_what_the_database_said_postgres
    errors_say_what_to_do_and_what_the_database_said_mariadb
    errors_say_what_to_do_and_what_the_database_said_sqlite
        => errors_say_what_to_do;
    resources_are_told_apart_byte_by_byte_postgres
    resources_are_told_apart_byte_by_byte_mariadb
    resources_are_told_apart_byte_by_byte_sqlite
        => resources_are_told_apart;
    the_installed_ledger_passes_its_own_check_postgres
    the_installed_ledger_passes_its_own_check_mariadb
    the_installed_ledger_passes_its_own_check_sqlite
        => the_ledger_passes_its_own_check;
}

async fn a_stale_grant_is_refused<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    bench.insert_account(1, 100).await;
    let (paused, newer) = (grant(5), grant(7));

    store.update(&newer, &account(1), Query::update().value("balance", 70)).await.unwrap();
    store.claim_resources(&newer).await.unwrap();

    // The paused holder's token is the one it was granted, whatever happened since.
    assert_eq!(paused.token().get(), 5);
    let update = Query::update().value("balance", 50).to_owned();
    assert_stale(store.update(&paused, &account(1), &update).await, 5, 7);
    assert_stale(store.update(&paused, &account(1).may_rewrite(), &update).await, 5, 7);
    assert_stale(store.upsert(&paused, &account(1), &Upsert::new().value("balance", 50)).await, 5, 7);
    assert_stale(store.delete(&paused, &account(1)).await, 5, 7);
    assert_stale(store.claim(&paused, &account(1), ["balance"]).await, 5, 7);
    assert_stale(store.begin(&paused).await, 5, 7);
    assert_eq!(bench.balance(1).await, Some(70));
    assert_eq!(store.fence_of(&account(1)).await.unwrap(), Some(7));
}

async fn tokens_are_stored_exactly<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 0).await;
    for value in [i64::MAX.unsigned_abs(), i64::MAX.unsigned_abs() + 1, u64::MAX, 1 << 53, 0] {
        assert!(FencingToken::assume_granted(value).is_err(), "{value}");
    }

    let highest = FencingToken::MAX.get();
    for token in [1, i64::from(u32::MAX) + 1, highest - 1, highest] {
        let grant = grant(token);
        let write = Query::update().value("balance", token).to_owned();
        bench.store.update(&grant, &account(1), &write).await.unwrap();
        bench.store.claim_resources(&grant).await.unwrap();
        assert_eq!(bench.store.fence_of(&account(1)).await.unwrap(), Some(token));
        let resource = Resource::new("accounts").unwrap();
        assert_eq!(bench.store.highest_token(&resource).await.unwrap(), Some(token));
    }
    let late = Query::update().value("balance", 1).to_owned();
    let refused = bench.store.update(&grant(highest - 1), &account(1), &late).await;
    assert_stale(refused, highest - 1, highest);
}

/// Columns that cannot hold tokens, as people write them by hand.
pub(crate) fn unfit_columns(flavor: Flavor) -> &'static [&'static str] {
    match flavor {
        Flavor::Postgres => &["INT", "NUMERIC", "NUMERIC(20)", "TEXT", "VARCHAR(30)", "DOUBLE PRECISION"],
        Flavor::MySql => &["INT", "INT UNSIGNED", "BIGINT UNSIGNED", "DECIMAL(20)", "VARCHAR(30)", "DOUBLE"],
        _ => &["TEXT", "NUMERIC", "REAL", "BLOB"],
    }
}

async fn unfit_columns_are_refused<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    for (number, column) in unfit_columns(DB::FLAVOR).iter().enumerate() {
        let table = format!("by_hand_{number}");
        bench
            .sql(format!(
                "CREATE TABLE {table} (id BIGINT PRIMARY KEY, n BIGINT, fence_token {column} NOT NULL DEFAULT 0)"
            ))
            .await;
        bench.sql(format!("INSERT INTO {table} (id) VALUES (1)")).await;
        let row = Row::new(table.clone(), "id", 1);
        let refused = bench.store.update(&grant(1 << 40), &row, Query::update().value("n", 1)).await;
        assert!(matches!(refused, Err(FenceError::Column(ColumnProblem::Type { .. }))), "{column}: {refused:?}");
        assert!(refused.unwrap_err().to_string().contains("BIGINT"));
        let untouched = format!("SELECT COUNT(*) FROM {table} WHERE fence_token = '0'");
        let untouched =
            untouched.replace("'0'", if column.contains("CHAR") || *column == "TEXT" { "'0'" } else { "0" });
        assert_eq!(bench.number(untouched).await, Some(1), "{column}");
    }

    for (table, column, problem) in [
        ("nullable", "BIGINT DEFAULT 0", "NOT NULL"),
        ("floorless", "BIGINT NOT NULL", "default none"),
        ("raised", "BIGINT NOT NULL DEFAULT 5", "default 5"),
    ] {
        bench.sql(format!("CREATE TABLE {table} (id BIGINT PRIMARY KEY, fence_token {column})")).await;
        let refused = bench.store.check_table(table, "fence_token").await.unwrap_err();
        assert!(refused.to_string().contains(problem), "{refused}");
    }
    let missing = bench.store.check_table("accounts", "no_such_column").await;
    assert!(matches!(missing, Err(FenceError::Column(ColumnProblem::Missing { .. }))));
    let missing = bench.store.check_table("no_such_table", "fence_token").await;
    assert!(matches!(missing, Err(FenceError::SchemaMissing { .. })), "{missing:?}");
    bench.store.check_table("accounts", "fence_token").await.unwrap();
}

async fn resources_are_told_apart<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let longest = "é".repeat(512);
    let nearly = format!("{}e", "é".repeat(511));
    let names = ["a", "A", "a ", "a  ", " a", "ä", "a\u{308}", "ß", "ss", "a%", "a_", "a'\"`\\", &longest, &nearly];
    for (name, token) in names.iter().zip(1..) {
        bench.store.claim_resources(&grant_of(name, token)).await.unwrap();
    }
    // Each kept its own token: had two been one row, the lower one would have been raised.
    for (name, token) in names.iter().zip(1..) {
        let resource = Resource::new(name).unwrap();
        assert_eq!(bench.store.highest_token(&resource).await.unwrap(), Some(token), "{name:?}");
    }
    let rows = bench.number("SELECT COUNT(*) FROM fence_ledger").await;
    assert_eq!(rows, Some(i64::try_from(names.len()).unwrap()));
}

async fn the_ledger_passes_its_own_check<DB: TestDb>() {
    let bench = Bench::<DB>::empty(2).await;
    assert!(matches!(bench.store.begin(&grant(1)).await, Err(FenceError::SchemaMissing { .. })));
    bench.store.install_schema().await.unwrap();
    bench.store.check_table("fence_ledger", "token").await.unwrap();
    bench.store.install_schema().await.unwrap();
    bench.store.begin(&grant(1)).await.unwrap().commit().await.unwrap();

    // A table of that name which is no ledger is found out.
    let other = fence_store::LedgerTable::new("impostor").unwrap();
    bench.sql("CREATE TABLE impostor (resource VARCHAR(100) PRIMARY KEY, token VARCHAR(20))").await;
    let store = FenceStore::with_ledger(bench.store.pool().clone(), other);
    assert!(matches!(store.install_schema().await, Err(FenceError::Column(_))));
    assert!(matches!(store.begin(&grant(1)).await, Err(FenceError::Column(_))));
    bench.sql("CREATE TABLE hollow (resource VARCHAR(100) PRIMARY KEY)").await;
    let hollow = fence_store::LedgerTable::new("hollow").unwrap();
    let store = FenceStore::with_ledger(bench.store.pool().clone(), hollow);
    assert!(matches!(store.install_schema().await, Err(FenceError::Column(ColumnProblem::Missing { .. }))));
}

async fn wide_names<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let names = match DB::FLAVOR {
        // It cannot store a NUL, and says so.
        Flavor::Postgres => vec!["🦀", "🦀 ", "é", "e\u{301}"],
        _ => vec!["🦀", "a\0b", "a\0c", "a", "a\0"],
    };
    for (name, token) in names.iter().zip(1..) {
        bench.store.claim_resources(&grant_of(name, token)).await.unwrap();
    }
    for (name, token) in names.iter().zip(1..) {
        assert_eq!(bench.store.highest_token(&Resource::new(name).unwrap()).await.unwrap(), Some(token), "{name:?}");
    }
}

async fn errors_say_what_to_do<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 0).await;
    let write = Query::update().value("balance", 1).to_owned();
    bench.store.update(&grant(1), &account(1), &write).await.unwrap();
    let again = bench.store.update(&grant(1), &account(1), &write).await.unwrap_err();
    assert!(again.to_string().contains("Row::may_rewrite"), "{again}");
    let absent = bench.store.update(&grant(1), &Row::new("no_such_table", "id", 1), &write).await.unwrap_err();
    assert!(matches!(absent, FenceError::SchemaMissing { .. }), "{absent}");
    assert!(absent.to_string().contains("no_such_table"), "{absent}");
    let unknown = Query::update().value("no_such_column", 1).to_owned();
    let unknown = bench.store.update(&grant(2), &account(1), &unknown).await.unwrap_err();
    assert!(unknown.to_string().contains("no_such_column"), "{unknown}");
}

/// A pool would try for 30 s and then tell of the time alone. The password stays out of it.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn refused_at_once<DB: TestDb>(scheme: &str) {
    let url = format!("{scheme}://user:hunter2@127.0.0.1:1/x");
    let connected = tokio::time::timeout(crate::support::DEADLINE, FenceStore::<DB>::connect(&url)).await;
    let error = connected.expect("at once").unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"));
}

#[cfg(feature = "postgres")]
#[test]
fn a_refused_connection_says_so_at_once_postgres() {
    crate::support::run(refused_at_once::<sqlx::Postgres>("postgres"));
}

#[cfg(feature = "mysql")]
#[test]
fn a_refused_connection_says_so_at_once_mariadb() {
    crate::support::run(refused_at_once::<sqlx::MySql>("mysql"));
}
