//! What the fence costs: a fenced UPDATE next to a plain one, a ledger transaction next to a plain one, in each database.
//!
//! The databases of the bench do not wait for their disks, which makes the plain statement as cheap, and the fence look
//! as dear, as it ever can.

use std::collections::BTreeMap;
use std::time::Duration;

use fence_store::{Dialect, FenceStore, Row};
use redlock_core::Grant;
use sea_query::{Expr, ExprTrait as _, Query, UpdateStatement};
use sea_query_sqlx::SqlxBinder as _;
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Pool};
use tokio::time::Instant;

use super::super::findings::{Figure, Findings, Section, Table, Unit, shown};
use super::super::goals::DATABASES;
use super::super::interleave::order;
use super::super::plan::Plan;
use super::super::plot::{Bar, Plot, Tone};
use super::super::{LoadError, Progress};
use super::section;
use crate::sql::{MariaDb, Postgres};

const NAME: &str = "fence";

/// A table with a fence, in all three dialects.
const ACCOUNTS: &str = "CREATE TABLE accounts (id BIGINT NOT NULL PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, \
                        fence_token BIGINT NOT NULL DEFAULT 0)";

/// Who writes, and how it is called.
const WRITERS: [(Writer, &str, &str); 4] = [
    (Writer::Plain, "plain", "plain UPDATE"),
    (Writer::Fenced, "update", "fenced UPDATE"),
    (Writer::PlainTransaction, "transaction", "plain transaction, 1 UPDATE"),
    (Writer::Ledger, "ledger", "ledger transaction, 1 UPDATE"),
];

/// Each writer as a multiple of which other one.
const RATIOS: [(&str, &str); 3] = [("update", "plain"), ("ledger", "transaction"), ("transaction", "plain")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Plain,
    Fenced,
    PlainTransaction,
    Ledger,
}

