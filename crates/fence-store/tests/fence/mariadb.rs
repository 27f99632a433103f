//! What only MySQL and MariaDB do.

use fence_store::{ColumnProblem, Dialect, FenceError, FenceStore, Isolation, LedgerTable, Row, Settled, Upsert};
use sea_query::{Expr, ExprTrait, Query};
use sqlx::MySql;

use crate::support::{Bench, ISOLATIONS, account, assert_stale, grant, grant_of, run};

/// Under a snapshot the stale holder's own view is old; the row it writes is not. With `innodb_snapshot_isolation` (on by
/// default in newer releases) the server gives up such a transaction with error 1020.
#[test]
fn b61_a_stale_token_does_not_pass_on_an_old_snapshot_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(3).await;
        let mut id = 0;
        for setting in ["SET SESSION innodb_snapshot_isolation = OFF", "SET SESSION innodb_snapshot_isolation = ON"] {
            let store = bench.another(2, Some(setting)).await;
            for isolation in ISOLATIONS {
                id += 1;
                bench.insert_account(id, 0).await;
                bench.insert_account(id + 100, 0).await;
                // The old holder works under another resource's ledger row, so that only the row's own fence stands
                // between. It reads another row: at serializable a read locks what it reads.
                let old = grant_of("elsewhere", 7);
                let mut transaction = store.begin_with(&old, isolation).await.unwrap();
                let other = format!("SELECT balance FROM accounts WHERE id = {}", id + 100);
                transaction.fetch_all(sqlx::AssertSqlSafe(other)).await.unwrap();
                let newer = Query::update().value("balance", 8).to_owned();
                bench.store.update(&grant(8), &account(id), &newer).await.unwrap();

                let context = format!("{setting}, {isolation:?}");
                let late = transaction.update(&account(id), Query::update().value("balance", 7)).await;
                match late {
                    Err(FenceError::Stale { .. }) => assert_stale(late, 7, 8),
                    Err(FenceError::Conflict { .. }) => {
                        assert!(setting.ends_with("ON") && isolation != Isolation::ReadCommitted, "{context}");
                        let mut again = store.begin_with(&old, isolation).await.unwrap();
                        assert_stale(again.update(&account(id), Query::update().value("balance", 7)).await, 7, 8);
                    }
                    other => panic!("{context}: {other:?}"),
                }
                assert!(transaction.commit().await.is_err());
                assert_eq!(bench.balance(id).await, Some(8), "{context}");
            }
        }
    });
}

#[test]
fn b61_a_changed_record_is_a_conflict_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(3).await;
        bench.insert_account(1, 0).await;
        let store = bench.another(1, Some("SET SESSION innodb_snapshot_isolation = ON")).await;
        let mut transaction = store.begin_with(&grant(1), Isolation::RepeatableRead).await.unwrap();
        transaction.fetch_all("SELECT balance FROM accounts").await.unwrap();
        bench.sql("UPDATE accounts SET balance = 5").await;
        let late = transaction.execute("UPDATE accounts SET balance = 1").await;
        assert!(late.is_err_and(|error| error.is_conflict()));
        assert!(transaction.commit().await.is_err_and(|error| error.is_conflict()));
        assert_eq!(bench.balance(1).await, Some(5));
        assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
    });
}

/// Error 1205 undoes one statement and leaves the transaction open with the earlier ones in it.
#[test]
fn b65_a_lock_wait_rolls_back_the_whole_transaction_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        bench.insert_account(1, 0).await;
        bench.insert_account(2, 0).await;
        let impatient = bench.another(1, Some("SET SESSION innodb_lock_wait_timeout = 1")).await;
        let mut blocker = bench.store.pool().acquire().await.unwrap();
        MySql::execute(&mut blocker, "BEGIN").await.unwrap();
        MySql::execute(&mut blocker, "UPDATE accounts SET balance = 9 WHERE id = 2").await.unwrap();

        let mut transaction = impatient.begin(&grant(1)).await.unwrap();
        transaction.execute("UPDATE accounts SET balance = 1 WHERE id = 1").await.unwrap();
        let waited = transaction.execute("UPDATE accounts SET balance = 1 WHERE id = 2").await;
        assert!(waited.is_err_and(|error| error.is_conflict()));
        // Code that swallows the error and commits stores nothing.
        assert!(transaction.execute("UPDATE accounts SET balance = 2 WHERE id = 1").await.is_err());
        assert!(transaction.commit().await.is_err_and(|error| error.is_conflict()));
        assert_eq!(bench.balance(1).await, Some(0));
        assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));

        // A row's own fence: the same.
        let waited = impatient.update(&grant(1), &account(2), Query::update().value("balance", 1)).await;
        assert!(waited.as_ref().is_err_and(FenceError::is_conflict), "{waited:?}");
        MySql::execute(&mut blocker, "ROLLBACK").await.unwrap();

        // The one connection of the pool is clean.
        let mut connection = impatient.pool().acquire().await.unwrap();
        let row = MySql::fetch_optional(&mut connection, "SELECT CAST(@@in_transaction AS SIGNED)").await.unwrap();
        assert_eq!(MySql::integer(&row.unwrap(), 0).unwrap(), Some(0));
        drop(connection);
        impatient.begin(&grant(1)).await.unwrap().commit().await.unwrap();
    });
}

