//! Guards: what a plain client cannot do around them, what it can do with a token, and what this crate makes of a refusal.

use fence_store::{FenceError, Flavor, Guard, GuardState, Row, Upsert};
use sea_query::Query;

use crate::clients::{Client, client};
use crate::support::{Bench, account, assert_stale, grant, grant_of, on_every_database};

on_every_database! {
    a_plain_client_does_not_get_around_a_guard_postgres
    a_plain_client_does_not_get_around_a_guard_mariadb
    a_plain_client_does_not_get_around_a_guard_sqlite
        => no_way_around;
    a_plain_client_with_a_token_gets_through_postgres
    a_plain_client_with_a_token_gets_through_mariadb
    a_plain_client_with_a_token_gets_through_sqlite
        => a_way_through;
    a_guard_that_may_be_rewritten_lets_the_token_stay_and_not_fall_postgres
    a_guard_that_may_be_rewritten_lets_the_token_stay_and_not_fall_mariadb
    a_guard_that_may_be_rewritten_lets_the_token_stay_and_not_fall_sqlite
        => rewriting;
    fenced_writes_of_the_store_pass_a_guard_postgres
    fenced_writes_of_the_store_pass_a_guard_mariadb
    fenced_writes_of_the_store_pass_a_guard_sqlite
        => the_store_passes;
    a_guards_refusal_is_told_as_stale_on_every_path_postgres
    a_guards_refusal_is_told_as_stale_on_every_path_mariadb
    a_guards_refusal_is_told_as_stale_on_every_path_sqlite
        => refusals_are_stale;
    what_the_docs_say_is_left_passes_a_guard_postgres
    what_the_docs_say_is_left_passes_a_guard_mariadb
    what_the_docs_say_is_left_passes_a_guard_sqlite
        => what_is_left;
}

/// Row 1 at 34, row 2 never fenced, row 3 deleted under 40; and a strict guard, put up by the plain client.
async fn guarded<DB: Client>(guard: &Guard) -> Bench<DB> {
    let bench = Bench::<DB>::new(4).await;
    for id in [1, 2, 3] {
        bench.insert_account(id, 100).await;
    }
    let script = guard.script(DB::FLAVOR).unwrap();
    client::<DB>(&bench.url, &script).unwrap();
    assert_eq!(bench.store.guard_state(guard).await.unwrap(), GuardState::Current);
    let lawful = "UPDATE accounts SET fence_token = 34 WHERE id = 1;
        BEGIN;
        UPDATE accounts SET fence_token = -40 WHERE id = 3;
        DELETE FROM accounts WHERE id = 3;
        COMMIT;";
    client::<DB>(&bench.url, lawful).unwrap();
    bench
}

fn strict() -> Guard {
    Guard::new("accounts", "id")
}

/// The table as a plain client sees it.
fn contents<DB: Client>(bench: &Bench<DB>) -> String {
    let rows = client::<DB>(&bench.url, "SELECT id, balance, n, fence_token FROM accounts ORDER BY id;").unwrap();
    rows.replace('\t', "|")
}

const BEFORE: &str = "1|100|0|34\n2|100|0|0";

const STALE: &str = "fence: stale: presented 33, highest 34";
const STALE_TOMBSTONE: &str = "fence: stale: presented 39, highest 40";
const REFUSED: &str = "fence: refused: ";

