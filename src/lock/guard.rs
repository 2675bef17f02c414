//! The guard of a held lock.

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZero;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use redlatch_client::sync::Thread;

use super::multi::GuardLevels;
use super::{Handle, Lock};
use crate::error::{Error, ErrorKind, LostReason};
use crate::local::{HoldState, Leaving, Level, Site, Tenancy};
use crate::runtime::Core;
use crate::waiting::Wait;

/// A held lock. Dropping it releases the lock.
///
/// The hold belongs to the thread that took it, so a guard stays there: it is not `Send`. It is
/// `Sync`: other threads that work for its thread may ask it whether the lock is still held. It
/// keeps its client alive. ([`OwnedLockGuard`] is for a hold that goes from thread to thread.)
///
/// The types say what else a guard can tell: a `LockGuard<FencedLock>`
/// ([`FencedLockGuard`](crate::FencedLockGuard)) has a token, a `LockGuard<MultiLock>`
/// ([`MultiLockGuard`](crate::MultiLockGuard)) the tokens and names of its parts. Both become a
/// plain `LockGuard` by `into()`.
///
/// A drop writes the release and does not wait for the server: if the release fails, the client
/// logs that and tries again in the background. [`unlock`](Self::unlock) waits and reports.
///
/// ```no_run
/// use std::thread;
/// use std::time::Duration;
///
/// # fn write(_: u32) {}
/// fn work(lock: &redlatch::ReentrantLock) -> Result<(), redlatch::Error> {
///     let guard = lock.lock()?;
///     guard.on_lost(|why| eprintln!("stop: {why}"));
///     thread::scope(|scope| {
///         for part in 0..4 {
///             let guard = &guard;
///             scope.spawn(move || {
///                 // Certainly ours for as long as this write takes?
///                 if guard.check(Duration::from_secs(2)).is_ok() {
///                     write(part);
///                 }
///             });
///         }
///     });
///     guard.unlock()
/// }
/// ```
///
/// It does not leave its thread:
///
/// ```compile_fail,E0277
/// fn elsewhere(guard: redlatch::LockGuard) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
#[must_use = "dropping the guard releases the lock at once; bind it, or use `with`"]
pub struct LockGuard<L: ?Sized = dyn Lock, O = OfThread> {
    held: HeldLocks,
    _of: PhantomData<fn(&L)>,
    _owner: PhantomData<O>,
}

/// A held lock that belongs to no thread: it may be sent to another one, and dropped there. For
/// thread pools and async runtimes. Made by [`Lock::lock_owned`].
///
/// The hold is the guard's own. A thread that has the guard does not hold the lock: `hold_count`
/// does not count it, `unlock` does not end it, and another `lock()` or `lock_owned()`, on any
/// thread, waits for it as for a stranger's. **So a thread that has this guard and calls `lock()`
/// waits for itself**, for ever if nobody else drops the guard.
///
/// The watchdog renews the hold for as long as the guard lives, even if the threads that it was on
/// have ended. A leaked guard ([`std::mem::forget`]) keeps the lock until
/// [`Client::shutdown`](crate::Client::shutdown), or for
/// [`max_hold`](crate::ClientBuilder::max_hold).
///
/// All calls of this library block their thread, so take the lock where blocking is allowed, and
/// send the guard back. The drop only writes the release; but a guard that outlives every other
/// handle of its client ends the client, which may take up to
/// [`response_timeout`](crate::ClientBuilder::response_timeout).
///
/// ```no_run
/// use std::sync::mpsc;
/// use std::thread;
///
/// use redlatch::{Error, OwnedLockGuard, ReentrantLock};
///
/// fn hand_over(lock: &ReentrantLock) -> Result<(), Error> {
///     let (jobs, queue) = mpsc::channel::<OwnedLockGuard>();
///     let worker = thread::spawn(move || {
///         for guard in queue {
///             println!("{} is mine now: {}", guard.name(), guard.is_held());
///             drop(guard); // released here
///         }
///     });
///     let _ = jobs.send(lock.lock_owned()?);
///     drop(jobs);
///     let _ = worker.join();
///     Ok(())
/// }
/// ```
///
/// With an async runtime, call it in `spawn_blocking`. The [guide](crate::guide#tokio) shows the
/// rest for tokio.
pub type OwnedLockGuard<L = dyn Lock> = LockGuard<L, OfGuard>;

