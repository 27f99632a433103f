//! The minting rule: the one place where a fencing token comes into being.
//!
//! > A token t is issued only if a quorum of nodes, each while the attempt's owner holds the resource there, had its
//! > counter equal to exactly t.
//!
//! Any two quorums share a node. On it one ownership period precedes the other, and the later acquire set the counter
//! above whatever the earlier one had; so tokens of one resource are distinct and grow from grant to grant. No clock
//! appears in the argument, and neither lost messages nor pauses do.
//!
//! The obvious rules are wrong. *Take the greatest vote*: with counters 100, 1, 1, 1, 1 a grant on nodes 1–3 carries 101
//! and the next one, on nodes 3–5, carries 3. *Count any node that raised its counter without complaint*: the node may
//! have executed our acquire and lost the reply, so that its counter is higher than the token it acknowledged, and
//! somebody else is given that token later. Hence *exactly*.
//!
//! Pure: counters in, verdict out. [`crate::attempt`] feeds it.

use crate::tally::quorum_of;
use crate::token::FencingToken;

/// What the counters heard so far allow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Minting {
    /// A quorum of nodes stands at exactly this value: it is the token.
    Minted(FencingToken),
    /// No value has a quorum behind it; this is the greatest, to which the nodes are to be raised.
    Raise(FencingToken),
    /// No node has answered yet.
    Nothing,
}

/// The counter that each node last answered while the attempt's owner held the resources there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Mint {
    counters: Vec<Option<FencingToken>>,
}

impl Mint {
    /// Nothing heard yet from any of `nodes` configured nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self { counters: vec![None; nodes] }
    }

    /// A node granted, or raised while the owner held the resources, and its counter stood at `counter` afterwards.
    ///
    /// Counters only grow, so the greatest answer of a node is its latest, whatever order replies arrive in.
    pub fn heard(&mut self, node: usize, counter: FencingToken) {
        self.counters[node] = self.counters[node].max(Some(counter));
    }

    /// Whether `node` last stood at exactly `counter`.
    #[must_use]
    pub fn stands_at(&self, node: usize, counter: FencingToken) -> bool {
        self.counters[node] == Some(counter)
    }

    /// What the counters heard so far allow.
    #[must_use]
    pub fn minting(&self) -> Minting {
        let heard = || self.counters.iter().flatten().copied();
        let quorum = quorum_of(mutant!("quorum of the reachable", self.counters.len(), heard().count()))
            - usize::from(mutant!("quorum is half"));
        let agreed = heard().find(|value| quorum <= heard().filter(|other| other == value).count());
        match (agreed, heard().max()) {
            (Some(token), _) => Minting::Minted(token),
            (None, Some(greatest)) => Minting::Raise(greatest),
            (None, None) => Minting::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: i64) -> FencingToken {
        FencingToken::assume_granted(value).unwrap()
    }

    /// A zero stands for a node that has not answered.
    fn check(counters: &[i64], expected: Minting) {
        let mut mint = Mint::new(counters.len());
        for (node, counter) in counters.iter().enumerate().filter(|(_, counter)| **counter != 0) {
            mint.heard(node, token(*counter));
        }
        assert_eq!(mint.minting(), expected, "{counters:?}");
    }

    #[test]
    fn agreement_of_a_quorum_mints_without_a_second_trip() {
        check(&[7, 7, 7, 0, 0], Minting::Minted(token(7)));
        check(&[7, 0, 9, 7, 7], Minting::Minted(token(7)));
        check(&[1], Minting::Minted(token(1)));
        check(&[0, 0, 0], Minting::Nothing);
    }

    /// B53: the greatest of a quorum's counters is not a token until a quorum stands there.
    #[test]
    fn b53_the_greatest_vote_is_no_token_before_a_quorum_stands_at_it() {
        check(&[101, 2, 2, 0, 0], Minting::Raise(token(101)));
        check(&[101, 101, 2, 0, 0], Minting::Raise(token(101)));
        check(&[101, 101, 101, 0, 0], Minting::Minted(token(101)));
    }

    #[test]
    fn an_acknowledgement_above_the_value_is_none_for_it() {
        check(&[5, 5, 6, 0, 0], Minting::Raise(token(6)));
    }

    #[test]
    fn a_reply_that_comes_late_does_not_hide_a_later_one() {
        let mut mint = Mint::new(3);
        mint.heard(0, token(8));
        mint.heard(0, token(3));
        assert!(mint.stands_at(0, token(8)));
    }
}
