//! What only Postgres does.

use fence_store::{Dialect, FenceError, FenceStore, Isolation, Row, Upsert};
use redlock_bench::eventually;
use sea_query::{CommonTableExpression, Query, WithClause};
use sqlx::Postgres;

use crate::ledger::crowd;
use crate::support::{
    Bench, DEADLINE, ISOLATIONS, TestDb, account, assert_stale, database_on, execute, grant, grant_of, number, pool,
    run,
};

/// Under a snapshot the stale holder's own view is old; the row it writes is not.
#[test]
fn b61_a_stale_token_does_not_pass_on_an_old_snapshot_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(3).await;
        for (id, isolation) in (1..).zip(ISOLATIONS) {
            bench.insert_account(id, 0).await;
            // The old holder works under another resource's ledger row, so that only the row's own fence stands between.
            let old = grant_of("elsewhere", 7);
            let mut transaction = bench.store.begin_with(&old, isolation).await.unwrap();
            transaction.fetch_all("SELECT balance FROM accounts").await.unwrap();
            let newer = Query::update().value("balance", 8).to_owned();
            bench.store.update(&grant(8), &account(id), &newer).await.unwrap();

            let late = transaction.update(&account(id), Query::update().value("balance", 7)).await;
            if isolation == Isolation::ReadCommitted {
                assert_stale(late, 7, 8);
            } else {
                assert!(late.as_ref().is_err_and(FenceError::is_conflict), "{isolation:?}: {late:?}");
                let mut again = bench.store.begin_with(&old, isolation).await.unwrap();
                assert_stale(again.update(&account(id), Query::update().value("balance", 7)).await, 7, 8);
            }
            assert!(transaction.commit().await.is_err());
            assert_eq!(bench.balance(id).await, Some(8), "{isolation:?}");
        }
    });
}

#[test]
fn b65_a_lock_wait_rolls_back_the_whole_transaction_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench.insert_account(1, 0).await;
        bench.insert_account(2, 0).await;
        let impatient = bench.another(1, Some("SET lock_timeout = '50ms'")).await;
        let mut blocker = bench.store.pool().acquire().await.unwrap();
        Postgres::execute(&mut blocker, "BEGIN").await.unwrap();
        Postgres::execute(&mut blocker, "UPDATE accounts SET balance = 9 WHERE id = 2").await.unwrap();

        let mut transaction = impatient.begin(&grant(1)).await.unwrap();
        transaction.execute("UPDATE accounts SET balance = 1 WHERE id = 1").await.unwrap();
        let waited = transaction.execute("UPDATE accounts SET balance = 1 WHERE id = 2").await;
        assert!(waited.is_err_and(|error| error.is_conflict()));
        assert!(transaction.commit().await.is_err_and(|error| error.is_conflict()));
        Postgres::execute(&mut blocker, "ROLLBACK").await.unwrap();

        assert_eq!(bench.balance(1).await, Some(0));
        assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
        impatient.begin(&grant(1)).await.unwrap().commit().await.unwrap();
    });
}

/// On a server of its own, whose log nobody else writes to.
#[test]
fn b67_first_writes_in_a_crowd_make_no_noise_in_the_log_postgres() {
    run(async {
        let server = redlock_bench::sql::Postgres::start().unwrap();
        let (url, _) = database_on::<Postgres>(server.url()).await;
        let bench = Bench::<Postgres>::on(url, 32).await;
        crowd(&bench, bench.store.clone()).await;
        bench.store.pool().close().await;
        let log = server.log();
        let noise: Vec<_> = log.lines().filter(|line| line.contains("ERROR") || line.contains("deadlock")).collect();
        assert_eq!(noise, Vec::<&str>::new());
    });
}