/// The hold belongs to the thread that took it. (So its guard is `Sync` and not `Send`, as this
/// is.)
#[derive(Debug)]
pub struct OfThread(PhantomData<MutexGuard<'static, ()>>);

/// The hold belongs to its guard.
#[derive(Debug)]
pub struct OfGuard(());

/// Whose a hold is.
pub trait GuardOwner {
    fn thread() -> Arc<Thread>;
}

impl GuardOwner for OfThread {
    fn thread() -> Arc<Thread> {
        Thread::current()
    }
}

/// A guard takes the lock for itself, under a `Thread` that equals no real one: no thread re-enters
/// the hold, and it never counts as dead.
impl GuardOwner for OfGuard {
    fn thread() -> Arc<Thread> {
        Thread::placeholder()
    }
}

/// What a guard holds, opaque to other crates.
#[derive(Debug)]
pub enum HeldLocks {
    One(HeldLock),
    Several(GuardLevels),
}

impl HeldLocks {
    /// What was taken of a lock of one name.
    pub(super) fn one(self) -> Option<HeldLock> {
        match self {
            Self::One(held) => Some(held),
            Self::Several(_) => None,
        }
    }
}

/// The same for one lock and for several.
macro_rules! each {
    ($held:expr, $it:ident => $what:expr) => {
        match $held {
            HeldLocks::One($it) => $what,
            HeldLocks::Several($it) => $what,
        }
    };
}

impl<L: ?Sized, O> LockGuard<L, O> {
    #[inline]
    pub(super) fn new(held: HeldLocks) -> Self {
        Self { held, _of: PhantomData, _owner: PhantomData }
    }

    /// Whether the lock is held, as far as this process can know without asking: neither released
    /// nor lost, and before the deadline that the server last confirmed. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        each!(&self.held, held => held.is_held())
    }

    /// The state of the hold, as far as this process knows it. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        each!(&self.held, held => held.state())
    }

    /// For how long the lock is certainly held if no renewal succeeds any more; zero if it is
    /// lost. For a lock that another process handed on, this is less than 2 s at first, and as much
    /// as for any other soon after it was held for 50 ms, or after a [`check`](Self::check) for
    /// more. No I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        each!(&self.held, held => held.remaining())
    }

    /// Fails unless the lock is certainly held for `slack` more. Call it before each step that
    /// needs the lock and takes no longer than that.
    ///
    /// The watchdog renews a watched hold when a third of its lease has gone. So the certain time
    /// is between two thirds of `watchdog_timeout` (20 s by default) and all of it, less the time
    /// of a renewal: a slack of more than two thirds is too long now and then, though all is well.
    /// Take half of it at most, or a longer `watchdog_timeout`.
    ///
    /// # Blocking
    ///
    /// Not at all, except for a round trip if another process has just handed the lock on: such a
    /// hold is certain for 2 s at first, and a longer slack makes it longer at once.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the hold is lost,
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if it is held and may end before the slack does,
    /// [`NotHeld`](ErrorKind::NotHeld) if it was released, by [`Lock::unlock`],
    /// [`Forked`](ErrorKind::Forked) in a forked child.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        each!(&self.held, held => held.check(slack))
    }

    /// Registers `callback`, which the client calls once if the hold is lost before it is released:
    /// at the lease's end, at a renewal that the server answers with "not yours", at a
    /// `force_unlock` by this client. If the hold is lost already, soon after this call. If the
    /// client learns of a loss only when [`unlock`](Self::unlock) asks the server, only the error
    /// tells it.
    ///
    /// Once a lock was held for 100 ms, the server tells the client when its key changes
    /// ([`client_tracking`](crate::ClientBuilder::client_tracking)): if somebody deletes it,
    /// flushes the server's data or shortens its time to live, the client renews at once, and calls
    /// the callback some milliseconds later. This is also true of a fixed lease.
    ///
    /// Callbacks run on a thread of the client, one after the other, so each should be short.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        each!(&self.held, held => held.on_lost(Box::new(callback)));
    }

    /// Releases the lock, or one level of it.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the hold was lost before: its present holder keeps
    /// the lock. [`NotHeld`](ErrorKind::NotHeld) if all levels were released before: levels are
    /// counted, not told apart, so after a [`Lock::unlock`] the last guard finds none.
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble: the caller no longer holds the
    /// lock, and the client tries its release again in the background, so that others get it at the
    /// latest when the lease ends. Also if the connection broke and the server, asked once more, no
    /// longer knows the hold: most likely it was released then, but it may have been lost before.
    /// [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// One round trip. None for an inner level, or if the hold passes to a waiting thread of this
    /// process.
    pub fn unlock(self) -> Result<(), Error> {
        each!(self.held, held => held.unlock())
    }

    /// Lets go of the guard and leaves the lock to the end of its lease: until then nobody gets it,
    /// even if this client, its process or its machine ends. "Once an hour on one of all machines"
    /// is `with_lease` of a little less than an hour, `try_lock` and this. (With a lease of a whole
    /// hour, the lock may still be taken when the next run is due: then no machine runs.)
    ///
    /// The thread does not hold the lock any more: to it, as to all others, the lock is taken.
    /// Nothing renews the lock, so it ends when the rest of its lease has passed: with
    /// [`with_lease`](Lock::with_lease) the rest of that lease, for a watched hold between two
    /// thirds of [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) and all of it.
    /// Neither [`shutdown`](crate::Client::shutdown) nor the last drop of the client releases it;
    /// [`force_unlock`](Lock::force_unlock) ends it. A server that loses its data, or a failover to
    /// a replica that does not have the lock, ends it as well.
    ///
    /// If the thread has several levels, this ends one. The others hold the lock as before, and the
    /// watchdog renews it for them if they are watched; but the end of the last one does not
    /// release it before the end of the lease that it had here. The same is true of readers that
    /// share a hold in this process.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost), [`NotHeld`](ErrorKind::NotHeld) and
    /// [`Forked`](ErrorKind::Forked) as [`unlock`](Self::unlock): nothing is left then.
    /// [`Redis`](ErrorKind::Redis) if another process had just handed the lock on and the server is
    /// in trouble: its lease ends within 2 s.
    ///
    /// # Blocking
    ///
    /// Not at all, except for a round trip if another process has just handed the lock on.
    pub fn leave_to_expire(self) -> Result<(), Error> {
        each!(self.held, held => held.leave_to_expire())
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        each!(&self.held, held => held.name())
    }

    /// Runs `work`, and releases the lock: [`Lock::with`].
    pub(super) fn release_after<R, E: From<Error>>(
        self,
        work: impl FnOnce(&Self) -> Result<R, E>,
    ) -> Result<R, E> {
        let result = work(&self)?;
        let core = each!(&self.held, held => Arc::clone(held.core()));
        match self.unlock() {
            // In a forked child the lock is the parent's, and the child must not log here.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::LeaseLost | ErrorKind::NotHeld | ErrorKind::Forked
                ) =>
            {
                Err(error.into())
            }
            Err(error) => {
                core.watchdog.tell(error);
                Ok(result)
            }
            Ok(()) => Ok(result),
        }
    }

    /// The lock of one name that it holds.
    pub(crate) fn one(&self) -> Option<&HeldLock> {
        match &self.held {
            HeldLocks::One(held) => Some(held),
            HeldLocks::Several(_) => None,
        }
    }

    /// The locks that it holds together.
    pub(super) fn several(&self) -> Option<&GuardLevels> {
        match &self.held {
            HeldLocks::Several(levels) => Some(levels),
            HeldLocks::One(_) => None,
        }
    }

    /// The same hold, as that of another kind of lock.
    pub(super) fn into_guard_of<K: ?Sized>(self) -> LockGuard<K, O> {
        LockGuard::new(self.held)
    }
}

