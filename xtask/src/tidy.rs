//! `cargo xtask tidy`: the rules of this code base that no general tool knows, so that no reviewer has to repeat them.
//!
//! A rule is a function from the files to complaints. The lists at the top are meant to be edited: whoever adds a place
//! where tasks begin adds it there, with what stops them.

mod cases;
pub(crate) mod files;

use anyhow::{Result, ensure};

use self::files::{File, Files};
use crate::run::{cargo, output};
use crate::{docs, mutants};

/// The crates that users run inside their own programs.
const LIBRARIES: [&str; 3] = ["crates/redlock-core/src/", "crates/backends/src/", "crates/fence-store/src/"];

/// Where in the libraries tasks and threads begin, and what ends them.
const SPAWNING: [(&str, &str); 8] = [
    (
        "crates/redlock-core/src/keeper.rs",
        "one task per client that polls releases and late calls to the end; it ends soon after its client",
    ),
    (
        "crates/redlock-core/src/watchdog.rs",
        "one task per client that renews kept locks; it is aborted with its client, and ends when nothing is kept",
    ),
    (
        "crates/redlock-core/src/blocking.rs",
        "the calls of the blocking face, on a runtime that is shut down with its last client, and the thread that does so",
    ),
    (
        "crates/redlock-core/src/conformance/crowd.rs",
        "calls that race while a node is checked; their set is emptied by the check, and aborts them if it is dropped",
    ),
    ("crates/backends/src/faulty.rs", "one task per wire that carries delayed calls; it is aborted with its node"),
    (
        "crates/backends/src/redis/link.rs",
        "one task per attempt to connect; it has a limit, and is aborted with its link",
    ),
    (
        "crates/backends/src/redis/wire.rs",
        "one task per connection that reads its answers; it is aborted with the connection",
    ),
    (
        "crates/backends/src/redis/calls.rs",
        "one task per subscription that hears calls for waiters; it is aborted with its node, and ends when nobody waits",
    ),
];

/// The ways in which tasks and threads begin.
const SPAWNS: [&str; 4] = ["tokio::spawn", ".spawn(", "spawn_blocking(", "spawn_local("];

/// The modules that decide: values in, values out.
const PURE: [&str; 5] = [
    "crates/redlock-core/src/tally.rs",
    "crates/redlock-core/src/validity.rs",
    "crates/redlock-core/src/token.rs",
    "crates/redlock-core/src/mint.rs",
    "crates/redlock-core/src/attempt.rs",
];

/// What a module that decides must not do: wait, look at a clock, draw lots.
const IMPURE: [&str; 5] = [".await", "async fn", "Instant::now", "SystemTime::now", "getrandom"];

/// What stands for work that was not done. In two halves, so that this file does not find itself.
const UNFINISHED: [&str; 3] = [concat!("#[ign", "ore"), concat!("tod", "o!("), concat!("unimple", "mented!(")];

/// What belongs to one machine: its folders, its mirrors.
const MACHINE: [&str; 11] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/Use", "rs/"),
    concat!("index.cra", "tes.io"),
    concat!("static.cra", "tes.io"),
    concat!("pypi.", "org"),
    concat!("registry.", "npmjs"),
    concat!("deb.", "debian.org"),
    concat!("spar", "se+http"),
    concat!("[sou", "rce."),
];

/// What the core must not depend on, however indirectly.
const NOT_IN_CORE: [&str; 3] = ["redis", "sqlx", "sea-query"];

/// The two commands with which a newcomer begins. The readme shows these and no other task.
const SETUP: [&str; 2] = ["cargo xtask demo", "cargo xtask test --install"];

pub(crate) fn run() -> Result<()> {
    let files = Files::tracked()?;
    let complaints: Vec<String> = [
        openings(&files),
        script_headers(&files),
        words(&files, ".rs", &UNFINISHED, "is unfinished work"),
        words(&files, "", &MACHINE, "belongs to one machine"),
        spawning(&files),
        purity(&files),
        readme(&files),
        cases::complaints(&files),
        mutants::complaints(&files),
        docs::complaints(&files),
        core_dependencies()?,
    ]
    .concat();
    ensure!(complaints.is_empty(), "tidy complains:\n  {}", complaints.join("\n  "));
    println!("tidy");
    Ok(())
}

/// Every source file says at its top what it promises.
fn openings(files: &Files) -> Vec<String> {
    let silent = files.iter().filter(|file| file.is_source() && !file.text.starts_with("//! "));
    silent.map(|file| format!("{}: begins without a `//!` paragraph", file.path)).collect()
}

/// Every Lua script argues at its top why it is atomic.
fn script_headers(files: &Files) -> Vec<String> {
    let silent = files.ending(".lua").filter(|file| !file.text.starts_with("--"));
    silent.map(|file| format!("{}: begins without a comment", file.path)).collect()
}

fn words(files: &Files, ending: &str, words: &[&str], what: &str) -> Vec<String> {
    let found = files.ending(ending).flat_map(|file| words.iter().map(move |word| (file, *word)));
    found.flat_map(|(file, word)| file.lines_with(word).map(move |line| format!("{line}: `{word}` {what}"))).collect()
}

