//! The re-entrant lock: Redisson's `RLock`.
//!
//! `docs/architecture.md`, "The path of one lock", follows a call from here to Redis and back.
//!
//! `one_lock!` (`lock/verbs.rs`) makes all verbs. `lock()` is `acquire` (`lock/hooks.rs`) with the
//! calling thread and a wait without an end. A `LockGuard` holds the tenancy that `acquire`
//! returns. `try_lock` and the others have another wait, and `lock_owned` has another thread
//! (`lock/guard.rs`).

#[cfg(doc)]
use crate::client::Client;
use crate::lock::{Handle, one_lock};
use crate::runtime::Session;
use crate::site::Site;

/// A lock for one thread at a time, across processes and machines. Its holder may take it again. It
/// is `ReentrantLock` of java.util.concurrent and Redisson's `RLock`. Made by
/// [`Client::reentrant_lock`].
///
/// A clone is the same lock, and so is every handle of the same name. Its methods are those of
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
/// Otherwise they may deadlock: see the [guide](crate::guide#lock-order-and-deadlock).
///
/// # Fairness
///
/// Processes get the lock in the order in which they began to wait: each release makes the next
/// process the owner. The threads of one process, and its owned guards, get the lock in their order
/// of arrival. A process may pass the lock among its own threads for up to 10 ms, or less if
/// several processes wait. Then it rejoins the queue at the end. If the order of all threads on all
/// machines matters, use a [`FairLock`](crate::FairLock).
///
/// [`try_lock`](Self::try_lock) may overtake the queue while the lock is free. A waiter in a killed
/// process costs the others nothing. A waiter that does not respond (a stopped process, a network
/// that is cut without an error) costs them 2 s.
///
/// Redisson's clients do not know this queue. While any of them wait, redlatch leaves them some of
/// the releases: see [Coming from Redisson](crate::guide::redisson).
///
/// # After a hand-off
///
/// A lock that another process handed on has a lease of 2 s at first. After 50 ms the client
/// extends it to the full lease, and [`LockGuard::check`](crate::LockGuard::check) does so sooner.
/// If the process or the server stops for 2 s right after a hand-off, the lock is lost, and the
/// guard says so.
///
/// # In Redis
///
/// The lock is a hash under its name, as Redisson's `RLock` is: owner to count, with the lease as
/// its time to live. While processes wait, redlatch also has the keys `redlatch_queue:{name}`,
/// `redlatch_window:{name}` and `redlatch_asked:{name}:…`. The server's user needs the rights to
/// these ([table](crate::guide::operations#access-rights)).
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
