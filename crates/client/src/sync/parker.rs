//! The parker, in which a thread sleeps until another thread wakes it.

use std::time::Instant;

use super::atomic::{AtomicU8, Ordering};
use super::{Condvar, Mutex};

const EMPTY: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

/// Lets its thread sleep until [`unpark`](Self::unpark), which may also be called before the sleep.
///
/// `std::thread::park` is not used, because the user's program may use the thread's only token. A
/// sleep has one parker for all wake-ups (a grant, a message, a cancel). So each wake-up is only a
/// hint, and the woken thread checks whether the event has happened for which it waits.
#[derive(Debug)]
pub(super) struct Parker {
    state: AtomicU8,
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Parker {
    pub(super) fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), mutex: Mutex::new(()), condvar: Condvar::new() }
    }

    /// Sleeps until another thread wakes this thread, or until `deadline`. May return earlier.
    pub(super) fn park_until(&self, deadline: Option<Instant>) {
        if self.take_token() {
            return;
        }
        let mut guard = self.mutex.lock();
        // The mutex is held from here to the wait. An unpark that finds PARKED locks the mutex
        // before it notifies, so it cannot notify between this exchange and the wait.
        if self.state.compare_exchange(EMPTY, PARKED, Ordering::Acquire, Ordering::Acquire).is_err()
        {
            self.state.swap(EMPTY, Ordering::Acquire);
            return;
        }
        loop {
            let timed_out = match deadline {
                None => {
                    self.condvar.wait(&mut guard);
                    false
                }
                Some(deadline) => self.condvar.wait_until(&mut guard, deadline).timed_out(),
            };
            if self.take_token() {
                return;
            }
            if timed_out {
                // A swap takes a token that arrives at this moment, which a store would not. No
                // wake-up is lost, because the caller then checks everything that it waits for.
                self.state.swap(EMPTY, Ordering::Acquire);
                return;
            }
        }
    }

    /// Wakes the thread. If the thread does not sleep, its next `park_until` returns at once.
    #[inline]
    pub(super) fn unpark(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) == PARKED {
            drop(self.mutex.lock());
            self.condvar.notify_one();
        }
    }

    fn take_token(&self) -> bool {
        self.state.compare_exchange(NOTIFIED, EMPTY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
