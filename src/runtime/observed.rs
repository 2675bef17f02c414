//! How a client tells its observer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use log::Level;
use redlatch_client::Limit;
use redlatch_client::sync::clock;

use super::Core;
use crate::observer::Observer;

/// How long the question may take who makes a waiter wait.
const ASKS_FOR: Duration = Duration::from_secs(1);

impl Core {
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.config.observer.0.is_some()
    }

    /// Tells the observer, if there is one, on this thread: a caller's, with no mutex held.
    #[inline]
    pub(crate) fn observe(&self, tell: impl FnOnce(&dyn Observer)) {
        let Some(observer) = &self.config.observer.0 else { return };
        if catch_unwind(AssertUnwindSafe(|| tell(&**observer))).is_err() {
            self.watchdog.log(Level::Error, || "an observer panicked".to_owned());
        }
    }

    /// The same, on the callbacks' thread, after all that it was told there before.
    pub(crate) fn observe_soon(&self, tell: impl FnOnce(&dyn Observer) + Send + 'static) {
        if self.is_observed() {
            // Weak: the core has the queue that this waits in.
            let core = Weak::clone(&self.itself);
            self.watchdog.call(move || drop(core.upgrade().inspect(|core| core.observe(tell))));
        }
    }

    /// A thread has waited for so long: the log says why, once the server has been asked on the
    /// callbacks' thread. `false`: not so soon after the last such line.
    pub(crate) fn tells_slow_wait(
        &self,
        name: &Arc<str>,
        waited: Duration,
        spaced: Duration,
    ) -> bool {
        let (now, next) = (clock::now(), self.next_slow.load(Ordering::Relaxed));
        let after = now.saturating_add(clock::nanos(spaced));
        let (relaxed, may) = (Ordering::Relaxed, now >= next);
        if !may || self.next_slow.compare_exchange(next, after, relaxed, relaxed).is_err() {
            return false;
        }
        let (core, name) = (Weak::clone(&self.itself), Arc::clone(name));
        self.watchdog.call(move || {
            if let Some(core) = core.upgrade()
                && let Some(line) = core.slow_line.get()
            {
                // Other callbacks wait behind this.
                let _limited = Limit::set(Limit::new(Instant::now().checked_add(ASKS_FOR), None));
                core.watchdog.log(Level::Warn, || line(&core, &name, waited));
            }
        });
        true
    }
}
