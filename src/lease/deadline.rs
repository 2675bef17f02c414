//! The deadline of a lease, as its holder computes it. This file imports nothing from the crate,
//! because the random tests of the scripts (`tests/models/`) compile it, too.

use std::time::Duration;

const MS: u64 = 1_000_000;

/// During a lease, two clocks may drift apart by at most the lease divided by this number.
const DRIFT: u64 = 1_000;

/// The lease of a grant by message (PROVISIONAL in the scripts). If the granted process is paused,
/// the other waiters wait this long for the lock.
pub(crate) const PROVISIONAL: u64 = 2_000 * MS;

/// Returns the deadline of a lease. The lease counts from `sent_at`, a time before its request was
/// sent. The possible drift of the clocks is subtracted. No guard says "held" after its deadline.
pub(crate) fn deadline(sent_at: u64, lease: Duration) -> u64 {
    // Redis counts whole milliseconds. Redis rounds the requested lease down to milliseconds, and
    // its clock may be up to a millisecond late.
    let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX) / MS * MS;
    sent_at.saturating_add(lease - drift(lease))
}

pub(crate) const fn drift(lease: u64) -> u64 {
    lease / DRIFT + if lease > 2 * MS { MS } else { 0 }
}
