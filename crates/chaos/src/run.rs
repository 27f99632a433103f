//! One run from its beginning to its history: starts the world, does what was planned, lets it calm down, and collects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use redlock_bench::Observer;
use sqlx::{Connection as _, Row as _};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::clock::micros;
use crate::fault::{Database, Kind, Target};
use crate::history::{self, Fault, History, Holding, Left, Line, Micros, ORDERS, PREFIX, Row, Said, Setup, TTL, short};
use crate::plan::{CALM, Planned, plan};
use crate::world::World;

/// How often each server is looked at. Seldom enough to leave two cores something for the clients.
const OBSERVER_PERIOD: Duration = Duration::from_millis(10);

/// How long clients may take to end: the longest wait for a lock and the longest hold.
const FAREWELL: Duration = Duration::from_secs(20);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Decides the plan of faults, and what clients are up to.
    pub seed: u64,
    /// Faults and calm together.
    pub length: Duration,
    /// Whether the databases refuse stale writes.
    pub fenced: bool,
    /// Whether the crash-recovery guard is on, with somebody who looks after the nodes.
    pub guarded: bool,
    /// Which kinds of faults.
    pub kinds: Vec<Kind>,
    /// The program that becomes a client; it calls [`crate::client::run`].
    pub program: PathBuf,
}

/// Runs it. `say` hears now and then how far it is.
///
/// # Errors
/// If the servers cannot be started or the databases cannot be read. What goes wrong in between is in the history.
///
/// # Cancel safety
/// Everything that was started ends.
pub async fn run(options: &Options, say: impl Fn(&str) + Send + Sync) -> Result<History> {
    let planned = plan(options.seed, options.length, &options.kinds);
    say(&format!("{} faults of {} kinds in {} s", planned.len(), options.kinds.len(), options.length.as_secs()));
    let world = World::start(options).await?;
    let keys = ORDERS.iter().map(|order| [PREFIX, order.resource].concat());
    let probes = world.servers.iter().map(|server| server.probe());
    let observer = Observer::start(probes, keys, OBSERVER_PERIOD).await?;

    let (start, origin) = (Instant::now(), micros());
    let since = || micros().saturating_sub(origin);
    let mut targets: BTreeMap<Target, Mutex<()>> = BTreeMap::new();
    for fault in &planned {
        targets.entry(fault.target).or_default();
    }
    let one = async |fault: &Planned| {
        sleep_until(start + fault.at).await;
        // A restart on a busy machine may outlast what was planned for it.
        let _one_at_a_time = targets[&fault.target].lock().await;
        let at = since();
        let seen = world.inflict(fault).await;
        let until = since();
        let Planned { kind, target, .. } = *fault;
        match seen {
            Ok(seen) => (Fault { kind, target, at, until, happened: seen.happened, note: seen.note }, None),
            Err(error) => {
                let note = format!("{error:#}");
                let trouble = format!("{kind} on {target}: {note}");
                (Fault { kind, target, at, until, happened: false, note }, Some(trouble))
            }
        }
    };
    let all = join_all(planned.iter().map(one));
    let progress = async {
        let mut told = tokio::time::interval(Duration::from_secs(20));
        told.tick().await;
        loop {
            told.tick().await;
            say(&format!("{} s of {} s", since() / 1_000_000, options.length.as_secs()));
        }
    };
    let calm_from = AtomicU64::new(0);
    let storm_and_calm = async {
        let done: Vec<(Fault, Option<String>)> = tokio::select! {
            done = all => done,
            () = progress => unreachable!("it tells for ever"),
        };
        calm_from.store(since(), Ordering::Relaxed);
        sleep_until((start + options.length).max(Instant::now() + CALM)).await;
        done
    };
    let reseeded = AtomicUsize::new(0);
    let done = tokio::select! {
        done = storm_and_calm => done,
        failed = world.look_after_nodes(&reseeded) => bail!("nobody looks after the nodes: {failed:?}"),
    };
    let calm_from = calm_from.load(Ordering::Relaxed);
    if options.guarded {
        say(&format!("{} times a quorum had lost its memory, and was reseeded", reseeded.load(Ordering::Relaxed)));
    }

    say("the clients are told to end");
    let mut trouble: Vec<String> = done.iter().filter_map(|(_, trouble)| trouble.clone()).collect();
    trouble.extend(world.dismiss(FAREWELL).await);
    let left = world.lock_keys().await?;
    let end = since();
    // Both clocks go at one rate; no machine is suspended here.
    let now = (Instant::now(), since());
    let report = observer.stop();
    let at = |instant: Instant| now.1.saturating_sub(history::micros(now.0.saturating_duration_since(instant)));
    let resource = |key: &str| key.strip_prefix(PREFIX).unwrap_or(key).to_owned();

    let lines = read_lines(&world.lines_folder()?, origin)?;
    let (rows, balances) = kept(&world).await?;
    let mut planned_by_kind: BTreeMap<Kind, usize> = BTreeMap::new();
    for fault in &planned {
        *planned_by_kind.entry(fault.kind).or_default() += 1;
    }
    let mut faults: Vec<Fault> = done.into_iter().map(|(fault, _)| fault).collect();
    faults.sort_by_key(|fault| fault.at);
    if report.looks == 0 || lines.is_empty() {
        trouble.push("the observer or the clients have seen nothing at all".into());
    }
    Ok(History {
        setup: Setup {
            seed: options.seed,
            seconds: options.length.as_secs(),
            fenced: options.fenced,
            guarded: options.guarded,
            ttl: history::micros(TTL),
            kinds: options.kinds.clone(),
            planned: planned_by_kind,
        },
        end,
        calm_from,
        lines,
        faults,
        holdings: report
            .holdings
            .iter()
            .map(|holding| Holding {
                resource: resource(&holding.key),
                owner: short(&holding.owner),
                from: at(holding.from),
                until: at(holding.until),
            })
            .collect(),
        without_expiry: report.without_expiry.iter().map(|key| resource(&key.key)).collect(),
        looks: report.looks,
        rows,
        balances,
        left: left
            .into_iter()
            .map(|(node, key, owner, left_ms)| Left { node, key: resource(&key), owner: short(&owner), left_ms })
            .collect(),
        trouble,
    })
}

