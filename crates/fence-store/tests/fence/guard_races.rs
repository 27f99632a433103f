//! Guards under others who write at the same time, and against a small oracle.

use std::collections::BTreeMap;

use fence_store::{FenceError, Flavor, Guard};

use crate::clients::{Client, client, stubborn_client};
use crate::support::{Bench, execute, on_every_database};

on_every_database! {
    a_row_that_is_being_deleted_is_not_brought_back_by_an_older_token_postgres
    a_row_that_is_being_deleted_is_not_brought_back_by_an_older_token_mariadb
    a_row_that_is_being_deleted_is_not_brought_back_by_an_older_token_sqlite
        => deletions_and_insertions;
    two_plain_clients_at_once_write_in_the_order_of_their_tokens_postgres
    two_plain_clients_at_once_write_in_the_order_of_their_tokens_mariadb
    two_plain_clients_at_once_write_in_the_order_of_their_tokens_sqlite
        => two_clients;
    random_statements_agree_with_an_oracle_postgres
    random_statements_agree_with_an_oracle_mariadb
    random_statements_agree_with_an_oracle_sqlite
        => random_statements;
}

fn guard() -> Guard {
    Guard::new("accounts", "id")
}

/// Sets the level for the next transaction, or for the session where that cannot be.
fn begin(flavor: Flavor, level: &str) -> Vec<String> {
    match flavor {
        Flavor::Postgres => vec![format!("BEGIN ISOLATION LEVEL {level}")],
        Flavor::MySql => vec![format!("SET TRANSACTION ISOLATION LEVEL {level}"), "BEGIN".into()],
        _ => vec!["BEGIN".into()],
    }
}

/// The old holder's snapshot is older than the tombstone; the insertion waits for the deletion, or comes after it.
async fn deletions_and_insertions<DB: Client>() {
    let bench = Bench::<DB>::new(3).await;
    bench.store.install_guard(&guard()).await.unwrap();
    let mut id = 0;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        // Whether there is a tombstone already, which the deletion raises; and whether the insertion waits for it.
        for (buried, waits) in [(false, false), (false, true), (true, false), (true, true)] {
            id += 1;
            let context = format!("{level}, buried: {buried}, waits: {waits}");
            if buried {
                bury(&bench, id, 20).await;
            }
            bench.sql(format!("INSERT INTO accounts (id, fence_token) VALUES ({id}, 30)")).await;
            let (mut old, mut new) =
                (bench.store.pool().acquire().await.unwrap(), bench.store.pool().acquire().await.unwrap());
            let run = async |connection: &mut DB::Connection, text: &str| {
                DB::execute(connection, sqlx::AssertSqlSafe(text.to_owned())).await.map(|_| ())
            };
            for statement in begin(DB::FLAVOR, level) {
                run(&mut old, &statement).await.unwrap();
            }
            run(&mut old, "SELECT COUNT(*) FROM fence_ledger").await.unwrap();
            if DB::FLAVOR == Flavor::Sqlite && waits {
                // The file has one writer, and nobody waits for it who has read.
                run(&mut old, "ROLLBACK").await.unwrap();
                continue;
            }
            for statement in [
                "BEGIN".to_owned(),
                format!("UPDATE accounts SET fence_token = -40 WHERE id = {id}"),
                format!("DELETE FROM accounts WHERE id = {id}"),
            ] {
                run(&mut new, &statement).await.unwrap();
            }
            let insert = format!("INSERT INTO accounts (id, fence_token) VALUES ({id}, 39)");
            let inserted = if waits {
                let (inserted, committed) = tokio::join!(run(&mut old, &insert), async {
                    // Sent while the other one waits, or just before: either is right.
                    tokio::task::yield_now().await;
                    run(&mut new, "COMMIT").await
                });
                committed.unwrap();
                inserted
            } else {
                run(&mut new, "COMMIT").await.unwrap();
                run(&mut old, &insert).await
            };
            let told = match inserted {
                Ok(()) => run(&mut old, "COMMIT").await,
                Err(error) => Err(error),
            };
            let told = told.map_err(FenceError::from);
            let refused = matches!(told, Err(FenceError::Stale { highest: 40, .. } | FenceError::Conflict { .. }));
            assert!(refused, "{context}: {told:?}");
            if level == "READ COMMITTED" && DB::FLAVOR != Flavor::Sqlite {
                assert!(told.as_ref().is_err_and(FenceError::is_stale), "{context}: {told:?}");
            }
            let _ = run(&mut old, "ROLLBACK").await;
            drop((old, new));
            assert_eq!(
                bench.number(format!("SELECT COUNT(*) FROM accounts WHERE id = {id}")).await,
                Some(0),
                "{context}"
            );
            // And somebody does get it in.
            bench.sql(format!("INSERT INTO accounts (id, fence_token) VALUES ({id}, 41)")).await;
        }
    }
}

