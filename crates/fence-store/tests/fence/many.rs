//! Many rows at once: a verdict for each, in crowds and on old snapshots too; rows that come from a query; rows returned.

use std::collections::HashMap;
use std::sync::Arc;

use fence_store::{Applied, FenceError, InsertSelect, Row, StatementProblem, Upsert, Verdict};
use redlock_core::FencingToken;
use sea_query::{Expr, ExprTrait, Query, UpdateStatement};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{Bench, TestDb, account, assert_stale, grant, grant_of, on_every_database};

on_every_database! {
    each_row_of_many_has_a_verdict_of_its_own_postgres
    each_row_of_many_has_a_verdict_of_its_own_mariadb
    each_row_of_many_has_a_verdict_of_its_own_sqlite
        => verdicts;
    rows_that_are_not_alike_are_refused_together_postgres
    rows_that_are_not_alike_are_refused_together_mariadb
    rows_that_are_not_alike_are_refused_together_sqlite
        => not_alike;
    more_rows_than_one_statement_holds_are_written_postgres
    more_rows_than_one_statement_holds_are_written_mariadb
    more_rows_than_one_statement_holds_are_written_sqlite
        => several_statements;
    many_rows_in_a_transaction_are_kept_or_given_up_together_postgres
    many_rows_in_a_transaction_are_kept_or_given_up_together_mariadb
    many_rows_in_a_transaction_are_kept_or_given_up_together_sqlite
        => within_a_transaction;
    rows_that_come_from_a_query_are_fenced_postgres
    rows_that_come_from_a_query_are_fenced_mariadb
    rows_that_come_from_a_query_are_fenced_sqlite
        => from_a_query;
    many_rows_pass_a_guard_and_stale_ones_do_not_postgres
    many_rows_pass_a_guard_and_stale_ones_do_not_mariadb
    many_rows_pass_a_guard_and_stale_ones_do_not_sqlite
        => behind_a_guard;
    b57_tokens_of_many_rows_are_stored_exactly_postgres
    b57_tokens_of_many_rows_are_stored_exactly_mariadb
    b57_tokens_of_many_rows_are_stored_exactly_sqlite
        => stored_exactly;
    b59_shuffled_upserts_of_many_rows_agree_with_a_serial_replay_postgres
    b59_shuffled_upserts_of_many_rows_agree_with_a_serial_replay_mariadb
    b59_shuffled_upserts_of_many_rows_agree_with_a_serial_replay_sqlite
        => shuffled;
    b67_first_writes_of_many_rows_in_a_crowd_postgres
    b67_first_writes_of_many_rows_in_a_crowd_mariadb
    b67_first_writes_of_many_rows_in_a_crowd_sqlite
        => first_writes;
    transactions_of_several_resources_do_not_dead_lock_postgres
    transactions_of_several_resources_do_not_dead_lock_mariadb
    transactions_of_several_resources_do_not_dead_lock_sqlite
        => several_resources;
    the_highest_tokens_are_a_floor_for_new_ones_postgres
    the_highest_tokens_are_a_floor_for_new_ones_mariadb
    the_highest_tokens_are_a_floor_for_new_ones_sqlite
        => highest_tokens;
}

fn accounts(ids: impl IntoIterator<Item = i64>) -> Vec<Row> {
    ids.into_iter().map(account).collect()
}

fn set_balance(balance: i64) -> UpdateStatement {
    Query::update().value("balance", balance).to_owned()
}

fn count_up() -> Upsert {
    Upsert::new().on_insert("n", 1).on_update("n", Expr::col("n").add(1))
}

