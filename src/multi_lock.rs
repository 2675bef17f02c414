//! Several locks taken together: Redisson's `RedissonMultiLock`, and its `RedissonRedLock`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::acquire::Wait;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind};
use crate::lock::{self, Held, Lock, Part};
use crate::sync::Thread;

pub use self::guard::{MultiLockGuard, OwnedMultiLockGuard};

use self::guard::Levels;

mod guard;
mod quorum;

/// Several locks that are taken together, all or none: Redisson's `RedissonMultiLock`. Or a
/// majority of them, on as many servers: [`quorum`](Self::quorum).
///
/// They may be of any kind, of one client or of several, on one server or on several. It is
/// nothing in Redis by itself: whoever takes one of the locks alone excludes it, and is excluded.
/// It has the verbs that a [`Lock`] has to take it, and is none: what else can be asked of a lock
/// is asked of each part.
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
/// // In whatever order they are listed: who transfers the other way does not block this one.
/// let both = MultiLock::new(&[&from, &to])?;
/// let guard = both.lock()?;
/// guard.check(Duration::from_secs(2))?; // both are held for 2 s more
/// guard.unlock()?;
///
/// // Locks that come in a list, and of two kinds.
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
/// # Order, and why nothing locks up
///
/// The parts are taken one after the other, each by its own verb, and released in the opposite order.
/// If one cannot be had, or its request fails, those that were taken before it are given back.
///
/// **The order is that of the names (of their bytes); for one name that of the servers' addresses, or
/// of their service names where Sentinels name the server, and then of the databases.** The order of
/// the list does not matter. So a `MultiLock` waits for a lock only while it holds locks that come
/// before it in one order, and no two of them can wait for each other. For that to be true of several
/// servers on which there are parts of the *same* name, all processes must use the same addresses for
/// these servers. It is not true of a lock that the thread holds already when it takes a `MultiLock`
/// (or a second one inside it): take all that is needed in one.
///
/// If nobody else holds a part, exactly one of many callers of [`try_lock`](Self::try_lock) takes them:
/// the one that takes the first part.
///
/// Redisson's `RedissonMultiLock` takes its parts in the order of the list. Where its programs share
/// parts with a `MultiLock`, they must list them by name, in the order of the names' bytes. It gives
/// back what it has when a part is not to be had in time; so with another order nothing locks up for
/// ever, but each side may wait for the other until then, again and again.
///
/// While one is waited for, those before it are held and renewed: others wait for those as well.
///
/// # What it costs
///
/// A free part costs one round trip to take and one to [`unlock`](MultiLockGuard::unlock), so *n* parts
/// cost *n* of each, on one server or on several. A part that the thread holds already costs none, nor
/// does a part that this process passes from thread to thread. The drop of the guard waits for no reply.
///
/// # Parts
///
/// - A lock that is listed twice is taken once, as it is listed first, also where two clients of
///   one server are behind it.
/// - It is re-entrant where its parts are: a thread that holds some of them takes these once more,
///   and each guard releases what it took.
/// - With a [lease](Self::with_lease) each part's counts from when that was taken. So a lease
///   should be longer than the others may be waited for; [`remaining`](MultiLockGuard::remaining)
///   says what is left.
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// In the order in which they are taken.
    parts: Arc<[Arc<dyn Part>]>,
    rule: Rule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    Majority,
}

/// So many times the first ones may be lost while the others are waited for.
const MOST_LOST: u32 = 3;

impl MultiLock {
    /// All of these locks together. No I/O.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if there are none, if one name on one server is listed as two
    /// kinds of lock, or if one is not a lock of this library; [`Forked`](ErrorKind::Forked) in a
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

