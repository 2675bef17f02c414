//! Several locks taken together: Redisson's `RedissonMultiLock` and `RedissonRedLock`.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::Thread;

use super::own_verbs;
#[cfg(doc)]
use crate::attempt::Attempt::NotTaken;
#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::lock::together;
use crate::lock::{AsLock, Handle, HeldLock, HeldLocks, Lock, Part, Parts, Variant};
use crate::name::Name;
use crate::waiting::Wait;

pub use self::guard::{MultiLockGuard, OwnedMultiLockGuard};
pub(crate) use self::levels::GuardLevels;
use self::levels::Rule;

mod guard;
mod levels;
#[cfg(all(test, models))]
mod model_tests;
mod quorum;
mod votes;

/// Several locks taken together, all or none: Redisson's `RedissonMultiLock`.
/// [`quorum`](Self::quorum) takes a majority of several locks, each on its own server.
///
/// The *parts* of a `MultiLock` are the locks in its list. Parts may be of any kind, of one client
/// or of several, on one server or on several. A `MultiLock` has no key in Redis: it excludes every
/// thread that holds one of the parts. A `MultiLock` has the methods of [`Lock`].
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Client, Lock, MultiLock, Taken};
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = Client::connect("redis://127.0.0.1:6379")?;
/// let (from, to) = (client.reentrant_lock("account:7"), client.reentrant_lock("account:3"));
///
/// // In any order: a transfer in the other direction cannot deadlock with this transfer.
/// let both = MultiLock::new([&from, &to])?;
/// let guard = both.lock()?;
/// guard.check(Duration::from_secs(2))?; // both are held for 2 s more
/// guard.unlock()?;
///
/// // Locks of two kinds.
/// let tickets = client.fair_lock("tickets");
/// let all = MultiLock::new([&tickets as &dyn Lock, &from, &to])?;
/// if let Taken(guard) = all.try_lock_for(Duration::from_secs(3))? {
///     guard.unlock()?;
/// }
/// # Ok(()) }
/// ```
///
/// # Order, and why there is no deadlock
///
/// If all parts are free and nobody waits for any of them, one request may take them all
/// ([below](#what-it-costs)). If a part is taken or has a waiter, the call takes the parts one
/// after the other. If the call does not get a part, it releases the parts that it has taken. While
/// the call waits for a part, it holds the earlier parts, so other threads wait for the earlier
/// parts, too.
///
/// **The parts are taken in the order of their names' bytes. Parts with the same name are taken in
/// the order of their servers' addresses, and then of their databases.** (With Sentinels, the
/// service name takes the place of the address.) The order of the list does not matter. While a
/// `MultiLock` waits for a part, it holds only parts that come earlier in the order. Therefore no
/// two `MultiLock`s can wait for each other. If parts on several servers have the *same* name, all
/// processes must use the same addresses for these servers. Take all locks in one `MultiLock`,
/// because a lock that the thread already holds when it takes a `MultiLock` is outside this order.
///
/// If many threads call [`try_lock`](Self::try_lock) at the same time while no other thread holds a
/// part, exactly one of them gets all parts. There is one exception: `try_lock` also returns
/// [`NotTaken`] while another thread of this process asks the server for one of the parts alone,
/// even if that thread does not get the part.
///
/// Redisson's `RedissonMultiLock` takes its parts in the order of the list. In Redisson programs
/// that share parts with a `MultiLock`, list the parts in the order of their names' bytes. If the
/// orders differ, each side may wait for the other until Redisson gives up, and this may repeat.
///
/// # What it costs
///
/// One round trip takes all parts, and one round trip releases them at
/// [`unlock`](MultiLockGuard::unlock), if all these conditions are met:
///
/// - the parts are at most 100 locks of one client and of one kind: a `ReentrantLock`, a
///   `FencedLock` or a `WriteLock`,
/// - in a cluster, their names are in one slot, as `{account}:3` and `{account}:7` are,
/// - their leases are equally long, and the watchdog renews them,
/// - only for taking the parts: no other thread holds or waits for a part, this thread holds no
///   part, and [`replica_acks`](crate::ClientBuilder::replica_acks) is not set.
///
/// If one of these conditions is not met, each part costs one round trip to take and one round trip
/// to release. If another thread has a part, the request for all parts fails and costs one more
/// round trip. (A [`try_lock`](Self::try_lock) may end after this request.) A part that the thread
/// already holds costs no round trip. A part that threads of this process pass to each other costs
/// no round trip, either. Dropping the guard waits for no reply.
///
/// # The methods
///
/// - A method that takes the `MultiLock` returns the errors of [`Lock::lock`] for its parts. The
///   error contains the name of the failed part and its server's address, and the call has taken
///   nothing. The method also fails with [`ResponseTimeout`](ErrorKind::ResponseTimeout) if a taken
///   part was lost several times during the wait for later parts. A time limit is for all parts
///   together.
/// - [`unlock`](Self::unlock) releases the calling thread's last level of each part. If the thread
///   does not hold one of the parts, `unlock` returns an error, but releases the other parts.
/// - [`force_unlock`](Self::force_unlock) takes every part away from its holder.
/// - [`hold_count`](Self::hold_count) returns the smallest count of all parts.
///   [`remaining_lease`](Self::remaining_lease) returns the shortest lease of the held parts.
///   [`is_locked`](Self::is_locked) returns whether any part is held.
/// - [`name`](Self::name) returns the [names](Self::names) of the parts, separated by commas.
///
/// # Parts
///
/// - If the list of a `MultiLock` contains another `MultiLock`, the parts of the inner `MultiLock`
///   take its place.
/// - A lock that is listed twice is taken once, even if it is listed through two clients of one
///   server.
/// - If a thread already holds some of the parts, it takes another level of each of them. Each
///   guard releases the levels that it took.
/// - With a [lease](Self::with_lease), each part's lease begins when that part is taken. Choose a
///   lease that is longer than the wait for the other parts.
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// The parts, in the order of taking.
    parts: Arc<[Arc<dyn Part>]>,
    /// The names of the parts, separated by commas.
    name: Name,
    rule: Rule,
}

