//! The settings of a client.

use std::time::Duration;

use redlatch_client::{Credentials, Provider, ReplicaAcks, Settings};

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};

/// Settings of a [`Client`], before it connects. Made by [`Client::builder`]. An unusable setting
/// is an error of [`connect`](Self::connect); no setting changes later.
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
    pub(crate) connection: Settings,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fair_wait_timeout: Duration,
    pub(crate) connections: Option<usize>,
    pub(crate) failover_timeout: Duration,
    pub(crate) wait_warning: Option<Duration>,
    pub(crate) client_tracking: bool,
    pub(crate) credentials_with: Option<Provider>,
    pub(crate) replica_acks: Option<ReplicaAcks>,
}

const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
const LONGEST_TIMEOUT: Duration = LONGEST_WATCHDOG;
pub(crate) const SHORTEST_WATCHDOG: Duration = Duration::from_millis(10);
pub(crate) const LONGEST_WATCHDOG: Duration = Duration::from_secs(365 * 24 * 3600);
const SHORTEST_FAIR_WAIT: Duration = Duration::from_millis(100);
const LONGEST_FAIR_WAIT: Duration = Duration::from_secs(60);
const MOST_CONNECTIONS: usize = 1_024;
const LONGEST_NAME: usize = 200;

impl ClientBuilder {
    pub(crate) fn new(url: &str) -> Self {
        let config = Config {
            name: None,
            connection: Settings::default(),
            watchdog_timeout: Duration::from_secs(30),
            max_hold: None,
            fair_wait_timeout: Duration::from_secs(10),
            connections: None,
            failover_timeout: Duration::from_secs(60),
            wait_warning: Some(Duration::from_secs(60)),
            client_tracking: true,
            credentials_with: None,
            replica_acks: None,
        };
        Self { url: url.to_owned(), config }
    }

    /// The name of the client's connections, as `CLIENT LIST` shows them: this name, `#`, and the
    /// client's [`id`](crate::Client::id). `lib-name` and `lib-ver` are redlatch and its version,
    /// from Redis 7.2 on. A space, or any other character that the server takes in no name, becomes
    /// `-`. If the server refuses the name, its connections have none.
    ///
    /// Up to 200 bytes. Defaults to the program, its host and the number of its process:
    /// `billing@host-7:4711`.
    pub fn name(mut self, name: &str) -> Self {
        self.config.name = Some(name.to_owned());
        self
    }

