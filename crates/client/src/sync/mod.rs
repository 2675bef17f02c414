//! Synchronization of threads: mutexes, wakers, and the identities of threads and the process.
//!
//! `system.rs` has the parts that depend on the system. `model.rs` has the same API for the models
//! of all interleavings. Only this file chooses between the two.

pub mod clock;
mod jitter;
mod own;
mod parker;
mod process;
mod registry;
mod spin;
mod thread;

#[cfg(not(all(shuttle, feature = "testing")))]
#[path = "system.rs"]
mod backend;
#[cfg(all(shuttle, feature = "testing"))]
#[path = "model.rs"]
mod backend;

pub use backend::*;
pub(crate) use backend::{IS_MODEL, thread_local};
pub use jitter::jitter;
pub use own::{on_own_thread, own_thread};
pub use process::{is_forked, may_connect};
pub use registry::Registry;
pub use spin::Spin;
pub use thread::{Thread, Waker};

#[cfg(all(test, models))]
mod model_tests;
