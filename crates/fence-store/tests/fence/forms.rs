//! Every form of fenced write that the crate has, as a table, and one way to carry each of them out: what the cases of
//! [`crate::every_form`] are tried on.
//!
//! A form writes a [`Target`]. What it was told is brought to one kind, [`Told`], so that a case can ask for it without
//! knowing the form. A new method of the store, of its transactions or of a claim that writes belongs into [`TABLE`].

#![expect(
    clippy::future_not_send,
    reason = "writers take turns on one thread; it is the database that runs them at once"
)]

use std::fmt;
use std::time::Duration;

use fence_store::{
    Dialect, FenceError, FenceStore, Flavor, InsertSelect, Isolation, Lent, Row, Transaction, Upsert, Verdict,
};
use futures_util::future::LocalBoxFuture;
use redlock_core::{Grant, Resource};
use sea_query::{
    Expr, ExprTrait, InsertStatement, MysqlQueryBuilder, OnConflict, PostgresQueryBuilder, Query, SqliteQueryBuilder,
    UpdateStatement,
};
use sqlx::AssertSqlSafe;

use crate::support::{Bench, TestDb, grant_of};

/// How often `run` may run its work: once more than it is disturbed.
const ATTEMPTS_MAX: u32 = 2;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Update,
    UpdateRows,
    UpdateReturning,
    Upsert,
    UpsertRows,
    /// Reads under a claim, and writes one more than it has read.
    ClaimAndUpdate,
    ClaimAndDelete,
    Delete,
    DeleteRows,
    DeleteReturning,
    InsertSelect,
    /// The ledger alone.
    ClaimResources,
    /// An INSERT-or-update of the caller's own, which the ledger alone protects: of sea-query, as text, and on the bare
    /// connection.
    Statement,
    Text,
    Connection,
}

/// Whose transaction it is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// One that the store begins and ends.
    Store,
    /// From `begin`.
    Transaction,
    /// From `run`.
    Run,
    /// The caller's, from sqlx.
    Joined,
}

const ALONE: &[Place] = &[Place::Store];
const ANYWHERE: &[Place] = &[Place::Store, Place::Transaction, Place::Run, Place::Joined];

const TABLE: [(What, &[Place]); 15] = [
    (What::Update, ANYWHERE),
    (What::UpdateRows, ANYWHERE),
    (What::UpdateReturning, ALONE),
    (What::Upsert, ANYWHERE),
    (What::UpsertRows, ANYWHERE),
    (What::ClaimAndUpdate, ANYWHERE),
    (What::ClaimAndDelete, ANYWHERE),
    (What::Delete, ANYWHERE),
    (What::DeleteRows, ANYWHERE),
    (What::DeleteReturning, ALONE),
    (What::InsertSelect, ALONE),
    (What::ClaimResources, ALONE),
    (What::Statement, &[Place::Transaction, Place::Run]),
    (What::Text, &[Place::Transaction, Place::Run]),
    (What::Connection, &[Place::Transaction, Place::Run, Place::Joined]),
];

/// One form of write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) what: What,
    pub(crate) place: Place,
}

/// All that a database has, each with a number of its own for [`Target::new`].
pub(crate) fn forms<DB: Writes>() -> impl Iterator<Item = (Form, i64)> + Clone {
    let all = TABLE.iter().flat_map(|(what, places)| places.iter().map(|place| Form { what: *what, place: *place }));
    all.filter(|form| DB::RETURNS || !matches!(form.what, What::UpdateReturning | What::DeleteReturning)).zip(1..)
}

/// What a writer was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Applied,
    Stale {
        presented: i64,
        highest: i64,
    },
    AlreadyWritten,
    /// Or, from `insert_select`, that no row was left to insert.
    NoSuchRow,
    Conflict,
    /// The column, or that of the ledger, is unfit.
    Column,
    Other(String),
}

impl From<Result<(), FenceError>> for Told {
    fn from(result: Result<(), FenceError>) -> Self {
        match result {
            Ok(()) => Self::Applied,
            Err(FenceError::Stale { presented, highest, .. }) => Self::Stale { presented: presented.get(), highest },
            Err(FenceError::AlreadyWritten { .. }) => Self::AlreadyWritten,
            Err(FenceError::NoSuchRow { .. }) => Self::NoSuchRow,
            Err(FenceError::Conflict { .. }) => Self::Conflict,
            Err(FenceError::Column(_)) => Self::Column,
            Err(other) => Self::Other(format!("{other:?}")),
        }
    }
}

