//! The order in which the threads of this process get the lock of one name.
//!
//! One thread at a time sends requests for the name: the thread that has the *leadership*. The
//! other threads sleep in a queue, first come, first served. A waiting thread wakes when it gets
//! the leadership, or when the holder passes the hold to it without a round trip.
//!
//! ```text
//!             enter                  admit                 leave (turn over, or nobody waits)
//!   (free) ----------> led: leadership -----> seat taken ------------------------> led: releasing
//!     ^                  |   ^                  |    ^                                    |
//!     |    promote,      |   | promote          |    | leave: pass to the first           |
//!     +---- queue empty -+   +-- the first -----+----+ in the queue                       |
//!     +-----------------------------------------------------------------------------------+
//! ```
//!
//! ```text
//! seat   led  which is                      left by
//! empty  no   free; the queue is empty      enter: led
//! empty  yes  one thread asks, or releases  admit: taken; promote: led by the next, or free
//! taken  no   held                          leave: taken by the next, or led, to release
//!                                           vacate: led by the next, or free
//!                                           admit: taken by a newer hold, if this one is over
//! taken  yes  a fair lock's or an adopted   the same, but a release leaves the leadership where it
//!             hold, beside the leader       is; the leader's admit finds the seat taken
//! ```
//!
//! A hold in the seat may be over or lost (`Expired`). No thread enters an expired hold or passes
//! it on, and the thread that detects the end vacates the seat.
//!
//! The hold's renewal is done, sent or failed (`RenewalProgress`): `Renewing::record_sent` marks
//! the renewal as sent, and `Leaseholder::renewed` records the answer. If the last renewal failed,
//! no thread passes the hold on. After a pass, a renewal that was sent is still sent, and any other
//! renewal counts as done.
//!
//! `Side::forced_unlocks` counts this process's forced unlocks. If a leader sent its request before
//! the last forced unlock, `admit` returns `NotHeld`, even if the server granted the hold. The
//! leader then keeps the leadership and asks again.
//!
//! `readers.rs` has the readers of a read-write lock.
//!
//! The leadership is never lost: while the queue is not empty, the seat is taken or a thread leads.
//! A leader that gives up transfers the leadership.

use std::sync::Arc;

use redlatch_client::sync::Thread;

use crate::hold::{Hold, HoldLevel, LevelEnd, Seat, Tenancy, Terms};
use crate::scripts::Mode;
use crate::waiting::{Lead, LocalWaiter, Queue, QueueLeadership, Wake};

mod cohort;
#[cfg(test)]
mod explored_tests;
pub(crate) mod line;
mod readers;
#[cfg(test)]
mod tests;

use cohort::Cohort;
use line::Standing;

/// The seats, the leadership and the queue of one name in this process.
#[derive(Debug)]
pub(crate) struct Order<I> {
    /// The side for holds of a single thread: holds of a plain lock, or of a read-write lock's
    /// writer.
    pub(crate) alone: Side,
    /// The side for the readers' hold. `None` if no thread has ever read.
    readers: Option<Box<Side>>,
    pub(crate) queue: GateQueue<I>,
    /// The threads of a fair lock, each of which sends its own requests. `None` if there was never
    /// such a thread.
    pub(crate) standing: Option<Box<Standing>>,
    /// The latest end of a kept hold of a single thread. Zero if there is no such hold.
    pub(crate) kept_until: u64,
}

/// A seat, and the state that outlives its holds: the turn, and the number of forced unlocks.
#[derive(Debug, Default)]
pub(crate) struct Side {
    pub(crate) seat: Option<Seat>,
    pub(crate) cohort: Cohort,
    /// The number of forced unlocks of this process that the server has answered.
    pub(crate) forced_unlocks: u64,
}

/// A thread's need: the mode, and the terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockNeed {
    pub(crate) mode: Mode,
    pub(crate) terms: Terms,
}

