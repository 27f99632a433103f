//! What really happened, in the order in which it did: triggers write down every change of every row.
//!
//! A line is written while the row is locked, and kept if and only if the change is. So the lines of one row stand in the
//! order in which its changes were committed, whoever made them and whatever their client was told.

use fence_store::Flavor;

use crate::support::{Bench, TestDb};

/// One change that was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) what: What,
    pub(super) key: i64,
    /// Fence, or the ledger's token, or the last writer in the vault: before and after.
    pub(super) fence: (i64, i64),
    /// The row's counter, before and after.
    pub(super) n: (i64, i64),
    /// What was written along with it: the writer's token.
    pub(super) value: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Insert,
    Update,
    Delete,
    /// A row of the ledger was raised.
    Raise,
    /// A row that only the ledger protects was written.
    Vault,
}

const ALL: [What; 5] = [What::Insert, What::Update, What::Delete, What::Raise, What::Vault];

/// Event, table, what is noted. The resource is called `accounts/` and the key.
const NOTES: [(&str, &str, &str); 6] = [
    ("INSERT", "accounts", "0, NEW.id, 0, NEW.fence_token, 0, NEW.n, NEW.balance"),
    ("UPDATE", "accounts", "1, NEW.id, OLD.fence_token, NEW.fence_token, OLD.n, NEW.n, NEW.balance"),
    ("DELETE", "accounts", "2, OLD.id, OLD.fence_token, 0, OLD.n, 0, OLD.balance"),
    ("INSERT", "fence_ledger", "3, {key}, 0, NEW.token, 0, 0, 0"),
    ("UPDATE", "fence_ledger", "3, {key}, OLD.token, NEW.token, 0, 0, 0"),
    ("UPDATE", "vault", "4, NEW.id, OLD.writer, NEW.writer, OLD.n, NEW.n, NEW.writer"),
];

/// The table that only the ledger protects: no fence of its own.
const VAULT: &str = "CREATE TABLE vault (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL, writer BIGINT NOT NULL)";

/// Makes the journal, the vault, and some rows to begin with.
pub(super) async fn open<DB: TestDb>(bench: &Bench<DB>, keys: i64) {
    let (number, key) = match DB::FLAVOR {
        Flavor::Postgres => ("BIGSERIAL PRIMARY KEY", "CAST(substr(NEW.resource, 10) AS BIGINT)"),
        Flavor::MySql => ("BIGINT AUTO_INCREMENT PRIMARY KEY", "CAST(SUBSTRING(NEW.resource, 10) AS SIGNED)"),
        _ => ("INTEGER PRIMARY KEY AUTOINCREMENT", "CAST(substr(NEW.resource, 10) AS INTEGER)"),
    };
    bench.sql(VAULT).await;
    bench
        .sql(format!(
            "CREATE TABLE journal (place {number}, what BIGINT, id BIGINT, old_fence BIGINT, fence BIGINT, old_n BIGINT, \
             n BIGINT, value BIGINT)"
        ))
        .await;
    for (place, (event, table, noted)) in NOTES.into_iter().enumerate() {
        let noted = noted.replace("{key}", key);
        let note = format!("INSERT INTO journal (what, id, old_fence, fence, old_n, n, value) VALUES ({noted})");
        let begins = format!("CREATE TRIGGER note_{place} AFTER {event} ON {table} FOR EACH ROW");
        match DB::FLAVOR {
            Flavor::Postgres => {
                let body = format!("$$ BEGIN {note}; RETURN NULL; END $$");
                bench.sql(format!("CREATE FUNCTION note_{place}() RETURNS trigger LANGUAGE plpgsql AS {body}")).await;
                bench.sql(format!("{begins} EXECUTE FUNCTION note_{place}()")).await;
            }
            Flavor::MySql => bench.sql(format!("{begins} {note}")).await,
            _ => bench.sql(format!("{begins} BEGIN {note}; END")).await,
        }
    }
    for key in 1..=keys {
        bench.sql(format!("INSERT INTO vault VALUES ({key}, 0, 0)")).await;
        if key % 2 == 0 {
            bench.insert_account(key, 0).await;
        }
    }
}

/// All lines, in order.
pub(super) async fn read<DB: TestDb>(bench: &Bench<DB>) -> Vec<Line> {
    let text = "SELECT what, id, old_fence, fence, old_n, n, value FROM journal ORDER BY place";
    let lines = rows::<DB>(bench, text).await;
    let line = |row: &Vec<i64>| Line {
        what: ALL[usize::try_from(row[0]).unwrap()],
        key: row[1],
        fence: (row[2], row[3]),
        n: (row[4], row[5]),
        value: row[6],
    };
    lines.iter().map(line).collect()
}

/// The rows of a query that gives numbers.
pub(super) async fn rows<DB: TestDb>(bench: &Bench<DB>, text: &'static str) -> Vec<Vec<i64>> {
    let mut connection = bench.store.pool().acquire().await.unwrap();
    let rows = DB::fetch_all(&mut connection, text).await.unwrap();
    let numbers = |row: &DB::Row| -> Vec<i64> {
        (0..sqlx::Row::len(row)).map(|index| DB::integer(row, index).unwrap().unwrap()).collect()
    };
    rows.iter().map(numbers).collect()
}