impl<L: ?Sized, O: GuardOwner> LockGuard<L, O> {
    /// Takes the lock. `None`: the wait ended first.
    #[inline]
    pub(super) fn try_take<K: Lock + ?Sized>(
        lock: &K,
        wait: Wait<'_>,
    ) -> Result<Option<Self>, Error> {
        let Some(mut held) = Lock::acquire(lock, &O::thread(), wait)? else { return Ok(None) };
        each!(&mut held, held => held.stays())?;
        Ok(Some(Self::new(held)))
    }

    /// Takes the lock; only an error ends the wait first.
    #[inline]
    pub(super) fn take<K: Lock + ?Sized>(lock: &K, wait: Wait<'_>) -> Result<Self, Error> {
        Self::try_take(lock, wait)?.ok_or_else(|| Error::shut_down(&lock.name().into()))
    }
}

impl<L: ?Sized> LockGuard<L> {
    /// Lets go of the guard and keeps the lock, until [`Lock::unlock`] on the same thread, the end
    /// of the client, or (once the thread has ended) the end of the lease. For a lock that must
    /// outlast the client, see [`leave_to_expire`](Self::leave_to_expire).
    pub fn forget(self) {
        each!(self.held, held => held.forget());
    }
}

impl<L: ?Sized, O> fmt::Debug for LockGuard<L, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// One level of a hold, left once. Nothing here asks which thread it is on.
pub struct HeldLock {
    /// The tenancy in which the thread took the level. Dropped before the client, since its drop
    /// may send a request.
    tenancy: Arc<Tenancy>,
    pub(crate) handle: Handle,
    /// The level that this guard ends. If the tenancy shares a hold, other guards have its other
    /// levels. `None`: the one that its thread took last.
    level: Option<Level>,
    left: bool,
    /// The level beneath, and until when the lock [stays](Self::stays) taken by it.
    beneath: Option<Box<(Self, u64)>>,
}

