//! A fresh database for each test, and few words to look into it.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use fence_store::{Dialect, FenceError, FenceStore, Isolation, Row};
use redlock_core::Grant;
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Pool};
use tempfile::TempDir;

/// How long a test waits for something that should come about at once.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const ISOLATIONS: [Isolation; 3] =
    [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

/// A table with a fence, in all three dialects.
pub(crate) const ACCOUNTS: &str = "CREATE TABLE accounts (id BIGINT NOT NULL PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, \
                        n BIGINT NOT NULL DEFAULT 0, fence_token BIGINT NOT NULL DEFAULT 0)";

/// A database that tests can make afresh.
pub(crate) trait TestDb: Dialect {
    /// What each connection begins with, so that tests do not wait for what they do not look at.
    const FOR_SPEED: Option<&str> = None;

    /// How many other sessions in this database have a transaction open.
    fn open_transactions(pool: &Pool<Self>) -> impl Future<Output = i64>;

    /// How much other sessions in this database have locked.
    fn locks(pool: &Pool<Self>) -> impl Future<Output = i64>;

    /// How many other sessions there are in this database.
    fn other_sessions(pool: &Pool<Self>) -> impl Future<Output = i64>;

    /// The URL of a new, empty database, and what keeps it there.
    fn new_database() -> impl Future<Output = (String, Option<TempDir>)>;
}

/// A database of its own for one test.
pub(crate) struct Bench<DB: TestDb> {
    pub(crate) url: String,
    pub(crate) store: FenceStore<DB>,
    _folder: Option<TempDir>,
}

impl<DB: TestDb> Bench<DB> {
    /// With the ledger and the table `accounts`, and at most so many connections.
    pub(crate) async fn new(connections: u32) -> Self {
        let bench = Self::empty(connections).await;
        bench.store.install_schema().await.unwrap();
        bench.sql(ACCOUNTS).await;
        bench
    }

    /// The same in a database that is there already.
    #[cfg(feature = "postgres")]
    pub(crate) async fn on(url: String, connections: u32) -> Self {
        let store = FenceStore::new(pool(&url, connections, None).await);
        store.install_schema().await.unwrap();
        execute(store.pool(), ACCOUNTS).await.unwrap();
        let _folder = None;
        Self { url, store, _folder }
    }

    /// With nothing in it.
    pub(crate) async fn empty(connections: u32) -> Self {
        let (url, folder) = DB::new_database().await;
        let pool = pool(&url, connections, None).await;
        Self { url, store: FenceStore::new(pool), _folder: folder }
    }

    /// Another store on the same database, each of whose connections begins with a statement.
    pub(crate) async fn another(&self, connections: u32, first: Option<&'static str>) -> FenceStore<DB> {
        FenceStore::new(pool(&self.url, connections, first).await)
    }

    pub(crate) async fn sql(&self, text: impl Into<String>) {
        execute(self.store.pool(), text).await.unwrap();
    }

    /// The first column of the first row.
    pub(crate) async fn number(&self, text: impl Into<String>) -> Option<i64> {
        number(self.store.pool(), text).await
    }

    pub(crate) async fn insert_account(&self, id: i64, balance: i64) {
        self.sql(format!("INSERT INTO accounts (id, balance) VALUES ({id}, {balance})")).await;
    }

    pub(crate) async fn balance(&self, id: i64) -> Option<i64> {
        self.number(format!("SELECT balance FROM accounts WHERE id = {id}")).await
    }
}

pub(crate) async fn pool<DB: TestDb>(url: &str, connections: u32, first: Option<&'static str>) -> Pool<DB> {
    PoolOptions::<DB>::new()
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(60))
        // The first thing to travel is the statement of the test, not a ping.
        .test_before_acquire(false)
        .after_connect(move |connection, _| {
            Box::pin(async move {
                for text in DB::FOR_SPEED.into_iter().chain(first) {
                    DB::execute(connection, text).await?;
                }
                Ok(())
            })
        })
        .connect(url)
        .await
        .unwrap()
}

pub(crate) async fn execute<DB: TestDb>(pool: &Pool<DB>, text: impl Into<String>) -> sqlx::Result<()> {
    let mut connection = pool.acquire().await?;
    DB::execute(&mut connection, AssertSqlSafe(text.into())).await?;
    Ok(())
}

pub(crate) async fn number<DB: TestDb>(pool: &Pool<DB>, text: impl Into<String>) -> Option<i64> {
    let mut connection = pool.acquire().await.unwrap();
    let row = DB::fetch_optional(&mut connection, AssertSqlSafe(text.into())).await.unwrap();
    row.and_then(|row| DB::integer(&row, 0).unwrap())
}

pub(crate) fn grant(token: i64) -> Grant {
    grant_of("accounts", token)
}

pub(crate) fn grant_of(resource: &str, token: i64) -> Grant {
    Grant::assume_granted(resource, token).unwrap()
}

pub(crate) fn account(id: i64) -> Row {
    Row::new("accounts", "id", id)
}

/// Asserts that a result is `Stale` with these numbers.
#[track_caller]
pub(crate) fn assert_stale<T: std::fmt::Debug>(result: Result<T, FenceError>, token: i64, newer: i64) {
    match result {
        Err(FenceError::Stale { presented, highest, .. }) => {
            assert_eq!((presented.get(), highest), (token, newer));
        }
        other => panic!("expected stale ({token} after {newer}), got {other:?}"),
    }
}

/// Polls a future so many times, and drops it if it is not done then.
pub(crate) async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Runs a test on a runtime with several threads, as programs do.
pub(crate) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

