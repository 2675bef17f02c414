//! Distributed locks and synchronizers on Redis for plain threads.
//!
//! `redlatch` is for a threaded program that needs a `Mutex` across machines:
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
//! guard.check(Duration::from_secs(1))?; // certainly held for a second more
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
//! | purpose | here | java.util.concurrent |
//! |---|---|---|
//! | one at a time | [`ReentrantLock`] | `ReentrantLock` |
//! | the same, first come, first served on all machines | [`FairLock`] | `ReentrantLock(true)` |
//! | many that read, or one that writes | [`ReadWriteLock`] | `ReentrantReadWriteLock` |
//! | the same, with a number that a store can check | [`FencedLock`] and its [`FencingToken`] | |
//! | several of these together | [`MultiLock`]; a majority of them, on several servers: [`MultiLock::quorum`] | |
//! | a number at a time | [`Semaphore`] and its [`Permit`] | `Semaphore` |
//! | the same, and a dead process's permits come back | [`ExpirableSemaphore`] and its [`ExpirablePermit`] | |
//! | to wait for a number of events | [`CountDownLatch`] | `CountDownLatch` |
//! | threads that wait for each other, again and again | [`CyclicBarrier`] | `CyclicBarrier` |
//! | one process that leads the others | [`LeaderElection`] | |
//! | to wait, with a lock in hand, until other threads make a change | [`Condition`] | `Condition` |
//! | code that takes any lock | the trait [`Lock`] | `Lock` |
//! | a hold that goes from thread to thread | [`OwnedLockGuard`], by `lock_owned` | |
//! | the limit of a wait, and its cancel | [`Wait`], for `…_within` | `tryLock(time, unit)` |
//! | to end a wait from another thread | [`CancelToken`] | `Thread.interrupt()` |
//!
//! A [`Client`] makes them. With a fair lock each thread asks the server, which costs more: take it
//! if the order matters.
//!
//! All calls block their thread. In an async runtime make them where blocking is allowed, and take
//! an owned guard along: the [guide](guide#tokio) shows how with tokio. A [`Permit`] may be sent as
//! well.
//!
//! # The promise of a lease
//!
//! A lock in Redis has a lease, so that a dead holder does not keep it for ever. The watchdog
//! renews it while the guard lives. A guard says [`is_held`](LockGuard::is_held) only until the
//! deadline that the server last confirmed, counted from before the request was sent: never longer.
//! A guard reports the loss of its lock ([`on_lost`](LockGuard::on_lost)). A lock that another
//! process has handed on is certain for 2 s at first: once it was held for 50 ms it has its lease,
//! and [`check`](LockGuard::check) asks for that sooner.
//!
//! # Not promised
//!
//! - **That a thread is awake.** No lease can stop a thread that sleeps for longer than it, between
//!   its check and its write. Call [`check`](LockGuard::check) before each write, and if it matters
//!   make the write itself conditional (a version, a fencing token). The same is true of a virtual
//!   machine that its host pauses or migrates: its clocks stand still meanwhile.
//! - **That the server keeps its data.** After a restart without persistence, an eviction, or a
//!   failover to a replica that lags behind, another may have the lock too. The guard learns of it
//!   within milliseconds, if the server can tell
//!   ([`client_tracking`](ClientBuilder::client_tracking)), and at its next renewal at the latest;
//!   a guard with a fixed lease has none.
//! - **That dead processes give back.** A [`Semaphore`]'s permits have no lease: a process that
//!   dies takes its permits along. An [`ExpirableSemaphore`]'s have one.
//!
//! [Guarantees](guide::guarantees) has the whole list, and the promises in full.
//!
//! # Failover
//!
//! A waiting call outlasts a restart of its server, for
//! [`failover_timeout`](ClientBuilder::failover_timeout) at most, and holds are kept if the server
//! still has them.
//!
//! With a URL of Sentinels ([`Client::connect`]) the client follows the master. It cuts its
//! connections to the old one as soon as a Sentinel names another, and
//!
//! - a waiting call goes on waiting, for [`failover_timeout`](ClientBuilder::failover_timeout) at
//!   most; another call looks for the master for
//!   [`connect_timeout`](ClientBuilder::connect_timeout);
//! - the client asks for its holds on the new master at once. A lock that the master knows is kept
//!   and renewed. A lock that it does not know is lost, and reported: replication is asynchronous,
//!   and the old master may have granted it and died before it sent that on. **Then another may
//!   have had the lock before its first holder was told.** The same is true of grants of an old
//!   master that is cut off from its Sentinels and not from its clients, until they learn of the
//!   new one;
//! - a release that the old master answered and did not send on leaves the lock without a holder.
//!   The client asks the new master for this client's owners of the names in use here, or used
//!   within the last second, and releases left-over ones at once, as long as this process lives;
//!   otherwise the lock is free when its lease ends. Permits and counts may go back in the same
//!   way, and stay so.
//!
//! With one server the client follows the name of its host: it looks the name up every 5 s, and if
//! it leads to another server, which is no replica, all connections go there, though the old one
//! may live on, and the client asks for its holds there as above.
//!
//! With [`replica_acks`](ClientBuilder::replica_acks) a lock or a permit counts only when so many
//! replicas have it, which makes that rarer; its documentation says what it proves. Only a write
//! that is conditional by itself prevents harm. (Fencing tokens come from the same server, and may
//! repeat.)
//!
//! # Threads and connections
//!
//! A process usually has one [`Client`]. Its clones, handles and guards share three background
//! threads, for any number of holds (`redlatch-watch`, `redlatch-renew` and `redlatch-listen`; a
//! fourth, `redlatch-calls`, while there are callbacks or log lines; with Sentinels also
//! `redlatch-follow`, which has a connection to one of them; if the URL has a name for its one
//! server's host, and no IP address, `redlatch-follow` looks that up every 5 s; with
//! `credentials_with` also `redlatch-creds`), and a few connections (4 to 16 for commands, by the
//! distance of the server, or the number set by [`connections`](ClientBuilder::connections); one
//! for messages, opened at the first wait, or when a lock or permit was held for 100 ms; one for
//! renewals). In a cluster that is for each used server, with a renewer and a subscriber for each,
//! and `redlatch-jobs` gives the renewers their work. Commands have no thread: the
//! callers write them and read the replies. [`Client::shutdown`], or the drop of the last handle,
//! releases all holds and ends the threads.
//!
//! # Fork
//!
//! A client belongs to its process. In a forked child each of its calls fails with kind
//! [`Forked`](ErrorKind::Forked), guards say that they are lost, and drops do nothing: the parent
//! keeps its holds. Once a process has connected a client, its forked children cannot connect one:
//! fork before the first client connects, or run another program in the child (`exec`).
//!
//! # Panics
//!
//! No call panics, with any arguments and any replies of the server: trouble is an [`Error`]. A
//! thread that panics while it has a guard releases the lock as it unwinds. There is no poisoning:
//! unlike with [`std::sync::Mutex`], the next holder is not told, so keep the protected data
//! consistent at each moment (by a transaction, say). A callback that panics is logged, and harms
//! nothing else.
//!
//! # Log
//!
//! Lines go to the crate [`log`], under the target `redlatch`: install a logger to see them. They
//! name locks and the server's host and port, and never a URL or a password.
//!
//! | level | lines |
//! |---|---|
//! | `error` | a callback panicked; a release of permits or a count-down was given up; a fault of this library |
//! | `warn` | a lock was lost, and why; a release failed, and its consequence; an outage of the server begins, and its cause; the server lets no further connection in, and why; another server is the master; a right is missing, and the cost of that; lines were left out |
//! | `info` | the outage is over, or connections are let in again, after how long; the server does not tell when keys change |
//! | `debug` | a request failed and is tried again |
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
//! - `tls`: `rediss://` URLs, through rustls with ring. The build needs a C compiler. Off by
//!   default.

