//! How a client asks Sentinels for the master, and how a thread follows changes of the master.
//!
//! ```text
//! open      asks each Sentinel in turn for the master, connects to it, and asks it for its ROLE.
//!           a master: the connection is used. Otherwise: tries again later, until the deadline
//! follow    a thread listens to one Sentinel (+switch-master), and asks the others at intervals
//! moved     a new master: all connections to the old one are closed; the client checks all holds
//! ```
//!
//! There is one master: every connection of a client leads to the newest master that the client
//! knows. A connection to an older master is closed, even while a thread opens it. If a Sentinel
//! reports an older master, the client ignores the report.

mod ask;
mod follow;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError, RedisResult};

use super::ConnectError;
use super::address_map::AddressMap;
use super::host_port::HostPort;
use super::login::Login;
use super::reply::{NO_MASTER, NO_SERVICE, is_refusal};
use super::server::InfoReply;
use super::stream::Network;
use super::{Closer, Connection, ServerHealth};
use super::{Credentials, Settings};
use crate::sync::{Condvar, Mutex};

/// The pause before the next search for a master. A change of the master ends the pause.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// The time limit for each Sentinel's answer in the first round. If all Sentinels are slow, a
/// second round uses the remaining time.
const QUICK_ANSWER: Duration = Duration::from_millis(400);
/// An attempt to connect to a server may take the connect timeout divided by this number. If the
/// server does not answer in this time, another server may have become the master.
const MAX_ATTEMPTS: u32 = 4;
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(1);

/// The Sentinels of a client, and the master that they report.
pub(crate) struct Sentinels {
    service: String,
    of_sentinels: Login,
    of_servers: Login,
    /// A template for the addresses. All Sentinels and servers have the template's scheme.
    pattern: ConnectionAddr,
    map: AddressMap,
    network: Network,
    connect_timeout: Duration,
    response_timeout: Duration,
    health: Arc<ServerHealth>,
    state: Mutex<SentinelsState>,
    /// Notified when the state has changed.
    changed: Condvar,
    moved: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct SentinelsState {
    /// The Sentinels. The Sentinel that answered last comes first.
    sentinels: Vec<HostPort>,
    master: Option<Master>,
    /// Whether a thread is asking the Sentinels now, for all threads.
    asking: bool,
    /// The number of completed searches. `found` is the result of the last search.
    asked: u64,
    found: Option<FoundMaster>,
    /// The closers of the connections to the master.
    open: Vec<Closer>,
    /// The closer of the connection on which the follower listens.
    listening: Option<Closer>,
    ended: bool,
}

/// The master's address, and the epoch of the Sentinels' decision for this master. Each decision
/// has a higher epoch than the previous decision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Master {
    host_port: HostPort,
    /// `None` if the client's user at the Sentinel has no right to ask for the epoch.
    epoch: Option<u64>,
}

/// The master. If no Sentinel reports one, this is the last known master, and `doubt` says why.
#[derive(Clone)]
struct FoundMaster {
    master: Master,
    doubt: Option<RedisError>,
}

/// A Sentinel's answer.
#[derive(Debug)]
struct Answer {
    by: HostPort,
    master: Master,
    /// The other Sentinels that this Sentinel knows.
    others: Vec<HostPort>,
}

/// Why a Sentinel reported no master.
#[derive(Debug)]
enum Refusal {
    NotReached(RedisError),
    /// The Sentinel refuses the client or its query.
    Forbidden(RedisError),
    NoSentinel,
    Unknown,
    Odd,
    /// The user's map of addresses panicked.
    Unmapped,
}

impl Refusal {
    /// Whether the Sentinel did not answer in time. With more time, the Sentinel may answer.
    fn is_slow(&self) -> bool {
        matches!(self, Self::NotReached(error) if error.is_timeout())
    }

    /// Whether a later attempt may succeed.
    fn is_transient(&self) -> bool {
        match self {
            // If a certificate is wrong, a later attempt cannot succeed.
            Self::NotReached(error) => error.kind() != ErrorKind::Client,
            Self::Unmapped => true,
            _ => false,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReached(error) => write!(f, "cannot be reached ({error})"),
            Self::Forbidden(error) => write!(
                f,
                "refuses this client ({error}): the Sentinels' user and password are \
                 sentinelUsername and sentinelPassword in the URL"
            ),
            Self::NoSentinel => write!(f, "is no Sentinel"),
            Self::Unknown => write!(f, "knows no master of this name"),
            Self::Odd => write!(f, "answers as no Sentinel does"),
            Self::Unmapped => write!(f, "names a master for whose address address_map panicked"),
        }
    }
}

