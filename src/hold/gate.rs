//! Who of this process goes first for one name.
//!
//! Of all threads of a process that want one name, one at a time talks to Redis: it has the
//! *baton*. The others stand in a queue, first come first served, and sleep until they are granted
//! the hold (passed on by its holder with no round trip) or given the baton.
//!
//! ```text
//!             enter                  admit                 leave (turn over, or nobody waits)
//!   (free) ----------> led: baton ----------> seat taken ------------------------> led: releasing
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
//! taken  yes  a fair lock's hold, which was the same, but a release leaves the baton where it
//!             granted beside the leader     is; the leader's admit finds it taken
//! ```
//!
//! A hold in the seat may be over, or lost (`Expired`): then it is neither entered nor passed, and
//! who finds that out has it vacated. Its renewal is done, sent or failed (`Attempt`): `renews`
//! sends it, `Site::renewed` has the answer. One that is sent stays so when the hold is passed
//! here; a lock whose threads queue elsewhere does not pass it then, and none does after one that
//! failed. `force` counts what this process has unlocked by force: a hold that was asked for before
//! the last time is `NotOurs`, whatever its grant said, and its leader leads on, and asks.
//!
//! Baton: it is never lost. While the queue is not empty, the seat is taken or somebody leads; who
//! gives up with the baton hands it on.

use std::any::Any;
use std::sync::Arc;

use super::{Cohort, Hold, Place, Tenancy, Terms, clock};
use crate::acquire::{Queue, Waiter, Wake};
use crate::script::lock::Chain;
use crate::sync::{Mutex, Thread};
use crate::watchdog::renewal::Attempt;

#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;
mod seat;
#[cfg(test)]
mod tests;

use seat::Levels;
pub(crate) use seat::{Folded, Level, Seat};

/// One name's seat, baton and queue in this process.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    seat: Option<Seat>,
    queue: GateQueue,
    cohort: Cohort,
    /// How many forced unlocks were answered.
    forced: u64,
}

pub(super) type GateQueue = Queue<Terms, Arc<Tenancy>, Place>;
pub(crate) type GateWaiter = Waiter<Terms, Arc<Tenancy>, Place>;

/// Whether a thread may have a hold beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    No,
    InTurn,
    AnyTime,
}

/// What a thread found at the gate.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It holds already: one level more.
    Again(Arc<Tenancy>),
    /// Nobody of this process is before it: it leads.
    Leads,
    Queued(Arc<GateWaiter>),
    /// Somebody is before it, and it will not wait.
    Occupied,
    /// The tenancy in the seat is past its deadline: declare it lost and enter again.
    Expired(Arc<Tenancy>),
    TooDeep,
}

/// Whether a granted hold has the seat.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// With the seat that was still there, whose hold is over.
    Seated(Option<Seat>),
    /// Another hold has the seat.
    Taken(Arc<Hold>),
    /// Its lease was over before its reply was read, or a forced unlock of this process was
    /// answered since it was asked for, and only the server knows which came first.
    NotOurs,
}

/// What leaving did.
#[derive(Debug)]
pub(crate) enum LeaveOutcome {
    /// The tenancy is not in the seat: it was lost, or given back before.
    NotThere,
    /// Levels are left.
    StillHeld,
    /// Others have the hold beside it.
    Stepped,
    /// The next thread has it; nothing is to be sent. The one behind it may be called after it.
    Passed { seat: Seat, next: Wake, second: Wake },
    /// The thread must release the hold.
    Release {
        seat: Seat,
        /// It has the baton; else another one leads already.
        leads: bool,
        /// The turn lasts: a [`Succession`](super::Succession) may pass it. (A `Line` does not
        /// ask.)
        in_turn: bool,
    },
}

