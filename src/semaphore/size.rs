//! The size with which a client makes a semaphore that does not exist.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use log::Level;

use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::runtime::Core;
use crate::scripts::Trouble;

/// The size that one client's handles want for one semaphore.
///
/// The client makes the semaphore only as long as no request for permits has found it. After such a
/// request, the client may have taken permits, and a new semaphore would contain these permits
/// again. (If a failover loses the semaphore before such a request, the client makes it again.)
#[derive(Debug, Default)]
pub(crate) struct Size {
    wanted: OnceLock<u32>,
    /// Whether a request for permits has found the semaphore.
    is_found: AtomicBool,
    /// Whether a difference between two sizes was logged.
    difference_is_logged: AtomicBool,
}

impl Size {
    /// Records the `size` that a handle wants. The client uses the first recorded size. Fails if
    /// the caller asks for more `permits` than `size`: the semaphore never has that many.
    pub(super) fn record(
        &self,
        size: u32,
        permits: u32,
        (core, name): (&Core, &Name),
    ) -> Result<(), Error> {
        if permits > size {
            let message = format!(
                "{permits} permits are more than the {size} of `with_permits`, so the call could \
                 wait for ever; nothing was taken"
            );
            return Err(Error::new(ErrorKind::Config, message).of(name));
        }
        let first = *self.wanted.get_or_init(|| size);
        if first != size {
            let difference = format!("another handle of this client wants {first}");
            self.log_difference(size, &difference, core, name);
        }
        Ok(())
    }

    /// Records that a request for permits has found the semaphore.
    pub(super) fn record_found(&self) {
        self.is_found.store(true, Ordering::Relaxed);
    }

    /// Makes the semaphore if a handle wants a size and there is no semaphore. `read_size` reads
    /// the number of permits from the server, or `None` if there is no semaphore. If this number
    /// contradicts the wanted size, `describe_difference` returns a text for the log. Several
    /// threads may call this method at the same time: `try_set` succeeds for only one of them.
    pub(super) fn ensure_exists(
        &self,
        (core, name): (&Core, &Name),
        read_size: impl Fn() -> Result<Option<i64>, Trouble>,
        describe_difference: impl Fn(i64, i64) -> Option<String>,
        try_set: impl FnOnce(u32) -> Result<bool, Trouble>,
    ) -> Result<(), Trouble> {
        let Some(wanted) = self.wanted.get().copied() else { return Ok(()) };
        if self.is_found.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut found = read_size()?;
        if found.is_none() {
            if try_set(wanted)? {
                return Ok(());
            }
            // Another client has made the semaphore.
            found = read_size()?;
        }
        let difference = found.and_then(|found| describe_difference(found, wanted.into()));
        if let Some(difference) = difference {
            self.log_difference(wanted, &difference, core, name);
        }
        Ok(())
    }

    fn log_difference(&self, wanted: u32, difference: &str, core: &Core, name: &Name) {
        if !self.difference_is_logged.swap(true, Ordering::Relaxed) {
            core.watchdog.log(Level::Warn, || {
                format!(
                    "a handle wants {wanted} permits of {name:?}, but {difference}: nothing was \
                     changed"
                )
            });
        }
    }
}
