//! The hooks that the driver calls, for every lock of one name except the fair lock.
//! (`lock/fair.rs` has the hooks of a fair lock.)
//!
//! `order/mod.rs` decides which thread of this process is next. `site/queue_entry.rs` has the
//! process's entry in Redis's queue. `waiting/mod.rs` has the loop that calls these hooks.

use std::sync::Arc;

use redlatch_client::sync::{Thread, clock};

use super::Handle;
use super::together::Together;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{Leaseholder, Tenancy};
use crate::observe::{Kind, Way};
use crate::scripts::{Mode, Replied, Trouble};
use crate::site::{GateOutcome, Leaving, LockNeed, QueueEntry, Site};
use crate::waiting::{
    self, Claim, Enter, EnterOf, Lead, LeadershipGuard, Listening, QueueLeadership, QueueSite,
    Synchronizer, Try, Wait,
};

struct Hooks<'a, 'b> {
    handle: &'a Handle,
    /// `Some` if the lock is one of several locks that are taken together.
    together: Option<&'a Together<'b>>,
}

/// Takes the lock of this handle. Returns `None` if the wait ended before the grant.
pub(crate) fn acquire(
    handle: &Handle,
    thread: &Arc<Thread>,
    wait: Wait<'_>,
) -> Result<Option<Arc<Tenancy>>, Error> {
    acquire_of(None, handle, thread, wait)
}

/// Takes the lock of this handle, as one of several locks that are taken together.
pub(super) fn acquire_of(
    together: Option<&Together<'_>>,
    handle: &Handle,
    thread: &Arc<Thread>,
    wait: Wait<'_>,
) -> Result<Option<Arc<Tenancy>>, Error> {
    // This check returns the errors that come before any request: an unusable name or lease, a
    // client that was shut down, a forked process, a cancelled token, or another level through a
    // non-reentrant handle.
    handle.check(thread, &wait)?;
    let Site { core, name, .. } = &*handle.site;
    // The driver `acquire` calls the hooks below. The thread sleeps between these calls.
    let claim = Claim { thread, need: handle.need(), wait };
    let acquired = waiting::acquire(&Hooks { handle, together }, (core, name), &claim);
    if !matches!(acquired, Ok(Some(_))) {
        // A thread that waited may have left the queue.
        handle.sites().for_each(|site| site.update_wanted());
    }
    acquired
}

impl Hooks<'_, '_> {
    fn reads(&self) -> bool {
        self.handle.site.mode == Mode::Read
    }

    /// Takes the read lock for a thread that holds the write lock. Returns `None` if the thread
    /// must enter the gate again.
    fn read_under(
        &self,
        writing: &Arc<Tenancy>,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let site = &self.handle.site;
        let (mut entry, writer) = (QueueEntry::new(site, claim.need.terms), writing.hold().owner);
        let at_once = Claim { thread: claim.thread, need: claim.need, wait: Wait::NONE };
        let granted = match entry.ask(&mut Listening::default(), site, &at_once, Some(&writer)) {
            Ok(Try::Granted(tenancy) | Try::Shared(tenancy)) => tenancy,
            refused => {
                site.leave_queue(entry);
                refused?;
                // The server no longer has the write hold, and this process had not noticed the
                // loss.
                if writing.is_held() {
                    let writes = self.handle.site_of(Mode::Write);
                    writes.lose_hold(&writing.hold(), LostReason::Revoked);
                }
                return Ok(None);
            }
        };
        let admitted = self.admit_reader(Arc::clone(&granted), claim, || {});
        let Ok(Some(tenancy)) = admitted else {
            site.leave_queue(entry);
            // The gate did not admit the read grant. A lost read grant proves nothing about the
            // write hold.
            let is_late = clock::now() >= granted.hold().deadline();
            admitted?;
            return if is_late { Err(Error::late_grant(&site.name)) } else { Ok(None) };
        };
        // This thread's holds may be gone, and another thread may hold the write lock by now.
        if !site.gate.writes_alone(claim.thread) {
            site.lose_hold(&tenancy.hold(), LostReason::Revoked);
            return Ok(None);
        }
        let tenancy = self.handle.unless_shut_down(tenancy)?;
        Ok(Some(tenancy))
    }