/// The threads that wait for the lock. `I` is the request state that goes with the leadership.
pub(crate) type GateQueue<I> = Queue<LockNeed, Arc<Tenancy>, I>;
pub(crate) type GateWaiter<I> = LocalWaiter<LockNeed, Arc<Tenancy>, I>;

#[derive(Debug)]
pub(crate) enum GateOutcome<I> {
    /// The thread already holds the lock, and now has another level.
    Reentered(Arc<Tenancy>),
    /// The thread has joined a shared hold.
    Joined(Arc<Tenancy>),
    /// The thread has this write hold, and may also read under it.
    Under(Arc<Tenancy>),
    /// The thread holds the lock for reading, and cannot get it for writing before it stops
    /// reading.
    Reads,
    /// No thread of this process is ahead, so the thread leads.
    Leads(QueueLeadership),
    Queued(Arc<GateWaiter<I>>),
    /// Another thread is ahead, and the calling thread does not want to wait.
    Occupied,
    /// The hold in a seat is over or lost. The caller declares the hold lost and enters again.
    Expired(Arc<Hold>),
    TooDeep,
}

#[derive(Debug)]
pub(crate) enum Admission {
    /// The hold got the seat. `Some`: an earlier hold, which is over, was still in the seat. The
    /// value is that hold's seat.
    Admitted(Option<Seat>),
    /// Another hold, which this process still has, is in the seat.
    OtherHold(Arc<Hold>),
    /// The process must not use the hold, for one of two reasons. Either the hold's lease ended
    /// before the leader read the reply. Or the server answered a forced unlock of this process
    /// after the leader had sent its request, and only the server knows whether the forced unlock
    /// came before the grant.
    NotHeld,
}

/// The result of leaving, and what the thread must do next. (The seats are boxed to keep this type
/// small: it is moved even if the thread only ends a level.)
pub(crate) type Left = Result<LeaveOutcome, LeftTooLate>;

/// The thread had the hold until it left.
#[derive(Debug)]
pub(crate) enum LeaveOutcome {
    /// The tenancy has levels left.
    StillHeld,
    /// The tenancy has ended, and other tenancies still share the hold.
    OthersStay,
    /// The last tenancy has left this seat, and the next thread has the hold. The gate wakes
    /// this thread, and the waiter that should be awake for the next pass, after it has released
    /// its mutex.
    Passed(Box<Seat>, [Wake; 2]),
    /// The last tenancy has left this seat. The thread must release the hold, and then transfer
    /// the leadership. The leadership is `None` if another thread leads, or if the thread has left
    /// the readers' seat.
    Release(Box<Seat>, Option<QueueLeadership>),
}

/// The thread has left a hold that was over or lost before.
#[derive(Debug)]
pub(crate) enum LeftTooLate {
    /// The tenancy is not in the seat, because it was lost or released before.
    NotThere,
    /// The tenancy has levels left. Their guards report the loss.
    LevelsStay,
    /// The tenancy has ended. The thread must declare the hold lost for the other tenancies.
    OthersStay,
    /// The last tenancy has left this seat. The thread must clean up after the hold, and then
    /// transfer the leadership, which is `None` as in [`LeaveOutcome::Release`].
    Last(Box<Seat>, Option<QueueLeadership>),
}

/// The transitions. The caller passes the time, because this module reads no clock.
impl<I> Order<I> {
    pub(crate) fn new() -> Self {
        Self {
            alone: Side::default(),
            readers: None,
            queue: Queue::new(),
            standing: None,
            kept_until: 0,
        }
    }

    #[inline]
    pub(crate) fn side(&mut self, mode: Mode) -> &mut Side {
        match mode {
            Mode::Read => self.readers.get_or_insert_default(),
            Mode::Lock | Mode::Write => &mut self.alone,
        }
    }

