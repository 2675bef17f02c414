//! What every lock can do.

use std::fmt;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::error::Error;
use crate::wait::Wait;
#[cfg(doc)]
use crate::{Client, ErrorKind};

mod guard;
mod handle;

pub use self::guard::LockGuard;
pub(crate) use self::handle::Handle;

/// What every lock of this library can do, for code that takes any of them.
///
/// Object-safe: `&dyn Lock` works. Each lock has the same methods of its own, so this trait need
/// not be imported to use one.
pub trait Lock: fmt::Debug + Send + Sync {
    /// Takes the lock, waiting for as long as it takes.
    ///
    /// - Free: taken. One round trip.
    /// - Held by the calling thread: taken once more, at no cost. Each guard releases one level.
    /// - Held by another thread of this process: waits in the process's own queue, first come
    ///   first served, with no command.
    /// - Held by another process: sleeps until that releases it or its lease ends, and then tries
    ///   again. A message wakes it, and if that is lost, a slow poll of about 5 s.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble: the lock is not held. If the
    /// outcome of a request is unknown, what it may have taken is released in the background.
    /// [`Config`](ErrorKind::Config) if the name or the lease is not usable,
    /// [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`].
    fn lock(&self) -> Result<LockGuard, Error>;

    /// Takes the lock if that is possible now: `None` if another holds it or stands before.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock). Trouble that a request meets is never `None`.
    ///
    /// # Blocking
    ///
    /// One round trip; none if a thread of this process holds the lock or waits for it.
    fn try_lock(&self) -> Result<Option<LockGuard>, Error>;

    /// As [`lock`](Self::lock), but gives up after `wait`: `None`. A wait of zero is
    /// [`try_lock`](Self::try_lock), one too long for any clock is [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// `wait` bounds the sleep. A request that is on its way is waited for nevertheless, up to
    /// `response_timeout`, since it may have taken the lock.
    fn try_lock_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error>;

    /// As [`try_lock_for`](Self::try_lock_for), until `deadline`.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>, Error>;

    /// As [`lock`](Self::lock), but ends when `token` is cancelled, at once if it is already.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled), nothing is held then; else as [`lock`](Self::lock). A
    /// grant that was decided before the cancel wins.
    fn lock_cancellable(&self, token: &CancelToken) -> Result<LockGuard, Error>;

    /// Takes the lock unless that takes longer than `wait` allows: `None`. All the other ways to
    /// take it are short forms of this one.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled, nothing is held
    /// then; else as [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    fn lock_within(&self, wait: Wait<'_>) -> Result<Option<LockGuard>, Error>;

    /// Releases one level of the calling thread's hold, the one taken last: for code that has no
    /// guard at hand, after [`LockGuard::forget`].
    ///
    /// # Errors
    ///
    /// [`NotHeld`](ErrorKind::NotHeld) if the thread does not hold the lock: nothing is changed,
    /// whoever does hold it. Else as [`LockGuard::unlock`].
    ///
    /// # Blocking
    ///
    /// As [`LockGuard::unlock`].
    fn unlock(&self) -> Result<(), Error>;

    /// Takes the lock away from whoever holds it, on any machine, and lets the next in. `false`:
    /// nobody held it. A holder in this client is told at once, another at its next renewal; one with
    /// a fixed lease, which is not renewed, when it unlocks.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble. If its reply was lost, the message
    /// says that the outcome is not known: it is not sent twice, since the second one would take the
    /// lock from the next holder.
    ///
    /// # Blocking
    ///
    /// Two round trips.
    fn force_unlock(&self) -> Result<bool, Error>;

    /// Whether anybody holds the lock, on any machine. Already old when it returns.
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn is_locked(&self) -> Result<bool, Error>;

    /// Whether the calling thread holds the lock, as far as its guard would say so. No I/O.
    fn is_held_by_current_thread(&self) -> bool;

    /// How many levels the calling thread has taken and not released; zero if it does not hold the
    /// lock. No I/O.
    fn hold_count(&self) -> usize;