own_verbs!(
    MultiLock,
    MultiLockGuard,
    OwnedMultiLockGuard,
    "One round trip for all parts, or [one for each](MultiLock#what-it-costs)"
);

/// The wait fails after the earlier parts were lost this many times during the wait for the later
/// parts.
const MOST_LOST: u32 = 3;

impl MultiLock {
    /// Returns a `MultiLock` of these locks. The list may contain locks or pointers to locks:
    /// `[&one, &other]`, `&locks`, or a `Vec<Box<dyn Lock>>`. No I/O.
    ///
    /// For re-entrant locks of one client, [`Client::multi_lock`] is shorter.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the list is empty, contains two kinds of lock with the same
    /// name on one server, or contains a [`quorum`](Self::quorum). [`Forked`](ErrorKind::Forked) in
    /// a forked child.
    pub fn new(locks: impl IntoIterator<Item: AsLock>) -> Result<Self, Error> {
        let mut taken: Vec<Arc<dyn Part>> = Vec::new();
        for part in parts(locks, false)? {
            match taken.iter().find(|other| is_same(&***other, &*part)) {
                None => taken.push(part),
                Some(other) if other.kind() == part.kind() => {}
                Some(other) => {
                    let message = format!(
                        "it is listed as a {} and as a {}: use one kind of lock for a name",
                        other.kind(),
                        part.kind()
                    );
                    let name = &part.handle().site.name;
                    return Err(Error::new(ErrorKind::Config, message).of(name));
                }
            }
        }
        taken.sort_by_cached_key(rank);
        Ok(Self::of(taken, Rule::All))
    }

