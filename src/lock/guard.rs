//! The guard of a held lock.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

use super::multi::GuardLevels;
use super::{HeldLock, Lock};
use crate::attempt::Attempt::{self, NotTaken, Taken};
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::HoldState;
use crate::waiting::Wait;

/// A held lock. Dropping it releases the lock.
///
/// A guard belongs to the thread that took the lock, so it cannot be sent to another one (it is not
/// `Send`). Other threads may ask it whether the lock is still held (it is `Sync`). It keeps its
/// client alive. [`OwnedLockGuard`] is a guard that belongs to no thread: `O` tells the two apart,
/// and no program names it.
///
/// A `LockGuard<FencedLock>` ([`FencedLockGuard`](crate::FencedLockGuard)) also has a token, and a
/// `LockGuard<MultiLock>` ([`MultiLockGuard`](crate::MultiLockGuard)) the tokens and names of its
/// parts. `into()` makes both a plain `LockGuard`.
///
/// A drop writes the release and does not wait for the server. If the release fails, the client
/// logs that and tries again in the background. [`unlock`](Self::unlock) waits, and returns the
/// error. If another process handed the lock over, the next call over the same connection may first
/// wait for the reply to the release. The waiting processes hear of the release sooner then.
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
#[must_use = "dropping the guard releases the lock at once; bind it, or use `with`"]
pub struct LockGuard<L: ?Sized = dyn Lock, O = OfThread> {
    held: HeldLocks,
    _of: PhantomData<fn(&L)>,
    _owner: PhantomData<O>,
}

/// A held lock that belongs to no thread, for thread pools and async runtimes. It can be sent to
/// another thread and dropped there. Made by [`Lock::lock_owned`].
///
/// A thread that has the guard does not hold the lock: `hold_count` does not count it, `unlock`
/// does not release it, and `lock()` or `lock_owned()` on any thread waits for it. **So a thread
/// that has this guard and calls `lock()` waits for itself**, for ever if no other thread drops the
/// guard.
///
/// The watchdog renews the lease for as long as the guard lives. A leaked guard
/// ([`std::mem::forget`]) keeps the lock until [`Client::shutdown`](crate::Client::shutdown), or
/// for [`max_hold`](crate::ClientBuilder::max_hold).
///
/// The drop only writes the release. But if the guard is its client's last handle, its drop ends
/// the client, which may take up to [`response_timeout`](crate::ClientBuilder::response_timeout).
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
/// In an async program, take the lock in `spawn_blocking`: see the [guide](crate::guide#tokio).
pub type OwnedLockGuard<L = dyn Lock> = LockGuard<L, OfGuard>;

/// The guard belongs to the thread that took the lock.
#[derive(Debug)]
pub struct OfThread(PhantomData<dyn GuardStaysWithItsThread>);

/// What the compiler says cannot be sent if a guard is: `dyn` of it has the traits named here, and
/// so it is not `Send`. No type implements it.
trait GuardStaysWithItsThread: Sync + Unpin + UnwindSafe + RefUnwindSafe {}

/// The guard belongs to no thread.
#[derive(Debug)]
pub struct OfGuard(());

/// The thread to which a hold belongs.
pub trait GuardOwner {
    fn thread() -> Arc<Thread>;
}

impl GuardOwner for OfThread {
    fn thread() -> Arc<Thread> {
        Thread::current()
    }
}

/// A guard takes the lock under a `Thread` that equals no real one. So no thread re-enters the
/// hold, and the holder never counts as dead.
impl GuardOwner for OfGuard {
    fn thread() -> Arc<Thread> {
        Thread::placeholder()
    }
}

/// The locks that a guard holds, opaque to other crates.
#[derive(Debug)]
pub enum HeldLocks {
    One(HeldLock),
    Several(GuardLevels),
}

impl HeldLocks {
    /// The held lock, if the guard holds a lock of one name.
    pub(super) fn one(self) -> Option<HeldLock> {
        match self {
            Self::One(held) => Some(held),
            Self::Several(_) => None,
        }
    }
}

