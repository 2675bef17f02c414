//! Conditions of a lock: java.util.concurrent's `Condition`, which Redisson does not have.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::{CancelToken, was_cut};

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind, LostReason};
use crate::local::{HoldState, Leaseholder, Site, Tenancy};
use crate::lock::fair::FairLock;
use crate::lock::fenced::FencedLock;
use crate::lock::read_write::WriteLock;
use crate::lock::reentrant::ReentrantLock;
use crate::lock::{HeldLock, HeldLocks, Lock, LockGuard, Part};
use crate::scripts::condition::ConditionScripts;
use crate::scripts::{ConditionKeys, Trouble};
use crate::waiting::Wait;

pub(crate) use self::entry::pass_on;
use self::entry::{ConditionEntry, Ended};

mod entry;

/// A place where threads that have a lock wait for a change, on any machine, until the thread that
/// makes the change notifies them: `Condition` of java.util.concurrent, across processes. Made by
/// [`ReentrantLock::new_condition`], and likewise by a [`FairLock`], a [`FencedLock`] and a
/// [`WriteLock`]. (Readers have none, as in Java.)
///
/// A wait leaves the lock, sleeps until it is notified, and takes the lock again before it returns.
/// Notifications go to the present waiters, the longest waiting first; a notification without a
/// waiter is lost. Both the waiter and the notifier must hold the lock.
///
/// A clone is the same condition, and so is every one of the same lock and name. A lock may have
/// many. A lock written `x` in one place and `{x}` in another has different conditions there.
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
///         let condition = |name| lock.new_condition(name);
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
/// The thread leaves all levels of the lock, including those of its other guards, and comes back
/// with all of them: the guards are valid again, in a new hold. Meanwhile they say that they are
/// released. Callbacks given to [`on_lost`](LockGuard::on_lost) stay registered; a wait itself is
/// no loss. A fixed lease counts anew from the return; with several levels the longest one counts.
/// The guards of a [`FencedLock`] have the token of the new hold, which is higher.
///
/// # The difference to `std::sync::Condvar`
///
/// The lock is on another machine, so a wait may come back **without it**: every error after the
/// lock was left, except [`Cancelled`](ErrorKind::Cancelled), means that the thread holds nothing.
/// The guards say so (released, or lost), and dropping them does nothing. Check the guard after a
/// wait, as after any other pause. A wait may return without a notification ("spurious"), so wait
/// in a loop, or with [`wait_while`](Self::wait_while). That is rare: when the server lost its
/// data, when the process was cut off from it, or when a notification was passed on that its
/// receiver could use after all.
///
/// # Deaths
///
/// A notification is used when the thread that it woke has left the lock again. If its process dies
/// before that, in its wake-up, in the queue for the lock or with the lock in its hands, the next
/// waiter is notified instead: within about a second, or three if the process did not die but
/// stands still. (That waiter then waits for the lock until the dead holder's lease ends.) The
/// other half is the notifier's: **notify before you make the change** that others wait for. They
/// cannot see it before the lock is released anyway, and a notifier that dies between the two wakes
/// a waiter in vain, but leaves none asleep.
///
/// # In Redis
///
/// Keys of this library alone: `redlatch_condition:{lock}:name:length` has the waiters, and
/// `redlatch_notified:{lock}:name:length` the notified ones. They go a minute after the last sign
/// of life. Access rights must allow them ([table](crate::guide::operations)). Redisson's clients
/// may hold the lock meanwhile; they know nothing of conditions.
#[derive(Clone)]
pub struct Condition {
    lock: Arc<dyn Part>,
    name: Arc<str>,
    keys: Arc<ConditionKeys>,
}

