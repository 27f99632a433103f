//! The numbered cases and the promises: `docs/testing.md` lists each in a table with its tests, and each such test is in the
//! table.
//!
//! A row begins with the number and names the tests in backticks, `| B07 | … | `b07_one_dead_node` |`; a test says its
//! number at the beginning of its name. A promise, `| P1 tokens | … |`, may name other tests and files as well; then these
//! have to be there. `p1_…` stands for every test that begins so. Every promise that `docs/safety.md` gives is in the table,
//! and the reader is led to it from there.

use std::collections::{BTreeMap, BTreeSet};

use super::files::Files;

const PAGE: &str = "docs/testing.md";

/// The page that gives the promises, and where it leads those who want to see them tested.
const PROMISES: &str = "docs/safety.md";
const LINK: &str = "testing.md#the-promises-and-their-tests";

/// What the table and the tests disagree about.
pub(super) fn complaints(files: &Files) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE}: is not there")];
    };
    let rows = rows(&page.text);
    let crates = || files.ending(".rs").filter(|file| file.path.starts_with("crates/"));
    let there: BTreeSet<&str> = crates().flat_map(|file| names(&file.text)).collect();
    let written: BTreeSet<&str> = there.iter().copied().filter(|name| number(name).is_some()).collect();

    let mut complaints = Vec::new();
    let mut listed = BTreeSet::new();
    for (case, named) in &rows {
        let begin_so = |prefix| there.range(prefix..).take_while(move |name| name.starts_with(prefix));
        let every = named.iter().filter_map(|name| name.strip_suffix('…')).flat_map(begin_so);
        let of_case = named.iter().chain(every).copied().filter(|name| is_of(name, case) && is_name(name));
        let is_case = case.starts_with('B');
        if is_case && of_case.clone().next().is_none() || named.is_empty() {
            complaints.push(format!("{PAGE}: {case} names no test"));
        }
        listed.extend(of_case);
        // A case's row may quote code; a promise's row names what could refute it, and nothing else.
        let claimed = named.iter().filter(|name| is_of(name, case) || !is_case);
        let missing = claimed.filter(|name| match name.strip_suffix('…') {
            Some(prefix) => begin_so(prefix).next().is_none(),
            None if is_name(name) => !there.contains(*name),
            None => !is_task(name) && !is_file(files, name),
        });
        complaints.extend(missing.map(|name| format!("{PAGE}: there is no test {name}")));
    }
    let unlisted = written.difference(&listed).map(|test| format!("{PAGE}: does not list the test {test}"));
    complaints.extend(unlisted);
    if let Some(promises) = files.iter().find(|file| file.path == PROMISES) {
        complaints.extend(untested(&promises.text, &page.text));
    }
    complaints
}

/// Promises that the table of tests does not know, and a way to it that is missing.
fn untested(promises: &str, page: &str) -> Vec<String> {
    let (promised, tested) = (rows(promises), rows(page));
    let forgotten = promised.keys().filter(|promise| !tested.contains_key(**promise));
    let mut complaints: Vec<String> =
        forgotten.map(|promise| format!("{PAGE}: does not say what tests {promise} of {PROMISES}")).collect();
    if !promises.contains(LINK) {
        complaints.push(format!("{PROMISES}: does not lead to {LINK}"));
    }
    complaints
}

/// Each row's number, with all that it names in backticks: by its last part, if it is a path to a test.
fn rows(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let rows = page.lines().filter_map(|line| line.trim().strip_prefix('|'));
    let rows = rows.filter_map(|row| {
        let case = row.split('|').next()?.split_whitespace().next()?;
        number(&format!("{}_", case.to_lowercase()))?;
        let names = row.split('`').skip(1).step_by(2).filter_map(|name| name.rsplit("::").next());
        Some((case, names.collect()))
    });
    rows.collect()
}

/// The names of all functions, and names in the list of a macro that makes one test for each database of them.
fn names(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let line = line.trim_start();
        let name = match line.split_once("fn ") {
            Some((before, after)) if !before.contains("//") => after.split(['(', '<']).next()?,
            _ => line.split([' ', ';']).next().filter(|name| number(name).is_some())?,
        };
        is_name(name).then_some(name)
    })
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_task(name: &str) -> bool {
    name.starts_with("cargo xtask ")
}