/// Two rows of a table like `accounts`, of which forms for a single row write the first; and the resource of the lock.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) table: String,
    pub(crate) id: i64,
    pub(crate) resource: String,
    pub(crate) may_rewrite: bool,
}

impl Target {
    /// The place of so many a form.
    pub(crate) fn new(number: i64) -> Self {
        let id = number * 10;
        Self { table: "accounts".to_owned(), id, resource: format!("accounts/{id}"), may_rewrite: false }
    }

    pub(crate) fn grant(&self, token: i64) -> Grant {
        grant_of(&self.resource, token)
    }

    fn rows(&self) -> [Row; 2] {
        [self.id, self.id + 1].map(|id| {
            let row = Row::new(self.table.clone(), "id", id);
            if self.may_rewrite { row.may_rewrite() } else { row }
        })
    }

    /// Makes what the form expects to find, its fence and its ledger at a token.
    pub(crate) async fn prepare<DB: Writes>(&self, bench: &Bench<DB>, form: Form, fence: i64) {
        if form.finds_a_row() {
            for id in [self.id, self.id + 1] {
                let columns = "(id, balance, n, fence_token)";
                bench.sql(format!("INSERT INTO {} {columns} VALUES ({id}, 0, 0, {fence})", self.table)).await;
            }
        }
        if 0 < fence {
            bench.store.claim_resources(&self.grant(fence)).await.unwrap();
        }
    }

    /// How many of the rows that the form writes fulfil a condition, and whether that is all of them.
    pub(crate) async fn all<DB: Writes>(&self, bench: &Bench<DB>, form: Form, condition: &str) -> bool {
        let (last, expected) = if form.writes_many() { (self.id + 1, 2) } else { (self.id, 1) };
        let rows = format!("FROM {} WHERE id BETWEEN {} AND {last}", self.table, self.id);
        bench.number(format!("SELECT COUNT(*) {rows} AND {condition}")).await == Some(expected)
    }

    /// Whether none of the rows that the form writes is there.
    pub(crate) async fn none<DB: Writes>(&self, bench: &Bench<DB>, form: Form) -> bool {
        let last = if form.writes_many() { self.id + 1 } else { self.id };
        let rows = format!("FROM {} WHERE id BETWEEN {} AND {last}", self.table, self.id);
        bench.number(format!("SELECT COUNT(*) {rows}")).await == Some(0)
    }

    /// The token in the ledger.
    pub(crate) async fn ledger<DB: Writes>(&self, bench: &Bench<DB>) -> Option<i64> {
        bench.store.highest_token(&Resource::new(&self.resource).unwrap()).await.unwrap()
    }
}

impl Form {
    /// Whether each row is judged by a fence of its own; if not, the ledger alone stands between.
    pub(crate) fn has_row_fences(self) -> bool {
        !matches!(
            self.what,
            What::InsertSelect | What::ClaimResources | What::Statement | What::Text | What::Connection
        )
    }

    /// Whether it works on the table's fence column: [`Self::has_row_fences`], or inserts into it.
    pub(crate) fn writes_row_fences(self) -> bool {
        self.has_row_fences() || self.what == What::InsertSelect
    }

    pub(crate) fn deletes(self) -> bool {
        matches!(self.what, What::ClaimAndDelete | What::Delete | What::DeleteRows | What::DeleteReturning)
    }

    /// Whether it inserts what is not there.
    pub(crate) fn inserts(self) -> bool {
        matches!(
            self.what,
            What::Upsert | What::UpsertRows | What::InsertSelect | What::Statement | What::Text | What::Connection
        )
    }

    /// Whether each time that it is applied adds one to the row's `n`.
    pub(crate) fn counts(self) -> bool {
        !self.deletes() && !matches!(self.what, What::InsertSelect | What::ClaimResources)
    }

    pub(crate) fn writes_many(self) -> bool {
        matches!(self.what, What::UpdateRows | What::UpsertRows | What::DeleteRows | What::InsertSelect)
    }

    /// Whether whoever finds no row has raised the ledger nevertheless: where that is what was asked for, and the store ends
    /// the transaction.
    pub(crate) fn remembers_what_is_absent(self) -> bool {
        self.place == Place::Store && (self.deletes() || self.what == What::ClaimAndUpdate)
    }

    /// Whether it is tried on rows that are there.
    pub(crate) fn finds_a_row(self) -> bool {
        !matches!(self.what, What::InsertSelect | What::ClaimResources)
    }