/// As deep as one thread may nest a lock.
const DEEPEST: usize = 1 << 20;

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                seat: None,
                queue: Queue::new(),
                cohort: Cohort::default(),
                forced: 0,
            }),
        }
    }

    pub(crate) fn enter(&self, thread: &Arc<Thread>, terms: Terms, waits: bool) -> Entered {
        self.at(|state, now| state.enter(thread, terms, waits, now))
    }

    /// Whether the thread, which is a level deeper then, or another one has the seat: for locks
    /// whose queue is not this one. `None`: nobody has it.
    pub(crate) fn reenter(&self, thread: &Arc<Thread>, terms: Terms) -> Option<Entered> {
        self.at(|state, now| state.reenter(thread, terms, now))
    }

    /// The leader was granted a hold: the seat is taken, the baton is laid down (not for a hold
    /// with a line). `gone` is not held any more, whatever it says.
    pub(crate) fn admit(
        &self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        gone: Option<&Arc<Hold>>,
    ) -> Admitted {
        self.at(|state, now| state.admit(tenancy, terms, gone, now))
    }

    /// A hold is passed to a thread, by a lock that keeps its queue elsewhere. `false`: the hold is
    /// over, or another one was granted since the one who passes it left the seat.
    pub(crate) fn admit_passed(&self, tenancy: &Arc<Tenancy>, terms: Terms) -> bool {
        self.at(|state, now| {
            state.seat.is_none()
                && matches!(state.admit(tenancy, terms, None, now), Admitted::Seated(_))
        })
    }

    /// Ends one level of `tenancy`: `which`, or simply the last one. The second: it was held until
    /// then.
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

    /// Of a hold that threads share: when the level that `tenancy` took last ends by itself.
    pub(crate) fn last_end(&self, tenancy: &Arc<Tenancy>) -> Option<u64> {
        self.with_seat(|seat| seat?.last_end(tenancy))
    }

    fn at<R>(&self, act: impl FnOnce(&mut State, u64) -> R) -> R {
        let mut state = self.state.lock();
        let now = clock::now();
        act(&mut state, now)
    }

    /// A forced unlock of this process was answered. Whoever was granted a hold before must ask
    /// whether it was that hold.
    pub(crate) fn force(&self) {
        self.state.lock().forced += 1;
    }

    /// How many forced unlocks were answered.
    pub(crate) fn forced(&self) -> u64 {
        self.state.lock().forced
    }

    /// The hold is not ours any more: frees the seat if it is there, whoever has it by now, and
    /// opens the gate.
    pub(crate) fn vacate(&self, hold: &Arc<Hold>) -> (Option<Seat>, Wake) {
        let mut state = self.state.lock();
        if !state.seat.as_ref().is_some_and(|seat| Arc::ptr_eq(&seat.tenancy.hold, hold)) {
            return (None, Wake::NOBODY);
        }
        let seat = state.seat.take();
        let wake = if state.queue.is_led() { Wake::NOBODY } else { state.queue.promote(None).0 };
        (seat, wake)
    }

    /// Lets a thread into a hold that threads share: a level deeper if it has it already; beside
    /// the others if the turn is [young](Cohort::may_join) and nobody waits elsewhere, or [at any
    /// time](Joining::AnyTime) (`false`: only therefore). `None`: nobody has the seat.
    pub(crate) fn join(
        &self,
        thread: &Arc<Thread>,
        terms: Terms,
        joining: Joining,
    ) -> Option<(Entered, bool)> {
        self.at(|state, now| {
            let entered = state.reenter(thread, terms, now)?;
            let seat = state.seat.as_mut()?;
            let in_turn = seat.is_open && state.cohort.may_join(now);
            let may_join = match joining {
                Joining::No => false,
                Joining::InTurn => in_turn,
                Joining::AnyTime => true,
            };
            if !matches!(entered, Entered::Occupied) || !may_join {
                return Some((entered, true));
            }
            let hold = Arc::clone(&seat.tenancy.hold);
            let tenancy = Arc::new(Tenancy::since(hold, Arc::clone(thread), now));
            seat.join(Arc::clone(&tenancy), terms, now);
            Some((Entered::Again(tenancy), in_turn))
        })
    }

    /// The server has said anew that a hold may be shared: its turn begins anew.
    pub(crate) fn reopen(&self, hold: &Arc<Hold>, at: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(seat) = state.seat.as_mut()
            && Arc::ptr_eq(&seat.tenancy.hold, hold)
        {
            seat.is_open = true;
            state.cohort.granted(at, 0);
        }
    }

    /// Whether the seat is taken, by a hold that may be over.
    pub(crate) fn is_seated(&self) -> bool {
        self.with_seat(|seat| seat.is_some())
    }

    /// Whether somebody has the lock.
    pub(crate) fn is_taken(&self) -> bool {
        self.with_seat(|seat| seat.is_some_and(|seat| seat.tenancy.is_held()))
    }

    /// Looks at the seat, under the gate's mutex.
    pub(crate) fn with_seat<R>(&self, look: impl FnOnce(Option<&mut Seat>) -> R) -> R {
        look(self.state.lock().seat.as_mut())
    }

    /// The tenancy in the seat; one of several.
    pub(crate) fn tenant(&self) -> Option<Arc<Tenancy>> {
        self.with_seat(|seat| seat.map(|seat| Arc::clone(&seat.tenancy)))
    }

    /// The tenancy of a thread, with its hold count.
    pub(crate) fn tenant_of(&self, thread: &Thread) -> Option<(Arc<Tenancy>, usize)> {
        self.with_seat(|seat| {
            let (tenancy, levels) = seat?.tenant(thread)?;
            Some((Arc::clone(tenancy), levels.count()))
        })
    }

    /// The tenancy in the seat, if its hold is over. Both under the mutex: a tenancy that was just
    /// given back looks the same, and its hold may have been passed on.
    pub(crate) fn expired(&self) -> Option<Arc<Tenancy>> {
        self.with_seat(|seat| {
            let tenancy = &seat?.tenancy;
            (!tenancy.is_held()).then(|| Arc::clone(tenancy))
        })
    }

    /// Keeps `site` until the seat of `tenancy` goes: if others share that, with the last of them.
    pub(crate) fn keep(&self, tenancy: &Arc<Tenancy>, site: Arc<dyn Any + Send + Sync>) {
        let unneeded = self.with_seat(|seat| match seat {
            Some(seat) => {
                if seat.has(tenancy) {
                    seat.kept.replace(site)
                } else {
                    Some(site)
                }
            }
            None => Some(site),
        });
        drop(unneeded);
    }

    /// Leaves one level of `tenancy`, whose end is the hold's. `None`: it is not in the seat.
    pub(crate) fn fold(&self, tenancy: &Arc<Tenancy>) -> Option<Folded> {
        self.with_seat(|seat| {
            let seat = seat.filter(|seat| seat.is(tenancy))?;
            let inner = std::mem::take(&mut seat.levels.inner);
            let levels = Levels { inner, outer: seat.levels.outer };
            Some(Folded { levels, kept: seat.kept.take() })
        })
    }

    /// Gives the levels to `tenancy`, if it is still in the seat.
    pub(crate) fn unfold(&self, tenancy: &Arc<Tenancy>, folded: Folded) {
        let Folded { levels, kept } = folded;
        let unneeded = self.with_seat(|seat| match seat {
            Some(seat) if seat.is(tenancy) => {
                seat.levels = levels;
                std::mem::replace(&mut seat.kept, kept)
            }
            _ => kept,
        });
        drop(unneeded);
    }

    /// The chain of a hold that was granted by a reply to a question of this time.
    pub(crate) fn chain(&self, asked_at: u64) -> Chain {
        self.state.lock().cohort.chain(asked_at)
    }

    /// The last release left the lock to Redisson's clients.
    pub(crate) fn left_to_others(&self) {
        self.state.lock().cohort.left_to_others();
    }

    pub(super) fn with_queue<R>(&self, look: impl FnOnce(&mut GateQueue) -> R) -> R {
        look(&mut self.state.lock().queue)
    }
}

