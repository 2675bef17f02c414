//! The meeting points of a process's threads: mutexes, parkers, the identities of threads and the
//! process.

pub(crate) mod clock;
mod jitter;
#[cfg(not(all(test, shuttle)))]
mod mutex;
mod own;
mod parker;
mod process;
mod registry;
pub(crate) mod spin;
mod thread;

#[cfg(not(all(test, shuttle)))]
pub(crate) use {
    mutex::{Condvar, Mutex, MutexGuard},
    std::sync::atomic,
};

#[cfg(all(test, shuttle))]
pub(crate) use {
    model::{Condvar, Mutex, MutexGuard},
    shuttle::sync::atomic,
};

pub(crate) use jitter::jitter;
#[cfg(all(test, shuttle))]
pub(crate) use model::explore;
pub(crate) use own::{on_own_thread, own_thread};
pub(crate) use parker::Parker;
pub(crate) use process::Process;
pub(crate) use registry::Registry;
pub(crate) use spin::Spin;
pub(crate) use thread::Thread;

/// The same over shuttle's scheduler, for the model tests.
#[cfg(test)]
#[cfg(shuttle)]
mod model;
#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;
