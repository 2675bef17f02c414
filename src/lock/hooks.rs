//! The hooks that the driver calls, for every lock of one name except the fair lock.
//! (`lock/fair.rs` has the hooks of a fair lock, and `lock/read_write/hooks.rs` the cases that only
//! a read-write lock has.)
//!
//! `order/mod.rs` decides which thread of this process is next. `site/queue_entry.rs` has the
//! process's entry in Redis's queue. `waiting/mod.rs` has the loop that calls these hooks.

use std::sync::Arc;

use redlatch_client::sync::Thread;

use super::Handle;
use crate::error::{Error, LostReason};
use crate::hold::{Leaseholder, Tenancy};
use crate::observe::{Kind, Way};
use crate::scripts::Mode;
use crate::site::{GateOutcome, LockNeed, QueueEntry, Site};
use crate::waiting::{
    self, Claim, Enter, EnterOf, Lead, LeadershipGuard, QueueLeadership, Synchronizer, Try, Wait,
};

pub(super) struct Hooks<'a> {
    pub(super) handle: &'a Handle,
}

/// Takes the lock of this handle. Returns `None` if the wait ended before the grant.
pub(super) fn acquire(
    handle: &Handle,
    thread: &Arc<Thread>,
    wait: Wait<'_>,
) -> Result<Option<Arc<Tenancy>>, Error> {
    // This check returns the errors for which no request is needed: an unusable name or lease, a
    // client that was shut down, a forked process, a cancelled token, or another level through a
    // non-reentrant handle.
    handle.check(thread, &wait)?;
    let Site { core, name, .. } = &*handle.site;
    // The driver `acquire` calls the hooks below. The thread sleeps between these calls.
    let claim = Claim { thread, need: handle.need(), wait };
    settled(handle, waiting::acquire(&Hooks { handle }, (core, name), &claim))
}

/// Returns the outcome of a call. If the call got no grant, updates what the holder's callbacks
/// know of waiters.
pub(super) fn settled(
    handle: &Handle,
    acquired: Result<Option<Arc<Tenancy>>, Error>,
) -> Result<Option<Arc<Tenancy>>, Error> {
    if !matches!(acquired, Ok(Some(_))) {
        // A thread that waited may have left the queue, so the holder's callbacks need the new
        // state.
        handle.sites().for_each(|site| site.update_wanted());
    }
    acquired
}

impl Synchronizer for Hooks<'_> {
    type Site = Arc<Site>;

    fn site(&self) -> &Arc<Site> {
        &self.handle.site
    }

    fn what(&self, need: &LockNeed) -> (Kind, u32) {
        let kind = match need.mode {
            Mode::Lock if self.handle.site.is_fenced => Kind::FencedLock,
            Mode::Lock => Kind::ReentrantLock,
            Mode::Read => Kind::ReadLock,
            Mode::Write => Kind::WriteLock,
        };
        (kind, 1)
    }

    /// If the thread holds the lock, it takes another level. This needs a request only if the
    /// level's fixed lease is longer than the remaining lease. If the lease of the present hold is
    /// over, `reentered` declares the hold lost, and the thread enters again. A thread may also
    /// read with other readers of this process, or under its own write lock. Otherwise one thread
    /// of the process sends a request.
    fn enter(&self, claim: &Claim<'_, LockNeed>) -> Result<EnterOf<Self>, Error> {
        loop {
            let gate = &self.handle.site.gate;
            return match gate.enter(claim.thread, claim.need, claim.wait.blocks()) {
                GateOutcome::Leads(leadership) => Ok(Enter::Leads(Some(leadership), None)),
                GateOutcome::Queued(waiter) => {
                    self.handle.sites().for_each(|site| site.update_wanted());
                    Ok(Enter::Queued(waiter))
                }
                GateOutcome::Occupied => Ok(Enter::NotNow),
                entered @ (GateOutcome::Joined(_) | GateOutcome::Under(_) | GateOutcome::Reads) => {
                    match self.enter_beside_holder(entered, claim)? {
                        Some(tenancy) => Ok(Enter::Granted(tenancy, Way::Passed)),
                        None => continue,
                    }
                }
                entered => match self.handle.reentered(entered)? {
                    Some(tenancy) => Ok(Enter::Reentered(tenancy)),
                    None => continue,
                },
            };
        }
    }

    /// Ends holds whose deadlines have passed. Usually the watchdog does this, but it may be late.
    fn end_expired_holds(&self) {
        for site in self.handle.sites() {
            if let Some(hold) = site.gate.expired() {
                site.lose_hold(&hold, LostReason::LeaseExpired);
            }
        }
    }

    /// Checks a hold that was passed to this thread, because the thread may have slept until the
    /// lease ended. If the client was shut down in the meantime, releases the hold and returns an
    /// error.
    fn collect_passed(&self, tenancy: Arc<Tenancy>) -> Result<Option<Arc<Tenancy>>, Error> {
        if !tenancy.is_held() {
            self.handle.site.lose_hold(&tenancy.hold(), LostReason::LeaseExpired);
            return Ok(None);
        }
        if self.reads() && !self.handle.ensure_lease(&tenancy)? {
            return Ok(None);
        }
        self.handle.site.release_if_shut_down(&tenancy.hold())?;
        Ok(Some(tenancy))
    }

    fn observed(&self, tenancy: &Arc<Tenancy>) {
        self.handle.site.observed(tenancy);
    }

    fn request_state(
        &self,
        _: &Claim<'_, LockNeed>,
        _: &mut Option<QueueLeadership>,
    ) -> Option<QueueEntry> {
        None
    }

    fn ask(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let site = &self.handle.site;
        let Lead { listening, request_state } = lead;
        if self.reads()
            && request_state.is_none()
            && let Some(tenancy) = self.join_readers(claim)?
        {
            return Ok(Try::Shared(tenancy));
        }
        let entry = request_state.get_or_insert_with(|| QueueEntry::new(site, claim.need.terms));
        entry.ask(listening, site, claim, None)
    }

    /// Returns `None` in three cases. First, the lease has ended since the grant. Second, this
    /// process sent the request for the grant before it received the answer to its own forced
    /// unlock, and the forced unlock may have ended the grant. Third, a hold of the name's fair
    /// lock, or an adopted hold, has the seat, and the server does not have the granted hold.
    fn admit(
        &self,
        leadership: &mut LeadershipGuard<'_, Arc<Site>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        if self.reads() {
            return self.admit_to_read(leadership, tenancy, claim);
        }
        let is_admitted = self.handle.site.admit(&tenancy, &mut leadership.leadership)?;
        if is_admitted {
            self.lose_read_hold();
        }
        Ok(is_admitted.then_some(tenancy))
    }
}