    /// Writes, and tells what its writer is told.
    pub(crate) async fn write<DB: Writes>(self, store: &FenceStore<DB>, grant: &Grant, target: &Target) -> Told {
        Writer { form: self, store, grant, target, disturbance: None }.write().await.into()
    }

    /// Writes after it has read, and after what happens then; where there is a transaction, at this isolation level, all of
    /// it within that. The caller's own has to begin at the level by itself.
    ///
    /// It happens before the transaction begins where it could not happen during it: on SQLite, and on the resource of a
    /// form without row fences, nobody else writes while one of the store's is open.
    pub(crate) async fn write_disturbed<DB: Writes>(
        self,
        store: &FenceStore<DB>,
        grant: &Grant,
        target: &Target,
        isolation: Isolation,
        happens: &dyn Fn() -> LocalBoxFuture<'static, ()>,
    ) -> Told {
        let disturbance = Some(Disturbance { isolation, happens });
        Writer { form: self, store, grant, target, disturbance }.write().await.into()
    }
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {:?}", self.what, self.place)
    }
}

/// What happens between a writer's reading and its writing.
#[derive(Clone, Copy)]
struct Disturbance<'d> {
    isolation: Isolation,
    happens: &'d dyn Fn() -> LocalBoxFuture<'static, ()>,
}

/// A writer at work.
struct Writer<'w, DB: Dialect> {
    form: Form,
    store: &'w FenceStore<DB>,
    grant: &'w Grant,
    target: &'w Target,
    disturbance: Option<Disturbance<'w>>,
}

/// The statements of a transaction, which is the store's or the caller's: both have these by
/// the same names.
macro_rules! write_within {
    ($writer:expr, $transaction:expr) => {{
        let (writer, transaction) = ($writer, $transaction);
        let rows = writer.target.rows();
        match writer.form.what {
            What::Update => transaction.update(&rows[0], &writer.count_up()).await.map(drop),
            What::UpdateRows => alike(transaction.update_rows(&rows, &writer.count_up()).await?, writer.grant),
            What::Upsert => transaction.upsert(&rows[0], &writer.put()).await.map(drop),
            What::UpsertRows => alike(transaction.upsert_rows(&writer.puts()).await?, writer.grant),
            What::ClaimAndUpdate => {
                let n = transaction.claim(&rows[0], ["n"]).await?;
                let next = writer.next(DB::integer(&n, 0)?);
                transaction.update(&rows[0].clone().may_rewrite(), &next).await.map(drop)
            }
            What::ClaimAndDelete => {
                transaction.claim(&rows[0], ["n"]).await?;
                transaction.delete(&rows[0].clone().may_rewrite()).await.map(drop)
            }
            What::Delete => transaction.delete(&rows[0]).await.map(drop),
            What::DeleteRows => alike(transaction.delete_rows(&rows).await?, writer.grant),
            other => unreachable!("{other:?} is not of both kinds of transactions"),
        }
    }};
}

