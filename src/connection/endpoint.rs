//! Where the server is, and how a connection to it is opened.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

use super::server::{Runs, Server};
#[cfg(not(all(test, shuttle)))]
use super::tls::Tls;
use super::url::{FORMS, explain_url};
use super::{Connection, Health};
use crate::config::Config;
use crate::error::{Error, ErrorKind};

/// A server's address with everything that opening a connection needs.
#[derive(Clone)]
pub(crate) struct Endpoint {
    info: ConnectionInfo,
    connect_timeout: Duration,
    response_timeout: Duration,
    runs: Arc<Runs>,
    /// Whose connections these are asks for what is held by itself.
    asks: bool,
    health: Arc<Health>,
    /// Who is told of each connection that works.
    opened: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
    #[cfg(not(all(test, shuttle)))]
    tls: Tls,
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
        let health = Arc::new(Health::new(&info.addr().to_string()));
        let runs = Arc::new(Runs::new());
        let (asks, opened) = (false, Arc::default());
        Ok(Self {
            info,
            connect_timeout,
            response_timeout,
            runs,
            asks,
            health,
            opened,
            #[cfg(not(all(test, shuttle)))]
            tls: Tls::default(),
        })
    }

    /// With what TLS needs, if the URL has it.
    #[cfg(not(all(test, shuttle)))]
    pub(crate) fn with_tls(self, config: &Config) -> Result<Self, Error> {
        let tls = Tls::new(self.info.addr(), config)?;
        Ok(Self { tls, ..self })
    }

    #[cfg(all(test, shuttle))]
    pub(crate) fn with_tls(self, _: &Config) -> Result<Self, Error> {
        Ok(self)
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
        let opened =
            Connection::open(address, settings, self.response_timeout, deadline, &self.tls);
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

    /// Which run of the server was met last.
    pub(crate) fn incarnation(&self) -> u64 {
        self.runs.incarnation()
    }

    /// Whether the server that was met last says which run of it this is.
    pub(crate) fn says_its_run(&self) -> bool {
        self.server().is_none_or(|server| server.says_its_run())
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