impl HeldLock {
    #[inline]
    pub(super) fn new(handle: &Handle, tenancy: Arc<Tenancy>) -> Self {
        let level = Some(handle.level(&tenancy));
        Self { handle: handle.clone(), level, tenancy, left: false, beneath: None }
    }

    /// The level that the thread took last, whoever has its guard.
    pub(super) fn last(handle: &Handle, tenancy: Arc<Tenancy>) -> Self {
        Self { handle: handle.clone(), level: None, tenancy, left: false, beneath: None }
    }

    /// With a level beneath, which ends with it unless the lock [stays](Self::stays) taken.
    pub(super) fn above(mut self, beneath: Self, until: u64) -> Self {
        self.beneath = Some(Box::new((beneath, until)));
        self
    }

    /// All that is taken together is held: leaves the level beneath to its end.
    pub(super) fn stays(&mut self) -> Result<(), Error> {
        let Some(beneath) = self.beneath.take() else { return Ok(()) };
        let (beneath, until) = *beneath;
        beneath.leave_until(Some(until))
    }

    /// Whether it is a level of this tenancy.
    pub(super) fn is_of(&self, tenancy: &Arc<Tenancy>) -> bool {
        Arc::ptr_eq(&self.tenancy, tenancy)
    }

    /// Whether the process was forked since: then the hold is the parent's, and this child must
    /// lock none of its mutexes.
    fn is_forked(&self) -> bool {
        self.handle.session.core().is_forked()
    }

    pub(super) fn is_held(&self) -> bool {
        !self.is_forked() && self.tenancy.is_held()
    }

