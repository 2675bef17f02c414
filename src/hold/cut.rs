//! A cut of a lease that the server keeps for longer than any thread has asked for: its clock was
//! set back, or another process handed the hold on for longer. A renewal tells of such a lease, and
//! the next one cuts it.
//!
//! A cut and a request for a longer lease go over two connections, and the server may carry out the
//! cut last. So if the two meet, one gives way: the thread that asks raises the wanted lease and then
//! reads `to`; the renewer sets `to` and then reads the wanted lease (all `SeqCst`). While a cut is
//! on its way, or was lost, a longer lease counts only as far as the cut leaves it, and the client
//! renews it only to that.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::scripts::renewal::{Longer, StillHeld};

/// See the module.
#[derive(Debug)]
pub(super) struct LeaseCut {
    /// The next renewal cuts the lease.
    is_due: AtomicBool,
    /// The lease that a cut on its way leaves, in nanoseconds. Zero: none is on its way.
    to: AtomicU64,
    /// The server has not answered a cut: it may carry it out at any time, as long as the hold
    /// lasts.
    is_lost: AtomicBool,
}

impl LeaseCut {
    pub(super) fn new(is_due: bool) -> Self {
        let (to, is_lost) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { is_due: AtomicBool::new(is_due), to, is_lost }
    }

    /// How much of a lease counts: less if a cut is on its way, which the server may carry out after
    /// it.
    pub(super) fn counts(&self, lease: Duration) -> Duration {
        match self.to.load(Ordering::SeqCst) {
            0 => lease,
            cut => lease.min(Duration::from_nanos(cut)),
        }
    }

    /// The renewer is about to send a renewal, one at a time. Returns how it treats a lease that is
    /// longer than any thread has asked for. `wanted`: the longest that one has asked for, in
    /// nanoseconds.
    pub(super) fn next(&self, wanted: impl Fn() -> u64) -> Longer {
        let most = wanted();
        let longest = Duration::from_nanos(most);
        if !self.is_due.load(Ordering::SeqCst) {
            return Longer::IsTold(longest);
        }
        let before = self.to.load(Ordering::SeqCst);
        let to = if before == 0 { most } else { before.min(most) };
        self.to.store(to, Ordering::SeqCst);
        // Behind the store: a thread that asks raises what is wanted first, and then looks for a cut.
        if wanted() == most {
            return Longer::IsCut(longest);
        }
        self.to.store(before, Ordering::SeqCst);
        Longer::Stays
    }

    /// Records the server's answer to such a renewal, and whether the renewal was sent twice.
    pub(super) fn heard(&self, longer: Longer, held: Result<StillHeld, ()>, resent: bool) {
        let is_cut = matches!(longer, Longer::IsCut(_));
        if is_cut && (resent || held.is_err()) {
            // The server may still carry out a cut that it has not answered.
            self.is_lost.store(true, Ordering::SeqCst);
        }
        match held {
            Ok(StillHeld::TooLong) => self.is_due.store(true, Ordering::SeqCst),
            Ok(StillHeld::Yes | StillHeld::No) if is_cut => {
                self.is_due.store(false, Ordering::SeqCst);
                if !self.is_lost.load(Ordering::SeqCst) {
                    self.to.store(0, Ordering::SeqCst);
                }
            }
            Ok(_) | Err(()) => {}
        }
    }

    /// Whether a longer lease is not cut yet, or one may still be cut.
    pub(super) fn may_come(&self) -> bool {
        self.is_due.load(Ordering::SeqCst) || self.to.load(Ordering::SeqCst) != 0
    }
}
