//! The macro that gives all locks their verbs.

/// Gives a lock its verbs: methods of its own, and the traits [`Lock`](crate::Lock),
/// [`Part`](crate::lock::Part) (one of several locks) and [`Retake`](crate::lock::Retake) (after a
/// wait on a condition). The type has a `handle` and
/// `fn acquire(&self, &Arc<Thread>, Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error>` and
/// `fn send_force_unlock(&self) -> Result<bool, Trouble>`.
macro_rules! lock_verbs {
    ($lock:ident) => {
        $crate::lock::lock_verbs!($lock, $crate::LockGuard, $crate::OwnedLockGuard);
    };
    // A lock whose own guards say more, and become these.
    ($lock:ident, $guard:ty, $owned:ty) => {
        /// The verbs of [`Lock`](crate::Lock), which documents the result, the errors and the round
        /// trips of each.
        impl $lock {
            /// Takes the lock, waiting for as long as it takes: [`Lock::lock`](crate::Lock::lock).
            pub fn lock(&self) -> Result<$guard, crate::Error> {
                self.take(crate::Wait::FOREVER)?
                    .ok_or_else(|| crate::Error::shut_down(&self.handle.site.name))
            }

            /// Takes the lock if that is possible now: [`Lock::try_lock`](crate::Lock::try_lock).
            #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
            pub fn try_lock(&self) -> Result<Option<$guard>, crate::Error> {
                self.take(crate::Wait::NONE)
            }

            /// Takes the lock unless that takes longer than `wait`:
            /// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
            #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
            pub fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<$guard>, crate::Error> {
                self.take(crate::Wait::at_most(wait))
            }

            /// Takes the lock unless `token` is cancelled:
            /// [`Lock::lock_cancellable`](crate::Lock::lock_cancellable).
            pub fn lock_cancellable(
                &self,
                token: &crate::CancelToken,
            ) -> Result<$guard, crate::Error> {
                self.take(crate::Wait::from(token))?
                    .ok_or_else(|| crate::Error::shut_down(&self.handle.site.name))
            }

            /// Takes the lock unless that takes longer than `wait` allows:
            /// [`Lock::lock_within`](crate::Lock::lock_within).
            #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
            pub fn lock_within<'a>(
                &self,
                wait: impl Into<crate::Wait<'a>>,
            ) -> Result<Option<$guard>, crate::Error> {
                self.take(wait.into())
            }

            /// Takes the lock for a guard that belongs to no thread, waiting for as long as it
            /// takes: [`Lock::lock_owned`](crate::Lock::lock_owned).
            pub fn lock_owned(&self) -> Result<$owned, crate::Error> {
                self.take_owned(crate::Wait::FOREVER)?
                    .ok_or_else(|| crate::Error::shut_down(&self.handle.site.name))
            }

            /// Takes the lock for a guard that belongs to no thread, if that is possible now:
            /// [`Lock::try_lock_owned`](crate::Lock::try_lock_owned).
            #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
            pub fn try_lock_owned(&self) -> Result<Option<$owned>, crate::Error> {
                self.take_owned(crate::Wait::NONE)
            }

            /// Takes the lock for a guard that belongs to no thread, unless that takes longer than
            /// `wait` allows: [`Lock::lock_owned_within`](crate::Lock::lock_owned_within).
            #[must_use = "`None`: it was not taken; and a guard that is dropped releases it"]
            pub fn lock_owned_within<'a>(
                &self,
                wait: impl Into<crate::Wait<'a>>,
            ) -> Result<Option<$owned>, crate::Error> {
                self.take_owned(wait.into())
            }

            /// The calling thread takes the lock.
            fn take(&self, wait: crate::Wait<'_>) -> Result<Option<$guard>, crate::Error> {
                let tenancy = self.acquire(&redlatch_client::sync::Thread::current(), wait)?;
                Ok(tenancy.map(|tenancy| <$guard>::new(&self.handle, tenancy)))
            }

            /// A guard takes the lock for itself, under a `Thread` that equals no real one: no
            /// thread re-enters the hold, and it never counts as dead.
            fn take_owned(&self, wait: crate::Wait<'_>) -> Result<Option<$owned>, crate::Error> {
                let tenancy = self.acquire(&redlatch_client::sync::Thread::placeholder(), wait)?;
                Ok(tenancy.map(|tenancy| <$owned>::new(&self.handle, tenancy)))
            }

            /// Takes the lock, runs `work`, releases it: [`Lock::with`](crate::Lock::with).
            pub fn with<R, E: From<crate::Error>>(
                &self,
                work: impl FnOnce(&$guard) -> Result<R, E>,
            ) -> Result<R, E> {
                crate::lock::run(self.lock()?, work)
            }

            /// Releases one level of the calling thread's hold:
            /// [`Lock::unlock`](crate::Lock::unlock).
            pub fn unlock(&self) -> Result<(), crate::Error> {
                self.handle.unlock()
            }

            /// Takes the lock away from its holder:
            /// [`Lock::force_unlock`](crate::Lock::force_unlock).
            pub fn force_unlock(&self) -> Result<bool, crate::Error> {
                self.handle.force_unlock(|| self.send_force_unlock())
            }

            /// Whether anybody holds the lock: [`Lock::is_locked`](crate::Lock::is_locked).
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

            /// How long the lock lasts unless its holder renews it:
            /// [`Lock::remaining_lease`](crate::Lock::remaining_lease).
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

            /// The same lock with a watched lease of its own:
            /// [`Lock::with_watchdog`](crate::Lock::with_watchdog).
            #[must_use]
            pub fn with_watchdog(&self, timeout: std::time::Duration) -> Self {
                let mut lock = self.clone();
                lock.handle = self.handle.with_watchdog(timeout);
                lock
            }
        }

        impl crate::lock::Retake for $lock {
            fn handle(&self) -> &crate::lock::Handle {
                &self.handle
            }

            fn retake(
                &self,
                thread: &std::sync::Arc<redlatch_client::sync::Thread>,
                terms: crate::local::Terms,
            ) -> Result<Option<std::sync::Arc<crate::local::Tenancy>>, crate::Error> {
                let mut lock = self.clone();
                lock.handle = self.handle.on(terms);
                lock.acquire(thread, crate::Wait::FOREVER)
            }
        }

        impl crate::Lock for $lock {
            fn lock(&self) -> Result<crate::LockGuard, crate::Error> {
                Self::lock(self).map(Into::into)
            }
            fn try_lock(&self) -> Result<Option<crate::LockGuard>, crate::Error> {
                Self::try_lock(self).map(|guard| guard.map(Into::into))
            }
            fn try_lock_for(
                &self,
                wait: std::time::Duration,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                Self::try_lock_for(self, wait).map(|guard| guard.map(Into::into))
            }
            fn lock_cancellable(
                &self,
                token: &crate::CancelToken,
            ) -> Result<crate::LockGuard, crate::Error> {
                Self::lock_cancellable(self, token).map(Into::into)
            }
            fn lock_within(
                &self,
                wait: crate::Wait<'_>,
            ) -> Result<Option<crate::LockGuard>, crate::Error> {
                Self::lock_within(self, wait).map(|guard| guard.map(Into::into))
            }
            fn lock_owned(&self) -> Result<crate::OwnedLockGuard, crate::Error> {
                Self::lock_owned(self).map(Into::into)
            }
            fn try_lock_owned(&self) -> Result<Option<crate::OwnedLockGuard>, crate::Error> {
                Self::try_lock_owned(self).map(|guard| guard.map(Into::into))
            }
            fn lock_owned_within(
                &self,
                wait: crate::Wait<'_>,
            ) -> Result<Option<crate::OwnedLockGuard>, crate::Error> {
                Self::lock_owned_within(self, wait).map(|guard| guard.map(Into::into))
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
            fn with_watchdog(&self, timeout: std::time::Duration) -> Self {
                Self::with_watchdog(self, timeout)
            }
            fn part(&self) -> Option<crate::lock::LockPart> {
                Some(crate::lock::LockPart(std::sync::Arc::new(self.clone())))
            }
        }

        impl crate::lock::Part for $lock {
            fn kind(&self) -> &'static str {
                stringify!($lock)
            }
            fn handle(&self) -> &crate::lock::Handle {
                &self.handle
            }
            fn with_lease(
                &self,
                lease: std::time::Duration,
            ) -> std::sync::Arc<dyn crate::lock::Part> {
                std::sync::Arc::new(Self::with_lease(self, lease))
            }
            fn with_watchdog(
                &self,
                timeout: std::time::Duration,
            ) -> std::sync::Arc<dyn crate::lock::Part> {
                std::sync::Arc::new(Self::with_watchdog(self, timeout))
            }
            fn acquire(
                &self,
                thread: &std::sync::Arc<redlatch_client::sync::Thread>,
                wait: crate::Wait<'_>,
            ) -> Result<Option<std::sync::Arc<crate::local::Tenancy>>, crate::Error> {
                Self::acquire(self, thread, wait)
            }
        }
    };
}

pub(crate) use lock_verbs;
