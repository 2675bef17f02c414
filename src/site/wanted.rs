//! How a holder finds out that others wait for its lock.
//!
//! The gate's queue, or the gate's list of a fair lock's threads, shows whether threads of this
//! process wait. Other processes add an entry to a queue at the server. The script that adds the
//! first entry sends `want` on the holder's own channel, if the holder's owner
//! [hears](crate::scripts::Owner::hears) this message. Redis stores no messages, so the hold first
//! listens and then asks (it *looks*), and asks again when the client may have missed a message.
//! The answer to each renewal also says whether others wait.
//!
//! - *heard in time*: if a guard has a callback, or the owner hears, the hold finds out that others
//!   wait. It finds out from a message, or else from a renewal or a look within a third of its
//!   lease. The hold listens before it looks, so that it does not miss a waiter that comes between
//!   these steps.
//! - *nothing for nothing*: if its owner does not hear, and its guards have no callback, a hold
//!   costs no command and no key.
//! - *called once*: a callback is called once each time that, as far as this process knows, the
//!   hold becomes wanted. A callback is not called after its guard has left the lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::site::Site;
use crate::hold::{Hold, Leaseholder, Tenancy};
use crate::lease::{Renewal, WantedCallback};

impl Site {
    /// Registers `callback` for a tenancy.
    pub(crate) fn on_wanted(self: &Arc<Self>, tenancy: &Tenancy, callback: WantedCallback) {
        self.core.watchdog.expect_callbacks();
        tenancy.on_wanted(callback);
        self.has_calls.store(true, Ordering::SeqCst);
        self.attend();
    }

    /// Makes the client call the callbacks of the hold in the seat when others begin to wait, or
    /// now if others already wait.
    pub(super) fn attend(self: &Arc<Self>) {
        self.with_hold(|renewing| renewing.hold.calls(renewing.state.watched.is_some()));
        self.arm();
        self.heed();
    }

    /// Whether others wait for the lock, as far as this process knows.
    pub(crate) fn is_wanted(&self, tenancy: &Tenancy) -> bool {
        tenancy.is_held() && (tenancy.hold().is_wanted() || self.gate.has_waiters())
    }

    /// Records that a thread of this process has begun to wait, or no longer waits.
    #[inline]
    pub(crate) fn report_waiting_threads(&self) {
        if self.has_calls.load(Ordering::SeqCst) {
            self.heed_others();
        }
    }

    /// Schedules the callbacks of the guards whose lock has just become wanted.
    pub(super) fn heed_others(&self) {
        let mut due = Vec::new();
        self.gate.heed(|tenancy, is_wanted| {
            let callbacks = tenancy.heed(is_wanted);
            if !callbacks.is_empty() {
                due.push((Arc::clone(tenancy), callbacks));
            }
        });
        for (tenancy, callbacks) in due {
            tenancy.tell_wanted(&self.core, &self.name);
            for callback in callbacks {
                let tenancy = Arc::clone(&tenancy);
                self.core.watchdog.call_wanted(&self.name, callback, move || tenancy.is_held());
            }
        }
    }

    /// Handles the message that others wait for the lock of this owner.
    pub(super) fn hear_wanted(&self, owner: u64) {
        if let Some(hold) = self.gate.hold().filter(|hold| hold.owner.number() == owner) {
            hold.hear_wanted();
            self.heed_others();
        }
    }

    /// Listens for the message that others wait, for as long as the hold lasts.
    pub(super) fn listen_for(&self, hold: &Hold) {
        if hold.owner.hears()
            && let Some(attention) = hold.attention()
        {
            self.core.listens_for_wants();
            attention.listen(|| self.core.pubsub.listen_to_own_soon(&self.name));
        }
    }

    /// Returns a query that asks whether others wait. Returns `None` if the hold does not listen
    /// for the message that others wait.
    pub(super) fn ask_if_wanted(self: &Arc<Self>) -> Option<Renewal> {
        let hold = self.gate.hold()?;
        let listens = hold.attention().is_some_and(|attention| attention.listens());
        listens.then(|| self.renewal(hold, None))
    }
}
