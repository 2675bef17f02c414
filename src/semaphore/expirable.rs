//! The semaphore whose permits have leases: Redisson's `RPermitExpirableSemaphore`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::permit_verbs;
#[cfg(doc)]
use crate::client::Client;
use crate::config::{check_expiry, check_time_to_live};
use crate::error::{Error, ErrorKind};
use crate::hold::{Terms, check_lease};
use crate::runtime::Session;
use crate::scripts::expirable_semaphore::PermitCounts;
use crate::scripts::renewal::{self, RenewalKind};
use crate::scripts::{PermitId, Trouble};
use crate::semaphore::permits::{self, PermitNeed, PermitSource};
use crate::waiting::Wait;

mod permit;
mod permit_lease;
mod site;

pub use self::permit::ExpirablePermit;
pub(crate) use self::site::ExpirableSite;

/// A semaphore in Redis whose permits have leases. The threads of all processes share the permits.
/// This type is compatible with Redisson's `RPermitExpirableSemaphore`.
/// [`Client::expirable_semaphore`] returns an `ExpirableSemaphore`.
///
/// Unlike the permits of a [`Semaphore`](crate::Semaphore), **a dead holder's permit is free
/// again** at the end of its lease. The watchdog renews the leases of live holders.
///
/// All clones, and all handles of the same name, are the same semaphore. A new semaphore has no
/// permits until a program sets or adds some.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::Taken;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let connections = client.expirable_semaphore("connections");
/// connections.try_set_permits(8)?; // the first process sets them
///
/// let permit = connections.acquire()?; // blocks; renewed while it lives
/// permit.check(Duration::from_secs(1))?; // certainly held for a second more
/// permit.release()?; // gives it back, and returns when the server has confirmed
///
/// // For a minute, even if this process dies, unless some process gives it back:
/// let minute = connections.with_lease(Duration::from_secs(60));
/// if let Taken(permit) = minute.try_acquire()? {
///     let id = permit.into_id(); // can be sent to another process
///     connections.release(&id)?; // in any process that has the id
/// }
/// # Ok(()) }
/// ```
///
/// # Leases
///
/// A permit has a lease of [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) (30 s). The
/// watchdog renews the lease after each third of this time, for as long as the guard lives.
/// (Redisson's clients do not renew permits.) [`with_lease`](Self::with_lease) returns a handle for
/// permits with a fixed lease, which is never renewed. No message announces the end of a lease. A
/// waiter knows when the next lease ends, and asks the server then, or after about 5 s if that is
/// sooner.
///
/// redlatch measures leases only by the server's clock, so a client's wrong clock does no harm.
///
/// If a call takes several permits, each permit has its own id and lease, and can be given back
/// separately. One call takes at most 1,024 permits. For a larger number the call returns an error
/// of kind [`Config`](ErrorKind::Config).
///
/// # Fairness
///
/// See [`Semaphore`](crate::Semaphore#fairness). Only threads with the same kind of lease pass
/// permits to each other.
///
/// # Lost replies
///
/// If a request is sent twice, it takes or gives back its permits only once. If the client cannot
/// find out the outcome of an acquire, the caller gets an error, and the client gives back in the
/// background any permits that the server may have granted. If the client cannot give them back,
/// they are free when their leases end.
///
/// # With Redisson
///
/// With Redisson 3.17 to 4.7, each library can give back a permit of the other library by its
/// [`PermitId`]. Redisson 3.16 can use the same semaphores, but its ids have another format, so
/// each library can give back or extend only its own permits.
///
/// **Redisson's clients decide by their own clocks** which leases have ended. If the clock of a
/// Redisson client is ahead of the server's clock, the client ends the leases of other clients too
/// early, by the difference between the clocks. A redlatch guard has a remaining lease of at least
/// two thirds of `watchdog_timeout`. If the difference is greater than this, the guard loses its
/// permit, and reports the loss at its next renewal. If the clock of a Redisson client is behind,
/// this client may lose its own permits early. Keep the difference between these clocks much
/// smaller than a lease.
///
/// **Do not use both of the names `x` and `{x}`.** As in Redisson, these two semaphores store their
/// leases under the same key. At the end of a lease, a permit of one semaphore may be added to the
/// other semaphore. If a client has handles of both names, calls of the later handle return
/// [`Config`](ErrorKind::Config).
///
/// # In Redis
///
/// The number of free permits is a string under the semaphore's name. The sorted set
/// `{name}:timeout` has the id of each taken permit with the end of its lease (ms since 1970).
/// Neither key has a time to live. Each change is published on `redisson_sc:{name}`. Keys that
/// begin with `redlatch_request:{name}:…` record for five minutes how the number of permits was
/// changed. [Operations](crate::guide::operations#access-rights) lists the rights that a user
/// needs.
#[derive(Clone)]
pub struct ExpirableSemaphore {
    site: Arc<ExpirableSite>,
    session: Session,
    terms: Terms,
    /// See [`with_permits`](Self::with_permits).
    size: Option<u32>,
}

