//! What every lock can do, and the guard that a held one is.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::Wait;
use crate::cancel::CancelToken;
use crate::client::Client;
use crate::connection::Command;
use crate::error::{Error, ErrorKind};
use crate::hold::{HoldState, Leaving, LostReason, Site, Tenancy, Terms, check_lease, clock};
use crate::script::{self, Trouble};

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

/// A held lock. Dropping it releases the lock.
///
/// The hold belongs to the thread that took it: a guard is not `Send`. It keeps its client alive.
///
/// A drop does not wait for the server: the release is written, and a failure is logged and tried
/// again in the background. [`unlock`](Self::unlock) waits and reports.
#[must_use = "dropping the guard releases the lock at once; bind it, or use `with`"]
pub struct LockGuard {
    handle: Handle,
    tenancy: Arc<Tenancy>,
    terms: Terms,
    released: bool,
    _not_send: PhantomData<*const ()>,
}

impl LockGuard {
    pub(crate) fn new(handle: &Handle, tenancy: Arc<Tenancy>, terms: Terms) -> Self {
        let handle = handle.clone();
        Self { handle, tenancy, terms, released: false, _not_send: PhantomData }
    }

    /// Whether the lock is held, as far as this process can know without asking: neither released
    /// nor lost, and before the deadline that the server last confirmed. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.tenancy.is_held()
    }

    /// What is known of the hold. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.tenancy.state()
    }

    /// For how long the lock is certainly held if no renewal succeeds any more; zero if it is
    /// lost. No I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.tenancy.remaining()
    }

    /// Fails unless the lock is certainly held for `slack` more: what to ask before each step that
    /// must not be done without the lock and takes no longer than that. No I/O.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the hold is lost or too near to its end.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        let name = &self.handle.site.name;
        match self.state() {
            HoldState::Lost(reason) => Err(Error::lost(name, reason)),
            HoldState::Released => Err(self.handle.site.not_held_by_thread()),
            HoldState::Held | HoldState::Unconfirmed => {
                let remaining = self.remaining();
                if remaining >= slack && !remaining.is_zero() {
                    return Ok(());
                }
                let message = format!(
                    "the hold is certain for {remaining:?} more and not for {slack:?}; it is still \
                     held, stop in time or take a longer lease"
                );
                Err(Error::new(ErrorKind::LeaseLost, message).of(name))
            }
        }
    }

    /// Has `callback` called once if the hold is lost before it is released: at the lease's end,
    /// at a renewal that the server answers with "not yours", at a `force_unlock` by this client.
    /// If it is lost already, soon after this call. A loss that nobody knows of before
    /// [`unlock`](Self::unlock) asks the server is told by its error alone.
    ///
    /// It runs on a thread of the client's, one callback after the other, so it should be short.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        if let Some((reason, callback)) = self.tenancy.on_lost(Box::new(callback)) {
            let site = &self.handle.site;
            site.core.watchdog.tell_lost(&site.name, reason, vec![callback]);
        }
    }

    /// Releases the lock, or one level of it.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the hold was lost before: whoever has the lock now
    /// keeps it. [`NotHeld`](ErrorKind::NotHeld) if all levels were released before: levels are
    /// counted, not told apart, so after a [`Lock::unlock`] it is the last guard that finds none. [`Redis`](ErrorKind::Redis) if the server is in trouble: this thread no
    /// longer holds the lock, and its release is tried again in the background, so that others get
    /// it at the latest when the lease ends.
    ///
    /// # Blocking
    ///
    /// One round trip. None for an inner level, or where the hold is passed to a thread of this
    /// process that waits for it.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.released = true;
        self.handle.site.leave(&self.tenancy, Some(self.terms), Leaving::Awaited)
    }

    /// Lets go of the guard and keeps the lock, until [`Lock::unlock`] on the same thread, the end
    /// of the client, or (once the thread has ended) the end of the lease.
    pub fn forget(mut self) {
        self.released = true;
        let site = &self.handle.site;
        site.gate.keep(&self.tenancy, Arc::clone(site));
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.site.name
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            // Lost or released otherwise: `on_lost` and the log have said so.
            let _ = self.handle.site.leave(&self.tenancy, Some(self.terms), Leaving::Posted);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// What the handles of all locks are: a client, a name, and the terms to take it on.
#[derive(Clone)]
pub(crate) struct Handle {
    // Before the client: a site that goes must not be the client's last user.
    pub(crate) site: Arc<Site>,
    pub(crate) client: Client,
    lease: Option<Duration>,
}

impl Handle {
    pub(crate) fn new(client: Client, site: Arc<Site>) -> Self {
        Self { site, client, lease: None }
    }

    pub(crate) fn with_lease(&self, lease: Duration) -> Self {
        Self { lease: Some(lease), ..self.clone() }
    }

    pub(crate) fn terms(&self) -> Terms {
        self.lease.map_or(Terms::Watched, Terms::Fixed)
    }

    /// Whether the lock can be taken at all, and the wait not over before it began.
    pub(crate) fn check(&self, wait: &Wait<'_>) -> Result<(), Error> {
        wait.check(self.client.core(), &self.site.name)?;
        self.check_usable()?;
        match self.lease {
            Some(lease) => check_lease(&self.site.name, lease),
            None => Ok(()),
        }
    }

    /// The thread has taken one level more: is the lease as long as it asked for? `false`: the
    /// hold was lost.
    pub(crate) fn deepen(&self, tenancy: &Arc<Tenancy>) -> Result<bool, Error> {
        let Self { site, .. } = self;
        let (hold, terms) = (&tenancy.hold, self.terms());
        match terms {
            Terms::Fixed(lease) if tenancy.remaining() < lease => {
                let sent_at = clock::now();
                hold.ask(lease);
                match script::lock::extend(&site.lane, &site.name, &hold.owner, lease) {
                    Ok(true) => {
                        hold.confirm(sent_at, lease);
                        if site.bury_extended(hold) {
                            return Ok(false);
                        }
                    }
                    Ok(false) => {
                        site.lose(tenancy, LostReason::Revoked);
                        return Ok(false);
                    }
                    Err(trouble) => {
                        if let Trouble::Unknown(_) = trouble {
                            hold.unconfirm();
                            site.bury_extended(hold);
                        }
                        // The inner level is not taken; the outer ones are as they were.
                        let _ = site.leave(tenancy, Some(terms), Leaving::Posted);
                        let state = "the thread still holds it as before, with its earlier lease";
                        return Err(trouble.into_error().of(&site.name).now(state));
                    }
                }
            }
            // From now on it is renewed.
            Terms::Watched if hold.terms != Terms::Watched => site.arm(),
            Terms::Fixed(_) | Terms::Watched => {}
        }
        Ok(true)
    }

    pub(crate) fn too_deep(&self) -> Error {
        let message = "the thread has taken it a million times over; does it forget to unlock?";
        Error::new(ErrorKind::Config, message.to_owned()).of(&self.site.name)
    }

    /// The calling thread was granted a hold: its guard, unless the client was shut down meanwhile.
    pub(crate) fn admitted(&self, tenancy: Arc<Tenancy>) -> Result<LockGuard, Error> {
        if self.client.core().is_shut_down() {
            // The end of the client released what was held then; this came after it.
            self.site.lose(&tenancy, LostReason::ShutDown);
            let _ = self.site.release(&tenancy.hold, Leaving::Awaited);
            return Err(Error::shut_down(&self.site.name));
        }
        Ok(LockGuard::new(self, tenancy, self.terms()))
    }

    fn check_usable(&self) -> Result<(), Error> {
        if self.site.name.is_empty() {
            let message = "a lock needs a name that is not empty".to_owned();
            return Err(Error::new(ErrorKind::Config, message));
        }
        if self.client.core().is_shut_down() {
            return Err(Error::shut_down(&self.site.name));
        }
        Ok(())
    }

    pub(crate) fn unlock(&self) -> Result<(), Error> {
        match self.tenancy() {
            Some((tenancy, _)) => self.site.leave(&tenancy, None, Leaving::Awaited),
            None => Err(self.site.not_held_by_thread()),
        }
    }

    /// Takes the lock away by this command of its kind.
    pub(crate) fn force_unlock(&self, command: &Command) -> Result<bool, Error> {
        self.check_usable()?;
        let Site { lane, name, gate, .. } = &*self.site;
        let before = gate.tenant();
        let outcome = script::lock::force_unlock(lane, name, command);
        // Before the look at the seat: a hold granted meanwhile is either there, or its thread
        // finds this and asks.
        gate.force();
        let known = outcome.is_ok();
        if let Some((now, _)) = gate.tenant().filter(|_| !matches!(outcome, Ok(false))) {
            // The hold may have been passed on meanwhile, or a new one granted before the deletion
            // or after it; only the server knows which.
            let same = before.is_some_and(|(before, _)| Arc::ptr_eq(&before.hold, &now.hold));
            match script::lock::is_held_by(lane, name, &now.hold.owner) {
                _ if same && known => self.site.lose(&now, LostReason::ForceUnlocked),
                Ok(false) => self.site.lose(&now, LostReason::ForceUnlocked),
                Ok(true) => {}
                Err(_) => now.hold.unconfirm(),
            }
        }
        outcome.map_err(|trouble| {
            let state = match trouble {
                Trouble::Unknown(_) => {
                    "whether it was unlocked is not known: ask is_locked, and call again if it is"
                }
                Trouble::Refused(_) | Trouble::Unsent(_) => "nothing was changed",
            };
            trouble.into_error().of(name).now(state)
        })
    }

    pub(crate) fn is_locked(&self) -> Result<bool, Error> {
        self.check_usable()?;
        let Site { lane, name, .. } = &*self.site;
        script::lock::is_locked(lane, name).map_err(|trouble| trouble.into_error().of(name))
    }

    pub(crate) fn hold_count(&self) -> usize {
        self.tenancy().filter(|(tenancy, _)| tenancy.is_held()).map_or(0, |(_, count)| count)
    }

    pub(crate) fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        self.check_usable()?;
        let Site { lane, name, .. } = &*self.site;
        script::lock::remaining_lease(lane, name).map_err(|trouble| trouble.into_error().of(name))
    }

    /// The calling thread's tenancy with its count, if it has the seat.
    fn tenancy(&self) -> Option<(Arc<Tenancy>, usize)> {
        self.site.gate.tenant().filter(|(tenancy, _)| tenancy.thread.is_current())
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("name", &self.site.name)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
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
                self.acquire(crate::acquire::Wait::FOREVER)?
                    .ok_or_else(|| crate::Error::shut_down(&self.handle.site.name))
            }

            /// Takes the lock if that is possible now: [`Lock::try_lock`](crate::Lock::try_lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock).
            pub fn try_lock(&self) -> Result<Option<crate::LockGuard>, crate::Error> {
                self.acquire(crate::acquire::Wait::NONE)
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
                self.acquire(crate::acquire::Wait::for_duration(wait))
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
                self.acquire(crate::acquire::Wait::until(deadline))
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
                self.acquire(crate::acquire::Wait::cancellable(token))?
                    .ok_or_else(|| crate::Error::shut_down(&self.handle.site.name))
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