    /// The lease of a lock, or of a permit of an [`ExpirableSemaphore`](crate::ExpirableSemaphore),
    /// taken without one. The watchdog renews it at a third of it while the lock or permit is held,
    /// so others wait this long for the lock or permit of a process that died. (A lock that another
    /// process has just handed on has 2 s, and this once it was held for 50 ms.)
    ///
    /// From 10 ms to a year. Defaults to 30 s, as Redisson's `lockWatchdogTimeout` does.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.config.watchdog_timeout = timeout;
        self
    }

    /// The longest time for which the watchdog renews one hold: a bound on the cost to others of a
    /// thread that hangs while it holds a lock. Then the lease runs out and the guard is lost.
    ///
    /// More than zero. Defaults to no bound.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.config.max_hold = Some(longest);
        self
    }

    /// How long a waiter for a fair lock counts as alive without a sign of life. Its process gives
    /// one every second, or every third of this if that is less, so a live waiter is never dropped.
    /// Redlatch's clients pass a killed waiter at once, and Redisson's after this time, or longer:
    /// see [`FairLock`](crate::FairLock).
    ///
    /// From 100 ms to a minute. Defaults to 10 s. All clients of a lock should have the same.
    pub fn fair_wait_timeout(mut self, timeout: Duration) -> Self {
        self.config.fair_wait_timeout = timeout;
        self
    }

    /// How long opening a connection may take: TCP, TLS, user and password, and the identification
    /// of the server.
    ///
    /// The look-up of a host's name counts, but cannot be ended: it is the system's, and takes as
    /// long as that allows (with glibc 5 s for each try of each name server, unless `resolv.conf`
    /// says otherwise). Each new connection looks the name up, so while no name server answers a
    /// call may take that much longer than this limit and
    /// [`response_timeout`](Self::response_timeout). An address instead of a name has no such wait.
    ///
    /// From 1 ms to a year. Defaults to 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connection.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer. After that the outcome of a command is unknown: the
    /// caller gets an error, and the client releases in the background anything that the command
    /// may have taken.
    ///
    /// A wait's own limit, deadline or cancel token ends a request sooner: a `try_lock_for` of 100
    /// ms on a server that has stopped answering ends with an error after 100 ms. A call without
    /// one ends with an error after this time; if a connection has to be opened first, after
    /// [`connect_timeout`](Self::connect_timeout) and this; if it waits behind another thread's
    /// request on the same connection, after at most twice the sum of the two (16 s); and if that
    /// connection breaks and the request is sent once more, after three times the sum.
    ///
    /// From 1 ms to a year. Defaults to 3 s, as Redisson's `timeout` does.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.config.connection.response_timeout = timeout;
        self
    }

    /// How many connections the threads share for their commands. A name always uses the same one.
    /// Each is opened when it is first needed. Two more are the renewals' and the subscriber's.
    ///
    /// From 1 to 1,024. The default depends on the round trip measured at connect: four on the same
    /// machine, up to sixteen over a network.
    pub fn connections(mut self, count: usize) -> Self {
        self.config.connections = Some(count);
        self
    }

    /// Whether messages go through the channels of a cluster's shards (`SPUBLISH`) or through those
    /// of the whole cluster (`PUBLISH`). All clients of a cluster must have the same, or they do
    /// not wake each other: Redisson's have the first from 3.22 on, unless their
    /// `shardedSubscriptionMode` is `OFF`, and the second before that.
    ///
    /// Defaults to the first. No effect with one server.
    pub fn sharded_channels(mut self, sharded: bool) -> Self {
        self.config.connection.sharded_channels = sharded;
        self
    }

    /// How long a waiting call goes on while its requests fail, from its own first failure on: so
    /// it outlasts a restart of the server, and a failover. That is for transient trouble: the
    /// server cannot be reached, breaks the connection, does not answer in time, is full, still
    /// loads its data, or has become a replica; there is no master, or no server for a slot; or too
    /// few replicas are there, for [`replica_acks`](Self::replica_acks) or for the server's own
    /// `min-replicas-to-write`. Once the server has answered again the next outage has the whole
    /// time; if replicas are away, once they were back for that long.
    ///
    /// Any other trouble, such as a refused password, ends the wait at once. It ends sooner with
    /// the call's own time limit or a cancel. A call that does not wait
    /// ([`try_lock`](crate::ReentrantLock::try_lock), an `unlock`) and [`connect`](Self::connect)
    /// end at once; with Sentinels they look for the master for
    /// [`connect_timeout`](Self::connect_timeout), in a cluster for that and
    /// [`response_timeout`](Self::response_timeout).
    ///
    /// At least the time of a restart, or the time in which the Sentinels choose another master,
    /// which is their `down-after-milliseconds` and a few seconds. Zero: the first failure ends a
    /// wait. Up to a year. Defaults to 60 s.
    pub fn failover_timeout(mut self, timeout: Duration) -> Self {
        self.config.failover_timeout = timeout;
        self
    }

    /// After how long the wait of a thread that holds another lock of this client is a warning in
    /// the log, once for each wait: `a thread has waited 60 s for "B" while holding "A"`. Threads
    /// that take the same locks in different orders may wait for each other for ever, since their
    /// holds are renewed meanwhile. Holds of owned guards belong to no thread, and are not known
    /// here.
    ///
    /// `None`: never. Defaults to 60 s.
    pub fn wait_warning(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.config.wait_warning = after.into();
        self
    }

    /// Whether the client asks the server to report changes of held keys (its `CLIENT TRACKING`):
    /// then a lock that another client deletes is lost within milliseconds, and not at its next
    /// renewal.
    ///
    /// It costs nothing for a hold of less than 100 ms. After that it costs a request for each hold
    /// and for each of its renewals, an entry in the server's table (`tracking-table-max-keys`),
    /// and the connection for messages, which is opened then if no wait has opened it before. The
    /// limits: for a key that changes more often than ten times a second, the client asks less
    /// often than that; keys beyond 10,000 are left out; and if the server refuses, a line in the
    /// log says so. Such holds are lost at their next renewal, as without tracking. In a cluster
    /// the client asks the server of each name's slot, over one connection for each server; after a
    /// slot has moved it asks the new one, a moment later.
    ///
    /// Defaults to `true`.
    pub fn client_tracking(mut self, enabled: bool) -> Self {
        self.config.client_tracking = enabled;
        self
    }

    /// User and password for the server, instead of those in the URL: literal, without
    /// percent-encoding. An empty user is the server's default one. With Sentinels it is for the
    /// servers that they watch.
    pub fn credentials(mut self, user: &str, password: &str) -> Self {
        self.config.connection.credentials = Some(Credentials::new(user, password));
        self
    }

    /// User and password for the server from `provider`, instead of those in the URL and of
    /// [`credentials`](Self::credentials): for tokens that expire after minutes, and passwords that
    /// change while the client lives. The client calls it for each connection that it opens, and
    /// before credentials expire ([`Credentials::valid_for`]), when three quarters of their time
    /// have gone: then open connections log in with the new ones (`AUTH`), and those for messages
    /// are opened anew. With Sentinels it is for the servers that they watch, in a cluster for all
    /// servers.
    ///
    /// It may block: it runs on a thread of its own (`redlatch-creds`), one call at a time, and a
    /// thread that opens a connection waits for it within
    /// [`connect_timeout`](Self::connect_timeout). An error or a panic counts as a server that
    /// cannot be reached: waits go on as in an outage, holds are renewed over the open connections,
    /// and the next connection asks again. The client asks once more, at once, for credentials that
    /// the server refuses. The provider must not use this client, whose calls may wait for it.
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

    /// User and password for the Sentinels, instead of `sentinelUsername` and `sentinelPassword` in
    /// the URL. An empty user is their default one.
    pub fn sentinel_credentials(mut self, user: &str, password: &str) -> Self {
        self.config.connection.sentinel_credentials = Some(Credentials::new(user, password));
        self
    }

    /// A lock or a permit counts as taken only when `count` replicas have acknowledged it within
    /// `within`. Otherwise the call fails with a transient error of kind
    /// [`Redis`](ErrorKind::Redis), which says how many had it; it is released again, and the call
    /// holds nothing. The same is true of every renewal: one that too few replicas have
    /// acknowledged has failed. The guard says [`Unconfirmed`](crate::HoldState::Unconfirmed), the
    /// renewal is tried again, and if none succeeds until the lease is over, the lock is lost. So
    /// `count` replicas have each hold that a guard calls held, with its lease.
    ///
    /// This is for all locks and all ways to take them: by a reply or handed on by another process,
    /// re-entrant, fenced and fair ones, read-write locks on both sides, as parts of a
    /// [`MultiLock`](crate::MultiLock), after a wait on a [`Condition`](crate::Condition), and for
    /// a longer lease taken by re-entry. It is also for taken permits of a
    /// [`Semaphore`](crate::Semaphore) and of an [`ExpirableSemaphore`](crate::ExpirableSemaphore),
    /// for the latter's renewals, and for
    /// [`update_lease_time`](crate::ExpirableSemaphore::update_lease_time) of a permit that a guard
    /// of this client has.
    ///
    /// It is not for releases, settings or additions: a release that a failover forgets leaves the
    /// lock held until its lease ends, and a permit missing. Nor for the counts of a
    /// [`CountDownLatch`](crate::CountDownLatch), since the event that a count-down reports stays
    /// true (after a failover, waiters that have not heard of it may keep waiting), nor for
    /// notifications.
    ///
    /// **What it proves**: that so many replicas had the lock in their memory before the call
    /// returned. If a replica that acknowledged becomes master, the lock is there. **What it cannot
    /// prove**: Redis stays asynchronous. A replica that has not acknowledged may become master
    /// (unless all must: `count` is the number of replicas). A replica that has acknowledged may
    /// restart empty before it does, since a memory is no disk (`WAITAOF` of Redis 7.2 is not
    /// used). And a master that is cut off goes on for a while beside its successor, with the
    /// replicas that acknowledge to it; `min-replicas-to-write` and `min-replicas-max-lag` on the
    /// server bound that. Where money is at stake the write behind the lock must still be
    /// conditional.
    ///
    /// In a cluster they are the replicas of the master that has the name's slot. When a slot
    /// moves, the replicas of its new master get the slot's holds after it does, and no call waits
    /// for them before the next renewal.
    ///
    /// The cost: `WAIT` goes behind the requests, in the same packet, one for all requests that
    /// threads send together. A free lock takes one trip from master to replica longer; a lock that
    /// another process hands on takes a round trip and that trip longer. Other calls over the same
    /// connection may have to wait behind it, each for up to `within` longer; a lease must be
    /// longer than that. The server looks at its clock every 100 ms, when nothing else happens, so
    /// the error may come so much later than `within`. A replica counts from up to a second after
    /// it has come. A renewal waits for a twenty-fourth of `watchdog_timeout` at the most.
    ///
    /// `count` from 1 on, `within` from 1 ms to a year. Defaults to none: no call waits for
    /// replicas. The server's user needs the right to `WAIT`, without which
    /// [`connect`](Self::connect) fails.
    pub fn replica_acks(mut self, count: u32, within: Duration) -> Self {
        self.config.replica_acks = Some(ReplicaAcks { count, within });
        self
    }

    /// With TLS (`rediss://` URLs, `rediss-cluster://`, and with `rediss-sentinel://` for
    /// Sentinels, too) the client trusts servers with certificates signed by one of these
    /// authorities, and none of the system's. `pem`: one certificate or more, in PEM, as read from
    /// a file. A self-signed certificate is its own authority.
    ///
    /// A `pem` without a valid certificate is an error of [`connect`](Self::connect), of kind
    /// [`Config`](ErrorKind::Config). Defaults to the system's authorities.
    #[cfg(feature = "tls")]
    pub fn tls_ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.config.connection.tls.authorities = Some(pem.into());
        self
    }

    /// Presents this certificate to a server that asks for one (mutual TLS). `certificates`: the
    /// client's, and behind it the intermediate ones, if there are any; `key`: its private key,
    /// PKCS #8. Both in PEM, as read from files.
    ///
    /// An invalid certificate or key, or a pair that does not match, is an error of
    /// [`connect`](Self::connect), of kind [`Config`](ErrorKind::Config). Defaults to none.
    #[cfg(feature = "tls")]
    pub fn tls_client_certificate(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.config.connection.tls.identity = Some((certificates.into(), key.into()));
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let unusable = |message: String| Err(Error::new(ErrorKind::Config, message));
        let Config {
            name,
            watchdog_timeout,
            max_hold,
            fair_wait_timeout,
            connection: Settings { connect_timeout, response_timeout, .. },
            connections,
            failover_timeout,
            replica_acks,
            ..
        } = &self.config;
        if let Some(name) = name.as_ref().filter(|name| name.len() > LONGEST_NAME) {
            let length = name.len();
            return unusable(format!(
                "the client's name has {length} bytes; it may have {LONGEST_NAME}"
            ));
        }
        if *failover_timeout > LONGEST_TIMEOUT {
            return unusable(format!(
                "failover_timeout is {failover_timeout:?}; it must be a year at most"
            ));
        }
        if !(SHORTEST_FAIR_WAIT..=LONGEST_FAIR_WAIT).contains(fair_wait_timeout) {
            return unusable(format!(
                "fair_wait_timeout is {fair_wait_timeout:?}; it must be from 100 ms to a minute"
            ));
        }
        check_watchdog("watchdog_timeout", *watchdog_timeout)?;
        if max_hold.is_some_and(|longest| longest.is_zero()) {
            let message = "max_hold is zero; it must be more, and without it there is no bound";
            return unusable(message.to_owned());
        }
        for (setting, timeout) in
            [("connect_timeout", connect_timeout), ("response_timeout", response_timeout)]
        {
            if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(timeout) {
                return unusable(format!(
                    "{setting} is {timeout:?}; it must be from 1 ms to a year"
                ));
            }
        }
        if let Some(count) = connections.filter(|count| !(1..=MOST_CONNECTIONS).contains(count)) {
            return unusable(format!(
                "connections is {count}; it must be from 1 to {MOST_CONNECTIONS}"
            ));
        }
        if let Some(ReplicaAcks { count, within }) = replica_acks {
            if *count == 0 {
                let message = "replica_acks is 0; it must be 1 or more, and without it no replica is \
                               waited for";
                return unusable(message.to_owned());
            }
            if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(within) {
                return unusable(format!(
                    "replica_acks are to come within {within:?}; it must be from 1 ms to a year"
                ));
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for ClientBuilder {
    /// Without the URL, which may have a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}
/// Checks a time to live, before the client sends a request.
pub(crate) fn check_time_to_live(time_to_live: Duration) -> Result<(), Error> {
    const LONGEST: Duration = Duration::from_millis(10_000_000_000_000);
    if (SHORTEST_TIMEOUT..=LONGEST).contains(&time_to_live) {
        return Ok(());
    }
    let message = format!(
        "a time to live of {time_to_live:?} is not usable: it must be from 1 ms to 10^13 ms (300 \
         years), or None for no end"
    );
    Err(Error::new(ErrorKind::Config, message))
}

/// Checks the lease of a watched hold, given by this `setting`.
pub(crate) fn check_watchdog(setting: &str, timeout: Duration) -> Result<(), Error> {
    if (SHORTEST_WATCHDOG..=LONGEST_WATCHDOG).contains(&timeout) {
        return Ok(());
    }
    let message = format!("{setting} is {timeout:?}; it must be from 10 ms to a year");
    Err(Error::new(ErrorKind::Config, message))
}
