//! The cases of `lock/hooks.rs` that only a read-write lock has: a thread that reads together with
//! other threads of its process, a writer that also reads, and a writer that ends a read hold.

use std::sync::Arc;

use redlatch_client::sync::clock;

use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{Leaseholder, Tenancy};
use crate::lock::hooks::Hooks;
use crate::scripts::{Mode, Replied, Trouble};
use crate::site::{GateOutcome, Leaving, LockNeed, QueueEntry, Site};
use crate::waiting::{Claim, LeadershipGuard, Listening, QueueSite, Try, Wait};

impl Hooks<'_> {
    /// Whether the thread wants the read lock.
    pub(in crate::lock) fn reads(&self) -> bool {
        self.handle.site.mode == Mode::Read
    }

    /// Finishes `enter` for a thread that joined the readers of its process, or that holds the
    /// lock in the other mode. Returns `None` if the thread must enter the gate again.
    pub(in crate::lock) fn enter_beside_holder(
        &self,
        entered: GateOutcome,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        match entered {
            GateOutcome::Joined(tenancy) => {
                Ok(self.handle.ensure_lease(&tenancy)?.then_some(tenancy))
            }
            GateOutcome::Under(writing) => self.read_under(&writing, claim),
            _ => {
                let message = "the calling thread holds the read lock, so it would wait for \
                               itself: release the read lock first; it is held as before";
                let error = Error::new(ErrorKind::WouldDeadlock, message.to_owned());
                Err(error.of(&self.handle.site.name))
            }
        }
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
                site.give_up_entry(entry);
                refused?;
                // The server no longer has the write hold, but this process has not noticed the
                // loss yet.
                if writing.is_held() {
                    let writes = self.handle.site_of(Mode::Write);
                    writes.lose_hold(&writing.hold(), LostReason::Revoked);
                }
                return Ok(None);
            }
        };
        let admitted = self.admit_reader(Arc::clone(&granted), claim, || {});
        let Ok(Some(tenancy)) = admitted else {
            site.give_up_entry(entry);
            // The gate did not admit the grant to read. This alone does not show that the write
            // hold is lost.
            let is_late = clock::now() >= granted.hold().deadline();
            admitted?;
            return if is_late { Err(Error::late_grant(&site.name)) } else { Ok(None) };
        };
        // This thread's holds may be gone, and another thread may hold the write lock by now.
        if !site.gate.writes_alone(claim.thread) {
            site.lose_hold(&tenancy.hold(), LostReason::Revoked);
            return Ok(None);
        }
        site.release_if_shut_down(&tenancy.hold())?;
        Ok(Some(tenancy))
    }

    /// Lets the leader read together with other threads of the process. During the turn of these
    /// readers, the leader joins at once. After their turn, the leader asks the server, and joins
    /// if no process waits.
    pub(in crate::lock) fn join_readers(
        &self,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        let LockNeed { terms, .. } = claim.need;
        let site = &self.handle.site;
        let Some((tenancy, in_turn)) = site.gate.join(claim.thread, terms) else {
            return Ok(None);
        };
        let hold = &tenancy.hold();
        if !in_turn {
            // The leader is already a tenant of the hold, so no other thread releases the hold in
            // the meantime.
            let leave = || {
                let level = self.handle.level(&tenancy);
                let _ = site.leave(&tenancy, Some(level), Leaving::Posted);
            };
            let (arrivals, sent_at, lease) = (site.arrivals(), clock::now(), terms.lease());
            let certain = hold.note_lease_request(lease);
            match site.scripts().read_on(&hold.owner, lease) {
                // Other processes wait, so the server extended no lease in this request. (If the
                // request was sent twice, the first copy may have extended the lease.)
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

    /// Admits a leader that reads. The leader keeps the leadership, to let more readers in.
    pub(in crate::lock) fn admit_to_read(
        &self,
        leadership: &mut LeadershipGuard<'_, Arc<Site>>,
        tenancy: Arc<Tenancy>,
        claim: &Claim<'_, LockNeed>,
    ) -> Result<Option<Arc<Tenancy>>, Error> {
        // A leader without an entry has joined readers, and is already in the seat.
        let has_entry = leadership.lead.as_ref().is_some_and(|lead| lead.request_state.is_some());
        let admitted = match has_entry {
            true => self.admit_reader(tenancy, claim, || leadership.lead = None)?,
            false => Some(tenancy),
        };
        let Some(tenancy) = admitted else { return Ok(None) };
        let site = &self.handle.site;
        site.gate.let_readers_in();
        // Readers that waited have left the queue, and may share the hold of a reader that has a
        // callback. (If a writer is the next leader, it is still in the queue here, and counts.)
        site.update_wanted();
        site.release_if_shut_down(&tenancy.hold())?;
        Ok(Some(tenancy))
    }

    /// Declares the read hold of this process lost, because the server has granted the write lock.
    /// So the server no longer has the read hold, even if this process has not noticed the loss.
    pub(in crate::lock) fn lose_read_hold(&self) {
        if let Some(pair) = &self.handle.pair
            && let Some(hold) = pair.read.gate.hold()
        {
            pair.read.lose_hold(&hold, hold.why_gone());
        }
    }

    /// Admits the grant. If other threads of the process read under an older hold, the thread joins
    /// them instead, because one hold is enough. Returns `None` if the process no longer has the
    /// grant. Calls `retire_owner` if no thread may send further requests under the grant's owner.
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
                // The server has granted a read hold. So the server no longer has a kept write
                // hold.
                site.gate.clear_kept();
                continue;
            };
            if !Arc::ptr_eq(&tenancy.hold(), &older) {
                // Another hold has taken the seat in the meantime. The loop checks that hold next.
                let level = self.handle.level(&tenancy);
                let _ = site.leave(&tenancy, Some(level), Leaving::Posted);
                continue;
            }
            // The new hold is not needed, so the client releases it. The next request must have
            // another owner.
            retire_owner();
            let _ = site.release(&granted.hold(), Leaving::Posted);
            return Ok(self.handle.ensure_lease(&tenancy)?.then_some(tenancy));
        }
        if !site.admit(&granted, &mut None)? {
            return Ok(None);
        }
        retire_owner();
        Ok(Some(granted))
    }
}