async fn bury<DB: Client>(bench: &Bench<DB>, id: i64, token: i64) {
    bench.sql(format!("INSERT INTO accounts (id, fence_token) VALUES ({id}, 1)")).await;
    bench.sql(format!("UPDATE accounts SET fence_token = -{token} WHERE id = {id}")).await;
    bench.sql(format!("DELETE FROM accounts WHERE id = {id}")).await;
}

const TOKENS: i64 = 200;

async fn two_clients<DB: Client>() {
    let bench = Bench::<DB>::new(1).await;
    bench.insert_account(1, 0).await;
    client::<DB>(&bench.url, &guard().script(DB::FLAVOR).unwrap()).unwrap();
    // Each sends every other token, in a shuffled order.
    let script = |first: i64| -> String {
        (0..TOKENS / 2)
            .map(|step| (first + step * 2) * 77 % (TOKENS + 1))
            .map(|token| {
                format!("UPDATE accounts SET n = n + 1, balance = {token}, fence_token = {token} WHERE id = 1;\n")
            })
            .collect()
    };
    let clients = [1, 2].map(|first| {
        let (url, script) = (bench.url.clone(), script(first));
        std::thread::spawn(move || stubborn_client::<DB>(&url, &script))
    });
    let told = clients.map(|client| client.join().unwrap()).join("\n");
    let errors: Vec<&str> = told.lines().filter(|line| line.to_lowercase().contains("error")).collect();
    let stale = errors.iter().filter(|line| line.contains("fence: stale: ")).count();
    assert_eq!(stale, errors.len(), "{told}");
    assert!(0 < stale);
    let applied = TOKENS - i64::try_from(stale).unwrap();
    let row = client::<DB>(&bench.url, "SELECT n, balance, fence_token FROM accounts;").unwrap().replace('\t', "|");
    assert_eq!(row, format!("{applied}|{TOKENS}|{TOKENS}"));
}

/// A generator of numbers that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.0 >> 33).unwrap() % end
    }
}

/// What a guard has to remember, and how it decides, in ten lines.
#[derive(Clone, Debug, Default, PartialEq)]
struct Oracle {
    may_rewrite: bool,
    /// Fence and balance of each row.
    rows: BTreeMap<i64, (i64, i64)>,
    tombstones: BTreeMap<i64, i64>,
}

impl Oracle {
    fn passes(&self, token: i64, highest: i64) -> bool {
        highest < token || (self.may_rewrite && highest == token)
    }

    /// Whether the statement is carried out; one that finds no row is.
    fn update(&mut self, id: i64, token: Option<i64>, balance: i64) -> bool {
        let Some((fence, _)) = self.rows.get(&id).copied() else { return true };
        let token = token.unwrap_or(fence);
        let condemns = token < 0 && 0 < fence && token.abs() == fence;
        let passes = condemns || self.passes(token.abs(), fence.abs());
        if passes {
            self.rows.insert(id, (token, balance));
        }
        passes
    }

    fn insert(&mut self, id: i64, token: i64, balance: i64) -> bool {
        let is_free = !self.rows.contains_key(&id);
        let passes =
            is_free && 0 <= token && self.tombstones.get(&id).is_none_or(|highest| self.passes(token, *highest));
        if passes {
            self.rows.insert(id, (token, balance));
        }
        passes
    }

    fn delete(&mut self, id: i64) -> bool {
        let Some((fence, _)) = self.rows.get(&id).copied() else { return true };
        if fence < 0 {
            self.rows.remove(&id);
            let tombstone = self.tombstones.entry(id).or_default();
            *tombstone = fence.abs().max(*tombstone);
        }
        fence < 0
    }

