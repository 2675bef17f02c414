//! One level of a hold of one lock, as a guard owns it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redlatch_client::sync::{clock, is_forked};

use super::Handle;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{HoldLevel, HoldState, Tenancy, check_lease};
use crate::lease::{LossCallback, WantedCallback};
use crate::owner::Owner;
use crate::runtime::Core;
use crate::scripts::eval::{ScriptCall, Value};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::scripts::{FencingToken, Trouble};
use crate::site::{Leaving, Site, go_together, leave_all};
use crate::waiting::Wait;

/// One level of a hold. The level ends only once. Nothing in this type depends on the calling
/// thread.
pub struct HeldLock {
    /// The tenancy in which the thread took the level. This field is dropped before `handle`,
    /// because its drop may send a request, and `handle` keeps the client alive.
    tenancy: Arc<Tenancy>,
    pub(crate) handle: Handle,
    /// The level that this guard ends. `None` means the level that the tenancy's thread took last.
    level: Option<HoldLevel>,
    /// The end of the level on [`clock`], if the guard has extended the level. Zero if the guard
    /// has not extended the level, or if the level ends with the hold. The gate's mutex must be
    /// locked to write this field.
    extended: AtomicU64,
    /// Whether the level was released, left to expire, or handed over. If so, the drop does
    /// nothing.
    is_ended: bool,
    /// The minimum level, which keeps the lock until the minimum time is over (see
    /// [`at_least`](Self::at_least)), and the end of the minimum time. The thread took this level
    /// before the level of the guard.
    minimum_level: Option<Box<(Self, u64)>>,
}

impl HeldLock {
    #[inline]
    pub(super) fn new(handle: &Handle, tenancy: Arc<Tenancy>) -> Self {
        let level = Some(handle.level(&tenancy));
        Self::of(handle, tenancy, level)
    }

    /// Returns a value for the level that the thread took last, even if another guard has this
    /// level.
    pub(super) fn last(handle: &Handle, tenancy: Arc<Tenancy>) -> Self {
        Self::of(handle, tenancy, None)
    }

    #[inline]
    fn of(handle: &Handle, tenancy: Arc<Tenancy>, level: Option<HoldLevel>) -> Self {
        let (handle, extended) = (handle.clone(), AtomicU64::new(0));
        Self { tenancy, handle, level, extended, is_ended: false, minimum_level: None }
    }

    /// Returns the level that this guard ends, with the level's present end.
    #[inline]
    fn level(&self) -> Option<HoldLevel> {
        self.level.map(|level| level.moved(self.extended.load(Ordering::Relaxed)))
    }

    /// Puts this level above `minimum_level`. If the minimum level is not [left to
    /// expire](Self::leave_minimum_level), the two levels end together.
    pub(super) fn with_minimum_level(mut self, minimum_level: Self, until: u64) -> Self {
        self.minimum_level = Some(Box::new((minimum_level, until)));
        self
    }

