//! A warning about a thread that waits for long while it holds another lock. It may be in a
//! deadlock: the holder of the one lock waits for the other. Such a deadlock does not end by
//! itself, since both clients renew their locks.

use std::time::Duration;

use log::Level;
use redlatch_client::sync::{Thread, clock};

use crate::runtime::Core;

/// Since when a thread sleeps, and whether the warning was logged.
#[derive(Debug, Default)]
pub(super) struct LongWait {
    /// Zero: it has not slept yet.
    since: u64,
    is_said: bool,
}

impl LongWait {
    /// The thread is about to sleep. Returns how long it may sleep before the next call of this.
    pub(super) fn goes_on(&mut self, core: &Core, name: &str, thread: &Thread) -> Duration {
        let Some(warns_after) = core.config.wait_warning.filter(|_| !self.is_said) else {
            return Duration::MAX;
        };
        let now = clock::now();
        if self.since == 0 {
            self.since = now;
        }
        let waited = Duration::from_nanos(now.saturating_sub(self.since));
        if waited < warns_after {
            return warns_after - waited;
        }
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
        Duration::MAX
    }
}