    /// Lets the leader read together with other threads of the process. During their turn, the
    /// leader joins at once. After the turn, the leader joins if the server answers that no process
    /// waits.
    fn join(&self, claim: &Claim<'_, LockNeed>) -> Result<Option<Arc<Tenancy>>, Error> {
        if !self.reads() {
            return Ok(None);
        }
        let LockNeed { terms, .. } = claim.need;
        let site = &self.handle.site;
        let Some((tenancy, in_turn)) = site.gate.join(claim.thread, terms) else {
            return Ok(None);
        };
        let hold = &tenancy.hold();
        if !in_turn {
            // The leader already counts as a reader, so no thread releases the hold in the
            // meantime.
            let leave = || {
                let level = self.handle.level(&tenancy);
                let _ = site.leave(&tenancy, Some(level), Leaving::Posted);
            };
            let (arrivals, sent_at, lease) = (site.arrivals(), clock::now(), terms.lease());
            let certain = hold.asks_for(lease);
            match site.scripts().read_on(&hold.owner, lease) {
                // Processes wait, so this request extended no lease. (If the request was sent
                // twice, the first copy may have extended a lease.)
                Ok(Replied { reply: Some(1..), .. }) => {
                    leave();
                    return Ok(None);
                }
                Ok(Replied { reply: Some(_), unacknowledged: Some(unacknowledged), .. }) => {
                    hold.unconfirm();
                    site.clean_up_if_lost(hold);
                    leave();
                    return Err(unacknowledged.of(&site.name).unacknowledged(true));
                }
                Ok(Replied { reply: Some(_), .. }) => {
                    hold.confirm(sent_at, certain);
                    site.clean_up_if_lost(hold);
                    site.gate.reopen(hold, sent_at);
                }
                Ok(Replied { reply: None, .. }) => {
                    site.lose_hold(hold, hold.why_gone());
                    return Ok(None);
                }
                Err(trouble) => {
                    if let Trouble::Unknown(_) = trouble {
                        hold.unconfirm();
                        site.clean_up_if_lost(hold);
                    }
                    leave();
                    return Err(site.not_taken(trouble, arrivals));
                }
            }
        }
        if !tenancy.is_held() || !self.handle.ensure_lease(&tenancy)? {
            return Ok(None);
        }
        Ok(Some(tenancy))
    }

    /// Admits the grant. If other threads of the process read under an older hold, the thread joins
    /// them instead, because one hold is enough. Returns `None` if the process no longer has the
    /// grant. Calls `retire_owner` when no thread may send more requests under the grant's owner.
    fn admit_reader(
        &self,
        granted: Arc<Tenancy>,
        claim: &Claim<'_, LockNeed>,
        retire_owner: impl FnOnce(),
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let (site, terms) = (&self.handle.site, claim.need.terms);
        while let Some(older) = site.gate.hold() {
            // If the server has lost the older hold, no thread may join that hold.
            if !older.is_held_at(clock::now()) || !site.has_granted(&older)? {
                site.lose_hold(&older, older.why_gone());
                continue;
            }
            let Some((tenancy, _)) = site.gate.join(claim.thread, terms) else {
                // The server has granted a read hold, so the server no longer has a kept write
                // hold.
                site.gate.keeps_none();
                continue;
            };
            if !Arc::ptr_eq(&tenancy.hold(), &older) {
                // Another hold has taken the seat in the meantime. The loop checks that hold next.
                let level = self.handle.level(&tenancy);
                let _ = site.leave(&tenancy, Some(level), Leaving::Posted);
                continue;
            }
            // The new hold is not needed, so it is released. The next request uses another owner.
            retire_owner();
            let _ = site.release(&granted.hold(), Leaving::Posted);
            return Ok(self.handle.ensure_lease(&tenancy)?.then_some(tenancy));
        }
        // A leader that reads still leads, to let more readers in.
        if !site.admit(&granted, &mut None)? {
            return Ok(None);
        }
        retire_owner();
        Ok(Some(granted))
    }
}

impl Synchronizer for Hooks<'_, '_> {
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

