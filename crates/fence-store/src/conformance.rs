//! The conformance kit for databases: checks, promise by promise, that a fence holds in yours.
//!
//! The crate's own tests show that fences hold on the servers and settings they start. This shows it for the server you
//! have: its version, its settings, a proxy or a pooler in between, and what triggers and rules your tables have. A promise
//! that is broken is named, with its rule and what the database did instead.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite://{}/db?mode=rwc", folder.path().display());
//! use fence_store::{FenceStore, conformance};
//!
//! let pool = sqlx::SqlitePool::connect(&url).await?;
//! sqlx::query(conformance::TABLE).execute(&pool).await?;
//! let store = FenceStore::new(pool);
//! store.install_schema().await?;
//! let conformance = conformance::check_all(&store, "fence_conformance").await;
//! println!("{conformance}"); // "12 promises kept, 0 not offered"
//! conformance.assert_kept();
//! # Ok(()) }
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! Rows and resources have random keys, so a table may be used again and by several at once. They are left behind.

use std::fmt::Debug;

use futures_util::future::{join, join_all};
use redlock_core::conformance::{Broken, Conformance, Kept};
use redlock_core::{FencingToken, Grant, Resource};
use sea_query::{Alias, Expr, ExprTrait, Query, UpdateStatement};

use crate::{Applied, Dialect, FenceError, FenceStore, Row, Upsert};

/// A table that will do, on every database.
pub const TABLE: &str = "CREATE TABLE fence_conformance \
                         (id BIGINT NOT NULL PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0, fence_token BIGINT NOT NULL DEFAULT 0)";

/// How many write one row at once.
const CROWD: i64 = 12;

/// How often somebody who was told to run again does so.
const RUNS_MAX: usize = 200;

/// What a check ends with if the promise was not found to be kept: what the database did instead.
type Outcome<T = ()> = Result<T, String>;

/// Checks all promises on a table with the columns of [`TABLE`], one after the other. The store's schema is installed.
///
/// # Cancel safety
/// Rows of the promise that was being checked may be left, as they are anyway.
pub async fn check_all<DB: Dialect>(store: &FenceStore<DB>, table: &str) -> Conformance {
    let stage = Stage { store, table };
    let mut verdicts = Vec::new();
    macro_rules! check {
        ($($promise:ident: $rule:literal,)*) => {$({
            let verdict = match $promise(&stage).await {
                Ok(()) => Ok(Kept::Yes),
                Err(instead) => Err(Broken::new(stringify!($promise), $rule, instead)),
            };
            verdicts.push((stringify!($promise), verdict));
        })*};
    }
    check! {
        the_columns_can_hold_tokens: "the fence column and the ledger hold signed 64-bit integers, never NULL",
        a_newer_token_writes: "a write under a newer token is applied, and leaves the token on the row",
        an_older_token_writes_nothing: "a write under an older token is refused as stale, and changes nothing",
        an_equal_token_writes_once: "a token writes a row once, and again only where the row may be rewritten",
        tokens_are_exact: "neighbouring tokens are told apart up to the highest, 2^53 - 1",
        a_deleted_row_stays_deleted: "a row that was deleted is not brought back under an older token",
        a_claim_shuts_older_holders_out: "a claim raises the fence before it reads, so nothing older is written after it",
        the_ledger_only_rises: "a transaction under an older token than the ledger's is not opened, and the ledger never falls",
        resources_are_fenced_together: "a grant of several resources raises the ledger of each, or of none",
        what_is_rolled_back_was_never_there: "a transaction that is rolled back leaves neither rows nor ledger behind",
        a_newer_transaction_waits_for_the_older: "a newer holder's transaction sees all that an older one has committed",
        the_highest_of_a_crowd_remains: "of many who write one row at once the newest one's write remains",
    }
    verdicts.into_iter().collect()
}

struct Stage<'a, DB: Dialect> {
    store: &'a FenceStore<DB>,
    table: &'a str,
}

impl<DB: Dialect> Stage<'_, DB> {
    /// A row that nobody else uses, not there yet.
    fn row(&self) -> Row {
        Row::new(Alias::new(self.table), "id", random())
    }

    /// What the row holds, as a newer claim reads it; the fence is `token` afterwards.
    async fn n(&self, resource: &str, row: &Row, token: i64) -> Outcome<i64> {
        let claimed = told("a claim", self.store.claim(&grant(resource, token), row, ["n"]).await)?;
        let n = DB::integer(claimed.row(), 0).map_err(|error| error.to_string())?;
        n.ok_or_else(|| "n is NULL".to_owned())
    }
}

fn random() -> i64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    // Positive, and exact wherever it passes through.
    i64::from_le_bytes(bytes).rem_euclid(1 << 52)
}

fn new_resource() -> String {
    format!("conformance/{}", random())
}

fn grant(resource: &str, token: i64) -> Grant {
    Grant::assume_granted(resource, token).expect("a name and a token")
}

fn set(n: i64) -> UpdateStatement {
    Query::update().value("n", n).to_owned()
}

