//! P5: nothing is left behind where it can be reached, and no lock key is without an end.
//!
//! Looked at when all clients have ended and after a calm that is longer than any lock's life, so that what killed clients and
//! thawed servers left is gone by itself. Nothing excuses what is still there.

use super::Finding;
use crate::history::{History, Said};

/// Complains of every key, and of every client whose background did not come to rest.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let finding =
        |at, resource: &str, what| Finding { promise: "P5".into(), at, resource: resource.into(), what, excuse: None };
    let keys = history.left.iter().map(|left| {
        let what = format!("{}… is left on node {} for {} ms", left.owner, left.node, left.left_ms);
        finding(history.end, &left.key, what)
    });
    let endless = history.without_expiry.iter().map(|key| finding(history.end, key, "a lock key has no end".into()));
    let restless = history
        .lines
        .iter()
        .filter(|line| line.said == Said::Ended { settled: false })
        .map(|line| finding(line.at, "", format!("the background of client {} did not come to rest", line.client)));
    keys.chain(endless).chain(restless).collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use super::*;
    use crate::history::Left;

    #[test]
    fn what_is_left_is_found() {
        let mut history = Story::default().line(5, 1, Said::Ended { settled: true }).0;
        assert_eq!(check(&history), []);
        history.left.push(Left { node: 3, key: "chaos:r".into(), owner: "a".into(), left_ms: 900 });
        history.without_expiry.push("chaos:r".into());
        let history = Story(history).line(5, 2, Said::Ended { settled: false }).0;
        let found: Vec<String> = check(&history).into_iter().map(|finding| finding.what).collect();
        let expected = [
            "a… is left on node 3 for 900 ms",
            "a lock key has no end",
            "the background of client 2 did not come to rest",
        ];
        assert_eq!(found, expected);
    }
}