    #[inline]
    pub(crate) fn enter(
        &mut self,
        thread: &Arc<Thread>,
        need: LockNeed,
        waits: bool,
        now: u64,
    ) -> GateOutcome<I> {
        let entered = match need.mode {
            Mode::Read => self.enter_to_read(thread, need.terms, now),
            Mode::Lock | Mode::Write => self.enter_alone(thread, need.terms, waits, now),
        };
        if !waits || !matches!(entered, GateOutcome::Occupied) {
            return entered;
        }
        // The thread goes to the end of the queue. The thread sleeps (`waiting/mod.rs`,
        // `await_signal`) until a signal gives it the hold (`leave`, below) or the leadership.
        let waiter = self.queue.push(thread, need);
        // If the new waiter is the first in the queue, mark it as the waiter that stays awake for
        // the next pass. The waiter is the calling thread itself, so nobody has to wake it.
        if self.alone.seat.is_some() && self.queue.first().is_some_and(|first| waiter.is(first)) {
            let _awake = self.queue.call_first();
        }
        GateOutcome::Queued(waiter)
    }

    fn enter_alone(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        waits: bool,
        now: u64,
    ) -> GateOutcome<I> {
        let entered = self.alone.reenter(thread, terms, now);
        if let Some(entered) = entered
            && !matches!(entered, GateOutcome::Occupied)
        {
            return entered;
        }
        if let Some(reading) = self.reading(thread) {
            return match reading.is_held_at(now) {
                true => GateOutcome::Reads,
                false => GateOutcome::Expired(Arc::clone(&reading.hold())),
            };
        }
        let readers = self.readers.as_ref().and_then(|readers| readers.seat.as_ref());
        // A thread that does not want to wait sends no request while threads of this process read.
        let may_lead = waits || readers.is_none_or(|seat| !seat.tenancy.is_held_at(now));
        if self.alone.seat.is_some() || !may_lead {
            return GateOutcome::Occupied;
        }
        // If no thread leads or waits, this thread gets the leadership.
        self.queue.try_lead().map_or(GateOutcome::Occupied, GateOutcome::Leads)
    }

    /// Takes the leadership for a thread that asks for several locks together. Returns `None` if a
    /// thread of this process has this lock, leads or waits.
    pub(crate) fn try_lead(&mut self) -> Option<QueueLeadership> {
        let is_read = self.readers.as_ref().is_some_and(|readers| readers.seat.is_some());
        if self.alone.seat.is_some() || is_read { None } else { self.queue.try_lead() }
    }

    /// Whether threads of this process wait for the lock. (A fair lock's thread that has not sent a
    /// request yet does not count, but will soon be in Redis's queue.)
    pub(crate) fn has_waiters(&self) -> bool {
        let stand = self.standing.as_ref().is_some_and(|standing| !standing.queued.is_empty());
        stand || self.queue.first().is_some()
    }

    pub(crate) fn is_busy(&self) -> bool {
        let stands = self.standing.as_ref().is_some_and(|standing| standing.is_busy());
        stands || self.alone.seat.is_some()
    }

    pub(crate) fn transfer_leadership(
        &mut self,
        mode: Mode,
        leadership: QueueLeadership,
        lead: Option<Box<Lead<I>>>,
    ) -> (Wake, Option<Box<Lead<I>>>) {
        if self.queue.first().is_some_and(|first| first.need().mode == mode) {
            return self.queue.promote(leadership, lead);
        }
        (self.queue.promote(leadership, None).0, lead)
    }

    pub(crate) fn vacate(&mut self, mode: Mode, hold: &Arc<Hold>) -> (Option<Seat>, Wake) {
        let is_its = |seat: &mut Seat| Arc::ptr_eq(&seat.tenancy.hold(), hold);
        let seat = self.side(mode).seat.take_if(is_its);
        let opens = seat.is_some() && mode != Mode::Read;
        let leadership = if opens { self.queue.lead_before_waiters() } else { None };
        let wake = leadership.map_or(Wake::NOBODY, |it| self.queue.promote(it, None).0);
        (seat, wake)
    }

