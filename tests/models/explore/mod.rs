//! Explores the library's own state machine of a waiting process (`src/ask/entry.rs`) together with
//! a model of the server: breadth first, in every order of all steps. Random requests compare the
//! model with the real scripts.
//!
//! A usual run explores the smallest settings. A run at full size (`REDLATCH_FULL=1`) also explores
//! a setting with a fault. A run with `REDLATCH_LONG=1` (`.ci/long explore`) also explores large
//! settings, either completely or up to ten million states. SOAK.md has the results.
//! `REDLATCH_SETTING` selects the large settings whose names contain its value.

mod against;
mod checker;
mod identity;
mod process;
mod search;
mod server;
mod settings;
mod world;

use std::env;
use std::hash::{BuildHasher, RandomState};

use crate::common::unbounded_server as redis;
use crate::simulated::specification::{is_full, is_long};
use server::{Bug, Kind};
use settings::{DIFFERENCES, LARGE, MUTANTS, SMALL};

/// With this seed, random requests find each planted difference early.
const QUICK: u64 = 4;
/// The maximum number of states to explore, in a large setting and in a setting with a bug. A state
/// is counted once for each step that leads to it.
const MANY: usize = 40_000_000;
const FEW: usize = 3_000_000;

/// The rules hold in every state. From every state, some process can get the lock.
#[test]
fn every_order_of_every_step_keeps_the_rules() {
    let settings = if is_full() { SMALL } else { &SMALL[1..] };
    for (what, setting) in settings {
        match setting.walk() {
            Ok(states) => println!("{what}: all of {states} states"),
            Err(steps) => panic!("{what}: {steps}"),
        }
    }
}

#[test]
fn large_settings_keep_the_rules() {
    let wanted = env::var("REDLATCH_SETTING").unwrap_or_default();
    let is_wanted = |what: &str| is_long() && what.contains(&wanted);
    for (what, setting) in LARGE.iter().filter(|(what, _)| is_wanted(what)) {
        let seen = setting.explore(MANY);
        println!("{what}: {seen}");
        assert!(seen.broken.is_none(), "{what}: {}", seen.broken.unwrap());
    }
}

/// An exploration that finds no bug proves something only if it would find known bugs.
#[test]
fn each_known_bug_is_found() {
    let mut unnoticed = Vec::new();
    for mutant in MUTANTS {
        let seen = mutant.setting.explore(FEW);
        let rule = seen.broken.as_deref().and_then(|steps| steps.lines().last());
        println!("{}: {} ({} states)", mutant.what, rule.unwrap_or("-"), seen.states);
        if rule.is_none() {
            unnoticed.push(mutant.what);
        }
    }
    assert!(unnoticed.is_empty(), "nobody noticed: {unnoticed:#?}");
}

/// `REDLATCH_SEED` repeats the same requests.
fn compare(
    kind: Kind,
    bug: Option<Bug>,
    least: u64,
    seed: Option<u64>,
) -> Result<against::Counts, String> {
    let given = env::var("REDLATCH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.or(seed).unwrap_or_else(|| RandomState::new().hash_one(least) >> 16);
    against::compare(&redis(), kind, bug, seed, least)
}

#[test]
fn the_model_of_the_server_does_what_the_scripts_do() {
    let least = if is_long() { 100_000 } else { 200 };
    for kind in [Kind::Lock, Kind::Fenced, Kind::ReadWrite] {
        match compare(kind, None, least, None) {
            Ok(counts) => println!("{kind:?}: {counts:?}"),
            Err(difference) => panic!("{kind:?}: {difference}"),
        }
    }
}

#[test]
fn a_planted_difference_is_found() {
    for (kind, bug) in DIFFERENCES {
        let seed = (!is_full()).then_some(QUICK);
        let difference = compare(*kind, Some(*bug), 20_000, seed).err();
        println!("{bug:?}: {}", difference.as_deref().unwrap_or("-"));
        assert!(difference.is_some(), "{bug:?} makes no difference");
    }
}
