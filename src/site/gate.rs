//! The order in which the threads of this process get the lock of one name.
//!
//! One thread at a time talks to Redis about the name: it has the *leadership*. The others stand in
//! a queue, first come first served, and sleep until they get the hold (the holder passes it on
//! without a round trip) or the leadership.
//!
//! ```text
//!             enter                  admit                 leave (turn over, or nobody waits)
//!   (free) ----------> led: leadership -----> seat taken ------------------------> led: releasing
//!     ^                  |   ^                  |    ^                                    |
//!     |    hand on,      |   | hand on,         |    | leave: pass to the first           |
//!     +---- queue empty -+   +-- to the first --+----+ in the queue                       |
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
//! taken  yes  a fair lock's hold, granted    the same, but a release leaves the leadership where it
//!             beside the leader             is; the leader's admit finds it taken
//! ```
//!
//! A hold in the seat may be over, or lost (`Expired`). Then no thread enters or passes it, and the
//! thread that finds that out vacates the seat. Its renewal is done, sent or failed (`Attempt`):
//! `renews` sends it, `Site::renewed` gets the answer. A pass at the gate leaves a sent renewal
//! sent. No thread passes a hold whose renewal failed. `force` counts this process's forced unlocks:
//! a hold that a leader asked for before the last one is `NotOurs`, even if the server granted it.
//! Its leader keeps the leadership and asks again.
//!
//! A read-write lock has two seats, the writer's and the readers', with one queue and one leadership:
//!
//! ```text
//! writer's  readers'  the leadership
//! empty     empty     as above
//! empty     taken     no thread's: a reader enters without a request while the turn lasts
//!                     a leader's: a writer that waits for the readers of this process and of
//!                     others, or a reader that asks whether it may join
//! taken     empty     no thread's: the others queue
//! taken     taken     the same: both seats are one thread's, which writes and may go on to read
//! ```
//!
//! So while a thread writes, no other thread of the process reads. Readers that a writer finds when
//! it gets its seat have lost their hold, since the server grants nothing to a writer beside them.
//! At the end of the readers' turn one thread asks the server, and while no process waits there,
//! another turn begins: so later readers pass no writer, of this process or of another.
//!
//! The leadership is never lost. While the queue is not empty, the seat is taken or a thread leads.
//! A leader that gives up hands the leadership on.

use std::any::Any;
use std::sync::Arc;

use redlatch_client::sync::{Mutex, Thread, clock};

use super::cohort::Cohort;
use super::standing::{QueuedThread, Standing};
use crate::hold::{Hold, Level, QueueEntry, Seat, Tenancy, Terms};
use crate::scripts::{Chain, Mode};
use crate::waiting::{Lead, Queue, Waiter, Wake};

#[cfg(test)]
mod explored_tests;
#[cfg(all(test, models))]
mod model_tests;
#[cfg(test)]
mod tests;

/// One name's seat, leadership and queue in this process. Of a read-write lock, two gates share
/// the leadership and the queue: one has the readers' seat, one the writer's.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Arc<Mutex<GateState>>,
    /// The mode of the holds in its seat.
    mode: Mode,
}

#[derive(Debug)]
struct GateState {
    /// The hold of one thread at a time: a lock's, or a read-write lock's writer's.
    alone: Place,
    /// The readers' hold. `None`: no thread has ever read.
    readers: Option<Box<Place>>,
    queue: GateQueue,
    /// A fair lock's threads, which each ask for themselves. `None`: there never was one.
    standing: Option<Box<Standing>>,
    /// Until when the last kept hold of one thread lasts, on [`clock`]; zero:
    /// there was none.
    kept_until: u64,
}

/// A seat, and what its holds have in common.
#[derive(Debug, Default)]
struct Place {
    seat: Option<Seat>,
    cohort: Cohort,
    /// How many forced unlocks of this process the server has answered.
    forced: u64,
}

/// A thread's request: the mode, and the terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) mode: Mode,
    pub(crate) terms: Terms,
}

pub(super) type GateQueue = Queue<Need, Arc<Tenancy>, Option<QueueEntry>>;
type GateLead = Lead<Option<QueueEntry>>;
pub(crate) type GateWaiter = Waiter<Need, Arc<Tenancy>, Option<QueueEntry>>;

/// Whether a thread may share a hold with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    No,
    InTurn,
    AnyTime,
}

