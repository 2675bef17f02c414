//! A thread's identity: a number that is never used again, whether the thread is still alive, and
//! the thread's parker.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::parker::Parker;
use super::thread_local;

/// A thread of this process. The value may outlive the thread.
///
/// `std::thread::Thread` does not show whether its thread has ended, which the watchdog must
/// notice. The number is redlatch's own, because other libraries reuse a thread's id after the
/// thread has ended.
pub struct Thread {
    id: u64,
    is_placeholder: bool,
    dead: AtomicBool,
    parker: Parker,
    name: Option<Box<str>>,
}

impl Thread {
    /// The calling thread.
    ///
    /// When a thread's thread-locals are destroyed, its `Thread` counts as dead, so that its holds
    /// are not renewed for ever. But the destructor of a thread-local may still take a lock. So
    /// each call of `current` in a destructor returns a new `Thread`, which never counts as dead.
    /// All these values have the same [`id`](Self::id), so the destructor can re-enter its holds.
    #[inline]
    pub fn current() -> Arc<Self> {
        CURRENT
            .try_with(|local| Arc::clone(&local.0))
            .unwrap_or_else(|_| Arc::new(Self::of_id(late_id())))
    }

    /// Returns a placeholder for a hold that belongs to a guard and not to a thread. The
    /// placeholder is never dead. A thread that waits for such a hold sleeps and wakes through the
    /// placeholder.
    pub fn placeholder() -> Arc<Self> {
        Arc::new(Self { is_placeholder: true, ..Self::new() })
    }

    /// Whether this is a placeholder: no thread re-enters a hold with its [`id`](Self::id).
    #[inline]
    pub fn is_placeholder(&self) -> bool {
        self.is_placeholder
    }

    /// Whether this is the calling thread.
    #[inline]
    pub fn is_current(&self) -> bool {
        let id = CURRENT.try_with(|local| local.0.id).unwrap_or_else(|_| late_id());
        id == self.id
    }

    /// The thread's number.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether the thread has ended.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// The name that the program gave the thread.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The waker of the thread.
    #[inline]
    pub fn waker(self: &Arc<Self>) -> Waker {
        Waker(Arc::clone(self))
    }

    fn new() -> Self {
        Self::of_id(next_id())
    }

    fn named() -> Self {
        let name = std::thread::current().name().map(Into::into);
        Self { name, ..Self::new() }
    }

    fn of_id(id: u64) -> Self {
        let (dead, parker) = (AtomicBool::new(false), Parker::new());
        Self { id, is_placeholder: false, dead, parker, name: None }
    }
}

/// Wakes a waiter. A waker has no methods that identify the waiter, as a [`Thread`] has.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Thread>);

impl Waker {
    /// The waker of the calling thread.
    pub fn current() -> Self {
        Self(Thread::current())
    }

    /// Wakes the waiter. If the waiter does not sleep, its next sleep ends at once. If the waiter's
    /// thread has ended, the call does nothing.
    #[inline]
    pub fn wake(&self) {
        self.0.parker.unpark();
    }

    /// Sleeps as the waiter until [woken](Self::wake) or until `deadline`. Returns at once if a
    /// wake-up came before the sleep. May return without a wake-up.
    pub fn sleep_until(&self, deadline: Option<Instant>) {
        self.0.parker.park_until(deadline);
    }

    /// Whether the two wake the same waiter.
    pub fn will_wake(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({}{})", self.id, if self.is_dead() { ", dead" } else { "" })
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The id of the calling thread after its [`CURRENT`] was destroyed.
fn late_id() -> u64 {
    let id = LATE.try_with(|late| {
        if late.get() == 0 {
            late.set(next_id());
        }
        late.get()
    });
    id.unwrap_or_else(|_| next_id())
}

struct Local(Arc<Thread>);

impl Drop for Local {
    fn drop(&mut self) {
        self.0.dead.store(true, Ordering::Release);
    }
}

thread_local! {
    static CURRENT: Local = Local(Arc::new(Thread::named()));
    /// The id of a thread after [`CURRENT`] was destroyed, or 0 if it has none yet. This
    /// thread-local has no destructor, so it lives as long as the thread.
    static LATE: Cell<u64> = const { Cell::new(0) };
}
