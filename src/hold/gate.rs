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
//! Baton: it is never lost. While the queue is not empty, the seat is taken or somebody leads; who
//! gives up with the baton hands it on.

use std::sync::Arc;

use super::{Cohort, Hold, Place, Site, Tenancy, Terms, clock};
use crate::acquire::{Queue, Signal, Waiter, Wake};
use crate::error::Error;
use crate::script::lock::Chain;
use crate::sync::{Mutex, Thread};

#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;

/// One name's seat, baton and queue in this process.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    seat: Option<Seat>,
    queue: Queue<Terms, Arc<Tenancy>>,
    cohort: Cohort,
    /// The process's place in the lock's queue, on its way from one leader to the next.
    place: Option<Box<Place>>,
    forced: u64,
}

/// The tenancy that the process has now.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) tenancy: Arc<Tenancy>,
    levels: Levels,
    /// Its renewal is on the way.
    pub(crate) renewing: bool,
    /// When a failed renewal is tried again.
    pub(crate) retry_at: u64,
    pub(crate) retries: u32,
    /// Keeps the site where a guard was forgotten. Never dropped under the gate's mutex.
    kept: Option<Arc<Site>>,
}

impl State {
    /// Gives a tenancy the seat. `Err`: its hold is over, or a forced unlock may have ended it.
    fn admit(&mut self, tenancy: &Arc<Tenancy>, terms: Terms) -> Result<Option<Seat>, ()> {
        if self.forced != tenancy.hold.asked.forced || !tenancy.is_held() {
            return Err(());
        }
        self.queue.set_led(false);
        self.cohort.granted(tenancy.hold.asked.at, tenancy.hold.share.places);
        Ok(self.seat.replace(Seat::new(Arc::clone(tenancy), terms)))
    }
}

impl Seat {
    fn new(tenancy: Arc<Tenancy>, terms: Terms) -> Self {
        let levels = Levels { inner: Vec::new(), outer: terms };
        Self { tenancy, levels, renewing: false, retry_at: 0, retries: 0, kept: None }
    }

    /// Whether the server may keep the hold past the deadline that is known here: a renewal or an
    /// extension may be on the way, or have an unknown outcome, or it was handed on for longer.
    pub(crate) fn may_outlive(&self) -> bool {
        let hold = &self.tenancy.hold;
        self.renewing || hold.is_unconfirmed() || hold.outlives_its_terms()
    }

    /// Whether some level asked for the watchdog.
    pub(crate) fn is_watched(&self) -> bool {
        self.levels.outer == Terms::Watched || self.levels.inner.contains(&Terms::Watched)
    }
}

/// How often the thread took the lock, and on what terms each time.
#[derive(Debug)]
struct Levels {
    outer: Terms,
    inner: Vec<Terms>,
}

impl Levels {
    fn count(&self) -> usize {
        1 + self.inner.len()
    }

    /// Ends the last level on these terms, or whichever is last. `false`: it was the only one.
    fn end(&mut self, terms: Option<Terms>) -> bool {
        let Some(last) = self.inner.pop() else { return false };
        let Some(terms) = terms.filter(|terms| *terms != last) else { return true };
        if let Some(at) = self.inner.iter().rposition(|level| *level == terms) {
            self.inner[at] = last;
        } else {
            // Guards may go in any order: the outer one went first.
            self.outer = last;
        }
        true
    }
}

/// The levels of a thread that waits on a condition, which it comes back with.
#[derive(Debug)]
pub(crate) struct Folded {
    levels: Levels,
    kept: Option<Arc<Site>>,
}

impl Folded {
    /// What the lock is to be taken on again: the watchdog if some level wants it, else the longest
    /// lease.
    pub(crate) fn terms(&self) -> Terms {
        let Levels { outer, inner } = &self.levels;
        inner.iter().fold(*outer, |longest, terms| match (longest, *terms) {
            (Terms::Fixed(one), Terms::Fixed(other)) => Terms::Fixed(one.max(other)),
            _ => Terms::Watched,
        })
    }
}

pub(crate) type GateWaiter = Waiter<Terms, Arc<Tenancy>>;
pub(crate) type GateSignal = Signal<Arc<Tenancy>>;

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
    /// Its lease was over before its reply was read, or a forced unlock of this process was answered
    /// since it was asked for, and only the server knows which came first.
    NotOurs,
}

