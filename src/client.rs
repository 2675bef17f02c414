//! The public way to a Redis server: the client, and the locks that it makes.

use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::is_forked;

use crate::barrier::CyclicBarrier;
use crate::config::ClientBuilder;
use crate::election::LeaderElection;
use crate::error::Error;
#[cfg(doc)]
use crate::error::{ErrorKind, LostReason};
use crate::latch::CountDownLatch;
use crate::lock::condition;
use crate::lock::fair::FairLock;
use crate::lock::fenced::FencedLock;
use crate::lock::multi::MultiLock;
use crate::lock::read_write::ReadWriteLock;
use crate::lock::reentrant::ReentrantLock;
use crate::runtime::{Core, Message, Session};
use crate::semaphore::{ExpirableSemaphore, Semaphore};
use crate::site;
use crate::snapshot::Snapshot;
use crate::status::Status;

#[cfg(all(test, models))]
mod model_tests;
#[cfg(all(test, testkit))]
mod tests;

/// A client of one Redis server, of the master that Sentinels name, or of a cluster. It makes the
/// locks and the other synchronizers.
///
/// A clone is the same client. Each client has an [`id`](Self::id) of its own, like a
/// `RedissonClient`. A process usually makes one at its start: see [Threads and
/// connections](crate#threads-and-connections).
///
/// The drop of the last clone, handle and guard of a client is a [`shutdown`](Self::shutdown), and
/// may take as long. It releases the client's locks, except those [left to
/// expire](crate::LockGuard::leave_to_expire).
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
/// A client belongs to its process. In a forked child each call of the client fails with kind
/// [`Forked`](ErrorKind::Forked), every guard says that its lock is lost, and drops do nothing. The
/// parent keeps its locks. The child cannot connect a client of its own, so fork before the first
/// client connects, or run another program in the child (`exec`). Without `exec`, do not cancel a
/// parent's [`CancelToken`](crate::CancelToken) in the child, and fork before any thread of the
/// process sleeps in a mutex of parking_lot.
///
/// Do not clone a virtual machine while it runs a client. Both copies would have one id, and each
/// would take the other's locks for its own. Shut the client down first, or connect a new one in
/// the clone.
#[derive(Clone)]
pub struct Client(Session);