/// How a thread's entry at the gate went.
#[derive(Debug)]
pub(crate) enum GateOutcome {
    /// The thread holds the lock already, and now has one level more.
    Again(Arc<Tenancy>),
    /// The thread shares the hold from now on.
    Joined(Arc<Tenancy>),
    /// The thread writes, and may read as well.
    Under(Arc<Tenancy>),
    /// The thread reads, and cannot write before it has left.
    Reads,
    /// No thread of this process is before it: it leads.
    Leads,
    Queued(Arc<GateWaiter>),
    /// Another thread is before it, and it will not wait.
    Occupied,
    /// The hold in a seat is over or lost: the caller declares it lost and enters again.
    Expired(Arc<Hold>),
    TooDeep,
}

/// Whether a granted hold got the seat.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// It did. With the seat that was still there, whose hold is over.
    Seated(Option<Seat>),
    /// Another hold has the seat.
    Taken(Arc<Hold>),
    /// Its lease was over before the leader read the reply; or the server answered a forced unlock
    /// of this process after the leader asked, and only the server knows which came first.
    NotOurs,
}

/// The outcome of leaving a level.
#[derive(Debug)]
pub(crate) enum LeaveOutcome {
    /// The tenancy is not in the seat: it was lost, or released before.
    NotThere,
    /// The tenancy has levels left.
    StillHeld,
    /// The tenancy is over, and others still share the hold.
    Stepped,
    /// The tenancy has left the seat, and had it alone.
    Left(Seat, Vacated),
}

/// The fate of a hold whose last tenancy has left the seat.
#[derive(Debug)]
pub(crate) enum Vacated {
    /// The next thread has the hold; the caller sends nothing. It wakes `next`, then `second`,
    /// which should be awake for the pass after this one.
    Passed { next: Wake, second: Wake },
    /// The thread must release the hold.
    Release {
        /// The thread has the leadership; otherwise another one leads already, or the seat was the
        /// readers'.
        leads: bool,
    },
}

impl Gate {
    /// The gate of a lock that one thread holds at a time.
    pub(crate) fn new(mode: Mode) -> Self {
        Self { state: Arc::new(Mutex::new(GateState::new())), mode }
    }

    /// The gate of the same lock's holds of another mode.
    pub(crate) fn beside(&self, mode: Mode) -> Self {
        Self { state: Arc::clone(&self.state), mode }
    }

