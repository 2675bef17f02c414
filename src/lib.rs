//! Distributed locks and synchronizers on Redis for plain threads.
//!
//! `redlatch` is for a threaded program that needs a `Mutex` across machines. redlatch has the
//! locks of java.util.concurrent, synchronous and blocking. redlatch is wire-compatible with
//! Redisson, so a Java service and a Rust service can share one lock.
//!
//! ```no_run
//! use std::time::Duration;
//! use redlatch::{Client, Taken};
//!
//! # fn main() -> Result<(), redlatch::Error> {
//! let client = Client::connect("redis://127.0.0.1:6379")?;
//! let lock = client.reentrant_lock("orders");
//!
//! let guard = lock.lock()?; // blocks; the watchdog renews the lease
//! guard.check(Duration::from_secs(1))?; // certainly held for a second more
//! drop(guard); // releases the lock, without waiting for the server's reply
//!
//! if let Taken(guard) = lock.try_lock_for(Duration::from_secs(3))? {
//!     guard.unlock()?; // returns when the server has confirmed the release
//! }
//! # Ok(()) }
//! ```
//!
//! # Which one to take
//!
//! | purpose | here | java.util.concurrent |
//! |---|---|---|
//! | one holder at a time | [`ReentrantLock`] | `ReentrantLock` |
//! | one holder, first come, first served on all machines | [`FairLock`] | `ReentrantLock(true)` |
//! | many readers or one writer | [`ReadWriteLock`] | `ReentrantReadWriteLock` |
//! | one holder, with a token that a store can compare | [`FencedLock`] and its [`FencingToken`] | |
//! | several locks together, or a majority of independent servers | [`MultiLock`], [`MultiLock::quorum`] | |
//! | at most n holders | [`Semaphore`] and its [`Permit`] | `Semaphore` |
//! | at most n holders; a dead process's permits return | [`ExpirableSemaphore`] and its [`ExpirablePermit`] | |
//! | to wait for a number of events | [`CountDownLatch`] | `CountDownLatch` |
//! | threads that wait for each other, step by step | [`CyclicBarrier`] | `CyclicBarrier` |
//! | one process that leads the others | [`LeaderElection`](election::LeaderElection) | |
//! | to wait under a lock until other threads make a change | [`Condition`] | `Condition` |
//! | code that takes any lock | the trait [`Lock`] | `Lock` |
//! | a guard that can be sent to another thread | [`OwnedLockGuard`], by `lock_owned` | |
//! | to limit a wait | [`Wait`], for `…_within` | `tryLock(time, unit)` |
//! | to end a wait from another thread | [`CancelToken`] | `Thread.interrupt()` |
//!
//! A [`Client`] makes the locks and the other synchronizers. The [guide] helps to choose one.
//! [`status`] answers questions about a lock, and [`observe`] reports events.
//!
//! All calls block their thread. In an async runtime, make these calls where blocking is allowed,
//! and use owned guards: the [guide](guide#tokio) shows this for tokio.
//!
//! # Promises and limits
//!
//! A lock in Redis has a lease, so that a dead holder does not keep it for ever. The watchdog
//! renews the lease while the guard lives. [`is_held`](LockGuard::is_held) returns true only until
//! the end of the lease that the server last confirmed. The client reads the clock before it sends
//! a request, and counts the lease from this time. If the lock is lost, its guard reports the loss
//! ([`on_lost`](LockGuard::on_lost)).
//!
//! - **A thread may sleep** past the end of its lease and then write. Call
//!   [`check`](LockGuard::check) before each write. If a late write does harm, make the write
//!   itself conditional ([fencing](guide::fencing)).
//! - **The server may lose its data**: in a restart without persistence, an eviction, or a failover
//!   to a replica that lags behind. After such a loss of data, two processes may hold the lock,
//!   until the first holder detects its loss.
//! - **A dead process's permits** of a [`Semaphore`] are lost. The permits of an
//!   [`ExpirableSemaphore`] have leases, and are free again when the leases end.
//!
//! [Guarantees](guide::guarantees) lists all promises and limits, and describes a failover.
//!
//! # Threads and connections
//!
//! A process usually has one [`Client`]. The clones, handles and guards of the client share these
//! background threads, for any number of locks:
//!
//! | thread | exists |
//! |---|---|
//! | `redlatch-watch`, `redlatch-renew`, `redlatch-listen` | always; in a cluster, a `redlatch-renew` and a `redlatch-listen` for each used server |
//! | `redlatch-calls` | after the first callback or log line, or the first `on_wanted` |
//! | `redlatch-follow` | with Sentinels, or if the URL of one server has a host's name |
//! | `redlatch-jobs` | in a cluster |
//! | `redlatch-creds` | with [`credentials_with`](ClientBuilder::credentials_with) |
//! | `redlatch-certs` | with `ClientBuilder::tls_client_certificate_with` |
//!
//! For each server, a client has 4 to 16 connections for commands, one for renewals, and one for
//! messages. The number of connections for commands depends on the server's round-trip time, unless
//! [`connections`](ClientBuilder::connections) sets the number. The client opens the connection for
//! messages when a thread first waits, or has held a lock or permit for 100 ms. Commands need no
//! background thread: the calling threads write them and read the replies.
//!
//! [`Client::shutdown`], or the drop of the last handle, releases all locks and ends the threads.
//!
//! # Fork
//!
//! A client belongs to its process: see [`Client`](Client#fork).
//!
//! # Panics
//!
//! No argument and no reply of the server makes a call panic: a call returns a failure as an
//! [`Error`]. If a thread panics, its guards release their locks while the thread unwinds. Unlike a
//! [`std::sync::Mutex`], a lock is not poisoned: the next holder does not notice the panic. So keep
//! the protected data consistent at each step (for example by a transaction). All types are
//! [`UnwindSafe`](std::panic::UnwindSafe), so a pool may catch the panics of jobs that use them. If
//! a callback panics, the client logs the panic, and nothing else is affected.
//!
//! # Log
//!
//! The library logs through the crate [`log`], under the target `redlatch`: install a logger to see
//! the lines. The lines name locks and the server's host and port, but never a URL or a password.
//!
//! | level | lines |
//! |---|---|
//! | `error` | a callback panicked; the client gave up a release of permits or a count-down; a bug in this library |
//! | `warn` | a lock was lost, and why; a wait is slow, and the holder of the lock; a release failed, and its consequence; an outage of the server begins, and its cause; the server accepts no more connections, and why; another server is the master; a right is missing, and what that costs; lines were dropped |
//! | `info` | the outage is over, or the server accepts connections again, and how long it took; the server does not notify the client of changed keys |
//! | `debug` | a request failed and is tried again |
//!
//! An outage causes only one `warn` line and one `info` line, even if many threads and connections
//! notice the outage. An outage begins when the client cannot open a connection or a reply does not
//! arrive in time. The outage ends with the first reply. If a connection breaks and the client can
//! open a new connection, this is no outage, and is not logged.
//!
//! A thread of the client writes the lines, in order, so a logger may block, panic or use this
//! library. At most 1,000 lines wait for a slow logger; further lines are counted and dropped.
//!
//! # Features
//!
//! - `in-memory`: `Client::in_memory` and `InMemoryServer`, for tests without a server. The build
//!   needs a C compiler. Off by default.
//! - `tls`: `rediss://` URLs, through rustls with ring. The build needs a C compiler. Off by
//!   default.
//! - `metrics`: `observe::MetricsObserver`, which feeds the crate `metrics`. Off by default.
//! - `serde`: `Serialize` for [`Status`](status::Status), [`Snapshot`](status::Snapshot),
//!   [`Leader`](election::Leader), the kinds and the ids, in the format of the command `redlatch`
//!   with `--json`: times are whole milliseconds, such as `left_ms`. Also `Deserialize` for
//!   [`FencingToken`], [`PermitId`] and [`Owner`]. Off by default.

