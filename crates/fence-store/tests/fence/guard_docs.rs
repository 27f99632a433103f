//! The SQL of the docs, run as it stands there: with the token it does what it says, with an older one nothing.

use fence_store::{Flavor, Guard};

use crate::clients::{Client, client};
use crate::support::{Bench, on_every_database};

on_every_database! {
    the_plain_sql_of_the_docs_is_a_fence_postgres
    the_plain_sql_of_the_docs_is_a_fence_mariadb
    the_plain_sql_of_the_docs_is_a_fence_sqlite
        => plain_sql;
}

const FENCING: &str = include_str!("../../../../docs/fencing.md");

/// The blocks that are marked for a database: "```sql postgres sqlite".
fn blocks(flavor: Flavor) -> Vec<&'static str> {
    let name = match flavor {
        Flavor::Postgres => "postgres",
        Flavor::MySql => "mysql",
        _ => "sqlite",
    };
    let marked = FENCING.split("\n```sql ").skip(1);
    let marked = marked.map(|block| block.split_once('\n').unwrap());
    let own = marked.filter(|(databases, _)| databases.split(' ').any(|database| database == name));
    own.map(|(_, block)| block.split("\n```").next().unwrap()).collect()
}

async fn plain_sql<DB: Client>() {
    let blocks = blocks(DB::FLAVOR);
    assert_eq!(blocks.len(), 5, "{blocks:#?}");
    for guard in [None, Some(Guard::new("orders", "id").may_rewrite()), Some(Guard::new("orders", "id"))] {
        let bench = Bench::<DB>::empty(2).await;
        bench.store.install_schema().await.unwrap();
        bench
            .sql(
                "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, status VARCHAR(20) NOT NULL, \
                 fence_token BIGINT NOT NULL DEFAULT 0)",
            )
            .await;
        let is_strict = guard == Some(Guard::new("orders", "id"));
        if let Some(guard) = &guard {
            client::<DB>(&bench.url, &guard.script(DB::FLAVOR).unwrap()).unwrap();
        }
        let stands = || {
            let text = "SELECT id, status, fence_token FROM orders; SELECT token FROM fence_ledger;";
            client::<DB>(&bench.url, text).unwrap()
        };
        bench.sql("INSERT INTO orders (id, status) VALUES (42, 'asked')").await;
        for (block, told) in blocks.iter().zip(0..) {
            let context = format!("{guard:?}\n{block}");
            if is_strict && block.contains("SET fence_token = 34") {
                // The docs say so.
                assert!(client::<DB>(&bench.url, block).is_err(), "{context}");
                continue;
            }
            // Each with a token of its own, for the strict guard takes one once.
            let token = 34 + told;
            let before = stands();
            client::<DB>(&bench.url, &block.replace("34", &token.to_string())).unwrap();
            let after = stands();
            assert_ne!(before, after, "{context}");
            let late = client::<DB>(&bench.url, &block.replace("34", &(token - 1).to_string()));
            assert_eq!(stands(), after, "{context}\n{late:?}");
            if let Err(message) = late {
                assert!(guard.is_some() && message.contains("fence: "), "{context}\n{message}");
            }
        }
        // The last one deleted the row, under 38.
        assert_eq!(bench.number("SELECT COUNT(*) FROM orders").await, Some(0));
        if guard.is_some() {
            let back = blocks.iter().find(|block| block.starts_with("INSERT INTO orders")).unwrap();
            let late = client::<DB>(&bench.url, &back.replace("34", "37")).unwrap_err();
            assert!(late.contains("fence: stale: presented 37, highest 38"), "{late}");
            client::<DB>(&bench.url, &back.replace("34", "39")).unwrap();
        }
    }
}
