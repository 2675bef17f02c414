//! The locks that this process holds: which thread has each, until when, and whether it was lost.
//!
//! A *hold* is one owner id on one key in Redis. A *tenancy* is one thread's use of a hold. A grant
//! makes a hold and its first tenancy; a pass within the process makes a new tenancy of the same
//! hold; a wait on a condition exchanges the hold of a tenancy. A guard names its tenancy, so a
//! guard of an earlier tenancy does nothing to the next.

mod asking;
mod cohort;
mod cut;
mod gate;
mod hold;
mod keep;
mod lease;
pub(crate) mod line;
mod queue_entry;
mod registered;
mod release;
mod site;
pub(crate) mod standing;
mod tenancy;
mod terms;
mod unclaimed;
mod watch;

use crate::error::LostReason;
use crate::scripts::{Chain, ChainClock};

pub(crate) use gate::{Gate, GateOutcome, Level, Need};
pub(crate) use hold::{GrantDetails, Hold};
pub(crate) use queue_entry::QueueEntry;
pub(crate) use registered::Registered;
pub(crate) use site::{Leaving, Site};
pub(crate) use tenancy::Tenancy;
pub(crate) use terms::{Terms, check_lease};
pub(crate) use unclaimed::{give_back_unclaimed, give_up_unclaimed};
pub(crate) use watch::{Leaseholder, Renewing};

/// The state of a guard's hold, as far as this process knows it.
///
/// ```no_run
/// use redlatch::{HoldState, LockGuard};
///
/// fn report(guard: &LockGuard) -> String {
///     match guard.state() {
///         HoldState::Held => "held".to_owned(),
///         HoldState::Unconfirmed => format!("held for {:?} more", guard.remaining()),
///         HoldState::Lost(why) => format!("lost: {why}"),
///         _ => "released".to_owned(),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldState {
    /// Held, and the last renewal, if there was one, succeeded.
    Held,
    /// Held until the known deadline, but the last renewal failed, and the client tries again.
    Unconfirmed,
    /// No longer held, although no thread released it.
    Lost(LostReason),
    /// Released by this guard or by `unlock`; or the thread waits on a
    /// [`Condition`](crate::Condition), or could not take the lock again after such a wait.
    Released,
}