fn upsert(n: i64) -> Upsert {
    Upsert::new().value("n", n)
}

fn told<T>(what: &str, result: Result<T, FenceError>) -> Outcome<T> {
    result.map_err(|error| format!("{what} failed: {error}"))
}

fn due<T: Debug + PartialEq>(what: &str, found: T, due: T) -> Outcome {
    if found == due { Ok(()) } else { Err(format!("{what} is {found:?}, where {due:?} is due")) }
}

fn applied(what: &str, result: Result<Applied, FenceError>) -> Outcome {
    due(&format!("{what}: the number of rows"), told(what, result)?.rows, 1)
}

fn stale<T>(what: &str, result: Result<T, FenceError>, highest: i64) -> Outcome {
    match result {
        Err(FenceError::Stale { highest: found, .. }) => due(&format!("{what}: the highest token"), found, highest),
        Err(other) => Err(format!("{what} was not told that it is stale, but: {other}")),
        Ok(_) => Err(format!("{what} was accepted")),
    }
}

async fn the_columns_can_hold_tokens<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let checked = stage.store.check_table(Alias::new(stage.table), "fence_token").await;
    told("the check of the table", checked)
}

async fn a_newer_token_writes<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    applied("an insertion", stage.store.upsert(&grant(&resource, 10), &row, &upsert(1)).await)?;
    for token in [11, 15] {
        applied("an update", stage.store.update(&grant(&resource, token), &row, &set(token)).await)?;
        due("the fence", told("reading the fence", stage.store.fence_of(&row).await)?, Some(token))?;
    }
    due("what was written", stage.n(&resource, &row, 16).await?, 15)
}

async fn an_older_token_writes_nothing<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    applied("an insertion", stage.store.upsert(&grant(&resource, 9), &row, &upsert(0)).await)?;
    applied("an update", stage.store.update(&grant(&resource, 10), &row, &set(1)).await)?;
    let old = grant(&resource, 9);
    stale("an older update", stage.store.update(&old, &row, &set(2)).await, 10)?;
    stale("an older insertion or update", stage.store.upsert(&old, &row, &upsert(2)).await, 10)?;
    stale("an older delete", stage.store.delete(&old, &row).await, 10)?;
    let rewriting = row.clone().may_rewrite();
    stale("an older update of a row that may be rewritten", stage.store.update(&old, &rewriting, &set(2)).await, 10)?;
    due("the fence", told("reading the fence", stage.store.fence_of(&row).await)?, Some(10))?;
    due("what is left", stage.n(&resource, &row, 11).await?, 1)
}

async fn an_equal_token_writes_once<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    let holder = grant(&resource, 10);
    applied("an insertion", stage.store.upsert(&holder, &row, &upsert(1)).await)?;
    match stage.store.update(&holder, &row, &set(2)).await {
        Err(FenceError::AlreadyWritten { .. }) => {}
        other => return Err(format!("a second write under the same token ended in {other:?}")),
    }
    // The same value as well: a database may count that as no row, and the write is applied all the same.
    for n in [3, 3] {
        applied("a rewriting update", stage.store.update(&holder, &row.clone().may_rewrite(), &set(n)).await)?;
    }
    due("what was written", stage.n(&resource, &row, 11).await?, 3)
}

async fn tokens_are_exact<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    let highest = FencingToken::MAX.get();
    applied("an insertion", stage.store.upsert(&grant(&resource, highest - 2), &row, &upsert(1)).await)?;
    for token in [highest - 1, highest] {
        applied("an update", stage.store.update(&grant(&resource, token), &row, &set(token)).await)?;
        due("the fence", told("reading the fence", stage.store.fence_of(&row).await)?, Some(token))?;
        stale("an update by one older", stage.store.update(&grant(&resource, token - 1), &row, &set(0)).await, token)?;
    }
    told("a transaction", stage.store.claim_resources(&grant(&resource, highest)).await)?;
    stale("a transaction of one older", stage.store.begin(&grant(&resource, highest - 1)).await, highest)
}

async fn a_deleted_row_stays_deleted<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    applied("an insertion", stage.store.upsert(&grant(&resource, 10), &row, &upsert(1)).await)?;
    applied("a delete", stage.store.delete(&grant(&resource, 12), &row).await)?;
    due("the fence of the deleted row", told("reading it", stage.store.fence_of(&row).await)?, None)?;
    let late = stage.store.upsert(&grant(&resource, 11), &row, &upsert(2)).await;
    stale("an older insertion after the delete", late, 12)?;
    applied("a newer insertion", stage.store.upsert(&grant(&resource, 13), &row, &upsert(3)).await)?;
    due("what was written", stage.n(&resource, &row, 14).await?, 3)
}

