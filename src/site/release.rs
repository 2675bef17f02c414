//! Leaving a hold, releasing it, and cleaning up at the server afterwards.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use redlatch_client::sync::clock;
use redlatch_client::{Command, Outcome};

use super::queue_entry::{Leftover, QueueEntry};
use super::site::{Leaving, Site};
use crate::ask::Undo;
use crate::error::{Error, ErrorKind, LostReason};
use crate::hold::{Hold, HoldLevel, HoldState, Leaseholder, Seat, Tenancy};
use crate::lease::Cleanup;
use crate::name::Name;
use crate::order::{LeaveOutcome, Left, LeftTooLate};
use crate::scripts::lock::Released;
use crate::scripts::{self, Chain, Mode, Owner, Trouble};
use crate::waiting::LeadershipGuard;

impl Site {
    /// Ends one level of a tenancy. The end of the last level releases the hold or passes it on.
    /// `LockGuard::unlock` [awaits](Leaving::Awaited) the release, a guard's drop
    /// [posts](Leaving::Posted) it, and `leave_to_expire` [leaves](Leaving::ToExpire) the hold to
    /// expire. Each guard calls this once, for its own level. In a forked child this returns an
    /// error, because the hold belongs to the parent.
    pub(crate) fn leave(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        which: Option<HoldLevel>,
        how: Leaving,
    ) -> Result<(), Error> {
        Error::if_forked(&self.name)?;
        match self.leave_gate(tenancy, which, how) {
            Ok(LeaveOutcome::StillHeld) => Ok(()),
            left => self.leave_hold(tenancy, left, how),
        }
    }

    /// Does the rest of [`leave`](Self::leave) if the tenancy has left its seat, or was lost
    /// before. (Not inlined, because most calls only end a re-entry.)
    #[inline(never)]
    fn leave_hold(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        left: Left,
        how: Leaving,
    ) -> Result<(), Error> {
        let left = self.check_left(tenancy, left)?;
        let done = self.finish_leaving(left, |hold| self.release_last(hold, how));
        self.tell_end(tenancy, done.map(drop))
    }

    /// Ends one level of a tenancy in this process. The caller must then
    /// [finish](Self::finish_leaving) the rest of the work. Returns an error if the tenancy's hold
    /// was lost or released before.
    pub(super) fn step_out(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        which: Option<HoldLevel>,
        how: Leaving,
    ) -> Result<LeaveOutcome, Error> {
        Error::if_forked(&self.name)?;
        self.check_left(tenancy, self.leave_gate(tenancy, which, how))
    }

    /// Ends one level of a tenancy at the gate.
    #[inline]
    fn leave_gate(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        which: Option<HoldLevel>,
        how: Leaving,
    ) -> Left {
        // If the leaving tenant wanted the hold for longer than the other tenants, the hold may now
        // end earlier.
        let shared_until = (self.mode == Mode::Read).then(|| tenancy.hold().deadline());
        let keep_until = match how {
            Leaving::ToExpire { until } => Some(until),
            Leaving::Posted | Leaving::Awaited => None,
        };
        let left = self.gate.leave(tenancy, which, keep_until);
        if shared_until.is_some_and(|until| tenancy.hold().deadline() < until) {
            self.arm();
        }
        left
    }

