//! How a site's hold is watched: its alarm on the wheel, and its renewals. When they are due stands
//! in `watchdog/renewal.rs`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Hold, Seat, Site, Tenancy, clock};
use crate::core::Member;
use crate::error::LostReason;
use crate::script::Trouble;
use crate::script::renewal::{self, Held, Longer, RenewalKind};
use crate::watchdog::renewal::{Attempt, Due, Facts};
use crate::watchdog::{Renewal, Task};

impl Site {
    /// A tenancy has begun: sets the alarm. A run of the server that was met meanwhile asked for
    /// all holds when this one was not to be seen.
    pub(super) fn watch(self: &Arc<Self>, tenancy: &Tenancy) {
        self.arm();
        if self.route.incarnation() != tenancy.hold.asked.incarnation {
            self.core.watchdog.renew_now(Member::renew_now(Arc::clone(self)));
        }
    }

    /// Sets the wheel's alarm to the next thing to do about the hold in the seat.
    pub(crate) fn arm(self: &Arc<Self>) {
        self.arm_by(Seat::facts);
    }

    /// As [`arm`](Self::arm), where `tenancy` wants this watched lease from now on: of the others,
    /// which may be many thousands, nothing has changed.
    pub(crate) fn arm_for(self: &Arc<Self>, tenancy: &Tenancy, lease: Duration) {
        self.arm_by(|seat| seat.facts_of(Some((tenancy.since, lease))));
    }

    fn arm_by(self: &Arc<Self>, facts: impl FnOnce(&Seat) -> Facts) {
        let next = |seat: &mut Seat| {
            let facts = facts(seat);
            let tracked = seat.tenancy.hold.tracked_from(facts.granted, &self.name, &self.core);
            facts.next(&self.core.config, clock::now()).at.min(tracked)
        };
        let Some(at) = self.gate.with_seat(|seat| seat.map(next)) else { return };
        let mut alarm = self.alarm.lock();
        // An alarm that goes off too early sets the next one; only too late is wrong.
        if alarm.as_ref().is_none_or(|alarm| alarm.due() > at) {
            let task: Weak<dyn Task> = Arc::<Self>::downgrade(self);
            let new = self.core.watchdog.alarm(at, task);
            if let Some(old) = alarm.replace(new) {
                self.core.watchdog.cancel(old);
            }
        }
    }

    /// The tenancy in the seat, and the lease that it is to be renewed to at once: if that is due,
    /// or `early`.
    pub(super) fn begin_renewal(
        &self,
        early: bool,
        now: u64,
    ) -> Option<(Arc<Tenancy>, Option<Duration>)> {
        self.gate.with_seat(|seat| {
            let seat = seat?;
            let Due { at, lease } = seat.facts().next(&self.core.config, now);
            let lease = lease.filter(|lease| (early || at <= now) && seat.renews(*lease, now));
            Some((Arc::clone(&seat.tenancy), lease))
        })
    }

    pub(super) fn renewal(self: &Arc<Self>, hold: &Arc<Hold>, lease: Option<Duration>) -> Renewal {
        let (key, owner, urgent) = (Arc::clone(&self.name), hold.owner, hold.is_to_be_raised());
        // Before the cut that this one may be.
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

    /// Raises a hold that was granted by message to its lease now, if that makes it certain for
    /// `slack` more. Before its time, since somebody wants to know.
    ///
    /// # Blocking
    ///
    /// One round trip, and none for a hold that has its lease.
    pub(crate) fn raise(self: &Arc<Self>, tenancy: &Arc<Tenancy>, slack: Duration) -> bool {
        let hold = &tenancy.hold;
        if !hold.is_to_be_raised() {
            return false;
        }
        let sent_at = clock::now();
        let lease = self.gate.with_seat(|seat| {
            let seat = seat.filter(|seat| Arc::ptr_eq(&seat.tenancy.hold, hold))?;
            let mut facts = seat.facts();
            if facts.attempt.is_sent() {
                // The watchdog's own, whose reply may be far off.
                facts.attempt = Attempt::Done;
            }
            facts.next(&self.core.config, sent_at).lease
        });
        // It is not to be raised.
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
        self.orphan_if_lost(hold);
        tenancy.remaining() >= slack
    }

    /// Asks for a lease of a hold: whether it is still held. Until replicas have that, if they
    /// must.
    pub(crate) fn extend(&self, hold: &Hold, lease: Duration) -> Result<bool, Trouble> {
        let acks = self.core.config.replica_acks;
        let Self { route, name, .. } = self;
        renewal::extend(RenewalKind::Locks, route, name, &hold.owner, lease, acks)
    }

    /// Makes the lease of a tenancy's hold at least this long. If that fails, the hold is
    /// unconfirmed; if the server has it no more, it is lost.
    pub(crate) fn prolong(self: &Arc<Self>, tenancy: &Arc<Tenancy>, lease: Duration) {
        let (hold, sent_at) = (&tenancy.hold, clock::now());
        let counts = hold.ask(lease);
        match self.extend(hold, lease) {
            Ok(true) => hold.confirm(sent_at, counts),
            Ok(false) => return self.lose(tenancy, hold.why_gone()),
            Err(_) => hold.unconfirm(),
        }
        self.orphan_if_lost(hold);
    }

    /// The server's answer to a renewal that was sent at `sent_at`, and how much of its lease counts.
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
                    // What is too long is cut at once, by the next renewal.
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
