//! Tests the scripts of a lock that goes from process to process, on a real server with a simulated
//! clock, together with the library's own state machine of a waiting process (`src/ask/entry.rs`).
//!
//! In simulated minutes, redlatch processes and Redisson clients take one lock, or two locks with
//! similar names. Random clients give up, are killed, paused and cut off. Requests and replies are
//! lost, repeated and late. Keys are deleted, the server runs out of memory, and clocks jump. After
//! every script the keys are checked against the rules (`simulated/rules.rs`): no two owners hold
//! the lock, no waiter is skipped, no waiter waits for a free lock, and no key is left at the end.
//! A script of a hold never runs after that hold's end or under another hold.

mod kind;
mod machine;
mod scenarios;
mod share;

use crate::common::unbounded_server as server;
use crate::simulated::client::Rule;
use crate::simulated::plan::Plan;
use crate::simulated::scripts::Scripts;
use crate::simulated::simulation::play;
use crate::simulated::specification::{Specification, is_full};
use crate::simulated::store::Store;
use kind::TEXTS;

pub(crate) use kind::PlainLock;

const LOCK: Specification = Specification {
    scripts: || Scripts::of(TEXTS),
    play: |store, seed, broken, traced| {
        let plan = Plan { evals: 30, ..Plan::random(seed) };
        play(store, &PlainLock, seed, plan, broken, traced)
    },
    seen: SEEN,
    seeds: &[19, 3, 9, 1],
    full: 70,
    mutants: include_str!("mutants.txt"),
    scenes: scenarios::SCENES,
    share: |store, broken| share::check_mixes(store, broken, 1),
};

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
    "queue evicted",
    "refused",
    "scripts after their hold",
    "scripts under a hold",
    "stops",
    "subscriptions renewed",
    "taken past the queue",
    "wanted",
    "windows",
];

#[test]
fn random_histories_keep_the_rules() {
    LOCK.check_histories();
}

/// Requests are often sent twice, so late copies take the lock again for owners that have left. No
/// late script of a user runs under such a hold, because a process sends no script under a hold
/// whose request was sent twice.
#[test]
fn no_late_script_runs_under_a_hold_that_a_late_copy_has_taken() {
    let server = server();
    let mut store = Store::new(&server, &Scripts::of(TEXTS));
    let mut outcome = |seed, broken| {
        let plan = Plan::random(seed).doubtful();
        play(&mut store, &PlainLock, seed, plan, broken, false).outcome
    };
    let seeds = if is_full() { 40 } else { 4 };
    (0..seeds).for_each(|seed| outcome(seed, None).unwrap());
    let found = (0..40).find_map(|seed| Some((seed, outcome(seed, Some(Rule::Doubt)).err()?)));
    println!("{found:?}");
    assert!(found.is_some_and(|(_, broken)| broken.contains("a script of")));
}

/// The redlatch clients take turns, and the Redisson clients get a share.
#[test]
fn everybody_gets_a_share() {
    let server = server();
    let mut store = Store::new(&server, &Scripts::of(TEXTS));
    share::check_mixes(&mut store, None, if is_full() { 1 } else { 3 }).unwrap();
}

#[test]
fn each_broken_rule_is_found_out() {
    LOCK.find_out_mutants();
}
