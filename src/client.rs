//! The client, and the constructors of its locks.

use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::{clock, is_forked};

use crate::barrier::CyclicBarrier;
use crate::config::ClientBuilder;
use crate::election::{Leader, LeaderElection};
use crate::error::Error;
#[cfg(doc)]
use crate::error::{ErrorKind, LostReason};
use crate::latch::CountDownLatch;
use crate::lock::OwnedLockGuard;
use crate::lock::condition;
use crate::lock::fair::FairLock;
use crate::lock::fenced::{FencedLock, OwnedFencedLockGuard};
use crate::lock::multi::MultiLock;
use crate::lock::read_write::ReadWriteLock;
use crate::lock::reentrant::ReentrantLock;
use crate::lock::ticket::{self, Ticket};
use crate::owner::Owner;
use crate::runtime::{Core, Message, Session};
use crate::scripts::Rights;
use crate::semaphore::{ExpirableSemaphore, Semaphore};
use crate::site;
use crate::snapshot::Snapshot;
use crate::status::{ServerInfo, Status};

#[cfg(all(test, models))]
mod model_tests;
#[cfg(all(test, testkit))]
mod tests;

/// A client of one Redis server, of the master that Sentinels name, or of a cluster. The methods of
/// a `Client` return the locks and the other synchronizers.
///
/// All clones of a `Client` refer to the same client. Each client has an [`id`](Self::id), like a
/// `RedissonClient`. Usually a process connects one client at its start: see [Threads and
/// connections](crate#threads-and-connections).
///
/// When the last clone, handle and guard of a client is dropped, the client shuts down as
/// [`shutdown`](Self::shutdown) does. The drop may block for as long as `shutdown`. The drop
/// releases the client's locks, except locks that were [left to
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
/// [`Forked`](ErrorKind::Forked), every guard reports its lock as lost, and drops do nothing. The
/// parent keeps its locks. The child cannot connect a client of its own. Fork before the first
/// client connects, or run another program in the child (`exec`). If the child does not `exec`,
/// fork before any thread of the process sleeps in a mutex of parking_lot, and do not cancel a
/// parent's [`CancelToken`](crate::CancelToken) in the child.
///
/// Do not clone a virtual machine while it runs a client. The clients in two copies of a machine
/// would have the same id, so each client would take the locks of the other client for its own.
/// Shut the client down first, or connect a new client in the clone.
#[derive(Clone)]
pub struct Client(Session);

