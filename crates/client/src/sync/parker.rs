//! One thread's bed: it sleeps here, and a thread with news wakes it.

use std::time::Instant;

use super::atomic::{AtomicU8, Ordering};
use super::{Condvar, Mutex};

const EMPTY: u8 = 0;
const PARKED: u8 = 1;
const NOTIFIED: u8 = 2;

/// Lets its thread sleep until [`unpark`](Self::unpark), which may come first.
///
/// Not `std::thread::park`: that has one token a thread, which belongs to the user's program. A
/// thread has one parker for all wake-ups (a grant, a message, a cancel), so each is a hint: the
/// woken thread checks again for the event it awaits.
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

    /// Sleeps until woken or until `deadline`; may also return for no reason.
    pub(super) fn park_until(&self, deadline: Option<Instant>) {
        if self.take_token() {
            return;
        }
        let mut guard = self.mutex.lock();
        // From here to the wait the mutex is held. An unpark that finds PARKED takes the mutex
        // before it notifies, so it cannot notify in the gap between this exchange and the wait.
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
                // The swap and not a store: a token that arrives just now is taken along, since
                // the caller looks at everything it waits for after this returns.
                self.state.swap(EMPTY, Ordering::Acquire);
                return;
            }
        }
    }

    /// Wakes the thread, or lets its next `park_until` return at once.
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
