//! The verbs of every lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::CancelToken;
use redlatch_client::sync::Thread;

#[cfg(doc)]
use crate::client::Client;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::local::Terms;
#[cfg(doc)]
use crate::lock::fair::FairLock;
#[cfg(doc)]
use crate::lock::reentrant::ReentrantLock;
use crate::waiting::Wait;

mod at_least;
pub(crate) mod condition;
pub(crate) mod exclusive;
pub(crate) mod fair;
pub(crate) mod fenced;
mod guard;
mod handle;
pub(crate) mod multi;
mod part;
pub(crate) mod read_write;
pub(crate) mod reentrant;
mod verbs;

pub(crate) use self::guard::{HeldLock, HeldLocks};
pub use self::guard::{LockGuard, OwnedLockGuard};
pub(crate) use self::handle::{Handle, Variant};
pub(crate) use self::part::{Part, Parts};
pub(crate) use self::verbs::{one_lock, own_verbs};

/// The verbs of every lock of this library, for code that takes any of them.
///
/// Object-safe: `&dyn Lock` works. Each lock has the same methods of its own, so using one needs no
/// import of this trait. Only this library's locks implement it.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Client, Error, Lock};
///
/// /// Does the job unless another process does it, with any kind of lock.
/// fn once(lock: &dyn Lock, job: impl FnOnce()) -> Result<bool, Error> {
///     let Some(guard) = lock.try_lock_for(Duration::from_secs(3))? else { return Ok(false) };
///     job();
///     guard.unlock()?;
///     Ok(true)
/// }
///
/// # fn main() -> Result<(), Error> {
/// let client = Client::connect("redis://127.0.0.1:6379")?;
/// once(&client.reentrant_lock("report"), || println!("first come"))?;
/// once(&client.fair_lock("report"), || println!("first served"))?;
/// # Ok(()) }
/// ```
pub trait Lock: fmt::Debug + Send + Sync {
    /// Takes the lock, waiting for as long as it takes.
    ///
    /// - Free: taken. One round trip.
    /// - Held by the calling thread: taken once more, with no command. (One round trip, if this
    ///   [lease](Self::with_lease) is longer than what is left.) Each guard releases one level.
    /// - Held by another thread of this process: waits in the process's own queue, first come
    ///   first served, with no command.
    /// - Held by another process: sleeps until a process hands the lock to this one. Waiting
    ///   processes stand in a queue, and a release makes the first one the owner: a message tells
    ///   it, and it need not ask. (The threads of all processes that wait for a fair lock stand in
    ///   one queue.) The process asks by itself when the holder's lease should have ended, and
    ///   about once a second: a lost message costs no more than that.
    ///
    /// A lock that another process handed on is certain for 2 s at first, and has its lease once it
    /// was held for 50 ms: see [`LockGuard::check`].
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble, or the key holds something else:
    /// the lock is not held, or as before if the thread held it already. If the outcome of a
    /// request is unknown, the client releases in the background anything that it may have taken.
    /// [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense: the same is true
    /// then.
    /// [`Config`](ErrorKind::Config) if the name or the lease is not usable, or the thread has
    /// taken the lock a million times over. [`ShutDown`](ErrorKind::ShutDown) after
    /// [`Client::shutdown`], which ends waits as well. [`Forked`](ErrorKind::Forked) in a forked
    /// child.
    ///
    /// All verbs that take the lock fail in these ways.
    ///
    /// # Blocking
    ///
    /// Until the thread has the lock or an error ends the wait; time does not end it. Each request
    /// ends after [`response_timeout`](crate::ClientBuilder::response_timeout), in an outage too.
    fn lock(&self) -> Result<LockGuard, Error> {
        LockGuard::take(self, Wait::FOREVER)
    }