// Leases are counted on `CLOCK_BOOTTIME` or `CLOCK_MONOTONIC`, and a read's timeout is
// `WouldBlock`.
#[cfg(not(unix))]
compile_error!("redlatch is for Unix systems: Linux, and macOS and FreeBSD, where it compiles");

mod auto_traits;
mod barrier;
mod client;
mod config;
mod election;
mod error;
mod latch;
mod lease;
mod local;
mod lock;
#[cfg(all(test, models))]
mod model;
mod runtime;
mod scripts;
mod semaphore;
mod status;
mod waiting;

pub use barrier::CyclicBarrier;
pub use client::Client;
pub use config::ClientBuilder;
pub use election::{Changes, Leader, LeaderElection, Leadership};
pub use error::{Error, ErrorKind, LostReason};
pub use latch::CountDownLatch;
pub use local::HoldState;
pub use lock::condition::Condition;
pub use lock::fair::FairLock;
pub use lock::fenced::{FencedLock, FencedLockGuard, FencingToken, OwnedFencedLockGuard};
pub use lock::multi::{MultiLock, MultiLockGuard, OwnedMultiLockGuard};
pub use lock::read_write::{ReadLock, ReadWriteLock, WriteLock};
pub use lock::reentrant::ReentrantLock;
pub use lock::{Lock, LockGuard, OwnedLockGuard};
pub use redlatch_client::{CancelToken, Credentials};
pub use scripts::PermitId;
pub use semaphore::{ExpirablePermit, ExpirableSemaphore, Permit, Semaphore};
pub use status::{Holder, OwnerProcess, Status, StatusKind, Waiter};
pub use waiting::Wait;

#[cfg(doc)]
pub mod guide;

/// README.md's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
