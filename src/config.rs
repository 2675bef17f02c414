//! The settings of a client.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tls")]
use redlatch_client::Identity;
use redlatch_client::{AddressMap, Credentials, Provider, ReplicaAcks, Settings};

#[cfg(feature = "in-memory")]
use crate::aging::AgeTogether;
#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::observe::Observer;

/// The settings of a [`Client`] before it connects. [`Client::builder`] returns a `ClientBuilder`.
/// If a setting is not usable, [`connect`](Self::connect) returns an error. The settings of a
/// connected client do not change.
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::builder("redis://127.0.0.1:6379")
///     .watchdog_timeout(Duration::from_secs(10)) // how long others wait for a dead holder's lock
///     .response_timeout(Duration::from_secs(1)) // how long a call waits for a server that hangs
///     .connect()?;
/// # drop(client);
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "call connect()"]
pub struct ClientBuilder {
    pub(crate) url: String,
    pub(crate) config: Config,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) name: Option<String>,
    /// The prefix of each key, which the client puts before the name that the user gave.
    pub(crate) prefix: String,
    pub(crate) connection: Settings,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fair_wait_timeout: Duration,
    pub(crate) redisson_fair_lock_wait_timeout: Duration,
    pub(crate) connections: Option<usize>,
    pub(crate) failover_timeout: Duration,
    pub(crate) slow_wait: Duration,
    pub(crate) client_tracking: bool,
    pub(crate) allow_garnet: bool,
    pub(crate) credentials_with: Option<Provider<Credentials>>,
    #[cfg(feature = "tls")]
    pub(crate) tls_client_certificate_with: Option<Provider<Identity>>,
    pub(crate) replica_acks: Option<ReplicaAcks>,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// The other clients of the same in-memory server, whose leases age together with this
    /// client's.
    #[cfg(feature = "in-memory")]
    pub(crate) ages_with: Option<AgeTogether>,
}

// The fields with the user's callbacks do not implement these traits. `Config` is still unwind
// safe: the client catches a panic of a callback, and calls the callback again later.
impl UnwindSafe for Config {}
impl RefUnwindSafe for Config {}

impl Config {
    /// Returns how long a fair lock's waiter keeps its entry: first a redlatch waiter, then a
    /// Redisson waiter.
    pub(crate) fn fair_waits(&self) -> [Duration; 2] {
        [self.fair_wait_timeout, self.redisson_fair_lock_wait_timeout]
    }
}

const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
const LONGEST_TIMEOUT: Duration = LONGEST_WATCHDOG;
pub(crate) const SHORTEST_WATCHDOG: Duration = Duration::from_millis(10);
pub(crate) const LONGEST_WATCHDOG: Duration = Duration::from_secs(365 * 24 * 3600);
const SHORTEST_FAIR_WAIT: Duration = Duration::from_millis(100);
const LONGEST_FAIR_WAIT: Duration = Duration::from_secs(60);
const LONGEST_BUSY_POLL: Duration = Duration::from_millis(1);
const MOST_CONNECTIONS: usize = 1_024;
const LONGEST_NAME: usize = 200;

impl ClientBuilder {
    pub(crate) fn new(url: &str) -> Self {
        let config = Config {
            name: None,
            prefix: String::new(),
            connection: Settings::default(),
            watchdog_timeout: Duration::from_secs(30),
            max_hold: None,
            fair_wait_timeout: Duration::from_secs(10),
            redisson_fair_lock_wait_timeout: Duration::from_secs(300),
            connections: None,
            failover_timeout: Duration::from_secs(60),
            slow_wait: Duration::from_secs(5),
            client_tracking: true,
            allow_garnet: false,
            credentials_with: None,
            #[cfg(feature = "tls")]
            tls_client_certificate_with: None,
            replica_acks: None,
            observers: Vec::new(),
            #[cfg(feature = "in-memory")]
            ages_with: None,
        };
        Self { url: url.to_owned(), config }
    }

