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
//! # Which one to take
//!
//! | what for | here | java.util.concurrent |
//! |---|---|---|
//! | one at a time | [`ReentrantLock`] | `ReentrantLock` |
//! | the same, first come, first served on all machines | [`FairLock`] | `ReentrantLock(true)` |
//! | many that read, or one that writes | [`ReadWriteLock`] | `ReentrantReadWriteLock` |
//! | the same, with a number that what is written to can trust | [`FencedLock`] and its [`FencingToken`] | |
//! | several of these together | [`MultiLock`]; a majority of them, on several servers: [`MultiLock::quorum`] | |
//! | so many at a time | [`Semaphore`] and its [`Permit`] | `Semaphore` |
//! | the same, and the dead's come back | [`ExpirableSemaphore`] and its [`ExpirablePermit`] | |
//! | to wait until so many things have happened | [`CountDownLatch`] | `CountDownLatch` |
//! | to wait, with a lock in hand, until others have made something true | [`Condition`] | `Condition` |
//! | code that takes any lock | the trait [`Lock`] | `Lock` |
//! | a hold that goes from thread to thread | [`OwnedLockGuard`], by `lock_owned` | |
//! | how long a call may wait, what ends it | [`Wait`], for `…_within` | `tryLock(time, unit)` |
//! | to end a wait from another thread | [`CancelToken`] | `Thread.interrupt()` |
//!
//! A [`Client`] makes them. With a fair lock each thread asks the server, which costs more: take it
//! where the order matters.
//!
//! All calls block their thread. In an async runtime call them where that is allowed, and take an
//! owned guard along: the [guide](guide#tokio) shows how with tokio. A [`Permit`] may be sent as
//! well.
//!
//! # What a lease promises
//!
//! A lock in Redis has a lease, so that a dead holder does not keep it for ever. The watchdog
//! renews it while the guard lives. A guard says [`is_held`](LockGuard::is_held) only until the
//! deadline that the server last confirmed, counted from before the request was sent: never
//! longer. A guard whose lock is lost tells ([`on_lost`](LockGuard::on_lost)). A lock that another
//! process has handed on is certain for 2 s at first: when it was held for 50 ms it has its lease,
//! and [`check`](LockGuard::check) asks for that sooner.
//!
//! # What is not promised
//!
//! - **That a thread is awake.** No lease can stop a thread that has been asleep for longer than
//!   it, between the look and the deed. Look again with [`check`](LockGuard::check) before each
//!   write, and where it matters make the write itself conditional (a version, a fencing token). So
//!   it is with a virtual machine that its host pauses or migrates: its clocks stand still
//!   meanwhile.
//! - **That the server keeps its data.** After a restart without persistence, an eviction, or a
//!   failover to a replica that lags behind, another may have the lock too. The guard learns of it
//!   within milliseconds, where the server tells
//!   ([`client_tracking`](ClientBuilder::client_tracking)), and at its next renewal at the latest;
//!   one with a fixed lease has none.
//! - **That the dead give back.** A [`Semaphore`]'s permits have no lease: a process that dies
//!   takes its own along. An [`ExpirableSemaphore`]'s have one.
//!
//! [Guarantees](guide::guarantees) has the whole list, and the promises in full.
//!
//! # Failover
//!
//! A call that waits outlasts a restart of its server, for
//! [`failover_timeout`](ClientBuilder::failover_timeout) at most, and what is held is kept if the
//! server has it still.
//!
//! With a URL of Sentinels ([`Client::connect`]) the client follows the master. Whoever is
//! connected to the old one is cut off from it as soon as a Sentinel says that there is another,
//! and
//!
//! - a call that waits goes on waiting, for [`failover_timeout`](ClientBuilder::failover_timeout)
//!   at most; another call looks for the master for
//!   [`connect_timeout`](ClientBuilder::connect_timeout);
//! - what is held is asked for on the new master at once. A lock that it knows is kept and renewed.
//!   One that it does not know is lost, and told so: replication does not wait, and the old master
//!   may have granted it and died before it sent that on. **Then another may have had the lock
//!   before its first holder was told.** The same holds for what an old master grants that is cut
//!   off from its Sentinels and not from its clients, until they hear of the new one;
//! - a release that the old master answered and did not send on leaves the lock to nobody. The new
//!   master is asked for what it has of the names in use here, or used within the last second, and
//!   that is given back at once, as long as this process lives; else the lock is free when its
//!   lease ends. Permits and counts may go back in the same way, and stay so.
//!
//! With one server the client follows the name of its host: every 5 s it is looked up, and where it
//! leads to another server, which is no replica, all connections go there, though the old one may
//! live on, and what is held is asked for there as above.
//!
//! With [`replica_acks`](ClientBuilder::replica_acks) a lock or a permit counts only when so many
//! replicas have it, which makes that rarer; it says there what it proves. What keeps it from doing
//! harm is a write that is conditional by itself. (Fencing tokens come from the same server, and
//! may repeat.)
//!
//! # Threads and connections
//!
//! A process usually has one [`Client`]. Its clones and all that it made share what it has: three
//! background threads, however much is held (`redlatch-watch`, `redlatch-renew` and
//! `redlatch-listen`; a fourth, `redlatch-calls`, while there is something to be called or
//! logged; with Sentinels also `redlatch-follow`, which has a connection to one of them; where the URL
//! has a name for its one server's host, and no IP address, `redlatch-follow` looks that up every
//! 5 s; with `credentials_with` also `redlatch-creds`), and a few connections (4 to 16 for commands, by
//! the distance of the server, or as many as
//! [`connections`](ClientBuilder::connections) says; one for messages, which is opened at the first
//! wait, or when something was held for 100 ms; one for renewals). In a cluster that is for each
//! server of which something is used, with a renewer and a subscriber for each, and
//! `redlatch-errand` gives the renewers their work. Commands have no thread: the callers write
//! them and read the replies. [`Client::shutdown`], or the drop of the last handle, releases what
//! is held and ends the threads.
//!
//! # Fork
//!
//! A client is its process's. In a forked child each of its calls fails with kind
//! [`Forked`](ErrorKind::Forked), guards say that they are lost, and drops do nothing: what the
//! parent holds is the parent's. The child connects a client of its own, and makes
//! [`CancelToken`]s of its own.
//!
//! # Panics
//!
//! No call panics, whatever it is given and whatever the server does: trouble is an [`Error`]. A
//! thread that panics with a guard in its hands releases the lock as it unwinds. Nothing is
//! poisoned: unlike with [`std::sync::Mutex`], the next holder is not told, so keep what the lock
//! protects whole at each moment (by a transaction, say). A callback that panics is logged, and
//! harms nothing else.
//!
//! # Log
//!
//! Lines go to the crate [`log`], under the target `redlatch`: install a logger to see them. They
//! name locks and the server's host and port, and never a URL or a password.
//!
//! | level | what |
//! |---|---|
//! | `error` | a callback panicked; a release of permits or a count-down was given up; a fault of this library |
//! | `warn` | a lock was lost, and why; a release failed, and what becomes of it; an outage of the server begins, and its cause; the server lets no further connection in, and why; another server is the master; a right is missing, and what that costs; lines were left out |
//! | `info` | the outage is over, or connections are let in again, after how long; the server does not tell when keys change |
//! | `debug` | what failed and is tried again |
//!
//! An outage is one `warn` and one `info`, however many threads and connections meet it: it begins
//! when a connection cannot be opened or a reply does not come in time, and is over with the first
//! reply. A connection that breaks and is replaced is none, and not logged.
//!
//! Lines are written by a thread of the client's own, in order, so a logger may block, panic or use
//! this library. At most 1,000 wait for one that blocks; those after them are counted and left out.
//!
//! # Features
//!
//! - `tls`: `rediss://` URLs, through rustls with ring. The build needs a C compiler. Off by default.

