//! How a client hears of the loss of a hold: after a while the subscriber has the server track the
//! hold's key (`pubsub/tracking.rs`). A hold that ends before that costs nothing.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::Value;
use redlatch_client::pubsub::{Question, Tracked};

use super::hold::Hold;
use super::site::Site;
use crate::lease::renewal::TRACKED_AFTER;
use crate::runtime::{Core, Member};
use crate::scripts;
use crate::scripts::Owner;

impl Hold {
    /// When the server should begin to track the hold's `key`, if it granted the hold at `granted`.
    /// `u64::MAX`: it does already, or cannot.
    pub(crate) fn tracked_from(&self, granted: u64, key: &str, core: &Core) -> u64 {
        if self.is_tracked() || !core.pubsub.tracks(key) {
            return u64::MAX;
        }
        granted.saturating_add(TRACKED_AFTER)
    }

    /// Whether the caller must have the hold tracked from now on. Returns `true` once.
    pub(crate) fn begins_to_be_tracked(
        &self,
        granted: u64,
        now: u64,
        key: &str,
        core: &Core,
    ) -> bool {
        self.tracked_from(granted, key, core) <= now && !self.tracked.swap(true, Ordering::Relaxed)
    }

    /// Whether the server tracks the hold's key, or has done so.
    pub(crate) fn is_tracked(&self) -> bool {
        self.tracked.load(Ordering::Relaxed)
    }
}

impl Site {
    /// Has the server track the hold in the seat, if it is time.
    pub(crate) fn track(self: &Arc<Self>, now: u64) {
        let begins = self.gate.with_seat(|seat| {
            seat.is_some_and(|seat| {
                let granted = seat.renewal_state().granted;
                seat.tenancy.hold.begins_to_be_tracked(granted, now, &self.name, &self.core)
            })
        });
        if begins {
            let who: Weak<dyn Tracked> = Arc::<Self>::downgrade(self);
            self.core.pubsub.track(&self.name, who);
        }
    }

    fn tracked_owner(&self) -> Option<Owner> {
        let tenancy = self.gate.tenant()?;
        tenancy.hold.is_tracked().then_some(tenancy.hold.owner)
    }
}

impl Tracked for Site {
    fn question(self: Arc<Self>) -> Option<Question> {
        let owner = self.tracked_owner()?;
        let command = scripts::lock::is_held_by_command(&self.name, &owner);
        let answered = Box::new(move |reply: &Value| {
            // The change of the key is only a hint. A hold that was released meanwhile needs no
            // renewal.
            if *reply != Value::Int(1) && self.tracked_owner().is_some() {
                let core = Arc::clone(&self.core);
                core.watchdog.renew_now(self.renew_now());
            }
        });
        Some(Question { command, answered })
    }
}
