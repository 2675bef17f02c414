//! Every failure has a cause. A limit that is shorter than the time of a reply is not a cause. In
//! an outage, a call must not report that a lock is taken.

use std::collections::BTreeMap;

use super::waits::is_quiet;
use super::{Findings, Hold};
use crate::clock::ms;
use crate::history::{Event, OUTAGES, Outcome, Round};

/// A call with a shorter limit may end before the reply.
const SHORT: u64 = ms(100);
/// On a busy machine, one of this many calls with a limit of a few ms may fail.
const CALLS: u64 = 200;
/// On a busy machine, this many calls of a round may fail at the end of their limit, because the
/// last request of a call has only 50 ms. For a party of a barrier, this is the request with which
/// it leaves.
const FEW: u64 = 5;
/// The time in ns after its last reply in which a server is not in an outage. The recorded times of
/// a fault may be wrong by [`INEXACT`].
const ANSWERED: u64 = ms(1000);
const INEXACT: u64 = ms(200);

pub(super) fn check(round: &Round, names: &BTreeMap<String, Vec<Hold>>, found: &mut Findings) {
    let is_own = |name: &str| name.contains("short-");
    let (mut calls, mut failed, mut cut) = (0, Vec::new(), Vec::new());
    for process in &round.processes {
        for event in &process.events {
            match event {
                Event::Granted(it) if is_own(&it.name) && is_quiet(round, it.call, it.at) => {
                    calls += 1;
                }
                Event::Missed { name, call, at, bound, outcome, .. } => {
                    let at = [*call, *at];
                    if is_own(name) && is_cut_off(round, process.number, at) {
                        found.count("short limits in an outage", 1);
                        if *outcome == Outcome::Not {
                            let text = format!(
                                "process {} was told that its own lock is taken",
                                process.number
                            );
                            found.violation("outage", name, at, text);
                        }
                    }
                    let is_short = *bound > 0 && *bound < SHORT;
                    if !is_quiet(round, at[0], at[1]) {
                        continue;
                    }
                    if is_own(name) {
                        calls += 1;
                        if *outcome == Outcome::Trouble {
                            failed.push((name, at));
                        }
                    } else if *outcome == Outcome::Trouble && at[1] - at[0] >= *bound {
                        // Count a call for several names once.
                        if cut.last().is_none_or(|(_, _, last)| *last != at) {
                            cut.push((name, process.number, at));
                        }
                    } else if *outcome == Outcome::Trouble && !is_short {
                        unprovoked(name, process.number, at, found);
                    }
                }
                Event::Stepped { name, call, at, bound, outcome: Outcome::Trouble, .. }
                    if *bound >= SHORT && is_quiet(round, *call, *at) =>
                {
                    let at = [*call, *at];
                    if at[1] - at[0] >= *bound {
                        cut.push((name, process.number, at));
                    } else {
                        unprovoked(name, process.number, at, found);
                    }
                }
                _ => {}
            }
        }
    }
    for hold in names.values().flatten() {
        match (hold.leaving, hold.left) {
            (Some([from, _]), Some((to, Outcome::Trouble))) if is_quiet(round, from, to) => {
                unprovoked(&hold.grant.name, hold.process, [from, to], found);
            }
            _ => {}
        }
    }
    if cut.len() as u64 > FEW {
        cut.into_iter().for_each(|(name, process, at)| unprovoked(name, process, at, found));
    }
    found.count("calls with short limits", calls);
    let count = failed.len() as u64;
    if count > FEW && count * CALLS > calls {
        let (name, at) = failed[0];
        let text = format!("{count} of {calls} calls with a limit of a few ms failed");
        found.violation("short limits", name, at, text);
    }
}

fn unprovoked(name: &str, process: u32, at: [u64; 2], found: &mut Findings) {
    let text = format!("process {process} was told of trouble, and there was none");
    found.violation("trouble", name, at, text);
}

/// Whether the network of this process was dead during this time, and for some time before.
fn is_cut_off(round: &Round, process: u32, [call, at]: [u64; 2]) -> bool {
    let outages = round.faults.iter().filter(|it| OUTAGES.contains(&&*it.kind));
    let covers = |from: u64, to: u64| from + ANSWERED + INEXACT < call && at + INEXACT < to;
    !process.is_multiple_of(2) && outages.into_iter().any(|it| covers(it.from, it.to))
}

#[cfg(test)]
mod tests {
    use super::super::testing::fault;
    use super::*;
    use crate::history::{Fault, Kind, Process};

    fn missed(name: &str, call: u64, bound: u64, outcome: Outcome) -> Event {
        let (kind, name) = (Kind::Reentrant, name.to_owned());
        Event::Missed { kind, name, call: ms(call), at: ms(call + 5), bound: ms(bound), outcome }
    }

    /// Returns the violations for process 1, which is behind the network.
    fn violations(events: Vec<Event>, faults: Vec<Fault>) -> Vec<&'static str> {
        let processes = vec![Process { number: 1, events, killed: None }];
        let mut found = Findings::default();
        check(&Round { processes, faults }, &BTreeMap::new(), &mut found);
        found.violations.iter().map(|it| it.check).collect()
    }

    #[test]
    fn trouble_without_a_cause_is_found() {
        let failed = missed("a", 9000, 300, Outcome::Trouble);
        assert_eq!(violations(vec![failed.clone()], Vec::new()), ["trouble"]);
        assert_eq!(violations(vec![failed], vec![fault(8000, 8001, None, false)]), [""; 0]);
        assert_eq!(violations(vec![missed("a", 9000, 9, Outcome::Trouble)], Vec::new()), [""; 0]);
    }

    #[test]
    fn many_calls_that_fail_at_the_end_of_their_limit_are_found() {
        let cut = |many: u64| (0..many).map(|at| missed("a", at, 5, Outcome::Trouble)).collect();
        assert_eq!(violations(cut(5), Vec::new()), [""; 0]);
        assert_eq!(violations(cut(6), Vec::new()), ["trouble"; 6]);
    }

    #[test]
    fn short_limits_that_fail_again_and_again_are_found() {
        let calls = |failed: u64, done: u64| {
            let failed = (0..failed).map(|at| missed("short-1", at, 5, Outcome::Trouble));
            failed.chain((0..done).map(|at| missed("short-1", at, 5, Outcome::Not))).collect()
        };
        assert_eq!(violations(calls(10, 1200), Vec::new()), ["short limits"]);
        assert_eq!(violations(calls(10, 2400), Vec::new()), [""; 0]);
        assert_eq!(violations(calls(5, 5), Vec::new()), [""; 0]);
    }

    #[test]
    fn an_outage_reported_as_a_taken_lock_is_found() {
        let frozen =
            || vec![Fault { kind: OUTAGES[0].to_owned(), ..fault(1000, 4000, None, false) }];
        let told = |at, outcome| violations(vec![missed("short-1", at, 5, outcome)], frozen());
        assert_eq!(told(2500, Outcome::Not), ["outage"]);
        assert_eq!(told(2500, Outcome::Trouble), [""; 0]);
        // The server answered at most a second ago.
        assert_eq!(told(1900, Outcome::Not), [""; 0]);
        assert_eq!(told(3900, Outcome::Not), [""; 0]);
    }
}
