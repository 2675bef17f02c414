//! The scripts of the read-write lock, on a real server with a simulated clock.
//!
//! As in `lock/`, in the same world (`simulated/`): processes of ours want to read or to write,
//! Redisson's clients do, too, with all faults that can occur. After every script the keys are held
//! against the rules (`simulated/rules.rs`): one writes or some read, no reader passes a writer in
//! front, readers in front are let in together, no waiter waits without a reason, nothing is left
//! behind. `mutants.rs` breaks the scripts one rule at a time, and the model has
//! to notice (one by lot; all with `REDLATCH_LONG=1`), or one of the scenes that no history comes
//! to (`scenarios.rs`).
//!
//! A failure prints its seed. `REDLATCH_SEED=17` looks at that history only, and prints every step
//! of it; `REDLATCH_LOCK_SEEDS=5000` looks at more histories than usual.

mod kind;
mod mutants;
mod scenarios;

use crate::common::unbounded_server as server;
use crate::simulated::client::{MS, SECOND};
use crate::simulated::histories::Histories;
use crate::simulated::mutant::find_out_all;
use crate::simulated::plan::Plan;
use crate::simulated::scripts::{Script, Scripts};
use crate::simulated::simulation::Simulation;
use crate::simulated::store::Store;
pub(crate) use kind::ReadWriteLock;
use mutants::MUTANTS;

const HISTORIES: Histories = Histories { kind: &ReadWriteLock, plan, usual: 49, seen: SEEN };

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
    "made anew after it had lapsed",
    "memory full",
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

#[test]
fn random_histories_keep_the_rules() {
    HISTORIES.check(&server());
}

/// Up to two of Redisson's, and sometimes one of ours that goes down from writing to reading. In
/// some histories a holder stays for so long that it keeps the lock for one that stands still.
fn plan(seed: u64) -> Plan {
    let plan = Plan::random(seed);
    let java = if seed.is_multiple_of(3) { 3 } else { plan.java };
    let plan = Plan { java, is_fenced: false, ..plan };
    if seed % 7 == 4 { plan.slow() } else { plan }
}

/// Three readers count as very many, of which a leaving one looks at one only.
#[test]
fn random_histories_keep_the_rules_among_very_many_readers() {
    let server = server();
    let (few, fewest) = ("MANY, LOOKS = 64, 16", "MANY, LOOKS = 2, 1");
    let scripts = Scripts::broken(&ReadWriteLock, Script::Holders, few, fewest);
    let mut store = Store::new(&server, &scripts);
    for seed in 0..14 {
        let mut simulation = Simulation::new(&mut store, &ReadWriteLock, seed, plan(seed), None);
        simulation.run().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

/// Readers and writers of ours take turns, and none waits for long, also beside Redisson.
#[test]
fn no_client_starves() {
    let server = server();
    let mut store = Store::new(&server, &Scripts::of(&ReadWriteLock));
    for (ours, java, hold) in [(4, 0, 50), (8, 0, 5 * MS), (4, 1, MS), (6, 2, 5 * MS)] {
        let plan = Plan::peaceful(ours, java, hold, SECOND);
        let mut simulation = Simulation::new(&mut store, &ReadWriteLock, 1, plan, None);
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
fn each_broken_rule_is_found_out() {
    let server = server();
    find_out_all(&server, &HISTORIES, MUTANTS, |_, _| None);
}