impl<DB: Writes> Writer<'_, DB> {
    async fn write(&self) -> Result<(), FenceError> {
        match self.form.place {
            Place::Store => {
                self.read_alone().await?;
                self.be_disturbed(true).await;
                self.alone().await
            }
            Place::Transaction => {
                self.be_disturbed(!self.is_disturbed_within()).await;
                let mut transaction = self.store.begin_with(self.grant, self.isolation()).await?;
                match self.within(&mut transaction).await {
                    Ok(()) => transaction.commit().await,
                    Err(error) => {
                        // Verdicts of many rows are no errors to the transaction, which would keep the ledger's row.
                        transaction.rollback().await;
                        Err(error)
                    }
                }
            }
            Place::Run => {
                self.be_disturbed(!self.is_disturbed_within()).await;
                let holder = Lent::new(self.grant.clone(), || Duration::MAX);
                let running = self.store.running().attempts_max(ATTEMPTS_MAX).isolation(self.isolation());
                running.run(&holder, |mut transaction| async move { self.within(&mut transaction).await }).await
            }
            Place::Joined => {
                let mut callers = match DB::FLAVOR {
                    // As the docs advise; but not to a transaction that is to be disturbed.
                    Flavor::Sqlite if self.disturbance.is_none() => {
                        self.store.pool().begin_with("BEGIN IMMEDIATE").await?
                    }
                    _ => self.store.pool().begin().await?,
                };
                if self.disturbance.is_some() {
                    DB::fetch_all(&mut callers, AssertSqlSafe(self.reading())).await?;
                }
                self.be_disturbed(true).await;
                let mut joined = self.store.join(&mut callers, self.grant).await?;
                match self.form.what {
                    What::Connection => {
                        DB::execute(joined.connection(), AssertSqlSafe(self.own_text())).await?;
                    }
                    _ => write_within!(self, &mut joined)?,
                }
                drop(joined);
                Ok(callers.commit().await?)
            }
        }
    }

    async fn alone(&self) -> Result<(), FenceError> {
        let (store, grant, rows) = (self.store, self.grant, self.target.rows());
        match self.form.what {
            What::Update => store.update(grant, &rows[0], &self.count_up()).await.map(drop),
            What::UpdateRows => alike(store.update_rows(grant, &rows, &self.count_up()).await?, grant),
            What::UpdateReturning => DB::update_returning(store, grant, &rows[0], &self.count_up()).await,
            What::Upsert => store.upsert(grant, &rows[0], &self.put()).await.map(drop),
            What::UpsertRows => alike(store.upsert_rows(grant, &self.puts()).await?, grant),
            What::ClaimAndUpdate => {
                let claim = store.claim(grant, &rows[0], ["n"]).await?;
                claim.update(&self.next(DB::integer(claim.row(), 0)?)).await.map(drop)
            }
            What::ClaimAndDelete => store.claim(grant, &rows[0], ["n"]).await?.delete().await.map(drop),
            What::Delete => store.delete(grant, &rows[0]).await.map(drop),
            What::DeleteRows => alike(store.delete_rows(grant, &rows).await?, grant),
            What::DeleteReturning => DB::delete_returning(store, grant, &rows[0]).await,
            What::InsertSelect => match store.insert_select(grant, &self.insert_select()).await?.rows {
                0 => Err(FenceError::NoSuchRow { table: self.target.table.clone() }),
                _ => Ok(()),
            },
            What::ClaimResources => store.claim_resources(grant).await,
            What::Statement | What::Text | What::Connection => unreachable!("needs a transaction"),
        }
    }

    async fn within(&self, transaction: &mut Transaction<DB>) -> Result<(), FenceError> {
        if self.is_disturbed_within() {
            transaction.fetch_all(AssertSqlSafe(self.reading())).await?;
            self.be_disturbed(true).await;
        }
        let told = match self.form.what {
            What::Statement => transaction.run(&self.own_statement()).await.map(drop),
            What::Text => transaction.execute(AssertSqlSafe(self.own_text())).await.map(drop),
            What::Connection => {
                let connection = transaction.connection().await?;
                Ok(DB::execute(connection, AssertSqlSafe(self.own_text())).await.map(drop)?)
            }
            _ => self.fenced_within(transaction).await,
        };
        match told {
            // The bare connection's errors are the caller's. The others may be swallowed: the commit tells them again.
            Err(FenceError::Conflict { .. }) if self.form.what != What::Connection => Ok(()),
            told => told,
        }
    }

    async fn fenced_within(&self, transaction: &mut Transaction<DB>) -> Result<(), FenceError> {
        write_within!(self, transaction)
    }

    fn isolation(&self) -> Isolation {
        self.disturbance.map_or(Isolation::default(), |disturbance| disturbance.isolation)
    }

    fn is_disturbed_within(&self) -> bool {
        self.disturbance.is_some() && self.form.has_row_fences() && DB::FLAVOR != Flavor::Sqlite
    }

    async fn be_disturbed(&self, now: bool) {
        if let Some(disturbance) = self.disturbance.filter(|_| now) {
            (disturbance.happens)().await;
        }
    }

    async fn read_alone(&self) -> Result<(), FenceError> {
        if self.disturbance.is_some() {
            self.store.fence_of(&self.target.rows()[0]).await?;
        }
        Ok(())
    }

    /// Another row than the target's: at serializable MySQL locks what it reads.
    fn reading(&self) -> String {
        format!("SELECT n FROM {} WHERE id = 0", self.target.table)
    }

    fn token(&self) -> i64 {
        self.grant.token().get()
    }

    fn count_up(&self) -> UpdateStatement {
        Query::update().value("n", Expr::col("n").add(1)).value("balance", self.token()).to_owned()
    }

    /// What follows from what was read.
    fn next(&self, n: Option<i64>) -> UpdateStatement {
        Query::update().value("n", n.expect("not null") + 1).value("balance", self.token()).to_owned()
    }

    fn put(&self) -> Upsert {
        Upsert::new().value("balance", self.token()).on_insert("n", 1).on_update("n", Expr::col("n").add(1))
    }

    fn puts(&self) -> [(Row, Upsert); 2] {
        self.target.rows().map(|row| (row, self.put()))
    }

    /// Both rows, unless they are there: of two rows of a table with two, `source`.
    fn insert_select(&self) -> InsertSelect {
        let there = Query::select()
            .column("id")
            .from_as(self.target.table.clone(), "there")
            .and_where(Expr::col(("there", "id")).eq(self.target.id))
            .to_owned();
        let query = Query::select()
            .expr(Expr::col("place").add(self.target.id))
            .exprs([Expr::val(self.token()), 1.into()])
            .from("source")
            .and_where(Expr::exists(there).not())
            .to_owned();
        InsertSelect::new(self.target.table.clone(), ["id", "balance", "n"], query)
    }

    /// A statement that knows nothing of fences.
    fn own_statement(&self) -> InsertStatement {
        let table = self.target.table.clone();
        Query::insert()
            .into_table(table.clone())
            .columns(["id", "balance", "n"])
            .values_panic([self.target.id.into(), self.token().into(), 1.into()])
            .on_conflict(
                OnConflict::column("id")
                    .value("n", Expr::col((table, "n")).add(1))
                    .value("balance", self.token())
                    .to_owned(),
            )
            .to_owned()
    }

    fn own_text(&self) -> String {
        let statement = self.own_statement();
        match DB::FLAVOR {
            Flavor::Postgres => statement.to_string(PostgresQueryBuilder),
            Flavor::MySql => statement.to_string(MysqlQueryBuilder),
            _ => statement.to_string(SqliteQueryBuilder),
        }
    }
}

