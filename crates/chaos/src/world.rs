//! The servers, the networks between, the databases and the clients: what is there to be harmed, and how each harm is done.
//!
//! No fault is assumed to have happened. Each is looked at from the side (a stopped process, an answer that does not come, a
//! clock that shows another time) and says what was seen.

use std::io::PipeWriter;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use redlock_backends::RedisNode;
use redlock_bench::proxy::{Lane, Mode};
use redlock_bench::sql::{MariaDb, Postgres};
use redlock_bench::{Calendar, Process, Proxy, RedisOptions, RedisServer, Reply, Servers, eventually};
use redlock_core::{EnrollError, FencingToken, Redlock};
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection, Row as _, SqliteConnection};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::client::{self, Orders, sqlite_options};
use crate::desk::schema;
use crate::fault::{Database, JUMP, Kind, Target};
use crate::history::{ORDERS, PREFIX, TTL};
use crate::plan::{CLIENTS, NODES, Planned};
use crate::run::Options;

/// How long an answer is awaited that is not expected to come.
const NO_ANSWER: Duration = Duration::from_millis(100);

/// How long a server that is up may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long an effect is awaited that does not come at once.
const EFFECT: Duration = Duration::from_secs(2);

/// Everything there is.
pub(crate) struct World {
    pub(crate) servers: Servers,
    calendars: Vec<Mutex<Calendar>>,
    proxies: Vec<Proxy>,
    postgres: Postgres,
    mariadb: MariaDb,
    folder: TempDir,
    program: PathBuf,
    seed: u64,
    fenced: bool,
    guarded: bool,
    seats: Vec<Mutex<Seat>>,
    /// Which process is the next.
    processes: Mutex<u32>,
}

/// A client's place, and the process that has it now.
struct Seat {
    process: Process,
    /// Closing it tells the client to end.
    orders: Option<PipeWriter>,
}

/// What was seen of a fault.
pub(crate) struct Seen {
    pub(crate) happened: bool,
    pub(crate) note: String,
}

fn seen(happened: bool, note: impl Into<String>) -> Seen {
    Seen { happened, note: note.into() }
}

impl World {
    /// Starts everything; `program` becomes a client when it finds its orders in the environment.
    pub(crate) async fn start(options: &Options) -> Result<Self> {
        let Options { seed, fenced, guarded, .. } = *options;
        let program = &options.program;
        let calendars: Vec<Calendar> = (0..NODES).map(|_| Calendar::new()).collect::<Result<_, _>>()?;
        let set_up = |node: usize| {
            let options = RedisOptions::new()
                .set("appendonly", ["yes"])
                // Written before the answer, and kept by the system when the process is killed. With `everysec` a write may
                // wait for a disk that is busy, and be lost with the process.
                .set("appendfsync", ["no"])
                .set("auto-aof-rewrite-percentage", ["0"]);
            calendars[node].of(options)
        };
        let servers = Servers::start_with(NODES, set_up).await?;
        let mut proxies = Vec::new();
        for server in servers.iter() {
            proxies.push(Proxy::start(server.address()).await?);
        }
        let folder = tempfile::Builder::new().prefix("redlock-chaos-").tempdir()?;
        let (postgres, mariadb) = (Postgres::start()?, MariaDb::start()?);
        let calendars = calendars.into_iter().map(Mutex::new).collect();
        let program = program.to_owned();
        let (seats, processes) = (Vec::new(), Mutex::new(0));
        let mut world = Self {
            servers,
            calendars,
            proxies,
            postgres,
            mariadb,
            folder,
            program,
            seed,
            fenced,
            guarded,
            seats,
            processes,
        };
        if guarded {
            world.operator()?.enroll_fresh().await?;
        }
        world.create_tables().await?;
        for client in 0..CLIENTS {
            world.seats.push(Mutex::new(world.seat(client)?));
        }
        Ok(world)
    }