    /// Returns what the thread must do next, or an error if the tenancy's hold was lost before. In
    /// that case, also cleans up after the hold.
    fn check_left(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
        left: Left,
    ) -> Result<LeaveOutcome, Error> {
        let reason = match left {
            Ok(left) => {
                if let LeaveOutcome::Passed(..) = left {
                    // The hold keeps its alarm, unless the new tenancy needs an earlier alarm.
                    self.arm();
                }
                return Ok(left);
            }
            Err(LeftTooLate::NotThere) => return Err(self.not_held(tenancy)),
            Err(LeftTooLate::LevelsStay) => tenancy.hold().why_gone(),
            Err(LeftTooLate::OthersStay) => {
                // All tenants of the hold have lost it.
                let reason = tenancy.hold().why_gone();
                tenancy.declare_lost(&self.core, &self.name, reason);
                self.lose_hold(&tenancy.hold(), reason);
                reason
            }
            Err(LeftTooLate::Last(seat, leadership)) => {
                let leadership = LeadershipGuard::new(self, leadership, None);
                let reason = tenancy.hold().lose(LostReason::LeaseExpired);
                tenancy.declare_lost(&self.core, &self.name, reason);
                self.clean_up_lost(&seat, reason);
                if tenancy.hold().line.is_some() {
                    self.gate.release_ended();
                }
                leadership.transfer();
                reason
            }
        };
        Err(self.lost_error(tenancy, reason))
    }

    /// Releases the hold of the seat that the thread has left, unless other threads still have the
    /// hold. Then transfers the leadership, so that the next leader's request runs after the
    /// release. Returns the seat.
    pub(super) fn finish_leaving(
        self: &Arc<Self>,
        left: LeaveOutcome,
        release: impl FnOnce(&Arc<Hold>) -> Result<(), Error>,
    ) -> Result<Option<Box<Seat>>, Error> {
        match left {
            LeaveOutcome::StillHeld | LeaveOutcome::OthersStay => Ok(None),
            LeaveOutcome::Passed(seat, _) => Ok(Some(seat)),
            LeaveOutcome::Release(seat, leadership) => {
                let leadership = LeadershipGuard::new(self, leadership, None);
                let released = release(&seat.tenancy.hold());
                leadership.transfer();
                released.map(|()| Some(seat))
            }
        }
    }

    /// Reports the end of a tenancy to its callbacks and the observer. Returns `done`.
    pub(super) fn tell_end(
        &self,
        tenancy: &Arc<Tenancy>,
        done: Result<(), Error>,
    ) -> Result<(), Error> {
        // This call drops the callbacks, so it comes after the release: the drop of a value that a
        // callback has captured may take this very lock.
        let callbacks = tenancy.finish_released();
        if callbacks.is_some() {
            match &done {
                // The server has just answered that the hold was lost.
                Err(error) if error.kind() == ErrorKind::LeaseLost => {
                    tenancy.tell_lost(&self.core, &self.name, tenancy.hold().why_gone());
                }
                _ => tenancy.tell_released(&self.core, &self.name),
            }
        }
        done
    }

    /// Ends all levels of a tenancy whose thread is about to wait on a condition. The thread may
    /// [come back](Self::come_back). Returns an error if the hold was lost before.
    pub(crate) fn leave_to_wait(
        self: &Arc<Self>,
        tenancy: &Arc<Tenancy>,
    ) -> Result<Box<Seat>, Error> {
        let left = self.check_left(tenancy, self.gate.leave_to_wait(tenancy))?;
        // The thread does not wait for the release. If the release fails, the client logs the error
        // and tries again in the background. Until a retry succeeds, other threads wait for the
        // lock, and no thread can notify.
        let left = self.finish_leaving(left, |hold| self.release_last(hold, Leaving::Posted))?;
        let Some(mut seat) = left else { return Err(self.not_held(tenancy)) };
        drop(seat.pinned.as_mut().and_then(|pinned| pinned.until_left.take()));
        tenancy.tell_released(&self.core, &self.name);
        Ok(seat)
    }