impl Client {
    /// Connects with the default settings.
    ///
    /// `url` has one of these forms:
    ///
    /// - One server: `redis://[[user]:password@]host[:port][/database]`, with `rediss://` for TLS
    ///   (feature `tls`; `#insecure` at the end trusts any certificate), or
    ///   `redis+unix:///path/to.sock[?db=number][&user=…&pass=…]`. Each may have the parameter
    ///   `protocol=resp3`.
    /// - A cluster: `redis-cluster://[[user]:password@]host[:port][,host[:port]…]`, or
    ///   `rediss-cluster://` with TLS. The hosts are some of its servers, which name the others.
    ///   The user and password are those of all servers.
    /// - A master that Sentinels name:
    ///   `redis-sentinel://[[user]:password@]host[:port][,host[:port]…]/service[/database]`, or
    ///   `rediss-sentinel://` if Sentinels and servers use TLS. The hosts are Sentinels (port 26379
    ///   by default). One that works is enough, since it names the others. The service is the
    ///   Sentinels' name of the master. The user and password are the servers'; the parameters
    ///   `sentinelUsername` and `sentinelPassword`, or
    ///   [`sentinel_credentials`](ClientBuilder::sentinel_credentials), are the Sentinels'.
    ///
    /// In a user or a password, write `/ ? # @ %` as `%2F %3F %23 %40 %25`.
    /// [Guarantees](crate::guide::guarantees#a-failover) says what a failover costs.
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
    /// Up to 17 s, if the server stops answering meanwhile.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect()
    }

    /// As [`connect`](Self::connect), but the first call that needs the server connects: see
    /// [`ClientBuilder::connect_lazy`]. No I/O.
    pub fn connect_lazy(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect_lazy()
    }

    /// Returns the settings for a new client of the server at `url`: see
    /// [`connect`](Self::connect). No I/O.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    fn of(session: Session) -> Self {
        let _first = session.core().slow_line.set(Status::slow_line);
        Self(session)
    }

    /// Returns the lock of this name: Redisson's `RLock`, `redisson.getLock(name)`.
    ///
    /// No I/O. All handles of one name are the same lock. If the name is empty, the first call that
    /// needs the server returns an error.
    #[must_use]
    pub fn reentrant_lock(&self, name: &str) -> ReentrantLock {
        ReentrantLock::new(&self.0, name)
    }

    /// Returns the fenced lock of this name: Redisson's `RFencedLock`,
    /// `redisson.getFencedLock(name)`.
    ///
    /// No I/O. Do not use one name for a fenced lock and another kind: see
    /// [`FencedLock`](FencedLock#in-redis).
    #[must_use]
    pub fn fenced_lock(&self, name: &str) -> FencedLock {
        FencedLock::new(&self.0, name)
    }

    /// Returns the read-write lock of this name: Redisson's `RReadWriteLock`,
    /// `redisson.getReadWriteLock(name)`.
    ///
    /// No I/O. Use one name for one kind of lock. If the name has another kind, calls return an
    /// error (`WRONGTYPE`).
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> ReadWriteLock {
        ReadWriteLock::new(&self.0, name)
    }

    /// Returns the fair lock of this name: Redisson's `RFairLock`, `redisson.getFairLock(name)`.
    ///
    /// No I/O. Do not use one name for a fair lock and another kind of lock: they exclude each
    /// other, but do not wake each other.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> FairLock {
        FairLock::new(&self.0, name)
    }

    /// Returns the re-entrant locks of these names, all or none of which a thread takes. For other
    /// kinds, and for several clients, there is [`MultiLock::new`]. No I/O.
    ///
    /// ```no_run
    /// # fn transfer(client: &redlatch::Client) -> Result<(), redlatch::Error> {
    /// let both = client.multi_lock(["account:7", "account:3"])?;
    /// both.with(|_guard| Ok(()))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if there is no name. [`Forked`](ErrorKind::Forked) in a forked
    /// child.
    pub fn multi_lock(
        &self,
        names: impl IntoIterator<Item: AsRef<str>>,
    ) -> Result<MultiLock, Error> {
        MultiLock::new(names.into_iter().map(|name| self.reentrant_lock(name.as_ref())))
    }

    /// Returns the semaphore of this name: Redisson's `RSemaphore`, `redisson.getSemaphore(name)`.
    ///
    /// No I/O. It has no permits until a client adds some
    /// ([`try_set_permits`](Semaphore::try_set_permits)).
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(&self.0, name)
    }

    /// Returns the expirable semaphore of this name: Redisson's `RPermitExpirableSemaphore`,
    /// `redisson.getPermitExpirableSemaphore(name)`.
    ///
    /// No I/O. It has no permits until a client adds some
    /// ([`try_set_permits`](ExpirableSemaphore::try_set_permits)). Do not use one name for this and
    /// a [`Semaphore`], which would count the same permits without their leases.
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(&self.0, name)
    }

    /// Returns the count-down latch of this name: Redisson's `RCountDownLatch`,
    /// `redisson.getCountDownLatch(name)`.
    ///
    /// No I/O. It is open until a client sets a count
    /// ([`try_set_count`](CountDownLatch::try_set_count)).
    #[must_use]
    pub fn count_down_latch(&self, name: &str) -> CountDownLatch {
        CountDownLatch::new(&self.0, name)
    }

    /// Returns the election of this name. Redisson has no elections.
    ///
    /// No I/O. Do not use one name for an election and another lock.
    #[must_use]
    pub fn leader_election(&self, name: &str) -> LeaderElection {
        LeaderElection::new(&self.0, name)
    }

    /// Returns the cyclic barrier of this name. Redisson has no barriers.
    ///
    /// No I/O. It cannot be used until a client sets its parties
    /// ([`try_set_parties`](CyclicBarrier::try_set_parties)).
    #[must_use]
    pub fn cyclic_barrier(&self, name: &str) -> CyclicBarrier {
        CyclicBarrier::new(&self.0, name)
    }

    /// Returns the holders and the waiters of this name, for any kind of synchronizer and any
    /// client, also Redisson's. The result may be out of date when the call returns.
    ///
    /// The call changes nothing and takes no lock. It lists up to 1,000 holders and 1,000 waiters.
    /// It finds the process of an owner by the name of its connections, which ends with the
    /// client's [`id`](Self::id).
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses, is away, or does not
    /// answer in time. [`Protocol`](ErrorKind::Protocol) if its answer makes no sense.
    /// [`Config`](ErrorKind::Config) if the name is empty. [`ShutDown`](ErrorKind::ShutDown),
    /// [`Forked`](ErrorKind::Forked).
    ///
    /// # Blocking
    ///
    /// One round trip. A second one (`CLIENT LIST`, which takes the server about a millisecond for
    /// 1,000 connections) if the name has an owner.
    pub fn status(&self, name: &str) -> Result<Status, Error> {
        Status::of(self.0.core(), name)
    }

    /// What this client has and waits for at this moment, how often it has had something, and its
    /// connections. No I/O. It looks at all names in turn, each for a moment: for people, or a
    /// metric every few seconds.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        if is_forked() { Snapshot::default() } else { self.0.core().snapshot() }
    }

    /// Releases a lock if this owner has it, in any client. `owner` is that of a
    /// [`Holder`](crate::status::Holder). Returns `false` if the owner does not have the lock. Like
    /// [`Lock::force_unlock`](crate::Lock::force_unlock), this does not stop the holder. A holder
    /// in a client of redlatch soon learns of its loss.
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status). The message says whether the lock may have been released.
    ///
    /// # Blocking
    ///
    /// A [`status`](Self::status), and one round trip, or two if it may be a fair lock.
    #[must_use = "`false`: the owner does not have the lock"]
    pub fn release_for(&self, name: &str, owner: &str) -> Result<bool, Error> {
        Status::end(self.0.core(), name, owner)
    }

    /// Returns the [`status`](Self::status) of each name in use that matches the pattern (with `*`
    /// and `?`, as in Redis's `KEYS`), sorted by name. Names in use are those of locks that are
    /// held, of expirable semaphores with taken permits, and of semaphores and latches for which
    /// processes wait.
    ///
    /// # Errors
    ///
    /// Those of [`status`](Self::status). The user also needs the right to `SCAN`.
    ///
    /// # Blocking
    ///
    /// It scans all keys of each server, so it is for people and not for programs. It needs three
    /// round trips for every 100 keys, each of which takes the server less than a millisecond, one
    /// for each hash, and one `CLIENT LIST` for each server.
    pub fn statuses(&self, pattern: &str) -> Result<Vec<Status>, Error> {
        Status::all(self.0.core(), pattern)
    }

    /// Returns the client's uuid. On the server, the owners of its locks begin with it, and the
    /// names of its connections end with it, as do its log lines. No I/O.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.core().id.as_str()
    }

    /// Ends the client now, even if handles of it are left. Waiting threads and later calls get an
    /// error of kind [`ShutDown`](ErrorKind::ShutDown). The client releases its locks, and the
    /// guards report their loss ([`LostReason::ShutDown`]).
    ///
    /// In a forked child it does nothing.
    ///
    /// # Blocking
    ///
    /// Until the server has answered the releases and the background threads have ended. If the
    /// server does not answer, this takes at most about `connect_timeout` and twice
    /// `response_timeout`; a thread in the middle of a request ends soon after. If an `on_lost`
    /// callback or the logger does not return, the call waits for at most another twice
    /// `response_timeout`.
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
    /// - [`Config`](ErrorKind::Config) if a setting or the URL is not usable, if the URL's form
    ///   does not fit the server (a Sentinel, or no cluster), if no Sentinel knows the master, if
    ///   the server is too old or lacks the URL's database, or if the system gives no threads or no
    ///   random numbers. Trying again does not help.
    /// - [Server trouble](ErrorKind#server-trouble) if the client cannot reach the server or its
    ///   Sentinels, if they do not answer in time, or if they refuse the client: its user, password
    ///   or certificate is wrong or missing, they are in protected mode, they have no connection
    ///   left, or the user may not run scripts.
    /// - [`Protocol`](ErrorKind::Protocol) if the answer is not that of a Redis server.
    /// - [`Forked`](ErrorKind::Forked) if this process was forked from one that had called this.
    ///
    /// After an error nothing stays behind: no thread, no connection, and nothing on the server.
    ///
    /// # Blocking
    ///
    /// For the set-up of the connection and a few round trips, which measure the distance of the
    /// server: at most `connect_timeout`, and `response_timeout` for each of four requests.
    pub fn connect(self) -> Result<Client, Error> {
        self.check()?;
        Ok(Client::of(Session::open(&self.url, self.config, unclaimed)?))
    }

    /// Starts the client's background threads, and lets the first call that needs the server
    /// connect. It is for a process that must start although its server is away.
    ///
    /// A call for which there is no connection yet is like one in an outage: a call that waits asks
    /// for [`failover_timeout`](Self::failover_timeout), and any other fails at once. If
    /// [`connect`](Self::connect) would refuse the server (it is too old, or its password is
    /// another one, say), each call fails with that error, until a server is found that may be
    /// used. A replica counts as a server that is away.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redlatch::{Client, Error, ErrorKind};
    /// # fn main() -> Result<(), Error> {
    /// // No server is there.
    /// let client = Client::connect_lazy("redis://127.0.0.1:1")?;
    /// let error = client.reentrant_lock("orders").try_lock().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unavailable);
    /// assert!(error.is_transient());
    /// # Ok(()) }
    /// ```
    ///
    /// What depends on the server is not known before: a [`MultiLock`](crate::MultiLock) tells
    /// servers apart by their addresses only (a quorum finds two names of one server once it has
    /// met both), and a client for which [`connections`](Self::connections) is not set has eight.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if a setting or the URL is not usable, if the URL is a
    /// cluster's (whose servers a client knows once one of them has answered), or if the system
    /// gives no threads or no random numbers. [`Forked`](ErrorKind::Forked) as with
    /// [`connect`](Self::connect).
    ///
    /// # Blocking
    ///
    /// No I/O. The first connection takes what [`connect`](Self::connect) would have taken, within
    /// [`connect_timeout`](Self::connect_timeout).
    pub fn connect_lazy(self) -> Result<Client, Error> {
        self.check()?;
        Ok(Client::of(Session::open_lazily(&self.url, self.config, unclaimed)?))
    }
}

/// Handles a script's message to an owner of this client that no longer waits.
pub(crate) fn unclaimed(core: &Arc<Core>, owner: u64, message: &Message<'_>) {
    match message {
        Message::Ask { lock } => site::standing::take_out(core, owner, lock),
        Message::Grant(grant) => {
            site::give_back_unclaimed(core, owner, grant);
            site::standing::give_back_unclaimed(core, owner, grant);
        }
        Message::Notified { database, waiting } => {
            condition::pass_on(core, owner, *database, waiting);
        }
        Message::Open { database, lock, .. } => {
            site::give_up_unclaimed(core, owner, *database, lock);
        }
    }
}
