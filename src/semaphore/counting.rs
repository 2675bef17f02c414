//! The semaphore: Redisson's `RSemaphore`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::permit_verbs;
#[cfg(doc)]
use crate::client::Client;
use crate::config::{check_expiry, check_time_to_live};
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::runtime::Session;
use crate::scripts::semaphore::SemaphoreScripts;
use crate::scripts::{Replied, RequestId, Trouble};
use crate::semaphore::permits::{self, PermitNeed};
use crate::waiting::Wait;

mod permit;
mod site;

pub use self::permit::Permit;
use self::site::Giving;
pub(crate) use self::site::SemaphoreSite;

/// A counting semaphore in Redis: the threads of all processes share its permits. This type is like
/// `Semaphore` of java.util.concurrent, and compatible with Redisson's `RSemaphore`.
/// [`Client::semaphore`] returns a `Semaphore`.
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
/// let downloads = client.semaphore("downloads");
/// downloads.try_set_permits(8)?; // the first process sets them
///
/// let permit = downloads.acquire()?; // blocks; a drop gives it back
/// permit.release()?; // gives it back, and returns when the server has confirmed
///
/// if let Taken(three) = downloads.try_acquire_many_for(3, Duration::from_secs(5))? {
///     println!("{} at a time", three.permits());
/// }
/// # Ok(()) }
/// ```
///
/// # Leases
///
/// Permits have no leases, as in Redisson: **if a process dies, its permits are lost** until a
/// program adds new permits. The permits of an [`ExpirableSemaphore`](crate::ExpirableSemaphore)
/// are free again when their leases end.
///
/// # Fairness
///
/// Threads of one process get permits in the order of arrival. If one permit is free and the first
/// waiting thread needs two, a later thread that needs one also waits. Processes take turns: the
/// threads of a process pass permits to each other only for a short time. If other processes wait,
/// the threads of a process together take no more than the process's share of the free permits.
/// With one other process, this share is half of the free permits.
///
/// # Lost replies
///
/// If a request is sent twice, the server applies it once. If the client cannot find out the
/// outcome of an acquire, the caller gets an error, and the client gives back in the background any
/// permits that the server may have granted. If the outcome of a release is unknown, the client
/// repeats the release for four minutes, and then logs that the outcome is unknown. If the client
/// cannot send a release, it tries again until the client ends.
///
/// # After a failover
///
/// A replica that becomes the master may lack the latest requests. To keep the semaphore's size,
/// each client repeats its acquires and releases of the last 10 s if the new master lacks them. (A
/// client remembers up to 10,000 requests of a semaphore, and 200,000 requests in all. If the
/// server has lost the semaphore and a program has made a new one, clients repeat no requests.) For
/// a moment, more permits may be taken than the semaphore has.
///
/// A failover may lose changes by clients that have ended, by Redisson's clients, by
/// [`set_permits`](Self::set_permits) and by [`drain_permits`](Self::drain_permits). If the clocks
/// of the two servers differ by a minute or more, a failover may lose all latest changes. So at
/// each failover the client logs a `WARN` that names the semaphores in use. After such a `WARN`,
/// compare [`available_permits`](Self::available_permits) with the size at a time when no permit is
/// taken. With [`replica_acks`](crate::ClientBuilder::replica_acks), acquires and
/// [`release`](Permit::release) wait for replicas, but a drop does not.
///
/// # In Redis
///
/// The number of free permits is a string under the semaphore's name, without a time to live. Each
/// change is published on `redisson_sc:{name}`. A string under `redlatch_mark:{name}` distinguishes
/// the semaphore from a later semaphore of the same name. Keys that begin with
/// `redlatch_request:{name}:…` record for five minutes which requests were applied.
/// [Operations](crate::guide::operations#access-rights) lists the rights that a user needs.
#[derive(Clone)]
pub struct Semaphore {
    site: Arc<SemaphoreSite>,
    session: Session,
    /// See [`with_permits`](Self::with_permits).
    size: Option<u32>,
}

permit_verbs!(Semaphore, Permit, Permit);

