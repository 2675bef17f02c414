//! The cut of a lease: a renewal that shortens a lease that is longer at the server than any thread
//! has asked for. A lease can be too long because the server's clock was set back, or because
//! another process handed the hold on with a longer lease. The answer to a renewal reports such a
//! lease, and the next renewal cuts it.
//!
//! A cut and a request for a longer lease use different connections, and the server may run the cut
//! last. So the two threads must notice each other. The thread that asks for a longer lease raises
//! `Hold::longest_requested` and then reads `cut_to`. The renewer sets `cut_to` and then reads
//! `longest_requested` (all `SeqCst`). While a cut is on its way, or after the reply to a cut was
//! lost, the client relies only on the lease that the cut would leave.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::scripts::renewal::{Longer, StillHeld};

#[derive(Debug)]
pub(super) struct LeaseCut {
    /// Whether the next renewal must cut the lease.
    is_due: AtomicBool,
    /// The lease that a cut on its way would leave, in nanoseconds. Zero if no cut is on its way.
    cut_to: AtomicU64,
    /// Whether a cut got no answer. The server may still run such a cut while the hold lasts.
    is_lost: AtomicBool,
}

impl LeaseCut {
    pub(super) fn new(is_due: bool) -> Self {
        let (cut_to, is_lost) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { is_due: AtomicBool::new(is_due), cut_to, is_lost }
    }

    /// Returns the certain part of a lease: the part that no late cut can take away. It is shorter
    /// than the lease if the server may run a cut later.
    pub(super) fn certain_part(&self, lease: Duration) -> Duration {
        match self.cut_to.load(Ordering::SeqCst) {
            0 => lease,
            cut => lease.min(Duration::from_nanos(cut)),
        }
    }

    /// Returns what the next renewal does with a lease that is longer than any thread has asked
    /// for. The renewer calls this before each renewal, and has at most one renewal of a hold on
    /// its way. `longest_asked` is the longest lease that a thread has asked for, in nanoseconds.
    pub(super) fn next_cut(&self, longest_asked: impl Fn() -> u64) -> Longer {
        let most = longest_asked();
        let longest = Duration::from_nanos(most);
        if !self.is_due.load(Ordering::SeqCst) {
            return Longer::Reported(longest);
        }
        let before = self.cut_to.load(Ordering::SeqCst);
        let to = if before == 0 { most } else { before.min(most) };
        self.cut_to.store(to, Ordering::SeqCst);
        // This read comes after the store to `cut_to`. A thread that asks for a lease raises
        // `Hold::longest_requested` before it reads `cut_to`. So the renewer sees the raised value,
        // or the other thread sees the new `cut_to`, or both.
        if longest_asked() == most {
            return Longer::Cut(longest);
        }
        self.cut_to.store(before, Ordering::SeqCst);
        Longer::Kept
    }

    /// Takes the server's answer to a renewal. [`next_cut`](Self::next_cut) returned `longer` for
    /// this renewal. `resent` is true if the renewal was sent twice.
    pub(super) fn record_answer(&self, longer: Longer, held: Result<StillHeld, ()>, resent: bool) {
        let is_cut = matches!(longer, Longer::Cut(_));
        if is_cut && (resent || held.is_err()) {
            // The server may still run a cut that it has not answered.
            self.is_lost.store(true, Ordering::SeqCst);
        }
        match held {
            Ok(StillHeld::TooLong) => self.is_due.store(true, Ordering::SeqCst),
            Ok(StillHeld::Yes | StillHeld::No) if is_cut => {
                self.is_due.store(false, Ordering::SeqCst);
                if !self.is_lost.load(Ordering::SeqCst) {
                    self.cut_to.store(0, Ordering::SeqCst);
                }
            }
            Ok(_) | Err(()) => {}
        }
    }

    /// Whether a lease must still be cut, or the server may still run a cut.
    pub(super) fn is_pending(&self) -> bool {
        self.is_due.load(Ordering::SeqCst) || self.cut_to.load(Ordering::SeqCst) != 0
    }
}
