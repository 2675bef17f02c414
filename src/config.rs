//! What a client can be told.

use std::time::Duration;

use redis::RedisConnectionInfo;

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};

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
    pub(crate) watchdog_timeout: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fair_wait_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) connections: Option<usize>,
    pub(crate) sharded_channels: Option<bool>,
    pub(crate) failover_timeout: Duration,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) sentinel_credentials: Option<Credentials>,
}

/// A user and a password that are in no URL.
#[derive(Clone)]
pub(crate) struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// These instead of the URL's, if there are any.
    pub(crate) fn instead(these: &Option<Self>, url: &RedisConnectionInfo) -> RedisConnectionInfo {
        let settings = url.clone();
        match these {
            None => settings,
            Some(Self { user, password }) if user.is_empty() => settings.set_password(password),
            Some(Self { user, password }) => settings.set_username(user).set_password(password),
        }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
const LONGEST_TIMEOUT: Duration = LONGEST_WATCHDOG;
const SHORTEST_WATCHDOG: Duration = Duration::from_millis(10);
const LONGEST_WATCHDOG: Duration = Duration::from_secs(365 * 24 * 3600);
const SHORTEST_FAIR_WAIT: Duration = Duration::from_millis(100);
const LONGEST_FAIR_WAIT: Duration = Duration::from_secs(60);
const MOST_CONNECTIONS: usize = 1_024;

impl ClientBuilder {
    pub(crate) fn new(url: &str) -> Self {
        let config = Config {
            watchdog_timeout: Duration::from_secs(30),
            max_hold: None,
            fair_wait_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(3),
            connections: None,
            sharded_channels: None,
            failover_timeout: Duration::from_secs(60),
            credentials: None,
            sentinel_credentials: None,
        };
        Self { url: url.to_owned(), config }
    }

    /// The lease of a lock, or of a permit of an [`ExpirableSemaphore`](crate::ExpirableSemaphore),
    /// taken without one. It is renewed at a third of it for as long as the lock or permit is held, so
    /// it is how long others wait for that of a process that died. (A lock
    /// that another process has just handed on has 2 s, and this when it was held for 50 ms.)
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
    /// process gives one every second, or every third of this if that is less, so a live one is never
    /// dropped. One that was killed is passed at once by redlatch's clients, and by Redisson's after
    /// this time, or longer: see [`FairLock`](crate::FairLock).
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
    /// A wait's own deadline bounds its sleep, not this, and neither does a cancel: a
    /// `try_lock_for` of 10 ms on a server that has stopped answering ends with an error after this
    /// time; where a connection has to be opened first, after
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

    /// Whether messages go by the channels of a cluster's shards (`SPUBLISH`, from Redis 7.0 on) or by
    /// those of the whole cluster (`PUBLISH`). All clients of a cluster must have the same, or they do
    /// not wake each other: Redisson's have the first from 3.22 on, unless their
    /// `shardedSubscriptionMode` is `OFF`, and the second before that.
    ///
    /// Defaults to the first where the server knows it, as Redisson's does. Of no meaning with one
    /// server.
    pub fn sharded_channels(mut self, sharded: bool) -> Self {
        self.config.sharded_channels = Some(sharded);
        self
    }

    /// How long a call that waits goes on while there is no master, of a client with Sentinels or of a
    /// cluster: so it outlasts a failover. It ends sooner with the call's own time limit or a cancel. A
    /// call that does not wait ([`try_lock`](crate::ReentrantLock::try_lock), an `unlock`) looks for the
    /// master for [`connect_timeout`](Self::connect_timeout), in a cluster for that and
    /// [`response_timeout`](Self::response_timeout).
    ///
    /// At least what the Sentinels take to choose another master, which is their
    /// `down-after-milliseconds` and a few seconds. Zero: trouble with the master ends a wait at once.
    /// Up to a year. Defaults to 60 s. With one server alone it does nothing.
    pub fn failover_timeout(mut self, timeout: Duration) -> Self {
        self.config.failover_timeout = timeout;
        self
    }

    /// User and password for the server, instead of those in the URL: as they are, with nothing
    /// written otherwise. An empty user is the server's default one. With Sentinels it is for the
    /// servers that they watch.
    pub fn credentials(mut self, user: &str, password: &str) -> Self {
        let (user, password) = (user.to_owned(), password.to_owned());
        self.config.credentials = Some(Credentials { user, password });
        self
    }

    /// User and password for the Sentinels, instead of `sentinelUsername` and `sentinelPassword` in the
    /// URL. An empty user is their default one.
    pub fn sentinel_credentials(mut self, user: &str, password: &str) -> Self {
        let (user, password) = (user.to_owned(), password.to_owned());
        self.config.sentinel_credentials = Some(Credentials { user, password });
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let unusable = |message: String| Err(Error::new(ErrorKind::Config, message));
        let Config {
            watchdog_timeout,
            max_hold,
            fair_wait_timeout,
            connect_timeout,
            response_timeout,
            connections,
            sharded_channels: _,
            failover_timeout,
            credentials: _,
            sentinel_credentials: _,
        } = &self.config;
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
        if !(SHORTEST_WATCHDOG..=LONGEST_WATCHDOG).contains(watchdog_timeout) {
            return unusable(format!(
                "watchdog_timeout is {watchdog_timeout:?}; it must be from 10 ms to a year"
            ));
        }
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
        Ok(())
    }
}

impl std::fmt::Debug for ClientBuilder {
    /// Without the URL, which may have a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}
