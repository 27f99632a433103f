//! Guards on SQLite: REPLACE, statements that fail half-way, and what the docs say is left.

use fence_store::{Dialect, Finding, Guard};

use crate::clients::client;
use crate::support::{Bench, run};

/// REPLACE deletes by every unique key, and fires no trigger for it.
#[test]
fn another_unique_key_is_guarded_where_it_is_known_sqlite() {
    run(async {
        let bench = Bench::<sqlx::Sqlite>::new(2).await;
        bench
            .sql(
                "CREATE TABLE members (id INTEGER PRIMARY KEY, email TEXT COLLATE NOCASE UNIQUE, \
                 fence_token BIGINT NOT NULL DEFAULT 0)",
            )
            .await;
        bench.sql("INSERT INTO members VALUES (1, 'a@b', 34), (2, 'c@d', 34)").await;
        let guard = Guard::new("members", "id");
        bench.store.install_guard(&guard).await.unwrap();
        let unknown = Finding::UnknownUnique { table: "members".into(), key: "email".into() };
        assert_eq!(bench.store.check_guarded(&guard).await.unwrap(), [unknown]);
        let guard = bench.store.guard_of("members").await.unwrap();
        bench.store.install_guard(&guard).await.unwrap();
        assert_eq!(bench.store.check_guarded(&guard).await.unwrap(), []);

        let before = "1|a@b|34\n2|c@d|34";
        for statement in [
            "REPLACE INTO members VALUES (3, 'A@B', 50)",
            "UPDATE OR REPLACE members SET email = 'a@b', fence_token = 50 WHERE id = 2",
            "UPDATE members SET rowid = 9, fence_token = 50 WHERE id = 1",
            "INSERT OR REPLACE INTO members (rowid, email, fence_token) VALUES (1, 'e@f', 33)",
        ] {
            let told = client::<sqlx::Sqlite>(&bench.url, &format!("{statement};")).unwrap_err();
            assert!(told.contains("fence: "), "{statement}: {told}");
            let rows = client::<sqlx::Sqlite>(&bench.url, "SELECT * FROM members ORDER BY id;").unwrap();
            assert_eq!(rows, before, "{statement}");
        }
        let lawful = "UPDATE members SET email = 'e@f', fence_token = 35 WHERE id = 2;
            INSERT INTO members (email, fence_token) VALUES ('g@h', 1), (NULL, 1), (NULL, 1);
            UPDATE members SET fence_token = 36 WHERE id = 2;";
        client::<sqlx::Sqlite>(&bench.url, lawful).unwrap();
        // The hole that the docs name, of a guard that does not know the key.
        bench.store.install_guard(&Guard::new("members", "id")).await.unwrap();
        client::<sqlx::Sqlite>(&bench.url, "REPLACE INTO members VALUES (3, 'A@B', 50);").unwrap();
        assert_eq!(bench.number("SELECT COUNT(*) FROM members WHERE id = 1").await, Some(0));
    });
}

/// An error in the middle of a statement undoes what the statement has done before, and nothing else.
#[test]
fn a_refusal_undoes_the_statement_and_not_the_transaction_sqlite() {
    run(async {
        let bench = Bench::<sqlx::Sqlite>::new(1).await;
        for id in 1..=5 {
            bench.insert_account(id, 0).await;
        }
        bench.store.install_guard(&Guard::new("accounts", "id")).await.unwrap();
        bench.sql("UPDATE accounts SET fence_token = 34 WHERE id = 4").await;
        let mut connection = bench.store.pool().acquire().await.unwrap();
        sqlx::Sqlite::execute(&mut connection, "BEGIN").await.unwrap();
        sqlx::Sqlite::execute(&mut connection, "UPDATE accounts SET balance = 1, fence_token = 5 WHERE id = 1")
            .await
            .unwrap();
        for late in [
            "UPDATE accounts SET balance = 2, fence_token = 33",
            "UPDATE OR FAIL accounts SET balance = 2, fence_token = 33",
            "INSERT INTO accounts (id, fence_token) VALUES (6, 1), (7, -1)",
        ] {
            let told = sqlx::Sqlite::execute(&mut connection, late).await.unwrap_err();
            assert!(told.to_string().contains("fence: "), "{told}");
        }
        sqlx::Sqlite::execute(&mut connection, "COMMIT").await.unwrap();
        drop(connection);
        assert_eq!(bench.number("SELECT SUM(balance) FROM accounts").await, Some(1));
        assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(5));
    });
}

/// The client's own switch, and what a trigger cannot see.
#[test]
fn triggers_that_are_switched_off_are_a_hole_sqlite() {
    run(async {
        let bench = Bench::<sqlx::Sqlite>::new(1).await;
        bench.insert_account(1, 0).await;
        bench.store.install_guard(&Guard::new("accounts", "id")).await.unwrap();
        let text = ".dbconfig enable_trigger off\nUPDATE accounts SET balance = 1;";
        client::<sqlx::Sqlite>(&bench.url, text).unwrap();
        assert_eq!(bench.balance(1).await, Some(1));
    });
}
