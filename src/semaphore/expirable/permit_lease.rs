//! One permit that this process has: its lease, and its guard now.
//!
//! A permit lease is a hold: one id in the server's set, as an owner is in a lock. Each guard that
//! has it is a tenancy of it. It goes from guard to guard where the process passes permits on,
//! unless its id was read: a reader of the id may give the permit back, and must not give back
//! another guard's.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redlatch_client::sync::atomic::{AtomicBool, Ordering};
use redlatch_client::sync::{Mutex, Thread, clock};

use super::site::ExpirableSite;
use crate::error::LostReason;
use crate::lease::renewal::{Attempt, Due, RenewalState};
use crate::lease::{Alarm, Renewal, Task};
use crate::local::permits::Permits;
use crate::local::{Asked, Hold, Tenancy, Terms};
use crate::scripts::renewal::{Held, Longer, RenewalKind};
use crate::scripts::{Owner, PermitId};

pub(crate) struct PermitLease {
    pub(super) id: PermitId,
    pub(super) hold: Arc<Hold>,
    site: Arc<ExpirableSite>,
    /// The id was read.
    is_told: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The tenancy of the guard that has the permit lease now. `None`: the permit lease is on its
    /// way from one guard to the next, or over.
    tenancy: Option<Arc<Tenancy>>,
    /// The permit was given back, let go of, or lost.
    is_over: bool,
    attempt: Attempt,
    /// The wheel's entry. Taken after nothing else's mutex but this one's.
    alarm: Option<Alarm>,
}

impl State {
    /// Since when a guard has had the permit lease.
    fn since(&self, now: u64) -> u64 {
        self.tenancy.as_ref().map_or(now, |tenancy| tenancy.since)
    }
}

/// A thread's need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitNeed {
    pub(super) permits: u32,
    pub(super) terms: Terms,
}

impl Permits for Vec<Arc<PermitLease>> {
    type Need = PermitNeed;

    // A script's `unpack` has a limit, and the server's work in one go should have one.
    const MOST: usize = 1_024;

    fn needed(need: PermitNeed) -> u32 {
        need.permits
    }

    fn go_together(one: PermitNeed, other: PermitNeed) -> bool {
        one.terms == other.terms
    }

