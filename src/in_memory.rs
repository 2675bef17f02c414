//! A server in the test's process, for tests without a Redis server.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redlatch_in_memory::{Redis, Scripts, Server};

use crate::aging::AgeTogether;
use crate::client::Client;
use crate::config::ClientBuilder;
#[cfg(doc)]
use crate::error::LostReason;
use crate::error::{Error, ErrorKind};
use crate::scripts::renewal::RenewalKind;

/// A server in this process, for tests: no other program runs, and no socket is opened.
///
/// The server runs the same scripts as a Redis server does. So its clients behave as clients of
/// Redis do: they wait, hand locks on, renew leases and lose them. Each server has its own keys.
/// All clients of one server share its keys, like the processes of one Redis.
///
/// ```
/// use redlatch::{NotTaken, Taken};
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let server = redlatch::InMemoryServer::new()?;
/// let (one, other) = (server.client()?, server.client()?);
/// let guard = one.reentrant_lock("orders").lock()?;
/// assert!(matches!(other.reentrant_lock("orders").try_lock()?, NotTaken));
/// guard.unlock()?;
/// assert!(matches!(other.reentrant_lock("orders").try_lock()?, Taken(_)));
/// # Ok(()) }
/// ```
///
/// The server has one database, no users, no replicas and no cluster. The server's keys are lost
/// when the server and its clients are dropped. The server's speed says nothing about the speed of
/// Redis.
///
/// # Time and faults
///
/// The server's clock runs with the machine's clock, and [`advance`](Self::advance) moves it
/// forward, so a test decides when leases end. A fault takes effect for all clients as soon as the
/// test starts it, and ends as soon as the test ends it.
///
/// ```
/// # fn main() -> Result<(), redlatch::Error> {
/// use std::time::Duration;
///
/// use redlatch::Taken;
///
/// let server = redlatch::InMemoryServer::new()?;
/// let (one, other) = (server.client()?, server.client()?);
/// let guard = one.reentrant_lock("orders").with_lease(Duration::from_secs(600)).lock()?;
/// server.advance(Duration::from_secs(601));
/// assert!(!guard.is_held());
/// assert!(matches!(other.reentrant_lock("orders").try_lock()?, Taken(_)));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct InMemoryServer {
    server: Arc<Server<Scripts>>,
    clients: AgeTogether,
}

/// An address that no real server has.
const URL: &str = "redis+unix:///in-memory";

impl InMemoryServer {
    /// Starts a server without keys.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if there is not enough memory.
    pub fn new() -> Result<Self, Error> {
        let scripts = Scripts::new().map_err(|why| {
            Error::new(ErrorKind::Config, format!("the server in memory does not start: {why}"))
        })?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
        let server = Server::run(Redis::new(scripts, Vec::new()), now);
        Ok(Self { server, clients: AgeTogether::default() })
    }

    /// Connects a new client with the default settings.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientBuilder::connect`] that can happen with this server.
    pub fn client(&self) -> Result<Client, Error> {
        self.builder().connect()
    }

    /// Returns the settings for a new client. The settings about the network have no effect.
    pub fn builder(&self) -> ClientBuilder {
        let mut builder = ClientBuilder::new(URL);
        builder.config.connection.dialer = Some(self.server.dialer());
        builder.config.ages_with = Some(self.clients.clone());
        builder
    }

    /// Moves the clock forward by `time`, as if all clients had stood still in the meantime. When
    /// `advance` returns, all leases that end before the new time are over, on the server and for
    /// their guards ([`LostReason::LeaseExpired`]). If a lease is not over and has a watchdog, the
    /// watchdog renews it. So to keep a lock, a test moves the clock in steps shorter than the
    /// lease. Do not call `advance` while another call of a client runs: if the server grants or
    /// renews a lease during the jump, the lease may begin before the jump.
    ///
    /// The clock moves by a millisecond more than `time`, because a lease on a server lasts until
    /// the end of its last millisecond.
    ///
    /// The jump affects leases and times to live. The limits of waits and the timeouts of requests
    /// still follow the machine's clock.
    pub fn advance(&self, time: Duration) {
        let time = time.saturating_add(Duration::from_millis(1));
        self.server.advance(time);
        self.clients.age(time);
        // After a broken subscription is restored, a waiting thread asks the server again.
        self.server.break_subscribers();
    }

    /// Makes the server refuse the next `requests` requests, of any client, with an error of kind
    /// [`Refused`](ErrorKind::Refused). This error is not transient, so it also ends waits.
    /// Requests in the background (renewals, releases of dropped guards) count, too.
    pub fn fail_next(&self, requests: usize) {
        self.server.with_faults(|faults| faults.refusals = requests);
    }

    /// Loses the replies to the next `requests` requests, of any client, and breaks the connection
    /// of each reply. The server has executed these requests, but the client does not know this.
    /// The client sends such a request once more, so a test must lose two replies to make a call
    /// fail with [`outcome_unknown`](Error::outcome_unknown). Requests in the background (renewals,
    /// releases of dropped guards) count, too. A request that the server refuses does not count.
    pub fn lose_replies(&self, requests: usize) {
        self.server.with_faults(|faults| faults.lost_replies = requests);
    }

    /// Sets whether the messages that wake waiters get lost. A waiter that gets no message asks the
    /// server again after a while.
    pub fn lose_messages(&self, lost: bool) {
        self.server.with_faults(|faults| faults.loses_messages = lost);
    }

    /// Sets whether the server refuses to renew leases. Guards are then
    /// [`Unconfirmed`](crate::HoldState::Unconfirmed), and lost when their leases are over.
    pub fn stop_renewals(&self, stopped: bool) {
        let scripts = if stopped { RenewalKind::scripts().into() } else { HashSet::new() };
        self.server.with_faults(|faults| faults.refused = scripts);
    }

    /// Sets whether the server is out of reach. If it is, open connections break, and a client
    /// cannot open new connections.
    pub fn set_out_of_reach(&self, out: bool) {
        self.server.with_faults(|faults| faults.is_out = out);
    }

    /// Returns how many connections could not be opened because the server was out of reach. The
    /// number rises when a client notices an outage, so a test can wait for a rise before it ends
    /// the outage.
    pub fn unopened_connections(&self) -> u64 {
        self.server.with_faults(|faults| faults.unopened)
    }
}

impl fmt::Debug for InMemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryServer").finish_non_exhaustive()
    }
}

impl Client {
    /// Connects a client of a new server in this process, for tests: see [`InMemoryServer`].
    ///
    /// # Errors
    ///
    /// The errors of [`InMemoryServer::new`] and [`InMemoryServer::client`].
    pub fn in_memory() -> Result<Self, Error> {
        InMemoryServer::new()?.client()
    }
}
