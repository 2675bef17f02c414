//! A holder is notified that other calls wait for its lock, and later that no call waits.

use super::waits::{IDLE, OFTEN, is_quiet, is_quiet_but};
use super::{Findings, Hold, SLACK};
use crate::clock::ms;
use crate::history::{Event, Kind, Round};

/// Faults that lose messages at one moment. After such a fault, requests are sent again at once,
/// and the next renewal reports the waiters.
const LOSES_MESSAGES: [&str; 4] = ["messages cut", "cut", "CLIENT KILL", "SCRIPT FLUSH"];

pub(super) fn check(name: &str, holds: &[Hold], round: &Round, found: &mut Findings) {
    if name.contains("wanted-") {
        at_once(name, holds, round, found);
    } else if name.contains("heard-") {
        let calls = calls(name, holds, round);
        in_time(name, holds, &calls, round, found);
        taken_back(name, holds, &calls, round, found);
    }
}

/// Checks a holder that leaves as soon as another call wants its lock: a message notifies it at
/// once.
fn at_once(name: &str, holds: &[Hold], round: &Round, found: &mut Findings) {
    let late = |pair: &&[Hold]| {
        let [one, next] = pair else { return false };
        let (from, at) = (one.grant.at.max(next.grant.call), next.grant.at);
        at.saturating_sub(from) > IDLE && is_quiet(round, from, at)
    };
    let late: Vec<_> = holds.windows(2).filter(late).collect();
    if late.len() >= OFTEN {
        let text = format!("{} holders left over {} ms late", late.len(), IDLE / ms(1));
        let [one, next] = late[0] else { return };
        found.violation("unheard", name, [one.grant.at, next.grant.at], text);
    }
}

/// Returns the beginning and the end of each call for this name, sorted by the beginning.
fn calls(name: &str, holds: &[Hold], round: &Round) -> Vec<[u64; 2]> {
    let granted = holds.iter().map(|it| [it.grant.call, it.grant.at]);
    let events = round.processes.iter().flat_map(|process| &process.events);
    let missed = events.filter_map(|event| match event {
        Event::Missed { name: of, call, at, .. } if of == name => Some([*call, *at]),
        _ => None,
    });
    let mut calls: Vec<_> = granted.chain(missed).collect();
    calls.sort_unstable();
    calls
}

/// Returns the time of the grant, and the latest end of the holder's claim to the lock.
fn lasts(hold: &Hold) -> [u64; 2] {
    [hold.grant.at, hold.claims_until()]
}

/// Returns the time in which a renewal or a query gets its reply: a third of the lease, and some
/// slack.
fn third(hold: &Hold) -> u64 {
    hold.grant.lease / 3 + SLACK
}

/// Checks that the holder is notified within a third of its lease if another call waits, even if a
/// message was lost.
fn in_time(name: &str, holds: &[Hold], calls: &[[u64; 2]], round: &Round, found: &mut Findings) {
    for hold in holds {
        let [from, to] = lasts(hold);
        for [call, at] in calls {
            let (begun, late) = ((*call).max(from), (*call).max(from) + third(hold));
            if *call >= to || *at <= from || *call == hold.grant.call {
                continue;
            }
            let heard = hold.heard.iter().filter(|(at, _)| *at <= late);
            let knew = heard.clone().rfind(|(at, _)| *at <= begun).is_some_and(|(_, is)| *is);
            let hears = heard.filter(|(at, is)| *is && *at > begun).map(|(at, _)| *at).next();
            if let Some(hears) = hears {
                found.count("waits that a holder heard", 1);
                found.longest("longest until a holder heard", hears - begun);
            }
            let is_over = to.min(*at) <= late;
            if knew || hears.is_some() || is_over {
                continue;
            }
            if is_quiet_but(round, begun, late, &LOSES_MESSAGES) {
                let text = format!(
                    "process {} hold {} has not heard in {} ms that a call waits",
                    hold.process,
                    hold.grant.id,
                    third(hold) / ms(1)
                );
                found.violation("unheard", name, [begun, late], text);
            }
        }
    }
}

