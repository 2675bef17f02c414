//! The holders and the waiters of a name at the server, and the state of a client.
//!
//! [`Client::status`] asks the server for the holders and waiters of one name in all clients.
//! [`Client::snapshot`] returns the holds and waits of one client, without a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::Value;
use redlatch_client::{Command, Failure, Node, Outcome, Route};
use uuid::Uuid;

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::name::Name;
use crate::observe::Kind;
use crate::owner::Owner;
use crate::runtime::{Core, Info, SlowWait};
use crate::scripts::fair::FairScripts;
use crate::scripts::lock::{LockScripts, Released};
use crate::scripts::status::{claim_slow_wait, connections, key_data, names};
use crate::scripts::{
    self, Chain, FairKeys, FencingToken, LockKeys, Mode, PermitId, Rights, Trouble, time,
};

pub use crate::snapshot::{Counts, Held, ServerState, Snapshot, Waiting};

/// The holders and waiters of a name, as the server knows them. [`Client::status`] returns a
/// `Status`.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let status = client.status("orders")?;
/// for holder in &status.holders {
///     let process = holder.process.as_ref().map_or("unknown", |process| &process.name);
///     println!("{} in {process}, for {:?} more", holder.owner, holder.left);
/// }
/// println!("{} processes wait", status.queue.len());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// The name.
    pub name: String,
    /// The kind of synchronizer, as far as the name's keys show it.
    pub kind: StatusKind,
    /// The owners that have the lock, or the taken permits of an expirable semaphore. The server
    /// does not store the time of a grant. For most owners, the time of the request is known.
    pub holders: Vec<Holder>,
    /// The queue. The next waiter is first. An entry is a process, or for a fair lock a thread.
    pub queue: Vec<Waiter>,
    /// The number of clients that wait without an entry in the queue. Such clients are Redisson's
    /// waiters for a lock, and all processes that wait for a semaphore or a latch.
    pub listeners: u64,
    /// The free permits of a semaphore, or the count of a latch.
    pub value: Option<i64>,
    /// The last fencing token that the server has granted. Processes take tokens in advance, so a
    /// guard may have a lower token.
    pub token: Option<FencingToken>,
}

/// The kind of synchronizer of a name, as far as the name's keys show it. A client knows more about
/// its own synchronizers: see [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum StatusKind {
    /// There is no key: a free lock, an open latch, a semaphore without permits, or an unused name.
    Free,
    /// A lock. (A fair lock without waiters is also shown as `Lock`.)
    Lock,
    /// A lock with fencing tokens.
    FencedLock,
    /// A lock with a fair queue.
    FairLock,
    /// A read-write lock.
    ReadWriteLock,
    /// A semaphore for which processes wait.
    Semaphore,
    /// An expirable semaphore with taken permits.
    ExpirableSemaphore,
    /// A latch for which processes wait.
    CountDownLatch,
    /// A semaphore or a latch for which no process waits. The name's key has only a number.
    Number,
    /// Another program's data.
    Other,
}

/// An owner that has a lock or a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Holder {
    /// The owner. If another program has written the entry, this field has the program's text.
    pub owner: Owner,
    /// Whether the owner reads, so that other owners may read, too.
    pub shared: bool,
    /// How many times the owner has taken the lock, its re-entries included. Always 1 for redlatch,
    /// which counts re-entries only in the process.
    pub levels: usize,
    /// The owner's remaining lease, or [`Duration::MAX`] if the lease has no end.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "left_ms", serialize_with = "crate::json::millis")
    )]
    pub left: Duration,
    /// When the owner's process asked for the lock, by the clock of that process. `None` if the
    /// owner contains no time: a Redisson owner, or the id of a permit.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "asked_at_ms", serialize_with = "crate::json::some_unix_millis")
    )]
    pub asked: Option<SystemTime>,
    /// The owner's process. `None` if it is unknown, or if a [`Ticket`](crate::Ticket) has the
    /// lock.
    pub process: Option<OwnerProcess>,
}

