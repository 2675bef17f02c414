//! The fair lock's scripts against a model, on a real server with a simulated clock.
//!
//! The clients are of both kinds: ours with our scripts, and Redisson's with those of Redisson 4.7
//! and 3.16.8. For simulated hours and at random, they arrive, give up, die, stop, are cut off,
//! lose messages and replies, take one lock, are handed it, give it back or let it lapse. After
//! every script the keys are checked against the rules (`rules.rs`): There is at most one holder.
//! The first to come is the first to be served. No client enters by a message that is over. A free
//! lock belongs to the first in line. No live waiter of ours that listens is dropped. No Redisson
//! waiter is dropped before its time. A stopped waiter of ours costs two seconds. Nothing is left
//! behind.

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