async fn verdicts<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    for (id, fence) in [(1, 0), (2, 9), (3, 5), (4, 3), (5, 1)] {
        bench.sql(format!("INSERT INTO accounts (id, balance, fence_token) VALUES ({id}, 0, {fence})")).await;
    }
    store.delete(&grant(8), &account(7).may_rewrite()).await.unwrap_err();
    assert_eq!(store.update_rows(&grant(5), &[], &set_balance(1)).await.unwrap(), []);

    // In the order in which they are given, whatever the order is in which they are locked.
    let deleted = Verdict::Stale { highest: 8 };
    let told = store.update_rows(&grant(5), &accounts([7, 4, 2, 404, 1, 3]), &set_balance(1)).await.unwrap();
    let expected =
        [deleted, Verdict::Applied, Verdict::Stale { highest: 9 }, deleted, Verdict::Applied, Verdict::AlreadyWritten];
    assert_eq!(told, expected);
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts WHERE balance = 1 AND fence_token = 5").await, Some(2));
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts WHERE balance = 1").await, Some(2));

    // A condition of the statement's own holds for some only, under both rules.
    let mut conditional = Query::update();
    conditional.value("balance", Expr::col("balance").add(1)).and_where(Expr::col("balance").eq(1));
    let told = store.update_rows(&grant(8), &accounts([1, 5, 4]), &conditional).await.unwrap();
    assert_eq!(told, [Verdict::Applied, Verdict::NoSuchRow, Verdict::Applied]);
    let rewriting: Vec<Row> = accounts([1, 4, 5]).into_iter().map(Row::may_rewrite).collect();
    let told = store.update_rows(&grant(8), &rewriting, &set_balance(2)).await.unwrap();
    assert_eq!(told, [Verdict::Applied; 3]);
    let told = store.update_rows(&grant(8), &rewriting, &conditional).await.unwrap();
    assert_eq!(told, [Verdict::NoSuchRow; 3]);

    // Rows that are there and rows that are not, written alike and each in its own way.
    let deposit = |id, value: i64| (account(id), Upsert::new().value("balance", value));
    let upserts = [deposit(11, 7), deposit(1, 7), deposit(2, 7), deposit(12, 8), (account(3), count_up())];
    let told = store.upsert_rows(&grant(9), &upserts).await.unwrap();
    let (applied, already) = (Verdict::Applied, Verdict::AlreadyWritten);
    assert_eq!(told, [applied, applied, already, applied, applied]);
    let balances = [bench.balance(11).await, bench.balance(1).await, bench.balance(12).await];
    assert_eq!(balances, [Some(7), Some(7), Some(8)]);
    assert_stale(store.upsert_rows(&grant(8), &upserts).await, 8, 9);

    let told = store.delete_rows(&grant(10), &accounts([1, 404, 11])).await.unwrap();
    assert_eq!(told, [Verdict::Applied, Verdict::NoSuchRow, Verdict::Applied]);
    assert_eq!((bench.balance(1).await, bench.balance(11).await), (None, None));
    store.claim(&grant(12), &account(12), ["n"]).await.unwrap();
    let told = store.delete_rows(&grant(11), &accounts([12, 2])).await.unwrap();
    assert_eq!(told, [Verdict::Stale { highest: 12 }, Verdict::Applied]);
    // The ledger remembers for all that are gone.
    assert_stale(store.upsert_rows(&grant(10), &[deposit(1, 1), deposit(404, 1)]).await, 10, 11);
}

