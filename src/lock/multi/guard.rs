//! The guards of several held locks.

use super::MultiLock;
use crate::lock::{HeldLock, LockGuard, OwnedLockGuard};
use crate::scripts::FencingToken;

/// Several held locks, or the majority of a quorum. Dropping the guard releases them all. Made by
/// [`MultiLock::lock`].
///
/// - [`remaining`](LockGuard::remaining) is the least of all parts. For a quorum it is that of a
///   majority, less a hundredth of the lease and 2 ms for clock drift.
/// - When one part is lost (for a quorum: so many that the rest is no majority), the guard is lost,
///   and calls its callbacks once. It holds and renews the others until it is dropped.
/// - [`unlock`](LockGuard::unlock) releases this guard's level of each part: in one round trip if
///   the parts [allow it](MultiLock#what-it-costs), otherwise the last one first, in one round trip
///   each (for a quorum, all at the same time). It waits only once for a server that does not
///   answer.
/// - An error has the name of one part, and the other parts are released all the same. For a
///   quorum, it is an error only if no majority was released.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Error, MultiLockGuard};
///
/// fn transfer(guard: MultiLockGuard, book: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
///     guard.check(Duration::from_secs(1))?; // all parts are held for a second more
///     book()?;
///     guard.unlock() // releases all parts
/// }
/// ```
pub type MultiLockGuard = LockGuard<MultiLock>;

/// Several held locks that belong to no thread: an [`OwnedLockGuard`](crate::OwnedLockGuard), which
/// can be sent to another thread. Made by [`MultiLock::lock_owned`].
///
/// ```no_run
/// # use redlatch::{Error, MultiLock};
/// # fn example(both: &MultiLock) -> Result<(), Error> {
/// let guard = both.lock_owned()?;
/// std::thread::spawn(move || drop(guard)); // both are released there
/// # Ok(()) }
/// ```
pub type OwnedMultiLockGuard = OwnedLockGuard<MultiLock>;

impl<O> LockGuard<MultiLock, O> {
    /// Returns the names of the held locks, in the order of taking.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.several().into_iter().flat_map(|levels| &levels.held).map(HeldLock::name)
    }

    /// Returns the names and [owners](LockGuard::owner) of the held locks, in the order of taking.
    pub fn owners(&self) -> impl Iterator<Item = (&str, String)> {
        let held = self.several().into_iter().flat_map(|levels| &levels.held);
        held.map(|held| (held.name(), held.owner()))
    }

    /// Returns the names and fencing tokens of those parts that have a token, in the order of
    /// taking.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        let held = self.several().into_iter().flat_map(|levels| &levels.held);
        held.filter_map(|held| Some((held.name(), held.token()?)))
    }
}
