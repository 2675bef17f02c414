//! The time that all processes of a machine share: `CLOCK_MONOTONIC`, in nanoseconds.

use std::hint;
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub(crate) const MICROSECOND: u64 = 1_000;
pub(crate) const MILLISECOND: u64 = 1_000 * MICROSECOND;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

pub(crate) fn now() -> u64 {
    read(ClockId::Monotonic)
}

/// Returns the processor time of this process so far.
pub(crate) fn process_cpu() -> u64 {
    read(ClockId::ProcessCPUTime)
}

/// Returns the processor time of this thread so far.
pub(crate) fn thread_cpu() -> u64 {
    read(ClockId::ThreadCPUTime)
}

pub(crate) fn sleep_until(at: u64) {
    thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}

/// Keeps the core busy until this time.
pub(crate) fn spin_until(at: u64) {
    while now() < at {
        hint::spin_loop();
    }
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}
