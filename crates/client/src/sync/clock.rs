//! The clock that leases are counted on.

use std::time::Duration;

#[cfg(all(shuttle, feature = "testing"))]
pub use model::now;

/// Nanoseconds on a clock that never jumps and goes on while the machine is suspended.
///
/// Redis goes on counting a lease while this machine sleeps, so a clock that stops then (as
/// `Instant` does on Linux) would trust a hold longer than its lease.
#[cfg(not(all(shuttle, feature = "testing")))]
#[inline]
pub fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // Goes on during suspend on the BSDs and on macOS.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(CLOCK);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// `duration` in nanoseconds; the longest there are, if it is longer.
#[inline]
pub const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// The model tests' clock: moved by chance and by the tests, so that a schedule can be run again.
#[cfg(all(shuttle, feature = "testing"))]
pub mod model {
    use std::cell::Cell;

    use shuttle::rand::{Rng, thread_rng};

    // All threads of a model run on one, and each model on a thread of its own.
    thread_local! {
        static NOW: Cell<u64> = const { Cell::new(1) };
    }

    pub fn now() -> u64 {
        advance(if thread_rng().gen_bool(0.5) { 25_000 } else { 0 });
        NOW.get()
    }

    pub fn advance(nanos: u64) {
        NOW.set(NOW.get() + nanos);
    }
}