    /// Returns a lock that is held while a majority of these locks is held. Each of these locks
    /// must be on an independent server. Redisson calls such a lock RedLock. A thread can take the
    /// lock while more than half of the servers are up. No I/O.
    ///
    /// A call asks all servers at the same time, each on a short-lived thread. The call waits for
    /// each server for a fiftieth of the lease (at least 50 ms, and longer for a distant server).
    /// The call has the lock if more than half of the servers have granted their part and these
    /// leases have not ended. Otherwise the call releases all parts and tries again after a random
    /// time, so the waiters have no order. A lease counts from the moment before its request was
    /// sent. To allow for clock drift, the call subtracts a hundredth of the lease and 2 ms.
    ///
    /// The watchdog renews each part. [`remaining`](MultiLockGuard::remaining) returns how long a
    /// majority of the parts is held. When less than a majority is left, the guard reports the loss
    /// of the lock. Every method fails if less than a majority of the servers answers.
    /// [`is_locked`](Self::is_locked) returns whether a majority is held. Taking the lock costs one
    /// round trip, and releasing it costs one round trip.
    ///
    /// If a server has lost its part, the client does not take that part again, because the server
    /// may have granted the part to another thread in the meantime. A server that restarts without
    /// persistence loses its part of a hold. So if most servers are restarted one after the other,
    /// a long hold ends.
    ///
    /// # Guarantee
    ///
    /// No two threads hold the lock at the same time, **if**
    ///
    /// - all programs list the same servers: two different lists may each have a majority. For
    ///   example, of five servers, a program that lists {1, 2, 3} takes the lock at 1 and 2, and a
    ///   program that lists {3, 4, 5} takes it at 4 and 5. If a program lists only the servers that
    ///   it could reach, it must pass the number of all servers to [`quorum_of`](Self::quorum_of).
    /// - no server forgets a grant. A server that restarts without persistence (or with persistence
    ///   that lags behind) may grant its part to two threads. Restart a crashed server only after
    ///   the longest lease has passed.
    /// - all clocks run at about the same speed. A server whose wall clock is set forward ends
    ///   leases early, and grants its part to another thread.
    /// - every writer checks its guard before each write. As with one server, a process that is
    ///   paused between its check and its write may write while another thread holds the lock.
    ///
    /// Kleppmann's objection to RedLock concerns the last condition: a lock that protects data
    /// needs a number that grows with each grant, and the store must check that number. A quorum
    /// has no such number, because grants of several servers have no common order. **Where money is
    /// at stake, use one server with persistence, and make the write itself conditional** (by a
    /// version or a fencing token). Use a quorum for work that should run once even while a server
    /// is down, and that does no harm if it runs twice.
    ///
    /// ```no_run
    /// use redlatch::{Client, MultiLock, Taken};
    ///
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let servers = ["redis://one:6379", "redis://two:6379", "redis://three:6379"];
    /// // All servers must be up at the start (or see `quorum_of`). Later two are enough.
    /// let clients = servers.map(Client::connect).into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let locks: Vec<_> = clients.iter().map(|client| client.reentrant_lock("report")).collect();
    ///
    /// if let Taken(guard) = MultiLock::quorum(&locks)?.try_lock()? {
    ///     println!("ours for {:?} at least", guard.remaining());
    ///     guard.unlock()?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the list is empty, contains two locks on one server, or
    /// contains a `MultiLock`. [`Forked`](ErrorKind::Forked) in a forked child.
    pub fn quorum(locks: impl IntoIterator<Item: AsLock>) -> Result<Self, Error> {
        let locks: Vec<_> = locks.into_iter().collect();
        Self::quorum_of(locks.len(), locks)
    }

