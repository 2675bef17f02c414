//! The macros that give each lock its verbs.

/// Gives a lock the verbs of [`Lock`](crate::Lock) as methods of its own, so that using one needs
/// no import of the trait.
macro_rules! own_verbs {
    ($lock:ident, $guard:ty, $owned:ty) => {
        const _: () = {
            use std::time::{Duration, Instant};

            use redlatch_client::CancelToken;

            use crate::attempt::Attempt;
            use crate::error::Error;
            use crate::lock::{AsLock, Lock, LockGuard};
            use crate::waiting::Wait;

            impl AsLock for $lock {
                fn as_lock(&self) -> &dyn Lock {
                    self
                }
            }

            /// The verbs of [`Lock`](crate::Lock), which documents the result, the errors and the
            /// round trips of each.
            impl $lock {
                /// See [`Lock::lock`](crate::Lock::lock).
                pub fn lock(&self) -> Result<$guard, Error> {
                    LockGuard::take(self, Wait::FOREVER)
                }

                /// See [`Lock::try_lock`](crate::Lock::try_lock).
                pub fn try_lock(&self) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, Wait::NONE)
                }

                /// See [`Lock::try_lock_for`](crate::Lock::try_lock_for).
                pub fn try_lock_for(&self, wait: Duration) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, wait.into())
                }

                /// See [`Lock::try_lock_until`](crate::Lock::try_lock_until).
                pub fn try_lock_until(&self, deadline: Instant) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, deadline.into())
                }

                /// See [`Lock::lock_cancellable`](crate::Lock::lock_cancellable).
                pub fn lock_cancellable(&self, token: &CancelToken) -> Result<$guard, Error> {
                    LockGuard::take(self, token.into())
                }

                /// See [`Lock::lock_within`](crate::Lock::lock_within).
                pub fn lock_within(&self, wait: Wait<'_>) -> Result<Attempt<$guard>, Error> {
                    LockGuard::try_take(self, wait)
                }

                /// See [`Lock::lock_owned`](crate::Lock::lock_owned).
                pub fn lock_owned(&self) -> Result<$owned, Error> {
                    LockGuard::take(self, Wait::FOREVER)
                }

                /// See [`Lock::try_lock_owned`](crate::Lock::try_lock_owned).
                pub fn try_lock_owned(&self) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, Wait::NONE)
                }

                /// See [`Lock::try_lock_owned_for`](crate::Lock::try_lock_owned_for).
                pub fn try_lock_owned_for(&self, wait: Duration) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, wait.into())
                }

                /// See [`Lock::try_lock_owned_until`](crate::Lock::try_lock_owned_until).
                pub fn try_lock_owned_until(
                    &self,
                    deadline: Instant,
                ) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, deadline.into())
                }

                /// See [`Lock::lock_owned_cancellable`](crate::Lock::lock_owned_cancellable).
                pub fn lock_owned_cancellable(&self, token: &CancelToken) -> Result<$owned, Error> {
                    LockGuard::take(self, token.into())
                }

                /// See [`Lock::lock_owned_within`](crate::Lock::lock_owned_within).
                pub fn lock_owned_within(&self, wait: Wait<'_>) -> Result<Attempt<$owned>, Error> {
                    LockGuard::try_take(self, wait)
                }

                /// See [`Lock::with`](crate::Lock::with).
                pub fn with<R, E: From<Error>>(
                    &self,
                    work: impl FnOnce(&$guard) -> Result<R, E>,
                ) -> Result<R, E> {
                    self.lock()?.release_after(work)
                }

                /// See [`Lock::try_with`](crate::Lock::try_with).
                #[must_use = "`None`: the lock was not free, and the work was not done"]
                pub fn try_with<R, E: From<Error>>(
                    &self,
                    work: impl FnOnce(&$guard) -> Result<R, E>,
                ) -> Result<Option<R>, E> {
                    let taken = self.try_lock()?.into_option();
                    taken.map(|guard| guard.release_after(work)).transpose()
                }

                /// See [`Lock::unlock`](crate::Lock::unlock).
                pub fn unlock(&self) -> Result<(), Error> {
                    Lock::unlock(self)
                }

                /// See [`Lock::force_unlock`](crate::Lock::force_unlock).
                #[must_use = "`false`: nobody held it"]
                pub fn force_unlock(&self) -> Result<bool, Error> {
                    Lock::force_unlock(self)
                }

                /// See [`Lock::is_locked`](crate::Lock::is_locked).
                pub fn is_locked(&self) -> Result<bool, Error> {
                    Lock::is_locked(self)
                }

                /// See [`Lock::is_held_by_current_thread`](crate::Lock::is_held_by_current_thread).
                #[must_use]
                pub fn is_held_by_current_thread(&self) -> bool {
                    Lock::is_held_by_current_thread(self)
                }

                /// See [`Lock::hold_count`](crate::Lock::hold_count).
                #[must_use]
                pub fn hold_count(&self) -> usize {
                    Lock::hold_count(self)
                }

                /// See [`Lock::remaining_lease`](crate::Lock::remaining_lease).
                pub fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
                    Lock::remaining_lease(self)
                }

                /// See [`Lock::name`](crate::Lock::name).
                #[must_use]
                pub fn name(&self) -> &str {
                    Lock::name(self)
                }

                /// See [`Lock::with_lease`](crate::Lock::with_lease).
                #[must_use]
                pub fn with_lease(&self, lease: Duration) -> Self {
                    Lock::with_lease(self, lease)
                }

                /// See [`Lock::with_watchdog`](crate::Lock::with_watchdog).
                #[must_use]
                pub fn with_watchdog(&self, timeout: Duration) -> Self {
                    Lock::with_watchdog(self, timeout)
                }

                /// See [`Lock::try_once_per`](crate::Lock::try_once_per).
                pub fn try_once_per(&self, interval: Duration) -> Result<Attempt<$guard>, Error> {
                    self.with_hold_at_least(interval).try_lock()
                }

                /// See [`Lock::with_hold_at_least`](crate::Lock::with_hold_at_least).
                #[must_use]
                pub fn with_hold_at_least(&self, least: Duration) -> Self {
                    Lock::with_hold_at_least(self, least)
                }

                /// See [`Lock::non_reentrant`](crate::Lock::non_reentrant).
                #[must_use]
                pub fn non_reentrant(&self) -> Self {
                    Lock::non_reentrant(self)
                }
            }
        };
    };
}

/// Makes a type that has a `handle` a lock of one name.
macro_rules! one_lock {
    ($lock:ident) => {
        $crate::lock::one_lock!($lock, $crate::lock::LockGuard, $crate::lock::OwnedLockGuard);
    };
    // A lock whose guards have further methods.
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
    // A lock that has these methods of its own.
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
