//! The semaphore: Redisson's `RSemaphore`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::permit_verbs;
#[cfg(doc)]
use crate::client::Client;
use crate::config::check_time_to_live;
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

/// A number of permits that the threads of all processes share, to limit how many do something at
/// once. It is `Semaphore` of java.util.concurrent and Redisson's `RSemaphore`. Made by
/// [`Client::semaphore`].
///
/// A clone is the same semaphore, and so is every handle of the same name. It has no permits until
/// a program sets or adds some.
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
/// Permits have no leases, as in Redisson: **if a process dies, its permits are lost**, until a
/// program adds new ones. Those of an [`ExpirableSemaphore`](crate::ExpirableSemaphore) return by
/// themselves.
///
/// # Fairness
///
/// Threads of one process get permits in the order of arrival. A thread that needs one permit waits
/// behind an earlier thread of its process that needs two, even while one permit is free. Processes
/// take turns: a process passes permits among its own threads for a short time, as it does a lock.
/// If other processes wait, its threads together take no more than its share of the free permits,
/// such as half of them if there is one other process.
///
/// # Lost replies
///
/// A request that is sent again is applied once. If the outcome of an acquire stays unknown, the
/// caller gets an error, and the client gives back in the background any permits that it may have
/// taken. The client repeats this, or a release whose outcome is unknown, for four minutes. Then it
/// logs that the outcome is not known. It keeps a release that it could not send, for as long as
/// the client lives.
///
/// # After a failover
///
/// A replica that becomes the master may not know the latest requests. Each client repeats those of
/// its acquires and releases of the last 10 s (up to 10,000 of a semaphore, and 200,000 in all)
/// that the new master does not know, so the semaphore keeps its size. (If the server has lost the
/// semaphore and a program has made it anew, no client repeats any.) For a moment, more permits may
/// be taken than there are. The changes of clients that have ended since, of Redisson's clients, of
/// [`set_permits`](Self::set_permits) and of [`drain_permits`](Self::drain_permits) may be lost,
/// and all of them if the clocks of the two servers differ by a minute or more. So at each failover
/// a `WARN` names the semaphores in use: when no permit is taken, compare
/// [`available_permits`](Self::available_permits) with the size. With
/// [`replica_acks`](crate::ClientBuilder::replica_acks), acquires and [`release`](Permit::release)
/// wait for replicas; a drop does not.
///
/// # In Redis
///
/// The number of free permits is text under the semaphore's name, without a time to live. Each
/// change is published on `redisson_sc:{name}`. A text under `redlatch_mark:{name}` tells the
/// semaphore from one that is made anew under its name. Keys that begin with
/// `redlatch_request:{name}:…` remember for five minutes which requests were applied.
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
    /// Returns the same semaphore, which the first request for permits makes with `permits` if it
    /// does not exist. Then no program must call [`try_set_permits`](Self::try_set_permits).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
    /// let downloads = client.semaphore("downloads").with_permits(8);
    /// let permit = downloads.acquire()?;
    /// # Ok(()) }
    /// ```
    ///
    /// A client does this **once**, as long as it has a handle or a permit of the name. If the
    /// semaphore vanishes later (a [`delete`](Self::delete), or a server that lost its data), this
    /// client waits as for a semaphore without permits, and the log says so: its own permits are
    /// still in use, and new ones would be too many. The next client that comes sets them anew, as
    /// `try_set_permits` would, beside the permits that are in use. If that must not be, set them
    /// by hand.
    ///
    /// An existing semaphore stays as it is. If more than `permits` are free, the log says once at
    /// level `WARN` that it has another number. (The server does not know how many are taken, so
    /// the client cannot see that a semaphore is too small.) Of two clients that come at the same
    /// time with different numbers, one makes the semaphore. Of two handles in one client, the
    /// number of the first that takes permits counts, and a `WARN` names the other one.
    ///
    /// # Errors
    ///
    /// None here. If a request to look at the semaphore or to make it fails, so does the verb that
    /// takes permits, and no permit is taken. The next one tries again.
    ///
    /// # Blocking
    ///
    /// None here. The first request for permits costs one more round trip, and two more if it makes
    /// the semaphore, within the limit of its wait. Later requests cost none more.
    #[must_use]
    pub fn with_permits(&self, permits: u32) -> Self {
        Self { size: Some(permits), ..self.clone() }
    }

    /// Makes the semaphore with `permits` if it does not exist. Otherwise changes nothing and
    /// returns `false`.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer (the
    /// message says whether the change may have been made), or if the key holds other data, which
    /// stays as it is. Also the other errors of [`available_permits`](Self::available_permits).
    ///
    /// The other verbs that change the semaphore fail in these ways.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: it had permits before, and none were set"]
    pub fn try_set_permits(&self, permits: u32) -> Result<bool, Error> {
        self.request(|scripts, request_id| scripts.try_set_permits(request_id, permits, None))
    }

    /// Makes the semaphore, as [`try_set_permits`](Self::try_set_permits) does, with a
    /// `time_to_live`, so that a name for one run leaves no key behind. When it ends, waiters go on
    /// waiting, as after a [`delete`](Self::delete). A permit that is given back later makes it
    /// anew, without an end ([`release_if_exists`](Self::release_if_exists) does not).
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

    /// Sets the semaphore's time to live, from now on. With `None` it does not end. Returns `false`
    /// if there is no semaphore.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no semaphore, and nothing was changed"]
    pub fn expire(&self, time_to_live: Option<Duration>) -> Result<bool, Error> {
        time_to_live
            .map_or(Ok(()), check_time_to_live)
            .map_err(|error| error.of(&self.site.name))?;
        self.request(|scripts, request_id| scripts.expiry().set(request_id, time_to_live))
    }

    /// Returns the semaphore's time to live: `None` if there is no semaphore, [`Duration::MAX`] if
    /// it has no end.
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

    /// Sets how many permits are free, and makes the semaphore if there is none.
    ///
    /// Permits that are taken now do not count, since the server does not know them: when they
    /// return, they come on top of this number. So call this only while no live process has a
    /// permit, for example to replace those of a dead process. To change the size of a semaphore in
    /// use, call [`add_permits`](Self::add_permits) once, from one process.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.request(|scripts, request_id| scripts.set_permits(request_id, permits)).map(drop)
    }

    /// Changes the number of permits by `permits`, which may be negative. The number of free
    /// permits may be negative until enough are given back.
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
                site.applied(request_id, permits, mark);
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
    /// call has taken nothing, and the client gives back in the background any permits that the
    /// server may have given. Also the errors of [`available_permits`](Self::available_permits).
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
            Err(trouble) => Err(site.not_taken(request_id, trouble)),
        }
    }

    /// Removes the semaphore. Returns `false` if there was none.
    ///
    /// As in Redisson, waiters are not notified, and go on waiting. Taken permits that are given
    /// back make the semaphore anew.
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
    /// the key holds other data. [`Protocol`](ErrorKind::Protocol) if the server's answer makes no
    /// sense. [`Config`](ErrorKind::Config) if the name is empty. [`ShutDown`](ErrorKind::ShutDown)
    /// after [`Client::shutdown`]. [`Forked`](ErrorKind::Forked) in a forked child.
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

    /// Gives the semaphore one permit, whether or not one was taken. It is for permits that were
    /// [forgotten](Permit::forget) or taken elsewhere.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses or does not answer (the
    /// message says whether the client repeats the release in the background), or if too few
    /// replicas acknowledge the release (the permit is given back). Also the other errors of
    /// [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip, and the wait for replicas
    /// ([`replica_acks`](crate::ClientBuilder::replica_acks)). None if a waiting thread of this
    /// process gets the permit.
    pub fn release(&self) -> Result<(), Error> {
        self.release_many(1)
    }

    /// Gives the semaphore `permits`, as [`release`](Self::release) gives one.
    ///
    /// # Blocking
    ///
    /// One round trip; none if waiting threads of this process get them all.
    pub fn release_many(&self, permits: u32) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.site.give_back_as(permits, Giving::Awaited)
    }

    /// Gives the semaphore `permits` if it exists. Otherwise changes nothing and returns `false`.
    ///
    /// # Errors
    ///
    /// Those of [`release`](Self::release), but the client does not repeat the request in the
    /// background. The message says whether the change may have been made.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no semaphore, and nothing was given back"]
    pub fn release_if_exists(&self, permits: u32) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        let request_id = site.open();
        let outcome = site.scripts().release(request_id, permits, true);
        match outcome {
            Ok(Replied { reply: (Some(_), mark), unacknowledged, .. }) => {
                site.applied(request_id, permits.into(), mark);
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

    /// Returns the semaphore's name, as it was given: its key in Redis without the client's
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

    /// Sends a request that is applied once.
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
            site.size.wants(size, &site.core, &site.name);
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
