//! The commands that the book shows, run as a reader would: each page's from top to bottom in one shell, in an empty folder,
//! with the repository beside it under the name `redlock`. The folder is outside of the repository, or `cargo new` would add to
//! its workspace.
//!
//! Three words in a comment above a block change what becomes of it. `file: PATH` makes a file of it, which later commands
//! use. `prints` says that the commands so far print its lines, among others; `…` in a line stands for anything. `not run:
//! WHY` leaves commands out; they are counted, and told with their reason.
//!
//! The ports of the book, 7601 and the next four, are replaced by free ones, so that no server of the reader's is met. What
//! listens there when a page is done is stopped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::BOOK;
use super::page::{Block, blocks};
use crate::run::{self, cargo, root, target, watch};
use crate::tidy::files::{File, Files};

/// The ports that the book's servers listen on.
const PORTS: [u16; 5] = [7601, 7602, 7603, 7604, 7605];

/// How long the commands of one page may take; building a program from nothing is the slowest of them.
const PAGE_LIMIT: &str = "40m";

/// Marks in a page's output where a block begins.
const MARK: &str = "▸ line ";

/// Runs the commands of the pages with these names, or of all.
pub(super) fn run(files: &Files, names: &[&str]) -> Result<()> {
    // The command of this workspace, which pages call by its name.
    run::run(&mut cargo("build --quiet --package redlock-cli"))?;
    let named = |file: &&File| names.is_empty() || names.iter().any(|name| file.path.ends_with(&format!("{name}.md")));
    let mut ran = 0;
    let mut left_out = Vec::new();
    for page in files.ending(".md").filter(|file| file.path.starts_with(BOOK) || file.path == "README.md").filter(named)
    {
        let blocks = blocks(&page.text);
        let commands = || blocks.iter().filter(|block| block.is("sh"));
        left_out.extend(
            commands().filter_map(|block| Some(format!("{}:{}: {}", page.path, block.line, block.noted("not run")?))),
        );
        let here = commands().filter(|block| block.noted("not run").is_none()).count();
        if 0 < here {
            run_page(page, &blocks).with_context(|| format!("the commands of {}", page.path))?;
        }
        ran += here;
    }
    println!("{ran} blocks of commands were run, {} were not:", left_out.len());
    for reason in left_out {
        println!("  {reason}");
    }
    Ok(())
}

fn run_page(page: &File, blocks: &[Block<'_>]) -> Result<()> {
    let name = format!("redlock-book-{}-{}", std::process::id(), page.path.replace('/', "-"));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder)?;
    std::os::unix::fs::symlink(root(), folder.join("redlock"))?;
    let ports = free_ports()?;
    let script = with_ports(&script(blocks), &ports);
    std::fs::write(folder.join("commands.sh"), &script)?;

    let mut shell = Command::new("timeout");
    shell.args([PAGE_LIMIT, "bash", "-euo", "pipefail", "commands.sh"]).current_dir(&folder).stdin(Stdio::null());
    shell.env("PATH", with_own_programs()?);
    let outcome = watch(&mut shell);
    stop(&ports);
    let (status, heard) = outcome?;
    ensure!(status.success(), "ended with {status}; they are in {}", folder.join("commands.sh").display());
    for (line, wanted) in printed(blocks, &ports) {
        ensure!(prints(&heard, &wanted), "line {line}: this was not printed: {wanted}");
    }
    // It is looked at if something went wrong.
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Where programs are looked for: first among those of this workspace.
fn with_own_programs() -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = target().join("debug");
    Ok(std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&path)))?)
}

/// One script of all blocks of a page.
fn script(blocks: &[Block<'_>]) -> String {
    let mut script = String::new();
    for block in blocks {
        if let Some(path) = block.noted("file") {
            let text = &block.text;
            writeln!(script, "mkdir -p \"$(dirname {path})\"\ncat > {path} <<'END OF FILE'\n{text}END OF FILE")
                .expect("a string");
        } else if block.is("sh") && block.noted("not run").is_none() {
            writeln!(script, "echo '{MARK}{}'\n{}", block.line, block.text).expect("a string");
        }
    }
    script
}

/// The lines that the commands are said to print.
fn printed(blocks: &[Block<'_>], ports: &BTreeMap<u16, u16>) -> Vec<(usize, String)> {
    let said = blocks.iter().filter(|block| block.noted("prints").is_some());
    said.flat_map(|block| block.text.lines().map(|line| (block.line, with_ports(line, ports)))).collect()
}

/// Whether a line was printed that is like this one; `…` stands for anything.
fn prints(heard: &str, wanted: &str) -> bool {
    heard.lines().any(|line| {
        let mut rest = line;
        wanted.split('…').map(str::trim).all(|part| match rest.split_once(part) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    })
}

fn with_ports(text: &str, ports: &BTreeMap<u16, u16>) -> String {
    ports.iter().fold(text.to_owned(), |text, (from, to)| text.replace(&from.to_string(), &to.to_string()))
}

/// Ports that nobody listens on, for those of the book.
fn free_ports() -> Result<BTreeMap<u16, u16>> {
    // All of them are held until the last is known, so that none is given twice.
    let listeners: Vec<TcpListener> =
        PORTS.iter().map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let ports = PORTS.iter().zip(&listeners).map(|(port, listener)| Ok((*port, listener.local_addr()?.port())));
    ports.collect()
}

/// Stops the servers that a page has left.
fn stop(ports: &BTreeMap<u16, u16>) {
    for port in ports.values() {
        let mut shutdown = Command::new("redis-cli");
        shutdown.args(["-p", &port.to_string(), "shutdown", "nosave"]).stdout(Stdio::null()).stderr(Stdio::null());
        // Nobody there is what is wanted.
        let _ = shutdown.status();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_one_script() {
        let page = "```sh\nmkdir a\n```\n<!-- file: a/b.txt -->\n```text\nc\n```\n<!-- not run: for people -->\n```sh\nrm -rf /\n```\n";
        let script = script(&blocks(page));
        assert!(script.contains("\nmkdir a\n"), "{script}");
        assert!(script.contains("cat > a/b.txt <<'END OF FILE'\nc\nEND OF FILE\n"), "{script}");
        assert!(!script.contains("rm"), "{script}");
    }

    #[test]
    fn a_line_may_leave_something_open() {
        assert!(prints("x\ntoken 17, balance 110\n", "token …, balance 110"));
        assert!(!prints("token 17, balance 100\n", "token …, balance 110"));
    }

    #[test]
    fn the_books_ports_are_replaced() {
        let ports = BTreeMap::from([(7601, 40_001)]);
        assert_eq!(with_ports("redis://127.0.0.1:7601", &ports), "redis://127.0.0.1:40001");
    }
}
