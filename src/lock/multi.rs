//! Several locks taken together: Redisson's `RedissonMultiLock`, and its `RedissonRedLock`.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::CancelToken;
use redlatch_client::sync::Thread;

use crate::error::{Error, ErrorKind};
use crate::lock::{self, HeldLock, Lock, Part};
use crate::waiting::Wait;

pub use self::guard::{MultiLockGuard, OwnedMultiLockGuard};

use self::guard::GuardLevels;

mod guard;
mod quorum;

/// Several locks taken together, all or none: Redisson's `RedissonMultiLock`. Or a majority of
/// them, on as many servers: [`quorum`](Self::quorum).
///
/// They may be of any kind, of one client or of several, on one server or on several. A `MultiLock`
/// has no key in Redis: it and a holder of one of its locks exclude each other. It has the verbs of
/// a [`Lock`] that take it, and is none: ask each part for the rest.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Client, MultiLock};
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379")?;
/// let (from, to) = (client.reentrant_lock("account:7"), client.reentrant_lock("account:3"));
///
/// // In any order: a transfer the other way does not block this one.
/// let both = MultiLock::new(&[&from, &to])?;
/// let guard = both.lock()?;
/// guard.check(Duration::from_secs(2))?; // both are held for 2 s more
/// guard.unlock()?;
///
/// // Locks in a list, of two kinds.
/// let tickets = client.fair_lock("tickets");
/// let accounts = ["account:1", "account:2"].map(|name| client.reentrant_lock(name));
/// let mut all: Vec<&dyn redlatch::Lock> = vec![&tickets];
/// all.extend(accounts.iter().map(|lock| lock as &dyn redlatch::Lock));
/// if let Some(guard) = MultiLock::new(&all)?.try_lock_for(Duration::from_secs(3))? {
///     guard.unlock()?;
/// }
/// # Ok(()) }
/// ```
///
/// # Order, and why there is no deadlock
///
/// It takes the parts one after the other, each by its own verb, and releases them in the opposite
/// order. If it does not get a part, or its request fails, it releases those that it took before.
///
/// **The order is that of the names (of their bytes); for one name that of the servers' addresses,
/// or of their service names if Sentinels name the server, and then of the databases.** The order
/// of the list does not matter. So a `MultiLock` waits for a lock only while it holds locks that
/// come before it in one order, and no two of them can wait for each other. If several servers have
/// parts of the *same* name, this needs the same addresses for these servers in all processes. It
/// is not true of a lock that the thread already holds when it takes a `MultiLock` (or a second one
/// inside it): take all needed locks in one.
///
/// If no other thread holds a part, exactly one of many callers of [`try_lock`](Self::try_lock)
/// takes them: the one that takes the first part.
///
/// Redisson's `RedissonMultiLock` takes its parts in the order of the list. Programs that share
/// parts with a `MultiLock` must list them by name, in the order of the names' bytes. Redisson
/// releases its parts when it does not get one in time; so with another order no deadlock lasts for
/// ever, but each side may wait for the other until then, again and again.
///
/// While it waits for a part, it holds and renews those before: others wait for those as well.
///
/// # What it costs
///
/// A free part costs one round trip to take and one to [`unlock`](MultiLockGuard::unlock), so *n*
/// parts cost *n* of each, on one server or on several. A part that the thread already holds costs
/// none, nor does a part that this process passes from thread to thread. The drop of the guard
/// waits for no reply.
///
/// # Parts
///
/// - A lock that is listed twice is taken once, as listed first, even if two clients of one server
///   are behind it.
/// - It is re-entrant if its parts are: a thread that holds some of them takes these once more, and
///   each guard releases the levels that it took.
/// - With a [lease](Self::with_lease), each part's lease counts from when that part was taken. So a
///   lease should be longer than the wait for the others; [`remaining`](MultiLockGuard::remaining)
///   returns the rest.
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// In the order of taking.
    parts: Arc<[Arc<dyn Part>]>,
    rule: Rule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    Majority,
}

/// How often the first parts may be lost during the wait for the others.
const MOST_LOST: u32 = 3;