    /// The mode of the holds in its seat.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn enter(&self, thread: &Arc<Thread>, need: Need, waits: bool) -> GateOutcome {
        self.at(|state, now| state.enter(thread, need, waits, now))
    }

    /// As [`enter`](Self::enter), for a lock whose queue is elsewhere: takes one level more if the
    /// thread has the seat. `None`: nobody has it.
    pub(crate) fn reenter(&self, thread: &Arc<Thread>, terms: Terms) -> Option<GateOutcome> {
        self.at(|state, now| state.place(self.mode).reenter(thread, terms, now))
    }

    /// Takes one level more of a tenancy: also of an owned guard's beside others, which
    /// [`reenter`](Self::reenter) does not look for.
    pub(crate) fn deepen(&self, tenancy: &Arc<Tenancy>, terms: Terms) -> GateOutcome {
        self.at(|state, now| state.place(self.mode).deepen(tenancy, terms, now))
    }

    /// Gives the seat to the hold that the leader was granted. The leader gives its leadership up,
    /// unless the hold has a line, or the leader lets more readers in. The caller knows that the
    /// server does not have `gone` any more.
    pub(crate) fn admit(
        &self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        gone: Option<&Arc<Hold>>,
    ) -> Admitted {
        self.at(|state, now| state.admit(self.mode, tenancy, terms, gone, now))
    }

    /// Ends one level of `tenancy`: `which`, or the last one. The `bool`: the tenancy was held
    /// until then.
    pub(crate) fn leave(
        &self,
        tenancy: &Arc<Tenancy>,
        which: Option<Level>,
    ) -> (LeaveOutcome, bool) {
        self.at(|state, now| {
            let was_held = tenancy.is_held_at(now);
            (state.leave(self.mode, tenancy, which, now), was_held)
        })
    }

    /// As [`leave`](Self::leave), and the hold is [kept](Hold::keep_until) until then, if it is
    /// held: in one step with the level's end. A hold that another thread takes out of the seat
    /// first is lost, and cleaned up; one that is kept first stays.
    pub(crate) fn leave_kept(
        &self,
        tenancy: &Arc<Tenancy>,
        which: Option<Level>,
        until: u64,
    ) -> (LeaveOutcome, bool) {
        self.at(|state, now| {
            let was_held = tenancy.is_held_at(now);
            let seat = state.place(self.mode).seat.as_mut();
            if was_held && seat.is_some_and(|seat| seat.has(tenancy)) {
                tenancy.hold().keep_until(until);
                if self.mode != Mode::Read {
                    state.kept_until = state.kept_until.max(until);
                }
            }
            (state.leave(self.mode, tenancy, which, now), was_held)
        })
    }

    /// The server keeps no kept hold of one thread: it was forced, or lost with
    /// the data.
    pub(crate) fn keeps_none(&self) {
        self.state.lock().kept_until = 0;
    }

    /// As [`leave`](Self::leave), with all levels: the seat that the caller gets has them.
    pub(crate) fn leave_to_wait(&self, tenancy: &Arc<Tenancy>) -> (LeaveOutcome, bool) {
        self.at(|state, now| {
            let was_held = tenancy.is_held_at(now);
            (state.leave_seat(self.mode, tenancy, now), was_held)
        })
    }

    /// A thread that `left` its seat to wait is back, and was seated under another tenancy: takes the
    /// seat as it left it, in the hold of now. `false`: that hold was lost meanwhile.
    pub(crate) fn come_back(&self, again: &Arc<Tenancy>, left: &mut Seat) -> bool {
        self.with_seat(|seat| {
            let seat = seat.filter(|seat| seat.is(again));
            seat.map(|seat| seat.exchange(left)).is_some()
        })
    }

    /// When the last level of `tenancy` ends by itself, if threads share its hold.
    pub(crate) fn last_end(&self, tenancy: &Arc<Tenancy>) -> Option<u64> {
        self.with_seat(|seat| seat?.last_end(tenancy))
    }

    fn at<R>(&self, act: impl FnOnce(&mut GateState, u64) -> R) -> R {
        let mut state = self.state.lock();
        let now = clock::now();
        act(&mut state, now)
    }

    fn with_place<R>(&self, look: impl FnOnce(&mut Place) -> R) -> R {
        look(self.state.lock().place(self.mode))
    }

    /// The server has answered a forced unlock of this process. A thread whose hold was granted
    /// before must ask whether the unlock ended that hold.
    pub(crate) fn force(&self) {
        self.with_place(|place| place.forced += 1);
    }

    /// How many forced unlocks of this process the server has answered.
    pub(crate) fn forced(&self) -> u64 {
        self.with_place(|place| place.forced)
    }

    /// The hold is not ours any more. If it is in the seat, under any tenancy, frees the seat and
    /// opens the gate.
    pub(crate) fn vacate(&self, hold: &Arc<Hold>) -> (Option<Seat>, Wake) {
        self.state.lock().vacate(self.mode, hold)
    }

    /// Lets the leader into the hold of this process's readers, whether their turn lasts (`true`) or
    /// not. `None`: no thread reads.
    pub(crate) fn join(&self, thread: &Arc<Thread>, terms: Terms) -> Option<(Arc<Tenancy>, bool)> {
        self.at(|state, now| state.join_any_time(thread, terms, now))
    }

    /// The leader reads: so do the readers that are first in the queue.
    pub(crate) fn let_readers_in(&self) {
        let woken = self.at(GateState::let_readers_in);
        woken.into_iter().for_each(Wake::now);
    }

    /// The leader is done, and the leadership goes to the next thread in the queue, with the lead if
    /// that is for this mode. Otherwise returns the lead.
    pub(super) fn hand_on(&self, lead: Option<GateLead>) -> Option<GateLead> {
        let (wake, left) = self.state.lock().hand_on(self.mode, lead);
        wake.now();
        left
    }

    /// Whether no other thread writes.
    pub(crate) fn writes_alone(&self, thread: &Thread) -> bool {
        let state = self.state.lock();
        state.alone.seat.as_ref().is_none_or(|seat| seat.tenancy.thread.id() == thread.id())
    }

    /// Whether the thread reads, at a read-write lock.
    pub(crate) fn reads(&self, thread: &Thread) -> bool {
        self.state.lock().reading(thread).is_some()
    }

    /// The server has confirmed that threads may share a hold: its turn begins anew.
    pub(crate) fn reopen(&self, hold: &Arc<Hold>, at: u64) {
        self.with_place(|place| {
            if let Some(seat) = &mut place.seat
                && Arc::ptr_eq(&seat.tenancy.hold(), hold)
            {
                seat.is_open = true;
                place.cohort.granted(at, 0);
            }
        });
    }

    /// Looks at a fair lock's threads, under the gate's mutex.
    pub(crate) fn with_standing<R>(&self, look: impl FnOnce(&mut Standing) -> R) -> R {
        look(self.state.lock().standing.get_or_insert_default())
    }

    /// From here on a hold may be passed to `queued`.
    pub(crate) fn stand(&self, queued: Arc<QueuedThread>) {
        self.with_standing(|standing| standing.queued.push(queued));
    }

    /// From here on no hold is passed to the thread. `Some`: a hold that was passed before.
    pub(crate) fn stand_down(&self, queued: &Arc<QueuedThread>) -> Option<Arc<Tenancy>> {
        self.with_standing(|standing| standing.stand_down(queued))
    }

    /// A fair lock's threads that stand in Redis's queue.
    pub(crate) fn standing(&self) -> Vec<Arc<QueuedThread>> {
        self.with_standing(|standing| standing.queued.clone())
    }

    /// Whether the process has the lock, or fair threads of it wait for it or give it back.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.lock().is_busy()
    }

    /// Whether a fair thread that is about to ask should wait for others of a busy process to come
    /// along. Then [`call`](Self::call) wakes it.
    pub(crate) fn lingers(&self, thread: &Arc<Thread>) -> bool {
        let mut state = self.state.lock();
        let lingers = state.is_busy();
        if lingers {
            state.standing.get_or_insert_default().linger(Some(thread));
        }
        lingers
    }

    pub(crate) fn lingers_no_more(&self) {
        self.with_standing(|standing| standing.linger(None));
    }

    /// A fair thread is gone: wakes the one that waits for others, if none is left.
    pub(crate) fn call(&self) {
        let call = self.with_standing(|standing| standing.call());
        call.now();
    }

    /// A thread has given a fair hold back.
    pub(super) fn gave_back(&self) {
        let call = self.with_standing(|standing| {
            standing.releasing = standing.releasing.saturating_sub(1);
            standing.call()
        });
        call.now();
    }

    /// Looks at the seat, under the gate's mutex.
    pub(crate) fn with_seat<R>(&self, look: impl FnOnce(Option<&mut Seat>) -> R) -> R {
        self.with_place(|place| look(place.seat.as_mut()))
    }

    /// The hold in the seat.
    pub(crate) fn hold(&self) -> Option<Arc<Hold>> {
        self.with_seat(|seat| seat.map(|seat| Arc::clone(&seat.tenancy.hold())))
    }

    /// The tenancy of a thread, with its hold count.
    pub(crate) fn tenant_of(&self, thread: &Thread) -> Option<(Arc<Tenancy>, usize)> {
        self.with_seat(|seat| {
            let (tenancy, levels) = seat?.tenant(thread)?;
            Some((Arc::clone(tenancy), levels.count()))
        })
    }

    /// All tenants, and how many times each has it.
    pub(crate) fn tenants(&self) -> Vec<(Arc<Tenancy>, usize)> {
        self.with_seat(|seat| {
            let seat = seat.as_deref();
            let all = seat.iter().flat_map(|seat| seat.tenants());
            all.map(|(tenancy, levels)| (Arc::clone(tenancy), levels.count())).collect()
        })
    }

    /// The hold in the seat, if it is over.
    pub(crate) fn expired(&self) -> Option<Arc<Hold>> {
        self.hold().filter(|hold| !hold.is_ours(clock::now()))
    }

    /// Keeps `site` until the seat of `tenancy` goes: with its last tenant, if several share it.
    pub(crate) fn keep(&self, tenancy: &Arc<Tenancy>, site: Arc<dyn Any + Send + Sync>) {
        let unneeded = self.with_seat(|seat| match seat {
            Some(seat) => {
                if seat.has(tenancy) {
                    seat.kept.get_or_insert_default().site.replace(site)
                } else {
                    Some(site)
                }
            }
            None => Some(site),
        });
        drop(unneeded);
    }

    /// The chain of a hold that a reply granted, to a request of this time.
    pub(crate) fn chain(&self, asked_at: u64) -> Chain {
        self.with_place(|place| place.cohort.chain(asked_at))
    }

    /// Whether this process and others have the lock in turns now.
    pub(crate) fn takes_turns(&self, now: u64) -> bool {
        self.with_place(|place| place.cohort.takes_turns(now))
    }

    /// The last release left the lock to Redisson's clients.
    pub(crate) fn left_to_others(&self) {
        self.with_place(|place| place.cohort.left_to_others());
    }

    pub(super) fn with_queue<R>(&self, look: impl FnOnce(&mut GateQueue) -> R) -> R {
        look(&mut self.state.lock().queue)
    }
}

