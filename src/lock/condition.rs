//! Conditions of a lock: java.util.concurrent's `Condition`, which Redisson does not have.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::{CancelToken, was_cut};

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{HoldState, Leaseholder, Tenancy};
use crate::lock::fair::FairLock;
use crate::lock::fenced::FencedLock;
use crate::lock::read_write::WriteLock;
use crate::lock::reentrant::ReentrantLock;
use crate::lock::{HeldLock, HeldLocks, Lock, LockGuard, Part, Variant};
use crate::scripts::condition::ConditionScripts;
use crate::scripts::{ConditionKeys, Trouble};
use crate::site::Site;
use crate::waiting::{Wait, Waited};

pub(crate) use self::entry::pass_on;
use self::entry::{ConditionEntry, Ended};

mod entry;

/// A condition of a lock. Threads wait on a condition until another thread, on any machine, changes
/// the shared data and notifies them. A `Condition` corresponds to `Condition` of
/// java.util.concurrent, across processes. [`ReentrantLock::condition`] returns a `Condition`.
/// [`FairLock`], [`FencedLock`] and [`WriteLock`] have the same method. (A read lock has no
/// conditions, as in Java.)
///
/// A wait releases the lock, sleeps until the thread is notified, and takes the lock again before
/// it returns. A notification goes to the thread that has waited longest. If no thread waits, a
/// notification has no effect. A thread must hold the lock when it waits and when it notifies.
///
/// All clones, and all conditions of the same lock and name, are one condition. A lock may have
/// many conditions. The locks `x` and `{x}` have different conditions.
///
/// A bounded buffer, in a Redis list (or any store that all processes can see):
///
/// ```no_run
/// use redlatch::{Client, Condition, Error, ReentrantLock};
///
/// struct Buffer {
///     lock: ReentrantLock,
///     not_empty: Condition,
///     not_full: Condition,
/// }
/// # impl Buffer {
/// #     fn len(&self) -> Result<u64, Error> { Ok(0) }
/// #     fn push_back(&self, _: u64) -> Result<(), Error> { Ok(()) }
/// #     fn pop_front(&self) -> Result<u64, Error> { Ok(0) }
/// # }
///
/// impl Buffer {
///     fn new(client: &Client) -> Self {
///         let lock = client.reentrant_lock("buffer");
///         let condition = |name| lock.condition(name);
///         let [not_empty, not_full] = ["not_empty", "not_full"].map(condition);
///         Self { lock, not_empty, not_full }
///     }
///
///     fn put(&self, item: u64) -> Result<(), Error> {
///         let guard = self.lock.lock()?;
///         self.not_full.try_wait_while(&guard, || Ok::<_, Error>(self.len()? == 10))?;
///         self.not_empty.notify_one()?; // before the change: see "Deaths"
///         self.push_back(item)?;
///         guard.unlock()
///     }
///
///     fn take(&self) -> Result<u64, Error> {
///         let guard = self.lock.lock()?;
///         self.not_empty.try_wait_while(&guard, || Ok::<_, Error>(self.len()? == 0))?;
///         self.not_full.notify_one()?;
///         let item = self.pop_front()?;
///         guard.unlock()?;
///         Ok(item)
///     }
/// }
/// ```
///
/// # The guard during a wait
///
/// A wait releases all levels of the lock, including those of the thread's other guards. After the
/// wait, the thread has all these levels again, in a new hold. During the wait, the state of the
/// guards is "released". Callbacks that were given to [`on_lost`](LockGuard::on_lost) stay
/// registered, and are not called for the wait itself. A fixed lease begins anew after the wait. If
/// the levels have different leases, the longest lease applies. The guards of a [`FencedLock`] have
/// the higher token of the new hold.
///
/// # The difference to `std::sync::Condvar`
///
/// The lock is on another machine, so a wait may return **without the lock**. If a wait fails after
/// the release, with any error but [`Cancelled`](ErrorKind::Cancelled), the thread holds nothing.
/// The guards report the loss, and dropping them does nothing. Check the guard after a wait, as
/// after any other pause. In rare cases a wait returns without a notification, so wait in a loop or
/// with [`wait_while`](Self::wait_while).
///
/// # Deaths
///
/// If the process of a notified waiter dies before the waiter has released the lock again, the next
/// waiter gets the notification within about a second. If the process is only paused, the next
/// waiter gets the notification within three seconds. (If the notified waiter had the lock, the
/// next waiter waits until the lease of that lock ends.)
///
/// **Notify before you make the change** for which other threads wait. Threads that use the lock
/// cannot see the change before you release the lock. If your process dies between the notification
/// and the change, a waiter wakes up without a change. If your process dies between the change and
/// the notification, the waiters miss the change.
///
/// # In Redis
///
/// The key `redlatch_condition:{lock}:name:length` contains the waiters, and the key
/// `redlatch_notified:{lock}:name:length` contains the notified waiters. The two keys expire a
/// minute after the last request of a waiter. The server's user needs rights to these keys
/// ([table](crate::guide::operations#access-rights)). Redisson has no conditions, but Redisson's
/// clients may hold the lock during a wait.
#[derive(Clone)]
pub struct Condition {
    lock: Arc<dyn Part>,
    name: Arc<str>,
    keys: Arc<ConditionKeys>,
}

