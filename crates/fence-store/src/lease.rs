//! A pooled connection that goes back to its pool only when nothing is under way on it.
//!
//! sqlx 0.9 hands a connection back to the pool whatever a dropped future was doing. After a dropped `BEGIN` (Postgres,
//! MySQL) the pool then holds an open transaction, in which somebody's acknowledged autocommit write vanishes; after a
//! dropped statement that was being prepared (MySQL) the next reader takes an old answer for its own. So a connection
//! with something in flight is closed, and the server undoes what was open. Running `BEGIN` in a task of its own, the
//! other known remedy, would cover the first of the two only.
//!
//! SQLite is the exception: its worker thread carries out one command after the other and undoes an unacknowledged
//! `BEGIN` itself, and closing would lose an in-memory database.

use sqlx::pool::PoolConnection;
use sqlx::{Database, Execute, Pool};
use sqlx_core::transaction::TransactionManager;

use crate::dialect::{BoxFuture, Dialect, Flavor, Isolation, LockWait};

/// A connection with what is known about its state.
pub(crate) struct Lease<'c, DB: Dialect> {
    connection: Option<Connection<'c, DB>>,
    /// A transaction was begun and neither committed nor rolled back.
    open: bool,
    /// A command was sent, or is being sent, and has not been answered.
    in_flight: bool,
    /// How long its transactions wait for locks, if that was said.
    wait: Option<LockWait>,
    /// An end of the transaction failed, so that sqlx and the server may disagree about it.
    broken: bool,
}

enum Connection<'c, DB: Database> {
    /// From the pool, and back to it.
    Pooled(PoolConnection<DB>),
    /// The caller's, who opened a transaction on it and ends it. Nothing is done to it when the lease is dropped.
    Lent(&'c mut DB::Connection),
}

impl<DB: Dialect> Lease<'static, DB> {
    pub(crate) async fn acquire(pool: &Pool<DB>) -> sqlx::Result<Self> {
        let connection = Some(Connection::Pooled(pool.acquire().await?));
        Ok(Self { connection, open: false, in_flight: false, wait: None, broken: false })
    }
}

impl<'c, DB: Dialect> Lease<'c, DB> {
    /// A connection that the caller keeps.
    pub(crate) fn lent(connection: &'c mut DB::Connection) -> Self {
        Self {
            connection: Some(Connection::Lent(connection)),
            open: false,
            in_flight: false,
            wait: None,
            broken: false,
        }
    }

    pub(crate) async fn begin(&mut self, isolation: Isolation) -> sqlx::Result<()> {
        let statement = DB::FLAVOR.begin(isolation, self.wait);
        self.in_flight = true;
        let result = DB::begin(self.connection(), statement).await;
        self.open = result.is_ok();
        // An isolation level set for a transaction that then fails to begin must not wait for the next borrower.
        self.broken |= result.is_err() && DB::FLAVOR == Flavor::MySql;
        self.answered(result)
    }

    /// Limits how long transactions on this connection wait for locks; single statements too, where that cannot be said
    /// for less than a session.
    pub(crate) async fn limit_wait(&mut self, wait: LockWait) -> sqlx::Result<()> {
        self.wait = Some(wait);
        if let Some(statement) = wait.for_session(DB::FLAVOR) {
            // From `LockWait`, which puts a number into it.
            self.execute(sqlx::AssertSqlSafe(statement)).await?;
        }
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> sqlx::Result<()> {
        self.in_flight = true;
        let result = DB::commit(self.connection()).await;
        self.in_flight = false;
        self.open = result.is_err();
        result
    }

    /// Ends the transaction without keeping anything of it. A failure needs no handling: the connection is closed then.
    pub(crate) async fn rollback(&mut self) {
        if !self.open {
            return;
        }
        self.in_flight = true;
        let mut result = DB::rollback(self.connection()).await;
        if DB::FLAVOR == Flavor::Sqlite
            && result.as_ref().is_err_and(|error| error.to_string().contains("no transaction"))
        {
            // SQLite has rolled back by itself (INSERT OR ROLLBACK, a full disk), and sqlx counts a transaction still. One
            // that it can end brings the two together; closing the connection would lose a database in memory.
            result = DB::execute(self.connection(), "BEGIN").await.map(|_| ());
            if result.is_ok() {
                result = DB::rollback(self.connection()).await;
            }
        }
        self.in_flight = false;
        self.open = result.is_err();
        self.broken |= result.is_err();
    }

    pub(crate) fn execute<'e, 'q: 'e>(
        &'e mut self,
        query: impl Execute<'q, DB> + 'q,
    ) -> BoxFuture<'e, sqlx::Result<DB::QueryResult>> {
        Box::pin(async move {
            self.in_flight = true;
            let result = DB::execute(self.connection(), query).await;
            self.answered(result)
        })
    }

    pub(crate) fn fetch_optional<'e, 'q: 'e>(
        &'e mut self,
        query: impl Execute<'q, DB> + 'q,
    ) -> BoxFuture<'e, sqlx::Result<Option<DB::Row>>> {
        Box::pin(async move {
            self.in_flight = true;
            let result = DB::fetch_optional(self.connection(), query).await;
            self.answered(result)
        })
    }

    pub(crate) fn fetch_all<'e, 'q: 'e>(
        &'e mut self,
        query: impl Execute<'q, DB> + 'q,
    ) -> BoxFuture<'e, sqlx::Result<Vec<DB::Row>>> {
        Box::pin(async move {
            self.in_flight = true;
            let result = DB::fetch_all(self.connection(), query).await;
            self.answered(result)
        })
    }

    /// The connection itself. What is done with it is not watched, so it counts as in flight until the next command
    /// through this lease has been answered.
    pub(crate) fn unwatched(&mut self) -> &mut DB::Connection {
        self.in_flight = true;
        self.connection()
    }

    fn answered<T>(&mut self, result: sqlx::Result<T>) -> sqlx::Result<T> {
        self.in_flight = false;
        // Only an error that the server reported leaves the conversation in step.
        self.broken |= result.as_ref().is_err_and(|error| error.as_database_error().is_none());
        result
    }

    fn connection(&mut self) -> &mut DB::Connection {
        match self.connection.as_mut().expect("a lease keeps its connection until it is dropped") {
            Connection::Pooled(connection) => connection,
            Connection::Lent(connection) => connection,
        }
    }
}

impl<DB: Dialect> Drop for Lease<'_, DB> {
    fn drop(&mut self) {
        let Some(Connection::Pooled(mut connection)) = self.connection.take() else {
            return;
        };
        if tokio::runtime::Handle::try_current().is_err() {
            // The way back to the pool needs a runtime, and so does a farewell to the server: sqlx panics without one. Closing the
            // socket does not, and ends whatever is open as well.
            drop(connection.detach());
        } else if self.broken || (self.in_flight && DB::FLAVOR != Flavor::Sqlite) {
            connection.close_on_drop();
        } else if self.open {
            // Queued; sent when the connection arrives at the pool, before anybody else gets it.
            <DB as Database>::TransactionManager::start_rollback(&mut connection);
        }
    }
}

impl<DB: Dialect> std::fmt::Debug for Lease<'_, DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("open", &self.open)
            .field("in_flight", &self.in_flight)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
