//! How a client tells its observer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;

use log::Level;

use super::Core;
use crate::observer::Observer;

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
}
