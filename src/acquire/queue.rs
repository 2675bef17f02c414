//! The threads of one process that wait for the same thing: first come, first served, and one of
//! them at a time, who has the *baton*, talks to Redis.
//!
//! Baton: it is never lost. Who leads hands it on, on every path; who leaves the queue looks first
//! whether it was given the baton or a grant meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Wait, slow_poll};
use crate::error::Error;
use crate::node::Core;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Spin, Thread};

/// Who waits, in order, and whether somebody leads. `N` is what a waiter needs, `G` what it is
/// granted. Part of a state behind a mutex of its owner's, under which all is decided.
#[derive(Debug)]
pub(crate) struct Queue<N, G> {
    led: bool,
    waiters: VecDeque<Arc<Waiter<N, G>>>,
    /// Counts who came, so that a leader's news reaches those who came before its request.
    arrivals: u64,
    spin: Arc<Spin>,
}

/// A thread that stands in a queue.
#[derive(Debug)]
pub(crate) struct Waiter<N, G> {
    thread: Arc<Thread>,
    need: N,
    arrival: u64,
    /// Set under the owner's mutex, so that grant against give-up is decided there.
    signal: Mutex<Option<Signal<G>>>,
    told: AtomicBool,
    /// It is first in line, and is to wait awake for a moment.
    called: AtomicBool,
    spin: Arc<Spin>,
}

/// What a waiter is told.
#[derive(Debug)]
pub(crate) enum Signal<G> {
    /// It has what it waits for.
    Granted(G),
    /// It leads now.
    Baton,
    /// The leader found the server in trouble.
    Failed(Error),
}

/// Somebody to wake, once no mutex is held.
#[must_use]
#[derive(Debug)]
pub(crate) struct Wake(Option<Arc<Thread>>);

impl Wake {
    pub(crate) const NOBODY: Self = Self(None);

    pub(crate) fn thread(thread: &Arc<Thread>) -> Self {
        Self(Some(Arc::clone(thread)))
    }

    pub(crate) fn now(self) {
        if let Some(thread) = self.0 {
            thread.parker().unpark();
        }
    }
}

impl<N, G> Queue<N, G> {
    pub(crate) fn new() -> Self {
        Self { led: false, waiters: VecDeque::new(), arrivals: 0, spin: Arc::default() }
    }

    /// Whether somebody leads or waits.
    pub(crate) fn is_busy(&self) -> bool {
        self.led || !self.waiters.is_empty()
    }

    /// Takes the baton, if nobody is before.
    pub(crate) fn lead(&mut self) -> bool {
        let free = !self.is_busy();
        self.led |= free;
        free
    }

    /// The baton is with somebody in any case: who leads now had it handed over by other means.
    pub(crate) fn set_led(&mut self, led: bool) {
        self.led = led;
    }

    pub(crate) fn is_led(&self) -> bool {
        self.led
    }

    pub(crate) fn push(&mut self, thread: &Arc<Thread>, need: N) -> Arc<Waiter<N, G>> {
        self.arrivals += 1;
        let waiter = Arc::new(Waiter {
            thread: Arc::clone(thread),
            need,
            arrival: self.arrivals,
            signal: Mutex::new(None),
            told: AtomicBool::new(false),
            called: AtomicBool::new(false),
            spin: Arc::clone(&self.spin),
        });
        self.waiters.push_back(Arc::clone(&waiter));
        waiter
    }

    /// Something is about to be passed to the first in the queue: it should be awake by then, if
    /// that has been of use before.
    pub(crate) fn call_first(&self) -> Wake {
        match self.waiters.front() {
            Some(first) if self.spin.is_worthwhile() => {
                first.called.store(true, Ordering::Relaxed);
                Wake::thread(&first.thread)
            }
            _ => Wake::NOBODY,
        }
    }

    /// Leaves the queue with nothing. `Some`: something was decided first, and counts.
    pub(crate) fn give_up(&mut self, waiter: &Arc<Waiter<N, G>>) -> Option<Signal<G>> {
        let signal = waiter.take_signal();
        if signal.is_none() {
            self.waiters.retain(|queued| !Arc::ptr_eq(queued, waiter));
        }
        signal
    }

    /// Who is first in the queue.
    pub(crate) fn first(&self) -> Option<&Waiter<N, G>> {
        self.waiters.front().map(|first| &**first)
    }

    /// What those in the queue need, in order.
    pub(crate) fn needs(&self) -> impl Iterator<Item = &N> {
        self.waiters.iter().map(|waiter| waiter.need())
    }

    /// Grants the first in the queue what `make` makes for it.
    pub(crate) fn grant_first(&mut self, make: impl FnOnce(&Waiter<N, G>) -> G) -> Option<Wake> {
        let first = self.waiters.pop_front()?;
        let grant = make(&first);
        Some(first.tell(Signal::Granted(grant)))
    }

    /// Gives the baton to the first in the queue, or lays it down.
    pub(crate) fn hand_on(&mut self) -> Wake {
        match self.waiters.pop_front() {
            Some(first) => {
                self.led = true;
                first.tell(Signal::Baton)
            }
            None => {
                self.led = false;
                Wake::NOBODY
            }
        }
    }

    /// How many have come so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Tells all who came until `arrival` the same.
    pub(crate) fn tell_until(
        &mut self,
        arrival: u64,
        mut signal: impl FnMut() -> Signal<G>,
    ) -> Vec<Wake> {
        let mut told = Vec::new();
        while self.waiters.front().is_some_and(|first| first.arrival <= arrival)
            && let Some(first) = self.waiters.pop_front()
        {
            told.push(first.tell(signal()));
        }
        told
    }

    /// All who wait, to be woken for something that is not the queue's news.
    pub(crate) fn nudge(&self) -> Vec<Wake> {
        self.waiters.iter().map(|waiter| Wake(Some(Arc::clone(&waiter.thread)))).collect()
    }
}

impl<N, G> Waiter<N, G> {
    pub(crate) fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }

    pub(crate) fn need(&self) -> &N {
        &self.need
    }

    pub(crate) fn take_signal(&self) -> Option<Signal<G>> {
        self.signal.lock().take()
    }

    /// Sleeps until told something (`Ok(Some)`), until the wait is over (`Ok(None)`), or until it
    /// is cancelled or the client shut down. `give_up` leaves the queue under its mutex; `look` is
    /// called after each wake-up.
    pub(crate) fn stand(
        self: &Arc<Self>,
        core: &Core,
        name: &Arc<str>,
        wait: &Wait<'_>,
        give_up: impl Fn(&Arc<Self>) -> Option<Signal<G>>,
        look: impl Fn(),
    ) -> Result<Option<Signal<G>>, Error> {
        loop {
            if self.called.swap(false, Ordering::Relaxed) {
                self.spin.spin(|| self.told.load(Ordering::Acquire));
            }
            if let Some(signal) = self.take_signal() {
                return Ok(Some(signal));
            }
            // A grant that was decided before the end of the wait wins.
            if wait.is_over() {
                return Ok(give_up(self));
            }
            if let Err(error) = wait.check(core, name) {
                return match give_up(self) {
                    None => Err(error),
                    signal => Ok(signal),
                };
            }
            wait.wakeable(&self.thread, || {
                // After the registration: a cancel before it woke nobody.
                if wait.check(core, name).is_ok() {
                    self.thread.parker().park_until(wait.sleep_until(slow_poll()));
                }
            });
            look();
        }
    }

    fn tell(&self, signal: Signal<G>) -> Wake {
        *self.signal.lock() = Some(signal);
        self.told.store(true, Ordering::Release);
        Wake(Some(Arc::clone(&self.thread)))
    }
}
