//! The re-entrant lock: Redisson's `RLock`.
//!
//! `docs/architecture.md`, "The path of one lock", has the way of a call from here to Redis and
//! back.
//!
//! `one_lock!` (`lock/verbs.rs`) makes all verbs. `lock()` is `take`, below, with the calling
//! thread and a wait without an end; a `LockGuard` holds the tenancy that it returns. `try_lock`
//! and the others differ in the wait, `lock_owned` in the thread (`lock/guard.rs`).

use std::sync::Arc;

use redlatch_client::sync::Thread;

#[cfg(doc)]
use crate::client::Client;
use crate::error::Error;
use crate::local::{Site, Tenancy};
use crate::lock::{Handle, exclusive, one_lock};
use crate::runtime::Session;
use crate::scripts::Trouble;
use crate::waiting::Wait;

/// Lets one thread at a time work on a resource, across processes and machines. Its holder may take
/// it again: `ReentrantLock` of java.util.concurrent, Redisson's `RLock`. Made by
/// [`Client::reentrant_lock`].
///
/// A clone is the same lock, and so is every handle of the same name. Its methods are those of
/// [`Lock`](crate::Lock).
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let lock = client.reentrant_lock("orders");
///
/// let guard = lock.lock()?; // for as long as the guard lives: the watchdog renews it
/// let again = lock.lock()?; // the same thread: a level more, no command
/// again.unlock()?;
/// guard.unlock()?;
///
/// let at_most = lock.with_lease(Duration::from_secs(10)); // never renewed
/// match at_most.try_lock_for(Duration::from_secs(3))? {
///     Some(guard) => guard.check(Duration::from_secs(1))?,
///     None => println!("another has it"),
/// }
/// # Ok(()) }
/// ```
///
/// # Several locks
///
/// A thread that holds one lock and waits for another waits for ever if the other's holder waits
/// for the first: both are renewed meanwhile. Take several locks in the same order everywhere, or
/// all at once ([`MultiLock`](crate::MultiLock)). After 60 s
/// ([`wait_warning`](crate::ClientBuilder::wait_warning)) the log says `has waited 60 s for "B"
/// while holding "A"`.
///
/// # Fairness
///
/// Threads of one process, and owned guards, get the lock in their order of arrival, and processes
/// in the order in which they began to wait: each release makes the next process the owner. A
/// process may pass the lock among its own threads for a turn of at most 10 ms, a shorter one if
/// more processes wait; then it stands at the end of the queue. If the order of all threads on all
/// machines matters, use a fair lock.
///
/// [`try_lock`](Self::try_lock) takes a free lock past the queue. A waiter in a killed process
/// costs the others nothing. A waiter that stands still (a stopped process, a network that is cut
/// without an error) costs them 2 s, and loses its entry.
///
/// Redisson's clients know no queue. While some of them wait, redlatch leaves a part of the
/// releases to them: the lock is free for 4 ms, and no process in the queue takes it. How often
/// each of them gets it then depends on the holds. Measured beside live ones: 0.8 to 1.2 of an even
/// share with holds of 20 ms. With holds of microseconds 0.4 to 0.7 beside processes of one thread,
/// and a fiftieth of the grants beside processes of four threads, which pass the lock on without a
/// round trip.
///
/// # After a hand-off
///
/// A lock that another process handed on is certain for 2 s at first, and for its lease once it was
/// held for 50 ms, which shows that its new owner is awake.
/// [`LockGuard::check`](crate::LockGuard::check) asks for the lease sooner. If process or server
/// stands still for 2 s right after a hand-off, the lock is lost, and the guard says so.
///
/// # In Redis
///
/// A hash under the lock's name, as Redisson's `RLock` has it: owner to count, with the lease as
/// its time to live. Java services may use the same lock. While processes wait, this library also
/// has keys of its own: `redlatch_queue:{name}`, `redlatch_window:{name}` and
/// `redlatch_asked:{name}:…`. Access rights must allow them ([table](crate::guide::operations)).
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

    /// `None`: the wait ended first.
    fn take(&self, thread: &Arc<Thread>, wait: Wait<'_>) -> Result<Option<Arc<Tenancy>>, Error> {
        exclusive::acquire(&self.handle, thread, wait)
    }

    fn send_force_unlock(&self) -> Result<bool, Trouble> {
        self.handle.site.scripts().force_unlock()
    }
}
