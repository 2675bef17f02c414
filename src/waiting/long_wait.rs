//! The warning about a thread that has waited for a long time. The warning names the lock's holder,
//! and the locks that the waiting thread itself holds. If the holder waits for one of these locks,
//! the two threads are in a deadlock. A deadlock does not end by itself, because both clients renew
//! their locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redlatch_client::sync::{Thread, clock};

use super::wait::Claim;
use crate::name::Name;
use crate::observe::Kind;
use crate::runtime::{Core, SlowWait};

/// A wait, with the time of its first sleep and the state of its warning.
#[derive(Debug)]
pub(super) struct LongWait<'a> {
    core: &'a Core,
    name: &'a Name,
    thread: &'a Arc<Thread>,
    /// The kind of synchronizer, and the number of permits.
    what: (Kind, u32),
    /// The time of the first sleep. Zero if the thread has not slept yet.
    since: u64,
    /// Whether a long wait is normal. If so, the log reports only a possible deadlock.
    is_usual: bool,
    /// The length of a wait from which the log reports it. `None`: never.
    logged_after: Option<Duration>,
    /// `Some` when the wait has lasted long enough for the warning. The flag becomes true when the
    /// log has reported the wait, or when the wait is over.
    is_logged: Option<Arc<AtomicBool>>,
    /// Whether the wait is in the list for snapshots.
    is_listed: bool,
}

/// The length of a wait from which a snapshot lists it. A shorter wait is not registered, and so
/// costs nothing. (In a model a sleep takes no time.)
const LISTED_AFTER: Duration = Duration::from_millis(if cfg!(models) { 3_600_000 } else { 100 });

impl<'a> LongWait<'a> {
    /// Returns the state of a new wait. A long wait is normal for a latch, a barrier or an
    /// election.
    pub(super) fn of<N>(
        (core, name): (&'a Core, &'a Name),
        what: (Kind, u32),
        claim: &Claim<'a, N>,
    ) -> Self {
        let is_usual = claim.wait.is_usual || !what.0.has_holders();
        let (thread, logged_after) = (claim.thread, Some(core.config.slow_wait));
        let (is_logged, is_listed) = (None, false);
        Self { core, name, thread, what, since: 0, is_usual, logged_after, is_logged, is_listed }
    }

    /// Records that the thread is about to sleep. `arrival` is the thread's number in the process's
    /// queue, or zero for the leader. Returns the longest sleep: after that time, the thread must
    /// call `before_sleep` again.
    pub(super) fn before_sleep(&mut self, arrival: u64) -> Duration {
        let Self { core, name, thread, .. } = *self;
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
            let wait = (name.clone(), self.what.0, Arc::clone(thread), arrival);
            core.waits.lock().insert((self.since, thread.id()), wait);
        }
        if self.logged_after.is_some_and(|after| waited >= after) {
            self.logged_after = self.log_slow(waited);
        }
        self.logged_after.map_or(at_most, |after| at_most.min(after - waited))
    }

    /// Reports the wait in the log if it has lasted long enough. Returns the length of the wait at
    /// which the caller must call this again, or `None` if no further call is needed.
    fn log_slow(&mut self, waited: Duration) -> Option<Duration> {
        let Self { core, name, thread, what, .. } = *self;
        let is_logged = self.is_logged.get_or_insert_with(|| {
            // This closure runs once for each wait. The thread takes no other lock while it waits.
            core.log_deadlock(name, thread, waited);
            Arc::default()
        });
        if self.is_usual || is_logged.load(Ordering::Relaxed) {
            return None;
        }
        let wait = SlowWait { name: name.clone(), what, waited, is_logged: Arc::clone(is_logged) };
        core.log_slow_wait(wait).map(|later| waited.saturating_add(later))
    }

    /// Ends the wait. From here on, no snapshot lists the wait, and the log does not report it.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            self.core.waits.lock().remove(&(self.since, self.thread.id()));
        }
        if let Some(is_logged) = &self.is_logged {
            is_logged.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for LongWait<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
