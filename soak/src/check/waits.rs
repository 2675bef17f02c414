//! No call takes longer than it may. Latches and conditions wake their waiters in time, and not too
//! early. No lock is idle while a call waits for it.

use std::collections::BTreeMap;

use super::{Findings, Hold, SLACK, barrier};
use crate::clock::ms;
use crate::history::{Event, Fault, Kind, Outcome, Round, Step};

/// If no fault is near, a message wakes a waiter within this time. If the message is lost, the
/// waiter's next regular request comes later.
const AT_ONCE: u64 = ms(2500);
/// The time after a fault in which wake-ups may be late. A client needs time for a reconnect and
/// for the slowest poll.
const AFTER: u64 = ms(6000);
/// A waiter for a lock sends a request every 1.2 s at the latest. So after half of the lost
/// messages, the lock is idle for longer than this time.
pub(super) const IDLE: u64 = ms(700);
/// If waits are late this many times in a round, a busy machine is not the reason.
pub(super) const OFTEN: usize = 3;

pub(super) struct Call<'a> {
    pub(super) process: u32,
    pub(super) step: Step,
    pub(super) call: u64,
    pub(super) at: u64,
    pub(super) number: u64,
    pub(super) outcome: Outcome,
    pub(super) name: &'a str,
}

pub(super) fn check(round: &Round, found: &mut Findings) {
    let mut names: BTreeMap<&str, Vec<Call<'_>>> = BTreeMap::new();
    for process in &round.processes {
        for event in &process.events {
            match event {
                Event::Missed { name, call, at, bound, outcome, .. } => {
                    if *outcome == Outcome::Wrong {
                        let text =
                            format!("process {} got an error of no expected kind", process.number);
                        found.violation("errors", name, [*call, *at], text);
                    }
                    bounded(round, process.number, name, [*call, *at], *bound, found);
                }
                Event::Stepped { step, name, call, at, bound, number, outcome } => {
                    found.count("calls of other kinds", 1);
                    bounded(round, process.number, name, [*call, *at], *bound, found);
                    names.entry(name).or_default().push(Call {
                        process: process.number,
                        step: *step,
                        call: *call,
                        at: *at,
                        number: *number,
                        outcome: *outcome,
                        name,
                    });
                }
                _ => {}
            }
        }
    }
    for calls in names.values() {
        latch(round, calls, found);
        condition(round, calls, found);
        barrier::check(round, calls, found);
        on_record(round, calls, found);
    }
}

/// Checks that a call with a limit ends at its limit, unless its process is paused.
fn bounded(
    round: &Round,
    process: u32,
    name: &str,
    times: [u64; 2],
    bound: u64,
    found: &mut Findings,
) {
    let [call, at] = times;
    let took = (at - call).saturating_sub(round.stopped(process, call, at));
    if bound > 0 && took > bound + SLACK {
        let text =
            format!("process {process}: a call took {} ms of {}", took / ms(1), bound / ms(1));
        found.violation("bounds", name, times, text);
    }
}

