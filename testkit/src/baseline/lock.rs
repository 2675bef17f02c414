//! Redisson's lock, fair lock and read-write lock.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{ErrorKind, RedisError, RedisResult, Value};

use super::commander::{Call, Commander, call};
use super::subscriber::{Kind, Subscriber};
use super::{PlainClient, prefixed, scripts};

const CHANNEL: &str = "redisson_lock__channel";
/// The time in milliseconds after which a silent waiter of a fair lock counts as dead.
const FAIR_WAIT: &str = "300000";

/// Redisson's lock. Each thread takes a [`handle`](Self::handle).
#[derive(Clone, Debug)]
pub struct PlainLock {
    client: PlainClient,
    name: String,
    lease: String,
}

impl PlainLock {
    pub(super) fn new(client: PlainClient, name: &str, lease: Duration) -> Self {
        Self { client, name: name.to_owned(), lease: lease.as_millis().to_string() }
    }

    /// Returns a handle for one thread, with its own connection and owner.
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn handle(&self) -> RedisResult<PlainLockHandle> {
        let owner = self.client.new_owner();
        let channel = prefixed(CHANNEL, &self.name);
        let keys = [self.name.as_str(), channel.as_str()];
        Ok(PlainLockHandle {
            acquire: call(scripts::ACQUIRE, &keys[..1], &[&self.lease, &owner]),
            unlock: call(scripts::UNLOCK, &keys, &["0", &self.lease, &owner]),
            commander: self.client.commander()?,
            client: self.client.clone(),
            channel,
        })
    }
}

/// A handle to a [`PlainLock`] or a [`PlainReadWriteLock`], for one thread.
pub struct PlainLockHandle {
    client: PlainClient,
    commander: Commander,
    channel: String,
    acquire: Vec<u8>,
    unlock: Vec<u8>,
}

impl fmt::Debug for PlainLockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainLockHandle").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl PlainLockHandle {
    /// Takes the lock if it is free or if this handle already holds it. Returns whether the call
    /// took the lock.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn try_lock(&mut self) -> RedisResult<bool> {
        Ok(time_left(self.commander.send(&self.acquire)?)?.is_none())
    }

    /// Blocks until the handle has the lock.
    ///
    /// # Errors
    ///
    /// The server or a connection fails.
    pub fn lock(&mut self) -> RedisResult<()> {
        let Self { client, commander, channel, acquire, .. } = self;
        wait_for(client.subscriber(), channel, || time_left(commander.send(acquire)?))
    }

    /// Releases one level of the lock. Returns false if this handle does not hold the lock.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn unlock(&mut self) -> RedisResult<bool> {
        Ok(self.commander.send(&self.unlock)? != Value::Nil)
    }
}

/// Redisson's fair lock. Each thread takes a [`handle`](Self::handle).
#[derive(Clone, Debug)]
pub struct PlainFairLock {
    client: PlainClient,
    name: String,
    lease: String,
}

impl PlainFairLock {
    pub(super) fn new(client: PlainClient, name: &str, lease: Duration) -> Self {
        Self { client, name: name.to_owned(), lease: lease.as_millis().to_string() }
    }

    /// Returns a handle for one thread, with its own connection and owner.
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn handle(&self) -> RedisResult<PlainFairLockHandle> {
        let owner = self.client.new_owner();
        let channel = prefixed(CHANNEL, &self.name);
        let queue = prefixed("redisson_lock_queue", &self.name);
        let timeouts = prefixed("redisson_lock_timeout", &self.name);
        let keys = [&self.name, queue.as_str(), &timeouts, &channel];
        let mut acquire = Call::new(scripts::FAIR_ACQUIRE, &keys[..3], 4);
        for arg in [&self.lease, &owner, FAIR_WAIT] {
            acquire.arg(arg);
        }
        let mut unlock = Call::new(scripts::FAIR_UNLOCK, &keys, 4);
        for arg in ["0", &self.lease, &owner] {
            unlock.arg(arg);
        }
        Ok(PlainFairLockHandle {
            acquire: acquire.fix(),
            unlock: unlock.fix(),
            commander: self.client.commander()?,
            client: self.client.clone(),
            channel: format!("{channel}:{owner}"),
        })
    }
}

