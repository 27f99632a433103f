//! What can be said about the book without building it: links that lead nowhere, pages that nobody is led to, blocks that
//! nothing runs. Pure, for `cargo xtask tidy`.

use super::page::{anchors, blocks, links};
use super::{BOOK, drawings};
use crate::tidy::files::{File, Files};

/// The table of contents.
const CONTENTS: &str = "docs/SUMMARY.md";

/// What makes documentation tests of the pages.
const TESTED_BY: &str = "crates/book/src/lib.rs";

/// Everything that is wrong with the book.
pub(crate) fn complaints(files: &Files) -> Vec<String> {
    [dead_links(files), lost_pages(files), idle_blocks(files), drawings::complaints(files)].concat()
}

fn pages(files: &Files) -> impl Iterator<Item = &File> {
    files.ending(".md").filter(|file| file.path.starts_with(BOOK) || file.path == "README.md")
}

fn text_of<'a>(files: &'a Files, path: &str) -> Option<&'a str> {
    files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
}

fn dead_links(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for page in pages(files) {
        for (line, link) in links(&page.text) {
            if let Err(why) = lead(files, page, link) {
                complaints.push(format!("{}:{line}: ({link}) {why}", page.path));
            }
        }
    }
    complaints
}

/// Where a link leads. Addresses on the net are left to the reader, as is the documentation of the crates, which is there
/// only when the book is built.
fn lead(files: &Files, page: &File, link: &str) -> Result<(), &'static str> {
    if link.contains("://") || link.starts_with("api/") {
        return Ok(());
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = if path.is_empty() { page.path.clone() } else { join(folder, path) };
    if page.path.starts_with(BOOK) && !path.starts_with(BOOK) {
        return Err("leads out of the book");
    }
    let is_folder = || files.iter().any(|file| file.path.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/')));
    let Some(text) = text_of(files, &path) else {
        return if is_folder() { Ok(()) } else { Err("leads nowhere") };
    };
    let found = anchor.is_empty() || anchors(text).iter().any(|known| known == anchor);
    if found { Ok(()) } else { Err("leads to no heading") }
}

/// A path from a folder.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Every page is in the table of contents, and its code is tested.
fn lost_pages(files: &Files) -> Vec<String> {
    let contents = text_of(files, CONTENTS).unwrap_or_default();
    let tested = text_of(files, TESTED_BY).unwrap_or_default();
    let mut complaints = Vec::new();
    for page in pages(files).filter(|page| page.path != CONTENTS) {
        let Some(name) = page.path.strip_prefix(BOOK) else { continue };
        if !contents.contains(&format!("]({name})")) {
            complaints.push(format!("{CONTENTS}: does not lead to {}", page.path));
        }
        let has_code = blocks(&page.text).iter().any(|block| block.is("rust"));
        if has_code && !tested.contains(&format!("/{}\"", page.path)) {
            complaints.push(format!("{TESTED_BY}: does not test {}", page.path));
        }
    }
    complaints
}

/// Code that is not tested where it stands is shown from a file that is, word for word, and in a block of the kind `rs`, which
/// is no documentation test. A command that is not run says why.
fn idle_blocks(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for page in pages(files) {
        for block in blocks(&page.text) {
            let place = format!("{}:{}", page.path, block.line);
            match block.noted("shown") {
                Some(path) if text_of(files, path) != Some(&block.text) => complaints
                    .push(format!("{place}: is not what stands in {path}; `cargo xtask docs --write` brings it")),
                Some(_) => {}
                None if block.kind.contains(&"ignore") || block.is("rs") => {
                    complaints.push(format!("{place}: is not tested; show it from a file that is"));
                }
                None => {}
            }
            if block.note.is_some_and(|(name, what)| name == "not run" && what.is_empty()) {
                complaints.push(format!("{place}: does not say why it is not run"));
            }
            if block.is("console") || block.is("bash") || block.is("shell") {
                complaints.push(format!("{place}: commands are written in blocks of the kind sh"));
            }
        }
    }
    complaints
}

/// A page with the blocks brought up to date that are shown from files.
pub(super) fn with_shown_blocks(page: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let mut written = String::with_capacity(page.len());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        written += line;
        written.push('\n');
        let shown = line.strip_prefix("<!-- shown: ").and_then(|rest| rest.strip_suffix(" -->"));
        let Some(text) = shown.and_then(&read) else { continue };
        written += lines.next().unwrap_or_default();
        written.push('\n');
        written += &text;
        if let Some(end) = lines.by_ref().find(|line| line.starts_with("```")) {
            written += end;
            written.push('\n');
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, complaint: &str) {
        let files = Files::from([(path, text), ("docs/b.md", "# There is\n"), ("crates/a/x.rs", "fn x() {}\n")]);
        let found = [dead_links(&files), lost_pages(&files), idle_blocks(&files)].concat();
        assert!(found.iter().any(|line| line.contains(complaint)), "{found:?}");
    }

    fn check_fine(path: &str, text: &str) {
        let contents = (CONTENTS, if path == "docs/a.md" { "[a](a.md) [b](b.md)" } else { "[b](b.md)" });
        let files = Files::from([
            (path, text),
            ("docs/b.md", "# There is\n"),
            ("crates/a/x.rs", "fn x() {}\n"),
            contents,
            (TESTED_BY, "\"../../../docs/a.md\""),
        ]);
        let found = [dead_links(&files), lost_pages(&files), idle_blocks(&files)].concat();
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn links_lead_to_files_and_headings_of_the_book() {
        check_fine("docs/a.md", "[x](b.md) [y](b.md#there-is) [z](https://example.com/) [c](api/c/index.html)");
        check_fine("README.md", "[x](docs/b.md#there-is) [y](crates/a) [z](crates/a/)");
        check("docs/a.md", "\n[x](c.md)", "docs/a.md:2: (c.md) leads nowhere");
        check("docs/a.md", "[x](b.md#there-was)", "leads to no heading");
        check("docs/a.md", "[x](../crates/a/x.rs)", "leads out of the book");
    }

    #[test]
    fn pages_are_in_the_contents_and_their_code_is_tested() {
        check("docs/a.md", "", "does not lead to docs/a.md");
        check("docs/a.md", "```rust\n```", "does not test docs/a.md");
    }

    #[test]
    fn code_is_tested_or_shown_from_where_it_is() {
        check_fine("docs/a.md", "<!-- shown: crates/a/x.rs -->\n```rs\nfn x() {}\n```\n");
        check("docs/a.md", "<!-- shown: crates/a/x.rs -->\n```rs\nfn y() {}\n```\n", "is not what stands");
        check("docs/a.md", "```rust,ignore\nfn y() {}\n```\n", "docs/a.md:1: is not tested");
        check("docs/a.md", "<!-- not run -->\n```sh\nls\n```\n", "does not say why");
        check("docs/a.md", "```console\n$ ls\n```\n", "of the kind sh");
    }

    #[test]
    fn what_is_shown_is_brought_up_to_date() {
        let page = "a\n<!-- shown: x -->\n```rs\nold\n```\nb\n";
        let written = with_shown_blocks(page, |path| (path == "x").then(|| "new\n".to_owned()));
        assert_eq!(written, "a\n<!-- shown: x -->\n```rs\nnew\n```\nb\n");
        assert_eq!(with_shown_blocks(page, |_| None), page);
    }
}