/// Statements that pass the fence by, and how each is refused.
fn everywhere() -> Vec<(&'static str, &'static str)> {
    vec![
        // Forgets the fence.
        ("UPDATE accounts SET balance = 1 WHERE id = 1", REFUSED),
        ("UPDATE accounts SET balance = 1 WHERE id = 2", REFUSED),
        ("UPDATE accounts SET balance = 1", REFUSED),
        // Is late.
        ("UPDATE accounts SET balance = 1, fence_token = 33 WHERE id = 1", STALE),
        ("UPDATE accounts SET balance = id, fence_token = 33", STALE),
        ("UPDATE accounts SET balance = 1, fence_token = 34 WHERE id = 1", REFUSED),
        ("UPDATE accounts SET fence_token = fence_token - 1 WHERE id = 1", STALE),
        // Takes the fence away.
        ("UPDATE accounts SET fence_token = 0 WHERE id = 1", REFUSED),
        ("UPDATE accounts SET fence_token = NULL WHERE id = 1", ""),
        ("UPDATE accounts SET fence_token = DEFAULT WHERE id = 1", ""),
        ("UPDATE accounts SET fence_token = 9007199254740992 WHERE id = 1", REFUSED),
        // Takes the row away from under it.
        ("UPDATE accounts SET id = 9, fence_token = 50 WHERE id = 1", REFUSED),
        ("DELETE FROM accounts WHERE id = 1", REFUSED),
        ("DELETE FROM accounts", REFUSED),
        ("UPDATE accounts SET fence_token = -33 WHERE id = 1", STALE),
        // Brings a deleted row back.
        ("INSERT INTO accounts (id, balance) VALUES (3, 1)", REFUSED),
        ("INSERT INTO accounts (id, balance, fence_token) VALUES (3, 1, 39)", STALE_TOMBSTONE),
        ("INSERT INTO accounts (id, balance, fence_token) VALUES (3, 1, 40)", REFUSED),
        ("INSERT INTO accounts (id, balance, fence_token) VALUES (4, 1, 50), (3, 1, 39)", STALE_TOMBSTONE),
        (
            "INSERT INTO accounts (id, balance, fence_token) SELECT 3, balance, 39 FROM accounts WHERE id = 1",
            STALE_TOMBSTONE,
        ),
        ("INSERT INTO accounts (id, fence_token) VALUES (4, -5)", REFUSED),
        ("INSERT INTO accounts (id, fence_token) VALUES (4, NULL)", ""),
        ("INSERT INTO accounts (id, fence_token) VALUES (4, 9007199254740992)", REFUSED),
    ]
}

fn on_postgres() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "INSERT INTO accounts (id, balance, fence_token) VALUES (1, 1, 33) ON CONFLICT (id) DO UPDATE SET balance = 1, fence_token = excluded.fence_token",
            STALE,
        ),
        ("INSERT INTO accounts (id, balance) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET balance = 1", REFUSED),
        (
            "INSERT INTO accounts (id, balance, fence_token) VALUES (3, 1, 39) ON CONFLICT (id) DO NOTHING",
            STALE_TOMBSTONE,
        ),
        (
            "MERGE INTO accounts a USING (VALUES (1)) AS s (id) ON a.id = s.id WHEN MATCHED THEN UPDATE SET balance = 1, fence_token = 33",
            STALE,
        ),
        ("MERGE INTO accounts a USING (VALUES (1)) AS s (id) ON a.id = s.id WHEN MATCHED THEN DELETE", REFUSED),
        (
            "MERGE INTO accounts a USING (VALUES (3)) AS s (id) ON a.id = s.id WHEN NOT MATCHED THEN INSERT (id, fence_token) VALUES (3, 39)",
            STALE_TOMBSTONE,
        ),
        ("COPY accounts (id, balance, fence_token) FROM STDIN WITH (DELIMITER ' ');\n3 1 39\n\\.\n", STALE_TOMBSTONE),
        ("TRUNCATE accounts", REFUSED),
        ("TRUNCATE accounts CASCADE", REFUSED),
        (
            "WITH late AS (UPDATE accounts SET balance = 1, fence_token = 33 WHERE id = 1 RETURNING id) SELECT * FROM late",
            STALE,
        ),
        ("WITH gone AS (DELETE FROM accounts WHERE id = 1 RETURNING id) SELECT * FROM gone", REFUSED),
        (
            "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO accounts (id, balance, fence_token) VALUES (3, 1, 39); COMMIT",
            STALE_TOMBSTONE,
        ),
        ("DO $$ BEGIN UPDATE accounts SET balance = 1 WHERE id = 1; END $$", REFUSED),
    ]
}

fn on_mysql() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "INSERT INTO accounts (id, balance, fence_token) VALUES (1, 1, 33) ON DUPLICATE KEY UPDATE balance = 1, fence_token = VALUES(fence_token)",
            STALE,
        ),
        ("INSERT INTO accounts (id, balance) VALUES (1, 1) ON DUPLICATE KEY UPDATE balance = 1", REFUSED),
        ("REPLACE INTO accounts (id, balance, fence_token) VALUES (1, 1, 33)", REFUSED),
        ("REPLACE INTO accounts (id, balance, fence_token) VALUES (1, 1, 50)", REFUSED),
        ("REPLACE INTO accounts (id, balance, fence_token) VALUES (3, 1, 39)", STALE_TOMBSTONE),
        ("INSERT IGNORE INTO accounts (id, balance, fence_token) VALUES (3, 1, 39)", STALE_TOMBSTONE),
        ("UPDATE IGNORE accounts SET balance = 1, fence_token = 33 WHERE id = 1", STALE),
        ("UPDATE IGNORE accounts SET balance = 1 WHERE id = 1", REFUSED),
        ("UPDATE IGNORE accounts SET fence_token = NULL WHERE id = 1", REFUSED),
        ("DELETE IGNORE FROM accounts WHERE id = 1", REFUSED),
        ("UPDATE accounts a JOIN accounts b ON a.id = b.id SET a.balance = 1 WHERE b.id = 1", REFUSED),
        ("DELETE a FROM accounts a JOIN accounts b ON a.id = b.id WHERE b.id = 1", REFUSED),
        ("SET sql_mode = ''; UPDATE accounts SET balance = 1, fence_token = '33x' WHERE id = 1", STALE),
        ("SET sql_mode = ''; UPDATE accounts SET fence_token = 99999999999999999999 WHERE id = 1", REFUSED),
        ("SET foreign_key_checks = 0; SET unique_checks = 0; DELETE FROM accounts WHERE id = 1", REFUSED),
    ]
}

