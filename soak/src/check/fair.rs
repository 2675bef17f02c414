//! A fair lock is granted in the order of arrival.

use super::{Findings, Hold};
use crate::clock::ms;
use crate::history::Round;

/// If a call begins this much later than another call, and no fault delays the two calls, the
/// earlier call is queued first.
const LATER: u64 = ms(400);
/// If a call is overtaken this many times, a busy machine is not the reason.
const MANY: usize = 3;
/// The time for which the queue may be out of order after a fault.
const AFTER: u64 = ms(5000);

pub(super) fn check(name: &str, holds: &[Hold], round: &Round, found: &mut Findings) {
    for (at, hold) in holds.iter().enumerate() {
        let (call, granted) = (hold.grant.call, hold.grant.at);
        let came_later = |other: &&Hold| other.grant.call > call + LATER;
        // The holds before this hold in the list were granted before it.
        let recent = holds[..at].iter().rev().take_while(|other| other.grant.at > call);
        let overtakers: Vec<_> = recent.filter(came_later).collect();
        if overtakers.len() < MANY
            || round.faults.iter().any(|it| it.from <= granted && it.to + AFTER >= call)
        {
            continue;
        }
        let text = format!(
            "{} calls that began {} ms and more after that of process {} hold {} were granted first",
            overtakers.len(),
            LATER / ms(1),
            hold.process,
            hold.grant.id
        );
        found.violation("fair order", name, [call, granted], text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hold};
    use super::*;

    #[test]
    fn calls_that_are_overtaken_again_and_again_are_found() {
        let mut holds: Vec<_> =
            (0..5).map(|at| hold(2, 1000 + 10 * at, 1005 + 10 * at, 1009 + 10 * at)).collect();
        holds.push(hold(1, 0, 2000, 2001));
        let mut round = Round::default();
        let mut found = Findings::default();
        check("a", &holds, &round, &mut found);
        assert_eq!(found.violations.len(), 1);
        // A paused waiter may be overtaken.
        round.faults.push(fault(500, 600, Some(1), false));
        check("a", &holds, &round, &mut found);
        assert_eq!(found.violations.len(), 1);
        let in_order: Vec<_> = (0..5).map(|at| hold(1, at, 1000 * at + 5, 1000 * at + 9)).collect();
        check("a", &in_order, &Round::default(), &mut found);
        assert_eq!(found.violations.len(), 1);
    }
}
