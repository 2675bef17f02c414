//! What a client can be told.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};

mod credentials;

pub use credentials::Credentials;
pub(crate) use credentials::{CredentialSource, Provider};

/// Settings of a [`Client`], before it connects. Made by [`Client::builder`]. What is not usable is
/// an error of [`connect`](Self::connect); no setting is changed later.
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
    /// What its connections are called, once the client has an id.
    pub(crate) connection_name: Arc<str>,
    pub(crate) watchdog_timeout: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fair_wait_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) connections: Option<usize>,
    pub(crate) sharded_channels: Option<bool>,
    pub(crate) failover_timeout: Duration,
    pub(crate) wait_warning: Option<Duration>,
    pub(crate) client_tracking: bool,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) credentials_with: Option<Provider>,
    /// Who asks for them, once the client connects.
    pub(crate) credential_source: Option<Arc<CredentialSource>>,
    pub(crate) sentinel_credentials: Option<Credentials>,
    pub(crate) replica_acks: Option<ReplicaAcks>,
    #[cfg(feature = "tls")]
    pub(crate) tls: TlsSettings,
}

/// How many replicas must have something before it counts, and how long that may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaAcks {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// Whom to trust, and who the client is; all in PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    /// `None`: those whom the system trusts.
    pub(crate) authorities: Option<Vec<u8>>,
    /// The client's certificate, with those between it and its authority, and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(feature = "tls")]
impl TlsSettings {
    pub(crate) fn is_set(&self) -> bool {
        self.authorities.is_some() || self.identity.is_some()
    }
}