    fn replace(&mut self, flavor: Flavor, id: i64, token: i64, balance: i64) -> bool {
        let Some((fence, _)) = self.rows.get(&id).copied() else { return self.insert(id, token, balance) };
        let before = self.clone();
        let passes = if flavor == Flavor::MySql {
            self.delete(id) && self.insert(id, token, balance)
        } else {
            // What is in the way is not deleted by a trigger's leave, but replaced in order.
            self.rows.remove(&id);
            self.passes(token, fence.abs()) && self.insert(id, token, balance)
        };
        if !passes {
            *self = before;
        }
        passes
    }
}

const SEEDS: u64 = 4;
const STATEMENTS: i64 = 250;

async fn random_statements<DB: Client>() {
    for seed in 0..SEEDS {
        let bench = Bench::<DB>::new(1).await;
        let mut oracle = Oracle { may_rewrite: seed % 2 == 1, ..Oracle::default() };
        let guard = if oracle.may_rewrite { guard().may_rewrite() } else { guard() };
        bench.store.install_guard(&guard).await.unwrap();
        let mut random = Random(seed);
        let mut carried_out = [0, 0];
        for step in 1..=STATEMENTS {
            // Tokens come from a window that moves on, so that each is now above, now below the highest.
            let token = step / 12 + random.below(6);
            let id = random.below(3);
            let upsert = match DB::FLAVOR {
                Flavor::MySql => "ON DUPLICATE KEY UPDATE balance = VALUES(balance), fence_token = VALUES(fence_token)",
                _ => "ON CONFLICT (id) DO UPDATE SET balance = excluded.balance, fence_token = excluded.fence_token",
            };
            let (statement, expected) = match random.below(8) {
                0 => (format!("UPDATE accounts SET balance = {step} WHERE id = {id}"), oracle.update(id, None, step)),
                1 | 2 => (
                    format!("UPDATE accounts SET balance = {step}, fence_token = {token} WHERE id = {id}"),
                    oracle.update(id, Some(token), step),
                ),
                3 => (
                    format!("UPDATE accounts SET balance = {step}, fence_token = -{token} WHERE id = {id}"),
                    oracle.update(id, Some(-token), step),
                ),
                4 => (format!("DELETE FROM accounts WHERE id = {id}"), oracle.delete(id)),
                5 => (
                    format!("INSERT INTO accounts (id, balance, fence_token) VALUES ({id}, {step}, {token})"),
                    oracle.insert(id, token, step),
                ),
                6 if DB::FLAVOR != Flavor::Postgres => (
                    format!("REPLACE INTO accounts (id, balance, fence_token) VALUES ({id}, {step}, {token})"),
                    oracle.replace(DB::FLAVOR, id, token, step),
                ),
                _ => (
                    format!("INSERT INTO accounts (id, balance, fence_token) VALUES ({id}, {step}, {token}) {upsert}"),
                    if oracle.rows.contains_key(&id) {
                        oracle.update(id, Some(token), step)
                    } else {
                        oracle.insert(id, token, step)
                    },
                ),
            };
            let result = execute(bench.store.pool(), statement.clone()).await;
            let context = format!("seed {seed}, step {step}: {statement}: {result:?}\n{oracle:?}");
            assert_eq!(result.is_ok(), expected, "{context}");
            carried_out[usize::from(expected)] += 1;
            assert_eq!(rows(&bench).await, oracle.rows, "{context}");
        }
        assert!(carried_out.iter().all(|count| 20 < *count), "seed {seed}: {carried_out:?}");
    }
}

async fn rows<DB: Client>(bench: &Bench<DB>) -> BTreeMap<i64, (i64, i64)> {
    let mut connection = bench.store.pool().acquire().await.unwrap();
    let found = DB::fetch_all(&mut connection, "SELECT id, fence_token, balance FROM accounts").await.unwrap();
    let number = |row: &DB::Row, index| DB::integer(row, index).unwrap().unwrap();
    found.iter().map(|row| (number(row, 0), (number(row, 1), number(row, 2)))).collect()
}
