//! The clock that measures leases.

use std::time::Duration;

pub use super::backend::clock::*;

/// `duration` in nanoseconds, or `u64::MAX` if it is longer.
#[inline]
pub const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// The time that has passed since `at`.
#[inline]
pub fn since(at: u64) -> Duration {
    Duration::from_nanos(now().saturating_sub(at))
}
