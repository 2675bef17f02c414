//! Every loss is reported to the holder.

use super::{Findings, Hold, SLACK};
use crate::history::{Outcome, Round};

/// Checks that the callback was called if the guard reported the loss of its hold. If a release
/// detects the loss, its error reports the loss, and no callback is called.
pub(super) fn check(name: &str, holds: &[Hold], round: &Round, found: &mut Findings) {
    for hold in holds {
        let Some([end, until]) = hold.leaving else { continue };
        let is_lost = until == 0;
        if is_lost || matches!(hold.left, Some((_, Outcome::Lost))) {
            found.count("losses", 1);
        }
        // A process that is killed soon after the loss has no time to report it.
        let is_dead = hold.killed.is_some_and(|at| at < end + SLACK);
        if !is_lost || !hold.grant.is_watched || is_dead {
            continue;
        }
        // The loss was reported late, or never.
        let told = hold.lost.unwrap_or(u64::MAX);
        let late = told.saturating_sub(end);
        if late > SLACK + round.stopped(hold.process, end, told.min(end + 10 * SLACK)) {
            let (process, id) = (hold.process, hold.grant.id);
            let text = format!("process {process} hold {id} was lost; told at {told}");
            found.violation("untold loss", name, [hold.grant.at, end], text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::hold;
    use super::*;
    use crate::clock::ms;

    #[test]
    fn a_loss_without_a_callback_is_found() {
        let violations = |hold: &Hold| {
            let mut found = Findings::default();
            check("a", std::slice::from_ref(hold), &Round::default(), &mut found);
            found.violations.len()
        };
        let mut it = hold(1, 0, 1, 5);
        assert_eq!(violations(&it), 0);
        it.left = Some((ms(6), Outcome::Lost));
        assert_eq!(violations(&it), 0);
        it.leaving = Some([ms(5), 0]);
        assert_eq!(violations(&it), 1);
        it.lost = Some(ms(7));
        assert_eq!(violations(&it), 0);
        it.lost = Some(ms(7000));
        assert_eq!(violations(&it), 1);
        it.killed = Some(ms(8));
        assert_eq!(violations(&it), 0);
    }
}