    /// Sets the name of the client's connections. `CLIENT LIST` shows this name, `#`, and the
    /// client's [`id`](crate::Client::id). The client replaces each character that the server
    /// allows in no name (for example a space) by `-`. If the server refuses the name, the
    /// connections have no name. [`OwnerProcess`](crate::status::OwnerProcess) reads the host and
    /// the process from this name. If the name ends with `@host:process`, [`Client::status`] shows
    /// the host and the process.
    ///
    /// `name` has at most 200 bytes. The default consists of the program, its host and the number
    /// of its process: `billing@host-7:4711`.
    pub fn name(mut self, name: &str) -> Self {
        self.config.name = Some(name.to_owned());
        self
    }

    /// Sets a prefix for each name, so that several programs or environments can use one server:
    /// with `shop:`, `reentrant_lock("orders")` is the lock whose key is `shop:orders`. All other
    /// keys and channels of a name are made from this key, like those of a Redisson client whose
    /// `NameMapper` returns `"shop:" + name`. Handles, errors, the log, observers, snapshots and
    /// [`status`](crate::Client::status) show `orders`. [`statuses`](crate::Client::statuses) finds
    /// only names with this prefix.
    ///
    /// The prefix must not contain `{` or `}`: in a cluster the text in the first braces of a key
    /// chooses the key's slot, so the first braces must be in the name. By default, the prefix is
    /// empty.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.config.prefix);
        self
    }

    /// Sets the lease of locks and of permits of an
    /// [`ExpirableSemaphore`](crate::ExpirableSemaphore). A handle may have another lease. The
    /// watchdog renews each lease after a third of this time. If a process dies, other processes
    /// wait for its locks and permits for up to this time.
    ///
    /// `timeout` is from 10 ms to a year. The default is 30 s, like Redisson's
    /// `lockWatchdogTimeout`.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.config.watchdog_timeout = timeout;
        self
    }

    /// Sets the maximum time for which the watchdog renews one lock or permit. After this time the
    /// lease ends, and the guard reports the loss, so that a thread that hangs does not keep a lock
    /// for ever.
    ///
    /// `longest` is more than zero. By default there is no limit.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.config.max_hold = Some(longest);
        self
    }

    /// Sets how long a waiter for a fair lock counts as alive without a keep-alive. The waiter's
    /// process sends a keep-alive every second, or every third of this time if that is less.
    /// redlatch's clients skip a killed waiter at once. Redisson's clients skip a killed waiter
    /// after this time or later: see [`FairLock`](crate::FairLock).
    ///
    /// `timeout` is from 100 ms to a minute. The default is 10 s. All clients of a lock need the
    /// same value.
    pub fn fair_wait_timeout(mut self, timeout: Duration) -> Self {
        self.config.fair_wait_timeout = timeout;
        self
    }

    /// Sets how long a Redisson waiter for a fair lock keeps its entry. Set the
    /// `fairLockWaitTimeout` of Redisson's clients, or the limit of their longest `tryLock` if that
    /// is more. If this setting is longer than Redisson's setting, a dead Redisson waiter may block
    /// the queue for a multiple of this time: once for each Redisson waiter ahead of it. If this
    /// setting is shorter than Redisson's setting, Redisson may drop live waiters of redlatch,
    /// which return to the head of the queue.
    ///
    /// `timeout` is from 1 ms to a year. The default is 5 minutes, like `fairLockWaitTimeout`. All
    /// clients of a lock need the same value. This setting has no effect if no Redisson client uses
    /// the lock.
    pub fn redisson_fair_lock_wait_timeout(mut self, timeout: Duration) -> Self {
        self.config.redisson_fair_lock_wait_timeout = timeout;
        self
    }

    /// Sets how long the client may take to open a connection. The time includes TCP, TLS, user and
    /// password, and the identification of the server.
    ///
    /// The client cannot interrupt the system's look-up of a host's name, so if no name server
    /// answers, a call takes longer. (With glibc the look-up takes 5 s for each try of each name
    /// server, if `resolv.conf` does not set another time.) If the URL has an IP address, no
    /// look-up is needed.
    ///
    /// `timeout` is from 1 ms to a year. The default is 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connection.connect_timeout = timeout;
        self
    }

    /// Sets how long the server may take to answer. After this time the outcome of a command is
    /// unknown: the caller gets an error, and the client releases in the background anything that
    /// the command may have taken.
    ///
    /// A call's own limit, deadline or cancel token ends a request earlier. For example, if the
    /// server does not answer, `try_lock_for` with 100 ms returns an error after 100 ms. A request
    /// of any other call fails after
    /// - this time;
    /// - this time and [`connect_timeout`](Self::connect_timeout), if the client must open a
    ///   connection;
    /// - at most twice the sum of these two times (16 s), if the request waits behind another
    ///   thread's request on the same connection;
    /// - at most three times the sum, if that connection breaks and the request is sent once more.
    ///
    /// `timeout` is from 1 ms to a year. The default is 3 s, like Redisson's `timeout`.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.config.connection.response_timeout = timeout;
        self
    }

    /// Sets how many connections the threads share for their commands. A name always uses the same
    /// connection. The client opens a connection when it first needs the connection. The client has
    /// two more connections, one for renewals and one for messages.
    ///
    /// From 1 to 1,024. The default depends on the round trip that the client measures when it
    /// connects: four on the same machine, up to sixteen over a network. With
    /// [`connect_lazy`](Self::connect_lazy) the default is eight.
    pub fn connections(mut self, count: usize) -> Self {
        self.config.connections = Some(count);
        self
    }

    /// Sets how long a thread that waits for its own reply polls its connection before it sleeps.
    /// Polling saves time if the server is on the same machine: its answer arrives sooner than the
    /// system can wake a sleeping thread on an idle processor. A thread that polls keeps a
    /// processor busy, so only one thread of the process polls at a time, and it yields to other
    /// threads that can run. If replies seldom come within this time, the client polls less often.
    /// [Performance](crate::guide::performance) says when polling is useful.
    ///
    /// `limit` is at most a millisecond. 50 µs is enough for a server on the same machine. By
    /// default, `limit` is zero, and no thread polls.
    pub fn busy_poll(mut self, limit: Duration) -> Self {
        self.config.connection.busy_poll = limit;
        self
    }

    /// Sets whether messages in a cluster use sharded channels (`SPUBLISH`) or channels of the
    /// whole cluster (`PUBLISH`). All clients of a cluster need the same value. Clients with
    /// different values do not wake each other. Redisson uses sharded channels since 3.22, unless
    /// its `shardedSubscriptionMode` is `OFF`.
    ///
    /// The default is `true`. This setting has no effect with one server.
    pub fn sharded_channels(mut self, sharded: bool) -> Self {
        self.config.connection.sharded_channels = sharded;
        self
    }

    /// Sets how long a waiting call tries again after its first failure, so that it outlasts a
    /// restart of the server or a failover. The call tries again while
    ///
    /// - the server cannot be reached, breaks the connection, does not answer in time, has no free
    ///   connection (`maxclients`), still loads its data, or has become a replica;
    /// - there is no master, or no server for a slot;
    /// - there are too few replicas for [`replica_acks`](Self::replica_acks) or for the server's
    ///   own `min-replicas-to-write`.
    ///
    /// When the server answers again, the outage is over. In the next outage, the call again tries
    /// for the full time. (An outage for lack of replicas is over only after the replicas have been
    /// back for this time.)
    ///
    /// The call's own limit or a cancellation ends the wait earlier. Any other error, such as a
    /// refused password or a server without memory (`maxmemory`), ends the wait at once. A call
    /// without a wait ([`try_lock`](crate::ReentrantLock::try_lock), `unlock`) and
    /// [`connect`](Self::connect) fail at once. If there is no master, such a call first looks
    /// for a master: with Sentinels for up to [`connect_timeout`](Self::connect_timeout), and in a
    /// cluster for up to the sum of `connect_timeout` and
    /// [`response_timeout`](Self::response_timeout).
    ///
    /// Set at least the time of a restart, or the time in which the Sentinels choose another
    /// master: their `down-after-milliseconds` plus a few seconds. With zero, the first failure
    /// ends a wait. `timeout` is at most a year. The default is 60 s.
    pub fn failover_timeout(mut self, timeout: Duration) -> Self {
        self.config.failover_timeout = timeout;
        self
    }

    /// Sets how long a wait for a lock or a permit lasts before the client logs a warning, once for
    /// each wait. If the server knows the holder of the lock, the warning names the holder: `waited
    /// 5 s for "orders", held by host-7, process 4711, which asked at 2026-11-29 13:45:02.117 UTC
    /// by its clock, for 25 s more unless it renews; 3 waiters before this one`. The wait
    /// continues. Each client logs at most one such line a second, and one a minute for each name.
    /// For one name, all clients together log at most one line a second. Warnings beyond these
    /// rates are logged later. For each line, a thread of the client calls
    /// [`status`](crate::Client::status) once.
    ///
    /// If the thread holds other locks of this client, the client logs a second line at once, for
    /// each such thread: `waited 5 s for "orders" while the thread holds "stock": a deadlock, if
    /// the other side waits for that`. Threads that take the same locks in different orders may
    /// wait for each other for ever, because the watchdog renews their locks. Locks in owned guards
    /// are not mentioned, because they belong to no thread. Waits for latches, barriers and
    /// elections are usually long, so for these waits the client logs only the second line.
    ///
    /// With [`Duration::MAX`], the client logs none of these lines. The default is 5 s.
    pub fn slow_wait(mut self, after: Duration) -> Self {
        self.config.slow_wait = after;
        self
    }

    /// Adds an observer, to which the client reports its waits, holds, losses and renewals. A
    /// client may have several observers. The client reports each event to all observers, in the
    /// order in which they were added.
    ///
    /// By default there is no observer.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.config.observers.push(Arc::new(observer));
        self
    }

    /// Sets whether the client asks the server to report changes of held keys (`CLIENT TRACKING`).
    /// With tracking, the client notices within milliseconds that another client has deleted its
    /// lock. Without tracking, the client notices the deletion only at its next renewal.
    ///
    /// Tracking costs nothing in the first 100 ms of a hold. A longer hold costs one request for
    /// tracking, and one more with each renewal. Tracking also needs an entry in the server's table
    /// (`tracking-table-max-keys`), and the connection for messages. If a key changes more than ten
    /// times a second, the client skips some of the requests. The client does not track more than
    /// 10,000 keys. If the server refuses to track keys, the client logs a line.
    ///
    /// The default is `true`.
    pub fn client_tracking(mut self, enabled: bool) -> Self {
        self.config.client_tracking = enabled;
        self
    }

    /// Sets whether [`connect`](Self::connect) accepts a Garnet server. By default Garnet runs
    /// scripts of several clients in parallel, so two clients may get the same lock. Allow Garnet
    /// only if your server runs with Garnet's setting `lua-transaction-mode`. redlatch is not
    /// tested with Garnet.
    ///
    /// The default is `false`.
    pub fn allow_garnet(mut self, allowed: bool) -> Self {
        self.config.allow_garnet = allowed;
        self
    }

    /// Sets the user and password for the server, without percent-encoding. This user and password
    /// replace those of the URL. An empty user is the server's default user. With Sentinels, the
    /// user and password are for the servers that the Sentinels watch.
    pub fn credentials(mut self, user: &str, password: &str) -> Self {
        self.config.connection.credentials = Some(Credentials::new(user, password));
        self
    }

    /// Sets a function that returns the user and password for the server. The returned user and
    /// password replace those of the URL and of [`credentials`](Self::credentials). Use this
    /// setting for tokens that expire after minutes, and for passwords that change while the client
    /// lives. The client calls the function for each connection that it opens. If the credentials
    /// have a limited validity ([`Credentials::valid_for`]), the client also calls the function
    /// after three quarters of this time. After a call for new credentials, open connections log in
    /// again (`AUTH`), and the client replaces its connections for messages. With Sentinels, the
    /// credentials are for the servers that the Sentinels watch. In a cluster, they are for all
    /// servers.
    ///
    /// `provider` may block: it runs on its own thread (`redlatch-creds`), one call at a time. A
    /// thread that opens a connection waits for the result within
    /// [`connect_timeout`](Self::connect_timeout). A failure or a panic of `provider` is an outage
    /// for the client: waiting calls continue to wait, the client renews locks over its open
    /// connections, and it calls `provider` again for the next connection. If the server refuses
    /// the credentials, the client calls `provider` once more at once. `provider` must not use this
    /// client, because the client's calls may wait for `provider`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use redlatch::{Client, Credentials};
    ///
    /// # fn token() -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let client = Client::builder("rediss://redis.example")
    ///     .credentials_with(|| {
    ///         let token = token()?; // of the cloud's identity service
    ///         Ok(Credentials::new("billing", &token).valid_for(Duration::from_secs(15 * 60)))
    ///     })
    ///     .connect()?;
    /// # drop(client);
    /// # Ok(()) }
    /// ```
    pub fn credentials_with(
        mut self,
        provider: impl Fn() -> Result<Credentials, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.config.credentials_with = Some(Provider::new(provider));
        self
    }

    /// Sets the user and password for the Sentinels. This user and password replace
    /// `sentinelUsername` and `sentinelPassword` of the URL. An empty user is the Sentinels'
    /// default user.
    pub fn sentinel_credentials(mut self, user: &str, password: &str) -> Self {
        self.config.connection.sentinel_credentials = Some(Credentials::new(user, password));
        self
    }

    /// Sets a function that maps the address of a server to the address at which this client
    /// reaches that server. If the function returns `None`, the address stays as it is. Use this
    /// setting for servers behind network address translation (for example in Docker), because such
    /// servers report the addresses of their own network. The function is like Redisson's
    /// `NatMapper`. The client maps each address in the answers of Sentinels, in `CLUSTER SLOTS`,
    /// `MOVED` and `ASK`, but not the addresses in the URL. If a server of a cluster returns only a
    /// port, the client uses the host at which it reaches that server.
    ///
    /// The client uses the mapped address everywhere. Errors, the log and
    /// [`snapshot`](crate::Client::snapshot) show the mapped address, and the server's TLS
    /// certificate must name the mapped host. A [`MultiLock`](crate::MultiLock) orders locks of the
    /// same name by mapped addresses. (An address in the text of a server's error, such as `MOVED
    /// 866 10.0.0.1:7001`, is not changed.)
    ///
    /// `map` must return at once, because any thread that reads an address calls it, including
    /// threads that wait for a lock and threads of the client. The client calls `map` again for
    /// each answer, with none of its mutexes held. `map` must not use this client. If `map` panics,
    /// the client ignores the address.
    ///
    /// ```no_run
    /// use std::collections::HashMap;
    ///
    /// # fn main() -> Result<(), redlatch::Error> {
    /// // Where the host has published the ports of its containers.
    /// let published = HashMap::from([("172.17.0.2", 7_001), ("172.17.0.3", 7_002)]);
    /// let client = redlatch::Client::builder("redis-cluster://localhost:7001")
    ///     .address_map(move |host, _| Some(("localhost".to_owned(), *published.get(host)?)))
    ///     .connect()?;
    /// # drop(client);
    /// # Ok(()) }
    /// ```
    ///
    /// By default the client uses the reported addresses. This setting has no effect with one
    /// server.
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        self.config.connection.address_map = AddressMap::new(map);
        self
    }

    /// Sets how many replicas must acknowledge a lock or a permit within `within` before a call
    /// returns its guard. If too few replicas acknowledge the lock, the client releases the lock,
    /// and the call returns a transient error of kind
    /// [`TooFewReplicas`](ErrorKind::TooFewReplicas), which says how many replicas acknowledged. If
    /// too few replicas acknowledge a renewal, the renewal has failed: the guard's state is
    /// [`Unconfirmed`](crate::HoldState::Unconfirmed), and the client tries again. If no renewal
    /// succeeds before the lease ends, the lock is lost. For each lock that a guard reports as
    /// held, at least `count` replicas therefore have the lock and its lease.
    ///
    /// The setting applies to all locks and all ways to take them, to permits of a
    /// [`Semaphore`](crate::Semaphore), and to permits of an
    /// [`ExpirableSemaphore`](crate::ExpirableSemaphore) with their renewals and
    /// [`update_lease_time`](crate::ExpirableSemaphore::update_lease_time). The setting does not
    /// apply to calls that set a number (such as `set_permits`), to notifications, to the counts of
    /// a [`CountDownLatch`](crate::CountDownLatch), or to the release of a lock. If a failover
    /// loses a release, the lock is held until its lease ends.
    ///
    /// **What it proves**: `count` replicas had the lock in memory before the call returned. If one
    /// of these replicas becomes the master, the new master has the lock. **What it does not
    /// prove**, because Redis replicates asynchronously:
    ///
    /// - A replica that has not acknowledged may become the master, unless `count` is the number of
    ///   all replicas.
    /// - A replica that has acknowledged may restart empty and then become the master. (The client
    ///   does not use `WAITAOF`.)
    /// - A master that is cut off from the network works for some time beside its successor, and
    ///   some replicas may still acknowledge its writes. The server's settings
    ///   `min-replicas-to-write` and `min-replicas-max-lag` limit this time.
    ///
    /// If money is at stake, the write under the lock must still be conditional.
    ///
    /// In a cluster, the replicas are those of the master that has the name's slot. When a slot
    /// moves, a held lock moves with it. The client finds out only at the next renewal whether the
    /// new master's replicas have the lock.
    ///
    /// The cost: the client appends one `WAIT` to each packet of requests. (A packet may have
    /// requests of several threads.) A call that takes a free lock becomes longer by one trip from
    /// the master to a replica. A hand-over from another process becomes longer by this trip and a
    /// round trip. Other calls on the same connection may wait for up to `within`, so a lease must
    /// be longer than `within`. The error may come up to 100 ms after `within`, because the server
    /// checks these waits only every 100 ms. The server counts a new replica after up to a second.
    /// A renewal waits for at most a twenty-fourth of `watchdog_timeout`.
    ///
    /// `count` is 1 or more, `within` from 1 ms to a year. By default no call waits for replicas.
    /// The server's user needs the right to `WAIT`, or [`connect`](Self::connect) fails.
    pub fn replica_acks(mut self, count: u32, within: Duration) -> Self {
        self.config.replica_acks = Some(ReplicaAcks { count, within });
        self
    }

    /// Sets the certificate authorities that the client trusts with TLS (also for Sentinels), in
    /// place of the system's authorities. `pem` has one or more certificates in PEM format. A
    /// self-signed certificate is its own authority.
    ///
    /// If `pem` has no valid certificate, [`connect`](Self::connect) returns an error of kind
    /// [`Config`](ErrorKind::Config). By default, the client trusts the system's authorities.
    #[cfg(feature = "tls")]
    pub fn tls_ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.config.connection.tls.authorities = Some(pem.into());
        self
    }

    /// Sets the client's certificate for servers that require a certificate (mutual TLS).
    /// `certificates` has the client's certificate, followed by intermediate certificates. `key` is
    /// the private key, in PKCS #8. The certificates and the key are in PEM format.
    ///
    /// If a certificate or the key is invalid, or they do not match, [`connect`](Self::connect)
    /// returns an error of kind [`Config`](ErrorKind::Config). By default the client has no
    /// certificate.
    #[cfg(feature = "tls")]
    pub fn tls_client_certificate(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let (certificates, key) = (certificates.into(), key.into());
        self.config.connection.tls.identity = Some(Identity { certificates, key });
        self
    }

    /// Sets a function that returns the certificates and the key for servers that require a
    /// certificate. The returned certificates and key replace those of
    /// [`tls_client_certificate`](Self::tls_client_certificate), and have the same form. Use this
    /// setting for certificates that are renewed while the client lives. The client calls the
    /// function for each connection that it opens, also to Sentinels. Open connections stay open,
    /// because a server checks a certificate only when a connection begins.
    ///
    /// `provide` may block: it runs on its own thread (`redlatch-certs`), one call at a time. A
    /// thread that opens a connection waits for the result within
    /// [`connect_timeout`](Self::connect_timeout). It is an outage for the client if `provide`
    /// returns an error or panics, or if the certificates are invalid or do not match the key (for
    /// example because their files are being replaced). In such an outage, waiting calls continue
    /// to wait, the client renews locks over its open connections, and it calls `provide` again for
    /// the next connection. An error of a call says why `provide` failed. `provide` must not use
    /// this client, because the client's calls may wait for `provide`.
    ///
    /// ```no_run
    /// use std::fs;
    ///
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let client = redlatch::Client::builder("rediss://redis.example")
    ///     .tls_client_certificate_with(|| {
    ///         Ok((fs::read("/run/certs/client.crt")?, fs::read("/run/certs/client.key")?))
    ///     })
    ///     .connect()?;
    /// # drop(client);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_client_certificate_with(
        mut self,
        provide: impl Fn() -> Result<(Vec<u8>, Vec<u8>), Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let provide = move || {
            let (certificates, key) = provide()?;
            Ok(Identity { certificates, key })
        };
        self.config.tls_client_certificate_with = Some(Provider::new(provide));
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let unusable = |message: String| Err(Error::new(ErrorKind::Config, message));
        let Config {
            name,
            prefix,
            watchdog_timeout,
            max_hold,
            fair_wait_timeout,
            redisson_fair_lock_wait_timeout,
            connection: Settings { connect_timeout, response_timeout, busy_poll, .. },
            connections,
            failover_timeout,
            replica_acks,
            ..
        } = &self.config;
        if let Some(name) = name.as_ref().filter(|name| name.len() > LONGEST_NAME) {
            let length = name.len();
            return unusable(format!(
                "the client's name has {length} bytes; it may have at most {LONGEST_NAME}"
            ));
        }
        if prefix.contains(['{', '}']) {
            return unusable(format!(
                "the prefix {prefix:?} has a brace, which would choose the slot of all names in a \
                 cluster, in place of the names' own braces; use a prefix without braces"
            ));
        }
        check_watchdog("watchdog_timeout", *watchdog_timeout)?;
        if max_hold.is_some_and(|longest| longest.is_zero()) {
            let message = "max_hold is zero; set more than zero, or do not set it for no limit";
            return unusable(message.to_owned());
        }
        let timeout = (SHORTEST_TIMEOUT, LONGEST_TIMEOUT, "from 1 ms to a year");
        let fair_wait = (SHORTEST_FAIR_WAIT, LONGEST_FAIR_WAIT, "from 100 ms to a minute");
        let until_failover = (Duration::ZERO, LONGEST_TIMEOUT, "a year at most");
        let poll = (Duration::ZERO, LONGEST_BUSY_POLL, "a millisecond at most");
        for (setting, time, (least, most, wanted)) in [
            ("failover_timeout", failover_timeout, until_failover),
            ("fair_wait_timeout", fair_wait_timeout, fair_wait),
            ("connect_timeout", connect_timeout, timeout),
            ("response_timeout", response_timeout, timeout),
            ("redisson_fair_lock_wait_timeout", redisson_fair_lock_wait_timeout, timeout),
            ("busy_poll", busy_poll, poll),
        ] {
            if !(least..=most).contains(time) {
                return unusable(format!("{setting} is {time:?}; it must be {wanted}"));
            }
        }
        if let Some(count) = connections.filter(|count| !(1..=MOST_CONNECTIONS).contains(count)) {
            return unusable(format!(
                "connections is {count}; it must be from 1 to {MOST_CONNECTIONS}"
            ));
        }
        if let Some(ReplicaAcks { count, within }) = replica_acks {
            if *count == 0 {
                let message = "replica_acks is 0; set 1 or more, or do not set it to wait for no \
                               replica";
                return unusable(message.to_owned());
            }
            if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(within) {
                return unusable(format!(
                    "replica_acks has a limit of {within:?}; it must be from 1 ms to a year"
                ));
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for ClientBuilder {
    /// Does not show the URL, which may contain a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}
/// Checks a time to live, for which [`Duration::MAX`] is also allowed.
pub(crate) fn check_expiry(time_to_live: Duration) -> Result<(), Error> {
    if time_to_live == Duration::MAX { Ok(()) } else { check_time_to_live(time_to_live) }
}

/// Checks a time to live. The caller does this before it sends a request.
pub(crate) fn check_time_to_live(time_to_live: Duration) -> Result<(), Error> {
    const LONGEST: Duration = Duration::from_millis(10_000_000_000_000);
    if (SHORTEST_TIMEOUT..=LONGEST).contains(&time_to_live) {
        return Ok(());
    }
    let message = format!(
        "a time to live of {time_to_live:?} is not usable: it must be from 1 ms to 10^13 ms (300 \
         years); for none, call `expire` with Duration::MAX"
    );
    Err(Error::new(ErrorKind::Config, message))
}

/// Checks the lease of a watched hold. `setting` names the source of the lease.
pub(crate) fn check_watchdog(setting: &str, timeout: Duration) -> Result<(), Error> {
    if (SHORTEST_WATCHDOG..=LONGEST_WATCHDOG).contains(&timeout) {
        return Ok(());
    }
    let message = format!("{setting} is {timeout:?}; it must be from 10 ms to a year");
    Err(Error::new(ErrorKind::Config, message))
}
