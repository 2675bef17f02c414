//! The queue of the threads of one process that wait for the same name, first come, first served.
//! One thread at a time has the *leadership*: only this thread, the leader, sends requests.
//!
//! The leadership is never lost, because the leader transfers it on every path. Before a thread
//! leaves the queue, it checks whether it was given the leadership or a grant in the meantime.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use redlatch_client::sync::atomic::{AtomicBool, Ordering};
use redlatch_client::sync::{Mutex, Spin, Thread, Waker};
use redlatch_client::was_cut;

use super::listening::Listening;
use super::wait::Claim;
use crate::error::Error;
use crate::observe::Way;

/// The right to send requests for a name. Each queue has one value of this type, so at most one
/// thread leads.
#[must_use = "if it is dropped, no thread can lead again"]
#[derive(Debug)]
pub(crate) struct QueueLeadership(());

/// The waiters in order, and the leadership. `N` is a waiter's need, `G` is the type of a grant,
/// and `I` is a leader's request state. The site's mutex guards the queue and all decisions about
/// it.
#[derive(Debug)]
pub(crate) struct Queue<N, G, I> {
    /// `None` while a thread leads: the leader, or a signal to the next leader, has the value.
    leadership: Option<QueueLeadership>,
    /// The time at which the server last answered a leader.
    last_answer: Option<Instant>,
    /// Whether the server answered the last leader that had enough time for a request.
    leader_was_answered: bool,
    /// `Some` after a thread has waited. (Boxed, because for most names no thread ever waits.)
    waiters: Option<Box<Waiters<N, G, I>>>,
}

#[derive(Debug)]
struct Waiters<N, G, I> {
    /// The waiters, with the first waiter at the front.
    queue: VecDeque<Arc<LocalWaiter<N, G, I>>>,
    /// The number of waiters that have queued so far. By this number, a leader's error reaches only
    /// the waiters that queued before the leader's request.
    arrivals: u64,
    spin: Arc<Spin>,
}

#[derive(Debug)]
pub(crate) struct LocalWaiter<N, G, I> {
    /// The thread that holds what is passed to the waiter.
    thread: Arc<Thread>,
    waker: Waker,
    need: N,
    arrival: u64,
    /// The waiter's signal. This field is set under the site's mutex, so a pass comes either before
    /// or after the waiter gives up.
    signal: Mutex<Option<Signal<G, I>>>,
    is_signalled: AtomicBool,
    /// Whether the waiter should stay awake for a moment, because it is the first in the queue and
    /// will soon get a grant.
    called: AtomicBool,
    spin: Arc<Spin>,
}

/// The signal that ends a waiter's time in the queue.
#[derive(Debug)]
pub(crate) enum Signal<G, I> {
    /// Another thread has passed its grant to the waiter.
    Passed(G),
    /// The waiter now sends the requests. It also gets the previous leader's lead, if that leader
    /// passed its lead on. (Without a leadership, the waiter sends requests only for itself.)
    Leadership(Option<QueueLeadership>, Option<Box<Lead<I>>>),
    /// The leader's request failed.
    Failed(Error),
}

/// A waiter that the caller must wake after the caller has released its mutexes.
#[must_use]
#[derive(Debug)]
pub(crate) struct Wake(Option<Waker>);

impl Wake {
    pub(crate) const NOBODY: Self = Self(None);

    pub(crate) fn of(waker: &Waker) -> Self {
        Self(Some(waker.clone()))
    }

    pub(crate) fn now(self) {
        if let Some(waker) = self.0 {
            waker.wake();
        }
    }
}

impl<N, G, I> Queue<N, G, I> {
    pub(crate) fn new() -> Self {
        let leadership = Some(QueueLeadership(()));
        Self { leadership, last_answer: None, leader_was_answered: false, waiters: None }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.is_led() || self.first().is_some()
    }

    /// Takes the leadership if no other thread leads or waits.
    pub(crate) fn try_lead(&mut self) -> Option<QueueLeadership> {
        if self.first().is_some() { None } else { self.lead_before_waiters() }
    }

    /// Takes the leadership if no other thread leads, even if threads wait.
    pub(crate) fn lead_before_waiters(&mut self) -> Option<QueueLeadership> {
        self.leadership.take()
    }

    /// Ends a leadership, so that no thread leads. If threads wait, the caller makes sure that
    /// another thread will promote the first of them.
    pub(crate) fn resign(&mut self, leadership: QueueLeadership) {
        self.leadership = Some(leadership);
    }

    pub(crate) fn is_led(&self) -> bool {
        self.leadership.is_none()
    }

