//! Every form of fenced write, once each, in the state in which it is usual, next to the plain statements.
//!
//! The test counts their round trips, the bench measures their time; both go by these names, and so does the table in
//! `docs/fencing.md`.

use std::time::Duration;

use fence_store::{Dialect, FenceStore, InsertSelect, Lent, Row, Ticket, Upsert};
use redlock_core::Grant;
use sea_query::{Expr, ExprTrait, Query, UpdateStatement};
use sea_query_sqlx::SqlxBinder;
use sqlx::AssertSqlSafe;

/// What is written, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    PlainUpdate,
    PlainTransaction,
    Update,
    UpdateRefused,
    UpdateUnproven,
    UpsertThere,
    UpsertAbsent,
    Claim,
    Delete,
    InsertSelect,
    UpdateRows,
    UpsertRowsThere,
    UpsertRowsAbsent,
    DeleteRows,
    ClaimResources,
    Ledger,
    LedgerText,
    LedgerOfThree,
    Run,
    Join,
    Settle,
}

/// A database as a program without a fence uses it: sea-query's statement, on a connection of sqlx.
pub(crate) trait Plain: Dialect {
    async fn run(connection: &mut Self::Connection, statement: &UpdateStatement);
}

macro_rules! plain {
    ($database:ty, $builder:expr) => {
        impl Plain for $database {
            async fn run(connection: &mut Self::Connection, statement: &UpdateStatement) {
                let (sql, values) = statement.build_sqlx($builder);
                sqlx::query_with(AssertSqlSafe(sql), values).execute(connection).await.unwrap();
            }
        }
    };
}

#[cfg(feature = "mysql")]
plain!(sqlx::MySql, sea_query::MysqlQueryBuilder);
#[cfg(feature = "postgres")]
plain!(sqlx::Postgres, sea_query::PostgresQueryBuilder);
#[cfg(feature = "sqlite")]
plain!(sqlx::Sqlite, sea_query::SqliteQueryBuilder);

/// All of them, with the names that the docs use.
pub(crate) const FORMS: [(Form, &str); 21] = [
    (Form::PlainUpdate, "plain `UPDATE`"),
    (Form::Update, "`update`"),
    (Form::UpsertThere, "`upsert` of a row that is there"),
    (Form::Claim, "`claim`"),
    (Form::UpdateUnproven, "`update` whose key is not proven unique"),
    (Form::UpdateRefused, "`update` that is refused"),
    (Form::UpsertAbsent, "`upsert` of a row that is not there"),
    (Form::InsertSelect, "`insert_select`"),
    (Form::Delete, "`delete`"),
    (Form::UpdateRows, "`update_rows`, 10 rows"),
    (Form::UpsertRowsThere, "`upsert_rows`, 10 rows that are there"),
    (Form::UpsertRowsAbsent, "`upsert_rows`, 10 rows that are not there"),
    (Form::DeleteRows, "`delete_rows`, 10 rows"),
    (Form::PlainTransaction, "plain transaction, 1 `UPDATE`"),
    (Form::Ledger, "ledger transaction, 1 sea-query statement"),
    (Form::LedgerText, "ledger transaction, 1 statement of your own text"),
    (Form::LedgerOfThree, "ledger transaction on 3 resources, 1 sea-query statement"),
    (Form::Run, "`run`, 1 sea-query statement"),
    (Form::Join, "`join` in a transaction of your own, 1 statement"),
    (Form::ClaimResources, "`claim_resources`"),
    (Form::Settle, "`settle`"),
];

const ROWS: i64 = 10;

/// Rows that are there, and written over and over.
const THERE: i64 = 1;
/// One that is written under a token far above all others.
const AHEAD: i64 = 500;
/// New ones are counted from here, so that none is there twice.
const NEW: i64 = 1_000;

/// Whoever writes: each time under a token of its own, as each grant does.
pub(crate) struct Writer {
    token: i64,
    next_row: i64,
    resources: Vec<&'static str>,
    /// Of a transaction that was rolled back.
    ticket: Option<Ticket>,
}

impl Writer {
    /// Makes the tables, on which all forms can be written.
    pub(crate) async fn new<DB: Plain>(store: &FenceStore<DB>) -> Self {
        store.install_schema().await.unwrap();
        let table = "CREATE TABLE accounts (id BIGINT NOT NULL PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, \
                     number BIGINT, fence_token BIGINT NOT NULL DEFAULT 0)";
        execute(store, table).await;
        execute(store, "CREATE TABLE source (id BIGINT NOT NULL PRIMARY KEY)").await;
        execute(store, "INSERT INTO source VALUES (0)").await;
        for id in (THERE..=ROWS).chain([AHEAD]) {
            execute(store, format!("INSERT INTO accounts (id, number) VALUES ({id}, {id})")).await;
        }
        execute(store, format!("UPDATE accounts SET fence_token = 9007199254740991 WHERE id = {AHEAD}")).await;
        Self { token: 0, next_row: NEW, resources: vec!["load/accounts"], ticket: None }
    }