    /// Gives a thread its first tenancy back after a wait on a condition. `left` is the seat that
    /// the thread left for the wait. `again` is the tenancy under which the thread now has the
    /// lock. The guards of the thread refer to the first tenancy, which gets all its levels back.
    /// If the new hold was lost in the meantime, the first tenancy becomes lost.
    ///
    /// `until_left` is dropped after the thread has left the lock again.
    pub(crate) fn come_back(
        self: &Arc<Self>,
        mut left: Box<Seat>,
        again: &Arc<Tenancy>,
        until_left: Option<Box<dyn Any + Send>>,
    ) {
        let (tenancy, fixed) = (Arc::clone(&left.tenancy), left.longest_fixed());
        if until_left.is_some() {
            left.pinned.get_or_insert_default().until_left = until_left;
        }
        let _before = tenancy.exchange(again);
        let hold = tenancy.hold();
        if !self.gate.come_back(again, &mut left) {
            // Another thread has vacated the seat. That thread reports the loss only to `again`, to
            // which no guard refers, and may not have set the reason yet (see `admit`). The drop of
            // `until_left` reads the reason, so this thread sets it before that drop.
            let reason = hold.lose(hold.why_gone());
            let callbacks = tenancy.lose(reason).unwrap_or_default();
            self.core.watchdog.queue_loss_callbacks(&self.name, reason, callbacks);
            return;
        }
        // A level with a fixed lease may later be the only level left, and then no renewal extends
        // the hold. So the hold must get this fixed lease now.
        let fixed = fixed.filter(|_| hold.terms.is_watched());
        if let Some(lease) = fixed.filter(|lease| tenancy.remaining() < *lease)
            && self.lengthen(&hold, lease).is_err()
        {
            hold.unconfirm();
        }
        // The guards' callbacks from before the wait must also be called for the new hold.
        self.update_wanted();
        self.arm();
    }

    pub(super) fn release_last(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        how: Leaving,
    ) -> Result<(), Error> {
        let done = self.release(hold, how);
        if hold.line.is_some() {
            self.gate.release_ended();
        }
        done
    }

    /// Returns the error of an unlock that finds no hold.
    pub(super) fn not_held(&self, tenancy: &Tenancy) -> Error {
        match tenancy.state() {
            HoldState::Lost(reason) => self.lost_error(tenancy, reason),
            _ => self.not_held_by_thread(),
        }
    }

    /// Sends the release of a hold that has no seat. If the hold is kept, [keeps](Self::keep) it
    /// instead.
    pub(crate) fn release(self: &Arc<Self>, hold: &Arc<Hold>, how: Leaving) -> Result<(), Error> {
        if hold.is_kept() {
            self.keep(hold);
            return Ok(());
        }
        let command = self.release_command(hold);
        match how {
            Leaving::Posted | Leaving::ToExpire { .. } => {
                // The thread may ask for the lock again at once. With this setting, the next call
                // on this connection reads the reply to this release before it sends its own
                // request. So the message of the release reaches the next process sooner.
                let command = command.reply_before_next(hold.details.by_message);
                let (site, hold) = (Arc::clone(self), Arc::clone(hold));
                let receiver = move |outcome: Outcome| {
                    let released = scripts::lock::release_reply(outcome, site.scripts().rights());
                    if let Err(error) = site.release_answered(&hold, released) {
                        site.core.watchdog.log_error(error);
                    }
                };
                // The call writes to the name's lane (the shared connection), or queues the command
                // behind a write in progress. The next thread that reads replies from the lane
                // calls the receiver: another caller, or the renewer.
                self.core.post(&self.route, command, Arc::new(receiver));
                Ok(())
            }
            Leaving::Awaited => {
                let (outcome, in_doubt) = self.route.call_twice(&command, || command.clone());
                self.release_awaited(hold, outcome, in_doubt)
            }
        }
    }

    /// Handles the outcome of a release for which the thread has waited. `in_doubt`: the request
    /// was sent twice.
    pub(super) fn release_awaited(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        outcome: Outcome,
        in_doubt: bool,
    ) -> Result<(), Error> {
        let same_server = || self.route.incarnation() == hold.asked.incarnation;
        let rights = self.scripts().rights();
        self.release_answered(hold, scripts::lock::released(outcome, in_doubt, rights, same_server))
    }