async fn not_alike<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 0).await;
    let problem = async |rows: &[Row]| {
        let updated = bench.store.update_rows(&grant(1), rows, &set_balance(1)).await;
        let deleted = bench.store.delete_rows(&grant(1), rows).await;
        match (updated, deleted) {
            (Err(FenceError::Statement(one)), Err(FenceError::Statement(other))) if one == other => one,
            other => panic!("{other:?}"),
        }
    };
    let kinds = problem(&[account(1), Row::new("others", "id", 2)]).await;
    assert!(matches!(kinds, StatementProblem::RowsOfSeveralKinds { .. }), "{kinds:?}");
    let kinds = problem(&[account(1), Row::new("accounts", "n", 2)]).await;
    assert!(matches!(kinds, StatementProblem::RowsOfSeveralKinds { .. }), "{kinds:?}");
    let twice = problem(&accounts([1, 2, 1])).await;
    assert!(matches!(twice, StatementProblem::RowTwice { .. }), "{twice:?}");
    let null = problem(&[account(1), Row::new("accounts", "id", None::<i64>)]).await;
    assert!(matches!(null, StatementProblem::NullInKey { .. }), "{null:?}");
    let fence = [(account(1), Upsert::new()), (account(2), Upsert::new().value("fence_token", 9))];
    assert!(matches!(bench.store.upsert_rows(&grant(1), &fence).await, Err(FenceError::Statement(_))));
    let key = bench.store.update_rows(&grant(1), &accounts([1]), Query::update().value("id", 2)).await;
    assert!(matches!(key, Err(FenceError::Statement(_))), "{key:?}");

    // A key of several rows, among others.
    bench.insert_account(2, 0).await;
    let several = [Row::new("accounts", "n", 5), Row::new("accounts", "n", 0)];
    let several = problem(&several).await;
    assert!(matches!(several, StatementProblem::KeyOfSeveralRows { .. }), "{several:?}");
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts WHERE fence_token = 0 AND balance = 0").await, Some(2));
}

async fn several_statements<DB: TestDb>() {
    const ROWS: i64 = 450;
    let bench = Bench::<DB>::new(2).await;
    let upserts: Vec<_> = (0..ROWS).map(|id| (account(id), count_up())).collect();
    for token in [1, 2] {
        let told = bench.store.upsert_rows(&grant(token), &upserts).await.unwrap();
        assert!(told.len() == upserts.len() && told.into_iter().all(Verdict::is_applied));
    }
    let rows = accounts(0..ROWS);
    let told = bench.store.update_rows(&grant(3), &rows, &set_balance(3)).await.unwrap();
    assert!(told.into_iter().all(Verdict::is_applied));
    let right = "SELECT COUNT(*) FROM accounts WHERE n = 2 AND balance = 3 AND fence_token = 3";
    assert_eq!(bench.number(right).await, Some(ROWS));
    let told = bench.store.delete_rows(&grant(4), &rows).await.unwrap();
    assert!(told.into_iter().all(Verdict::is_applied));
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(0));
}

async fn within_a_transaction<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    for id in 1..=3 {
        bench.insert_account(id, 0).await;
    }
    bench.store.claim(&grant_of("elsewhere", 9), &account(3), ["n"]).await.unwrap();
    let mut transaction = bench.store.begin(&grant(5)).await.unwrap();
    let told = transaction.update_rows(&accounts([1, 2, 3]), &set_balance(5)).await.unwrap();
    assert_eq!(told, [Verdict::Applied, Verdict::Applied, Verdict::Stale { highest: 9 }]);
    // Whoever wants all of them gives up here, and nothing is kept; whoever takes what there is goes on.
    transaction.rollback().await;
    assert_eq!(bench.balance(1).await, Some(0));
    let mut transaction = bench.store.begin(&grant(5)).await.unwrap();
    let told = transaction.delete_rows(&accounts([1, 3])).await.unwrap();
    assert_eq!(told, [Verdict::Applied, Verdict::Stale { highest: 9 }]);
    let told = transaction.upsert_rows(&[(account(4), count_up())]).await.unwrap();
    assert_eq!(told, [Verdict::Applied]);
    transaction.commit().await.unwrap();

    let mut callers = bench.store.pool().begin().await.unwrap();
    let mut joined = bench.store.join(&mut callers, &grant(6)).await.unwrap();
    assert_eq!(joined.update_rows(&accounts([2]), &set_balance(6)).await.unwrap(), [Verdict::Applied]);
    assert_eq!(joined.upsert_rows(&[(account(5), count_up())]).await.unwrap(), [Verdict::Applied]);
    assert_eq!(joined.delete_rows(&accounts([4])).await.unwrap(), [Verdict::Applied]);
    drop(joined);
    callers.commit().await.unwrap();
    let mut left = Vec::new();
    for id in 1..=5 {
        left.push(bench.balance(id).await);
    }
    assert_eq!(left, [None, Some(6), Some(0), None, Some(0)]);
}