permit_verbs!(ExpirableSemaphore, ExpirablePermit, Vec<ExpirablePermit>);

impl ExpirableSemaphore {
    /// Returns a handle that makes the semaphore with `permits` at its first request for permits,
    /// if the semaphore does not exist. [`Semaphore::with_permits`](crate::Semaphore::with_permits)
    /// explains the details, and lists the errors. The server knows the size of an expirable
    /// semaphore. If the size is not `permits`, the client logs this once.
    #[must_use]
    pub fn with_permits(&self, permits: u32) -> Self {
        Self { size: Some(permits), ..self.clone() }
    }

    /// Returns a handle whose permits have a fixed lease, which is never renewed. If the lease is
    /// not from 1 ms to 10¹³ ms, acquires fail with [`Config`](ErrorKind::Config).
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { terms: Terms::fixed(lease), ..self.clone() }
    }

    /// Returns a handle whose permits have a renewed lease of this length, in place of the client's
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout). If a process dies, its permits
    /// are free after this time. If the lease is not from 10 ms to a year, acquires fail with
    /// [`Config`](ErrorKind::Config).
    ///
    /// A short lease affects the whole client: see
    /// [`Lock::with_watchdog`](crate::Lock::with_watchdog).
    #[must_use]
    pub fn with_watchdog(&self, timeout: Duration) -> Self {
        self.site.core.note_watched_lease(timeout);
        Self { terms: Terms::watched(timeout), ..self.clone() }
    }

    /// Makes the semaphore with `permits` if it does not exist. If it exists, changes nothing and
    /// returns `false`.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer (the
    /// message says whether the change may have been made), or if the key holds other data, which
    /// is not changed. The other errors are those of
    /// [`available_permits`](Self::available_permits).
    ///
    /// All other methods that change the semaphore can return these errors.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: it had permits before, and none were set"]
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.try_set_permits(request_id, permits, None))
    }

    /// Makes the semaphore as [`try_set_permits`](Self::try_set_permits) does, but with a
    /// `time_to_live`: a semaphore whose name is used only once then leaves no key behind. When
    /// this time ends, the semaphore and all its permits are removed, as after a
    /// [`delete`](Self::delete).
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if `time_to_live` is not from 1 ms to 10¹³ ms: nothing is
    /// changed. The other errors are those of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: it had permits before, and none were set"]
    pub fn try_set_permits_for(&self, permits: u32, time_to_live: Duration) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        check_time_to_live(time_to_live).map_err(|error| error.of(&self.site.name))?;
        let ttl = Some(time_to_live);
        self.site.once(|scripts, request_id| scripts.try_set_permits(request_id, permits, ttl))
    }

    /// Sets the size of the semaphore: the number of free and taken permits. Makes the semaphore if
    /// there is none. If more than `permits` permits are taken now, their holders keep them. The
    /// number of free permits is then negative until enough permits are given back.
    ///
    /// # Errors
    ///
    /// The errors of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.set_permits(request_id, permits)).map(drop)
    }

    /// Adds `permits`, which may be negative, to the size of the semaphore. After a negative
    /// change, the number of free permits may be negative until enough permits are given back.
    ///
    /// # Errors
    ///
    /// The errors of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn add_permits(&self, permits: i64) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.add_permits(request_id, permits)).map(drop)
    }

    /// Removes the semaphore with all permits. Returns `false` if there was none. The guard of a
    /// taken permit reports the loss at its next renewal. As in Redisson, waiters are not notified,
    /// and wait until there are permits again.
    ///
    /// # Errors
    ///
    /// The errors of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn delete(&self) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.delete(request_id))
    }

    /// Sets the semaphore's time to live, counted from now. When this time ends, the semaphore and
    /// all its permits are removed, as after a [`delete`](Self::delete). [`Duration::MAX`] removes
    /// the time to live. Returns `false` if there is no semaphore.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if `time_to_live` is out of range (1 ms to 10¹³ ms, or
    /// [`Duration::MAX`]): nothing is changed. The other errors are those of
    /// [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no semaphore, and nothing was changed"]
    pub fn expire(&self, time_to_live: Duration) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        check_expiry(time_to_live).map_err(|error| error.of(&self.site.name))?;
        self.site.once(|scripts, request_id| scripts.expiry().set(request_id, time_to_live))
    }

    /// Returns the semaphore's time to live: `None` if there is no semaphore, [`Duration::MAX`] if
    /// the semaphore has no time to live.
    ///
    /// # Errors
    ///
    /// The errors of [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`None`: there is no semaphore"]
    pub fn time_to_live(&self) -> Result<Option<Duration>, Error> {
        self.check(&Wait::FOREVER)?;
        let left = self.site.scripts().expiry().get();
        left.map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Returns how many permits are free. A permit whose lease has ended is free. The result may be
    /// out of date when the call returns.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer, or if
    /// the key holds other data. [`Protocol`](ErrorKind::Protocol) if the server's reply is
    /// malformed. [`Config`](ErrorKind::Config) if the name is empty.
    /// [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`]. [`Forked`](ErrorKind::Forked)
    /// in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.counts().map(|counts| counts.free)
    }

    /// Returns how many permits are taken by all processes. Permits whose leases have ended are not
    /// counted.
    ///
    /// # Errors
    ///
    /// The errors of [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn acquired_permits(&self) -> Result<i64, Error> {
        self.counts().map(|counts| counts.taken)
    }

    /// Returns the size of the semaphore: the number of all permits, free or taken.
    ///
    /// # Errors
    ///
    /// The errors of [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn permits(&self) -> Result<i64, Error> {
        self.counts().map(|counts| counts.free.saturating_add(counts.taken))
    }

    /// Gives back the permit with this id, even if another process took it. If a guard of this
    /// client has the permit, the guard's state is then "released". A guard of another process
    /// reports a loss at its next renewal.
    ///
    /// # Errors
    ///
    /// - [`NotHeld`](ErrorKind::NotHeld) if there is no such permit: it has already been given
    ///   back, or its lease has ended. Nothing is changed.
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer. The
    ///   message says whether the client repeats the release in the background. Server trouble is
    ///   also returned if the connection broke, the request was sent again, and the permit no
    ///   longer exists: probably the first request gave it back.
    /// - The other errors of [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn release(&self, id: &PermitId) -> Result<(), Error> {
        self.release_many(std::slice::from_ref(id))
    }

    /// Gives back the permit with this id. Returns `false` if there is no such permit.
    ///
    /// # Errors
    ///
    /// The errors of [`release`](Self::release), except `NotHeld`.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there was no such permit"]
    pub fn try_release(&self, id: &PermitId) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.release_ids(std::slice::from_ref(id))
    }

    /// Gives back several permits, at most 1,024. If one of these permits does not exist, the call
    /// fails with `NotHeld`, and gives back only the permits of this client's guards.
    ///
    /// # Errors
    ///
    /// The errors of [`release`](Self::release). [`Config`](ErrorKind::Config) for more than 1,024
    /// ids, or if an id is listed twice.
    ///
    /// # Blocking
    ///
    /// One round trip; none if `ids` is empty.
    pub fn release_many(&self, ids: &[PermitId]) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.check_number(ids.len())?;
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|two| two[0] == two[1]) {
            let message = "an id is listed twice; nothing was changed".to_owned();
            return Err(Error::new(ErrorKind::Config, message).of(&self.site.name));
        }
        if ids.is_empty() || self.site.release_ids(ids)? {
            return Ok(());
        }
        Err(self.no_such_permit())
    }

    /// Gives a permit a new lease, which begins now. If the new lease ends earlier than the old
    /// lease, the server notifies redlatch's waiters, but not Redisson's.
    ///
    /// Use this method for a permit of which you have only the id. If a guard of this client has
    /// the permit, the call can only extend the lease. If a guard of another process has the
    /// permit, do not shorten the lease: that guard would report "held" until its next renewal.
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ErrorKind::NotHeld) if there is no such permit, or its lease has ended: nothing
    /// is changed. [`Config`](ErrorKind::Config) if the lease is not from 1 ms to 10¹³ ms. The
    /// other errors are those of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn update_lease_time(&self, id: &PermitId, lease: Duration) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        check_lease(&site.name, lease)?;
        let Some(held) = site.held(id) else {
            let updated =
                site.once(|scripts, request_id| scripts.update_lease_time(request_id, id, lease))?;
            return if updated { Ok(()) } else { Err(self.no_such_permit()) };
        };
        // The call only extends the lease. If the call shortened the lease during a renewal, the
        // guard would report "held" for too long.
        let sent_at = clock::now();
        let certain = held.hold.note_lease_request(lease);
        let (route, owner) = (&site.route, &held.hold.owner);
        let acks = site.core.config.replica_acks;
        let updated =
            renewal::extend(RenewalKind::Permits, route, &site.timeouts, owner, lease, acks);
        let updated = updated.map_err(|trouble| {
            if let Trouble::Unknown(_) = trouble {
                // The lease may end later at the server than the guard reports.
                held.hold.unconfirm();
                if held.hold.lost().is_some() {
                    site.release_later(&[held.id], lease);
                }
            }
            trouble.into_error_of(&site.name)
        })?;
        held.handle_update(sent_at, lease, certain, updated);
        if updated { Ok(()) } else { Err(self.no_such_permit()) }
    }

    /// Returns the remaining lease of a permit. Returns `None` if there is no such permit or its
    /// lease has ended, and [`Duration::MAX`] for a Redisson permit without a lease.
    ///
    /// # Errors
    ///
    /// The errors of [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`None`: there is no such permit"]
    pub fn remaining_lease(&self, id: &PermitId) -> Result<Option<Duration>, Error> {
        self.check(&Wait::FOREVER)?;
        self.site
            .scripts()
            .remaining_lease(id)
            .map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Returns the semaphore's name: its key in Redis without the client's
    /// [`prefix`](crate::ClientBuilder::prefix).
    #[must_use]
    pub fn name(&self) -> &str {
        self.site.name.given()
    }

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = ExpirableSite::of(session.core(), name);
        let terms = Terms::watched(site.core.config.watchdog_timeout);
        Self { site, session: session.clone(), terms, size: None }
    }

    fn check(&self, wait: &Wait<'_>) -> Result<(), Error> {
        wait.check(self.session.core(), &self.site.name)?;
        if self.site.name.is_empty() {
            return Err(Error::nameless("a semaphore"));
        }
        if let Some(twin) = &self.site.twin {
            let message = format!(
                "this client uses the expirable semaphore {twin:?}, which has the same key for its \
                 leases: each would give the other's permits back; use another name"
            );
            return Err(Error::new(ErrorKind::Config, message).of(&self.site.name));
        }
        Ok(())
    }

    fn check_number(&self, permits: usize) -> Result<(), Error> {
        let most = ExpirableSite::MAX_PERMITS;
        if permits > most as usize {
            let message = format!(
                "{permits} permits at once are too many: it may be at most \
                                   {most}"
            );
            return Err(Error::new(ErrorKind::Config, message).of(&self.site.name));
        }
        Ok(())
    }

    fn no_such_permit(&self) -> Error {
        let message = "there is no such permit: it was given back before, or its lease has ended; \
                       nothing was changed";
        Error::new(ErrorKind::NotHeld, message.to_owned()).of(&self.site.name)
    }

    fn counts(&self) -> Result<PermitCounts, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.scripts().counts().map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    fn take_one(&self, wait: Wait<'_>) -> Result<Option<ExpirablePermit>, Error> {
        Ok(self.take(1, wait)?.and_then(|mut permits| permits.pop()))
    }

    fn take(&self, permits: u32, wait: Wait<'_>) -> Result<Option<Vec<ExpirablePermit>>, Error> {
        self.check(&wait)?;
        self.check_number(permits as usize)?;
        self.terms.check(&self.site.name)?;
        if permits == 0 {
            return Ok(Some(Vec::new()));
        }
        if let Some(size) = self.size {
            self.site.size.record(size, permits, (&self.site.core, &self.site.name))?;
        }
        let need = PermitNeed { permits, terms: Some(self.terms) };
        loop {
            let Some(taken) = permits::acquire(&self.site, need, wait)? else {
                return Ok(None);
            };
            let guards = taken
                .leases
                .into_iter()
                .filter_map(|permit_lease| ExpirablePermit::of(self, permit_lease));
            let guards: Vec<_> = guards.collect();
            // A shutdown of the client gives back only the permits that it finds. If it came too
            // early for these permits, this check fails, and the drop of `guards` gives them back.
            self.session.core().check(&self.site.name)?;
            if guards.len() == permits as usize {
                return Ok(Some(guards));
            }
            // Some permits were lost before they got a guard. The drop gives the others back.
            if wait.is_over() {
                return Ok(None);
            }
        }
    }
}

impl fmt::Debug for ExpirableSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpirableSemaphore")
            .field("name", &self.site.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