/// An owner in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Waiter {
    /// The owner, as for a [`Holder`].
    pub owner: Owner,
    /// Whether the owner waits for reading.
    pub shared: bool,
    /// How long the owner has waited. `None` if the time is unknown, for example for a new waiter,
    /// or for a waiter for a fair lock.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "waited_ms", serialize_with = "crate::json::some_millis")
    )]
    pub waited: Option<Duration>,
    /// The time of the owner's request for the lock, as for a [`Holder`].
    #[cfg_attr(
        feature = "serde",
        serde(rename = "asked_at_ms", serialize_with = "crate::json::some_unix_millis")
    )]
    pub asked: Option<SystemTime>,
    /// The owner's process. `None` if it is unknown.
    pub process: Option<OwnerProcess>,
}

/// A server's description of itself. [`Client::server_infos`] returns these values.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// for server in client.server_infos()? {
///     let version = server.field("redis_version").unwrap_or("unknown");
///     println!("{}: version {version}", server.address);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerInfo {
    /// The server's host and port.
    pub address: String,
    info: Info,
}

impl ServerInfo {
    /// Returns a field of the server's reply to `INFO`, such as `redis_version`. Returns `None` if
    /// the reply lacks the field, or the user lacks the right to `INFO`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.info.field(name)
    }

    pub(crate) fn all(core: &Arc<Core>) -> Result<Vec<Self>, Error> {
        core.check(&Name::from(""))?;
        let ask = |node: &Arc<Node>| {
            let address = node.endpoint.address();
            match node.any_lane().call_once(&Command::plain(&[b"INFO"])) {
                Ok(reply) => Ok(Self { address, info: Info::read(reply) }),
                Err(Failure::Refused(_)) => Ok(Self { address, info: Info::read(Value::Nil) }),
                Err(failure) => Err(Trouble::from(failure).of_query().into_error()),
            }
        };
        core.masters().iter().map(ask).collect()
    }
}

/// The process of an owner, found by the name of the process's connections. When these connections
/// have closed, the process is unknown: after the holder's death nobody knows its process. For a
/// Redisson client the process is unknown, unless its `clientName` ends with `#` and the client's
/// id. If the server does not list the names of connections, all processes are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnerProcess {
    /// The [`name`](crate::ClientBuilder::name) of the owner's client.
    pub name: String,
    /// The address of one of the client's connections.
    pub address: Arc<str>,
}

impl OwnerProcess {
    /// Returns the host, if the client has the default name.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.place().map(|(host, _)| host)
    }

    /// Returns the number of the process on its host, if the client has the default name.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.place().map(|(_, pid)| pid)
    }

    fn place(&self) -> Option<(&str, u32)> {
        place(&self.name)
    }
}

/// Returns the host and the process in the default name of a client.
pub(crate) fn place(name: &str) -> Option<(&str, u32)> {
    let (_, place) = name.rsplit_once('@')?;
    let (host, pid) = place.rsplit_once(':')?;
    Some((host, pid.parse().ok()?))
}

#[cfg(feature = "serde")]
impl serde::Serialize for OwnerProcess {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;

        let mut process = serializer.serialize_struct("OwnerProcess", 4)?;
        process.serialize_field("name", &self.name)?;
        process.serialize_field("address", &*self.address)?;
        process.serialize_field("host", &self.host())?;
        process.serialize_field("pid", &self.pid())?;
        process.end()
    }
}

impl Status {
    pub(crate) fn of(core: &Arc<Core>, name: &str) -> Result<Self, Error> {
        Self::of_named(core, &core.name(&*core.key(name)))
    }

    fn of_named(core: &Arc<Core>, name: &Name) -> Result<Self, Error> {
        core.check(name)?;
        if name.is_empty() {
            return Err(Error::nameless("a synchronizer"));
        }
        let route = core.route(name);
        let mut status = Self::look(&route, name)?;
        if !status.holders.is_empty() || !status.queue.is_empty() {
            status.find_processes(&Processes::of(|command| route.call_once(command)));
        }
        Ok(status)
    }

