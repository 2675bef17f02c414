//! The guard of a permit with a lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::ExpirableSemaphore;
use super::permit_lease::PermitLease;
use crate::error::{Error, ErrorKind, LostReason};
use crate::local::{HoldState, Tenancy};
use crate::scripts::PermitId;

/// One permit of an [`ExpirableSemaphore`]. Dropping it gives it back.
///
/// The permit belongs to no thread and may be sent to another. While it lives its lease is renewed
/// ([`with_lease`](ExpirableSemaphore::with_lease) takes a fixed one); it knows until when the
/// permit is certainly held, and tells when it is lost. One that is leaked ([`std::mem::forget`])
/// is kept until [`Client::shutdown`](crate::Client::shutdown), or for
/// [`max_hold`](crate::ClientBuilder::max_hold).
///
/// A drop does not wait for the server: the release is written, and one that fails is sent again in
/// the background. [`release`](Self::release) waits and reports.
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
///         permit.check(Duration::from_secs(2))?; // ours for as long as this takes
///         fetch(part);
///     }
///     permit.release() // the server has said so
/// }
/// ```
#[must_use = "dropping the permit gives it back at once; bind it"]
pub struct ExpirablePermit {
    pub(super) permit_lease: Arc<PermitLease>,
    tenancy: Arc<Tenancy>,
    semaphore: ExpirableSemaphore,
    /// The permit was given back or let go of.
    left: bool,
}

impl ExpirablePermit {
    /// `None`: it was lost on its way here.
    pub(super) fn of(
        semaphore: &ExpirableSemaphore,
        permit_lease: Arc<PermitLease>,
    ) -> Option<Self> {
        let tenancy = permit_lease.admit()?;
        Some(Self { permit_lease, tenancy, semaphore: semaphore.clone(), left: false })
    }

    /// The permit's id, under which another process can look after it or give it back
    /// ([`ExpirableSemaphore::release`]): one of Redisson's as well. No I/O.
    ///
    /// Such a release is a loss to this guard, as soon as the server tells of it
    /// ([`on_lost`](Self::on_lost)), or at its next renewal. A release by a handle of the same
    /// client is none. A permit whose id was read is not passed on within the process: its drop
    /// gives it back to the server.
    #[must_use]
    pub fn id(&self) -> PermitId {
        self.permit_lease.tell_id()
    }