/// Without the key.
#[cfg(feature = "tls")]
impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings")
            .field("authorities", &self.authorities.is_some())
            .field("identity", &self.identity.is_some())
            .finish()
    }
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
            connection_name: Arc::default(),
            watchdog_timeout: Duration::from_secs(30),
            max_hold: None,
            fair_wait_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(3),
            connections: None,
            sharded_channels: None,
            failover_timeout: Duration::from_secs(60),
            wait_warning: Some(Duration::from_secs(60)),
            client_tracking: true,
            credentials: None,
            credentials_with: None,
            credential_source: None,
            sentinel_credentials: None,
            replica_acks: None,
            #[cfg(feature = "tls")]
            tls: TlsSettings::default(),
        };
        Self { url: url.to_owned(), config }
    }

    /// What the server calls the client's connections, as `CLIENT LIST` shows them: this name, `#`,
    /// and the client's [`id`](crate::Client::id). `lib-name` and `lib-ver` are redlatch and its
    /// version, from Redis 7.2 on. A space, or what else the server takes in no name, becomes `-`.
    /// Where the server refuses that, its connections have no name.
    ///
    /// Up to 200 bytes. Defaults to the program, its host and the number of its process:
    /// `billing@host-7:4711`.
    pub fn name(mut self, name: &str) -> Self {
        self.config.name = Some(name.to_owned());
        self
    }

    /// The lease of a lock, or of a permit of an [`ExpirableSemaphore`](crate::ExpirableSemaphore),
    /// taken without one. It is renewed at a third of it for as long as the lock or permit is held,
    /// so it is how long others wait for that of a process that died. (A lock that another process
    /// has just handed on has 2 s, and this when it was held for 50 ms.)
    ///
    /// From 10 ms to a year. Defaults to 30 s, as Redisson's `lockWatchdogTimeout` does.
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.config.watchdog_timeout = timeout;
        self
    }

    /// How long the watchdog renews one hold at the longest, however long it is kept: a bound on
    /// what a thread that hangs while it holds a lock costs the others. Then the lease runs out
    /// and the guard is lost.
    ///
    /// More than zero. Defaults to no bound.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.config.max_hold = Some(longest);
        self
    }

    /// How long a thread that waits for a fair lock counts as alive without a sign of life. Its
    /// process gives one every second, or every third of this if that is less, so a live one is
    /// never dropped. One that was killed is passed at once by redlatch's clients, and by
    /// Redisson's after this time, or longer: see [`FairLock`](crate::FairLock).
    ///
    /// From 100 ms to a minute. Defaults to 10 s. All clients of a lock should have the same.
    pub fn fair_wait_timeout(mut self, timeout: Duration) -> Self {
        self.config.fair_wait_timeout = timeout;
        self
    }

    /// How long opening a connection may take: TCP, TLS, user and password, and the question who is
    /// there.
    ///
    /// The look-up of a host's name counts, but cannot be ended: it is the system's, and takes as
    /// long as that allows (with glibc 5 s for each try of each name server, unless `resolv.conf`
    /// says otherwise). Each new connection looks the name up, so while no name server answers a
    /// call may take that much longer than is said here and at
    /// [`response_timeout`](Self::response_timeout). An address instead of a name has no such wait.
    ///
    /// From 1 ms to a year. Defaults to 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer. Past it the outcome of a command is unknown: the
    /// caller gets an error, and what may have been taken is released in the background.
    ///
    /// A wait's own limit, deadline or cancel token ends a request sooner: a `try_lock_for` of
    /// 100 ms on a server that has stopped answering ends with an error after 100 ms. A call without
    /// one ends with an error after this time; where a connection has to be opened first, after
    /// [`connect_timeout`](Self::connect_timeout) and this; where it waits behind another thread's
    /// request on the same connection, after at most twice the sum of the two (16 s); and where
    /// that connection breaks and the request is sent once more, after three times the sum.
    ///
    /// From 1 ms to a year. Defaults to 3 s, as Redisson's `timeout` does.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.config.response_timeout = timeout;
        self
    }

    /// How many connections the threads share for their commands. A name always uses the same one.
    /// Each is opened when it is first needed. Two more are the renewals' and the subscriber's.
    ///
    /// From 1 to 1,024. Defaults to what the round trip measured at connect asks for: four on the
    /// same machine, up to sixteen over a network.
    pub fn connections(mut self, count: usize) -> Self {
        self.config.connections = Some(count);
        self
    }

    /// Whether messages go by the channels of a cluster's shards (`SPUBLISH`) or
    /// by those of the whole cluster (`PUBLISH`). All clients of a cluster must have the same, or
    /// they do not wake each other: Redisson's have the first from 3.22 on, unless their
    /// `shardedSubscriptionMode` is `OFF`, and the second before that.
    ///
    /// Defaults to the first where the server that answers first at connect knows it, as Redisson's
    /// does. Of no meaning with one server.
    pub fn sharded_channels(mut self, sharded: bool) -> Self {
        self.config.sharded_channels = Some(sharded);
        self
    }

    /// How long a call that waits goes on while its requests fail, from its own first failure on:
    /// so it outlasts a restart of the server, and a failover. That is for trouble that passes by
    /// itself: the server cannot be reached, breaks the connection, does not answer in time, is
    /// full, still loads its data, or has become a replica; there is no master, or no server for a
    /// slot; or too few replicas are there, for [`replica_acks`](Self::replica_acks) or for the
    /// server's own `min-replicas-to-write`. Once the server has answered again the next outage
    /// has the whole time; where replicas are away, once they were not for so long.
    ///
    /// Any other trouble, a refused password say, ends the wait at once. It ends sooner with the
    /// call's own time limit or a cancel. A call that does not wait
    /// ([`try_lock`](crate::ReentrantLock::try_lock), an `unlock`) and
    /// [`connect`](Self::connect) end at once; with Sentinels they look for the master for
    /// [`connect_timeout`](Self::connect_timeout), in a cluster for that and
    /// [`response_timeout`](Self::response_timeout).
    ///
    /// At least what a restart takes, or what the Sentinels take to choose another master, which is
    /// their `down-after-milliseconds` and a few seconds. Zero: the first failure ends a wait. Up
    /// to a year. Defaults to 60 s.
    pub fn failover_timeout(mut self, timeout: Duration) -> Self {
        self.config.failover_timeout = timeout;
        self
    }

    /// After how long a wait of a thread that holds another lock of this client is a warning in the
    /// log, once for each wait: `a thread has waited 60 s for "B" while holding "A"`. Threads that
    /// take the same locks in different orders may wait for each other for ever, since what they hold
    /// is renewed meanwhile. Holds of owned guards belong to no thread, and are not known here.
    ///
    /// `None`: it is never said. Defaults to 60 s.
    pub fn wait_warning(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.config.wait_warning = after.into();
        self
    }

    /// Whether the server is asked to tell when something changes what is held (its `CLIENT
    /// TRACKING`): then a lock that somebody deletes is lost within milliseconds, and not at its
    /// next renewal.
    ///
    /// It costs nothing for what is held for less than 100 ms. After that it is a question for each
    /// hold and for each of its renewals, an entry in the server's table
    /// (`tracking-table-max-keys`), and the connection for messages, which is opened then if no
    /// wait has opened it before. A key that changes more often than ten times a second is asked
    /// for less often than that; of more than 10,000 keys the others are left out; and where the
    /// server refuses, a line in the log says so: all of these are lost at their next renewal, as
    /// without it. In a cluster the server of each name's slot is asked, by one connection for each
    /// server; after a slot has moved the new one is, a moment later.
    ///
    /// Defaults to `true`.
    pub fn client_tracking(mut self, enabled: bool) -> Self {
        self.config.client_tracking = enabled;
        self
    }

    /// User and password for the server, instead of those in the URL: as they are, with nothing
    /// written otherwise. An empty user is the server's default one. With Sentinels it is for the
    /// servers that they watch.
    pub fn credentials(mut self, user: &str, password: &str) -> Self {
        self.config.credentials = Some(Credentials::new(user, password));
        self
    }

    /// User and password for the server from `provider`, instead of those in the URL and of
    /// [`credentials`](Self::credentials): for tokens that are good for minutes, and passwords that
    /// are changed while the client lives. It is called for each connection that is opened, and
    /// before credentials expire ([`Credentials::valid_for`]), when three quarters of their time
    /// have gone: then connections that are open say the new ones (`AUTH`), and those for messages
    /// are opened anew. With Sentinels it is for the servers that they watch, in a cluster for all
    /// servers.
    ///
    /// It may block: it runs on a thread of its own (`redlatch-creds`), one call at a time, and
    /// whoever opens a connection waits for it within
    /// [`connect_timeout`](Self::connect_timeout). An error or a panic counts as a server that
    /// cannot be reached: what waits goes on as in an outage, what is held is renewed over the
    /// connections that there are, and the next connection asks again. Credentials that the server
    /// refuses are asked for once more, at once. It must not use this client, whose calls may wait
    /// for it.
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
        self.config.credentials_with = Some(Provider(Arc::new(provider)));
        self
    }

    /// User and password for the Sentinels, instead of `sentinelUsername` and `sentinelPassword` in
    /// the URL. An empty user is their default one.
    pub fn sentinel_credentials(mut self, user: &str, password: &str) -> Self {
        self.config.sentinel_credentials = Some(Credentials::new(user, password));
        self
    }

    /// A lock or a permit counts as taken only when `count` replicas have acknowledged it within
    /// `within`. Else the call fails with a transient error of kind [`Redis`](ErrorKind::Redis),
    /// which says how many had it; it is released again, and nothing is held by the call. The same
    /// goes for every renewal: one that too few replicas have acknowledged has failed. The guard
    /// says [`Unconfirmed`](crate::HoldState::Unconfirmed), the renewal is tried again, and if that
    /// is in vain until the lease is over, the lock is lost. So whatever a guard says is held,
    /// `count` replicas have, with its lease.
    ///
    /// It is for all locks, whatever way they are taken: by a reply or handed on by another
    /// process, re-entrant, fenced and fair ones, read-write locks on both sides, as parts of a
    /// [`MultiLock`](crate::MultiLock), after a wait on a [`Condition`](crate::Condition), and for
    /// a longer lease taken by re-entry. It is for permits that are taken, too, of a
    /// [`Semaphore`](crate::Semaphore) and of an [`ExpirableSemaphore`](crate::ExpirableSemaphore),
    /// for the latter's renewals, and for
    /// [`update_lease_time`](crate::ExpirableSemaphore::update_lease_time) of a permit that a guard
    /// of this client has.
    ///
    /// It is not for what is given back, set or added: a release that a failover forgets leaves the
    /// lock held until its lease ends, and a permit missing. Nor for the counts of a
    /// [`CountDownLatch`](crate::CountDownLatch), since what a count-down says has happened stays
    /// true (a failover may keep those waiting who have not heard of it), nor for notifications.
    ///
    /// **What it proves**: that so many replicas had the lock in their memory before the call
    /// returned. If a replica that acknowledged becomes master, the lock is there. **What it cannot
    /// prove**: Redis stays asynchronous. Another replica may be made master than one that has
    /// acknowledged (unless all must: `count` is the number of replicas). One that has may restart
    /// empty before, since a memory is no disk (`WAITAOF` of Redis 7.2 is not used). And a master
    /// that is cut off goes on for a while beside its successor, with those that acknowledge to it;
    /// `min-replicas-to-write` and `min-replicas-max-lag` on the server bound that. Where money is
    /// at stake the write behind the lock must still be conditional.
    ///
    /// In a cluster they are the replicas of the master that has the name's slot. When a slot
    /// moves, those of its new master get what is held in it behind that one, and nobody waits for
    /// them before the next renewal.
    ///
    /// What it costs: `WAIT` goes behind the requests, in the same packet, one for all that threads
    /// send together. A lock that nobody has takes one trip from master to replica longer; one that
    /// another process hands on a round trip and that trip. Other calls over the same connection
    /// may have to wait behind it, each for up to `within` longer; a lease must be longer than
    /// that. The server looks at its clock every 100 ms, when nothing else happens, so the error
    /// may come so much later than `within`. A replica counts from up to a second after it has
    /// come. A renewal waits for a twenty-fourth of `watchdog_timeout` at the most.
    ///
    /// `count` from 1 on, `within` from 1 ms to a year. Defaults to none: nobody waits for
    /// replicas. The server's user needs the right to `WAIT`, without which
    /// [`connect`](Self::connect) fails.
    pub fn replica_acks(mut self, count: u32, within: Duration) -> Self {
        self.config.replica_acks = Some(ReplicaAcks { count, within });
        self
    }

    /// Of servers with TLS (`rediss://` URLs; with `rediss-sentinel://` of Sentinels, too;
    /// `rediss-cluster://` likewise) trusts those
    /// whose certificates one of these authorities has signed, and nobody whom the system trusts.
    /// `pem`: one certificate or more, in PEM, as read from a file. A self-signed certificate is
    /// its own authority.
    ///
    /// What is no certificate is an error of [`connect`](Self::connect), of kind
    /// [`Config`](ErrorKind::Config). Defaults to those whom the system trusts.
    #[cfg(feature = "tls")]
    pub fn tls_ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.config.tls.authorities = Some(pem.into());
        self
    }

    /// Shows a server that asks who the client is (mutual TLS) this certificate. `certificates`:
    /// the client's, and behind it those between it and its authority, if there are any; `key`: its
    /// private key, PKCS #8. Both in PEM, as read from files.
    ///
    /// What is no certificate or no key, or does not fit together, is an error of
    /// [`connect`](Self::connect), of kind [`Config`](ErrorKind::Config). Defaults to none.
    #[cfg(feature = "tls")]
    pub fn tls_client_certificate(
        mut self,
        certificates: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.config.tls.identity = Some((certificates.into(), key.into()));
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let unusable = |message: String| Err(Error::new(ErrorKind::Config, message));
        let Config {
            name,
            watchdog_timeout,
            max_hold,
            fair_wait_timeout,
            connect_timeout,
            response_timeout,
            connections,
            sharded_channels: _,
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
/// Checks the lease of a watched hold, which was given by this `setting`.
pub(crate) fn check_watchdog(setting: &str, timeout: Duration) -> Result<(), Error> {
    if (SHORTEST_WATCHDOG..=LONGEST_WATCHDOG).contains(&timeout) {
        return Ok(());
    }
    let message = format!("{setting} is {timeout:?}; it must be from 10 ms to a year");
    Err(Error::new(ErrorKind::Config, message))
}
