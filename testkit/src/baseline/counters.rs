//! Redisson's semaphores and count-down latch.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{RedisResult, Value, cmd};

use super::commander::{Commander, call};
use super::subscriber::Kind;
use super::{PlainClient, prefixed, scripts};

/// Redisson's semaphore. Each thread takes a [`handle`](Self::handle).
#[derive(Clone, Debug)]
pub struct PlainSemaphore {
    client: PlainClient,
    name: String,
}

impl PlainSemaphore {
    pub(super) fn new(client: PlainClient, name: &str) -> Self {
        Self { client, name: name.to_owned() }
    }

    /// Returns a handle for one thread, with its own connection.
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn handle(&self) -> RedisResult<PlainSemaphoreHandle> {
        let channel = prefixed("redisson_sc", &self.name);
        Ok(PlainSemaphoreHandle {
            acquire: call(scripts::TAKE_PERMITS, &[&self.name], &["1"]),
            release: call(scripts::RETURN_PERMITS, &[&self.name, &channel], &["1"]),
            commander: self.client.commander()?,
            client: self.client.clone(),
            name: self.name.clone(),
            channel,
        })
    }
}

/// A handle to a [`PlainSemaphore`], for one thread.
pub struct PlainSemaphoreHandle {
    client: PlainClient,
    commander: Commander,
    name: String,
    channel: String,
    acquire: Vec<u8>,
    release: Vec<u8>,
}

impl fmt::Debug for PlainSemaphoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainSemaphoreHandle").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PlainSemaphoreHandle {
    /// Sets the number of permits if it is not set yet. Returns whether this call set it.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn try_set_permits(&mut self, permits: usize) -> RedisResult<bool> {
        let keys = [self.name.as_str(), &self.channel];
        let reply =
            self.commander.send(&call(scripts::SET_PERMITS, &keys, &[&permits.to_string()]))?;
        Ok(reply == Value::Int(1))
    }

    /// Takes a permit if one is free. Returns whether the call took a permit.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn try_acquire(&mut self) -> RedisResult<bool> {
        Ok(self.commander.send(&self.acquire)? == Value::Int(1))
    }

    /// Blocks until the call has a permit.
    ///
    /// # Errors
    ///
    /// The server or a connection fails.
    pub fn acquire(&mut self) -> RedisResult<()> {
        if self.try_acquire()? {
            return Ok(());
        }
        let client = self.client.clone();
        let subscription = client.subscriber().subscribe(&self.channel, Kind::Semaphore)?;
        while !self.try_acquire()? {
            subscription.wakeups.acquire(None)?;
        }
        Ok(())
    }

    /// Gives a permit back to the semaphore.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn release(&mut self) -> RedisResult<()> {
        self.commander.send(&self.release).map(drop)
    }
}

/// Redisson's permit-expirable semaphore. Each thread takes a [`handle`](Self::handle).
#[derive(Clone, Debug)]
pub struct PlainExpirableSemaphore {
    client: PlainClient,
    name: String,
    lease: Duration,
}

impl PlainExpirableSemaphore {
    pub(super) fn new(client: PlainClient, name: &str, lease: Duration) -> Self {
        Self { client, name: name.to_owned(), lease }
    }

    /// Returns a handle for one thread, with its own connection.
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn handle(&self) -> RedisResult<PlainExpirableSemaphoreHandle> {
        Ok(PlainExpirableSemaphoreHandle {
            channel: prefixed("redisson_sc", &self.name),
            timeouts: format!("{{{}}}:timeout", self.name),
            commander: self.client.commander()?,
            client: self.client.clone(),
            name: self.name.clone(),
            lease: self.lease,
        })
    }
}

/// A handle to a [`PlainExpirableSemaphore`], for one thread.
pub struct PlainExpirableSemaphoreHandle {
    client: PlainClient,
    commander: Commander,
    name: String,
    timeouts: String,
    channel: String,
    lease: Duration,
}

