//! The size that a client's handles give a semaphore at its first use.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use log::Level;

use crate::name::Name;
use crate::runtime::Core;
use crate::scripts::Trouble;

/// The size that handles want of one semaphore in one client.
///
/// It is set until the server has answered a request for permits with anything but "no such
/// semaphore", and never after that: permits of this client may be out then, and a semaphore that
/// was made anew would not know of them. (So a failover between the set and the request that
/// follows loses nothing.)
#[derive(Debug, Default)]
pub(crate) struct Size {
    wanted: OnceLock<u32>,
    /// Whether a request for permits has met the semaphore.
    is_met: AtomicBool,
    /// Whether the log has said that there is another size.
    is_told: AtomicBool,
}

impl Size {
    /// Notes the size that a handle wants. The first one counts.
    pub(super) fn wants(&self, permits: u32, core: &Core, name: &Name) {
        let first = *self.wanted.get_or_init(|| permits);
        if first != permits {
            self.tell_another(permits, "another handle of this client wants", first, core, name);
        }
    }

    /// Notes that a request for permits has met the semaphore.
    pub(super) fn met(&self) {
        self.is_met.store(true, Ordering::Relaxed);
    }

    /// Makes the semaphore, if its size is wanted and there is none. `look` returns how many
    /// permits there are, as far as the server knows; `is_another` whether they cannot belong to
    /// the wanted size. Several threads may do this at the same time, since only one of them makes
    /// it.
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
