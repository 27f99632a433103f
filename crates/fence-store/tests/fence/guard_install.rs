//! Guards come and go: putting them up while others write, telling what is wrong with one, names of every kind, and the
//! way of an old table behind a fence.

use std::sync::atomic::{AtomicBool, Ordering};

use fence_store::{ColumnProblem, FenceError, Finding, Flavor, Guard, GuardState, Row, Upsert, fence_column_sql};
use redlock_core::FencingToken;
use sea_query::{Alias, Query};
use tokio::task::JoinSet;

use crate::clients::{Client, client};
use crate::support::{Bench, assert_stale, execute, grant, grant_of, on_every_database};

on_every_database! {
    a_guard_that_is_put_up_is_there_when_it_says_so_postgres
    a_guard_that_is_put_up_is_there_when_it_says_so_mariadb
    a_guard_that_is_put_up_is_there_when_it_says_so_sqlite
        => up_means_up;
    an_older_guard_is_replaced_in_place_postgres
    an_older_guard_is_replaced_in_place_mariadb
    an_older_guard_is_replaced_in_place_sqlite
        => no_gap_while_replacing;
    any_number_of_processes_may_put_a_guard_up_postgres
    any_number_of_processes_may_put_a_guard_up_mariadb
    any_number_of_processes_may_put_a_guard_up_sqlite
        => many_installers;
    what_is_wrong_with_a_guard_is_told_postgres
    what_is_wrong_with_a_guard_is_told_mariadb
    what_is_wrong_with_a_guard_is_told_sqlite
        => states;
    a_guard_stands_on_tables_of_any_name_postgres
    a_guard_stands_on_tables_of_any_name_mariadb
    a_guard_stands_on_tables_of_any_name_sqlite
        => wild_names;
    a_table_with_rows_comes_behind_a_fence_postgres
    a_table_with_rows_comes_behind_a_fence_mariadb
    a_table_with_rows_comes_behind_a_fence_sqlite
        => migration;
    what_a_guard_cannot_stand_on_is_told_postgres
    what_a_guard_cannot_stand_on_is_told_mariadb
    what_a_guard_cannot_stand_on_is_told_sqlite
        => unfit_tables;
}

fn strict() -> Guard {
    Guard::new("accounts", "id")
}

const FORGETFUL: &str = "UPDATE accounts SET n = n + 1 WHERE id = 1";
const WRITERS: usize = 4;