async fn from_a_query<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    bench.sql("CREATE TABLE carts (id BIGINT PRIMARY KEY, total BIGINT NOT NULL)").await;
    bench.sql("INSERT INTO carts VALUES (1, 10), (2, 20), (3, 30)").await;
    let carts = Query::select().columns(["id", "total"]).from("carts").and_where(Expr::col("total").lt(30)).to_owned();
    let insert = InsertSelect::new("accounts", ["id", "balance"], carts);

    assert_eq!(bench.store.insert_select(&grant(5), &insert).await.unwrap(), Applied { rows: 2 });
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts WHERE fence_token = 5").await, Some(2));
    let twice = bench.store.insert_select(&grant(5), &insert).await;
    assert!(matches!(twice, Err(FenceError::Database { .. })), "{twice:?}");

    // Deleted by a newer holder, they do not come back.
    bench.store.delete_rows(&grant(6), &accounts([1, 2])).await.unwrap();
    assert_stale(bench.store.insert_select(&grant(5), &insert).await, 5, 6);
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(0));
    bench.store.insert_select(&grant(7), &insert).await.unwrap();
    assert_stale(bench.store.update(&grant(6), &account(1), &set_balance(1)).await, 6, 7);
    let none = Query::select().columns(["id", "total"]).from("carts").and_where(Expr::col("id").eq(404)).to_owned();
    let none = InsertSelect::new("accounts", ["id", "balance"], none);
    assert_eq!(bench.store.insert_select(&grant(7), &none).await.unwrap(), Applied { rows: 0 });
}

async fn behind_a_guard<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let guard = bench.store.guard_of("accounts").await.unwrap();
    bench.store.install_guard(&guard).await.unwrap();
    let upserts = [1, 2, 3].map(|id| (account(id), count_up()));
    assert_eq!(bench.store.upsert_rows(&grant(1), &upserts).await.unwrap(), [Verdict::Applied; 3]);
    assert_eq!(bench.store.upsert_rows(&grant(2), &upserts).await.unwrap(), [Verdict::Applied; 3]);
    let rows = accounts([1, 2, 3]);
    assert_eq!(bench.store.update_rows(&grant(3), &rows, &set_balance(3)).await.unwrap(), [Verdict::Applied; 3]);
    let told = bench.store.update_rows(&grant(2), &rows, &set_balance(2)).await.unwrap();
    assert_eq!(told, [Verdict::Stale { highest: 3 }; 3]);
    assert_eq!(bench.store.delete_rows(&grant(4), &rows).await.unwrap(), [Verdict::Applied; 3]);
    // By the guard's own tombstones too, where the holder's resource is another and the ledger knows nothing.
    let query = Query::select().exprs([Expr::val(2), 2.into()]).to_owned();
    let insert = InsertSelect::new("accounts", ["id", "n"], query);
    assert_stale(bench.store.insert_select(&grant_of("elsewhere", 3), &insert).await, 3, 4);
    bench.store.insert_select(&grant(5), &insert).await.unwrap();
    assert_eq!(bench.number("SELECT n FROM accounts").await, Some(2));
}

