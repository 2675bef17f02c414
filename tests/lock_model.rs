//! The scripts of a lock that processes hand to each other, on a real server with a simulated
//! clock, and the client that goes with them (`lock_model/client.rs`).
//!
//! Processes of ours and Redisson's clients take one lock, or two that might be mistaken for each
//! other, at random and for simulated minutes. They give up, are killed, stopped and cut off;
//! requests and replies are lost, repeated and late; keys are deleted, memory ends, clocks jump.
//! After every script the keys are held against the rules (`lock_model/rules.rs`): no two are
//! inside, nobody is passed over, a free lock is not waited for, nothing is left behind.
//! `lock_model/mutants.rs` breaks scripts and client one rule at a time, and the model has to
//! notice.
//!
//! A failure prints its seed. `REDLATCH_SEED=17` looks at that history only, and prints every step
//! of it; `REDLATCH_LOCK_SEEDS=5000` looks at more histories than usual.

#![allow(clippy::unwrap_used)]

mod common;

#[path = "lock_model/client.rs"]
mod client;
#[path = "lock_model/machine.rs"]
mod machine;
#[path = "lock_model/mutants.rs"]
mod mutants;
#[path = "lock_model/plan.rs"]
mod plan;
#[path = "model/random.rs"]
mod random;
#[path = "lock_model/redisson.rs"]
mod redisson;
#[path = "lock_model/rules.rs"]
mod rules;
#[path = "lock_model/scenarios.rs"]
mod scenarios;
#[path = "lock_model/scripts.rs"]
mod scripts;
#[path = "lock_model/share.rs"]
mod share;
#[path = "lock_model/simulation.rs"]
mod simulation;
#[path = "lock_model/site.rs"]
mod site;
#[path = "lock_model/state.rs"]
mod state;
#[path = "lock_model/store.rs"]
mod store;
#[path = "lock_model/waits.rs"]
mod waits;
#[path = "lock_model/wire.rs"]
mod wire;

use std::env;

use common::real_server;
use mutants::{Broken, By, MUTANTS, Mutant};
use plan::Plan;
use redlatch_testkit::Server;
use simulation::{Simulation, Summary};
use store::{Scripts, Store};

/// How many random histories a usual run looks at.
const SEEDS: u64 = 70;
/// In how many of them something broken must have been found out.
const SEEDS_PER_MUTANT: u64 = 250;

/// A case that never comes up is not tested.
const SEEN: &[&str] = &[
    "clock back",
    "clock forward",
    "cuts",
    "dead places passed",
    "errors",
    "fencing tokens",
    "forced",
    "forced by Redisson",
    "gave up",
    "granted by message",
    "granted by reply",
    "grants to Redisson",
    "half-open subscribers",
    "handed on",
    "keys deleted",
    "kills",
    "kills of Redisson",
    "late copies",
    "lost",
    "lost replies",
    "memory full",
    "no place",
    "queue evicted",
    "refused",
    "stops",
    "subscriptions renewed",
    "taken past the queue",
    "windows",
];

fn number_from(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_histories_keep_the_rules() {
    let Some(server) = real_server() else { return };
    let mut store = Store::new(&server, &Scripts::ours());
    if let Some(seed) = number_from("REDLATCH_SEED") {
        let mut simulation = Simulation::new(&mut store, seed, Plan::random(seed), None).traced();
        let outcome = simulation.run();
        println!("{}", simulation.trace(usize::MAX));
        return outcome.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    let mut total = Summary::default();
    for seed in 0..number_from("REDLATCH_LOCK_SEEDS").unwrap_or(SEEDS) {
        let mut simulation = Simulation::new(&mut store, seed, Plan::random(seed), None);
        if let Err(broken) = simulation.run() {
            panic!("REDLATCH_SEED={seed}: {broken}");
        }
        total.add_all(&simulation.summary);
    }
    println!("{:#?}", total.0);
    let never = SEEN.iter().filter(|what| !total.0.contains_key(*what));
    let never: Vec<_> = never.collect();
    assert!(never.is_empty(), "never seen: {never:?}");
}

/// Ours go round, and Redisson's clients get a share.
#[test]
fn everybody_gets_a_share() {
    let Some(server) = real_server() else { return };
    let mut store = Store::new(&server, &Scripts::ours());
    let mixes = share::MIXES.iter().map(|mix| share::check(&mut store, mix, None));
    let outcomes: Vec<_> = mixes.collect();
    for outcome in &outcomes {
        println!("{outcome:?}");
    }
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:#?}");
}

/// A model that notices nothing proves nothing.
#[test]
fn what_is_broken_is_found_out() {
    let Some(server) = real_server() else { return };
    let mut unnoticed = Vec::new();
    for mutant in MUTANTS {
        match find_out(&server, mutant) {
            Some(found) => println!("{}: {found}", mutant.what),
            None => unnoticed.push(mutant.what),
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed: {unnoticed:#?}");
}

fn find_out(server: &Server, mutant: &Mutant) -> Option<String> {
    let (scripts, rule) = match mutant.broken {
        Broken::Script(script, part, by) => (Scripts::broken(script, part, by), None),
        Broken::Client(rule) => (Scripts::ours(), Some(rule)),
    };
    let mut store = Store::new(server, &scripts);
    match mutant.by {
        By::Share => share::MIXES.iter().find_map(|mix| share::check(&mut store, mix, rule).err()),
        By::Seed(first) => std::iter::once(first).chain(0..SEEDS_PER_MUTANT).find_map(|seed| {
            let mut simulation = Simulation::new(&mut store, seed, Plan::random(seed), rule);
            Some(format!("by seed {seed}: {}", simulation.run().err()?))
        }),
    }
}