impl Client {
    /// Connects with the default settings.
    ///
    /// `url` has one of these forms:
    ///
    /// - One server: `redis://[[user]:password@]host[:port][/database]`, or
    ///   `redis+unix:///path/to.sock[?db=number][&user=…&pass=…]`. A URL with `rediss://` uses TLS
    ///   (feature `tls`). If such a URL ends with `#insecure`, the client trusts any certificate.
    ///   Each of these URLs may have the parameter `protocol=resp3`.
    /// - A cluster: `redis-cluster://[[user]:password@]host[:port][,host[:port]…]`, or
    ///   `rediss-cluster://` with TLS. The hosts are some of the cluster's servers, which report
    ///   the other servers. All servers have the same user and password.
    /// - A master that Sentinels report:
    ///   `redis-sentinel://[[user]:password@]host[:port][,host[:port]…]/service[/database]`, or
    ///   `rediss-sentinel://` if Sentinels and servers use TLS. The hosts are Sentinels (port 26379
    ///   by default). One working Sentinel is enough, because it reports the other Sentinels. The
    ///   service is the Sentinels' name for the master. The user and password are for the servers.
    ///   The user and password for the Sentinels are the parameters `sentinelUsername` and
    ///   `sentinelPassword`, or [`sentinel_credentials`](ClientBuilder::sentinel_credentials).
    ///
    /// In a user or a password, write `/ ? # @ %` as `%2F %3F %23 %40 %25`.
    /// [Guarantees](crate::guide::guarantees#a-failover) describes the effects of a failover.
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
    /// # Errors
    ///
    /// The errors of [`ClientBuilder::connect`]. After an error, no connection and no thread
    /// remains.
    ///
    /// # Blocking
    ///
    /// Blocks for up to 17 s, if the server stops answering during the call.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect()
    }

    /// Returns a client without connecting it. The first call that needs the server connects: see
    /// [`ClientBuilder::connect_lazy`]. No I/O.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientBuilder::connect_lazy`]. This method returns no error if the server is
    /// unreachable.
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
    /// No I/O. All handles of one name refer to the same lock. If the name is empty, the first call
    /// that needs the server returns an error.
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
    /// No I/O. Use one name for one kind of lock. If the name is in use for another kind of lock,
    /// calls return an error (`WRONGTYPE`).
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> ReadWriteLock {
        ReadWriteLock::new(&self.0, name)
    }

    /// Returns the fair lock of this name: Redisson's `RFairLock`, `redisson.getFairLock(name)`.
    ///
    /// No I/O. Do not use one name for a fair lock and another kind of lock: the two locks exclude
    /// each other, but the release of one does not wake waiters of the other.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> FairLock {
        FairLock::new(&self.0, name)
    }

    /// Returns a lock of several re-entrant locks: a thread takes all of them or none. For other
    /// kinds of lock, and for several clients, use [`MultiLock::new`]. No I/O.
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
    /// No I/O. A new semaphore has no permits until a client sets their number
    /// ([`try_set_permits`](Semaphore::try_set_permits)).
    #[must_use]
    pub fn semaphore(&self, name: &str) -> Semaphore {
        Semaphore::new(&self.0, name)
    }

    /// Returns the expirable semaphore of this name: Redisson's `RPermitExpirableSemaphore`,
    /// `redisson.getPermitExpirableSemaphore(name)`.
    ///
    /// No I/O. A new semaphore has no permits until a client sets their number
    /// ([`try_set_permits`](ExpirableSemaphore::try_set_permits)). Do not use one name for an
    /// expirable semaphore and a [`Semaphore`], which would count the same permits without their
    /// leases.
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> ExpirableSemaphore {
        ExpirableSemaphore::new(&self.0, name)
    }

    /// Returns the count-down latch of this name: Redisson's `RCountDownLatch`,
    /// `redisson.getCountDownLatch(name)`.
    ///
    /// No I/O. A new latch is open until a client sets a count
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
    /// No I/O. A new barrier cannot be used until a client sets its parties
    /// ([`try_set_parties`](CyclicBarrier::try_set_parties)).
    #[must_use]
    pub fn cyclic_barrier(&self, name: &str) -> CyclicBarrier {
        CyclicBarrier::new(&self.0, name)
    }

    /// Returns the holders and the waiters of this name. The holders and waiters may use any kind
    /// of synchronizer and any client, including Redisson's. The result may be out of date when the
    /// call returns.
    ///
    /// The call changes nothing and takes no lock. The result lists up to 1,000 holders and 1,000
    /// waiters. The name of each redlatch connection ends with the [`id`](Self::id) of its client.
    /// To find an owner's process, the call compares the owner's uuid with these names.
    ///
    /// # Errors
    ///
    /// [Server trouble](ErrorKind#server-trouble) if the server refuses, is unreachable, or does
    /// not answer in time. [`Protocol`](ErrorKind::Protocol) if its reply is malformed.
    /// [`Config`](ErrorKind::Config) if the name is empty. [`ShutDown`](ErrorKind::ShutDown),
    /// [`Forked`](ErrorKind::Forked).
    ///
    /// # Blocking
    ///
    /// One round trip, and a second one if the name has an owner: `CLIENT LIST`, which takes the
    /// server about a millisecond for 1,000 connections.
    pub fn status(&self, name: &str) -> Result<Status, Error> {
        Status::of(self.0.core(), name)
    }

    /// Returns what this client holds and waits for now, its counts of events, and its connections.
    /// No I/O. The call locks the state of each name for a moment, so call it at most every few
    /// seconds.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        if is_forked() { Snapshot::default() } else { self.0.core().snapshot() }
    }

    /// Takes a lock or a permit away from `owner`, which may be an owner of any client. A
    /// [`Holder`](crate::status::Holder) and a guard show their owner. If the owner does not have
    /// the lock or the permit, the call changes nothing and returns `false`. A permit is given back
    /// to the [`ExpirableSemaphore`](ExpirableSemaphore::try_release) of this name. (For a permit
    /// of Redisson 3.16, which only Redisson can give back, the call also returns `false`.) Like
    /// [`Lock::force_unlock`](crate::Lock::force_unlock), the call does not stop the holder. A
    /// redlatch holder soon reports that its lock is lost.
    ///
    /// # Errors
    ///
    /// The errors of [`status`](Self::status). The message says whether the lock or the permit may
    /// have been released. [`Config`](ErrorKind::Config) if the holder's entry is not from redlatch
    /// or Redisson: nothing was changed.
    ///
    /// # Blocking
    ///
    /// For a lock, the round trips of [`status`](Self::status), and one more round trip, or two
    /// more if the lock may be a fair lock. For a permit, one round trip.
    #[must_use = "`false`: the owner does not have it"]
    pub fn release_owner(&self, name: &str, owner: &Owner) -> Result<bool, Error> {
        match owner.permit() {
            Some(id) => self.expirable_semaphore(name).try_release(&id),
            None => Status::end(self.0.core(), name, owner),
        }
    }

    /// Takes over the lock of a ticket, and returns the lock's guard. The lock is never free
    /// between [`into_ticket`](crate::LockGuard::into_ticket) and this call. After the call, the
    /// watchdog renews the lock, with a lease of
    /// [`watchdog_timeout`](ClientBuilder::watchdog_timeout).
    ///
    /// The first client that adopts a ticket gets the lock. After this, the ticket is used up, but
    /// the guard can make a new ticket. Other processes, and other threads of this process, that
    /// wait for the lock continue to wait.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use redlatch::{Client, Error, OwnedLockGuard, Ticket};
    /// /// Adopts the ticket of the predecessor, through an outage of the server.
    /// fn go_on(client: &Client, ticket: &Ticket) -> Result<OwnedLockGuard, Error> {
    ///     loop {
    ///         match client.adopt(ticket) {
    ///             Err(error) if error.is_transient() => {
    ///                 std::thread::sleep(Duration::from_millis(100));
    ///             }
    ///             adopted => return adopted,
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`NotHeld`](ErrorKind::NotHeld) if the ticket does not have the lock, because a client has
    ///   adopted the ticket, the ticket's lease has ended, or the lock was taken away. The call has
    ///   changed nothing. (If an earlier call of this client has adopted the ticket, that call has
    ///   returned the only guard, or the error with which it gave the lock back.)
    /// - [Server trouble](ErrorKind#server-trouble) if the server refuses, is unreachable, or does
    ///   not answer in time. If [the outcome is unknown](Error::outcome_unknown), this client may
    ///   have adopted the ticket. In this case call `adopt` again: the second call repeats the same
    ///   adoption. Without a second call, the lock remains taken until the lease of the ticket, or
    ///   one lease of this client, has ended.
    /// - [`LeaseLost`](ErrorKind::LeaseLost) if the lock was lost before this call returned.
    /// - [`Config`](ErrorKind::Config) for the ticket of a fenced lock, or if the lock's name is
    ///   empty.
    /// - [`ShutDown`](ErrorKind::ShutDown), [`Forked`](ErrorKind::Forked).
    ///
    /// # Blocking
    ///
    /// One round trip, or two if this process has not noticed yet that it has lost an earlier hold
    /// of this name. The call never waits for another holder.
    pub fn adopt(&self, ticket: &Ticket) -> Result<OwnedLockGuard, Error> {
        ticket::adopt(&self.0, ticket)
    }

    /// Like [`adopt`](Self::adopt), for the ticket of a [`FencedLock`]. The new guard's token is
    /// higher than the token of the guard that became the ticket.
    ///
    /// # Errors
    ///
    /// The errors of [`adopt`](Self::adopt), but a ticket of a fenced lock is no error. For the
    /// ticket of a re-entrant lock, the error is of kind [`Config`](ErrorKind::Config).
    ///
    /// # Blocking
    ///
    /// Like [`adopt`](Self::adopt).
    pub fn adopt_fenced(&self, ticket: &Ticket) -> Result<OwnedFencedLockGuard, Error> {
        ticket::adopt_fenced(&self.0, ticket)
    }

    /// Returns the [`status`](Self::status) of each name in use that matches the pattern (with `*`
    /// and `?`, as in Redis's `KEYS`), sorted by name. Names in use are the names of held locks, of
    /// expirable semaphores with taken permits, and of semaphores and latches for which processes
    /// wait.
    ///
    /// # Errors
    ///
    /// The errors of [`status`](Self::status). The user also needs the right to `SCAN`.
    ///
    /// # Blocking
    ///
    /// The call scans all keys of each server, so programs should not call it regularly. The call
    /// needs three round trips for every 100 keys, one for each hash, and one `CLIENT LIST` for
    /// each server. Each round trip for keys takes the server less than a millisecond.
    pub fn statuses(&self, pattern: &str) -> Result<Vec<Status>, Error> {
        Status::all(self.0.core(), pattern)
    }

    /// Returns the server's description of itself: its version, its role, its eviction policy and
    /// so on. In a cluster, there is an entry for each master.
    ///
    /// # Errors
    ///
    /// The errors of [`status`](Self::status), except `Config`.
    ///
    /// # Blocking
    ///
    /// One round trip for each server.
    pub fn server_infos(&self) -> Result<Vec<ServerInfo>, Error> {
        ServerInfo::all(self.0.core())
    }

    /// Asks whether the URL's user has these [rights](Rights) for this name. The call changes
    /// nothing and takes no lock. (The client also checks the rights on each connection, before the
    /// first request of each kind of synchronizer.)
    ///
    /// # Errors
    ///
    /// [`Denied`](ErrorKind::Denied) if a right is missing: the message names the right. The other
    /// errors are those of [`status`](Self::status).
    ///
    /// # Blocking
    ///
    /// One round trip, or two if `rights` covers two kinds of synchronizers (as `Conditions` does).
    pub fn check_rights(&self, rights: Rights, name: &str) -> Result<(), Error> {
        Status::check_rights(self.0.core(), rights, name)
    }

    /// Returns the client's uuid. On the server, the owners of the client's locks begin with this
    /// id. The names of the client's connections end with this id, and so do its log lines. No I/O.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.core().id.as_str()
    }

    /// Ends the client now, even if it still has handles. Waiting threads and later calls get an
    /// error of kind [`ShutDown`](ErrorKind::ShutDown). The client releases its locks, and the
    /// guards report their loss ([`LostReason::ShutDown`]).
    ///
    /// In a forked child the call does nothing.
    ///
    /// # Blocking
    ///
    /// Blocks until the server has answered the releases and the background threads have ended. If
    /// the server does not answer, the call takes at most about `connect_timeout` and twice
    /// `response_timeout`. A thread in the middle of a request ends soon after the call. If an
    /// `on_lost` callback or the logger does not return, the call waits for at most twice
    /// `response_timeout` more.
    pub fn shutdown(&self) {
        self.0.shut_down();
    }
}

