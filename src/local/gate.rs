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
//! taken  yes  a fair lock's hold, which was the same, but a release leaves the leadership where it
//!             granted beside the leader     is; the leader's admit finds it taken
//! ```
//!
//! A hold in the seat may be over, or lost (`Expired`). Then no thread enters or passes it, and the
//! thread that finds that out vacates the seat. Its renewal is done, sent or failed (`Attempt`):
//! `renews` sends it, `Site::renewed` gets the answer. A pass at the gate leaves a sent renewal
//! sent. A lock whose threads queue elsewhere does not pass a hold whose renewal is sent, and no
//! lock passes one whose renewal failed. `force` counts this process's forced unlocks: a hold that
//! a leader asked for before the last one is `NotOurs`, even if the server granted it. Its leader
//! keeps the leadership and asks again.
//!
//! The leadership is never lost. While the queue is not empty, the seat is taken or a thread leads.
//! A leader that gives up hands the leadership on.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redlatch_client::sync::{Mutex, Thread, clock};

use super::cohort::Cohort;
use super::hold::Hold;
use super::queue_entry::QueueEntry;
use super::tenancy::Tenancy;
use super::terms::Terms;
use crate::lease::renewal::Attempt;
use crate::scripts::Chain;
use crate::waiting::{Queue, Waiter, Wake};

#[cfg(all(test, models))]
mod model_tests;
mod seat;
#[cfg(test)]
mod tests;

pub(crate) use seat::{Level, Seat};

/// One name's seat, leadership and queue in this process.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
    /// Until when the last hold that was left to its end lasts, on [`clock`]; zero: there was none.
    /// Set under the mutex, before the hold leaves its seat.
    left_until: AtomicU64,
}

#[derive(Debug)]
struct GateState {
    seat: Option<Seat>,
    queue: GateQueue,
    cohort: Cohort,
    /// How many forced unlocks of this process the server has answered.
    forced: u64,
}

