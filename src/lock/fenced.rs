//! The fenced lock: Redisson's `RFencedLock`, a re-entrant lock whose holds have tokens.

#[cfg(doc)]
use crate::client::Client;
use crate::lock::{Handle, HeldLock, LockGuard, OwnedLockGuard, one_lock};
use crate::runtime::Session;
use crate::scripts::FencingToken;
use crate::site::Site;

/// A re-entrant lock with tokens, by which a data store can refuse late writers. Each guard has a
/// *fencing token*, a number that is higher than the tokens of all earlier guards. The lock
/// corresponds to Redisson's `RFencedLock`. [`Client::fenced_lock`] returns a `FencedLock`.
///
/// A lease cannot stop a process: a holder that is paused for longer than its lease may write while
/// another process has the lock. If the store keeps the highest token that it has seen and refuses
/// lower tokens, it accepts no late write. [Fencing](crate::guide::fencing) shows this with SQL.
///
/// In all other respects, a `FencedLock` is a [`ReentrantLock`](crate::ReentrantLock). A
/// `FencedLock` has the methods of [`Lock`](crate::Lock), but the methods of the trait return
/// guards without a token.
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
/// # Tokens
///
/// The token grows with every acquisition of the name by any process. The token also grows when
/// threads pass the lock to each other, and when a thread takes the lock again after a wait on a
/// [`Condition`](crate::Condition). A re-entry keeps the token. Tokens have gaps.
///
/// After a `FLUSHALL`, a restart without persistence, or a failover to a replica that lags behind,
/// **tokens begin anew or repeat**: see [Fencing](crate::guide::fencing#what-a-token-proves).
///
/// # In Redis
///
/// A fenced lock has the keys of a [`ReentrantLock`](crate::ReentrantLock). The key
/// `redisson_lock_token:{name}` contains the last token. (If the name has a `{`, this key is
/// `redisson_lock_token:name`.) Do not use one name for a fenced lock and for a lock of another
/// kind. The two locks exclude each other, but the guards of the other lock have no token. A thread
/// that holds one of the locks cannot take the other lock.
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
}

/// The guard of a [`FencedLock`]: a [`LockGuard`] with a token.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Error, FencedLockGuard};
///
/// fn write(guard: &FencedLockGuard, send: impl FnOnce(i64)) -> Result<(), Error> {
///     guard.check(Duration::from_secs(1))?; // as with any guard
///     send(guard.token().into()); // a database's BIGINT
///     Ok(())
/// }
/// ```
pub type FencedLockGuard = LockGuard<FencedLock>;

/// The guard of a [`FencedLock`] that belongs to no thread: an [`OwnedLockGuard`] with a token.
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
    /// Returns the token of this hold. The token is higher than the tokens of all earlier holds, on
    /// any machine. If a thread takes several levels, all its guards have the same token. The token
    /// stays the same after the lock is lost. After a wait on a [`Condition`](crate::Condition),
    /// all guards of the thread have the token of the new hold.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        // The server always grants a fenced lock with a token. (No store would accept the default
        // of zero.)
        self.one().and_then(HeldLock::token).unwrap_or_else(|| FencingToken::from_number(0))
    }
}
