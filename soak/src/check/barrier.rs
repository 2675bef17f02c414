//! The parties of a barrier's generation pass together, or none of them passes. The parties wake at
//! once.
//!
//! A history does not record the generation of a call. Still, all calls of a generation overlap in
//! time, and each of these calls has its own index.

use super::waits::{Call, IDLE, OFTEN, is_quiet};
use super::{Findings, SLACK};
use crate::clock::ms;
use crate::history::{Outcome, Round, Step};
use crate::worker::PARTIES;

/// The time for which a dead party still counts: until its lease has ended and another party has
/// sent a request.
const DEAD: u64 = ms(3000) + SLACK;

pub(super) fn check(round: &Round, calls: &[Call<'_>], found: &mut Findings) {
    let arrivals = || calls.iter().filter(|it| it.step == Step::Arrive);
    let Some(first) = arrivals().map(|it| it.call).min() else { return };
    let last = arrivals().map(|it| it.at).max().unwrap_or(first);
    let name = calls[0].name;
    let mut forgets = round.faults.iter().filter(|it| it.forgets_counts());
    if forgets.any(|it| it.from <= last && it.to >= first) {
        return;
    }
    for call in arrivals().filter(|it| it.outcome == Outcome::Wrong) {
        let text = format!("process {} got an error of no expected kind", call.process);
        found.violation("errors", name, [call.call, call.at], text);
    }
    let passes: Vec<_> = arrivals().filter(|it| it.outcome == Outcome::Done).collect();
    found.count("passes of a barrier", passes.len() as u64);
    // An unknown party may have passed at any time, or not at all. A party that has left counts
    // until its request to leave has reached the server.
    let deaths = || round.processes.iter().filter_map(|it| it.killed);
    let is_unknown = |it: &&Call<'_>| matches!(it.outcome, Outcome::Trouble | Outcome::Unsure);
    let unknown = || arrivals().filter(is_unknown);
    let counts_for = |it: &Call<'_>| if is_quiet(round, it.call, it.at) { SLACK } else { DEAD };
    let has_died = |from: u64, to: u64| deaths().any(|at| at + DEAD >= from && at <= to + SLACK);
    let is_unsure = |from: u64, to: u64| {
        has_died(from, to) || unknown().any(|it| it.call <= to && it.at + counts_for(it) >= from)
    };
    for pass in &passes {
        let alone = (0..u64::from(PARTIES)).find(|index| {
            *index != pass.number && !passes.iter().any(|it| it.number == *index && meet(it, pass))
        });
        if let Some(index) = alone.filter(|_| !is_unsure(pass.call, pass.at)) {
            let (process, own) = (pass.process, pass.number);
            let text = format!("process {process} passed as {own}, and nobody as {index}");
            found.violation("barrier, apart", name, [pass.call, pass.at], text);
        }
        acted(calls, pass, found);
    }
    let count = |index: u64| passes.iter().filter(|it| it.number == index).count();
    let counts: Vec<_> = (0..u64::from(PARTIES)).map(count).collect();
    let most = counts.iter().max().copied().unwrap_or(0);
    // Each unknown party stands for at most one pass.
    let lacking = counts.iter().map(|it| most - it).sum::<usize>();
    if lacking > unknown().count() && !has_died(first, last) {
        let text = format!("of each index so many have passed: {counts:?}");
        found.violation("barrier, apart", name, [first, last], text);
    }
    late(round, &passes, found);
}

/// Whether the two calls overlap in time.
fn meet(one: &Call<'_>, other: &Call<'_>) -> bool {
    one.call <= other.at && other.call <= one.at
}

/// If the barrier has an action, no party passes before the action has run.
fn acted(calls: &[Call<'_>], pass: &Call<'_>, found: &mut Findings) {
    if !pass.name.contains("acts") {
        return;
    }
    let mut acts = calls.iter().filter(|it| it.step == Step::Act);
    if !acts.any(|it| it.call >= pass.call && it.at <= pass.at) {
        let text = format!("process {} passed, and no action has run", pass.process);
        found.violation("barrier, early", pass.name, [pass.call, pass.at], text);
    }
}

/// Checks that the last party wakes the other parties at once. This check needs no generations.
fn late(round: &Round, passes: &[&Call<'_>], found: &mut Findings) {
    let is_late = |pass: &&&Call<'_>| {
        let mut trips = passes.iter().filter(|it| it.number == 0 && meet(it, pass));
        pass.number > 0
            && trips.all(|it| it.at + IDLE < pass.at)
            && is_quiet(round, pass.call, pass.at)
    };
    let late: Vec<_> = passes.iter().filter(is_late).collect();
    if late.len() >= OFTEN {
        let text = format!("{} times a party woke over {} ms late", late.len(), IDLE / ms(1));
        found.violation("barrier, late", late[0].name, [late[0].call, late[0].at], text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::fault;
    use super::*;
    use crate::history::{Event, Fault, Process};

    fn step(step: Step, call: u64, at: u64, number: u64, outcome: Outcome) -> Event {
        let (call, at, bound) = (ms(call), ms(at), 0);
        Event::Stepped { step, name: "acts".to_owned(), call, at, bound, number, outcome }
    }

    fn pass(call: u64, at: u64, index: u64) -> Event {
        step(Step::Arrive, call, at, index, Outcome::Done)
    }

    fn violations(events: &[Event], faults: &[Fault], killed: Option<u64>) -> Vec<&'static str> {
        let process = |events, killed| Process { number: 1, events, killed };
        let processes = vec![process(events.to_vec(), None), process(Vec::new(), killed.map(ms))];
        let mut found = Findings::default();
        super::super::waits::check(&Round { processes, faults: faults.to_vec() }, &mut found);
        found.violations.iter().map(|it| it.check).collect()
    }

    fn act(at: u64) -> Event {
        step(Step::Act, at, at + 1, 0, Outcome::Done)
    }

    #[test]
    fn a_generation_whose_parties_pass_apart_is_found() {
        let all = [pass(100, 111, 2), pass(105, 112, 1), act(108), pass(107, 110, 0)];
        assert_eq!(violations(&all, &[], None), [""; 0]);
        // The party with index 1 is missing.
        let two = [all[0].clone(), all[2].clone(), all[3].clone()];
        assert!(violations(&two, &[], None).contains(&"barrier, apart"));
        assert_eq!(violations(&two, &[], Some(109)), [""; 0]);
        assert!(violations(&two, &[], Some(20_000)).contains(&"barrier, apart"));
        assert_eq!(violations(&two, &[fault(109, 110, None, true)], None), [""; 0]);
        let unknown = step(Step::Arrive, 105, 112, 0, Outcome::Trouble);
        assert_eq!(violations(&[&two[..], &[unknown]].concat(), &[], None), [""; 0]);
        // A party that is cancelled during a request stands for one pass, not for two.
        let left = step(Step::Arrive, 105, 106, 0, Outcome::Unsure);
        let one = [&two[..], &[left]].concat();
        assert_eq!(violations(&one, &[], None), [""; 0]);
        let more = [pass(200, 211, 2), act(208), pass(207, 210, 0)];
        assert_eq!(violations(&[&one[..], &more[..]].concat(), &[], None), ["barrier, apart"]);
        // The party's next call is in a later generation, whose other parties have passed.
        let more = [pass(100, 112, 1), pass(109, 111, 0), act(109), pass(106, 113, 0)];
        let more = [&all[..], &more[..]].concat();
        assert_eq!(violations(&more, &[], None), ["barrier, apart"]);
    }

    #[test]
    fn a_pass_before_the_action_is_found() {
        let all = [pass(100, 111, 2), pass(105, 112, 1), pass(107, 110, 0)];
        assert_eq!(violations(&all, &[], None), ["barrier, early"; 3]);
    }

    #[test]
    fn parties_that_wake_late_again_and_again_are_found() {
        let round = |at| {
            let late = [pass(at, at + 900, 2), pass(at, at + 12, 1), pass(at, at + 10, 0)];
            [&late[..], &[act(at + 5)]].concat()
        };
        let all: Vec<_> = (1..4).flat_map(|at| round(at * 1000)).collect();
        assert_eq!(violations(&all, &[], None), ["barrier, late"]);
        assert_eq!(violations(&all, &[fault(900, 901, Some(1), false)], None), [""; 0]);
    }
}
