//! Spinning: the first thread in the queue stays awake if a hold will soon be passed to it.
//!
//! Waking a thread takes 2 to 50 us, longer than many holds last. So a thread that passes a hold
//! also wakes the thread that is next after it. That thread spins for a moment, so that it is awake
//! when the hold comes. If holds last longer, the spin is in vain. If other threads want the
//! processors, the spin even does harm, since the holder may have to wait for one. So a spin has a
//! price: after vain spins, the queue must pass some holds without spinning before the next try.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::IS_MODEL;

/// The longest spin: as long as a wake-up may take. After it, a sleep would have been as fast.
const LONGEST_SPIN: Duration = Duration::from_micros(30);
/// In microseconds: the gain if a hold finds its thread awake, the credit for a pass without
/// spinning, and the highest balance.
const GAIN: i64 = 10;
const REPAID: i64 = 1;
const MOST_CREDIT: i64 = 100;
/// The highest loss of one spin: a thread that was stopped says nothing about the next pass.
const MOST_LOST: Duration = Duration::from_millis(10);

/// The gain of spinning in one queue so far.
#[derive(Debug, Default)]
pub struct Spin {
    /// The balance in microseconds. Below zero, spinning does not pay.
    balance: AtomicI64,
}

/// Whether there are several processors. With one, a spin would keep the holder from working.
static MORE_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|count| count > NonZero::<usize>::MIN));

impl Spin {
    /// Whether to spin this time.
    #[inline]
    pub fn is_worthwhile(&self) -> bool {
        *MORE_PROCESSORS && self.has_paid()
    }

    /// As [`is_worthwhile`](Self::is_worthwhile), for a thread that waits for another process,
    /// which may be on another machine.
    #[inline]
    pub fn has_paid(&self) -> bool {
        // In a model, nothing else happens while a thread spins.
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
        // If the hold came too late, the spin was in vain: a yield gave the processor to other
        // threads, which want it.
        if passed < longest {
            if self.balance.load(Ordering::Relaxed) < MOST_CREDIT {
                self.balance.fetch_add(GAIN, Ordering::Relaxed);
            }
        } else {
            let lost = passed.min(MOST_LOST).as_micros();
            self.balance.fetch_sub(i64::try_from(lost).unwrap_or(0), Ordering::Relaxed);
        }
    }
}
