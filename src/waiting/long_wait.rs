//! Two warnings about a thread that waits for long.
//!
//! The one says who has the lock. The other is for a thread that holds another lock: it may be in a
//! deadlock, since the holder of the one lock waits for the other. Such a deadlock does not end by
//! itself, since both clients renew their locks.

use std::sync::Arc;
use std::time::Duration;

use log::Level;
use redlatch_client::sync::{Thread, clock};

use super::{Kind, Wait};
use crate::runtime::{Core, Listed};

/// Since when a thread sleeps, and which warnings were logged.
#[derive(Debug)]
pub(super) struct LongWait {
    /// Zero: it has not slept yet.
    since: u64,
    is_told: bool,
    is_said: bool,
    kind: Kind,
    /// For a snapshot.
    listed: Option<Listed>,
}

/// A client says no more than one line about slow waits in this time: a crowd of waiters neither
/// fills the log nor has the server asked again and again.
const SPACED: Duration = Duration::from_secs(1);

/// A snapshot has the waits that last longer: a wait of a usual length costs nothing. (In a model a
/// sleep takes no time.)
const LISTED_AFTER: Duration = Duration::from_millis(if cfg!(models) { 3_600_000 } else { 100 });

impl LongWait {
    /// A latch, a barrier and an election are made to be waited for.
    pub(super) fn of(kind: Kind, wait: &Wait<'_>) -> Self {
        let is_usual = matches!(kind, Kind::CountDownLatch | Kind::CyclicBarrier);
        let is_told = is_usual || wait.is_usual;
        Self { since: 0, is_told, is_said: false, kind, listed: None }
    }

    /// The thread is about to sleep, as the process's queue's arrival of this number, or as its leader
    /// (0). Returns how long it may sleep before the next call of this.
    pub(super) fn goes_on(
        &mut self,
        core: &Core,
        name: &Arc<str>,
        thread: &Arc<Thread>,
        arrival: u64,
    ) -> Duration {
        let tells_after = core.config.slow_wait.filter(|_| !self.is_told);
        let warns_after = core.config.wait_warning.filter(|_| !self.is_said);
        let now = clock::now();
        if self.since == 0 {
            self.since = now;
        }
        let waited = Duration::from_nanos(now.saturating_sub(self.since));
        let mut at_most = Duration::MAX;
        match (LISTED_AFTER.saturating_sub(waited), &self.listed) {
            (_, Some(listed)) => listed.stands(arrival),
            (Duration::ZERO, None) => {
                let wait = (Arc::clone(name), self.kind, Arc::clone(thread), arrival);
                self.listed = Some(core.list_wait(self.since, wait));
            }
            (left, None) => at_most = left,
        }
        match tells_after.map(|after| after.saturating_sub(waited)) {
            Some(Duration::ZERO) if core.tells_slow_wait(name, waited, SPACED) => {
                self.is_told = true;
            }
            Some(Duration::ZERO) => at_most = at_most.min(SPACED),
            left => at_most = left.map_or(at_most, |left| left.min(at_most)),
        }
        match warns_after.map(|after| after.saturating_sub(waited)) {
            Some(Duration::ZERO) => self.warn(core, name, thread, waited),
            left => at_most = left.map_or(at_most, |left| left.min(at_most)),
        }
        at_most
    }

    fn warn(&mut self, core: &Core, name: &str, thread: &Thread, waited: Duration) {
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
