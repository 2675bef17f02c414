//! A hold that is kept until a time: by a thread that leaves it to its end, or for a least time.
//!
//! Until then no thread releases or passes it, and nobody renews it once its last thread has left.
//! It lasts until the latest time for which a thread kept it. The server has it for that long,
//! since it is never kept for longer than its lease: so it outlives this client. In place of a
//! release a [`Cleanup`] shortens its lease to that time, and releases it when the time has come,
//! which does nothing if its lease has ended by itself. It has not if the shortening got no answer,
//! if another hold keeps a read-write lock, or if a late copy of its request took the lock anew.
//!
//! The renewer sends it, so behind a renewal that is on its way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redlatch_client::sync::clock;

use super::site::Site;
use crate::error::{Error, ErrorKind};
use crate::hold::{Hold, Tenancy};
use crate::lease::Cleanup;
use crate::scripts::Chain;

impl Site {
    /// Makes a hold that another process has just handed on, for 2 s, last for the lease of its
    /// terms, before a thread leaves it to its end. If that fails the thread must not leave it so,
    /// and releases it.
    ///
    /// # Blocking
    ///
    /// Not at all, except for a round trip if the hold does not have the lease of its terms yet.
    pub(crate) fn raise_to_keep(self: &Arc<Self>, tenancy: &Arc<Tenancy>) -> Result<(), Error> {
        let error = match self.raise(tenancy, Duration::ZERO) {
            Ok(()) if !tenancy.hold().is_to_be_raised() => return Ok(()),
            Ok(()) => {
                let message = "another process has just handed it on, and its lease cannot be made \
                               longer";
                Error::new(ErrorKind::Redis, message.to_owned())
            }
            Err(trouble) => trouble.into_error(),
        };
        let state = "it is not left taken: the client releases it in the background, or another \
                     level of it goes on";
        Err(error.of(&self.name).now(state))
    }

    /// Ends a kept hold that no thread has any more.
    pub(super) fn keep(self: &Arc<Self>, hold: &Arc<Hold>) {
        let until = hold.kept_until.load(Ordering::SeqCst);
        // It has the hold, so the owner stays live. Otherwise the client would take the hold for a
        // leftover at a failover, and release it.
        let (site, kept) = (Arc::clone(self), Arc::clone(hold));
        let next = move || {
            let rest = Duration::from_nanos(until.saturating_sub(clock::now()));
            let (scripts, owner) = (site.scripts(), &kept.owner);
            let (core, name) = (&site.core, &*site.name);
            let is_over = rest.is_zero();
            let command = match (&kept.line, is_over) {
                (None, false) => scripts.keep_command(owner, rest),
                (None, true) => scripts.give_up_command(&owner.text(), Chain::default()),
                (Some(line), false) => line.keep_command(core, name, owner, rest),
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
