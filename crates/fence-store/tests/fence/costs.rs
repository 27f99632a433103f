//! What each form of write costs in round trips: counted on the wire, and compared with the table in `docs/fencing.md`.
//!
//! A relay between the client and the server counts how often the client speaks after it was spoken to. That is what a
//! network's distance multiplies, and it is the same on every machine.

#[path = "costs/forms.rs"]
mod forms;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fence_store::{FenceStore, Flavor, Guard};
use redlock_bench::eventually;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::forms::{FORMS, Plain, Writer};
use crate::support::{Bench, DEADLINE, TestDb, pool};

/// Where the docs say what is counted here.
const DOCS: &str = include_str!("../../../../docs/fencing.md");
const HEAD: &str = "| write | Postgres | MySQL, MariaDB |";

/// How often a form is written before it is counted: statements are prepared and tables looked up by then.
const LEAD_IN: usize = 3;

#[cfg(feature = "postgres")]
#[test]
fn each_write_costs_the_round_trips_that_the_docs_say_postgres() {
    crate::support::run(costs::<sqlx::Postgres>(0));
}

#[cfg(feature = "mysql")]
#[test]
fn each_write_costs_the_round_trips_that_the_docs_say_mariadb() {
    crate::support::run(costs::<sqlx::MySql>(1));
}

async fn costs<DB: TestDb + Plain>(column: usize) {
    let bench = Bench::<DB>::empty(2).await;
    let address = bench.url.split('@').nth(1).unwrap().split('/').next().unwrap();
    let relay = Relay::start(address.parse().unwrap()).await;
    let far = FenceStore::new(pool::<DB>(&bench.url.replace(address, &relay.address.to_string()), 1, None).await);

    let mut writer = Writer::new(&bench.store).await;
    let said: BTreeMap<&str, u64> = table().into_iter().map(|(name, cells)| (name, cells[column])).collect();
    let counted = count(&bench, &far, &relay, &mut writer).await;
    assert_eq!(counted, said, "counted, and said in docs/fencing.md");

    // Neither a guard nor, on Postgres, a limit to waiting costs a round trip more.
    bench.store.install_guard(&Guard::new("accounts", "id").may_rewrite()).await.unwrap();
    assert_eq!(count(&bench, &far, &relay, &mut writer).await, said, "with a guard");
    let far = far.lock_wait(DEADLINE);
    let more = u64::from(DB::FLAVOR == Flavor::MySql);
    for (name, turns) in count(&bench, &far, &relay, &mut writer).await {
        let is_plain = name.starts_with("plain") || name.starts_with("`join`");
        assert_eq!(turns, if is_plain { said[name] } else { said[name] + more }, "{name}, with a limit to waiting");
    }
}

/// How many round trips each form takes, by its name.
async fn count<DB: TestDb + Plain>(
    bench: &Bench<DB>,
    far: &FenceStore<DB>,
    relay: &Relay,
    writer: &mut Writer,
) -> BTreeMap<&'static str, u64> {
    let mut counted = BTreeMap::new();
    let of_the_pool = turns_of_the_pool(far, relay).await;
    for (form, name) in FORMS {
        let mut turns = 0;
        for _ in 0..=LEAD_IN {
            let id = writer.prepare(&bench.store, form).await;
            let before = relay.turns();
            writer.write(far, form, id).await;
            idle(far).await;
            turns = relay.turns() - before - of_the_pool;
        }
        counted.insert(name, turns);
    }
    counted
}

/// What it costs to lend a connection and to take it back, which sqlx does with a ping.
async fn turns_of_the_pool<DB: TestDb>(far: &FenceStore<DB>, relay: &Relay) -> u64 {
    idle(far).await;
    let before = relay.turns();
    drop(far.pool().acquire().await.unwrap());
    idle(far).await;
    relay.turns() - before
}

/// Connections go back to the pool in the background.
async fn idle<DB: TestDb>(store: &FenceStore<DB>) {
    let idle = || async { if store.pool().num_idle() == 1 { Ok(()) } else { Err("in use") } };
    eventually(DEADLINE, idle).await.unwrap();
}

/// The rows of the table in the docs: name, and a number for each database.
fn table() -> Vec<(&'static str, [u64; 2])> {
    let rows = DOCS.lines().skip_while(|line| !line.starts_with(HEAD)).skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let number = |cell: &str| cell.parse().unwrap_or_else(|_| panic!("no number of round trips: {row}"));
        (cells[1], [number(cells[2]), number(cells[3])])
    })
    .collect()
}

/// Relays connections to a server, and counts how often clients speak after they were spoken to.
struct Relay {
    address: SocketAddr,
    turns: Arc<AtomicU64>,
    _connections: JoinSet<()>,
}

impl Relay {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let turns = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&turns);
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let mut pumps = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                pumps.spawn(relay(client, server, Arc::clone(&counter)));
            }
        });
        Self { address, turns, _connections: connections }
    }

    fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }
}

async fn relay(mut client: TcpStream, server: SocketAddr, turns: Arc<AtomicU64>) {
    let mut server = TcpStream::connect(server).await.unwrap();
    client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).unwrap();
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    // Set before the client hears it, so that what it says next counts as an answer to it.
    let answered = AtomicBool::new(true);
    let request = || {
        if answered.swap(false, Ordering::SeqCst) {
            turns.fetch_add(1, Ordering::SeqCst);
        }
    };
    let reply = || answered.store(true, Ordering::SeqCst);
    // When one side ends, the connection does.
    tokio::select! {
        () = pump(from_client, to_server, request) => {}
        () = pump(from_server, to_client, reply) => {}
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, seen: impl Fn()) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        match from.read(&mut buffer).await {
            Ok(len) if 0 < len => {
                seen();
                if to.write_all(&buffer[..len]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}
