//! The guard of a permit with a lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::is_forked;

use super::ExpirableSemaphore;
use super::permit_lease::PermitLease;
use super::site::permits_of;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{HoldState, Tenancy};
use crate::scripts::PermitId;
use crate::semaphore::permits::PermitSource;

/// One permit of an [`ExpirableSemaphore`]. Dropping this guard gives the permit back.
///
/// A permit belongs to no thread and can be sent to another thread. While the guard lives, the
/// watchdog renews the lease, unless the lease is [fixed](ExpirableSemaphore::with_lease). The
/// guard reports the loss of its permit. If the guard is leaked ([`std::mem::forget`]), the permit
/// remains taken until [`Client::shutdown`](crate::Client::shutdown), or until
/// [`max_hold`](crate::ClientBuilder::max_hold) has passed.
///
/// Dropping the guard sends the release and does not wait for the reply. If the release fails, the
/// client repeats it in the background. [`release`](Self::release) waits, and returns the error.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Error, ExpirableSemaphore};
///
/// # fn fetch(_: u32) {}
/// fn work(connections: &ExpirableSemaphore) -> Result<(), Error> {
///     let permit = connections.acquire()?;
///     permit.on_lost(|why| eprintln!("stop: {why}"));
///     for part in 0..10 {
///         permit.check(Duration::from_secs(2))?; // certainly held for two seconds more
///         fetch(part);
///     }
///     permit.release() // returns when the server has confirmed
/// }
/// ```
#[must_use = "dropping the permit gives it back at once; bind it"]
pub struct ExpirablePermit {
    pub(super) permit_lease: Arc<PermitLease>,
    tenancy: Arc<Tenancy>,
    semaphore: ExpirableSemaphore,
    /// Whether the permit was given back or left taken.
    is_done: bool,
}

impl ExpirablePermit {
    /// Makes the guard. Returns `None` if the permit was lost before it got a guard.
    pub(super) fn of(
        semaphore: &ExpirableSemaphore,
        permit_lease: Arc<PermitLease>,
    ) -> Option<Self> {
        let tenancy = permit_lease.admit()?;
        Some(Self { permit_lease, tenancy, semaphore: semaphore.clone(), is_done: false })
    }