    pub(super) fn release_answered(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        outcome: Result<Released, Trouble>,
    ) -> Result<(), Error> {
        let name = &self.name;
        // The cleanup comes after the answer to the release. A cleanup that ran earlier could end
        // the hold, and then the answer to the release would report the hold as lost.
        self.clean_up(hold, outcome.is_err());
        if outcome.is_ok() {
            // The owner of an adoption has the ticket's number. After a failover, the new master
            // may still have the ticket, and this client could adopt the ticket again. The release
            // below would then end this second adoption. So this number stays live after a
            // failover.
            let is_reusable = hold.owner.has_ticket_number();
            if !is_reusable || self.route.incarnation() == hold.asked.incarnation {
                hold.ended();
            }
            // Suppose that the renewer asked a new master for leftovers (holds and entries that no
            // thread wants) before the old master answered this release. The owner was still live,
            // so the renewer may have left the hold at the new master. To prevent this, this thread
            // first ends the owner and then reads the incarnation. The renewer asks for leftovers
            // only after the incarnation was raised, and then checks which owners are live. So the
            // renewer finds that the owner has ended, or this thread finds another incarnation.
            if self.route.incarnation() != hold.asked.incarnation {
                let (release, lease) = (self.release_command(hold), hold.longest_lease());
                self.core.watchdog.clean_up(Cleanup::left_over(name, release, lease));
            }
        }
        match outcome {
            Ok(Released::HandedOn | Released::Done) => Ok(()),
            Ok(Released::PublishRefused) => {
                self.route.lane().endpoint().health().report_public_message_missing();
                Ok(())
            }
            Ok(Released::ChainEnded) => {
                self.gate.end_chain();
                Ok(())
            }
            Ok(Released::NotHeld) => Err(Error::lost(name, &hold.why_gone())),
            Ok(Released::Unclear) => {
                let message = "the connection broke, and the server, asked once more, no longer \
                               knew the hold: it was most likely released just now, but it may \
                               have been lost before; the caller no longer holds it";
                let error = Error::new(ErrorKind::Unavailable, message.to_owned());
                // The client does not repeat the release.
                Err(error.transient(false).unknown(true).of(name))
            }
            Err(trouble) => {
                let state = "the caller no longer holds it; the client repeats the release in the \
                             background, and others get it when the lease ends or sooner";
                Err(trouble.into_error().of(name).now(state))
            }
        }
    }

    pub(super) fn release_command(&self, hold: &Hold) -> Command {
        match &hold.line {
            None => self.scripts().release_command(&hold.owner, hold.details.chain),
            Some(line) => line.release_command(&self.core, &self.name, &hold.owner),
        }
    }

    /// Cleans up after a hold that has ended. `may_be_held`: the server may still have the hold. If
    /// a request of the hold's owner is in doubt, a late copy of the request may take the lock, or
    /// add an entry to the lock's queue.
    pub(super) fn clean_up(self: &Arc<Self>, hold: &Arc<Hold>, may_be_held: bool) {
        if may_be_held {
            self.release_later(hold);
        }
        match &hold.line {
            _ if !hold.in_doubt => {}
            None => self.disown(&hold.owner, hold.longest_lease()),
            Some(line) => {
                let give_up = line.give_up_command(&self.core, &self.name, &hold.owner);
                self.undo(give_up, hold.longest_lease());
            }
        }
    }

    fn release_later(self: &Arc<Self>, hold: &Arc<Hold>) {
        if hold.is_kept() {
            return self.keep(hold);
        }
        let (release, lease) = (self.release_command(hold), hold.longest_lease());
        self.core.watchdog.clean_up(Cleanup::released(&self.name, release, lease));
    }

