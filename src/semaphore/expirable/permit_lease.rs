//! A permit lease: one permit of this process, with its lease and its current guard.
//!
//! A permit lease has a hold, whose owner is the permit's id. (The server stores the id in a sorted
//! set, as it stores a lock's owner in a hash.) A guard's use of this hold is a tenancy: each guard
//! of the permit has its own. If a thread passes the permit to another thread, the permit lease
//! gets a new guard. If the program has read the id, the permit lease is never passed: the program
//! could use the id to give back the permit of the new guard.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redlatch_client::pubsub::Tracked;
use redlatch_client::sync::atomic::{AtomicBool, Ordering};
use redlatch_client::sync::{Mutex, Thread, clock};

use super::site::ExpirableSite;
use crate::ask::Asked;
use crate::error::LostReason;
use crate::hold::{Hold, Leaseholder, Renewing, Tenancy, Terms};
use crate::lease::Alarm;
use crate::lease::schedule::{RenewalProgress, RenewalState};
use crate::name::Name;
use crate::runtime::Core;
use crate::scripts::renewal::RenewalKind;
use crate::scripts::{Owner, PermitId};
use crate::snapshot::Held;

pub(crate) struct PermitLease {
    pub(super) id: PermitId,
    pub(super) hold: Arc<Hold>,
    site: Arc<ExpirableSite>,
    /// Whether the program has read the permit's id.
    id_was_read: AtomicBool,
    state: Mutex<PermitLeaseState>,
    alarm: Mutex<Option<Alarm>>,
}

#[derive(Default)]
struct PermitLeaseState {
    /// The tenancy of the current guard. `None` between two guards, and after the last guard.
    tenancy: Option<Arc<Tenancy>>,
    /// Whether the permit lease has ended: the permit was given back, left taken, or lost.
    is_over: bool,
    progress: RenewalProgress,
}

impl PermitLease {
    /// Makes the permit lease of a permit that the server has granted.
    pub(super) fn new(
        site: &Arc<ExpirableSite>,
        id: PermitId,
        terms: Terms,
        asked: Asked,
        in_doubt: bool,
    ) -> Arc<Self> {
        let hold = Hold::new(Owner::from(id), terms, asked, in_doubt);
        Arc::new(Self {
            id,
            hold: Arc::new(hold),
            site: Arc::clone(site),
            id_was_read: AtomicBool::new(false),
            state: Mutex::default(),
            alarm: Mutex::default(),
        })
    }

    pub(super) fn site(&self) -> &Arc<ExpirableSite> {
        &self.site
    }

    /// Returns the permit's id, and records that the program has read the id.
    pub(super) fn expose_id(&self) -> PermitId {
        self.id_was_read.store(true, Ordering::SeqCst);
        self.id
    }

    /// Whether the permit may be passed to another thread of this process.
    pub(super) fn may_pass(&self) -> bool {
        !self.id_was_read.load(Ordering::SeqCst)
            && self.hold.may_pass(self.hold.terms, clock::now())
    }

    /// Makes the tenancy of a new guard. Returns `None` if the permit lease has ended.
    pub(super) fn admit(&self) -> Option<Arc<Tenancy>> {
        // The tenancy belongs to no thread: a permit outlives the thread that took it.
        let tenancy = Arc::new(Tenancy::new(Arc::clone(&self.hold), Thread::placeholder()));
        let ExpirableSite { core, name, .. } = &*self.site;
        // Reports the acquisition to the observer.
        tenancy.observed(core, name);
        let mut state = self.state.lock();
        if state.is_over || !tenancy.is_held() {
            drop(state);
            let reason = self.hold.lost().unwrap_or(LostReason::LeaseExpired);
            tenancy.tell_lost(core, name, reason);
            return None;
        }
        state.tenancy = Some(Arc::clone(&tenancy));
        Some(tenancy)
    }

    /// Ends a guard's tenancy. Returns `false` if the guard did not have the permit lease.
    pub(super) fn leave(&self, tenancy: &Arc<Tenancy>) -> bool {
        let mut state = self.state.lock();
        let has_it = state.tenancy.as_ref().is_some_and(|now| Arc::ptr_eq(now, tenancy));
        if has_it {
            state.tenancy = None;
            tenancy.record_left();
        }
        drop(state);
        if has_it {
            // `tell_released` drops the user's callbacks, so it must run without the mutex.
            self.tell_released(tenancy);
        }
        has_it
    }

    /// Ends the permit lease of a permit that is given back or left taken.
    pub(super) fn end(&self) {
        // `finish` ends the tenancy under the mutex. So if a guard no longer finds its permit, its
        // tenancy is already released, and the guard reports no loss.
        if let Some(tenancy) = self.finish(Tenancy::record_left).0 {
            self.tell_released(&tenancy);
        }
    }

    /// Returns the permit's entry for a snapshot, or `None` while no guard has the permit.
    pub(super) fn snapshot(&self) -> Option<Held> {
        let tenancy = self.state.lock().tenancy.clone();
        tenancy.and_then(|tenancy| tenancy.snapshot(&self.site.name, 1))
    }

    fn tell_released(&self, tenancy: &Tenancy) {
        if tenancy.finish_released().is_some() {
            tenancy.tell_released(&self.site.core, &self.site.name);
        }
    }

    /// Ends the permit lease as lost.
    pub(super) fn lose(&self, reason: LostReason) {
        let reason = self.hold.lose(reason);
        let (tenancy, renewing, first) = self.finish(|_| ());
        if !first {
            return;
        }
        if let Some(tenancy) = tenancy {
            tenancy.declare_lost(&self.site.core, &self.site.name, reason);
        }
        // The server may still have the permit: a renewal may have extended the lease, or a late
        // copy of the acquire may take the permit again.
        let may_still_exist = reason == LostReason::LeaseExpired
            && (renewing
                || self.hold.may_outlast_deadline()
                || clock::now() < self.hold.deadline());
        if may_still_exist || self.hold.in_doubt {
            self.site.release_later(&[self.id], self.hold.longest_lease());
        }
    }