#![cfg_attr(docsrs, feature(doc_cfg))]

// The library measures leases with `CLOCK_BOOTTIME` or `CLOCK_MONOTONIC`, and expects that a read
// that times out returns `WouldBlock`.
#[cfg(not(unix))]
compile_error!("redlatch is for Unix systems: Linux, and macOS and FreeBSD, where it compiles");

#[cfg(feature = "in-memory")]
mod aging;
mod ask;
mod attempt;
mod auto_traits;
mod barrier;
mod client;
mod config;
pub mod election;
mod error;
mod hold;
#[cfg(feature = "in-memory")]
mod in_memory;
#[cfg(feature = "serde")]
mod json;
mod latch;
mod lease;
mod lock;
#[cfg(doctest)]
mod mistakes;
#[cfg(all(test, models))]
mod model;
mod name;
pub mod observe;
mod order;
mod owner;
mod runtime;
mod scripts;
mod semaphore;
mod site;
mod snapshot;
pub mod status;
mod waiting;

pub use attempt::Attempt::{self, NotTaken, Taken};
pub use barrier::CyclicBarrier;
pub use client::Client;
pub use config::ClientBuilder;
pub use error::{Error, ErrorKind, LostReason};
pub use hold::HoldState;
#[cfg(feature = "in-memory")]
pub use in_memory::InMemoryServer;
pub use latch::CountDownLatch;
pub use lock::condition::Condition;
pub use lock::fair::FairLock;
pub use lock::fenced::{FencedLock, FencedLockGuard, OwnedFencedLockGuard};
pub use lock::multi::{MultiLock, MultiLockGuard, OwnedMultiLockGuard};
pub use lock::read_write::{ReadLock, ReadWriteLock, WriteLock};
pub use lock::reentrant::ReentrantLock;
pub use lock::ticket::{NoTicket, Ticket};
pub use lock::{Lock, LockGuard, OwnedLockGuard, PartGuard};
pub use owner::Owner;
pub use redlatch_client::{CancelToken, Credentials};
pub use scripts::eval::{Script, Value};
pub use scripts::{FencingToken, PermitId, Rights};
pub use semaphore::{ExpirablePermit, ExpirableSemaphore, Permit, Semaphore};
pub use waiting::{Wait, Waited};

#[cfg(doc)]
pub mod guide;

/// Makes doctests of the code in README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
