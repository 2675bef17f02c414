//! The guard of permits without leases.

use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::{clock, is_forked};

use super::Semaphore;
use super::site::Giving;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::observe::{Event, Kind};
use crate::runtime::Count;

/// One or more taken permits. Dropping this value gives the permits back.
///
/// A permit belongs to no thread and can be sent to another thread. Dropping it sends the release
/// and does not wait for the reply. If the release fails, the client repeats it in the background.
/// [`release`](Self::release) waits for the reply, and returns the error.
///
/// Only this guard gives the permits back. Do not also call [`Semaphore::release_forgotten`] for
/// them: the semaphore would then have more permits than before.
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
///     permit.release() // the other two; returns when the server has confirmed
/// }
/// ```
#[must_use = "dropping the permit gives it back at once; bind it"]
pub struct Permit {
    pub(super) semaphore: Semaphore,
    pub(super) permits: u32,
    /// The time of the acquisition, by [`clock`], if there is an observer.
    pub(super) since: u64,
}

impl Permit {
    /// Returns the semaphore's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.semaphore.name()
    }

    /// Returns the number of permits.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Gives the permits back.
    ///
    /// # Errors
    ///
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer,
    ///   [`Protocol`](ErrorKind::Protocol) if its reply is malformed. The client repeats the
    ///   release in the background.
    /// - [`TooFewReplicas`](ErrorKind::TooFewReplicas) if too few replicas acknowledge the release.
    ///   The permits are given back.
    /// - [`Forked`](ErrorKind::Forked) in a forked child: the permits belong to the parent.
    ///
    /// # Blocking
    ///
    /// One round trip, and the wait for replicas
    /// ([`replica_acks`](crate::ClientBuilder::replica_acks)). No round trip if waiting threads of
    /// this process get the permits.
    pub fn release(mut self) -> Result<(), Error> {
        let permits = std::mem::take(&mut self.permits);
        self.give_back(permits, Giving::AwaitedAndRepeated)
    }

    /// Leaves the permits taken, until a program calls [`Semaphore::release_forgotten`]. An
    /// [`Observer`](crate::observe::Observer) and the client's counts treat this call as a release.
    pub fn forget(mut self) {
        let permits = std::mem::take(&mut self.permits);
        if !is_forked() {
            self.tell_released(permits);
        }
    }

    /// Splits off `permits` permits. If this value has fewer permits, changes nothing and returns
    /// `None`.
    #[must_use]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(Self { semaphore: self.semaphore.clone(), permits, since: self.since })
    }

    /// Gives permits back. Fails in a forked child, because the permits belong to the parent.
    fn give_back(&self, permits: u32, giving: Giving) -> Result<(), Error> {
        let site = &self.semaphore.site;
        Error::if_forked(&site.name)?;
        let done = site.give_back_as(permits, giving);
        self.tell_released(permits);
        done
    }

    fn tell_released(&self, permits: u32) {
        let site = &self.semaphore.site;
        if permits > 0 {
            site.core.observe(Count::Released, permits, |it| {
                let held = clock::since(self.since);
                it.released(&Event::of(&site.name, (Kind::Semaphore, permits), held, ()));
            });
        }
    }

    /// Moves the permits of `other` into this value. No I/O.
    ///
    /// # Errors
    ///
    /// Returns `other` unchanged if it belongs to another semaphore or client, or if the sum would
    /// be more than `u32::MAX`.
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
        // If the release fails, the client logs the error, and sends the release again.
        let _ = self.give_back(self.permits, Giving::Posted);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish()
    }
}
