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
use crate::local::permits;
use crate::runtime::Session;
use crate::scripts::semaphore::SemaphoreScripts;
use crate::scripts::{Replied, RequestId, Trouble};
use crate::waiting::Wait;

mod permit;
mod site;

pub use self::permit::Permit;
use self::site::Giving;
pub(crate) use self::site::SemaphoreSite;

/// Limits how many threads of all processes do something at once, by permits that they share:
/// `Semaphore` of java.util.concurrent, Redisson's `RSemaphore`. Made by [`Client::semaphore`].
///
/// A clone is the same semaphore, and so is every handle of the same name. It has no permits until
/// some are set or added.
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let downloads = client.semaphore("downloads");
/// downloads.try_set_permits(8)?; // the first process sets them
///
/// let permit = downloads.acquire()?; // waits; a drop gives it back
/// permit.release()?; // given back, and the server has said so
///
/// if let Some(three) = downloads.try_acquire_many_for(3, Duration::from_secs(5))? {
///     println!("{} at a time", three.permits());
/// }
/// # Ok(()) }
/// ```
///
/// # Leases
///
/// Permits have none, as in Redisson: **a process that dies with permits takes them with it**, and
/// they are missing until a process adds them again. Those of an
/// [`ExpirableSemaphore`](crate::ExpirableSemaphore) come back by themselves.
///
/// # Fairness
///
/// Threads of one process get permits in the order they came; one that needs many is not passed by
/// one that needs few: a thread that takes one permit waits behind a thread of its process that
/// waits for two, even while one permit is free. Between processes there is no order; a process
/// passes permits on among its own threads for a turn, as it does a lock. If other processes wait
/// as well, its waiting threads together take no more than its share from the server: half of the
/// free permits if there is one other process.
///
/// # Lost replies
///
/// Each request is numbered, and applied once however often it has to be sent. If the outcome of an
/// acquire stays unknown, the caller gets an error, and the client gives back in the background any
/// permits it may have taken. The client tries that, and a release that may have been applied, for
/// four minutes; then it gives up and logs that the outcome is not known. A release that never left
/// the process is kept for as long as the client is.
///
/// # After a failover
///
/// A replica that becomes the master may not have heard of the last requests. Each client repeats
/// the takes and returns of its last 10 s that the new master does not know, up to 10,000: when all
/// permits that were out have come back, there are as many as before. Until then more may be out
/// than there are. A client cannot repair the changes of a client that ended in those seconds,
/// those of Redisson's clients, [`set_permits`](Self::set_permits) and
/// [`drain_permits`](Self::drain_permits), and none at all if the clocks of the two servers are a
/// minute or more apart. So a `WARN` names the semaphores in use at each failover: compare
/// [`available_permits`](Self::available_permits) with the number that should be free when none is
/// out. With [`replica_acks`](crate::ClientBuilder::replica_acks), taking permits and
/// [`release`](Permit::release) wait until replicas know of it; a drop does not wait.
///
/// # In Redis
///
/// The number of free permits as text under the semaphore's name, without a time to live; each
/// change is published on `redisson_sc:{name}`. Beside it keys that begin with
/// `redlatch_request:{name}:…` remember which requests were applied, for five minutes after a
/// client's last request: one for each request that it had open at once. The rights that a user
/// needs are listed in [Operations](crate::guide::operations).
#[derive(Clone)]
pub struct Semaphore {
    site: Arc<SemaphoreSite>,
    session: Session,
}

permit_verbs!(Semaphore, Permit, Permit);

impl Semaphore {
    /// Gives the semaphore its permits, if it does not exist: `true`. `false`: it exists, and stays
    /// as it is.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble, the message says whether it may
    /// have been applied; or if the key holds something else, which is left as it is.
    /// [`Protocol`](ErrorKind::Protocol), [`Config`](ErrorKind::Config),
    /// [`ShutDown`](ErrorKind::ShutDown) and [`Forked`](ErrorKind::Forked) as
    /// [`available_permits`](Self::available_permits).
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

    /// As [`try_set_permits`](Self::try_set_permits), for a semaphore that ends by itself after
    /// `time_to_live`, so that a name made for one run leaves no key behind. Waiters go on waiting
    /// then, as after a [`delete`](Self::delete); a permit that is given back makes it anew, without
    /// an end ([`release_if_exists`](Self::release_if_exists) does not).
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

    /// Lets the semaphore end by itself after `time_to_live` from now; with `None`, not at all.
    /// `false`: there is none.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no semaphore, and nothing was changed"]
    pub fn expire(&self, time_to_live: Option<Duration>) -> Result<bool, Error> {
        time_to_live
            .map_or(Ok(()), check_time_to_live)
            .map_err(|error| error.of(&self.site.name))?;
        self.request(|scripts, request_id| scripts.expire(request_id, time_to_live))
    }