    /// Whether the permit is held, as far as this process can know without asking: neither given
    /// back nor lost, and before the deadline that the server last confirmed. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.is_forked() && self.tenancy.is_held()
    }

    /// The state of the permit, as far as this process knows. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        if self.is_forked() {
            return HoldState::Lost(LostReason::Forked);
        }
        self.tenancy.state()
    }

    /// For how long the permit is certainly held if no renewal succeeds any more; zero if it is
    /// lost. No I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_forked() { Duration::ZERO } else { self.tenancy.remaining() }
    }

    /// Fails unless the permit is certainly held for `slack` more. Call this before each step that
    /// needs the permit and takes no longer than `slack`.
    ///
    /// If the lease is renewed, the certain time is between two thirds of
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) and all of it. No I/O.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the permit is lost,
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if it is held and may end before the slack does,
    /// [`NotHeld`](ErrorKind::NotHeld) if it was given back by its id,
    /// [`Forked`](ErrorKind::Forked) in a forked child.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        let site = self.permit_lease.site();
        match self.state() {
            HoldState::Lost(LostReason::Forked) => Err(Error::forked(&site.name)),
            HoldState::Lost(reason) => Err(self.lost_error(reason)),
            HoldState::Released => Err(self.not_held()),
            HoldState::Held | HoldState::Unconfirmed => {
                let remaining = self.remaining();
                if remaining >= slack {
                    return Ok(());
                } else if remaining.is_zero() {
                    // The lease ended between the two looks.
                    return Err(self.lost_error(LostReason::LeaseExpired));
                }
                let terms = self.permit_lease.hold.terms;
                let passes = terms.watched_lease().is_some_and(|lease| slack < lease);
                let longer = terms.longer(&site.core);
                Err(Error::ends_too_soon(remaining, slack, longer).transient(passes).of(&site.name))
            }
        }
    }

    /// Has `callback` called once if the permit is lost before it is given back: at the lease's
    /// end, or at a renewal that the server answers with "not there any more". If it is lost
    /// already, soon after this call. If this process learns of a loss only when
    /// [`release`](Self::release) asks the server, that call's error alone tells of it.
    ///
    /// For a permit that was held for 100 ms, the server tells when the semaphore's leases change,
    /// and the client asks at once whether the permit is there; if they change more than ten times
    /// a second, it asks after some seconds at most
    /// ([`client_tracking`](crate::ClientBuilder::client_tracking)).
    ///
    /// The callback runs on a thread of the client's, one after the other, so it should be short.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        if self.is_forked() {
            return;
        }
        if let Some((reason, callback)) = self.tenancy.on_lost(Box::new(callback)) {
            let site = self.permit_lease.site();
            site.core.watchdog.call_back(&site.name, reason, vec![callback]);
        }
    }

    /// Gives the permit back.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if it was lost before: another process may have it by
    /// now, and keeps it. [`NotHeld`](ErrorKind::NotHeld) if it was given back by its id before.
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble, [`Protocol`](ErrorKind::Protocol)
    /// if its answer makes no sense: the release is sent again in the background, and the permit is
    /// free at the latest when its lease ends. Also if the connection broke and the server, asked
    /// once more, no longer knows the permit. [`Forked`](ErrorKind::Forked) in a forked child:
    /// nothing was done.
    ///
    /// # Blocking
    ///
    /// One round trip; none if the permit is passed to a thread of this process that waits.
    pub fn release(mut self) -> Result<(), Error> {
        self.left = true;
        let site = self.permit_lease.site();
        site.core.check_process(&site.name)?;
        self.leave()?;
        site.release(&self.permit_lease)
    }

    /// Lets go of the permit and leaves it out: from here on the client does not renew it. A
    /// process with the id can make its lease longer ([`ExpirableSemaphore::update_lease_time`])
    /// and give it back ([`ExpirableSemaphore::release`]); otherwise it comes back when its lease
    /// ends: after two thirds of [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) up to
    /// all of it, or after the rest of a fixed lease. No I/O.
    #[must_use = "without its id nobody can give the permit back"]
    pub fn into_id(mut self) -> PermitId {
        self.left = true;
        let id = self.permit_lease.tell_id();
        if !self.is_forked() && self.permit_lease.leave(&self.tenancy) {
            self.permit_lease.end();
        }
        id
    }

    /// Lets go of the permit and leaves it out until its lease ends, even if this client ends: as
    /// [`LockGuard::leave_to_expire`](crate::LockGuard::leave_to_expire). It is
    /// [`into_id`](Self::into_id) without an id.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost), [`NotHeld`](ErrorKind::NotHeld) and
    /// [`Forked`](ErrorKind::Forked) as [`release`](Self::release): nothing is left then.
    ///
    /// # Blocking
    ///
    /// Not at all.
    pub fn leave_to_expire(self) -> Result<(), Error> {
        self.check(Duration::ZERO)?;
        let _nobodys = self.into_id();
        Ok(())
    }

    /// The semaphore's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.semaphore.name()
    }

    /// Whether the process was forked since: then the permit is the parent's, and no mutex may be
    /// locked here.
    fn is_forked(&self) -> bool {
        self.permit_lease.site().core.is_forked()
    }

    /// The guard's time ends. An error: the permit was not the guard's any more.
    fn leave(&self) -> Result<(), Error> {
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
        // Lost or given back otherwise: `on_lost` and the log have said so.
        if !self.left && !self.is_forked() && self.leave().is_ok() {
            self.semaphore.give_back(vec![Arc::clone(&self.permit_lease)]);
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
