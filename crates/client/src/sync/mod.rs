//! The meeting points of a process's threads: mutexes, parkers, the identities of threads and the
//! process.

pub mod clock;
mod jitter;
mod own;
mod parker;
mod process;
mod registry;
mod spin;
mod thread;

#[cfg(not(all(shuttle, feature = "testing")))]
pub use {
    parking_lot::{Condvar, Mutex, MutexGuard},
    std::sync::atomic,
};

#[cfg(all(shuttle, feature = "testing"))]
pub use {
    model::{Condvar, Mutex, MutexGuard},
    shuttle::sync::atomic,
};

pub use jitter::jitter;
#[cfg(all(shuttle, feature = "testing"))]
pub use model::explore;
pub use own::{on_own_thread, own_thread};
pub use parker::Parker;
pub use process::Process;
pub use registry::Registry;
pub use spin::Spin;
pub use thread::Thread;

/// The same over shuttle's scheduler, for the model tests.
#[cfg(all(shuttle, feature = "testing"))]
mod model;
#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;