impl Semaphore {
    /// Returns a handle that makes the semaphore with `permits` at its first request for permits,
    /// if the semaphore does not exist. With such a handle, no program has to call
    /// [`try_set_permits`](Self::try_set_permits).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
    /// let downloads = client.semaphore("downloads").with_permits(8);
    /// let permit = downloads.acquire()?;
    /// # Ok(()) }
    /// ```
    ///
    /// While a client has a handle or a permit of this name, it makes the semaphore only **once**.
    /// If the semaphore is removed later (by a [`delete`](Self::delete), or because the server lost
    /// its data), this client waits for permits and logs a warning. It does not make a new
    /// semaphore, because it may still use permits of the old semaphore. But another client may
    /// make a new semaphore, and then more than `permits` permits may be in use. To prevent this,
    /// call `try_set_permits` instead of `with_permits`.
    ///
    /// An existing semaphore is not changed. If more than `permits` of its permits are free, the
    /// client logs this once, at level `WARN`. (The server does not know how many permits are
    /// taken, so the client cannot detect that a semaphore is too small.) If two clients start at
    /// the same time with different numbers, one of them makes the semaphore. If two handles of one
    /// client have different numbers, the client uses the number of the first handle that takes
    /// permits, and a `WARN` names the other number.
    ///
    /// # Errors
    ///
    /// This method returns no error. If a call on this handle asks for more than `permits` at once,
    /// that call fails with [`Config`](ErrorKind::Config), because the semaphore never has that
    /// many. If `permits` is zero, every acquire fails. (To wait for permits that another program
    /// adds, take a handle without `with_permits`.) The first acquire also checks whether the
    /// semaphore exists, and may make it. If this fails, the acquire returns the error and takes no
    /// permit, and the next acquire tries again.
    ///
    /// # Blocking
    ///
    /// This method does not block. The first acquire needs one additional round trip, or two if it
    /// makes the semaphore. The time limit of the acquire includes these round trips. Later
    /// acquires need no additional round trip.
    #[must_use]
    pub fn with_permits(&self, permits: u32) -> Self {
        Self { size: Some(permits), ..self.clone() }
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
        self.request(|scripts, request_id| scripts.try_set_permits(request_id, permits, None))
    }

