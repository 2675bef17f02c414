//! Redisson's algorithms, as a baseline for the benches: a direct port with threads.
//!
//! Each handle has its own connection for commands, and a client has one more connection for its
//! subscriptions. If a thread finds a lock taken, it subscribes to the lock's channel if no other
//! thread of its client has done so, and tries again. The thread then sleeps until a message
//! arrives, or until the holder's remaining lease is over. A release publishes a message, and one
//! waiter of each client wakes and tries again. Commands that are always the same are encoded in
//! advance. Connections send bytes at once (`TCP_NODELAY`).
//!
//! The port has no renewal and no reconnection: an error ends a wait. It also lacks the key by
//! which Redisson makes a resent unlock harmless, which costs a `SET` in each unlock and a `DEL`
//! after it.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisResult;

mod commander;
mod counters;
mod lock;
mod scripts;
mod subscriber;
mod wakeups;

use commander::Commander;
pub use counters::{
    PlainExpirableSemaphore, PlainExpirableSemaphoreHandle, PlainLatch, PlainLatchHandle,
    PlainSemaphore, PlainSemaphoreHandle,
};
pub use lock::{
    PlainFairLock, PlainFairLockHandle, PlainLock, PlainLockHandle, PlainReadWriteLock,
};
use subscriber::Subscriber;

/// The default lease of a hold, as in Redisson.
const LEASE: Duration = Duration::from_secs(30);

/// One process of the baseline: an identity, and a connection for subscriptions.
#[derive(Clone)]
pub struct PlainClient {
    shared: Arc<Shared>,
}

struct Shared {
    redis: redis::Client,
    id: String,
    threads: AtomicU64,
    subscriber: Subscriber,
}

impl fmt::Debug for PlainClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainClient").field("id", &self.shared.id).finish_non_exhaustive()
    }
}

impl PlainClient {
    /// Returns a client of the server at this URL (`redis://`).
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn connect(url: &str) -> RedisResult<Self> {
        let redis = commander::client(url)?;
        let subscriber = Subscriber::connect(redis.get_connection_info())?;
        let threads = AtomicU64::new(1);
        Ok(Self { shared: Arc::new(Shared { redis, id: random_id(), threads, subscriber }) })
    }

    /// Returns Redisson's lock of this name.
    #[must_use]
    pub fn lock(&self, name: &str) -> PlainLock {
        PlainLock::new(self.clone(), name, LEASE)
    }

    /// Returns Redisson's lock of this name, with this lease.
    #[must_use]
    pub fn lock_with_lease(&self, name: &str, lease: Duration) -> PlainLock {
        PlainLock::new(self.clone(), name, lease)
    }

    /// Returns Redisson's fair lock of this name.
    #[must_use]
    pub fn fair_lock(&self, name: &str) -> PlainFairLock {
        PlainFairLock::new(self.clone(), name, LEASE)
    }

    /// Returns Redisson's read-write lock of this name.
    #[must_use]
    pub fn read_write_lock(&self, name: &str) -> PlainReadWriteLock {
        PlainReadWriteLock::new(self.clone(), name, LEASE)
    }

    /// Returns Redisson's semaphore of this name.
    #[must_use]
    pub fn semaphore(&self, name: &str) -> PlainSemaphore {
        PlainSemaphore::new(self.clone(), name)
    }

    /// Returns Redisson's permit-expirable semaphore of this name.
    #[must_use]
    pub fn expirable_semaphore(&self, name: &str) -> PlainExpirableSemaphore {
        PlainExpirableSemaphore::new(self.clone(), name, LEASE)
    }

    /// Returns Redisson's count-down latch of this name.
    #[must_use]
    pub fn latch(&self, name: &str) -> PlainLatch {
        PlainLatch::new(self.clone(), name)
    }

    fn commander(&self) -> RedisResult<Commander> {
        Commander::connect(&self.shared.redis)
    }

    fn subscriber(&self) -> &Subscriber {
        &self.shared.subscriber
    }

    /// Returns a new owner for a handle. A handle acts as one thread.
    fn new_owner(&self) -> String {
        let thread = self.shared.threads.fetch_add(1, Ordering::Relaxed);
        format!("{}:{thread}", self.shared.id)
    }
}

/// Returns a random id in the form of a UUID.
fn random_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    let hex = format!("{:016x}{:016x}", random(), random());
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Returns the name of an additional key or channel, by Redisson's rule.
fn prefixed(prefix: &str, name: &str) -> String {
    if name.contains('{') { format!("{prefix}:{name}") } else { format!("{prefix}:{{{name}}}") }
}

#[cfg(test)]
mod tests;
