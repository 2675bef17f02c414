//! Threads, mutexes and the clock as the system has them.

pub use std::sync::atomic;

pub use parking_lot::{Condvar, Mutex, MutexGuard};
pub(crate) use std::{thread, thread_local};

/// Whether this is the models' version.
pub(crate) const IS_MODEL: bool = false;

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
