//! A thread's need at the gate, and the outcome of each step.

use std::sync::Arc;

use crate::hold::{Hold, Seat, Tenancy, Terms};
use crate::scripts::Mode;
use crate::waiting::{LocalWaiter, Queue, QueueLeadership, Wake};

/// A thread's need: the mode, and the terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockNeed {
    pub(crate) mode: Mode,
    pub(crate) terms: Terms,
}

/// The threads that wait for the lock. `I` is the request state that goes with the leadership.
pub(crate) type GateQueue<I> = Queue<LockNeed, Arc<Tenancy>, I>;
pub(crate) type GateWaiter<I> = LocalWaiter<LockNeed, Arc<Tenancy>, I>;

#[derive(Debug)]
pub(crate) enum GateOutcome<I> {
    /// The thread already holds the lock, and now has another level.
    Reentered(Arc<Tenancy>),
    /// The thread has joined a shared hold.
    Joined(Arc<Tenancy>),
    /// The thread has this write hold, and may also read under it.
    Under(Arc<Tenancy>),
    /// The thread holds the lock for reading, and cannot get it for writing before it stops
    /// reading.
    Reads,
    /// No thread of this process is ahead, so the thread leads.
    Leads(QueueLeadership),
    Queued(Arc<GateWaiter<I>>),
    /// Another thread is ahead, and the calling thread does not want to wait.
    Occupied,
    /// The hold in a seat is over or lost. The caller declares the hold lost and enters again.
    Expired(Arc<Hold>),
    TooDeep,
}

#[derive(Debug)]
pub(crate) enum Admission {
    /// The hold got the seat. `Some`: an earlier hold, which is over, was still in the seat. The
    /// value is that hold's seat.
    Admitted(Option<Seat>),
    /// Another hold, which this process still has, is in the seat.
    OtherHold(Arc<Hold>),
    /// The process must not use the hold, for one of two reasons. Either the hold's lease ended
    /// before the leader read the reply. Or the server answered a forced unlock of this process
    /// after the leader had sent its request, and only the server knows whether the forced unlock
    /// came before the grant.
    NotHeld,
}

/// The result of leaving, and what the thread must do next. (The seats are boxed to keep this enum
/// small: it is moved even if the thread only ends a level.)
#[derive(Debug)]
pub(crate) enum LeaveOutcome {
    /// The tenancy is not in the seat, because it was lost or released before.
    NotThere,
    /// The tenancy has levels left.
    StillHeld,
    /// The tenancy has ended, and other tenancies still share the hold.
    OthersStay,
    /// The last tenancy has left this seat, and the next thread has the hold. The caller must wake
    /// this thread, and the waiter that should be awake for the next pass.
    Passed(Box<Seat>, [Wake; 2]),
    /// The last tenancy has left this seat. The thread must release the hold, and then transfer
    /// the leadership. The leadership is `None` if another thread leads, or if the thread has left
    /// the readers' seat.
    Release(Box<Seat>, Option<QueueLeadership>),
}