    /// Takes the lock if that is possible now: `None` if another thread holds it, or if a thread of
    /// this process waits for it, asks for it, or is just releasing it. It takes a free
    /// [`ReentrantLock`] past other processes that wait (as `tryLock()` in Java does). Such a lock
    /// is seldom free then: each release hands it on, also those of a loop of `try_lock`. It takes
    /// a [`FairLock`] past no waiter.
    ///
    /// # Errors
    ///
    /// Trouble that a request meets is an error, never `None`.
    ///
    /// # Blocking
    ///
    /// One round trip. None if a thread of this process is in the way (for a [`FairLock`] only a
    /// thread that holds it is: each thread asks for itself), or if the calling thread holds the
    /// lock already (but see [`lock`](Self::lock)).
    #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
    fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        LockGuard::try_take(self, Wait::NONE)
    }

    /// Takes the lock unless that takes longer than `wait`: returns `None` then. A wait of zero is
    /// [`try_lock`](Self::try_lock), one too long for any clock is [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// For `wait` at most (the first request has 15 ms in any case, or two round trips to a server
    /// that is further off). The end of `wait` also ends a request that is on its way: with `None`
    /// if the server has answered this call before, otherwise with an error. The client then
    /// releases in the background a hold that the server may have granted.
    #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
    fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        LockGuard::try_take(self, wait.into())
    }

    /// Takes the lock, and gives up when `token` is cancelled: at once if it already is.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled), nothing is held then. Also the errors of
    /// [`lock`](Self::lock). A grant that was decided before the cancel wins.
    ///
    /// # Blocking
    ///
    /// Until the thread has the lock, or an error or the cancel ends the wait. The cancel ends a
    /// sleep at once, and a request that is on its way as the end of the time does in
    /// [`try_lock_for`](Self::try_lock_for).
    fn lock_cancellable(&self, token: &CancelToken) -> Result<LockGuard, Error> {
        LockGuard::take(self, token.into())
    }

    /// Takes the lock unless that takes longer than `wait` allows: `None`. All the other ways to
    /// take it are short forms of this one. A lock's own method takes a [`Duration`], a deadline
    /// ([`Instant`](std::time::Instant)) or a `&CancelToken` as it is; here they need an `into()`.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled, nothing is held
    /// then. Also the errors of [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// For as long as `wait` allows, as [`try_lock_for`](Self::try_lock_for) and, with a token,
    /// [`lock_cancellable`](Self::lock_cancellable) do. A deadline that has passed leaves one try at
    /// most.
    #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
    fn lock_within(&self, wait: Wait<'_>) -> Result<Option<LockGuard>, Error> {
        LockGuard::try_take(self, wait)
    }

    /// Takes the lock for a guard that belongs to no thread and may be sent to another. It waits
    /// for every other holder, a guard of its own thread too: it is not re-entrant, and
    /// [`OwnedLockGuard`] says what that means. Threads and owned guards stand in the same queues,
    /// on equal terms.
    ///
    /// # Blocking
    ///
    /// For ever if only the calling thread could drop the guard that it waits for. In async code
    /// call it where blocking is allowed (`spawn_blocking`).
    fn lock_owned(&self) -> Result<OwnedLockGuard, Error> {
        LockGuard::take(self, Wait::FOREVER)
    }

    /// Takes the lock if that is possible now, for a guard that belongs to no thread.
    #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
    fn try_lock_owned(&self) -> Result<Option<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, Wait::NONE)
    }

    /// Takes the lock unless that takes longer than `wait`, for a guard that belongs to no thread.
    #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
    fn try_lock_owned_for(&self, wait: Duration) -> Result<Option<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, wait.into())
    }

    /// Takes the lock for a guard that belongs to no thread, and gives up when `token` is cancelled.
    fn lock_owned_cancellable(&self, token: &CancelToken) -> Result<OwnedLockGuard, Error> {
        LockGuard::take(self, token.into())
    }

    /// Takes the lock unless that takes longer than `wait` allows, for a guard that belongs to no
    /// thread.
    #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
    fn lock_owned_within(&self, wait: Wait<'_>) -> Result<Option<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, wait)
    }

    /// Releases one level of the calling thread's hold, the one taken last: for code that has no
    /// guard at hand, after [`LockGuard::forget`].
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ErrorKind::NotHeld) if the thread does not hold the lock: nothing changes, even
    /// if another thread holds it. Also the errors of [`LockGuard::unlock`].
    fn unlock(&self) -> Result<(), Error>;

    /// Takes the lock away from its holder, on any machine, and lets the next in line in. `false`:
    /// nobody held it. A holder in this client learns of it at once, another one when the server
    /// tells it ([`LockGuard::on_lost`]). If the server does not, the holder learns of it at its
    /// next renewal, or, with a fixed lease, which is not renewed, when it unlocks.
    ///
    /// # Errors
    ///
    /// - [`Redis`](ErrorKind::Redis) if the key holds something else than a lock (another type, a
    ///   hash of several fields or without a time to live): it stays as it is. Or if the server is
    ///   in trouble. If its reply was lost, the message says that the outcome is not known: the
    ///   client does not send the request twice, since the second one would take the lock from the
    ///   next holder.
    /// - [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense.
    /// - [`Config`](ErrorKind::Config) if the name is empty.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`],
    ///   [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// Two round trips, and a third if a thread of this client holds the lock.
    fn force_unlock(&self) -> Result<bool, Error>;

    /// Whether anybody holds the lock, on any machine. Already old when it returns.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble, or the key holds something else, as
    /// [`lock`](Self::lock) would say,
    /// [`Protocol`](ErrorKind::Protocol) if its answer makes no sense,
    /// [`Config`](ErrorKind::Config) if the name is empty, [`ShutDown`](ErrorKind::ShutDown) after
    /// [`Client::shutdown`], [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn is_locked(&self) -> Result<bool, Error>;

    /// Whether the calling thread holds the lock, as its guard would report. No I/O.
    fn is_held_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// How many levels the calling thread has taken and not released; zero if it does not hold the
    /// lock. No I/O.
    fn hold_count(&self) -> usize;

    /// How long the lock lasts unless its holder renews it, on any machine: `None` if nobody holds
    /// it, or if the key holds something else than a lock.
    ///
    /// # Errors
    ///
    /// Those of [`is_locked`](Self::is_locked), except for a key that holds something else.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn remaining_lease(&self) -> Result<Option<Duration>, Error>;

    /// The lock's name: the key in Redis.
    fn name(&self) -> &str;

    /// The same lock with a fixed lease, counted from each time it is taken and never renewed.
    ///
    /// From 1 ms to 10¹³ ms; with another lease, the first call that takes the lock fails. A thread
    /// that holds the lock already extends its lease to this one if the rest of its lease is
    /// shorter (one round trip), and never shortens it.
    #[must_use]
    fn with_lease(&self, lease: Duration) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::On(Terms::fixed(lease)))
    }

    /// The same lock with a watched lease of its own: the watchdog renews it at a third of this
    /// instead of the client's [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout), so
    /// others wait this long for the lock of a process that died. (A lock that another process has
    /// just handed on is an exception to that, too.)
    ///
    /// From 10 ms to a year; with another lease, the first call that takes the lock fails with an
    /// error of kind [`Config`](crate::ErrorKind::Config). If a thread holds the lock with several
    /// watched leases, or threads share it with several, the watchdog renews the longest; the rest
    /// of a lease never becomes shorter. After it was held with another lease, and between threads
    /// that want different ones, the lock goes through the server.
    ///
    /// From this call on, the client takes the connection of its renewals for broken when a renewal
    /// had no reply for a sixth of the shortest watched lease, and renews over a new one. If
    /// several in a row had none, it waits for longer, so that its longer leases last. With
    /// [`replica_acks`](crate::ClientBuilder::replica_acks) take at least ten times the time that
    /// replicas have to acknowledge: a renewal that they are slow to acknowledge keeps the others
    /// waiting.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), redlatch::Error> {
    /// # use std::time::Duration;
    /// # let client = redlatch::Client::connect("redis://localhost")?;
    /// // If this process dies, another one leads after 2 s.
    /// let leads = client.reentrant_lock("leader").with_watchdog(Duration::from_secs(2)).lock()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    fn with_watchdog(&self, timeout: Duration) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::On(Terms::watched(timeout)))
    }

    /// Takes the lock unless anybody has taken it so within the last `interval`: "run this once an
    /// hour on one of all machines" is `try_once_per` on each of them, as often as you like. `None`:
    /// not now.
    ///
    /// The interval counts from the grant, and belongs to the run from then on: if its process is
    /// killed at any point after that, if it fails, or if it is done sooner, no other run begins
    /// before the interval is over. If the work takes longer, no other run begins before its end. (A
    /// process that is killed while its watched lease was being renewed, near the end of the
    /// interval or after it, keeps the lock for that lease.) Take an interval a little shorter than
    /// the pause between two tries, or the next one comes a moment too early. It is [`with_hold_at_least`](Self::with_hold_at_least) and
    /// [`try_lock`](Self::try_lock), with their errors.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), redlatch::Error> {
    /// # use std::time::Duration;
    /// # let client = redlatch::Client::connect("redis://localhost")?;
    /// # fn report() {}
    /// let hourly = client.reentrant_lock("report");
    /// if let Some(_run) = hourly.try_once_per(Duration::from_secs(3_595))? {
    ///     report();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`None`: it was taken within the interval"]
    fn try_once_per(&self, interval: Duration) -> Result<Option<LockGuard>, Error>
    where
        Self: Sized,
    {
        self.with_hold_at_least(interval).try_lock()
    }

    /// The same lock, held for at least this long from each time it is taken: if its guard is dropped or unlocked before, or its process ends, the lock stays
    /// taken until then, as after [`leave_to_expire`](LockGuard::leave_to_expire). Work that takes
    /// longer has the lock on the terms of the handle, and its end releases it. A wait on a condition
    /// does not let others in before that time either.
    ///
    /// # Blocking
    ///
    /// Taking it costs a round trip more if another process handed it on.
    #[must_use]
    fn with_hold_at_least(&self, least: Duration) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::AtLeast(least))
    }

    /// The same lock, through a handle by which no thread takes a second level: every verb that takes
    /// the lock fails with [`WouldDeadlock`](ErrorKind::WouldDeadlock) in a thread that holds it,
    /// through whichever handle. For code that must not be called under its own lock. An owned guard
    /// belongs to no thread, so this changes nothing for it. Of a read-write lock it is true for the
    /// half whose handle it is: a writer may still read.
    #[must_use]
    fn non_reentrant(&self) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::NonReentrant)
    }

    /// Takes the lock, runs `work` with the guard, and releases the lock: so no caller can forget
    /// to bind the guard.
    ///
    /// Returns the result of `work` as it is, an error of its own too. If the server is in trouble
    /// at the release, the client logs that and goes on with the release in the background: the
    /// work was done under the lock, and its result counts.
    ///
    /// ```no_run
    /// # use redlatch::{Error, ErrorKind, LockGuard, ReentrantLock};
    /// #[derive(Debug)]
    /// enum ShopError {
    ///     SoldOut,
    ///     Lock(Error),
    /// }
    ///
    /// impl From<Error> for ShopError {
    ///     fn from(error: Error) -> Self {
    ///         Self::Lock(error)
    ///     }
    /// }
    ///
    /// # fn book() -> Result<u64, ShopError> { Ok(1) }
    /// fn sell(lock: &ReentrantLock) -> Result<u64, ShopError> {
    ///     let order = lock.with(|guard| {
    ///         guard.check(std::time::Duration::from_secs(2))?;
    ///         book()
    ///     })?;
    ///     Ok(order)
    /// }
    ///
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// - `work`'s own.
    /// - [`LeaseLost`](ErrorKind::LeaseLost): `work` returned `Ok`, but the lock was lost before
    ///   its end, and another holder may have worked at the same time. (To keep the result even
    ///   then, let `work` put it into a variable outside, or take a guard and
    ///   [`unlock`](LockGuard::unlock) it.) [`NotHeld`](ErrorKind::NotHeld): `work` released the
    ///   lock itself. [`Forked`](ErrorKind::Forked), after `work` too: it forked, and this is the
    ///   child.
    /// - All other errors of this library are those of [`lock`](Self::lock): `work` did not run.
    ///
    /// # Blocking
    ///
    /// As long as [`lock`](Self::lock), `work` and [`LockGuard::unlock`] take. If `work` panics or
    /// fails, the lock is released as if the guard were dropped.
    fn with<R, E>(&self, work: impl FnOnce(&LockGuard) -> Result<R, E>) -> Result<R, E>
    where
        Self: Sized,
        E: From<Error>,
    {
        self.lock()?.release_after(work)
    }

    /// The one step behind all verbs that take the lock. `None`: the wait ended first.
    #[doc(hidden)]
    #[must_use = "`None`: it was not taken; and a hold that is dropped is released"]
    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<HeldLocks>, Error>;

    /// The locks of one name that it consists of; none if it can be no part of others.
    #[doc(hidden)]
    fn parts(&self) -> Parts;

    /// The same lock, but for this.
    #[doc(hidden)]
    fn varied(&self, variant: Variant) -> Self
    where
        Self: Sized;
}
