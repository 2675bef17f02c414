//! The re-entrant lock: Redisson's `RLock`.
//!
//! `docs/architecture.md`, "The path of one lock", follows a call from here to Redis and back.
//!
//! The macro `one_lock!` (`lock/verbs.rs`) defines all methods. By way of the macro, `lock()` calls
//! `acquire` (`lock/hooks.rs`) with the calling thread and an endless wait. The returned
//! `LockGuard` has the tenancy that `acquire` returns. The guard's `unlock`, or its drop, calls
//! `leave` (`site/release.rs`) with this tenancy. `try_lock` and similar methods pass another wait,
//! and `lock_owned` passes a placeholder thread (`lock/guard.rs`).

#[cfg(doc)]
use crate::client::Client;
use crate::lock::{Handle, one_lock};
use crate::runtime::Session;
use crate::site::Site;

/// A lock for one thread at a time, across processes and machines. The holder may take the lock
/// again. The lock corresponds to `ReentrantLock` of java.util.concurrent and to Redisson's
/// `RLock`. [`Client::reentrant_lock`] returns a `ReentrantLock`.
///
/// All clones, and all handles of the same name, are one lock. A `ReentrantLock` has the methods of
/// [`Lock`](crate::Lock).
///
/// ```no_run
/// use std::time::Duration;
///
/// use redlatch::{NotTaken, Taken};
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.reentrant_lock("orders");
///
/// let guard = lock.lock()?; // the watchdog renews it while the guard lives
/// let again = lock.lock()?; // the same thread: one more level, no command
/// again.unlock()?;
/// guard.unlock()?;
///
/// let at_most = lock.with_lease(Duration::from_secs(10)); // never renewed
/// match at_most.try_lock_for(Duration::from_secs(3))? {
///     Taken(guard) => guard.check(Duration::from_secs(1))?,
///     NotTaken => println!("another thread has it"),
/// }
/// # Ok(()) }
/// ```
///
/// # Several locks
///
/// Take several locks in the same order everywhere, or together ([`MultiLock`](crate::MultiLock)).
/// Threads that take them in different orders may deadlock: see the
/// [guide](crate::guide#lock-order-and-deadlock).
///
/// # Fairness
///
/// Processes get the lock in the order in which they began to wait, because each release hands the
/// lock to the next process. Within a process, threads and owned guards get the lock in the order
/// of arrival. A process may pass the lock among its own threads for up to 10 ms, or less if
/// several processes wait. Then the process joins the queue again, at the end. If the order of all
/// threads on all machines matters, use a [`FairLock`](crate::FairLock).
///
/// [`try_lock`](Self::try_lock) may overtake the queue while the lock is free. A waiter in a killed
/// process does not delay the other waiters. A waiter that does not respond (because its process is
/// paused, or its network is cut without an error) delays the other waiters by 2 s.
///
/// Redisson's clients ignore this queue. While a Redisson client waits, some of redlatch's releases
/// leave the lock free for a moment, so that a Redisson client can take it: see [Coming from
/// Redisson](crate::guide::redisson).
///
/// # After a hand-off
///
/// If another process handed the lock to this process, the lease is 2 s at first. The client
/// extends the lease to its full length after 50 ms, or sooner in a call of
/// [`LockGuard::check`](crate::LockGuard::check). If the process or the server stops for 2 s right
/// after a hand-off, the lock is lost, and the guard reports the loss.
///
/// # In Redis
///
/// The lock is a hash under its name, as Redisson's `RLock` is. The hash maps the owner to a count,
/// and the key's time to live is the lease. While processes wait, redlatch also has the keys
/// `redlatch_queue:{name}`, `redlatch_window:{name}` and `redlatch_asked:{name}:…`. The server's
/// user needs rights to these keys ([table](crate::guide::operations#access-rights)).
#[derive(Clone, Debug)]
pub struct ReentrantLock {
    handle: Handle,
}

one_lock!(ReentrantLock);

impl ReentrantLock {
    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let site = Site::of(session.core(), name);
        Self { handle: Handle::new(session.clone(), site) }
    }
}
