//! A name stays taken for a minimum time or until the end of a lease, even after its holder has
//! gone, but not longer. A failed call does not keep a name taken.

use std::collections::{BTreeMap, HashMap};

use super::waits::is_quiet;
use super::{Findings, Hold};
use crate::clock::ms;
use crate::history::{Event, Fault, LEASES_LONGER, Outcome, Round};

/// The maximum lease of holds that are not kept. If a hold was not released, the server keeps it
/// for this time.
const LEASE: u64 = ms(3000);
/// The longest lease of a call for one of several names.
const LONG: u64 = ms(20_000);
/// The time for which a call may still find the name taken after the end of all holds.
const GRACE: u64 = ms(1000);
/// A call with a shorter limit may end before the reply that the name is free.
const SURE: u64 = ms(100);
/// The maximum time by which one fault of the nemesis extends leases.
const LONGER: u64 = ms(3000);

/// Checks the holds of one name, sorted by the time of their grants.
pub(super) fn check(name: &str, holds: &[Hold], faults: &[Fault], found: &mut Findings) {
    // The end of the last exclusive hold so far. Later holds must be granted after this end.
    let mut before = 0;
    let mut kept: Vec<(&Hold, u64)> = Vec::new();
    for hold in holds {
        let grant = &hold.grant;
        kept.retain(|(_, until)| *until > grant.at);
        let weight = grant.weight + kept.iter().map(|(it, _)| it.grant.weight).sum::<u64>();
        let is_forgotten = |it: &Hold| {
            let mut forgets = faults.iter().filter(|it| it.forgets);
            forgets.any(|fault| it.began() <= fault.to && grant.at >= fault.from)
        };
        if weight > grant.capacity && !kept.iter().any(|(it, _)| is_forgotten(it)) {
            let lines: Vec<_> = kept
                .iter()
                .map(|(it, until)| {
                    format!("process {} hold {} keeps it until {until}", it.process, it.grant.id)
                })
                .collect();
            let text = format!("process {} hold {}; {}", hold.process, grant.id, lines.join("; "));
            found.violation("kept", name, [grant.call, grant.at], text);
        }
        let least = match grant.weight == grant.capacity {
            true => grant.call.max(before),
            false => grant.call,
        };
        let until = match (hold.left, hold.leaving) {
            _ if hold.keeps > 0 => least + hold.keeps,
            (Some((_, Outcome::Kept)), Some([_, until])) => until,
            _ => 0,
        };
        if until > 0 {
            found.count("holds that were kept", 1);
            kept.push((hold, until));
        }
        if grant.weight == grant.capacity {
            before = before.max(hold.claims_until());
        }
    }
}

/// Checks that no call is refused when nobody can hold the name: when all holds, minimum times,
/// leases, and the effects of failed calls have ended.
pub(super) fn stuck(round: &Round, names: &BTreeMap<String, Vec<Hold>>, found: &mut Findings) {
    // The periods in which each name may be taken.
    let mut taken: HashMap<&str, Vec<[u64; 2]>> = HashMap::new();
    let mut refused: Vec<(&str, u32, [u64; 2])> = Vec::new();
    for process in &round.processes {
        let mut asked: HashMap<(&str, u64), u64> = HashMap::new();
        // The number of names of the call that began at this time.
        let mut names: HashMap<u64, u32> = HashMap::new();
        for event in &process.events {
            match event {
                Event::Asks { name, call, keeps } => {
                    asked.insert((name, *call), *keeps);
                    *names.entry(*call).or_default() += 1;
                }
                Event::Granted(grant) => drop(asked.remove(&(&*grant.name, grant.call))),
                Event::Missed { name, call, at, bound, outcome, .. } => {
                    let Some(keeps) = asked.remove(&(&**name, *call)) else { continue };
                    if *outcome == Outcome::Not && *bound >= SURE {
                        // A call for several names may be refused because another of these names is
                        // taken.
                        if names.get(call) == Some(&1) {
                            refused.push((name, process.number, [*call, *at]));
                        }
                        continue;
                    }
                    // If the server granted the call, a live process undoes the grant.
                    let dies = process.killed.is_some_and(|killed| killed < at + LEASE);
                    let rest = if dies { keeps.max(lease(name)) } else { LEASE };
                    taken.entry(name).or_default().push([*call, at + rest]);
                }
                _ => {}
            }
        }
        for ((name, call), keeps) in asked {
            let end = process.killed.unwrap_or(u64::MAX / 2);
            taken.entry(name).or_default().push([call, end.saturating_add(keeps.max(lease(name)))]);
        }
    }
    found.count("calls for a name that is kept", refused.len() as u64);
    for (name, process, [call, at]) in refused {
        let holds = names.get(name).into_iter().flatten().map(|hold| is_taken(hold, round));
        let others = taken.get(name).into_iter().flatten().copied();
        let last = holds.chain(others).filter(|[from, _]| *from <= at).map(|[_, until]| until);
        let free = last.max().unwrap_or(0).saturating_add(GRACE);
        if call > free && is_quiet(round, call, at) {
            let late = (call - free) / ms(1);
            let text =
                format!("process {process} was refused {late} ms after nobody could have it");
            found.violation("stuck", name, [call, at], text);
        }
    }
}

fn lease(name: &str) -> u64 {
    if name.contains("{several}-") { LONG } else { LEASE }
}