    pub(crate) fn push(&mut self, thread: &Arc<Thread>, need: N) -> Arc<LocalWaiter<N, G, I>> {
        let waiters = self.waiters.get_or_insert_with(|| {
            Box::new(Waiters { queue: VecDeque::new(), arrivals: 0, spin: Arc::default() })
        });
        waiters.arrivals += 1;
        let waiter = Arc::new(LocalWaiter {
            thread: Arc::clone(thread),
            waker: thread.waker(),
            need,
            arrival: waiters.arrivals,
            signal: Mutex::new(None),
            is_signalled: AtomicBool::new(false),
            called: AtomicBool::new(false),
            spin: Arc::clone(&waiters.spin),
        });
        waiters.queue.push_back(Arc::clone(&waiter));
        waiter
    }

    /// Wakes the first waiter, so that it is awake when the caller passes a grant to it. Does
    /// nothing if spinning waiters have not saved time so far.
    pub(crate) fn call_first(&self) -> Wake {
        match self.first() {
            Some(first) if first.spin.is_worthwhile() => {
                first.called.store(true, Ordering::Relaxed);
                Wake::of(&first.waker)
            }
            _ => Wake::NOBODY,
        }
    }

    pub(crate) fn give_up(&mut self, waiter: &Arc<LocalWaiter<N, G, I>>) -> Option<Signal<G, I>> {
        let signal = waiter.take_signal();
        if signal.is_none()
            && let Some(waiters) = &mut self.waiters
        {
            waiters.queue.retain(|queued| !Arc::ptr_eq(queued, waiter));
        }
        signal
    }

    fn all(&self) -> impl Iterator<Item = &Arc<LocalWaiter<N, G, I>>> {
        self.waiters.iter().flat_map(|waiters| &waiters.queue)
    }

    fn pop(&mut self) -> Option<Arc<LocalWaiter<N, G, I>>> {
        self.waiters.as_mut()?.queue.pop_front()
    }

    pub(crate) fn first(&self) -> Option<&LocalWaiter<N, G, I>> {
        self.waiters.as_ref()?.queue.front().map(|first| &**first)
    }

    pub(crate) fn needs(&self) -> impl Iterator<Item = &N> {
        self.all().map(|waiter| waiter.need())
    }

    pub(crate) fn arrivals(&self) -> u64 {
        self.waiters.as_ref().map_or(0, |waiters| waiters.arrivals)
    }

    /// Passes the result of `make` to the first waiter in the queue.
    pub(crate) fn pass_first(
        &mut self,
        make: impl FnOnce(&LocalWaiter<N, G, I>) -> G,
    ) -> Option<Wake> {
        let first = self.pop()?;
        let grant = make(&first);
        Some(first.signal(Signal::Passed(grant)))
    }

    /// Gives the leadership to the first waiter. If the queue is empty, ends the leadership and
    /// returns the lead.
    pub(crate) fn promote(
        &mut self,
        leadership: QueueLeadership,
        lead: Option<Box<Lead<I>>>,
    ) -> (Wake, Option<Box<Lead<I>>>) {
        let Some(first) = self.pop() else {
            self.resign(leadership);
            return (Wake::NOBODY, lead);
        };
        (first.signal(Signal::Leadership(Some(leadership), lead)), None)
    }

    /// Returns the first waiters in order, at most `most` of them, and leaves them in the queue.
    pub(crate) fn first_ones(&self, most: usize) -> Vec<Arc<LocalWaiter<N, G, I>>> {
        self.all().take(most).cloned().collect()
    }

    /// Signals one waiter, at any position. Returns the signal if the waiter has left the queue.
    pub(crate) fn signal(
        &mut self,
        waiter: &Arc<LocalWaiter<N, G, I>>,
        signal: Signal<G, I>,
    ) -> Result<Wake, Signal<G, I>> {
        let Some(waiters) = &mut self.waiters else { return Err(signal) };
        match waiters.queue.iter().position(|queued| Arc::ptr_eq(queued, waiter)) {
            Some(at) => {
                waiters.queue.remove(at);
                Ok(waiter.signal(signal))
            }
            None => Err(signal),
        }
    }

    fn signal_until(
        &mut self,
        arrival: u64,
        mut signal: impl FnMut() -> Signal<G, I>,
    ) -> Vec<Wake> {
        let mut woken = Vec::new();
        while self.first().is_some_and(|first| first.arrival <= arrival)
            && let Some(first) = self.pop()
        {
            woken.push(first.signal(signal()));
        }
        woken
    }

    /// Returns the wake-ups for all waiters.
    fn nudge(&self) -> Vec<Wake> {
        self.all().map(|waiter| Wake::of(&waiter.waker)).collect()
    }
}

impl<N, G, I> LocalWaiter<N, G, I> {
    pub(crate) fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Returns the waiter's number in the order of arrival. The first waiter has number 1.
    pub(super) fn arrival(&self) -> u64 {
        self.arrival
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }

    pub(crate) fn need(&self) -> &N {
        &self.need
    }

