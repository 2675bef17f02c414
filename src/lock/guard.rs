//! The guard of a held lock.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

use super::multi::GuardLevels;
use super::{HeldLock, Lock};
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::HoldState;
use crate::owner::Owner;

/// The guard of a held lock. Dropping the guard releases the lock.
///
/// A guard belongs to the thread that took the lock, so it cannot be sent to another thread (it is
/// not `Send`). Other threads may ask the guard whether the lock is still held (it is `Sync`). A
/// guard keeps its client alive. [`OwnedLockGuard`] belongs to no thread. The type parameter `O`
/// distinguishes the two kinds of guard. Programs need not name `O`.
///
/// A `LockGuard<FencedLock>` ([`FencedLockGuard`](crate::FencedLockGuard)) also has a token. A
/// `LockGuard<MultiLock>` ([`MultiLockGuard`](crate::MultiLockGuard)) has the tokens and names of
/// its parts. `into()` converts a guard of either type to a plain `LockGuard`.
///
/// Dropping the guard sends the release and does not wait for the server. If the release fails, the
/// client logs the error and tries again in the background. [`unlock`](Self::unlock) waits for the
/// server, and returns the error. If another process had handed the lock to this process, the next
/// call over the same connection first waits for the reply to the release. So the server hands the
/// lock to the next process before it runs that call.
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
///                 // Is the lock certainly held for as long as this write takes?
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

/// A guard that belongs to no thread, for thread pools and async runtimes. The guard can be sent to
/// another thread and dropped there. [`Lock::lock_owned`] returns such a guard.
///
/// A thread that has an owned guard is not the lock's holder. `hold_count` does not count the
/// guard, and `Lock::unlock` does not release it. A call of `lock()` or `lock_owned()` on any
/// thread waits until the guard is dropped. **So a thread that has this guard and calls `lock()`
/// waits for itself.** If no other thread drops the guard, the thread waits for ever.
///
/// The watchdog renews the lease for as long as the guard lives. A leaked guard
/// ([`std::mem::forget`]) keeps the lock until [`Client::shutdown`](crate::Client::shutdown), but
/// at most for [`max_hold`](crate::ClientBuilder::max_hold).
///
/// Dropping the guard only sends the release. If the guard is its client's last handle, the drop
/// also ends the client, which may take up to
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
/// In an async program, take the lock in `spawn_blocking`: see the [guide](crate::guide#tokio).
pub type OwnedLockGuard<L = dyn Lock> = LockGuard<L, OfGuard>;

/// The guard belongs to the thread that took the lock.
#[derive(Debug)]
pub struct OfThread(PhantomData<dyn GuardStaysWithItsThread>);

/// The compiler's error shows this name if a program sends a guard to another thread. A `dyn` of
/// this trait implements only the traits named here, so the `dyn` is not `Send`. No type implements
/// this trait.
trait GuardStaysWithItsThread: Sync + Unpin + UnwindSafe + RefUnwindSafe {}

/// The guard belongs to no thread.
#[derive(Debug)]
pub struct OfGuard(());

/// Chooses the thread to which a guard's hold belongs.
pub trait GuardOwner {
    fn thread() -> Arc<Thread>;
}

impl GuardOwner for OfThread {
    fn thread() -> Arc<Thread> {
        Thread::current()
    }
}

/// An owned guard takes the lock under a placeholder `Thread`, which equals no real thread. So no
/// thread can add a level to the hold, and the client never takes the holder for dead.
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

/// Evaluates an expression for one held lock or for several.
macro_rules! each {
    ($held:expr, $it:ident => $what:expr) => {
        match $held {
            HeldLocks::One($it) => $what,
            HeldLocks::Several($it) => $what,
        }
    };
}

impl HeldLocks {
    pub(super) fn one(self) -> Option<HeldLock> {
        match self {
            Self::One(held) => Some(held),
            Self::Several(_) => None,
        }
    }

    #[inline]
    pub(super) fn leave_minimum_level(&mut self) {
        each!(self, held => held.leave_minimum_level());
    }
}

impl<L: ?Sized, O> LockGuard<L, O> {
    #[inline]
    pub(super) fn new(held: HeldLocks) -> Self {
        Self { held, _of: PhantomData, _owner: PhantomData }
    }

