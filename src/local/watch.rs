//! The watch over a site's hold: its alarm on the wheel, and its renewals. `lease/renewal.rs`
//! decides when they are due.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redlatch_client::sync::clock;

use super::gate::Seat;
use super::hold::Hold;
use super::site::Site;
use super::tenancy::Tenancy;
use crate::error::LostReason;
use crate::lease::renewal::{Attempt, Due, RenewalState};
use crate::lease::{Renewal, Task};
use crate::runtime::Member;
use crate::scripts::Trouble;
use crate::scripts::renewal::{self, Held, Longer, RenewalKind};

impl Site {
    /// A tenancy has begun: sets the alarm. If the client met another run of the server meanwhile,
    /// it asked that run about all holds before this one was in the seat: so it asks about this one
    /// now.
    pub(super) fn watch(self: &Arc<Self>, tenancy: &Tenancy) {
        self.arm();
        if self.route.incarnation() != tenancy.hold.asked.incarnation {
            self.core.watchdog.renew_now(Member::renew_now(Arc::clone(self)));
        }
    }

    /// Sets the wheel's alarm to the next thing to do about the hold in the seat.
    pub(crate) fn arm(self: &Arc<Self>) {
        self.arm_by(Seat::renewal_state);
    }

    /// As [`arm`](Self::arm), if `tenancy` wants this watched lease from now on. Does not look at
    /// the other tenancies, which may be many thousands: nothing about them has changed.
    pub(crate) fn arm_for(self: &Arc<Self>, tenancy: &Tenancy, lease: Duration) {
        self.arm_by(|seat| seat.renewal_state_of(Some((tenancy.since, lease))));
    }

    fn arm_by(self: &Arc<Self>, renewal_state: impl FnOnce(&Seat) -> RenewalState) {
        let next = |seat: &mut Seat| {
            let renewal_state = renewal_state(seat);
            let tracked =
                seat.tenancy.hold.tracked_from(renewal_state.granted, &self.name, &self.core);
            renewal_state.next(&self.core.config, clock::now()).at.min(tracked)
        };
        let Some(at) = self.gate.with_seat(|seat| seat.map(next)) else { return };
        let mut alarm = self.alarm.lock();
        // An alarm that goes off too early sets the next one; only a late alarm would be wrong.
        if alarm.as_ref().is_none_or(|alarm| alarm.due() > at) {
            let task: Weak<dyn Task> = Arc::<Self>::downgrade(self);
            let new = self.core.watchdog.alarm(at, task);
            if let Some(old) = alarm.replace(new) {
                self.core.watchdog.cancel(old);
            }
        }
    }

    /// The tenancy in the seat, and the lease to which the caller must renew it now: if a renewal
    /// is due, or `early`.
    pub(super) fn begin_renewal(
        &self,
        early: bool,
        now: u64,
    ) -> Option<(Arc<Tenancy>, Option<Duration>)> {
        self.gate.with_seat(|seat| {
            let seat = seat?;
            let Due { at, lease } = seat.renewal_state().next(&self.core.config, now);
            let lease = lease.filter(|lease| (early || at <= now) && seat.renews(*lease, now));
            Some((Arc::clone(&seat.tenancy), lease))
        })
    }

    pub(super) fn renewal(self: &Arc<Self>, hold: &Arc<Hold>, lease: Option<Duration>) -> Renewal {
        let (key, owner, urgent) = (Arc::clone(&self.name), hold.owner, hold.is_to_be_raised());
        // Read before `longer`, which may make this renewal a cut.
        let counts = lease.map_or(Duration::ZERO, |lease| hold.counts(lease));
        let longer = lease.map_or(Longer::Stays, |_| hold.longer());
        let until = hold.deadline();
        let (site, hold) = (Arc::clone(self), Arc::clone(hold));
        let renewed = Box::new(move |sent_at, renewed: Result<Held, &Arc<str>>, resent| {
            hold.longer_heard(longer, renewed.map_err(drop), resent);
            site.renewed(&hold, sent_at, counts, renewed);
        });
        Renewal { kind: RenewalKind::Locks, key, owner, lease, longer, urgent, until, renewed }
    }

