//! Threads, mutexes and the clock as the system has them.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
pub use std::sync::atomic;
pub(crate) use std::{thread, thread_local};

pub use parking_lot::{Condvar, MutexGuard};

/// Whether this is the models' version.
pub(crate) const IS_MODEL: bool = false;

/// A mutex without poison.
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

// A panic under it would leave the value half changed, and the next thread would not be told. But
// no panic can happen there: the code of these packages does not panic, and calls no code of a
// user's under a mutex.
impl<T> UnwindSafe for Mutex<T> {}
impl<T> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    /// A mutex that no thread holds.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits until no other thread holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// The value, without locking: no other thread has the mutex.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The clock that leases are counted on.
pub(super) mod clock {
    /// Nanoseconds on a clock that never jumps and goes on while the machine is suspended.
    ///
    /// Redis goes on counting a lease while this machine sleeps. With a clock that stops then (as
    /// `Instant` does on Linux), a client would trust a hold for longer than its lease.
    #[inline]
    pub fn now() -> u64 {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        // On the BSDs and on macOS this clock goes on during suspend.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(CLOCK);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
    }
}