fn on_sqlite() -> Vec<(&'static str, &'static str)> {
    vec![
        (
            "INSERT INTO accounts (id, balance, fence_token) VALUES (1, 1, 33) ON CONFLICT (id) DO UPDATE SET balance = 1, fence_token = excluded.fence_token",
            STALE,
        ),
        ("INSERT INTO accounts (id, balance) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET balance = 1", REFUSED),
        ("INSERT OR REPLACE INTO accounts (id, balance, fence_token) VALUES (1, 1, 33)", STALE),
        ("INSERT OR REPLACE INTO accounts (id, balance, fence_token) VALUES (1, 1, 34)", REFUSED),
        ("INSERT OR REPLACE INTO accounts (id, balance, fence_token) VALUES (1, 1, NULL)", REFUSED),
        ("INSERT OR REPLACE INTO accounts (id, balance) VALUES (1, 1)", REFUSED),
        ("REPLACE INTO accounts (id, balance, fence_token) VALUES (3, 1, 39)", STALE_TOMBSTONE),
        ("PRAGMA recursive_triggers = ON; REPLACE INTO accounts (id, balance, fence_token) VALUES (1, 1, 33)", REFUSED),
        ("INSERT OR IGNORE INTO accounts (id, balance, fence_token) VALUES (3, 1, 39)", STALE_TOMBSTONE),
        ("UPDATE OR IGNORE accounts SET balance = 1, fence_token = 33 WHERE id = 1", STALE),
        ("UPDATE OR FAIL accounts SET balance = 1, fence_token = 33", STALE),
        ("UPDATE OR REPLACE accounts SET id = 1, fence_token = 50 WHERE id = 2", REFUSED),
        ("UPDATE OR REPLACE accounts SET fence_token = NULL WHERE id = 1", REFUSED),
        ("UPDATE accounts SET fence_token = 'zzz' WHERE id = 1", REFUSED),
        ("UPDATE accounts SET fence_token = 34.5 WHERE id = 1", REFUSED),
        ("UPDATE accounts SET fence_token = x'ff' WHERE id = 1", REFUSED),
        ("PRAGMA ignore_check_constraints = ON; DELETE FROM accounts WHERE id = 1", REFUSED),
        // Refused by SQLite 3.40 itself: a function in a trigger that is not on its list.
        ("PRAGMA trusted_schema = OFF; DELETE FROM accounts WHERE id = 1", ""),
        (
            "WITH late AS (SELECT 1 AS id) UPDATE accounts SET balance = 1, fence_token = 33 FROM late WHERE accounts.id = late.id",
            STALE,
        ),
        ("BEGIN; UPDATE accounts SET balance = id, fence_token = 33; COMMIT", STALE),
    ]
}