impl MultiLock {
    /// Returns all of these locks together. No I/O.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the list is empty, lists one name on one server as two
    /// kinds of lock, or has a lock that is not of this library; [`Forked`](ErrorKind::Forked) in a
    /// forked child.
    pub fn new(locks: &[&dyn Lock]) -> Result<Self, Error> {
        let mut taken: Vec<Arc<dyn Part>> = Vec::with_capacity(locks.len());
        for part in parts(locks)? {
            match taken.iter().find(|other| is_same(&***other, &*part)) {
                None => taken.push(part),
                Some(other) if other.kind() == part.kind() => {}
                Some(other) => {
                    let message = format!(
                        "it is listed as a {} and as a {}, which get in each other's way under one \
                         name; take one of them",
                        other.kind(),
                        part.kind()
                    );
                    let name = &part.handle().site.name;
                    return Err(Error::new(ErrorKind::Config, message).of(name));
                }
            }
        }
        taken.sort_by_cached_key(rank);
        Ok(Self { parts: taken.into(), rule: Rule::All })
    }

    /// Returns a majority of these locks, each on an independent server: Redisson's RedLock. It can
    /// be taken while some of the servers are down, as long as more than half of them are up. No
    /// I/O.
    ///
    /// It asks all servers at the same time, on a short-lived thread each: for a fiftieth of the
    /// lease (50 ms at least, and longer if the server is far off), so that a dead server costs
    /// little. The lock is taken if more than half have granted it, and the lease of that half has
    /// not ended. Its validity is counted as in the algorithm's paper: the lease, from before the
    /// request was sent, less a hundredth and 2 ms for clock drift. Otherwise it releases all
    /// parts, and tries again after a random time: so waiters have no order. The watchdog renews
    /// each part; a renewal counts if more than half have it:
    /// [`remaining`](MultiLockGuard::remaining) is that of a majority, and the guard is lost when
    /// fewer are left.
    ///
    /// # Guarantee
    ///
    /// No two threads hold the lock at the same time, **if**
    ///
    /// - no server forgets a grant. A server that restarts without persistence (or with persistence
    ///   that lags behind) may grant its vote twice: with five servers a holder with three of them,
    ///   of which one forgets, shares the lock with the next. Restart a crashed server only after
    ///   the longest lease has passed.
    /// - clocks go about as fast everywhere. A server whose wall clock is set forward ends leases
    ///   early, and grants its vote to the next.
    /// - every writer checks its guard first. A process that is stopped (swapped out, a virtual
    ///   machine that is moved) between its check and its write may write after another has been
    ///   granted the lock, just as with one server.
    ///
    /// The last is Kleppmann's objection: a lock that must keep data right, and not only save
    /// double work, needs a number that grows with each grant and that the storage system checks. A
    /// majority has none: votes on several servers are in no order. So **where money is at stake
    /// take one server, with persistence, and make the write itself conditional** (a version, a
    /// fencing token). Take a quorum for work that should be done once, also while a server is
    /// down, and that does no harm if it is done twice.
    ///
    /// ```no_run
    /// use redlatch::{Client, Lock, MultiLock};
    ///
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let servers = ["redis://one:6379", "redis://two:6379", "redis://three:6379"];
    /// // All must be up when the program starts; from then on two are enough.
    /// let clients = servers.map(Client::connect).into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let locks: Vec<_> = clients.iter().map(|client| client.reentrant_lock("report")).collect();
    /// let locks: Vec<_> = locks.iter().map(|lock| lock as &dyn Lock).collect();
    ///
    /// if let Some(guard) = MultiLock::quorum(&locks)?.try_lock()? {
    ///     println!("ours for {:?} at least", guard.remaining());
    ///     guard.unlock()?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the list is empty, has two locks on one server, or has a
    /// lock that is not of this library; [`Forked`](ErrorKind::Forked) in a forked child.
    pub fn quorum(locks: &[&dyn Lock]) -> Result<Self, Error> {
        let parts = parts(locks)?;
        for (at, part) in parts.iter().enumerate() {
            let core = &part.handle().site.core;
            let mut others = parts.iter().take(at).map(|other| &other.handle().site.core);
            if others.any(|other| other.is_at_same_server_as(core)) {
                let message = format!(
                    "two of the locks of a quorum are on the server at {}, whose vote would count \
                     twice; give each a server of its own",
                    core.address()
                );
                let name = &part.handle().site.name;
                return Err(Error::new(ErrorKind::Config, message).of(name));
            }
        }
        Ok(Self { parts: parts.into(), rule: Rule::Majority })
    }