    /// A thread that holds the lock takes another level. This needs a request only if the level's
    /// fixed lease is longer than the remaining lease. A reader joins other readers of this process
    /// if it may. Otherwise one thread of the process asks Redis. If the lease of the present hold
    /// is over, `reentered` declares the hold lost, and the thread enters again.
    fn enter(&self, claim: &Claim<'_, LockNeed>) -> Result<EnterOf<Self>, Error> {
        if let Some(leadership) = self.together.and_then(Together::lead) {
            let (leadership, lead) = leadership.into_parts();
            return Ok(Enter::Leads(leadership, lead.map(Box::new)));
        }
        loop {
            let gate = &self.handle.site.gate;
            return match gate.enter(claim.thread, claim.need, claim.wait.blocks()) {
                GateOutcome::Leads(leadership) => Ok(Enter::Leads(Some(leadership), None)),
                GateOutcome::Queued(waiter) => {
                    self.handle.sites().for_each(|site| site.update_wanted());
                    Ok(Enter::Queued(waiter))
                }
                GateOutcome::Occupied => Ok(Enter::NotNow),
                GateOutcome::Joined(tenancy) => {
                    if !self.handle.ensure_lease(&tenancy)? {
                        continue;
                    }
                    Ok(Enter::Granted(tenancy, Way::Passed))
                }
                GateOutcome::Under(writing) => match self.read_under(&writing, claim)? {
                    Some(tenancy) => Ok(Enter::Granted(tenancy, Way::Passed)),
                    None => continue,
                },
                GateOutcome::Reads => {
                    let message = "the calling thread holds the read lock, so it would wait for \
                                   itself: release the read lock first; it is held as before";
                    let error = Error::new(ErrorKind::WouldDeadlock, message.to_owned());
                    Err(error.of(&self.handle.site.name))
                }
                entered => match self.handle.reentered(entered)? {
                    Some(tenancy) => Ok(Enter::Reentered(tenancy)),
                    None => continue,
                },
            };
        }
    }

    /// Ends holds whose deadlines have passed. Usually the wheel ends such holds, but the wheel may
    /// be late.
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
    fn take_passed(&self, tenancy: Arc<Tenancy>) -> Result<Option<Arc<Tenancy>>, Error> {
        if !tenancy.is_held() {
            self.handle.site.lose_hold(&tenancy.hold(), LostReason::LeaseExpired);
            return Ok(None);
        }
        if self.reads() && !self.handle.ensure_lease(&tenancy)? {
            return Ok(None);
        }
        self.handle.unless_shut_down(tenancy).map(Some)
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

    fn collect(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, LockNeed>,
    ) -> Option<Arc<Tenancy>> {
        let Lead { listening, request_state } = lead;
        request_state.as_mut()?.collect(listening, &self.handle.site, claim)
    }

    fn may_collect(&self, request_state: &Option<QueueEntry>) -> bool {
        request_state.as_ref().is_some_and(QueueEntry::may_collect)
    }

    fn ask(
        &self,
        lead: &mut Lead<Option<QueueEntry>>,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Try<Arc<Tenancy>>, Error> {
        let site = &self.handle.site;
        let Lead { listening, request_state } = lead;
        if request_state.is_none()
            && let Some(tenancy) = self.join(claim)?
        {
            return Ok(Try::Shared(tenancy));
        }
        if let Some(together) = self.together {
            if let Some(tenancy) = together.granted() {
                return Ok(Try::Granted(tenancy));
            }
            together.give_back_later_locks();
        }
        let is_new = request_state.is_none();
        let entry = request_state.get_or_insert_with(|| QueueEntry::new(site, claim.need.terms));
        if let Some(together) = self.together.filter(|_| is_new)
            && let Some(tried) = together.ask(site, entry, claim)?
        {
            return Ok(tried);
        }
        entry.ask(listening, site, claim, None)
    }

    /// Returns `None` in three cases. In the first case, the lease has ended since the grant. In
    /// the second case, this process sent the request for the grant before it received the answer
    /// to its own forced unlock, and that unlock may have ended the grant. In the third case, a
    /// hold of the name's fair lock has the seat, and the server does not have the granted hold.
    fn admit(
        &self,
        leadership: &mut LeadershipGuard<'_, Arc<Site>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let Handle { site, pair, .. } = self.handle;
        if self.reads() {
            // A leader without an entry has joined readers, and is already in the seat.
            let has_entry =
                leadership.lead.as_ref().is_some_and(|lead| lead.request_state.is_some());
            let admitted = match has_entry {
                true => self.admit_reader(tenancy, claim, || leadership.lead = None)?,
                false => Some(tenancy),
            };
            let Some(tenancy) = admitted else { return Ok(None) };
            site.gate.let_readers_in();
            return self.handle.unless_shut_down(tenancy).map(Some);
        }
        if !site.admit(&tenancy, &mut leadership.leadership)? {
            return Ok(None);
        }
        // The server has granted the write lock, so the server no longer has the read hold of this
        // process, even if this process has not noticed the loss yet.
        if let Some(pair) = pair
            && let Some(hold) = pair.read.gate.hold()
        {
            pair.read.lose_hold(&hold, hold.why_gone());
        }
        self.handle.unless_shut_down(tenancy).map(Some)
    }
}