/// All clients' lines in the order of time, counted from the beginning of the run.
fn read_lines(folder: &Path, origin: Micros) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(file?.path())?;
        let mut unread = text.lines().peekable();
        while let Some(line) = unread.next() {
            match serde_json::from_str(line) {
                Ok(line) => lines.push(line),
                // Of a client that was killed in the middle of it.
                Err(_) if unread.peek().is_none() && !text.ends_with('\n') => {}
                Err(error) => return Err(error).context("a line of a client"),
            }
        }
    }
    let since = |at: &mut Micros| *at = at.saturating_sub(origin);
    for line in &mut lines {
        since(&mut line.at);
        match &mut line.said {
            Said::Granted(granted) => {
                since(&mut granted.attempt_began);
                since(&mut granted.valid_until);
            }
            Said::Looked { valid_until, .. } => since(valid_until),
            _ => {}
        }
    }
    // Stable: lines of one worker at one time stay in order.
    lines.sort_by_key(|line| line.at);
    Ok(lines)
}

/// What the databases have kept.
async fn kept(world: &World) -> Result<(Vec<Row>, BTreeMap<String, i64>)> {
    let (mut rows, mut balances) = (Vec::new(), BTreeMap::new());
    macro_rules! read {
        ($database:expr, $connection:expr) => {{
            let mut connection = $connection;
            let name = |id: i64| {
                let order = ORDERS.iter().find(|order| order.database == $database && order.id == id);
                order.map(|order| order.resource.to_owned()).context("a row that no order is about")
            };
            let all = sqlx::query("SELECT id, token, write_id, value FROM kept ORDER BY seq");
            for row in all.fetch_all(&mut connection).await? {
                rows.push(Row {
                    resource: name(row.try_get(0)?)?,
                    token: row.try_get(1)?,
                    write: u64::try_from(row.try_get::<i64, _>(2)?)?,
                    value: row.try_get(3)?,
                });
            }
            for row in sqlx::query("SELECT id, balance FROM accounts").fetch_all(&mut connection).await? {
                balances.insert(name(row.try_get(0)?)?, row.try_get(1)?);
            }
            connection.close().await?;
        }};
    }
    read!(Database::Postgres, world.postgres().await?);
    read!(Database::MariaDb, world.mariadb().await?);
    read!(Database::Sqlite, world.sqlite().await?);
    // A resource that was never written stands at zero and has no rows.
    balances.retain(|resource, _| rows.iter().any(|row| &row.resource == resource));
    Ok((rows, balances))
}
