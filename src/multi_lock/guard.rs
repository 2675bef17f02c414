//! The guards that several held locks are.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

#[cfg(doc)]
use super::MultiLock;
use super::{Rule, quorum};
use crate::core::Core;
use crate::error::{Error, ErrorKind, LostReason, Passing};
use crate::hold::{HoldState, Leaving};
use crate::lock::{Guard, Held, Part};
use crate::sync::Mutex;

/// Several held locks, or the majority of a quorum. Dropping it releases them all. Made by
/// [`MultiLock::lock`].
///
/// As a [`LockGuard`](crate::LockGuard) it stays on its thread, and others may ask it; it speaks
/// for all its parts. When one part is lost (of a quorum: so many that the rest is no majority), it
/// is lost; the others are still held, and renewed, until it is dropped.
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
    levels: Levels,
    /// `Sync` and not `Send`, as the parts are.
    _stays: PhantomData<MutexGuard<'static, ()>>,
}

/// Several held locks that belong to no thread: as an [`OwnedLockGuard`](crate::OwnedLockGuard) it
/// may be sent to another one, and dropped there. Made by [`MultiLock::lock_owned`].
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
    levels: Levels,
}

macro_rules! guard_verbs {
    ($guard:ident) => {
        impl $guard {
            /// Whether all are held (of a quorum: a majority), as far as this process can know
            /// without asking. No I/O.
            #[must_use]
            pub fn is_held(&self) -> bool {
                self.levels.is_held()
            }

            /// What is known of them together. No I/O.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.levels.state()
            }

            /// For how long they are certainly held if no renewal succeeds any more: the least of
            /// all parts. Of a quorum: for how long a majority is, less a hundredth of the lease
            /// and 2 ms for clocks that drift. Zero if they are lost. No I/O.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.levels.remaining()
            }

            /// Fails unless they are certainly held for `slack` more: as
            /// [`LockGuard::check`](crate::LockGuard::check) of each part, of a quorum of a
            /// majority.
            ///
            /// # Errors
            ///
            /// [`LeaseLost`](ErrorKind::LeaseLost) with the name of a part that is lost,
            /// [`EndsTooSoon`](ErrorKind::EndsTooSoon) with the name of one that may end before the
            /// slack does, [`NotHeld`](ErrorKind::NotHeld) of one that was released by its own
            /// `unlock`, [`Forked`](ErrorKind::Forked) in a forked child.
            ///
            /// # Blocking
            ///
            /// Not at all, but for a round trip for each part that another process has just handed
            /// on, where the slack is longer than that is certain.
            pub fn check(&self, slack: Duration) -> Result<(), Error> {
                self.levels.check(slack)
            }

            /// Has `callback` called once when the first part is lost before it is released (of a
            /// quorum: when so many are lost that the rest is no majority). As
            /// [`LockGuard::on_lost`](crate::LockGuard::on_lost).
            pub fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
                self.levels.on_lost(Box::new(callback));
            }

            /// Releases what was taken of each part, the last one first.
            ///
            /// # Errors
            ///
            /// As [`LockGuard::unlock`](crate::LockGuard::unlock), with the name of the part that
            /// it happened to: one that was lost before others. All the others are released in any
            /// case. Of a quorum only if less than a majority was still held, or could be told so.
            ///
            /// # Blocking
            ///
            /// One round trip for each part that is released; of a quorum, one for all at the same
            /// time. A server that does not answer is waited for once, however many parts it has.
            pub fn unlock(self) -> Result<(), Error> {
                self.levels.unlock()
            }

            /// Lets go of the guard and leaves each part to the end of its own lease: as
            /// [`LockGuard::leave_to_expire`](crate::LockGuard::leave_to_expire).
            ///
            /// # Errors
            ///
            /// As [`LockGuard::leave_to_expire`](crate::LockGuard::leave_to_expire), with the name
            /// of the part that it happened to. All the others are left to expire in any case. Of a
            /// quorum only if that are less than a majority.
            ///
            /// # Blocking
            ///
            /// Not at all, but for a round trip for each part that another process has just handed
            /// on.
            pub fn leave_to_expire(self) -> Result<(), Error> {
                self.levels.leave_to_expire()
            }

            /// The names of the locks that are held, in the order in which they were taken.
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
    pub(super) fn new(levels: Levels) -> Self {
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
    pub(super) fn new(levels: Levels) -> Self {
        Self { levels }
    }
}

/// One level of each of several holds. Nothing here asks which thread it is on.
pub(super) struct Levels {
    /// In the order in which they were taken.
    held: Vec<Held>,
    /// So many must be held.
    needed: usize,
    /// What the clocks of several servers may drift apart in a lease.
    drift: Duration,
    rule: Rule,
}

impl Levels {
    /// Of which all are needed.
    pub(super) fn all(parts: usize) -> Self {
        let held = Vec::with_capacity(parts);
        Self { held, needed: parts, drift: Duration::ZERO, rule: Rule::All }
    }

    /// Of which more than half are needed.
    pub(super) fn majority(parts: &[Arc<dyn Part>]) -> Self {
        let leases = parts.iter().map(|part| part.handle().terms().lease());
        let drift = leases.max().unwrap_or_default() / 100 + Duration::from_millis(2);
        let needed = parts.len() / 2 + 1;
        Self { held: Vec::with_capacity(parts.len()), needed, drift, rule: Rule::Majority }
    }

    pub(super) fn push(&mut self, held: Held) {
        self.held.push(held);
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The time that so many as are needed have at least.
    fn remaining(&self) -> Duration {
        let mut times: Vec<_> = self.held.iter().map(Held::remaining).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let least = self.needed.checked_sub(1).and_then(|at| times.get(at));
        least.map_or(Duration::ZERO, |least| least.saturating_sub(self.drift))
    }

    fn state(&self) -> HoldState {
        let states: Vec<_> = self.held.iter().map(Held::state).collect();
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
        // Of several reasons the one that is true of them together.
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
        self.ended(held.into_iter().rev().map(Held::leave_to_expire))
    }

    fn unlock(mut self) -> Result<(), Error> {
        // A forked child starts no threads for what is its parent's.
        if let Some(Held { handle, .. }) = self.held.first() {
            handle.site.core.check_process(&handle.site.name)?;
        }
        let held = std::mem::take(&mut self.held).into_iter().rev();
        match self.rule {
            Rule::All => self.ended(unlock(held)),
            Rule::Majority => self.ended(quorum::unlock(held)),
        }
    }

    /// What the ends of all say together. A loss is told before trouble that passes.
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

/// Releases one after the other. A server that does not answer is waited for once: what its client
/// holds besides is posted, as by a drop.
fn unlock(held: impl Iterator<Item = Held>) -> impl Iterator<Item = Result<(), Error>> {
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

impl Drop for Levels {
    fn drop(&mut self) {
        while let Some(last) = self.held.pop() {
            drop(last);
        }
    }
}
