//! A thread's hold: the call, the guard, and the end.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use redlatch::election::Leadership;
use redlatch::{
    CancelToken, Error, ErrorKind, ExpirablePermit, Lock, LockGuard, LostReason, MultiLockGuard,
    OwnedLockGuard, Permit,
};

use super::{GRACE, LONGEST_REQUEST, Shared, WATCHDOG};
use crate::clock::{ms, nanos, now};
use crate::history::{Event, Kind, Outcome};

/// The methods of a guard of any kind.
pub(super) trait Held {
    fn remaining(&self) -> Duration;
    /// Whether the guard is held. After the end of a reader's lease, another reader of the process
    /// may still keep the hold.
    fn is_held(&self) -> bool;
    fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static);
    fn release(self) -> Result<(), Error>;
}

macro_rules! held {
    ($($guard:ty, $release:ident);+ $(;)?) => {$(
        impl Held for $guard {
            fn remaining(&self) -> Duration {
                <$guard>::remaining(self)
            }
            fn is_held(&self) -> bool {
                <$guard>::is_held(self)
            }
            fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
                <$guard>::on_lost(self, callback);
            }
            fn release(self) -> Result<(), Error> {
                <$guard>::$release(self)
            }
        }
    )+};
}

held! {
    LockGuard, unlock;
    OwnedLockGuard, unlock;
    MultiLockGuard, unlock;
    ExpirablePermit, release;
}

/// A permit of a plain semaphore has no lease.
impl Held for Permit {
    fn remaining(&self) -> Duration {
        Duration::MAX
    }
    fn is_held(&self) -> bool {
        true
    }
    fn on_lost(&self, _: impl FnOnce(LostReason) + Send + 'static) {}
    fn release(self) -> Result<(), Error> {
        Self::release(self)
    }
}

/// A leadership reports only whether its lease lasts for longer than the grace.
impl Held for Leadership {
    fn remaining(&self) -> Duration {
        if self.is_leader() { GRACE } else { Duration::ZERO }
    }
    fn is_held(&self) -> bool {
        self.is_leader()
    }
    fn on_lost(&self, callback: impl FnOnce(LostReason) + Send + 'static) {
        self.on_deposed(callback);
    }
    fn release(self) -> Result<(), Error> {
        self.resign()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Lock,
    Try,
    For(Duration),
    Cancelled(Duration),
}

impl How {
    /// Returns the time within which the call must end, or zero if the call waits without a limit.
    pub(super) fn bound(self) -> u64 {
        match self {
            Self::Lock => 0,
            Self::Try => nanos(LONGEST_REQUEST),
            // With a wait of zero, the call tries once.
            Self::For(wait) if wait.is_zero() => nanos(LONGEST_REQUEST),
            Self::For(wait) | Self::Cancelled(wait) => nanos(wait).max(1),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Terms {
    Usual,
    Fixed(Duration),
    Watched(Duration),
}

impl Terms {
    pub(super) fn of<L: Lock>(self, lock: L) -> L {
        match self {
            Self::Usual => lock,
            Self::Fixed(lease) => lock.with_lease(lease),
            Self::Watched(lease) => lock.with_watchdog(lease),
        }
    }

    pub(super) fn lease(self) -> u64 {
        match self {
            Self::Usual => nanos(WATCHDOG),
            Self::Fixed(lease) | Self::Watched(lease) => nanos(lease),
        }
    }
}

/// The name, the kind and the terms of a grant.
pub(super) struct About {
    pub(super) kind: Kind,
    pub(super) names: Vec<String>,
    pub(super) weight: u64,
    pub(super) capacity: u64,
    pub(super) lease: u64,
    pub(super) is_watched: bool,
    /// The time for which this call keeps the name taken, if the name may stay taken after its
    /// holder has gone.
    pub(super) keeps: Option<Duration>,
}

impl About {
    pub(super) fn lock(kind: Kind, name: &str, terms: Terms) -> Self {
        let names = vec![name.to_owned()];
        let lease = terms.lease();
        Self { kind, names, weight: 1, capacity: 1, lease, is_watched: false, keeps: None }
    }
}

/// A guard with the ids of its grants. The guard of a `MultiLock` has several grants.
pub(super) struct Kept<G> {
    pub(super) guard: G,
    pub(super) ids: Vec<u64>,
}

pub(super) fn outcome<E: std::borrow::Borrow<Error>>(result: &Result<bool, E>) -> Outcome {
    match result.as_ref().map_err(|error| error.borrow().kind()) {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::Not,
        Err(ErrorKind::Cancelled) => Outcome::Cancelled,
        Err(ErrorKind::LeaseLost | ErrorKind::EndsTooSoon) => Outcome::Lost,
        Err(ErrorKind::Broken) => Outcome::Broken,
        Err(kind) if kind.is_server_trouble() => Outcome::Trouble,
        Err(_) => Outcome::Wrong,
    }
}

/// Makes a call with a token that another thread cancels after this time.
pub(super) fn cancelled<T>(after: Duration, call: impl FnOnce(&CancelToken) -> T) -> T {
    let token = &CancelToken::new();
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let _canceller = scope.spawn(move || {
            if is_done.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                token.cancel();
            }
        });
        let result = call(token);
        drop(done);
        result
    })
}

/// Keeps the hold for this time, and records the guard's reports during it.
pub(super) fn hold<G: Held>(shared: &Shared, kept: &Kept<G>, stay: Duration) {
    let end = now() + nanos(stay);
    loop {
        let left = end.saturating_sub(now());
        if left == 0 {
            return;
        }
        // A sleep takes at least this long.
        if left > 60_000 {
            thread::sleep(Duration::from_nanos(left.min(ms(50))));
        }
        if left > ms(50) {
            let (at, remaining) = (now(), nanos(kept.guard.remaining()));
            if remaining > 0 {
                for &id in &kept.ids {
                    shared.log.write(&Event::Seen { id, at, until: at.saturating_add(remaining) });
                }
            }
        }
    }
}

/// Records that the release begins. The caller calls this before the release.
pub(super) fn leaving<G: Held>(shared: &Shared, kept: &Kept<G>) {
    let (at, remaining) = (now(), nanos(kept.guard.remaining()));
    let is_held = remaining > 0 || kept.guard.is_held();
    let until = if is_held { at.saturating_add(remaining) } else { 0 };
    for &id in &kept.ids {
        shared.log.write(&Event::Leaving { id, at, until });
    }
}

pub(super) fn left(shared: &Shared, ids: &[u64], outcome: Outcome) {
    let at = now();
    ids.iter().for_each(|&id| shared.log.write(&Event::Left { id, at, outcome }));
}

/// Releases the hold. Waits for the server's reply, unless `posts` is true.
pub(super) fn leave<G: Held>(shared: &Shared, kept: Kept<G>, posts: bool) {
    leaving(shared, &kept);
    let Kept { guard, ids } = kept;
    let outcome = if posts {
        drop(guard);
        Outcome::Posted
    } else {
        outcome(&guard.release().map(|()| true))
    };
    left(shared, &ids, outcome);
}

/// Ends the guard but leaves the lock taken.
pub(super) fn leave_to_expire(shared: &Shared, kept: Kept<LockGuard>) {
    leaving(shared, &kept);
    let Kept { guard, ids } = kept;
    let outcome = match outcome(&guard.leave_to_expire().map(|()| true)) {
        Outcome::Done => Outcome::Kept,
        failed => failed,
    };
    left(shared, &ids, outcome);
}