    /// Puts a granted hold into the seat, and ends the caller's `leadership`: a thread that enters
    /// from now on finds the seat taken. (A leader that reads keeps its leadership, to let more
    /// readers in, and passes `None` here.) `gone` is a hold that the server no longer has,
    /// according to the caller.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        mode: Mode,
        tenancy: &Arc<Tenancy>,
        leadership: &mut Option<QueueLeadership>,
        gone: Option<&Arc<Hold>>,
        now: u64,
    ) -> Admission {
        let side = self.side(mode);
        if let Some(seat) = &side.seat
            && seat.tenancy.is_held_at(now)
            && gone.is_none_or(|gone| !Arc::ptr_eq(gone, &seat.tenancy.hold()))
        {
            return Admission::OtherHold(Arc::clone(&seat.tenancy.hold()));
        }
        if side.forced_unlocks != tenancy.hold().asked.forced_unlocks || !tenancy.is_held_at(now) {
            return Admission::NotHeld;
        }
        side.cohort.begin_turn(tenancy.hold().asked.at, tenancy.hold().details.places);
        let stale = side.seat.replace(Seat::new(Arc::clone(tenancy)));
        if let Some(leadership) = leadership.take() {
            self.queue.resign(leadership);
        }
        Admission::Admitted(stale)
    }

    /// Ends the level `which` of `tenancy`, or the last level if `which` is `None`.
    #[inline]
    pub(crate) fn leave(
        &mut self,
        mode: Mode,
        tenancy: &Arc<Tenancy>,
        which: Option<HoldLevel>,
        now: u64,
    ) -> Left {
        // The end of the level may also end the hold, so this is read before.
        let was_held = tenancy.is_held_at(now);
        match self.side(mode).seat.as_mut().and_then(|seat| seat.end_level(tenancy, which)) {
            Some(LevelEnd::StillHeld) if was_held => Ok(LeaveOutcome::StillHeld),
            Some(LevelEnd::StillHeld) => Err(LeftTooLate::LevelsStay),
            Some(LevelEnd::OthersStay) => {
                // The tenancy is marked as left under the mutex, before the other tenants can
                // leave. Otherwise the last tenant could leave first, and this tenancy's guard
                // would report "held" although nobody has the lock.
                tenancy.record_left();
                if was_held { Ok(LeaveOutcome::OthersStay) } else { Err(LeftTooLate::OthersStay) }
            }
            // The level was the last level of the seat.
            None => self.leave_seat(mode, tenancy, now),
        }
    }

    /// Ends all levels of the tenancy at once, and otherwise does the same as
    /// [`leave`](Self::leave). The returned seat still has these levels.
    pub(crate) fn leave_seat(&mut self, mode: Mode, tenancy: &Arc<Tenancy>, now: u64) -> Left {
        let Some(seat) = self.side(mode).seat.take_if(|seat| seat.is(tenancy)) else {
            return Err(LeftTooLate::NotThere);
        };
        let (hold, was_held) = (tenancy.hold(), tenancy.is_held_at(now));
        if was_held {
            // The tenancy is marked as left before the next thread can see a pass. From then on,
            // the guard of the leaving thread must not report that the lock is held.
            tenancy.record_left();
            if let Some(wakes) = self.pass(&seat, &hold, now) {
                return Ok(LeaveOutcome::Passed(Box::new(seat), wakes));
            }
        }
        if hold.line.is_some() {
            self.standing.get_or_insert_default().releasing += 1;
        }
        // No other thread of this process may get the hold. The leaving thread takes the leadership
        // for the release, so a thread that arrives now sends its request after the release. If
        // another thread leads already, that thread keeps the leadership. (If this leader is a
        // writer that waits for the readers, its request may run before the release.)
        self.side(mode).cohort.note_release(now, hold.details.chain);
        let leadership = if mode == Mode::Read { None } else { self.queue.lead_before_waiters() };
        let seat = Box::new(seat);
        if was_held {
            Ok(LeaveOutcome::Release(seat, leadership))
        } else {
            Err(LeftTooLate::Last(seat, leadership))
        }
    }

    /// Passes the hold of `left` to the next thread, if that thread may have the hold now. `left`
    /// is the seat that a thread has just left. The caller wakes the returned threads after it has
    /// released the mutex.
    ///
    /// The re-entrant and the fair handles of a name share one seat. A hold from a fair handle goes
    /// to the next thread of its line (`Hold::line`), and any other hold to the first waiter.
    fn pass(&mut self, left: &Seat, hold: &Arc<Hold>, now: u64) -> Option<[Wake; 2]> {
        let next = |thread: &Arc<Thread>| {
            Arc::new(Tenancy::since(Arc::clone(hold), Arc::clone(thread), now))
        };
        if hold.line.is_some() {
            let queued = self.standing.as_mut()?.next(hold, now)?;
            let next = next(&queued.thread);
            self.alone.seat = Some(left.passed_to(&next));
            return Some([queued.pass(next), Wake::NOBODY]);
        }
        if !self.may_pass(hold, now) {
            return None;
        }
        let next = self.queue.pass_first(|first| {
            let next = next(first.thread());
            self.alone.seat = Some(left.passed_to(&next));
            next
        })?;
        Some([next, self.queue.call_first()])
    }

    /// Whether the thread that has just left its seat may pass the hold to the first thread in the
    /// queue. The process must still be in its turn (`cohort.rs`). `Hold::may_pass` compares the
    /// terms, and checks that the hold is not lost and that its last renewal did not fail. If the
    /// leaving writer continues to read, its write hold is not passed on.
    fn may_pass(&self, hold: &Hold, now: u64) -> bool {
        let mode = hold.owner.mode();
        // While an adopted hold has the seat, a leader may have an entry in Redis's queue. It must
        // get the lock before the threads in this process's queue, so no pass is possible.
        self.alone.cohort.may_pass(now)
            && !self.queue.is_led()
            && self.queue.first().is_some_and(|first| {
                mode != Mode::Read
                    && first.need().mode == mode
                    && hold.may_pass(first.need().terms, now)
            })
            && self.readers.as_ref().is_none_or(|readers| readers.seat.is_none())
    }
}

