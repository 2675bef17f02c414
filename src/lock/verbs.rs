//! The macros that give each lock its methods, and the two functions by which these methods take a
//! lock.

use super::guard::GuardOwner;
use super::{Lock, LockGuard};
use crate::attempt::Attempt;
use crate::error::Error;
use crate::waiting::Wait;

/// Gives a lock type the methods of [`Lock`](crate::Lock), for callers without the trait.
macro_rules! own_verbs {
    ($lock:ident, $guard:ty, $owned:ty) => {
        $crate::lock::own_verbs!($lock, $guard, $owned, "One round trip");
    };
    // `$trips` is the cost of taking a free lock.
    ($lock:ident, $guard:ty, $owned:ty, $trips:literal) => {
        const _: () = {
            use std::time::{Duration, Instant};

            use redlatch_client::CancelToken;

            use crate::attempt::Attempt;
            #[cfg(doc)]
            use crate::attempt::Attempt::NotTaken;
            use crate::error::Error;
            #[cfg(doc)]
            use crate::error::ErrorKind;
            use crate::lock::{AsLock, Lock, LockGuard};
            use crate::waiting::Wait;

            impl AsLock for $lock {
                fn as_lock(&self) -> &dyn Lock {
                    self
                }
            }

            /// The methods of [`Lock`](crate::Lock). The trait says more about each method.
            impl $lock {
                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "`, and blocks until the calling thread has it."
                )]
                ///
                /// # Errors
                ///
                /// After an error the call has taken nothing.
                ///
                /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request,
                ///   is unreachable, or does not answer in time, or if the key holds other data.
                ///   [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense.
                /// - [`Config`](ErrorKind::Config) if the name or the lease is not usable, or the
                ///   thread has taken a million levels.
                /// - [`ShutDown`](ErrorKind::ShutDown) after
                ///   [`Client::shutdown`](crate::Client::shutdown), which also ends waits.
                ///   [`Forked`](ErrorKind::Forked) in a forked child.
                ///
                /// All methods that take the lock fail in these ways.
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// If the calling thread already holds the lock, the call adds a level and sends no
                /// request. Otherwise the thread waits in the queue of its process, and the process
                /// waits in the queue at the server: see [`Lock::lock`](crate::Lock::lock). Each
                /// request ends after [`response_timeout`](crate::ClientBuilder::response_timeout),
                /// even in an outage.
                pub fn lock(&self) -> Result<$guard, Error> {
                    LockGuard::take(self, Wait::FOREVER)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` if that is possible now, and otherwise returns [`NotTaken`]."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock`](Self::lock). A failed request is an error, never
                /// [`NotTaken`].
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, ".")]
                /// No round trip if a thread of this process holds the lock or waits for it. See
                /// also [`Lock::try_lock`](crate::Lock::try_lock).
                pub fn try_lock(&self) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, Wait::NONE)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "`, or returns [`NotTaken`] after `wait`."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock`](Self::lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// The call takes at most `wait`, even in an outage: see
                /// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
                pub fn try_lock_for(&self, wait: Duration) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, wait.into())
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "`, or returns [`NotTaken`] at `deadline`."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock`](Self::lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// If the deadline has passed, the call tries once.
                pub fn try_lock_until(&self, deadline: Instant) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, deadline.into())
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "`, or fails when `token` is cancelled."
                )]
                ///
                /// # Errors
                ///
                /// [`Cancelled`](ErrorKind::Cancelled) if `token` was cancelled before the lock was
                /// granted: the call has taken nothing. The call also returns the errors of
                /// [`lock`](Self::lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// The cancellation ends a sleep or a request at once.
                pub fn lock_cancellable(&self, token: &CancelToken) -> Result<$guard, Error> {
                    LockGuard::take(self, token.into())
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "`, or returns [`NotTaken`] at the end of `wait`."
                )]
                ///
                /// All other methods that take the lock are short forms of this method. `into`
                /// converts a time limit, a deadline or a cancel token to a `Wait`.
                ///
                /// # Errors
                ///
                /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled: the
                /// call has taken nothing. The call also returns the errors of
                /// [`lock`](Self::lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// If the deadline has passed, the call tries once.
                pub fn lock_within(&self, wait: Wait<'_>) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, wait)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` for a guard that belongs to no thread and can be sent to another one."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock`](Self::lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// The call is not re-entrant: if the calling thread already holds the lock, the
                /// call waits until the lock is released. In async code, call this method where
                /// blocking is allowed: see [`Lock::lock_owned`](crate::Lock::lock_owned).
                pub fn lock_owned(&self) -> Result<$owned, Error> {
                    LockGuard::take(self, Wait::FOREVER)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` for a guard that belongs to no thread, if that is possible now."
                )]
                ///
                /// If the lock cannot be taken now, returns [`NotTaken`], even if the calling
                /// thread itself holds the lock.
                ///
                /// # Errors
                ///
                /// The errors of [`lock`](Self::lock). A failed request is an error, never
                /// [`NotTaken`].
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, ".")]
                /// No round trip if a thread of this process holds the lock or waits for it.
                pub fn try_lock_owned(&self) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, Wait::NONE)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` for a guard that belongs to no thread, or returns [`NotTaken`] after `wait`."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock`](Self::lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// The call takes at most `wait`, as [`try_lock_for`](Self::try_lock_for) does.
                pub fn try_lock_owned_for(&self, wait: Duration) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, wait.into())
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` for a guard that belongs to no thread, or returns [`NotTaken`] at ",
                    "`deadline`."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock`](Self::lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// If the deadline has passed, the call tries once.
                pub fn try_lock_owned_until(
                    &self,
                    deadline: Instant,
                ) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, deadline.into())
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` for a guard that belongs to no thread, or fails when `token` is cancelled."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock_cancellable`](Self::lock_cancellable).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// The cancellation ends a sleep or a request at once.
                pub fn lock_owned_cancellable(&self, token: &CancelToken) -> Result<$owned, Error> {
                    LockGuard::take(self, token.into())
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` for a guard that belongs to no thread, or returns [`NotTaken`] at ",
                    "the end of `wait`."
                )]
                ///
                /// # Errors
                ///
                /// The errors of [`lock_within`](Self::lock_within).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, " if it is free.")]
                /// If the deadline has passed, the call tries once.
                pub fn lock_owned_within(&self, wait: Wait<'_>) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, wait)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "`, runs `work` with the guard, and releases the lock."
                )]
                ///
                /// # Errors
                ///
                /// - The errors of [`lock`](Self::lock): `work` did not run.
                /// - The error of `work`.
                /// - [`LeaseLost`](ErrorKind::LeaseLost) if the lock was lost before the end of
                ///   `work`: see [`Lock::with`](crate::Lock::with).
                ///
                /// If the release fails because of the server, the client logs the error and
                /// repeats the release.
                ///
                /// # Blocking
                ///
                /// Blocks for as long as [`lock`](Self::lock), `work` and [`unlock`](Self::unlock)
                /// take.
                pub fn with<R, E: From<Error>>(
                    &self,
                    work: impl FnOnce(&$guard) -> Result<R, E>,
                ) -> Result<R, E> {
                    self.lock()?.release_after(work)
                }

                #[doc = concat!(
                    "If the `",
                    stringify!($lock),
                    "` is free now, runs `work` with the guard, and releases the lock."
                )]
                ///
                /// If the lock is taken, returns `None` and does not run `work`.
                ///
                /// # Errors
                ///
                /// The errors of [`try_lock`](Self::try_lock) if `work` did not run, otherwise
                /// those of [`with`](Self::with).
                ///
                /// # Blocking
                ///
                /// Blocks for as long as [`try_lock`](Self::try_lock), `work` and
                /// [`unlock`](Self::unlock) take.
                #[must_use = "`None`: the lock was not free, and the work was not done"]
                pub fn try_with<R, E: From<Error>>(
                    &self,
                    work: impl FnOnce(&$guard) -> Result<R, E>,
                ) -> Result<Option<R>, E> {
                    let taken = self.try_lock()?.into_option();
                    taken.map(|guard| guard.release_after(work)).transpose()
                }

                #[doc = concat!(
                    "Releases the level of the `",
                    stringify!($lock),
                    "` that the calling thread took last."
                )]
                ///
                /// Code that has ended its guard with
                /// [`LockGuard::forget`](crate::LockGuard::forget) calls this method.
                ///
                /// # Errors
                ///
                /// [`NotHeld`](ErrorKind::NotHeld) if the calling thread does not hold the lock:
                /// nothing changes. The call also returns the errors of
                /// [`LockGuard::unlock`](crate::LockGuard::unlock).
                ///
                /// # Blocking
                ///
                /// One round trip. No round trip if other levels remain, or a waiting thread of
                /// this process gets the lock.
                pub fn unlock(&self) -> Result<(), Error> {
                    Lock::unlock(self)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` away from its holder, on any machine, and gives it to the next in line."
                )]
                ///
                /// Returns `false` if nobody held the lock. The holder's guard reports the loss
                /// ([`on_lost`](crate::LockGuard::on_lost)).
                ///
                /// # Errors
                ///
                /// The errors of [`is_locked`](Self::is_locked). If the reply was lost, the message
                /// says that the outcome is not known: see
                /// [`Lock::force_unlock`](crate::Lock::force_unlock).
                ///
                /// # Blocking
                ///
                /// Two round trips, or three if a thread of this client holds the lock.
                #[must_use = "`false`: nobody held it"]
                pub fn force_unlock(&self) -> Result<bool, Error> {
                    Lock::force_unlock(self)
                }

                #[doc = concat!(
                    "Returns whether any thread holds the `",
                    stringify!($lock),
                    "`, on any machine."
                )]
                ///
                /// The result may be out of date when the call returns.
                ///
                /// # Errors
                ///
                /// [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
                /// unreachable, or does not answer in time, or if the key holds other data.
                /// [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense.
                /// [`Config`](ErrorKind::Config) if the name is empty.
                /// [`ShutDown`](ErrorKind::ShutDown) after
                /// [`Client::shutdown`](crate::Client::shutdown). [`Forked`](ErrorKind::Forked) in
                /// a forked child.
                ///
                /// # Blocking
                ///
                /// One round trip.
                pub fn is_locked(&self) -> Result<bool, Error> {
                    Lock::is_locked(self)
                }

                #[doc = concat!(
                    "Returns whether the calling thread holds the `",
                    stringify!($lock),
                    "`, as its guard would. No I/O."
                )]
                #[must_use]
                pub fn is_held_by_current_thread(&self) -> bool {
                    Lock::is_held_by_current_thread(self)
                }

                #[doc = concat!(
                    "Returns how many levels of the `",
                    stringify!($lock),
                    "` the calling thread has taken and not released. No I/O."
                )]
                #[must_use]
                pub fn hold_count(&self) -> usize {
                    Lock::hold_count(self)
                }

                #[doc = concat!(
                    "Returns how long the `",
                    stringify!($lock),
                    "` lasts unless its holder renews it."
                )]
                ///
                /// Returns `None` if nobody holds the lock, or if the key holds other data.
                ///
                /// # Errors
                ///
                /// The errors of [`is_locked`](Self::is_locked). Other data in the key is no error.
                ///
                /// # Blocking
                ///
                /// One round trip.
                pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
                    Lock::remaining_lease(self)
                }

                #[doc = concat!(
                    "Returns the name of the `",
                    stringify!($lock),
                    "`, as it was given. No I/O."
                )]
                #[must_use]
                pub fn name(&self) -> &str {
                    Lock::name(self)
                }

                #[doc = concat!(
                    "Returns the same `",
                    stringify!($lock),
                    "` with a fixed lease, which is never renewed."
                )]
                ///
                /// The lease begins anew each time the lock is taken. A lease may be from 1 ms to
                /// 10¹³ ms. With any other lease, each call that takes the lock fails: see
                /// [`Lock::with_lease`](crate::Lock::with_lease). No I/O.
                #[must_use]
                pub fn with_lease(&self, lease: Duration) -> Self {
                    Lock::with_lease(self, lease)
                }

                #[doc = concat!(
                    "Returns the same `",
                    stringify!($lock),
                    "` with a renewed lease of this length."
                )]
                ///
                /// The lease may be from 10 ms to a year. With any other lease, each call that
                /// takes the lock fails: see [`Lock::with_watchdog`](crate::Lock::with_watchdog).
                /// No I/O.
                #[must_use]
                pub fn with_watchdog(&self, timeout: Duration) -> Self {
                    Lock::with_watchdog(self, timeout)
                }

                #[doc = concat!(
                    "Takes the `",
                    stringify!($lock),
                    "` unless another `try_once_per` has taken it within the last `interval`."
                )]
                ///
                /// Returns [`NotTaken`] if the lock is not free. To run a job once an hour on one
                /// of many machines, call this method on each machine: see
                /// [`Lock::try_once_per`](crate::Lock::try_once_per).
                ///
                /// # Errors
                ///
                /// The errors of [`try_lock`](Self::try_lock).
                ///
                /// # Blocking
                ///
                #[doc = concat!($trips, ".")]
                pub fn try_once_per(&self, interval: Duration) -> Result<Attempt<$guard>, Error> {
                    self.with_hold_at_least(interval).try_lock()
                }

                #[doc = concat!(
                    "Returns the same `",
                    stringify!($lock),
                    "`, which stays taken for at least this long each time it is taken."
                )]
                ///
                /// The lock stays taken even if its guard is dropped or its process ends. If
                /// another process hands the lock to this process, taking the lock costs one more
                /// round trip: see [`Lock::with_hold_at_least`](crate::Lock::with_hold_at_least).
                /// No I/O.
                #[must_use]
                pub fn with_hold_at_least(&self, least: Duration) -> Self {
                    Lock::with_hold_at_least(self, least)
                }

                #[doc = concat!(
                    "Returns the same `",
                    stringify!($lock),
                    "`, whose holder hears that others wait."
                )]
                ///
                /// See [`Lock::with_wanted`](crate::Lock::with_wanted). No I/O.
                #[must_use]
                pub fn with_wanted(&self) -> Self {
                    Lock::with_wanted(self)
                }

                #[doc = concat!(
                    "Returns the same `",
                    stringify!($lock),
                    "`, through a handle that is not re-entrant."
                )]
                ///
                /// If the calling thread already holds the lock, every method of this handle that
                /// takes the lock fails with [`WouldDeadlock`](ErrorKind::WouldDeadlock): see
                /// [`Lock::non_reentrant`](crate::Lock::non_reentrant). No I/O.
                #[must_use]
                pub fn non_reentrant(&self) -> Self {
                    Lock::non_reentrant(self)
                }
            }
        };
    };
}