async fn stored_exactly<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let highest = FencingToken::MAX.get();
    let rows = accounts([1, 2]);
    let upserts: Vec<_> = rows.iter().map(|row| (row.clone(), count_up())).collect();
    let fences = async || {
        let one = bench.store.fence_of(&rows[0]).await.unwrap().unwrap();
        assert_eq!(bench.store.fence_of(&rows[1]).await.unwrap(), Some(one));
        one
    };
    bench.store.upsert_rows(&grant(i64::from(u32::MAX) + 1), &upserts).await.unwrap();
    assert_eq!(fences().await, i64::from(u32::MAX) + 1);
    bench.store.update_rows(&grant(highest - 1), &rows, &set_balance(1)).await.unwrap();
    assert_eq!(fences().await, highest - 1);
    bench.store.upsert_rows(&grant(highest), &upserts).await.unwrap();
    assert_eq!(fences().await, highest);
    let told = bench.store.update_rows(&grant(highest - 1), &rows, &set_balance(2)).await.unwrap();
    assert_eq!(told, [Verdict::Stale { highest }; 2]);
    bench.store.delete_rows(&grant(highest).clone(), &[rows[0].clone().may_rewrite()]).await.unwrap();
    let query = Query::select().exprs([Expr::val(3), 3.into()]).to_owned();
    let insert = InsertSelect::new("accounts", ["id", "n"], query);
    assert_stale(bench.store.insert_select(&grant(highest - 1), &insert).await, highest - 1, highest);
    bench.store.insert_select(&grant(highest), &insert).await.unwrap();
    assert_eq!(bench.store.fence_of(&account(3)).await.unwrap(), Some(highest));
}

const CLIENTS: i64 = 8;
const TOKENS: i64 = 240;
const ROWS: i64 = 12;