/// The transitions. The caller passes the time in: nothing here reads a clock.
impl GateState {
    fn new() -> Self {
        Self {
            alone: Place::default(),
            readers: None,
            queue: Queue::new(),
            standing: None,
            kept_until: 0,
        }
    }

    fn place(&mut self, mode: Mode) -> &mut Place {
        match mode {
            Mode::Read => self.readers.get_or_insert_default(),
            Mode::Lock | Mode::Write => &mut self.alone,
        }
    }

    fn enter(&mut self, thread: &Arc<Thread>, need: Need, waits: bool, now: u64) -> GateOutcome {
        let entered = match need.mode {
            Mode::Read => self.enter_to_read(thread, need.terms, now),
            Mode::Lock | Mode::Write => self.enter_alone(thread, need.terms, waits, now),
        };
        if !waits || !matches!(entered, GateOutcome::Occupied) {
            return entered;
        }
        // At the end of the queue. The thread sleeps (`waiting/mod.rs`, `await_signal`) until a
        // signal grants it the hold (`leave`, below) or gives it the leadership.
        let waiter = self.queue.push(thread, need);
        // The thread is awake already.
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
    ) -> GateOutcome {
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
        // A thread that will not wait does not ask beside readers of this process.
        let may_lead = waits || readers.is_none_or(|seat| !seat.tenancy.is_held_at(now));
        // If no thread led or waited, this one has the leadership now.
        if self.alone.seat.is_none() && may_lead && self.queue.lead() {
            return GateOutcome::Leads;
        }
        GateOutcome::Occupied
    }

