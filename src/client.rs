//! The public way to a Redis server: the client, and the locks that it makes.

use std::fmt;
use std::sync::Arc;

use crate::barrier::CyclicBarrier;
use crate::config::ClientBuilder;
use crate::election::LeaderElection;
use crate::error::Error;
#[cfg(doc)]
use crate::error::{ErrorKind, LostReason};
use crate::latch::CountDownLatch;
use crate::local;
use crate::lock::condition;
use crate::lock::fair::{self, FairLock};
use crate::lock::fenced::FencedLock;
use crate::lock::read_write::ReadWriteLock;
use crate::lock::reentrant::ReentrantLock;
use crate::runtime::{Core, Message, Session};
use crate::semaphore::{ExpirableSemaphore, Semaphore};
use crate::status::Status;

#[cfg(all(test, models))]
mod model_tests;

/// A client of one Redis server, of the master that Sentinels name, or of a cluster. It makes the
/// locks.
///
/// A clone is the same client. Each client has an owner id of its own, like a `RedissonClient`: a
/// process usually has one, made at its start. Its threads share a few connections; it opens one
/// more, for messages, when one of them waits for the first time, or has held a lock or permit for
/// 100 ms. It has three threads of its own, a fourth while `on_lost` callbacks run or log lines are
/// written, and others with Sentinels or in a cluster (the crate's documentation has all).
///
/// When the last clone, lock and guard of a client are gone, the client releases its holds (except
/// those [left to expire](crate::LockGuard::leave_to_expire)), reads the outstanding replies, and
/// ends its background threads: the last drop is a [`shutdown`](Self::shutdown), and may take as
/// long.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.reentrant_lock("orders");
/// let guard = lock.lock()?;
/// // … no other thread is here, on any machine, while guard.is_held() …
/// guard.unlock()?;
/// # Ok(()) }
/// ```
///
/// # Fork
///
/// A virtual machine that is cloned while it runs has the client twice, with one id: each copy
/// takes the other's holds for its own. End the client before, or connect anew in the clone.
///
/// A forked child has a client's memory and sockets, and none of its threads. There every call of
/// the client fails with kind [`Forked`](ErrorKind::Forked), guards say that they are lost, and
/// drops do nothing: the parent keeps its holds. The child cannot connect a client of its own: fork
/// before the first client connects, or run another program in the child (`exec`). Without `exec`, do
/// not cancel a parent's [`CancelToken`](crate::CancelToken) in the child, and fork before any thread
/// of the process sleeps in a mutex of parking_lot.
#[derive(Clone)]
pub struct Client(Session);