/// Names a test `claim` on each database as `claim_postgres`, `claim_mariadb` and `claim_sqlite`.
macro_rules! on_every_database {
    ($($(#[$attribute:meta])* $postgres:ident $mariadb:ident $sqlite:ident => $test:ident;)*) => {
        $(
            $(#[$attribute])*
            #[cfg(feature = "postgres")]
            #[test]
            fn $postgres() {
                crate::support::run($test::<sqlx::Postgres>());
            }

            $(#[$attribute])*
            #[cfg(feature = "mysql")]
            #[test]
            fn $mariadb() {
                crate::support::run($test::<sqlx::MySql>());
            }

            $(#[$attribute])*
            #[cfg(feature = "sqlite")]
            #[test]
            fn $sqlite() {
                crate::support::run($test::<sqlx::Sqlite>());
            }
        )*
    };
}
pub(crate) use on_every_database;

/// A name that no other test on a shared server has.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn database_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("fence_test_{:016x}", RandomState::new().hash_one(std::process::id()))
}

#[cfg(feature = "postgres")]
impl TestDb for sqlx::Postgres {
    async fn open_transactions(pool: &Pool<Self>) -> i64 {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                    AND xact_start IS NOT NULL";
        number(pool, text).await.unwrap()
    }

    async fn locks(pool: &Pool<Self>) -> i64 {
        let text = "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database \
                    WHERE datname = current_database() AND pid <> pg_backend_pid()";
        number(pool, text).await.unwrap()
    }

    async fn other_sessions(pool: &Pool<Self>) -> i64 {
        let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                    AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
        number(pool, text).await.unwrap()
    }

    async fn new_database() -> (String, Option<TempDir>) {
        let server = redlock_bench::sql::Postgres::shared().unwrap_or_else(|error| panic!("{error}"));
        database_on::<Self>(server.url()).await
    }
}

#[cfg(feature = "mysql")]
impl TestDb for sqlx::MySql {
    async fn open_transactions(pool: &Pool<Self>) -> i64 {
        i64::try_from(innodb_transactions(pool).await.len()).unwrap()
    }

    async fn locks(pool: &Pool<Self>) -> i64 {
        let all = innodb_transactions(pool).await;
        let holding = all.iter().filter(|one| !one.contains("\n0 lock struct(s)") && one.contains(" lock struct(s)"));
        i64::try_from(holding.count()).unwrap()
    }

    async fn other_sessions(pool: &Pool<Self>) -> i64 {
        let text =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        number(pool, text).await.unwrap()
    }

    async fn new_database() -> (String, Option<TempDir>) {
        let server = redlock_bench::sql::MariaDb::shared().unwrap_or_else(|error| panic!("{error}"));
        database_on::<Self>(server.url()).await
    }
}

/// What the monitor of InnoDB says of each transaction that another session in this database has open.
///
/// Not from `information_schema.innodb_trx`. That is a copy, which is not renewed while somebody reads it more often than
/// ten times a second: whoever waits there for the end of a transaction waits for ever.
#[cfg(feature = "mysql")]
async fn innodb_transactions(pool: &Pool<sqlx::MySql>) -> Vec<String> {
    use sqlx::MySql;
    let mut connection = pool.acquire().await.unwrap();
    let sessions = "SELECT CAST(CONCAT(' thread id ', id, ',') AS CHAR) FROM information_schema.processlist \
                    WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    let sessions = MySql::fetch_all(&mut connection, sessions).await.unwrap();
    let sessions: Vec<String> = sessions.iter().map(|row| MySql::text(row, 0).unwrap().unwrap()).collect();
    let status = MySql::fetch_optional(&mut connection, "SHOW ENGINE INNODB STATUS").await.unwrap().unwrap();
    let status = MySql::text(&status, 2).unwrap().unwrap();
    let transactions = status.split("---TRANSACTION ").skip(1);
    let open = transactions.filter(|one| one.lines().next().is_some_and(|line| !line.ends_with("not started")));
    open.filter(|one| sessions.iter().any(|session| one.contains(session))).map(str::to_owned).collect()
}

/// Makes a database on a server, next to the one that the URL ends in.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) async fn database_on<DB: TestDb>(server: &str) -> (String, Option<TempDir>) {
    let name = database_name();
    let administrator = pool::<DB>(server, 1, None).await;
    execute(&administrator, format!("CREATE DATABASE {name}")).await.unwrap();
    administrator.close().await;
    let (address, _) = server.rsplit_once('/').unwrap();
    (format!("{address}/{name}"), None)
}

#[cfg(feature = "sqlite")]
impl TestDb for sqlx::Sqlite {
    /// No power is lost here, and the disk is shared.
    const FOR_SPEED: Option<&str> = Some("PRAGMA synchronous = OFF");

    /// Never more than none: whether one is open shows in that a write goes through.
    async fn open_transactions(pool: &Pool<Self>) -> i64 {
        number(pool, "DELETE FROM fence_ledger WHERE resource = 'nobody' RETURNING 1").await.unwrap_or(0)
    }

    /// 1 if a reader or a writer keeps it from emptying the log.
    async fn locks(pool: &Pool<Self>) -> i64 {
        number(pool, "PRAGMA wal_checkpoint(TRUNCATE)").await.unwrap()
    }

    /// There is no server to ask. Closing a pool waits for its connections.
    async fn other_sessions(_: &Pool<Self>) -> i64 {
        0
    }

    async fn new_database() -> (String, Option<TempDir>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        pool.close().await;
        (format!("sqlite://{}", file.display()), Some(folder))
    }
}
