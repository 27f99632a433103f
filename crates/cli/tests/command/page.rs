//! `docs/command.md` and the command say the same.

use crate::support::*;
use redlock_cli::exit::Exit;

const PAGE: &str = include_str!("../../../../docs/command.md");

/// Every code is in the table with its word and its meaning, and the table has no other.
#[test]
fn the_table_of_exit_codes_is_that_of_the_code() {
    let rows: Vec<&str> = PAGE
        .lines()
        .skip_while(|line| *line != "## Exit codes")
        .take_while(|line| *line != "## Run a program under a lock")
        .filter(|line| line.starts_with("| ") && line[2..3].chars().all(|first| first.is_ascii_digit()))
        .collect();
    let own = Exit::ALL.iter().map(|exit| format!("| {} | `{}` | {} |", exit.code(), exit.word(), exit.meaning()));
    let mut expected = vec!["| 0 | | done |".to_owned()];
    expected.extend(own);
    expected.push("| 128+n | | signal n ended the program, or the wait for the lock |".into());
    assert_eq!(rows, expected);
}

/// Whatever can be called has a row in the table of commands.
#[tokio::test]
async fn every_command_is_on_the_page() {
    use clap::CommandFactory as _;
    for command in redlock_cli::options::Options::command().get_subcommands() {
        let name = command.get_name();
        let row = PAGE
            .lines()
            .any(|line| line.starts_with(&format!("| `{name}")) || line.starts_with(&format!("| [`{name}")));
        assert!(row, "{name} has no row");
    }
}

/// Whatever the doctor can find is in its table, and the table has nothing else.
#[test]
fn every_finding_of_the_doctor_is_on_the_page() {
    let rows = PAGE.lines().skip_while(|line| *line != "### What it finds").filter(|line| line.starts_with("| `"));
    let mut listed: Vec<&str> =
        rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2)).collect();
    listed.sort_unstable();
    let mut known = redlock_cli::doctor::FINDINGS.to_vec();
    known.sort_unstable();
    assert_eq!(listed, known);
}

#[tokio::test]
async fn completions_and_the_manual_are_printed() {
    let redlock = Redlock::at(Vec::new());
    for (shell, word) in [("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete -c redlock")] {
        let ended = redlock.call(&["completions", shell]).await;
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(ended.stdout.contains(word), "{shell}");
    }
    let manual = redlock.call(&["manual"]).await;
    assert!(manual.stdout.contains(".SH \"REDLOCK RUN\""), "{}", manual.stdout);
}