/// Writers without a fence, who were there before.
async fn up_means_up<DB: Client>() {
    let bench = Bench::<DB>::new(1).await;
    bench.insert_account(1, 0).await;
    let is_up = std::sync::Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (store, is_up) = (bench.another(1, None).await, is_up.clone());
        writers.spawn(async move {
            let mut written = 0_u64;
            loop {
                let must_be_refused = is_up.load(Ordering::SeqCst);
                match execute(store.pool(), FORGETFUL).await.map_err(FenceError::from) {
                    Ok(()) => {
                        assert!(!must_be_refused, "written after the guard was up");
                        written += 1;
                    }
                    Err(FenceError::Statement(_)) => return written,
                    // SQLite tells a reader of an old schema so.
                    Err(FenceError::Conflict { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
        });
    }
    let installer = bench.another(1, None).await;
    let wrote = || async { bench.number("SELECT n FROM accounts WHERE id = 1").await };
    redlock_bench::eventually(crate::support::DEADLINE, || async {
        match wrote().await {
            Some(n) if 10 < n => Ok(()),
            other => Err(format!("{other:?} writes")),
        }
    })
    .await
    .unwrap();
    installer.install_guard(&strict()).await.unwrap();
    is_up.store(true, Ordering::SeqCst);
    let written: u64 = writers.join_all().await.into_iter().sum();
    assert_eq!(wrote().await, Some(i64::try_from(written).unwrap()));
}

/// As an earlier version of this crate would have put it up.
fn of_version(version: u32, guard: &Guard, flavor: Flavor) -> String {
    let marks = |text: String, mark: &str| text.replace(&format!("{mark}1"), &format!("{mark}{version}"));
    marks(marks(guard.script(flavor).unwrap(), "fence guard "), "fence_guard_")
}

async fn no_gap_while_replacing<DB: Client>() {
    let bench = Bench::<DB>::new(2).await;
    bench.insert_account(1, 0).await;
    bench.store.install_guard(&strict()).await.unwrap();
    let over = std::sync::Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (store, over) = (bench.another(1, None).await, over.clone());
        writers.spawn(async move {
            let mut refused = 0_u64;
            while !over.load(Ordering::SeqCst) {
                match execute(store.pool(), FORGETFUL).await.map_err(FenceError::from) {
                    Err(FenceError::Statement(_)) => refused += 1,
                    Err(FenceError::Conflict { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
            refused
        });
    }
    for round in 0..10 {
        let guard = if round % 2 == 0 { strict() } else { strict().unique(["n"]) };
        client::<DB>(&bench.url, &of_version(0, &guard, DB::FLAVOR)).unwrap();
        assert_eq!(bench.store.guard_state(&guard).await.unwrap(), GuardState::Older { version: 0 });
        bench.store.install_guard(&guard).await.unwrap();
        assert_eq!(bench.store.guard_state(&guard).await.unwrap(), GuardState::Current);
    }
    over.store(true, Ordering::SeqCst);
    let refused: u64 = writers.join_all().await.into_iter().sum();
    assert!(0 < refused);
    assert_eq!(bench.number("SELECT n FROM accounts WHERE id = 1").await, Some(0));
}

async fn many_installers<DB: Client>() {
    let bench = Bench::<DB>::new(1).await;
    bench.insert_account(1, 0).await;
    let mut installers = JoinSet::new();
    for _ in 0..WRITERS {
        let store = bench.another(1, None).await;
        installers.spawn(async move {
            for _ in 0..5 {
                store.install_guard(&strict()).await.unwrap();
            }
        });
    }
    installers.join_all().await;
    assert_eq!(bench.store.guard_state(&strict()).await.unwrap(), GuardState::Current);
    assert!(execute(bench.store.pool(), FORGETFUL).await.is_err());
}

async fn states<DB: Client>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    let state = || async { store.guard_state(&strict()).await.unwrap() };
    let told = || async {
        let findings = store.check_guarded(&strict()).await.unwrap();
        findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(state().await, GuardState::Missing);
    assert!(told().await.contains("is missing: run install_guard"));
    store.install_guard(&strict()).await.unwrap();
    assert_eq!(state().await, GuardState::Current);
    assert_eq!(told().await, "");

    // One trigger is gone.
    let drop = match DB::FLAVOR {
        Flavor::Postgres => "DROP TRIGGER accounts_fence_delete ON accounts",
        _ => "DROP TRIGGER accounts_fence_delete",
    };
    bench.sql(drop).await;
    assert_eq!(state().await, GuardState::Altered { what: vec!["accounts_fence_delete".into()] });
    assert!(told().await.contains("was altered (accounts_fence_delete): run install_guard"));
    store.install_guard(&strict()).await.unwrap();
    assert_eq!(state().await, GuardState::Current);

    // One says something else.
    let script = strict().script(DB::FLAVOR).unwrap();
    client::<DB>(
        &bench.url,
        &script
            .replace("DELETE from accounts", "delete from accounts")
            .replace("DELETE presents", "delete presents")
            .replace("DELETE from %s", "delete from %s"),
    )
    .unwrap();
    assert_eq!(state().await, GuardState::Altered { what: vec!["accounts_fence_delete".into()] });
    if DB::FLAVOR == Flavor::Postgres {
        store.install_guard(&strict()).await.unwrap();
        bench.sql("ALTER TABLE accounts DISABLE TRIGGER accounts_fence_update").await;
        assert_eq!(state().await, GuardState::Altered { what: vec!["accounts_fence_update".into()] });
    }
    store.install_guard(&strict()).await.unwrap();
    assert_eq!(state().await, GuardState::Current);

    // It follows the other rule, or is from the future.
    store.install_guard(&strict().may_rewrite()).await.unwrap();
    assert_eq!(state().await, GuardState::OtherRule);
    client::<DB>(&bench.url, &of_version(2, &strict(), DB::FLAVOR)).unwrap();
    assert_eq!(state().await, GuardState::Newer { version: 2 });
    store.install_guard(&strict()).await.unwrap();

    // The tombstones are gone: the next delete would fail.
    bench.sql("DROP TABLE accounts_fence_tombstones").await;
    assert!(matches!(state().await, GuardState::Altered { .. }));
    store.install_guard(&strict()).await.unwrap();
    assert_eq!(told().await, "");

    store.remove_guard(&strict()).await.unwrap();
    store.remove_guard(&strict()).await.unwrap();
    assert_eq!(state().await, GuardState::Missing);
}

async fn wild_names<DB: Client>() {
    let bench = Bench::<DB>::new(2).await;
    let quote = if DB::FLAVOR == Flavor::MySql { "`" } else { "\"" };
    let quoted = |name: &str| format!("{quote}{}{quote}", name.replace(quote, &quote.repeat(2)));
    let long = "x".repeat(60);
    for (table, id, line, fence) in [
        ("select", "from", "where", "order"),
        ("we ird", "I D", "i d 2", "f\"e`n'ce"),
        ("T\"a`b'l$fence$e", "{key}", "{column}", "Größe"),
        ("it's \\' {table}; DROP TABLE accounts; --", "a\\", "b'", "c*/"),
        (long.as_str(), "highest", "message", "presented"),
    ] {
        let grant = |token| grant_of(id, token);
        let (name, first, second, column) = (quoted(table), quoted(id), quoted(line), quoted(fence));
        bench
            .sql(format!(
                "CREATE TABLE {name} ({first} BIGINT NOT NULL, {second} VARCHAR(20) NOT NULL, v BIGINT, \
                 {column} BIGINT NOT NULL DEFAULT 0, PRIMARY KEY ({first}, {second}))"
            ))
            .await;
        let guard = bench.store.guard_of(Alias::new(table)).await.unwrap().fence_column(Alias::new(fence));
        client::<DB>(&bench.url, &guard.script(DB::FLAVOR).unwrap()).unwrap();
        assert_eq!(bench.store.check_guarded(&guard).await.unwrap(), [], "{table}");

        let row = Row::new(Alias::new(table), Alias::new(id), 1)
            .and(Alias::new(line), "a'\\")
            .fence_column(Alias::new(fence));
        bench.store.upsert(&grant(2), &row, &Upsert::new().value("v", 1)).await.unwrap();
        bench.store.delete(&grant(3), &row).await.unwrap();
        let back = format!("INSERT INTO {name} ({first}, {second}, {column}) VALUES (1, 'b', 1), (1, 'c', 1)");
        client::<DB>(&bench.url, &format!("{back};")).unwrap();
        for forgetful in [format!("UPDATE {name} SET v = 1;"), format!("DELETE FROM {name};")] {
            let told = client::<DB>(&bench.url, &forgetful).unwrap_err();
            assert!(told.contains("fence: refused: "), "{told}");
        }
        let late = format!("UPDATE {name} SET {column} = 5 WHERE {second} = 'b'; UPDATE {name} SET {column} = 4;");
        let told = client::<DB>(&bench.url, &late).unwrap_err();
        assert!(told.contains("fence: stale: presented 4, highest 5"), "{told}");
        bench.store.remove_guard(&guard).await.unwrap();
    }
    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(0));

    // In another schema, next to a table of the same name.
    let schema = match DB::FLAVOR {
        Flavor::Sqlite => "main".to_owned(),
        Flavor::MySql => format!("{}_2", bench.url.rsplit('/').next().unwrap()),
        _ => "Other Schema".to_owned(),
    };
    let table = if DB::FLAVOR == Flavor::Sqlite { "elsewhere" } else { "accounts" };
    if DB::FLAVOR != Flavor::Sqlite {
        bench.sql(format!("CREATE SCHEMA {}", quoted(&schema))).await;
    }
    let name = format!("{}.{}", quoted(&schema), quoted(table));
    bench.sql(format!("CREATE TABLE {name} (id BIGINT PRIMARY KEY, fence_token BIGINT NOT NULL DEFAULT 0)")).await;
    let guard = Guard::new((Alias::new(&schema), Alias::new(table)), "id");
    client::<DB>(&bench.url, &guard.script(DB::FLAVOR).unwrap()).unwrap();
    assert_eq!(bench.store.check_guarded(&guard).await.unwrap(), []);
    assert_eq!(bench.store.guard_state(&strict()).await.unwrap(), GuardState::Missing);
    let told = client::<DB>(&bench.url, &format!("INSERT INTO {name} VALUES (1, 1); DELETE FROM {name};")).unwrap_err();
    assert!(told.contains("fence: refused: "), "{told}");
    bench.store.delete(&grant(2), &Row::new((Alias::new(&schema), Alias::new(table)), "id", 1)).await.unwrap();
    bench.store.remove_guard(&guard).await.unwrap();

    // What no database could take is refused before.
    for guard in [
        Guard::new("", "id"),
        Guard::new("a\0b", "id"),
        Guard::new("accounts", "id").and("ID"),
        Guard::new("accounts", "fence_token"),
        Guard::new("accounts", "buried_at"),
    ] {
        assert!(guard.script(DB::FLAVOR).is_err(), "{guard:?}");
    }
}

async fn migration<DB: Client>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    bench.sql("CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, status VARCHAR(20))").await;
    // More rows than one step of a backfill writes.
    bench
        .sql(
            "INSERT INTO orders (id) WITH RECURSIVE digits (d) AS (SELECT 0 UNION ALL SELECT d + 1 FROM digits WHERE d < 9) \
             SELECT a.d * 10000 + b.d * 1000 + c.d * 100 + e.d * 10 + f.d FROM digits a, digits b, digits c, digits e, \
             digits f WHERE a.d < 3",
        )
        .await;
    let missing = store.check_table("orders", "fence_token").await;
    assert!(matches!(missing, Err(FenceError::Column(ColumnProblem::Missing { .. }))), "{missing:?}");
    let guard = store.guard_of("orders").await.unwrap();
    assert_eq!(store.check_guarded(&guard).await.unwrap().len(), 2);
    let refused = store.install_guard(&guard).await;
    assert!(matches!(refused, Err(FenceError::Column(ColumnProblem::Missing { .. }))), "{refused:?}");

    store.add_fence_column("orders", "fence_token").await.unwrap();
    store.add_fence_column("orders", "fence_token").await.unwrap();
    store.check_table("orders", "fence_token").await.unwrap();
    // Fenced by the ledger so far, whose highest token is the floor of every row.
    store.claim_resources(&grant_of("orders", 70)).await.unwrap();
    bench.sql("UPDATE orders SET fence_token = 80 WHERE id = 5").await;
    let resource = redlock_core::Resource::new("orders").unwrap();
    let floor = store.highest_token(&resource).await.unwrap().unwrap();
    let floor = FencingToken::assume_granted(floor).unwrap();
    assert_eq!(store.backfill_fence("orders", "fence_token", Some(floor)).await.unwrap(), 29_999);
    assert_eq!(store.backfill_fence("orders", "fence_token", Some(floor)).await.unwrap(), 0);
    assert_eq!(bench.number("SELECT COUNT(*) FROM orders WHERE fence_token = 70").await, Some(29_999));
    store.install_guard(&guard).await.unwrap();
    assert_eq!(store.check_guarded(&guard).await.unwrap(), []);
    let order = |id: i64| Row::new("orders", "id", id);
    let pay = Query::update().value("status", "paid").to_owned();
    assert_stale(store.update(&grant_of("orders", 69), &order(1), &pay).await, 69, 70);
    store.update(&grant_of("orders", 71), &order(1), &pay).await.unwrap();

    // A column that allows NULL, from an earlier attempt.
    bench.sql("CREATE TABLE parcels (id BIGINT NOT NULL PRIMARY KEY, fence_token BIGINT)").await;
    bench.sql("INSERT INTO parcels (id) VALUES (1), (2)").await;
    let guard = store.guard_of("parcels").await.unwrap();
    let findings = store.check_guarded(&guard).await.unwrap();
    assert!(
        findings.contains(&Finding::Rows { table: "parcels".into(), rows: 2 }) || DB::FLAVOR == Flavor::Postgres,
        "{findings:?}"
    );
    assert!(findings.iter().any(|finding| finding.to_string().contains("make it NOT NULL DEFAULT 0")), "{findings:?}");
    assert_eq!(store.backfill_fence("parcels", "fence_token", None).await.unwrap(), 2);
    let left = store.check_guarded(&guard).await.unwrap();
    assert!(left.iter().all(|finding| !matches!(finding, Finding::Rows { .. })), "{left:?}");

    // The text for a migration does the same.
    bench.sql("CREATE TABLE bills (id BIGINT NOT NULL PRIMARY KEY)").await;
    client::<DB>(&bench.url, &format!("{};", fence_column_sql(DB::FLAVOR, "bills", "fence_token"))).unwrap();
    store.check_table("bills", "fence_token").await.unwrap();
}

async fn unfit_tables<DB: Client>() {
    let bench = Bench::<DB>::new(2).await;
    let store = &bench.store;
    let absent = store.install_guard(&Guard::new("nowhere", "id")).await;
    assert!(matches!(absent, Err(FenceError::SchemaMissing { .. })), "{absent:?}");
    // Two rows may share such a key.
    let guard = Guard::new("accounts", "balance");
    let refused = store.install_guard(&guard).await;
    assert!(matches!(refused, Err(FenceError::Column(ColumnProblem::NotUnique { .. }))), "{refused:?}");
    let findings = store.check_guarded(&guard).await.unwrap();
    assert!(findings.iter().any(|finding| matches!(finding, Finding::NotUnique { .. })), "{findings:?}");
    bench.sql("CREATE TABLE keyless (id BIGINT, fence_token BIGINT NOT NULL DEFAULT 0)").await;
    assert!(matches!(store.guard_of("keyless").await, Err(FenceError::Column(ColumnProblem::NotUnique { .. }))));

    // A guard over another unique key than the primary one.
    bench
        .sql("CREATE TABLE seats (id BIGINT PRIMARY KEY, seat BIGINT NOT NULL UNIQUE, fence_token BIGINT NOT NULL DEFAULT 0)")
        .await;
    store.install_guard(&Guard::new("seats", "seat").unique(["id"])).await.unwrap();
    assert_eq!(store.check_guarded(&Guard::new("seats", "seat").unique(["id"])).await.unwrap(), []);
    bench.sql("INSERT INTO seats VALUES (1, 10, 5)").await;
    store.delete(&grant(6), &Row::new("seats", "seat", 10)).await.unwrap();
    let back = client::<DB>(&bench.url, "INSERT INTO seats VALUES (2, 10, 5);").unwrap_err();
    assert!(back.contains("fence: stale: presented 5, highest 6"), "{back}");
}
