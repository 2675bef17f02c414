//! The time that all processes of a machine share: `CLOCK_MONOTONIC`, in nanoseconds.

use std::hint;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000 * MICROSECOND;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// A holder keeps its core busy for at most this time. For longer times, it sleeps.
pub(crate) const SPUN: u64 = 100 * MICROSECOND;

pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

pub(crate) fn sleep_until(at: u64) {
    thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}

pub(crate) fn work_until(at: u64) {
    if at.saturating_sub(now()) > SPUN {
        sleep_until(at);
    }
    while now() < at {
        hint::spin_loop();
    }
}
