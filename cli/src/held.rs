//! A lock or a permit that `redlatch run` has taken for a command.

use std::time::Duration;

use redlatch::{Attempt, Client, Error, ExpirablePermit, Lock, LockGuard, LostReason, Taken, Wait};

use crate::args::Run;

pub(crate) enum Held {
    Lock(Box<Levels>),
    Permit(ExpirablePermit),
}

/// The guards of a lock that this thread has taken, once or twice.
pub(crate) struct Levels {
    /// The guard whose lease the client renews.
    guard: LockGuard,
    token: Option<u64>,
    again: Again,
    /// The guard with a fixed lease, if there is one.
    raised: Option<LockGuard>,
}

/// Takes the lock again with this lease. If the second argument is `true`, the lock then stays
/// taken for at least the lease, whatever happens to the guards. Sends a request only if the lease
/// at the server is shorter.
type Again = Box<dyn Fn(Duration, bool) -> Result<Attempt<LockGuard>, Error>>;

macro_rules! each {
    ($held:expr, $it:ident => $what:expr) => {
        match $held {
            Held::Lock(levels) => {
                let $it = &levels.guard;
                $what
            }
            Held::Permit($it) => $what,
        }
    };
}

impl Held {
    /// Waits for the lock or permit. Returns `None` if the wait has ended.
    pub(crate) fn take(
        client: &Client,
        name: &str,
        run: &Run,
        wait: Wait<'_>,
    ) -> Result<Option<Self>, Error> {
        if let Some(permits) = run.permits {
            let semaphore = client.expirable_semaphore(name);
            let _set = semaphore.try_set_permits(permits)?;
            return Ok(semaphore.acquire_within(wait)?.into_option().map(Self::Permit));
        }
        if run.fenced {
            let lock = hearing(client.fenced_lock(name), run);
            let Taken(guard) = lock.lock_within(wait)? else { return Ok(None) };
            let token = guard.token().get();
            return Ok(Some(Self::of(lock, guard.into(), Some(token))));
        }
        if run.shared {
            Self::lock(client.read_write_lock(name).reader().clone(), run, wait)
        } else if run.exclusive {
            Self::lock(client.read_write_lock(name).writer().clone(), run, wait)
        } else if run.fair {
            Self::lock(client.fair_lock(name), run, wait)
        } else {
            Self::lock(client.reentrant_lock(name), run, wait)
        }
    }

    fn lock(lock: impl Lock + 'static, run: &Run, wait: Wait<'_>) -> Result<Option<Self>, Error> {
        let lock = hearing(lock, run);
        let guard = Lock::lock_within(&lock, wait)?;
        Ok(guard.into_option().map(|guard| Self::of(lock, guard, None)))
    }

    fn of(lock: impl Lock + 'static, guard: LockGuard, token: Option<u64>) -> Self {
        let again: Again = Box::new(move |lease, stays| {
            let lock = lock.with_lease(lease);
            if stays { lock.with_hold_at_least(lease).try_lock() } else { lock.try_lock() }
        });
        Self::Lock(Box::new(Levels { guard, token, again, raised: None }))
    }

    pub(crate) fn token(&self) -> Option<u64> {
        if let Self::Lock(levels) = self { levels.token } else { None }
    }

    pub(crate) fn remaining(&self) -> Duration {
        each!(self, held => held.remaining())
    }

    pub(crate) fn check(&self, slack: Duration) -> Result<(), Error> {
        each!(self, held => held.check(slack))
    }

    pub(crate) fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        each!(self, held => held.on_lost(callback));
    }

    /// A permit has no such callback. The command line refuses `--on-wanted` with permits.
    pub(crate) fn on_wanted(&self, callback: impl Fn() + Send + Sync + 'static) {
        if let Self::Lock(levels) = self {
            levels.guard.on_wanted(callback);
        }
    }

    /// Makes the server keep a lock for at least `least`, even if this process dies. A release
    /// still frees the lock. After an error the lock is held as before.
    pub(crate) fn raise(&mut self, least: Duration) -> Result<(), Error> {
        // If the lock was lost, the call below would take it again.
        self.check(Duration::ZERO)?;
        if let Self::Lock(levels) = self {
            levels.raised = (levels.again)(least, false)?.into_option();
        }
        Ok(())
    }

    /// Ends without a release. The server keeps a [raised](Self::raise) lock for exactly `least`.
    pub(crate) fn leave(self, least: Duration) -> Result<(), Error> {
        self.check(Duration::ZERO)?;
        match self {
            Self::Lock(levels) => {
                let Levels { guard, again, raised: _raised, .. } = *levels;
                // If the watchdog has renewed the lease for longer, the server must shorten it.
                if guard.remaining() > least && matches!(again(least, true), Ok(Taken(_))) {
                    guard.unlock()
                } else {
                    // `leave_to_expire` sends no request, because the server may be unreachable.
                    guard.leave_to_expire()
                }
            }
            Self::Permit(permit) => permit.release(),
        }
    }

    pub(crate) fn release(self) -> Result<(), Error> {
        match self {
            Self::Lock(levels) => {
                let Levels { guard, raised, .. } = *levels;
                drop(raised);
                guard.unlock()
            }
            Self::Permit(permit) => permit.release(),
        }
    }
}

/// With `--on-wanted`, returns a handle whose holder is notified soon when another process waits.
fn hearing<L: Lock>(lock: L, run: &Run) -> L {
    if run.on_wanted.is_some() { lock.with_wanted() } else { lock }
}