/// Error 1213 rolls back everything; the second ROLLBACK, ours, is no error, and nothing runs outside the fence then.
#[test]
fn b65_a_dead_lock_is_a_conflict_and_ends_the_transaction_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        for id in 1..=50 {
            bench.insert_account(id, 0).await;
        }
        let store = bench.another(1, None).await;
        let mut transaction = store.begin(&grant(1)).await.unwrap();
        transaction.execute("UPDATE accounts SET balance = 1 WHERE id = 1").await.unwrap();
        // Has changed more rows, so that the other one is the victim.
        let mut heavier = bench.store.pool().acquire().await.unwrap();
        MySql::execute(&mut heavier, "BEGIN").await.unwrap();
        MySql::execute(&mut heavier, "UPDATE accounts SET balance = 9 WHERE 1 < id").await.unwrap();

        let (blocked, victim) = tokio::join!(
            MySql::execute(&mut heavier, "UPDATE accounts SET balance = 9 WHERE id = 1"),
            transaction.execute("UPDATE accounts SET balance = 1 WHERE id = 2"),
        );
        assert!(victim.is_err_and(|error| error.is_conflict()));
        blocked.unwrap();
        MySql::execute(&mut heavier, "COMMIT").await.unwrap();

        // The server would run this on its own, as no transaction is open any more.
        assert!(transaction.execute("UPDATE accounts SET balance = 2 WHERE id = 3").await.is_err());
        assert!(transaction.commit().await.is_err_and(|error| error.is_conflict()));
        assert_eq!(bench.number("SELECT COUNT(*) FROM accounts WHERE balance = 9").await, Some(50));
        assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
        store.begin(&grant(1)).await.unwrap().commit().await.unwrap();
    });
}

/// The same dead-lock on the bare connection, where it goes by unseen: the commit notices that the transaction is gone.
#[test]
fn a_dead_lock_on_the_bare_connection_is_noticed_at_commit() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        for id in 1..=50 {
            bench.insert_account(id, 0).await;
        }
        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        let connection = transaction.connection().await.unwrap();
        MySql::execute(connection, "UPDATE accounts SET balance = 1 WHERE id = 1").await.unwrap();
        let mut heavier = bench.store.pool().acquire().await.unwrap();
        MySql::execute(&mut heavier, "BEGIN").await.unwrap();
        MySql::execute(&mut heavier, "UPDATE accounts SET balance = 9 WHERE 1 < id").await.unwrap();
        let (blocked, victim) = tokio::join!(
            MySql::execute(&mut heavier, "UPDATE accounts SET balance = 9 WHERE id = 1"),
            MySql::execute(connection, "UPDATE accounts SET balance = 1 WHERE id = 2"),
        );
        blocked.unwrap();
        assert!(victim.is_err());
        MySql::execute(&mut heavier, "COMMIT").await.unwrap();
        assert!(transaction.commit().await.is_err());
        assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
    });
}

/// Its UPDATE is a transaction of its own, and was kept when the SELECT failed: "nothing was written" would be wrong.
#[test]
fn a_claim_that_could_not_read_may_have_raised_the_fence_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        bench.insert_account(1, 0).await;
        let unread = bench.store.claim(&grant(5), &account(1), ["no_such_column"]).await;
        assert!(matches!(unread, Err(FenceError::Unknown { .. })), "{unread:?}");
        assert_eq!(bench.store.fence_of(&account(1)).await.unwrap(), Some(5));
        assert_stale(bench.store.claim(&grant(4), &account(1), ["balance"]).await.map(drop), 4, 5);
        bench.store.claim(&grant(5), &account(1), ["balance"]).await.unwrap();
    });
}

