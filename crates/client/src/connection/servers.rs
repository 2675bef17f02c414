//! The servers of a client, and the route from a name to its server.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Instant;

use redis::Value;

use super::cluster::{Cluster, Slot};
use super::{Cause, Channels, Command, Failure, Lane, Limit, Node, Outcome, reply_code};
use crate::sync::is_forked;

/// The servers of a client: a single server, or the servers of a cluster.
#[derive(Clone, Debug)]
pub enum Servers {
    /// One server, or the master that Sentinels name.
    One(Arc<Node>),
    /// The servers of a cluster.
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// The route of the commands for a name with this hash.
    pub fn route(&self, name: &str, hash: u32) -> Route {
        match self {
            Self::One(node) => Route::Server(Arc::clone(node.lane(hash))),
            Self::Cluster(cluster) => Route::Slot(Slot::of(cluster, name.as_bytes(), hash)),
        }
    }

    /// Returns the server that has this key or channel now.
    pub fn home(&self, key: &[u8]) -> Arc<Node> {
        match self {
            Self::One(node) => Arc::clone(node),
            Self::Cluster(cluster) => cluster.node(super::slot_of(key)),
        }
    }

    /// Any server.
    pub fn first(&self) -> Arc<Node> {
        match self {
            Self::One(node) => Arc::clone(node),
            Self::Cluster(cluster) => cluster.numbered(0),
        }
    }

    /// Returns all servers that the client has ever known.
    pub fn all(&self) -> Vec<Arc<Node>> {
        match self {
            Self::One(node) => vec![Arc::clone(node)],
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// The cluster, if the client uses one.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster),
        }
    }

    /// Returns the servers' addresses for errors and the log.
    pub fn address(&self) -> String {
        let address = self.first().endpoint.address();
        match self {
            Self::One(_) => address,
            Self::Cluster(_) => format!("{address} and others of its cluster"),
        }
    }

    /// Returns the number of the database. A cluster has only one database. Takes no mutex, because
    /// a forked child may call this function.
    pub fn database(&self) -> i64 {
        match self {
            Self::One(node) => node.endpoint.database(),
            Self::Cluster(_) => 0,
        }
    }

    /// The command with which clients publish on channels at these servers.
    pub(crate) fn channels(&self) -> Channels {
        self.first().endpoint.channels()
    }

    /// Whether the other client uses one of these servers, too.
    pub fn overlaps(&self, other: &Self) -> bool {
        let others = other.all();
        let is_one = |one: &Arc<Node>| {
            others.iter().any(|other| one.endpoint.is_same_server_as(&other.endpoint))
        };
        self.all().iter().any(is_one)
    }
}

/// The route from a name to a server's lane. All callers' commands for a name use one lane, so that
/// they run in the order in which they are written. In a cluster, this is a lane of the server that
/// has the name's slot now.
#[derive(Clone)]
pub enum Route {
    /// One server has all names.
    Server(Arc<Lane>),
    /// The name's slot, whose server may change.
    Slot(Slot),
}

// The compiler does not derive this trait because of the callbacks, which redlatch provides. The
// callbacks run with no mutex held, and have their state in a `Mutex` or an atomic.
impl UnwindSafe for Route {}
impl RefUnwindSafe for Route {}

