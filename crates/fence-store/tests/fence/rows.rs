//! Rows with a fence of their own: every outcome, many at once, and what a claim is for.

use fence_store::{Applied, FenceError, Flavor, Row, Upsert};
use sea_query::{Alias, Expr, ExprTrait, LogicalChainOper, Query};
use tokio::task::JoinSet;

use crate::support::{Bench, TestDb, account, assert_stale, grant, on_every_database};

on_every_database! {
    the_claim_of_an_absent_row_stops_older_insertions_postgres
    the_claim_of_an_absent_row_stops_older_insertions_mariadb
    the_claim_of_an_absent_row_stops_older_insertions_sqlite
        => the_claim_of_an_absent_row;
    a_key_stays_where_its_fence_is_postgres
    a_key_stays_where_its_fence_is_mariadb
    a_key_stays_where_its_fence_is_sqlite
        => keys_stay;
    a_row_without_a_key_is_refused_by_every_form_of_write_postgres
    a_row_without_a_key_is_refused_by_every_form_of_write_mariadb
    a_row_without_a_key_is_refused_by_every_form_of_write_sqlite
        => null_keys;
    a_stale_write_is_told_so_where_there_is_no_ledger_postgres
    a_stale_write_is_told_so_where_there_is_no_ledger_mariadb
    a_stale_write_is_told_so_where_there_is_no_ledger_sqlite
        => no_ledger;
    a_statement_for_another_table_is_refused_postgres
    a_statement_for_another_table_is_refused_mariadb
    a_statement_for_another_table_is_refused_sqlite
        => another_table;
    a_chained_condition_is_refused_and_not_a_panic_postgres
    a_chained_condition_is_refused_and_not_a_panic_mariadb
    a_chained_condition_is_refused_and_not_a_panic_sqlite
        => chained_condition;
    a_claim_may_ask_for_no_column_postgres
    a_claim_may_ask_for_no_column_mariadb
    a_claim_may_ask_for_no_column_sqlite
        => a_claim_of_no_column;
    a_delete_is_judged_by_the_row_as_well_as_the_ledger_postgres
    a_delete_is_judged_by_the_row_as_well_as_the_ledger_mariadb
    a_delete_is_judged_by_the_row_as_well_as_the_ledger_sqlite
        => a_delete_is_judged_by_the_row;
    a_delete_of_nothing_raises_the_ledger_postgres
    a_delete_of_nothing_raises_the_ledger_mariadb
    a_delete_of_nothing_raises_the_ledger_sqlite
        => a_delete_of_nothing_raises;
    a_condition_in_plain_text_does_not_open_the_fence_postgres
    a_condition_in_plain_text_does_not_open_the_fence_mariadb
    a_condition_in_plain_text_does_not_open_the_fence_sqlite
        => conditions_in_plain_text;
    tables_and_columns_may_have_any_name_postgres
    tables_and_columns_may_have_any_name_mariadb
    tables_and_columns_may_have_any_name_sqlite
        => wild_names;
    every_outcome_of_an_update_is_told_apart_postgres
    every_outcome_of_an_update_is_told_apart_mariadb
    every_outcome_of_an_update_is_told_apart_sqlite
        => every_outcome;
    a_deleted_row_does_not_come_back_under_an_older_token_postgres
    a_deleted_row_does_not_come_back_under_an_older_token_mariadb
    a_deleted_row_does_not_come_back_under_an_older_token_sqlite
        => deleted_rows_stay_deleted;
    a_claim_keeps_the_update_that_a_check_on_write_loses_postgres
    a_claim_keeps_the_update_that_a_check_on_write_loses_mariadb
    a_claim_keeps_the_update_that_a_check_on_write_loses_sqlite
        => a_claim_keeps_updates;
    b59_an_upsert_tells_a_refusal_from_a_hit_postgres
    b59_an_upsert_tells_a_refusal_from_a_hit_mariadb
    b59_an_upsert_tells_a_refusal_from_a_hit_sqlite
        => an_upsert_tells_a_refusal;
    b59_shuffled_upserts_agree_with_a_serial_replay_postgres
    b59_shuffled_upserts_agree_with_a_serial_replay_mariadb
    b59_shuffled_upserts_agree_with_a_serial_replay_sqlite
        => shuffled_upserts;
}

