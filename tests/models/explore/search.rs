//! Searches the graph of all states forward and backward. Every state must keep the rules, and from
//! every state some process must be able to get the lock.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::world::{OWN, Setting, Step};

struct Graph {
    /// For each state, the step by which it was first reached, and the previous state.
    parents: Vec<(usize, Step)>,
    /// All steps that are not faults, from the later state to the earlier state.
    back: Vec<(usize, usize)>,
    /// The states in which no process waits, and the states from which one step grants a waiter the
    /// lock.
    good: Vec<usize>,
    /// A state that breaks a rule. The search ends at this state.
    broken: Option<usize>,
}

impl Setting {
    /// Returns the number of states. The error has the steps to a state that breaks a rule, or from
    /// which no process can ever get the lock without further faults.
    pub(crate) fn walk(&self) -> Result<usize, String> {
        let Graph { parents, mut back, good, broken } = self.graph();
        if let Some(at) = broken {
            return Err(told(self, &path(&parents, at)));
        }
        back.sort_unstable();
        let mut reached = vec![false; parents.len()];
        let mut open = good;
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut reached[at], true) {
                continue;
            }
            let first = back.partition_point(|(to, _)| *to < at);
            let before = back[first..].iter().take_while(|(to, _)| *to == at);
            open.extend(before.map(|(_, from)| *from));
        }
        match reached.iter().position(|it| !it) {
            Some(at) => Err(told(self, &path(&parents, at))),
            None => Ok(parents.len()),
        }
    }

    fn graph(&self) -> Graph {
        let start = self.start();
        let mut numbers = HashMap::from([(start.identity(), 0)]);
        let mut graph = Graph {
            parents: vec![(0, Step::Time)],
            back: Vec::new(),
            good: Vec::new(),
            broken: None,
        };
        let (mut level, mut steps) = (vec![(0, start)], Vec::new());
        while !level.is_empty() {
            let mut next = Vec::new();
            for (at, world) in &level {
                steps.clear();
                self.steps(world, &mut steps);
                let mut is_good = !world.processes.iter().any(|it| it.is_waiting());
                for step in &steps {
                    let (after, entered) = self.after(world, *step);
                    let new = graph.parents.len();
                    let to = match numbers.entry(after.identity()) {
                        Entry::Occupied(there) => *there.get(),
                        Entry::Vacant(place) => {
                            graph.parents.push((*at, *step));
                            if after.broken.is_some() {
                                graph.broken = Some(new);
                                return graph;
                            }
                            next.push((new, after));
                            *place.insert(new)
                        }
                    };
                    if !step.is_fault() {
                        is_good |= entered;
                        graph.back.push((to, *at));
                    }
                }
                if is_good {
                    graph.good.push(*at);
                }
            }
            level = next;
        }
        graph
    }
}

fn path(parents: &[(usize, Step)], mut at: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    while at != 0 {
        let (before, step) = parents[at];
        steps.push(step);
        at = before;
    }
    steps.reverse();
    steps
}

/// Returns the steps as text, each with its result.
pub(crate) fn told(setting: &Setting, steps: &[Step]) -> String {
    let mut world = setting.start();
    let mut lines = String::new();
    for step in steps {
        world = setting.after(&world, *step).0;
        let server = &world.server;
        let owners = |all: &[super::server::Owner]| -> Vec<_> {
            all.iter().map(|it| format!("{}:{}", it.client.0, it.number)).collect()
        };
        lines += &format!(
            "{:>6} ms  {step:?}: held by {:?} for {} ms, queue {:?}\n",
            (world.now - OWN) / 1_000_000,
            owners(&server.holders),
            server.mode.map_or(0, |_| server.ends - server.now),
            owners(&server.queue),
        );
    }
    lines + world.broken.unwrap_or("nobody gets in any more")
}