    fn number(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn take(&mut self, need: PermitNeed) -> Option<Self> {
        let suit = |permit_lease: &Arc<PermitLease>| permit_lease.hold.terms == need.terms;
        if self.iter().filter(|permit_lease| suit(permit_lease)).count() < need.permits as usize {
            return None;
        }
        let mut missing = need.permits;
        let taken = self.extract_if(.., |permit_lease| {
            let takes = missing > 0 && suit(permit_lease);
            missing -= u32::from(takes);
            takes
        });
        Some(taken.collect())
    }
}

impl PermitLease {
    /// The server has given this permit.
    pub(super) fn new(
        site: &Arc<ExpirableSite>,
        id: PermitId,
        terms: Terms,
        asked: Asked,
        in_doubt: bool,
    ) -> Arc<Self> {
        let lease = terms.lease();
        let hold = Hold::new(Owner::from(id), terms, lease, asked, in_doubt);
        Arc::new(Self {
            id,
            hold: Arc::new(hold),
            site: Arc::clone(site),
            is_told: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    pub(super) fn site(&self) -> &Arc<ExpirableSite> {
        &self.site
    }

    /// From here on a reader of the id may use it.
    pub(super) fn tell_id(&self) -> PermitId {
        self.is_told.store(true, Ordering::SeqCst);
        self.id
    }

    /// Whether the permit may go to another thread of this process instead of back to the server.
    pub(super) fn may_pass(&self) -> bool {
        !self.is_told.load(Ordering::SeqCst) && self.hold.may_pass(self.hold.terms, clock::now())
    }

    /// A guard has the permit lease now. `None`: it was lost on its way there.
    pub(super) fn admit(&self) -> Option<Arc<Tenancy>> {
        // No thread's: a permit may be sent to another one, and its thread's end says nothing.
        let tenancy = Arc::new(Tenancy::new(Arc::clone(&self.hold), Thread::placeholder()));
        let mut state = self.state.lock();
        if state.is_over || !tenancy.is_held() {
            return None;
        }
        state.tenancy = Some(Arc::clone(&tenancy));
        Some(tenancy)
    }

    /// A guard leaves the permit lease. `false`: the guard's time was over before.
    pub(super) fn leave(&self, tenancy: &Arc<Tenancy>) -> bool {
        let mut state = self.state.lock();
        let has_it = state.tenancy.as_ref().is_some_and(|now| Arc::ptr_eq(now, tenancy));
        if has_it {
            state.tenancy = None;
            tenancy.step_down();
        }
        drop(state);
        if has_it {
            // The callbacks' captures are the user's: they are dropped here, with no mutex held.
            let _unheard = tenancy.finish_released();
        }
        has_it
    }

    /// No guard has the permit any more: it is given back by its id, or goes on without this
    /// process.
    pub(super) fn end(&self) {
        if let Some(tenancy) = self.finish().0 {
            let _unheard = tenancy.finish_released();
        }
    }

    /// The permit is not this process's any more.
    pub(super) fn lose(&self, reason: LostReason) {
        self.hold.lose(reason);
        let (tenancy, renewing, first) = self.finish();
        if !first {
            return;
        }
        if let Some(tenancy) = tenancy
            && let Some(callbacks) = tenancy.lose(reason)
        {
            let (core, name) = (&self.site.core, &self.site.name);
            core.watchdog.tell_lost(name, || tenancy.loss_message(reason, core.config.max_hold));
            core.watchdog.call_back(name, reason, callbacks);
        }
        // A renewal may have made the lease longer, or a late copy of the request may take the
        // permit anew.
        let outlives = reason == LostReason::LeaseExpired
            && (renewing || self.hold.is_unconfirmed() || clock::now() < self.hold.deadline());
        if outlives || self.hold.in_doubt {
            self.site.release_later(&[self.id], self.hold.longest_lease());
        }
    }

    /// The permit lease is over. Returns its last tenancy, whether a renewal is on its way, and
    /// whether this call was the first to end it.
    fn finish(&self) -> (Option<Arc<Tenancy>>, bool, bool) {
        let mut state = self.state.lock();
        let first = !std::mem::replace(&mut state.is_over, true);
        let (tenancy, alarm, renewing) =
            (state.tenancy.take(), state.alarm.take(), state.attempt.is_sent());
        drop(state);
        if let Some(alarm) = alarm {
            self.site.core.watchdog.cancel(alarm);
        }
        self.site.forget(&self.id);
        (tenancy, renewing, first)
    }

    /// Sets the wheel's alarm to the next thing to do.
    pub(super) fn arm(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.is_over {
            return;
        }
        let now = clock::now();
        let tracked =
            self.hold.tracked_from(state.since(now), self.site.tracked_key(), &self.site.core);
        let at = self.next(&state, now).at.min(tracked);
        // An alarm that goes off too early sets the next one; only a late one is wrong.
        if state.alarm.as_ref().is_none_or(|alarm| alarm.due() > at) {
            let watchdog = &self.site.core.watchdog;
            let task: Weak<dyn Task> = Arc::<Self>::downgrade(self);
            if let Some(old) = state.alarm.replace(watchdog.alarm(at, task)) {
                watchdog.cancel(old);
            }
        }
    }

    /// The permit lease's next thing to do.
    fn next(&self, state: &State, now: u64) -> Due {
        let since = state.since(now);
        let renewal_state = RenewalState {
            granted: since,
            since,
            deadline: self.hold.deadline(),
            is_provisional: false,
            // Also on the permit lease's way to the next guard.
            watched: self.hold.terms.watched_lease().map(|lease| self.hold.counts(lease)),
            fixed: None,
            attempt: state.attempt,
        };
        renewal_state.next(&self.site.core.config, now)
    }

    /// The server's answer to a lease that a reader of the id asked for at `sent_at`.
    pub(super) fn updated(&self, sent_at: u64, lease: Duration, counts: Duration, updated: bool) {
        if !updated {
            return self.lose(LostReason::Revoked);
        }
        self.hold.confirm(sent_at, counts);
        if self.hold.lost().is_some() {
            // The permit was lost meanwhile.
            self.site.release_later(&[self.id], lease);
        }
    }

    /// A renewal before its time; if the permit is not to be renewed, or is being renewed, the
    /// question whether the server knows it.
    pub(super) fn renew_now(self: &Arc<Self>) -> Option<Renewal> {
        let now = clock::now();
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        let lease = self.next(&state, now).lease;
        let lease = lease.filter(|lease| self.begin_renewal(&mut state, *lease, now));
        drop(state);
        Some(self.renewal(lease))
    }

    /// `false`: it is too late.
    fn begin_renewal(&self, state: &mut State, lease: Duration, now: u64) -> bool {
        let in_time = now < self.hold.deadline();
        if in_time {
            state.attempt = state.attempt.sent();
            self.hold.ask(lease);
        }
        in_time
    }

    fn renewal(self: &Arc<Self>, lease: Option<Duration>) -> Renewal {
        let (kind, key) = (RenewalKind::Permits, Arc::clone(&self.site.timeouts));
        let (owner, itself) = (self.hold.owner, Arc::clone(self));
        // Before the cut that this one may be.
        let counts = lease.map_or(Duration::ZERO, |lease| self.hold.counts(lease));
        // A reader of the id may have asked for a longer lease.
        let is_known = lease.is_none() || self.is_told.load(Ordering::SeqCst);
        let longer = if is_known { Longer::Stays } else { self.hold.longer() };
        let renewed = Box::new(move |sent_at, renewed: Result<Held, &Arc<str>>, resent| {
            itself.hold.longer_heard(longer, renewed.map_err(drop), resent);
            itself.renewed(sent_at, counts, renewed);
        });
        let until = self.hold.deadline();
        Renewal { kind, key, owner, lease, longer, urgent: false, until, renewed }
    }

    /// The server's answer to a renewal that was sent at `sent_at`, and how much of its lease
    /// counts.
    fn renewed(self: &Arc<Self>, sent_at: u64, counts: Duration, renewed: Result<Held, &Arc<str>>) {
        let mut state = self.state.lock();
        // A reply for a permit lease that is over is ignored.
        if state.is_over {
            return;
        }
        state.attempt = match renewed {
            Ok(held @ (Held::Yes | Held::TooLong)) => {
                self.hold.confirm(sent_at, counts);
                // The next renewal cuts a lease that is too long at once.
                if held == Held::TooLong { Attempt::again(clock::now()) } else { Attempt::Done }
            }
            Ok(Held::No) => Attempt::Done,
            Err(cause) => {
                self.hold.renewal_failed(cause);
                state.attempt.fails(false, counts, clock::now())
            }
        };
        drop(state);
        if renewed == Ok(Held::No) {
            self.lose(self.hold.why_gone());
        } else {
            self.arm();
        }
    }
}

impl Task for PermitLease {
    fn due(self: Arc<Self>) -> Option<Renewal> {
        let now = clock::now();
        let mut state = self.state.lock();
        state.alarm = None;
        if state.is_over {
            return None;
        }
        if now >= self.hold.deadline() {
            drop(state);
            self.lose(LostReason::LeaseExpired);
            return None;
        }
        let Due { at, lease } = self.next(&state, now);
        let lease = lease.filter(|_| at <= now);
        let lease = lease.filter(|lease| self.begin_renewal(&mut state, *lease, now));
        let site = &self.site;
        let is_tracked =
            self.hold.begins_to_be_tracked(state.since(now), now, site.tracked_key(), &site.core);
        drop(state);
        if is_tracked {
            self.site.track();
        }
        self.arm();
        lease.map(|lease| self.renewal(Some(lease)))
    }
}

impl fmt::Debug for PermitLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitLease({})", self.id)
    }
}
