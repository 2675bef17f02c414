//! Decides when a hold is renewed or raised, and when it is over. The functions compute the next
//! step from the state of a hold and the time. This file reads no clock.
//! ```text
//! granted by reply    0 ------ 1/3: renewed ------ 1/3 later: again ... deadline: lost
//! granted by message  0 - 50 ms: raised - as above ... 2 s, if it was not raised: lost
//! ```

use std::time::Duration;

use redlatch_client::ReplicaAcks;
use redlatch_client::sync::clock;

pub(crate) use super::deadline::PROVISIONAL;
#[cfg(not(soak_mutants))]
pub(crate) use super::deadline::deadline;
use super::deadline::drift;
use crate::config::Config;

// Times of a lease are in nanoseconds, or are divisors of a lease: `3` is a third. The assertions
// below check how these constants depend on each other.

const MS: u64 = 1_000_000;

/// A lease is renewed when this part of it has passed. A hold that ends before then needs no
/// renewal. The remaining time is enough for three slow failed attempts. A hold with a fixed lease
/// asks whether others wait when this part of the lease has passed since it last asked, if a thread
/// wants to know. (The reply to a renewal says the same.)
pub(crate) const RENEW_AFTER: u64 = 3;
/// A renewal may be sent early by this part of the lease, so that renewals that are due at about
/// the same time share a call.
const EARLY_BY: u64 = 64;
/// A failed renewal is tried again after this part of the lease. The pause doubles after each
/// failure, up to sixteen times its first length.
const RETRY_AFTER: u64 = 200;
const MAX_DOUBLINGS: u32 = 4;
/// A renewal waits for its reply for this part of the lease. After that time, a new attempt on a
/// new connection is more likely to succeed.
const REPLY_WAIT: u32 = 6;
/// If replicas must acknowledge renewals, the wait for the reply is longer by this part of the
/// wait.
const REPLICA_WAIT: u32 = 4;
/// A hold that was granted by message has a short lease at first. After this time, a renewal raises
/// it to the lease that its thread wants. A hold that ends before then needs no raise.
pub(crate) const RAISE_AFTER: u64 = 50 * MS;
/// The maximum wait for the reply to a raise. A failed raise is tried again after
/// `RAISE_RETRY_AFTER`.
pub(crate) const RAISE_TIMEOUT: Duration = Duration::from_millis(500);
const RAISE_RETRY_AFTER: u64 = 400 * MS;

/// A hold's key is tracked after this time, so that the server reports the hold's loss. A hold that
/// ends before then needs no tracking.
pub(crate) const TRACK_AFTER: u64 = 100 * MS;

/// A keep-alive of a fair lock's waiter is valid for a limited time. The client sends this many
/// keep-alives in that time. After a failed keep-alive, the pause is divided by `KEEP_ALIVE_RETRY`.
pub(crate) const KEEP_ALIVES: u32 = 3;
pub(crate) const KEEP_ALIVE_RETRY: u32 = 2;

const _: () = {
    // All the constants above divide this lease.
    const LEASE: u64 = 1_000 * 3 * 64;
    let reply_wait = LEASE / REPLY_WAIT as u64;
    let reply_wait = reply_wait + reply_wait / REPLICA_WAIT as u64;
    let attempts = 3 * reply_wait + (1 + 2) * (LEASE / RETRY_AFTER);
    assert!(
        attempts + drift(LEASE) < LEASE - LEASE / RENEW_AFTER,
        "three attempts that each have no reply end before the deadline"
    );
    assert!(LEASE / EARLY_BY < LEASE / RENEW_AFTER, "a short hold costs no renewal");
    assert!(
        (1 << MAX_DOUBLINGS) * (LEASE / RETRY_AFTER) < reply_wait,
        "the longest pause costs no attempt"
    );
    assert!(
        RAISE_AFTER + 2 * (RAISE_TIMEOUT.as_millis() as u64 * MS + RAISE_RETRY_AFTER)
            < PROVISIONAL - drift(PROVISIONAL),
        "three attempts to raise a hold are made before it ends"
    );
    assert!(
        KEEP_ALIVE_RETRY + 1 < KEEP_ALIVES * KEEP_ALIVE_RETRY,
        "a waiter whose keep-alive failed gives the next one in time"
    );
};

/// Returns the time for which a renewal waits for its reply.
pub(crate) fn reply_wait(watchdog_timeout: Duration) -> Duration {
    (watchdog_timeout / REPLY_WAIT).max(Duration::from_millis(10))
}

/// Returns how many replicas must acknowledge a renewal, and how long to wait for them.
pub(crate) fn acks(config: &Config) -> Option<ReplicaAcks> {
    let longest = reply_wait(config.watchdog_timeout) / REPLICA_WAIT;
    config.replica_acks.map(|acks| ReplicaAcks { within: acks.within.min(longest), ..acks })
}

