//! The deadline of a lease, as its holder counts it. This file is pure and imports nothing of the
//! crate, since the random models of the scripts (`tests/models/`) compile it, too.

use std::time::Duration;

const MS: u64 = 1_000_000;

/// The part of a lease (one in this many) by which two clocks may drift apart during the lease.
const DRIFT: u64 = 1_000;

/// The lease of a grant by message (PROVISIONAL in the scripts). If the granted process is stopped,
/// the others wait this long for the lock.
pub(crate) const PROVISIONAL: u64 = 2_000 * MS;

/// Returns the deadline of a lease, counted from before its request was sent, less the drift of two
/// clocks. No guard says "held" after its deadline.
pub(crate) fn deadline(sent_at: u64, lease: Duration) -> u64 {
    // Redis counts whole milliseconds: it rounds the requested lease down, and its clock may be up
    // to a millisecond into the present one.
    let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX) / MS * MS;
    sent_at.saturating_add(lease - drift(lease))
}

pub(crate) const fn drift(lease: u64) -> u64 {
    lease / DRIFT + if lease > 2 * MS { MS } else { 0 }
}