/// sqlx keeps prepared statements by their text, and would send eight bytes of a float for the integer that was there
/// first.
#[test]
fn a_value_of_another_type_in_the_same_place_is_not_misread() {
    run(async {
        let bench = Bench::<Postgres>::new(1).await;
        bench.insert_account(1, 0).await;
        for (token, value) in
            [(1, sea_query::Value::from(7_i64)), (2, 7_i32.into()), (3, 7_f64.into()), (4, 7_i16.into())]
        {
            let write = Query::update().value("balance", value).to_owned();
            bench.store.update(&grant(token), &account(1), &write).await.unwrap();
            assert_eq!(bench.balance(1).await, Some(7), "token {token}");
        }
    });
}

/// A session that is ended from outside takes its transaction with it, and says so.
#[test]
fn a_terminated_session_leaves_nothing_behind() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench.insert_account(1, 0).await;
        let far = FenceStore::new(pool::<Postgres>(&bench.url, 1, None).await);
        let mut transaction = far.begin(&grant(1)).await.unwrap();
        transaction.execute("UPDATE accounts SET balance = 1").await.unwrap();
        let row = transaction.fetch_optional("SELECT pg_backend_pid()::bigint").await.unwrap().unwrap();
        let pid = Postgres::integer(&row, 0).unwrap().unwrap();
        let ticket = transaction.ticket();
        bench.number(format!("SELECT 1::bigint FROM pg_terminate_backend({pid})")).await;

        let committed = transaction.commit().await;
        assert!(matches!(committed, Err(FenceError::Unknown { .. })), "{committed:?}");
        assert_eq!(bench.store.settle(&ticket).await.unwrap(), fence_store::Settled::NotCommitted);
        assert_eq!(bench.balance(1).await, Some(0));
        far.begin(&grant(2)).await.unwrap().commit().await.unwrap();
    });
}

/// A commit that fails at its last moment is no unknown: the database said what it did.
#[test]
fn an_error_at_commit_is_told_as_one_at_a_statement() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench.sql("CREATE TABLE late (id BIGINT UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        transaction.execute("INSERT INTO late VALUES (1), (1)").await.unwrap();
        let committed = transaction.commit().await;
        assert!(matches!(committed, Err(FenceError::Database { .. })), "{committed:?}");

        // Two serializable transactions that read what the other one writes.
        let (mut one, mut two) = (
            bench.store.begin_with(&grant_of("one", 1), Isolation::Serializable).await.unwrap(),
            bench.store.begin_with(&grant_of("two", 1), Isolation::Serializable).await.unwrap(),
        );
        for (transaction, id) in [(&mut one, 1), (&mut two, 2)] {
            transaction.fetch_all("SELECT * FROM accounts").await.unwrap();
            let insert = Query::insert().into_table("accounts").columns(["id"]).values_panic([id.into()]).to_owned();
            transaction.run(&insert).await.unwrap();
        }
        one.commit().await.unwrap();
        let skewed = two.commit().await;
        assert!(skewed.as_ref().is_err_and(FenceError::is_conflict), "{skewed:?}");
        assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(1));
    });
}

/// The future is dropped while its statement waits for a lock, when the server cannot be asked to stop.
#[test]
fn a_statement_dropped_while_it_waits_for_a_lock_is_undone_when_the_wait_ends() {
    run(async {
        let bench = Bench::<Postgres>::new(4).await;
        bench.insert_account(1, 0).await;
        let observer = pool::<Postgres>(&bench.url, 1, None).await;
        let blocker = bench.store.begin(&grant_of("other", 1)).await.unwrap();
        let mut blocker = blocker;
        blocker.execute("UPDATE accounts SET balance = 5").await.unwrap();
        {
            let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
            let waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
                           AND wait_event_type = 'Lock'";
            let waits = eventually(DEADLINE, || async {
                match number(&observer, waiting).await {
                    Some(1) => Ok(()),
                    other => Err(format!("{other:?} are waiting")),
                }
            });
            tokio::select! {
                _ = transaction.execute("UPDATE accounts SET balance = 9") => panic!("the row is locked"),
                waits = waits => waits.unwrap(),
            }
        }
        blocker.commit().await.unwrap();
        eventually(DEADLINE, || async {
            match Postgres::open_transactions(&observer).await {
                0 => Ok(()),
                other => Err(format!("{other:?} are open")),
            }
        })
        .await
        .unwrap();
        assert_eq!(bench.balance(1).await, Some(5));
        execute(bench.store.pool(), "UPDATE accounts SET balance = 6").await.unwrap();
        assert_eq!(number(&observer, "SELECT balance FROM accounts").await, Some(6));
    });
}