// Leases are counted on `CLOCK_BOOTTIME` or `CLOCK_MONOTONIC`, and a read's timeout is `WouldBlock`.
#[cfg(not(unix))]
compile_error!("redlatch is for Unix systems: Linux, and macOS and FreeBSD, where it compiles");

mod acquire;
mod auto_traits;
mod cancel;
mod client;
mod condition;
mod config;
mod connection;
mod core;
mod count_down_latch;
mod error;
mod expirable_semaphore;
mod fair_lock;
mod fenced_lock;
mod hold;
mod lock;
mod multi_lock;
mod permits;
mod protocol;
mod pubsub;
mod read_write_lock;
mod reentrant_lock;
mod script;
mod semaphore;
mod sync;
mod wait;
mod watchdog;

pub use cancel::CancelToken;
pub use client::Client;
pub use condition::Condition;
pub use config::{ClientBuilder, Credentials};
pub use count_down_latch::CountDownLatch;
pub use error::{Error, ErrorKind, LostReason};
pub use expirable_semaphore::{ExpirablePermit, ExpirableSemaphore};
pub use fair_lock::FairLock;
pub use fenced_lock::{FencedLock, FencedLockGuard, FencingToken, OwnedFencedLockGuard};
pub use hold::HoldState;
pub use lock::{Lock, LockGuard, OwnedLockGuard};
pub use multi_lock::{MultiLock, MultiLockGuard, OwnedMultiLockGuard};
pub use protocol::PermitId;
pub use read_write_lock::{ReadLock, ReadWriteLock, WriteLock};
pub use reentrant_lock::ReentrantLock;
pub use semaphore::{Permit, Semaphore};
pub use wait::Wait;

#[cfg(doc)]
pub mod guide;

/// README.md's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