/// Checks that the leader on record is the process that leads.
fn on_record(round: &Round, calls: &[Call<'_>], found: &mut Findings) {
    for look in calls.iter().filter(|it| it.step == Step::Look) {
        if look.number == 1 && is_quiet(round, look.call, look.at) {
            let text = format!("process {} leads, and another one is on record", look.process);
            found.violation("on record", look.name, [look.call, look.at], text);
        }
    }
}

/// Whether no fault affected a process or a server between these times, or shortly before.
pub(super) fn is_quiet(round: &Round, from: u64, to: u64) -> bool {
    is_quiet_but(round, from, to, &[])
}

/// Like [`is_quiet`], but ignores faults of these kinds.
pub(super) fn is_quiet_but(round: &Round, from: u64, to: u64, kinds: &[&str]) -> bool {
    let counts = |it: &&Fault| !kinds.contains(&&*it.kind);
    !round.faults.iter().filter(counts).any(|it| it.from <= to && it.to + AFTER >= from)
}

fn latch(round: &Round, calls: &[Call<'_>], found: &mut Findings) {
    let downs = || calls.iter().filter(|it| it.step == Step::CountDown);
    for wait in calls.iter().filter(|it| it.step == Step::Wait) {
        let count = usize::try_from(wait.number).unwrap_or(usize::MAX);
        let first = calls.iter().map(|it| it.call).min().unwrap_or(0);
        // After the server has lost the latch, the latch is open.
        let mut lost = round.faults.iter().filter(|it| it.forgets_counts());
        let forgotten = lost.any(|it| it.from <= wait.at && it.to >= first);
        let begun = downs().filter(|it| it.call <= wait.at).count();
        if wait.outcome == Outcome::Done && begun < count && !forgotten {
            let text =
                format!("process {}: open after {begun} of {count} count-downs", wait.process);
            found.violation("latch, early", wait.name, [wait.call, wait.at], text);
        }
        let mut confirmed: Vec<_> =
            downs().filter(|it| it.outcome == Outcome::Done).map(|it| it.at).collect();
        confirmed.sort_unstable();
        let Some(open) = count.checked_sub(1).and_then(|last| confirmed.get(last)) else {
            continue;
        };
        let late = wait.at.saturating_sub(wait.call.max(*open));
        if matches!(wait.outcome, Outcome::Done | Outcome::Not)
            && late > AT_ONCE
            && is_quiet(round, first, wait.at)
        {
            let text = format!("process {}: it woke {} ms late", wait.process, late / ms(1));
            found.violation("latch, late", wait.name, [wait.call, wait.at], text);
        }
    }
}

/// Every notification wakes one waiter, and a waiter wakes only after a notification.
fn condition(round: &Round, calls: &[Call<'_>], found: &mut Findings) {
    let begin = calls.iter().map(|it| it.call).min().unwrap_or(0);
    let end = calls.iter().map(|it| it.at).max().unwrap_or(0);
    let is_certain =
        |it: &Call<'_>| matches!(it.outcome, Outcome::Done | Outcome::Not | Outcome::Cancelled);
    if !is_quiet(round, begin, end) || !calls.iter().all(is_certain) {
        return;
    }
    let sum = |step| calls.iter().filter(|it| it.step == step).map(|it| it.number).sum::<u64>();
    let (notified, woken) = (sum(Step::Notify), sum(Step::Sleep));
    if notified == woken {
        return;
    }
    let (name, text) = (calls[0].name, format!("{notified} were notified, {woken} woke"));
    let what = if woken > notified { "condition, early" } else { "condition, late" };
    found.violation(what, name, [begin, end], text);
}

/// Checks that a call that waits for a free lock gets the lock at once.
pub(super) fn idle(name: &str, holds: &[Hold], round: &Round, found: &mut Findings) {
    let is_lock = |it: &Hold| !matches!(it.grant.kind, Kind::Semaphore | Kind::Expirable);
    let mut idle = Vec::new();
    let mut over = 0;
    for hold in holds.iter().filter(|it| is_lock(it)) {
        let (free, at) = (over.max(hold.grant.call), hold.grant.at);
        if at.saturating_sub(free) > IDLE && over != 0 && is_quiet(round, free, at) {
            idle.push([free, at]);
        }
        over = over.max(hold.is_over()).max(hold.grant.at);
    }
    if idle.len() >= OFTEN {
        let text = format!(
            "{} times it was free for over {} ms while a call waited",
            idle.len(),
            IDLE / ms(1)
        );
        found.violation("idle lock", name, idle[0], text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hold};
    use super::*;
    use crate::history::Process;

    fn step(step: Step, call: u64, at: u64, number: u64, outcome: Outcome) -> Event {
        Event::Stepped {
            step,
            name: "a".to_owned(),
            call: ms(call),
            at: ms(at),
            bound: ms(10_000),
            number,
            outcome,
        }
    }

    fn violations(events: &[Event], faults: &[Fault]) -> Vec<&'static str> {
        let process = Process { number: 1, events: events.to_vec(), killed: None };
        let round = Round { processes: vec![process], faults: faults.to_vec() };
        let mut found = Findings::default();
        check(&round, &mut found);
        found.violations.iter().map(|it| it.check).collect()
    }

    #[test]
    fn a_latch_opens_with_its_last_count_down() {
        let down = |call| step(Step::CountDown, call, call + 1, 2, Outcome::Done);
        let wait = |at, outcome| step(Step::Wait, 0, at, 2, outcome);
        assert_eq!(violations(&[down(1), down(3), wait(5, Outcome::Done)], &[]), [""; 0]);
        let early = [down(1), down(30), wait(5, Outcome::Done)];
        assert_eq!(violations(&early, &[]), ["latch, early"]);
        assert_eq!(violations(&early, &[fault(2, 3, None, true)]), [""; 0]);
        let late = [down(1), down(3), wait(5000, Outcome::Not)];
        assert_eq!(violations(&late, &[]), ["latch, late"]);
        assert_eq!(violations(&late, &[fault(2, 3, None, false)]), [""; 0]);
    }

    #[test]
    fn each_notification_wakes_one() {
        let notify = step(Step::Notify, 5, 6, 1, Outcome::Done);
        let woken = step(Step::Sleep, 0, 8, 1, Outcome::Done);
        let slept = step(Step::Sleep, 0, 900, 0, Outcome::Not);
        assert_eq!(violations(&[notify.clone(), woken.clone(), slept.clone()], &[]), [""; 0]);
        assert_eq!(violations(&[notify, slept], &[]), ["condition, late"]);
        assert_eq!(violations(&[woken], &[]), ["condition, early"]);
    }

    #[test]
    fn a_call_that_outlasts_its_bound_is_found() {
        let long = step(Step::Wait, 0, 20_000, 2, Outcome::Not);
        assert_eq!(violations(std::slice::from_ref(&long), &[]), ["bounds"]);
        assert_eq!(violations(&[long], &[fault(1000, 19_000, Some(1), false)]), [""; 0]);
    }

    #[test]
    fn a_lock_that_lies_idle_again_and_again_is_found() {
        let late: Vec<_> = (0..5).map(|at| hold(1, 1, 1000 * at + 5, 1000 * at + 6)).collect();
        let mut found = Findings::default();
        idle("a", &late, &Round::default(), &mut found);
        assert_eq!(found.violations.len(), 1);
        let mut found = Findings::default();
        let unwanted: Vec<_> =
            (0..5).map(|at| hold(1, 1000 * at + 4, 1000 * at + 5, 1000 * at + 6)).collect();
        idle("a", &unwanted, &Round::default(), &mut found);
        assert_eq!(found.violations, []);
    }
}