/// Postgres carries out what a WITH clause writes, whether the statement behind it finds a row or not.
#[test]
fn a_with_clause_does_not_write_past_the_fence_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench.insert_account(1, 0).await;
        bench.sql("CREATE TABLE journal (v BIGINT)").await;
        let note = Query::insert().into_table("journal").columns(["v"]).values_panic([5.into()]).to_owned();
        let cte = CommonTableExpression::new().query(note).table_name("noted").to_owned();
        let mut write = Query::update().value("balance", 5).to_owned();
        write.with_cte(WithClause::new().cte(cte).to_owned());
        let refused = bench.store.update(&grant(5), &account(1), &write).await;
        assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");
        assert_eq!(bench.number("SELECT COUNT(*) FROM journal").await, Some(0));
    });
}

/// The table "a.b" and the table b of the schema a are two.
#[test]
fn a_dot_in_a_table_name_does_not_pass_for_a_schema_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench.sql("CREATE TABLE \"a.b\" (id BIGINT PRIMARY KEY, fence_token BIGINT NOT NULL DEFAULT 0)").await;
        bench.sql("CREATE SCHEMA a").await;
        bench.sql("CREATE TABLE a.b (id BIGINT PRIMARY KEY, fence_token TEXT NOT NULL DEFAULT '0')").await;
        bench.store.fence_of(&Row::new("a.b", "id", 1)).await.unwrap();
        let unfit = bench.store.fence_of(&Row::new(("a", "b"), "id", 1)).await;
        assert!(matches!(unfit, Err(FenceError::Column(_))), "{unfit:?}");
    });
}

#[test]
fn a_delete_that_a_trigger_suppresses_is_not_told_applied_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench.insert_account(1, 5).await;
        bench.sql("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'").await;
        bench.sql("CREATE TRIGGER keep BEFORE DELETE ON accounts FOR EACH ROW EXECUTE FUNCTION keep()").await;
        let kept = bench.store.delete(&grant(1), &account(1)).await;
        assert!(matches!(kept, Err(FenceError::Statement(_))), "{kept:?}");
        assert_eq!(bench.balance(1).await, Some(5));
    });
}

/// The insertion goes to another table, seen through this one, and is not counted.
#[test]
fn an_insertion_that_a_trigger_redirects_is_told_and_kept_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench.sql("CREATE TABLE part () INHERITS (accounts)").await;
        bench.sql("ALTER TABLE part ADD PRIMARY KEY (id)").await;
        bench
            .sql(
                "CREATE FUNCTION redirect() RETURNS trigger LANGUAGE plpgsql AS \
                 'BEGIN INSERT INTO part VALUES (NEW.*); RETURN NULL; END'",
            )
            .await;
        bench.sql("CREATE TRIGGER r BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION redirect()").await;
        for (id, row) in [(1, account(1)), (2, account(2).may_rewrite())] {
            let upsert = Upsert::new().on_insert("balance", 5).on_update("balance", 99);
            bench.store.upsert(&grant(1), &row, &upsert).await.unwrap();
            assert_eq!(bench.balance(id).await, Some(5));
        }
    });
}