    /// Leaves the minimum level to expire. The caller calls this when all locks that it takes
    /// together are granted. (If the lock is already lost, this does nothing, and the guard reports
    /// the loss.)
    #[inline]
    pub(super) fn leave_minimum_level(&mut self) {
        if let Some(minimum_level) = self.minimum_level.take() {
            let (level, until) = *minimum_level;
            let _ = level.leave(Leaving::ToExpire { until });
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.tenancy.is_held()
    }

    pub(super) fn state(&self) -> HoldState {
        self.tenancy.state()
    }

    pub(super) fn remaining(&self) -> Duration {
        self.hold_remaining().min(self.level_remaining())
    }

    /// Returns how long the hold, with all its levels, certainly lasts.
    pub(super) fn hold_remaining(&self) -> Duration {
        self.tenancy.remaining()
    }

    /// Returns how long this level alone certainly keeps the lock. (Another thread that shares the
    /// hold may keep it longer, but may leave at any moment.)
    fn level_remaining(&self) -> Duration {
        #[cfg(soak_mutants)]
        if mutants::is("a reader that counts the leases of others") {
            return Duration::MAX;
        }
        self.level().map_or(Duration::MAX, HoldLevel::remaining)
    }

    pub(super) fn check(&self, slack: Duration) -> Result<(), Error> {
        let name = &self.handle.site.name;
        match self.state() {
            HoldState::Lost(LostReason::Forked) => Err(Error::forked().of(name)),
            HoldState::Lost(reason) => Err(self.handle.site.lost_error(&self.tenancy, reason)),
            HoldState::Released => {
                let message = "it was released before, by `unlock` or by a wait on a condition; \
                               nothing is held"
                    .to_owned();
                Err(Error::new(ErrorKind::NotHeld, message).of(name))
            }
            HoldState::Held | HoldState::Unconfirmed => {
                // The level's remaining time is read before the hold's remaining time. So if only
                // the level's remaining time is zero, the level ended while the hold was still
                // held.
                let level_remaining = self.level_remaining();
                let is_enough = |rest: Duration| !rest.is_zero() && rest >= slack;
                if level_remaining >= slack
                    && (is_enough(self.hold_remaining())
                        || self.handle.site.raise(&self.tenancy, slack).is_ok()
                            && is_enough(self.hold_remaining()))
                {
                    return Ok(());
                }
                let hold_remaining = self.hold_remaining();
                if hold_remaining.is_zero() {
                    // The hold ended after this call had read the hold's state.
                    return self.check(slack);
                }
                let remaining = level_remaining.min(hold_remaining);
                let terms = self.handle.terms();
                let longer = terms.lease_advice(&self.handle.site.core);
                // If a renewal gives a lease longer than `slack`, a later call may succeed.
                let passes = terms.watched_lease().is_some_and(|lease| slack < lease);
                Err(Error::ends_too_soon(remaining, slack, longer).transient(passes).of(name))
            }
        }
    }

    /// Runs a user's script at the server if the server has the hold. If this process knows that
    /// the hold is gone, the call sends nothing.
    pub(crate) fn eval(&self, wait: Wait<'_>, call: &ScriptCall<'_>) -> Result<Value, Error> {
        // `is_held` takes less time than `check`, which says why the hold is gone.
        if !self.is_held() {
            self.check(Duration::ZERO)?;
        }
        self.handle.site.eval(&self.tenancy, wait, call)
    }

    pub(super) fn on_lost(&self, callback: LossCallback) {
        if let Some((reason, callback)) = self.tenancy.on_lost(callback) {
            let site = &self.handle.site;
            site.core.watchdog.queue_loss_callbacks(&site.name, reason, vec![callback]);
        }
    }

    pub(super) fn on_wanted(&self, callback: WantedCallback) {
        if !is_forked() {
            self.handle.site.on_wanted(&self.tenancy, callback);
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.handle.site.is_wanted(&self.tenancy)
    }

    pub(super) fn unlock(self) -> Result<(), Error> {
        self.leave(Leaving::Awaited)
    }

    pub(super) fn forget(mut self) {
        self.is_ended = true;
        if !is_forked() {
            self.handle.site.gate.pin(&self.tenancy, self.handle.pinned());
        }
    }

    pub(super) fn leave(mut self, how: Leaving) -> Result<(), Error> {
        self.is_ended = true;
        self.handle.site.leave(&self.tenancy, self.level(), how)
    }

    /// Leaves all these levels with one packet for all releases. Returns the levels in `Err` if their
    /// releases cannot go out together.
    pub(super) fn leave_all(mut held: Vec<Self>) -> Result<Vec<Result<(), Error>>, Vec<Self>> {
        let sites: Vec<_> = held.iter().map(|held| &held.handle.site).collect();
        if !go_together(&sites) || held.iter().any(|held| held.minimum_level.is_some()) {
            return Err(held);
        }
        held.iter_mut().for_each(|held| held.is_ended = true);
        let levels: Vec<_> =
            held.iter().map(|held| (&held.handle.site, &held.tenancy, held.level())).collect();
        Ok(leave_all(&levels))
    }

    /// Leaves the hold to expire. The lease may be long, so every step that may fail comes before
    /// the hold is left. (If raising the hold fails, the drop of this level releases the hold.)
    pub(super) fn leave_to_expire(self) -> Result<(), Error> {
        self.raise()?;
        self.leave_raised()
    }

    /// Ensures that the hold has the lease of its terms. The caller then leaves the hold to expire.
    pub(super) fn raise(&self) -> Result<(), Error> {
        self.check(Duration::ZERO)?;
        self.unless_lost(self.handle.site.raise_to_keep(&self.tenancy))
    }

    /// Returns the outcome of a request for a longer lease. If the lock is lost and the request
    /// failed, returns the loss.
    fn unless_lost(&self, requested: Result<(), Error>) -> Result<(), Error> {
        self.check(Duration::ZERO).map_err(|error| {
            let is_unknown = requested.as_ref().is_err_and(Error::outcome_unknown);
            error.unknown(is_unknown)
        })?;
        requested
    }

    /// Extends the remaining time of the level's fixed lease to at least `lease`.
    pub(super) fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.check(Duration::ZERO)?;
        let site = &self.handle.site;
        if self.handle.terms().is_watched() {
            let message = "the watchdog renews its lease until it is released, so it cannot be \
                           extended (`with_lease` gives a fixed one); nothing was changed";
            return Err(Error::new(ErrorKind::Config, message.to_owned()).of(&site.name));
        }
        check_lease(&site.name, lease)?;
        let until = clock::now().saturating_add(clock::nanos(lease));
        let extended = self.lengthen(lease);
        if extended.is_ok()
            && let Some(level) = self.level
        {
            // If threads share the hold, each thread's level has its own end.
            site.gate.with_seat(|seat| {
                let level = level.moved(self.extended.load(Ordering::Relaxed));
                if let Some(longer) = seat.and_then(|it| it.lengthen(&self.tenancy, level, until)) {
                    self.extended.store(longer.ends(), Ordering::Relaxed);
                }
            });
        }
        self.unless_lost(extended)
    }

    /// Extends the hold's lease at the server, unless the hold already has this lease.
    fn lengthen(&self, lease: Duration) -> Result<(), Error> {
        let (site, hold) = (&self.handle.site, &self.tenancy.hold());
        if self.tenancy.lease_left() >= lease {
            return Ok(());
        }
        // The guard's thread may be about to release the lock. From here on, it does not pass the
        // hold to another thread, because a hold with an extended lease is never passed.
        let is_seated = site.gate.with_seat(|seat| {
            let is_seated = seat.is_some_and(|seat| seat.has(&self.tenancy));
            is_seated.then(|| hold.note_lease_request(lease)).is_some()
        });
        if !is_seated {
            return Err(site.not_held_by_thread());
        }
        // If the hold was lost, the caller detects the loss later.
        site.lengthen(hold, lease).map(drop).map_err(|trouble| {
            let state = match trouble {
                Trouble::Unknown(_) | Trouble::Forgotten(_) => {
                    "it is held until the end of its earlier lease; the server may keep it for \
                     longer, until it is released"
                }
                Trouble::Refused(_) | Trouble::Unsent(_) => {
                    "it is held as before, with its earlier lease"
                }
            };
            trouble.into_error().of(&site.name).now(state)
        })
    }

    /// Leaves a hold to expire after it was [raised](Self::raise).
    pub(super) fn leave_raised(self) -> Result<(), Error> {
        #[cfg(soak_mutants)]
        if mutants::is("a lock that is left to nobody") {
            return self.unlock();
        }
        let own = self.level().map_or(u64::MAX, HoldLevel::ends);
        let until = self.tenancy.hold().deadline().min(own);
        self.leave(Leaving::ToExpire { until })
    }

    /// Returns the tenancy. From here on, no guard ends its level.
    pub(super) fn into_tenancy(mut self) -> Arc<Tenancy> {
        self.is_ended = true;
        Arc::clone(&self.tenancy)
    }

    pub(super) fn name(&self) -> &str {
        self.handle.site.name.given()
    }

    pub(super) fn owner(&self) -> Owner {
        Owner::of(&self.tenancy.hold().owner)
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.handle.site.core
    }

    pub(crate) fn site_and_tenancy(&self) -> (&Arc<Site>, &Arc<Tenancy>) {
        (&self.handle.site, &self.tenancy)
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        self.tenancy.token().map(|token| FencingToken::from_number(token.get()))
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLock").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if !self.is_ended {
            // If the lock was lost, `on_lost` and the log have already reported the loss.
            let _ = self.handle.site.leave(&self.tenancy, self.level(), Leaving::Posted);
        }
    }
}
