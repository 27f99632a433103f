//! The state of the world, and every event that can come next.

use super::candidate::{Won, bit, bits};
use super::mind::{Mind, Told};
use super::{Candidate, Counter, Expiry, Floor, NODES, Node, Phase, Restart, Rule, Seat, Service, Setup};
use redlock_core::FencingToken;
use redlock_core::attempt::{AcquireVote, RaiseVote, Step};
use redlock_core::tally::quorum_of;
use stateright::Model;
use std::array;
use std::hash::{Hash, Hasher};

/// The state of the world.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    /// The nodes.
    pub nodes: [Node; NODES],
    /// The attempts, in an order that says nothing.
    pub candidates: Vec<Candidate>,
    /// How many restarts there may still be.
    pub restarts_left: u8,
}

/// What can come next. Attempts and nodes are numbered as they stand in the world that it happens to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the fields say who, where, and to what value")]
pub enum Event {
    /// An attempt begins: its acquire is sent to every node, and executed on one of them.
    Begin { who: usize, node: usize, floor: Counter, late_floor: Option<Counter> },
    /// A node executes an acquire.
    Acquire { who: usize, node: usize },
    /// A node executes a raise.
    Raise { who: usize, node: usize, to: Counter },
    /// An attempt hears a node's answer to its acquire.
    HearVote { who: usize, node: usize },
    /// An attempt hears a node's answer to a raise.
    HearRaised { who: usize, node: usize, to: Counter },
    /// An attempt no longer waits for an answer to its acquire.
    GiveUpAcquire { who: usize, node: usize },
    /// An attempt no longer waits for an answer to its raise.
    GiveUpRaise { who: usize, node: usize, to: Counter },
    /// A lock expires on a node.
    Expire { who: usize, node: usize },
    /// A grant is released, or its validity ends.
    End { who: usize },
    /// A node restarts, with what it then has.
    Restart { node: usize, back: Node, keeps_locks: bool },
    /// Another node's high mark is fetched for a node in quarantine.
    FetchMark { node: usize, from: usize },
    /// A node is taken back.
    Enrol { node: usize },
}

impl Model for Setup {
    type State = World;
    type Action = Event;

    fn init_states(&self) -> Vec<World> {
        let world = |counters: &[Counter; NODES]| World {
            nodes: counters.map(Node::new),
            candidates: vec![Candidate::new(); self.attempts],
            restarts_left: self.restarts_max,
        };
        self.counters.iter().map(world).collect()
    }

    fn actions(&self, world: &World, events: &mut Vec<Event>) {
        if world.candidates.iter().all(|candidate| candidate.won().is_some() || candidate.phase == Phase::Lost) {
            // Whatever is still to be executed, nobody will be granted anything any more.
            return;
        }
        // Of attempts that have not begun, the first stands for all.
        if let Some(who) = world.candidates.iter().position(|candidate| candidate.phase == Phase::Idle) {
            for node in 0..NODES {
                events.push(Event::Begin { who, node, floor: 0, late_floor: None });
                if let Floor::Some(floor) = self.floor {
                    events.push(Event::Begin { who, node, floor, late_floor: None });
                    events.push(Event::Begin { who, node, floor: 0, late_floor: Some(floor) });
                }
            }
        }
        for (who, candidate) in world.candidates.iter().enumerate() {
            if matches!(candidate.phase, Phase::Won(_)) && self.expiry == Expiry::OnlyWhenOver {
                events.push(Event::End { who });
            }
            for (node, seat) in candidate.seats.iter().enumerate() {
                self.seat_events(who, node, candidate, seat, events);
            }
        }
        for node in 0..NODES {
            self.node_events(node, world, events);
        }
    }

    fn next_state(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        next.happen(event, self);
        Some(next.settled())
    }

    fn properties(&self) -> Vec<stateright::Property<Self>> {
        super::properties::properties(self)
    }
}