/// A duplicate of another unique key is the caller's business, not a row that somebody else inserted.
#[test]
fn an_insert_that_violates_another_key_is_an_error_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        bench.sql("ALTER TABLE accounts ADD UNIQUE KEY (n)").await;
        bench.insert_account(1, 0).await;
        let clash = Upsert::new().value("n", 0);
        let refused = bench.store.upsert(&grant(1), &account(2), &clash).await;
        assert!(matches!(refused, Err(FenceError::Database { .. })), "{refused:?}");
        assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(1));
        assert_eq!(bench.number("SELECT fence_token FROM accounts WHERE id = 1").await, Some(0));
    });
}

/// A trigger that assigns a column takes away what `LAST_INSERT_ID(expr)` reported. Told "not applied", people write again.
#[test]
fn a_write_to_a_table_with_a_trigger_is_told_as_it_was_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(3).await;
        bench.insert_account(1, 0).await;
        bench.sql("CREATE TRIGGER count BEFORE UPDATE ON accounts FOR EACH ROW SET NEW.n = OLD.n + 1").await;
        let add = Query::update().value("balance", Expr::col("balance").add(5)).to_owned();

        bench.store.update(&grant(5), &account(1), &add).await.unwrap();
        let claim = bench.store.claim(&grant(6), &account(1), ["balance"]).await.unwrap();
        claim.update(&add).await.unwrap();
        claim.update(&add).await.unwrap();
        let deposit = Upsert::new().on_update("balance", Expr::col("balance").add(5));
        bench.store.upsert(&grant(7), &account(1).may_rewrite(), &deposit).await.unwrap();
        let mut transaction = bench.store.begin(&grant(8)).await.unwrap();
        transaction.update(&account(1), &add).await.unwrap();
        transaction.rollback().await;
        assert_eq!(bench.balance(1).await, Some(20));
    });
}

#[test]
fn triggers_that_insert_elsewhere_change_no_outcome_mariadb() {
    for event in ["BEFORE", "AFTER"] {
        for action in ["INSERT INTO audit (v) VALUES (LAST_INSERT_ID(77))", "SET @seen = LAST_INSERT_ID(77)"] {
            run(async move {
                let bench = Bench::<MySql>::new(3).await;
                bench.insert_account(1, 0).await;
                bench.sql("CREATE TABLE audit (id BIGINT AUTO_INCREMENT PRIMARY KEY, v BIGINT)").await;
                bench.sql(format!("CREATE TRIGGER t {event} UPDATE ON accounts FOR EACH ROW {action}")).await;
                for token in 1..=3 {
                    let write = Query::update().value("balance", token).to_owned();
                    bench.store.update(&grant(token), &account(1), &write).await.unwrap();
                }
                let write = Query::update().value("balance", 3).to_owned();
                bench.store.update(&grant(3), &account(1).may_rewrite(), &write).await.unwrap();
                assert_stale(bench.store.update(&grant(2), &account(1), &write).await, 2, 3);
                bench.store.claim(&grant(4), &account(1), ["n"]).await.unwrap();
                bench.store.delete(&grant(5), &account(1)).await.unwrap();
                bench.store.upsert(&grant(6), &account(1), &Upsert::new().value("balance", 1)).await.unwrap();
                bench.store.upsert(&grant(7), &account(1), &Upsert::new().value("balance", 1)).await.unwrap();
            });
        }
    }
}

#[test]
fn a_fenced_update_leaves_the_callers_last_insert_id_alone_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(3).await;
        bench.insert_account(1, 0).await;
        bench.sql("CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY) AUTO_INCREMENT = 500").await;
        let mut transaction = bench.store.begin(&grant(34)).await.unwrap();
        transaction.execute("INSERT INTO orders VALUES ()").await.unwrap();
        transaction.update(&account(1), Query::update().value("balance", 1)).await.unwrap();
        let row = transaction.fetch_optional("SELECT CAST(LAST_INSERT_ID() AS SIGNED)").await.unwrap().unwrap();
        assert_eq!(MySql::integer(&row, 0).unwrap(), Some(500));
    });
}

