//! Tests the scripts of the read-write lock, on a real server with a simulated clock.
//!
//! As in `lock/`, redlatch processes and Redisson clients take a lock while all faults occur. Here
//! they want to read or to write. After every script the keys are checked against the rules
//! (`simulated/rules.rs`): one owner writes or some owners read, no reader overtakes a writer at
//! the head of the queue, all readers at the head get the lock together, no waiter waits for a free
//! lock, and no keys are left at the end.

mod kind;
mod scenarios;

use crate::common::unbounded_server as server;
use crate::simulated::client::{MS, SECOND};
use crate::simulated::plan::Plan;
use crate::simulated::scripts::{Script, Scripts};
use crate::simulated::simulation::{Simulation, play};
use crate::simulated::specification::{Specification, is_full};
use crate::simulated::store::Store;
use kind::TEXTS;

pub(crate) use kind::ReadWriteLock;

const READ_WRITE: Specification = Specification {
    scripts: || Scripts::of(TEXTS),
    play: |store, seed, broken, traced| {
        play(store, &ReadWriteLock, seed, plan(seed), broken, traced)
    },
    seen: SEEN,
    seeds: &[21, 10, 2, 5, 3, 4, 8],
    full: 70,
    mutants: include_str!("mutants.txt"),
    scenes: scenarios::SCENES,
    share: |_, _| Ok(()),
};

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
    "wanted",
    "windows",
];

#[test]
fn random_histories_keep_the_rules() {
    READ_WRITE.check_histories();
}

/// Up to two Redisson clients, and sometimes a redlatch client that downgrades from writing to
/// reading. In some histories a reader stays long, and the lock remains held while another reader
/// is paused until after its own lease.
fn plan(seed: u64) -> Plan {
    let plan = Plan::random(seed);
    let java = if seed.is_multiple_of(3) { 3 } else { plan.java };
    let plan = Plan { java, is_fenced: false, ..plan };
    if seed % 7 == 4 { plan.slow() } else { plan }
}

/// The scripts treat three readers as very many, so a leaving reader checks only one other reader.
#[test]
fn random_histories_keep_the_rules_among_very_many_readers() {
    let server = server();
    let (few, fewest) = ("MANY, SAMPLE_SIZE = 64, 16", "MANY, SAMPLE_SIZE = 2, 1");
    let scripts = Scripts::of(TEXTS).with(Script::Holders, few, fewest);
    let mut store = Store::new(&server, &scripts);
    for seed in 0..if is_full() { 14 } else { 2 } {
        let mut simulation = Simulation::new(&mut store, &ReadWriteLock, seed, plan(seed), None);
        simulation.run().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    }
}

/// Redlatch readers and writers take turns, and none of them waits for long, even with Redisson
/// clients.
#[test]
fn no_client_starves() {
    let server = server();
    let mut store = Store::new(&server, &Scripts::of(TEXTS));
    // The last mixes run the most scripts.
    let mixes = [(8, 0, 5 * MS), (6, 2, 5 * MS), (4, 1, MS), (4, 0, 50)];
    for (ours, java, hold) in mixes.into_iter().take(if is_full() { 4 } else { 2 }) {
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

#[test]
fn each_broken_rule_is_found_out() {
    READ_WRITE.find_out_mutants();
}
