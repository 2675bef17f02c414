//! The fair lock's scripts against a model, on a real server with a simulated clock.
//!
//! Clients of both kinds, ours with our scripts and Redisson's with those of Redisson 4.7 and
//! 3.16.8, arrive, give up, die, stop, are cut off, lose messages and replies, take one lock, are
//! handed it, give it back or let it lapse, at random and for simulated hours. After every script
//! the keys are held against the rules (`rules.rs`): at most one holder, first come first served,
//! no client enters by a message that is over, a free lock is the first one's, no live waiter of
//! ours dropped that listens, no Redisson waiter dropped before its time, a stopped one of ours
//! costs two seconds, and nothing is left behind.

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
];

#[test]
fn random_histories_keep_the_rules() {
    FAIR.check_histories();
}

#[test]
fn each_broken_rule_is_found_out() {
    FAIR.find_out_mutants();
}
