//! The semaphore whose permits have leases: Redisson's `RPermitExpirableSemaphore`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::permit_verbs;
#[cfg(doc)]
use crate::client::Client;
use crate::config::check_time_to_live;
use crate::error::{Error, ErrorKind};
use crate::local::permits::{self, Permits, Source};
use crate::local::{Terms, check_lease, clock};
use crate::runtime::Session;
use crate::scripts::expirable_semaphore::Counts;
use crate::scripts::renewal::{self, RenewalKind};
use crate::scripts::{PermitId, Trouble};
use crate::waiting::Wait;

mod permit;
mod permit_lease;
mod site;

pub use self::permit::ExpirablePermit;
use self::permit_lease::{PermitLease, PermitNeed};
pub(crate) use self::site::ExpirableSite;

/// Limits how many threads of all processes do something at once, by permits that each have a
/// lease: Redisson's `RPermitExpirableSemaphore`. Made by [`Client::expirable_semaphore`].
///
/// Unlike that of a [`Semaphore`](crate::Semaphore), **a permit whose holder dies comes back**: at
/// the end of its lease. The watchdog renews the leases of holders that live.
///
/// A clone is the same semaphore, and so is every handle of the same name. It has no permits until
/// some are set or added.
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let connections = client.expirable_semaphore("connections");
/// connections.try_set_permits(8)?; // the first process sets them
///
/// let permit = connections.acquire()?; // waits; renewed while it lives
/// permit.check(Duration::from_secs(1))?; // ours for a second more in any case
/// permit.release()?; // given back, and the server has said so
///
/// // For a minute, even if this process dies, unless a process gives it back:
/// let minute = connections.with_lease(Duration::from_secs(60));
/// if let Some(permit) = minute.try_acquire()? {
///     let id = permit.into_id(); // may be sent to another process
///     connections.release(&id)?; // by the process that has the id
/// }
/// # Ok(()) }
/// ```
///
/// # Leases
///
/// A permit is taken for [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) (30 s) and
/// renewed when a third of that has gone, for as long as its guard lives. (Permits of Redisson's
/// clients have a fixed lease or none at all.) [`with_lease`](Self::with_lease) takes a fixed one,
/// which is never renewed. A lease that ends sends no message: waiters know when the next one ends
/// and ask then, and once in about 5 s in any case.
///
/// Times are the server's alone. No client's clock frees a permit early or keeps it for longer.
///
/// Several permits that are taken at once have an id and a lease each, and are given back one by
/// one. 1,024 are the most, more an error of kind [`Config`](ErrorKind::Config).
///
/// # Fairness
///
/// As a [`Semaphore`](crate::Semaphore)'s: threads of one process get permits in the order they
/// came; one that needs many is not passed by one that needs few. Between processes there is no
/// order; a process passes permits on among its own threads for a turn, on equal terms, and takes
/// no more than its share if other processes wait as well.
///
/// # Lost replies
///
/// Each permit has an id, which the client makes before it sends the request. A request that has to
/// be sent again finds its own ids: it takes and gives back once. If the outcome of an acquire
/// stays unknown, the caller gets an error, and the client gives back in the background any permits
/// it may have taken; if that fails as well, they come back at the end of the lease. Changes of the
/// number of permits are numbered, and made once.
///
/// # With Redisson
///
/// The same keys, ids and messages as Redisson from 3.17 to 4.7, so that both share the permits and
/// either gives back the other's, by its [`PermitId`]. Redisson 3.16 has ids of 32 characters: it
/// shares the permits, too, but neither can give the other's back, or make its lease longer, by its
/// id. They come back by themselves at their lease's end.
///
/// **Redisson's clients decide by their own clocks** which leases have ended. A clock that is ahead
/// of the server's takes permits away that early: from a guard here while there is less left of its
/// lease (two thirds of `watchdog_timeout` at the least). The guard tells at its next renewal. A
/// client whose clock is behind writes leases that end too early by the server's clock, and may
/// lose its permits that early; if its clock is ahead, its permits come back that much later after
/// its death. Keep the clocks of such machines together to well within the leases.
///
/// **Do not use the names `x` and `{x}` side by side.** They share the key of their leases, in
/// Redisson too, and each takes the other's permits for its own when they lapse. A client that
/// names one while it has a handle of the other gets [`Config`](ErrorKind::Config) from the later
/// one.
///
/// # In Redis
///
/// The number of free permits as text under the semaphore's name, and in the sorted set
/// `{name}:timeout` the id of each permit that is out, with the time (ms since 1970) when its lease
/// ends; neither has a time to live. Each change is published on `redisson_sc:{name}`. Keys that
/// begin with `redlatch_request:{name}:…` remember for five minutes how the number of permits was
/// changed. The rights that a user needs are listed in
/// [Operations](crate::guide::operations).
#[derive(Clone)]
pub struct ExpirableSemaphore {
    site: Arc<ExpirableSite>,
    session: Session,
    terms: Terms,
}

