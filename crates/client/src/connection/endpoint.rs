//! A server's address, and the opening of connections to it.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::time::Instant;

use redis::{ConnectionAddr, RedisConnectionInfo, RedisResult, Value};

use super::ConnectError;
use super::host_port::HostPort;
use super::limit::{deadline_in, later};
use super::login::Login;
use super::name::HostName;
use super::sentinel::Sentinels;
use super::server::{InfoReply, Run, Runs};
use super::stream::Network;
use super::url::{Topology, Url};
use super::{
    Cause, Channels, Command, Connection, Credentials, Failure, Outcome, ServerHealth, Settings,
};

/// A server's address, with all settings that are needed to open a connection to it.
#[derive(Clone)]
pub struct Endpoint {
    target: Locator,
    login: Login,
    /// The server's number in its cluster.
    number: usize,
    channels: Channels,
    connect_timeout: Duration,
    response_timeout: Duration,
    runs: Arc<Runs>,
    /// Whether the code that opens these connections itself checks all holds when the server has a
    /// new run.
    asks: bool,
    health: Arc<ServerHealth>,
    /// The callback for each connection on which the server has answered.
    opened: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
    first: Arc<FirstContact>,
}

/// The check of a server before the server gets the first command. The thread that opens the first
/// connection runs the check.
#[derive(Default)]
struct FirstContact {
    greet: OnceLock<Box<Greet>>,
    /// Whether a server has passed the check.
    passed: AtomicBool,
}