    pub(super) fn state(&self) -> HoldState {
        if self.is_forked() {
            return HoldState::Lost(LostReason::Forked);
        }
        self.tenancy.state()
    }

    pub(super) fn remaining(&self) -> Duration {
        if self.is_forked() { Duration::ZERO } else { self.tenancy.remaining() }
    }

    pub(super) fn check(&self, slack: Duration) -> Result<(), Error> {
        let name = &self.handle.site.name;
        match self.state() {
            HoldState::Lost(LostReason::Forked) => Err(Error::forked(name)),
            HoldState::Lost(reason) => Err(self.handle.site.lost_error(&self.tenancy, reason)),
            HoldState::Released => {
                let message = "it was released before, by `unlock` or by a wait on a condition; \
                               nothing is held"
                    .to_owned();
                Err(Error::new(ErrorKind::NotHeld, message).of(name))
            }
            HoldState::Held | HoldState::Unconfirmed => {
                let remaining = self.remaining();
                if remaining.is_zero() {
                    // The hold ended between the two looks.
                    return self.check(slack);
                }
                // The tenant that keeps a shared hold for longer may leave before that.
                let own = self.level.map_or(Duration::MAX, Level::remaining);
                if own >= slack
                    && (remaining >= slack || self.handle.site.raise(&self.tenancy, slack))
                {
                    return Ok(());
                }
                let remaining = remaining.min(own);
                let terms = self.handle.terms();
                let longer = terms.longer(&self.handle.site.core);
                // The next renewal helps, if there is one.
                let passes = terms.watched_lease().is_some_and(|lease| slack < lease);
                Err(Error::ends_too_soon(remaining, slack, longer).transient(passes).of(name))
            }
        }
    }

    pub(super) fn on_lost(&self, callback: Box<dyn FnOnce(LostReason) + Send>) {
        if self.is_forked() {
            return;
        }
        if let Some((reason, callback)) = self.tenancy.on_lost(callback) {
            let site = &self.handle.site;
            site.core.watchdog.call_back(&site.name, reason, vec![callback]);
        }
    }

    pub(super) fn unlock(self) -> Result<(), Error> {
        self.leave(Leaving::Awaited)
    }

    pub(super) fn forget(mut self) {
        self.left = true;
        if !self.is_forked() {
            self.handle.site.gate.keep(&self.tenancy, self.handle.kept());
        }
    }

    pub(super) fn leave(mut self, how: Leaving) -> Result<(), Error> {
        self.left = true;
        self.handle.session.core().check_process(&self.handle.site.name)?;
        self.handle.site.leave(&self.tenancy, self.level, how)
    }

    pub(super) fn leave_to_expire(self) -> Result<(), Error> {
        self.leave_until(None)
    }

    pub(super) fn leave_until(mut self, until: Option<u64>) -> Result<(), Error> {
        self.left = true;
        self.handle.session.core().check_process(&self.handle.site.name)?;
        self.handle.site.leave_to_expire(&self.tenancy, self.level, until)
    }

    /// The tenancy with its level, which no guard ends.
    pub(super) fn into_tenancy(mut self) -> Arc<Tenancy> {
        self.left = true;
        Arc::clone(&self.tenancy)
    }

    pub(super) fn name(&self) -> &str {
        &self.handle.site.name
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.handle.site.core
    }

    /// The site of the lock, and the tenancy, for a wait on a condition.
    pub(crate) fn site_and_tenancy(&self) -> (&Arc<Site>, &Arc<Tenancy>) {
        (&self.handle.site, &self.tenancy)
    }

    /// The fencing token, if the lock has tokens.
    pub(super) fn token(&self) -> Option<u64> {
        self.tenancy.token().map(NonZero::get)
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLock").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if !self.left && !self.is_forked() {
            // If it was lost, `on_lost` and the log have reported it.
            let _ = self.handle.site.leave(&self.tenancy, self.level, Leaving::Posted);
        }
    }
}
