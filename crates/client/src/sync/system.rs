//! Threads, mutexes and the clock of the system.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
pub use std::sync::atomic;
pub(crate) use std::{thread, thread_local};

pub use parking_lot::{Condvar, MutexGuard};

/// Whether this is the version for the models.
pub(crate) const IS_MODEL: bool = false;

/// A mutex without poison.
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

// A panic with the mutex locked would leave a half changed value. This cannot happen: the code of
// these packages does not panic, and calls no user code with a mutex locked.
impl<T> UnwindSafe for Mutex<T> {}
impl<T> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    /// A mutex that no thread has locked.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Blocks until no other thread has the mutex.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }

    /// The value, without locking: the exclusive reference proves that no thread has the mutex.
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

/// The clock that measures leases.
pub(super) mod clock {
    /// Returns the time in nanoseconds, on a clock that never jumps and keeps running during
    /// suspend.
    ///
    /// At the server, a lease also ends while this machine is suspended. With a clock that stops
    /// during suspend (as `Instant` does on Linux), a client would trust a hold for longer than its
    /// lease.
    #[inline]
    pub fn now() -> u64 {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        // On the BSDs and on macOS this clock keeps running while the machine is suspended.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(CLOCK);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
    }
}