    /// Takes the locks, and waits without a limit.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Lock::lock) of a part, with the name of that part and its server's
    /// address: no more is held than before, since the parts taken so far are released. For a
    /// [`quorum`](Self::quorum), if so many servers are in trouble that the others are no majority.
    /// Also [`Redis`](ErrorKind::Redis) if a part was lost again and again during the wait for the
    /// next ones.
    ///
    /// All verbs that take the locks fail in these ways.
    ///
    /// # Blocking
    ///
    /// Until all locks (or the majority) are taken, or an error ends the wait; time does not end
    /// it. If all are free, one round trip for each; for a quorum, one for all at the same time.
    pub fn lock(&self) -> Result<MultiLockGuard, Error> {
        self.take(Wait::FOREVER)?.ok_or_else(|| self.shut_down())
    }

    /// Takes the locks if that is possible now: `None` if one cannot be taken, or no majority; no
    /// more is held then. It asks for no part behind the first one that it does not get.
    ///
    /// # Blocking
    ///
    /// One round trip for each part; for a quorum, one for all at the same time.
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn try_lock(&self) -> Result<Option<MultiLockGuard>, Error> {
        self.take(Wait::NONE)
    }

    /// Takes all the locks unless that takes longer than `wait`: returns `None` then. The limit is
    /// for all parts together.
    ///
    /// # Blocking
    ///
    /// For `wait` at most, even if the parts' servers do not answer. (The first request for each
    /// part has 15 ms in any case, or two round trips to a server that is further off.)
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiLockGuard>, Error> {
        self.take(Wait::at_most(wait))
    }

    /// Takes all the locks, and gives up when `token` is cancelled.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled), nothing more is held then. Also the errors of
    /// [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// Until all are taken, or an error or the cancel ends the wait. The cancel ends a sleep
    /// and a request that is on its way.
    pub fn lock_cancellable(&self, token: &CancelToken) -> Result<MultiLockGuard, Error> {
        self.take(Wait::from(token))?.ok_or_else(|| self.shut_down())
    }

    /// Takes the locks unless that takes longer than `wait` allows: `None`. The other verbs are
    /// short forms of this one.
    ///
    /// # Errors
    ///
    /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled, nothing more is
    /// held then. Also the errors of [`lock`](Self::lock).
    ///
    /// # Blocking
    ///
    /// For as long as `wait` allows, as [`try_lock_for`](Self::try_lock_for) and, with a token,
    /// [`lock_cancellable`](Self::lock_cancellable) do.
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn lock_within<'a>(
        &self,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<MultiLockGuard>, Error> {
        self.take(wait.into())
    }

    /// Takes all the locks for a guard that belongs to no thread: see
    /// [`OwnedLockGuard`](crate::OwnedLockGuard). It waits for every other holder of a part, a
    /// guard of its own thread too.
    ///
    /// # Blocking
    ///
    /// For ever if only the calling thread could drop the guard that it waits for.
    pub fn lock_owned(&self) -> Result<OwnedMultiLockGuard, Error> {
        self.lock_owned_within(Wait::FOREVER)?.ok_or_else(|| self.shut_down())
    }

    /// Takes all the locks if that is possible now, for a guard that belongs to no thread.
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn try_lock_owned(&self) -> Result<Option<OwnedMultiLockGuard>, Error> {
        self.lock_owned_within(Wait::NONE)
    }

