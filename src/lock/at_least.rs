//! A lock that is held for a least time, as with ShedLock's `lockAtLeastFor`: neither its release
//! before that nor the death of its holder lets anybody else in.
//!
//! The thread takes two levels. The first one has a fixed lease of that time, so the server keeps it
//! whatever becomes of this process; and it is left to its end at once (`local/left.rs`), so this
//! process does not release it before either. The second level is the guard's. If it is watched, it
//! is renewed when the rest is less than its lease, so work that takes longer keeps the lock.

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
        take: impl Fn(Handle, Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error>,
    ) -> Result<Option<Self>, Error> {
        let first = handle.varied(Variant::On(Terms::fixed(least.max(Duration::from_millis(1)))));
        let Some(tenancy) = take(first.clone(), wait)? else { return Ok(None) };
        // The server counts from an earlier time.
        let until = clock::now().saturating_add(clock::nanos(least));
        let left = Self::new(&first, Arc::clone(&tenancy));
        let again = take(handle.reentrant(), Wait::NONE)?;
        let again = again.map(|tenancy| Self::new(handle, tenancy));
        let Some(held) = again.filter(|held| held.is_of(&tenancy)) else {
            // The lease was over before.
            return Err(Error::late_grant(&handle.site.name));
        };
        left.leave_until(Some(until))?;
        Ok(Some(held))
    }
}
