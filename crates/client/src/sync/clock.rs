//! The clock that leases are counted on.

use std::time::Duration;

pub use super::backend::clock::*;

/// `duration` in nanoseconds; the longest there are, if it is longer.
#[inline]
pub const fn nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// How long ago this time was.
#[inline]
pub fn since(at: u64) -> Duration {
    Duration::from_nanos(now().saturating_sub(at))
}