async fn no_way_around<DB: Client>() {
    let bench = guarded::<DB>(&strict()).await;
    let own = match DB::FLAVOR {
        Flavor::Postgres => on_postgres(),
        Flavor::MySql => on_mysql(),
        _ => on_sqlite(),
    };
    let mut wrong = Vec::new();
    for (statement, expected) in everywhere().into_iter().chain(own) {
        if DB::FLAVOR == Flavor::Sqlite && statement.contains("= DEFAULT") {
            // Not a word of its UPDATE.
            continue;
        }
        match client::<DB>(&bench.url, &format!("{statement};")) {
            Err(told) if told.contains(expected) => {}
            other => wrong.push(format!("{statement}: expected {expected:?}, got {other:?}")),
        }
        let after = contents(&bench);
        if after != BEFORE {
            wrong.push(format!("{statement}: left {after:?}"));
            break;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(bench.number("SELECT MAX(fence_token) FROM accounts_fence_tombstones WHERE id = 3").await, Some(40));
}

async fn a_way_through<DB: Client>() {
    let bench = guarded::<DB>(&strict()).await;
    let upsert = match DB::FLAVOR {
        Flavor::MySql => "ON DUPLICATE KEY UPDATE balance = VALUES(balance), fence_token = VALUES(fence_token)",
        _ => "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence_token = excluded.fence_token",
    };
    let writes = format!(
        "UPDATE accounts SET balance = 1, fence_token = 35 WHERE id = 1 AND fence_token < 35;
         INSERT INTO accounts (id, balance, fence_token) VALUES (1, 2, 36) {upsert};
         INSERT INTO accounts (id, balance, fence_token) VALUES (4, 2, 36) {upsert};
         INSERT INTO accounts (id, balance, fence_token) VALUES (3, 3, 41);
         INSERT INTO accounts (id, balance) VALUES (5, 5);
         BEGIN;
         UPDATE accounts SET fence_token = -42 WHERE id IN (2, 3) AND fence_token < 42;
         DELETE FROM accounts WHERE fence_token = -42;
         COMMIT;"
    );
    client::<DB>(&bench.url, &writes).unwrap();
    assert_eq!(contents(&bench), "1|2|0|36\n4|2|0|36\n5|5|0|0");
    let graves = "SELECT COUNT(*) FROM accounts_fence_tombstones WHERE fence_token = 42";
    assert_eq!(bench.number(graves).await, Some(2));

    // A condemned row that is not deleted is fenced as it was, and is revived by a newer token only.
    client::<DB>(&bench.url, "UPDATE accounts SET fence_token = -50 WHERE id = 1;").unwrap();
    let late = client::<DB>(&bench.url, "UPDATE accounts SET balance = 9, fence_token = 49 WHERE id = 1;").unwrap_err();
    assert!(late.contains("presented 49, highest 50"), "{late}");
    client::<DB>(&bench.url, "UPDATE accounts SET balance = 9, fence_token = 51 WHERE id = 1;").unwrap();

    // What a guard has refused once is possible when it is gone, or the test proves nothing.
    client::<DB>(&bench.url, &strict().remove_script(DB::FLAVOR).unwrap()).unwrap();
    assert_eq!(bench.store.guard_state(&strict()).await.unwrap(), GuardState::Missing);
    client::<DB>(&bench.url, "UPDATE accounts SET balance = 7 WHERE id = 1; DELETE FROM accounts WHERE id = 4;")
        .unwrap();
    assert_eq!(contents(&bench), "1|7|0|51\n5|5|0|0");
}

async fn rewriting<DB: Client>() {
    let guard = strict().may_rewrite();
    let bench = guarded::<DB>(&guard).await;
    let writes = "UPDATE accounts SET balance = 1, fence_token = 34 WHERE id = 1;
         UPDATE accounts SET n = 1 WHERE id = 1;
         UPDATE accounts SET n = 1 WHERE id = 2;
         INSERT INTO accounts (id, fence_token) VALUES (3, 40);
         BEGIN;
         UPDATE accounts SET fence_token = -40 WHERE id = 3;
         DELETE FROM accounts WHERE id = 3;
         COMMIT;";
    client::<DB>(&bench.url, writes).unwrap();
    assert_eq!(contents(&bench), "1|1|1|34\n2|100|1|0");
    for (statement, expected) in [
        ("UPDATE accounts SET balance = 9, fence_token = 33 WHERE id = 1", STALE),
        ("UPDATE accounts SET fence_token = 0 WHERE id = 1", REFUSED),
        ("UPDATE accounts SET id = 9 WHERE id = 1", REFUSED),
        ("DELETE FROM accounts WHERE id = 1", REFUSED),
        ("INSERT INTO accounts (id, fence_token) VALUES (3, 39)", STALE_TOMBSTONE),
        ("INSERT INTO accounts (id) VALUES (3)", REFUSED),
    ] {
        let told = client::<DB>(&bench.url, &format!("{statement};")).unwrap_err();
        assert!(told.contains(expected), "{statement}: {told}");
        assert_eq!(contents(&bench), "1|1|1|34\n2|100|1|0", "{statement}");
    }
}

async fn the_store_passes<DB: Client>() {
    for rule in [strict(), strict().may_rewrite()] {
        let bench = Bench::<DB>::new(4).await;
        let store = &bench.store;
        store.install_guard(&rule).await.unwrap();
        let deposit = |balance: i64| Upsert::new().value("balance", balance);
        store.upsert(&grant(5), &account(1), &deposit(5)).await.unwrap();
        store.update(&grant(6), &account(1), Query::update().value("balance", 6)).await.unwrap();
        let claim = store.claim(&grant(7), &account(1), ["balance"]).await.unwrap();
        if rule != strict() {
            claim.update(Query::update().value("balance", 7)).await.unwrap();
        }
        claim.delete().await.unwrap();
        assert_eq!(bench.balance(1).await, None);
        let buried = "SELECT fence_token FROM accounts_fence_tombstones WHERE id = 1";
        assert_eq!(bench.number(buried).await, Some(7));

        store.upsert(&grant(8), &account(1), &deposit(8)).await.unwrap();
        let mut transaction = store.begin(&grant(9)).await.unwrap();
        transaction.delete(&account(1)).await.unwrap();
        transaction.upsert(&account(2), &deposit(9)).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!((bench.balance(1).await, bench.balance(2).await), (None, Some(9)));
        assert_eq!(bench.number(buried).await, Some(9));
    }
}

/// Under another resource, whose ledger knows nothing, so that only the guard stands in the way.
async fn refusals_are_stale<DB: Client>() {
    let bench = guarded::<DB>(&strict()).await;
    let store = &bench.store;
    let late = grant_of("elsewhere", 33);
    let deposit = Upsert::new().value("balance", 1);
    assert_stale(store.upsert(&grant_of("elsewhere", 39), &account(3), &deposit).await, 39, 40);

    // Condemned and not deleted: the row's own condition lets every token pass.
    client::<DB>(&bench.url, "UPDATE accounts SET fence_token = -35 WHERE id = 1;").unwrap();
    let write = Query::update().value("balance", 1).to_owned();
    assert_stale(store.update(&late, &account(1), &write).await, 33, 35);
    assert_stale(store.update(&late, &account(1).may_rewrite(), &write).await, 33, 35);
    assert_stale(store.upsert(&late, &account(1), &deposit).await, 33, 35);
    assert_stale(store.claim(&late, &account(1), ["balance"]).await, 33, 35);
    assert_stale(store.delete(&grant_of("another", 33), &account(1)).await, 33, 35);

    let mut transaction = store.begin(&late).await.unwrap();
    let plain = "UPDATE accounts SET balance = 1, fence_token = 33 WHERE id = 1";
    assert_stale(transaction.execute(plain).await.map(|_| ()), 33, 35);
    assert!(transaction.commit().await.is_err());
    let mut transaction = store.begin(&late).await.unwrap();
    assert_stale(transaction.update(&account(1), &write).await, 33, 35);
    let mut transaction = store.begin(&late).await.unwrap();
    let on_the_connection = DB::execute(transaction.connection().await.unwrap(), plain).await;
    assert_stale(on_the_connection.map_err(FenceError::from).map(|_| ()), 33, 35);
    drop(transaction);

    // One that presents nothing is no stale one.
    let mut transaction = store.begin(&grant_of("elsewhere", 60)).await.unwrap();
    let forgetful = transaction.execute("UPDATE accounts SET balance = 1 WHERE id = 1").await.map(|_| ());
    let Err(FenceError::Statement(problem)) = &forgetful else { panic!("{forgetful:?}") };
    assert!(problem.to_string().contains("fence_token") && problem.to_string().contains("35"), "{problem}");
    drop(transaction);
    // A strict guard takes a token once, also from a row that this crate would rewrite.
    let row: Row = account(2).may_rewrite();
    store.update(&grant_of("elsewhere", 61), &row, &write).await.unwrap();
    let again = store.update(&grant_of("elsewhere", 61), &row, &write).await;
    assert!(matches!(again, Err(FenceError::Statement(_))), "{again:?}");
    assert_eq!((bench.balance(1).await, bench.balance(2).await), (Some(100), Some(1)));
}

/// What no trigger can know. If one of these is refused some day, the docs say too little of the guard.
async fn what_is_left<DB: Client>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 100).await;
    bench.insert_account(2, 100).await;
    bench.sql("UPDATE accounts SET fence_token = 34").await;
    bench.sql("DELETE FROM accounts WHERE id = 2").await;
    client::<DB>(&bench.url, &strict().script(DB::FLAVOR).unwrap()).unwrap();
    for passes in [
        // It was deleted before the guard was put up.
        "INSERT INTO accounts (id, balance, fence_token) VALUES (2, 1, 33)",
        // Nobody was granted this token; or on another resource.
        "UPDATE accounts SET balance = 1, fence_token = 35 WHERE id = 1",
        // Tombstones are kept until somebody with the right to do so removes them.
        "DELETE FROM accounts_fence_tombstones",
    ] {
        assert_eq!(client::<DB>(&bench.url, &format!("{passes};")), Ok(String::new()), "{passes}");
    }
    assert_eq!(contents(&bench), "1|1|0|35\n2|1|0|33");
}
