//! The fenced lock: Redisson's `RFencedLock`, a re-entrant lock whose holds have numbers.

use std::fmt;
use std::str::FromStr;

#[cfg(doc)]
use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::lock::{Handle, HeldLock, LockGuard, OwnedLockGuard, one_lock};
use crate::runtime::Session;
use crate::site::Site;

/// A re-entrant lock for a data store that can refuse late writers. Each guard has a *fencing
/// token*, a number that is higher than that of every guard before. It is Redisson's `RFencedLock`.
/// Made by [`Client::fenced_lock`].
///
/// A lease cannot stop a process: a holder that is stopped for longer than its lease may write
/// while another process has the lock. If the store keeps the highest token that it has seen, and
/// refuses a lower one, it accepts no late write. [Fencing](crate::guide::fencing) shows this with
/// SQL.
///
/// Otherwise it is a [`ReentrantLock`](crate::ReentrantLock). Its methods are those of
/// [`Lock`](crate::Lock), but the guards of the trait's methods have no token.
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
/// Tokens grow with every acquisition of the name, by any process, also when threads pass the lock
/// to each other and when a thread takes it again after a wait on a
/// [`Condition`](crate::Condition). Re-entry keeps the token. Tokens have gaps.
///
/// After a `FLUSHALL`, a restart without persistence, or a failover to a replica that lags behind,
/// **tokens begin anew or repeat**: see [Fencing](crate::guide::fencing#what-a-token-proves).
///
/// # In Redis
///
/// The keys of a [`ReentrantLock`](crate::ReentrantLock), and the last token in
/// `redisson_lock_token:{name}` (`redisson_lock_token:name`, if the name has a `{`). Do not use one
/// name for a fenced lock and another kind: they exclude each other, but the other lock's guards
/// have no token, and a thread cannot re-enter one through the other.
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

/// A number that orders the holds of one lock: a later hold has a higher token.
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
    /// The token of a held lock. `None`: the lock has no tokens.
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

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// This is for databases, whose integers are signed.
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        // A token is never above 2^53.
        Self::try_from(token.0).unwrap_or(Self::MAX)
    }
}

/// The highest token: Lua counts no further.
const HIGHEST: u64 = 1 << 53;

impl TryFrom<u64> for FencingToken {
    type Error = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if it is not from 1 to 2^53.
    fn try_from(number: u64) -> Result<Self, Error> {
        if (1..=HIGHEST).contains(&number) { Ok(Self(number)) } else { Err(no_token()) }
    }
}

/// This is for a token that a database has kept.
impl TryFrom<i64> for FencingToken {
    type Error = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if it is not from 1 to 2^53.
    fn try_from(number: i64) -> Result<Self, Error> {
        u64::try_from(number).map_err(|_| no_token())?.try_into()
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if it is not a decimal number from 1 to 2^53.
    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse::<u64>().map_err(|_| no_token())?.try_into()
    }
}

fn no_token() -> Error {
    let message = "a fencing token is a number from 1 to 2^53, and this is something else";
    Error::new(ErrorKind::Config, message.to_owned())
}

/// A held [`FencedLock`]: a [`LockGuard`] with a token.
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

/// A held [`FencedLock`] that belongs to no thread: an [`OwnedLockGuard`] with a token.
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
    /// Returns the token of this hold. It is higher than that of each guard before, on any machine,
    /// and the same for all levels that a thread takes. It stays the same after the lock is lost.
    /// After a wait on a [`Condition`](crate::Condition), all guards of the thread have the token
    /// of the new hold.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        // A fenced lock is never granted without a token. (If it were, no fence would accept zero.)
        self.one().and_then(FencingToken::of).unwrap_or(FencingToken(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_a_database_or_a_text_has_kept_is_the_same() {
        for number in [1, 7, HIGHEST] {
            let token = FencingToken::try_from(number).unwrap();
            assert_eq!(u64::from(token), number);
            assert_eq!(FencingToken::try_from(i64::from(token)).unwrap(), token);
            assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
        }
    }

    #[test]
    fn what_is_no_token_is_an_error() {
        for number in [0, HIGHEST + 1, u64::MAX] {
            assert_eq!(FencingToken::try_from(number).unwrap_err().kind(), ErrorKind::Config);
        }
        assert_eq!(FencingToken::try_from(-1_i64).unwrap_err().kind(), ErrorKind::Config);
        for text in ["", "0", "-1", "1.5", "seven", "9007199254740993"] {
            assert_eq!(
                text.parse::<FencingToken>().unwrap_err().kind(),
                ErrorKind::Config,
                "{text}"
            );
        }
    }
}