    /// A thread that reads already reads again, past all waiters. Another one joins the readers of
    /// its process, unless a thread writes, leads or waits, or a kept write hold still excludes
    /// others.
    fn enter_to_read(&mut self, thread: &Arc<Thread>, terms: Terms, now: u64) -> GateOutcome {
        let is_alone = self.alone.seat.is_some() || self.queue.is_busy() || now < self.kept_until;
        let joining = if is_alone { Joining::No } else { Joining::InTurn };
        match self.place(Mode::Read).join(thread, terms, joining, now) {
            None | Some((GateOutcome::Occupied, _)) => {}
            Some((entered, _)) => return entered,
        }
        match &mut self.alone.seat {
            Some(seat) if !seat.tenancy.is_held_at(now) => {
                GateOutcome::Expired(Arc::clone(&seat.tenancy.hold()))
            }
            Some(seat) => seat.tenant(thread).map_or(GateOutcome::Occupied, |(writing, _)| {
                GateOutcome::Under(Arc::clone(writing))
            }),
            None if self.queue.lead() => GateOutcome::Leads,
            None => GateOutcome::Occupied,
        }
    }

    fn join_any_time(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        now: u64,
    ) -> Option<(Arc<Tenancy>, bool)> {
        if now < self.kept_until {
            return None;
        }
        match self.readers.as_mut()?.join(thread, terms, Joining::AnyTime, now)? {
            (GateOutcome::Again(tenancy) | GateOutcome::Joined(tenancy), in_turn) => {
                Some((tenancy, in_turn))
            }
            _ => None,
        }
    }

    fn is_busy(&self) -> bool {
        let stands = self.standing.as_ref().is_some_and(|standing| standing.is_busy());
        stands || self.alone.seat.is_some()
    }

    fn let_readers_in(&mut self, now: u64) -> Vec<Wake> {
        let mut woken = Vec::new();
        while let Some(first) = self.queue.first()
            && let Need { mode: Mode::Read, terms } = *first.need()
        {
            let thread = Arc::clone(first.thread());
            let Some((tenancy, _)) = self.join_any_time(&thread, terms, now) else { break };
            woken.extend(self.queue.grant_first(|_| tenancy));
        }
        woken
    }

