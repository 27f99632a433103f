//! `redlock enroll` and `redlock reseed`: what the crash-recovery guard leaves to people.
//!
//! All rules are redlock-core's; here they are waited for, as a quarantine has its time, and told node by node.

use crate::exit::{Exit, Failure, NodeSaid, with_causes};
use crate::options::{Common, EnrollOptions, ReseedOptions};
use crate::output::Output;
use crate::quorum;
use crate::settings::{Settings, holds_password};
use fence_store::{FenceError, FenceStore, LedgerTable};
use redlock_core::{EnrollError, FencingToken, NodeStanding, Redlock, Service};
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;

/// Beyond the quarantine, how long nodes are tried for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The least and the longest time between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

#[derive(Serialize)]
struct Stand {
    enrolled: usize,
    nodes: Vec<NodeStand>,
}

#[derive(Serialize)]
struct NodeStand {
    node: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantined_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Takes nodes back into service, or says how they stand.
///
/// # Errors
/// [`Exit::Unavailable`] if nodes are not enrolled in the end, [`Exit::Misconfigured`] if the guard is off or the call does not
/// fit how the nodes stand.
///
/// # Cancel safety
/// Some nodes may have been enrolled; calling it again goes on.
pub async fn enroll(options: &EnrollOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let (redlock, end) = client(common).await?;
    if options.check {
        let standings = redlock.standings().await.map_err(refused)?;
        say(&standings, *output)?;
        return Ok(if standings.iter().all(NodeStanding::is_enrolled) { 0 } else { Exit::Unavailable.code() });
    }
    if options.fresh {
        let standings = redlock.enroll_fresh().await.map_err(refused)?;
        return conclude(&standings, *output);
    }
    loop {
        let standings = redlock.enroll().await.map_err(refused)?;
        if standings.iter().all(NodeStanding::is_enrolled) || end <= Instant::now() {
            return conclude(&standings, *output);
        }
        pause(&standings).await;
    }
}

/// Goes on above what databases have accepted.
///
/// # Errors
/// As [`enroll`]; and why a database does not say its highest token.
///
/// # Cancel safety
/// As [`enroll`].
pub async fn reseed(options: &ReseedOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    let mut highest = options.above.unwrap_or(1);
    for from in &options.from {
        highest = highest.max(highest_token(from, &settings).await?);
    }
    let highest = FencingToken::assume_granted(highest)
        .map_err(|error| Failure::caused(Exit::Usage, "that is no token", &error))?;
    let (redlock, end) = client(common).await?;
    loop {
        match redlock.reseed(highest).await {
            Ok(standings) => {
                let enrolled = standings.iter().filter(|found| found.is_enrolled()).count();
                if redlock_core::tally::quorum_of(standings.len()) <= enrolled || end <= Instant::now() {
                    say(&standings, *output)?;
                    return match redlock_core::tally::quorum_of(standings.len()) <= enrolled {
                        true => Ok(0),
                        false => Err(left_out(&standings)),
                    };
                }
                pause(&standings).await;
            }
            Err(error) => return Err(refused(error)),
        }
    }
}

/// The nodes that do not vote under the crash-recovery guard; none if it is off.
pub(crate) async fn left_out_of(settings: &Settings) -> Result<Vec<NodeSaid>, Failure> {
    if settings.crash_guard.is_none() {
        return Ok(Vec::new());
    }
    let (redlock, _) = client_of(settings).await?;
    let standings = redlock.standings().await.map_err(refused)?;
    // One that does not answer has been told as such already.
    let quarantined = |found: &&NodeStanding| found.standing.is_ok() && !found.is_enrolled();
    Ok(standings.iter().filter(quarantined).map(said).collect())
}

/// A client of the nodes, and when to give up.
async fn client(common: &Common) -> Result<(Redlock, Instant), Failure> {
    client_of(&Settings::gather(common)?).await
}

async fn client_of(settings: &Settings) -> Result<(Redlock, Instant), Failure> {
    let nodes = quorum::open(settings)?;
    let ttl = settings.crash_guard.map_or(settings.ttl, |longest| longest.min(settings.ttl));
    let redlock = quorum::builder(settings, nodes.clone(), ttl).build()?;
    let Some(quarantine) = redlock.quarantine() else { return Err(refused(EnrollError::GuardIsOff)) };
    quorum::warm_up(&nodes).await;
    // Somebody else's quarantine may be longer than ours; then it says so in the end.
    Ok((redlock, Instant::now() + quarantine + PATIENCE))
}

async fn pause(standings: &[NodeStanding]) {
    let remaining = standings.iter().filter_map(|found| match found.standing.as_ref().ok()?.service {
        Service::Quarantined { remaining } => Some(remaining),
        Service::Enrolled => None,
    });
    let soonest = remaining.min().unwrap_or(PAUSE.1);
    tokio::time::sleep(soonest.clamp(PAUSE.0, PAUSE.1)).await;
}

fn conclude(standings: &[NodeStanding], output: Output) -> Result<u8, Failure> {
    if standings.iter().all(NodeStanding::is_enrolled) {
        say(standings, output)?;
        return Ok(0);
    }
    Err(left_out(standings))
}

fn left_out(standings: &[NodeStanding]) -> Failure {
    let message = "not all nodes are enrolled; call this again once the others answer and their quarantine is over";
    Failure { exit: Exit::Unavailable, message: message.to_owned(), nodes: standings.iter().map(said).collect() }
}

fn said(found: &NodeStanding) -> NodeSaid {
    let said = match &found.standing {
        Err(error) => with_causes(error),
        Ok(_) => found.to_string().split_once(": ").map(|(_, said)| said.to_owned()).unwrap_or_default(),
    };
    NodeSaid { node: found.node.to_string(), said }
}

fn say(standings: &[NodeStanding], output: Output) -> Result<(), Failure> {
    let nodes = standings.iter().map(|found| {
        let mut stand = NodeStand {
            node: found.node.to_string(),
            state: "enrolled",
            quarantined_ms: None,
            high: None,
            error: None,
        };
        match &found.standing {
            Ok(standing) => {
                stand.high = Some(standing.high);
                if let Service::Quarantined { remaining } = standing.service {
                    stand.state = if remaining.is_zero() { "waits_to_be_enrolled" } else { "quarantined" };
                    stand.quarantined_ms = Some(remaining.as_millis());
                }
            }
            Err(error) => (stand.state, stand.error) = ("unknown", Some(with_causes(error))),
        }
        stand
    });
    let nodes: Vec<NodeStand> = nodes.collect();
    let enrolled = standings.iter().filter(|found| found.is_enrolled()).count();
    output.result(&Stand { enrolled, nodes }, || {
        let rows = standings.iter().map(said).map(|NodeSaid { node, said }| vec![node, said]);
        crate::table::columns(&rows.collect::<Vec<_>>())
    })
}

fn refused(error: EnrollError) -> Failure {
    let exit = match error {
        EnrollError::TooFewEnrolled { .. }
        | EnrollError::TooFewOthers { .. }
        | EnrollError::NotAnswering { .. }
        | EnrollError::TooFewAnswer { .. } => Exit::Unavailable,
        EnrollError::BeyondTokens { .. } => Exit::Usage,
        _ => Exit::Misconfigured,
    };
    let advice = match error {
        EnrollError::GuardIsOff => {
            "; give --crash-guard, REDLOCK_CRASH_GUARD, or `crash_guard` in the configuration file"
        }
        EnrollError::TooFewEnrolled { .. } => " (`redlock enroll --fresh`, `redlock reseed`)",
        _ => "",
    };
    Failure::new(exit, with_causes(&error) + advice)
}

fn database_url_has_password(typed: &str) -> bool {
    url::Url::parse(typed).is_ok_and(|url| holds_password(&url, |name| name.eq_ignore_ascii_case("password")))
}

/// The highest token in the ledger of a database; `file` is the one in the configuration file, with the tables that are named there.
async fn highest_token(from: &str, settings: &Settings) -> Result<i64, Failure> {
    let (url, ledger, tables) = match (from, &settings.database) {
        ("file", Some(database)) => {
            (database.url.expose().to_owned(), database.ledger.clone(), database.tables.as_slice())
        }
        ("file", None) => {
            return Err(Failure::new(Exit::Misconfigured, "--from file needs [database] in the configuration file"));
        }
        (typed, _) if database_url_has_password(typed) => {
            return Err(Failure::new(
                Exit::Usage,
                "the database's URL has a password, which everybody on this machine can read: put it under [database] in the \
                 configuration file, and say --from file",
            ));
        }
        (typed, _) => (typed.to_owned(), None, &[][..]),
    };
    let ledger = match ledger {
        Some(name) => LedgerTable::new(&name).map_err(|error| {
            Failure::caused(Exit::Misconfigured, "the ledger's table in the configuration file", &error)
        })?,
        None => LedgerTable::default(),
    };
    let failed =
        |error: FenceError| Failure::caused(Exit::Unavailable, "the database does not say its highest token", &error);
    macro_rules! ask {
        ($database:ty) => {{
            let pool = sqlx::pool::PoolOptions::<$database>::new().max_connections(1).acquire_timeout(PATIENCE);
            let pool = pool
                .connect(&url)
                .await
                .map_err(|error| Failure::caused(Exit::Unavailable, "the database cannot be connected to", &error))?;
            let store = FenceStore::with_ledger(pool, ledger);
            let mut highest = store.highest_token_of_all().await.map_err(failed)?;
            for table in tables {
                let column = sea_query::Alias::new(table.column.as_str());
                highest = highest
                    .max(store.highest_fence(crate::fence::table_name(&table.name), column).await.map_err(failed)?);
            }
            highest
        }};
    }
    let highest = match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("postgres" | "postgresql") => ask!(sqlx::Postgres),
        Some("mysql" | "mariadb") => ask!(sqlx::MySql),
        Some("sqlite") => ask!(sqlx::Sqlite),
        _ => return Err(Failure::new(Exit::Usage, "a database is named postgres://…, mysql://… or sqlite:…")),
    };
    highest.ok_or_else(|| {
        let message = "the database has accepted no token yet, so it does not say where to go on; if that is right, say --above 1";
        Failure::new(Exit::Misconfigured, message)
    })
}
