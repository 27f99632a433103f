//! Explores a setup, and says what was found.

use super::{Event, Setup, World};
use stateright::{Checker as _, CheckerBuilder, HasDiscoveries, Model as _};
use std::collections::BTreeMap;

/// What an exploration came to.
#[derive(Debug)]
pub struct Checked {
    /// How many different worlds were seen; all that there are, if nothing was refuted.
    pub states: usize,
    /// The longest way to a world that was gone, counted in events.
    pub depth: usize,
    /// What is always to hold and does not, by the shortest events that lead there.
    pub refuted: BTreeMap<&'static str, Vec<(World, Option<Event>)>>,
    /// What is to be possible and was not seen.
    pub unreached: Vec<&'static str>,
}

/// Explores a setup to its end.
#[must_use]
pub fn check(setup: Setup) -> Checked {
    explored(setup.checker())
}

/// Explores a setup until `promise` is refuted. Breadth first, so no refutation has fewer events.
#[must_use]
pub fn refute(setup: Setup, promise: &'static str) -> Checked {
    explored(setup.checker().finish_when(HasDiscoveries::AnyOf([promise].into())))
}

fn explored(builder: CheckerBuilder<Setup>) -> Checked {
    let checker = builder.threads(1).spawn_bfs().join();
    let mut discoveries = checker.discoveries();
    let mut checked = Checked {
        states: checker.unique_state_count(),
        depth: checker.max_depth().saturating_sub(1),
        refuted: BTreeMap::new(),
        unreached: Vec::new(),
    };
    for property in checker.model().properties() {
        match (discoveries.remove(property.name), property.expectation.discovery_is_failure()) {
            (Some(path), true) => {
                checked.refuted.insert(property.name, path.into_vec());
            }
            (None, false) => checked.unreached.push(property.name),
            (Some(_), false) | (None, true) => {}
        }
    }
    checked
}

impl Checked {
    /// The events that refute a promise.
    ///
    /// # Panics
    /// If it stands.
    #[must_use]
    pub fn refutation(&self, promise: &str) -> Vec<Event> {
        let Some(path) = self.refuted.get(promise) else { panic!("\"{promise}\" stands in {} states", self.states) };
        path.iter().filter_map(|(_, event)| *event).collect()
    }
}
