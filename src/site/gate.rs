//! A gate: a name's [order](crate::order) of threads behind a mutex. The gate reads the clock, and
//! wakes threads after it has released the mutex.

use std::any::Any;
use std::mem;
use std::sync::Arc;

use redlatch_client::sync::{Mutex, Thread, Waker, clock};

use super::queue_entry::QueueEntry;
use crate::hold::{Hold, HoldLevel, Seat, Tenancy, Terms};
use crate::order::line::{QueuedThread, Standing};
use crate::order::{self, LeaveOutcome, Left, LockNeed, Order, Side};
use crate::scripts::{Chain, Mode};
use crate::waiting::{Lead, QueueLeadership, Wake};

#[cfg(all(test, models))]
mod model_tests;
#[cfg(test)]
mod tests;

/// An entry in the lock's queue, after the leader has sent its first request.
type RequestState = Option<QueueEntry>;
pub(crate) type GateOutcome = order::GateOutcome<RequestState>;
pub(crate) type GateQueue = order::GateQueue<RequestState>;

/// The seat, the leadership and the queue of one name in this process. The two gates of a
/// read-write lock share the leadership and the queue, but each gate has its own seat: one for the
/// readers, and one for the writer.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Arc<Mutex<Order<RequestState>>>,
    mode: Mode,
}

impl Gate {
    /// Returns the gate of a lock that one thread holds at a time.
    pub(crate) fn new(mode: Mode) -> Self {
        Self { state: Arc::new(Mutex::new(Order::new())), mode }
    }

