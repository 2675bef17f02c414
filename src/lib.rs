//! Distributed locks and synchronizers on Redis for plain threads.
//!
//! `redlatch` is what a threaded program uses when a `Mutex` must hold across machines:
//! java.util.concurrent.locks over Redis, synchronous and blocking, wire-compatible with Redisson,
//! so that a Java service and a Rust service share one lock.
//!
//! ```no_run
//! use std::time::Duration;
//! use redlatch::Client;
//!
//! # fn main() -> Result<(), redlatch::Error> {
//! let client = Client::connect("redis://127.0.0.1:6379")?;
//! let lock = client.reentrant_lock("orders");
//!
//! let guard = lock.lock()?; // waits; the watchdog keeps it
//! guard.check(Duration::from_secs(1))?; // held for a second more, whatever happens
//! drop(guard); // released, without waiting for the server's reply
//!
//! if let Some(guard) = lock.try_lock_for(Duration::from_secs(3))? {
//!     guard.unlock()?; // released, and the server has said so
//! }
//! # Ok(()) }
//! ```
//!
//! # What a lease promises
//!
//! A lock in Redis has a lease, so that a dead holder does not keep it for ever. The watchdog
//! renews it while the guard lives. A guard says [`is_held`](LockGuard::is_held) only until the
//! deadline that the server last confirmed, counted from before the request was sent: never
//! longer. But no lease can stop a thread that has been asleep for longer than it, between the
//! look and the deed. Where that matters, look again with [`check`](LockGuard::check) before each
//! write, and make the write itself conditional (a version, a fencing token).

mod acquire;
mod auto_traits;
mod cancel;
mod client;
mod config;
mod connection;
mod count_down_latch;
mod error;
mod fair_lock;
mod hold;
mod lock;
mod protocol;
mod pubsub;
mod reentrant_lock;
mod registry;
mod script;
mod semaphore;
mod sync;
mod wait;
mod watchdog;

pub use cancel::CancelToken;
pub use client::Client;
pub use config::ClientBuilder;
pub use count_down_latch::CountDownLatch;
pub use error::{Error, ErrorKind};
pub use fair_lock::FairLock;
pub use hold::{HoldState, LostReason};
pub use lock::{Lock, LockGuard, OwnedLockGuard};
pub use reentrant_lock::ReentrantLock;
pub use semaphore::{Permit, Semaphore};
pub use wait::Wait;

/// README.md's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