impl<L: ?Sized, O: GuardOwner> LockGuard<L, O> {
    /// Takes the lock. Returns `None` if the wait ended before the grant. (Inlined, because the
    /// guard is large and would be moved once more for each re-entry.)
    #[inline(always)]
    fn attempt<K: Lock + ?Sized>(lock: &K, wait: Wait<'_>) -> Result<Option<Self>, Error> {
        let Some(mut held) = lock.acquire(&O::thread(), wait)? else { return Ok(None) };
        held.leave_minimum_level();
        Ok(Some(Self::new(held)))
    }

    /// Takes the lock, if it is granted before the end of the wait.
    #[inline]
    pub(super) fn try_take<K: Lock + ?Sized>(
        lock: &K,
        wait: Wait<'_>,
    ) -> Result<Attempt<Self>, Error> {
        Self::attempt(lock, wait).map(Attempt::of)
    }

    /// Takes the lock. Only an error can end the wait early.
    #[inline]
    pub(super) fn take<K: Lock + ?Sized>(lock: &K, wait: Wait<'_>) -> Result<Self, Error> {
        Self::attempt(lock, wait)?.ok_or_else(|| Error::shut_down(&lock.name().into()))
    }
}

/// Implements a lock of one name for a type that has a field `handle`.
macro_rules! one_lock {
    ($lock:ident) => {
        $crate::lock::one_lock!($lock, $crate::lock::LockGuard, $crate::lock::OwnedLockGuard);
    };
    // This arm is for a lock whose guards have more methods than `LockGuard`.
    ($lock:ident, $guard:ty, $owned:ty) => {
        const _: () = {
            use std::sync::Arc;

            use redlatch_client::sync::Thread;

            use crate::error::Error;
            use crate::hold::Tenancy;
            use crate::lock::hooks;
            use crate::scripts::Trouble;
            use crate::waiting::Wait;

            impl $lock {
                const IS_FAIR: bool = false;

                fn take(
                    &self,
                    thread: &Arc<Thread>,
                    wait: Wait<'_>,
                ) -> Result<Option<Arc<Tenancy>>, Error> {
                    hooks::acquire(&self.handle, thread, wait)
                }

                fn send_force_unlock(&self) -> Result<bool, Trouble> {
                    self.handle.send_force_unlock()
                }
            }
        };

        $crate::lock::one_lock!($lock with take and send_force_unlock, $guard, $owned);
    };
    // This arm is for a lock with its own methods `take` and `send_force_unlock`.
    ($lock:ident with take and send_force_unlock) => {
        $crate::lock::one_lock!(
            $lock with take and send_force_unlock,
            $crate::lock::LockGuard,
            $crate::lock::OwnedLockGuard
        );
    };
    ($lock:ident with take and send_force_unlock, $guard:ty, $owned:ty) => {
        $crate::lock::own_verbs!($lock, $guard, $owned);

        const _: () = {
            use std::sync::Arc;
            use std::time::Duration;

            use redlatch_client::sync::Thread;

            use crate::error::Error;
            use crate::lock::{Handle, HeldLock, HeldLocks, Lock, Part, Parts, Variant};
            use crate::waiting::Wait;

            impl Lock for $lock {
                fn unlock(&self) -> Result<(), Error> {
                    self.handle.unlock()
                }

                fn force_unlock(&self) -> Result<bool, Error> {
                    self.handle.force_unlock(|| self.send_force_unlock())
                }

                fn is_locked(&self) -> Result<bool, Error> {
                    self.handle.is_locked()
                }

                fn hold_count(&self) -> usize {
                    self.handle.hold_count()
                }

                fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
                    self.handle.remaining_lease()
                }

                fn name(&self) -> &str {
                    self.handle.site.name.given()
                }

                #[inline]
                fn acquire(
                    &self,
                    thread: &Arc<Thread>,
                    wait: Wait<'_>,
                ) -> Result<Option<HeldLocks>, Error> {
                    if let Some(least) = self.handle.least {
                        let take = |handle, wait: Wait<'_>| {
                            let mut lock = self.clone();
                            lock.handle = handle;
                            lock.take(thread, wait)
                        };
                        let held = HeldLock::at_least(&self.handle, least, wait, take)?;
                        return Ok(held.map(HeldLocks::One));
                    }
                    let tenancy = self.take(thread, wait)?;
                    Ok(tenancy.map(|tenancy| HeldLocks::One(HeldLock::new(&self.handle, tenancy))))
                }

                fn parts(&self) -> Parts {
                    Parts(vec![Arc::new(self.clone())])
                }

                fn varied(&self, variant: Variant) -> Self {
                    let mut lock = self.clone();
                    lock.handle = self.handle.varied(variant);
                    lock
                }
            }

            impl Part for $lock {
                fn kind(&self) -> &'static str {
                    stringify!($lock)
                }

                fn handle(&self) -> &Handle {
                    &self.handle
                }

                fn is_fair(&self) -> bool {
                    Self::IS_FAIR
                }

                fn varied_part(&self, variant: Variant) -> Arc<dyn Part> {
                    Arc::new(self.varied(variant))
                }
            }
        };
    };
}

pub(crate) use {one_lock, own_verbs};
