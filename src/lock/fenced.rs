//! The fenced lock: Redisson's `RFencedLock`, a re-entrant lock whose holds have numbers.

use std::fmt;
use std::sync::Arc;

use redlatch_client::sync::Thread;

#[cfg(doc)]
use crate::client::Client;
use crate::error::Error;
use crate::local::{Site, Tenancy};
use crate::lock::{Handle, HeldLock, Lock, LockGuard, OwnedLockGuard, exclusive, one_lock};
use crate::runtime::Session;
use crate::scripts::Trouble;
use crate::waiting::Wait;

/// A re-entrant lock for data that can refuse late writers: each of its guards has a *fencing
/// token*, a number that is higher than that of every guard before. Redisson's `RFencedLock`. Made
/// by [`Client::fenced_lock`].
///
/// A lease cannot stop a holder that sleeps: a process that is stopped for longer than its lease
/// wakes up, and writes, while another one has the lock. The store that it writes to can tell the
/// two apart: a store that keeps the highest token it has seen, and refuses a lower one, accepts no
/// late writer.
///
/// Otherwise it is a [`ReentrantLock`](crate::ReentrantLock), with the same methods, those of
/// [`Lock`](crate::Lock). The trait's guards have no token; those of the methods here have.
///
/// ```no_run
/// # use redlatch::{Error, FencingToken};
/// # fn write(_: FencingToken, _: &str) {}
/// # fn main() -> Result<(), Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.fenced_lock("orders");
///
/// let guard = lock.lock()?;
/// write(guard.token(), "an order"); // the store refuses it if it has seen a higher token
/// guard.unlock()?;
/// # Ok(()) }
/// ```
///
/// # A recipe
///
/// In a database with transactions, the written tables need no new column. One table, a row for
/// each lock:
///
/// ```sql
/// CREATE TABLE fence (lock TEXT PRIMARY KEY, token BIGINT NOT NULL);
/// ```
///
/// and as the **first statement** of each transaction that writes under the lock
///
/// ```sql
/// INSERT INTO fence (lock, token) VALUES ($1, $2)
///     ON CONFLICT (lock) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
///     RETURNING token;
/// ```
///
/// If no row comes back, a later holder has written, and this transaction must be rolled back. The
/// row is locked until the commit, so of two writers the later one waits and then wins, or the
/// earlier one is fenced off. (`<=`, since one guard may write several times.) The example `fenced`
/// runs it against a stopped holder, and its twin without the table.
///
/// # Tokens
///
/// Tokens grow with every acquisition of the name, by any process, also if the lock is handed on or
/// passed inside a process, or taken again after a wait on a [`Condition`](crate::Condition);
/// re-entry keeps the token. They do not grow by one: a process takes
/// 1,024 at a time, one for each thread that it may pass the lock to. Redisson's clients count on
/// from there.
///
/// Two calls of Redisson 4.7.0 do not do what their names say: `tryLockAndGetToken()` waits for the
/// lock, and a hold of `lockAndGetToken(lease, unit)` is renewed for ever, despite its lease. So
/// such a hold ends only when it is unlocked or its process ends.
///
/// Tokens live in Redis, in a key that has no end and that no unlock deletes. So they survive as
/// the lock does, and no more: after a FLUSHALL, a restart without persistence, or a failover to a
/// replica that had not seen the last ones, **they begin anew or repeat**. A fence that has seen
/// higher ones then refuses all writers, which is safe, and needs an operator: set the key
/// `redisson_lock_token:{name}` to more than the fence has seen. (A failover that loses a few
/// tokens may give one out twice; no number in Redis is safer than Redis's own data.)
///
/// # In Redis
///
/// As the [`ReentrantLock`](crate::ReentrantLock), and the last token in
/// `redisson_lock_token:{name}` (`redisson_lock_token:name`, if the name has a `{`). Access rights
/// must allow that key, `INCRBY`, and the keys of the queue, which a re-entrant lock can do
/// without. Do not use one name for a fenced lock and another kind: they exclude each other, but
/// the other's holds have no token, and in one process a thread cannot re-enter one through the
/// other.
#[derive(Clone, Debug)]
pub struct FencedLock {
    handle: Handle,
}

one_lock!(FencedLock, FencedLockGuard, OwnedFencedLockGuard);

impl FencedLock {
    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = Site::fenced(session.core(), name);
        Self { handle: Handle::new(session.clone(), site) }
    }

    fn take(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        exclusive::acquire(&self.handle, thread, wait)
    }

    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        self.handle.site.scripts().force_unlock()
    }
}

/// The number that orders two holds of one lock: the later one has the higher token. No two holds
/// have the same.
///
/// ```no_run
/// use redlatch::FencingToken;
///
/// /// The store remembers the highest token it has seen.
/// struct Record {
///     highest: Option<FencingToken>,
///     text: String,
/// }
///
/// impl Record {
///     fn write(&mut self, token: FencingToken, text: &str) -> Result<(), FencingToken> {
///         match self.highest {
///             Some(highest) if token < highest => Err(highest), // a late writer
///             _ => {
///                 self.highest = Some(token);
///                 self.text = text.to_owned();
///                 Ok(())
///             }
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// `None`: the lock has no tokens.
    pub(super) fn of(held: &HeldLock) -> Option<Self> {
        held.token().map(Self)
    }

    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// From 1 to 2^53.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// For databases, whose integers have a sign.
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        // Never above 2^53.
        Self::try_from(token.0).unwrap_or(Self::MAX)
    }
}

/// A held [`FencedLock`]: a [`LockGuard`], and its token.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Error, FencedLockGuard};
///
/// fn write(guard: &FencedLockGuard, send: impl FnOnce(i64)) -> Result<(), Error> {
///     guard.check(Duration::from_secs(1))?; // as of any guard
///     send(guard.token().into()); // a database's BIGINT
///     Ok(())
/// }
/// ```
pub type FencedLockGuard = LockGuard<FencedLock>;

/// A held [`FencedLock`] that belongs to no thread: an [`OwnedLockGuard`], and its token.
///
/// ```no_run
/// # use redlatch::{Error, FencedLock};
/// # fn example(lock: &FencedLock) -> Result<(), Error> {
/// let guard = lock.lock_owned()?;
/// std::thread::spawn(move || {
///     println!("written under token {}", guard.token());
///     drop(guard); // released here
/// });
/// # Ok(()) }
/// ```
pub type OwnedFencedLockGuard = OwnedLockGuard<FencedLock>;

impl<O> LockGuard<FencedLock, O> {
    /// The token of this hold. Higher than that of each guard before, on any machine; the same for
    /// all levels that a thread takes. It stays the same after the hold is lost. After a wait on a
    /// [`Condition`](crate::Condition) it is that of the new hold, for all guards of the thread.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        // A fenced lock is never granted without a token. (Zero: no fence accepts it.)
        self.one().and_then(FencingToken::of).unwrap_or(FencingToken(0))
    }
}

impl<O> From<LockGuard<FencedLock, O>> for LockGuard<dyn Lock, O> {
    fn from(guard: LockGuard<FencedLock, O>) -> Self {
        guard.into_guard_of()
    }
}
