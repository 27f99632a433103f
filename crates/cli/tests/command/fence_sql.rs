//! `redlock fence sql`: a database takes what it prints, and refuses late writers afterwards.

use crate::support::*;
use redlock_bench::Process;
use redlock_bench::eventually;
use std::process::Stdio;

#[tokio::test]
async fn what_is_printed_is_a_fence() -> TestResult {
    let redlock = Redlock::at(Vec::new());
    let printed = redlock.call(&["fence", "sql", "--dialect", "sqlite", "--table", "orders", "--key", "id"]).await;
    assert_eq!(printed.code, 0, "{printed:?}");
    let url = format!("sqlite:{}?mode=rwc", redlock.note("shop.db").display());
    let pool = sqlx::SqlitePool::connect(&url).await?;
    let run = async |sql: String| sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await;
    run("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)".into()).await?;
    run(printed.stdout).await?;
    run("INSERT INTO orders (id, state, fence_token) VALUES (1, 'new', 7)".into()).await?;
    run("UPDATE orders SET state = 'paid', fence_token = 8 WHERE id = 1".into()).await?;
    let late = run("UPDATE orders SET state = 'late', fence_token = 7 WHERE id = 1".into()).await;
    assert!(late.is_err(), "the guard refuses a lower token");

    let removed = redlock
        .call(&["--json", "fence", "sql", "--dialect", "sqlite", "--table", "orders", "--key", "id", "--remove"])
        .await;
    let removed: serde_json::Value = serde_json::from_str(&removed.stdout)?;
    run(removed["sql"].as_str().unwrap().to_owned()).await?;
    run("UPDATE orders SET state = 'late', fence_token = 7 WHERE id = 1".into()).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_missing_is_asked_for() -> TestResult {
    let redlock = Redlock::at(Vec::new());
    for arguments in [
        &["fence", "sql", "--dialect", "sqlite"][..],
        &["fence", "sql", "--dialect", "sqlite", "--table", "orders"],
        &["fence", "sql", "--dialect", "oracle", "--table", "orders", "--key", "id"],
        &["fence", "sql", "--dialect", "sqlite", "--only", "ledger", "--ledger", "drop table"],
    ] {
        let ended = redlock.call(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (64, ""), "{ended:?}");
    }
    Ok(())
}

/// A reader that goes away ends the command with a number, and no panic.
#[tokio::test]
async fn a_closed_pipe_is_told_by_the_number() -> TestResult {
    let redlock = Redlock::at(Vec::new());
    let script = format!(
        "{{ {} fence sql --dialect mysql --only ledger; echo $? >&3; }} 3> code | true; wait",
        program().display()
    );
    let shell = Process::spawn("sh", |command| {
        redlock.prepare(command);
        command.args(["-c", &script]).stdin(Stdio::null());
    })?;
    eventually(LONG, || async { shell.exited().ok_or("still running") }).await?;
    let code = note_in(&redlock.note("code")).await;
    assert!(["0", "74"].contains(&code.as_str()), "{code}");
    Ok(())
}