    /// Returns the gate of the same lock for holds of another mode.
    pub(crate) fn for_mode(&self, mode: Mode) -> Self {
        Self { state: Arc::clone(&self.state), mode }
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn enter(&self, thread: &Arc<Thread>, need: LockNeed, waits: bool) -> GateOutcome {
        self.at(|state, now| state.enter(thread, need, waits, now))
    }

    pub(crate) fn try_lead(&self) -> Option<QueueLeadership> {
        self.state.lock().try_lead()
    }

    /// Adds a level if the thread is in the seat. Returns `None` if the seat is empty. This is for
    /// a lock whose threads do not queue at this gate; other locks call [`enter`](Self::enter).
    pub(crate) fn reenter(&self, thread: &Arc<Thread>, terms: Terms) -> Option<GateOutcome> {
        self.at(|state, now| state.side(self.mode).reenter(thread, terms, now))
    }

    /// Adds a level to a tenancy. Unlike [`reenter`](Self::reenter), this also finds the tenancy of
    /// an owned guard that shares the seat with others.
    pub(crate) fn add_level(&self, tenancy: &Arc<Tenancy>, terms: Terms) -> GateOutcome {
        self.at(|state, now| state.side(self.mode).add_level(tenancy, terms, now))
    }

    /// Ends the level `which` of `tenancy`, or the last level if `which` is `None`.
    ///
    /// If `keep_until` is a time and the tenancy is still held, this call also
    /// [keeps](Hold::keep_until) the hold until that time, under the same mutex. Then no thread
    /// releases the hold before that time. But if another thread has taken the hold out of the seat
    /// before this call, the hold is lost, and that thread cleans up after the hold.
    pub(crate) fn leave(
        &self,
        tenancy: &Arc<Tenancy>,
        which: Option<HoldLevel>,
        keep_until: Option<u64>,
    ) -> Left {
        self.leaving(|state, now| {
            if let Some(until) = keep_until
                && tenancy.is_held_at(now)
                && state.side(self.mode).seat.as_mut().is_some_and(|seat| seat.has(tenancy))
            {
                tenancy.hold().keep_until(until);
                if self.mode != Mode::Read {
                    state.kept_until = state.kept_until.max(until);
                }
            }
            state.leave(self.mode, tenancy, which, now)
        })
    }

    /// Records that the server no longer has a kept hold of a single thread, because a forced
    /// unlock ended it or the server lost its data.
    pub(crate) fn clear_kept(&self) {
        self.state.lock().kept_until = 0;
    }

    /// Ends all levels of the tenancy at once, and otherwise does the same as
    /// [`leave`](Self::leave). The returned seat still has these levels.
    pub(crate) fn leave_to_wait(&self, tenancy: &Arc<Tenancy>) -> Left {
        self.leaving(|state, now| state.leave_seat(self.mode, tenancy, now))
    }

    #[inline]
    fn leaving(&self, leave: impl FnOnce(&mut Order<RequestState>, u64) -> Left) -> Left {
        let mut left = self.at(leave);
        if let Ok(LeaveOutcome::Passed(_, wakes)) = &mut left {
            wakes.iter_mut().for_each(|wake| mem::replace(wake, Wake::NOBODY).now());
        }
        left
    }

    /// Gives a thread its first tenancy and its levels back after a wait on a condition. `left` is
    /// the seat that the thread left for the wait. The thread now has the tenancy `again` of a new
    /// hold in a new seat. Returns `false` if the new hold was lost in the meantime.
    pub(crate) fn come_back(&self, again: &Arc<Tenancy>, left: &mut Seat) -> bool {
        self.with_seat(|seat| {
            let seat = seat.filter(|seat| seat.is(again));
            seat.map(|seat| seat.exchange(left)).is_some()
        })
    }

    /// Returns the time at which the lease of the last level of `tenancy` ends, if threads share
    /// its hold.
    pub(crate) fn last_end(&self, tenancy: &Arc<Tenancy>) -> Option<u64> {
        self.with_seat(|seat| seat?.last_end(tenancy))
    }

    /// Calls `act` with the order and the time, under the gate's mutex.
    pub(super) fn at<R>(&self, act: impl FnOnce(&mut Order<RequestState>, u64) -> R) -> R {
        let mut state = self.state.lock();
        let now = clock::now();
        act(&mut state, now)
    }

    fn with_side<R>(&self, act: impl FnOnce(&mut Side) -> R) -> R {
        act(self.state.lock().side(self.mode))
    }

    /// Records that the server has answered a forced unlock of this process. A thread that sent its
    /// request before must ask the server whether the forced unlock ended its hold.
    pub(crate) fn note_forced_unlock(&self) {
        self.with_side(|side| side.forced_unlocks += 1);
    }

    pub(crate) fn forced_unlocks(&self) -> u64 {
        self.with_side(|side| side.forced_unlocks)
    }

    /// Removes `hold`, which this process no longer has, from the seat. If the hold is not a
    /// reader's and no thread leads, the first waiter gets the leadership.
    pub(crate) fn vacate(&self, hold: &Arc<Hold>) -> (Option<Seat>, Wake) {
        self.state.lock().vacate(self.mode, hold)
    }

    /// Lets the leader join the hold of this process's readers, even if their turn is over. The
    /// `bool` says whether the readers' turn still lasts. Returns `None` if no thread reads.
    pub(crate) fn join(&self, thread: &Arc<Thread>, terms: Terms) -> Option<(Arc<Tenancy>, bool)> {
        self.at(|state, now| state.join_any_time(thread, terms, now))
    }

    /// Lets the readers at the front of the queue join the hold of the leader, which now reads.
    pub(crate) fn let_readers_in(&self) {
        let woken = self.at(Order::let_readers_in);
        woken.into_iter().for_each(Wake::now);
    }

    /// Takes the leadership from a leader that is done, and gives it to the next thread in the
    /// queue. If this next thread needs the same mode, it also gets the lead. Otherwise the call
    /// returns the lead.
    pub(super) fn transfer_leadership(
        &self,
        leadership: QueueLeadership,
        lead: Option<Box<Lead<RequestState>>>,
    ) -> Option<Box<Lead<RequestState>>> {
        let (wake, left) = self.state.lock().transfer_leadership(self.mode, leadership, lead);
        wake.now();
        left
    }

    /// Whether no thread except this one writes.
    pub(crate) fn writes_alone(&self, thread: &Thread) -> bool {
        let state = self.state.lock();
        state.alone.seat.as_ref().is_none_or(|seat| seat.tenancy.thread.id() == thread.id())
    }

    /// Whether the thread holds a read-write lock for reading.
    pub(crate) fn reads(&self, thread: &Thread) -> bool {
        self.state.lock().reading(thread).is_some()
    }

    /// Begins a new turn of a shared hold. The server has just told the caller that threads may
    /// still share the hold.
    pub(crate) fn reopen(&self, hold: &Arc<Hold>, at: u64) {
        self.with_side(|side| {
            if let Some(seat) = &mut side.seat
                && Arc::ptr_eq(&seat.tenancy.hold(), hold)
            {
                seat.is_open = true;
                side.cohort.begin_turn(at, 0);
            }
        });
    }

    /// Calls `act` with a fair lock's threads, under the gate's mutex.
    pub(crate) fn with_standing<R>(&self, act: impl FnOnce(&mut Standing) -> R) -> R {
        act(self.state.lock().standing.get_or_insert_default())
    }

    /// Adds `queued` to the threads to which a hold may be passed.
    pub(crate) fn stand(&self, queued: Arc<QueuedThread>) {
        self.with_standing(|standing| standing.queued.push(queued));
    }

    pub(crate) fn stand_down(&self, queued: &Arc<QueuedThread>) -> Option<Arc<Tenancy>> {
        self.with_standing(|standing| standing.stand_down(queued))
    }

    /// Returns the threads that have entries in a fair lock's queue in Redis.
    pub(crate) fn standing(&self) -> Vec<Arc<QueuedThread>> {
        self.with_standing(|standing| standing.queued.clone())
    }

    /// Whether the process has the lock, or its threads wait for the fair lock or are releasing it.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.lock().is_busy()
    }