    /// How long the lock lasts unless it is renewed, whoever holds it: `None` if nobody does,
    /// `Duration::MAX` if it has no end (no client of Redisson or of this library makes such a
    /// one).
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble.
    ///
    /// # Blocking
    ///
    /// One round trip.
    fn remaining_lease(&self) -> Result<Option<Duration>, Error>;

    /// The lock's name: the key in Redis.
    fn name(&self) -> &str;

    /// The same lock with a fixed lease, counted from each time it is taken and never renewed.
    ///
    /// From 1 ms to 10¹⁵ ms; another one is an error of the first call that takes the lock. A
    /// thread that holds the lock already extends its lease by that if it is longer than what is
    /// left (one round trip), and never shortens it.
    #[must_use]
    fn with_lease(&self, lease: Duration) -> Self
    where
        Self: Sized;

    /// Takes the lock, runs `work` with the guard, releases it: for those who would forget to bind
    /// the guard.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and then `work` did not run; as [`LockGuard::unlock`], and then it
    /// did: [`LeaseLost`](ErrorKind::LeaseLost) says that the lock was lost before the end.
    ///
    /// # Blocking
    ///
    /// As [`lock`](Self::lock) and [`LockGuard::unlock`]. If `work` panics, the lock is released
    /// as if the guard were dropped.
    fn with<R>(&self, work: impl FnOnce(&LockGuard) -> R) -> Result<R, Error>
    where
        Self: Sized,
    {
        let guard = self.lock()?;
        let result = work(&guard);
        guard.unlock()?;
        Ok(result)
    }
}

