//! Spinning: the first thread in the queue does not sleep if a hold will soon be passed to it.
//!
//! Waking a thread takes 2 to 50 us, which is longer than many holds last. So when thread A passes
//! a hold to thread B, A also wakes thread C, the next thread after B. C spins for a moment, so
//! that C is awake when B passes the hold on. If holds last longer, C spins in vain. If other
//! threads need the processors, the spin even does harm, because B may have to wait for a
//! processor. So after spins in vain, a queue must pass some holds without a spin before a thread
//! spins again.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::IS_MODEL;

/// The longest spin, which is about the time of a wake-up. A longer spin would be no faster than a
/// sleep.
const LONGEST_SPIN: Duration = Duration::from_micros(30);
/// In microseconds: the gain if the thread is awake when its hold is passed, the credit for a pass
/// without spinning, and the highest balance.
const GAIN: i64 = 10;
const REPAID: i64 = 1;
const MAX_CREDIT: i64 = 100;
/// The highest loss of one spin. A spin seems much longer if its thread was stopped during the
/// spin.
const MAX_LOST: Duration = Duration::from_millis(10);

/// The gain of spinning in one queue so far.
#[derive(Debug, Default)]
pub struct Spin {
    /// The balance in microseconds. If it is negative, threads do not spin.
    balance: AtomicI64,
}

/// Whether there are several processors. With only one, a spin would keep the holder from working.
static MORE_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|count| count > NonZero::<usize>::MIN));

impl Spin {
    /// Whether to spin this time.
    #[inline]
    pub fn is_worthwhile(&self) -> bool {
        *MORE_PROCESSORS && self.has_paid()
    }

    /// Like [`is_worthwhile`](Self::is_worthwhile), for a thread that waits for another process,
    /// which may be on another machine.
    #[inline]
    pub fn has_paid(&self) -> bool {
        // In a model, no other thread runs while a thread spins.
        if IS_MODEL {
            return false;
        }
        let worthwhile = self.balance.load(Ordering::Relaxed) >= 0;
        if !worthwhile {
            self.balance.fetch_add(REPAID, Ordering::Relaxed);
        }
        worthwhile
    }

    /// Spins until `done`, but at most for [`LONGEST_SPIN`].
    pub fn spin(&self, done: impl Fn() -> bool) {
        self.spin_for(LONGEST_SPIN, done);
    }

    /// Spins until `done`, but at most for `longest`.
    pub fn spin_for(&self, longest: Duration, done: impl Fn() -> bool) {
        let begun = Instant::now();
        let mut passed = Duration::ZERO;
        while !done() && passed < longest {
            // The holder may be waiting for this thread's processor.
            std::thread::yield_now();
            passed = begun.elapsed();
        }
        // A spin that took longer than `longest` was in vain, even if `done` is true now: a yield
        // gave the processor to other threads, which need it.
        if passed < longest {
            if self.balance.load(Ordering::Relaxed) < MAX_CREDIT {
                self.balance.fetch_add(GAIN, Ordering::Relaxed);
            }
        } else {
            let lost = passed.min(MAX_LOST).as_micros();
            self.balance.fetch_sub(i64::try_from(lost).unwrap_or(0), Ordering::Relaxed);
        }
    }
}
