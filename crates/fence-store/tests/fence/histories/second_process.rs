//! A history of two processes on one file, one of which is killed while it writes.
//!
//! The second process plays the second half of the same plan, and tells a file of each work when it is done. Of what it was
//! at when it was killed nothing is told, and anything that follows from what was before is right.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use redlock_bench::eventually;
use sqlx::Sqlite;

use super::plan::{Guarded, Work, plan};
use super::told::Deed;
use super::{HOLDERS, SEED_VARIABLE, Stage, WORKS_EACH, carry_out, seed};
use crate::support::{DEADLINE, pool, run};

/// Tells the second process what to do: the file of the database, the file to tell, the rule, the seed.
const CHILD_VARIABLE: &str = "FENCE_HISTORY_CHILD";

/// Stands below the deeds of one work, so that a work that was told by half is seen.
const END: &str = "end";

#[test]
fn random_histories_of_two_processes_agree_with_a_serial_replay_sqlite() {
    run(async {
        let seed = seed();
        two_processes(seed, Guarded::No, Some(WORKS_EACH)).await;
        two_processes(seed + 1, Guarded::MayRewrite, Some(2 * WORKS_EACH)).await;
        two_processes(seed + 2, Guarded::Strictly, None).await;
    });
}

/// Kills the second process when it has told of so many works, if it is to be killed.
async fn two_processes(seed: u64, guarded: Guarded, kill_after: Option<usize>) {
    let stage = Stage::<Sqlite>::open(guarded, None).await;
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    fs::write(&told, "").unwrap();
    let plan = plan(seed, guarded, HOLDERS, WORKS_EACH);
    let (ours, _) = plan.split_at(HOLDERS / 2);

    let mut second = start(&stage.bench.url, &told, guarded, seed);
    let ended = async {
        if let Some(works) = kill_after {
            let enough = || async {
                let count = fs::read_to_string(&told).unwrap().matches(END).count();
                if works <= count { Ok(()) } else { Err(format!("{count} works told")) }
            };
            eventually(DEADLINE, enough).await.unwrap();
            second.kill().unwrap();
        }
        tokio::task::spawn_blocking(move || second.wait()).await.unwrap().unwrap()
    };
    let (mut deeds, ended) = tokio::join!(stage.play(ours), ended);
    assert_eq!(ended.success(), kill_after.is_none(), "{SEED_VARIABLE}={seed}: the second process");

    let theirs = read(&told);
    assert!(!theirs.is_empty(), "{SEED_VARIABLE}={seed}: the second process did nothing");
    deeds.extend(theirs);
    let played = stage.close(&plan, deeds).await;
    played.must_be_right(seed);
}

fn start(url: &str, told: &Path, guarded: Guarded, seed: u64) -> Child {
    let orders = [url, told.to_str().unwrap(), &format!("{guarded:?}"), &seed.to_string()].join("\n");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "histories::second_process::plays_its_half_in_a_second_process"])
        .env(CHILD_VARIABLE, orders)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The deeds of all works that were told to their end.
fn read(told: &Path) -> Vec<Deed> {
    let text = fs::read_to_string(told).unwrap();
    let (whole, _) = text.rsplit_once(END).unwrap_or_default();
    whole.lines().filter(|line| *line != END && !line.is_empty()).map(|line| line.parse().unwrap()).collect()
}

/// The second process of the test above; on its own it has nothing to do.
#[test]
fn plays_its_half_in_a_second_process() {
    let Ok(orders) = std::env::var(CHILD_VARIABLE) else { return };
    let [url, told, rule, seed] = orders.lines().collect::<Vec<_>>().try_into().unwrap();
    let rules = [Guarded::No, Guarded::Strictly, Guarded::MayRewrite];
    let guarded = rules.into_iter().find(|guarded| format!("{guarded:?}") == rule).unwrap();
    let plan = plan(seed.parse().unwrap(), guarded, HOLDERS, WORKS_EACH);
    let theirs: Vec<Vec<Work>> = plan[HOLDERS / 2..].to_vec();
    let told = PathBuf::from(told);
    run(async move {
        let holders = u32::try_from(HOLDERS / 2).unwrap();
        let store = fence_store::FenceStore::new(pool::<Sqlite>(url, holders, None).await);
        // In one piece, so that a work is told as a whole or by its beginning.
        let tell = move |deeds: &[Deed]| {
            let lines: String = deeds.iter().map(|deed| format!("{deed}\n")).collect();
            let mut file = OpenOptions::new().append(true).open(&told).unwrap();
            file.write_all([&lines, END, "\n"].concat().as_bytes()).unwrap();
        };
        carry_out(&store, None, guarded, &theirs, tell).await;
    });
}
