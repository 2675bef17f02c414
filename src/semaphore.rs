//! The semaphores.

mod counting;
mod expirable;

pub use counting::{Permit, Semaphore};
pub use expirable::{ExpirablePermit, ExpirableSemaphore};
