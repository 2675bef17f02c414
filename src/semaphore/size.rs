//! The size that a client's handles give a semaphore at its first use.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use log::Level;

use crate::name::Name;
use crate::runtime::Core;
use crate::scripts::Trouble;

/// The size that one client's handles want for one semaphore.
///
/// The client may make the semaphore until a request for permits has found it, and never after
/// that: permits of this client may be taken then, and a new semaphore would not count them. (If a
/// failover loses the new semaphore before that request, the client makes it again.)
#[derive(Debug, Default)]
pub(crate) struct Size {
    wanted: OnceLock<u32>,
    /// Whether a request for permits has found the semaphore.
    is_met: AtomicBool,
    /// Whether a difference between two sizes was logged.
    is_told: AtomicBool,
}

impl Size {
    /// Notes the size that a handle wants. Only the first size is kept.
    pub(super) fn wants(&self, permits: u32, core: &Core, name: &Name) {
        let first = *self.wanted.get_or_init(|| permits);
        if first != permits {
            self.tell_another(permits, "another handle of this client wants", first, core, name);
        }
    }

    /// Notes that a request for permits has found the semaphore.
    pub(super) fn met(&self) {
        self.is_met.store(true, Ordering::Relaxed);
    }

    /// Makes the semaphore if a handle wants a size and there is no semaphore. `look` returns the
    /// number of permits that the server knows. `is_another` returns whether this number
    /// contradicts the wanted size. Several threads may call this at the same time, since `try_set`
    /// succeeds only once.
    pub(super) fn settle(
        &self,
        (core, name): (&Core, &Name),
        look: impl Fn() -> Result<Option<i64>, Trouble>,
        is_another: impl Fn(i64, i64) -> bool,
        try_set: impl FnOnce(u32) -> Result<bool, Trouble>,
    ) -> Result<(), Trouble> {
        let Some(wanted) = self.wanted.get().copied() else { return Ok(()) };
        if self.is_met.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut found = look()?;
        if found.is_none() {
            if try_set(wanted)? {
                return Ok(());
            }
            // Another client was faster.
            found = look()?;
        }
        if let Some(found) = found.filter(|found| is_another(*found, wanted.into())) {
            self.tell_another(wanted, "the server has", found, core, name);
        }
        Ok(())
    }

    fn tell_another(
        &self,
        wanted: u32,
        who: &str,
        found: impl Into<i64>,
        core: &Core,
        name: &Name,
    ) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let found = found.into();
            core.watchdog.log(Level::Warn, || {
                format!(
                    "a handle wants {wanted} permits of {name:?}, but {who} {found}: nothing was \
                     changed"
                )
            });
        }
    }
}
