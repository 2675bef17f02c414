//! The guards of several held locks.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use redlatch_client::sync::Mutex;

#[cfg(doc)]
use super::MultiLock;
use super::{Rule, quorum};
use crate::error::{Error, ErrorKind, LostReason, Passing};
use crate::local::{HoldState, Leaving};
use crate::lock::{Guard, HeldLock, Part};
use crate::runtime::Core;

/// Several held locks, or the majority of a quorum. Dropping it releases them all. Made by
/// [`MultiLock::lock`].
///
/// Like a [`LockGuard`](crate::LockGuard) it stays on its thread, and other threads may ask it; it
/// speaks for all its parts. When it loses one part (for a quorum: so many that the rest is no
/// majority), it is lost; the others stay held, and renewed, until it is dropped.
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{Error, MultiLockGuard};
///
/// fn transfer(guard: MultiLockGuard, book: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
///     guard.check(Duration::from_secs(1))?; // all of them, for a second more
///     book()?;
///     guard.unlock() // of all
/// }
/// ```
#[must_use = "dropping the guard releases the locks at once; bind it, or use `with`"]
pub struct MultiLockGuard {
    levels: GuardLevels,
    /// `Sync` and not `Send`, as the parts are.
    _stays: PhantomData<MutexGuard<'static, ()>>,
}

/// Several held locks that belong to no thread: like an [`OwnedLockGuard`](crate::OwnedLockGuard),
/// it may be sent to another thread, and dropped there. Made by [`MultiLock::lock_owned`].
///
/// ```no_run
/// # use redlatch::{Error, MultiLock};
/// # fn example(both: &MultiLock) -> Result<(), Error> {
/// let guard = both.lock_owned()?;
/// std::thread::spawn(move || drop(guard)); // both are released there
/// # Ok(()) }
/// ```
#[must_use = "dropping the guard releases the locks at once; bind it"]
pub struct OwnedMultiLockGuard {
    levels: GuardLevels,
}

macro_rules! guard_verbs {
    ($guard:ident) => {
        impl $guard {
            /// Whether all parts are held (for a quorum: a majority), as far as this process can
            /// know without asking. No I/O.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.levels.is_held()
            }

            /// The state of all parts together, as far as this process knows it. No I/O.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.levels.state()
            }

            /// For how long the parts are certainly held if no renewal succeeds any more: the least
            /// of all parts. For a quorum: for how long a majority is, less a hundredth of the
            /// lease and 2 ms for clock drift. Zero if they are lost. No I/O.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.levels.remaining()
            }

            /// Fails unless the parts are certainly held for `slack` more: as
            /// [`LockGuard::check`](crate::LockGuard::check) of each part, or of a quorum's
            /// majority.
            ///
            /// # Errors
            ///
            /// [`LeaseLost`](ErrorKind::LeaseLost) with the name of a lost part,
            /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) with the name of a part that may end before
            /// the slack does, [`NotHeld`](ErrorKind::NotHeld) for a part that was released by its
            /// own `unlock`, [`Forked`](ErrorKind::Forked) in a forked child.
            ///
            /// # Blocking
            ///
            /// Not at all, except for a round trip for each part that another process has just
            /// handed on, if it is certain for less than the slack.
            pub fn check(&self, slack: Duration) -> Result<(), Error> {
                self.levels.check(slack)
            }

            /// Registers `callback`, which the client calls once when the first part is lost before
            /// it is released (for a quorum: when so many are lost that the rest is no majority).
            /// As [`LockGuard::on_lost`](crate::LockGuard::on_lost).
            pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
                self.levels.on_lost(Box::new(callback));
            }

            /// Releases this guard's level of each part, the last one first.
            ///
            /// # Errors
            ///
            /// As [`LockGuard::unlock`](crate::LockGuard::unlock), with the name of the failed
            /// part: a lost part before others. All the others are released in any case. For a
            /// quorum only if less than a majority was still held, or could be confirmed.
            /// # Blocking
            ///
            /// One round trip for each part that is released; for a quorum, one for all at the same
            /// time. It waits only once for a server that does not answer, even if that has several
            /// parts.
            pub fn unlock(self) -> Result<(), Error> {
                self.levels.unlock()
            }

            /// Lets go of the guard and leaves each part to the end of its own lease: as
            /// [`LockGuard::leave_to_expire`](crate::LockGuard::leave_to_expire).
            ///
            /// # Errors
            ///
            /// As [`LockGuard::leave_to_expire`](crate::LockGuard::leave_to_expire), with the name
            /// of the failed part. All the others are left to expire in any case. For a quorum only
            /// if fewer than a majority are.
            ///
            /// # Blocking
            ///
            /// Not at all, except for a round trip for each part that another process has just
            /// handed on.
            pub fn leave_to_expire(self) -> Result<(), Error> {
                self.levels.leave_to_expire()
            }

            /// The names of the held locks, in the order of taking.
            pub fn names(&self) -> impl Iterator<Item = &str> {
                self.levels.names()
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("names", &self.names().collect::<Vec<_>>())
                    .field("state", &self.state())
                    .field("remaining", &self.remaining())
                    .finish()
            }
        }
    };
}

guard_verbs!(MultiLockGuard);
guard_verbs!(OwnedMultiLockGuard);

impl MultiLockGuard {
    pub(super) fn new(levels: GuardLevels) -> Self {
        Self { levels, _stays: PhantomData }
    }
}

impl Guard for MultiLockGuard {
    fn core(&self) -> Arc<Core> {
        Arc::clone(&self.levels.held[0].handle.site.core)
    }

