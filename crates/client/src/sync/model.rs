//! Threads, mutexes and the clock for the model tests. This module has the API of `system.rs`, and
//! shuttle schedules the threads.
//!
//! A model test runs its threads as coroutines and tries many orders of their steps, so it finds
//! bugs that occur once a month on real threads. If no other thread will ever wake a sleeping
//! thread, the model reports this at once. `RUSTFLAGS="--cfg shuttle"
//! CARGO_TARGET_DIR=target/shuttle cargo test --lib model` runs the model tests. A failed test
//! prints its schedule, which `shuttle::replay` runs again.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use shuttle::sync;

pub use shuttle::sync::atomic;
pub(crate) use shuttle::{thread, thread_local};

/// Whether this is the version for the models.
pub(crate) const IS_MODEL: bool = true;

/// A mutex without poison.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> UnwindSafe for Mutex<T> {}
impl<T> RefUnwindSafe for Mutex<T> {}

impl<T> Mutex<T> {
    /// A mutex that no thread has locked.
    pub fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Blocks until no other thread has the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: &self.0, held: Some(locked(&self.0)) }
    }

    /// The value, without locking: the exclusive reference proves that no thread has the mutex.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

fn locked<T>(mutex: &sync::Mutex<T>) -> sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, T> {
    mutex: &'a sync::Mutex<T>,
    /// `None` only during a wait.
    held: Option<sync::MutexGuard<'a, T>>,
}

impl<'a, T> MutexGuard<'a, T> {
    /// Replaces the held guard by the guard that `wait` returns.
    fn exchange(
        &mut self,
        wait: impl FnOnce(sync::MutexGuard<'a, T>, &'a sync::Mutex<T>) -> sync::MutexGuard<'a, T>,
    ) {
        let held = self.held.take().expect("the guard holds its mutex");
        self.held = Some(wait(held, self.mutex));
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_ref().expect("the guard holds its mutex")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_mut().expect("the guard holds its mutex")
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.held.fmt(f)
    }
}

/// The condition variable of a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl RefUnwindSafe for Condvar {}

/// The longest sleep that times out at once. A longer sleep never times out, because a timeout
/// would hide a lost wake-up.
const PAUSE: Duration = Duration::from_millis(100);

impl Condvar {
    /// A condition variable on which no thread waits.
    pub fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Blocks until a notification.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.exchange(|held, _| self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Blocks until a notification, at most until `until`.
    pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> TimedOut {
        self.wait_for(guard, until.saturating_duration_since(Instant::now()))
    }

    /// Blocks until a notification, at most for `sleep`.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, sleep: Duration) -> TimedOut {
        if sleep > PAUSE {
            self.wait(guard);
            return TimedOut(false);
        }
        guard.exchange(|held, mutex| {
            drop(held);
            thread::yield_now();
            locked(mutex)
        });
        TimedOut(true)
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// Whether a wait ended by its timeout.
#[derive(Clone, Copy, Debug)]
pub struct TimedOut(bool);

impl TimedOut {
    /// Whether the wait ended by its timeout.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// Runs `scenario` in `schedules` random orders of its threads' steps. Then runs `scenario` in the
/// same number of orders with few switches between threads, because random orders rarely have few
/// switches. `REDLATCH_LONG=1` makes ten times as many runs. Each call tries other orders.
pub fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, Runner};

    let schedules = match std::env::var_os("REDLATCH_LONG") {
        Some(_) => schedules.saturating_mul(10),
        None => schedules,
    };
    let scenario = std::sync::Arc::new(scenario);
    let again = std::sync::Arc::clone(&scenario);
    let mut config = Config::new();
    config.stack_size = 0x2_0000;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(move || scenario());
    Runner::new(PctScheduler::new(SWITCHES, schedules), config).run(move || again());
}

/// The number of switches between threads that is enough to find nearly every known bug.
const SWITCHES: usize = 3;

/// The clock that measures leases. Only the random schedule and the tests advance it, so that a
/// schedule can be repeated.
pub(super) mod clock {
    pub use self::model::now;

    /// The clock, for tests that move it.
    pub mod model {
        use std::cell::Cell;

        use shuttle::rand::{Rng, thread_rng};

        // All threads of a model run on one system thread, on which no other model runs.
        thread_local! {
            static NOW: Cell<u64> = const { Cell::new(1) };
        }

        /// The time in nanoseconds. Each call may advance the time a little.
        pub fn now() -> u64 {
            advance(if thread_rng().gen_bool(0.5) { 25_000 } else { 0 });
            NOW.get()
        }

        /// Lets this time pass.
        pub fn advance(nanos: u64) {
            NOW.set(NOW.get() + nanos);
        }
    }
}