    async fn create_tables(&self) -> Result<()> {
        // The one that the server brings is for its own tables, on which there are no triggers.
        let mut connection = MySqlConnection::connect(self.mariadb.url()).await?;
        sqlx::raw_sql("CREATE DATABASE chaos").execute(&mut connection).await?;
        connection.close().await?;
        macro_rules! create {
            ($database:expr, $connection:expr, $store:expr) => {{
                let mut connection = $connection;
                for statement in schema($database) {
                    sqlx::query(*statement).execute(&mut connection).await?;
                }
                for order in ORDERS.iter().filter(|order| order.database == $database) {
                    let insert = AssertSqlSafe(format!("INSERT INTO accounts (id) VALUES ({})", order.id));
                    sqlx::query(insert).execute(&mut connection).await?;
                }
                connection.close().await?;
                let store = $store;
                store.install_schema().await?;
                store.pool().close().await;
            }};
        }
        use fence_store::FenceStore;
        create!(
            Database::Postgres,
            self.postgres().await?,
            FenceStore::new(sqlx::PgPool::connect(self.postgres.url()).await?)
        );
        create!(
            Database::MariaDb,
            self.mariadb().await?,
            FenceStore::new(sqlx::MySqlPool::connect(&self.mariadb_url()).await?)
        );
        let options = sqlite_options(&self.sqlite_file());
        create!(
            Database::Sqlite,
            self.sqlite().await?,
            FenceStore::new(sqlx::SqlitePool::connect_with(options).await?)
        );
        Ok(())
    }

    /// A client for whoever looks after the nodes.
    fn operator(&self) -> Result<Redlock> {
        let nodes = RedisNode::open_all(self.servers.urls().iter().map(String::as_str))?;
        Ok(Redlock::builder().nodes(nodes).key_prefix(PREFIX).ttl(TTL).crash_guard(TTL).build()?)
    }