    /// Cleans up after a hold that was lost for this reason, as [`clean_up`](Self::clean_up) does.
    pub(super) fn clean_up_lost(self: &Arc<Self>, seat: &Seat, reason: LostReason) {
        let hold = &seat.tenancy.hold();
        // The hold of a read-write lock does not end with its lease while another hold keeps the
        // lock. If a lost write hold stayed, it would exclude readers, although they may read
        // together with the other hold.
        let may_still_exist = reason == LostReason::LeaseExpired
            && (self.mode != Mode::Lock
                || seat.may_outlast_deadline()
                || clock::now() < hold.deadline());
        // The threads to which the hold was passed still have entries in Redis's queue.
        self.clean_up(
            hold,
            may_still_exist || hold.line.as_ref().is_some_and(|line| line.has_passed()),
        );
    }

    /// If a hold was lost, releases it in the background and returns `true`. The caller's request
    /// may have extended the hold's lease, although no thread has the hold.
    pub(crate) fn clean_up_if_lost(self: &Arc<Self>, hold: &Arc<Hold>) -> bool {
        let lost = hold.lost().is_some();
        if lost {
            self.release_later(hold);
        }
        lost
    }

    /// Cleans up after an owner for whose request no thread waits any longer. The request may have
    /// taken the lock or added an entry to the queue, or may still do so.
    pub(crate) fn disown(&self, owner: &Owner, lease: Duration) {
        let give_up = self.scripts().give_up_command(&owner.text(), Chain::default());
        self.core.watchdog.clean_up(Cleanup::requested(&self.name, give_up, lease));
    }

    /// Does the same as [`disown`](Self::disown), for a kind of lock whose entries have no lease.
    pub(crate) fn undo(&self, give_up: Command, lease: Duration) {
        self.core.watchdog.clean_up(Cleanup::queued(&self.name, give_up, lease));
    }

    /// Gives up an entry, and the entry's hold if the server has just granted one.
    pub(crate) fn give_up_entry(self: &Arc<Self>, mut entry: QueueEntry) {
        self.remove_leftover(entry.ends(self), Cleanup::requested);
    }

    /// Removes an owner from the queue and from the lock, because no thread wants the lock under
    /// this owner. If the server does not answer this request, or if a request of the owner may
    /// arrive later, schedules a cleanup of this kind.
    pub(crate) fn remove_leftover(
        self: &Arc<Self>,
        left: Leftover,
        cleanup: fn(&Name, Command, Duration) -> Cleanup,
    ) {
        let Leftover { undo, longest, command } = left;
        // Without this check, each call during an outage would schedule a cleanup that the client
        // repeats for minutes.
        if undo == Undo::Nothing {
            return;
        }
        let (site, copy) = (Arc::clone(self), command.clone());
        let lease = self.core.config.watchdog_timeout.max(longest);
        let later = move || site.core.watchdog.clean_up(cleanup(&site.name, copy.clone(), lease));
        if undo == Undo::NowAndLater {
            later();
        }
        let rights = self.scripts().rights();
        let receiver = move |outcome: Outcome| {
            if scripts::lock::release_reply(outcome, rights).is_err() {
                later();
            }
        };
        self.core.post(&self.route, command, Arc::new(receiver));
    }

    /// Does the same as [`remove_leftover`](Self::remove_leftover), for an owner whose grant is on
    /// too few replicas. Returns the error for the owner's thread.
    ///
    /// # Blocking
    ///
    /// One round trip, because the error says whether the lock is free again.
    pub(crate) fn give_back(
        &self,
        left: Leftover,
        cleanup: fn(&Name, Command, Duration) -> Cleanup,
        unacknowledged: Error,
    ) -> Error {
        let Leftover { undo, longest, command } = left;
        let rights = self.scripts().rights();
        let is_free = scripts::lock::release(&self.route, &command, rights, || true).is_ok();
        if undo == Undo::NowAndLater || !is_free {
            let lease = self.core.config.watchdog_timeout.max(longest);
            self.core.watchdog.clean_up(cleanup(&self.name, command, lease));
        }
        unacknowledged.of(&self.name).unacknowledged(is_free)
    }
}