async fn every_outcome<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    bench.insert_account(1, 0).await;
    let write = Query::update().value("balance", 10).to_owned();

    let applied = store.update(&grant(10), &account(1), &write).await.unwrap();
    assert_eq!(applied, Applied { rows: 1 });
    assert_stale(store.update(&grant(9), &account(1), &write).await, 9, 10);
    let again = store.update(&grant(10), &account(1), &write).await;
    assert!(matches!(again, Err(FenceError::AlreadyWritten { token, .. }) if token.get() == 10));
    // The very same values: MySQL changes nothing then, and the write is applied all the same.
    let rewritten = store.update(&grant(10), &account(1).may_rewrite(), &write).await.unwrap();
    assert_eq!(rewritten, Applied { rows: 1 });

    let absent = store.update(&grant(11), &account(404), &write).await;
    assert!(matches!(absent, Err(FenceError::NoSuchRow { .. })), "{absent:?}");
    let conditional = Query::update().value("balance", 11).and_where(Expr::col("balance").eq(999)).to_owned();
    let excluded = store.update(&grant(11), &account(1), &conditional).await;
    assert!(matches!(excluded, Err(FenceError::NoSuchRow { .. })), "{excluded:?}");
    let excluded = store.update(&grant(10), &account(1).may_rewrite(), &conditional).await;
    assert!(matches!(excluded, Err(FenceError::NoSuchRow { .. })), "{excluded:?}");
    assert_eq!(store.fence_of(&account(1)).await.unwrap(), Some(10));
    assert_eq!(store.fence_of(&account(404)).await.unwrap(), None);

    // An expression sees the old row, its fence included.
    let old_fence =
        Query::update().value("balance", Expr::col("balance").add(1)).value("n", Expr::col("fence_token")).to_owned();
    store.update(&grant(12), &account(1), &old_fence).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(11));
    assert_eq!(bench.number("SELECT n FROM accounts WHERE id = 1").await, Some(10));
}

async fn deleted_rows_stay_deleted<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    let deposit = Upsert::new().value("balance", 5);
    store.upsert(&grant(6), &account(1), &deposit).await.unwrap();
    store.delete(&grant(7), &account(1)).await.unwrap();

    assert_stale(store.upsert(&grant(6), &account(1), &deposit).await, 6, 7);
    assert_stale(store.update(&grant(6), &account(1), &deposit_update()).await, 6, 7);
    assert_stale(store.claim(&grant(6), &account(1), ["balance"]).await, 6, 7);
    let gone = store.delete(&grant(7), &account(1)).await;
    assert!(matches!(gone, Err(FenceError::NoSuchRow { .. })), "{gone:?}");
    assert_eq!(bench.balance(1).await, None);

    store.upsert(&grant(8), &account(1), &deposit).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(5));
    assert_eq!(store.fence_of(&account(1)).await.unwrap(), Some(8));
}

fn deposit_update() -> sea_query::UpdateStatement {
    Query::update().value("balance", 5).to_owned()
}

/// Kleppmann's lost update: old reads 100, new reads 100, old writes 101 (still allowed), new writes 110.
async fn a_claim_keeps_updates<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    let (old, new) = (grant(1), grant(2));
    let add = |balance: i64| Query::update().value("balance", balance).to_owned();

    // Checked on write alone, the old holder's update is lost: if this ever fails, the test below proves nothing.
    bench.insert_account(1, 100).await;
    let (old_read, new_read) = (bench.balance(1).await.unwrap(), bench.balance(1).await.unwrap());
    store.update(&old, &account(1), &add(old_read + 1)).await.unwrap();
    store.update(&new, &account(1), &add(new_read + 10)).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(110));

    // Claimed before it is read: either the old one is refused, or what it wrote is read.
    bench.insert_account(2, 100).await;
    let read = async |grant| {
        let claim = store.claim(&grant, &account(2), ["balance"]).await.unwrap();
        let row = DB::integer(claim.row(), 0).unwrap().unwrap();
        (claim, row)
    };
    let (old_claim, old_read) = read(old.clone()).await;
    let (new_claim, new_read) = read(new.clone()).await;
    assert_stale(old_claim.update(&add(old_read + 1)).await, 1, 2);
    new_claim.update(&add(new_read + 10)).await.unwrap();
    // The claim lets its holder write again, and be repeated.
    let (again, read_again) = read(new.clone()).await;
    again.update(&add(read_again + 10)).await.unwrap();
    assert_eq!(bench.balance(2).await, Some(120));

    assert_stale(store.claim(&old, &account(2), ["balance"]).await, 1, 2);
    let absent = store.claim(&new, &account(404), ["balance"]).await;
    assert!(matches!(absent, Err(FenceError::NoSuchRow { .. })), "{absent:?}");
    again.delete().await.unwrap();
    assert_eq!(bench.balance(2).await, None);
}