impl Route {
    /// Returns the lane to which the route leads now.
    #[inline]
    pub fn lane(&self) -> Cow<'_, Arc<Lane>> {
        match self {
            Self::Server(lane) => Cow::Borrowed(lane),
            Self::Slot(slot) => Cow::Owned(slot.lane()),
        }
    }

    /// Returns the incarnation of the run of the name's server to which the client last connected.
    #[inline]
    pub fn incarnation(&self) -> u64 {
        self.lane().endpoint().incarnation()
    }

    /// Whether one script may use keys of the names of both routes.
    pub fn is_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Server(lane), Self::Server(other)) => {
                Arc::ptr_eq(lane.endpoint(), other.endpoint())
            }
            (Self::Slot(slot), Self::Slot(other)) => slot.is(other),
            _ => false,
        }
    }

    /// See [`Lane::call_once`].
    pub fn call_once(&self, command: &Command) -> Outcome {
        not_forked()?;
        match self {
            Self::Server(lane) => lane.call_once(command),
            Self::Slot(slot) => slot.call_once(command),
        }
    }

    /// Adds the refused command to an outcome that is a refusal. If the reason is the type of the
    /// key's value, adds this type, too.
    fn explain(&self, outcome: Outcome, command: &Command) -> Outcome {
        let mut cause = match outcome {
            Err(Failure::Refused(cause)) => cause,
            outcome => return outcome,
        };
        cause.command = command.name().map(Into::into);
        if reply_code(&cause.error) == "WRONGTYPE"
            && let Some(key) = command.key()
        {
            // If the user may not query the type, the type remains unknown. If the limit ends this
            // query, do not record this: the call itself has got its reply.
            let _limited = Limit::set(Limit::current());
            cause.holds = match self.call_once(&Command::plain(&[b"TYPE", key])) {
                Ok(Value::SimpleString(name)) => match &*name {
                    "hash" => Some("a hash"),
                    "list" => Some("a list"),
                    "set" => Some("a set"),
                    "stream" => Some("a stream"),
                    "string" => Some("a string"),
                    "zset" => Some("a sorted set"),
                    _ => None,
                },
                _ => None,
            };
        }
        Err(Failure::Refused(cause))
    }

    /// Like [`call_once`](Self::call_once), but if the connection breaks and there is time left,
    /// sends `copy` over a new connection. Sends `copy` at most once. The `bool` says whether
    /// `copy` was sent.
    pub fn call_twice(&self, command: &Command, copy: impl FnOnce() -> Command) -> (Outcome, bool) {
        if let Err(forked) = not_forked() {
            return (Err(forked), false);
        }
        let lane = self.lane();
        let deadline = lane.deadline();
        let outcome = lane.call_once(command);
        self.call_again(&lane, outcome, command, copy, deadline)
    }

    /// Sends several commands in one packet. Returns what [`call_twice`](Self::call_twice) would
    /// return for each command. The routes of the commands' names must be
    /// [with](Self::is_with) this route.
    pub fn call_each(&self, commands: &[Command]) -> Vec<(Outcome, bool)> {
        if let Err(forked) = not_forked() {
            return vec![(Err(forked), false); commands.len()];
        }
        let lane = self.lane();
        let deadline = lane.deadline();
        let outcomes = lane.call_each(commands).into_iter().zip(commands);
        let again = |(outcome, command): (_, &Command)| {
            self.call_again(&lane, outcome, command, || command.clone(), deadline)
        };
        outcomes.map(again).collect()
    }

    /// The second half of [`call_twice`](Self::call_twice): `outcome` is that of the first copy,
    /// which was sent over `lane`.
    fn call_again(
        &self,
        lane: &Arc<Lane>,
        outcome: Outcome,
        command: &Command,
        copy: impl FnOnce() -> Command,
        deadline: Instant,
    ) -> (Outcome, bool) {
        let (outcome, in_doubt) = match self {
            Self::Server(lane) => lane.call_again(outcome, command, copy, deadline),
            Self::Slot(slot) => {
                slot.follow(Arc::clone(lane), outcome, false, command, Some(copy), deadline)
            }
        };
        (self.explain(outcome, command), in_doubt)
    }
}

/// A child that was forked during a call must not use its parent's connections.
fn not_forked() -> Result<(), Failure> {
    if !is_forked() {
        return Ok(());
    }
    let forked = io::Error::other("this process was forked from the one that connected");
    Err(Failure::Unsent(Cause::said(Arc::new(forked.into()), "".into())))
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lane().fmt(f)
    }
}
