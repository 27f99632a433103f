//! The demo as people and programs run it: on real servers, without any, on given ones, on three databases, and broken
//! off in the middle.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use redlock_bench::sql::{MariaDb, Postgres};
use redlock_bench::{Process, RedisOptions, Servers, eventually};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_demo");

/// How long something that takes milliseconds may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Both databases keep their catalog in the standard's views.
const TABLES_LEFT: &str = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'redlock_demo%'";

/// Runs the demo in a temporary folder, in which it must leave nothing.
fn demo(words: &[&str], environment: &[(&str, &str)]) -> Output {
    let folder = TempDir::new().unwrap();
    let output = Command::new(PROGRAM)
        .args(words)
        .envs(environment.iter().copied())
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(files_in(folder.path()), [""; 0], "left behind after {words:?}");
    output
}

fn files_in(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Checks the facts of a demo on five nodes, of whatever kind.
fn check(output: &Output, node_kind: &str, database: &str) {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    // Nothing but one JSON object.
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();

    assert_eq!(facts["ok"], true);
    assert_eq!(facts["nodes"], 5);
    assert_eq!(facts["node_kind"], node_kind);
    assert_eq!(facts["node_names"].as_array().unwrap().len(), 5);
    assert_eq!(facts["database"], database);
    assert_eq!(facts["stale_write"], "refused");
    assert_eq!(facts["with_two_nodes_down"], "granted");
    assert_eq!(facts["with_three_nodes_down"], "unavailable");
    assert_eq!(facts["nodes_named"], Value::from(facts["node_names"].as_array().unwrap()[2..].to_vec()));
    assert_eq!(facts["with_all_nodes_back"], "granted");
    assert_eq!(facts["balance"], 130);
    assert_eq!(facts["keys_left"], 0);

    let grants = facts["grants"].as_array().unwrap();
    let holders: Vec<_> = grants.iter().map(|grant| grant["holder"].as_str().unwrap()).collect();
    assert_eq!(holders, ["A", "B", "B", "B"]);
    let tokens: Vec<_> = grants.iter().map(|grant| grant["token"].as_i64().unwrap()).collect();
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_eq!(facts["refusal"]["presented"], tokens[0]);
    assert_eq!(facts["refusal"]["highest"], tokens[1]);
    for grant in grants {
        let votes = grant["votes"].as_u64().unwrap();
        assert!((3..=5).contains(&votes), "{grant}");
        assert!(0 < grant["validity_ms"].as_u64().unwrap(), "{grant}");
        assert!(0.0 < grant["elapsed_ms"].as_f64().unwrap(), "{grant}");
    }
    assert_eq!(grants[2]["votes"], 3, "with two of five nodes down");
}

#[test]
fn the_story_holds_on_real_servers() {
    check(&demo(&["--json"], &[]), "redis", "sqlite");
}

#[test]
fn where_no_server_is_installed_it_says_how_to_get_one_and_holds_in_memory() {
    // The bench looks for servers beyond the search path as well; this is how it is told where to look.
    let output = demo(&["--json"], &[("REDIS_SERVER", "no-such-server")]);
    check(&output, "in-memory", "sqlite");
    let hint = String::from_utf8(output.stderr).unwrap();
    assert!(hint.contains("apt-get install redis-server"), "{hint}");

    let output = demo(&[], &[("REDIS_SERVER", "no-such-server")]);
    assert!(output.status.success());
    let story = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(story.contains("five in-memory nodes"), "{story}");
    assert!(story.contains("apt-get install redis-server"), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_story_holds_on_postgres_and_its_tables_are_removed() {
    let url = Postgres::shared().unwrap().url();
    check(&demo(&["--json", "--database", url], &[]), "redis", "postgres");
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    let left: i64 = sqlx::query_scalar(TABLES_LEFT).fetch_one(&pool).await.unwrap();
    assert_eq!(left, 0);
}

#[test]
fn an_sqlite_file_that_is_not_there_is_made_and_the_end_says_where_to_read_on() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("new.db");
    let output = demo(&["--database", &format!("sqlite:{}", file.display())], &[("REDIS_SERVER", "no-such-server")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(file.exists());
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(story.trim_end().ends_with("Next: README.md, \"Twenty lines\"; docs/fencing.md"), "{story}");
    // In memory as on servers, the beginning of an owner is shown in eight characters.
    let story = story.split_whitespace().collect::<Vec<_>>().join(" ");
    let owner = story.split_once("owner ").and_then(|(_, rest)| rest.split_once('…')).map(|(owner, _)| owner);
    assert_eq!(owner.map(str::len), Some(8), "{story}");
    assert!(story.contains("ttl 2 s, valid for"), "{story}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_story_holds_on_mariadb_and_its_tables_are_removed() {
    let url = MariaDb::shared().unwrap().url();
    check(&demo(&["--json", "--database", url], &[]), "redis", "mysql");
    let pool = sqlx::MySqlPool::connect(url).await.unwrap();
    let left: i64 = sqlx::query_scalar(TABLES_LEFT).fetch_one(&pool).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn given_servers_are_used_and_not_touched_and_their_passwords_not_shown() {
    let servers = Servers::start_with(5, |_| RedisOptions::new().password("opensesame")).await.unwrap();
    let nodes = servers.urls().join(",");
    let pids: Vec<u32> = servers.iter().map(|server| server.pid()).collect();

    let output = demo(&["--nodes", &nodes, "--json"], &[]);
    check(&output, "given", "sqlite");
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(facts["node_names"][0], servers[0].address().to_string());

    let output = demo(&["--nodes", &nodes], &[]);
    assert!(output.status.success());
    let story = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(story.contains(&servers[0].address().to_string()), "{story}");
    assert!(!story.contains("opensesame"), "{story}");
    assert!(!story.contains('\x1b'), "colours are for terminals: {story}");

    assert!(servers.iter().all(|server| server.is_running()));
    assert_eq!(pids, servers.iter().map(|server| server.pid()).collect::<Vec<_>>());
    let locks = servers.keys("redlock-demo:[^~]*").await.unwrap().concat();
    assert_eq!(locks, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_given_servers_are_enough() {
    let servers = Servers::start(3).await.unwrap();
    let output = demo(&["--json", "--nodes", &servers.urls().join(",")], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(facts["with_one_node_down"], "granted");
    assert_eq!(facts["with_two_nodes_down"], "unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_cannot_go_as_it_must_is_named_and_fails_the_demo() {
    let servers = Servers::start(3).await.unwrap();
    let [one, two] = [servers[0].url(), servers[1].url()];
    // The same server twice is one vote, also behind two relays.
    let output = demo(&["--json", "--nodes", &[one.as_str(), &two, &one].join(",")], &[]);
    assert_eq!(output.status.code(), Some(1));
    let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(facts["ok"], false);
    let failure = facts["failure"].as_str().unwrap();
    assert!(failure.contains("same server"), "{failure}");
    assert!(failure.contains(&servers[0].address().to_string()), "{failure}");

    servers[2].kill();
    let output = demo(&["--nodes", &servers.urls().join(",")], &[]);
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains(&servers[2].address().to_string()), "{complaint}");

    let output = demo(&["--database", "oracle://scott:tiger@db"], &[]);
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("postgres://") && !complaint.contains("tiger"), "{complaint}");
}

#[test]
fn what_it_does_not_know_is_a_matter_of_usage() {
    let output = demo(&["--help"], &[]);
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("usage: cargo xtask demo"));
    let output = demo(&["--nods=x"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
}

/// While A is frozen and B waits, all there is to leave behind is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_broken_off_leaves_no_process_and_no_file() {
    let folder = TempDir::new().unwrap();
    let output = TempDir::new().unwrap();
    let story = output.path().join("story");
    let demo = Process::spawn(PROGRAM, |command| {
        command.env("TMPDIR", folder.path()).stdin(Stdio::null()).stdout(fs::File::create(&story).unwrap());
    })
    .unwrap();
    let told = async || fs::read_to_string(&story).unwrap();
    let worker = eventually(PATIENCE, || async {
        let told = told().await;
        let frozen = told.contains("SIGSTOP");
        let pid = told.split("(pid ").nth(1).and_then(|rest| rest.split(')').next()).map(str::to_owned);
        pid.filter(|_| frozen).ok_or(told)
    })
    .await
    .unwrap();
    assert!(Path::new("/proc").join(&worker).exists());
    assert_ne!(files_in(folder.path()), [""; 0]);

    demo.terminate().unwrap();
    let status = eventually(PATIENCE, || async { demo.exited().ok_or("still running") }).await.unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(files_in(folder.path()), [""; 0]);
    eventually(PATIENCE, || async {
        if Path::new("/proc").join(&worker).exists() { Err("A is still there") } else { Ok(()) }
    })
    .await
    .unwrap();
}