impl fmt::Debug for PlainExpirableSemaphoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainExpirableSemaphoreHandle")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl PlainExpirableSemaphoreHandle {
    /// Sets the number of permits if it is not set yet. Returns whether this call set it.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn try_set_permits(&mut self, permits: usize) -> RedisResult<bool> {
        let keys = [self.name.as_str(), &self.channel];
        let set = call(scripts::SET_PERMITS, &keys, &[&permits.to_string()]);
        Ok(self.commander.send(&set)? == Value::Int(1))
    }

    /// Blocks until the call has a permit. Returns the permit's id.
    ///
    /// # Errors
    ///
    /// The server or a connection fails.
    pub fn acquire(&mut self) -> RedisResult<String> {
        if let Ok(id) = self.try_acquire()? {
            return Ok(id);
        }
        let client = self.client.clone();
        let subscription = client.subscriber().subscribe(&self.channel, Kind::Semaphore)?;
        loop {
            match self.try_acquire()? {
                Ok(id) => return Ok(id),
                // A message or the end of the next lease wakes the thread.
                Err(left) => drop(subscription.wakeups.acquire(left)),
            }
        }
    }

    /// Tries to take a permit. Returns the permit's id, or the time until the next lease ends.
    fn try_acquire(&mut self) -> RedisResult<Result<String, Option<Duration>>> {
        let id = self.client.new_owner();
        let now = now();
        let ends = (now + self.lease.as_millis()).to_string();
        let keys = [self.name.as_str(), &self.timeouts, &self.channel];
        let args = ["1", &ends, &now.to_string(), "922337203685477", &id];
        let reply = self.commander.send(&call(scripts::TAKE_LEASED_PERMIT, &keys, &args))?;
        let reply: Option<String> = redis::from_redis_value(reply)?;
        Ok(match reply.as_deref() {
            Some("OK") => Ok(id),
            Some(next) => {
                let next: u128 = next.trim_start_matches(':').parse().unwrap_or(now);
                let left = u64::try_from(next.saturating_sub(now)).unwrap_or(u64::MAX);
                Err(Some(Duration::from_millis(left)))
            }
            None => Err(None),
        })
    }

    /// Gives a permit back to the semaphore. Returns false if the permit's lease had ended.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn release(&mut self, id: &str) -> RedisResult<bool> {
        let keys = [self.name.as_str(), &self.channel, &self.timeouts];
        let args = [id, "1", &now().to_string()];
        let reply = self.commander.send(&call(scripts::RETURN_LEASED_PERMIT, &keys, &args))?;
        Ok(reply == Value::Int(1))
    }
}

/// Returns the time of this machine's wall clock, by which Redisson counts leases.
pub(super) fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

/// Redisson's count-down latch. Each thread takes a [`handle`](Self::handle).
#[derive(Clone, Debug)]
pub struct PlainLatch {
    client: PlainClient,
    name: String,
}

impl PlainLatch {
    pub(super) fn new(client: PlainClient, name: &str) -> Self {
        Self { client, name: name.to_owned() }
    }

    /// Returns a handle for one thread, with its own connection.
    ///
    /// # Errors
    ///
    /// The connection to the server fails.
    pub fn handle(&self) -> RedisResult<PlainLatchHandle> {
        // Redisson always puts this channel's name in braces, unlike other channels' names.
        let channel = format!("redisson_countdownlatch__channel__{{{}}}", self.name);
        Ok(PlainLatchHandle {
            count: cmd("GET").arg(&self.name).get_packed_command(),
            count_down: call(scripts::COUNT_DOWN, &[&self.name, &channel], &["0"]),
            commander: self.client.commander()?,
            client: self.client.clone(),
            name: self.name.clone(),
            channel,
        })
    }
}

/// A handle to a [`PlainLatch`], for one thread.
pub struct PlainLatchHandle {
    client: PlainClient,
    commander: Commander,
    name: String,
    channel: String,
    count: Vec<u8>,
    count_down: Vec<u8>,
}

impl fmt::Debug for PlainLatchHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainLatchHandle").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PlainLatchHandle {
    /// Sets the count if there is no count. Returns whether this call set it.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn try_set_count(&mut self, count: usize) -> RedisResult<bool> {
        let keys = [self.name.as_str(), &self.channel];
        let args = ["1", &count.to_string()];
        Ok(self.commander.send(&call(scripts::SET_COUNT, &keys, &args))? == Value::Int(1))
    }

    /// Returns the count, or 0 if there is no count.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn count(&mut self) -> RedisResult<i64> {
        let value = self.commander.send(&self.count)?;
        Ok(redis::from_redis_value::<Option<i64>>(value)?.unwrap_or(0))
    }

    /// Counts down by one. When the count reaches zero, all waiters wake.
    ///
    /// # Errors
    ///
    /// The server or the connection fails.
    pub fn count_down(&mut self) -> RedisResult<()> {
        self.commander.send(&self.count_down).map(drop)
    }

    /// Blocks until the count is zero.
    ///
    /// # Errors
    ///
    /// The server or a connection fails.
    pub fn wait(&mut self) -> RedisResult<()> {
        if self.count()? <= 0 {
            return Ok(());
        }
        let client = self.client.clone();
        let subscription = client.subscriber().subscribe(&self.channel, Kind::Latch)?;
        while self.count()? > 0 {
            subscription.wakeups.wait_open()?;
        }
        Ok(())
    }
}