    /// Implements [`Client::check_rights`].
    pub(crate) fn check_rights(core: &Arc<Core>, rights: Rights, name: &str) -> Result<(), Error> {
        let name = &core.name(&*core.key(name));
        core.check(name)?;
        if name.is_empty() {
            return Err(Error::nameless("a synchronizer"));
        }
        let route = core.route(name);
        let checked = match rights {
            Rights::Status => key_data(&route, name).map(drop),
            _ => rights.check(&route, name),
        };
        checked.map_err(|trouble| trouble.into_error().of(name))
    }

    /// Returns the log line for a long wait. Returns `None` if another client has just asked about
    /// the name, or if the server does not answer.
    pub(crate) fn slow_line(core: &Arc<Core>, wait: &SlowWait) -> Option<String> {
        let SlowWait { name, what, waited, .. } = wait;
        let is_first = claim_slow_wait(&core.route(name), name);
        is_first.then(|| Self::why(core, name, *what, *waited))
    }

    /// Returns the reason for a long wait of this kind, for this number of permits.
    fn why(
        core: &Arc<Core>,
        name: &Name,
        (kind, permits): (Kind, u32),
        waited: Duration,
    ) -> String {
        let is_for_permits = kind.is_of_permits();
        let wanted = match permits {
            _ if !is_for_permits => String::new(),
            1 => "a permit of ".to_owned(),
            permits => format!("{permits} permits of "),
        };
        let waited = format!("waited {:.0} s for {wanted}{name:?}", waited.as_secs_f64());
        let status = match Self::of_named(core, name) {
            Ok(status) => status,
            Err(error) => return format!("{waited}; it is not known who has it: {error:#}"),
        };
        let is_ours = |owner: &Owner| owner.as_str().starts_with(core.id.as_str());
        let who = |holder: &Holder| match &holder.process {
            _ if is_ours(&holder.owner) => "this process".to_owned(),
            Some(process) => match process.place() {
                Some((host, pid)) => format!("{host}, process {pid}"),
                None => process.name.clone(),
            },
            None => format!("{}, of an unknown process", holder.owner),
        };
        let asked = |holder: &Holder| match holder.asked {
            Some(at) if !is_ours(&holder.owner) => {
                let ago = SystemTime::now().duration_since(at).unwrap_or_default();
                format!(", which asked {:.0} s ago by its clock", ago.as_secs_f64())
            }
            _ => String::new(),
        };
        let held = match (&status.holders[..], status.value) {
            ([], Some(free)) => format!("of which {free} are free"),
            ([], None) if is_for_permits => {
                "which has no permits: has a program called try_set_permits?".to_owned()
            }
            ([], None) => "which is free by now".to_owned(),
            ([holder, others @ ..], _) => {
                let left = match holder.left {
                    Duration::MAX => String::new(),
                    left => format!(", for {:.0} s more unless it renews", left.as_secs_f64()),
                };
                let others = match others.len() {
                    0 => String::new(),
                    others => format!(", and {others} others"),
                };
                format!("held by {}{}{left}{others}", who(holder), asked(holder))
            }
        };
        // The server does not store who waits for permits.
        if is_for_permits {
            return format!("{waited}, {held}");
        }
        let before = status.queue.iter().position(|waiter| is_ours(&waiter.owner));
        let before = match before.unwrap_or(status.queue.len()) {
            1 => "1 waiter".to_owned(),
            before => format!("{before} waiters"),
        };
        format!("{waited}, {held}; {before} before this one")
    }

    /// Returns the status of each name in use that matches `pattern`.
    pub(crate) fn all(core: &Arc<Core>, pattern: &str) -> Result<Vec<Self>, Error> {
        core.check(&Name::from(""))?;
        let sharded = core.is_cluster() && core.config.connection.sharded_channels;
        let (pattern, mut all) = (core.pattern(pattern), BTreeMap::new());
        for node in core.masters() {
            let lane = node.any_lane();
            let names = names(&pattern, sharded, |command| lane.call_once(command));
            let mut used = Vec::new();
            for name in names.map_err(Trouble::into_error)? {
                let name = core.name(name);
                // No lock can have this name, so the hash belongs to another program.
                if core.check(&name).is_err() {
                    continue;
                }
                let status = Self::look(&core.route(&name), &name)?;
                if !status.holders.is_empty() || !status.queue.is_empty() || status.listeners > 0 {
                    used.push(status);
                }
            }
            let processes = Processes::of(|command| lane.call_once(command));
            for mut status in used {
                status.find_processes(&processes);
                all.insert(status.name.clone(), status);
            }
        }
        Ok(all.into_values().collect())
    }

