//! A page of the book as its checks see it: headings, links, blocks. Pure: text in, parts out.
//!
//! Not a Markdown parser; it knows the Markdown that the book is written in. What it misunderstands shows up when the built
//! book is checked.

/// A block of code, from fence to fence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// Where it begins, counted from 1.
    pub(crate) line: usize,
    /// The words after the opening fence.
    pub(crate) kind: Vec<&'a str>,
    pub(crate) text: String,
    /// What a comment in the line above says of it: `shown`, `file`, `not run` or `prints`, and what comes after the colon.
    pub(crate) note: Option<(&'a str, &'a str)>,
}

impl Block<'_> {
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.kind.first() == Some(&kind)
    }

    /// The note of this name.
    pub(crate) fn noted(&self, name: &str) -> Option<&str> {
        self.note.filter(|(noted, _)| *noted == name).map(|(_, what)| what)
    }
}

/// All blocks, in their order.
pub(crate) fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut above = "";
    let mut lines = page.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            above = line;
            continue;
        };
        let mut text = String::new();
        for (_, line) in lines.by_ref().take_while(|(_, line)| !line.starts_with("```")) {
            text += line;
            text.push('\n');
        }
        let kind = kind.split([' ', ',']).filter(|word| !word.is_empty()).collect();
        blocks.push(Block { line: index + 1, kind, text, note: note(above) });
        above = "";
    }
    blocks
}

/// `<!-- name: what -->`, or `<!-- name -->`.
fn note(line: &str) -> Option<(&str, &str)> {
    let note = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    Some(note.split_once(": ").unwrap_or((note, "")))
}

/// The lines outside of blocks, with their numbers.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.starts_with("```");
        inside ^= fence;
        (!inside && !fence).then_some((index + 1, line))
    })
}

/// The targets of links and images, each with its line.
pub(crate) fn links(page: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in prose(page) {
        // What stands between backticks is no link.
        for part in line.split('`').step_by(2) {
            let targets = part.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            links.extend(targets.map(|(target, _)| (number, target)));
        }
    }
    // The text of a link may itself have backticks, and the bracket that ends it then stands behind them.
    links
}

/// What a link can lead to inside a page: its headings, as they are called in an address.
pub(crate) fn anchors(page: &str) -> Vec<String> {
    let headings = prose(page).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| line.trim_start_matches('#'));
    headings.map(|heading| anchor(heading.trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|sign| sign.is_alphanumeric() || matches!(sign, ' ' | '-' | '_'));
    kept.map(|sign| if sign == ' ' { '-' } else { sign }).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_kind_and_their_note() {
        let page = "# A\n\n<!-- file: src/main.rs -->\n```rust,no_run\nfn main() {}\n```\n\n```sh\nls\n```\n<!-- prints -->\n```text\nx\n```\n";
        let blocks = blocks(page);
        let [program, command, output] = blocks.as_slice() else { panic!("{blocks:?}") };
        assert_eq!((program.line, program.kind.as_slice()), (4, ["rust", "no_run"].as_slice()));
        assert_eq!((program.noted("file"), program.text.as_str()), (Some("src/main.rs"), "fn main() {}\n"));
        assert_eq!((command.is("sh"), command.note), (true, None));
        assert_eq!(output.noted("prints"), Some(""));
    }

    #[test]
    fn links_in_code_are_none() {
        let page = "[a](b.md) and `[c](d)`\n```text\n[e](f)\n```\n![g](images/h.svg) [`i`](j.md#k)";
        assert_eq!(links(page), [(1, "b.md"), (5, "images/h.svg"), (5, "j.md#k")]);
    }

    #[test]
    fn headings_have_addresses() {
        let page = "# What a `Guard` is, and isn't\n```sh\n# no heading\n```\n## Strict, or may rewrite?";
        assert_eq!(anchors(page), ["what-a-guard-is-and-isnt", "strict-or-may-rewrite"]);
    }
}
