//! Who a thread is: a number that is never used again, its parker, and whether it is still alive.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Parker;
#[cfg(all(test, shuttle))]
use shuttle::thread_local;

/// A thread of this process, for as long as anybody needs to know about it.
///
/// Not `std::thread::Thread`: a hold may outlive its thread, and the watchdog must find out.
pub(crate) struct Thread {
    id: u64,
    dead: AtomicBool,
    parker: Parker,
}

impl Thread {
    /// The calling thread.
    ///
    /// While the thread's own thread-locals are being destroyed it has no identity any more; each
    /// call then makes a new one, which holds nothing and which nobody takes for another.
    pub(crate) fn current() -> Arc<Self> {
        CURRENT.try_with(|local| Arc::clone(&local.0)).unwrap_or_else(|_| Arc::new(Self::new()))
    }

    /// Somebody who is no thread, and never dead: what a hold that belongs to a guard belongs to.
    /// It sleeps and is woken like a thread while it is waited for.
    pub(crate) fn nobodys() -> Arc<Self> {
        Arc::new(Self::new())
    }

    pub(crate) fn is_current(&self) -> bool {
        CURRENT.try_with(|local| local.0.id == self.id).unwrap_or(false)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Whether the thread has ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }

    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, dead: AtomicBool::new(false), parker: Parker::new() }
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Thread({}{})", self.id, if self.is_dead() { ", dead" } else { "" })
    }
}

struct Local(Arc<Thread>);

impl Drop for Local {
    fn drop(&mut self) {
        self.0.dead.store(true, Ordering::Release);
    }
}

thread_local! {
    static CURRENT: Local = Local(Arc::new(Thread::new()));
}
