//! The scripts of the read-write lock, on a real server with a simulated clock.
//!
//! As in `lock_model.rs`, whose world it is: processes of ours want to read or to write, Redisson's
//! clients do, too, and everything goes wrong that may. After every script the keys are held against
//! the rules (`read_write_model/rules.rs`): one writes or some read, no reader passes a writer in
//! front, readers in front are let in together, nobody waits without a reason, nothing is left behind.
//! `read_write_model/mutants.rs` breaks the scripts one rule at a time, and the model has to notice.
//!
//! A failure prints its seed. `REDLATCH_SEED=17` looks at that history only, and prints every step
//! of it; `REDLATCH_LOCK_SEEDS=5000` looks at more histories than usual.

#![allow(clippy::unwrap_used)]

mod common;

#[path = "lock_model/client.rs"]
mod client;
#[path = "read_write_model/mutants.rs"]
mod mutants;
#[path = "lock_model/plan.rs"]
mod plan;
#[path = "model/random.rs"]
mod random;
#[path = "read_write_model/redisson.rs"]
mod redisson;
#[path = "read_write_model/rules.rs"]
mod rules;
#[path = "read_write_model/scripts.rs"]
mod scripts;
#[path = "read_write_model/shortcuts.rs"]
mod shortcuts;
#[path = "lock_model/simulation.rs"]
mod simulation;
#[path = "read_write_model/site.rs"]
mod site;
#[path = "read_write_model/state.rs"]
mod state;
#[path = "lock_model/store.rs"]
mod store;
#[path = "lock_model/waits.rs"]
mod waits;
#[path = "lock_model/wire.rs"]
mod wire;

use std::env;

use client::{MS, SECOND};
use common::real_server;
use mutants::{MUTANTS, Mutant};
use plan::Plan;
use redlatch_testkit::Server;
use simulation::{Simulation, Summary};
use store::{Scripts, Store};

/// How many random histories a usual run looks at.
const SEEDS: u64 = 49;
/// In how many of them something broken must have been found out.
const SEEDS_PER_MUTANT: u64 = 250;

/// A case that never comes up is not tested.
const SEEN: &[&str] = &[
    "clock back",
    "clock forward",
    "cuts",
    "dead places passed",
    "dead writers passed",
    "errors",
    "forced",
    "forced by Redisson",
    "gave up",
    "gone down",
    "granted by message",
    "granted by reply",
    "granted to Redisson",
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
    "read beside readers",
    "read by the writer",
    "readers let in together",
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
        let mut simulation = Simulation::new(&mut store, seed, plan(seed), None).traced();
        let outcome = simulation.run();
        println!("{}", simulation.trace(usize::MAX));
        return outcome.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
    let mut total = Summary::default();
    for seed in 0..number_from("REDLATCH_LOCK_SEEDS").unwrap_or(SEEDS) {
        let mut simulation = Simulation::new(&mut store, seed, plan(seed), None);
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

/// Up to two of Redisson's, and sometimes one of ours that goes down from writing to reading.
fn plan(seed: u64) -> Plan {
    let plan = Plan::random(seed);
    let java = if seed.is_multiple_of(3) { 3 } else { plan.java };
    Plan { java, is_fenced: false, ..plan }
}

/// Readers and writers of ours take turns, and nobody waits for long, also beside Redisson.
#[test]
fn nobody_starves() {
    let Some(server) = real_server() else { return };
    let mut store = Store::new(&server, &Scripts::ours());
    for (ours, java, hold) in [(4, 0, 50), (8, 0, 5 * MS), (4, 1, MS), (6, 2, 5 * MS)] {
        let plan = Plan::peaceful(ours, java, hold, SECOND);
        let mut simulation = Simulation::new(&mut store, 1, plan, None);
        simulation.run().unwrap();
        let grants: Vec<_> = simulation.ours.iter().map(|own| own.grants).collect();
        let longest = simulation.ours.iter().map(|own| own.longest).max().unwrap_or(0);
        let java_grants: Vec<_> = simulation.java.iter().map(|java| java.grants).collect();
        println!(
            "{ours} ours, {java} Redisson, {hold} µs inside: {grants:?}, longest {} ms; {java_grants:?}, \
             longest {} ms",
            longest / MS,
            simulation.longest_java() / MS
        );
        let fewest = grants.iter().min().copied().unwrap_or(0);
        let mean = grants.iter().sum::<u64>() / grants.len() as u64;
        assert!(fewest * 3 > mean * 2, "{grants:?}");
        assert!(longest < 200 * MS, "{} ms", longest / MS);
    }
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
    let scripts = Scripts::broken(mutant.script, mutant.part, mutant.by);
    let mut store = Store::new(server, &scripts);
    std::iter::once(mutant.seed).chain(0..SEEDS_PER_MUTANT).find_map(|seed| {
        let mut simulation = Simulation::new(&mut store, seed, plan(seed), None);
        Some(format!("by seed {seed}: {}", simulation.run().err()?))
    })
}
