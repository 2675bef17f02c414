//! The fair lock's scripts against a model, on a real server with a simulated clock.
//!
//! Clients of both kinds, ours with our scripts and Redisson's with those of Redisson 4.7 and
//! 3.16.8, arrive, give up, die, stop, are cut off, lose messages and replies, take one lock, are
//! handed it, give it back or let it lapse, at random and for simulated hours. After every script
//! the keys are held against the rules (`rules.rs`): at most one holder, first come
//! first served, no client enters by a message that is over, a free lock is the first one's, no
//! live waiter of ours dropped that listens, no Redisson waiter dropped before its time, a stopped
//! one of ours costs two seconds, and nothing is left behind. `mutants.rs` breaks
//! scripts and clients one rule at a time, and the model has to notice (one by lot; all with
//! `REDLATCH_LONG=1`).
//!
//! A failure prints its seed. `REDLATCH_SEED=17` looks at that history only, and prints every step
//! of it; `REDLATCH_FAIR_SEEDS=5000` looks at more histories than usual.

mod clients;
mod mutants;
mod plan;
mod rules;
mod scenarios;
mod simulation;
mod store;
mod waiting;

use std::{env, thread};

use crate::common::unbounded_server as server;
use crate::simulated::choice::chosen;
use mutants::{Broken, MUTANTS};
use simulation::{Simulation, Summary};
use store::{Scripts, Store};

/// How many random histories a usual run looks at.
const SEEDS: u64 = 300;
/// In how many of them a broken script must have been found out.
const SEEDS_PER_MUTANT: u64 = 1_000;

fn number_from(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_histories_keep_the_rules() {
    if let Some(seed) = number_from("REDLATCH_SEED") {
        let server = server();
        let mut store = Store::new(server.connection(), &Scripts::ours());
        let mut simulation = Simulation::new(&mut store, seed, None);
        let outcome = simulation.run();
        println!("{}", simulation.trace(usize::MAX));
        return outcome.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    let seeds = number_from("REDLATCH_FAIR_SEEDS").unwrap_or(SEEDS);
    // A history and its server take turns: two histories keep two cores busy.
    let total = thread::scope(|scope| {
        let odd = scope.spawn(|| run_all((1..seeds).step_by(2)));
        let mut total = run_all((0..seeds).step_by(2));
        total.add_all(&odd.join().unwrap());
        total
    });
    println!("{total}");
    assert!(total.has_seen_everything(), "never seen: {total}");
}

fn run_all(seeds: impl Iterator<Item = u64>) -> Summary {
    let server = server();
    let mut store = Store::new(server.connection(), &Scripts::ours());
    let mut total = Summary::default();
    for seed in seeds {
        let mut simulation = Simulation::new(&mut store, seed, None);
        if let Err(broken) = simulation.run() {
            panic!("REDLATCH_SEED={seed}: {broken}\nthe last steps:\n{}", simulation.trace(25));
        }
        total.add_all(&simulation.summary);
    }
    total
}

/// A model that notices nothing proves nothing.
#[test]
fn broken_scripts_are_found_out() {
    let server = server();
    let mut unnoticed = Vec::new();
    for mutant in chosen(MUTANTS, |mutant| mutant.what) {
        let (scripts, rule) = match mutant.broken {
            Broken::Script(script, part, by) => (Scripts::broken(script, part, by), None),
            Broken::Client(rule) => (Scripts::ours(), Some(rule)),
        };
        let mut store = Store::new(server.connection(), &scripts);
        let found = std::iter::once(mutant.seed).chain(0..SEEDS_PER_MUTANT).find_map(|seed| {
            let broken = Simulation::new(&mut store, seed, rule).run().err()?;
            Some((seed, broken))
        });
        match found {
            Some((seed, broken)) => println!("{}: by seed {seed}: {broken}", mutant.what),
            None => unnoticed.push(mutant.what),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed (REDLATCH_MUTANT tries one): {unnoticed:#?}");
}