/// What happens, at a time: no clock is read here.
impl State {
    fn enter(&mut self, thread: &Arc<Thread>, terms: Terms, waits: bool, now: u64) -> Entered {
        match self.reenter(thread, terms, now) {
            Some(Entered::Occupied) if waits => {}
            Some(entered) => return entered,
            // It has the baton now, if nobody had it and nobody waits.
            None if self.queue.lead() => return Entered::Leads,
            None if waits => {}
            None => return Entered::Occupied,
        }
        // At the end. Its thread sleeps (`acquire/mod.rs`, `await_signal`) until it is told that it
        // was granted the hold (`leave`, below) or has the baton.
        let waiter = self.queue.push(thread, terms);
        // It is awake already.
        if self.seat.is_some() && self.queue.first().is_some_and(|first| waiter.is(first)) {
            let _awake = self.queue.call_first();
        }
        Entered::Queued(waiter)
    }

    /// What a thread finds in the seat: its own tenancy, which is a level deeper then, or
    /// another's.
    #[inline]
    fn reenter(&mut self, thread: &Arc<Thread>, terms: Terms, now: u64) -> Option<Entered> {
        let seat = self.seat.as_mut()?;
        if !seat.tenancy.is_held_at(now) {
            return Some(Entered::Expired(Arc::clone(&seat.tenancy)));
        }
        Some(match seat.tenant(thread) {
            None => Entered::Occupied,
            Some((_, levels)) if levels.count() >= DEEPEST => Entered::TooDeep,
            Some((tenancy, _)) => {
                let tenancy = Arc::clone(tenancy);
                seat.deepen(thread, terms, now);
                Entered::Again(tenancy)
            }
        })
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
            && gone.is_none_or(|gone| !Arc::ptr_eq(gone, &seat.tenancy.hold))
        {
            return Admitted::Taken(Arc::clone(&seat.tenancy.hold));
        }
        if self.forced != tenancy.hold.asked.forced || !tenancy.is_held_at(now) {
            return Admitted::NotOurs;
        }
        if tenancy.hold.line.is_none() {
            self.queue.set_led(false);
        }
        self.cohort.granted(tenancy.hold.asked.at, tenancy.hold.details.places);
        Admitted::Seated(self.seat.replace(Seat::new(Arc::clone(tenancy), terms)))
    }