impl Setup {
    fn seat_events(&self, who: usize, node: usize, candidate: &Candidate, seat: &Seat, events: &mut Vec<Event>) {
        if seat.acquire {
            events.push(Event::Acquire { who, node });
        }
        events.extend(bits(seat.raises).map(|to| Event::Raise { who, node, to }));
        if seat.vote.is_some() {
            events.push(Event::HearVote { who, node });
        }
        events.extend(seat.raised.iter().map(|(to, _)| Event::HearRaised { who, node, to: *to }));
        if self.loss && seat.awaits_acquire {
            events.push(Event::GiveUpAcquire { who, node });
        }
        if self.loss
            && let Some(to) = bits(seat.awaits_raises).max()
        {
            events.push(Event::GiveUpRaise { who, node, to });
        }
        if seat.holds && (self.expiry == Expiry::AtAnyMoment || candidate.is_over()) {
            events.push(Event::Expire { who, node });
        }
    }

    fn node_events(&self, node: usize, world: &World, events: &mut Vec<Event>) {
        let this = &world.nodes[node];
        if 0 < world.restarts_left {
            for kind in &self.restarts {
                let keeps_locks = *kind == Restart::Whole;
                let backs = this.restarted(*kind, self.rule);
                events.extend(backs.into_iter().map(|back| Event::Restart { node, back, keeps_locks }));
            }
        }
        let Service::Quarantined { marks } = this.service else { return };
        let is_over = self.rule == Rule::NoQuarantine || world.candidates.iter().all(|who| !who.seats[node].quarantine);
        if is_over || self.rule == Rule::MarksFromBefore {
            let others = (0..NODES).filter(|from| *from != node && marks[*from].is_none());
            let serving = others.filter(|from| world.nodes[*from].serves());
            events.extend(serving.map(|from| Event::FetchMark { node, from }));
        }
        let enough = if self.rule == Rule::MarksFromTooFew { 1 } else { quorum_of(NODES) };
        if is_over && enough <= marks.iter().flatten().count() {
            events.push(Event::Enrol { node });
        }
    }
}

