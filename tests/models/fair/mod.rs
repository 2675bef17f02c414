//! Compares the fair lock's scripts with a model, on a real server with a simulated clock.
//!
//! redlatch clients run redlatch's scripts, and Redisson clients run the scripts of Redisson 4.7
//! and 3.16.8. In simulated hours the clients act at random: they arrive, give up, die, pause, are
//! cut off, and lose messages and replies. The clients take one lock, are granted it by a message,
//! release it or let it expire. After every script the keys are checked against the rules
//! (`rules.rs`). There is at most one holder. Owners get the lock in the order of arrival. No
//! client uses a grant message that is too old. A free lock belongs to the first waiter in the
//! queue. No live redlatch waiter with a subscription is dropped. No Redisson waiter is dropped
//! before its time is over. A paused redlatch waiter costs two seconds. At the end no keys are
//! left.

mod clients;
mod plan;
mod rules;
mod scenarios;
mod simulation;
mod store;
mod waiting;

use crate::simulated::specification::Specification;
use simulation::play;
use store::scripts;

const FAIR: Specification = Specification {
    scripts,
    play,
    seen: SEEN,
    seeds: &[138, 166, 4, 78, 267],
    full: 300,
    mutants: include_str!("mutants.txt"),
    scenes: &[],
    share: |_, _| Ok(()),
};

const SEEN: &[&str] = &[
    "came together",
    "deaf ones dropped",
    "gave up",
    "gave up when granted",
    "given back",
    "grants to ours",
    "grants to Redisson",
    "keys deleted",
    "kills",
    "lapses",
    "late requests",
    "ours came back",
    "ours dropped",
    "passed on",
    "raises",
    "read late",
    "Redisson's dropped",
    "scripts",
    "stops",
    "taken up",
    "told by Redisson",
    "tries that took",
    "wanted",
];

#[test]
fn random_histories_keep_the_rules() {
    FAIR.check_histories();
}

#[test]
fn each_broken_rule_is_found_out() {
    FAIR.find_out_mutants();
}
