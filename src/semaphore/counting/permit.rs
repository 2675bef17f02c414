//! Permits in a thread's hands.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::Semaphore;
use super::site::Giving;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::observer::{Event, Kind};

/// Permits that were taken. Dropping it gives them back.
///
/// The permit belongs to no thread and may be sent to another. A drop does not wait for the server:
/// the release is written, and one that fails is sent again in the background.
/// [`release`](Self::release) waits and reports.
///
/// ```no_run
/// use std::thread;
///
/// use redlatch::{Error, Semaphore};
///
/// fn fetch(downloads: &Semaphore) -> Result<(), Error> {
///     let mut permit = downloads.acquire_many(3)?;
///     if let Some(one) = permit.split(1) {
///         thread::spawn(move || drop(one)); // given back there
///     }
///     permit.release() // the other two; the server has said so
/// }
/// ```
#[must_use = "dropping the permit gives it back at once; bind it"]
pub struct Permit {
    pub(super) semaphore: Semaphore,
    pub(super) permits: u32,
    /// When it was taken, on [`clock`], if an observer wants to know.
    pub(super) since: u64,
}

impl Permit {
    /// How many permits it stands for.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Gives the permits back.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble, [`Protocol`](ErrorKind::Protocol)
    /// if its answer makes no sense: the release is sent again in the background until it is
    /// answered. [`Redis`](ErrorKind::Redis) too if too few replicas acknowledge it: the permits
    /// are given back then. [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// One round trip, and the wait for replicas that
    /// [`replica_acks`](crate::ClientBuilder::replica_acks) asks for; none if the permits are
    /// passed to threads of this process that wait.
    pub fn release(mut self) -> Result<(), Error> {
        let permits = std::mem::take(&mut self.permits);
        let site = &self.semaphore.site;
        site.core.check_process(&site.name)?;
        let done = site.give_back_as(permits, Giving::AwaitedForGood);
        self.tell_released(permits);
        done
    }

    /// Keeps the permits taken, until a caller uses [`Semaphore::release_many`].
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Splits `permits` off. `None`, and nothing is changed, if there are not so many.
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(Self { semaphore: self.semaphore.clone(), permits, since: self.since })
    }

    fn tell_released(&self, permits: u32) {
        let site = &self.semaphore.site;
        if permits > 0 && site.core.is_observed() {
            let held = Duration::from_nanos(clock::now().saturating_sub(self.since));
            let what = (Kind::Semaphore, permits);
            site.core.observe(|it| it.released(&Event::of(&site.name, what, held, ())));
        }
    }

    /// Takes another permit's permits into this one. No I/O, unless the caller drops a returned
    /// `other`.
    ///
    /// # Errors
    ///
    /// Gives `other` back, with nothing changed, if it is of another semaphore or client, or if
    /// there would be more than `u32::MAX`.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        let same = Arc::ptr_eq(&self.semaphore.site, &other.semaphore.site);
        match self.permits.checked_add(other.permits).filter(|_| same) {
            Some(sum) => {
                self.permits = sum;
                self.since = self.since.min(other.since);
                other.permits = 0;
                Ok(())
            }
            None => Err(other),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // In a forked child the permits are the parent's.
        if self.semaphore.site.core.is_forked() {
            return;
        }
        // Errors are logged, and the release is sent again.
        let _ = self.semaphore.site.give_back_as(self.permits, Giving::Posted);
        self.tell_released(self.permits);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("name", &self.semaphore.name())
            .field("permits", &self.permits)
            .finish()
    }
}
