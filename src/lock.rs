//! The methods of every lock.

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
mod eval;
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
pub(crate) mod ticket;
mod together;
mod verbs;

pub use self::eval::PartGuard;
pub(crate) use self::eval::evals;
pub(crate) use self::guard::HeldLocks;
pub use self::guard::{LockGuard, OwnedLockGuard};
pub(crate) use self::handle::{Handle, Variant};
pub(crate) use self::held::HeldLock;
pub(crate) use self::part::{AsLock, Part, Parts};
pub(crate) use self::verbs::{one_lock, own_verbs};

/// The methods of every lock of this library, for code that works with any lock.
///
/// A lock can be used as `&dyn Lock`. Each lock type also has these methods itself, so a caller
/// does not have to import this trait. Only this library's locks implement the trait.
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
    /// Takes the lock. Blocks until the thread has the lock.
    ///
    /// - If the lock is free, the call takes it with one round trip.
    /// - If the calling thread already holds the lock, the call adds a level and sends no request.
    ///   (If this handle has a fixed [lease](Self::with_lease) that is longer than the remaining
    ///   lease, one round trip extends the lease.) Each guard releases one level.
    /// - If another thread of this process holds the lock, the calling thread waits in this
    ///   process's queue, in the order of arrival.
    /// - If another process holds the lock, the calling thread sleeps until a message grants the
    ///   lock. The waiting processes are in a queue in Redis, and a release makes the first of them
    ///   the owner. (For a fair lock, each waiting thread has its own entry in the queue.) A
    ///   message may be lost, so the process also asks the server when the holder's lease ends, and
    ///   about once a second.
    ///
    /// If another process handed the lock to this process, the lease is 2 s at first. After 50 ms
    /// the client extends the lease to its full length: see [`LockGuard::check`].
    ///
    /// # Errors
    ///
    /// After an error the call has not taken the lock. If the outcome of a request is unknown, the
    /// client releases in the background anything that the request may have taken.
    ///
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    ///   unreachable, or does not answer in time, or if the key holds other data.
    ///   [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense.
    /// - [`Config`](ErrorKind::Config) if the name or the lease is not usable, or the thread has
    ///   taken a million levels.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`], which also ends waits.
    ///   [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// All methods that take the lock fail in these ways.
    ///
    /// # Blocking
    ///
    /// Blocks until the thread has the lock or an error ends the wait. Each request ends after
    /// [`response_timeout`](crate::ClientBuilder::response_timeout), also in an outage.
    fn lock(&self) -> Result<LockGuard, Error> {
        LockGuard::take(self, Wait::FOREVER)
    }

    /// Takes the lock if the lock is free. Returns [`NotTaken`] if another thread holds the lock,
    /// or if a thread of this process waits for the lock, asks for it, or is just releasing it. The
    /// call may overtake other processes that wait for a [`ReentrantLock`], as `tryLock()` in Java
    /// does. While processes wait, a [`ReentrantLock`] is seldom free, because each release hands
    /// the lock to the next process. For a [`FairLock`], the call overtakes no waiter.
    ///
    /// # Errors
    ///
    /// A failed request is an error, never [`NotTaken`].
    ///
    /// # Blocking
    ///
    /// One round trip. No round trip if a thread of this process holds the lock, waits for it or
    /// asks for it. (A call for a [`FairLock`] needs a round trip unless a thread of this process
    /// holds the lock.) A call that adds a level may need a round trip to extend the lease: see
    /// [`lock`](Self::lock).
    fn try_lock(&self) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, Wait::NONE)
    }

    /// Takes the lock, or returns [`NotTaken`] after `wait`. If `wait` is zero, the call does the
    /// same as [`try_lock`](Self::try_lock). If `wait` is too long for the clock, the call does the
    /// same as [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock): the call has not taken the lock.
    ///
    /// # Blocking
    ///
    /// Blocks for at most `wait`. (If `wait` is very short, the call may still take 50 ms, or three
    /// round trips to a distant server.) If a request has no reply at the end of `wait`, the call
    /// ends the request. The call then returns [`NotTaken`] if the server seems to work, and
    /// otherwise an error. The server seems to work if it has answered an earlier request of this
    /// call, or any call over the same connection within the last second. If the server grants the
    /// lock later, the client releases the lock in the background.
    fn try_lock_for(&self, wait: Duration) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, wait.into())
    }

    /// Takes the lock, or returns [`NotTaken`] at `deadline`: see
    /// [`try_lock_for`](Self::try_lock_for). If `deadline` has passed, the call tries once.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock).
    fn try_lock_until(&self, deadline: Instant) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, deadline.into())
    }

    /// Takes the lock, or fails when `token` is cancelled.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if `token` was cancelled before the lock was granted:
    /// the call has not taken the lock. The call also returns the errors of [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// Blocks until the thread has the lock, or an error or the cancellation ends the wait. The
    /// cancellation ends a sleep or a request at once.
    fn lock_cancellable(&self, token: &CancelToken) -> Result<LockGuard, Error> {
        LockGuard::take(self, token.into())
    }

    /// Takes the lock, or returns [`NotTaken`] at the end of `wait`. All other methods that take
    /// the lock for a [`LockGuard`] are short forms of this method.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled: the call has not
    /// taken the lock. The call also returns the errors of [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// Blocks for as long as `wait` allows: see [`try_lock_for`](Self::try_lock_for) and
    /// [`lock_cancellable`](Self::lock_cancellable). If the deadline has passed, the call tries
    /// once.
    fn lock_within(&self, wait: Wait<'_>) -> Result<Attempt<LockGuard>, Error> {
        LockGuard::try_take(self, wait)
    }

    /// Takes the lock for a guard that belongs to no thread and can be sent to another thread. The
    /// call is not re-entrant: if the calling thread already holds the lock, the call waits until
    /// the lock is released (see [`OwnedLockGuard`]). Calls for both kinds of guard wait in the
    /// same queues.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// Blocks until the call has the lock. If the calling thread itself holds the lock, and no
    /// other thread releases it, the call blocks for ever. In async code, call this method in a
    /// task that may block (`spawn_blocking`).
    fn lock_owned(&self) -> Result<OwnedLockGuard, Error> {
        LockGuard::take(self, Wait::FOREVER)
    }

    /// Takes the lock if that is possible now, for a guard that belongs to no thread.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock). A failed request is an error, never [`NotTaken`].
    fn try_lock_owned(&self) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, Wait::NONE)
    }

    /// Takes the lock for a guard that belongs to no thread, or returns [`NotTaken`] after `wait`.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock).
    fn try_lock_owned_for(&self, wait: Duration) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, wait.into())
    }

    /// Takes the lock for a guard that belongs to no thread, or returns [`NotTaken`] at `deadline`.
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock).
    fn try_lock_owned_until(&self, deadline: Instant) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, deadline.into())
    }

    /// Takes the lock for a guard that belongs to no thread, or fails when `token` is cancelled.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_cancellable`](Self::lock_cancellable).
    fn lock_owned_cancellable(&self, token: &CancelToken) -> Result<OwnedLockGuard, Error> {
        LockGuard::take(self, token.into())
    }

    /// Takes the lock for a guard that belongs to no thread, or returns [`NotTaken`] at the end of
    /// `wait`.
    ///
    /// # Errors
    ///
    /// The errors of [`lock_within`](Self::lock_within).
    fn lock_owned_within(&self, wait: Wait<'_>) -> Result<Attempt<OwnedLockGuard>, Error> {
        LockGuard::try_take(self, wait)
    }

    /// Releases the level that the calling thread took last. Code that has ended its guard with
    /// [`LockGuard::forget`] calls this method.
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ErrorKind::NotHeld) if the calling thread does not hold the lock: nothing
    /// changes. The call also returns the errors of [`LockGuard::unlock`].
    fn unlock(&self) -> Result<(), Error>;

    /// Takes the lock away from its holder, on any machine, and grants it to the next waiter.
    /// Returns `false` if nobody held the lock. If the holder is in this client, the holder's guard
    /// reports the loss at once. If the holder is in another client, the guard reports the loss
    /// when the server notifies the holder's client ([`LockGuard::on_lost`]), or else at the next
    /// renewal. A fixed lease is not renewed. So if the server sends no notification, a holder with
    /// a fixed lease notices the loss only when it unlocks.
    ///
    /// # Errors
    ///
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    ///   unreachable, or does not answer in time, or if the key holds data other than a lock. (This
    ///   data stays unchanged.) If the reply was lost, the error's message says that the outcome is
    ///   not known. The client does not send the request twice, because a second request would take
    ///   the lock from the next holder.
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

    /// Returns whether any thread holds the lock, on any machine. The result may be out of date.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    /// unreachable, or does not answer in time, or if the key holds other data.
    /// [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense.
    /// [`Config`](ErrorKind::Config) if the name is empty. [`ShutDown`](ErrorKind::ShutDown) after
    /// [`Client::shutdown`]. [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn is_locked(&self) -> Result<bool, Error>;

    /// Returns whether the calling thread holds the lock, and the lock is not lost. No I/O.
    fn is_held_by_current_thread(&self) -> bool {
        self.hold_count() > 0
    }

    /// Returns how many levels the calling thread has taken and not released. Returns zero if the
    /// thread does not hold the lock. No I/O.
    fn hold_count(&self) -> usize;

    /// Returns the time after which the lock's lease ends, unless the holder renews it. Returns
    /// `None` if nobody holds the lock, or if the key holds other data.
    ///
    /// # Errors
    ///
    /// The errors of [`is_locked`](Self::is_locked), but a key that holds other data is no error.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn remaining_lease(&self) -> Result<Option<Duration>, Error>;

    /// Returns the lock's name as the program gave it, without the client's
    /// [`prefix`](crate::ClientBuilder::prefix).
    fn name(&self) -> &str;

    /// Returns a handle of this lock with a fixed lease, which begins when the lock is taken.
    ///
    /// The lease may be from 1 ms to 10¹³ ms. With any other lease, each call that takes the lock
    /// fails. If the thread already holds the lock, a call extends the remaining lease to this
    /// length (one round trip). A call never shortens a lease. A guard can also
    /// [extend](LockGuard::extend) its lease.
    #[must_use]
    fn with_lease(&self, lease: Duration) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::On(Terms::fixed(lease)))
    }

    /// Returns a handle of this lock whose lease is `timeout` long and is renewed by the watchdog.
    /// `timeout` replaces the client's
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout). The watchdog renews the lease
    /// when a third of it has passed. If a process dies, its lock remains taken for up to
    /// `timeout`.
    ///
    /// The lease may be from 10 ms to a year. With any other lease, each call that takes the lock
    /// fails with an error of kind [`Config`](crate::ErrorKind::Config). If a thread takes several
    /// levels with different leases, or threads share a hold with different leases, the watchdog
    /// renews the longest lease. If two threads of one process want different leases, the lock goes
    /// from one thread to the other only through the server.
    ///
    /// After this call, the client replaces its connection for renewals if a renewal has had no
    /// reply for a sixth of the shortest lease that a `with_watchdog` call has set. (After several
    /// renewals without a reply, the client waits for longer.) With
    /// [`replica_acks`](crate::ClientBuilder::replica_acks), choose a lease of at least ten times
    /// the time limit for an acknowledgement, because a slow acknowledgement delays the other
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

    /// Takes the lock unless another `try_once_per` has taken it within the last `interval`.
    /// Returns [`NotTaken`] if the lock is not free. To run a job once an hour on one of many
    /// machines, call this method on each machine, as often as you like.
    ///
    /// The interval begins when the lock is granted. No other run begins before the interval is
    /// over, even if the first run ends sooner, fails, or is killed. If the first run takes longer
    /// than the interval, no other run begins before it ends. (If a process is killed near the end
    /// of the interval or later, its lock may stay taken for one more lease.) Choose an interval a
    /// little shorter than the time between two planned runs. Otherwise the call for the next run
    /// may come a moment too early. `try_once_per` calls
    /// [`with_hold_at_least`](Self::with_hold_at_least) and then [`try_lock`](Self::try_lock).
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
    ///
    /// # Errors
    ///
    /// The errors of [`with_hold_at_least`](Self::with_hold_at_least): the call has not taken the
    /// lock.
    fn try_once_per(&self, interval: Duration) -> Result<Attempt<LockGuard>, Error>
    where
        Self: Sized,
    {
        self.with_hold_at_least(interval).try_lock()
    }

    /// Returns a handle of this lock with a minimum time. Each time this handle takes the lock, the
    /// lock remains taken for at least this time, even if the guard is dropped or unlocked earlier,
    /// or the process ends. After the minimum time, the guard holds the lock as usual, and the
    /// release frees the lock. During a wait on a condition, no other thread gets the lock before
    /// the minimum time is over.
    ///
    /// # Errors
    ///
    /// Taking the lock fails as [`lock`](Self::lock) does. After an error, the client releases in
    /// the background anything that the server granted, and repeats the release for up to the
    /// minimum time. The lock remains taken only if the client ends before the release succeeds.
    ///
    /// # Blocking
    ///
    /// Taking the lock costs one more round trip if another process hands the lock to this process.
    #[must_use]
    fn with_hold_at_least(&self, least: Duration) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::AtLeast(least))
    }

    /// Returns a handle of this lock. When another process begins to wait for the lock, the client
    /// notifies the holder within milliseconds: see [`LockGuard::on_wanted`] and
    /// [`LockGuard::is_wanted`].
    ///
    /// A hold that lasts for 100 ms costs one more request. A hold with a fixed lease costs another
    /// request at each third of its lease. The first waiter's request also sends one message.
    /// Threads of this process pass the lock to each other only if all of them use such a handle or
    /// none of them does.
    #[must_use]
    fn with_wanted(&self) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::Hearing)
    }

    /// Returns a handle of this lock that is not re-entrant. If the calling thread already holds
    /// the lock, every method of this handle that takes the lock fails with
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock). Use such a handle in code that must not be
    /// called under its own lock. Owned guards belong to no thread, so this setting has no effect
    /// on owned guards. The handle of a read lock or a write lock checks only that lock: a thread
    /// that holds the write lock may still read.
    #[must_use]
    fn non_reentrant(&self) -> Self
    where
        Self: Sized,
    {
        self.varied(Variant::NonReentrant)
    }

    /// Takes the lock, runs `work` with the guard, and releases the lock.
    ///
    /// Returns the result of `work`. If the release fails because of the server, the call still
    /// returns this result, because the work was done under the lock. The client logs the error and
    /// repeats the release in the background.
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
    /// - The errors of `work`.
    /// - [`LeaseLost`](ErrorKind::LeaseLost): `work` returned `Ok`, but the lock was lost before
    ///   `work` ended, so another holder may have worked at the same time. (To keep the result, let
    ///   `work` store it in a variable outside the closure.)
    /// - [`NotHeld`](ErrorKind::NotHeld): `work` released the lock itself.
    /// - [`Forked`](ErrorKind::Forked): `work` forked, and this call returns in the child.
    /// - The errors of [`lock`](Self::lock): `work` did not run.
    ///
    /// # Blocking
    ///
    /// Blocks for as long as [`lock`](Self::lock), `work` and [`LockGuard::unlock`] take. If `work`
    /// fails or panics, the guard is dropped.
    fn with<R, E>(&self, work: impl FnOnce(&LockGuard) -> Result<R, E>) -> Result<R, E>
    where
        Self: Sized,
        E: From<Error>,
    {
        self.lock()?.release_after(work)
    }

    /// Does the same as [`with`](Self::with), if the lock can be taken now. Otherwise returns
    /// `None` and does not run `work`.
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
    /// The errors of [`with`](Self::with).
    ///
    /// # Blocking
    ///
    /// Blocks for as long as [`try_lock`](Self::try_lock), `work` and [`LockGuard::unlock`] take.
    #[must_use = "`None`: the lock was not free, and the work was not done"]
    fn try_with<R, E>(&self, work: impl FnOnce(&LockGuard) -> Result<R, E>) -> Result<Option<R>, E>
    where
        Self: Sized,
        E: From<Error>,
    {
        self.try_lock()?.into_option().map(|guard| guard.release_after(work)).transpose()
    }

    /// All methods above call this method to take the lock. Returns `None` if the wait ended before
    /// the lock was taken.
    #[doc(hidden)]
    #[must_use = "`None`: it was not taken; and a hold that is dropped is released"]
    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<HeldLocks>, Error>;

    /// Returns the single-name locks of which this lock consists. Returns no locks if this lock
    /// cannot be a part of a `MultiLock`.
    #[doc(hidden)]
    fn parts(&self) -> Parts;

    #[doc(hidden)]
    fn varied(&self, variant: Variant) -> Self
    where
        Self: Sized;
}
