//! The guard that a held lock is.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::Handle;
#[cfg(doc)]
use super::Lock;
use crate::error::{Error, ErrorKind};
use crate::hold::{HoldState, Leaving, LostReason, Tenancy, Terms};

/// A held lock. Dropping it releases the lock.
///
/// The hold belongs to the thread that took it: a guard is not `Send`. It keeps its client alive.
///
/// A drop does not wait for the server: the release is written, and a failure is logged and tried
/// again in the background. [`unlock`](Self::unlock) waits and reports.
#[must_use = "dropping the guard releases the lock at once; bind it, or use `with`"]
pub struct LockGuard {
    handle: Handle,
    tenancy: Arc<Tenancy>,
    terms: Terms,
    released: bool,
    _not_send: PhantomData<*const ()>,
}

impl LockGuard {
    pub(crate) fn new(handle: &Handle, tenancy: Arc<Tenancy>, terms: Terms) -> Self {
        let handle = handle.clone();
        Self { handle, tenancy, terms, released: false, _not_send: PhantomData }
    }

    /// Whether the lock is held, as far as this process can know without asking: neither released
    /// nor lost, and before the deadline that the server last confirmed. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.tenancy.is_held()
    }

    /// What is known of the hold. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.tenancy.state()
    }

    /// For how long the lock is certainly held if no renewal succeeds any more; zero if it is
    /// lost. No I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.tenancy.remaining()
    }

    /// Fails unless the lock is certainly held for `slack` more: what to ask before each step that
    /// must not be done without the lock and takes no longer than that. No I/O.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the hold is lost or too near to its end.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        let name = &self.handle.site.name;
        match self.state() {
            HoldState::Lost(reason) => Err(Error::lost(name, reason)),
            HoldState::Released => Err(self.handle.site.not_held_by_thread()),
            HoldState::Held | HoldState::Unconfirmed => {
                let remaining = self.remaining();
                if remaining >= slack && !remaining.is_zero() {
                    return Ok(());
                }
                let message = format!(
                    "the hold is certain for {remaining:?} more and not for {slack:?}; it is still \
                     held, stop in time or take a longer lease"
                );
                Err(Error::new(ErrorKind::LeaseLost, message).of(name))
            }
        }
    }

    /// Has `callback` called once if the hold is lost before it is released: at the lease's end,
    /// at a renewal that the server answers with "not yours", at a `force_unlock` by this client.
    /// If it is lost already, soon after this call. A loss that nobody knows of before
    /// [`unlock`](Self::unlock) asks the server is told by its error alone.
    ///
    /// It runs on a thread of the client's, one callback after the other, so it should be short.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        if let Some((reason, callback)) = self.tenancy.on_lost(Box::new(callback)) {
            let site = &self.handle.site;
            site.core.watchdog.tell_lost(&site.name, reason, vec![callback]);
        }
    }

    /// Releases the lock, or one level of it.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the hold was lost before: whoever has the lock now
    /// keeps it. [`NotHeld`](ErrorKind::NotHeld) if all levels were released before: levels are
    /// counted, not told apart, so after a [`Lock::unlock`] it is the last guard that finds none.
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble: this thread no longer holds the
    /// lock, and its release is tried again in the background, so that others get it at the latest
    /// when the lease ends.
    ///
    /// # Blocking
    ///
    /// One round trip. None for an inner level, or where the hold is passed to a thread of this
    /// process that waits for it.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.released = true;
        self.handle.site.leave(&self.tenancy, Some(self.terms), Leaving::Awaited)
    }

    /// Lets go of the guard and keeps the lock, until [`Lock::unlock`] on the same thread, the end
    /// of the client, or (once the thread has ended) the end of the lease.
    pub fn forget(mut self) {
        self.released = true;
        let site = &self.handle.site;
        site.gate.keep(&self.tenancy, Arc::clone(site));
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.site.name
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            // Lost or released otherwise: `on_lost` and the log have said so.
            let _ = self.handle.site.leave(&self.tenancy, Some(self.terms), Leaving::Posted);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .finish()
    }
}