    fn unlock(self) -> Result<(), Error> {
        Self::unlock(self)
    }
}

impl OwnedMultiLockGuard {
    pub(super) fn new(levels: GuardLevels) -> Self {
        Self { levels }
    }
}

/// One level of each of several holds. Nothing here checks the calling thread.
pub(super) struct GuardLevels {
    /// In the order of taking.
    held: Vec<HeldLock>,
    /// How many must be held.
    needed: usize,
    /// The allowance for clock drift between several servers in one lease.
    drift: Duration,
    rule: Rule,
}

impl GuardLevels {
    /// GuardLevels that are all needed.
    pub(super) fn all(parts: usize) -> Self {
        let held = Vec::with_capacity(parts);
        Self { held, needed: parts, drift: Duration::ZERO, rule: Rule::All }
    }

    /// GuardLevels of which more than half are needed.
    pub(super) fn majority(parts: &[Arc<dyn Part>]) -> Self {
        let leases = parts.iter().map(|part| part.handle().terms().lease());
        let drift = leases.max().unwrap_or_default() / 100 + Duration::from_millis(2);
        let needed = parts.len() / 2 + 1;
        Self { held: Vec::with_capacity(parts.len()), needed, drift, rule: Rule::Majority }
    }

    pub(super) fn push(&mut self, held: HeldLock) {
        self.held.push(held);
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The time that the `needed` longest-lasting parts all have left.
    fn remaining(&self) -> Duration {
        let mut times: Vec<_> = self.held.iter().map(HeldLock::remaining).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let least = self.needed.checked_sub(1).and_then(|at| times.get(at));
        least.map_or(Duration::ZERO, |least| least.saturating_sub(self.drift))
    }

    fn state(&self) -> HoldState {
        let states: Vec<_> = self.held.iter().map(HeldLock::state).collect();
        let count = |wanted: &[HoldState]| states.iter().filter(|it| wanted.contains(it)).count();
        if count(&[HoldState::Held]) >= self.needed {
            HoldState::Held
        } else if count(&[HoldState::Held, HoldState::Unconfirmed]) >= self.needed {
            HoldState::Unconfirmed
        } else {
            let lost = states.iter().find(|state| matches!(state, HoldState::Lost(_)));
            lost.copied().unwrap_or(HoldState::Released)
        }
    }

    fn check(&self, slack: Duration) -> Result<(), Error> {
        let slack = slack.saturating_add(self.drift);
        let checks = self.held.iter().map(|held| held.check(slack));
        let (passed, failed): (Vec<_>, Vec<_>) = checks.partition(Result::is_ok);
        if passed.len() >= self.needed {
            return Ok(());
        }
        // Of several errors, the one that is true of all parts together.
        let too_soon = self.is_held();
        let mut failed: Vec<_> = failed.into_iter().filter_map(Result::err).collect();
        let is_it = |error: &Error| (error.kind() == ErrorKind::EndsTooSoon) == too_soon;
        let at = failed.iter().position(is_it).unwrap_or(0);
        Err(failed.swap_remove(at))
    }

    fn on_lost(&self, callback: Box<dyn FnOnce(LostReason) + Send>) {
        let spare = self.held.len().saturating_sub(self.needed);
        let heard = Arc::new((AtomicUsize::new(0), Mutex::new(Some(callback))));
        for held in &self.held {
            let heard = Arc::clone(&heard);
            held.on_lost(Box::new(move |reason| {
                let (lost, callback) = &*heard;
                if lost.fetch_add(1, Ordering::AcqRel) == spare {
                    let callback = callback.lock().take();
                    if let Some(callback) = callback {
                        callback(reason);
                    }
                }
            }));
        }
    }

    fn leave_to_expire(mut self) -> Result<(), Error> {
        let held = std::mem::take(&mut self.held);
        self.ended(held.into_iter().rev().map(HeldLock::leave_to_expire))
    }

    fn unlock(mut self) -> Result<(), Error> {
        // A forked child starts no threads for its parent's holds.
        if let Some(HeldLock { handle, .. }) = self.held.first() {
            handle.site.core.check_process(&handle.site.name)?;
        }
        let held = std::mem::take(&mut self.held).into_iter().rev();
        match self.rule {
            Rule::All => self.ended(unlock(held)),
            Rule::Majority => self.ended(quorum::unlock(held)),
        }
    }

    /// The result of all ends together. A loss takes precedence over transient trouble.
    fn ended(&self, ends: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
        let (ended, failed): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_ok);
        let failed = failed.into_iter().filter_map(Result::err);
        match failed.min_by_key(|error| error.kind() == ErrorKind::Redis) {
            Some(error) if ended.len() < self.needed => Err(error),
            _ => Ok(()),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.held.iter().map(|held| &*held.handle.site.name)
    }
}

/// Releases one after the other. It waits only once for a server that does not answer: it posts the
/// releases of that client's other holds, as a drop does.
fn unlock(held: impl Iterator<Item = HeldLock>) -> impl Iterator<Item = Result<(), Error>> {
    let mut silent: Vec<Arc<Core>> = Vec::new();
    held.map(move |held| {
        let core = Arc::clone(&held.handle.site.core);
        let is_silent = silent.iter().any(|it| Arc::ptr_eq(it, &core));
        let left = held.leave(if is_silent { Leaving::Posted } else { Leaving::Awaited });
        if left.as_ref().is_err_and(|error| error.passing() == Some(Passing::Outage)) {
            silent.push(core);
        }
        left
    })
}

impl Drop for GuardLevels {
    fn drop(&mut self) {
        while let Some(last) = self.held.pop() {
            drop(last);
        }
    }
}