    /// Releases the lock of this owner. Returns `false` if the owner does not have the lock.
    pub(crate) fn end(core: &Arc<Core>, name: &str, owner: &Owner) -> Result<bool, Error> {
        let name = &core.name(&*core.key(name));
        let status = Self::of_named(core, name)?;
        let Some(holder) = status.holders.iter().find(|it| it.owner == *owner) else {
            return Ok(false);
        };
        let mode = match status.kind {
            StatusKind::ReadWriteLock if holder.shared => Mode::Read,
            StatusKind::ReadWriteLock => Mode::Write,
            _ => Mode::Lock,
        };
        let Some(owner) = owner.of_lock(mode) else {
            let message = "another program gave the holder a text that is no owner of a lock and no \
                           id of a permit, so this library cannot release it; nothing was changed";
            return Err(Error::new(ErrorKind::Config, message.to_owned()).of(name));
        };
        let (route, database, acks) = (core.route(name), core.database(), None);
        let (keys, waits) = (FairKeys::new(name), core.config.fair_waits());
        let fair = FairScripts { key: name, keys: &keys, waits, database, acks };
        let keys = LockKeys::new(name, mode, status.kind == StatusKind::FencedLock);
        let lock = LockScripts { route: &route, keys, client: &core.id, database, acks };
        let fair = fair.release_command(&owner, &[]);
        let lock = lock.release_command(&owner, Chain::default());
        let (command, then) = match status.kind {
            StatusKind::FairLock => (fair, None),
            // The lock may be a fair lock whose first waiter queued after `status`. The first
            // command, a plain lock's release, does not wake this waiter. The second command finds
            // nothing to release, and wakes the waiter. (If the user lacks the right to the second
            // command, the server refuses it. Such a user has no fair locks.)
            StatusKind::Lock => (lock, Some(fair)),
            _ => (lock, None),
        };
        let release =
            |command: &Command| scripts::lock::release(&route, command, Rights::Locks, || true);
        let released = release(&command);
        let released = released.map_err(|trouble| trouble.into_error_of(name))?;
        let _served = then.as_ref().map(release);
        Ok(released != Released::NotHeld)
    }

    fn find_processes(&mut self, processes: &Processes) {
        for holder in &mut self.holders {
            holder.process = processes.find(&holder.owner);
        }
        for waiter in &mut self.queue {
            waiter.process = processes.find(&waiter.owner);
        }
    }

