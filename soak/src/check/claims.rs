//! The holders of a name never exceed its capacity. The check sorts the holds by time and counts
//! the holders.

use super::{Findings, Hold};
use crate::clock::ms;
use crate::history::{Fault, Kind};

/// Checks the holds of one name, sorted by the time of their grants. Readers, permits and exclusive
/// holders differ only in their weight and in the name's capacity.
pub(super) fn check(name: &str, holds: &[Hold], faults: &[Fault], found: &mut Findings) {
    let mut active: Vec<&Hold> = Vec::new();
    for hold in holds {
        let at = hold.grant.at;
        active.retain(|other| other.claims_until() > at);
        if hold.claims_until() == at {
            continue;
        }
        // The server stores only a count for permits without leases. If the count is lost, permits
        // from before the loss are still given back, so the count becomes too high.
        let is_count = hold.grant.kind == Kind::Semaphore;
        if is_count && holds[0].is_forgotten(faults, at) {
            found.count("permits of a lost count", 1);
            break;
        }
        active.push(hold);
        let weight = |it: &[&Hold]| it.iter().map(|hold| hold.grant.weight).sum::<u64>();
        if weight(&active) <= hold.grant.capacity {
            continue;
        }
        // The server may have lost some of the holds. The holders notice this loss at their next
        // renewal, or at the end of their lease at the latest.
        let remembered: Vec<_> =
            active.iter().copied().filter(|it| !excused(it, faults, at)).collect();
        if weight(&remembered) <= hold.grant.capacity {
            found.count("overlaps after a loss of data, told in time", 1);
            continue;
        }
        let first = active[0].grant.at;
        let lines: Vec<_> = active.iter().map(|hold| describe(hold)).collect();
        found.violation("claims", name, [first, at], lines.join("; "));
    }
}

fn excused(hold: &Hold, faults: &[Fault], at: u64) -> bool {
    let longest = hold.longest_lease() + ms(50);
    let mut forgets = faults.iter().filter(|it| it.forgets);
    forgets.any(|fault| {
        hold.began() <= fault.to && at >= fault.from && hold.claims_until() <= fault.to + longest
    })
}

fn describe(hold: &Hold) -> String {
    format!(
        "process {} hold {} claims {} of {} from {} to {}",
        hold.process,
        hold.grant.id,
        hold.grant.weight,
        hold.grant.capacity,
        hold.grant.at,
        hold.claims_until()
    )
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hold};
    use super::*;

    fn violations(holds: &[Hold], faults: &[Fault]) -> usize {
        let mut found = Findings::default();
        check("a", holds, faults, &mut found);
        found.violations.len()
    }

    #[test]
    fn holders_one_after_the_other_are_right() {
        assert_eq!(violations(&[hold(1, 0, 1, 5), hold(2, 0, 5, 9)], &[]), 0);
    }

    #[test]
    fn two_holders_at_once_are_found() {
        assert_eq!(violations(&[hold(1, 0, 1, 5), hold(2, 0, 4, 9)], &[]), 1);
    }

    #[test]
    fn a_claim_to_hold_ends_with_its_deadline_its_loss_or_its_process() {
        let next = hold(2, 0, 4, 9);
        let mut ended = hold(1, 0, 1, 50);
        ended.grant.until = ms(3);
        ended.leaving = Some([ms(50), 0]);
        assert_eq!(violations(&[ended.clone(), next.clone()], &[]), 0);
        // The hold was renewed, so it lasts longer.
        ended.seen.push([ms(2), ms(6)]);
        assert_eq!(violations(&[ended.clone(), next.clone()], &[]), 1);
        ended.lost = Some(ms(3));
        assert_eq!(violations(&[ended.clone(), next.clone()], &[]), 0);
        ended.lost = None;
        ended.killed = Some(ms(3));
        assert_eq!(violations(&[ended, next], &[]), 0);
    }

    #[test]
    fn readers_share_and_a_writer_does_not() {
        let weigh = |mut it: Hold, weight| {
            (it.grant.weight, it.grant.capacity) = (weight, 1000);
            it
        };
        let readers = [weigh(hold(1, 0, 1, 9), 1), weigh(hold(2, 0, 2, 8), 1)];
        assert_eq!(violations(&readers, &[]), 0);
        let [one, two] = readers;
        assert_eq!(violations(&[one, two, weigh(hold(3, 0, 3, 7), 1000)], &[]), 1);
    }

    #[test]
    fn a_forgotten_hold_is_excused_until_its_lease_is_over() {
        let mut old = hold(1, 0, 1, 200_000);
        let restart = fault(2, 3, None, true);
        let next = hold(2, 0, 4, 9);
        assert_eq!(violations(&[old.clone(), next.clone()], std::slice::from_ref(&restart)), 0);
        // A renewal after the loss at the server does not excuse the violation.
        old.leaving = Some([ms(200_000), ms(300_000)]);
        assert_eq!(violations(&[old.clone(), next.clone()], std::slice::from_ref(&restart)), 1);
        // A grant after the restart does not excuse the violation either.
        (old.grant.at, old.grant.until) = (ms(4), ms(100_004));
        assert_eq!(violations(&[old, next], &[restart]), 1);
    }

    #[test]
    fn a_lost_count_of_permits_is_not_checked_any_more() {
        let permits = |mut it: Hold| {
            it.grant.kind = Kind::Semaphore;
            it
        };
        let holds = [permits(hold(1, 0, 1, 9)), permits(hold(2, 0, 4, 9))];
        assert_eq!(violations(&holds, &[]), 1);
        assert_eq!(violations(&holds, &[fault(2, 3, None, true)]), 0);
    }
}
