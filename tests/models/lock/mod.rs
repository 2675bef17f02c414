//! The scripts of a lock that processes hand to each other, on a real server with a simulated
//! clock, and the library's own state machine of a waiting process (`src/local/entry.rs`).
//!
//! Processes of ours and Redisson's clients take one lock, or two that might be mistaken for each
//! other, at random and for simulated minutes. They give up, are killed, stopped and cut off;
//! requests and replies are lost, repeated and late; keys are deleted, memory ends, clocks jump.
//! After every script the keys are held against the rules (`simulated/rules.rs`): no two are inside, no
//! waiter is passed over, none waits for a free lock, nothing is left behind.
//! `mutants.rs` breaks scripts and client one rule at a time, and the model has to
//! notice (one by lot; all with `REDLATCH_LONG=1`).
//!
//! A failure prints its seed. `REDLATCH_SEED=17` looks at that history only, and prints every step
//! of it; `REDLATCH_LOCK_SEEDS=5000` looks at more histories than usual.

mod kind;
mod machine;
mod mutants;
mod scenarios;
mod share;

use crate::common::unbounded_server as server;
use crate::simulated::histories::Histories;
use crate::simulated::mutant::find_out_all;
use crate::simulated::plan::Plan;
use crate::simulated::scripts::Scripts;
use crate::simulated::store::Store;
pub(crate) use kind::PlainLock;
use mutants::MUTANTS;

const HISTORIES: Histories =
    Histories { kind: &PlainLock, plan: Plan::random, usual: 70, seen: SEEN };

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
    "queue evicted",
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

/// Ours go round, and Redisson's clients get a share.
#[test]
fn everybody_gets_a_share() {
    let server = server();
    let mut store = Store::new(&server, &Scripts::of(&PlainLock));
    let mixes = share::MIXES.iter().map(|mix| share::check(&mut store, mix, None));
    let outcomes: Vec<_> = mixes.collect();
    for outcome in &outcomes {
        println!("{outcome:?}");
    }
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:#?}");
}

/// A model that notices nothing proves nothing.
#[test]
fn each_broken_rule_is_found_out() {
    let server = server();
    find_out_all(&server, &HISTORIES, MUTANTS, |store, rule| {
        share::MIXES.iter().find_map(|mix| share::check(store, mix, rule).err())
    });
}
