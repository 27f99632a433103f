//! The built book: whether every address in it leads to a page, a picture or a heading that is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Checks the pages of the book, not those of the crates' documentation, which has its own checks. Says how many links lead
/// somewhere inside of it.
pub(super) fn check(book: &Path) -> Result<usize> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(book)
        .with_context(|| format!("{} cannot be read", book.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "html"))
        .collect();
    pages.sort();
    ensure!(!pages.is_empty(), "there is no page in {}", book.display());
    let mut anchors: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut dead = Vec::new();
    let mut count = 0;
    for page in &pages {
        let text = std::fs::read_to_string(page)?;
        for link in values(&text, &["href", "src"]) {
            if link.contains(':') || link.starts_with("//") || link == "#" || link.is_empty() {
                continue;
            }
            count += 1;
            if !leads(book, page, link, &mut anchors) {
                dead.push(format!("{}: {link}", page.file_name().unwrap_or_default().to_string_lossy()));
            }
        }
    }
    dead.dedup();
    ensure!(dead.is_empty(), "the built book has links that lead nowhere:\n  {}", dead.join("\n  "));
    Ok(count)
}

fn leads(book: &Path, page: &Path, link: &str, anchors: &mut BTreeMap<PathBuf, BTreeSet<String>>) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = path.split('?').next().unwrap_or_default();
    let target = match path {
        "" => page.to_owned(),
        // What is served for addresses that are not there is written for the root of a server.
        path => normal(&path.strip_prefix('/').map_or_else(|| page.with_file_name(path), |path| book.join(path))),
    };
    let target = if target.is_dir() { target.join("index.html") } else { target };
    if !target.is_file() {
        return false;
    }
    let known = anchors.entry(target).or_insert_with_key(|target| {
        let text = std::fs::read_to_string(target).unwrap_or_default();
        values(&text, &["id", "name"]).map(str::to_owned).collect()
    });
    anchor.is_empty() || known.contains(anchor)
}

/// A path without steps back.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// The values of some attributes, wherever they stand in a tag.
fn values<'a>(html: &'a str, names: &'static [&'static str]) -> impl Iterator<Item = &'a str> {
    names.iter().flat_map(move |name| {
        html.match_indices(name).filter_map(move |(at, _)| {
            let before = html[..at].chars().next_back()?;
            let rest = html[at + name.len()..].strip_prefix("=\"")?;
            before.is_whitespace().then(|| rest.split('"').next())?
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_where_they_are_whole() {
        let html = "<a href=\"x.html#y\" class=\"z\">href</a><img data-src=\"no\" src=\"i.svg\">";
        assert_eq!(values(html, &["href", "src"]).collect::<Vec<_>>(), ["x.html#y", "i.svg"]);
    }

    #[test]
    fn steps_back_are_taken() {
        assert_eq!(normal(Path::new("a/b/../c/./d.html")), Path::new("a/c/d.html"));
    }
}
