//! Foreign keys that write guarded rows: refused, or told of where no trigger sees it.

use fence_store::{Finding, Flavor, Guard};

use crate::clients::{Client, client};
use crate::support::{Bench, on_every_database};

on_every_database! {
    a_cascade_is_refused_or_told_of_postgres
    a_cascade_is_refused_or_told_of_mariadb
    a_cascade_is_refused_or_told_of_sqlite
        => cascades;
}

async fn cascades<DB: Client>() {
    let bench = Bench::<DB>::new(2).await;
    let engine = "CREATE TABLE parents (id BIGINT NOT NULL PRIMARY KEY)";
    bench.sql(engine).await;
    bench
        .sql(
            "CREATE TABLE children (id BIGINT NOT NULL PRIMARY KEY, parent BIGINT, fence_token BIGINT NOT NULL DEFAULT 0, \
             CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE ON UPDATE CASCADE)",
        )
        .await;
    bench.sql("INSERT INTO parents VALUES (1), (2)").await;
    bench.sql("INSERT INTO children VALUES (1, 1, 34), (2, 2, 34)").await;
    let guard = Guard::new("children", "id");
    bench.store.install_guard(&guard).await.unwrap();

    let findings = bench.store.check_guarded(&guard).await.unwrap();
    for statement in
        ["UPDATE parents SET id = 9 WHERE id = 1", "DELETE FROM parents WHERE id = 2", "DELETE FROM parents"]
    {
        let foreign_keys = if DB::FLAVOR == Flavor::Sqlite { "PRAGMA foreign_keys = ON; " } else { "" };
        let told = client::<DB>(&bench.url, &format!("{foreign_keys}{statement};"));
        match DB::FLAVOR {
            Flavor::MySql => assert_eq!(told, Ok(String::new()), "{statement}: the hole was closed, so tell the docs"),
            _ => assert!(told.as_ref().is_err_and(|told| told.contains("fence: refused: ")), "{statement}: {told:?}"),
        }
    }
    let left = bench.number("SELECT COUNT(*) FROM children WHERE fence_token = 34 AND parent = id").await;
    if DB::FLAVOR == Flavor::MySql {
        assert_eq!(left, Some(0));
        let named = Finding::Cascade { table: "children".into(), constraint: "of_parent".into() };
        assert_eq!(findings, [named]);
    } else {
        assert_eq!(left, Some(2));
        assert_eq!(findings, []);
    }
}