    /// Returns a lock as [`quorum`](Self::quorum) does. A majority is more than half of `servers`,
    /// even if some of the servers have no lock in the list. Use this method in a program that may
    /// start while a server is down. A server to which the program has no client does not count
    /// towards the majority. No I/O.
    ///
    /// ```no_run
    /// use redlatch::{Client, MultiLock};
    ///
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let servers = ["redis://one:6379", "redis://two:6379", "redis://three:6379"];
    /// // Two servers must be up.
    /// let clients: Vec<_> = servers.iter().filter_map(|url| Client::connect(url).ok()).collect();
    /// let locks: Vec<_> = clients.iter().map(|client| client.reentrant_lock("report")).collect();
    /// let guard = MultiLock::quorum_of(servers.len(), &locks)?.lock()?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`quorum`](Self::quorum). [`Config`](ErrorKind::Config) also if the list
    /// contains locks on less than a majority of the servers, or more locks than servers.
    pub fn quorum_of(
        servers: usize,
        locks: impl IntoIterator<Item: AsLock>,
    ) -> Result<Self, Error> {
        let parts = parts(locks, true)?;
        vote_apart(parts.iter().map(|part| part.handle()))?;
        let (needed, listed) = (majority(servers), parts.len());
        if listed < needed || listed > servers {
            let message = format!(
                "a quorum of {servers} servers needs {needed} to {servers} locks, each on a server \
                 of its own, and {listed} are listed"
            );
            return Err(Error::new(ErrorKind::Config, message).of(&parts[0].handle().site.name));
        }
        Ok(Self::of(parts, Rule::MajorityOf(servers)))
    }