    fn hand_on(&mut self, mode: Mode, lead: Option<GateLead>) -> (Wake, Option<GateLead>) {
        let goes_on = self.queue.first().is_some_and(|first| first.need().mode == mode);
        if goes_on { self.queue.promote(lead) } else { (self.queue.promote(None).0, lead) }
    }

    fn vacate(&mut self, mode: Mode, hold: &Arc<Hold>) -> (Option<Seat>, Wake) {
        let is_its = |seat: &mut Seat| Arc::ptr_eq(&seat.tenancy.hold(), hold);
        let seat = self.place(mode).seat.take_if(is_its);
        let opens = seat.is_some() && mode != Mode::Read && !self.queue.is_led();
        (seat, if opens { self.queue.promote(None).0 } else { Wake::NOBODY })
    }

    /// The tenancy under which the thread reads.
    fn reading(&mut self, thread: &Thread) -> Option<&Arc<Tenancy>> {
        let (reading, _) = self.readers.as_mut()?.seat.as_mut()?.tenant(thread)?;
        Some(reading)
    }

    /// See [`Gate::admit`].
    fn admit(
        &mut self,
        mode: Mode,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        gone: Option<&Arc<Hold>>,
        now: u64,
    ) -> Admitted {
        let place = self.place(mode);
        if let Some(seat) = &place.seat
            && seat.tenancy.is_held_at(now)
            && gone.is_none_or(|gone| !Arc::ptr_eq(gone, &seat.tenancy.hold()))
        {
            return Admitted::Taken(Arc::clone(&seat.tenancy.hold()));
        }
        if place.forced != tenancy.hold().asked.forced || !tenancy.is_held_at(now) {
            return Admitted::NotOurs;
        }
        place.cohort.granted(tenancy.hold().asked.at, tenancy.hold().details.places);
        let stale = place.seat.replace(Seat::new(Arc::clone(tenancy), terms));
        if mode != Mode::Read && tenancy.hold().line.is_none() {
            self.queue.set_led(false);
        }
        Admitted::Seated(stale)
    }

    fn leave(
        &mut self,
        mode: Mode,
        tenancy: &Arc<Tenancy>,
        which: Option<Level>,
        now: u64,
    ) -> LeaveOutcome {
        match self.place(mode).seat.as_mut().and_then(|seat| seat.step(tenancy, which)) {
            Some(true) => LeaveOutcome::StillHeld,
            Some(false) => {
                // Under the mutex, so before the others can leave, too: then nobody has the lock,
                // and this tenancy's guard must not report "held".
                tenancy.step_down();
                LeaveOutcome::Stepped
            }
            None => self.leave_seat(mode, tenancy, now),
        }
    }

    fn leave_seat(&mut self, mode: Mode, tenancy: &Arc<Tenancy>, now: u64) -> LeaveOutcome {
        let Some(seat) = self.place(mode).seat.take_if(|seat| seat.is(tenancy)) else {
            return LeaveOutcome::NotThere;
        };
        let hold = tenancy.hold();
        if let Some(passed) = self.pass(&seat, &hold, now) {
            return LeaveOutcome::Left(seat, passed);
        }
        if hold.line.is_some() {
            self.standing.get_or_insert_default().releasing += 1;
        }
        // No thread of this process may have the hold. The leaving thread takes the leadership for
        // the release, unless another one has it. So a thread that comes now sends its request
        // behind the release. (A leader that writes waits for the readers, and leads already; other
        // readers may ask before the release.)
        self.place(mode).cohort.released(now, hold.details.chain);
        let leads = mode != Mode::Read && !self.queue.is_led();
        if leads {
            self.queue.set_led(true);
        }
        LeaveOutcome::Left(seat, Vacated::Release { leads })
    }