permit_verbs!(ExpirableSemaphore, ExpirablePermit, Vec<ExpirablePermit>);

impl ExpirableSemaphore {
    /// The same semaphore, whose permits are taken for this long and never renewed. It must be from
    /// 1 ms to 10^13 ms, or acquiring is an error of kind [`Config`](ErrorKind::Config).
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        Self { terms: Terms::fixed(lease), ..self.clone() }
    }

    /// The same semaphore, whose permits have this lease, which the watchdog renews, instead of the
    /// client's [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout). So this is how long
    /// others wait for a permit of a process that died. It must be from 10 ms to a year, or
    /// acquiring is an error of kind [`Config`](ErrorKind::Config).
    ///
    /// A short one asks something of the whole client:
    /// [`Lock::with_watchdog`](crate::Lock::with_watchdog).
    #[must_use]
    pub fn with_watchdog(&self, timeout: Duration) -> Self {
        self.site.core.watches_for(timeout);
        Self { terms: Terms::watched(timeout), ..self.clone() }
    }

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
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.try_set_permits(request_id, permits))
    }

    /// Sets how many permits there are, those that are out included, and makes the semaphore if
    /// there is none. If more are out, they stay with their holders, and fewer than none are free
    /// until enough have come back. So it also replaces lost permits.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn set_permits(&self, permits: u32) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.set_permits(request_id, permits)).map(drop)
    }

    /// Changes how many permits there are, by a number that may be negative: then there may be
    /// fewer than none free until enough have come back.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn add_permits(&self, permits: i64) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.add_permits(request_id, permits)).map(drop)
    }

    /// Removes the semaphore with all permits, those that are out as well: their guards are lost at
    /// their next renewal. `false`: there was none.
    ///
    /// As in Redisson, no message tells of it: waiters go on waiting, until there are permits
    /// again.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn delete(&self) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.once(|scripts, request_id| scripts.delete(request_id))
    }

    /// Lets the semaphore end by itself after `time_to_live` from now, with all its permits, as
    /// [`delete`](Self::delete) does; with `None`, not at all. `false`: there is none.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no semaphore, and nothing was changed"]
    pub fn expire(&self, time_to_live: Option<Duration>) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        time_to_live
            .map_or(Ok(()), check_time_to_live)
            .map_err(|error| error.of(&self.site.name))?;
        self.site.once(|scripts, request_id| scripts.expire(request_id, time_to_live))
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

    /// How many permits are free, those included whose leases have ended. Already old when it
    /// returns. It changes nothing.
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
        self.counts().map(|counts| counts.free)
    }

    /// How many permits are out, on all machines, and their leases have not ended.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn acquired_permits(&self) -> Result<i64, Error> {
        self.counts().map(|counts| counts.out)
    }

    /// How many permits there are, free or out.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn permits(&self) -> Result<i64, Error> {
        self.counts().map(|counts| counts.free.saturating_add(counts.out))
    }

    /// Gives a permit back by its id, even one taken on another machine. A guard of this client
    /// that has the permit says "released" from then on; a guard of another process loses it at its
    /// next renewal.
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ErrorKind::NotHeld) if there is no such permit: it was given back before, or its
    /// lease has ended; nothing was changed. [`Redis`](ErrorKind::Redis) if the server is in
    /// trouble; the message says whether the release is sent again in the background. Also if the
    /// connection broke and the server, asked once more, no longer knows the permit: most likely it
    /// was given back then. [`Protocol`](ErrorKind::Protocol), [`Config`](ErrorKind::Config),
    /// [`ShutDown`](ErrorKind::ShutDown) and [`Forked`](ErrorKind::Forked) as
    /// [`available_permits`](Self::available_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn release(&self, id: &PermitId) -> Result<(), Error> {
        self.release_many(std::slice::from_ref(id))
    }

    /// Gives the permit of this id back. Returns `false` if there is no such permit.
    ///
    /// # Errors
    ///
    /// Those of [`release`](Self::release), except `NotHeld`.
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there was no such permit"]
    pub fn try_release(&self, id: &PermitId) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        self.site.release_ids(std::slice::from_ref(id))
    }

    /// Gives some permits back at once: all of them or, if one is not there any more, none but
    /// those of which a guard of this client had one. At most 1,024.
    ///
    /// # Errors
    ///
    /// Those of [`release`](Self::release); [`Config`](ErrorKind::Config) for more than 1,024, or
    /// if an id is there twice.
    ///
    /// # Blocking
    ///
    /// One round trip. None for no ids.
    pub fn release_many(&self, ids: &[PermitId]) -> Result<(), Error> {
        self.check(&Wait::FOREVER)?;
        self.check_number(ids.len())?;
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|two| two[0] == two[1]) {
            let message = "an id stands there twice; nothing was changed".to_owned();
            return Err(Error::new(ErrorKind::Config, message).of(&self.site.name));
        }
        if ids.is_empty() || self.site.release_ids(ids)? {
            return Ok(());
        }
        let message = "there is no such permit: it was given back before, or its lease has ended; \
                       nothing was changed";
        Err(Error::new(ErrorKind::NotHeld, message.to_owned()).of(&self.site.name))
    }

    /// Gives a permit a new lease, from now on: `true`. `false`: there is no such permit, or its
    /// lease has ended.
    ///
    /// For permits that are known by their id. The lease of a guard of this client is only made
    /// longer. Do not shorten the lease of another process's guard: the guard does not know, and
    /// says "held" until its next renewal, which makes a watched lease longer again.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) for a lease that is not from 1 ms to 10^13 ms. Also the errors
    /// of [`try_set_permits`](Self::try_set_permits).
    ///
    /// # Blocking
    ///
    /// One round trip.
    #[must_use = "`false`: there is no such permit, and no lease was changed"]
    pub fn update_lease_time(&self, id: &PermitId, lease: Duration) -> Result<bool, Error> {
        self.check(&Wait::FOREVER)?;
        let site = &self.site;
        check_lease(&site.name, lease)?;
        let Some(held) = site.held(id) else {
            return site
                .once(|scripts, request_id| scripts.update_lease_time(request_id, id, lease));
        };
        // The lease is only raised. If it were shortened while a renewal is on its way, the guard
        // would say "held" for too long.
        let sent_at = clock::now();
        let counts = held.hold.ask(lease);
        let (route, owner) = (&site.route, &held.hold.owner);
        let acks = site.core.config.replica_acks;
        let updated =
            renewal::extend(RenewalKind::Permits, route, &site.timeouts, owner, lease, acks);
        let updated = updated.map_err(|trouble| {
            if let Trouble::Unknown(_) = trouble {
                // The server may have it for longer than its guard says.
                held.hold.unconfirm();
                if held.hold.lost().is_some() {
                    site.release_later(&[held.id], lease);
                }
            }
            trouble.into_error_of(&site.name)
        })?;
        held.updated(sent_at, lease, counts, updated);
        Ok(updated)
    }

    /// How long a permit's lease lasts without a renewal. `None`: there is no such permit, or its
    /// lease has ended. One of Redisson's without a lease lasts [`Duration::MAX`].
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

    /// The semaphore's name: the key in Redis.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.site.name
    }

    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = ExpirableSite::of(session.core(), name);
        let terms = Terms::watched(site.core.config.watchdog_timeout);
        Self { site, session: session.clone(), terms }
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
        let most = Vec::<Arc<PermitLease>>::MOST;
        if permits > most {
            let message = format!("{permits} permits at once are too many: {most} are the most");
            return Err(Error::new(ErrorKind::Config, message).of(&self.site.name));
        }
        Ok(())
    }

    fn counts(&self) -> Result<Counts, Error> {
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
        let need = PermitNeed { permits, terms: self.terms };
        loop {
            let Some(permit_leases) = permits::acquire(&self.site, need, wait)? else {
                return Ok(None);
            };
            let guards = permit_leases
                .into_iter()
                .filter_map(|permit_lease| ExpirablePermit::of(self, permit_lease));
            let guards: Vec<_> = guards.collect();
            // The end of the client gave back the permits of that time; the drop gives these back.
            self.session.core().check(&self.site.name)?;
            if guards.len() == permits as usize {
                return Ok(Some(guards));
            }
            // Some permits were lost on their way here; the others go back.
            if wait.is_over() {
                return Ok(None);
            }
        }
    }

    fn give_back(&self, permit_leases: Vec<Arc<PermitLease>>) {
        self.site.give_back(permit_leases);
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
