//! A lock that this process holds: the threads that have it, its deadline, and its loss.
//!
//! A *hold* is one owner id on one key in Redis. A *tenancy* is one thread's use of a hold. A grant
//! makes a hold and its first tenancy. If a thread passes the hold to another thread of the
//! process, that thread gets a new tenancy of it. After a wait on a condition, the tenancy has
//! another hold. A guard acts only on its own tenancy, so an old guard cannot end a later tenancy.

mod cut;
mod hold;
pub(crate) mod line;
mod seat;
mod tenancy;
mod terms;
mod watch;

pub(crate) use hold::{GrantDetails, Hold, KeepsLive};
pub(crate) use seat::{HoldLevel, LevelEnd, Seat};
pub use tenancy::HoldState;
pub(crate) use tenancy::Tenancy;
pub(crate) use terms::{Terms, check_lease};
pub(crate) use watch::{Leaseholder, Renewing};
