//! A lock that stays taken for at least a given time, like ShedLock's `lockAtLeastFor`. During this
//! time no other thread gets the lock, even if the holder releases the lock or dies.
//!
//! The thread takes two levels. The first level has a fixed lease of the minimum time, so the
//! server keeps the hold even if this process dies. When the guard is made, the first level is
//! [left](crate::site::Leaving::ToExpire) to expire, so this process does not release the hold
//! before the minimum time is over. The second level belongs to the guard. If the second level has
//! a renewed lease, the watchdog renews the hold as soon as the remaining lease is shorter than the
//! renewed lease. So the lock stays held if the work takes longer than the minimum time.
//!
//! After the first level is left to expire, the client can no longer undo the grant. So every error
//! must come before that moment, and the thread sends no request between the grant and that moment.
//! The request for the long lease belongs to the wait for the lock: the wait's limit can end the
//! request, and the wait continues during an outage of the server.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use crate::error::Error;
use crate::hold::{Tenancy, Terms};
use crate::lock::{Handle, HeldLock, Variant};
#[cfg(soak_mutants)]
use crate::scripts::mutants;
use crate::site::{GateOutcome, ROUNDING};
use crate::waiting::Wait;

impl HeldLock {
    /// Takes the lock with `take`. Returns `None` if the wait ended before the grant.
    pub(super) fn at_least(
        handle: &Handle,
        least: Duration,
        wait: Wait<'_>,
        take: impl FnOnce(Handle, Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error>,
    ) -> Result<Option<Self>, Error> {
        handle.terms().check(&handle.site.name)?;
        // The first level's lease is at least as long as the second level's lease. Otherwise the
        // hold could end before the watchdog extends its lease.
        let lease = least.saturating_add(ROUNDING).max(handle.terms().lease());
        let first = handle.varied(Variant::On(Terms::fixed(lease).leaving_to_expire()));
        let Some(tenancy) = take(first.clone(), wait)? else { return Ok(None) };
        // The minimum time counts from now. The lease at the server began earlier, when the server
        // ran the request.
        let until = clock::now().saturating_add(clock::nanos(least));
        #[cfg(soak_mutants)]
        let until = match mutants::is("a least time that ends with its holder") {
            true => clock::now(),
            false => until,
        };
        let left = Self::new(&first, Arc::clone(&tenancy));
        // The second level belongs to the same tenancy. A second call of `take` would begin a new
        // tenancy for an owned guard that reads beside other readers.
        let again = match handle.site.gate.add_level(&tenancy, handle.terms()) {
            // The first level's lease is long enough, so the second level needs no request.
            GateOutcome::Reentered(tenancy) if !handle.terms().is_watched() => Some(tenancy),
            entered => handle.reentered(entered)?,
        };
        let Some(again) = again else {
            // The lease ended before the thread took the second level.
            return Err(Error::late_grant(&handle.site.name));
        };
        #[cfg(soak_mutants)]
        if mutants::is("an error that leaves the lock taken") && until % 8 == 0 {
            Self::new(handle, again).with_minimum_level(left, until).leave_minimum_level();
            return Err(Error::lost(&handle.site.name, &"planted"));
        }
        // The first level is left to expire only when the guard is made. Before the guard is made,
        // a `MultiLock` may fail to get its other parts, and then it releases this lock.
        Ok(Some(Self::new(handle, again).with_minimum_level(left, until)))
    }
}