/// A database as a program without a fence uses it: the same statements of sea-query, on a pool of sqlx.
trait Plain: Dialect {
    async fn run(pool: &Pool<Self>, sql: &'static str) -> sqlx::Result<()>;
    async fn update(pool: &Pool<Self>, statement: &UpdateStatement) -> sqlx::Result<()>;
    async fn transaction(pool: &Pool<Self>, statement: &UpdateStatement) -> sqlx::Result<()>;
}

macro_rules! plain {
    ($database:ty, $builder:expr) => {
        impl Plain for $database {
            async fn run(pool: &Pool<Self>, sql: &'static str) -> sqlx::Result<()> {
                sqlx::query(sql).execute(pool).await.map(drop)
            }

            async fn update(pool: &Pool<Self>, statement: &UpdateStatement) -> sqlx::Result<()> {
                let (sql, values) = statement.build_sqlx($builder);
                sqlx::query_with(AssertSqlSafe(sql), values).execute(pool).await.map(drop)
            }

            async fn transaction(pool: &Pool<Self>, statement: &UpdateStatement) -> sqlx::Result<()> {
                let mut transaction = pool.begin().await?;
                let (sql, values) = statement.build_sqlx($builder);
                sqlx::query_with(AssertSqlSafe(sql), values).execute(&mut *transaction).await?;
                transaction.commit().await
            }
        }
    };
}

plain!(sqlx::Postgres, sea_query::PostgresQueryBuilder);
plain!(sqlx::MySql, sea_query::MysqlQueryBuilder);
plain!(sqlx::Sqlite, sea_query::SqliteQueryBuilder);

pub(super) async fn run(plan: &Plan, findings: &mut Findings, progress: Progress<'_>) -> Result<(), LoadError> {
    let mut section = section(
        NAME,
        "The fence in the database",
        "One task writes one row of one table. A fenced UPDATE carries the token and a condition in the same statement; a \
         ledger transaction raises the resource's row in the ledger before the work. The plain ones are the same \
         statements of sea-query on the same pool without a fence. The databases do not wait for their disks, so the plain \
         statements are as cheap as they can be.",
    );
    let told = |done: usize| move |block: usize| progress(NAME, done * plan.slow_blocks + block, 3 * plan.slow_blocks);

    let servers = tokio::task::spawn_blocking(|| (Postgres::start(), MariaDb::start())).await;
    let (postgres, mariadb) = servers.expect("starting a server does not panic");
    match &postgres {
        Ok(server) => database::<sqlx::Postgres>("postgres", server.url(), plan, findings, told(0)).await,
        Err(error) => findings.miss("fence/postgres", error.to_string()),
    }
    match &mariadb {
        Ok(server) => {
            let url = server.url();
            match create_database(url).await {
                Ok(url) => database::<sqlx::MySql>("mariadb", &url, plan, findings, told(1)).await,
                Err(error) => findings.miss("fence/mariadb", error.to_string()),
            }
        }
        Err(error) => findings.miss("fence/mariadb", error.to_string()),
    }
    match tempfile::tempdir() {
        Ok(folder) => {
            let url = format!("sqlite://{}?mode=rwc", folder.path().join("bench.db").display());
            database::<sqlx::Sqlite>("sqlite", &url, plan, findings, told(2)).await;
        }
        Err(error) => findings.miss("fence/sqlite", error.to_string()),
    }
    for (database, shown) in DATABASES {
        add_to(&mut section, findings, database, shown);
    }
    findings.sections.push(section);
    // The servers stop here, and take their time outside of the runtime.
    let _ = tokio::task::spawn_blocking(move || drop((postgres, mariadb))).await;
    Ok(())
}

async fn create_database(url: &str) -> sqlx::Result<String> {
    let pool = Pool::<sqlx::MySql>::connect(url).await?;
    sqlx::query("CREATE DATABASE bench").execute(&pool).await?;
    pool.close().await;
    Ok(url.replace("/mysql", "/bench"))
}

/// Measures all writers in one database, or says why that could not be done.
async fn database<DB: Plain>(id: &str, url: &str, plan: &Plan, findings: &mut Findings, told: impl Fn(usize)) {
    if let Err(why) = measure::<DB>(id, url, plan, findings, told).await {
        findings.miss(format!("{NAME}/{id}"), why);
    }
}

async fn measure<DB: Plain>(
    id: &str,
    url: &str,
    plan: &Plan,
    findings: &mut Findings,
    told: impl Fn(usize),
) -> Result<(), String> {
    let text = |error: &dyn std::error::Error| format!("{error}: {:?}", error.source().map(ToString::to_string));
    let pool = PoolOptions::<DB>::new().max_connections(2).connect(url).await.map_err(|error| text(&error))?;
    if id == "sqlite" {
        DB::run(&pool, "PRAGMA journal_mode = WAL").await.map_err(|error| text(&error))?;
    }
    let store = FenceStore::new(pool.clone());
    store.install_schema().await.map_err(|error| text(&error))?;
    DB::run(&pool, ACCOUNTS).await.map_err(|error| text(&error))?;
    DB::run(&pool, "INSERT INTO accounts (id) VALUES (1), (2), (3), (4)").await.map_err(|error| text(&error))?;

    let mut medians = vec![Vec::<Option<f64>>::new(); WRITERS.len()];
    let mut failures = vec![BTreeMap::<String, usize>::new(); WRITERS.len()];
    let mut token = 0;
    for block in 0..plan.slow_blocks {
        told(block);
        for turn in order(block, WRITERS.len()) {
            let (writer, name, _) = WRITERS[turn];
            let mut times = Vec::new();
            for round in 0..plan.lead_in + plan.slow_rounds {
                token += 1;
                let row = i64::try_from(turn + 1).unwrap_or_default();
                let started = Instant::now();
                let written = write(&store, writer, row, token).await;
                let time = started.elapsed();
                match written {
                    Ok(()) if plan.lead_in <= round => times.push(micros(time)),
                    Ok(()) => {}
                    Err(why) => *failures[turn].entry(why).or_default() += 1,
                }
            }
            medians[turn].push(Figure::median(&times, Unit::Micros).map(|figure| figure.value));
            findings.failed(&format!("{NAME}/{id}/{name}"), &std::mem::take(&mut failures[turn]));
        }
    }
    for ((_, name, _), medians) in WRITERS.iter().zip(&medians) {
        let values: Vec<f64> = medians.iter().flatten().copied().collect();
        findings.put(format!("{NAME}/{id}/{name}"), Figure::median(&values, Unit::Micros));
    }
    let of = |name: &str| WRITERS.iter().position(|(_, other, _)| *other == name).map(|place| &medians[place]);
    for (one, other) in RATIOS {
        let (Some(ones), Some(others)) = (of(one), of(other)) else { continue };
        let ratios: Vec<f64> = ones.iter().zip(others).filter_map(|(one, other)| Some((*one)? / (*other)?)).collect();
        let other = if other == "transaction" { "plain" } else { other };
        findings.put(format!("{NAME}/{id}/{one}÷{other}"), Figure::median(&ratios, Unit::Ratio));
    }
    pool.close().await;
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Writes one row, and does what a holder of the lock would do: with a token of its own each time.
async fn write<DB: Plain>(store: &FenceStore<DB>, writer: Writer, id: i64, token: i64) -> Result<(), String> {
    let what = |error: &dyn std::error::Error| error.to_string();
    let mut statement = Query::update();
    statement.value("balance", token);
    let grant = Grant::assume_granted("load/accounts", token).map_err(|error| what(&error))?;
    let plain = |statement: &UpdateStatement| {
        let mut statement = statement.clone();
        statement.table("accounts").and_where(Expr::col("id").eq(id)).take()
    };
    match writer {
        Writer::Plain => DB::update(store.pool(), &plain(&statement)).await.map_err(|error| what(&error)),
        Writer::PlainTransaction => {
            DB::transaction(store.pool(), &plain(&statement)).await.map_err(|error| what(&error))
        }
        Writer::Fenced => {
            let row = Row::new("accounts", "id", id);
            store.update(&grant, &row, &statement).await.map(drop).map_err(|error| what(&error))
        }
        Writer::Ledger => {
            let mut transaction = store.begin(&grant).await.map_err(|error| what(&error))?;
            transaction.run(&plain(&statement)).await.map_err(|error| what(&error))?;
            transaction.commit().await.map_err(|error| what(&error))
        }
    }
}

fn add_to(section: &mut Section, findings: &Findings, database: &str, name: &str) {
    let figure = |what: &str| findings.figures.get(&format!("{NAME}/{database}/{what}"));
    let ratio = |what: &str| match what {
        "update" => shown(figure("update÷plain")),
        "ledger" => shown(figure("ledger÷plain")),
        _ => String::new(),
    };
    let rows = WRITERS.map(|(_, what, label)| vec![label.to_owned(), shown(figure(what)), ratio(what)]);
    let head = [name, "p50 µs (blocks)", "÷ without fence (blocks)"];
    section.tables.push(Table { head: head.map(str::to_owned).into(), rows: rows.into() });
    let bars = WRITERS.map(|(writer, what, label)| Bar {
        label: label.into(),
        figure: figure(what).copied(),
        tone: if matches!(writer, Writer::Fenced | Writer::Ledger) { Tone::Ours } else { Tone::Floor },
    });
    section.plots.push(Plot::Bars {
        id: format!("fence-{database}"),
        title: name.into(),
        axis: "µs for one write, p50".into(),
        log: false,
        bars: bars.into(),
        goal: None,
    });
    if let Some(missing) = findings.missing.iter().find(|missing| missing.what == format!("{NAME}/{database}")) {
        section.notes.push(format!("{name} was not measured: {}.", missing.why));
    }
}
