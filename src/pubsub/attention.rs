//! Whether anybody of this process waits for messages just now.
//!
//! A semaphore that is given permits a thousand times a second tells every process that listens
//! each time, though most threads stay away from the race or were let in already. Waking the
//! subscriber for each of those messages costs more than all else. So while nobody waits, they lie
//! for a moment and are read together.

use std::time::Duration;

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex};

const NAP: Duration = Duration::from_micros(500);

#[derive(Debug)]
pub(crate) struct Attention {
    waiting: AtomicUsize,
    napping: AtomicBool,
    mutex: Mutex<()>,
    wanted: Condvar,
}

impl Attention {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            napping: AtomicBool::new(false),
            mutex: Mutex::new(()),
            wanted: Condvar::new(),
        }
    }

    /// Somebody waits for messages from here on, and does not want to wait for the nap's end.
    pub(crate) fn begin(&self) {
        // Raised before the look, as the subscriber says that it naps before it looks at this: one
        // of the two sees the other.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.napping.load(Ordering::SeqCst) {
            drop(self.mutex.lock());
            self.wanted.notify_one();
        }
    }

    pub(crate) fn end(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// The subscriber has read all there was: sleeps for a moment if nobody waits.
    pub(crate) fn nap(&self) {
        // A model's clock stands still.
        if cfg!(all(test, shuttle)) || self.waiting.load(Ordering::SeqCst) > 0 {
            return;
        }
        let mut guard = self.mutex.lock();
        self.napping.store(true, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            (guard, _) = self.wanted.wait_for(guard, NAP);
        }
        self.napping.store(false, Ordering::SeqCst);
        drop(guard);
    }
}