/// A holder that is frozen in a transaction keeps the next one waiting, but not for ever.
#[test]
fn a_transaction_waits_for_locks_within_a_limit_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(3).await;
        let limit = async |transaction: &mut fence_store::Transaction<Postgres>| {
            let row = transaction.fetch_optional("SELECT current_setting('lock_timeout')").await.unwrap().unwrap();
            Postgres::text(&row, 0).unwrap().unwrap()
        };
        let mut frozen = bench.store.begin(&grant(1)).await.unwrap();
        assert_eq!(limit(&mut frozen).await, "10s");
        let impatient = bench.another(1, Some("SET lock_timeout = '200ms'")).await;
        let waited = impatient.begin(&grant(2)).await;
        assert!(waited.as_ref().is_err_and(FenceError::is_conflict), "{waited:?}");
        drop(frozen);
        let mut next = impatient.begin(&grant(2)).await.unwrap();
        assert_eq!(limit(&mut next).await, "200ms");
        next.commit().await.unwrap();
        // For the transaction only.
        let mut connection = bench.store.pool().acquire().await.unwrap();
        let row = Postgres::fetch_optional(&mut connection, "SELECT current_setting('lock_timeout')").await.unwrap();
        assert_eq!(Postgres::text(&row.unwrap(), 0).unwrap().unwrap(), "0");
    });
}

#[test]
fn installing_what_is_there_takes_no_rights_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        let name = bench.url.rsplit('/').next().unwrap();
        bench.sql(format!("CREATE ROLE role_{name}")).await;
        bench.sql(format!("GRANT SELECT, INSERT, UPDATE ON fence_ledger TO role_{name}")).await;
        let first: &'static str = Box::leak(format!("SET ROLE role_{name}").into_boxed_str());
        let low = bench.another(1, Some(first)).await;
        low.install_schema().await.unwrap();
        low.claim_resources(&grant(1)).await.unwrap();
    });
}

/// Who looked under lock first has a lock for it on the table. The row tells which of the two wrote it.
#[test]
fn only_a_key_that_is_proven_unique_is_written_in_one_statement_postgres() {
    run(async {
        let bench = Bench::<Postgres>::new(2).await;
        bench
            .sql(
                "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.alone := NOT EXISTS \
                 (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = TG_RELID \
                 AND mode = ''RowShareLock''); RETURN NEW; END'",
            )
            .await;
        for (table, key, value, expected) in [
            ("a1", "id BIGINT PRIMARY KEY", sea_query::Value::from(1_i64), true),
            ("a2", "id BIGINT PRIMARY KEY", 1.0.into(), false),
            ("a3", "id TEXT UNIQUE", "1".into(), true),
            ("a4", "id BIGINT", 1.into(), false),
            ("a5", "id BIGINT UNIQUE DEFERRABLE INITIALLY DEFERRED", 1.into(), false),
            ("a6", "id VARCHAR(5) COLLATE \"C\" UNIQUE", "1".into(), true),
            ("a7", "id BIGINT, part BIGINT DEFAULT 1, UNIQUE (id, part)", 1.into(), false),
            ("a8", "id BIGINT, CHECK (true), UNIQUE (id) INCLUDE (v)", 1.into(), true),
        ] {
            let rest = "v BIGINT DEFAULT 0, alone BOOLEAN, fence_token BIGINT NOT NULL DEFAULT 0";
            bench.sql(format!("CREATE TABLE {table} ({rest}, {key})")).await;
            bench.sql(format!("INSERT INTO {table} (id) VALUES ('1')")).await;
            bench.sql(format!("CREATE TRIGGER t BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION tell()")).await;
            let row = Row::new(table, "id", value);
            bench.store.update(&grant(1), &row, Query::update().value("v", 1)).await.unwrap();
            let alone = bench.number(format!("SELECT COUNT(*) FROM {table} WHERE alone")).await;
            assert_eq!(alone, Some(i64::from(expected)), "{key}");
        }
        bench.sql("CREATE UNIQUE INDEX i ON a4 ((id + 0)); CREATE UNIQUE INDEX j ON a4 (id) WHERE id = 1").await;
        bench.sql("CREATE TABLE heir () INHERITS (a1); ALTER TABLE heir ADD PRIMARY KEY (id)").await;
        let fresh = bench.another(1, None).await;
        for table in ["a4", "a1"] {
            fresh.update(&grant(2), &Row::new(table, "id", 1), Query::update().value("v", 2)).await.unwrap();
            let alone = bench.number(format!("SELECT COUNT(*) FROM {table} WHERE alone")).await;
            assert_eq!(alone, Some(0), "{table}");
        }
    });
}