impl Client {
    /// Connects with the default settings.
    ///
    /// `url` is `redis://[[user]:password@]host[:port][/database]`, with `rediss://` for TLS
    /// (feature `tls`; `#insecure` at its end trusts any certificate), or
    /// `redis+unix:///path/to.sock[?db=number][&user=…&pass=…]`; each may have the parameter
    /// `protocol=resp3`. In a user or a password `/ ? # @ %` are written `%2F %3F %23 %40 %25`.
    ///
    /// A cluster's URL is `redis-cluster://[[user]:password@]host[:port][,host[:port]…]`, or
    /// `rediss-cluster://` with TLS: some of its servers, which name the others. User and password
    /// are those of all of them. For the guarantees there, see
    /// [Guarantees](crate::guide::guarantees).
    ///
    /// Behind Sentinels it is
    /// `redis-sentinel://[[user]:password@]host[:port][,host[:port]…]/service[/database]`, with
    /// `rediss-sentinel://` if Sentinels and servers speak TLS: the hosts are Sentinels (port 26379
    /// by default; one that works is enough, it names the others), the service is their name of the
    /// master. User and password are the servers'; those of the Sentinels are the parameters
    /// `sentinelUsername` and `sentinelPassword`, or
    /// [`sentinel_credentials`](ClientBuilder::sentinel_credentials). For the effect of a failover
    /// on a lock, see [the crate's page](crate#failover).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), redlatch::Error> {
    /// use redlatch::Client;
    ///
    /// let one_server = Client::connect("redis://:secret@redis.example/2")?;
    /// let by_sentinels = Client::connect(
    ///     "redis-sentinel://:secret@s1.example,s2.example,s3.example/mymaster/2?sentinelPassword=other",
    /// )?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Blocking
    ///
    /// Up to 17 s, if the server stops answering in the middle of it.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect()
    }

    /// Settings for a new client of the server at `url`, in the form that
    /// [`connect`](Self::connect) takes. No I/O.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    /// The lock of this name: Redisson's `RLock`, `redisson.getLock(name)`.
    ///
    /// No I/O. Handles of one name share the client's hold and its entry in the queue. Keeping a
    /// handle or making one for each call makes no difference. An empty name is an error of the
    /// first call that needs the server.
    #[must_use]
    pub fn reentrant_lock(&self, name: &str) -> ReentrantLock {
        ReentrantLock::new(&self.0, name)
    }

    /// The fenced lock of this name: Redisson's `RFencedLock`, `redisson.getFencedLock(name)`.
    ///
    /// No I/O. Do not use one name for a fenced lock and another kind: see
    /// [`FencedLock`](FencedLock#in-redis).
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        FencedLock::new(&self.0, name)
    }

    /// The read-write lock of this name: Redisson's `RReadWriteLock`,
    /// `redisson.getReadWriteLock(name)`.
    ///
    /// No I/O. One name is for one kind of lock: under the name of another kind it is refused
    /// (`WRONGTYPE`).
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> ReadWriteLock {
        ReadWriteLock::new(&self.0, name)
    }

    /// The fair lock of this name: Redisson's `RFairLock`, `redisson.getFairLock(name)`.
    ///
    /// No I/O. Do not use one name for a fair lock and another kind of lock: they exclude each
    /// other, but do not wake each other.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> FairLock {
        FairLock::new(&self.0, name)
    }

    /// The semaphore of this name: Redisson's `RSemaphore`, `redisson.getSemaphore(name)`.
    ///
    /// No I/O. It has no permits until a client adds some
    /// ([`try_set_permits`](Semaphore::try_set_permits)).
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(&self.0, name)
    }

    /// The expirable semaphore of this name: Redisson's `RPermitExpirableSemaphore`,
    /// `redisson.getPermitExpirableSemaphore(name)`.
    ///
    /// No I/O. It has no permits until a client adds some
    /// ([`try_set_permits`](ExpirableSemaphore::try_set_permits)). A [`Semaphore`] of the same name
    /// would count the same permits and know nothing of the leases: use one name for one of the
    /// two.
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(&self.0, name)
    }

    /// The count-down latch of this name: Redisson's `RCountDownLatch`,
    /// `redisson.getCountDownLatch(name)`.
    ///
    /// No I/O. It is open until a client sets a count
    /// ([`try_set_count`](CountDownLatch::try_set_count)).
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(&self.0, name)
    }

    /// The election of this name. Redisson has none.
    ///
    /// No I/O. Do not use one name for an election and another lock.
    #[must_use]
    pub fn leader_election(&self, name: &str) -> LeaderElection {
        LeaderElection::new(&self.0, name)
    }

    /// The cyclic barrier of this name. Redisson has none.
    ///
    /// No I/O. It is of no use until a client sets its parties
    /// ([`try_set_parties`](CyclicBarrier::try_set_parties)).
    #[must_use]
    pub fn cyclic_barrier(&self, name: &str) -> CyclicBarrier {
        CyclicBarrier::new(&self.0, name)
    }

    /// Returns the holders of this name and its waiters, of any kind of synchronizer, and
    /// whichever client uses it, one of Redisson's too. Already old when it returns.
    ///
    /// It changes nothing and takes no lock, so it is safe beside any work on the name. It lists up
    /// to 1,000 holders and 1,000 waiters. The process of an owner is found by the name of its
    /// connections, which ends with the client's [`id`](Self::id).
    ///
    /// # Errors
    ///
    /// [`Redis`](ErrorKind::Redis) if the server is in trouble or refuses.
    /// [`Protocol`](ErrorKind::Protocol) if its answer makes no sense. [`Config`](ErrorKind::Config)
    /// if the name is empty. [`ShutDown`](ErrorKind::ShutDown), [`Forked`](ErrorKind::Forked).
    ///
    /// # Blocking
    ///
    /// One round trip. A second one (`CLIENT LIST`, which takes the server about a millisecond for
    /// 1,000 connections) if the name has an owner.
    pub fn status(&self, name: &str) -> Result<Status, Error> {
        Status::of(self.0.core(), name)
    }

    /// Releases a lock for its owner, of any client, and no other's hold: `owner` is a
    /// [`Holder`](crate::Holder)'s. `false`: it does not have the lock. As
    /// [`Lock::force_unlock`](crate::Lock::force_unlock), this does not stop the holder, which
    /// learns of it soon if it is a client of redlatch.
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status). The message says whether the lock may be released.
    ///
    /// # Blocking
    ///
    /// A [`status`](Self::status), and one round trip.
    #[must_use = "`false`: the owner does not have the lock"]
    pub fn release_for(&self, name: &str, owner: &str) -> Result<bool, Error> {
        Status::end(self.0.core(), name, owner)
    }

    /// The [`status`](Self::status) of each name in use that matches the pattern (with `*` and `?`,
    /// as in Redis's `KEYS`), by name: locks that are held, expirable semaphores with permits out,
    /// and semaphores and latches that processes wait for.
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status). The user needs the right to `SCAN`, too.
    ///
    /// # Blocking
    ///
    /// It scans all keys of each server, for people and not for programs: two round trips for every
    /// 500 keys, each of which takes the server less than a millisecond, one for each hash, and one
    /// `CLIENT LIST` for each server.
    pub fn statuses(&self, pattern: &str) -> Result<Vec<Status>, Error> {
        Status::all(self.0.core(), pattern)
    }

    /// The uuid with which the owners of this client's locks begin on the server; the name of each
    /// of its connections and each of its log lines end with it. No I/O.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.core().id.as_str()
    }

    /// Ends the client now, though handles of it are left: waiting threads get an error of kind
    /// [`ShutDown`](ErrorKind::ShutDown), as does every later call; the client releases its holds,
    /// and their guards are lost ([`LostReason::ShutDown`]).
    ///
    /// In a forked child it does nothing.
    ///
    /// # Blocking
    ///
    /// Until the releases are answered and the background threads have ended. If the server does
    /// not answer, for at most about `connect_timeout` and twice `response_timeout`; a thread that
    /// is in the middle of a request ends by itself soon after. If an `on_lost` callback or the
    /// logger does not return, also for at most twice `response_timeout`, and its thread ends when
    /// it does.
    pub fn shutdown(&self) {
        self.0.shut_down();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.0.core().id.as_str()).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Connects, and starts the client's background threads.
    ///
    /// # Errors
    ///
    /// - [`Config`](ErrorKind::Config) if a setting or the URL is not usable, if the server is a
    ///   Sentinel though the URL is not for Sentinels, or with a cluster's URL is in no cluster, if
    ///   no Sentinel knows the master, if the server is too old, or lacks the URL's database, or if
    ///   the system gives no threads or no random numbers. Trying again does not help.
    /// - [`Redis`](ErrorKind::Redis) if the server or its Sentinels cannot be reached, does not
    ///   answer in time, or refuses the client: for its password, its protected mode, its number of
    ///   connections, the right to run scripts.
    /// - [`Protocol`](ErrorKind::Protocol) if the answer is not that of a Redis server.
    /// - [`Forked`](ErrorKind::Forked) if this process was forked from one that had called this.
    ///
    /// Nothing stays behind: no thread, no connection, and nothing on the server.
    ///
    /// # Blocking
    ///
    /// For the connection's set-up and a few round trips, which measure the distance of the server:
    /// for at most `connect_timeout`, and `response_timeout` for each of four requests.
    pub fn connect(self) -> Result<Client, Error> {
        self.check()?;
        Session::open(&self.url, self.config, unclaimed).map(Client)
    }
}

/// Handles a script's message to an owner of this client that does not wait any more.
pub(crate) fn unclaimed(core: &Arc<Core>, owner: u64, news: &Message<'_>) {
    match news {
        Message::Ask { lock } => fair::take_out(core, owner, lock),
        Message::Grant(grant) => {
            local::give_back_unclaimed(core, owner, grant);
            fair::give_back_unclaimed(core, owner, grant);
        }
        Message::Notified { database, waiting } => {
            condition::pass_on(core, owner, *database, waiting);
        }
        Message::Open { database, lock, .. } => {
            local::give_up_unclaimed(core, owner, *database, lock);
        }
    }
}
