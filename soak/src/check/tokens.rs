//! Fencing tokens increase with each grant.

use super::{Findings, Hold};
use crate::history::{Fault, Outcome};

/// Checks the holds of one name. Leaves out holds at the time of a loss of data, because the tokens
/// then begin again.
pub(super) fn check(name: &str, holds: &[Hold], faults: &[Fault], found: &mut Findings) {
    let forgets: Vec<_> = faults.iter().filter(|it| it.forgets_counts()).collect();
    let epoch = |hold: &Hold| {
        let (from, to) = (
            hold.began().min(hold.grant.call),
            hold.left.map_or_else(|| hold.claims_until(), |(at, _)| at),
        );
        let beside = forgets.iter().any(|it| from <= it.to && to >= it.from);
        (!beside).then(|| forgets.iter().filter(|it| it.to < from).count())
    };
    for number in 0..=forgets.len() {
        let epoch: Vec<_> = holds.iter().filter(|it| epoch(it) == Some(number)).collect();
        let mut by_token = epoch.clone();
        by_token.sort_by_key(|hold| hold.grant.token);
        for pair in by_token.windows(2) {
            if pair[0].grant.token == pair[1].grant.token {
                report(name, pair[0], pair[1], found);
            }
        }
        // The highest token of a hold that had ended before this call.
        let mut by_call = epoch.clone();
        by_call.sort_by_key(|hold| hold.grant.call);
        let over = |hold: &Hold| match hold.left {
            Some((at, Outcome::Done)) => at,
            _ => u64::MAX,
        };
        let mut by_end = epoch;
        by_end.sort_by_key(|hold| over(hold));
        let mut ended = by_end.into_iter().peekable();
        let mut highest: Option<&Hold> = None;
        for hold in by_call {
            while let Some(before) = ended.next_if(|it| over(it) < hold.grant.call) {
                if highest.is_none_or(|it| it.grant.token < before.grant.token) {
                    highest = Some(before);
                }
            }
            if let Some(before) = highest.filter(|it| it.grant.token >= hold.grant.token) {
                report(name, before, hold, found);
            }
        }
    }
}

fn report(name: &str, first: &Hold, second: &Hold, found: &mut Findings) {
    let tell =
        |it: &Hold| format!("process {} hold {} token {}", it.process, it.grant.id, it.grant.token);
    let text = format!("{}; then {}", tell(first), tell(second));
    let to = first.grant.at.max(second.grant.at);
    found.violation("tokens", name, [first.grant.at.min(second.grant.at), to], text);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{fault, hold};
    use super::*;
    use crate::history::LEASES_SHORTER;

    fn violations(tokens: [u64; 2], faults: &[Fault]) -> usize {
        let mut holds = [hold(1, 0, 1, 5), hold(2, 10, 11, 15)];
        (holds[0].grant.token, holds[1].grant.token) = (tokens[0], tokens[1]);
        let mut found = Findings::default();
        check("a", &holds, faults, &mut found);
        found.violations.len()
    }

    #[test]
    fn a_token_that_does_not_grow_is_found() {
        assert_eq!(violations([1, 2], &[]), 0);
        assert!(violations([2, 1], &[]) > 0);
        assert!(violations([2, 2], &[]) > 0);
    }

    #[test]
    fn tokens_begin_anew_with_the_data() {
        assert_eq!(violations([2, 1], &[fault(7, 8, None, true)]), 0);
        assert!(violations([2, 1], &[fault(7, 8, None, false)]) > 0);
    }

    #[test]
    fn tokens_grow_on_when_only_leases_ended() {
        let kind = LEASES_SHORTER.to_owned();
        assert!(violations([2, 1], &[Fault { kind, ..fault(7, 8, None, true) }]) > 0);
    }

    #[test]
    fn calls_at_the_same_time_may_get_tokens_in_any_order() {
        let mut holds = [hold(1, 0, 1, 5), hold(2, 2, 11, 15)];
        (holds[0].grant.token, holds[1].grant.token) = (2, 1);
        let mut found = Findings::default();
        check("a", &holds, &[], &mut found);
        assert_eq!(found.violations, []);
    }
}
