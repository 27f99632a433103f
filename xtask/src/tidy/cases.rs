//! The numbered cases: `docs/testing.md` lists each in a table with its tests, and each such test is in the table.
//!
//! A row begins with the number and names the tests in backticks, `| B07 | … | `b07_one_dead_node` |`; a test says its
//! number at the beginning of its name.

use std::collections::{BTreeMap, BTreeSet};

use super::files::Files;

const PAGE: &str = "docs/testing.md";

/// What the table and the tests disagree about.
pub(super) fn complaints(files: &Files) -> Vec<String> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![format!("{PAGE}: is not there")];
    };
    let listed = listed(&page.text);
    let crates = files.ending(".rs").filter(|file| file.path.starts_with("crates/"));
    let written: BTreeSet<&str> = crates.flat_map(|file| tests(&file.text)).collect();

    let empty = listed.iter().filter(|(_, tests)| tests.is_empty());
    let empty = empty.map(|(case, _)| format!("{PAGE}: {case} names no test"));
    let named: BTreeSet<&str> = listed.values().flatten().copied().collect();
    let unwritten = named.difference(&written).map(|test| format!("{PAGE}: there is no test {test}"));
    let unlisted = written.difference(&named).map(|test| format!("{PAGE}: does not list the test {test}"));
    empty.chain(unwritten).chain(unlisted).collect()
}

/// Each row's number, with the tests of that number that it names.
fn listed(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let rows = page.lines().filter_map(|line| line.trim().strip_prefix('|'));
    let rows = rows.filter_map(|row| {
        let case = row.split('|').next()?.trim();
        // Names stand between backticks, with or without the path to the test.
        let names = row.split('`').skip(1).step_by(2).filter_map(|name| name.rsplit("::").next());
        let names = names.filter(|name| number(name).is_some_and(|number| number.eq_ignore_ascii_case(case)));
        Some((case, names.collect())).filter(|(case, _)| number(&format!("{}_", case.to_lowercase())).is_some())
    });
    rows.collect()
}

/// The names of all tests that begin with a case's number: functions, and names in the list of a macro that makes one test
/// for each database of them.
fn tests(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let line = line.trim_start();
        let name = match line.split_once("fn ") {
            Some((before, after)) if !before.contains("//") => after.split(['(', '<']).next()?,
            _ => line.split([' ', ';']).next()?,
        };
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        number(name).filter(|_| is_name).map(|_| name)
    })
}

/// `b07` of `b07_one_dead_node`.
fn number(name: &str) -> Option<&str> {
    let (number, _) = name.split_once('_')?;
    let digits = number.strip_prefix('b')?;
    (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
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