impl Sentinels {
    pub(super) fn new(
        service: String,
        hosts: &[ConnectionAddr],
        of_sentinels: &RedisConnectionInfo,
        of_servers: Login,
        config: &Settings,
        health: &Arc<ServerHealth>,
    ) -> Result<Self, ConnectError> {
        let of_sentinels = Credentials::instead(&config.sentinel_credentials, of_sentinels);
        let state = SentinelsState {
            sentinels: hosts.iter().map(HostPort::of).collect(),
            ..SentinelsState::default()
        };
        Ok(Self {
            service,
            of_sentinels: Login::new(of_sentinels, config),
            of_servers,
            network: Network::new(&hosts[0], config)?,
            pattern: hosts[0].clone(),
            map: config.address_map.clone(),
            connect_timeout: config.connect_timeout,
            response_timeout: config.response_timeout,
            health: Arc::clone(health),
            state: Mutex::new(state),
            changed: Condvar::new(),
            moved: OnceLock::new(),
        })
    }

    /// The name under which the Sentinels know the master.
    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Sets the callback for a change of the master. The callback must not block.
    pub(super) fn on_moved(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _only_once = self.moved.set(Box::new(callback));
    }

    /// Ends the thread that follows the master, and all searches for a master.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let listening = state.listening.take();
        drop(state);
        self.changed.notify_all();
        if let Some(listening) = listening {
            listening.close();
        }
    }

    /// Opens a connection to the master. If there is no master (because the Sentinels have not
    /// chosen the next master yet), searches until `deadline`.
    pub(super) fn open(
        &self,
        response_timeout: Duration,
        deadline: Instant,
    ) -> RedisResult<(Connection, InfoReply)> {
        // The reason why the last reported master could not be used. The function returns this
        // error even if the last search fails because the Sentinels had too little time to answer.
        let mut failed = None;
        loop {
            let FoundMaster { master, doubt } = match self.find(deadline) {
                Ok(found) => found,
                Err(error) => return Err(failed.unwrap_or(error)),
            };
            let attempt = (self.connect_timeout / MAX_ATTEMPTS).max(SHORTEST_ATTEMPT);
            let until = Instant::now().checked_add(attempt).map_or(deadline, |it| it.min(deadline));
            let (address, login) = (master.host_port.instead_of(&self.pattern), &self.of_servers);
            let watch = |closer| self.watch(&master.host_port, closer);
            let (network, timeout) = (&self.network, response_timeout);
            let opened = Connection::open(&address, network, login, timeout, until, true, &watch);
            let error = match opened {
                Ok((_, server)) if server.is_master == Some(false) => {
                    no_master(format!("{} is named, and is a replica", master.host_port))
                }
                Ok((connection, _)) if connection.is_closed() => {
                    no_master(format!("{} was the master until now", master.host_port))
                }
                Ok((connection, server)) => {
                    if server.is_master.is_none() {
                        self.health.report_missing(NO_ROLE);
                    }
                    return Ok((connection, server));
                }
                // The server refuses this client. Another server would refuse it, too.
                Err(error) if is_refusal(&error) => return Err(error),
                Err(error) => error,
            };
            if let Some(doubt) = doubt {
                return Err(failed.unwrap_or(doubt));
            }
            if !self.pause(&master, deadline) {
                return Err(error);
            }
            failed = Some(error);
        }
    }

    /// Sleeps for a moment, or until another master is known. Returns `false` if the time is over.
    fn pause(&self, failed: &Master, deadline: Instant) -> bool {
        let now = Instant::now();
        let until = now.checked_add(RETRY_AFTER).map_or(deadline, |again| again.min(deadline));
        let mut state = self.state.lock();
        let is_known = |state: &SentinelsState| {
            state.master.as_ref().is_some_and(|it| it.host_port == failed.host_port)
        };
        while !state.ended && is_known(&state) && Instant::now() < until {
            self.changed.wait_until(&mut state, until);
        }
        !state.ended && Instant::now() < deadline
    }

    /// Asks for the master. One thread asks for all threads, because a failover makes all lanes
    /// open connections at once.
    fn find(&self, deadline: Instant) -> RedisResult<FoundMaster> {
        let mut state = self.state.lock();
        let asked = state.asked;
        while state.asking && !state.ended {
            if Instant::now() >= deadline {
                return Err(no_master("the Sentinels did not answer in time".to_owned()));
            }
            self.changed.wait_until(&mut state, deadline);
        }
        if state.ended {
            return Err(no_master("the client has ended".to_owned()));
        }
        // If the other thread found no master, its time may have been too short, so this thread
        // asks, too.
        if let Some(found) = state.found.as_ref().filter(|_| state.asked != asked) {
            return Ok(found.clone());
        }
        state.asking = true;
        drop(state);
        let asking = Asking { sentinels: self, found: None };
        asking.answered(self.ask_all(deadline))
    }

    /// Asks each Sentinel in turn until one reports a master that this client can accept.
    fn ask_all(&self, deadline: Instant) -> RedisResult<FoundMaster> {
        let (all, known) = {
            let state = self.state.lock();
            (state.sentinels.clone(), state.master.clone())
        };
        let begun = Instant::now();
        let left = deadline.saturating_duration_since(begun);
        // If a master is known, keep half of the time for opening a connection to it.
        let left = if known.is_some() { left / 2 } else { left };
        let deadline = begun.checked_add(left).map_or(deadline, |it| it.min(deadline));
        let mut refusals: Vec<(HostPort, Refusal)> = Vec::new();
        let mut stale: Vec<Answer> = Vec::new();
        let mut slow = all.clone();
        for at_once in [true, false] {
            let asked = std::mem::take(&mut slow);
            for (at, host_port) in asked.iter().enumerate() {
                let left = deadline.saturating_duration_since(Instant::now());
                let others = u32::try_from(asked.len() - at).unwrap_or(u32::MAX);
                let share = if at_once { left.min(QUICK_ANSWER) } else { left / others };
                match self.ask(host_port, share) {
                    Ok(answer) if self.learn(host_port, &answer, false) => {
                        return Ok(FoundMaster { master: answer.master, doubt: None });
                    }
                    Ok(answer) => stale.push(answer),
                    Err(refusal) => {
                        if at_once && refusal.is_slow() {
                            slow.push(host_port.clone());
                        }
                        refusals.retain(|(other, _)| other != host_port);
                        refusals.push((host_port.clone(), refusal));
                    }
                }
            }
        }
        // If most answers are stale, the Sentinels have been reinstalled, with new epochs.
        if stale.len() > all.len() / 2
            && let Some(answer) = stale.iter().max_by_key(|answer| answer.master.epoch)
            && self.learn(&answer.by, answer, true)
        {
            return Ok(FoundMaster { master: answer.master.clone(), doubt: None });
        }
        let doubt = self.no_master_error(&refusals, &stale);
        match known {
            // No Sentinel reports a newer master, so use the known master. The command `ROLE` then
            // shows whether this server is still a master.
            Some(master) => Ok(FoundMaster { master, doubt: Some(doubt) }),
            None => Err(doubt),
        }
    }

    /// Stores the master that a Sentinel reports. If the client knows a newer decision, ignores the
    /// answer and returns `false`. With `must`, stores the answer in any case.
    fn learn(&self, by: &HostPort, answer: &Answer, must: bool) -> bool {
        let mut state = self.state.lock();
        let is_older = |known: &Master| matches!((known.epoch, answer.master.epoch), (Some(known), Some(said)) if said < known);
        if !must && state.master.as_ref().is_some_and(is_older) {
            return false;
        }
        state.sentinels.retain(|known| known != by);
        state.sentinels.insert(0, by.clone());
        for host_port in &answer.others {
            if !state.sentinels.contains(host_port) {
                state.sentinels.push(host_port.clone());
            }
        }
        let known = state.master.replace(answer.master.clone());
        let is_same =
            known.as_ref().is_some_and(|known| known.host_port == answer.master.host_port);
        let old = if is_same { Vec::new() } else { std::mem::take(&mut state.open) };
        drop(state);
        if !is_same {
            // Close the connections to the old master: there must be only one master.
            old.iter().for_each(Closer::close);
            self.health.record_move(&answer.master.host_port.to_string(), known.is_none());
            self.changed.notify_all();
            // Treat a failover as a new run of the server, so that all holds are checked at once.
            // `INFO` alone would not be enough, because the server may refuse it.
            if known.is_some()
                && let Some(callback) = self.moved.get()
            {
                callback();
            }
        }
        true
    }

    /// Notes a new connection to this server. The connection is closed when another server becomes
    /// the master.
    fn watch(&self, host_port: &HostPort, closer: Closer) {
        let mut state = self.state.lock();
        if state.master.as_ref().is_some_and(|master| master.host_port == *host_port) {
            state.open.retain(|open| !open.is_done());
            state.open.push(closer);
        } else {
            drop(state);
            closer.close();
        }
    }

    fn no_master_error(&self, refusals: &[(HostPort, Refusal)], stale: &[Answer]) -> RedisError {
        let said = refusals.iter().map(|(host_port, refusal)| format!("{host_port} {refusal}"));
        let old = stale.iter().map(|answer| format!("{} knows less than was known", answer.by));
        let said: Vec<_> = said.chain(old).collect();
        let said = format!("asked for {:?}, {}", self.service, said.join("; "));
        let is_transient =
            !stale.is_empty() || refusals.iter().any(|(_, refusal)| refusal.is_transient());
        if is_transient { no_master(said) } else { error(NO_SERVICE, said) }
    }
}

const NO_ROLE: &str = "it refuses ROLE, so the client cannot make sure that it is a master: allow \
                       that command";

fn no_master(detail: String) -> RedisError {
    error(NO_MASTER, detail)
}

fn error(code: &str, detail: String) -> RedisError {
    redis::make_extension_error(code.to_owned(), Some(detail))
}

/// The role of the thread that asks the Sentinels for all threads. The drop of this value lets the
/// next thread take the role, even after a panic.
struct Asking<'a> {
    sentinels: &'a Sentinels,
    found: Option<FoundMaster>,
}

impl Asking<'_> {
    fn answered(mut self, found: RedisResult<FoundMaster>) -> RedisResult<FoundMaster> {
        self.found = found.as_ref().ok().cloned();
        found
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.sentinels.state.lock();
        state.asking = false;
        state.asked += 1;
        state.found = self.found.take();
        drop(state);
        self.sentinels.changed.notify_all();
    }
}
