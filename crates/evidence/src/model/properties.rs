//! What must hold in every state, and what must be reached in some: a model in which nothing happens is perfectly safe.

use super::candidate::Won;
use super::{Candidate, Expiry, Floor, Phase, Restart, Rule, Setup, Story, World};
use stateright::Property;

/// P1: tokens are distinct.
pub const DISTINCT: &str = "tokens are distinct";
/// P1: a grant that began after another finished has a greater token.
pub const IN_ORDER: &str = "tokens are in the order of time";
/// The minting rule: a quorum of nodes, each while the attempt held the resource there, stood at exactly the token.
pub const QUORUM: &str = "no grant without a quorum behind it";
/// P2 and P6: two grants are never in force at once, as long as clocks keep within their allowance.
pub const ONE_HOLDER: &str = "grants do not overlap";

type Sometimes = (&'static str, fn(&Setup, &World) -> bool);

pub(super) fn properties(setup: &Setup) -> Vec<Property<Setup>> {
    let mut properties = vec![
        Property::always(DISTINCT, |_, world: &World| {
            let tokens = || world.candidates.iter().filter_map(|candidate| Some(candidate.won()?.token));
            tokens().all(|token| tokens().filter(|other| *other == token).count() == 1)
        }),
        Property::always(IN_ORDER, |_, world| won(world).all(|won| won.in_order)),
        Property::always(QUORUM, |_, world| won(world).all(|won| won.behind_it)),
    ];
    if setup.expiry == Expiry::OnlyWhenOver {
        properties.push(Property::always(ONE_HOLDER, |_, world: &World| {
            world.candidates.iter().filter(|candidate| matches!(candidate.phase, Phase::Won(_))).count() <= 1
        }));
    }
    // A wrong rule is explored until it is refuted; what it passes on the way is nobody's concern.
    if setup.rule == Rule::Right {
        properties.extend(reached(setup).into_iter().map(|(name, reached)| Property::sometimes(name, reached)));
    }
    properties
}

/// The states that are interesting, as far as the setup has them.
fn reached(setup: &Setup) -> Vec<Sometimes> {
    let mut reached: Vec<Sometimes> = vec![
        ("a token agreed at once", |_, world| granted(world).any(|story| !story.raised)),
        ("a token after a second trip", |_, world| granted(world).any(|story| story.raised)),
        ("every attempt is granted in turn", |setup, world| won(world).count() == setup.attempts),
    ];
    if 2 <= setup.attempts {
        reached.push(("a loss to others", |_, world| lost(world).any(|story| story.contended)));
    }
    if setup.expiry == Expiry::AtAnyMoment {
        // Otherwise nothing that was granted is gone before the attempt is decided.
        reached.push(("a raise is refused where the lock is gone", |_, world| lost(world).any(|story| story.lapsed)));
    }
    if setup.loss {
        reached.push(("a token after a lost answer", |_, world| won(world).any(|won| won.unheard)));
        reached.push(("a loss without any other attempt", |setup, world| {
            let idle = world.candidates.iter().filter(|candidate| candidate.phase == Phase::Idle).count();
            lost(world).count() == 1 && idle == setup.attempts - 1
        }));
    }
    if setup.loss && setup.expiry == Expiry::AtAnyMoment {
        reached.push(("a token after a third trip", |_, world| granted(world).any(|story| story.raised_again)));
    }
    if let Floor::Some(_) = setup.floor {
        reached.push(("a floor lifts a token", |_, world| granted(world).any(|story| story.lifted)));
    }
    if !setup.restarts.is_empty() {
        reached.push(("a node in quarantine refuses", |_, world| {
            world.candidates.iter().any(|who| who.story.quarantined)
        }));
        reached.push(("a node that was taken back has a part in a grant", |_, world| {
            granted(world).any(|story| story.taken_back)
        }));
        reached.push(("a grant while a node is in quarantine", |_, world| won(world).any(|won| won.without)));
    }
    if setup.restarts.contains(&Restart::Empty) && 2 <= setup.restarts_max {
        reached.push(("a majority is gone, and nobody serves alone", |_, world| {
            world.nodes.iter().filter(|node| !node.serves()).count() == 2
        }));
    }
    reached
}

fn won(world: &World) -> impl Iterator<Item = &Won> {
    world.candidates.iter().filter_map(Candidate::won)
}

fn granted(world: &World) -> impl Iterator<Item = &Story> {
    world.candidates.iter().filter(|candidate| candidate.won().is_some()).map(|candidate| &candidate.story)
}

fn lost(world: &World) -> impl Iterator<Item = &Story> {
    world.candidates.iter().filter(|candidate| candidate.phase == Phase::Lost).map(|candidate| &candidate.story)
}