impl ReentrantLock {
    /// A condition of this lock, on which threads that have it wait.
    ///
    /// No I/O. Conditions of one lock and one name are the same, on all machines. An empty name is
    /// an error of the first call.
    #[must_use]
    pub fn new_condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl FairLock {
    /// A condition of this lock, on which threads that have it wait.
    ///
    /// No I/O. Conditions of one lock and one name are the same, on all machines. An empty name is
    /// an error of the first call. A notified waiter stands at the end of the lock's queue.
    #[must_use]
    pub fn new_condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl FencedLock {
    /// A condition of this lock, on which threads that have it wait.
    ///
    /// No I/O. Conditions of one lock and one name are the same, on all machines. An empty name is
    /// an error of the first call. After a wait the guards have a higher
    /// [token](LockGuard::token): the data may have changed meanwhile.
    #[must_use]
    pub fn new_condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl WriteLock {
    /// A condition of this lock, on which threads that have it wait.
    ///
    /// No I/O. Conditions of one lock and one name are the same, on all machines. An empty name is
    /// an error of the first call. A wait does not leave the read lock: a thread that holds that as
    /// well gets an error of kind [`WouldDeadlock`](ErrorKind::WouldDeadlock), and holds both as
    /// before.
    #[must_use]
    pub fn new_condition(&self, name: &str) -> Condition {
        Condition::new(self.clone(), name)
    }
}

impl Condition {
    /// Leaves the lock, sleeps until notified, and takes the lock again.
    ///
    /// # Errors
    ///
    /// Before the lock is left; then it is held as before, and nothing was changed:
    ///
    /// - [`NotHeld`](ErrorKind::NotHeld) if the calling thread does not hold the lock, or `guard`
    ///   is that of another lock. [`LeaseLost`](ErrorKind::LeaseLost) if the hold was lost: then,
    ///   of course, the thread does not hold it.
    /// - [`Redis`](ErrorKind::Redis) if the server is in trouble,
    ///   [`Protocol`](ErrorKind::Protocol) if its answer makes no sense.
    /// - [`Config`](ErrorKind::Config) if the condition's name is empty,
    ///   [`Forked`](ErrorKind::Forked) in a forked child, [`ShutDown`](ErrorKind::ShutDown) after
    ///   [`Client::shutdown`].
    ///
    /// After that, with the message that **nothing is held** any more, at no level: `Redis` and
    /// `Protocol` if the server is in trouble during the wait or when the thread takes the lock
    /// again, `ShutDown` when the client ends, [`LeaseLost`](ErrorKind::LeaseLost) if the lock was
    /// lost in the moment in which it was taken again. A notification that had come is then passed
    /// on.
    ///
    /// All verbs that wait fail in these ways.
    ///
    /// # Blocking
    ///
    /// One round trip before the lock is left (the first wait of a client opens a connection, too).
    /// Then until the thread is notified, and until it has the lock again, as
    /// [`Lock::lock`](crate::Lock::lock). While it sleeps it asks the server about once a second,
    /// in case a message was lost. There is nothing to renew meanwhile.
    pub fn wait(&self, guard: &LockGuard<impl Lock + ?Sized>) -> Result<(), Error> {
        self.wait_within(guard, Wait::FOREVER).map(drop)
    }

    /// Releases the lock, sleeps until a notify or for `wait` at most, and takes the lock again.
    /// Returns `true` if it was notified, otherwise `false`. The thread holds the lock in both
    /// cases. A wait of zero does not leave the lock.
    ///
    /// A notification that comes as the time ends either counts, `true`, or goes to another waiter.
    ///
    /// # Blocking
    ///
    /// `wait` bounds the sleep and the requests before it and within it. It does not bound the
    /// later steps: the question whether the thread was notified, and the time until it has the
    /// lock again.
    #[must_use = "`false`: nobody has notified it, and time is over"]
    pub fn wait_for(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: Duration,
    ) -> Result<bool, Error> {
        self.wait_within(guard, Wait::at_most(wait))
    }

    /// Releases the lock, sleeps until a notify or until `token` is cancelled, and takes the lock
    /// again.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled): **the lock is held again**, with all levels, as in
    /// Java. A waiter that was notified before is not cancelled. Also the errors of
    /// [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Until the thread has the lock again. The cancel ends the sleep at once, and not the time
    /// until the thread has the lock again.
    pub fn wait_cancellable(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        token: &CancelToken,
    ) -> Result<(), Error> {
        self.wait_within(guard, Wait::from(token)).map(drop)
    }

    /// Releases the lock, sleeps until a notify or for as long as `wait` allows, and takes the lock
    /// again. Returns `false` if no notify came. All other waits are short forms of this one.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled, and **the lock is
    /// held again**. Also the errors of [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// For as long as `wait` allows, as [`wait_for`](Self::wait_for) and, with a token,
    /// [`wait_cancellable`](Self::wait_cancellable) do. A deadline that has passed does not leave
    /// the lock.
    #[must_use = "`false`: nobody has notified it, and time is over"]
    pub fn wait_within<'a>(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: impl Into<Wait<'a>>,
    ) -> Result<bool, Error> {
        let wait = wait.into();
        let (site, tenancy) = self.check_guard(guard)?;
        if let Err(error) = wait.check(&site.core, &site.name) {
            return Err(error.now("the lock is held as before"));
        }
        if wait.is_over() {
            return Ok(false);
        }
        let before = |error: Error| error.now("the lock is held as before");
        let mut entry = ConditionEntry::new(site, &self.keys, &tenancy.thread);
        if !entry.listen(&wait).map_err(before)? {
            return Ok(false);
        }
        // The entry exists before the lock is left. In one packet with the release, both might be
        // answered over two connections, and then the client would not know whether the entry
        // exists. A refusal must find the lock still held.
        let stands = {
            let _limited = wait.limits(&site.core);
            let stands = entry.stand(&tenancy.hold().owner);
            if was_cut() {
                // The wait is over, and the lock was not left: the drop undoes a request that may
                // have arrived.
                wait.check_cancelled(&site.name).map_err(before)?;
                return Ok(false);
            }
            stands
        };
        match stands {
            Ok(true) => {}
            Ok(false) => {
                site.lose_hold(&tenancy.hold(), LostReason::Revoked);
                return Err(site.lost_error(tenancy, LostReason::Revoked));
            }
            Err(trouble) => return Err(before(trouble.into_error().of(&site.name))),
        }
        // From here on a notification finds the entry, and no thread can notify before this one has
        // left the lock.
        let left = site.leave_to_wait(tenancy)?;
        let ended = entry.sleep(&wait).map_err(nothing_held)?;
        let notified = (ended == Ended::Notified).then(|| entry.notified());
        // Neither time nor a cancel ends this: the caller gets back what it had.
        let lock = self.lock.with_terms(left.terms());
        let again = lock.acquire(&tenancy.thread, Wait::FOREVER);
        let again = again.map(|held| held.and_then(HeldLocks::one).map(HeldLock::into_tenancy));
        let again = again.and_then(|again| again.ok_or_else(|| Error::shut_down(&site.name)));
        let again = again.map_err(nothing_held)?;
        if let Some(notified) = &notified {
            notified.is_back(&again.hold());
        }
        site.come_back(left, &again, notified.map(|notified| Box::new(notified) as _));
        if let HoldState::Lost(reason) = tenancy.state() {
            return Err(nothing_held(site.lost_error(tenancy, reason)));
        }
        match ended {
            Ended::Notified => Ok(true),
            Ended::Over => Ok(false),
            Ended::Cancelled => {
                let message = "waiting was cancelled; the lock is held again".to_owned();
                Err(Error::new(ErrorKind::Cancelled, message).of(&site.name))
            }
        }
    }

    /// Waits for as long as `condition` is true. Calls it with the lock held: first before any
    /// wait, and again after each wake-up.
    ///
    /// # Blocking
    ///
    /// Each time for as long as [`wait`](Self::wait).
    pub fn wait_while(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        self.try_wait_while(guard, || Ok(condition()))
    }

    /// Waits while the condition is true, for as long as `wait` allows. Returns `false` if the
    /// condition is still true then.
    ///
    /// # Blocking
    ///
    /// `wait` bounds the sum of all sleeps.
    #[must_use = "`false`: time is over, and the condition is still true"]
    pub fn wait_while_within<'a>(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: impl Into<Wait<'a>>,
        mut condition: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        self.try_wait_while_within(guard, wait, || Ok(condition()))
    }

    /// Waits while a condition is true that may fail, such as one read from a database.
    ///
    /// # Errors
    ///
    /// Those of `condition`, as they are: the lock is held. Also the errors of
    /// [`wait`](Self::wait).
    ///
    /// # Blocking
    ///
    /// Each time for as long as [`wait`](Self::wait).
    #[must_use = "`false`: nobody has notified it, and time is over"]
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

    /// Waits while a condition is true that may fail, for as long as `wait` allows.
    ///
    /// # Errors
    ///
    /// Those of `condition`, as they are: the lock is held. Also the errors of
    /// [`wait_within`](Self::wait_within).
    ///
    /// # Blocking
    ///
    /// `wait` bounds the sum of all sleeps.
    #[must_use = "`false`: time is over, and the condition is still true"]
    pub fn try_wait_while_within<'a, E: From<Error>>(
        &self,
        guard: &LockGuard<impl Lock + ?Sized>,
        wait: impl Into<Wait<'a>>,
        mut condition: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let wait = wait.into();
        while condition()? {
            // Also after the end of the wait: the condition is checked once more.
            if !self.wait_within(guard, wait)? {
                return Ok(!condition()?);
            }
        }
        Ok(true)
    }

