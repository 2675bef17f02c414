//! The condition on which the waiters of one channel sleep.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError, RedisResult};

/// Wake-ups for waiters. Each wake-up lets one waiter try again, and an open gate lets all waiters
/// try.
#[derive(Debug, Default)]
pub(super) struct Wakeups {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    permits: usize,
    open: bool,
    confirmed: bool,
    broken: bool,
}

impl Wakeups {
    pub(super) fn confirm(&self) {
        self.state().confirmed = true;
        self.changed.notify_all();
    }

    /// Records that the connection is gone, and wakes all waiters, because no message will wake
    /// them.
    pub(super) fn break_off(&self) {
        self.state().broken = true;
        self.changed.notify_all();
    }

    pub(super) fn release(&self, permits: usize) {
        self.state().permits += permits;
        if permits == 1 {
            self.changed.notify_one();
        } else {
            self.changed.notify_all();
        }
    }

    pub(super) fn set_open(&self, open: bool) {
        self.state().open = open;
        self.changed.notify_all();
    }

    /// Blocks until the subscription is confirmed.
    pub(super) fn wait_confirmed(&self) -> RedisResult<()> {
        self.wait(None, |state| state.confirmed)
    }

    /// Blocks until the waiter gets a wake-up or the timeout is over. Without a timeout, the call
    /// may block for ever.
    pub(super) fn acquire(&self, timeout: Option<Duration>) -> RedisResult<()> {
        self.wait(timeout, |state| {
            let got = state.permits > 0;
            state.permits -= usize::from(got);
            got
        })
    }

    pub(super) fn wait_open(&self) -> RedisResult<()> {
        self.wait(None, |state| state.open)
    }

    fn wait(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&mut State) -> bool,
    ) -> RedisResult<()> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut state = self.state();
        while !done(&mut state) {
            if state.broken {
                return Err(RedisError::from((
                    ErrorKind::Io,
                    "the subscriptions' connection is gone",
                )));
            }
            state = match until {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(());
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
