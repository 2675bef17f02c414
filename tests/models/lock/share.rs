//! The shares of the clients without faults: among redlatch clients, and with Redisson clients.

use super::kind::PlainLock;
use crate::simulated::client::{MS, Rule, SECOND, Time};
use crate::simulated::plan::Plan;
use crate::simulated::rules::Broken;
use crate::simulated::simulation::Simulation;
use crate::simulated::store::Store;

/// A mix of clients, with the shares that they must get.
struct Mix {
    ours: usize,
    java: usize,
    hold: Time,
    length: Time,
    /// The minimum and the maximum share of a Redisson client, in percent of the grants of a
    /// redlatch client.
    share: (u64, u64),
}

const MIXES: &[Mix] = &[
    Mix { ours: 4, java: 0, hold: 50, length: 100 * MS, share: (0, 0) },
    Mix { ours: 1, java: 1, hold: 50, length: 300 * MS, share: (2, 200) },
    Mix { ours: 4, java: 1, hold: 50, length: 300 * MS, share: (40, 260) },
    Mix { ours: 8, java: 2, hold: 50, length: 300 * MS, share: (40, 260) },
    Mix { ours: 1, java: 1, hold: 5 * MS, length: SECOND, share: (45, 260) },
    Mix { ours: 2, java: 1, hold: 20 * MS, length: 3 * SECOND, share: (60, 260) },
    Mix { ours: 2, java: 2, hold: 20 * MS, length: 3 * SECOND, share: (60, 260) },
    Mix { ours: 8, java: 1, hold: 5 * MS, length: SECOND, share: (60, 260) },
    Mix { ours: 8, java: 2, hold: 5 * MS, length: 2 * SECOND, share: (60, 260) },
];

/// The minimum share of a redlatch process, in percent of the mean share.
const SLOWEST: u64 = 75;
const LONGEST: Time = 400 * MS;

/// Checks all mixes, or every `step`-th mix.
pub(crate) fn check_mixes(
    store: &mut Store,
    broken: Option<Rule>,
    step: usize,
) -> Result<(), Broken> {
    for mix in MIXES.iter().step_by(step) {
        println!("{}", check(store, mix, broken)?);
    }
    Ok(())
}

fn check(store: &mut Store, mix: &Mix, broken: Option<Rule>) -> Result<String, Broken> {
    let Mix { ours, java, hold, length, share } = *mix;
    let plan = Plan::peaceful(ours, java, hold, length);
    let mut simulation = Simulation::new(store, &PlainLock, 1, plan, broken);
    simulation.run()?;
    let grants: Vec<u64> = simulation.ours.iter().map(|own| own.grants).collect();
    let ours_each = grants.iter().sum::<u64>() / ours as u64;
    let slowest = grants.iter().min().copied().unwrap_or(0) * 100 / ours_each.max(1);
    let java_grants: u64 = simulation.java.iter().map(|java| java.grants).sum();
    let java_share = java_grants * 100 / (java.max(1) as u64) / ours_each.max(1);
    let longest_java = simulation.longest_java();
    let longest_ours = simulation.ours.iter().map(|own| own.longest).max().unwrap_or(0);
    let said = format!(
        "{ours} ours, {java} Redisson, {hold} µs inside: ours {}/s, slowest {slowest}, longest {} \
         ms; Redisson {java_share} of ours each, longest {} ms; {} scripts, {} windows",
        grants.iter().sum::<u64>() * 1_000_000 / length as u64,
        longest_ours / MS,
        longest_java / MS,
        simulation.summary.0["scripts"],
        simulation.summary.0.get("windows").unwrap_or(&0),
    );
    let is_fair = (share.0..=share.1).contains(&java_share) || java == 0;
    if !is_fair || slowest < SLOWEST || longest_ours.max(longest_java) > LONGEST {
        return Err(said);
    }
    Ok(said)
}