    /// A majority of these locks, each on a server of its own that knows nothing of the others:
    /// what Redisson called RedLock. It is had while some of the servers are down, as long as more
    /// than half of them are not. No I/O.
    ///
    /// All are asked at the same time, on a thread each that lives for as long as the question: for
    /// a fiftieth of the lease (50 ms at least, and longer if the server is far off), so that a dead
    /// server costs little. The lock is had if more than half have granted it, and the lease of that
    /// half has not ended. Its validity is counted as the algorithm's paper does: the lease, from
    /// before the request was sent, less a hundredth and 2 ms for clocks that drift. Else all is given
    /// back, and it is tried again after a random time: so there is no order among those who wait. The
    /// watchdog renews each part; a renewal counts when more than half have it:
    /// [`remaining`](MultiLockGuard::remaining) is that of a majority, and the guard is lost when
    /// fewer are left.
    ///
    /// # What it is worth
    ///
    /// It proves that no two hold the lock at the same time, **if**
    ///
    /// - no server forgets what it has granted. One that is started anew without persistence
    ///   (or with one that lags behind) may grant its vote twice: with five servers a holder with
    ///   three of them, of which one forgets, shares the lock with the next. Start a server that
    ///   has crashed only after the longest lease has passed.
    /// - clocks go about as fast everywhere. A server whose wall clock is set forward ends leases
    ///   early, and grants its vote to the next.
    /// - nobody writes without having looked. A process that is stopped (swapped out, a virtual
    ///   machine that is moved) between its look at the guard and its write may write after
    ///   another has been granted the lock, just as with one server.
    ///
    /// The last is Kleppmann's objection: a lock that is to keep data right, and not only to save
    /// double work, needs a number that grows with each grant and that the written-to system
    /// checks. A majority has none: votes on several servers are in no order. So **where money is
    /// at stake take one server, with persistence, and make the write itself conditional** (a
    /// version, a fencing token). Take a quorum where work should be done once, also while a server
    /// is down, and doing it twice would be a pity and no harm.
    ///
    /// ```no_run
    /// use redlatch::{Client, Lock, MultiLock};
    ///
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let servers = ["redis://one:6379", "redis://two:6379", "redis://three:6379"];
    /// // All must be there when the program starts; from then on two are enough.
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
    /// [`Config`](ErrorKind::Config) if there are none, if two of them are on one server, or if one
    /// is not a lock of this library; [`Forked`](ErrorKind::Forked) in a forked child.
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

    /// Takes them, waiting for as long as it takes.
    ///
    /// # Errors
    ///
    /// As the [`lock`](Lock::lock) of each part, with the name of the part that it happened to and
    /// its server's address: nothing more is held than before, what was taken of the others is
    /// given back. Of a [`quorum`](Self::quorum), if so many servers are in trouble that the others
    /// are no majority. [`Redis`](ErrorKind::Redis), too, if a part was lost again and again while
    /// the next ones were waited for.
    ///
    /// All verbs that take the locks fail in these ways.
    ///
    /// # Blocking
    ///
    /// Until all are had (or the majority), or an error ends the wait; time does not end it. If all are
    /// free, one round trip for each; of a quorum, one for all at the same time.
    pub fn lock(&self) -> Result<MultiLockGuard, Error> {
        self.take(Wait::FOREVER)?.ok_or_else(|| self.shut_down())
    }

    /// Takes them if that is possible now: `None` if one is not to be had, or no majority; nothing
    /// more is held then. It asks for no part behind the first one that it does not get.
    ///
    /// # Blocking
    ///
    /// One round trip for each part; of a quorum, one for all at the same time.
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn try_lock(&self) -> Result<Option<MultiLockGuard>, Error> {
        self.take(Wait::NONE)
    }

    /// Takes all the locks unless that takes longer than `wait`: returns `None` then. The time is for
    /// the whole.
    ///
    /// # Blocking
    ///
    /// For `wait` at most, whatever the servers of the parts do. (As of one lock, the first request for
    /// each part has 15 ms in any case, or two round trips to a server that is further off.)
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiLockGuard>, Error> {
        self.take(Wait::at_most(wait))
    }

