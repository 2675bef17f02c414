//! Tests the scripts of a lock that goes from process to process, on a real server with a simulated
//! clock, together with the library's own state machine of a waiting process (`src/ask/entry.rs`).
//!
//! In simulated minutes, redlatch processes and Redisson clients take one lock, or two locks with
//! similar names. At random they give up, are killed, paused and cut off. Requests and replies are
//! lost, repeated and late. Keys are deleted, the server runs out of memory, and clocks jump. After
//! every script the keys are checked against the rules (`simulated/rules.rs`): there is at most one
//! holder, no waiter is skipped, no waiter waits for a free lock, and no keys are left at the end.

mod kind;
mod machine;
mod scenarios;
mod share;

use crate::common::unbounded_server as server;
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
        play(store, &PlainLock, seed, Plan::random(seed), broken, traced)
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
