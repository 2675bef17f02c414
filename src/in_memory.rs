//! The library without a server, for tests.

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
/// It runs the scripts that a Redis server would run, in the same language, so clients of it behave
/// as clients of Redis do: they wait, hand locks on, renew leases and lose them. Each server has
/// keys of its own; all its clients share them, as do the processes of one Redis.
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
/// It has one database, no users, no replicas and no cluster, and it forgets its keys when it and
/// its clients are gone. It is made for tests: its speed is no measure of Redis's.
///
/// # Time and faults
///
/// The server's clock runs as the machine's does, and [`advance`](Self::advance) moves it on: leases
/// end when the test says so. Faults begin and end at once, for all clients.
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
        let server = Server::run(Redis::new(scripts, Vec::new()), now);
        Ok(Self { server, clients: AgeTogether::default() })
    }

    /// A new client with the default settings.
    ///
    /// # Errors
    ///
    /// Those of [`ClientBuilder::connect`] that can happen with this server.
    pub fn client(&self) -> Result<Client, Error> {
        self.builder().connect()
    }

    /// Settings for a new client. The settings about the network have no effect.
    pub fn builder(&self) -> ClientBuilder {
        let mut builder = ClientBuilder::new(URL);
        builder.config.connection.dialer = Some(self.server.dialer());
        builder.config.ages_with = Some(self.clients.clone());
        builder
    }

    /// Lets time pass, as if all clients had stood still meanwhile: when this returns, the leases
    /// that are over by then have ended, on the server and for their guards
    /// ([`LostReason::LeaseExpired`]). A watched lease that is not over is renewed, so a test that
    /// wants to keep a lock moves on in steps of less than its lease.
    ///
    /// Call it while no call of a client is under way: a grant or a renewal that is on its way may
    /// count its lease from a time before the jump.
    ///
    /// The clock moves on by a millisecond more than `time`, since a lease on a server lasts until
    /// its last millisecond is over.
    ///
    /// This is for leases and times to live. The limits of waits and the timeouts of requests stay
    /// those of the machine's clock.
    pub fn advance(&self, time: Duration) {
        let time = time.saturating_add(Duration::from_millis(1));
        self.server.advance(time);
        self.clients.age(time);
        // Waiting threads ask again once they listen anew.
        self.server.break_subscribers();
    }

    /// The server refuses this number of the next requests, of any client: an error of kind
    /// [`Refused`](ErrorKind::Refused), which is not transient, so it ends waits, too. The requests
    /// that clients make by themselves (renewals, releases of dropped guards) count.
    pub fn fail_next(&self, requests: usize) {
        self.server.with_faults(|faults| faults.refusals = requests);
    }

    /// The replies to this number of the next requests, of any client, get lost, and with each its
    /// connection: the server has done what was asked, and the client does not know it. A client
    /// sends such a request once more, so a test that wants a call to end with
    /// [`outcome_unknown`](Error::outcome_unknown) loses two replies. The requests that clients
    /// make by themselves (renewals, releases of dropped guards) count. A request that the server
    /// refuses does not.
    pub fn lose_replies(&self, requests: usize) {
        self.server.with_faults(|faults| faults.lost_replies = requests);
    }

    /// Whether the messages that wake waiting clients get lost. The clients ask again after a
    /// while.
    pub fn lose_messages(&self, lost: bool) {
        self.server.with_faults(|faults| faults.loses_messages = lost);
    }

    /// Whether the server refuses to renew leases: guards are
    /// [`Unconfirmed`](crate::HoldState::Unconfirmed) then, and lost when their leases are over.
    pub fn stop_renewals(&self, stopped: bool) {
        let scripts = if stopped { RenewalKind::scripts().into() } else { HashSet::new() };
        self.server.with_faults(|faults| faults.refused = scripts);
    }

    /// Whether the server is out of reach: open connections break, and none opens.
    pub fn set_out_of_reach(&self, out: bool) {
        self.server.with_faults(|faults| faults.is_out = out);
    }

    /// How many connections have failed to open so far because the server was out of reach. The
    /// number rises when a client meets an outage, so a test can wait for that before it ends the
    /// outage.
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
    /// A client of a server of its own in this process, for tests: see [`InMemoryServer`].
    ///
    /// # Errors
    ///
    /// Those of [`InMemoryServer::new`] and [`InMemoryServer::client`].
    pub fn in_memory() -> Result<Self, Error> {
        InMemoryServer::new()?.client()
    }
}
