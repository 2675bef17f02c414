//! Levels of several holds that are taken and released together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redlatch_client::sync::{Mutex, clock};

use super::votes;
use crate::error::{Error, ErrorKind, Passing};
use crate::hold::HoldState;
use crate::lease::{LossCallback, WantedCallback};
use crate::lock::HeldLock;
use crate::name::Name;
use crate::runtime::Core;
use crate::site::Leaving;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    All,
    /// A majority of this number of servers is needed. Some of the servers may have no part.
    MajorityOf(usize),
}

impl Rule {
    /// Returns the allowance for clock drift between several servers during one lease, in
    /// nanoseconds.
    pub(super) fn drift(self, lease: Duration) -> u64 {
        match self {
            Self::All => 0,
            Self::MajorityOf(_) => clock::nanos(lease / 100 + Duration::from_millis(2)),
        }
    }
}

/// The levels of one guard of several locks: one level of each hold. Nothing in this type depends
/// on the calling thread.
#[derive(Debug)]
pub struct GuardLevels {
    /// The levels, in the order in which they were taken.
    pub(super) held: Vec<HeldLock>,
    /// The number of parts that must be held.
    pub(super) needed: usize,
    /// The [allowance](Rule::drift) for clock drift in the longest lease.
    pub(super) drift: AtomicU64,
    pub(super) rule: Rule,
    /// The names of all parts.
    pub(super) name: Name,
}

impl GuardLevels {
    pub(in crate::lock) fn leave_minimum_level(&mut self) {
        self.held.iter_mut().for_each(HeldLock::leave_minimum_level);
    }

    pub(in crate::lock) fn is_held(&self) -> bool {
        !self.least(HeldLock::hold_remaining).is_zero()
    }

    /// Returns how long at least `needed` parts are certainly held.
    pub(in crate::lock) fn remaining(&self) -> Duration {
        self.least(HeldLock::remaining)
    }

    fn least(&self, of: impl Fn(&HeldLock) -> Duration) -> Duration {
        let mut times: Vec<_> = self.held.iter().map(of).collect();
        times.sort_unstable_by(|one, other| other.cmp(one));
        let least = self.needed.checked_sub(1).and_then(|at| times.get(at));
        least.map_or(Duration::ZERO, |least| least.saturating_sub(self.drift()))
    }

    fn drift(&self) -> Duration {
        Duration::from_nanos(self.drift.load(Ordering::Relaxed))
    }

