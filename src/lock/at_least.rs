//! A lock that stays held for at least a given time, as with ShedLock's `lockAtLeastFor`: neither
//! its release before that time nor the death of its holder lets another thread in.
//!
//! The thread takes two levels. The first one has a fixed lease of that time, so the server keeps
//! it even if this process dies. It is left to its end at once (`local/left.rs`), so this process
//! does not release it before that time. The second level is the guard's. If it is watched, the
//! watchdog renews it when the rest is less than its lease, so work that takes longer keeps the
//! lock.

use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;

use crate::error::Error;
use crate::local::{Tenancy, Terms};
use crate::lock::{Handle, HeldLock, Variant};
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
        // No shorter than the lease of the second level: it could end before the watchdog has made
        // it longer.
        let lease = least.max(handle.terms().lease()).max(Duration::from_millis(1));
        let first = handle.varied(Variant::On(Terms::fixed(lease)));
        let began = clock::now();
        let Some(tenancy) = take(first.clone(), wait)? else { return Ok(None) };
        // If a thread with a plain handle passed it on, a tenth of its lease may have gone.
        let is_passed = tenancy.began() >= began && tenancy.hold().asked.at < began;
        if is_passed && !first.deepen(&tenancy)? {
            return Err(Error::late_grant(&handle.site.name));
        }
        // The server counts from an earlier time.
        let until = clock::now().saturating_add(clock::nanos(least));
        let left = Self::new(&first, Arc::clone(&tenancy));
        // Of this tenancy: to `take`, an owned guard beside other readers would be a new one.
        let again = handle.site.gate.deepen(&tenancy, handle.terms());
        let Some(again) = handle.again(again)? else {
            // The lease was over before.
            return Err(Error::late_grant(&handle.site.name));
        };
        // Left to its end when its guard is made: a lock of several parts may not get the others.
        Ok(Some(Self::new(handle, again).above(left, until)))
    }
}