/// Does the same for one lock and for several.
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

    /// Returns whether the lock is held: neither released nor lost, and before the deadline that
    /// the server last confirmed. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        each!(&self.held, held => held.is_held())
    }

    /// Returns the state of the hold, as far as this process knows it. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        each!(&self.held, held => held.state())
    }

    /// Returns how long the lock is certainly held if no renewal succeeds any longer. Zero if it is
    /// lost. For a lock that another process handed on, this is at first less than 2 s: see
    /// [`check`](Self::check). No I/O.
    ///
    /// For a [`ReadLock`](crate::ReadLock) with a fixed lease, this is the rest of that lease, even
    /// if other readers of this process share the hold and have a longer one: they may leave at any
    /// moment. Until they leave, the lock [is held](Self::is_held), also after the end of its own
    /// lease.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        each!(&self.held, held => held.remaining())
    }

    /// Fails unless the lock is certainly held for `slack` more. Call it before each step that
    /// needs the lock and takes no longer than `slack`.
    ///
    /// The watchdog renews a lease when a third of it has passed, so a little less than two thirds
    /// of `watchdog_timeout` (20 s by default) are always left if all is well. Take a `slack` of at
    /// most half of `watchdog_timeout`.
    ///
    /// # Blocking
    ///
    /// None, or one round trip if another process has just handed the lock on. Such a lock has a
    /// lease of 2 s at first, and a longer `slack` extends the lease at once.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the lock is lost,
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if it is held but may end within `slack`,
    /// [`NotHeld`](ErrorKind::NotHeld) if [`Lock::unlock`] has released it,
    /// [`Forked`](ErrorKind::Forked) in a forked child.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        each!(&self.held, held => held.check(slack))
    }

    /// Registers `callback`, which the client calls once if the lock is lost before it is released:
    /// when the lease ends, when the server answers a renewal with "not yours", or when this client
    /// calls `force_unlock`. If the lock is lost already, the client calls it soon. If
    /// [`unlock`](Self::unlock) finds the loss, it only returns the error.
    ///
    /// Once a lock has been held for 100 ms, the server notifies the client of changes of its key
    /// ([`client_tracking`](crate::ClientBuilder::client_tracking)). So the client calls `callback`
    /// some milliseconds after somebody has deleted the key, even if the lease is fixed.
    ///
    /// Callbacks run on a thread of the client, one after the other, so each should be short.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        each!(&self.held, held => held.on_lost(Box::new(callback)));
    }

    /// Releases the lock, or one level of it.
    ///
    /// # Errors
    ///
    /// - [`LeaseLost`](ErrorKind::LeaseLost) if the lock was lost before. Its present holder keeps
    ///   it.
    /// - [`NotHeld`](ErrorKind::NotHeld) if all levels were released before, by [`Lock::unlock`].
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses, is away, or does not
    ///   answer in time. The caller no longer holds the lock. The client repeats the release in the
    ///   background, so others get the lock when its lease ends or sooner. Also if the connection
    ///   broke and the server, asked once more, no longer knows the hold: it was most likely
    ///   released, but it may have been lost before.
    /// - [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// One round trip. None for an inner level, or if a waiting thread of this process gets the
    /// lock.
    pub fn unlock(self) -> Result<(), Error> {
        each!(self.held, held => held.unlock())
    }

    /// Ends the guard and leaves the lock taken until its lease ends, even if this client, its
    /// process or its machine ends. To run a job at intervals, see
    /// [`try_once_per`](Lock::try_once_per).
    ///
    /// The thread no longer holds the lock, and nothing renews it. So the lock ends with the rest
    /// of its lease: that of [`with_lease`](Lock::with_lease), or else two thirds of
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) or more. The end of the client
    /// does not release it, but [`force_unlock`](Lock::force_unlock) does. Of a quorum, at least a
    /// majority is left taken, and the other parts are released.
    ///
    /// If the thread has several levels, this ends one. The other levels hold the lock as before,
    /// but the end of the last level does not release the lock before the end of the present lease.
    /// The same is true of readers that share a hold in this process.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost), [`NotHeld`](ErrorKind::NotHeld) and
    /// [`Forked`](ErrorKind::Forked) as for [`unlock`](Self::unlock): the lock is not left taken.
    /// [Server trouble](ErrorKind#server-trouble) if another process had just handed the lock on
    /// and the server does not extend its lease: the lock is not left taken, and the client
    /// releases it in the background. (If the server has extended the lease and its reply was lost,
    /// the client repeats the release for as long as that lease lasts. The lock stays taken only if
    /// the client ends before that.) After an error no lock of a [`MultiLock`](crate::MultiLock) is
    /// left taken.
    ///
    /// # Blocking
    ///
    /// None, or one round trip if another process has just handed the lock on.
    pub fn leave_to_expire(self) -> Result<(), Error> {
        each!(self.held, held => held.leave_to_expire())
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        each!(&self.held, held => held.name())
    }

    /// Returns the owner under which the server knows the hold: the client's
    /// [`id`](crate::Client::id), a colon and a number. Log it beside what the lock guards. It is
    /// what [`Client::status`](crate::Client::status), the command `redlatch who` and Redisson
    /// show, and what [`release_for`](crate::Client::release_for) ends. No I/O.
    ///
    /// The levels of one thread have the same owner, and so have the threads of a process that pass
    /// the lock to each other, or read together. After a wait on a
    /// [`Condition`](crate::Condition), a guard has another owner. `None` for several locks that
    /// are held together, which have one each: [`owners`](LockGuard::owners).
    #[must_use]
    pub fn owner(&self) -> Option<String> {
        self.one().map(HeldLock::owner)
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
                core.watchdog.log_error(error);
                Ok(result)
            }
            Ok(()) => Ok(result),
        }
    }

    /// The lock that it holds, if that is a lock of one name.
    pub(crate) fn one(&self) -> Option<&HeldLock> {
        match &self.held {
            HeldLocks::One(held) => Some(held),
            HeldLocks::Several(_) => None,
        }
    }

    /// The locks that it holds together, if there are several.
    pub(super) fn several(&self) -> Option<&GuardLevels> {
        match &self.held {
            HeldLocks::Several(levels) => Some(levels),
            HeldLocks::One(_) => None,
        }
    }
}