/// Every task has an owner that stops it; so tasks begin in few, known files.
fn spawning(files: &Files) -> Vec<String> {
    let begins = |file: &File| SPAWNS.iter().any(|spawn| file.code().any(|line| line.contains(spawn)));
    let unknown = LIBRARIES
        .iter()
        .flat_map(|library| files.under(library))
        .filter(|file| begins(file) && SPAWNING.iter().all(|(known, _)| *known != file.path))
        .map(|file| format!("{}: begins a task; add it to SPAWNING in tidy.rs with what stops it", file.path));
    let stale = SPAWNING
        .iter()
        .filter(|(known, _)| !files.iter().any(|file| file.path == *known && begins(file)))
        .map(|(known, _)| format!("{known}: listed in SPAWNING in tidy.rs, but begins no task"));
    unknown.chain(stale).collect()
}

/// The modules that decide can be walked through by a model.
fn purity(files: &Files) -> Vec<String> {
    let missing = PURE
        .iter()
        .filter(|pure| files.iter().all(|file| file.path != **pure))
        .map(|pure| format!("{pure}: listed in PURE in tidy.rs, but not there"));
    let impure = files.iter().filter(|file| PURE.contains(&file.path.as_str())).flat_map(|file| {
        let found = IMPURE.iter().filter(|word| file.code().any(|line| line.contains(**word)));
        found.map(|word| format!("{}: `{word}` in a module that decides", file.path))
    });
    missing.chain(impure).collect()
}

/// The readme shows the two commands of the set-up, and no third.
fn readme(files: &Files) -> Vec<String> {
    let Some(readme) = files.iter().find(|file| file.path == "README.md") else {
        return vec!["README.md: is not there".into()];
    };
    let shown: Vec<&str> = fenced(&readme.text)
        .map(|line| line.trim_start_matches("$ ").split('#').next().unwrap_or_default().trim())
        .filter(|line| line.starts_with("cargo xtask"))
        .collect();
    let absent = SETUP.iter().filter(|command| !shown.contains(command));
    let absent = absent.map(|command| format!("README.md: does not show `{command}`"));
    let extra = shown.iter().filter(|command| !SETUP.contains(command));
    let extra = extra.map(|command| format!("README.md: shows `{command}`, which belongs into the docs"));
    absent.chain(extra).collect()
}

/// The lines inside fenced blocks.
fn fenced(markdown: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    markdown.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        inside ^= is_fence;
        inside && !is_fence
    })
}

/// The algorithm knows no backend and no database.
fn core_dependencies() -> Result<Vec<String>> {
    let tree = output(&mut cargo(
        "tree --package redlock-core --all-features --edges normal,build --prefix none --format {p}",
    ))?;
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    let forbidden = names.filter(|name| NOT_IN_CORE.iter().any(|word| name.starts_with(word)));
    Ok(forbidden.map(|name| format!("redlock-core: depends on {name}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, rule: impl Fn(&Files) -> Vec<String>, complaint: &str) {
        let complaints = rule(&Files::from([(path, text)]));
        let found = complaints.iter().any(|line| line.contains(complaint));
        assert!(found, "{complaints:?}");
    }

    fn check_fine(path: &str, text: &str, rule: impl Fn(&Files) -> Vec<String>) {
        let complaints = rule(&Files::from([(path, text)]));
        let complaints: Vec<_> = complaints.iter().filter(|line| line.starts_with(path)).collect();
        assert!(complaints.is_empty(), "{complaints:?}");
    }

    #[test]
    fn a_source_file_begins_with_its_promise() {
        check("crates/a/src/b.rs", "use std::fmt;", openings, "begins without");
        check_fine("crates/a/src/b.rs", "//! Says what.\n", openings);
        check_fine("crates/a/tests/b.rs", "use std::fmt;", openings);
        check("crates/a/src/b.lua", "return 1", script_headers, "begins without");
    }

    #[test]
    fn unfinished_work_and_machine_paths_are_found_with_their_line() {
        let text = ["fine", UNFINISHED[0]].join("\n");
        check("a.rs", &text, |files| words(files, ".rs", &UNFINISHED, "is unfinished"), "a.rs:2: ");
        check("docs/a.md", MACHINE[0], |files| words(files, "", &MACHINE, "belongs"), "docs/a.md:1: ");
    }

    #[test]
    fn tasks_begin_in_listed_files_only() {
        let text = "//! x\nfn f() { tokio::spawn(async {}); }";
        check("crates/backends/src/new.rs", text, spawning, "begins a task");
        check_fine("crates/backends/src/new.rs", "// tokio::spawn\n#[cfg(test)]\ntokio::spawn(x)", spawning);
        check_fine("crates/bench/src/new.rs", text, spawning);
        check(SPAWNING[0].0, "//! no task any more", spawning, "begins no task");
    }

    #[test]
    fn a_module_that_decides_does_not_wait() {
        check(PURE[0], "//! x\nlet y = z.await;", purity, "`.await`");
        check_fine(PURE[0], "//! Nothing is awaited here: no `.await`.", purity);
    }

    #[test]
    fn the_readme_shows_the_two_commands_and_no_third() {
        let both =
            "```sh\n$ cargo xtask demo # a story\ncargo xtask test --install\n```\nand `cargo xtask verify` in prose";
        check_fine("README.md", both, readme);
        check("README.md", "```sh\ncargo xtask demo\n```", readme, "does not show `cargo xtask test --install`");
        check("README.md", "```\ncargo xtask fix\n```", readme, "shows `cargo xtask fix`");
    }
}
