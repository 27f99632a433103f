//! The files under version control, and those about to be, as the rules see them.

use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{output, root};

/// Text files by path. Others are left out.
#[derive(Debug)]
pub(crate) struct Files(Vec<File>);

#[derive(Debug)]
pub(crate) struct File {
    /// From the root of the workspace, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Files {
    pub(crate) fn tracked() -> Result<Self> {
        let list = ["ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"];
        let list =
            output(Command::new("git").args(list).current_dir(root())).context("tidy works on a git checkout")?;
        let read = |path: &str| {
            let text = std::fs::read_to_string(root().join(path)).ok()?;
            Some(File { path: path.to_owned(), text })
        };
        Ok(Self(list.lines().filter_map(read).collect()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &File> {
        self.0.iter()
    }

    pub(crate) fn under(&self, folder: &str) -> impl Iterator<Item = &File> {
        self.iter().filter(move |file| file.path.starts_with(folder))
    }

    pub(crate) fn ending(&self, ending: &str) -> impl Iterator<Item = &File> {
        self.iter().filter(move |file| file.path.ends_with(ending))
    }
}

impl File {
    /// Whether it is part of what a package builds, as opposed to a test or an example.
    pub(crate) fn is_source(&self) -> bool {
        self.path.ends_with(".rs") && self.path.split('/').any(|folder| folder == "src")
    }

    /// The lines that are neither comments nor, at the end of the file, unit tests.
    pub(crate) fn code(&self) -> impl Iterator<Item = &str> {
        let lines = self.text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
        lines.filter(|line| !line.trim_start().starts_with("//"))
    }

    /// Where `word` stands, as `path:line`.
    pub(crate) fn lines_with(&self, word: &str) -> impl Iterator<Item = String> {
        let found = self.text.lines().enumerate().filter(move |(_, line)| line.contains(word));
        found.map(|(index, _)| format!("{}:{}", self.path, index + 1))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Files {
    fn from(files: [(&str, &str); N]) -> Self {
        Self(files.map(|(path, text)| File { path: path.into(), text: text.into() }).into())
    }
}
