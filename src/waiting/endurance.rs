//! Decides for how long a wait continues although its requests fail.
//!
//! Each call measures an outage from its own first failure. If a thread queues behind a leader, it
//! measures from the first failure that the leader reports. For a call, the outage is over when the
//! server answers the call or its leader again. The next outage may then last for the full time.
//!
//! A lack of replicas is different: during a lack the server still answers, and may refuse the next
//! request of the same wait. So an answer does not end a lack. A lack is over when no request has
//! failed for this reason for a certain time: the time for which a lack may last, plus the time of
//! one request. The second term is needed because a request that waits for replicas in vain takes
//! its whole time. Without this term, one slow request could look like the end of the lack, and the
//! wait would never end.

use std::time::{Duration, Instant};

use redlatch_client::sync::Waker;
use redlatch_client::was_cut;

use super::wait::{Sleeper, Wait};
use crate::config::Config;
use crate::error::{Error, Passing};
use crate::name::Name;
use crate::runtime::Core;

/// The pause after a request that failed because of an outage.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum pause while too few replicas acknowledge requests. The first pause is [`PAUSE`], and
/// each further pause is twice as long as the previous pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The failures of one call so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Endurance {
    /// The time of the first failure of the present outage.
    out: Option<Instant>,
    unacknowledged: Option<Lack>,
    /// The longest time between two failures, if the call asks again after each failure.
    longest_request: Duration,
}

/// A lack of replicas: its first and its last failure, and the pause after the next failure.
#[derive(Clone, Copy, Debug)]
struct Lack {
    first: Instant,
    last: Instant,
    pause: Duration,
}

impl Endurance {
    /// Returns the state of a new call that asks through clients with these settings.
    pub(crate) fn new<'a>(configs: impl IntoIterator<Item = &'a Config>) -> Self {
        let longest = |config: &Config| {
            let acks = config.replica_acks.map_or(Duration::ZERO, |acks| acks.within);
            config.connection.response_timeout.saturating_add(acks).saturating_add(LONGEST_PAUSE)
        };
        let longest_request = configs.into_iter().map(longest).max().unwrap_or_default();
        Self { longest_request, ..Self::default() }
    }

    /// Records that the server answered a request at this time, and refused no channel that the
    /// wait needs.
    pub(crate) fn answered(&mut self, at: Instant) {
        self.out.take_if(|since| *since <= at);
    }

    /// Handles a failed request. Returns the pause after which the caller must ask again, if the
    /// trouble may pass within `limit`. Returns `None` if the failure ends the wait.
    pub(crate) fn failed(&mut self, error: &Error, limit: Duration) -> Option<Duration> {
        self.failed_at(Instant::now(), error.passing()?, limit)
    }

    fn failed_at(&mut self, now: Instant, trouble: Passing, limit: Duration) -> Option<Duration> {
        let (first, pause) = match trouble {
            Passing::Outage => (*self.out.get_or_insert(now), PAUSE),
            Passing::Unacknowledged => {
                let new = Lack { first: now, last: now, pause: PAUSE };
                let met = self.unacknowledged.get_or_insert(new);
                let quiet = now.saturating_duration_since(met.last);
                if quiet > limit.saturating_add(self.longest_request) {
                    *met = new;
                }
                met.last = now;
                let pause = met.pause;
                met.pause = (pause * 2).min(LONGEST_PAUSE);
                (met.first, pause)
            }
        };
        let left = limit.saturating_sub(now.saturating_duration_since(first));
        // Shorten the pause to the rest of the limit, so that the last request is sent at its end.
        (!left.is_zero()).then(|| pause.min(left))
    }
}

/// Sends a further request of a waiting call. During an outage, repeats the request as the driver
/// repeats the first request. The caller must have set the request's [limits](Wait::limits).
pub(crate) fn repeat_through_outage<T>(
    core: &Core,
    name: &Name,
    wait: &Wait<'_>,
    mut ask: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut endurance = Endurance::new([&core.config]);
    loop {
        let error = match ask() {
            Err(error) if wait.blocks() && !was_cut() => error,
            outcome => return outcome,
        };
        let Some(pause) = endurance.failed(&error, core.config.failover_timeout) else {
            return Err(error);
        };
        Sleeper::new((core, name), Waker::current(), wait).pause(pause)?;
        if wait.is_over() {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn after(seconds: f64, since: Instant) -> Instant {
        since + Duration::from_secs_f64(seconds)
    }

    /// Returns the pauses of a new call after failures of one kind at these times, in seconds.
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
        for (trouble, before_sleep) in [(Passing::Outage, true), (Passing::Unacknowledged, false)] {
            let mut endurance = Endurance::default();
            assert!(endurance.failed_at(begun, trouble, LIMIT).is_some());
            endurance.answered(after(1.0, begun));
            let pause = endurance.failed_at(after(60.0, begun), trouble, LIMIT);
            assert_eq!(pause.is_some(), before_sleep, "{trouble:?}");
            // The present failure comes long after the previous failure.
            assert!(
                endurance.failed_at(after(200.0, begun), Passing::Unacknowledged, LIMIT).is_some()
            );
        }
    }

    /// Each request waits for replicas for longer than a lack may last.
    #[test]
    fn a_request_that_takes_longer_than_a_lack_may_last_does_not_end_the_lack() {
        let begun = Instant::now();
        let longest_request = Duration::from_secs(5);
        let mut endurance = Endurance { longest_request, ..Endurance::default() };
        let limit = Duration::from_secs(1);
        let mut before_sleep =
            |at| endurance.failed_at(after(at, begun), Passing::Unacknowledged, limit).is_some();
        assert!(before_sleep(0.0));
        assert!(!before_sleep(2.0));
        assert!(before_sleep(9.0), "the last failure was long ago");
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
