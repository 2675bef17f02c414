//! The library without a server, for tests.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use redlatch_client::in_memory::{Redis, Scripts, Server};

use crate::client::Client;
use crate::config::ClientBuilder;
use crate::error::{Error, ErrorKind};

/// A server in this process, for tests: no other program runs, and no socket is opened.
///
/// It runs the scripts that a Redis server would run, in the same language, so clients of it behave
/// as clients of Redis do: they wait, hand locks on, renew leases and lose them. Each server has
/// keys of its own; all its clients share them, as do the processes of one Redis.
///
/// ```
/// # fn main() -> Result<(), redlatch::Error> {
/// let server = redlatch::InMemoryServer::new()?;
/// let (one, other) = (server.client()?, server.client()?);
/// let guard = one.reentrant_lock("orders").lock()?;
/// assert!(other.reentrant_lock("orders").try_lock()?.is_none());
/// guard.unlock()?;
/// assert!(other.reentrant_lock("orders").try_lock()?.is_some());
/// # Ok(()) }
/// ```
///
/// It has one database, no users, no replicas and no cluster, and it forgets its keys when it and
/// its clients are gone. It is made for tests: its speed is no measure of Redis's.
#[derive(Clone)]
pub struct InMemoryServer(Arc<Server<Scripts>>);

/// An address that leads nowhere else.
const URL: &str = "redis+unix:///in-memory";

impl InMemoryServer {
    /// Starts one, without keys.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if there is no memory for it.
    pub fn new() -> Result<Self, Error> {
        let scripts = Scripts::new().map_err(|why| {
            Error::new(ErrorKind::Config, format!("the server in memory does not start: {why}"))
        })?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        Ok(Self(Server::run(Redis::new(scripts, Vec::new()), now)))
    }

    /// A new client with the default settings.
    ///
    /// # Errors
    ///
    /// As those of [`ClientBuilder::connect`], as far as this server gives reason for them.
    pub fn client(&self) -> Result<Client, Error> {
        self.builder().connect()
    }

    /// Settings for a new client. Those about the network have no effect.
    pub fn builder(&self) -> ClientBuilder {
        let mut builder = ClientBuilder::new(URL);
        builder.config.connection.dialer = Some(self.0.dialer());
        builder
    }
}

impl fmt::Debug for InMemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryServer").finish_non_exhaustive()
    }
}

impl Client {
    /// A client of a server of its own in this process, for tests: see [`InMemoryServer`].
    ///
    /// # Errors
    ///
    /// As those of [`InMemoryServer::new`] and [`InMemoryServer::client`].
    pub fn in_memory() -> Result<Self, Error> {
        InMemoryServer::new()?.client()
    }
}
