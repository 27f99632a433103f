//! Guards on MariaDB: what only it has, and what the docs say is left.

use fence_store::{FenceError, Guard};

use crate::clients::client;
use crate::support::{Bench, run};

#[test]
fn a_truncate_passes_a_guard_mariadb() {
    run(async {
        let bench = Bench::<sqlx::MySql>::new(2).await;
        bench.insert_account(1, 0).await;
        bench.store.install_guard(&Guard::new("accounts", "id")).await.unwrap();
        client::<sqlx::MySql>(&bench.url, "TRUNCATE accounts;").unwrap();
        assert_eq!(bench.balance(1).await, None);
    });
}

/// Whatever goes wrong on the way, the tables are free again, and it is told.
#[test]
fn a_guard_that_cannot_be_put_up_leaves_no_lock_mariadb() {
    run(async {
        let bench = Bench::<sqlx::MySql>::new(1).await;
        bench.insert_account(1, 0).await;
        // A trigger of another table has the name of one of the guard's.
        bench.sql("CREATE TABLE other (id BIGINT)").await;
        bench.sql("CREATE TRIGGER accounts_fence_update AFTER UPDATE ON other FOR EACH ROW SET @n = 1").await;
        let refused = bench.store.install_guard(&Guard::new("accounts", "id")).await;
        assert!(refused.is_err());
        client::<sqlx::MySql>(&bench.url, "UPDATE accounts SET n = 1 WHERE id = 1;").unwrap();
        bench.sql("UPDATE accounts SET n = 2 WHERE id = 1").await;

        // Something else has the name of the tombstones, which only the first delete would find out.
        bench.sql("CREATE TABLE seats (id BIGINT PRIMARY KEY, fence_token BIGINT NOT NULL DEFAULT 0)").await;
        bench.sql("CREATE VIEW seats_fence_tombstones AS SELECT 1 AS x").await;
        let refused = bench.store.install_guard(&Guard::new("seats", "id")).await;
        assert!(matches!(refused, Err(FenceError::Statement(_))), "{refused:?}");
    });
}

/// A program that may write the table, but nothing else.
#[test]
fn the_writer_needs_no_rights_on_the_tombstones_mariadb() {
    run(async {
        let bench = Bench::<sqlx::MySql>::new(2).await;
        bench.store.install_guard(&Guard::new("accounts", "id")).await.unwrap();
        let name = bench.url.rsplit('/').next().unwrap().to_owned();
        let user = format!("w{}", &name[name.len() - 16..]);
        bench.sql(format!("CREATE USER {user}@'%' IDENTIFIED BY 'secret'")).await;
        bench.sql(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.accounts TO {user}@'%'")).await;
        let (scheme, address) = bench.url.split_once("://").unwrap();
        let url = format!("{scheme}://{user}:secret@{}", address.split_once('@').unwrap().1);
        let lawful = "INSERT INTO accounts (id, fence_token) VALUES (1, 5);
            UPDATE accounts SET fence_token = -6 WHERE id = 1; DELETE FROM accounts WHERE id = 1;";
        client::<sqlx::MySql>(&url, lawful).unwrap();
        let late = client::<sqlx::MySql>(&url, "INSERT INTO accounts (id, fence_token) VALUES (1, 5);").unwrap_err();
        assert!(late.contains("presented 5, highest 6"), "{late}");
        let denied = client::<sqlx::MySql>(&url, "DELETE FROM accounts_fence_tombstones;").unwrap_err();
        assert!(denied.contains("denied"), "{denied}");
    });
}
