//! `cargo xtask docs [--write | --commands [PAGE…]]`: builds the book and proves that what it says can be done.
//!
//! ```text
//!  tidy's part     links, contents, blocks shown from files, drawings       page, links, drawings, sketch
//!      ▼
//!  the Rust code   each page as documentation tests                         crates/book
//!      ▼
//!  the commands    each page's in one shell, on ports of their own          commands
//!      ▼
//!  the book        mdBook, the crates' documentation beside it, and no link in either that leads nowhere      built
//! ```
//!
//! `--write` brings up to date what stands in the book and comes from elsewhere: drawings, and code shown from files.

mod built;
mod commands;
mod drawings;
mod links;
mod page;
mod sketch;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use self::links::complaints;
use crate::run::{self, cargo, root, succeeds, target};
use crate::servers;
use crate::tidy::files::Files;

/// The folder of the book.
const BOOK: &str = "docs/";

/// Where the drawings are, from the root of the workspace.
const IMAGES: &str = "docs/images/";

/// The version of mdBook that is brought if none is there. Without its server and its watcher it is small.
const MDBOOK: &str = "0.5.4";

/// The crates whose documentation stands beside the book.
const CRATES: [&str; 3] = ["redlock-core", "redlock-backends", "fence-store"];

pub(crate) fn run(words: &[&str]) -> Result<()> {
    match words {
        [] => everything(),
        ["--write"] => write(),
        ["--commands", pages @ ..] => commands::run(&Files::tracked()?, pages),
        _ => bail!("docs knows --write and --commands [PAGE…], not {}", words.join(" ")),
    }
}

fn everything() -> Result<()> {
    // What the book's commands need is what the tests need.
    servers::ensure_installed(false)?;
    let files = Files::tracked()?;
    let complaints = complaints(&files);
    ensure!(complaints.is_empty(), "the book is not in order:\n  {}", complaints.join("\n  "));
    run::run(&mut cargo("test --doc --package redlock-book"))?;
    commands::run(&files, &[])?;
    let book = build()?;
    let links = built::check(&book)?;
    println!("the book is in {}; {links} links in it lead somewhere", book.join("index.html").display());
    Ok(())
}

/// Drawings, and code that is shown from files.
fn write() -> Result<()> {
    for (path, text) in drawings::all() {
        write_if_other(&path, &text)?;
    }
    for page in Files::tracked()?.under(BOOK).filter(|file| file.path.ends_with(".md")) {
        let read = |path: &str| std::fs::read_to_string(root().join(path)).ok();
        write_if_other(&page.path, &links::with_shown_blocks(&page.text, read))?;
    }
    Ok(())
}

fn write_if_other(path: &str, text: &str) -> Result<()> {
    let file = root().join(path);
    if std::fs::read_to_string(&file).is_ok_and(|there| there == text) {
        return Ok(());
    }
    std::fs::write(&file, text).with_context(|| format!("{path} cannot be written"))?;
    println!("{path}");
    Ok(())
}

/// Builds the book, with the documentation of the crates in its folder `api`. Says where it is.
fn build() -> Result<PathBuf> {
    let mdbook = mdbook()?;
    let book = target().join("book");
    let mut command = Command::new(mdbook);
    run::run(command.current_dir(root()).args(["build", BOOK, "--dest-dir"]).arg(&book))?;
    let packages: String = CRATES.iter().map(|name| format!(" --package {name}")).collect();
    let mut docs = cargo(&format!("doc --no-deps --all-features{packages}"));
    run::run(docs.env("RUSTDOCFLAGS", "-D warnings"))?;
    copy_api(&target().join("doc"), &book.join("api"))?;
    Ok(book)
}

/// The program that makes a book of the pages: the one that is installed, or one of this task's own.
fn mdbook() -> Result<PathBuf> {
    if succeeds(Command::new("mdbook").arg("--version")) {
        return Ok("mdbook".into());
    }
    let own = target().join("tools");
    let program = own.join("bin/mdbook");
    if !succeeds(Command::new(&program).arg("--version")) {
        let mut install = cargo(&format!("install mdbook --version {MDBOOK} --locked --no-default-features"));
        // Not the profile of this workspace, and nothing in its folder but the program.
        install.args(["--features", "search", "--root"]).arg(&own);
        run::run(&mut install)?;
    }
    Ok(program)
}

/// What belongs to the crates, out of a folder in which others may be as well.
fn copy_api(docs: &Path, api: &Path) -> Result<()> {
    let names = CRATES.map(|name| name.replace('-', "_"));
    let ours = |path: &Path| names.iter().any(|name| path.ends_with(name));
    std::fs::create_dir_all(api)?;
    for entry in std::fs::read_dir(docs).with_context(|| format!("{} cannot be read", docs.display()))? {
        let (path, to) = entry.map(|entry| (entry.path(), api.join(entry.file_name())))?;
        if path.is_file() {
            std::fs::copy(&path, to)?;
        } else if ours(&path) || ["static.files", "search.index"].iter().any(|shared| path.ends_with(shared)) {
            copy(&path, &to)?;
        }
    }
    for name in &names {
        copy(&docs.join("src").join(name), &api.join("src").join(name))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type()?.is_dir() {
            true => copy(&path, &target)?,
            false => drop(std::fs::copy(path, target)?),
        }
    }
    Ok(())
}
