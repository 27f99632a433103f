//! The drawings of the book, as what happens in them. `sketch.rs` knows how that looks.
//!
//! `cargo xtask docs --write` writes them into the book; [`complaints`], for `cargo xtask tidy`, says where they are not what
//! is described here.

use super::IMAGES;
use super::sketch::{Fate, Sequence, Spans, Tone, Votes};
use crate::tidy::files::Files;

/// A picture: the name of its file, and its text.
pub(super) fn all() -> Vec<(String, String)> {
    let drawings = [
        ("pause", pause()),
        ("pause-fenced", pause_fenced()),
        ("failover", failover()),
        ("quorum", quorum()),
        ("split-vote", split_vote()),
        ("restart-empty", restart_empty()),
        ("validity", validity()),
    ];
    drawings.map(|(name, text)| (format!("{IMAGES}{name}.svg"), text)).into()
}

/// Drawings that are missing, or not what is drawn here.
pub(super) fn complaints(files: &Files) -> Vec<String> {
    let is_there = |path: &str, text: &str| files.iter().any(|file| file.path == path && file.text == text);
    let stale = all().into_iter().filter(|(path, text)| !is_there(path, text));
    stale
        .map(|(path, _)| {
            format!("{path}: is not what xtask/src/docs/drawings.rs draws; `cargo xtask docs --write` brings it")
        })
        .collect()
}

fn pause() -> String {
    let mut drawing =
        Sequence::new("A worker that is paused writes over a newer one", &["worker A", "lock", "database", "worker B"]);
    drawing.send(0, 1, "lock, 10 s", Fate::Arrives);
    drawing.begin(0, Tone::Holds, "believes that it holds");
    drawing.send(0, 2, "read: 100", Fate::Arrives);
    drawing.begin(0, Tone::Stands, "paused for 15 s");
    drawing.note(1, "10 s are over: free");
    drawing.send(3, 1, "lock", Fate::Arrives);
    drawing.begin(3, Tone::Holds, "holds");
    drawing.send(3, 2, "write 110", Fate::Arrives);
    drawing.end(0);
    drawing.begin(0, Tone::Holds, "goes on");
    drawing.send(0, 2, "write 101", Fate::Harms);
    drawing.note(2, "110 is lost");
    drawing.svg()
}

fn pause_fenced() -> String {
    let mut drawing =
        Sequence::new("The same, with a token that the database checks", &["worker A", "lock", "database", "worker B"]);
    drawing.send(0, 1, "lock: token 33", Fate::Arrives);
    drawing.begin(0, Tone::Holds, "token 33");
    drawing.send(0, 2, "claim with 33: 100", Fate::Arrives);
    drawing.begin(0, Tone::Stands, "paused for 15 s");
    drawing.note(1, "10 s are over: free");
    drawing.send(3, 1, "lock: token 34", Fate::Arrives);
    drawing.begin(3, Tone::Holds, "token 34");
    drawing.send(3, 2, "claim, write 110", Fate::Arrives);
    drawing.end(0);
    drawing.begin(0, Tone::Holds, "token 33");
    drawing.send(0, 2, "write 101 with 33", Fate::Refused);
    drawing.note(2, "33 < 34: stale");
    drawing.svg()
}

fn failover() -> String {
    let mut drawing = Sequence::new(
        "One primary with a replica: the lock is lost with the failover",
        &["worker A", "primary", "replica", "worker B"],
    );
    drawing.send(0, 1, "SET lock NX", Fate::Arrives);
    drawing.send(1, 0, "OK", Fate::Arrives);
    drawing.begin(0, Tone::Holds, "holds");
    drawing.send(1, 2, "replication", Fate::Lost);
    drawing.begin(1, Tone::Down, "dies");
    drawing.note(2, "becomes primary");
    drawing.send(3, 2, "SET lock NX", Fate::Arrives);
    drawing.send(2, 3, "OK", Fate::Harms);
    drawing.begin(3, Tone::Holds, "holds, too");
    drawing.svg()
}

fn quorum() -> String {
    let mut drawing = Votes::new("Five independent nodes: a majority has to grant", &["A", "B"]);
    drawing.row("A asks all five; two are down", "AAA××", "A has 3 of 5: granted");
    drawing.row("B asks all five", "AAA××", "B has 0 of 5: refused");
    drawing.row("node 1 dies as well", "×AA××", "B could have 0 of 5: A's lock is safe");
    drawing.svg()
}

fn split_vote() -> String {
    let mut drawing = Votes::new("A split vote: everybody has some nodes, nobody has three", &["A", "B", "C"]);
    drawing.row("three ask at the same moment", "ABCAB", "2, 2 and 1 of 5: nobody is granted");
    drawing.row("all three give back what they have", "·····", "free again, nobody has worked");
    drawing.row("with luck one is quicker now", "AAAAB", "A has 4 of 5: granted");
    drawing.row("in line: who is next asks first", "BBBBB", "B was called when A released");
    drawing.svg()
}

fn restart_empty() -> String {
    let mut drawing = Votes::new("A node that comes back empty votes twice", &["A", "B"]);
    drawing.row("A is granted by nodes 1 to 3", "AAA··", "A has 3 of 5: granted");
    drawing.row("node 3 restarts without its memory", "AA···", "A still believes, and rightly so");
    drawing.row("B is granted by nodes 3 to 5", "AABBB", "B has 3 of 5: two holders");
    drawing.svg()
}

fn validity() -> String {
    let mut drawing = Spans::new("How long a grant may be relied on (ttl 10 s)", 11.0);
    drawing.span("asking five nodes", 0.0, 0.6, Tone::Stands, "");
    drawing.span("node 1 holds it", 0.2, 10.2, Tone::Other, "10 s by its clock");
    drawing.span("node 2 holds it", 0.3, 10.3, Tone::Other, "10 s by its clock");
    drawing.span("node 3 holds it", 0.5, 10.5, Tone::Other, "10 s by its clock");
    drawing.span("drift allowance", 9.898, 10.0, Tone::Down, "");
    drawing.span("validity", 0.6, 9.898, Tone::Holds, "until start + ttl − drift");
    drawing.svg()
}

#[cfg(test)]
mod tests {
    use super::super::sketch::{WIDTH, width_of};
    use super::*;

    #[test]
    fn every_drawing_is_one_picture_with_a_name_for_who_cannot_see_it() {
        for (path, text) in all() {
            assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"), "{path}");
            assert!(text.contains("aria-label=\""), "{path}");
            assert_eq!(text.matches("<text").count(), text.matches("</text>").count(), "{path}");
        }
    }

    #[test]
    fn a_drawing_that_was_not_written_is_named() {
        let complaints = complaints(&Files::from([("docs/images/pause.svg", "old")]));
        assert_eq!(complaints.len(), all().len());
        assert!(complaints[0].starts_with("docs/images/pause.svg: is not what"), "{complaints:?}");
        let (path, text) = &all()[0];
        assert_eq!(super::complaints(&Files::from([(path.as_str(), text.as_str())])).len(), all().len() - 1);
    }

    #[test]
    fn letters_fit_beside_each_other() {
        assert!(width_of("paused for 15 s") < WIDTH / 3.0);
    }
}
