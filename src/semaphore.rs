//! The semaphores.

mod counting;
mod expirable;
mod permits;
mod size;
mod verbs;

pub use counting::{Permit, Semaphore};
pub use expirable::{ExpirablePermit, ExpirableSemaphore};
use verbs::permit_verbs;
