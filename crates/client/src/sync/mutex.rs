//! The standard library's mutex and condition variable, without its poison: a panic leaves no data
//! of this library half changed.
//!
//! Not parking_lot's. It keeps the sleepers of all mutexes of a process in one table. A forked
//! child has the entries of its parent's sleeping threads there, and its own threads may get their
//! stacks: a new client then hangs or crashes in one child of ten (`fork`:
//! children_of_a_parent_whose_threads_sleep_work_with_clients_of_their_own).

use std::fmt;
use std::sync::{self, PoisonError};
use std::time::{Duration, Instant};

pub use std::sync::MutexGuard;

/// A mutex without poison.
#[derive(Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex that no thread holds.
    pub fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until no other thread holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, without locking: no other thread has the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The condition variable of a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// One that no thread waits for.
    pub fn new() -> Self {
        Self(sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long at most. `true`: the time ended the wait.
    pub fn wait_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        sleep: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout(guard, sleep);
        let (guard, result) = waited.unwrap_or_else(PoisonError::into_inner);
        (guard, result.timed_out())
    }

    /// As [`wait_for`](Self::wait_for), until then.
    pub(crate) fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        until: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        self.wait_for(guard, until.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}
