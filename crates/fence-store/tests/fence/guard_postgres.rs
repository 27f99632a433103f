//! Guards on Postgres: roles, partitions, commits, and what the docs say is left.

use fence_store::{FenceError, Flavor, Guard};

use crate::clients::client;
use crate::support::{Bench, assert_stale, grant_of, run};

#[test]
fn the_writer_needs_no_rights_on_the_tombstones_postgres() {
    run(async {
        let bench = Bench::<sqlx::Postgres>::new(2).await;
        bench.store.install_guard(&Guard::new("accounts", "id")).await.unwrap();
        let role = format!("role_{}", bench.url.rsplit('/').next().unwrap());
        bench.sql(format!("CREATE ROLE {role}")).await;
        bench.sql(format!("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON accounts TO {role}")).await;
        // Somebody who puts things of his own on the search path.
        let prologue = format!(
            "CREATE SCHEMA IF NOT EXISTS mine AUTHORIZATION {role}; SET ROLE {role}; \
             CREATE OR REPLACE FUNCTION mine.abs(bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 99::bigint'; \
             SET search_path = mine, pg_catalog, public; "
        );
        let as_role = |text: &str| client::<sqlx::Postgres>(&bench.url, &format!("{prologue}{text}"));
        let lawful = "INSERT INTO accounts (id, fence_token) VALUES (1, 5); BEGIN; \
            UPDATE accounts SET fence_token = -6 WHERE id = 1; DELETE FROM accounts WHERE id = 1; COMMIT; \
            INSERT INTO accounts (id, fence_token) VALUES (2, 7);";
        as_role(lawful).unwrap();
        for (refused, words) in [
            ("INSERT INTO accounts (id, fence_token) VALUES (1, 5);", "presented 5, highest 6"),
            ("UPDATE accounts SET balance = 1, fence_token = 6 WHERE id = 2;", "presented 6, highest 7"),
            ("TRUNCATE accounts;", "fence: refused: "),
            ("DELETE FROM accounts_fence_tombstones;", "permission denied"),
            ("ALTER TABLE accounts DISABLE TRIGGER ALL;", "must be owner"),
            ("SET session_replication_role = replica;", "permission denied"),
        ] {
            // The client's user may take its own role back; a program that logs in as the role could not.
            let told = as_role(refused).unwrap_err();
            assert!(told.contains(words), "{refused}: {told}");
        }
        // The owner and a superuser can, and the docs say so.
        client::<sqlx::Postgres>(
            &bench.url,
            "SET session_replication_role = replica; UPDATE accounts SET balance = 1;",
        )
        .unwrap();
        assert_eq!(bench.balance(2).await, Some(1));
    });
}

/// A partition has the guard of its table, whichever way it is written; moving a row to another one is a change of its key.
#[test]
fn partitions_are_guarded_by_the_guard_of_their_table_postgres() {
    run(async {
        let bench = Bench::<sqlx::Postgres>::new(2).await;
        bench
            .sql(
                "CREATE TABLE parted (id BIGINT, v BIGINT, fence_token BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (id)) \
                 PARTITION BY RANGE (id)",
            )
            .await;
        bench.sql("CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10)").await;
        bench.sql("INSERT INTO parted VALUES (1, 1, 34)").await;
        let guard = bench.store.guard_of("parted").await.unwrap();
        bench.store.install_guard(&guard).await.unwrap();
        // One that comes later.
        bench.sql("CREATE TABLE high PARTITION OF parted FOR VALUES FROM (10) TO (20)").await;
        bench.sql("INSERT INTO high VALUES (11, 1, 34)").await;
        assert_eq!(bench.store.check_guarded(&guard).await.unwrap(), []);
        for (table, id) in [("parted", 1), ("low", 1), ("parted", 11), ("high", 11)] {
            for statement in [
                format!("UPDATE {table} SET v = 2, fence_token = 33 WHERE id = {id}"),
                format!("DELETE FROM {table} WHERE id = {id}"),
                format!("UPDATE parted SET id = 15 - id, fence_token = 50 WHERE id = {id}"),
            ] {
                let told = client::<sqlx::Postgres>(&bench.url, &format!("{statement};")).unwrap_err();
                assert!(told.contains("fence: "), "{statement}: {told}");
            }
        }
        assert!(client::<sqlx::Postgres>(&bench.url, "TRUNCATE parted;").is_err());
        assert_eq!(bench.number("SELECT COUNT(*) FROM parted WHERE v = 1 AND fence_token = 34").await, Some(2));
        // The hole that the docs name.
        client::<sqlx::Postgres>(&bench.url, "TRUNCATE low;").unwrap();
        assert_eq!(bench.number("SELECT COUNT(*) FROM parted").await, Some(1));
    });
}