/// A file or a folder, by the end or the whole of its path.
fn is_file(files: &Files, name: &str) -> bool {
    files.iter().any(|file| file.path.starts_with(name) || file.path.ends_with(&format!("/{name}")))
}

fn is_of(name: &str, case: &str) -> bool {
    number(name).is_some_and(|number| number.eq_ignore_ascii_case(case))
}

/// `b07` of `b07_one_dead_node`, `p1` of `p1_tokens_grow`.
fn number(name: &str) -> Option<&str> {
    let (number, _) = name.split_once('_')?;
    let (digits, expected) = match number.strip_prefix('b') {
        Some(digits) => (digits, 2),
        None => (number.strip_prefix('p')?, 1),
    };
    (digits.len() == expected && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(table: &str, source: &str, expected: &[&str]) {
        let files = Files::from([(PAGE, table), ("crates/a/tests/b.rs", source)]);
        assert_eq!(complaints(&files), expected);
    }

    #[test]
    fn table_and_tests_agree() {
        let table = "| case | test |\n|---|---|\n| B07 | `b07_a`, `faults::b07_b` |\n| B09 | see `fn` and `b09_c` |";
        check(table, "    async fn b07_a() {\nfn b07_b() {}\npub async fn b09_c<T>() {", &[]);
    }

    #[test]
    fn names_in_the_list_of_a_macro_are_tests_too() {
        let source =
            "on_every_database! {\n    b59_a_postgres\n    b59_a_mariadb\n        => check;\n}\n// b59_b is gone";
        check("| B59 | `b59_a_postgres`, `b59_a_mariadb` |", source, &[]);
    }

    #[test]
    fn a_promise_names_tests_of_its_number_others_and_files() {
        let table = "| P1 tokens | `p1_a`, `model::another`, `crates/a/`, `b.rs`; `cargo xtask demo` |";
        check(table, "fn p1_a() {}\nfn another() {}", &[]);
        check(table, "fn p1_a() {}", &["docs/testing.md: there is no test another"]);
        check("| P1 | `p1_…` |", "fn p1_a() {}\nfn p1_b() {}", &[]);
        check(
            "| P1 | `p1_…` |",
            "fn p2_a() {}",
            &["docs/testing.md: there is no test p1_…", "docs/testing.md: does not list the test p2_a"],
        );
        check("| P1 | `c.rs` |", "", &["docs/testing.md: there is no test c.rs"]);
        check("| P1 | none |", "", &["docs/testing.md: P1 names no test"]);
        check("| P1 | `b.rs` |", "fn p1_a() {}", &["docs/testing.md: does not list the test p1_a"]);
    }

    #[test]
    fn every_promise_is_tested_and_leads_to_its_tests() {
        let page = "| P1 tokens | `p1_a` |";
        let promises = "| P1 | Tokens grow |\n\n[tests](testing.md#the-promises-and-their-tests)";
        assert_eq!(untested(promises, page), Vec::<String>::new());
        let more = format!("{promises}\n| P2 | No overlap |");
        assert_eq!(untested(&more, page), ["docs/testing.md: does not say what tests P2 of docs/safety.md"]);
        let no_way = untested("| P1 | Tokens grow |", page);
        assert_eq!(no_way, ["docs/safety.md: does not lead to testing.md#the-promises-and-their-tests"]);
    }

    #[test]
    fn what_is_missing_on_either_side_is_named() {
        check("| B07 | none yet |", "", &["docs/testing.md: B07 names no test"]);
        check("| B07 | `b07_a` |", "", &["docs/testing.md: there is no test b07_a"]);
        check("", "fn b07_a() {}", &["docs/testing.md: does not list the test b07_a"]);
        check(
            "| B07 | `b09_a` |",
            "fn b09_a() {}",
            &["docs/testing.md: B07 names no test", "docs/testing.md: does not list the test b09_a"],
        );
    }
}
