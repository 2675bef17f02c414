//! A setting in the form that stateright explores.

use std::fmt;

use stateright::{Checker, Model, Property};

use super::search::told;
use super::world::{Setting, Step, World};

/// The rules are checked in each step. The step records a broken rule.
const RULES: &str = "the rules";

impl Model for Setting {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![self.start()]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        self.steps(world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        Some(self.after(world, step).0)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(RULES, |_: &Self, world: &World| world.broken.is_none())]
    }
}

/// The result of an exploration.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The number of different states.
    pub(crate) states: usize,
    pub(crate) depth: usize,
    /// Whether the exploration reached all states.
    pub(crate) is_whole: bool,
    /// The broken rule, and the steps that led to it.
    pub(crate) broken: Option<String>,
}

impl fmt::Display for Seen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, depth, is_whole, .. } = self;
        let end = if *is_whole { "all" } else { "not all" };
        write!(formatter, "{states} states, {depth} steps deep: {end}")
    }
}

impl Setting {
    /// Explores breadth first until `most` states were reached. A state is counted once for each
    /// step that leads to it.
    pub(crate) fn explore(&self, most: usize) -> Seen {
        let checker = self.clone().checker().target_state_count(most).spawn_bfs().join();
        let broken = checker.discovery(RULES).map(|path| told(self, &path.into_actions()));
        Seen {
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
            is_whole: broken.is_none() && checker.state_count() < most,
            broken,
        }
    }
}