/// Both holders read that there is nothing, 0 that is; the old one adds 1 to it and the new one 10.
async fn the_claim_of_an_absent_row<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    let (old, new) = (grant(1), grant(2));
    for holder in [&old, &new] {
        let absent = store.claim(holder, &account(1), ["balance"]).await;
        assert!(matches!(absent, Err(FenceError::NoSuchRow { .. })), "{absent:?}");
    }
    assert_stale(store.upsert(&old, &account(1), &Upsert::new().value("balance", 1)).await, 1, 2);
    assert_stale(store.claim(&old, &account(1), ["balance"]).await, 1, 2);
    store.upsert(&new, &account(1), &Upsert::new().value("balance", 10)).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(10));
}

/// A write that changed the key would carry the fence to another row and leave none behind.
async fn keys_stay<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let deposit = Upsert::new().value("balance", 5);
    bench.store.upsert(&grant(5), &account(1), &deposit).await.unwrap();
    let moved = bench.store.update(&grant(7), &account(1), Query::update().value("id", 2)).await;
    assert!(matches!(moved, Err(FenceError::Statement(_))), "{moved:?}");
    for other_key in [deposit.clone().value("id", 2), deposit.clone().on_insert("id", 2), deposit.on_update("ID", 2)] {
        for id in [1, 3] {
            let refused = bench.store.upsert(&grant(7), &account(id), &other_key).await;
            assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");
        }
    }
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(1));
    assert_eq!(bench.store.fence_of(&account(1)).await.unwrap(), Some(5));
}

/// NULL is equal to nothing, so no write would find the row that another one has inserted.
async fn null_keys<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let row = Row::new("accounts", "n", None::<i64>);
    let refused = |result: Result<(), FenceError>| {
        assert!(matches!(result, Err(FenceError::Statement(_))), "{result:?}");
    };
    refused(bench.store.upsert(&grant(1), &row, &Upsert::new().value("balance", 1)).await.map(|_| ()));
    refused(bench.store.update(&grant(1), &row, Query::update().value("balance", 1)).await.map(|_| ()));
    refused(bench.store.delete(&grant(1), &row).await.map(|_| ()));
    refused(bench.store.claim(&grant(1), &row, ["balance"]).await.map(|_| ()));
    let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
    refused(transaction.delete(&row).await.map(|_| ()));
    refused(transaction.upsert(&row, &Upsert::new()).await.map(|_| ()));
}

/// Rows are judged by their own fences; the ledger is asked only about rows that are not there.
async fn no_ledger<DB: TestDb>() {
    let bench = Bench::<DB>::empty(2).await;
    bench.sql(crate::support::ACCOUNTS).await;
    bench.insert_account(1, 1).await;
    let write = Query::update().value("balance", 2).to_owned();
    bench.store.update(&grant(7), &account(1), &write).await.unwrap();
    assert_stale(bench.store.update(&grant(5), &account(1), &write).await, 5, 7);
    assert_stale(bench.store.claim(&grant(5), &account(1), ["n"]).await, 5, 7);
    let absent = bench.store.update(&grant(7), &account(2), &write).await;
    assert!(matches!(absent, Err(FenceError::SchemaMissing { .. })), "{absent:?}");
}

async fn another_table<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 0).await;
    let other = Query::update().table("other").value("balance", 5).to_owned();
    let refused = bench.store.update(&grant(1), &account(1), &other).await;
    assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");
    let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
    assert!(matches!(transaction.update(&account(1), &other).await, Err(FenceError::Statement(_))));
    assert_eq!(bench.balance(1).await, Some(0));
    drop(transaction);
    bench.store.update(&grant(1), &account(1), Query::update().table("accounts").value("balance", 5)).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(5));
}

/// sea-query keeps chains apart from trees of conditions, and panics where one is added to the other.
async fn chained_condition<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 0).await;
    let chained = LogicalChainOper::Or(Expr::col("n").eq(0));
    let chained = Query::update().value("balance", 50).and_or_where(chained).to_owned();
    let refused = bench.store.update(&grant(5), &account(1), &chained).await;
    assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");
    assert_eq!(bench.store.fence_of(&account(1)).await.unwrap(), Some(0));
}

async fn a_claim_of_no_column<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 1).await;
    let none: [&'static str; 0] = [];
    bench.store.claim(&grant(3), &account(1), none).await.unwrap();
    assert_eq!(bench.store.fence_of(&account(1)).await.unwrap(), Some(3));
}

/// The row's fence is higher than the ledger's, which never heard of the newer holder.
async fn a_delete_is_judged_by_the_row<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 1).await;
    bench.store.update(&grant(7), &account(1), Query::update().value("balance", 7)).await.unwrap();
    assert_stale(bench.store.delete(&grant(5), &account(1)).await, 5, 7);
    assert_eq!(bench.balance(1).await, Some(7));
}

