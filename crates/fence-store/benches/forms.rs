//! What does each form of fenced write cost in time, as a multiple of the plain `UPDATE` of one row?
//!
//! ```sh
//! cargo bench -p fence-store --bench forms
//! ```
//!
//! All forms take turns, block by block, so that whatever else the machine does falls on all of them; a ratio is made within
//! a block, and the median over the blocks is told, with the smallest and the largest. One connection, databases of its own
//! that do not wait for their disks, on this machine: the plain statement is as cheap, and the fence looks as dear, as it
//! can be. Prints the table of `docs/fencing.md`.

#![expect(clippy::print_stdout, reason = "a table is what it is run for")]

use std::time::Instant;

use fence_store::FenceStore;
use redlock_bench::sql::{MariaDb, Postgres};
use sqlx::pool::PoolOptions;

#[path = "../tests/fence/costs/forms.rs"]
mod forms;

use forms::{FORMS, Plain, Writer};

const BLOCKS: usize = 15;
/// Writes of each form in a block; their median is the block's.
const WRITES: usize = 15;

fn main() {
    // `cargo test --benches` runs it to see that it runs.
    let blocks = if std::env::args().any(|argument| argument == "--bench") { BLOCKS } else { 1 };
    let (postgres, mariadb) = (Postgres::start().unwrap(), MariaDb::start().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}?mode=rwc", folder.path().join("bench.db").display());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let columns = runtime.block_on(async {
        [
            measure::<sqlx::Postgres>(postgres.url(), "SELECT 1", blocks).await,
            measure::<sqlx::MySql>(&database_on(mariadb.url()).await, "SELECT 1", blocks).await,
            measure::<sqlx::Sqlite>(&file, "PRAGMA journal_mode = WAL", blocks).await,
        ]
    });
    println!("| write | Postgres | MySQL, MariaDB | SQLite |\n|---|---|---|---|");
    for (place, (_, name)) in FORMS.iter().enumerate() {
        let cells = columns.each_ref().map(|ratios| ratios[place].as_str()).join(" | ");
        println!("| {name} | {cells} |");
    }
}

/// A database next to the server's own.
async fn database_on(url: &str) -> String {
    let pool = sqlx::MySqlPool::connect(url).await.unwrap();
    sqlx::query("CREATE DATABASE bench").execute(&pool).await.unwrap();
    pool.close().await;
    url.replace("/mysql", "/bench")
}

/// The ratio of each form, as text.
async fn measure<DB: Plain>(url: &str, first: &'static str, blocks: usize) -> Vec<String> {
    let pool = PoolOptions::<DB>::new().max_connections(1).connect(url).await.unwrap();
    DB::execute(&mut pool.acquire().await.unwrap(), first).await.unwrap();
    let store = FenceStore::new(pool);
    let mut writer = Writer::new(&store).await;
    let mut ratios = vec![Vec::new(); FORMS.len()];
    for block in 0..blocks {
        let mut medians = vec![0.0; FORMS.len()];
        for turn in 0..FORMS.len() {
            // Another one begins in each block.
            let place = (block + turn) % FORMS.len();
            let (form, _) = FORMS[place];
            let mut times = Vec::new();
            for _ in 0..WRITES {
                let id = writer.prepare(&store, form).await;
                #[expect(clippy::disallowed_methods, reason = "what is measured is the time of this machine")]
                let started = Instant::now();
                writer.write(&store, form, id).await;
                times.push(started.elapsed().as_secs_f64());
            }
            medians[place] = median(&mut times);
        }
        for (ratios, median) in ratios.iter_mut().zip(&medians) {
            ratios.push(median / medians[0]);
        }
    }
    let told = |ratios: &mut Vec<f64>| {
        let middle = median(ratios);
        format!("{middle:.1} ({:.1}–{:.1})", ratios[0], ratios[ratios.len() - 1])
    };
    ratios.iter_mut().map(told).collect()
}

/// Sorts, and takes the middle.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
