//! Sites. A site is one name in one client: the threads that want the lock and their order, their
//! requests, the hold, the lease of the hold and its release.

mod eval;
mod gate;
mod keep;
mod lease;
mod queue_entry;
mod release;
mod site;
pub(crate) mod standing;
mod ticket;
mod together;
mod unclaimed;
mod wanted;

pub(crate) use crate::order::LockNeed;
pub(crate) use gate::{Gate, GateOutcome};
pub(crate) use keep::ROUNDING;
pub(crate) use queue_entry::QueueEntry;
pub(crate) use site::{Leaving, Site};
pub(crate) use together::{ask_for_all, go_together, leave_all};
pub(crate) use unclaimed::{give_back_unclaimed, give_up_unclaimed};
