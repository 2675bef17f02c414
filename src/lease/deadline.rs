//! The time up to which a lease lasts for its holder. This file is pure, and imports nothing of the
//! crate: the random models of the scripts (`tests/models/`) compile it, too.

use std::time::Duration;

const MS: u64 = 1_000_000;

/// The part of a lease by which two clocks may drift apart during the lease. Up to a millisecond
/// more is lost, since Redis counts whole milliseconds.
const DRIFT: u64 = 1_000;

/// The lease of a grant by message (PROVISIONAL in the scripts). If the process is stopped, the
/// others wait this long for the lock.
pub(crate) const PROVISIONAL: u64 = 2_000 * MS;

/// The deadline of a lease, counted from before its request was sent, less the drift of two clocks.
/// A guard never says "held" after it.
pub(crate) fn deadline(sent_at: u64, lease: Duration) -> u64 {
    // Redis counts whole milliseconds: it cuts the requested lease to them, and up to a millisecond
    // of the lease has passed already.
    let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX) / MS * MS;
    sent_at.saturating_add(lease - drift(lease))
}

pub(crate) const fn drift(lease: u64) -> u64 {
    lease / DRIFT + if lease > 2 * MS { MS } else { 0 }
}