/// The orders in which nodes can stand.
const ORDERS: [[usize; NODES]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

impl World {
    /// The greatest token that has been issued.
    fn greatest_token(&self) -> Counter {
        self.candidates.iter().filter_map(|candidate| Some(candidate.won()?.token)).max().unwrap_or(0)
    }

    /// The one world that stands for all that differ from it in nothing but which node and which attempt is which, and in
    /// what can have no effect any more.
    fn settled(mut self) -> Self {
        self.candidates.iter_mut().for_each(Candidate::forget);
        let looks: [_; NODES] = array::from_fn(|node| self.looks_of(node));
        let orders = ORDERS.iter().filter(|order| order.is_sorted_by_key(|node| looks[*node]));
        let worlds = orders.map(|order| {
            let mut world = self.clone().with_nodes(*order);
            world.candidates.sort_by_cached_key(hash::<Candidate>);
            world
        });
        // Usually it is the only one.
        worlds.min_by_key(hash::<World>).expect("nodes can be put in order")
    }

    /// What a node looks like to somebody who knows neither which one it is, nor which attempt is which.
    fn looks_of(&self, node: usize) -> (u64, u64) {
        let Node { counter, base, service } = self.nodes[node];
        let (serves, marks) = match service {
            Service::Serving { again } => (Some(again), 0),
            Service::Quarantined { marks } => (None, marks.iter().flatten().count()),
        };
        let seats = self.candidates.iter().map(|candidate| hash(&(candidate.is_open(), &candidate.seats[node])));
        (hash(&(counter, base, serves, marks)), seats.fold(0, u64::wrapping_add))
    }

    /// The same world with `order[0]` as its first node, and so on.
    fn with_nodes(mut self, order: [usize; NODES]) -> Self {
        if order.is_sorted() {
            return self;
        }
        let mut becomes = [0; NODES];
        for (new, old) in order.iter().enumerate() {
            becomes[*old] = new;
        }
        self.nodes = order.map(|node| self.nodes[node].renamed(order));
        for candidate in &mut self.candidates {
            candidate.seats = order.map(|node| std::mem::take(&mut candidate.seats[node]));
            if let Phase::Open { mind, .. } = &mut candidate.phase {
                *mind = mind.renamed(becomes);
            }
        }
        self
    }

    fn happen(&mut self, event: Event, setup: &Setup) {
        match event {
            Event::Begin { who, node, floor, late_floor } => {
                let after = self.greatest_token();
                let candidate = &mut self.candidates[who];
                candidate.phase = Phase::Open { mind: Mind::new(), after, floor, late_floor };
                for seat in &mut candidate.seats {
                    (seat.acquire, seat.awaits_acquire) = (true, true);
                }
                self.execute_acquire(who, node, setup);
            }
            Event::Acquire { who, node } => self.execute_acquire(who, node, setup),
            Event::Raise { who, node, to } => self.execute_raise(who, node, to, setup),
            Event::HearVote { who, node } => {
                let candidate = &mut self.candidates[who];
                let vote = candidate.seats[node].vote.take().expect("an answer is on its way");
                candidate.story.quarantined |= vote == AcquireVote::Failed;
                self.hear_vote(who, node, vote, setup);
            }
            Event::HearRaised { who, node, to } => self.hear_raised(who, node, to, setup),
            Event::GiveUpAcquire { who, node } => {
                self.candidates[who].seats[node].vote = None;
                self.hear_vote(who, node, AcquireVote::Failed, setup);
            }
            Event::GiveUpRaise { who, node, to } => {
                self.candidates[who].seats[node].raised.retain(|(raise, _)| *raise != to);
                self.count_raise(who, node, to, RaiseVote::Failed, setup);
            }
            Event::Expire { who, node } => self.candidates[who].seats[node].holds = false,
            Event::End { who } => {
                let candidate = &mut self.candidates[who];
                if let Phase::Won(won) = candidate.phase {
                    candidate.phase = Phase::Over(won);
                }
                candidate.let_go();
            }
            Event::Restart { node, back, keeps_locks } => {
                self.restarts_left -= 1;
                self.nodes[node] = back;
                for candidate in &mut self.candidates {
                    candidate.seats[node].holds &= keeps_locks;
                    let relies_on_it = match setup.expiry {
                        Expiry::AtAnyMoment => candidate.is_open(),
                        Expiry::OnlyWhenOver => candidate.is_open() || matches!(candidate.phase, Phase::Won(_)),
                    };
                    candidate.seats[node].quarantine = relies_on_it;
                }
            }
            Event::FetchMark { node, from } => {
                let mark = self.nodes[from].high();
                if let Service::Quarantined { marks } = &mut self.nodes[node].service {
                    marks[from] = Some(mark);
                }
            }
            Event::Enrol { node } => self.nodes[node].enrol(),
        }
    }

    fn execute_acquire(&mut self, who: usize, node: usize, setup: &Setup) {
        self.candidates[who].seats[node].acquire = false;
        let floor = match &self.candidates[who].phase {
            Phase::Open { floor, .. } => *floor,
            // It travels with the request; a late one without it is the worse one.
            _ => 0,
        };
        let is_free = self.candidates.iter().all(|candidate| !candidate.seats[node].holds);
        let is_open = self.candidates[who].is_open();
        let (this, seat) = (&mut self.nodes[node], &mut self.candidates[who].seats[node]);
        let vote = if !this.serves() {
            AcquireVote::Failed
        } else if is_free {
            let counter = this.grant(floor, setup.rule);
            seat.holds = true;
            if is_open {
                seat.stood |= bit(counter);
            }
            AcquireVote::Granted { counter: counter.into() }
        } else {
            AcquireVote::Held
        };
        if seat.awaits_acquire {
            seat.vote = Some(vote);
        }
    }

    fn execute_raise(&mut self, who: usize, node: usize, to: Counter, setup: &Setup) {
        let is_open = self.candidates[who].is_open();
        let (this, seat) = (&mut self.nodes[node], &mut self.candidates[who].seats[node]);
        seat.raises &= !bit(to);
        let vote = if seat.holds || setup.rule == Rule::RaiseWithoutOwnerCheck {
            let counter = this.raise(to, setup.rule);
            if seat.holds && is_open {
                seat.stood |= bit(counter);
            }
            RaiseVote::At(counter.into())
        } else {
            RaiseVote::NotOwner
        };
        if seat.awaits_raises & bit(to) != 0 {
            seat.raised.push((to, vote));
            seat.raised.sort_unstable_by_key(|(to, _)| *to);
        }
    }

    fn hear_vote(&mut self, who: usize, node: usize, vote: AcquireVote, setup: &Setup) {
        let taken_back = self.nodes[node].serves_again();
        let candidate = &mut self.candidates[who];
        candidate.seats[node].awaits_acquire = false;
        let Phase::Open { mind, late_floor, .. } = &mut candidate.phase else { return };
        candidate.story.contended |= vote == AcquireVote::Held;
        candidate.story.taken_back |= taken_back && matches!(vote, AcquireVote::Granted { .. });
        // Becomes known with the first answer, as when the call is what connects to the node.
        if let Some(floor) = late_floor.take_if(|_| vote != AcquireVote::Failed) {
            mind.tell(Told::NotBelow(token(floor)));
        }
        let step = mind.tell(Told::Vote(node, vote));
        self.follow(who, step, setup);
    }

    fn hear_raised(&mut self, who: usize, node: usize, to: Counter, setup: &Setup) {
        let raised = &mut self.candidates[who].seats[node].raised;
        let position = raised.iter().position(|(raise, _)| *raise == to).expect("an answer is on its way");
        let (_, vote) = raised.remove(position);
        self.count_raise(who, node, to, vote, setup);
    }

    fn count_raise(&mut self, who: usize, node: usize, to: Counter, vote: RaiseVote, setup: &Setup) {
        let candidate = &mut self.candidates[who];
        let seat = &mut candidate.seats[node];
        seat.awaits_raises &= !bit(to);
        let Phase::Open { mind, .. } = &mut candidate.phase else { return };
        candidate.story.silent_grant |= mind.gave_up(node) && matches!(vote, RaiseVote::At(_));
        candidate.story.lapsed |= vote == RaiseVote::NotOwner;
        let vote = match vote {
            RaiseVote::At(_) if setup.rule == Rule::AnyRaiseIsAnAck => RaiseVote::At(to.into()),
            vote => vote,
        };
        let step = mind.tell(Told::Raised(node, token(to), vote));
        self.follow(who, step, setup);
    }

    /// Does what the attempt says.
    fn follow(&mut self, who: usize, step: Step, setup: &Setup) {
        let candidate = &mut self.candidates[who];
        let Phase::Open { mind, after, .. } = &mut candidate.phase else { return };
        let token = match step {
            Step::Wait => return,
            Step::Raise(to) if setup.rule != Rule::GreatestReply => {
                candidate.story.raised_again |= candidate.story.raised;
                candidate.story.raised = true;
                let to = counter(to);
                for (node, seat) in candidate.seats.iter_mut().enumerate() {
                    if mind.attempt().wants_raise(node) {
                        seat.raises |= bit(to);
                        seat.awaits_raises |= bit(to);
                    }
                }
                return;
            }
            Step::Raise(token) | Step::Won(token) => counter(token),
            Step::Lost => {
                candidate.end(Phase::Lost);
                candidate.let_go();
                return;
            }
        };
        let in_order = *after < token;
        candidate.story.lifted = matches!(setup.floor, Floor::Some(floor) if *after < floor && floor < token);
        let behind_it = candidate.stood_at(token);
        let (unheard, without) = (candidate.story.silent_grant, candidate.story.quarantined);
        candidate.end(Phase::Won(Won { token, in_order, behind_it, unheard, without }));
        if setup.expiry == Expiry::AtAnyMoment {
            candidate.let_go();
        }
    }
}

/// A number for what something looks like. If two that differ got the same, two worlds would count that could have been one.
fn hash<T: Hash>(of: &T) -> u64 {
    let mut hasher = Looks(0);
    of.hash(&mut hasher);
    hasher.finish()
}

/// Fast, and the same on every machine; nobody chooses what goes in.
struct Looks(u64);

impl Hasher for Looks {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

fn token(counter: Counter) -> FencingToken {
    FencingToken::assume_granted(counter).expect("counters that were granted begin at one")
}

fn counter(token: FencingToken) -> Counter {
    Counter::try_from(token.as_counter()).expect("the model's counters stay small")
}