/// Each applied write counts its row's `n` up by one. So each row says how many were applied to it, and they must be those
/// that were told so; and each refusal names a token that had come before.
async fn shuffled<DB: TestDb>() {
    let bench = Bench::<DB>::new(8).await;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let store = bench.store.clone();
        clients.spawn(async move {
            let mut applied: HashMap<i64, Vec<i64>> = HashMap::new();
            for step in 0..TOKENS / CLIENTS {
                // 7919 is prime to 240: a permutation, different neighbours in each client. Half of the rows, in an order
                // of its own.
                let token = (client + step * CLIENTS) * 7919 % TOKENS + 1;
                let ids: Vec<i64> = (0..ROWS / 2).map(|place| (token * 5 + place * 7) % ROWS).collect();
                // Each has a ledger row of its own: the rows' own fences decide.
                let grant = grant_of(&["client", &client.to_string(), &step.to_string()].join("/"), token);
                let upserts: Vec<_> = ids.iter().map(|id| (account(*id), count_up().value("balance", token))).collect();
                // In conflict it is run again, as its caller would.
                let mut told = store.upsert_rows(&grant, &upserts).await;
                for _ in 0..50 {
                    if told.as_ref().is_err_and(FenceError::is_conflict) {
                        told = store.upsert_rows(&grant, &upserts).await;
                    }
                }
                let told = told.unwrap();
                for (id, verdict) in ids.iter().zip(told) {
                    match verdict {
                        Verdict::Applied => applied.entry(*id).or_default().push(token),
                        Verdict::Stale { highest } => assert!(token < highest, "{token}: {verdict:?}"),
                        other => panic!("{token}: {other:?}"),
                    }
                }
            }
            applied
        });
    }
    let mut applied: HashMap<i64, Vec<i64>> = HashMap::new();
    for one in clients.join_all().await {
        for (id, tokens) in one {
            assert!(tokens.is_sorted(), "one client's writes of {id}, in order: {tokens:?}");
            applied.entry(id).or_default().extend(tokens);
        }
    }
    for id in 0..ROWS {
        let tokens = &applied[&id];
        let highest = tokens.iter().max().copied();
        assert_eq!(bench.store.fence_of(&account(id)).await.unwrap(), highest, "{id}");
        assert_eq!(bench.balance(id).await, highest, "{id}");
        let counted = bench.number(format!("SELECT n FROM accounts WHERE id = {id}")).await;
        assert_eq!(counted, Some(i64::try_from(tokens.len()).unwrap()), "{id}");
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn old_snapshots<DB: TestDb>() {
    use fence_store::{FenceStore, Flavor};

    use crate::support::ISOLATIONS;

    let bench = Bench::<DB>::new(3).await;
    let settings: &[Option<&str>] = match DB::FLAVOR {
        Flavor::MySql => {
            &[Some("SET SESSION innodb_snapshot_isolation = OFF"), Some("SET SESSION innodb_snapshot_isolation = ON")]
        }
        _ => &[None],
    };
    let mut id = 0;
    for setting in settings {
        let store: FenceStore<DB> = bench.another(2, *setting).await;
        for isolation in ISOLATIONS {
            id += 3;
            for id in [id, id + 1, id + 2] {
                bench.insert_account(id, 0).await;
            }
            // The old holder works under another resource's ledger row, so that only the rows' own fences stand between.
            let old = grant_of("elsewhere", 7);
            let mut transaction = store.begin_with(&old, isolation).await.unwrap();
            let other = format!("SELECT balance FROM accounts WHERE id = {}", id + 2);
            transaction.fetch_all(sqlx::AssertSqlSafe(other)).await.unwrap();
            bench.store.update(&grant(8), &account(id), &set_balance(8)).await.unwrap();

            let context = format!("{setting:?}, {isolation:?}");
            let rows = accounts([id + 1, id]);
            let told = match transaction.update_rows(&rows, &set_balance(7)).await {
                Err(error) => {
                    assert!(error.is_conflict(), "{context}: {error:?}");
                    drop(transaction);
                    let mut once_more = store.begin_with(&old, isolation).await.unwrap();
                    let told = once_more.update_rows(&rows, &set_balance(7)).await.unwrap();
                    once_more.commit().await.unwrap();
                    told
                }
                Ok(told) => {
                    transaction.commit().await.unwrap();
                    told
                }
            };
            assert_eq!(told, [Verdict::Applied, Verdict::Stale { highest: 8 }], "{context}");
            assert_eq!((bench.balance(id).await, bench.balance(id + 1).await), (Some(8), Some(7)), "{context}");
        }
    }
}

#[cfg(feature = "postgres")]
#[test]
fn b61_a_stale_row_of_many_does_not_pass_on_an_old_snapshot_postgres() {
    crate::support::run(old_snapshots::<sqlx::Postgres>());
}

#[cfg(feature = "mysql")]
#[test]
fn b61_a_stale_row_of_many_does_not_pass_on_an_old_snapshot_mariadb() {
    crate::support::run(old_snapshots::<sqlx::MySql>());
}

const CROWD: i64 = 16;

/// All write the first of many fenced rows at the same instant, each in an order of its own.
async fn first_writes<DB: TestDb>() {
    let bench = Bench::<DB>::new(16).await;
    let store = bench.another(16, None).await.lock_wait(std::time::Duration::from_secs(60));
    let barrier = Arc::new(Barrier::new(16));
    let mut writers = JoinSet::new();
    for token in 1..=CROWD {
        let (store, barrier) = (store.clone(), Arc::clone(&barrier));
        writers.spawn(async move {
            barrier.wait().await;
            let mut applied = 0;
            for batch in 0..20 {
                let grant = grant_of(&batch.to_string(), token);
                let ids = (0..10).map(|place| batch * 10 + (place * 3 + token) % 10);
                let upserts: Vec<_> = ids.map(|id| (account(id), count_up().value("balance", token))).collect();
                match store.upsert_rows(&grant, &upserts).await {
                    Ok(told) => {
                        assert_eq!(told, [Verdict::Applied; 10], "{token}");
                        applied += 10;
                    }
                    Err(FenceError::Stale { highest, .. }) => assert!(token < highest),
                    Err(other) => panic!("token {token}, batch {batch}: {other:?}"),
                }
            }
            applied
        });
    }
    let applied: i64 = writers.join_all().await.into_iter().sum();
    let right = format!("SELECT COUNT(*) FROM accounts WHERE balance = {CROWD} AND fence_token = {CROWD}");
    assert_eq!(bench.number(right).await, Some(200));
    let mut counted = 0;
    for id in 0..200 {
        counted += bench.number(format!("SELECT n FROM accounts WHERE id = {id}")).await.unwrap();
    }
    assert_eq!(counted, applied);
}

/// Each holds several ledger rows until it commits, asked for in all orders. Without one order for all, they would wait for
/// each other in a circle.
async fn several_resources<DB: TestDb>() {
    let bench = Bench::<DB>::new(8).await;
    bench.insert_account(1, 0).await;
    let store = bench.another(8, None).await.lock_wait(std::time::Duration::from_secs(60));
    let mut holders = JoinSet::new();
    for holder in 0..8_usize {
        let store = store.clone();
        holders.spawn(async move {
            let mut names = ["a", "b", "c", "d"];
            for round in 0..25 {
                names.rotate_left((holder + round) % 4);
                names.swap(0, holder % 4);
                let grant = redlock_core::Grant::assume_granted(&names[..3], 1).unwrap();
                let mut transaction = store.begin(&grant).await.unwrap();
                transaction.execute("UPDATE accounts SET n = n + 1").await.unwrap();
                transaction.commit().await.unwrap();
            }
        });
    }
    holders.join_all().await;
    assert_eq!(bench.number("SELECT n FROM accounts").await, Some(200));
}

async fn highest_tokens<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    assert_eq!(bench.store.highest_token_of_all().await.unwrap(), None);
    assert_eq!(bench.store.highest_fence("accounts", "fence_token").await.unwrap(), None);
    bench.insert_account(1, 0).await;
    for (resource, token) in [("a", 7), ("b", 40), ("c", 12)] {
        bench.store.claim_resources(&grant_of(resource, token)).await.unwrap();
    }
    bench.store.claim(&grant(99), &account(1), ["n"]).await.unwrap();
    assert_eq!(bench.store.highest_token_of_all().await.unwrap(), Some(40));
    assert_eq!(bench.store.highest_fence("accounts", "fence_token").await.unwrap(), Some(99));
    let unfit = bench.store.highest_fence("accounts", "no_such_column").await;
    assert!(matches!(unfit, Err(FenceError::Column(_))), "{unfit:?}");
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
async fn returned<DB: TestDb + fence_store::Returning>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 10).await;
    let store = &bench.store;
    let add = Query::update().value("balance", Expr::col("balance").add(5)).to_owned();
    for row in [account(1), Row::new("accounts", "n", 0)] {
        let token = store.fence_of(&row).await.unwrap().unwrap() + 2;
        let written = store.update_returning(&grant(token), &row, &add, ["balance"]).await.unwrap();
        assert_eq!(DB::integer(&written, 0).unwrap(), bench.balance(1).await);
        let late = store.update_returning(&grant(token - 1), &row, &add, ["balance"]).await;
        assert_stale(late.map(|_| ()), token - 1, token);
        let again = store.update_returning(&grant(token), &row, &add, ["balance"]).await.map(|_| ());
        assert!(matches!(again, Err(FenceError::AlreadyWritten { .. })), "{again:?}");
    }
    assert_eq!(bench.balance(1).await, Some(20));
    let asks = Query::update().value("balance", 1).returning_all().to_owned();
    let refused = store.update(&grant(9), &account(1), &asks).await;
    assert!(matches!(refused, Err(FenceError::Statement(StatementProblem::Returning))), "{refused:?}");
    let absent = store.update_returning(&grant(9), &account(2), &add, ["n"]).await.map(|_| ());
    assert!(matches!(absent, Err(FenceError::NoSuchRow { .. })), "{absent:?}");

    assert_stale(store.delete_returning(&grant(3), &account(1), ["balance"]).await.map(|_| ()), 3, 4);
    let gone = store.delete_returning(&grant(9), &account(1), ["balance"]).await.unwrap();
    assert_eq!(DB::integer(&gone, 0).unwrap(), Some(20));
    assert_stale(store.upsert(&grant(8), &account(1), &count_up()).await, 8, 9);
}

#[cfg(feature = "postgres")]
#[test]
fn what_was_written_is_returned_postgres() {
    crate::support::run(returned::<sqlx::Postgres>());
}

#[cfg(feature = "sqlite")]
#[test]
fn what_was_written_is_returned_sqlite() {
    crate::support::run(returned::<sqlx::Sqlite>());
}
