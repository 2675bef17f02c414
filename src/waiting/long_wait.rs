//! Two warnings about a thread that waits for long.
//!
//! The one says who has the lock. The other is for a thread that holds another lock: it may be in a
//! deadlock, since the holder of the one lock waits for the other. Such a deadlock does not end by
//! itself, since both clients renew their locks.

use std::sync::Arc;
use std::time::Duration;

use log::Level;
use redlatch_client::sync::{Thread, clock};

use super::{Claim, Kind};
use crate::runtime::{Core, SLOW_LINES_SPACED};

/// Since when a thread sleeps, and which warnings were logged.
#[derive(Debug)]
pub(super) struct LongWait<'a> {
    core: &'a Core,
    name: &'a Arc<str>,
    thread: &'a Arc<Thread>,
    /// The kind, and how many.
    what: (Kind, u32),
    /// Zero: it has not slept yet.
    since: u64,
    is_told: bool,
    is_said: bool,
    /// For a snapshot.
    is_listed: bool,
}

/// A snapshot has the waits that last longer: a wait of a usual length costs nothing. (In a model a
/// sleep takes no time.)
const LISTED_AFTER: Duration = Duration::from_millis(if cfg!(models) { 3_600_000 } else { 100 });

impl<'a> LongWait<'a> {
    /// A latch, a barrier and an election are made to be waited for.
    pub(super) fn of<N>(
        (core, name): (&'a Core, &'a Arc<str>),
        what: (Kind, u32),
        claim: &Claim<'a, N>,
    ) -> Self {
        let is_usual = matches!(what.0, Kind::CountDownLatch | Kind::CyclicBarrier);
        let (thread, is_told) = (claim.thread, is_usual || claim.wait.is_usual);
        Self { core, name, thread, what, since: 0, is_told, is_said: false, is_listed: false }
    }

    /// The thread is about to sleep, as the process's queue's arrival of this number, or as its leader
    /// (0). Returns how long it may sleep before the next call of this.
    pub(super) fn goes_on(&mut self, arrival: u64) -> Duration {
        let Self { core, name, thread, .. } = *self;
        let tells_after = core.config.slow_wait.filter(|_| !self.is_told);
        let warns_after = core.config.wait_warning.filter(|_| !self.is_said);
        let now = clock::now();
        if self.since == 0 {
            self.since = now;
        }
        let waited = Duration::from_nanos(now.saturating_sub(self.since));
        let mut at_most = Duration::MAX;
        if waited < LISTED_AFTER {
            at_most = LISTED_AFTER - waited;
        } else {
            self.is_listed = true;
            let wait = (Arc::clone(name), self.what.0, Arc::clone(thread), arrival);
            core.waits.lock().insert((self.since, thread.id()), wait);
        }
        match tells_after.map(|after| after.saturating_sub(waited)) {
            Some(Duration::ZERO) if core.tells_slow_wait(name, self.what, waited) => {
                self.is_told = true;
            }
            Some(Duration::ZERO) => at_most = at_most.min(SLOW_LINES_SPACED),
            left => at_most = left.map_or(at_most, |left| left.min(at_most)),
        }
        match warns_after.map(|after| after.saturating_sub(waited)) {
            Some(Duration::ZERO) => self.warn(waited),
            left => at_most = left.map_or(at_most, |left| left.min(at_most)),
        }
        at_most
    }

    fn warn(&mut self, waited: Duration) {
        let Self { core, name, thread, .. } = *self;
        self.is_said = true;
        let held: Vec<_> =
            core.members.held_by(thread).iter().map(|held| format!("{held:?}")).collect();
        if !held.is_empty() {
            core.watchdog.log(Level::Warn, || {
                let seconds = (waited.as_secs_f64() * 10.0).round() / 10.0;
                format!(
                    "a thread has waited {seconds} s for {name:?} while holding {}: if the holder \
                     of the one waits for the other, neither wait ends by itself",
                    held.join(", ")
                )
            });
        }
    }
}

impl Drop for LongWait<'_> {
    fn drop(&mut self) {
        if self.is_listed {
            self.core.waits.lock().remove(&(self.since, self.thread.id()));
        }
    }
}
