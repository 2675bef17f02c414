//! How a holder finds out that others wait for its lock.
//!
//! For threads of this process, the gate's queue shows whether any of them waits (for a fair lock,
//! the gate's list of threads). Other processes add an entry to a queue at the server. The script
//! that adds the first entry sends `want` on the holder's own channel, if the holder's owner
//! [hears](crate::scripts::Owner::hears) this message. Redis stores no messages, so the hold first
//! subscribes to the channel and then asks the server. It asks again when the client may have
//! missed a message. The answer to each renewal also says whether others wait.
//!
//! - *heard in time*: if a guard has a callback, or the owner wants the message, the hold notices
//!   that others wait: at once by the message, or else within a third of its lease, by a renewal or
//!   its own question. The hold subscribes before it asks, so that it does not miss a waiter that
//!   comes between these steps.
//! - *nothing for nothing*: if the owner does not want the message, and no guard has a callback,
//!   the hold sends no command and uses no key for this.
//! - *called once*: each time that others begin to wait for the lock, as far as this process knows,
//!   a callback is called once. A callback is not called after its guard has left the lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redlatch_client::sync::is_forked;

use super::site::Site;
use crate::hold::{Leaseholder, Tenancy};
use crate::lease::WantedCallback;

impl Site {
    /// Registers `callback` for a tenancy.
    pub(crate) fn on_wanted(self: &Arc<Self>, tenancy: &Tenancy, callback: WantedCallback) {
        // An empty call starts the callbacks' thread, so that the callback need not wait for that.
        self.core.watchdog.queue_call(|| ());
        tenancy.on_wanted(callback);
        self.has_calls.store(true, Ordering::SeqCst);
        self.update_wanted();
        self.arm();
    }

    /// Whether others wait for the lock, as far as this process knows.
    pub(crate) fn is_wanted(&self, tenancy: &Tenancy) -> bool {
        let has_waiters = || self.gate.at(|order, _| order.has_waiters());
        tenancy.is_held() && (tenancy.hold().is_wanted() || has_waiters())
    }

    /// Schedules the callbacks of the guards for whose lock others have just begun to wait. Called
    /// when a thread of this process has begun to wait or no longer waits, and when the server has
    /// said whether others wait. Does nothing in a forked child: at the fork, a thread of the
    /// parent may have had the gate's mutex.
    pub(crate) fn update_wanted(&self) {
        if !self.has_calls.load(Ordering::SeqCst) || is_forked() {
            return;
        }
        let updated = self.gate.at(|order, _| {
            let has_waiters = order.has_waiters();
            let Some(seat) = &order.side(self.mode).seat else { return Vec::new() };
            let hold = seat.tenancy.hold();
            let is_wanted = has_waiters || hold.is_wanted();
            let update = |tenancy: &Arc<Tenancy>| {
                (Arc::clone(tenancy), tenancy.update_wanted(&hold, is_wanted))
            };
            seat.tenancies().map(update).filter(|(_, callbacks)| !callbacks.is_empty()).collect()
        });
        for (tenancy, callbacks) in updated {
            tenancy.tell_wanted(&self.core, &self.name);
            for callback in callbacks {
                let tenancy = Arc::clone(&tenancy);
                let call = move || {
                    if tenancy.is_held() {
                        callback();
                    }
                };
                self.core.watchdog.queue_callback(&self.name, call);
            }
        }
    }
}
