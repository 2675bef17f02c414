//! Whether the first in line waits awake for a hold that is about to be passed to it.
//!
//! Waking a thread takes 2 to 50 us, longer than many a hold lasts. So a thread that passes a hold
//! also calls the thread that is first in line then, and that one stays awake for a moment: it is
//! awake when the hold comes. If holds last longer, spinning is in vain; if others want the
//! processors, it is worse, since the holder may have to wait for one. So spinning has a price:
//! passes without it must make up for the vain ones before the next try.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::IS_MODEL;

/// As long as a wake-up may take: past that, sleeping would have been as fast.
const LONGEST_SPIN: Duration = Duration::from_micros(30);
/// The worth of a hold that finds its thread awake, the credit of a pass without spinning, and the
/// most credit: microseconds.
const GAIN: i64 = 10;
const REPAID: i64 = 1;
const MOST_CREDIT: i64 = 100;
/// A thread that was stopped for a minute says nothing of the next pass.
const MOST_LOST: Duration = Duration::from_millis(10);

/// The worth of spinning in one queue so far.
#[derive(Debug, Default)]
pub struct Spin {
    /// In microseconds. Below zero it is not worthwhile.
    balance: AtomicI64,
}

/// With one processor, a spinning thread keeps the holder from working.
static MORE_PROCESSORS: LazyLock<bool> =
    LazyLock::new(|| available_parallelism().is_ok_and(|count| count > NonZero::<usize>::MIN));

impl Spin {
    /// Whether to spin this time.
    #[inline]
    pub fn is_worthwhile(&self) -> bool {
        *MORE_PROCESSORS && self.has_paid()
    }

    /// The same for a thread that waits for another process, which may have a processor of its own.
    #[inline]
    pub fn has_paid(&self) -> bool {
        // In a model nothing happens while a thread spins.
        if IS_MODEL {
            return false;
        }
        let worthwhile = self.balance.load(Ordering::Relaxed) >= 0;
        if !worthwhile {
            self.balance.fetch_add(REPAID, Ordering::Relaxed);
        }
        worthwhile
    }

    /// Spins until `done`, but not for long.
    pub fn spin(&self, done: impl Fn() -> bool) {
        self.spin_for(LONGEST_SPIN, done);
    }

    /// Spins until `done`, but not for longer than this.
    pub fn spin_for(&self, longest: Duration, done: impl Fn() -> bool) {
        let begun = Instant::now();
        let mut passed = Duration::ZERO;
        while !done() && passed < longest {
            // The holder may have been put behind this thread, on the same processor.
            std::thread::yield_now();
            passed = begun.elapsed();
        }
        // Late is in vain, too: others want the processor, and a yield gave it to them.
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