async fn a_claim_shuts_older_holders_out<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    applied("an insertion", stage.store.upsert(&grant(&resource, 10), &row, &upsert(100)).await)?;
    applied("an update before the claim", stage.store.update(&grant(&resource, 11), &row, &set(101)).await)?;
    let claimed = told("a claim", stage.store.claim(&grant(&resource, 12), &row, ["n"]).await)?;
    let read = DB::integer(claimed.row(), 0).map_err(|error| error.to_string())?;
    due("what the claim read", read, Some(101))?;
    stale("an older update after the claim", stage.store.update(&grant(&resource, 11), &row, &set(102)).await, 12)?;
    applied("the claim's update", claimed.update(&set(111)).await)?;
    stale("an older claim", stage.store.claim(&grant(&resource, 11), &row, ["n"]).await, 12)?;
    due("what was written", stage.n(&resource, &row, 13).await?, 111)
}

async fn the_ledger_only_rises<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let resource = new_resource();
    let name = Resource::new(&resource).expect("a name");
    for token in [5, 5, 7] {
        told("a transaction", stage.store.claim_resources(&grant(&resource, token)).await)?;
        due("the ledger", told("reading it", stage.store.highest_token(&name).await)?, Some(token))?;
        stale("an older transaction", stage.store.begin(&grant(&resource, token - 1)).await, token)?;
    }
    due("the ledger", told("reading it", stage.store.highest_token(&name).await)?, Some(7))
}

async fn resources_are_fenced_together<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (one, other) = (new_resource(), new_resource());
    let both = |token: i64| Grant::assume_granted([&one, &other], token).expect("names and a token");
    told("a transaction of one", stage.store.claim_resources(&grant(&one, 5)).await)?;
    stale("a transaction of both, stale for one", stage.store.begin(&both(4)).await, 5)?;
    let name = Resource::new(&other).expect("a name");
    due("the ledger of the other", told("reading it", stage.store.highest_token(&name).await)?, None)?;
    told("a transaction of both", stage.store.claim_resources(&both(6)).await)?;
    for resource in [&one, &other] {
        stale("an older transaction of one", stage.store.begin(&grant(resource, 5)).await, 6)?;
    }
    Ok(())
}

async fn what_is_rolled_back_was_never_there<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    applied("an insertion", stage.store.upsert(&grant(&resource, 5), &row, &upsert(1)).await)?;
    let mut transaction = told("a transaction", stage.store.begin(&grant(&resource, 8)).await)?;
    applied("an update in it", transaction.update(&row, &set(2)).await)?;
    transaction.rollback().await;
    due("the fence", told("reading the fence", stage.store.fence_of(&row).await)?, Some(5))?;
    let name = Resource::new(&resource).expect("a name");
    due("the ledger", told("reading it", stage.store.highest_token(&name).await)?, Some(5))?;
    due("what is left", stage.n(&resource, &row, 6).await?, 1)
}

async fn a_newer_transaction_waits_for_the_older<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, id) = (new_resource(), random());
    let row = Row::new(Alias::new(stage.table), "id", id);
    applied("an insertion", stage.store.upsert(&grant(&resource, 5), &row, &upsert(0)).await)?;
    let mut older = told("the older transaction", stage.store.begin(&grant(&resource, 6)).await)?;
    let newer = async {
        let mut runs = 0;
        loop {
            match stage.store.begin(&grant(&resource, 7)).await {
                Err(error) if error.is_conflict() && runs < RUNS_MAX => runs += 1,
                begun => break told("the newer transaction", begun),
            }
        }
    };
    let write_and_commit = async {
        // The newer one asks first.
        tokio::task::yield_now().await;
        applied("the older one's update", older.update(&row, &set(6)).await)?;
        told("the older one's commit", older.commit().await)
    };
    let (newer, committed) = join(newer, write_and_commit).await;
    committed?;
    let mut newer = newer?;
    let read = Query::select().column("n").from(Alias::new(stage.table)).and_where(Expr::col("id").eq(id)).to_owned();
    let rows = told("the newer one's read", newer.read(&read).await)?;
    let n = rows.first().map(|row| DB::integer(row, 0)).transpose().map_err(|error| error.to_string())?;
    due("what the newer transaction reads", n.flatten(), Some(6))?;
    told("the newer one's commit", newer.commit().await)
}

async fn the_highest_of_a_crowd_remains<DB: Dialect>(stage: &Stage<'_, DB>) -> Outcome {
    let (resource, row) = (new_resource(), stage.row());
    let write = async |token: i64| {
        for _ in 0..RUNS_MAX {
            match stage.store.upsert(&grant(&resource, token), &row, &upsert(token)).await {
                Ok(_) => return Ok(()),
                Err(FenceError::Stale { highest, .. }) if token < highest => return Ok(()),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(format!("the write under token {token} of {CROWD} ended in: {error}")),
            }
        }
        Err(format!("the write under token {token} was in conflict {RUNS_MAX} times"))
    };
    // Neither in order nor against it.
    join_all((0..CROWD).map(|n| write(1 + n * 5 % CROWD))).await.into_iter().collect::<Outcome>()?;
    due("the fence", told("reading the fence", stage.store.fence_of(&row).await)?, Some(CROWD))?;
    due("what remains", stage.n(&resource, &row, CROWD + 1).await?, CROWD)
}
