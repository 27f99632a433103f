//! What was asked for on the command line.

use anyhow::{Context, Result, bail, ensure};

/// The text that `cargo xtask demo --help` shows, without building the demo for it.
pub(crate) const USAGE: &str = include_str!("../../demo.txt");

/// What the program is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Help,
    Demo(Options),
    /// Be the process that is frozen. Orders come over standard input, as they hold passwords.
    Work,
}

/// How the demo is to be played. Has no `Display`: the URLs may hold passwords.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) nodes: Option<Vec<String>>,
    pub(crate) database: Option<String>,
    pub(crate) json: bool,
}

/// The argument with which the demo runs itself.
pub(crate) const WORK: &str = "work-for-the-demo";

pub(crate) fn read(words: impl IntoIterator<Item = String>) -> Result<Wish> {
    let mut options = Options::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (flag, glued) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let mut value = || glued.clone().or_else(|| words.next()).with_context(|| format!("{flag} needs a value"));
        match flag {
            "--nodes" => options.nodes = Some(urls(&value()?)?),
            "--database" => options.database = Some(value()?),
            "--json" if glued.is_none() => options.json = true,
            "--help" | "-h" => return Ok(Wish::Help),
            WORK => return Ok(Wish::Work),
            // Without its value, which may be a secret.
            _ => bail!("the demo does not know {flag}"),
        }
    }
    Ok(Wish::Demo(options))
}

fn urls(list: &str) -> Result<Vec<String>> {
    let urls: Vec<String> = list.split(',').map(str::trim).filter(|url| !url.is_empty()).map(str::to_owned).collect();
    ensure!(!urls.is_empty(), "--nodes names no node");
    Ok(urls)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[&str], expected: Wish) {
        assert_eq!(read(words.iter().map(|word| (*word).to_owned())).unwrap(), expected);
    }

    #[test]
    fn values_may_stand_apart_or_be_glued() {
        let nodes = Some(vec!["redis://a".to_owned(), "redis://b".to_owned()]);
        let database = Some("sqlite:x?mode=rwc".to_owned());
        let options = |json| Wish::Demo(Options { nodes: nodes.clone(), database: database.clone(), json });
        check(&["--nodes", "redis://a,redis://b", "--database", "sqlite:x?mode=rwc"], options(false));
        check(&["--json", "--nodes=redis://a, redis://b", "--database=sqlite:x?mode=rwc"], options(true));
        check(&[], Wish::Demo(Options::default()));
        check(&["--json", "--help"], Wish::Help);
    }

    #[test]
    fn what_is_unknown_is_named_without_its_value() {
        let error = read(["--node=redis://:secret@a".to_owned()]).unwrap_err();
        assert_eq!(error.to_string(), "the demo does not know --node");
        assert!(read(["--nodes".to_owned()]).is_err());
        assert!(read(["--nodes".to_owned(), ",".to_owned()]).is_err());
    }
}