/// Gives a lock its verbs: methods of its own, and the trait [`Lock`]. The type has a `handle` and
/// `fn acquire(&self, Wait<'_>) -> Result<Option<LockGuard>, Error>` and
/// `fn force_unlock_command(&self) -> Command`.
macro_rules! lock_verbs {
    ($lock:ident) => {
        /// The verbs of [`Lock`](crate::Lock), which documents them.
        impl $lock {
            /// Takes the lock, waiting for as long as it takes: [`Lock::lock`](crate::Lock::lock).
            ///
            /// # Errors
            ///
            /// If the server is in trouble or the name or lease is not usable; nothing is held.
            pub fn lock(&self) -> Result<crate::LockGuard, crate::Error> {
                self.acquire(crate::Wait::FOREVER)?
                    .ok_or_else(|| crate::Error::shut_down(&self.handle.site.name))
            }

            /// Takes the lock if that is possible now: [`Lock::try_lock`](crate::Lock::try_lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock).
            pub fn try_lock(&self) -> Result<Option<crate::LockGuard>, crate::Error> {
                self.acquire(crate::Wait::NONE)
            }

            /// Takes the lock unless that takes longer than `wait`:
            /// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock).
            pub fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                self.acquire(crate::Wait::at_most(wait))
            }

            /// Takes the lock unless that takes until `deadline`:
            /// [`Lock::try_lock_until`](crate::Lock::try_lock_until).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock).
            pub fn try_lock_until(
                &self,
                deadline: std::time::Instant,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                self.acquire(crate::Wait::until(deadline))
            }

            /// Takes the lock unless `token` is cancelled:
            /// [`Lock::lock_cancellable`](crate::Lock::lock_cancellable).
            ///
            /// # Errors
            ///
            /// Of kind [`Cancelled`](crate::ErrorKind::Cancelled); else as [`lock`](Self::lock).
            pub fn lock_cancellable(
                &self,
                token: &crate::CancelToken,
            ) -> Result<crate::LockGuard, crate::Error> {
                self.acquire(crate::Wait::from(token))?
                    .ok_or_else(|| crate::Error::shut_down(&self.handle.site.name))
            }

            /// Takes the lock unless that takes longer than `wait` allows:
            /// [`Lock::lock_within`](crate::Lock::lock_within).
            ///
            /// # Errors
            ///
            /// Of kind [`Cancelled`](crate::ErrorKind::Cancelled) if its token was cancelled; else
            /// as [`lock`](Self::lock).
            pub fn lock_within(
                &self,
                wait: crate::Wait<'_>,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                self.acquire(wait)
            }

            /// Takes the lock, runs `work`, releases it: [`Lock::with`](crate::Lock::with).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock) and [`LockGuard::unlock`](crate::LockGuard::unlock).
            pub fn with<R>(
                &self,
                work: impl FnOnce(&crate::LockGuard) -> R,
            ) -> Result<R, crate::Error> {
                crate::Lock::with(self, work)
            }

            /// Releases one level of the calling thread's hold:
            /// [`Lock::unlock`](crate::Lock::unlock).
            ///
            /// # Errors
            ///
            /// Of kind [`NotHeld`](crate::ErrorKind::NotHeld) if the thread does not hold it; else
            /// as [`LockGuard::unlock`](crate::LockGuard::unlock).
            pub fn unlock(&self) -> Result<(), crate::Error> {
                self.handle.unlock()
            }

            /// Takes the lock away from whoever holds it:
            /// [`Lock::force_unlock`](crate::Lock::force_unlock).
            ///
            /// # Errors
            ///
            /// If the server is in trouble.
            pub fn force_unlock(&self) -> Result<bool, crate::Error> {
                self.handle.force_unlock(&self.force_unlock_command())
            }

            /// Whether anybody holds the lock: [`Lock::is_locked`](crate::Lock::is_locked).
            ///
            /// # Errors
            ///
            /// If the server is in trouble.
            pub fn is_locked(&self) -> Result<bool, crate::Error> {
                self.handle.is_locked()
            }

            /// Whether the calling thread holds the lock. No I/O.
            #[must_use]
            pub fn is_held_by_current_thread(&self) -> bool {
                self.handle.hold_count() > 0
            }

            /// How many levels the calling thread holds. No I/O.
            #[must_use]
            pub fn hold_count(&self) -> usize {
                self.handle.hold_count()
            }

            /// How long the lock lasts unless it is renewed, whoever holds it:
            /// [`Lock::remaining_lease`](crate::Lock::remaining_lease).
            ///
            /// # Errors
            ///
            /// If the server is in trouble.
            pub fn remaining_lease(&self) -> Result<Option<std::time::Duration>, crate::Error> {
                self.handle.remaining_lease()
            }

            /// The lock's name: the key in Redis.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.handle.site.name
            }

            /// The same lock with a fixed lease: [`Lock::with_lease`](crate::Lock::with_lease).
            #[must_use]
            pub fn with_lease(&self, lease: std::time::Duration) -> Self {
                let mut lock = self.clone();
                lock.handle = self.handle.with_lease(lease);
                lock
            }
        }

        impl crate::Lock for $lock {
            fn lock(&self) -> Result<crate::LockGuard, crate::Error> {
                Self::lock(self)
            }
            fn try_lock(&self) -> Result<Option<crate::LockGuard>, crate::Error> {
                Self::try_lock(self)
            }
            fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                Self::try_lock_for(self, wait)
            }
            fn try_lock_until(
                &self,
                deadline: std::time::Instant,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                Self::try_lock_until(self, deadline)
            }
            fn lock_cancellable(
                &self,
                token: &crate::CancelToken,
            ) -> Result<crate::LockGuard, crate::Error> {
                Self::lock_cancellable(self, token)
            }
            fn lock_within(
                &self,
                wait: crate::Wait<'_>,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                Self::lock_within(self, wait)
            }
            fn unlock(&self) -> Result<(), crate::Error> {
                Self::unlock(self)
            }
            fn force_unlock(&self) -> Result<bool, crate::Error> {
                Self::force_unlock(self)
            }
            fn is_locked(&self) -> Result<bool, crate::Error> {
                Self::is_locked(self)
            }
            fn is_held_by_current_thread(&self) -> bool {
                Self::is_held_by_current_thread(self)
            }
            fn hold_count(&self) -> usize {
                Self::hold_count(self)
            }
            fn remaining_lease(&self) -> Result<Option<std::time::Duration>, crate::Error> {
                Self::remaining_lease(self)
            }
            fn name(&self) -> &str {
                Self::name(self)
            }
            fn with_lease(&self, lease: std::time::Duration) -> Self {
                Self::with_lease(self, lease)
            }
        }
    };
}

pub(crate) use lock_verbs;