    /// Returns the names of the locks, each once, in the order in which they are taken.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.handle().site.name.given())
    }

    fn of(parts: Vec<Arc<dyn Part>>, rule: Rule) -> Self {
        let mut names: Vec<_> = parts.iter().map(|part| part.handle().site.name.given()).collect();
        names.dedup();
        Self { name: names.join(", ").into(), parts: parts.into(), rule }
    }

    /// The number of parts that must be held.
    fn needed(&self) -> usize {
        match self.rule {
            Rule::All => self.parts.len(),
            Rule::MajorityOf(servers) => majority(servers),
        }
    }

    /// Returns the levels of a new guard, with no part taken yet.
    fn levels(&self) -> GuardLevels {
        let leases = self.parts.iter().map(|part| part.handle().terms().lease());
        let drift = self.rule.drift(leases.max().unwrap_or_default()).into();
        let (held, name) = (Vec::with_capacity(self.parts.len()), self.name.clone());
        GuardLevels { held, needed: self.needed(), drift, rule: self.rule, name }
    }

    /// Runs `ask` for each part. For a quorum, runs `ask` for all parts at the same time. If a part
    /// fails, returns its error. A quorum ignores the error if the other answers decide the result:
    /// `counts` is true for a majority of the servers, or cannot become true for a majority.
    fn ask<T: Send>(
        &self,
        ask: impl Fn(&Arc<dyn Part>) -> Result<T, Error> + Sync,
        counts: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>, Error> {
        Error::if_forked(&self.name)?;
        let (asked, absent) = match self.rule {
            Rule::All => (self.parts.iter().map(ask).collect(), 0),
            Rule::MajorityOf(servers) => (votes::ask(&self.parts, ask), servers - self.parts.len()),
        };
        let (answered, failed): (Vec<_>, Vec<_>) = asked.into_iter().partition(Result::is_ok);
        let answered: Vec<_> = answered.into_iter().flatten().collect();
        let (needed, unknown) = (self.needed(), failed.len() + absent);
        let counted = answered.iter().filter(|it| counts(it)).count();
        let is_decided = match self.rule {
            Rule::All => unknown == 0,
            Rule::MajorityOf(_) => counted >= needed || counted + unknown < needed,
        };
        if is_decided {
            return Ok(answered);
        }
        Err(failed.into_iter().find_map(Result::err).unwrap_or_else(|| self.undecided(absent)))
    }

    fn undecided(&self, absent: usize) -> Error {
        let message = format!(
            "{absent} servers of a quorum have no lock in its list, and the answers of the others \
             do not decide; connect to all of them"
        );
        let error = Error::new(ErrorKind::Unavailable, message).transient(false);
        error.of(&self.parts[0].handle().site.name)
    }

    fn take(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<GuardLevels>, Error> {
        // In a forked child, a thread of the parent may have left a mutex locked.
        Error::if_forked(&self.name)?;
        if self.rule != Rule::All {
            let check = |part: &Arc<dyn Part>| part.handle().check_level(thread);
            self.parts.iter().try_for_each(check)?;
            return quorum::acquire(self, thread, &wait);
        }
        for _ in 0..MOST_LOST {
            let Some(levels) = self.acquire_all(thread, &wait)? else { return Ok(None) };
            if !levels.remaining().is_zero() {
                return Ok(Some(levels));
            }
            // The thread lost the first parts while it waited for the last parts.
            drop(levels);
            if wait.blocks() && wait.is_over() {
                return Ok(None);
            }
        }
        let message = "its lease ended several times before the other locks were granted; nothing \
                       was taken, take a longer lease";
        Err(Error::new(ErrorKind::ResponseTimeout, message.to_owned()).transient(true))
    }

    /// Takes all parts with one request, or one part after the other, in their order. Returns
    /// `None` if a part was not taken.
    fn acquire_all(
        &self,
        thread: &Arc<Thread>,
        wait: &Wait<'_>,
    ) -> Result<Option<GuardLevels>, Error> {
        // If a part is not usable, the call must return the error before it takes the first part.
        for part in &*self.parts {
            part.handle().check(thread, wait).map_err(|error| self.failed(part, error))?;
        }
        // The drop of `levels` releases the taken parts, the last part first.
        let mut levels = self.levels();
        let taken = together::take(&self.parts, thread, wait);
        let taken = taken.map_err(|error| self.failed(&self.parts[0], error))?;
        let Some(taken) = taken else { return Ok(None) };
        levels.held = taken;
        for part in &self.parts[levels.held.len()..] {
            let acquired = part.acquire(thread, *wait).map(|held| held.and_then(HeldLocks::one));
            match acquired.map_err(|error| self.failed(part, error))? {
                Some(held) => levels.held.push(held),
                None => return Ok(None),
            }
        }
        Ok(Some(levels))
    }

    /// Converts the error of one part to an error of the whole lock.
    fn failed(&self, part: &Arc<dyn Part>, error: Error) -> Error {
        let state = format!(
            "it is one of {} locks that are taken together, on the server at {}; the others were \
             released again, and nothing was taken",
            self.parts.len(),
            part.handle().site.core.address()
        );
        error.now(&state)
    }
}

impl Lock for MultiLock {
    fn unlock(&self) -> Result<(), Error> {
        let (mut levels, mut missing) = (self.levels(), None);
        for part in &*self.parts {
            match part.handle().tenancy()? {
                Some((tenancy, _)) => {
                    levels.held.push(HeldLock::last(part.handle(), tenancy));
                }
                None => missing = missing.or_else(|| Some(&part.handle().site)),
            }
        }
        let released = levels.held.len();
        let missing = missing.filter(|_| released < self.needed());
        levels.unlock()?;
        match missing {
            None => Ok(()),
            Some(site) if released == 0 => Err(site.not_held_by_thread()),
            Some(site) => {
                let message = "the calling thread does not hold it; the other locks of this \
                               MultiLock were released";
                Err(Error::new(ErrorKind::NotHeld, message.to_owned()).of(&site.name))
            }
        }
    }

    fn force_unlock(&self) -> Result<bool, Error> {
        let ended = self.ask(|part| part.force_unlock(), |_| true)?;
        Ok(ended.contains(&true))
    }

    fn is_locked(&self) -> Result<bool, Error> {
        let taken = self.ask(|part| part.is_locked(), |it| *it)?;
        let taken = taken.into_iter().filter(|it| *it).count();
        Ok(taken >= if self.rule == Rule::All { 1 } else { self.needed() })
    }

    fn hold_count(&self) -> usize {
        let mut counts: Vec<_> = self.parts.iter().map(|part| part.hold_count()).collect();
        counts.sort_unstable();
        counts[self.parts.len() - self.needed()]
    }

    fn remaining_lease(&self) -> Result<Option<Duration>, Error> {
        let leases = self.ask(|part| part.remaining_lease(), Option::is_some)?;
        let mut leases: Vec<_> = leases.into_iter().flatten().collect();
        leases.sort_unstable();
        let needed = if self.rule == Rule::All { leases.len() } else { self.needed() };
        Ok(leases.len().checked_sub(needed).and_then(|least| leases.get(least).copied()))
    }

    fn name(&self) -> &str {
        self.name.given()
    }

    fn acquire(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<HeldLocks>, Error> {
        Ok(self.take(thread, wait)?.map(HeldLocks::Several))
    }

    fn parts(&self) -> Parts {
        match self.rule {
            Rule::All => Parts(self.parts.to_vec()),
            Rule::MajorityOf(_) => Parts(Vec::new()),
        }
    }

    fn varied(&self, variant: Variant) -> Self {
        let parts = self.parts.iter().map(|part| part.varied_part(variant)).collect();
        Self { parts, name: self.name.clone(), rule: self.rule }
    }
}

/// Checks that each lock of a quorum is on its own server, as far as the locks' clients know.
fn vote_apart<'a>(handles: impl Iterator<Item = &'a Handle>) -> Result<(), Error> {
    let sites: Vec<_> = handles.map(|handle| &handle.site).collect();
    for (at, site) in sites.iter().enumerate() {
        if sites.iter().take(at).any(|other| other.core.is_at_same_server_as(&site.core)) {
            let message = format!(
                "two of the locks of a quorum are on the server at {}, whose vote would count \
                 twice; give each a server of its own",
                site.core.address()
            );
            return Err(Error::new(ErrorKind::Config, message).of(&site.name));
        }
    }
    Ok(())
}

fn majority(of: usize) -> usize {
    of / 2 + 1
}

/// Returns the parts of these locks. In a quorum, each lock must have exactly one part.
fn parts(
    locks: impl IntoIterator<Item: AsLock>,
    in_quorum: bool,
) -> Result<Vec<Arc<dyn Part>>, Error> {
    let config = |message: &str| Error::new(ErrorKind::Config, message.to_owned());
    let mut parts = Vec::new();
    for lock in locks {
        let lock = lock.as_lock();
        let Parts(mut own) = lock.parts();
        if own.is_empty() || (in_quorum && own.len() > 1) {
            let message = "a quorum cannot be a part of a MultiLock, nor a MultiLock a part of a \
                           quorum; list single locks";
            return Err(config(message).of(&lock.name().into()));
        }
        parts.append(&mut own);
    }
    let Some(first) = parts.first() else {
        return Err(config("a MultiLock needs at least one lock"));
    };
    Error::if_forked(&first.handle().site.name)?;
    Ok(parts)
}

/// Returns the rank of a part in the order of taking. The name comes first, because all processes
/// use the same name, while the address may differ. A failover does not change the rank.
fn rank(part: &Arc<dyn Part>) -> (Arc<str>, String, i64) {
    let site = &part.handle().site;
    (Arc::clone(&site.name), site.core.lasting_address(), site.core.database())
}

/// Whether both parts are the same key in Redis. If a thread took both parts through different
/// clients, it would wait for its own hold, which has another owner.
fn is_same(one: &dyn Part, other: &dyn Part) -> bool {
    let (one, other) = (&one.handle().site, &other.handle().site);
    *one.name == *other.name
        && one.core.database() == other.core.database()
        && one.core.is_at_same_server_as(&other.core)
}