impl Side {
    /// Adds a level to the thread's tenancy if the tenancy is in the seat. Returns `None` if the
    /// seat is empty.
    #[inline]
    pub(crate) fn reenter<I>(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        now: u64,
    ) -> Option<GateOutcome<I>> {
        let seat = self.seat.as_mut()?;
        if !seat.tenancy.is_held_at(now) {
            return Some(GateOutcome::Expired(Arc::clone(&seat.tenancy.hold())));
        }
        let Some((tenancy, levels)) = seat.tenant(thread) else {
            return Some(GateOutcome::Occupied);
        };
        let tenancy = Arc::clone(tenancy);
        let Some(level) = levels.add_level(terms, now) else { return Some(GateOutcome::TooDeep) };
        seat.note_level(level);
        Some(GateOutcome::Reentered(tenancy))
    }

    pub(crate) fn add_level<I>(
        &mut self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        now: u64,
    ) -> GateOutcome<I> {
        let Some(seat) = &mut self.seat else { return GateOutcome::Occupied };
        let hold = Arc::clone(&seat.tenancy.hold());
        let Some(levels) = seat.levels_of(tenancy) else { return GateOutcome::Occupied };
        if !tenancy.is_held_at(now) {
            return GateOutcome::Expired(hold);
        }
        let Some(level) = levels.add_level(terms, now) else { return GateOutcome::TooDeep };
        seat.note_level(level);
        GateOutcome::Reentered(Arc::clone(tenancy))
    }
}