/// What leaving did.
#[derive(Debug)]
pub(crate) enum Left {
    /// The tenancy is not in the seat: it was lost, or given back before.
    NotThere,
    /// Levels are left.
    StillHeld,
    /// The next thread has it; nothing is to be sent. The one behind it may be called after it.
    Passed { seat: Seat, next: Wake, second: Wake },
    /// The thread has the baton and must release the hold.
    Release { seat: Seat },
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
                place: None,
                forced: 0,
            }),
        }
    }

    pub(crate) fn enter(&self, thread: &Arc<Thread>, terms: Terms, waits: bool) -> Entered {
        let mut state = self.state.lock();
        if let Some(seat) = &mut state.seat {
            if !seat.tenancy.is_held() {
                return Entered::Expired(Arc::clone(&seat.tenancy));
            }
            if seat.tenancy.thread.id() == thread.id() {
                if seat.levels.count() >= DEEPEST {
                    return Entered::TooDeep;
                }
                seat.levels.inner.push(terms);
                return Entered::Again(Arc::clone(&seat.tenancy));
            }
        } else if state.queue.lead() {
            return Entered::Leads;
        }
        if !waits {
            return Entered::Occupied;
        }
        let waiter = state.queue.push(thread, terms);
        // It is awake already.
        if state.seat.is_some() && state.queue.first().is_some_and(|first| waiter.is(first)) {
            let _awake = state.queue.call_first();
        }
        Entered::Queued(waiter)
    }

    /// Whether the thread, or another one, has the seat: for locks whose queue is not this one.
    /// `None`: nobody has it.
    pub(crate) fn reenter(&self, thread: &Arc<Thread>, terms: Terms) -> Option<Entered> {
        let mut state = self.state.lock();
        let seat = state.seat.as_mut()?;
        if !seat.tenancy.is_held() {
            return Some(Entered::Expired(Arc::clone(&seat.tenancy)));
        }
        if seat.tenancy.thread.id() != thread.id() {
            return Some(Entered::Occupied);
        }
        if seat.levels.count() >= DEEPEST {
            return Some(Entered::TooDeep);
        }
        seat.levels.inner.push(terms);
        Some(Entered::Again(Arc::clone(&seat.tenancy)))
    }

    /// Leaves the queue without the lock. `Some`: something was decided first, and counts.
    pub(crate) fn give_up(&self, waiter: &Arc<GateWaiter>) -> Option<GateSignal> {
        self.state.lock().queue.give_up(waiter)
    }

    /// Gives the baton to the first in the queue, with the process's place, or lays it down. The
    /// place comes back if nobody wants it.
    pub(crate) fn hand_on(&self, place: Option<Box<Place>>) -> Option<Box<Place>> {
        let mut state = self.state.lock();
        let wake = state.queue.hand_on();
        let left = if state.queue.is_led() {
            state.place = place;
            None
        } else {
            place
        };
        drop(state);
        wake.now();
        left
    }

    /// The process's place, for the new leader.
    pub(crate) fn take_place(&self) -> Option<Box<Place>> {
        self.state.lock().place.take()
    }

    /// The leader was granted a hold: the seat is taken, the baton is laid down. `gone` is not held
    /// any more, whatever it says.
    pub(crate) fn admit(
        &self,
        tenancy: &Arc<Tenancy>,
        terms: Terms,
        gone: Option<&Arc<Hold>>,
    ) -> Admitted {
        let mut state = self.state.lock();
        if let Some(seat) = &state.seat
            && seat.tenancy.is_held()
            && gone.is_none_or(|gone| !Arc::ptr_eq(gone, &seat.tenancy.hold))
        {
            return Admitted::Taken(Arc::clone(&seat.tenancy.hold));
        }
        match state.admit(tenancy, terms) {
            Ok(stale) => Admitted::Seated(stale),
            Err(()) => Admitted::NotOurs,
        }
    }

    /// A hold is passed to a thread, by a lock that keeps its queue elsewhere. `false`: the hold is
    /// over, or another one was granted since the one who passes it left the seat.
    pub(crate) fn admit_passed(&self, tenancy: &Arc<Tenancy>, terms: Terms) -> bool {
        let mut state = self.state.lock();
        state.seat.is_none() && state.admit(tenancy, terms).is_ok()
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

    /// Ends one level of `tenancy`: the last one on `terms`, or simply the last one.
    pub(crate) fn leave(&self, tenancy: &Arc<Tenancy>, terms: Option<Terms>) -> Left {
        let now = clock::now();
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(seat) = state.seat.as_mut().filter(|seat| seat.is(tenancy)) else {
            return Left::NotThere;
        };
        if seat.levels.end(terms) {
            return Left::StillHeld;
        }
        let hold = &tenancy.hold;
        if state.cohort.may_pass(now)
            && state.queue.first().is_some_and(|first| hold.may_pass(*first.need(), now))
        {
            // Before the next one can know of it: other threads may ask this one's guard.
            tenancy.step_down();
            let mut passed = None;
            let wake = state.queue.grant_first(|first| {
                let next = Arc::new(Tenancy::new(Arc::clone(hold), Arc::clone(first.thread())));
                let mut next_seat = Seat::new(Arc::clone(&next), *first.need());
                next_seat.renewing = seat.renewing;
                passed = Some(next_seat);
                next
            });
            if let (Some(wake), Some(next)) = (wake, passed) {
                let seat = std::mem::replace(seat, next);
                return Left::Passed { seat, next: wake, second: state.queue.call_first() };
            }
        }
        state.cohort.released(now, hold.share.chain);
        state.queue.set_led(true);
        match state.seat.take() {
            Some(seat) => Left::Release { seat },
            None => Left::NotThere,
        }
    }

    /// The hold is not ours any more: frees the seat if it is there, whoever has it by now, and
    /// opens the gate.
    pub(crate) fn vacate(&self, hold: &Arc<Hold>) -> (Option<Seat>, Wake) {
        let mut state = self.state.lock();
        if !state.seat.as_ref().is_some_and(|seat| Arc::ptr_eq(&seat.tenancy.hold, hold)) {
            return (None, Wake::NOBODY);
        }
        let seat = state.seat.take();
        let wake = if state.queue.is_led() { Wake::NOBODY } else { state.queue.hand_on() };
        (seat, wake)
    }

    /// The server is in trouble: fails those who queued before the leader's request.
    pub(crate) fn fail_before(&self, arrival: u64, error: &Error) {
        let failed = self.state.lock().queue.tell_until(arrival, || Signal::Failed(error.clone()));
        failed.into_iter().for_each(Wake::now);
    }

    /// How many have queued so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.state.lock().queue.arrivals()
    }

    /// Looks at the seat, under the gate's mutex.
    pub(crate) fn with_seat<R>(&self, look: impl FnOnce(Option<&mut Seat>) -> R) -> R {
        look(self.state.lock().seat.as_mut())
    }

    /// The tenancy in the seat, with its hold count.
    pub(crate) fn tenant(&self) -> Option<(Arc<Tenancy>, usize)> {
        self.with_seat(|seat| seat.map(|seat| (Arc::clone(&seat.tenancy), seat.levels.count())))
    }

    /// The tenancy in the seat, if its hold is over. Both under the mutex: a tenancy that was just
    /// given back looks the same, and its hold may have been passed on.
    pub(crate) fn expired(&self) -> Option<Arc<Tenancy>> {
        let state = self.state.lock();
        let seat = state.seat.as_ref().filter(|seat| !seat.tenancy.is_held())?;
        Some(Arc::clone(&seat.tenancy))
    }

    /// Keeps `site` until `tenancy` leaves the seat.
    pub(crate) fn keep(&self, tenancy: &Arc<Tenancy>, site: Arc<Site>) {
        let unneeded = self.with_seat(|seat| match seat {
            Some(seat) if seat.is(tenancy) => seat.kept.replace(site),
            _ => Some(site),
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

    /// Wakes all who wait, for something that is not the gate's news.
    pub(crate) fn nudge(&self) {
        let waiting = self.state.lock().queue.nudge();
        waiting.into_iter().for_each(Wake::now);
    }
}

impl Seat {
    fn is(&self, tenancy: &Arc<Tenancy>) -> bool {
        Arc::ptr_eq(&self.tenancy, tenancy)
    }
}
