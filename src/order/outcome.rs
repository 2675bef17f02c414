//! A thread's request at the gate, and the outcome of each step.

use std::sync::Arc;

use crate::hold::{Hold, QueueEntry, Seat, Tenancy, Terms};
use crate::scripts::Mode;
use crate::waiting::{Lead, LocalWaiter, Queue, Wake};

/// A thread's request: the mode, and the terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockNeed {
    pub(crate) mode: Mode,
    pub(crate) terms: Terms,
}

pub(crate) type GateQueue = Queue<LockNeed, Arc<Tenancy>, Option<QueueEntry>>;
pub(crate) type GateLead = Lead<Option<QueueEntry>>;
pub(crate) type GateWaiter = LocalWaiter<LockNeed, Arc<Tenancy>, Option<QueueEntry>>;

/// The outcome of a thread's entry at the gate.
#[derive(Debug)]
pub(crate) enum GateOutcome {
    /// The thread already holds the lock, and now has one more level.
    Reentered(Arc<Tenancy>),
    /// The thread shares the hold from now on.
    Joined(Arc<Tenancy>),
    /// The thread writes, and may also read.
    Under(Arc<Tenancy>),
    /// The thread reads, and cannot write before it stops reading.
    Reads,
    /// No thread of this process is before it, so it leads.
    Leads,
    Queued(Arc<GateWaiter>),
    /// Another thread is before it, and it will not wait.
    Occupied,
    /// The hold in a seat is over or lost. The caller declares it lost and enters again.
    Expired(Arc<Hold>),
    TooDeep,
}

/// Whether a granted hold got the seat.
#[derive(Debug)]
pub(crate) enum Admission {
    /// The hold got the seat. Has the seat that was still there, whose hold is over.
    Admitted(Option<Seat>),
    /// Another hold has the seat.
    Occupied(Arc<Hold>),
    /// The process does not have the hold. Its lease was over before the leader read the reply, or
    /// the server answered a forced unlock of this process after the leader asked, and only the
    /// server knows which came first.
    NotHeld,
}

/// The outcome of leaving a level.
#[derive(Debug)]
pub(crate) enum LeaveOutcome {
    /// The tenancy is not in the seat: it was lost, or released before.
    NotThere,
    /// The tenancy has levels left.
    StillHeld,
    /// The tenancy is over, and others still share the hold.
    OthersStay,
    /// The tenancy has left the seat, and had it alone.
    Left(Seat, Fate),
}

/// The fate of a hold whose last tenancy has left the seat.
#[derive(Debug)]
pub(crate) enum Fate {
    /// The next thread has the hold, and the caller sends nothing. The caller wakes `next`, and
    /// then `second`, which should be awake for the pass after this one.
    Passed { next: Wake, second: Wake },
    /// The thread must release the hold.
    Release {
        /// Whether the thread has the leadership. If not, another thread already leads, or the seat
        /// was that of the readers.
        leads: bool,
    },
}