    /// Makes the semaphore as [`try_set_permits`](Self::try_set_permits) does, but with a
    /// `time_to_live`: a semaphore whose name is used only once then leaves no key behind. When
    /// this time ends, the semaphore is removed, and waiters continue to wait, as after a
    /// [`delete`](Self::delete). A later release makes a semaphore without a time to live.
    /// ([`release_forgotten_if_exists`](Self::release_forgotten_if_exists) makes none.)
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
        check_time_to_live(time_to_live).map_err(|error| error.of(&self.site.name))?;
        let ttl = Some(time_to_live);
        self.request(|scripts, request_id| scripts.try_set_permits(request_id, permits, ttl))
    }

    /// Sets the semaphore's time to live, counted from now. [`Duration::MAX`] removes the time to
    /// live. Returns `false` if there is no semaphore.
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
        check_expiry(time_to_live).map_err(|error| error.of(&self.site.name))?;
        self.request(|scripts, request_id| scripts.expiry().set(request_id, time_to_live))
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

    /// Sets the number of free permits, and makes the semaphore if there is none.
    ///
    /// The server does not know which permits are taken. When a taken permit is given back, it is
    /// added to `permits`. So call this only while no live process has a permit, for example after
    /// a process died with its permits. To change the size of a semaphore in use, call
    /// [`add_permits`](Self::add_permits) once, from one process.
    ///
    /// # Errors
    ///
    /// The errors of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.request(|scripts, request_id| scripts.set_permits(request_id, permits)).map(drop)
    }

    /// Adds `permits` to the number of free permits. `permits` may be negative. After a negative
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
        let site = &self.site;
        let request_id = site.open();
        let outcome = site.scripts().add_permits(request_id, permits);
        match outcome {
            Ok(mark) => {
                site.record_applied(request_id, permits, mark);
                Ok(())
            }
            Err(trouble) => {
                site.requests.close(request_id);
                Err(trouble.into_error_of(&site.name))
            }
        }
    }

    /// Takes all free permits, and returns their number (which may be negative).
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer: the
    /// call has taken no permits, and the client gives back in the background any permits that the
    /// server may have granted. The other errors are those of
    /// [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn drain_permits(&self) -> Result<i64, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        let (request_id, asked) = (site.open(), site.route.incarnation());
        match site.scripts().drain_permits(request_id) {
            Ok(Replied { reply: taken, unacknowledged: Some(unacknowledged), .. })
                if taken != 0 =>
            {
                Err(site.take_back(request_id, asked, taken, unacknowledged))
            }
            Ok(Replied { reply: permits, .. }) => {
                site.requests.close(request_id);
                Ok(permits)
            }
            Err(trouble) => Err(site.fail_acquire(request_id, trouble)),
        }
    }

    /// Removes the semaphore. Returns `false` if there was none.
    ///
    /// As in Redisson, waiters are not notified, and continue to wait. A later release of a taken
    /// permit makes a new semaphore.
    ///
    /// # Errors
    ///
    /// The errors of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn delete(&self) -> Result<bool, Error> {
        self.request(|scripts, request_id| scripts.delete(request_id))
    }

    /// Returns how many permits are free. The result may be out of date when the call returns.
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
        self.check(&Wait::FOREVER)?;
        self.site
            .scripts()
            .available_permits()
            .map(|free| free.unwrap_or(0))
            .map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Gives back permits that no guard gives back: [forgotten](Permit::forget) permits, or permits
    /// of a process that has ended.
    ///
    /// The server counts only free permits, so it adds `permits` even if they were not taken. **Do
    /// not call this for permits that a [`Permit`] has**: the drop of the `Permit` gives them back
    /// a second time, and then the semaphore permanently has more permits than before. (The drop
    /// corresponds to `release()` in a `finally` block in Java.) To make the semaphore larger, call
    /// [`add_permits`](Self::add_permits).
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer (the
    /// message says whether the client repeats the release in the background), or if too few
    /// replicas acknowledge the release (the permits are given back). The other errors are those of
    /// [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip, and the wait for replicas
    /// ([`replica_acks`](crate::ClientBuilder::replica_acks)). No round trip if waiting threads of
    /// this process get all the permits.
    pub fn release_forgotten(&self, permits: u32) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.site.give_back_as(permits, Giving::Awaited)
    }

    /// Gives `permits` back, as [`release_forgotten`](Self::release_forgotten) does, if the
    /// semaphore exists. If there is no semaphore, changes nothing and returns `false`.
    ///
    /// # Errors
    ///
    /// The errors of [`release_forgotten`](Self::release_forgotten). The client does not repeat the
    /// request in the background. The message says whether the change may have been made.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no semaphore, and nothing was given back"]
    pub fn release_forgotten_if_exists(&self, permits: u32) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        let request_id = site.open();
        let outcome = site.scripts().release(request_id, permits, true);
        match outcome {
            Ok(Replied { reply: (Some(_), mark), unacknowledged, .. }) => {
                site.record_applied(request_id, permits.into(), mark);
                match unacknowledged {
                    Some(error) => Err(error.of(&site.name).now(site::GIVEN_BACK_HERE)),
                    None => Ok(true),
                }
            }
            outcome => {
                site.requests.close(request_id);
                outcome.map(|_| false).map_err(|trouble| trouble.into_error_of(&site.name))
            }
        }
    }

    /// Returns the semaphore's name: its key in Redis without the client's
    /// [`prefix`](crate::ClientBuilder::prefix).
    #[must_use]
    pub fn name(&self) -> &str {
        self.site.name.given()
    }

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        Self { site: SemaphoreSite::of(session.core(), name), session: session.clone(), size: None }
    }

    fn check(&self, wait: &Wait<'_>) -> Result<(), Error> {
        wait.check(self.session.core(), &self.site.name)?;
        if self.site.name.is_empty() {
            return Err(Error::nameless("a semaphore"));
        }
        Ok(())
    }

    /// Sends a request that the server applies once, even if it receives two copies.
    fn request<T>(
        &self,
        send: impl FnOnce(SemaphoreScripts<'_>, RequestId) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        let outcome = site.requests.with_one(&site.core.id, |id| send(site.scripts(), id));
        outcome.map_err(|trouble| trouble.into_error_of(&site.name))
    }

    fn take_one(&self, wait: Wait<'_>) -> Result<Option<Permit>, Error> {
        self.take(1, wait)
    }

    fn take(&self, permits: u32, wait: Wait<'_>) -> Result<Option<Permit>, Error> {
        self.check(&wait)?;
        if permits == 0 {
            return Ok(Some(self.permit(0)));
        }
        let Self { site, size, .. } = self;
        if let Some(size) = *size {
            site.size.record(size, permits, (&site.core, &site.name))?;
        }
        let need = PermitNeed { permits, terms: None };
        let taken = permits::acquire(site, need, wait)?;
        Ok(taken.map(|permits| self.permit(permits.number)))
    }

    fn permit(&self, permits: u32) -> Permit {
        let since = if self.site.core.is_observed() { clock::now() } else { 0 };
        Permit { semaphore: self.clone(), permits, since }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.site.name).finish_non_exhaustive()
    }
}
