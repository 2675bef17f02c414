//! Random histories of one kind of lock.

use std::{env, thread};

use redlatch_testkit::Server;

use super::kind::Kind;
use super::plan::Plan;
use super::scripts::Scripts;
use super::simulation::{Simulation, Summary};
use super::store::Store;

pub(crate) struct Histories {
    pub(crate) kind: &'static dyn Kind,
    pub(crate) plan: fn(u64) -> Plan,
    /// How many a usual run looks at.
    pub(crate) usual: u64,
    /// A case that never comes up is not tested.
    pub(crate) seen: &'static [&'static str],
}

impl Histories {
    /// All of them keep the rules.
    pub(crate) fn check(&self, server: &Server) {
        let number_from = |variable: &str| -> Option<u64> { env::var(variable).ok()?.parse().ok() };
        if let Some(seed) = number_from("REDLATCH_SEED") {
            let plan = (self.plan)(seed);
            let mut store = Store::new(server, &Scripts::of(self.kind));
            let mut simulation = Simulation::new(&mut store, self.kind, seed, plan, None).traced();
            let outcome = simulation.run();
            println!("{}", simulation.trace(usize::MAX));
            return outcome.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        }
        let seeds = number_from("REDLATCH_LOCK_SEEDS").unwrap_or(self.usual);
        // A history and its server take turns: two histories keep two cores busy.
        let total = thread::scope(|scope| {
            let odd = scope.spawn(|| self.run(&Server::start().unwrap(), (1..seeds).step_by(2)));
            let mut total = self.run(server, (0..seeds).step_by(2));
            total.add_all(&odd.join().unwrap());
            total
        });
        println!("{:#?}", total.0);
        let never = self.seen.iter().filter(|what| !total.0.contains_key(*what));
        let never: Vec<_> = never.collect();
        assert!(never.is_empty(), "never seen: {never:?}");
    }

    fn run(&self, server: &Server, seeds: impl Iterator<Item = u64>) -> Summary {
        let mut store = Store::new(server, &Scripts::of(self.kind));
        let mut total = Summary::default();
        for seed in seeds {
            let plan = (self.plan)(seed);
            let mut simulation = Simulation::new(&mut store, self.kind, seed, plan, None);
            if let Err(broken) = simulation.run() {
                panic!("REDLATCH_SEED={seed}: {broken}");
            }
            total.add_all(&simulation.summary);
        }
        total
    }
}
