//! Where the server is, and how a connection to it is opened.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult, Value};

use super::link::is_noscript;
use super::{Command, Connection};
use crate::error::{Error, ErrorKind};

/// A server's address with everything that opening a connection needs.
pub(crate) struct Endpoint {
    client: redis::Client,
    connect_timeout: Duration,
    response_timeout: Duration,
    run: Arc<Run>,
}

/// One run of the server, from its start to its end.
///
/// A client leaves a script of its own in the server's memory. A server that does not know it any
/// more was started anew (or a replica took its place, or somebody flushed the scripts): then its
/// word "not held" is no sign that a release was carried out.
struct Run {
    /// Runs the script by its hash, and by its text.
    known: Command,
    anew: Command,
    /// Counts the runs of the server that this client has met.
    incarnation: AtomicU64,
    /// Who is told of each but the first.
    told: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Who is told of each connection that works.
    opened: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Endpoint {
    pub(crate) fn new(
        url: &str,
        connect_timeout: Duration,
        response_timeout: Duration,
    ) -> Result<Self, Error> {
        let unusable = |source| {
            Error::new(
                ErrorKind::Config,
                "the URL is not usable; write redis://[user:password@]host[:port][/database], \
                 rediss://… for TLS (feature `tls`) or redis+unix:///path/to.sock"
                    .to_owned(),
            )
            .caused_by(source)
        };
        let info: ConnectionInfo = url.into_connection_info().map_err(unusable)?;
        if !info.addr().is_supported() {
            let what = match info.addr() {
                ConnectionAddr::TcpTls { .. } => {
                    "this build has no TLS; enable redlatch's feature `tls`"
                }
                _ => "this platform has no unix sockets; use redis://host:port",
            };
            return Err(Error::new(ErrorKind::Config, what.to_owned()));
        }
        // Without NODELAY a shared connection loses half its rate as soon as there is a delay.
        // Linger 0: bytes that a socket thrown away could not deliver must not arrive later.
        let tcp = TcpSettings::default().set_nodelay(true).set_linger_time(Duration::ZERO);
        // Without CLIENT SETINFO: a server that has stopped answering would keep each of the two
        // replies waiting for the connect timeout.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let client = redis::Client::open(info).map_err(unusable)?;
        let code = format!("return '{:032x}'", rand::random::<u128>());
        let hash = redis::Script::new(&code).get_hash().to_owned();
        let run = Run {
            known: Command::plain(&[b"EVALSHA", hash.as_bytes(), b"0"]),
            anew: Command::plain(&[b"EVAL", code.as_bytes(), b"0"]),
            incarnation: AtomicU64::new(0),
            told: OnceLock::new(),
            opened: OnceLock::new(),
        };
        Ok(Self { client, connect_timeout, response_timeout, run: Arc::new(run) })
    }

    /// Opens a connection, within the connect timeout. Each of its replies has the response
    /// timeout, each write too.
    pub(crate) fn open(&self) -> RedisResult<Connection> {
        self.open_within(None)
    }

    #[cfg(all(test, shuttle))]
    pub(super) fn open_within(&self, _: Option<Duration>) -> RedisResult<Connection> {
        Connection::open()
    }

    /// As [`open`](Self::open), in a time that may be shorter than the connect timeout.
    #[cfg(not(all(test, shuttle)))]
    pub(super) fn open_within(&self, within: Option<Duration>) -> RedisResult<Connection> {
        let within = within.map_or(self.connect_timeout, |time| time.min(self.connect_timeout));
        let connection = self.client.get_connection_with_timeout(within)?;
        connection.set_read_timeout(Some(self.response_timeout))?;
        connection.set_write_timeout(Some(self.response_timeout))?;
        Ok(connection)
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// This server with another response timeout.
    pub(crate) fn with_response_timeout(&self, response_timeout: Duration) -> Self {
        Self {
            client: self.client.clone(),
            connect_timeout: self.connect_timeout.min(response_timeout),
            response_timeout,
            run: Arc::clone(&self.run),
        }
    }

    /// From here on `tell` is called whenever a new run of the server is met, by whoever opens a
    /// connection: it must not block.
    pub(crate) fn on_new_run(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.run.told.set(Box::new(tell));
    }

    /// From here on `tell` is called by whoever has opened a connection on which the server
    /// answers: it must not block.
    pub(crate) fn on_opened(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.run.opened.set(Box::new(tell));
    }

    /// Finds out whether a new connection's server is the run that was met last. One that refuses
    /// to say counts as that; `Some`: it cannot say yet, since it is still loading its data.
    pub(crate) fn recognize(&self, connection: &mut Connection) -> RedisResult<Option<RedisError>> {
        // Two connections may find the same run new at once: it counts once. The number is read
        // when the connection is open, so who finds a later run new finds it raised for that one.
        let before = self.incarnation();
        connection.send_packed_command(self.run.known.bytes())?;
        let reply = connection.recv_response()?;
        if let Value::ServerError(error) = &reply
            && error.code() == "LOADING"
        {
            return Ok(Some(error.clone().into()));
        }
        if is_noscript(&reply) {
            connection.send_packed_command(self.run.anew.bytes())?;
            connection.recv_response()?;
            // After it: from here on nobody finds this run new.
            let (raised, seen) = (Ordering::AcqRel, Ordering::Acquire);
            let counts = self.run.incarnation.compare_exchange(before, before + 1, raised, seen);
            if counts.is_ok()
                && let Some(tell) = self.run.told.get()
            {
                tell();
            }
        }
        if let Some(tell) = self.run.opened.get() {
            tell();
        }
        Ok(None)
    }

    /// Which run of the server was met last.
    pub(crate) fn incarnation(&self) -> u64 {
        self.run.incarnation.load(Ordering::Acquire)
    }

    /// The number of the database that the URL names.
    pub(crate) fn database(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }

    /// Where the server is, for people. Never with a user or a password.
    pub(crate) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({})", self.address())
    }
}