    /// Returns whether the lock is held: it was not released or lost, and the last lease that the
    /// server confirmed has not ended. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        each!(&self.held, held => held.is_held())
    }

    /// Returns the state of the hold, as far as this process knows it. No I/O.
    #[must_use]
    pub fn state(&self) -> HoldState {
        each!(&self.held, held => held.state())
    }

    /// Returns how long the lock is certainly held even if no further renewal succeeds. Returns
    /// zero if the lock is lost. If another process handed the lock to this process, the time is
    /// less than 2 s at first: see [`check`](Self::check). No I/O.
    ///
    /// For a [`ReadLock`](crate::ReadLock) with a fixed lease, this is the remaining time of the
    /// guard's own lease. Other readers of this process may share the hold with a longer lease, but
    /// they may release it at any moment. Until then, [`is_held`](Self::is_held) returns true even
    /// after this guard's own lease has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        each!(&self.held, held => held.remaining())
    }

    /// Returns an error unless the lock is certainly held for `slack` from now. Call this before
    /// each step that needs the lock. The step must take no longer than `slack`.
    ///
    /// The watchdog renews a lease when a third of it has passed. While renewals succeed, a little
    /// less than two thirds of `watchdog_timeout` (20 s by default) remain at any time. Use a
    /// `slack` of at most half of `watchdog_timeout`.
    ///
    /// # Blocking
    ///
    /// Does not block, except for one round trip if another process has just handed the lock to
    /// this process. The lease is then 2 s at first, and a call with a longer `slack` extends the
    /// lease at once.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost) if the lock is lost,
    /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) if the lock is held but may end within `slack`,
    /// [`NotHeld`](ErrorKind::NotHeld) if [`Lock::unlock`] has released it,
    /// [`Forked`](ErrorKind::Forked) in a forked child.
    pub fn check(&self, slack: Duration) -> Result<(), Error> {
        each!(&self.held, held => held.check(slack))
    }

    /// Registers `callback`. The client calls `callback` once if the lock is lost before its
    /// release: when the lease ends, when a renewal finds that the server no longer has the hold,
    /// or when this client calls `force_unlock`. If the lock is already lost, the client calls
    /// `callback` soon. If [`unlock`](Self::unlock) detects the loss, it returns an error, and
    /// `callback` is not called.
    ///
    /// When a lock has been held for 100 ms, the client asks the server to report changes of the
    /// lock's key ([`client_tracking`](crate::ClientBuilder::client_tracking)). From then on, the
    /// client calls `callback` some milliseconds after the key is deleted, even if the lease is
    /// fixed.
    ///
    /// Callbacks run on a thread of the client, one after the other, so a callback should be short.
    pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        each!(&self.held, held => held.on_lost(Box::new(callback)));
    }

    /// Returns whether others wait for the lock, as far as this process knows: threads of this
    /// process, or other processes. No I/O.
    ///
    /// A waiting thread of this process is noticed at once. If the handle is
    /// [`with_wanted`](Lock::with_wanted) or the guard has an `on_wanted` callback, the client
    /// notices other processes as [`on_wanted`](Self::on_wanted) describes. Otherwise the client
    /// notices only processes that already waited when the lock was granted. If a waiter of another
    /// process gives up, the method returns `false` after at most a third of the lease.
    ///
    /// The server does not report to which process an entry in a fair lock's queue belongs.
    /// Therefore, for a [`FairLock`](crate::FairLock) whose handle is `with_wanted` or whose guard
    /// has a callback:
    ///
    /// - If a waiting thread of this process gives up, the method may return `true` for another
    ///   third of the lease.
    /// - If a thread of this process passed the lock to the calling thread, the calling thread's
    ///   entry stays in the queue until the release. Because of this entry, the method may return
    ///   `true` although nobody waits, and the client may call an `on_wanted` callback. Until
    ///   then, the client gets no message when a waiter of another process comes. It notices such a
    ///   waiter only at its next renewal.
    ///
    /// The server's grant of a fair lock does not say whether other processes wait.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        each!(&self.held, held => held.is_wanted())
    }

    /// Registers `callback`. The client calls `callback` each time that the lock gets its first
    /// waiter, or gets a waiter again after all waiters have left. The holder may then save its
    /// state and leave early. If others already wait, the client calls `callback` soon.
    ///
    /// - If the handle is [`with_wanted`](Lock::with_wanted) and the lock has been held for 100 ms,
    ///   the client calls `callback` some milliseconds after another process or thread begins to
    ///   wait. If the waiter's message is lost, the client calls `callback` at the next renewal.
    /// - For any other handle, the client calls `callback` within a third of the lease, because the
    ///   answer to each renewal says whether others wait. The same delay applies if another thread
    ///   of this process took the lock through such a handle and passed it to the calling thread.
    ///   If the lease is fixed, the client asks the server at each third of the lease.
    /// - Redisson's clients send no message, so the client notices them within a third of the
    ///   lease, even if the handle is `with_wanted`.
    /// - That a waiter of another process has given up is also noticed within a third of the lease.
    ///   If another waiter comes before that, the client does not call `callback` again.
    /// - A waiting thread of this process is noticed at once. The exception is a writer that waits
    ///   for readers of its own process: it is noticed as a waiter of another process.
    /// - If a thread of this process passed a fair lock to the calling thread, the client may call
    ///   `callback` although nobody waits: see [`is_wanted`](Self::is_wanted).
    /// - After a wait on a [`Condition`](crate::Condition) the guard has a new hold. If others wait
    ///   for the lock, the client calls `callback` again.
    ///
    /// Callbacks run on a thread of the client, one after the other. `callback` may block, unlock
    /// the lock or panic, but meanwhile all other callbacks must wait, including those of
    /// [`on_lost`](Self::on_lost). The client does not call `callback` after the guard has released
    /// the lock. If the guard holds several locks, the client calls `callback` for each of them.
    ///
    /// ```no_run
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    ///
    /// # fn upload(_: usize) {}
    /// fn work(lock: &redlatch::ReentrantLock) -> Result<(), redlatch::Error> {
    ///     let guard = lock.with_wanted().lock()?;
    ///     let (sender, wanted) = mpsc::channel();
    ///     guard.on_wanted(move || {
    ///         let _ = sender.send(());
    ///     });
    ///     for part in 0.. {
    ///         upload(part);
    ///         if wanted.try_recv().is_ok() {
    ///             break; // Another process goes on with the next part.
    ///         }
    ///     }
    ///     guard.unlock()
    /// }
    /// ```
    pub fn on_wanted(&self, callback: impl Fn() + Send + Sync + 'static) {
        each!(&self.held, held => held.on_wanted(Arc::new(callback)));
    }

    /// Extends the remaining time of a [fixed lease](Lock::with_lease) to at least `lease`, counted
    /// from the call. The call never shortens a lease. A job can use a short lease, and extend the
    /// lease as long as the job makes progress. [`remaining`](Self::remaining) then returns how
    /// long the lock is certainly held.
    ///
    /// A lease that the watchdog renews needs no extension, and cannot be extended.
    /// [`max_hold`](crate::ClientBuilder::max_hold) limits renewals, but not extensions. After a
    /// wait on a [`Condition`](crate::Condition), the lock has its original lease again, without
    /// the extension. For a [`MultiLock`](crate::MultiLock), all parts are extended. For a quorum,
    /// at least a majority is extended.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(lock: &redlatch::ReentrantLock) -> Result<(), redlatch::Error> {
    /// let guard = lock.with_lease(Duration::from_secs(10)).lock_owned()?;
    /// for part in 0..100 {
    ///     guard.extend(Duration::from_secs(10))?; // if a part hangs, the lock ends 10 s later
    ///     println!("part {part}");
    /// }
    /// guard.unlock()
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`LeaseLost`](ErrorKind::LeaseLost) if the lock is lost: the call does not take the lock
    ///   again. [`NotHeld`](ErrorKind::NotHeld) if [`Lock::unlock`] has released it.
    /// - [`Config`](ErrorKind::Config) if the watchdog renews the lease, or if `lease` is not from
    ///   1 ms to 10¹³ ms: nothing was changed.
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    ///   unreachable, or does not answer in time. The lock is held until the end of its earlier
    ///   lease, and [`remaining`](Self::remaining) returns this time. If [the outcome is
    ///   unknown](Error::outcome_unknown), the server may keep the lock for the longer lease, until
    ///   it is released. The call may be repeated.
    /// - [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// After an error some locks of a [`MultiLock`](crate::MultiLock) may have the longer lease.
    ///
    /// # Blocking
    ///
    /// One round trip. No round trip if the remaining lease is already long enough.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        each!(&self.held, held => held.extend(lease))
    }

    /// Releases the lock. If the thread has several levels, releases this guard's level.
    ///
    /// # Errors
    ///
    /// - [`LeaseLost`](ErrorKind::LeaseLost) if the lock was lost before this call. The call does
    ///   not take the lock from its present holder.
    /// - [`NotHeld`](ErrorKind::NotHeld) if [`Lock::unlock`] has already released all levels.
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    ///   unreachable, or does not answer in time. The caller no longer holds the lock. The client
    ///   repeats the release in the background, so others get the lock when its lease ends, or
    ///   sooner. The call also returns this error if the connection broke, the client sent the
    ///   release again, and the server then had no such hold. In this last case, the first request
    ///   most likely released the hold, but the hold may also have been lost before.
    /// - [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// One round trip. No round trip if other levels remain, or a waiting thread of this process
    /// gets the lock.
    pub fn unlock(self) -> Result<(), Error> {
        each!(self.held, held => held.unlock())
    }

    /// Ends the guard and leaves the lock taken until its lease ends, even if the client, the
    /// process or the machine stops. To run a job at intervals, see
    /// [`try_once_per`](Lock::try_once_per).
    ///
    /// After this call, the thread no longer holds the lock and the client no longer renews it. The
    /// lock is free when its lease ends. A [fixed](Lock::with_lease) lease ends at its set time. A
    /// renewed lease lasts for at least another two thirds of
    /// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout). The end of the client does not
    /// release the lock, but [`force_unlock`](Lock::force_unlock) does. For a quorum, at least a
    /// majority of its parts stays taken, and the other parts are released.
    ///
    /// If the thread has several levels, the call ends one level, and the other levels still hold
    /// the lock. Even if the thread then releases its last level, the lock stays taken until the
    /// present lease ends. If readers of this process share a hold, the lock also stays taken after
    /// the last reader has released it.
    ///
    /// # Errors
    ///
    /// [`LeaseLost`](ErrorKind::LeaseLost), [`NotHeld`](ErrorKind::NotHeld) and
    /// [`Forked`](ErrorKind::Forked) as for [`unlock`](Self::unlock): the lock is not left taken.
    /// [Server trouble](ErrorKind#server-trouble) if another process had just handed the lock to
    /// this process and the server did not extend the lease: the lock is not left taken, and the
    /// client releases it in the background. (If the server extended the lease and the reply was
    /// lost, the client repeats the release for as long as the lease lasts. The lock stays taken
    /// only if the client ends before the release succeeds.) After an error, no part of a
    /// [`MultiLock`](crate::MultiLock) is left taken.
    ///
    /// # Blocking
    ///
    /// Does not block, except for one round trip if another process has just handed the lock to
    /// this process.
    pub fn leave_to_expire(self) -> Result<(), Error> {
        each!(self.held, held => held.leave_to_expire())
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        each!(&self.held, held => held.name())
    }

    /// Returns the owner under which the server stores the hold: the client's
    /// [`id`](crate::Client::id), a colon and a number. Log this owner beside the data that the
    /// lock guards. [`Client::status`](crate::Client::status), `redlatch who` and Redisson show the
    /// owner. [`Client::release_owner`](crate::Client::release_owner) takes the lock from this
    /// owner. No I/O.
    ///
    /// All levels of a thread have the same owner. If threads of one process pass the lock to each
    /// other, or read together, they also have the same owner. After a wait on a
    /// [`Condition`](crate::Condition), a guard has another owner. Returns `None` for the guard of
    /// several locks, because each lock has its own owner: see [`owners`](LockGuard::owners).
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        self.one().map(HeldLock::owner)
    }

    /// Runs `work`, and then releases the lock: see [`Lock::with`].
    pub(super) fn release_after<R, E: From<Error>>(
        self,
        work: impl FnOnce(&Self) -> Result<R, E>,
    ) -> Result<R, E> {
        let result = work(&self)?;
        let core = each!(&self.held, held => Arc::clone(held.core()));
        match self.unlock() {
            // In a forked child, the lock still belongs to the parent, and the child must not write
            // to the log.
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

    pub(super) fn into_held(self) -> HeldLocks {
        self.held
    }

    pub(crate) fn one(&self) -> Option<&HeldLock> {
        match &self.held {
            HeldLocks::One(held) => Some(held),
            HeldLocks::Several(_) => None,
        }
    }

    pub(super) fn several(&self) -> Option<&GuardLevels> {
        match &self.held {
            HeldLocks::Several(levels) => Some(levels),
            HeldLocks::One(_) => None,
        }
    }
}

impl<L: ?Sized> LockGuard<L> {
    /// Ends the guard without releasing the lock. [`Lock::unlock`] on the same thread, or the end
    /// of the client, releases the lock. If the thread ends first, the lock ends with its lease.
    /// For a lock that must outlast the client, see [`leave_to_expire`](Self::leave_to_expire).
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