    /// Takes all the locks unless that takes until `deadline`: returns `None` then.
    ///
    /// # Blocking
    ///
    /// Until `deadline`; a request that is on its way ends as in
    /// [`try_lock_for`](Self::try_lock_for).
    #[must_use = "`None`: none was taken; and a guard that is dropped releases all"]
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<MultiLockGuard>, Error> {
        self.take(Wait::until(deadline))
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
    /// Until the locks are had, or an error or the cancel ends the wait. The cancel ends a sleep
    /// and a request that is on its way.
    pub fn lock_cancellable(&self, token: &CancelToken) -> Result<MultiLockGuard, Error> {
        self.take(Wait::from(token))?.ok_or_else(|| self.shut_down())
    }

    /// Takes them unless that takes longer than `wait` allows: `None`. The other ways are short
    /// forms of this one.
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
    pub fn lock_within(&self, wait: Wait<'_>) -> Result<Option<MultiLockGuard>, Error> {
        self.take(wait)
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
    pub fn lock_owned_within(&self, wait: Wait<'_>) -> Result<Option<OwnedMultiLockGuard>, Error> {
        let levels = self.acquire(&Thread::nobodys(), wait)?;
        Ok(levels.map(OwnedMultiLockGuard::new))
    }

    /// Takes them, runs `work` with the guard, releases them: as [`Lock::with`].
    ///
    /// # Errors
    ///
    /// Those of `work`; of kind [`LeaseLost`](ErrorKind::LeaseLost) if a part was lost before its
    /// end (of a quorum, the majority). Also the errors of [`lock`](Self::lock): `work` did not run.
    /// Trouble with a server at the release is logged.
    pub fn with<R, E: From<Error>>(
        &self,
        work: impl FnOnce(&MultiLockGuard) -> Result<R, E>,
    ) -> Result<R, E> {
        lock::run(self.lock()?, work)
    }

    /// The same locks with a fixed lease each, never renewed. From 1 ms to 10¹³ ms; another one is
    /// an error of the first call that takes them.
    #[must_use]
    pub fn with_lease(&self, lease: Duration) -> Self {
        let parts = self.parts.iter().map(|part| part.with_lease(lease)).collect();
        Self { parts, rule: self.rule }
    }

    /// The same locks with this watched lease each: [`Lock::with_watchdog`](crate::Lock::with_watchdog).
    #[must_use]
    pub fn with_watchdog(&self, timeout: Duration) -> Self {
        let parts = self.parts.iter().map(|part| part.with_watchdog(timeout)).collect();
        Self { parts, rule: self.rule }
    }

    /// The names of the locks, in the order in which they are taken, each once.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| &*part.handle().site.name)
    }

    fn take(&self, wait: Wait<'_>) -> Result<Option<MultiLockGuard>, Error> {
        Ok(self.acquire(&Thread::current(), wait)?.map(MultiLockGuard::new))
    }

    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Levels>, Error> {
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
            // The first ones were lost while the last ones were waited for.
            drop(levels);
            if wait.blocks() && wait.is_over() {
                return Ok(None);
            }
        }
        let message = "the first of several locks was lost before the last one was had, several \
                       times over; nothing more is held than before, take a longer lease";
        Err(Error::new(ErrorKind::Redis, message.to_owned()).transient(true))
    }

    /// Takes one part after the other, in their order, until one is not to be had.
    fn acquire_all(&self, thread: &Arc<Thread>, wait: &Wait<'_>) -> Result<Option<Levels>, Error> {
        // What is wrong with any of them is an error before the first one is taken.
        for part in &*self.parts {
            part.handle().check(wait).map_err(|error| self.failed(part, error))?;
        }
        // Its drop gives back what was taken, the last one first.
        let mut levels = Levels::all(self.parts.len());
        for part in &*self.parts {
            match part.acquire(thread, *wait) {
                Ok(Some(tenancy)) => levels.push(Held::new(part.handle(), tenancy)),
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.failed(part, error)),
            }
        }
        Ok(Some(levels))
    }

    /// What became of one part, said of all.
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

/// Where a part stands in the one order. The name is first, since it is the same for all processes,
/// and an address may not be. A failover changes nothing of it.
fn rank(part: &Arc<dyn Part>) -> (Arc<str>, String, i64) {
    let site = &part.handle().site;
    (Arc::clone(&site.name), site.core.lasting_address(), site.core.database())
}

/// Whether both are one key. Two clients of one server are two owners, of which one would wait for
/// the other.
fn is_same(one: &dyn Part, other: &dyn Part) -> bool {
    let (one, other) = (&one.handle().site, &other.handle().site);
    one.name == other.name
        && one.core.database() == other.core.database()
        && one.core.is_at_same_server_as(&other.core)
}