impl<L: ?Sized, O: GuardOwner> LockGuard<L, O> {
    /// Takes the lock. `NotTaken`: the wait ended first.
    #[inline]
    pub(super) fn try_take<K: Lock + ?Sized>(
        lock: &K,
        wait: Wait<'_>,
    ) -> Result<Attempt<Self>, Error> {
        let Some(mut held) = Lock::acquire(lock, &O::thread(), wait)? else { return Ok(NotTaken) };
        each!(&mut held, held => held.leave_beneath());
        Ok(Taken(Self::new(held)))
    }

    /// Takes the lock. Only an error ends the wait first.
    #[inline]
    pub(super) fn take<K: Lock + ?Sized>(lock: &K, wait: Wait<'_>) -> Result<Self, Error> {
        Self::try_take(lock, wait)?
            .into_option()
            .ok_or_else(|| Error::shut_down(&lock.name().into()))
    }
}

impl<L: ?Sized> LockGuard<L> {
    /// Ends the guard and keeps the lock. [`Lock::unlock`] on the same thread or the end of the
    /// client releases it; if the thread ends, the lock ends with its lease. For a lock that must
    /// outlast the client, see [`leave_to_expire`](Self::leave_to_expire).
    pub fn forget(self) {
        each!(self.held, held => held.forget());
    }
}

impl<L: Lock, O> From<LockGuard<L, O>> for LockGuard<dyn Lock, O> {
    fn from(guard: LockGuard<L, O>) -> Self {
        Self::new(guard.held)
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