/// Without autocommit a statement on its own is not kept, though it was acknowledged.
#[test]
fn what_was_applied_is_kept_without_autocommit_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        bench.insert_account(1, 100).await;
        let store = bench.another(1, Some("SET autocommit = 0")).await;
        store.update(&grant(1), &account(1), Query::update().value("balance", 1)).await.unwrap();
        assert_eq!(bench.balance(1).await, Some(1));
        store.upsert(&grant(2), &account(1), &Upsert::new().value("balance", 2)).await.unwrap();
        assert_eq!(bench.balance(1).await, Some(2));
        store.upsert(&grant(2), &account(2), &Upsert::new().value("balance", 2)).await.unwrap();
        assert_eq!(bench.balance(2).await, Some(2));
        let claim = store.claim(&grant(3), &account(1), ["balance"]).await.unwrap();
        assert_eq!(bench.store.fence_of(&account(1)).await.unwrap(), Some(3));
        assert_stale(bench.store.update(&grant(2), &account(1), Query::update().value("balance", 9)).await, 2, 3);
        claim.update(Query::update().value("balance", 3)).await.unwrap();
        assert_eq!(bench.balance(1).await, Some(3));
        // A claim reads what is there now, not what an earlier look on the same connection saw.
        store.fence_of(&account(1)).await.unwrap();
        bench.sql("UPDATE accounts SET balance = 4 WHERE id = 1").await;
        let claim = store.claim(&grant(3), &account(1), ["balance"]).await.unwrap();
        assert_eq!(claim.get::<i64>("balance").unwrap(), 4);
        claim.delete().await.unwrap();
        assert_eq!(bench.balance(1).await, None);
        store.claim_resources(&grant(4)).await.unwrap();
        assert_stale(bench.store.begin(&grant(3)).await, 3, 4);
    });
}

/// With `completion_type = CHAIN` a COMMIT opens the next transaction, and the connection would go back with it.
#[test]
fn what_was_applied_is_kept_after_a_chaining_commit_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        bench.insert_account(1, 0).await;
        let store = bench.another(1, Some("SET completion_type = 1")).await;
        store.begin(&grant(1)).await.unwrap().commit().await.unwrap();
        store.update(&grant(1), &account(1), Query::update().value("balance", 1)).await.unwrap();
        assert_eq!(bench.balance(1).await, Some(1));
        store.begin(&grant(2)).await.unwrap().rollback().await;
        store.update(&grant(2), &account(1), Query::update().value("balance", 2)).await.unwrap();
        assert_eq!(bench.balance(1).await, Some(2));
    });
}

/// MySQL commits by itself before TRUNCATE and its like, and with it goes the lock on the ledger's row.
#[test]
fn a_statement_that_commits_by_itself_is_refused_in_a_transaction_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(3).await;
        bench.insert_account(1, 0).await;
        bench.sql("CREATE TABLE scratch (id BIGINT) ENGINE=InnoDB").await;
        let statements = [
            "TRUNCATE TABLE scratch",
            "ALTER TABLE scratch ADD COLUMN n BIGINT",
            "CREATE TABLE other (id BIGINT)",
            "DROP TABLE scratch",
            "RENAME TABLE scratch TO other",
            "LOCK TABLES scratch WRITE",
            "START TRANSACTION",
            "SET autocommit = 1",
            "ANALYZE TABLE scratch",
        ];
        for text in statements {
            let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
            transaction.execute("UPDATE accounts SET balance = 1").await.unwrap();
            let refused = transaction.execute(text).await;
            assert!(matches!(refused, Err(FenceError::Statement(_))), "{text}: {refused:?}");
            transaction.rollback().await;
            assert_eq!(bench.balance(1).await, Some(0), "{text}");
        }
        // These do not.
        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        transaction.execute("CREATE TEMPORARY TABLE mine (id BIGINT)").await.unwrap();
        transaction.execute("DROP TEMPORARY TABLE mine").await.unwrap();
        transaction.commit().await.unwrap();

        // What hides from the first word is noticed at the end: nobody is told that it was kept.
        bench.sql("CREATE PROCEDURE sneak() COMMIT").await;
        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        transaction.execute("CALL sneak()").await.unwrap();
        assert!(transaction.commit().await.is_err());
    });
}

