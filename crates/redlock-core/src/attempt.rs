//! One attempt as a state machine: votes come in, the next step goes out.
//!
//! Puts the tally and the minting rule in order. Pure: no clock, no await, no randomness, so that a model can walk
//! through every order of events. [`Redlock`](crate::Redlock) drives it, and adds the one thing that is missing here, which is
//! time: when its deadline passes, every node that has not answered counts as [`AcquireVote::Failed`].
//!
//! ```text
//!            acquire votes                     raise votes
//!  asking ───────────────▶ quorum granted? ──▶ raising to t ──┬─▶ a quorum stands at exactly t: won
//!    │                         │ counters agree               ├─▶ one answers more: that is the new t
//!    └─▶ out of reach: lost    └─▶ won                        └─▶ out of reach: lost
//! ```

use crate::mint::{Mint, Minting};
use crate::tally::quorum_of;
use crate::token::FencingToken;

/// A node's vote on the acquire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AcquireVote {
    /// It granted, and its counter stood here.
    Granted {
        /// The node's counter.
        counter: u64,
    },
    /// It is held by somebody else there.
    Held,
    /// It did not answer, or refused to vote: neither a grant nor a refusal.
    Failed,
}

/// A node's vote on a raise.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RaiseVote {
    /// The owner holds the resources there, and the counter stands here.
    At(u64),
    /// The owner does not hold them there (any more).
    NotOwner,
    /// It did not answer.
    Failed,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// Nothing: wait for more votes.
    Wait,
    /// Send a raise to this value to every node that [`Attempt::wants_raise`] names.
    Raise(FencingToken),
    /// A quorum stands at exactly this token.
    Won(FencingToken),
    /// A quorum is out of reach; take back everywhere what was asked for.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Asked {
    Open,
    Granted,
    Held,
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Raised {
    No,
    Open,
    Answered,
    Never,
}

/// The state of one attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attempt {
    asked: Vec<Asked>,
    raised: Vec<Raised>,
    raising_to: Option<FencingToken>,
    floor: Option<FencingToken>,
    mint: Mint,
    outcome: Option<Result<FencingToken, ()>>,
}