    fn grant(&mut self) -> Grant {
        self.token += 1;
        Grant::assume_granted(&self.resources[..], self.token).unwrap()
    }

    /// Brings about what a form expects to find, and says where.
    pub(crate) async fn prepare<DB: Plain>(&mut self, store: &FenceStore<DB>, form: Form) -> i64 {
        self.resources = if form == Form::LedgerOfThree { vec!["a", "b", "c"] } else { vec!["load/accounts"] };
        let new = self.next_row;
        self.next_row += ROWS;
        match form {
            Form::UpdateRefused => AHEAD,
            Form::Settle => {
                let transaction = store.begin(&self.grant()).await.unwrap();
                self.ticket = Some(transaction.ticket());
                transaction.rollback().await;
                THERE
            }
            Form::Delete | Form::DeleteRows => {
                for id in new..new + ROWS {
                    execute(store, format!("INSERT INTO accounts (id) VALUES ({id})")).await;
                }
                new
            }
            Form::InsertSelect | Form::UpsertAbsent | Form::UpsertRowsAbsent => new,
            _ => THERE,
        }
    }

    /// Writes once.
    pub(crate) async fn write<DB: Plain>(&mut self, store: &FenceStore<DB>, form: Form, id: i64) {
        let grant = self.grant();
        let token = grant.token().get();
        let row = |id| Row::new("accounts", "id", id);
        let rows: Vec<Row> = (id..id + ROWS).map(row).collect();
        let balance = Query::update().value("balance", token).to_owned();
        let upsert = Upsert::new().value("balance", token);
        let upserts = || rows.iter().map(|row| (row.clone(), upsert.clone())).collect::<Vec<_>>();
        let own = balance.clone().table("accounts").and_where(Expr::col("id").eq(id)).to_owned();
        match form {
            Form::PlainUpdate => {
                let mut connection = store.pool().acquire().await.unwrap();
                DB::run(&mut connection, &own).await;
            }
            Form::PlainTransaction => {
                let mut transaction = store.pool().begin().await.unwrap();
                DB::run(&mut transaction, &own).await;
                transaction.commit().await.unwrap();
            }
            Form::Update => _ = store.update(&grant, &row(id), &balance).await.unwrap(),
            Form::UpdateRefused => assert!(store.update(&grant, &row(id), &balance).await.unwrap_err().is_stale()),
            Form::UpdateUnproven => {
                let unproven = Row::new("accounts", "number", id);
                store.update(&grant, &unproven, &balance).await.unwrap();
            }
            Form::UpsertThere | Form::UpsertAbsent => drop(store.upsert(&grant, &row(id), &upsert).await.unwrap()),
            Form::Claim => drop(store.claim(&grant, &row(id), ["balance"]).await.unwrap()),
            Form::Delete => drop(store.delete(&grant, &row(id)).await.unwrap()),
            Form::InsertSelect => {
                let query = Query::select().expr(Expr::col("id").add(id)).from("source").to_owned();
                let insert = InsertSelect::new("accounts", ["id"], query);
                assert_eq!(store.insert_select(&grant, &insert).await.unwrap().rows, 1);
            }
            Form::UpdateRows => drop(store.update_rows(&grant, &rows, &balance).await.unwrap()),
            Form::UpsertRowsThere | Form::UpsertRowsAbsent => {
                drop(store.upsert_rows(&grant, &upserts()).await.unwrap());
            }
            Form::DeleteRows => drop(store.delete_rows(&grant, &rows).await.unwrap()),
            Form::ClaimResources => store.claim_resources(&grant).await.unwrap(),
            Form::Ledger | Form::LedgerOfThree => {
                let mut transaction = store.begin(&grant).await.unwrap();
                transaction.run(&own).await.unwrap();
                transaction.commit().await.unwrap();
            }
            Form::LedgerText => {
                let mut transaction = store.begin(&grant).await.unwrap();
                let text = format!("UPDATE accounts SET balance = {token} WHERE id = {id}");
                transaction.execute(AssertSqlSafe(text)).await.unwrap();
                transaction.commit().await.unwrap();
            }
            Form::Run => {
                let holder = Lent::new(grant, || Duration::MAX);
                let work = store.run(&holder, |mut transaction| {
                    let own = own.clone();
                    async move { transaction.run(&own).await }
                });
                work.await.unwrap();
            }
            Form::Join => {
                let mut transaction = store.pool().begin().await.unwrap();
                let mut joined = store.join(&mut transaction, &grant).await.unwrap();
                DB::run(joined.connection(), &own).await;
                drop(joined);
                transaction.commit().await.unwrap();
            }
            Form::Settle => drop(store.settle(&self.ticket.take().unwrap()).await.unwrap()),
        }
    }
}

async fn execute<DB: Dialect>(store: &FenceStore<DB>, text: impl Into<String>) {
    let mut connection = store.pool().acquire().await.unwrap();
    DB::execute(&mut connection, AssertSqlSafe(text.into())).await.unwrap();
}