type Greet = dyn Fn(&Endpoint, &InfoReply, Ask<'_>) -> RedisResult<()> + Send + Sync;

/// A function that sends a command to a server and waits for its reply.
pub type Ask<'a> = &'a mut dyn FnMut(&Command) -> Outcome;

/// How to find a server.
#[derive(Clone)]
enum Locator {
    At {
        address: ConnectionAddr,
        network: Network,
        /// The host's name, if the client has only this server and the URL has a name for the host.
        name: Option<Arc<HostName>>,
    },
    /// The master that the Sentinels name.
    Named(Arc<Sentinels>),
}

impl Endpoint {
    /// Returns the endpoint of this URL's server, with these timeouts.
    #[cfg(any(test, feature = "testing"))]
    pub fn new(
        url: &str,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Result<Self, ConnectError> {
        Self::of(url, &Settings { connect_timeout, response_timeout, ..Settings::default() })
    }

    /// Returns the endpoint of the server, or of the Sentinels' service, in this URL. Opens no
    /// connection.
    pub fn of(url: &str, config: &Settings) -> Result<Self, ConnectError> {
        let Url { kind, hosts, settings } = Url::parse(url).map_err(ConnectError::unusable)?;
        let Topology::Sentinels { service, settings: of_sentinels } = kind else {
            return Ok(Self::of_server(&hosts[0], &settings, config)?.following_its_name());
        };
        let health = Arc::new(ServerHealth::new(&format!("{service:?} (by its Sentinels)")));
        let settings = Credentials::instead(&config.credentials, &settings);
        let login = Login::of_servers(settings, config);
        let sentinels =
            Sentinels::new(service, &hosts, &of_sentinels, login.clone(), config, &health)?;
        Ok(Self::at(Locator::Named(Arc::new(sentinels)), login, config, health))
    }

    /// Makes the endpoint follow the host's name: if the name later leads to another server, the
    /// client closes the connections to the old server.
    fn following_its_name(mut self) -> Self {
        let HostPort { host, port } = self.host_port();
        let is_name = !host.is_empty() && host.parse::<IpAddr>().is_err();
        if let Locator::At { name, .. } = &mut self.target
            && is_name
        {
            *name = Some(Arc::new(HostName::new(&host, port)));
        }
        self
    }

    fn of_server(
        address: &ConnectionAddr,
        settings: &RedisConnectionInfo,
        config: &Settings,
    ) -> Result<Self, ConnectError> {
        let health = Arc::new(ServerHealth::new(&HostPort::text_of(address)));
        let network = Network::new(address, config)?;
        let target = Locator::At { address: address.clone(), network, name: None };
        let settings = Credentials::instead(&config.credentials, settings);
        Ok(Self::at(target, Login::of_servers(settings, config), config, health))
    }

    /// Returns the endpoint of a cluster's server. Its kind of channels is not known yet.
    pub(super) fn of_cluster(
        address: &ConnectionAddr,
        settings: &RedisConnectionInfo,
        config: &Settings,
    ) -> Result<Self, ConnectError> {
        Ok(Self::of_server(address, settings, config)?.with_channels(Channels::Cluster))
    }

    /// Returns the endpoint of another server of the same cluster.
    pub(super) fn of_same_cluster(&self, host_port: &HostPort, number: usize) -> Self {
        let (runs, health) = (Arc::default(), Arc::new(ServerHealth::new(&host_port.to_string())));
        let (opened, first) = (Arc::default(), Arc::default());
        let mut same = Self { number, runs, health, opened, first, ..self.clone() };
        // A cluster has no Sentinels.
        if let Locator::At { address, .. } = &mut same.target {
            *address = host_port.instead_of(address);
        }
        same
    }

    fn at(target: Locator, login: Login, config: &Settings, health: Arc<ServerHealth>) -> Self {
        Self {
            target,
            login,
            number: 0,
            channels: Channels::Server,
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            runs: Arc::default(),
            asks: false,
            health,
            opened: Arc::default(),
            first: Arc::default(),
        }
    }

    pub(super) fn with_channels(self, channels: Channels) -> Self {
        Self { channels, ..self }
    }

    /// Returns the server's number among the servers of its client.
    #[inline]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether the server is in this process. A server in this process has no users.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(&self.target, Locator::At { network, .. } if network.is_in_memory())
    }

    /// Returns the command with which clients publish on channels at this server.
    pub(crate) fn channels(&self) -> Channels {
        self.channels
    }

    pub(super) fn host_port(&self) -> HostPort {
        match &self.target {
            Locator::At { address, .. } => HostPort::of(address),
            Locator::Named(_) => HostPort { host: String::new(), port: 0 },
        }
    }

    /// Opens a connection, and finds out which run of the server is at its other end. Takes at most
    /// the connect timeout. Only the look-up of the host's name, which each call repeats, may take
    /// longer.
    pub(crate) fn open(&self) -> RedisResult<Connection> {
        let (connection, _) = self.open_within(self.connect_timeout)?;
        self.answers();
        Ok(connection)
    }

    /// Notes that the server has answered over a new connection.
    pub(super) fn answers(&self) {
        if let Some(callback) = self.opened.get() {
            callback();
        }
    }

    /// Like [`open`](Self::open), but with a time limit that may be shorter than the connect
    /// timeout.
    pub(super) fn open_within(&self, within: Duration) -> RedisResult<(Connection, Run)> {
        let now = Instant::now();
        let deadline = later(now, within.min(self.connect_timeout));
        let (login, timeout) = (&self.login, self.response_timeout);
        let opened = match &self.target {
            Locator::At { address, network, name } => {
                let opened =
                    Connection::open(address, network, login, timeout, deadline, false, &|_| {});
                opened.and_then(|(mut connection, server)| match name {
                    Some(name) if !name.watch(connection.closer(), &server) => {
                        Err((redis::ErrorKind::Io, "its name leads to another address now").into())
                    }
                    _ => Ok((connection, server)),
                })
            }
            Locator::Named(sentinels) => sentinels.open(timeout, deadline),
        };
        let opened = opened.and_then(|(mut connection, server)| {
            self.greet(&mut connection, &server, deadline)?;
            Ok((connection, server))
        });
        let (connection, server) = opened.inspect_err(|error| {
            if super::reply::is_refusal(error) {
                self.health.record_refusal(error);
            } else {
                self.health.record_failure(now, error);
            }
        })?;
        if !server.says_its_run() {
            self.health.report_missing(NO_INFO);
        }
        let run = Run::record(&self.runs, server, self.asks);
        self.health.record_open(now);
        Ok((connection, run))
    }

    /// Makes `greet` check the server before the first connection is used. If `greet` fails, the
    /// connection is closed, and `greet` checks the next connection. Several threads may call
    /// `greet` at the same time.
    pub fn on_first_contact(
        &self,
        greet: impl Fn(&Self, &InfoReply, Ask<'_>) -> RedisResult<()> + Send + Sync + 'static,
    ) {
        let _only_once = self.first.greet.set(Box::new(greet));
    }

    fn greet(
        &self,
        connection: &mut Connection,
        server: &InfoReply,
        deadline: Instant,
    ) -> RedisResult<()> {
        let Some(greet) = self.first.greet.get() else { return Ok(()) };
        if self.first.passed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut ask = |command: &Command| {
            let sent = connection.send_until(command.bytes(), deadline);
            match sent.and_then(|()| connection.receive_until(deadline)) {
                Ok(Value::ServerError(error)) => {
                    Err(Failure::Refused(Cause::new(error, &self.health)))
                }
                Ok(reply) => Ok(reply),
                Err(error) if error.is_timeout() => {
                    Err(Failure::TimedOut(Cause::new(error, &self.health)))
                }
                Err(error) => Err(Failure::Reset(Cause::new(error, &self.health))),
            }
        };
        greet(self, server, &mut ask)?;
        self.first.passed.store(true, Ordering::Release);
        Ok(())
    }

    /// The longest time that opening a connection may take.
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// The longest time that a reply may take.
    pub fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// Returns the same endpoint with another response timeout, for the code that checks all holds
    /// after a new run.
    pub fn with_response_timeout(&self, response_timeout: Duration) -> Self {
        let connect_timeout = self.connect_timeout.min(response_timeout);
        Self { connect_timeout, response_timeout, asks: true, ..self.clone() }
    }

    /// The number of times that open connections have received a new user and password.
    pub fn credentials_generation(&self) -> u64 {
        self.login.renewals()
    }

    /// The server's health, which the log reports.
    #[inline]
    pub fn health(&self) -> &Arc<ServerHealth> {
        &self.health
    }

    /// Sets the callback for new runs of the server. A thread calls the callback while it opens a
    /// connection, so the callback must not block.
    pub fn on_new_run(&self, callback: impl Fn() + Send + Sync + 'static) {
        self.runs.on_new(callback);
    }

    /// Sets the callback for connections on which the server has answered. The thread that opened
    /// the connection calls it, so the callback must not block.
    pub fn on_opened(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.opened.set(Box::new(callback));
    }

    /// Sets the callback for a change of the master. The callback must not block.
    pub fn on_moved(&self, callback: impl Fn() + Send + Sync + 'static) {
        match &self.target {
            Locator::At { name, .. } => {
                let health = Arc::clone(&self.health);
                let moved = move || {
                    health.record_rename();
                    callback();
                };
                name.as_ref().inspect(|name| name.on_moved(moved));
            }
            Locator::Named(sentinels) => sentinels.on_moved(callback),
        }
    }

    /// Returns the body of the thread that follows the master until [`end`](Self::end). Returns
    /// `None` if there are no Sentinels and no name to follow.
    pub fn follower(&self) -> Option<Box<dyn FnOnce() + Send>> {
        match &self.target {
            Locator::At { address, network, name } => {
                let name = Arc::clone(name.as_ref()?);
                let (address, network, login) =
                    (address.clone(), network.clone(), self.login.clone());
                let timeouts = (self.connect_timeout, self.response_timeout);
                // Only this thread uses this connection, and only for this check.
                let connect = move || {
                    let until = deadline_in(timeouts.0);
                    let opened = Connection::open(
                        &address,
                        &network,
                        &login,
                        timeouts.1,
                        until,
                        true,
                        &|_| {},
                    );
                    let (mut connection, server) = opened.ok()?;
                    // Ignore a replica: it accepts no writes yet, even if it soon becomes the
                    // master.
                    let leads = server.is_master != Some(false);
                    connection.closer().peer().filter(|_| leads).map(|peer| (peer, server))
                };
                Some(Box::new(move || name.follow(connect)))
            }
            Locator::Named(sentinels) => {
                let sentinels = Arc::clone(sentinels);
                Some(Box::new(move || sentinels.follow()))
            }
        }
    }

    /// Notes that the client ends. After this call no thread looks for a master.
    pub fn end(&self) {
        match &self.target {
            Locator::At { name, .. } => drop(name.as_ref().inspect(|name| name.end())),
            Locator::Named(sentinels) => sentinels.end(),
        }
    }

    /// Whether Sentinels may replace this server by another server.
    pub(super) fn has_sentinels(&self) -> bool {
        !matches!(self.target, Locator::At { .. })
    }

    /// Returns the number of the server's run (from one start of the server to the next) to which
    /// the client last connected. All runs of all servers of a client have different numbers.
    pub fn incarnation(&self) -> u64 {
        (self.number as u64) << 32 | self.runs.incarnation()
    }

    /// Whether the server reports its run.
    pub fn says_its_run(&self) -> bool {
        self.server().is_some_and(|server| server.says_its_run())
    }

    /// Returns the server's last reply to `INFO`.
    pub fn server(&self) -> Option<InfoReply> {
        self.runs.last()
    }

    /// Whether the two are the same server, according to their addresses and their replies.
    pub(crate) fn is_same_server_as(&self, other: &Self) -> bool {
        let said = (self.server(), other.server());
        self.address() == other.address()
            || matches!(said, (Some(one), Some(other)) if one.is_same_run(&other))
    }

    /// The number of the database that the URL names.
    pub(crate) fn database(&self) -> i64 {
        self.login.database()
    }

    /// Returns the server's address for errors and the log. The result never contains a user or a
    /// password.
    pub fn address(&self) -> String {
        self.health.address().to_string()
    }

    /// The service's name if Sentinels name the server, otherwise its address.
    pub fn lasting_address(&self) -> String {
        match &self.target {
            Locator::At { .. } => self.address(),
            Locator::Named(sentinels) => sentinels.service().to_owned(),
        }
    }
}

const NO_INFO: &str = "it refuses INFO, so the client cannot tell whether it was restarted: the \
                       client checks its locks after each new connection, and may report a release \
                       whose reply was lost as a loss";

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.address())
    }
}
