//! Kept holds. A hold is kept if a thread has left it to expire, or has taken it for a minimum
//! time.
//!
//! A kept hold lasts until the latest of the times that its threads have set. Before that time no
//! thread releases it or passes it on. After the last thread has left, nobody renews it. A hold is
//! never kept for longer than its lease, so the server keeps it even if this client ends.
//!
//! When the last thread leaves, the client sends no release. Instead, a [`Cleanup`] shortens the
//! lease so that it ends at that time, and releases the hold at that time. Usually the lease has
//! then already ended, and the release does nothing. The release is needed in three cases: the
//! server did not answer the request that shortens the lease, another hold keeps a read-write lock,
//! or a late copy of the hold's request took the lock again.
//!
//! The renewer sends the cleanup, so the cleanup comes after any renewal that the renewer has sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::site::Site;
use crate::error::{Error, ErrorKind};
use crate::hold::{Hold, Tenancy};
use crate::lease::Cleanup;
use crate::scripts::Chain;

/// How much earlier than asked a lease may end at the server: the client and the server each round
/// a time down to whole milliseconds.
pub(crate) const ROUNDING: Duration = Duration::from_millis(2);

impl Site {
    /// Raises the lease of a hold to the lease of its terms, before a thread leaves the hold to
    /// expire. (A hold that another process has just handed on has a lease of only 2 s.) If the
    /// raise fails, the thread must release the hold instead.
    ///
    /// # Blocking
    ///
    /// One round trip if the hold does not have the lease of its terms yet, otherwise none.
    pub(crate) fn raise_to_keep(self: &Arc<Self>, tenancy: &Arc<Tenancy>) -> Result<(), Error> {
        let error = match self.raise(tenancy, Duration::ZERO) {
            Ok(()) if !tenancy.hold().is_to_be_raised() => return Ok(()),
            Ok(()) => {
                let message = "another process has just handed it on, and its lease cannot be made \
                               longer";
                Error::new(ErrorKind::Refused, message.to_owned())
            }
            Err(trouble) => trouble.into_error(),
        };
        let state = "it is not left taken: the client releases it in the background, or another \
                     level of it goes on";
        Err(error.of(&self.name).now(state))
    }

    /// Schedules the cleanup that ends a kept hold. Called when the last thread has left the hold.
    pub(super) fn keep(self: &Arc<Self>, hold: &Arc<Hold>) {
        let until = hold.kept_until.load(Ordering::SeqCst);
        // The closure has a reference to the hold, so the owner stays live. If the owner were not
        // live, the client would take the hold for a leftover after a failover, and release it.
        let (site, kept) = (Arc::clone(self), Arc::clone(hold));
        let next = move || {
            let rest = Duration::from_nanos(until.saturating_sub(clock::now()));
            let (scripts, owner) = (site.scripts(), &kept.owner);
            let (core, name) = (&site.core, &*site.name);
            let is_over = rest.is_zero();
            let command = match (&kept.line, is_over) {
                (None, false) => scripts.keep_command(owner, rest.saturating_add(ROUNDING)),
                (None, true) => scripts.give_up_command(&owner.text(), Chain::default()),
                (Some(line), false) => {
                    line.keep_command(core, name, owner, rest.saturating_add(ROUNDING))
                }
                (Some(line), true) => line.give_up_command(core, name, owner),
            };
            (command, is_over)
        };
        let cleanup = Cleanup::kept(&self.name, next, until, hold.longest_lease(), hold.in_doubt);
        self.core.watchdog.clean_up(cleanup);
    }
}

#[cfg(all(test, testkit))]
mod tests;