/// MyISAM keeps what was rolled back, and a key of a part of the name takes two resources for one.
#[test]
fn tables_that_cannot_roll_back_are_refused_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(3).await;
        bench.sql("ALTER TABLE accounts ENGINE=MyISAM").await;
        bench.insert_account(1, 0).await;
        let refused = bench.store.update(&grant(1), &account(1), Query::update().value("balance", 1)).await;
        assert!(matches!(refused, Err(FenceError::Column(ColumnProblem::Engine { .. }))), "{refused:?}");
        let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
        let refused = transaction.update(&account(1), Query::update().value("balance", 1)).await;
        assert!(matches!(refused, Err(FenceError::Column(ColumnProblem::Engine { .. }))), "{refused:?}");
        drop(transaction);
        assert_eq!(bench.balance(1).await, Some(0));
        let columns = "resource varbinary(1024) NOT NULL, token bigint NOT NULL DEFAULT 0, \
                       transaction_id bigint NOT NULL DEFAULT 0, raised_at datetime(6) NOT NULL";
        for (name, rest) in [
            ("myisam", ", PRIMARY KEY (resource(900))) ENGINE=MyISAM"),
            ("partial", ", PRIMARY KEY (resource(9)))"),
            ("keyless", ", KEY (resource))"),
            ("wide", ", UNIQUE KEY (resource, token))"),
        ] {
            bench.sql(format!("CREATE TABLE {name} ({columns}{rest}")).await;
            let ledger = LedgerTable::new(name).unwrap();
            let store = FenceStore::with_ledger(bench.store.pool().clone(), ledger);
            let refused = store.install_schema().await;
            assert!(matches!(refused, Err(FenceError::Column(_))), "{name}: {refused:?}");
            assert!(store.begin(&grant(1)).await.is_err(), "{name}");
        }
    });
}

/// A number compared with text makes numbers of the texts: 0 is equal to every name.
#[test]
fn a_key_of_another_type_that_names_several_rows_is_refused_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(3).await;
        bench.sql("CREATE TABLE codes (code VARCHAR(20) PRIMARY KEY, fence_token BIGINT NOT NULL DEFAULT 0)").await;
        bench.sql("INSERT INTO codes (code) VALUES ('a'), ('b'), ('c')").await;
        let refused = bench.store.delete(&grant(1), &Row::new("codes", "code", 0)).await;
        assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");
        assert_eq!(bench.number("SELECT COUNT(*) FROM codes").await, Some(3));
    });
}

/// A session that is ended from outside takes its transaction with it, and says so.
#[test]
fn a_killed_session_leaves_nothing_behind_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        bench.insert_account(1, 0).await;
        let far = bench.another(1, None).await;
        let mut transaction = far.begin(&grant(1)).await.unwrap();
        transaction.execute("UPDATE accounts SET balance = 1").await.unwrap();
        let row = transaction.fetch_optional("SELECT CAST(CONNECTION_ID() AS SIGNED)").await.unwrap().unwrap();
        let id = MySql::integer(&row, 0).unwrap().unwrap();
        let ticket = transaction.ticket();
        bench.sql(format!("KILL {id}")).await;
        let committed = transaction.commit().await;
        assert!(matches!(committed, Err(FenceError::Unknown { .. })), "{committed:?}");
        assert_eq!(bench.store.settle(&ticket).await.unwrap(), Settled::NotCommitted);
        far.update(&grant(2), &account(1), Query::update().value("balance", 1)).await.unwrap();
    });
}

/// The session counts the transactions that were begun on it.
#[test]
fn only_a_key_that_is_proven_unique_is_written_in_one_statement_mariadb() {
    run(async {
        let bench = Bench::<MySql>::new(2).await;
        let store = bench.another(1, None).await;
        let begun = async || {
            let status = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.session_status \
                          WHERE variable_name = 'COM_BEGIN'";
            crate::support::number(store.pool(), status).await.unwrap()
        };
        for (table, key, value, expected) in [
            ("a1", "id BIGINT PRIMARY KEY", sea_query::Value::from(1_i64), true),
            ("a2", "id BIGINT PRIMARY KEY", 1.0.into(), false),
            ("a3", "id VARCHAR(20) UNIQUE", "1".into(), true),
            ("a4", "id VARCHAR(20) UNIQUE", 1.into(), false),
            ("a5", "id VARCHAR(20), UNIQUE (id(1))", "1".into(), false),
            ("a6", "id BIGINT", 1.into(), false),
            ("a7", "id BIGINT, part BIGINT DEFAULT 1, UNIQUE (id, part)", 1.into(), false),
            ("a8", "id VARBINARY(20) UNIQUE", b"1".to_vec().into(), true),
        ] {
            let rest = "v BIGINT DEFAULT 0, fence_token BIGINT NOT NULL DEFAULT 0";
            bench.sql(format!("CREATE TABLE {table} ({rest}, {key}) CHARACTER SET utf8mb4")).await;
            bench.sql(format!("INSERT INTO {table} (id) VALUES ('1')")).await;
            let before = begun().await;
            let row = Row::new(table, "id", value);
            store.update(&grant(1), &row, Query::update().value("v", 1)).await.unwrap();
            assert_eq!(begun().await == before, expected, "{key}");
        }
    });
}
