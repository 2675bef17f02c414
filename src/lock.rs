//! The verbs of every lock.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch_client::CancelToken;
use redlatch_client::sync::Thread;

use crate::attempt::Attempt;
#[cfg(doc)]
use crate::attempt::Attempt::NotTaken;
#[cfg(doc)]
use crate::client::Client;
use crate::error::Error;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::hold::Terms;
#[cfg(doc)]
use crate::lock::fair::FairLock;
#[cfg(doc)]
use crate::lock::reentrant::ReentrantLock;
use crate::waiting::Wait;

mod at_least;
pub(crate) mod condition;
pub(crate) mod fair;
pub(crate) mod fenced;
mod guard;
mod handle;
mod held;
pub(crate) mod hooks;
pub(crate) mod multi;
mod part;
pub(crate) mod read_write;
pub(crate) mod reentrant;
mod together;
mod verbs;

pub(crate) use self::guard::HeldLocks;
pub use self::guard::{LockGuard, OwnedLockGuard};
pub(crate) use self::handle::{Handle, Variant};
pub(crate) use self::held::HeldLock;
pub(crate) use self::part::{AsLock, Part, Parts};
pub(crate) use self::verbs::{one_lock, own_verbs};

/// The verbs of every lock of this library, for code that takes any lock.
///
/// `&dyn Lock` works. Each lock also has these methods of its own, so calling them needs no import
/// of this trait. Only this library's locks implement it.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Client, Error, Lock, Taken};
///
/// /// Does the job unless another process does it, with any kind of lock.
/// fn once(lock: &dyn Lock, job: impl FnOnce()) -> Result<bool, Error> {
///     let Taken(guard) = lock.try_lock_for(Duration::from_secs(3))? else { return Ok(false) };
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
pub trait Lock: fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Takes the lock. Blocks until the thread has it.
    ///
    /// - If the lock is free, the call takes it with one round trip.
    /// - If the calling thread holds the lock, it takes one more level, without a command. (If this
    ///   [lease](Self::with_lease) is longer than the rest of the present one, it needs one round
    ///   trip.) Each guard releases one level.
    /// - If another thread of this process holds the lock, the thread waits in the process's own
    ///   queue, in the order of arrival.
    /// - If another process holds the lock, the thread sleeps until a message tells it that it has
    ///   the lock. Waiting processes stand in a queue in Redis, and a release makes the first one
    ///   the owner. (For a fair lock, the threads of all processes stand in one queue.) The process
    ///   also asks when the holder's lease should have ended, and about once a second, in case a
    ///   message is lost.
    ///
    /// A lock that another process handed on has a lease of 2 s at first. After 50 ms the client
    /// extends it to the full lease: see [`LockGuard::check`].
    ///
    /// # Errors
    ///
    /// After an error the call has taken nothing. If the outcome of a request is unknown, the
    /// client releases in the background anything that it may have taken.
    ///
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses, is away, or does not
    ///   answer in time, or if the key holds other data. [`Protocol`](ErrorKind::Protocol) if the
    ///   server's answer makes no sense.
    /// - [`Config`](ErrorKind::Config) if the name or the lease is not usable, or the thread has
    ///   taken a million levels.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`], which also ends waits.
    ///   [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// All verbs that take the lock fail in these ways.
    ///
    /// # Blocking
    ///
    /// Until the thread has the lock or an error ends the wait. Each request ends after
    /// [`response_timeout`](crate::ClientBuilder::response_timeout), also in an outage.
    fn lock(&self) -> Result<LockGuard, Error> {
        LockGuard::take(self, Wait::FOREVER)
    }

    /// Takes the lock if that is possible now. Returns [`NotTaken`] if another thread holds it, or
    /// if a thread of this process waits for it, asks for it, or is just releasing it. It may
    /// overtake other processes that wait for a [`ReentrantLock`], as `tryLock()` in Java does, but
    /// such a lock is seldom free: each release hands it on. It overtakes no waiter for a
    /// [`FairLock`].
    ///
    /// # Errors
    ///
    /// A failed request is an error, never [`NotTaken`].
    ///
    /// # Blocking
    ///
    /// One round trip. None if a thread of this process is in the way (for a [`FairLock`] only if
    /// it holds the lock), or if the calling thread holds the lock already (but see
    /// [`lock`](Self::lock)).
    fn try_lock(&self) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, Wait::NONE)
    }

    /// Takes the lock, or returns [`NotTaken`] after `wait`. A wait of zero is
    /// [`try_lock`](Self::try_lock); one too long for any clock is [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// For at most `wait`. (A reply under way is awaited for 50 ms at least, or three round trips
    /// to a distant server.) The end of `wait` also ends a request without a reply. The call then
    /// returns [`NotTaken`] if the server has answered it before, or has answered any call over the
    /// same connection within the last second, otherwise an error. If the server has granted the
    /// lock, the client releases it in the background.
    fn try_lock_for(&self, wait: Duration) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, wait.into())
    }

    /// Takes the lock, or returns [`NotTaken`] at `deadline`, as [`try_lock_for`](Self::try_lock_for)
    /// does after its `wait`. If `deadline` has passed, the call tries once.
    fn try_lock_until(&self, deadline: Instant) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, deadline.into())
    }

    /// Takes the lock, or fails when `token` is cancelled.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled): the call has taken nothing. Also the errors of
    /// [`lock`](Self::lock). If the lock was granted before the cancel, the call takes it.
    ///
    /// # Blocking
    ///
    /// Until the thread has the lock, or an error or the cancel ends the wait. The cancel ends a
    /// sleep and a request at once.
    fn lock_cancellable(&self, token: &CancelToken) -> Result<LockGuard, Error> {
        LockGuard::take(self, token.into())
    }

    /// Takes the lock, or returns [`NotTaken`] at the end of `wait`. All other ways to take the
    /// lock are short forms of this one.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled: the call has taken
    /// nothing. Also the errors of [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// For as long as `wait` allows: see [`try_lock_for`](Self::try_lock_for) and
    /// [`lock_cancellable`](Self::lock_cancellable). With a deadline that has passed, the call
    /// tries once.
    fn lock_within(&self, wait: Wait<'_>) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, wait)
    }

    /// Takes the lock for a guard that belongs to no thread and can be sent to another one. The
    /// call is not re-entrant: it also waits for a guard of its own thread (see
    /// [`OwnedLockGuard`]). Threads and owned guards stand in the same queues.
    ///
    /// # Blocking
    ///
    /// Until it has the lock: for ever if only the calling thread could drop the guard for which it
    /// waits. In async code call it where blocking is allowed (`spawn_blocking`).
    fn lock_owned(&self) -> Result<OwnedLockGuard, Error> {
        LockGuard::take(self, Wait::FOREVER)
    }

    /// Takes the lock if that is possible now, for a guard that belongs to no thread.
    fn try_lock_owned(&self) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, Wait::NONE)
    }

    /// Takes the lock for a guard that belongs to no thread, or returns [`NotTaken`] after `wait`.
    fn try_lock_owned_for(&self, wait: Duration) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, wait.into())
    }

    /// Takes the lock for a guard that belongs to no thread, or returns [`NotTaken`] at `deadline`.
    fn try_lock_owned_until(&self, deadline: Instant) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, deadline.into())
    }

    /// Takes the lock for a guard that belongs to no thread, or fails when `token` is cancelled.
    fn lock_owned_cancellable(&self, token: &CancelToken) -> Result<OwnedLockGuard, Error> {
        LockGuard::take(self, token.into())
    }

    /// Takes the lock for a guard that belongs to no thread, or returns [`NotTaken`] at the end of
    /// `wait`.
    fn lock_owned_within(&self, wait: Wait<'_>) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, wait)
    }

    /// Releases the level that the calling thread took last. It is for code that has no guard,
    /// after [`LockGuard::forget`].
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ErrorKind::NotHeld) if the calling thread does not hold the lock: nothing
    /// changes. Also the errors of [`LockGuard::unlock`].
    fn unlock(&self) -> Result<(), Error>;

    /// Takes the lock away from its holder, on any machine, and gives it to the next in line.
    /// Returns `false` if nobody held it. A holder in this client learns of the loss at once.
    /// Another holder learns of it when the server notifies its client ([`LockGuard::on_lost`]), or
    /// else at its next renewal. A fixed lease is not renewed, so the holder then learns of the
    /// loss when it unlocks.
    ///
    /// # Errors
    ///
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses, is away, or does not
    ///   answer in time, or if the key holds other data than a lock, which stays as it is. If the
    ///   reply was lost, the message says that the outcome is not known. The client does not send
    ///   the request twice, because a second one would take the lock from the next holder.
    /// - [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense.
    /// - [`Config`](ErrorKind::Config) if the name is empty.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`],
    ///   [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// Two round trips, or three if a thread of this client holds the lock.
    #[must_use = "`false`: nobody held it"]
    fn force_unlock(&self) -> Result<bool, Error>;

    /// Returns whether any thread holds the lock, on any machine. The result may be out of date
    /// when the call returns.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses, is away, or does not
    /// answer in time, or if the key holds other data. [`Protocol`](ErrorKind::Protocol) if its
    /// answer makes no sense. [`Config`](ErrorKind::Config) if the name is empty.
    /// [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`]. [`Forked`](ErrorKind::Forked)
    /// in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn is_locked(&self) -> Result<bool, Error>;

    /// Returns whether the calling thread holds the lock, as its guard would. No I/O.
    fn is_held_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many levels the calling thread has taken and not released. Zero if it does not
    /// hold the lock. No I/O.
    fn hold_count(&self) -> usize;

    /// Returns how long the lock lasts unless its holder renews it. Returns `None` if nobody holds
    /// it, or if the key holds other data.
    ///
    /// # Errors
    ///
    /// Those of [`is_locked`](Self::is_locked), except for a key that holds other data.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn remaining_lease(&self) -> Result<Option<Duration>, Error>;

    /// Returns the lock's name, as it was given: its key in Redis without the client's
    /// [`prefix`](crate::ClientBuilder::prefix).
    fn name(&self) -> &str;

    /// Returns the same lock with a fixed lease, which begins anew each time the lock is taken and
    /// is never renewed.
    ///
    /// From 1 ms to 10¹³ ms. With another lease, each call that takes the lock fails. If a thread
    /// holds the lock already, it extends the lease to this one (one round trip), and never
    /// shortens it.
    #[must_use]
    fn with_lease(&self, lease: Duration) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::On(Terms::fixed(lease)))
    }

    /// Returns the same lock with a renewed lease of its own, in place of the client's
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout). The watchdog renews it after
    /// each third of this time. If a process dies, others wait this long for its lock.
    ///
    /// From 10 ms to a year. With another lease, each call that takes the lock fails with an error
    /// of kind [`Config`](crate::ErrorKind::Config). If a thread takes several levels with
    /// different leases, or threads share a hold with different leases, the watchdog renews the
    /// longest. Threads of one process that want different leases do not pass the lock to each
    /// other, but through the server.
    ///
    /// From this call on, the client replaces its connection for renewals if a renewal has no reply
    /// for a sixth of the shortest such lease. (After several renewals without a reply it waits for
    /// longer.) With [`replica_acks`](crate::ClientBuilder::replica_acks), take at least ten times
    /// the time that replicas have to acknowledge, since a slow acknowledgement delays the other
    /// renewals.
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

    /// Takes the lock unless another `try_once_per` has taken it within the last `interval`. To run
    /// a job once an hour on one of all machines, call this on each machine, as often as you like.
    /// Returns [`NotTaken`] otherwise.
    ///
    /// The interval begins with the grant. No other run begins before the interval is over, even if
    /// the run ends sooner, fails, or is killed. If the work takes longer, no other run begins
    /// before its end. (If a process is killed near the end of the interval or after it, the lock
    /// may be taken for another lease.) Choose an interval a little shorter than the time between
    /// two runs, or the next run comes a moment too early. This is
    /// [`with_hold_at_least`](Self::with_hold_at_least) and [`try_lock`](Self::try_lock), with
    /// their errors.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), redlatch::Error> {
    /// # use std::time::Duration;
    /// # let client = redlatch::Client::connect("redis://localhost")?;
    /// # fn report() {}
    /// let hourly = client.reentrant_lock("report");
    /// # use redlatch::Taken;
    /// if let Taken(_run) = hourly.try_once_per(Duration::from_secs(3_595))? {
    ///     report();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn try_once_per(&self, interval: Duration) -> Result<Attempt<LockGuard>, Error>
    where
        Self: Sized,
    {
        self.with_hold_at_least(interval).try_lock()
    }

    /// Returns the same lock, which stays taken for at least this long each time it is taken, even
    /// if its guard is dropped or unlocked sooner, or its process ends. After that time, the holder
    /// keeps the lock as usual, and its release frees it. A wait on a condition does not let others
    /// in before that time.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock): after an error nobody holds the lock, and the client releases
    /// in the background anything that the server granted, for this time if need be. The lock stays
    /// taken only if the client ends before that.
    ///
    /// # Blocking
    ///
    /// Taking the lock costs one more round trip if another process handed it on.
    #[must_use]
    fn with_hold_at_least(&self, least: Duration) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::AtLeast(least))
    }

    /// Returns the same lock, through a handle that is not re-entrant. In a thread that already
    /// holds the lock, every verb that takes it fails with
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock). It is for code that must not be called under
    /// its own lock. It changes nothing for owned guards, which belong to no thread. For a
    /// read-write lock it concerns one half: a writer may still read.
    #[must_use]
    fn non_reentrant(&self) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::NonReentrant)
    }

    /// Takes the lock, runs `work` with the guard, and releases the lock, so no caller can forget
    /// to bind the guard.
    ///
    /// Returns the result of `work`. If the release fails because of the server, the client logs
    /// that and repeats the release in the background, since the work was done under the lock.
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
    /// - `work`'s own errors.
    /// - [`LeaseLost`](ErrorKind::LeaseLost): `work` returned `Ok`, but the lock was lost before
    ///   its end, and another holder may have worked at the same time. (To keep the result, let
    ///   `work` store it in a variable outside.)
    /// - [`NotHeld`](ErrorKind::NotHeld): `work` released the lock itself.
    /// - [`Forked`](ErrorKind::Forked): `work` forked, and this is the child.
    /// - The errors of [`lock`](Self::lock): `work` did not run.
    ///
    /// # Blocking
    ///
    /// As long as [`lock`](Self::lock), `work` and [`LockGuard::unlock`] take. If `work` fails or
    ///   panics, the guard is dropped.
    fn with<R, E>(&self, work: impl FnOnce(&LockGuard) -> Result<R, E>) -> Result<R, E>
    where
        Self: Sized,
        E: From<Error>,
    {
        self.lock()?.release_after(work)
    }

    /// As [`with`](Self::with), if the lock can be taken now. Returns `None` otherwise: `work` did
    /// not run.
    ///
    /// ```no_run
    /// # use redlatch::{Error, ReentrantLock};
    /// fn tidy(lock: &ReentrantLock, work: impl FnOnce()) -> Result<bool, Error> {
    ///     let done = lock.try_with(|_guard| Ok::<_, Error>(work()))?;
    ///     Ok(done.is_some()) // `false`: another thread has the lock
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`with`](Self::with).
    ///
    /// # Blocking
    ///
    /// As long as [`try_lock`](Self::try_lock), `work` and [`LockGuard::unlock`] take.
    #[must_use = "`None`: the lock was not free, and the work was not done"]
    fn try_with<R, E>(&self, work: impl FnOnce(&LockGuard) -> Result<R, E>) -> Result<Option<R>, E>
    where
        Self: Sized,
        E: From<Error>,
    {
        self.try_lock()?.into_option().map(|guard| guard.release_after(work)).transpose()
    }

    /// Takes the lock for all verbs. `None`: the wait ended first.
    #[doc(hidden)]
    #[must_use = "`None`: it was not taken; and a hold that is dropped is released"]
    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<HeldLocks>, Error>;

    /// The locks of one name of which it consists; none if it cannot be a part of others.
    #[doc(hidden)]
    fn parts(&self) -> Parts;

    /// The same lock with this variant.
    #[doc(hidden)]
    fn varied(&self, variant: Variant) -> Self
    where
        Self: Sized;
}