    /// Notifies the longest waiter, and returns whether there was one. The waiter returns from its
    /// wait when it has the lock, which the calling thread has to release. `false`: no thread
    /// waits, and nothing was changed.
    ///
    /// # Errors
    ///
    /// - [`NotHeld`](ErrorKind::NotHeld) if the calling thread does not hold the lock,
    ///   [`LeaseLost`](ErrorKind::LeaseLost) if it has lost it: no waiter was notified. (Take the
    ///   lock again, and notify then.)
    /// - [`Redis`](ErrorKind::Redis) if the server is in trouble. If the reply was lost, the
    ///   message says that the outcome is not known: notify again. One notification too many does
    ///   no harm. [`Protocol`](ErrorKind::Protocol) if its answer makes no sense.
    /// - [`Config`](ErrorKind::Config) if the condition's name is empty,
    ///   [`ShutDown`](ErrorKind::ShutDown) after [`Client::shutdown`],
    ///   [`Forked`](ErrorKind::Forked) in a forked child: nothing was done.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn notify_one(&self) -> Result<bool, Error> {
        self.notify(false).map(|told| told > 0)
    }

    /// Notifies all waiters, and returns their number. They return from their waits one after the
    /// other, as they get the lock.
    ///
    /// # Blocking
    ///
    /// One round trip.
    pub fn notify_all(&self) -> Result<u64, Error> {
        self.notify(true)
    }

    /// The condition's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of its lock.
    #[must_use]
    pub fn lock_name(&self) -> &str {
        &self.lock.handle().site.name
    }

    fn new(lock: impl Part + 'static, name: &str) -> Self {
        let keys = ConditionKeys::new(&lock.handle().site.name, name);
        Self { lock: Arc::new(lock), name: name.into(), keys: Arc::new(keys) }
    }

    fn notify(&self, all: bool) -> Result<u64, Error> {
        self.check_usable()?;
        let handle = self.lock.handle();
        let site = &handle.site;
        let Some((tenancy, _)) = handle.tenancy() else { return Err(site.not_held_by_thread()) };
        if !tenancy.is_held() {
            site.lose_hold(&tenancy.hold(), LostReason::LeaseExpired);
            return Err(site.lost_error(&tenancy, LostReason::LeaseExpired));
        }
        let scripts = ConditionScripts { keys: &self.keys, database: site.core.database() };
        // Numbers rise, and name one notification of one client. A copy of the request finds its
        // own.
        let number = site.core.id.next_number();
        let told = scripts.notify(&site.route, &site.name, &tenancy.hold().owner, number, all);
        match told {
            Ok(Some(told)) => Ok(told),
            Ok(None) => {
                site.lose_hold(&tenancy.hold(), LostReason::Revoked);
                Err(site.lost_error(&tenancy, LostReason::Revoked).now("nobody was notified"))
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

    /// The lock's site, and the tenancy that a wait leaves.
    fn check_guard<'a>(
        &self,
        guard: &'a LockGuard<impl Lock + ?Sized>,
    ) -> Result<(&'a Arc<Site>, &'a Arc<Tenancy>), Error> {
        self.check_usable()?;
        let own = &self.lock.handle().site;
        let held = guard.one().map(HeldLock::site_and_tenancy);
        let Some((site, tenancy)) = held.filter(|(site, _)| Arc::ptr_eq(site, own)) else {
            let message = "the guard is another lock's, or another client's; nothing was changed";
            return Err(Error::new(ErrorKind::NotHeld, message.to_owned()).of(&own.name));
        };
        if !tenancy.thread.is_current() {
            return Err(site.not_held_by_thread());
        }
        guard.check(Duration::ZERO)?;
        if site.succession().is_some_and(|succession| succession.bars(&tenancy.thread)) {
            let message = "the calling thread also holds it to read, and a wait would not end that: \
                           release the read lock first; both are held as before";
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
    error.now("nothing is held any more, at no level")
}