    /// Returns the status without the owners' processes.
    fn look(route: &Route, name: &Name) -> Result<Self, Error> {
        let found = key_data(route, name).map_err(|trouble| trouble.into_error().of(name))?;
        let holder = |(owner, shared, levels, left)| {
            let owner = written(owner);
            let asked = owner.of_lock(Mode::Lock).and_then(|it| it.asked_at());
            let left = time(left).unwrap_or(Duration::MAX);
            Holder { owner, shared, levels, left, asked, process: None }
        };
        let waiter = |(owner, shared, waited, _)| {
            let owner = written(owner);
            let asked = owner.of_lock(Mode::Lock).and_then(|it| it.asked_at());
            Waiter { owner, shared, waited: time(waited), asked, process: None }
        };
        let waits_for = found.queue.first().map_or(String::new(), |(.., kind)| kind.clone());
        let mut holders: Vec<_> = found.held.into_iter().map(holder).collect();
        let is_lock = found.kind == "none"
            || found.left >= 0
                && holders.iter().all(|it| it.owner.of_lock(Mode::Lock).is_some())
                && (found.kind == "shared" || holders.len() == 1);
        let value = str::from_utf8(&found.value).ok().and_then(|value| value.parse().ok());
        let [lock, read_write, semaphore, latch] = found.listeners;
        let (kind, listeners) = match (&*found.kind, &*waits_for) {
            ("shared", _) | ("none", "read-write") if is_lock => {
                (StatusKind::ReadWriteLock, read_write)
            }
            ("hash" | "none", "fair") if is_lock => (StatusKind::FairLock, 0),
            ("hash", _) if is_lock && found.token >= 0 => (StatusKind::FencedLock, lock),
            ("hash", _) | ("none", "lock") if is_lock => (StatusKind::Lock, lock),
            ("none" | "string", _) if !holders.is_empty() => {
                (StatusKind::ExpirableSemaphore, semaphore)
            }
            ("none" | "string", _) if semaphore > 0 => (StatusKind::Semaphore, semaphore),
            ("none" | "string", _) if latch > 0 => (StatusKind::CountDownLatch, latch),
            ("none", _) => (StatusKind::Free, 0),
            ("string", _) if value.is_some() => (StatusKind::Number, 0),
            _ => (StatusKind::Other, 0),
        };
        if kind == StatusKind::Other {
            holders.clear();
        }
        let queue = found.queue.into_iter().map(waiter).collect();
        let token = FencingToken::try_from(found.token).ok();
        Ok(Self { name: name.given().to_owned(), kind, holders, queue, listeners, value, token })
    }
}

/// Returns the owner in these bytes, which may be a permit's id: 16 bytes, or a text from Redisson
/// 3.16.
fn written(owner: Vec<u8>) -> Owner {
    match <[u8; 16]>::try_from(&*owner) {
        Ok(id) => PermitId::from_bytes(id).into(),
        Err(_) => Owner::written(String::from_utf8_lossy(&owner).into_owned()),
    }
}

/// The clients that are connected to a server, by their uuids.
struct Processes(BTreeMap<u128, OwnerProcess>);

impl Processes {
    fn of(ask: impl FnOnce(&Command) -> Outcome) -> Self {
        let process = |(name, address): (String, Arc<str>)| {
            let (name, id) = name.rsplit_once('#')?;
            let id = Uuid::try_parse(id).ok()?.as_u128();
            Some((id, OwnerProcess { name: name.to_owned(), address }))
        };
        Self(connections(ask).into_iter().filter_map(process).collect())
    }

    fn find(&self, owner: &Owner) -> Option<OwnerProcess> {
        /// The ids of a client's permits count up from the client's uuid. No client takes as many
        /// permits as `NEAR`.
        const NEAR: u128 = 1 << 48;
        let owner = owner.as_str();
        let (uuid, _) = owner.split_once(':').unwrap_or((owner, ""));
        let id = Uuid::try_parse(uuid).ok()?.as_u128();
        let (client, process) = self.0.range(..=id).next_back()?;
        (id - client < NEAR).then(|| process.clone())
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn a_status_finds_the_client_of_a_permit_by_its_id() {
        let uuid = "0f3b1c9e-3f2a-8d5c-9b7e-1234567890ab";
        let list = format!(
            "id=3 addr=10.0.0.7:50000 laddr=x name=billing@host-7:4711#{uuid} age=1\n\
             id=4 addr=10.0.0.8:50000 laddr=x name=someone age=1\n"
        );
        let processes = Processes::of(|_| Ok(Value::BulkString(list.into_bytes())));
        for owner in [format!("{uuid}:5"), "0f3b1c9e3f2a8d5c9b7e1234567890af".to_owned()] {
            let process = processes.find(&Owner::written(owner)).unwrap();
            assert_eq!((process.host(), process.pid()), (Some("host-7"), Some(4711)));
            assert_eq!(&*process.address, "10.0.0.7:50000");
        }
        for stranger in
            ["0f3b1c9e3f2a8d5c9b7e1234567890aa", "1f3b1c9e3f2a8d5c9b7e1234567890ab", "é", ""]
        {
            let stranger = Owner::written(stranger.to_owned());
            assert!(processes.find(&stranger).is_none(), "{stranger}");
        }
    }
}
