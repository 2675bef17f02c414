//! The lease of the hold in a site's seat: its alarm, its extension, and the early detection of its
//! loss. If a hold lasts for a while, the subscriber makes the server track the hold's key
//! (`pubsub/tracking.rs`). A short hold is not tracked.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redlatch_client::pubsub::{HoldQuery, Tracked};
use redlatch_client::sync::clock;

use super::site::Site;
use crate::hold::{Hold, Leaseholder, Seat, Tenancy};
use crate::lease::schedule::RenewalProgress;
use crate::scripts::renewal::{self, RenewalKind, StillHeld};
use crate::scripts::{self, Owner, Trouble};

impl Site {
    /// Sets the alarm for a tenancy that has begun. If the server was restarted or replaced since
    /// the request, this call also asks the server whether it has the hold. (The client may have
    /// asked the new server about all holds before this hold was in the seat.)
    pub(super) fn watch(self: &Arc<Self>, tenancy: &Tenancy) {
        self.arm();
        if self.route.incarnation() != tenancy.hold().asked.incarnation {
            self.send_early_renewal();
        }
    }

    /// Does the same as [`arm`](Leaseholder::arm), for a `tenancy` that wants this watched lease
    /// from now on. The call does not read the other tenancies: they have not changed, and there
    /// may be thousands of them.
    pub(crate) fn arm_for(self: &Arc<Self>, tenancy: &Tenancy, lease: Duration) {
        let next = |seat: &mut Seat| {
            let state = seat.renewal_state_of(Some((tenancy.began(), lease)));
            seat.renewing(state).next(&**self)
        };
        if let Some(at) = self.gate.with_seat(|seat| seat.map(next)) {
            self.arm_at(at);
        }
    }

    /// Raises the lease of a hold to the lease of its terms now, before the next renewal. (A grant
    /// by message has a shorter lease.) Does nothing if the lease of the terms is shorter than
    /// `slack`.
    ///
    /// # Blocking
    ///
    /// One round trip, or none if the hold already has the lease of its terms.
    pub(crate) fn raise(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        slack: Duration,
    ) -> Result<(), Trouble> {
        let hold = &tenancy.hold();
        if !hold.is_to_be_raised() {
            return Ok(());
        }
        let sent_at = clock::now();
        let lease = self.gate.with_seat(|seat| {
            let seat = seat.filter(|seat| Arc::ptr_eq(&seat.tenancy.hold(), hold))?;
            let mut renewal_state = seat.renewal_state();
            // This thread sends its own request at once, even if a renewal is on its way or the
            // renewer will send one.
            renewal_state.progress = RenewalProgress::Done;
            renewal_state.next(&self.core.config, sent_at).lease
        });
        // Returns here if the hold already has the lease of its terms, or if that lease is shorter
        // than `slack`.
        let Some(lease) = lease.filter(|lease| *lease >= slack) else { return Ok(()) };
        let certain = hold.note_lease_request(lease);
        let extended = self.extend(hold, lease);
        match &extended {
            Ok(held) => {
                let held = if *held { StillHeld::Yes } else { StillHeld::No };
                self.renewed(hold, sent_at, certain, Ok(held));
            }
            // The call fails, but the renewer tries again.
            Err(trouble) => {
                let cause = format!("{:#}", trouble.clone().into_error()).into();
                self.renewed(hold, sent_at, certain, Err(&cause));
            }
        }
        self.clean_up_if_lost(hold);
        extended.map(drop)
    }

    /// Asks the server to extend the lease of a hold, and returns whether the server still has the
    /// hold. If replicas must have the lease, blocks until they have it.
    fn extend(&self, hold: &Hold, lease: Duration) -> Result<bool, Trouble> {
        let acks = self.core.config.replica_acks;
        let Self { route, name, .. } = self;
        renewal::extend(RenewalKind::Locks, route, name, &hold.owner, lease, acks)
    }

    /// Extends the lease of a hold to at least `lease`. Returns `false` if the hold was lost. If
    /// the outcome is not known, the hold becomes unconfirmed.
    pub(crate) fn lengthen(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        lease: Duration,
    ) -> Result<bool, Trouble> {
        let sent_at = clock::now();
        let certain = hold.note_lease_request(lease);
        match self.extend(hold, lease) {
            Ok(true) => {
                hold.confirm(sent_at, certain);
                Ok(!self.clean_up_if_lost(hold))
            }
            Ok(false) => {
                self.lose_hold(hold, hold.why_gone());
                Ok(false)
            }
            Err(trouble) => {
                if let Trouble::Unknown(_) = trouble {
                    hold.unconfirm();
                    self.clean_up_if_lost(hold);
                }
                Err(trouble)
            }
        }
    }
}

impl Site {
    /// Renews the hold in the seat at once, because the server may have lost it.
    fn send_early_renewal(self: &Arc<Self>) {
        self.core.watchdog.renew_now(self.early_renewal().into_iter().collect());
    }

    fn tracked_owner(&self) -> Option<Owner> {
        self.gate.hold().filter(|hold| hold.is_tracked()).map(|hold| hold.owner)
    }
}

impl Tracked for Site {
    fn hold_query(self: Arc<Self>) -> Option<HoldQuery> {
        let owner = self.tracked_owner()?;
        let command = scripts::lock::is_held_by_command(&self.name, &owner);
        let answered = Box::new(move |reply: &Value| {
            // A change of the key is only a hint that the hold may be lost. If the hold was
            // released in the meantime, the client need not query the server about it.
            if *reply != Value::Int(1) && self.tracked_owner().is_some() {
                self.send_early_renewal();
            }
        });
        Some(HoldQuery { command, answered })
    }

    fn ask_if_wanted(self: Arc<Self>) {
        if let Some(hold) = self.gate.hold().filter(|hold| hold.owner.hears()) {
            hold.look_by(clock::now());
            self.arm();
        }
    }
}
