//! The read-write lock: Redisson's `RReadWriteLock`.

use std::sync::Arc;

#[cfg(doc)]
use crate::client::Client;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::lock::{Handle, one_lock};
use crate::runtime::Session;
use crate::scripts::Mode;

mod hooks;
#[cfg(all(test, models))]
mod model_tests;
mod pair;

pub(super) use self::pair::Pair;

/// A lock for many readers or one writer. A `ReadWriteLock` is like `ReentrantReadWriteLock` of
/// java.util.concurrent and Redisson's `RReadWriteLock`. [`Client::read_write_lock`] returns a
/// `ReadWriteLock`.
///
/// [`reader`](Self::reader) and [`writer`](Self::writer) return handles of the two locks, and do
/// not take a lock. `prices.reader().lock()` takes the read lock. All clones, and all handles of
/// the same name, are one lock.
///
/// ```no_run
/// # fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("redis://127.0.0.1:6379")?;
/// let prices = client.read_write_lock("prices");
///
/// let reading = prices.reader().lock()?; // beside all other readers, on any machine
/// reading.unlock()?;
///
/// let writing = prices.writer().lock()?; // alone
/// let reading = prices.reader().lock()?; // a writer may also read
/// writing.unlock()?; // and go on reading: now others may read, too
/// reading.unlock()?;
/// # Ok(()) }
/// ```
///
/// # Waiting
///
/// Readers wait for a writer, and a writer waits for all readers and for another writer. Waiting
/// processes are in one queue, in the order in which they began to wait, so no thread starves. **A
/// reader that comes while a writer waits queues behind the writer**, even if other threads read.
/// When the lock goes to a reader, all readers in the queue between this reader and the next writer
/// get the lock, too. The threads of one process queue by the same rules. A thread that already
/// holds the lock overtakes all waiters.
///
/// The reading threads of a process share one hold. For a turn of at most 3 ms, a new reader joins
/// other readers of its process without a request. After the turn, one thread asks the server. If
/// no writer waits, the next turn begins.
///
/// # Upgrade and downgrade
///
/// A thread that holds the write lock may also take the read lock, and may keep the read lock after
/// it has released the write lock. No other thread writes in between. The reverse would deadlock:
/// if a thread that holds the read lock asks for the write lock, it gets an error of kind
/// [`WouldDeadlock`](ErrorKind::WouldDeadlock) at once, and keeps the read lock. (Owned guards give
/// no such error, because they belong to no thread.)
///
/// # Several locks
///
/// Take several locks in the same order everywhere, or together ([`MultiLock`](crate::MultiLock)).
/// Threads that take them in different orders may deadlock: see the
/// [guide](crate::guide#lock-order-and-deadlock).
///
/// # Leases of readers
///
/// If a reader with a fixed lease ([`ReadLock::with_lease`]) joins other readers of its process, it
/// shares their hold. The reader holds the lock at least for its own lease, and
/// [`check`](crate::LockGuard::check) promises no more than this lease. When a reader leaves, the
/// hold lasts until the latest end of the other readers' leases. So if a reader hangs, its fixed
/// lease ends even if other readers come and go. If the process is killed, the server keeps the
/// hold until the longest lease of its readers ends. If the hold is lost, the guards of all its
/// readers report the loss.
///
/// **If Redisson's clients also read, keep every lease and the
/// [`watchdog_timeout`](crate::ClientBuilder::watchdog_timeout) at or below Redisson's
/// `lockWatchdogTimeout`** (30 s by default). Each renewal by a Redisson reader sets the lock's
/// time to live to `lockWatchdogTimeout`, for all readers. So the lock may end when this time has
/// passed since the last renewal of a Redisson reader. A guard with a longer lease reports the loss
/// at its next renewal, or at [`unlock`](crate::LockGuard::unlock) if its lease is fixed.
///
/// # Differences from Redisson
///
/// Redisson's clients ignore redlatch's queue. A Redisson reader joins other readers even if
/// writers of either library wait. A Redisson writer gets the lock only if the lock is free for a
/// moment. While readers overlap, a Redisson writer keeps waiting, as it does among Redisson's
/// clients. (Later redlatch readers do not delay a redlatch writer, because they queue behind the
/// writer.) If a redlatch writer keeps the read lock when it releases the write lock, it notifies
/// Redisson's readers. A Redisson writer notifies nobody in this case, and a waiting redlatch
/// reader notices this within about a second.
///
/// While a writer also reads, `is_locked` of the read lock returns `false`. `isLocked()` of
/// Redisson's read lock returns `true` (since 3.24.1).
///
/// # In Redis
///
/// The lock is a hash under its name, with a key for each read hold
/// (`{name}:owner:rwlock_timeout:1`), as in Redisson. While processes wait, redlatch also has the
/// keys `redlatch_rwlock_queue:{name}`, `redlatch_rwlock_window:{name}` and
/// `redlatch_rwlock_asked:{name}:…`. Use one name for one kind of lock.
#[derive(Clone, Debug)]
pub struct ReadWriteLock {
    read: ReadLock,
    write: WriteLock,
}