pub(super) type GateQueue = Queue<Terms, Arc<Tenancy>, QueueEntry>;
pub(crate) type GateWaiter = Waiter<Terms, Arc<Tenancy>, QueueEntry>;

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
    /// No thread of this process is before it: it leads.
    Leads,
    Queued(Arc<GateWaiter>),
    /// Another thread is before it, and it will not wait.
    Occupied,
    /// The hold in the seat is over or lost: the caller declares it lost and enters again.
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
        /// The thread has the leadership; otherwise another one leads already.
        leads: bool,
        /// The turn lasts: a [`Succession`](super::Succession) may pass the hold. (A `Line` ignores
        /// this.)
        in_turn: bool,
    },
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(GateState {
                seat: None,
                queue: Queue::new(),
                cohort: Cohort::default(),
                forced: 0,
            }),
            left_until: AtomicU64::new(0),
        }
    }

    pub(crate) fn enter(&self, thread: &Arc<Thread>, terms: Terms, waits: bool) -> GateOutcome {
        self.at(|state, now| state.enter(thread, terms, waits, now))
    }

    /// As [`enter`](Self::enter), for a lock whose queue is elsewhere: takes one level more if the
    /// thread has the seat. `None`: nobody has it.
    pub(crate) fn reenter(&self, thread: &Arc<Thread>, terms: Terms) -> Option<GateOutcome> {
        self.at(|state, now| state.reenter(thread, terms, now))
    }

    /// Takes one level more of a tenancy: also of an owned guard's beside others, which
    /// [`reenter`](Self::reenter) does not look for.
    pub(crate) fn deepen(&self, tenancy: &Arc<Tenancy>, terms: Terms) -> GateOutcome {
        self.at(|state, now| state.deepen(tenancy, terms, now))
    }

    /// Gives the seat to the hold that the leader was granted, and gives the leadership up (unless
    /// the hold has a line). The caller knows that the server does not have `gone` any more.
    pub(crate) fn admit(
        &self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        gone: Option<&Arc<Hold>>,
    ) -> Admitted {
        self.at(|state, now| state.admit(tenancy, terms, gone, now))
    }

    /// Gives the seat to a hold that a lock with its queue elsewhere passes to a thread. `false`:
    /// the hold is over, or another one was granted since the thread that passes it left the seat.
    pub(crate) fn admit_passed(&self, tenancy: &Arc<Tenancy>, terms: Terms) -> bool {
        self.at(|state, now| {
            state.seat.is_none()
                && matches!(state.admit(tenancy, terms, None, now), Admitted::Seated(_))
        })
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
            (state.leave(tenancy, which, now), was_held)
        })
    }

    /// As [`leave`](Self::leave), and leaves the hold to its end, at that time, if it is held: in
    /// one step with the level's end. A hold that another thread takes out of the seat first is
    /// lost, and cleaned up; one that is left first stays.
    pub(crate) fn leave_to_expire(
        &self,
        tenancy: &Arc<Tenancy>,
        which: Option<Level>,
        until: u64,
    ) -> (LeaveOutcome, bool) {
        self.at(|state, now| {
            let was_held = tenancy.is_held_at(now);
            if was_held && state.seat.as_mut().is_some_and(|seat| seat.has(tenancy)) {
                tenancy.hold().leave_out(until);
                self.left_until.fetch_max(until, Ordering::SeqCst);
            }
            (state.leave(tenancy, which, now), was_held)
        })
    }

    /// Whether the server still keeps a hold that was left to its end.
    pub(crate) fn has_left_one(&self) -> bool {
        clock::now() < self.left_until.load(Ordering::SeqCst)
    }

    /// The server keeps no such hold any more: it was forced, or lost with the data.
    pub(crate) fn has_left_none(&self) {
        self.left_until.store(0, Ordering::SeqCst);
    }

    /// As [`leave`](Self::leave), with all levels: the seat that the caller gets has them.
    pub(crate) fn leave_to_wait(&self, tenancy: &Arc<Tenancy>) -> (LeaveOutcome, bool) {
        self.at(|state, now| {
            let was_held = tenancy.is_held_at(now);
            (state.leave_seat(tenancy, now), was_held)
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

    /// The server has answered a forced unlock of this process. A thread whose hold was granted
    /// before must ask whether the unlock ended that hold.
    pub(crate) fn force(&self) {
        self.state.lock().forced += 1;
    }

    /// How many forced unlocks of this process the server has answered.
    pub(crate) fn forced(&self) -> u64 {
        self.state.lock().forced
    }

    /// The hold is not ours any more. If it is in the seat, under any tenancy, frees the seat and
    /// opens the gate.
    pub(crate) fn vacate(&self, hold: &Arc<Hold>) -> (Option<Seat>, Wake) {
        let mut state = self.state.lock();
        if !state.seat.as_ref().is_some_and(|seat| Arc::ptr_eq(&seat.tenancy.hold(), hold)) {
            return (None, Wake::NOBODY);
        }
        let seat = state.seat.take();
        let wake = if state.queue.is_led() { Wake::NOBODY } else { state.queue.promote(None).0 };
        (seat, wake)
    }

    /// Lets a thread into a hold that threads share. A thread that has the hold gets one level
    /// more. Another one joins it if the turn is [young](Cohort::may_join) and nobody waits
    /// elsewhere, or [at any time](Joining::AnyTime). The `bool` is `false` only for a thread that
    /// joined outside such a turn. `None`: nobody has the seat.
    pub(crate) fn join(
        &self,
        thread: &Arc<Thread>,
        terms: Terms,
        joining: Joining,
    ) -> Option<(GateOutcome, bool)> {
        self.at(|state, now| {
            let entered = state.reenter(thread, terms, now)?;
            let seat = state.seat.as_mut()?;
            let in_turn = seat.is_open && state.cohort.may_join(now);
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
        })
    }

    /// The server has confirmed that threads may share a hold: its turn begins anew.
    pub(crate) fn reopen(&self, hold: &Arc<Hold>, at: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(seat) = state.seat.as_mut()
            && Arc::ptr_eq(&seat.tenancy.hold(), hold)
        {
            seat.is_open = true;
            state.cohort.granted(at, 0);
        }
    }

    /// Whether a hold has the seat. It may be over.
    pub(crate) fn is_seated(&self) -> bool {
        self.with_seat(|seat| seat.is_some())
    }

    /// Whether a thread of this process has the lock.
    pub(crate) fn is_taken(&self) -> bool {
        self.with_seat(|seat| seat.is_some_and(|seat| seat.tenancy.is_held()))
    }

    /// Looks at the seat, under the gate's mutex.
    pub(crate) fn with_seat<R>(&self, look: impl FnOnce(Option<&mut Seat>) -> R) -> R {
        look(self.state.lock().seat.as_mut())
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
        self.state.lock().cohort.chain(asked_at)
    }

    /// Whether this process and others have the lock in turns now.
    pub(crate) fn takes_turns(&self, now: u64) -> bool {
        self.state.lock().cohort.takes_turns(now)
    }

    /// The last release left the lock to Redisson's clients.
    pub(crate) fn left_to_others(&self) {
        self.state.lock().cohort.left_to_others();
    }

    pub(super) fn with_queue<R>(&self, look: impl FnOnce(&mut GateQueue) -> R) -> R {
        look(&mut self.state.lock().queue)
    }
}

/// The transitions. The caller passes the time in: nothing here reads a clock.
impl GateState {
    fn enter(&mut self, thread: &Arc<Thread>, terms: Terms, waits: bool, now: u64) -> GateOutcome {
        match self.reenter(thread, terms, now) {
            Some(GateOutcome::Occupied) if waits => {}
            Some(entered) => return entered,
            // If no thread led or waited, this one has the leadership now.
            None if self.queue.lead() => return GateOutcome::Leads,
            None if waits => {}
            None => return GateOutcome::Occupied,
        }
        // At the end of the queue. The thread sleeps (`waiting/mod.rs`, `await_signal`) until a
        // signal grants it the hold (`leave`, below) or gives it the leadership.
        let waiter = self.queue.push(thread, terms);
        // The thread is awake already.
        if self.seat.is_some() && self.queue.first().is_some_and(|first| waiter.is(first)) {
            let _awake = self.queue.call_first();
        }
        GateOutcome::Queued(waiter)
    }

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

    /// See [`Gate::admit`].
    fn admit(
        &mut self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        gone: Option<&Arc<Hold>>,
        now: u64,
    ) -> Admitted {
        if let Some(seat) = &self.seat
            && seat.tenancy.is_held_at(now)
            && gone.is_none_or(|gone| !Arc::ptr_eq(gone, &seat.tenancy.hold()))
        {
            return Admitted::Taken(Arc::clone(&seat.tenancy.hold()));
        }
        if self.forced != tenancy.hold().asked.forced || !tenancy.is_held_at(now) {
            return Admitted::NotOurs;
        }
        if tenancy.hold().line.is_none() {
            self.queue.set_led(false);
        }
        self.cohort.granted(tenancy.hold().asked.at, tenancy.hold().details.places);
        Admitted::Seated(self.seat.replace(Seat::new(Arc::clone(tenancy), terms)))
    }

    fn leave(&mut self, tenancy: &Arc<Tenancy>, which: Option<Level>, now: u64) -> LeaveOutcome {
        match self.seat.as_mut().and_then(|seat| seat.step(tenancy, which)) {
            Some(true) => LeaveOutcome::StillHeld,
            Some(false) => {
                // Under the mutex, so before the others can leave, too: then nobody has the lock,
                // and this tenancy's guard must not report "held".
                tenancy.step_down();
                LeaveOutcome::Stepped
            }
            None => self.leave_seat(tenancy, now),
        }
    }

    fn leave_seat(&mut self, tenancy: &Arc<Tenancy>, now: u64) -> LeaveOutcome {
        let Some(seat) = self.seat.take_if(|seat| seat.is(tenancy)) else {
            return LeaveOutcome::NotThere;
        };
        // A turn lasts 10 ms at most from the server's grant, and less if many processes wait
        // (`cohort.rs`). `hold.may_pass`: on equal terms, not lost, and renewed without trouble.
        let (hold, in_turn) = (tenancy.hold(), self.cohort.may_pass(now));
        if hold.line.is_none()
            && in_turn
            && self.queue.first().is_some_and(|first| hold.may_pass(*first.need(), now))
        {
            // Before the next thread can know of the pass: other threads may ask this one's guard.
            tenancy.step_down();
            // Takes the next thread out of the queue and signals it. The caller wakes it, after the
            // mutex.
            let next = self.queue.grant_first(|first| {
                let next =
                    Arc::new(Tenancy::since(Arc::clone(&hold), Arc::clone(first.thread()), now));
                let next_seat = self.seat.insert(Seat::new(Arc::clone(&next), *first.need()));
                if seat.attempt.is_sent() {
                    next_seat.attempt = Attempt::Sent { failed: 0 };
                }
                next
            });
            if let Some(next) = next {
                let second = self.queue.call_first();
                return LeaveOutcome::Left(seat, Vacated::Passed { next, second });
            }
        }
        // No thread of this process may have the hold. The leaving thread takes the leadership for
        // the release, unless another one has it. So a thread that comes now sends its request
        // behind the release.
        self.cohort.released(now, hold.details.chain);
        let leads = !self.queue.is_led();
        self.queue.set_led(true);
        LeaveOutcome::Left(seat, Vacated::Release { leads, in_turn })
    }
}