impl ReentrantLock {
    /// Returns the condition with this name. Threads that hold the lock can wait on the condition.
    ///
    /// No I/O. If the name is empty, each call on the condition returns an error.
    #[must_use]
    pub fn condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl FairLock {
    /// Returns the condition with this name. Threads that hold the lock can wait on the condition.
    ///
    /// No I/O. If the name is empty, each call on the condition returns an error. A notified waiter
    /// joins the end of the lock's queue.
    #[must_use]
    pub fn condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl FencedLock {
    /// Returns the condition with this name. Threads that hold the lock can wait on the condition.
    ///
    /// No I/O. If the name is empty, each call on the condition returns an error. After a wait the
    /// guards have a higher [token](LockGuard::token).
    #[must_use]
    pub fn condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl WriteLock {
    /// Returns the condition with this name. Threads that hold the lock can wait on the condition.
    ///
    /// No I/O. If the name is empty, each call on the condition returns an error. A wait does not
    /// release the read lock. If a thread also holds the read lock, its wait fails with
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock), and the thread still holds both locks.
    #[must_use]
    pub fn condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl Condition {
    /// Releases the lock, sleeps until the thread is notified, and takes the lock again.
    ///
    /// # Errors
    ///
    /// If the call fails before the release, nothing changes:
    ///
    /// - [`NotHeld`](ErrorKind::NotHeld) if the calling thread does not hold the lock, or `guard`
    ///   is the guard of another lock. [`LeaseLost`](ErrorKind::LeaseLost) if the lock was lost.
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    ///   unreachable, or does not answer in time. [`Protocol`](ErrorKind::Protocol) if the server's
    ///   answer makes no sense.
    /// - [`Config`](ErrorKind::Config) if the condition's name is empty,
    ///   [`Forked`](ErrorKind::Forked) in a forked child, [`ShutDown`](ErrorKind::ShutDown) after
    ///   [`Client::shutdown`].
    ///
    /// The call may also fail after the release. **After such an error the thread holds no level of
    /// the lock**, and the error's message says so. These errors are server trouble and `Protocol`
    /// as above, `ShutDown` if the client ends, and [`LeaseLost`](ErrorKind::LeaseLost) if the lock
    /// was lost just as the thread took it again. If the thread had been notified, the next waiter
    /// gets the notification.
    ///
    /// All methods that wait fail in these ways.
    ///
    /// # Blocking
    ///
    /// Blocks for one round trip before the release. (The first wait of a client also opens a
    /// connection.) After the release, blocks until the thread is notified, and until it has the
    /// lock again, as [`Lock::lock`](crate::Lock::lock) does. In case a message is lost, the
    /// sleeping thread asks the server about once a second whether it was notified.
    pub fn wait(&self, guard: &LockGuard<impl Lock + ?Sized>) -> Result<(), Error> {
        self.wait_within(guard, Wait::FOREVER).map(drop)
    }

    /// Releases the lock, sleeps until the thread is notified or `wait` has passed, and takes the
    /// lock again. Returns whether the thread was notified in time. In both cases the thread holds
    /// the lock again. If `wait` is zero, the call does not release the lock.
    ///
    /// # Errors
    ///
    /// The errors of [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// The sleep ends after at most `wait`. After the sleep, the call asks the server whether the
    /// thread was notified, and blocks until the thread has the lock again.
    pub fn wait_for(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: Duration,
    ) -> Result<Waited, Error> {
        self.wait_within(guard, Wait::at_most(wait))
    }

    /// Releases the lock, sleeps until the thread is notified or `token` is cancelled, and takes
    /// the lock again.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if `token` was cancelled before the thread was notified:
    /// **the thread holds the lock again**, with all levels, as in Java. The call also returns the
    /// errors of [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Blocks until the thread has the lock again. The cancellation ends only the sleep.
    pub fn wait_cancellable(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        token: &CancelToken,
    ) -> Result<(), Error> {
        self.wait_within(guard, Wait::from(token)).map(drop)
    }

    /// Releases the lock, sleeps until the thread is notified or `wait` ends, and takes the lock
    /// again. Returns whether the thread was notified in time. All other waits call this method.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled: **the thread holds
    /// the lock again**. The call also returns the errors of [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Blocks as [`wait_for`](Self::wait_for) and [`wait_cancellable`](Self::wait_cancellable) do.
    /// If the deadline has passed, the call does not release the lock.
    pub fn wait_within<'a>(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Waited, Error> {
        let wait = wait.into();
        let (site, tenancy) = self.check_guard(guard)?;
        if let Err(error) = wait.check(&site.core, &site.name) {
            return Err(error.now("the lock is held as before"));
        }
        if wait.is_over() {
            return Ok(Waited::TimedOut);
        }
        let still_held = |error: Error| error.now("the lock is held as before");
        let mut entry = ConditionEntry::new(site, &self.keys);
        if !entry.listen(&wait).map_err(still_held)? {
            return Ok(Waited::TimedOut);
        }
        // The server must have the entry before the thread releases the lock. So the client does
        // not send the request for the entry and the release in one packet: the two replies might
        // come over two connections, and the client would not know whether the entry exists. Also,
        // if the server refuses the entry, the thread must still hold the lock.
        let enqueued = {
            let _limited = wait.limits(&site.core);
            let enqueued = entry.enqueue(&tenancy.hold().owner);
            if was_cut() {
                // The wait ended before the thread released the lock. The request for the entry may
                // have reached the server, so the drop of the entry undoes this request.
                wait.check_cancelled(&site.name).map_err(still_held)?;
                return Ok(Waited::TimedOut);
            }
            enqueued
        };
        match enqueued {
            Ok(true) => {}
            Ok(false) => {
                let reason = tenancy.hold().why_gone();
                site.lose_hold(&tenancy.hold(), reason);
                return Err(site.lost_error(tenancy, reason));
            }
            Err(trouble) => return Err(still_held(trouble.into_error().of(&site.name))),
        }
        // From here on the thread can be notified: its entry exists. No other thread can notify
        // before this thread releases the lock.
        let left = site.leave_to_wait(tenancy)?;
        let ended = entry.sleep(&wait).map_err(nothing_held)?;
        let notified = (ended == Ended::Notified).then(|| entry.into_notified());
        // No limit and no cancellation ends this wait, because the caller must get its lock back.
        let lock = self.lock.varied_part(Variant::On(left.terms()));
        let again = lock.acquire(&tenancy.thread, Wait::FOREVER);
        let again = again.map(|held| held.and_then(HeldLocks::one).map(HeldLock::into_tenancy));
        let again = again.and_then(|again| again.ok_or_else(|| Error::shut_down(&site.name)));
        let again = again.map_err(nothing_held)?;
        if let Some(notified) = &notified {
            notified.set_hold(&again.hold());
        }
        site.come_back(left, &again, notified.map(|notified| Box::new(notified) as _));
        if let HoldState::Lost(reason) = tenancy.state() {
            return Err(nothing_held(site.lost_error(tenancy, reason)));
        }
        match ended {
            Ended::Notified => Ok(Waited::InTime(())),
            Ended::Over => Ok(Waited::TimedOut),
            Ended::Cancelled => {
                let message = "waiting was cancelled; the lock is held again".to_owned();
                Err(Error::new(ErrorKind::Cancelled, message).of(&site.name))
            }
        }
    }

    /// Waits while `condition` returns true. Calls `condition` with the lock held, before the first
    /// wait and after each wait.
    ///
    /// # Errors
    ///
    /// The errors of [`wait`](Self::wait), in any of the waits.
    ///
    /// # Blocking
    ///
    /// Each wait blocks as [`wait`](Self::wait) does.
    pub fn wait_while(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        self.try_wait_while(guard, || Ok(condition()))
    }

    /// Waits while `condition` returns true, for as long as `wait` allows. Returns
    /// [`TimedOut`](Waited::TimedOut) if `condition` still returns true at the end of `wait`.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_within`](Self::wait_within).
    ///
    /// # Blocking
    ///
    /// `wait` limits the total time of all sleeps.
    pub fn wait_while_within<'a>(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: impl Into<Wait<'a>>,
        mut condition: impl FnMut() -> bool,
    ) -> Result<Waited, Error> {
        self.try_wait_while_within(guard, wait, || Ok(condition()))
    }

    /// Waits while `condition` returns true. `condition` may fail, for example because it reads a
    /// database.
    ///
    /// # Errors
    ///
    /// If `condition` returns an error, the call returns this error, and the thread still holds the
    /// lock. The other errors are those of [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Each wait blocks as [`wait`](Self::wait) does.
    pub fn try_wait_while<E: From<Error>>(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        mut condition: impl FnMut() -> Result<bool, E>,
    ) -> Result<(), E> {
        while condition()? {
            self.wait(guard)?;
        }
        Ok(())
    }

    /// Waits while `condition` returns true, for as long as `wait` allows. `condition` may fail.
    /// Returns [`TimedOut`](Waited::TimedOut) if `condition` still returns true at the end of
    /// `wait`.
    ///
    /// # Errors
    ///
    /// If `condition` returns an error, the call returns this error, and the thread still holds the
    /// lock. The other errors are those of [`wait_within`](Self::wait_within).
    ///
    /// # Blocking
    ///
    /// `wait` limits the total time of all sleeps.
    pub fn try_wait_while_within<'a, E: From<Error>>(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: impl Into<Wait<'a>>,
        mut condition: impl FnMut() -> Result<bool, E>,
    ) -> Result<Waited, E> {
        let wait = wait.into();
        while condition()? {
            // Call `condition` once more after the end of the wait.
            if self.wait_within(guard, wait)?.timed_out() {
                return Ok(Waited::of((!condition()?).then_some(())));
            }
        }
        Ok(Waited::InTime(()))
    }