// This method is in this file because the module `election` does not use `Client`.
impl Leader {
    /// Returns whether this client is the recorded leader. The record may be out of date: see
    /// [`Leadership::check`](crate::election::Leadership::check).
    #[must_use]
    pub fn is(&self, client: &Client) -> bool {
        self.who.rsplit_once('#').is_some_and(|(_, id)| id == client.id())
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
    ///   the server is too old or lacks the URL's database, or if the system provides no threads or
    ///   no random numbers. Another attempt does not help.
    /// - [Server trouble](ErrorKind#server-trouble) if the client cannot reach the server or its
    ///   Sentinels, if they do not answer in time, or if they refuse the client. The servers may
    ///   refuse the client because its user, password or certificate is wrong or missing, because
    ///   they are in protected mode or have no free connection, or because the user may not run
    ///   scripts.
    /// - [`Protocol`](ErrorKind::Protocol) if the answer is not that of a Redis server.
    /// - [`Forked`](ErrorKind::Forked) if this process is a forked child and its parent had
    ///   connected a client before the fork.
    ///
    /// After an error, the client leaves no thread, no connection and no data on the server.
    ///
    /// # Blocking
    ///
    /// Blocks while the client connects and measures the round trip to the server with a few
    /// requests. The call blocks for at most `connect_timeout`, and `response_timeout` for each of
    /// four requests.
    pub fn connect(self) -> Result<Client, Error> {
        self.check()?;
        Ok(Client::of(Session::open(&self.url, self.config, unclaimed)?))
    }

    /// Starts the client's background threads. The first call that needs the server connects. Use
    /// this for a process that must start even if its server is unreachable.
    ///
    /// While there is no connection yet, calls behave as in an outage: a call that waits keeps
    /// trying for [`failover_timeout`](Self::failover_timeout), and any other call fails at once.
    /// If [`connect`](Self::connect) would refuse the server (for example because the server is too
    /// old, or the password is wrong), each call fails with that error until the client finds a
    /// usable server. The client treats a replica as an unreachable server. With a cluster's URL, a
    /// call looks for other servers of the cluster for [`response_timeout`](Self::response_timeout)
    /// before it fails. The client never sends a command to a server that belongs to no cluster.
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
    /// Before the first connection, a [`MultiLock`](crate::MultiLock) distinguishes servers only by
    /// their addresses. (A quorum detects that two addresses belong to the same server after it has
    /// connected to both addresses.) If [`connections`](Self::connections) is not set, the client
    /// has eight connections for commands.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if a setting or the URL is not usable, or if the system
    /// provides no threads or no random numbers. [`Forked`](ErrorKind::Forked) as in
    /// [`connect`](Self::connect).
    ///
    /// # Blocking
    ///
    /// No I/O. The first connection takes as long as [`connect`](Self::connect) would have taken,
    /// within [`connect_timeout`](Self::connect_timeout).
    pub fn connect_lazy(self) -> Result<Client, Error> {
        self.check()?;
        Ok(Client::of(Session::open_lazily(&self.url, self.config, unclaimed)?))
    }
}

/// Handles a script's message to an owner of this client for which no thread waits, because the
/// owner has the lock or its thread has given up.
pub(crate) fn unclaimed(core: &Arc<Core>, owner: u64, message: &Message<'_>) {
    match message {
        Message::Ask { lock } => site::standing::take_out(core, owner, lock),
        Message::Grant { details, database, lock, .. } => {
            site::give_back_unclaimed(core, owner, *database, lock, details);
            site::standing::give_back_unclaimed(core, owner, *database, lock, details);
        }
        Message::Notified { database, waiting } => {
            condition::pass_on(core, owner, *database, waiting);
        }
        Message::Open { database, lock, .. } => {
            site::give_up_unclaimed(core, owner, *database, lock);
        }
        Message::Wanted { lock } => core.members.told_wanted(lock, owner, true, clock::now()),
    }
}