impl Attempt {
    /// An attempt whose acquire has been sent to all of `nodes` configured nodes.
    ///
    /// # Panics
    /// If there are no nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        assert!(0 < nodes, "an attempt is made on at least one node");
        Self {
            asked: vec![Asked::Open; nodes],
            raised: vec![Raised::No; nodes],
            raising_to: None,
            floor: None,
            mint: Mint::new(nodes),
            outcome: None,
        }
    }

    /// Counts a node's vote on the acquire. A counter that cannot be a token is no answer.
    ///
    /// # Panics
    /// If the node has voted on it before.
    pub fn on_acquire(&mut self, node: usize, vote: AcquireVote) -> Step {
        assert_eq!(self.asked[node], Asked::Open, "node {node} votes on the acquire once");
        self.asked[node] = match vote {
            AcquireVote::Granted { counter } => match FencingToken::assume_granted(counter) {
                Ok(counter) => {
                    self.mint.heard(node, counter);
                    Asked::Granted
                }
                Err(_) => Asked::Failed,
            },
            AcquireVote::Held => {
                // Nothing was taken there, so a raise that is under way cannot succeed either.
                self.raised[node] = Raised::Never;
                Asked::Held
            }
            AcquireVote::Failed => Asked::Failed,
        };
        self.step()
    }

    /// Counts a node's vote on a raise to `to`; a vote on an earlier, lower raise is news of the counter all the same.
    pub fn on_raise(&mut self, node: usize, to: FencingToken, vote: RaiseVote) -> Step {
        let counter = match vote {
            RaiseVote::At(_) if mutant!("any raise is an ack") => Some(to),
            RaiseVote::NotOwner if mutant!("a refused raise is an ack") => Some(to),
            RaiseVote::At(counter) => FencingToken::assume_granted(counter).ok(),
            RaiseVote::NotOwner | RaiseVote::Failed => None,
        };
        if let Some(counter) = counter {
            self.mint.heard(node, counter);
        }
        if self.raising_to == Some(to) {
            self.raised[node] = if counter.is_some() { Raised::Answered } else { Raised::Never };
        }
        self.step()
    }

    /// From now on no token below `floor` is issued: counters that agree on less are raised to it. For a floor that becomes
    /// known only after the acquire was sent.
    pub fn not_below(&mut self, floor: FencingToken) {
        self.floor = self.floor.max(Some(floor));
    }

    /// Whether a raise to the present value is to be sent to `node`: one that may hold the resources for the owner and is
    /// not known to stand there already.
    #[must_use]
    pub fn wants_raise(&self, node: usize) -> bool {
        self.raised[node] == Raised::Open
    }

    /// How many nodes have granted.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.asked.iter().filter(|asked| **asked == Asked::Granted).count()
    }

    fn step(&mut self) -> Step {
        if let Some(outcome) = self.outcome {
            // Votes that arrive after the decision change nothing.
            return outcome.map_or(Step::Lost, Step::Won);
        }
        let step = self.next_step();
        match step {
            Step::Won(token) => self.outcome = Some(Ok(token)),
            Step::Lost => self.outcome = Some(Err(())),
            Step::Raise(to) => self.begin_raise(to),
            Step::Wait => {}
        }
        step
    }

    fn next_step(&self) -> Step {
        let quorum = quorum_of(self.asked.len());
        let minting = match self.mint.minting() {
            Minting::Minted(token) if Some(token) < self.floor => Minting::Raise(token),
            minting => minting,
        };
        let lifted = |greatest: FencingToken| greatest.max(self.floor.unwrap_or(greatest));
        match (minting, self.raising_to) {
            (Minting::Minted(token), _) => Step::Won(token),
            (Minting::Raise(greatest), None) if quorum <= self.granted() && mutant!("greatest reply") => {
                Step::Won(greatest)
            }
            (Minting::Raise(greatest), None) if quorum <= self.granted() => Step::Raise(lifted(greatest)),
            (Minting::Raise(greatest), Some(to)) if to < lifted(greatest) => Step::Raise(lifted(greatest)),
            _ if self.within_reach() < quorum => Step::Lost,
            _ => Step::Wait,
        }
    }

    /// How many nodes may still come to stand behind a token.
    fn within_reach(&self) -> usize {
        let may = |node: usize| match self.raising_to {
            None => matches!(self.asked[node], Asked::Open | Asked::Granted),
            Some(to) => {
                self.mint.stands_at(node, to) || self.raised[node] == Raised::Open || self.asked[node] == Asked::Open
            }
        };
        (0..self.asked.len()).filter(|node| may(*node)).count()
    }

    fn begin_raise(&mut self, to: FencingToken) {
        self.raising_to = Some(to);
        for node in 0..self.asked.len() {
            let at_the_goal = self.mint.stands_at(node, to);
            self.raised[node] = match self.raised[node] {
                // Held by somebody else, or lost since: no raise can succeed there.
                Raised::Never => Raised::Never,
                _ if at_the_goal => Raised::Answered,
                // An acquire whose answer is missing may have been granted; the raise is an owner check as well.
                Raised::No | Raised::Open | Raised::Answered => Raised::Open,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn granted(counter: u64) -> AcquireVote {
        AcquireVote::Granted { counter }
    }

    fn token(value: i64) -> FencingToken {
        FencingToken::assume_granted(value).unwrap()
    }

    fn won(value: i64) -> Step {
        Step::Won(token(value))
    }

    fn raise(value: i64) -> Step {
        Step::Raise(token(value))
    }

    fn asked(nodes: usize, votes: &[AcquireVote]) -> (Attempt, Step) {
        let mut attempt = Attempt::new(nodes);
        let mut step = Step::Wait;
        for (node, vote) in votes.iter().enumerate() {
            step = attempt.on_acquire(node, *vote);
        }
        (attempt, step)
    }

    #[test]
    fn agreeing_counters_win_at_the_third_of_five() {
        let (mut attempt, step) = asked(5, &[granted(7), granted(7)]);
        assert_eq!(step, Step::Wait);
        assert_eq!(attempt.on_acquire(4, granted(7)), won(7));
        assert_eq!(attempt.on_acquire(3, AcquireVote::Held), won(7), "a late vote changes nothing");
    }

    #[test]
    fn a_quorum_out_of_reach_loses_at_once() {
        let (_, step) = asked(5, &[AcquireVote::Held, AcquireVote::Failed, AcquireVote::Held]);
        assert_eq!(step, Step::Lost);
    }

    /// B53: with counters 101, 2, 2 the token is 101 only once a quorum stands there.
    #[test]
    fn b53_counters_that_disagree_are_raised_before_a_token_is_issued() {
        let (mut attempt, step) = asked(5, &[granted(101), granted(2), granted(2)]);
        assert_eq!(step, raise(101));
        assert!(!attempt.wants_raise(0));
        assert!((1..5).all(|node| attempt.wants_raise(node)));
        assert_eq!(attempt.on_raise(1, token(101), RaiseVote::At(101)), Step::Wait);
        assert_eq!(attempt.on_raise(2, token(101), RaiseVote::At(101)), won(101));
    }

    #[test]
    fn a_node_that_answers_more_sets_a_new_goal() {
        let (mut attempt, _) = asked(3, &[granted(5), granted(4)]);
        assert_eq!(attempt.on_raise(1, token(5), RaiseVote::At(9)), raise(9));
        assert!(attempt.wants_raise(0));
        assert!(!attempt.wants_raise(1));
        assert_eq!(attempt.on_raise(0, token(9), RaiseVote::At(9)), won(9));
    }

    #[test]
    fn an_owner_that_lost_the_node_gets_no_acknowledgement_from_it() {
        let (mut attempt, _) = asked(3, &[granted(5), granted(4), AcquireVote::Held]);
        assert!(!attempt.wants_raise(2), "nothing was taken there");
        assert_eq!(attempt.on_raise(1, token(5), RaiseVote::NotOwner), Step::Lost);
    }

    #[test]
    fn silence_during_the_raise_is_no_acknowledgement() {
        let (mut attempt, _) = asked(3, &[granted(5), granted(4), AcquireVote::Failed]);
        assert_eq!(attempt.on_raise(1, token(5), RaiseVote::Failed), Step::Wait);
        assert_eq!(attempt.on_raise(2, token(5), RaiseVote::Failed), Step::Lost);
    }

    #[test]
    fn a_late_acquire_reply_at_the_goal_counts() {
        let (mut attempt, step) = asked(3, &[granted(5), granted(4)]);
        assert_eq!(step, raise(5));
        assert_eq!(attempt.on_acquire(2, granted(5)), won(5));
    }

    #[test]
    fn an_old_acquire_reply_does_not_hide_a_raise_answered_before_it() {
        let (mut attempt, _) = asked(3, &[granted(5), granted(4)]);
        assert_eq!(attempt.on_raise(2, token(5), RaiseVote::At(8)), raise(8));
        assert_eq!(attempt.on_acquire(2, granted(3)), Step::Wait);
        assert_eq!(attempt.on_raise(0, token(8), RaiseVote::At(8)), won(8));
    }

    #[test]
    fn a_minority_with_a_counter_beyond_all_tokens_hurts_nobody() {
        let beyond = FencingToken::MAX.as_counter() + 1;
        assert_eq!(asked(3, &[granted(beyond), granted(4), granted(4)]).1, won(4));
        assert_eq!(asked(3, &[granted(beyond), granted(0)]).1, Step::Lost);
    }

    #[test]
    fn a_floor_that_becomes_known_late_lifts_the_token_by_a_raise() {
        let mut attempt = Attempt::new(3);
        assert_eq!(attempt.on_acquire(0, granted(1)), Step::Wait);
        attempt.not_below(token(1_000));
        assert_eq!(attempt.on_acquire(1, granted(1)), raise(1_000));
        assert!(attempt.wants_raise(0) && attempt.wants_raise(1));
        assert_eq!(attempt.on_raise(0, token(1_000), RaiseVote::At(1_000)), Step::Wait);
        assert_eq!(attempt.on_acquire(2, granted(1)), Step::Wait, "agreement below the floor is none");
        assert_eq!(attempt.on_raise(1, token(1_000), RaiseVote::At(1_000)), won(1_000));
    }

    #[test]
    fn a_floor_that_becomes_known_during_the_raise_is_the_new_goal() {
        let (mut attempt, step) = asked(3, &[granted(5), granted(4)]);
        assert_eq!(step, raise(5));
        attempt.not_below(token(1_000));
        assert_eq!(attempt.on_raise(1, token(5), RaiseVote::At(5)), raise(1_000));
        assert_eq!(attempt.on_raise(0, token(1_000), RaiseVote::At(1_000)), Step::Wait);
        assert_eq!(attempt.on_raise(1, token(1_000), RaiseVote::At(1_000)), won(1_000));
    }

    #[test]
    fn a_floor_below_the_counters_changes_nothing() {
        let mut attempt = Attempt::new(3);
        attempt.not_below(token(5));
        attempt.on_acquire(0, granted(7));
        assert_eq!(attempt.on_acquire(1, granted(7)), won(7));
    }

    #[test]
    fn a_single_node_needs_no_agreement() {
        assert_eq!(asked(1, &[granted(3)]).1, won(3));
        assert_eq!(asked(1, &[AcquireVote::Held]).1, Step::Lost);
    }
}