    /// Notifies the thread that has waited longest. Returns `false` if no thread waits. The
    /// notified thread's wait returns when that thread has the lock again, after the calling thread
    /// has released it.
    ///
    /// # Errors
    ///
    /// - [`NotHeld`](ErrorKind::NotHeld) if the calling thread does not hold the lock,
    ///   [`LeaseLost`](ErrorKind::LeaseLost) if the calling thread has lost the lock: no waiter was
    ///   notified. (Take the lock again, and then notify.)
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses the request, is
    ///   unreachable, or does not answer in time. If the message says that the outcome is not
    ///   known, notify again: an extra notification does no harm. [`Protocol`](ErrorKind::Protocol)
    ///   if the server's answer makes no sense.
    /// - In these cases nothing was done: [`Config`](ErrorKind::Config) if the condition's name is
    ///   empty, [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`], and
    ///   [`Forked`](ErrorKind::Forked) in a forked child.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn notify_one(&self) -> Result<bool, Error> {
        self.notify(false).map(|notified| notified > 0)
    }

    /// Notifies all waiters, and returns their number. The waits return one after the other, each
    /// when its thread has the lock again.
    ///
    /// # Errors
    ///
    /// The errors of [`notify_one`](Self::notify_one).
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn notify_all(&self) -> Result<u64, Error> {
        self.notify(true)
    }

    /// Returns the condition's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the condition's lock.
    #[must_use]
    pub fn lock_name(&self) -> &str {
        self.lock.handle().site.name.given()
    }

    fn new(lock: impl Part + 'static, name: &str) -> Self {
        let keys = ConditionKeys::new(&lock.handle().site.name, name);
        Self { lock: Arc::new(lock), name: name.into(), keys: Arc::new(keys) }
    }

    fn notify(&self, all: bool) -> Result<u64, Error> {
        self.check_usable()?;
        let handle = self.lock.handle();
        let site = &handle.site;
        let Some((tenancy, _)) = handle.tenancy()? else { return Err(site.not_held_by_thread()) };
        if !tenancy.is_held() {
            site.lose_hold(&tenancy.hold(), LostReason::LeaseExpired);
            return Err(site.lost_error(&tenancy, LostReason::LeaseExpired));
        }
        let scripts = ConditionScripts { keys: &self.keys, database: site.core.database() };
        // The number identifies one notification of this client. If the request is sent twice, the
        // script that runs the second copy finds the record of the first copy.
        let number = site.core.id.next_number();
        let notified = scripts.notify(&site.route, &site.name, &tenancy.hold().owner, number, all);
        match notified {
            Ok(Some(notified)) => Ok(notified),
            Ok(None) => {
                let reason = tenancy.hold().why_gone();
                site.lose_hold(&tenancy.hold(), reason);
                Err(site.lost_error(&tenancy, reason).now("nobody was notified"))
            }
            Err(trouble) => {
                let state = match trouble {
                    Trouble::Unknown(_) | Trouble::Forgotten(_) => {
                        "whether anybody was notified is not known: notify again, one too many does \
                         no harm"
                    }
                    Trouble::Refused(_) | Trouble::Unsent(_) => "nobody was notified",
                };
                Err(trouble.into_error().of(&site.name).now(state))
            }
        }
    }

    fn check_usable(&self) -> Result<(), Error> {
        self.lock.handle().check_usable()?;
        if self.name.is_empty() {
            return Err(Error::nameless("a condition").of(&self.lock.handle().site.name));
        }
        Ok(())
    }

    /// Checks the guard of a wait. Returns the lock's site, and the tenancy that the wait releases.
    fn check_guard<'a>(
        &self,
        guard: &'a LockGuard<impl Lock + ?Sized>,
    ) -> Result<(&'a Arc<Site>, &'a Arc<Tenancy>), Error> {
        self.check_usable()?;
        let own = &self.lock.handle().site;
        let held = guard.one().map(HeldLock::site_and_tenancy);
        let Some((site, tenancy)) = held.filter(|(site, _)| Arc::ptr_eq(site, own)) else {
            let message = "the guard is of another lock or client; nothing was changed";
            return Err(Error::new(ErrorKind::NotHeld, message.to_owned()).of(&own.name));
        };
        if !tenancy.thread.is_current() {
            return Err(site.not_held_by_thread());
        }
        guard.check(Duration::ZERO)?;
        if site.gate.reads(&tenancy.thread) {
            let message = "the calling thread also holds the read lock, which a wait does not \
                           release: release it first; both are held as before";
            return Err(Error::new(ErrorKind::WouldDeadlock, message.to_owned()).of(&own.name));
        }
        Ok((site, tenancy))
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condition")
            .field("lock", &self.lock_name())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn nothing_held(error: Error) -> Error {
    error.now("nothing is held any more, at any level")
}