/// Checks that the holder is notified within a third of its lease when no call waits any longer.
/// The guard of a fair lock may report waiters for longer.
fn taken_back(name: &str, holds: &[Hold], calls: &[[u64; 2]], round: &Round, found: &mut Findings) {
    for hold in holds.iter().filter(|it| it.grant.kind != Kind::Fair) {
        let [from, to] = lasts(hold);
        // `said` collects the periods in which the guard reports that others wait.
        let mut since = None;
        let mut said = Vec::new();
        for (at, is_wanted) in &hold.heard {
            match (since, is_wanted) {
                (None, true) => since = Some(*at),
                (Some(first), false) => {
                    said.push([first, *at]);
                    since = None;
                }
                _ => {}
            }
        }
        said.extend(since.map(|first| [first, to]));
        for [first, last] in said {
            // The end of the last call so far.
            let mut ended = first;
            let next = |[call, _]: &&[u64; 2]| *call < last && *call != hold.grant.call;
            let others = calls.iter().filter(next).copied().chain([[last, last]]);
            for [call, at] in others {
                let begun = call.max(first);
                if begun > ended + third(hold) && is_quiet(round, from.min(ended), begun) {
                    let text = format!(
                        "process {} hold {} says that others wait, {} ms after the last call",
                        hold.process,
                        hold.grant.id,
                        (begun - ended) / ms(1)
                    );
                    found.violation("wanted by nobody", name, [ended, begun], text);
                    break;
                }
                ended = ended.max(at);
            }
        }
        found.count("times that a holder heard that nobody waits", {
            hold.heard.iter().filter(|(_, is)| !is).count() as u64
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hold};
    use super::*;
    use crate::history::{Fault, Outcome, Process};

    /// Returns the violations of a hold from 1 s to 9 s with a lease of 3 s, and of another call
    /// for its name.
    fn violations(call: [u64; 2], heard: &[(u64, bool)], faults: &[Fault]) -> Vec<&'static str> {
        let mut it = hold(1, 999, 1000, 9000);
        it.grant.lease = ms(3000);
        it.heard = heard.iter().map(|(at, is)| (ms(*at), *is)).collect();
        let [call, at] = call.map(ms);
        let (kind, name, outcome) = (Kind::Reentrant, "heard-1".to_owned(), Outcome::Not);
        let missed = Event::Missed { kind, name, call, at, bound: ms(9000), outcome };
        let processes = vec![Process { number: 2, events: vec![missed], killed: None }];
        let round = Round { processes, faults: faults.to_vec() };
        let mut found = Findings::default();
        check("heard-1", &[it], &round, &mut found);
        found.violations.iter().map(|it| it.check).collect()
    }

    #[test]
    fn a_holder_that_does_not_hear_of_waiters_again_and_again_is_found() {
        for (call, expected) in [(10, 1), (900, 0)] {
            let holds: Vec<_> =
                (0..5).map(|at| hold(1, 1000 * at + call, 1000 * (at + 1), 0)).collect();
            let mut found = Findings::default();
            check("wanted-1", &holds, &Round::default(), &mut found);
            check("long-1", &holds, &Round::default(), &mut found);
            assert_eq!(found.violations.len(), expected);
        }
    }

    #[test]
    fn a_holder_hears_within_a_third_of_its_lease_that_a_call_waits() {
        assert_eq!(violations([2000, 6000], &[(2900, true), (6100, false)], &[]), [""; 0]);
        assert_eq!(violations([2000, 6000], &[], &[]), ["unheard"]);
        assert_eq!(violations([2000, 6000], &[(4600, true), (6100, false)], &[]), ["unheard"]);
        // The call may have ended before the holder was notified.
        assert_eq!(violations([2000, 4400], &[], &[]), [""; 0]);
        let of = |kind: &str| Fault { kind: kind.to_owned(), ..fault(1500, 1501, None, false) };
        assert_eq!(violations([2000, 6000], &[], &[of("messages cut")]), ["unheard"]);
        assert_eq!(violations([2000, 6000], &[], &[of("stop")]), [""; 0]);
    }

    #[test]
    fn a_holder_hears_that_nobody_waits_any_longer() {
        let late = [(2100, true), (5600, false)];
        assert_eq!(violations([2000, 3000], &late, &[]), ["wanted by nobody"]);
        assert_eq!(violations([2000, 3000], &late[..1], &[]), ["wanted by nobody"]);
        assert_eq!(violations([2000, 3000], &[(2100, true), (5000, false)], &[]), [""; 0]);
        assert_eq!(violations([2000, 8000], &late[..1], &[]), [""; 0]);
    }
}