/// Not a partition, which has the guard of its table: an heir has triggers of its own, or none.
#[test]
fn rows_of_inherited_tables_are_not_guarded_until_theirs_is_postgres() {
    run(async {
        let bench = Bench::<sqlx::Postgres>::new(2).await;
        bench.sql("CREATE TABLE heirs (PRIMARY KEY (id)) INHERITS (accounts)").await;
        bench.sql("INSERT INTO heirs (id, balance, fence_token) VALUES (1, 100, 34)").await;
        bench.store.install_guard(&Guard::new("accounts", "id")).await.unwrap();
        let late = "UPDATE accounts SET balance = 1, fence_token = 33 WHERE id = 1;";
        client::<sqlx::Postgres>(&bench.url, late).unwrap();
        bench.store.install_guard(&Guard::new("heirs", "id")).await.unwrap();
        let later = "UPDATE accounts SET balance = 2, fence_token = 32 WHERE id = 1;";
        let told = client::<sqlx::Postgres>(&bench.url, later).unwrap_err();
        assert!(told.contains("fence: stale: presented 32, highest 33"), "{told}");
        assert_eq!(bench.balance(1).await, Some(1));
    });
}

/// A trigger of the table's own is put off to the commit, and writes there.
#[test]
fn a_refusal_at_commit_is_stale_too_postgres() {
    run(async {
        let bench = Bench::<sqlx::Postgres>::new(2).await;
        bench.insert_account(1, 100).await;
        bench.store.install_guard(&Guard::new("accounts", "id")).await.unwrap();
        bench.sql("UPDATE accounts SET fence_token = 34 WHERE id = 1").await;
        bench.sql("CREATE TABLE journal (token BIGINT)").await;
        bench
            .sql(
                "CREATE FUNCTION carry() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN \
                 UPDATE accounts SET balance = 1, fence_token = NEW.token WHERE id = 1; RETURN NULL; END'",
            )
            .await;
        bench
            .sql(
                "CREATE CONSTRAINT TRIGGER carry AFTER INSERT ON journal DEFERRABLE INITIALLY DEFERRED \
                 FOR EACH ROW EXECUTE FUNCTION carry()",
            )
            .await;
        let mut transaction = bench.store.begin(&grant_of("journal", 33)).await.unwrap();
        transaction.execute("INSERT INTO journal VALUES (33)").await.unwrap();
        assert_stale(transaction.commit().await, 33, 34);
        assert_eq!(bench.balance(1).await, Some(100));
        assert_eq!(bench.number("SELECT COUNT(*) FROM journal").await, Some(0));
    });
}

#[test]
fn a_key_that_is_not_decided_at_once_is_refused_by_the_text_itself_postgres() {
    run(async {
        let bench = Bench::<sqlx::Postgres>::new(2).await;
        bench.sql("CREATE TABLE late (id BIGINT UNIQUE DEFERRABLE, fence_token BIGINT NOT NULL DEFAULT 0)").await;
        let script = Guard::new("late", "id").script(Flavor::Postgres).unwrap();
        let told = client::<sqlx::Postgres>(&bench.url, &script).unwrap_err();
        assert!(told.contains("has no unique key on exactly these columns: id"), "{told}");
        let refused = bench.store.install_guard(&Guard::new("late", "id")).await;
        assert!(matches!(refused, Err(FenceError::Column(_))), "{refused:?}");
    });
}