    /// Looks after the nodes for as long as it is polled, as an operator of the crash-recovery guard would: where fewer than a
    /// quorum remember, goes on above what the databases have accepted. Counts how often. Does nothing where the guard is off.
    pub(crate) async fn look_after_nodes(&self, reseeded: &AtomicUsize) -> Result<()> {
        if !self.guarded {
            return std::future::pending().await;
        }
        let operator = self.operator()?;
        loop {
            sleep(Duration::from_millis(250)).await;
            if let Err(EnrollError::TooFewEnrolled { .. }) = operator.enroll().await
                // A database may be out of reach just now.
                && let Ok(highest) = self.highest_token().await
                && let Ok(standings) = operator.reseed(highest).await
                && standings.iter().filter(|found| found.is_enrolled()).count() > NODES / 2
            {
                reseeded.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The highest token that was accepted anywhere.
    async fn highest_token(&self) -> Result<FencingToken> {
        let mut highest = 1;
        macro_rules! ask {
            ($connection:expr) => {{
                let mut connection = $connection;
                let row = sqlx::query("SELECT MAX(token) FROM kept").fetch_one(&mut connection).await?;
                highest = highest.max(row.try_get::<Option<i64>, _>(0)?.unwrap_or(0));
                connection.close().await?;
            }};
        }
        ask!(self.postgres().await?);
        ask!(self.mariadb().await?);
        ask!(self.sqlite().await?);
        Ok(FencingToken::assume_granted(highest)?)
    }

    /// Starts a client.
    fn seat(&self, client: usize) -> Result<Seat> {
        let process = {
            let mut processes = lock(&self.processes);
            *processes += 1;
            *processes
        };
        let orders = Orders {
            process,
            client,
            seed: self.seed,
            fenced: self.fenced,
            guarded: self.guarded,
            nodes: self.proxies.iter().map(Proxy::url).collect(),
            postgres: self.postgres.url().to_owned(),
            mariadb: self.mariadb_url(),
            sqlite: self.sqlite_file(),
            lines: self.lines_folder()?.join(format!("{process}.jsonl")),
        };
        let orders = serde_json::to_string(&orders)?;
        let (reader, writer) = std::io::pipe()?;
        let process = Process::spawn(&self.program, |command| {
            command.env(client::VARIABLE, orders).stdin(reader).stdout(Stdio::null());
        })?;
        Ok(Seat { process, orders: Some(writer) })
    }

    /// Where clients write their lines.
    pub(crate) fn lines_folder(&self) -> Result<PathBuf> {
        let folder = self.folder.path().join("lines");
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    fn sqlite_file(&self) -> PathBuf {
        self.folder.path().join("chaos.sqlite")
    }

    fn mariadb_url(&self) -> String {
        let url = self.mariadb.url();
        [url.strip_suffix("/mysql").unwrap_or(url), "/chaos"].concat()
    }

    pub(crate) async fn postgres(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(self.postgres.url()).await?)
    }

    pub(crate) async fn mariadb(&self) -> Result<MySqlConnection> {
        Ok(MySqlConnection::connect(&self.mariadb_url()).await?)
    }

    pub(crate) async fn sqlite(&self) -> Result<SqliteConnection> {
        Ok(SqliteConnection::connect_with(&sqlite_options(&self.sqlite_file())).await?)
    }

    /// Tells all clients to end, and waits until they have; says which did not.
    pub(crate) async fn dismiss(&self, deadline: Duration) -> Vec<String> {
        for seat in &self.seats {
            lock(seat).orders = None;
        }
        let ended = eventually(deadline, || async {
            let alive = self.seats.iter().filter(|seat| lock(seat).process.exited().is_none()).count();
            if alive == 0 { Ok(()) } else { Err(format!("{alive} clients have not ended")) }
        })
        .await;
        let mut trouble: Vec<String> = ended.err().map(|error| error.to_string()).into_iter().collect();
        for (client, seat) in self.seats.iter().enumerate() {
            let status = lock(seat).process.exited();
            if let Some(status) = status.filter(|status| !status.success()) {
                trouble.push(format!("client {client} ended with {status}"));
            }
        }
        trouble
    }

    /// Does what was planned, all of it: begins, lasts, mends.
    pub(crate) async fn inflict(&self, fault: &Planned) -> Result<Seen> {
        match (fault.kind, fault.target) {
            (Kind::FreezeClient, Target::Client(client)) => {
                lock(&self.seats[client]).process.freeze()?;
                sleep(fault.lasts).await;
                lock(&self.seats[client]).process.thaw()?;
                Ok(seen(true, "stopped"))
            }
            (Kind::KillClient, Target::Client(client)) => {
                lock(&self.seats[client]).process.kill();
                let ended = lock(&self.seats[client]).process.exited().is_some();
                let next = self.seat(client)?;
                *lock(&self.seats[client]) = next;
                Ok(seen(ended, "killed; another one has its place"))
            }
            (Kind::KillPostgres, _) => self.end_postgres_sessions().await,
            (Kind::KillMariaDb, _) => self.end_mariadb_connections().await,
            (Kind::BusySqlite, _) => self.keep_sqlite_busy(fault.lasts).await,
            (_, Target::Node(node)) => self.inflict_on_node(fault, node).await,
            (kind, target) => Err(anyhow!("{kind} cannot be done to {target}")),
        }
    }

    async fn inflict_on_node(&self, fault: &Planned, node: usize) -> Result<Seen> {
        let (server, proxy) = (&self.servers[node], &self.proxies[node]);
        match fault.kind {
            Kind::FreezeServer => {
                server.freeze()?;
                sleep(fault.lasts).await;
                server.thaw()?;
                Ok(seen(true, "stopped"))
            }
            Kind::RestartWithData | Kind::RestartEmpty | Kind::CutTail => {
                let before = server.pid();
                server.kill();
                let cut =
                    if fault.kind == Kind::CutTail { cut_tail(&server.data_directory(), fault.variant)? } else { 1 };
                sleep(fault.lasts).await;
                if fault.kind == Kind::RestartEmpty {
                    server.restart().await?;
                } else {
                    server.restart_with_data().await?;
                }
                let note =
                    if fault.kind == Kind::CutTail { format!("{cut} bytes cut off") } else { "another process".into() };
                Ok(seen(0 < cut && before != server.pid(), note))
            }
            Kind::FlushAll => {
                let before = number(server, &["DBSIZE"]).await?;
                ok(server, &["FLUSHALL"]).await?;
                Ok(seen(0 < before, format!("{before} keys")))
            }
            Kind::ScriptFlush => {
                ok(server, &["SCRIPT", "FLUSH"]).await?;
                Ok(seen(true, "OK"))
            }
            Kind::ClientKill => {
                let mut killed = 0;
                for kind in ["normal", "pubsub"] {
                    killed += number(server, &["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await?;
                }
                Ok(seen(0 < killed, format!("{killed} connections")))
            }
            Kind::Evict => evict(server).await,
            Kind::MemoryLimit => {
                ok(server, &["CONFIG", "SET", "maxmemory", "1"]).await?;
                let refused = ask(server, &["SET", "chaos:~unwritten", "x"]).await?;
                sleep(fault.lasts).await;
                ok(server, &["CONFIG", "SET", "maxmemory", "0"]).await?;
                Ok(seen(matches!(&refused, Reply::Error(text) if text.starts_with("OOM")), format!("{refused:?}")))
            }
            Kind::ClockForward | Kind::ClockBack => {
                let before = time(server).await?;
                let forward = fault.kind == Kind::ClockForward;
                let set = |by| {
                    let mut calendar = lock(&self.calendars[node]);
                    if forward { calendar.set_forward(by) } else { calendar.set_back(by) }
                };
                set(JUMP)?;
                let after = time(server).await?;
                sleep(fault.lasts).await;
                set(Duration::ZERO)?;
                let jumped = after - before;
                Ok(seen(1 < jumped.abs(), format!("{jumped} s")))
            }
            Kind::Delay | Kind::Loss | Kind::OneWayCut | Kind::Refuse => disturb(proxy, fault).await,
            kind => Err(anyhow!("{kind} cannot be done to a node")),
        }
    }

    async fn end_postgres_sessions(&self) -> Result<Seen> {
        let mut connection = self.postgres().await?;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let ended = sqlx::query(end).fetch_all(&mut connection).await?.len();
        connection.close().await?;
        Ok(seen(0 < ended, format!("{ended} sessions")))
    }

    async fn end_mariadb_connections(&self) -> Result<Seen> {
        let mut connection = self.mariadb().await?;
        let list = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";
        let mut ended = 0;
        for row in sqlx::query(list).fetch_all(&mut connection).await? {
            // A number; KILL takes no parameters. One that has gone by itself is an error.
            let kill = AssertSqlSafe(format!("KILL {}", row.try_get::<i64, _>(0)?));
            ended += usize::from(sqlx::raw_sql(kill).execute(&mut connection).await.is_ok());
        }
        connection.close().await?;
        Ok(seen(0 < ended, format!("{ended} connections")))
    }

    async fn keep_sqlite_busy(&self, lasts: Duration) -> Result<Seen> {
        let mut connection = self.sqlite().await?;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
        sleep(lasts).await;
        sqlx::query("ROLLBACK").execute(&mut connection).await?;
        connection.close().await?;
        Ok(seen(true, "the write lock was held"))
    }

    /// All lock keys on all nodes, with their values and what is left of their lives.
    pub(crate) async fn lock_keys(&self) -> Result<Vec<(usize, String, String, i64)>> {
        let mut found = Vec::new();
        for (node, server) in self.servers.iter().enumerate() {
            let mut probe = server.probe().deadline(PATIENCE);
            for key in probe.keys(&format!("{PREFIX}*")).await? {
                // What begins with `~` belongs to the library's own book-keeping, and is to outlive the locks.
                if key[PREFIX.len()..].starts_with('~') {
                    continue;
                }
                if let Some(value) = probe.get(&key).await? {
                    found.push((node, key.clone(), value, probe.pttl(&key).await?));
                }
            }
        }
        Ok(found)
    }
}

/// Cuts off the end of the append-only file, as a power loss may do; says how many bytes.
fn cut_tail(data: &Path, variant: u64) -> Result<u64> {
    let files = std::fs::read_dir(data.join("appendonlydir")).context("the server's append-only folder")?;
    let mut files: Vec<PathBuf> = files.map(|file| file.map(|file| file.path())).collect::<Result<_, _>>()?;
    files.retain(|file| file.to_string_lossy().ends_with(".incr.aof"));
    files.sort();
    let file = files.last().context("a server with an append-only file")?;
    let file = std::fs::File::options().write(true).open(file)?;
    let length = file.metadata()?.len();
    // From within the last command to some dozens of grants.
    let cut = length.min(20 + variant * 60);
    file.set_len(length - cut)?;
    Ok(cut)
}

async fn evict(server: &RedisServer) -> Result<Seen> {
    let mut probe = server.probe().deadline(PATIENCE);
    let before: u64 = probe.info_field("evicted_keys").await?.parse()?;
    ok(server, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", "1"]).await?;
    let evicted = eventually(EFFECT, || async {
        // A command that may need memory makes room first.
        let _ = server.command(&["SET", "chaos:~unwritten", "x", "PX", "1"]).await;
        let now: u64 =
            server.probe().info_field("evicted_keys").await.ok().and_then(|n| n.parse().ok()).unwrap_or(before);
        if before < now { Ok(now - before) } else { Err("nothing is evicted") }
    })
    .await;
    ok(server, &["CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction"]).await?;
    Ok(match evicted {
        Ok(evicted) => seen(true, format!("{evicted} keys")),
        Err(error) => seen(false, error.to_string()),
    })
}

/// Lets the network misbehave, and looks through it whether it does.
async fn disturb(proxy: &Proxy, fault: &Planned) -> Result<Seen> {
    let delay = Duration::from_millis(5 + fault.variant);
    let (lane, mut note) = match fault.kind {
        Kind::Delay => (Lane::Delay(delay), format!("{} ms", delay.as_millis())),
        Kind::Loss => (Lane::Swallow, String::new()),
        _ => (Lane::Hold, String::new()),
    };
    let mode = match fault.kind {
        Kind::Refuse => Mode::Refuse,
        _ if fault.variant.is_multiple_of(2) => {
            note.push_str(" on requests");
            Mode::requests(lane)
        }
        _ => {
            note.push_str(" on replies");
            Mode::replies(lane)
        }
    };
    let began = Instant::now();
    proxy.set(mode).await?;
    let asked = Instant::now();
    let mut probe = redlock_bench::Probe::new(proxy.address());
    let happened = match fault.kind {
        Kind::Delay => probe.command(&["PING"]).await.is_err() || delay <= asked.elapsed(),
        _ => probe.deadline(NO_ANSWER).command(&["PING"]).await.is_err(),
    };
    sleep(fault.lasts.saturating_sub(began.elapsed())).await;
    proxy.pass().await?;
    Ok(seen(happened, note.trim().to_owned()))
}

/// A question to a server that is up, on a machine that may be very busy.
async fn ask(server: &RedisServer, words: &[&str]) -> Result<Reply> {
    Ok(server.probe().deadline(PATIENCE).command(words).await?)
}

async fn ok(server: &RedisServer, words: &[&str]) -> Result<()> {
    let reply = ask(server, words).await?;
    ensure!(reply == Reply::Status("OK".into()), "{words:?} was answered with {reply:?}");
    Ok(())
}

async fn number(server: &RedisServer, words: &[&str]) -> Result<i64> {
    Ok(ask(server, words).await?.into_integer("a number")?)
}

/// The server's calendar in seconds.
async fn time(server: &RedisServer) -> Result<i64> {
    let parts = ask(server, &["TIME"]).await?.into_array("TIME")?;
    let seconds = parts.into_iter().next().context("TIME has two parts")?;
    Ok(seconds.into_text("TIME")?.parse()?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