/// The lock for readers, which many threads may hold at once. [`ReadWriteLock::reader`] returns
/// this lock.
///
/// A `ReadLock` has the methods of [`Lock`](crate::Lock). [`try_lock`](Self::try_lock) overtakes
/// all waiters if the lock is free. If other threads read, `try_lock` takes the lock only if no
/// writer waits. [`is_locked`](Self::is_locked) returns whether the lock has a reader and no
/// writer, and [`force_unlock`](Self::force_unlock) ends the holds of all readers.
///
/// ```no_run
/// # use redlatch::{Error, ReadLock};
/// fn price(prices: &ReadLock, look: impl FnOnce() -> Result<u64, Error>) -> Result<u64, Error> {
///     prices.with(|_guard| look()) // beside all other readers
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ReadLock {
    handle: Handle,
}

/// The lock for one writer. [`ReadWriteLock::writer`] returns this lock.
///
/// A `WriteLock` has the methods of [`Lock`](crate::Lock). If the calling thread holds the read
/// lock, the methods that take the write lock fail with
/// [`WouldDeadlock`](ErrorKind::WouldDeadlock). [`is_locked`](Self::is_locked) returns whether the
/// lock has a writer, and [`force_unlock`](Self::force_unlock) ends the writer's hold and the read
/// holds that the writer took under it.
///
/// ```no_run
/// use redlatch::{Error, ErrorKind, NotTaken, Taken, WriteLock};
///
/// fn set(prices: &WriteLock, change: impl FnOnce()) -> Result<bool, Error> {
///     match prices.try_lock() {
///         Ok(Taken(guard)) => {
///             change(); // alone
///             guard.unlock().map(|()| true)
///         }
///         Ok(NotTaken) => Ok(false), // another thread reads or writes
///         Err(error) if error.kind() == ErrorKind::WouldDeadlock => Ok(false), // this one reads
///         Err(error) => Err(error),
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct WriteLock {
    handle: Handle,
}

one_lock!(ReadLock);
one_lock!(WriteLock);

impl ReadWriteLock {
    pub(crate) fn new(session: &Session, name: &str) -> Self {
        let pair = Pair::of(session.core(), name);
        let handle = |mode| Handle::of_pair(session.clone(), Arc::clone(&pair), mode);
        Self {
            read: ReadLock { handle: handle(Mode::Read) },
            write: WriteLock { handle: handle(Mode::Write) },
        }
    }

    /// Returns the lock for readers, whose [`lock`](ReadLock::lock) takes the read lock. No I/O.
    #[must_use]
    #[doc(alias = "read")]
    pub fn reader(&self) -> &ReadLock {
        &self.read
    }

    /// Returns the lock for writers, whose [`lock`](WriteLock::lock) takes the write lock. No I/O.
    #[must_use]
    #[doc(alias = "write")]
    pub fn writer(&self) -> &WriteLock {
        &self.write
    }

    /// Returns the lock's name as the program gave it, without the client's
    /// [`prefix`](crate::ClientBuilder::prefix).
    #[must_use]
    pub fn name(&self) -> &str {
        self.read.name()
    }
}
