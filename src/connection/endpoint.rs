//! Where the server is, and how a connection to it is opened.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

use super::cluster::Place;
use super::server::{Runs, Server};
use super::url::{FORMS, explain_url};
use super::{Channels, Connection, Health};
use crate::error::{Error, ErrorKind};

/// A server's address with everything that opening a connection needs.
#[derive(Clone)]
pub(crate) struct Endpoint {
    info: ConnectionInfo,
    /// Counts the servers of a cluster.
    number: usize,
    channels: Channels,
    connect_timeout: Duration,
    response_timeout: Duration,
    runs: Arc<Runs>,
    /// Whose connections these are asks for what is held by itself.
    asks: bool,
    health: Arc<Health>,
    /// Who is told of each connection that works.
    opened: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

impl Endpoint {
    pub(crate) fn new(
        url: &str,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Result<Self, Error> {
        if let Some(why) = explain_url(url) {
            return Err(Error::new(ErrorKind::Config, why));
        }
        let info = url.into_connection_info().map_err(|source| {
            Error::new(ErrorKind::Config, format!("the URL is not usable. {FORMS}"))
                .caused_by(source)
        })?;
        Ok(Self::of(info, 0, Channels::Server, [connect_timeout, response_timeout]))
    }

    /// A server of a cluster, before it is known how channels are spoken to there.
    pub(super) fn of_cluster(
        info: &ConnectionInfo,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Self {
        Self::of(info.clone(), 0, Channels::Cluster, [connect_timeout, response_timeout])
    }

    /// Another server of the same cluster.
    pub(super) fn at(&self, place: &Place, number: usize) -> Self {
        let info = self.info.clone().set_addr(place.instead_of(self.info.addr()));
        Self::of(info, number, self.channels, [self.connect_timeout, self.response_timeout])
    }

    fn of(
        info: ConnectionInfo,
        number: usize,
        channels: Channels,
        [connect_timeout, response_timeout]: [Duration; 2],
    ) -> Self {
        let health = Arc::new(Health::new(&info.addr().to_string()));
        let runs = Arc::new(Runs::new());
        let (asks, opened) = (false, Arc::default());
        Self {
            info,
            number,
            channels,
            connect_timeout,
            response_timeout,
            runs,
            asks,
            health,
            opened,
        }
    }

    pub(super) fn with_channels(self, channels: Channels) -> Self {
        Self { channels, ..self }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// How channels are spoken to there.
    pub(crate) fn channels(&self) -> Channels {
        self.channels
    }

    pub(super) fn place(&self) -> Place {
        Place::of(self.info.addr())
    }

    /// Opens a connection and finds out which run of the server it leads to, all within the connect
    /// timeout, unless the look-up of a host's name alone takes longer. It is looked up each time.
    pub(crate) fn open(&self) -> RedisResult<Connection> {
        self.open_within(self.connect_timeout).inspect(|_| self.answers())
    }

    /// A connection is of use: its server can be asked.
    pub(super) fn answers(&self) {
        if let Some(tell) = self.opened.get() {
            tell();
        }
    }

    #[cfg(all(test, shuttle))]
    pub(super) fn open_within(&self, _: Duration) -> RedisResult<Connection> {
        Connection::open()
    }

    /// As [`open`](Self::open), in a time that may be shorter than the connect timeout.
    #[cfg(not(all(test, shuttle)))]
    pub(super) fn open_within(&self, within: Duration) -> RedisResult<Connection> {
        let now = Instant::now();
        let deadline = now.checked_add(within.min(self.connect_timeout)).unwrap_or(now);
        let (address, settings) = (self.info.addr(), self.info.redis_settings());
        let opened = Connection::open(address, settings, self.response_timeout, deadline);
        let (connection, server) = opened.inspect_err(|error| {
            if super::reply::is_refusal(error) {
                self.health.refused(error);
            } else {
                self.health.failed(now, error);
            }
        })?;
        self.runs.met(server, self.asks);
        self.health.opened(now);
        Ok(connection)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// This server with another response timeout, for whoever is told of new runs.
    pub(crate) fn with_response_timeout(&self, response_timeout: Duration) -> Self {
        let connect_timeout = self.connect_timeout.min(response_timeout);
        Self { connect_timeout, response_timeout, asks: true, ..self.clone() }
    }

    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// From here on `tell` is called whenever a new run of the server is met, by whoever opens a
    /// connection: it must not block.
    pub(crate) fn on_new_run(&self, tell: impl Fn() + Send + Sync + 'static) {
        self.runs.on_new(tell);
    }

    /// From here on `tell` is called by whoever has opened a connection on which the server
    /// answers: it must not block.
    pub(crate) fn on_opened(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.opened.set(Box::new(tell));
    }

    /// Which run of the server was met last. No two servers of a client have the same.
    pub(crate) fn incarnation(&self) -> u64 {
        (self.number as u64) << 32 | self.runs.incarnation()
    }

    /// What the server said of itself when it was met last.
    pub(super) fn server(&self) -> Option<Server> {
        self.runs.last()
    }

    /// Whether the other one is the same server, as far as addresses and what the servers say of
    /// themselves tell.
    pub(crate) fn is_same_server_as(&self, other: &Self) -> bool {
        let said = (self.server(), other.server());
        self.address() == other.address()
            || matches!(said, (Some(one), Some(other)) if one.is_same_run(&other))
    }

    /// The number of the database that the URL names.
    pub(crate) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }

    /// Where the server is, for people. Never with a user or a password.
    pub(crate) fn address(&self) -> String {
        self.info.addr().to_string()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.address())
    }
}