async fn a_delete_of_nothing_raises<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let gone = bench.store.delete(&grant(7), &account(1)).await;
    assert!(matches!(gone, Err(FenceError::NoSuchRow { .. })), "{gone:?}");
    assert_stale(bench.store.upsert(&grant(6), &account(1), &Upsert::new().value("balance", 1)).await, 6, 7);
}

/// An OR of the caller's binds less than the fence's AND.
async fn conditions_in_plain_text<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 100).await;
    bench.insert_account(2, 100).await;
    bench.store.update(&grant(7), &account(1), Query::update().value("balance", 70)).await.unwrap();
    let late = Query::update().value("balance", 50).and_where(Expr::cust("balance = 70 OR n = 0")).to_owned();
    assert_stale(bench.store.update(&grant(5), &account(1), &late).await, 5, 7);
    assert_eq!((bench.balance(1).await, bench.balance(2).await), (Some(70), Some(100)));
}

async fn wild_names<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let quote = if DB::FLAVOR == Flavor::MySql { "`" } else { "\"" };
    let quoted = |name: &str| format!("{quote}{}{quote}", name.replace(quote, &quote.repeat(2)));
    for (table, fence) in [("select", "order"), ("we ird", "f\"e`n'ce"), ("T\"a`b", "Größe")] {
        let grant = |token| crate::support::grant_of(table, token);
        let (name, column) = (quoted(table), quoted(fence));
        bench
            .sql(format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY, v BIGINT, {column} BIGINT NOT NULL DEFAULT 0)"))
            .await;
        let row = Row::new(Alias::new(table), "id", 1).fence_column(Alias::new(fence));
        for token in [1, 2] {
            bench.store.upsert(&grant(token), &row, &Upsert::new().value("v", token)).await.unwrap();
        }
        assert_stale(bench.store.update(&grant(1), &row, Query::update().value("v", 9)).await, 1, 2);
        bench.store.claim(&grant(3), &row, ["v"]).await.unwrap();
        bench.store.delete(&grant(4), &row).await.unwrap();
    }
}

async fn an_upsert_tells_a_refusal<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    let data = |value: i64| Upsert::new().value("balance", value);
    store.upsert(&grant(10), &account(1), &data(10)).await.unwrap();

    assert_stale(store.upsert(&grant(9), &account(1), &data(9)).await, 9, 10);
    let same = store.upsert(&grant(10), &account(1), &data(10)).await;
    assert!(matches!(same, Err(FenceError::AlreadyWritten { .. })), "{same:?}");
    let rewriting = account(1).may_rewrite();
    store.upsert(&grant(10), &rewriting, &data(11)).await.unwrap();
    store.upsert(&grant(10), &rewriting, &data(11)).await.unwrap();
    assert_stale(store.upsert(&grant(9), &rewriting, &data(9)).await, 9, 10);
    store.upsert(&grant(11), &account(1), &data(12)).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(12));
    assert_eq!(store.fence_of(&account(1)).await.unwrap(), Some(11));
}

const CLIENTS: i64 = 20;
const TOKENS: i64 = 1_000;

/// Each applied write counts `n` up by one, so the row itself says how many there were; and the fence of a refusal says
/// which higher one came before it.
async fn shuffled_upserts<DB: TestDb>() {
    let bench = Bench::<DB>::new(20).await;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let store = bench.store.clone();
        clients.spawn(async move {
            let mut applied = Vec::new();
            for step in 0..TOKENS / CLIENTS {
                // 7919 is prime to 1000: a permutation, different neighbours in each client.
                let token = (client + step * CLIENTS) * 7919 % TOKENS + 1;
                let upsert =
                    Upsert::new().value("balance", token).on_insert("n", 1).on_update("n", Expr::col("n").add(1));
                match store.upsert(&grant(token), &account(1), &upsert).await {
                    Ok(_) => applied.push(token),
                    Err(FenceError::Stale { presented, highest, .. }) => assert!(presented.get() < highest),
                    Err(other) => panic!("{token}: {other:?}"),
                }
            }
            assert!(applied.is_sorted(), "one client's writes, in order: {applied:?}");
            applied
        });
    }
    let applied: Vec<i64> = clients.join_all().await.into_iter().flatten().collect();

    assert!(applied.contains(&TOKENS));
    assert_eq!(bench.balance(1).await, Some(TOKENS));
    assert_eq!(bench.store.fence_of(&account(1)).await.unwrap(), Some(TOKENS));
    let counted = bench.number("SELECT n FROM accounts WHERE id = 1").await;
    assert_eq!(counted, Some(i64::try_from(applied.len()).unwrap()));
}