/// A handle to a [`PlainFairLock`], for one thread.
pub struct PlainFairLockHandle {
    client: PlainClient,
    commander: Commander,
    channel: String,
    acquire: Call,
    unlock: Call,
}

impl fmt::Debug for PlainFairLockHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PlainFairLockHandle");
        debug.field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl PlainFairLockHandle {
    /// Blocks until the handle has the lock. Handles get the lock in the order of arrival.
    ///
    /// # Errors
    ///
    /// The server or a connection fails.
    pub fn lock(&mut self) -> RedisResult<()> {
        let Self { client, commander, channel, acquire, .. } = self;
        wait_for(client.subscriber(), channel, || {
            time_left(commander.send(acquire.with(&epoch_ms()))?)
        })
    }

    /// Releases one level of the lock. Returns false if this handle does not hold the lock.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn unlock(&mut self) -> RedisResult<bool> {
        Ok(self.commander.send(self.unlock.with(&epoch_ms()))? != Value::Nil)
    }
}

/// Redisson's read-write lock. Each thread takes a handle for reading ([`read`](Self::read)) or for
/// writing ([`write`](Self::write)).
#[derive(Clone, Debug)]
pub struct PlainReadWriteLock {
    client: PlainClient,
    name: String,
    lease: String,
}

impl PlainReadWriteLock {
    pub(super) fn new(client: PlainClient, name: &str, lease: Duration) -> Self {
        Self { client, name: name.to_owned(), lease: lease.as_millis().to_string() }
    }

    /// Returns a handle to the read lock for one thread, with its own connection and owner.
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn read(&self) -> RedisResult<PlainLockHandle> {
        let owner = self.client.new_owner();
        let channel = prefixed("redisson_rwlock", &self.name);
        let prefix = match self.name.contains('{') {
            true => self.name.clone(),
            false => format!("{{{}}}", self.name),
        };
        let timeouts = format!("{prefix}:{owner}:rwlock_timeout");
        let writer = format!("{owner}:write");
        let acquire = [self.name.as_str(), &timeouts];
        let unlock = [self.name.as_str(), &channel, &timeouts, &prefix];
        self.handle(
            call(scripts::READ_ACQUIRE, &acquire, &[&self.lease, &owner, &writer]),
            call(scripts::READ_UNLOCK, &unlock, &["0", &owner]),
            channel.clone(),
        )
    }

    /// Returns a handle to the write lock for one thread, with its own connection and owner.
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn write(&self) -> RedisResult<PlainLockHandle> {
        let owner = format!("{}:write", self.client.new_owner());
        let channel = prefixed("redisson_rwlock", &self.name);
        let keys = [self.name.as_str(), channel.as_str()];
        self.handle(
            call(scripts::WRITE_ACQUIRE, &keys[..1], &[&self.lease, &owner]),
            call(scripts::WRITE_UNLOCK, &keys, &["1", &self.lease, &owner]),
            channel.clone(),
        )
    }

    fn handle(
        &self,
        acquire: Vec<u8>,
        unlock: Vec<u8>,
        channel: String,
    ) -> RedisResult<PlainLockHandle> {
        let commander = self.client.commander()?;
        Ok(PlainLockHandle { client: self.client.clone(), commander, channel, acquire, unlock })
    }
}

/// Redisson's wait loop: tries, subscribes, tries again, then sleeps and tries repeatedly.
fn wait_for(
    subscriber: &Subscriber,
    channel: &str,
    mut attempt: impl FnMut() -> RedisResult<Option<i64>>,
) -> RedisResult<()> {
    if attempt()?.is_none() {
        return Ok(());
    }
    let subscription = subscriber.subscribe(channel, Kind::Lock)?;
    while let Some(left) = attempt()? {
        // If the holder's lease has no end (-1), only a message ends the sleep.
        let timeout = u64::try_from(left).ok().map(Duration::from_millis);
        subscription.wakeups.acquire(timeout)?;
    }
    Ok(())
}

/// Returns the remaining lease of the present holder in milliseconds, or `None` if this handle got
/// the lock.
fn time_left(reply: Value) -> RedisResult<Option<i64>> {
    match reply {
        Value::Nil => Ok(None),
        Value::Int(left) => Ok(Some(left)),
        _ => Err(RedisError::from((ErrorKind::UnexpectedReturnType, "an acquire's reply"))),
    }
}

fn epoch_ms() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis().to_string()
}
