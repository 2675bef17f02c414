//! Who of this process waits for permits of one semaphore.
//!
//! While permits are free every thread asks Redis by itself. A refusal closes the gate: from then
//! on threads queue, and the first of them leads. A permit given back in this process may go to
//! the first in line with no round trip, if it covers its whole need: never a part, or two
//! processes that each keep a part of what they need wait for each other for ever.

use std::sync::Arc;
use std::time::Duration;

use super::queue::{Queue, Signal, Waiter, Wake};
use super::turn::{Backoff, Turn};
use crate::error::Error;
use crate::hold::clock;
use crate::sync::{Mutex, Thread};

pub(crate) type PermitWaiter = Waiter<u32, ()>;
pub(crate) type PermitSignal = Signal<()>;

/// One semaphore's queue in this process.
#[derive(Debug)]
pub(crate) struct PermitGate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queue: Queue<u32, ()>,
    /// Who leads: the first in line, though no longer in the queue.
    leader: Option<Leader>,
    turn: Turn,
    backoff: Backoff,
}

#[derive(Debug)]
struct Leader {
    thread: Arc<Thread>,
    need: u32,
    /// Permits were passed to it; it finds them before it asks again.
    given: bool,
}

/// What a thread found at the gate.
#[derive(Debug)]
pub(crate) enum PermitEntered {
    /// Nobody waits: it may ask by itself.
    Open,
    Leads,
    Queued(Arc<PermitWaiter>),
    /// Somebody waits, and it will not.
    Occupied,
}

impl PermitGate {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                queue: Queue::new(),
                leader: None,
                turn: Turn::new(),
                backoff: Backoff::default(),
            }),
        }
    }

    pub(crate) fn enter(&self, thread: &Arc<Thread>, need: u32, waits: bool) -> PermitEntered {
        let mut state = self.state.lock();
        if !state.queue.is_busy() {
            return PermitEntered::Open;
        }
        if !waits {
            return PermitEntered::Occupied;
        }
        PermitEntered::Queued(state.queue.push(thread, need))
    }

    /// The server has refused the thread: it leads, or queues if somebody was refused before it.
    pub(crate) fn refused(&self, thread: &Arc<Thread>, need: u32) -> PermitEntered {
        let mut state = self.state.lock();
        if state.queue.lead() {
            state.lead(thread, need);
            return PermitEntered::Leads;
        }
        PermitEntered::Queued(state.queue.push(thread, need))
    }

    /// The thread was given the baton.
    pub(crate) fn leads(&self, thread: &Arc<Thread>, need: u32) {
        self.state.lock().lead(thread, need);
    }

    pub(crate) fn give_up(&self, waiter: &Arc<PermitWaiter>) -> Option<PermitSignal> {
        self.state.lock().queue.give_up(waiter)
    }

    /// Whether the leader was passed permits.
    pub(crate) fn is_given(&self) -> bool {
        self.state.lock().leader.as_ref().is_some_and(|leader| leader.given)
    }

    /// The leader takes what it was passed.
    pub(crate) fn take_given(&self) -> bool {
        let mut state = self.state.lock();
        state.leader.as_mut().is_some_and(|leader| std::mem::take(&mut leader.given))
    }

    /// The leader is done, with or without permits: the next one leads. Returns what it was passed
    /// and did not take.
    pub(crate) fn hand_on(&self) -> u32 {
        let mut state = self.state.lock();
        let left = state.leader.take().filter(|leader| leader.given).map_or(0, |left| left.need);
        let wake = state.queue.hand_on();
        drop(state);
        wake.now();
        left
    }

    /// The server granted permits.
    pub(crate) fn granted(&self) {
        let now = clock::now();
        let turn = &mut self.state.lock().turn;
        turn.before(now);
        turn.granted(now);
    }

    /// How long a leader that was woken stays away from the race, having waited for `waited`.
    pub(crate) fn pause(&self, waited: Duration) -> Duration {
        let state = self.state.lock();
        state.turn.pause(clock::now()).unwrap_or_else(|| state.backoff.delay(waited))
    }

    /// Passes permits to those first in line, as far as they cover whole needs. Returns the rest,
    /// which must be given back to the server.
    pub(crate) fn pass(&self, permits: u32) -> u32 {
        let now = clock::now();
        let mut wakes = Vec::new();
        let mut rest = permits;
        let mut state = self.state.lock();
        while rest > 0 && state.turn.may_pass(now) {
            let Some((need, wake)) = state.pass_first(rest) else { break };
            rest -= need;
            state.turn.granted(now);
            wakes.push(wake);
        }
        if rest > 0 {
            state.turn.released(now);
        }
        drop(state);
        wakes.into_iter().for_each(Wake::now);
        rest
    }

    pub(crate) fn arrivals(&self) -> u64 {
        self.state.lock().queue.arrivals()
    }

    pub(crate) fn fail_before(&self, arrival: u64, error: &Error) {
        let failed = self.state.lock().queue.tell_until(arrival, || Signal::Failed(error.clone()));
        failed.into_iter().for_each(Wake::now);
    }

    pub(crate) fn with_turn<R>(&self, look: impl FnOnce(&mut Turn) -> R) -> R {
        look(&mut self.state.lock().turn)
    }

    pub(crate) fn with_backoff<R>(&self, look: impl FnOnce(&mut Backoff) -> R) -> R {
        look(&mut self.state.lock().backoff)
    }

    pub(crate) fn nudge(&self) {
        let waiting = self.state.lock().queue.nudge();
        waiting.into_iter().for_each(Wake::now);
    }
}

impl State {
    fn lead(&mut self, thread: &Arc<Thread>, need: u32) {
        self.leader = Some(Leader { thread: Arc::clone(thread), need, given: false });
    }

    /// Passes to the first in line, if that needs no more than `permits`.
    fn pass_first(&mut self, permits: u32) -> Option<(u32, Wake)> {
        if let Some(leader) = self.leader.as_mut().filter(|leader| !leader.given) {
            if leader.need > permits {
                return None;
            }
            leader.given = true;
            return Some((leader.need, Wake::thread(&leader.thread)));
        }
        let need = self.queue.first_need().copied().filter(|need| *need <= permits)?;
        // Somebody who was told to lead and does not yet is first in line, too.
        if self.leader.is_none() && self.queue.is_led() {
            return None;
        }
        let wake = self.queue.grant_first(|_| ())?;
        Some((need, wake))
    }
}