    /// Passes the hold of the thread that has just left its seat to the next thread, if that may
    /// have it now. The caller wakes the thread, after the mutex.
    ///
    /// The order is the hold's own: a name's re-entrant and fair handles share its seat.
    fn pass(&mut self, left: &Seat, hold: &Arc<Hold>, now: u64) -> Option<Vacated> {
        let next = |thread: &Arc<Thread>| {
            // Before the next thread can know of the pass: other threads may ask this one's guard.
            left.tenancy.step_down();
            Arc::new(Tenancy::since(Arc::clone(hold), Arc::clone(thread), now))
        };
        if hold.line.is_some() {
            let queued = self.standing.as_mut()?.next(hold, now)?;
            let next = next(&queued.thread);
            self.alone.seat = Some(left.passed_to(&next, queued.terms));
            return Some(Vacated::Passed { next: queued.pass(next), second: Wake::NOBODY });
        }
        if !self.may_pass(hold, now) {
            return None;
        }
        // Takes the next thread out of the queue and signals it.
        let passed = self.queue.grant_first(|first| {
            let next = next(first.thread());
            self.alone.seat = Some(left.passed_to(&next, first.need().terms));
            next
        })?;
        Some(Vacated::Passed { next: passed, second: self.queue.call_first() })
    }

    /// Whether the thread that has just left its seat may pass the hold to the first in the queue.
    /// A turn lasts 10 ms at most from the server's grant, and less if many processes wait
    /// (`cohort.rs`). `hold.may_pass`: on equal terms, not lost, and renewed without trouble. A
    /// writer that reads on lets no other writer in.
    fn may_pass(&self, hold: &Hold, now: u64) -> bool {
        let mode = hold.owner.mode();
        self.alone.cohort.may_pass(now)
            && self.queue.first().is_some_and(|first| {
                mode != Mode::Read
                    && first.need().mode == mode
                    && hold.may_pass(first.need().terms, now)
            })
            && self.readers.as_ref().is_none_or(|readers| readers.seat.is_none())
    }
}

impl Place {
    /// Looks for the thread's tenancy in the seat, and takes one level more if it is there.
    #[inline]
    fn reenter(&mut self, thread: &Arc<Thread>, terms: Terms, now: u64) -> Option<GateOutcome> {
        let seat = self.seat.as_mut()?;
        if !seat.tenancy.is_held_at(now) {
            return Some(GateOutcome::Expired(Arc::clone(&seat.tenancy.hold())));
        }
        let Some((tenancy, levels)) = seat.tenant(thread) else {
            return Some(GateOutcome::Occupied);
        };
        let tenancy = Arc::clone(tenancy);
        let Some(level) = levels.deepen(terms, now) else { return Some(GateOutcome::TooDeep) };
        seat.want(level);
        Some(GateOutcome::Again(tenancy))
    }

    /// See [`Gate::deepen`].
    fn deepen(&mut self, tenancy: &Arc<Tenancy>, terms: Terms, now: u64) -> GateOutcome {
        let Some(seat) = &mut self.seat else { return GateOutcome::Occupied };
        let hold = Arc::clone(&seat.tenancy.hold());
        let Some(levels) = seat.levels_of(tenancy) else { return GateOutcome::Occupied };
        if !tenancy.is_held_at(now) {
            return GateOutcome::Expired(hold);
        }
        let Some(level) = levels.deepen(terms, now) else { return GateOutcome::TooDeep };
        seat.want(level);
        GateOutcome::Again(Arc::clone(tenancy))
    }

    /// Lets a thread into a hold that threads share. A thread that has the hold gets one level
    /// more. Another one joins it if the turn is [young](Cohort::may_join) and nobody waits
    /// elsewhere, or [at any time](Joining::AnyTime). The `bool` is `false` only for a thread that
    /// joined outside such a turn. `None`: nobody has the seat.
    fn join(
        &mut self,
        thread: &Arc<Thread>,
        terms: Terms,
        joining: Joining,
        now: u64,
    ) -> Option<(GateOutcome, bool)> {
        let entered = self.reenter(thread, terms, now)?;
        let seat = self.seat.as_mut()?;
        let in_turn = seat.is_open && self.cohort.may_join(now);
        let may_join = match joining {
            Joining::No => false,
            Joining::InTurn => in_turn,
            Joining::AnyTime => true,
        };
        if !matches!(entered, GateOutcome::Occupied) || !may_join {
            return Some((entered, true));
        }
        let hold = Arc::clone(&seat.tenancy.hold());
        let tenancy = Arc::new(Tenancy::since(hold, Arc::clone(thread), now));
        seat.join(Arc::clone(&tenancy), terms, now);
        Some((GateOutcome::Joined(tenancy), in_turn))
    }
}
