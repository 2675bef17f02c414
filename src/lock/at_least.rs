//! A lock that stays held for at least a given time, as with ShedLock's `lockAtLeastFor`: neither
//! its release before that time nor the death of its holder lets another thread in.
//!
//! The thread takes two levels. The first level has a fixed lease of that time, so the server keeps
//! the hold even if this process dies. The level is [left](crate::site::Leaving::ToExpire) to its
//! end when the guard is made, so this process does not release the hold before that time. The
//! second level belongs to the guard. If it is watched, the watchdog renews the hold when the rest
//! is less than the level's lease, so work that takes longer keeps the lock.
//!
//! The thread sends no request between the grant and the end of the first level. So every error
//! comes before that, and the client undoes what was taken, as after any other error of `lock()`.
//! The request with the long lease belongs to the wait for the lock: the wait's limit ends it, and
//! an outage of the server does not.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use crate::error::Error;
use crate::hold::{Tenancy, Terms};
use crate::lock::{Handle, HeldLock, Variant};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::site::GateOutcome;
use crate::waiting::Wait;

impl HeldLock {
    /// Takes the lock with `take`. `None`: the wait ended first.
    pub(super) fn at_least(
        handle: &Handle,
        least: Duration,
        wait: Wait<'_>,
        take: impl FnOnce(Handle, Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error>,
    ) -> Result<Option<Self>, Error> {
        handle.terms().check(&handle.site.name)?;
        // The lease is not shorter than that of the second level, or it could end before the
        // watchdog has extended it.
        let lease = least.max(handle.terms().lease()).max(Duration::from_millis(1));
        let first = handle.varied(Variant::On(Terms::fixed(lease).leaving_at_once()));
        let Some(tenancy) = take(first.clone(), wait)? else { return Ok(None) };
        // The server counts the lease from an earlier time, at which it ran the request.
        let until = clock::now().saturating_add(clock::nanos(least));
        #[cfg(soak_mutants)]
        let until = match mutants::is("a least time that ends with its holder") {
            true => clock::now(),
            false => until,
        };
        let left = Self::new(&first, Arc::clone(&tenancy));
        // The level is of this tenancy. `take` would give an owned guard beside other readers a new
        // one.
        let again = match handle.site.gate.add_level(&tenancy, handle.terms()) {
            // The lease of the first level is not shorter than this one.
            GateOutcome::Reentered(tenancy) if !handle.terms().is_watched() => Some(tenancy),
            entered => handle.reentered(entered)?,
        };
        let Some(again) = again else {
            // The lease has ended already.
            return Err(Error::late_grant(&handle.site.name));
        };
        #[cfg(soak_mutants)]
        if mutants::is("an error that leaves the lock taken") && until % 8 == 0 {
            Self::new(handle, again).above(left, until).leave_beneath();
            return Err(Error::lost(&handle.site.name, &"planted"));
        }
        // The first level is left to its end only when the guard is made, since a lock of several
        // parts may not get the others.
        Ok(Some(Self::new(handle, again).above(left, until)))
    }
}