/// Returns the period in which a hold may keep the name, whatever its process does.
fn is_taken(hold: &Hold, round: &Round) -> [u64; 2] {
    let end = hold.left.map_or(u64::MAX / 2, |(at, _)| at);
    let killed = hold.killed.unwrap_or(u64::MAX);
    let mut until = end.saturating_add(LEASE).max(hold.grant.at + hold.keeps);
    // Nobody released the hold.
    if killed < end + LEASE || matches!(hold.left, Some((_, Outcome::Kept))) {
        until = hold.grant.at.max(end.min(killed)) + hold.longest_lease().max(LEASE);
    }
    let from = hold.grant.call;
    let longer = |it: &&Fault| it.kind == LEASES_LONGER && it.to >= from && it.from <= until;
    let times = round.faults.iter().filter(longer).count() as u64;
    [from, until.saturating_add(times * LONGER)]
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hold};
    use super::*;
    use crate::history::{Kind, Process};

    fn kept(process: u32, at: u64, leaving: u64, keeps: u64) -> Hold {
        Hold { keeps: ms(keeps), ..hold(process, at - 1, at, leaving) }
    }

    fn violations(holds: &[Hold], faults: &[Fault]) -> usize {
        let mut found = Findings::default();
        check("a", holds, faults, &mut found);
        found.violations.len()
    }

    #[test]
    fn a_grant_before_the_least_time_is_over_is_found() {
        assert_eq!(violations(&[kept(1, 1, 5, 100), hold(2, 0, 101, 105)], &[]), 0);
        assert_eq!(violations(&[kept(1, 1, 5, 100), hold(2, 0, 99, 105)], &[]), 1);
        // A killed holder keeps the name, too, but a hold that the server lost does not.
        let killed = Hold { killed: Some(ms(3)), left: None, ..kept(1, 1, 5, 100) };
        let both = [killed, hold(2, 0, 99, 105)];
        assert_eq!(violations(&both, &[]), 1);
        assert_eq!(violations(&both, &[fault(50, 51, None, true)]), 0);
    }

    #[test]
    fn a_least_time_begins_no_earlier_than_the_hold_before_ends() {
        // The call began at 0, so its minimum time may also have begun at 0.
        let mut waited = kept(2, 50, 55, 100);
        waited.grant.call = ms(0);
        assert_eq!(violations(&[hold(1, 0, 1, 49), waited.clone(), hold(3, 0, 140, 150)], &[]), 1);
        assert_eq!(violations(&[waited, hold(3, 0, 140, 150)], &[]), 0);
    }

    #[test]
    fn a_grant_before_the_end_of_a_lease_that_was_left_is_found() {
        let mut left = hold(1, 0, 1, 5);
        (left.leaving, left.left) = (Some([ms(5), ms(300)]), Some((ms(6), Outcome::Kept)));
        assert_eq!(violations(&[left.clone(), hold(2, 0, 301, 302)], &[]), 0);
        assert_eq!(violations(&[left, hold(2, 0, 299, 302)], &[]), 1);
    }

    /// Returns the number of violations if a call at 60 s finds the name taken after these events.
    fn refused(before: Vec<Event>, killed: Option<u64>) -> usize {
        let asks = |call, keeps| Event::Asks { name: "a".to_owned(), call, keeps };
        let (call, at, bound) = (ms(60_000), ms(60_001), SURE);
        let (kind, name, outcome) = (Kind::Reentrant, "a".to_owned(), Outcome::Not);
        let missed = Event::Missed { kind, name, call, at, bound, outcome };
        let process = |number, events, killed| Process { number, events, killed };
        let processes =
            vec![process(1, before, killed.map(ms)), process(2, vec![asks(call, 0), missed], None)];
        let round = Round { processes, faults: Vec::new() };
        let mut found = Findings::default();
        let names = super::super::holds(&round, &mut found);
        stuck(&round, &names, &mut found);
        found.violations.len()
    }

    #[test]
    fn a_lock_that_is_taken_after_an_error_is_found() {
        let asks = Event::Asks { name: "a".to_owned(), call: ms(50_000), keeps: ms(20_000) };
        let (kind, name, outcome) = (Kind::Reentrant, "a".to_owned(), Outcome::Trouble);
        let (call, at, bound) = (ms(50_000), ms(50_100), 0);
        let failed = Event::Missed { kind, name, call, at, bound, outcome };
        assert_eq!(refused(vec![asks.clone(), failed.clone()], None), 1);
        // The process is dead and cannot undo the grant.
        assert_eq!(refused(vec![asks.clone(), failed], Some(50_200)), 0);
        assert_eq!(refused(vec![asks], Some(50_050)), 0);
        assert_eq!(refused(Vec::new(), None), 1);
    }

    #[test]
    fn a_lock_may_be_taken_until_its_least_time_is_over() {
        let granted = |keeps| {
            let mut grant = hold(1, 49_999, 50_000, 50_001).grant;
            (grant.id, grant.lease) = (7, ms(3000));
            let (name, call) = (grant.name.clone(), grant.call);
            let left = Event::Left { id: 7, at: ms(50_001), outcome: Outcome::Done };
            vec![Event::Asks { name, call, keeps: ms(keeps) }, Event::Granted(grant), left]
        };
        assert_eq!(refused(granted(20_000), None), 0);
        assert_eq!(refused(granted(1000), None), 1);
    }
}