/// Computes the deadline with a planted bug, which the soak must find.
#[cfg(soak_mutants)]
pub(crate) fn deadline(sent_at: u64, lease: Duration) -> u64 {
    use crate::scripts::mutants;

    let sent_at = match () {
        () if mutants::is("a deadline counted from the reply") => clock::now(),
        () if mutants::is("a deadline past the lease") => sent_at + clock::nanos(lease) / 8,
        () => sent_at,
    };
    super::deadline::deadline(sent_at, lease)
}

/// The renewal state of a hold. Times are on [`clock`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenewalState {
    /// The time at which the hold was granted, or was last passed to another thread.
    pub(crate) taken_at: u64,
    /// The time at which the thread that wants renewals took the hold.
    pub(crate) watched_since: u64,
    pub(crate) deadline: u64,
    /// Whether the hold was granted by message and has not been raised yet.
    pub(crate) is_provisional: bool,
    /// The lease to which the hold is renewed. `None` if no living thread wants renewals.
    pub(crate) watched: Option<Duration>,
    /// The fixed lease of the hold's request, if it has one.
    pub(crate) fixed: Option<Duration>,
    pub(crate) progress: RenewalProgress,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RenewalProgress {
    /// No renewal has been sent yet, or the last renewal succeeded.
    #[default]
    Done,
    /// A renewal was sent and has no reply yet. Just before it, `failed` renewals in a row failed.
    Sent { failed: u32 },
    /// The last renewal failed, or must be followed by another renewal. `failed` is the number of
    /// renewals that have failed in a row, and `again` is the time of the next attempt.
    Failed { failed: u32, again: u64 },
}

/// When the next renewal or query is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) at: u64,
    /// The lease to request at the time of the step. `None`: the hold ends at that time.
    pub(crate) lease: Option<Duration>,
}

impl RenewalState {
    pub(crate) fn next(&self, config: &Config, now: u64) -> Due {
        let end = Due { at: self.deadline, lease: None };
        let age = now.saturating_sub(self.watched_since);
        let is_past_max_hold = config.max_hold.is_some_and(|longest| age >= clock::nanos(longest));
        let watched = self.watched.filter(|_| !is_past_max_hold);
        // A fixed lease is not shortened, even if its thread has died.
        let (first, lease) = if self.is_provisional && (watched.is_some() || self.fixed.is_some()) {
            let watched = watched.unwrap_or_default();
            // A hold that was granted by message is raised once. A fixed lease counts from
            // `taken_at`.
            let spent = Duration::from_nanos(now.saturating_sub(self.taken_at));
            let fixed = self.fixed.unwrap_or_default().saturating_sub(spent);
            let lease = watched.max(fixed);
            let after = RAISE_AFTER.min(clock::nanos(lease) / RENEW_AFTER);
            (self.taken_at.saturating_add(after), lease)
        } else if let Some(watched) = watched {
            let lease = clock::nanos(watched);
            let step = (lease / EARLY_BY).max(MS);
            let left = lease / RENEW_AFTER * (RENEW_AFTER - 1);
            (self.deadline.saturating_sub(left) / step * step, watched)
        } else {
            return end;
        };
        let at = match self.progress {
            RenewalProgress::Done => first,
            RenewalProgress::Sent { .. } => return end,
            RenewalProgress::Failed { again, .. } => again,
        };
        if at < self.deadline { Due { at, lease: Some(lease) } } else { end }
    }
}

impl RenewalProgress {
    pub(crate) fn is_sent(self) -> bool {
        matches!(self, Self::Sent { .. })
    }

    /// Returns the progress after a renewal that must be followed by another renewal.
    pub(crate) fn renew_again(now: u64) -> Self {
        Self::Failed { failed: 0, again: now }
    }

    pub(crate) fn after_sending(self) -> Self {
        Self::Sent { failed: self.failures() }
    }

    /// Returns the progress after a renewal for this lease has failed at `now`. The next attempt
    /// follows after a short pause, and the pauses grow until the deadline.
    pub(crate) fn after_failure(self, is_provisional: bool, lease: Duration, now: u64) -> Self {
        let failed = self.failures();
        let pause = if is_provisional {
            RAISE_RETRY_AFTER
        } else {
            (clock::nanos(lease) / RETRY_AFTER).max(MS) << failed.min(MAX_DOUBLINGS)
        };
        Self::Failed { failed: failed.saturating_add(1), again: now.saturating_add(pause) }
    }

