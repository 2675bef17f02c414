//! A lock that this process holds: the threads that have it, its deadline, and its loss.
//!
//! A *hold* is one owner id on one key in Redis. A *tenancy* is one thread's use of a hold. A grant
//! makes a hold and its first tenancy. A pass inside the process makes a new tenancy of the same
//! hold. A wait on a condition gives the tenancy another hold. A guard acts only on its own
//! tenancy, so an old guard cannot end a later tenancy.

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