    pub(in crate::lock) fn state(&self) -> HoldState {
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

    pub(in crate::lock) fn check(&self, slack: Duration) -> Result<(), Error> {
        let slack = slack.saturating_add(self.drift());
        let checks = self.held.iter().map(|held| held.check(slack));
        let (passed, failed): (Vec<_>, Vec<_>) = checks.partition(Result::is_ok);
        if passed.len() >= self.needed {
            return Ok(());
        }
        // If there are several errors, return one that is true of the whole lock: `EndsTooSoon` if
        // the lock is still held, and otherwise an error of another kind.
        let too_soon = self.is_held();
        let mut failed: Vec<_> = failed.into_iter().filter_map(Result::err).collect();
        let is_of_lock = |error: &Error| (error.kind() == ErrorKind::EndsTooSoon) == too_soon;
        let at = failed.iter().position(is_of_lock).unwrap_or(0);
        Err(failed.swap_remove(at))
    }

    pub(in crate::lock) fn on_lost(&self, callback: LossCallback) {
        let spare = self.held.len().saturating_sub(self.needed);
        // The number of lost parts, and the callback.
        let shared = Arc::new((AtomicUsize::new(0), Mutex::new(Some(callback))));
        for held in &self.held {
            let shared = Arc::clone(&shared);
            held.on_lost(Box::new(move |reason| {
                let (lost_parts, callback) = &*shared;
                if lost_parts.fetch_add(1, Ordering::AcqRel) == spare {
                    let callback = callback.lock().take();
                    if let Some(callback) = callback {
                        callback(reason);
                    }
                }
            }));
        }
    }

    pub(in crate::lock) fn on_wanted(&self, callback: WantedCallback) {
        self.held.iter().for_each(|held| held.on_wanted(Arc::clone(&callback)));
    }

    pub(in crate::lock) fn is_wanted(&self) -> bool {
        self.held.iter().any(HeldLock::is_wanted)
    }

    /// Raises all locks, and then leaves them to expire. A lock that was left to expire cannot be
    /// released any longer, so every step that may fail comes first. (After a failure, the drop
    /// releases all locks.) For a quorum, the raised locks (at least a majority) are left to
    /// expire, and the other locks are released.
    pub(in crate::lock) fn leave_to_expire(mut self) -> Result<(), Error> {
        Error::if_forked(&self.name)?;
        let mut raised = self.ask_each(HeldLock::raise);
        // The lease of a raised lock may have ended while other locks were raised.
        for (held, raised) in self.held.iter().zip(&mut raised).filter(|(_, it)| it.is_ok()) {
            *raised = held.check(self.drift());
        }
        let is_raised: Vec<_> = raised.iter().map(Result::is_ok).collect();
        self.require_enough(raised)
            .map_err(|error| error.now("none of the locks that are held together is left taken"))?;
        let held = std::mem::take(&mut self.held).into_iter().zip(is_raised);
        held.filter(|(_, is_raised)| *is_raised).for_each(|(held, _)| {
            // Ignore the error: a lock that is lost now is lost after the call.
            let _ = held.leave_raised();
        });
        Ok(())
    }

    /// Extends the lease of each lock. For a quorum, a majority is enough.
    pub(in crate::lock) fn extend(&self, lease: Duration) -> Result<(), Error> {
        Error::if_forked(&self.name)?;
        self.require_enough(self.ask_each(|held| held.extend(lease)))?;
        // The allowance for drift grows only after the servers have granted the longer lease,
        // because the allowance for a long lease may exceed the remaining lease.
        self.drift.fetch_max(self.rule.drift(lease), Ordering::Relaxed);
        Ok(())
    }

    /// Sends a request to the server of each lock, with `ask`.
    fn ask_each(
        &self,
        ask: impl Fn(&HeldLock) -> Result<(), Error> + Sync,
    ) -> Vec<Result<(), Error>> {
        match self.rule {
            // If the request to one server fails, the call ends and does not ask the other servers.
            Rule::All => match self.held.iter().try_for_each(ask) {
                Ok(()) => self.held.iter().map(|_| Ok(())).collect(),
                Err(error) => vec![Err(error)],
            },
            Rule::MajorityOf(_) => votes::ask_for_held(&self.held, ask),
        }
    }

    pub(in crate::lock) fn unlock(mut self) -> Result<(), Error> {
        Error::if_forked(&self.name)?;
        let mut held = std::mem::take(&mut self.held);
        held.reverse();
        match self.rule {
            Rule::All => match HeldLock::leave_all(held) {
                Ok(left) => self.require_enough(left),
                Err(held) => self.require_enough(unlock(held.into_iter())),
            },
            Rule::MajorityOf(_) => self.require_enough(votes::unlock(held.into_iter())),
        }
    }

    /// Returns an error if fewer than `needed` of these results, one for each level, are `Ok`. An
    /// error that says that a lock is lost takes precedence over a failed request.
    fn require_enough(
        &self,
        results: impl IntoIterator<Item = Result<(), Error>>,
    ) -> Result<(), Error> {
        let (succeeded, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        let failed = failed.into_iter().filter_map(Result::err);
        match failed.min_by_key(|error| error.kind().is_server_trouble()) {
            Some(error) if succeeded.len() < self.needed => Err(error),
            _ => Ok(()),
        }
    }

    /// Forgets each level, so the locks stay taken.
    pub(in crate::lock) fn forget(mut self) {
        std::mem::take(&mut self.held).into_iter().for_each(HeldLock::forget);
    }

    pub(in crate::lock) fn name(&self) -> &str {
        self.name.given()
    }

    pub(in crate::lock) fn core(&self) -> &Arc<Core> {
        self.held[0].core()
    }
}

/// Releases the locks one after the other. If a server does not answer, the function waits for it
/// only once: it then sends the releases of the same client's other holds without waiting, as a
/// drop does.
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