    /// How long the semaphore lives: `None` if there is none, [`Duration::MAX`] if it has no end.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`None`: there is no semaphore"]
    pub fn time_to_live(&self) -> Result<Option<Duration>, Error> {
        self.check(&Wait::FOREVER)?;
        let left = self.site.scripts().time_to_live();
        left.map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Sets how many permits are free, regardless of their number before, and makes the semaphore
    /// if there is none. Waiters on any machine get the permits that there are now, or go on
    /// waiting.
    ///
    /// Permits that are out are not counted, since the server does not know them: they come back on
    /// top. So it is for a semaphore of which none is out, or of which a process died with some;
    /// one in use is made larger or smaller by [`add_permits`](Self::add_permits), once for all
    /// processes.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.request(|scripts, request_id| scripts.set_permits(request_id, permits)).map(drop)
    }

    /// Changes how many permits there are, by a number that may be negative: then there may be
    /// fewer than none until enough are given back.
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
            Ok(_) => site.applied(request_id, permits),
            Err(_) => site.requests.close(request_id),
        }
        outcome.map(drop).map_err(|trouble| trouble.into_error_of(&site.name))
    }

    /// Takes all permits that are free, and returns how many they were (negative if there were
    /// fewer than none).
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble: nothing is taken, and the client
    /// gives back in the background any permits the server may have given. Also the errors of
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
            Err(trouble) => Err(site.not_taken(request_id, trouble)),
        }
    }

    /// Removes the semaphore: it has no permits until some are set or added. `false`: there was
    /// none.
    ///
    /// As in Redisson, no message tells of it: waiters of all processes go on waiting. Permits that
    /// are out come back nevertheless, and make it anew.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn delete(&self) -> Result<bool, Error> {
        self.request(|scripts, request_id| scripts.delete(request_id))
    }

    /// How many permits are free. Already old when it returns.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble, or the key holds something else.
    /// [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense.
    /// [`Config`](ErrorKind::Config) if the name is empty. [`ShutDown`](ErrorKind::ShutDown) after
    /// [`Client::shutdown`], [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn available_permits(&self) -> Result<i64, Error> {
        self.check(&Wait::FOREVER)?;
        self.site
            .scripts()
            .available_permits()
            .map_err(|trouble| trouble.into_error_of(&self.site.name))
    }

    /// Gives the semaphore one permit, whether or not one was taken: for permits that were
    /// [forgotten](Permit::forget), or taken elsewhere.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble, or too few replicas acknowledge it
    /// (the permit is given back then); the message says whether the release is tried again in the
    /// background. [`Protocol`](ErrorKind::Protocol),
    /// [`Config`](ErrorKind::Config), [`ShutDown`](ErrorKind::ShutDown) and
    /// [`Forked`](ErrorKind::Forked) as [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip, and the wait for replicas that
    /// [`replica_acks`](crate::ClientBuilder::replica_acks) asks for; none if the permit is passed
    /// to a thread of this process that waits.
    pub fn release(&self) -> Result<(), Error> {
        self.release_many(1)
    }

    /// Gives `permits` back at once.
    ///
    /// # Blocking
    ///
    /// One round trip; none if all are passed to threads of this process that wait.
    pub fn release_many(&self, permits: u32) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.site.give_back_as(permits, Giving::Awaited)
    }

    /// Gives `permits` back if the semaphore exists: `false` if it does not.
    ///
    /// # Errors
    ///
    /// Those of [`release`](Self::release). The request is never sent again in the background: the
    /// message says whether it may have been applied.
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
        match &outcome {
            Ok(Replied { reply: Some(_), .. }) => {
                site.applied(request_id, permits.into());
            }
            _ => site.requests.close(request_id),
        }
        let released = outcome.map_err(|trouble| trouble.into_error_of(&site.name))?;
        match released.unacknowledged.filter(|_| released.reply.is_some()) {
            Some(unacknowledged) => Err(unacknowledged.of(&site.name).now(site::GIVEN_BACK_HERE)),
            None => Ok(released.reply.is_some()),
        }
    }

    /// The semaphore's name: the key in Redis.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.site.name
    }

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        Self { site: SemaphoreSite::of(session.core(), name), session: session.clone() }
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
        let next = || site.core.id.next_number();
        let outcome = site.requests.with_one(next, |request_id| send(site.scripts(), request_id));
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
        let taken = permits::acquire(&self.site, permits, wait)?;
        Ok(taken.map(|permits| self.permit(permits)))
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