/// The verdict of rows that were written together and fare alike, as a single row's writer would be told.
fn alike(verdicts: Vec<Verdict>, grant: &Grant) -> Result<(), FenceError> {
    assert!(verdicts.len() == 2 && verdicts[0] == verdicts[1], "{verdicts:?}");
    let (token, target) = (grant.token(), "a row of many".to_owned());
    match verdicts[0] {
        Verdict::Applied => Ok(()),
        Verdict::AlreadyWritten => Err(FenceError::AlreadyWritten { token, target }),
        Verdict::Stale { highest } => Err(FenceError::Stale { presented: token, highest, target }),
        Verdict::NoSuchRow => Err(FenceError::NoSuchRow { table: target }),
    }
}

/// A database with the forms that only some have.
pub(crate) trait Writes: TestDb {
    /// Whether it returns what it has written.
    const RETURNS: bool;

    async fn update_returning(
        store: &FenceStore<Self>,
        grant: &Grant,
        row: &Row,
        statement: &UpdateStatement,
    ) -> Result<(), FenceError>;

    async fn delete_returning(store: &FenceStore<Self>, grant: &Grant, row: &Row) -> Result<(), FenceError>;
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
macro_rules! returns {
    ($database:ty) => {
        impl Writes for $database {
            const RETURNS: bool = true;

            async fn update_returning(
                store: &FenceStore<Self>,
                grant: &Grant,
                row: &Row,
                statement: &UpdateStatement,
            ) -> Result<(), FenceError> {
                let written = store.update_returning(grant, row, statement, ["balance"]).await?;
                assert_eq!(Self::integer(&written, 0)?, Some(grant.token().get()));
                Ok(())
            }

            async fn delete_returning(store: &FenceStore<Self>, grant: &Grant, row: &Row) -> Result<(), FenceError> {
                store.delete_returning(grant, row, ["n"]).await.map(drop)
            }
        }
    };
}

#[cfg(feature = "postgres")]
returns!(sqlx::Postgres);
#[cfg(feature = "sqlite")]
returns!(sqlx::Sqlite);

#[cfg(feature = "mysql")]
impl Writes for sqlx::MySql {
    const RETURNS: bool = false;

    async fn update_returning(_: &FenceStore<Self>, _: &Grant, _: &Row, _: &UpdateStatement) -> Result<(), FenceError> {
        unreachable!("not among the forms")
    }

    async fn delete_returning(_: &FenceStore<Self>, _: &Grant, _: &Row) -> Result<(), FenceError> {
        unreachable!("not among the forms")
    }
}
