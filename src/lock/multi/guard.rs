//! The guards of several held locks.

use super::{MultiLock, Rule};
use crate::lock::{HeldLock, LockGuard, OwnedLockGuard, PartGuard};
use crate::owner::Owner;
use crate::scripts::FencingToken;

/// The guard of several held locks, or of a majority of a quorum's locks. Dropping the guard
/// releases all its locks. [`MultiLock::lock`] returns such a guard.
///
/// - [`remaining`](LockGuard::remaining) returns the shortest remaining time of all parts. For a
///   quorum it returns how long a majority is held, less a hundredth of the lease and 2 ms for
///   clock drift.
/// - When one part is lost, the guard reports the loss of the lock, and the client calls the
///   guard's callbacks once. (The guard of a quorum reports the loss when less than a majority is
///   left.) The client holds and renews the other parts until the guard is dropped.
/// - [`unlock`](LockGuard::unlock) releases this guard's level of each part. If the parts [allow
///   it](MultiLock#what-it-costs), this takes one round trip. Otherwise `unlock` releases the parts
///   one by one, the last part first, with one round trip for each. The parts of a quorum are
///   released at the same time. `unlock` waits only once for a server that does not answer.
/// - An error of `unlock` contains the name of one part. All parts without an error are released.
///   For a quorum, `unlock` fails only if it released less than a majority.
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

/// An [`OwnedLockGuard`](crate::OwnedLockGuard) of several held locks. The guard belongs to no
/// thread and can be sent to another thread. [`MultiLock::lock_owned`] returns such a guard.
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
    /// Returns the names of the held locks, in the order in which they were taken.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.several().into_iter().flat_map(|levels| &levels.held).map(HeldLock::name)
    }

    /// Returns the names and [owners](LockGuard::owner) of the held locks, in the order in which
    /// they were taken.
    pub fn owners(&self) -> impl Iterator<Item = (&str, Owner)> {
        let held = self.several().into_iter().flat_map(|levels| &levels.held);
        held.map(|held| (held.name(), held.owner()))
    }

    /// Returns the names and tokens of the parts that have a fencing token, in the order in which
    /// they were taken.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        let held = self.several().into_iter().flat_map(|levels| &levels.held);
        held.filter_map(|held| Some((held.name(), held.token()?)))
    }
    /// Returns the held lock of this name, to run scripts under it. Returns `None` if no part has
    /// this name. Also returns `None` for the guard of a quorum, because no single server knows
    /// whether a majority is held. No I/O.
    #[must_use]
    pub fn part(&self, name: &str) -> Option<PartGuard<'_>> {
        let levels = self.several().filter(|levels| levels.rule == Rule::All)?;
        let held = levels.held.iter().find(|held| held.name() == name)?;
        Some(PartGuard { held })
    }
}