    /// Raises a hold that a message granted to its lease now, instead of at the next renewal, if
    /// that makes it certain for `slack` more.
    ///
    /// # Blocking
    ///
    /// One round trip, or none for a hold that has its lease.
    pub(crate) fn raise(self: &Arc<Self>, tenancy: &Arc<Tenancy>, slack: Duration) -> bool {
        let hold = &tenancy.hold;
        if !hold.is_to_be_raised() {
            return false;
        }
        let sent_at = clock::now();
        let lease = self.gate.with_seat(|seat| {
            let seat = seat.filter(|seat| Arc::ptr_eq(&seat.tenancy.hold, hold))?;
            let mut renewal_state = seat.renewal_state();
            if renewal_state.attempt.is_sent() {
                // The watchdog has sent a renewal, but its reply may be far off.
                renewal_state.attempt = Attempt::Done;
            }
            renewal_state.next(&self.core.config, sent_at).lease
        });
        // Nothing to raise, or not by enough.
        let Some(lease) = lease.filter(|lease| *lease >= slack) else { return false };
        let counts = hold.ask(lease);
        match self.extend(hold, lease) {
            Ok(held) => {
                let held = if held { Held::Yes } else { Held::No };
                self.renewed(hold, sent_at, counts, Ok(held));
            }
            // The renewer tries again.
            Err(trouble) => {
                let cause = format!("{:#}", trouble.into_error()).into();
                self.renewed(hold, sent_at, counts, Err(&cause));
            }
        }
        self.clean_up_if_lost(hold);
        tenancy.remaining() >= slack
    }

    /// Asks the server for a lease of a hold, and returns whether it is still held. If replicas
    /// must have the lease, blocks until they do.
    pub(crate) fn extend(&self, hold: &Hold, lease: Duration) -> Result<bool, Trouble> {
        let acks = self.core.config.replica_acks;
        let Self { route, name, .. } = self;
        renewal::extend(RenewalKind::Locks, route, name, &hold.owner, lease, acks)
    }

    /// Makes the lease of a tenancy's hold at least this long. If that fails, the hold is
    /// unconfirmed; if the server does not have it any more, it is lost.
    pub(crate) fn prolong(self: &Arc<Self>, tenancy: &Arc<Tenancy>, lease: Duration) {
        let (hold, sent_at) = (&tenancy.hold, clock::now());
        let counts = hold.ask(lease);
        match self.extend(hold, lease) {
            Ok(true) => hold.confirm(sent_at, counts),
            Ok(false) => return self.lose(tenancy, hold.why_gone()),
            Err(_) => hold.unconfirm(),
        }
        self.clean_up_if_lost(hold);
    }

    /// The server's answer to a renewal that was sent at `sent_at`, and how much of its lease
    /// counts.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        sent_at: u64,
        counts: Duration,
        renewed: Result<Held, &Arc<str>>,
    ) {
        let now = clock::now();
        let tenancy = self.gate.with_seat(|seat| {
            // A reply for a hold that has ended is ignored.
            let seat = seat.filter(|seat| Arc::ptr_eq(&seat.tenancy.hold, hold))?;
            seat.attempt = match renewed {
                Ok(held @ (Held::Yes | Held::TooLong)) => {
                    hold.confirm(sent_at, counts);
                    hold.raised();
                    // The next renewal cuts a lease that is too long, at once.
                    if held == Held::TooLong { Attempt::again(now) } else { Attempt::Done }
                }
                Ok(Held::No) => Attempt::Done,
                Err(cause) => {
                    hold.renewal_failed(cause);
                    seat.attempt.fails(hold.is_to_be_raised(), counts, now)
                }
            };
            Some(Arc::clone(&seat.tenancy))
        });
        match tenancy {
            Some(tenancy) if renewed == Ok(Held::No) => self.lose(&tenancy, hold.why_gone()),
            Some(_) => self.arm(),
            None => {}
        }
    }
}

impl Task for Site {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        *self.alarm.lock() = None;
        let now = clock::now();
        self.track(now);
        let (tenancy, lease) = self.begin_renewal(false, now)?;
        if now >= tenancy.hold.deadline() {
            self.lose(&tenancy, LostReason::LeaseExpired);
            return None;
        }
        self.arm();
        lease.map(|lease| self.renewal(&tenancy.hold, Some(lease)))
    }
}
