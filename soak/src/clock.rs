//! The clock for all times in a history, which all processes of the machine share.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of a clock that keeps running while the machine is suspended, as leases do.
pub(crate) fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let now = clock_gettime(CLOCK);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanos
}

/// Converts a duration to nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts milliseconds to nanoseconds.
pub(crate) const fn ms(count: u64) -> u64 {
    count * 1_000_000
}
