//! Counts votes.
//!
//! Knows nothing of time, tokens or the names of nodes. Receives votes, says at the first possible moment whether a
//! quorum is reached or out of reach. Quorum is counted of the *configured* nodes, never of those that can be reached.

/// The majority of `nodes` configured nodes: `nodes / 2 + 1`.
#[must_use]
pub const fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What the votes so far amount to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// Both ends are still possible.
    Pending,
    /// A quorum said yes.
    Won,
    /// So many did not say yes that a quorum no longer can.
    Lost,
}

/// Votes for and against; a node that failed to answer is no vote for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tally {
    ballots: Vec<Option<bool>>,
}

impl Tally {
    /// An empty count over `nodes` configured nodes.
    ///
    /// # Panics
    /// If there are no nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        assert!(0 < nodes, "a tally is held over at least one node");
        Self { ballots: vec![None; nodes] }
    }

    /// Counts the vote of one node.
    ///
    /// # Panics
    /// If the node has voted before: a vote counted twice is a bug here, not an event in the world.
    pub fn count(&mut self, node: usize, in_favour: bool) {
        assert!(self.ballots[node].is_none(), "node {node} votes once");
        self.ballots[node] = Some(in_favour);
    }

    /// What the votes so far amount to.
    #[must_use]
    pub fn decision(&self) -> Decision {
        let quorum = quorum_of(self.ballots.len());
        let votes = |vote| self.ballots.iter().filter(|ballot| **ballot == vote).count();
        let (in_favour, open) = (votes(Some(true)), votes(None));
        if quorum <= in_favour {
            Decision::Won
        } else if in_favour + open < quorum {
            Decision::Lost
        } else {
            Decision::Pending
        }
    }

    /// How many nodes said yes.
    #[must_use]
    pub fn in_favour(&self) -> usize {
        self.ballots.iter().filter(|ballot| **ballot == Some(true)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One character per node: `y` yes, `n` no or no answer, `_` not yet.
    fn check(ballots: &str, expected: Decision) {
        let mut tally = Tally::new(ballots.len());
        for (node, ballot) in ballots.chars().enumerate().filter(|(_, ballot)| *ballot != '_') {
            tally.count(node, ballot == 'y');
        }
        assert_eq!(tally.decision(), expected, "{ballots}");
    }

    #[test]
    fn a_single_node_decides_alone() {
        check("_", Decision::Pending);
        check("y", Decision::Won);
        check("n", Decision::Lost);
    }

    #[test]
    fn one_refusal_of_two_decides() {
        check("n_", Decision::Lost);
        check("y_", Decision::Pending);
        check("yy", Decision::Won);
    }

    #[test]
    fn a_decision_falls_at_the_first_possible_moment() {
        check("yy___", Decision::Pending);
        check("yyy__", Decision::Won);
        check("ynny_", Decision::Pending);
        check("ynnyy", Decision::Won);
        check("nnn__", Decision::Lost);
        check("_n_nn", Decision::Lost);
        check("yyn_", Decision::Pending);
        check("yynn", Decision::Lost);
    }

    #[test]
    #[should_panic(expected = "node 1 votes once")]
    fn a_vote_is_not_counted_twice() {
        let mut tally = Tally::new(3);
        tally.count(1, true);
        tally.count(1, true);
    }
}