    fn leave(&mut self, tenancy: &Arc<Tenancy>, which: Option<Level>, now: u64) -> LeaveOutcome {
        match self.seat.as_mut().and_then(|seat| seat.step(tenancy, which)) {
            Some(true) => return LeaveOutcome::StillHeld,
            Some(false) => {
                // Before the others can leave, too: its guard must not say "held" when they have.
                tenancy.step_down();
                return LeaveOutcome::Stepped;
            }
            None => {}
        }
        let Some(seat) = self.seat.take_if(|seat| seat.is(tenancy)) else {
            return LeaveOutcome::NotThere;
        };
        // In a turn: at most 10 ms since the server's word, less the more processes wait
        // (`cohort.rs`). `hold.may_pass`: on equal terms, not lost, and renewed without trouble.
        let (hold, in_turn) = (&tenancy.hold, self.cohort.may_pass(now));
        if hold.line.is_none()
            && in_turn
            && self.queue.first().is_some_and(|first| hold.may_pass(*first.need(), now))
        {
            // Before the next one can know of it: other threads may ask this one's guard.
            tenancy.step_down();
            // Takes it out of the queue and tells it; what comes back wakes it, without the mutex.
            let next = self.queue.grant_first(|first| {
                let next =
                    Arc::new(Tenancy::since(Arc::clone(hold), Arc::clone(first.thread()), now));
                let next_seat = self.seat.insert(Seat::new(Arc::clone(&next), *first.need()));
                if seat.attempt.is_sent() {
                    next_seat.attempt = Attempt::Sent { failed: 0 };
                }
                next
            });
            if let Some(next) = next {
                return LeaveOutcome::Passed { seat, next, second: self.queue.call_first() };
            }
        }
        // Nobody may have it: the one who leaves takes the baton for the release, unless another
        // one has it; so who comes now runs its request behind that.
        self.cohort.released(now, hold.details.chain);
        let leads = !self.queue.is_led();
        self.queue.set_led(true);
        LeaveOutcome::Release { seat, leads, in_turn }
    }
}