    /// Ends the permit lease, and calls `ends` for its last tenancy under the mutex. Returns this
    /// tenancy, whether a renewal is on its way, and whether this was the first call.
    fn finish(&self, ends: impl FnOnce(&Tenancy)) -> (Option<Arc<Tenancy>>, bool, bool) {
        let mut state = self.state.lock();
        let first = !std::mem::replace(&mut state.is_over, true);
        let (tenancy, renewing) = (state.tenancy.take(), state.progress.is_sent());
        if let Some(tenancy) = &tenancy {
            ends(tenancy);
        }
        drop(state);
        // An alarm that another thread sets after this line does nothing when it is due.
        let alarm = self.alarm.lock().take();
        if let Some(alarm) = alarm {
            self.site.core.watchdog.cancel(alarm);
        }
        self.site.forget(&self.id);
        (tenancy, renewing, first)
    }

    /// Handles the reply to an `update_lease_time` request, which was sent at `sent_at`.
    pub(super) fn handle_update(
        &self,
        sent_at: u64,
        lease: Duration,
        certain: Duration,
        updated: bool,
    ) {
        if !updated {
            return self.lose(self.hold.why_gone());
        }
        self.hold.confirm(sent_at, certain);
        if self.hold.lost().is_some() {
            // The permit was lost while the request was on its way.
            self.site.release_later(&[self.id], lease);
        }
    }
}

impl Leaseholder for PermitLease {
    const KIND: RenewalKind = RenewalKind::Permits;

    fn core(&self) -> &Core {
        &self.site.core
    }

    fn key(&self) -> &Arc<str> {
        &self.site.timeouts
    }

    fn name(&self) -> &Name {
        &self.site.name
    }

    fn alarm(&self) -> &Mutex<Option<Alarm>> {
        &self.alarm
    }

    fn with_hold<R>(&self, look: impl FnOnce(Renewing<'_>) -> R) -> Option<R> {
        let mut state = self.state.lock();
        let PermitLeaseState { tenancy, is_over, progress } = &mut *state;
        if *is_over {
            return None;
        }
        let since = tenancy.as_ref().map_or_else(clock::now, |tenancy| tenancy.began());
        let hold = &self.hold;
        let state = RenewalState {
            taken_at: since,
            watched_since: since,
            deadline: hold.deadline(),
            is_provisional: false,
            // The watchdog also renews the lease between two guards.
            watched: hold.terms.watched_lease().map(|lease| hold.certain_part(lease)),
            fixed: None,
            progress: *progress,
        };
        Some(look(Renewing { hold: Cow::Borrowed(hold), state, progress }))
    }

    /// If the program has read the id, it may have asked for a longer lease.
    fn may_be_longer(&self) -> bool {
        self.id_was_read.load(Ordering::SeqCst)
    }

    fn query_on_change(self: &Arc<Self>) -> Weak<dyn Tracked> {
        Arc::<ExpirableSite>::downgrade(&self.site)
    }

    fn lose_hold(self: &Arc<Self>, _its: &Arc<Hold>, reason: LostReason) {
        self.lose(reason);
    }
}

impl fmt::Debug for PermitLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitLease({})", self.id)
    }
}

#[cfg(all(test, testkit))]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use redlatch_testkit::{Server, wait_until};

    use super::super::ExpirablePermit;
    use super::*;
    use crate::Client;
    use crate::error::ErrorKind;
    use crate::hold::HoldState;
    use crate::semaphore::permits::{self, PermitNeed};
    use crate::waiting::Wait;

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// A release by id first takes the permit from its guard, and then removes the guard's
    /// callbacks and alarm. Between these two steps, the guard's own release may run.
    #[test]
    fn a_permit_that_a_release_by_id_has_just_ended_is_not_lost() {
        let server = Server::start().unwrap();
        let client = Client::connect(&server.url()).unwrap();
        let pool = client.expirable_semaphore("pool");
        pool.set_permits(1).unwrap();
        let permit = pool.acquire().unwrap();
        let permit_lease = Arc::clone(&permit.permit_lease);
        let stops = permit_lease.alarm.lock();
        thread::scope(|threads| {
            let released = threads.spawn(|| pool.release(&permit.id()));
            wait_until("it is ended", TIMEOUT, || permit_lease.state.lock().is_over);
            assert_eq!(permit.state(), HoldState::Released);
            drop(stops);
            released.join().unwrap().unwrap();
        });
        assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::NotHeld);
    }

    #[test]
    fn a_permit_that_is_gone_on_arrival_is_reported_as_acquired_and_as_lost() {
        let server = Server::start().unwrap();
        let client = Client::connect(&server.url()).unwrap();
        let pool = client.expirable_semaphore("pool");
        pool.set_permits(2).unwrap();
        let terms = Terms::fixed(TIMEOUT);
        let taken = permits::acquire(
            &pool.site,
            PermitNeed { permits: 2, terms: Some(terms) },
            Wait::FOREVER,
        );
        let taken = taken.unwrap().unwrap();
        taken.leases[0].lose(LostReason::Revoked);
        let guards = taken.leases.into_iter().map(|it| ExpirablePermit::of(&pool, it));
        let guards: Vec<_> = guards.collect();
        assert!(guards[0].is_none() && guards[1].is_some());
        drop(guards);
        let counts = client.snapshot().counts;
        assert_eq!((counts.acquired, counts.lost, counts.released), (2, 1, 1), "{counts:?}");
    }
}