    pub(crate) fn take_signal(&self) -> Option<Signal<G, I>> {
        self.signal.lock().take()
    }

    /// Stays awake for a moment, if [`Queue::call_first`] called this waiter.
    pub(super) fn spin_if_called(&self) {
        if self.called.swap(false, Ordering::Relaxed) {
            self.spin.spin(|| self.is_signalled.load(Ordering::Acquire));
        }
    }

    fn signal(&self, signal: Signal<G, I>) -> Wake {
        *self.signal.lock() = Some(signal);
        self.is_signalled.store(true, Ordering::Release);
        Wake::of(&self.waker)
    }
}

/// A leader's state during its wait. The next leader gets it with the leadership.
#[derive(Debug)]
pub(crate) struct Lead<I> {
    pub(crate) listening: Listening,
    /// The synchronizer's part of the lead: for a lock, the lock's queue entry.
    pub(crate) request_state: I,
}

impl<I> Lead<I> {
    pub(crate) fn new(request_state: I) -> Self {
        Self { listening: Listening::default(), request_state }
    }
}

/// A name in one client, whose threads wait in a [`Queue`].
pub(crate) trait QueueSite {
    type Need: Copy;
    type Grant;
    type RequestState;

    /// How a leader got a grant that it [collects](Self::collect).
    const COLLECTED: Way = Way::HandedOn;

    /// Calls `act` with the queue, under the queue's mutex.
    fn with_queue<R>(&self, act: impl FnOnce(&mut QueueOf<Self>) -> R) -> R;

    /// Returns a grant that has come for the leader without a request since the last call: by a
    /// message, or from another thread. (For some synchronizers, a message is only a hint, and a
    /// leader collects nothing.)
    fn collect(
        &self,
        _lead: &mut Lead<Self::RequestState>,
        _claim: &Claim<'_, Self::Need>,
    ) -> Option<Self::Grant> {
        None
    }

    /// Whether the leader can collect a grant, or can end its pause. A leader calls this during
    /// each sleep.
    fn may_collect(&self, _request: &Self::RequestState) -> bool {
        false
    }

    /// Takes the leadership from a leader that is done, and [promotes](Queue::promote) the next
    /// thread.
    fn transfer_leadership(
        &self,
        leadership: QueueLeadership,
        lead: Option<Box<Lead<Self::RequestState>>>,
    ) {
        let (wake, _left) = self.with_queue(|queue| queue.promote(leadership, lead));
        wake.now();
    }

    /// Removes a waiter that gives up. If another thread has already signalled the waiter, returns
    /// that signal, and the waiter must obey it.
    fn give_up(&self, waiter: &Arc<WaiterOf<Self>>) -> Option<SignalOf<Self>> {
        self.with_queue(|queue| queue.give_up(waiter))
    }

    fn arrivals(&self) -> u64 {
        self.with_queue(|queue| queue.arrivals())
    }

    /// Records that the server answered the leader at this time.
    fn was_answered(&self, at: Instant) {
        self.with_queue(|queue| {
            queue.last_answer = queue.last_answer.max(Some(at));
            queue.leader_was_answered = true;
        });
    }

    /// Records that the server has not answered the leader, or has answered with an error.
    fn was_not_answered(&self) {
        self.with_queue(|queue| queue.leader_was_answered = false);
    }

    fn leader_was_answered(&self) -> bool {
        self.with_queue(|queue| queue.leader_was_answered)
    }

    fn last_answer(&self) -> Option<Instant> {
        self.with_queue(|queue| queue.last_answer)
    }

    /// Signals all waiters up to number `arrival`.
    fn signal_until(&self, arrival: u64, signal: impl FnMut() -> SignalOf<Self>) {
        let woken = self.with_queue(|queue| queue.signal_until(arrival, signal));
        woken.into_iter().for_each(Wake::now);
    }

    /// Fails the waiters that queued before the leader's failed request. If the leader's own limit
    /// ended the request, fails no waiter: the waiters have other limits, and one of them sends the
    /// next request.
    fn fail_before(&self, arrival: u64, error: &Error) {
        if was_cut() {
            return;
        }
        self.signal_until(arrival, || Signal::Failed(error.clone()));
    }

    /// Wakes all waiters without a signal.
    fn nudge(&self) {
        let waiting = self.with_queue(|queue| queue.nudge());
        waiting.into_iter().for_each(Wake::now);
    }
}

type QueueOf<Q> =
    Queue<<Q as QueueSite>::Need, <Q as QueueSite>::Grant, <Q as QueueSite>::RequestState>;
pub(super) type WaiterOf<Q> =
    LocalWaiter<<Q as QueueSite>::Need, <Q as QueueSite>::Grant, <Q as QueueSite>::RequestState>;
pub(super) type SignalOf<Q> = Signal<<Q as QueueSite>::Grant, <Q as QueueSite>::RequestState>;