    fn failures(self) -> u32 {
        match self {
            Self::Done => 0,
            Self::Sent { failed } | Self::Failed { failed, .. } => failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientBuilder;

    const SECOND: u64 = 1_000 * MS;
    /// A hold that was granted by a reply one second after the clock began.
    const WATCHED: RenewalState = RenewalState {
        taken_at: SECOND,
        watched_since: SECOND,
        deadline: 31 * SECOND,
        is_provisional: false,
        watched: Some(seconds(30)),
        fixed: None,
        progress: RenewalProgress::Done,
    };
    const HANDED: RenewalState =
        RenewalState { deadline: 3 * SECOND, is_provisional: true, ..WATCHED };
    const FIXED: RenewalState = RenewalState { watched: None, fixed: Some(seconds(30)), ..WATCHED };
    const SENT: RenewalProgress = RenewalProgress::Sent { failed: 0 };
    const FAILED: RenewalProgress = RenewalProgress::Failed { failed: 1, again: 12 * SECOND };

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn config() -> Config {
        ClientBuilder::new("redis://localhost").config
    }

    #[test]
    fn the_next_step_follows_from_the_last_answer() {
        // A third of the lease has passed at 11 s. The time is rounded down to a 64th of the lease.
        let third = 11 * SECOND / (30 * SECOND / 64) * (30 * SECOND / 64);
        let lease = |seconds| Some(Duration::from_secs(seconds));
        let raised = SECOND + 50 * MS;
        for (what, renewal_state, now, at, asked) in [
            ("watched", WATCHED, 1, third, lease(30)),
            (
                "watched, for a lease of its own",
                RenewalState { watched: Some(seconds(6)), deadline: 7 * SECOND, ..WATCHED },
                1,
                3 * SECOND / (6 * SECOND / 64) * (6 * SECOND / 64),
                lease(6),
            ),
            (
                "watched, for a longer lease from now on",
                RenewalState { deadline: 3 * SECOND, ..WATCHED },
                1,
                0,
                lease(30),
            ),
            ("on its way", RenewalState { progress: SENT, ..WATCHED }, 11, 31 * SECOND, None),
            ("failed", RenewalState { progress: FAILED, ..WATCHED }, 11, 12 * SECOND, lease(30)),
            (
                "failed, and over before it is tried again",
                RenewalState { progress: FAILED, deadline: 12 * SECOND, ..WATCHED },
                11,
                12 * SECOND,
                None,
            ),
            ("given up", RenewalState { watched: None, ..WATCHED }, 1, 31 * SECOND, None),
            ("held for longer than max_hold", WATCHED, 41, 31 * SECOND, None),
            ("fixed", FIXED, 1, 31 * SECOND, None),
            ("fixed, and watched by an inner level", FIXED.watched(), 1, third, lease(30)),
            ("handed on", HANDED, 1, raised, lease(30)),
            (
                "handed on and given up",
                RenewalState { watched: None, ..HANDED },
                1,
                3 * SECOND,
                None,
            ),
            ("handed on, fixed", FIXED.handed(), 1, raised, lease(30)),
            ("handed on, fixed, a second later", FIXED.handed(), 2, raised, lease(29)),
            ("handed on, fixed and watched", FIXED.handed().watched(), 2, raised, lease(30)),
            (
                "handed on, read when it is almost over",
                RenewalState { deadline: raised, ..HANDED },
                1,
                raised,
                None,
            ),
            ("being raised", RenewalState { progress: SENT, ..HANDED }, 2, 3 * SECOND, None),
        ] {
            let config = Config { max_hold: Some(seconds(40)), ..config() };
            assert_eq!(
                renewal_state.next(&config, now * SECOND),
                Due { at, lease: asked },
                "{what}"
            );
        }
    }

    impl RenewalState {
        fn watched(self) -> Self {
            Self { watched: Some(seconds(30)), ..self }
        }

        fn handed(self) -> Self {
            Self { deadline: 3 * SECOND, is_provisional: true, ..self }
        }
    }

    #[test]
    fn a_failed_renewal_is_tried_again_at_once_and_then_later_and_later() {
        let mut progress = RenewalProgress::Done;
        for (failed, pause) in (1..).zip([150, 300, 600, 1_200, 2_400, 2_400]) {
            progress = progress.after_sending().after_failure(false, seconds(30), SECOND);
            assert_eq!(progress, RenewalProgress::Failed { failed, again: SECOND + pause * MS });
        }
        let raising =
            RenewalProgress::Done.after_sending().after_failure(true, seconds(30), SECOND);
        assert_eq!(raising, RenewalProgress::Failed { failed: 1, again: SECOND + 400 * MS });
    }

    #[test]
    fn a_deadline_is_before_the_servers_and_never_overflows() {
        assert!(deadline(0, Duration::from_millis(1)) <= MS);
        assert!(deadline(0, Duration::from_micros(1_999)) <= MS);
        assert!(deadline(0, seconds(30)) < 30 * SECOND);
        assert!(deadline(0, seconds(30)) > 29_900 * MS);
        assert_eq!(deadline(u64::MAX - 1, seconds(1)), u64::MAX);
    }

    #[test]
    fn the_scripts_grant_for_the_time_that_is_expected_here() {
        let mut lines = include_str!("../../lua/prelude.lua").lines();
        let text = lines.find_map(|line| line.strip_prefix("local PROVISIONAL = "));
        assert_eq!(text.unwrap().parse(), Ok(PROVISIONAL / MS));
    }
}
