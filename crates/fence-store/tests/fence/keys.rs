//! A key names one row: what several rows share is refused by every form of write, and what is unique costs no more.

use fence_store::{FenceError, Flavor, Row, StatementProblem, Upsert};
use sea_query::{Alias, IntoIden, Query, Value};

use crate::support::{Bench, TestDb, grant, on_every_database};

on_every_database! {
    a_key_that_names_several_rows_is_refused_by_every_form_of_write_postgres
    a_key_that_names_several_rows_is_refused_by_every_form_of_write_mariadb
    a_key_that_names_several_rows_is_refused_by_every_form_of_write_sqlite
        => several_rows;
    a_value_that_is_converted_names_no_more_rows_than_one_postgres
    a_value_that_is_converted_names_no_more_rows_than_one_mariadb
    a_value_that_is_converted_names_no_more_rows_than_one_sqlite
        => converted_values;
    a_key_without_an_index_can_be_written_while_it_names_one_row_postgres
    a_key_without_an_index_can_be_written_while_it_names_one_row_mariadb
    a_key_without_an_index_can_be_written_while_it_names_one_row_sqlite
        => without_an_index;
}

#[track_caller]
fn assert_several<T: std::fmt::Debug>(result: Result<T, FenceError>) {
    let refused = matches!(result, Err(FenceError::Statement(StatementProblem::KeyOfSeveralRows { .. })));
    assert!(refused, "{result:?}");
}

/// Every form of write refuses the row, and none leaves a trace.
async fn refused_by_all<DB: TestDb>(bench: &Bench<DB>, row: &Row, table: &str, column: &str) {
    let write = Query::update().value(Alias::new(column), 7).to_owned();
    let upsert = Upsert::new().value(Alias::new(column).into_iden(), 7);
    let rewriting = row.clone().may_rewrite();
    for row in [row, &rewriting] {
        assert_several(bench.store.update(&grant(1), row, &write).await);
        assert_several(bench.store.upsert(&grant(1), row, &upsert).await);
        assert_several(bench.store.delete(&grant(1), row).await);
        assert_several(bench.store.claim(&grant(1), row, [Alias::new(column)]).await.map(|_| ()));
        assert_several(bench.store.fence_of(row).await);

        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        assert_several(transaction.update(row, &write).await);
        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        assert_several(transaction.upsert(row, &upsert).await);
        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        assert_several(transaction.delete(row).await);
    }
    let untouched = format!("SELECT COUNT(*) FROM {table} WHERE fence_token = 0 AND {column} = 0");
    assert_eq!(bench.number(untouched).await, bench.number(format!("SELECT COUNT(*) FROM {table}")).await);
    assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
}

async fn several_rows<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    for id in 1..=3 {
        bench.insert_account(id, 0).await;
    }
    refused_by_all(&bench, &Row::new("accounts", "n", 0), "accounts", "balance").await;

    // Half of a key is none.
    bench
        .sql(
            "CREATE TABLE order_lines (order_id BIGINT NOT NULL, line BIGINT NOT NULL, v BIGINT NOT NULL DEFAULT 0, \
             fence_token BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (order_id, line))",
        )
        .await;
    bench.sql("INSERT INTO order_lines (order_id, line) VALUES (1, 1), (1, 2)").await;
    refused_by_all(&bench, &Row::new("order_lines", "order_id", 1), "order_lines", "v").await;
    let whole = Row::new("order_lines", "order_id", 1).and("line", 2);
    bench.store.update(&grant(2), &whole, Query::update().value("v", 5)).await.unwrap();
    assert_eq!(bench.number("SELECT COUNT(*) FROM order_lines WHERE v = 5").await, Some(1));
}

/// The column has a unique index, and yet the value, or the column, is converted so that several rows are equal to it.
async fn converted_values<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    let (column, rows, value): (_, _, Value) = match DB::FLAVOR {
        // Both sides become floats, in which neighbours are one.
        Flavor::Postgres => ("BIGINT", "(9007199254740992), (9007199254740993)", 9_007_199_254_740_992.0.into()),
        // Texts become numbers.
        Flavor::MySql => ("VARCHAR(20)", "('1'), ('01'), ('1.0')", 1.into()),
        // The column compares by a collation of its own, its index by another.
        _ => ("TEXT COLLATE NOCASE", "('a'), ('A')", "a".into()),
    };
    let unique = if DB::FLAVOR == Flavor::Sqlite { "UNIQUE (code COLLATE BINARY)" } else { "UNIQUE (code)" };
    bench
        .sql(format!(
            "CREATE TABLE codes (code {column} NOT NULL, v BIGINT NOT NULL DEFAULT 0, \
             fence_token BIGINT NOT NULL DEFAULT 0, {unique})"
        ))
        .await;
    bench.sql(format!("INSERT INTO codes (code) VALUES {rows}")).await;
    refused_by_all(&bench, &Row::new("codes", "code", value), "codes", "v").await;
}

async fn without_an_index<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.sql("CREATE TABLE loose (name VARCHAR(20), v BIGINT, fence_token BIGINT NOT NULL DEFAULT 0)").await;
    let row = Row::new("loose", "name", "a");
    let write = Query::update().value("v", 5).to_owned();
    bench.sql("INSERT INTO loose (name, v) VALUES ('a', 0), ('b', 0)").await;
    bench.store.update(&grant(1), &row, &write).await.unwrap();
    let claim = bench.store.claim(&grant(2), &row, ["v"]).await.unwrap();
    assert_eq!(DB::integer(claim.row(), 0).unwrap(), Some(5));
    claim.update(Query::update().value("v", 6)).await.unwrap();
    assert_eq!(bench.number("SELECT v FROM loose WHERE name = 'a'").await, Some(6));
    // A second one appears, and from then on it is refused.
    bench.sql("INSERT INTO loose (name, v) VALUES ('a', 0)").await;
    assert_several(bench.store.update(&grant(3), &row, &write).await);
    assert_several(claim.update(&write).await);
}