    /// Returns the permit's id. Any process, including one that uses Redisson, can use this id to
    /// give the permit back ([`ExpirableSemaphore::release`]). No I/O.
    ///
    /// If another client gives the permit back, this guard reports a loss when the server notifies
    /// this client, or at the next renewal. If a handle of this client gives the permit back, the
    /// guard reports no loss. After a call to `id`, the client never passes the permit to another
    /// thread of the process: dropping the guard gives the permit back to the server.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.permit_lease.expose_id()
    }

    /// Returns whether the permit is held: the permit was not given back, was not lost, and the
    /// lease that the server last confirmed has not ended. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.tenancy.is_held()
    }

    /// Returns the state of the permit, as far as this process knows it. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.tenancy.state()
    }

    /// Returns how long the permit is certainly held even if all renewals fail. Returns zero if the
    /// permit is lost. No I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.tenancy.remaining()
    }

    /// Checks that the permit is certainly held for at least `slack` from now. Call this method
    /// before each step that needs the permit, with a `slack` that is longer than the step.
    ///
    /// While renewals succeed, the remaining lease never falls much below two thirds of
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout). No I/O.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the permit is lost,
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if it is held but may end within `slack`,
    /// [`NotHeld`](ErrorKind::NotHeld) if it was given back by its id,
    /// [`Forked`](ErrorKind::Forked) in a forked child.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        let site = self.permit_lease.site();
        match self.state() {
            HoldState::Lost(LostReason::Forked) => Err(Error::forked().of(&site.name)),
            HoldState::Lost(reason) => Err(self.lost_error(reason)),
            HoldState::Released => Err(self.not_held()),
            HoldState::Held | HoldState::Unconfirmed => {
                let remaining = self.remaining();
                if remaining >= slack {
                    return Ok(());
                } else if remaining.is_zero() {
                    // The lease has ended after `state` was read.
                    return Err(self.lost_error(LostReason::LeaseExpired));
                }
                let terms = self.permit_lease.hold.terms;
                let passes = terms.watched_lease().is_some_and(|lease| slack < lease);
                let longer = terms.lease_advice(&site.core);
                Err(Error::ends_too_soon(remaining, slack, longer).transient(passes).of(&site.name))
            }
        }
    }

    /// Registers `callback`. The client calls `callback` once if the permit is lost before it is
    /// given back. A permit is lost when its lease ends, or when a reply from the server says that
    /// the permit does not exist. If the permit is already lost, the client calls `callback` soon.
    /// If [`release`](Self::release) detects the loss, it returns an error, and `callback` is not
    /// called.
    ///
    /// Once a permit has been held for 100 ms, the server notifies the client of each change to the
    /// semaphore's leases. After each notification, the client asks at once whether the permit
    /// still exists. If the leases change more than ten times a second, the client asks after some
    /// seconds ([`client_tracking`](crate::ClientBuilder::client_tracking)).
    ///
    /// Callbacks run on a thread of the client, one after the other, so each should be short.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        if let Some((reason, callback)) = self.tenancy.on_lost(Box::new(callback)) {
            let site = self.permit_lease.site();
            site.core.watchdog.queue_loss_callbacks(&site.name, reason, vec![callback]);
        }
    }

    /// Gives the permit back.
    ///
    /// # Errors
    ///
    /// - [`LeaseLost`](ErrorKind::LeaseLost) if the permit was lost. If another process has the
    ///   permit now, that process keeps it.
    /// - [`NotHeld`](ErrorKind::NotHeld) if the permit has already been given back by its id.
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer,
    ///   [`Protocol`](ErrorKind::Protocol) if its reply is malformed. The client repeats the
    ///   release in the background, and the permit is free at the latest when its lease ends.
    ///   Server trouble is also returned if the connection broke, the release was sent again, and
    ///   the permit no longer exists.
    /// - [`Forked`](ErrorKind::Forked) in a forked child: the permit belongs to the parent.
    ///
    /// # Blocking
    ///
    /// One round trip; none if a waiting thread of this process gets the permit.
    pub fn release(mut self) -> Result<(), Error> {
        self.is_done = true;
        self.leave()?;
        self.permit_lease.site().release(&self.permit_lease)
    }

    /// Ends the guard and leaves the permit taken. The client no longer renews the permit's lease.
    /// A process that has the id can extend the lease ([`ExpirableSemaphore::update_lease_time`])
    /// and give the permit back ([`ExpirableSemaphore::release`]). If no process extends the lease
    /// or gives the permit back, the permit is free when its lease ends. If the watchdog has
    /// renewed the lease until now, at least about two thirds of
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) remain. No I/O.
    #[must_use = "without its id nobody can give the permit back"]
    pub fn into_id(mut self) -> PermitId {
        self.is_done = true;
        let id = self.permit_lease.expose_id();
        if !is_forked() && self.permit_lease.leave(&self.tenancy) {
            self.permit_lease.end();
        }
        id
    }

    /// Ends the guard and leaves the permit taken until its lease ends, even if this client ends:
    /// see [`LockGuard::leave_to_expire`](crate::LockGuard::leave_to_expire).
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost), [`NotHeld`](ErrorKind::NotHeld) and
    /// [`Forked`](ErrorKind::Forked), as for [`release`](Self::release). If the call returns an
    /// error, the guard had no permit.
    ///
    /// # Blocking
    ///
    /// None.
    pub fn leave_to_expire(self) -> Result<(), Error> {
        self.check(Duration::ZERO)?;
        let _nobodys = self.into_id();
        Ok(())
    }

    /// Returns the semaphore's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.semaphore.name()
    }

    /// Ends the guard. Returns an error if the permit no longer belongs to the guard.
    fn leave(&self) -> Result<(), Error> {
        Error::if_forked(&self.permit_lease.site().name)?;
        if self.tenancy.is_held() && self.permit_lease.leave(&self.tenancy) {
            return Ok(());
        }
        if self.tenancy.state() == HoldState::Released {
            return Err(self.not_held());
        }
        let reason = self.permit_lease.hold.lost().unwrap_or(LostReason::LeaseExpired);
        self.permit_lease.lose(reason);
        Err(self.lost_error(reason))
    }

    fn lost_error(&self, reason: LostReason) -> Error {
        let site = self.permit_lease.site();
        Error::lost(&site.name, &self.tenancy.loss_message(reason, site.core.config.max_hold))
    }

    fn not_held(&self) -> Error {
        let message = "it was given back before, by its id; nothing is held".to_owned();
        Error::new(ErrorKind::NotHeld, message).of(&self.permit_lease.site().name)
    }
}

impl Drop for ExpirablePermit {
    fn drop(&mut self) {
        // If `leave` fails, there is nothing to give back, and a loss has already been reported.
        if !self.is_done && self.leave().is_ok() {
            self.permit_lease.site().give_back(permits_of(vec![Arc::clone(&self.permit_lease)]));
        }
    }
}

impl fmt::Debug for ExpirablePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirablePermit")
            .field("name", &self.name())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
