//! Decides for how long a wait goes on although its requests fail.
//!
//! Each call measures an outage from its own first failure. A thread that queues behind a leader
//! measures from the failure that the leader reports to it. The outage is over for a call when the
//! server answers the call or its leader again. The next outage may last for the full time again.
//! An answer does not end a lack of replicas: the server still answers, and may refuse other
//! requests of the same wait. A lack of replicas is over when no request has failed for this reason
//! for as long as the lack may last.

use std::time::{Duration, Instant};

use crate::error::{Error, Passing};

/// The pause after a request that failed because of an outage.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause while too few replicas answer. The first pause is [`PAUSE`], and each further
/// pause is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The failures of one call so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Endurance {
    /// The time of the first failure of the present outage.
    out: Option<Instant>,
    unacknowledged: Option<Spell>,
}

#[derive(Clone, Copy, Debug)]
struct Spell {
    first: Instant,
    last: Instant,
    pause: Duration,
}

impl Endurance {
    /// Notes that at this time the server answered a request and refused no channel that the wait
    /// needs.
    pub(crate) fn answered(&mut self, at: Instant) {
        self.out.take_if(|since| *since <= at);
    }

    /// Takes a failed request. `Some`: the trouble may pass within `limit`, so the caller asks
    /// again after this pause. `None`: the failure ends the wait.
    pub(crate) fn failed(&mut self, error: &Error, limit: Duration) -> Option<Duration> {
        self.failed_at(Instant::now(), error.passing()?, limit)
    }

    fn failed_at(&mut self, now: Instant, trouble: Passing, limit: Duration) -> Option<Duration> {
        let (first, pause) = match trouble {
            Passing::Outage => (*self.out.get_or_insert(now), PAUSE),
            Passing::Unacknowledged => {
                let new = Spell { first: now, last: now, pause: PAUSE };
                let met = self.unacknowledged.get_or_insert(new);
                if now.saturating_duration_since(met.last) > limit {
                    *met = new;
                }
                met.last = now;
                let pause = met.pause;
                met.pause = (pause * 2).min(LONGEST_PAUSE);
                (met.first, pause)
            }
        };
        let left = limit.saturating_sub(now.saturating_duration_since(first));
        // The last request comes at the end of the limit.
        (!left.is_zero()).then(|| pause.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn after(seconds: f64, since: Instant) -> Instant {
        since + Duration::from_secs_f64(seconds)
    }

    /// The pauses of a new call after failures of one kind at these times, in seconds.
    fn pauses(trouble: Passing, at: &[f64]) -> Vec<Option<u128>> {
        let (mut endurance, begun) = (Endurance::default(), Instant::now());
        let mut pause = |at| endurance.failed_at(after(at, begun), trouble, LIMIT);
        at.iter().map(|at| pause(*at).map(|pause| pause.as_millis())).collect()
    }

    #[test]
    fn a_call_endures_failures_for_the_failover_timeout_from_its_first_one() {
        let at = [0.0, 30.0, 59.95, 60.0, 61.0];
        assert_eq!(pauses(Passing::Outage, &at), [Some(100), Some(100), Some(50), None, None]);
    }

    #[test]
    fn a_waiter_that_lacks_replicas_asks_less_and_less_often() {
        let at = [0.0, 0.1, 0.3, 0.7, 1.5, 2.5, 59.5, 60.5];
        let pauses = pauses(Passing::Unacknowledged, &at);
        let expected = [100, 200, 400, 800, 1_000, 1_000, 500].map(Some);
        assert_eq!(pauses, [&expected[..], &[None]].concat());
    }

    #[test]
    fn an_answer_ends_an_outage_but_not_a_lack_of_replicas() {
        let begun = Instant::now();
        for (trouble, goes_on) in [(Passing::Outage, true), (Passing::Unacknowledged, false)] {
            let mut endurance = Endurance::default();
            assert!(endurance.failed_at(begun, trouble, LIMIT).is_some());
            endurance.answered(after(1.0, begun));
            let pause = endurance.failed_at(after(60.0, begun), trouble, LIMIT);
            assert_eq!(pause.is_some(), goes_on, "{trouble:?}");
            // This failure comes long after the last one.
            assert!(
                endurance.failed_at(after(200.0, begun), Passing::Unacknowledged, LIMIT).is_some()
            );
        }
    }

    #[test]
    fn with_a_failover_timeout_of_zero_a_wait_ends_at_its_first_failure() {
        let mut endurance = Endurance::default();
        let trouble = [Passing::Outage, Passing::Unacknowledged];
        for trouble in trouble {
            assert_eq!(endurance.failed_at(Instant::now(), trouble, Duration::ZERO), None);
        }
    }
}