    /// Whether a fair lock's thread should delay its request, so that other threads can join it.
    /// The thread should wait if the process has the lock, waits for it or releases it. When this
    /// is no longer so, [`call`](Self::call) wakes the thread.
    pub(crate) fn lingers(&self, waker: Waker) -> bool {
        let mut state = self.state.lock();
        let lingers = state.is_busy();
        if lingers {
            state.standing.get_or_insert_default().linger(Some(waker));
        }
        lingers
    }

    pub(crate) fn lingers_no_more(&self) {
        self.with_standing(|standing| standing.linger(None));
    }

    /// Called when a thread of a fair lock has left. Wakes the lingering thread if no other thread
    /// can still join its request.
    pub(crate) fn call(&self) {
        let call = self.with_standing(|standing| standing.call());
        call.now();
    }

    /// Records that a thread has released a fair lock's hold.
    pub(super) fn release_ended(&self) {
        let call = self.with_standing(|standing| {
            standing.releasing = standing.releasing.saturating_sub(1);
            standing.call()
        });
        call.now();
    }

    pub(crate) fn with_seat<R>(&self, act: impl FnOnce(Option<&mut Seat>) -> R) -> R {
        self.with_side(|side| act(side.seat.as_mut()))
    }

    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        self.with_seat(|seat| seat.map(|seat| Arc::clone(&seat.tenancy.hold())))
    }

    /// Returns the tenancy of a thread, with the number of its levels.
    pub(crate) fn tenant_of(&self, thread: &Thread) -> Option<(Arc<Tenancy>, usize)> {
        self.with_seat(|seat| {
            let (tenancy, levels) = seat?.tenant(thread)?;
            Some((Arc::clone(tenancy), levels.count()))
        })
    }

    /// Returns all tenants, each with the number of its levels.
    pub(crate) fn tenants(&self) -> Vec<(Arc<Tenancy>, usize)> {
        self.with_seat(|seat| {
            let seat = seat.as_deref();
            let all = seat.iter().flat_map(|seat| seat.tenants());
            all.map(|(tenancy, levels)| (Arc::clone(tenancy), levels.count())).collect()
        })
    }

    /// Returns the hold in the seat if it is over.
    pub(crate) fn expired(&self) -> Option<Arc<Hold>> {
        self.hold().filter(|hold| !hold.is_held_at(clock::now()))
    }

    /// Keeps `site` alive for as long as the tenancy's seat exists. A shared seat exists until its
    /// last tenant leaves.
    pub(crate) fn pin(&self, tenancy: &Arc<Tenancy>, site: Arc<dyn Any + Send + Sync>) {
        let unneeded = self.with_seat(|seat| match seat {
            Some(seat) => {
                if seat.has(tenancy) {
                    seat.pinned.get_or_insert_default().site.replace(site)
                } else {
                    Some(site)
                }
            }
            None => Some(site),
        });
        drop(unneeded);
    }

    /// Returns the chain of a hold that the server granted in the reply to a request of this time.
    pub(crate) fn chain(&self, asked_at: u64) -> Chain {
        self.with_side(|side| side.cohort.chain(asked_at))
    }

    /// Whether this process has just released a hold that another process handed to it.
    pub(crate) fn has_just_relayed(&self, now: u64) -> bool {
        self.with_side(|side| side.cohort.has_just_relayed(now))
    }

    pub(crate) fn end_chain(&self) {
        self.with_side(|side| side.cohort.end_chain());
    }

    pub(super) fn with_queue<R>(&self, act: impl FnOnce(&mut GateQueue) -> R) -> R {
        act(&mut self.state.lock().queue)
    }
}