    /// Takes all the locks unless that takes longer than `wait` allows, for a guard that belongs to
    /// no thread.
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn lock_owned_within<'a>(
        &self,
        wait: impl Into<Wait<'a>>,
    ) -> Result<Option<OwnedMultiLockGuard>, Error> {
        let levels = self.acquire(&Thread::placeholder(), wait.into())?;
        Ok(levels.map(OwnedMultiLockGuard::new))
    }

    /// Takes the locks, runs `work` with the guard, and releases them: as [`Lock::with`].
    ///
    /// # Errors
    ///
    /// Those of `work`; of kind [`LeaseLost`](ErrorKind::LeaseLost) if a part was lost before its
    /// end (for a quorum, the majority). Also the errors of [`lock`](Self::lock): `work` did not
    /// run. An error of the release is logged.
    pub fn with<R, E: From<Error>>(
        &self,
        work: impl FnOnce(&MultiLockGuard) -> Result<R, E>,
    ) -> Result<R, E> {
        lock::run(self.lock()?, work)
    }

    /// The same locks with a fixed lease each, never renewed. From 1 ms to 10¹³ ms; with another
    /// lease, the first call that takes the locks fails.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        let parts = self.parts.iter().map(|part| part.with_lease(lease)).collect();
        Self { parts, rule: self.rule }
    }

    /// The same locks with this watched lease each:
    /// [`Lock::with_watchdog`](crate::Lock::with_watchdog).
    #[must_use]
    pub fn with_watchdog(&self, timeout: Duration) -> Self {
        let parts = self.parts.iter().map(|part| part.with_watchdog(timeout)).collect();
        Self { parts, rule: self.rule }
    }

    /// The names of the locks, in the order of taking, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| &*part.handle().site.name)
    }

    fn take(&self, wait: Wait<'_>) -> Result<Option<MultiLockGuard>, Error> {
        Ok(self.acquire(&Thread::current(), wait)?.map(MultiLockGuard::new))
    }

    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<GuardLevels>, Error> {
        // Before anything that another thread may have locked when this process was forked.
        self.parts.iter().try_for_each(check_process)?;
        if self.rule == Rule::Majority {
            return quorum::acquire(&self.parts, thread, &wait);
        }
        for _ in 0..MOST_LOST {
            let Some(levels) = self.acquire_all(thread, &wait)? else { return Ok(None) };
            if levels.is_held() {
                return Ok(Some(levels));
            }
            // The first parts were lost during the wait for the last ones.
            drop(levels);
            if wait.blocks() && wait.is_over() {
                return Ok(None);
            }
        }
        let message = "the first of several locks was lost before the last one was had, several \
                       times over; nothing more is held than before, take a longer lease";
        Err(Error::new(ErrorKind::Redis, message.to_owned()).transient(true))
    }

    /// Takes one part after the other, in their order, until it does not get one.
    fn acquire_all(
        &self,
        thread: &Arc<Thread>,
        wait: &Wait<'_>,
    ) -> Result<Option<GuardLevels>, Error> {
        // An unusable part is an error before the first one is taken.
        for part in &*self.parts {
            part.handle().check(wait).map_err(|error| self.failed(part, error))?;
        }
        // Its drop releases the parts, the last one first.
        let mut levels = GuardLevels::all(self.parts.len());
        for part in &*self.parts {
            match part.acquire(thread, *wait) {
                Ok(Some(tenancy)) => levels.push(HeldLock::new(part.handle(), tenancy)),
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.failed(part, error)),
            }
        }
        Ok(Some(levels))
    }

    /// One part's error, as an error of all.
    fn failed(&self, part: &Arc<dyn Part>, error: Error) -> Error {
        let state = format!(
            "it is one of {} that are taken together, on the server at {}: what was had of the \
             others is given back, and nothing more is held than before",
            self.parts.len(),
            part.handle().site.core.address()
        );
        error.now(&state)
    }

    fn shut_down(&self) -> Error {
        let name = self.parts.first().map(|part| Arc::clone(&part.handle().site.name));
        Error::shut_down(&name.unwrap_or_default())
    }
}

fn parts(locks: &[&dyn Lock]) -> Result<Vec<Arc<dyn Part>>, Error> {
    if locks.is_empty() {
        let message = "to be taken together there must be one lock at least";
        return Err(Error::new(ErrorKind::Config, message.to_owned()));
    }
    let part = |lock: &&dyn Lock| {
        lock.part().map(|part| part.0).ok_or_else(|| {
            let message = "it is not a lock of this library, so it cannot be taken together with \
                           others; list the one that it is made of";
            Error::new(ErrorKind::Config, message.to_owned()).of(&lock.name().into())
        })
    };
    let parts: Vec<_> = locks.iter().map(part).collect::<Result<_, _>>()?;
    parts.iter().try_for_each(check_process)?;
    Ok(parts)
}

fn check_process(part: &Arc<dyn Part>) -> Result<(), Error> {
    let site = &part.handle().site;
    site.core.check_process(&site.name)
}

/// A part's entry in the one order. The name is first, since it is the same for all processes, and
/// an address may not be. A failover does not change it.
fn rank(part: &Arc<dyn Part>) -> (Arc<str>, String, i64) {
    let site = &part.handle().site;
    (Arc::clone(&site.name), site.core.lasting_address(), site.core.database())
}

/// Whether both are one key. Two clients of one server are two owners, and one would wait for the
/// other.
fn is_same(one: &dyn Part, other: &dyn Part) -> bool {
    let (one, other) = (&one.handle().site, &other.handle().site);
    one.name == other.name
        && one.core.database() == other.core.database()
        && one.core.is_at_same_server_as(&other.core)
}
