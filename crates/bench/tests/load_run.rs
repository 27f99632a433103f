//! The load comparison itself, as small as it can be: that every scenario runs on real servers and has its say.
//!
//! No figure is looked at: how fast anything is depends on the machine. Libraries in other languages do not take part, so
//! that it is the same run everywhere; and nor does the counting of instructions, which takes Valgrind and its time.

use std::path::Path;
use std::process::{Command, Stdio};

use redlock_bench::load::report::BOOK;
use serde_json::Value;
use tempfile::TempDir;

/// Runs these scenarios; gives the report and the folder into which it was written.
fn run(scenarios: &[&str]) -> (Value, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut load = Command::new(env!("CARGO_BIN_EXE_load"));
    // Where no libraries of others were brought.
    load.env("CARGO_TARGET_DIR", folder.path());
    load.args(["--tiny", "--json", "--out"]).arg(folder.path()).arg("--docs").arg(folder.path().join("docs"));
    load.args(scenarios.iter().flat_map(|scenario| ["--only", scenario])).stderr(Stdio::inherit());
    let output = load.output().unwrap();
    assert!(output.status.success());
    (serde_json::from_slice(&output.stdout).unwrap(), folder)
}

fn check(report: &Value, scenarios: &[&str], beginnings: &[&str]) {
    let failed_somewhere = report["failures"].as_object().is_some_and(|failures| !failures.is_empty());
    for goal in report["goals"].as_array().unwrap() {
        let Some(why) = goal["outcome"]["not_measured"].as_str() else { continue };
        let not_asked_for = why.starts_with("not asked for");
        let not_ours = why.starts_with("not present");
        // On a busy machine rounds may fail; then that is told.
        assert!(not_asked_for || not_ours || failed_somewhere, "{goal}");
        let asked_for = scenarios.iter().any(|scenario| why.contains(&format!("--only {scenario}`")));
        assert!(!asked_for, "{goal}");
    }
    let figures = report["figures"].as_object().unwrap();
    for beginning in beginnings {
        assert!(figures.keys().any(|name| name.starts_with(beginning)), "nothing of {beginning}");
    }
    assert_eq!(report["origin"]["redis_crate"].as_str().map(|version| version.starts_with("1.")), Some(true));
}

fn pictures(folder: &Path) -> Vec<&'static str> {
    let is_there = |picture: &&str| folder.join(format!("docs/images/{picture}.svg")).is_file();
    BOOK.into_iter().filter(is_there).collect()
}

#[test]
fn whoever_is_alone_is_measured_on_every_network_and_with_every_fault() {
    let scenarios = ["alone", "network", "throughput", "resources"];
    let (report, folder) = run(&scenarios);
    let beginnings = ["alone/redlock-frozen/", "alone/rslock-5/", "network/error@0.5", "throughput/", "resources/"];
    check(&report, &scenarios, &beginnings);
    for file in ["report.html", "report.md", "report.json", "docs/measured.md"] {
        assert!(folder.path().join(file).is_file(), "no {file}");
    }
    let of_others =
        |picture: &&str| ["one-", "processes", "waiters", "cost"].iter().any(|part| picture.starts_with(part));
    let expected: Vec<&str> = BOOK.into_iter().filter(|picture| !of_others(picture)).collect();
    assert_eq!(pictures(folder.path()), expected);
}

#[test]
fn a_crowd_and_the_databases_are_measured() {
    let scenarios = ["crowd", "waiters", "fence"];
    let (report, folder) = run(&scenarios);
    let ideal = ["one-process/ideal/total", "processes/ideal/total", "processes-5ms/ideal/total"];
    check(&report, &scenarios, &ideal);
    check(&report, &scenarios, &["waiters/", "fence/postgres/", "fence/mariadb/", "fence/sqlite/"]);
    assert!(pictures(folder.path()).contains(&"waiters-commands"));
}
