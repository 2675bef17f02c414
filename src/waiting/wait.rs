//! The limit of a wait, its cancel token, and the sleep of its thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch_client::pubsub::{Subscription, Waking};
use redlatch_client::sync::{Thread, Waker, clock, jitter};
use redlatch_client::{CancelToken, Limit, Limited, Registration};

use crate::error::Error;
use crate::name::Name;
use crate::runtime::Core;

/// The limit of a wait, and a token that may cancel it. The methods that end in `_within` take a
/// `Wait`. Use a `Wait` to combine a time limit with a [`CancelToken`], or to choose the limit at
/// run time. Methods without a `Wait` are short forms of these methods.
///
/// `into()` converts a [`Duration`], a deadline ([`Instant`]) or a `&CancelToken` to a `Wait`. Most
/// methods call `into()` themselves, as in `latch.wait_within(deadline)`. The methods of
/// [`Lock`](crate::Lock) accept only a `Wait`.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn main() -> Result<(), redlatch::Error> {
/// # let lock = redlatch::Client::connect("redis://127.0.0.1:6379")?.reentrant_lock("orders");
/// use redlatch::{CancelToken, Taken, Wait};
///
/// let stop = CancelToken::new(); // a clone of it ends the wait from another thread
/// let wait = Wait::at_most(Duration::from_secs(3)).cancelled_by(&stop);
/// if let Taken(guard) = lock.lock_within(wait)? {
///     guard.unlock()?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing by itself; give it to a verb that ends in `_within`"]
pub struct Wait<'a> {
    patience: Patience,
    cancel: Option<&'a CancelToken>,
    /// Whether a long wait is normal.
    pub(super) is_usual: bool,
}

/// The limit of a wait.
#[derive(Clone, Copy, Debug)]
enum Patience {
    /// One attempt, with a time limit if there is one.
    Once(Option<Instant>),
    Until(Instant),
    Forever,
}

/// The minimum time for a call's requests, counted from the beginning of the call, even if the
/// call's limit is shorter. On a busy machine a thread may wait this long for a processor. If three
/// round trips take longer than this, the minimum is the time of three round trips, because a
/// request may first have to read the reply to a release.
const LEAST: Duration = Duration::from_millis(50);

impl<'a> Wait<'a> {
    /// One attempt, without a wait.
    pub const NONE: Self = Self { patience: Patience::Once(None), cancel: None, is_usual: false };

    /// A wait without a limit.
    pub const FOREVER: Self = Self { patience: Patience::Forever, cancel: None, is_usual: false };

    /// Returns a wait of at most `wait` from now. If `wait` is zero, returns [`NONE`](Self::NONE).
    /// If `wait` is too long for [`Instant`], returns [`FOREVER`](Self::FOREVER).
    pub fn at_most(wait: Duration) -> Self {
        if wait.is_zero() {
            return Self::NONE;
        }
        Instant::now().checked_add(wait).map_or(Self::FOREVER, Self::until)
    }

    /// Returns a wait until `deadline`.
    pub fn until(deadline: Instant) -> Self {
        Self { patience: Patience::Until(deadline), ..Self::FOREVER }
    }

    /// Returns a wait with the same limit that also ends when `token` is cancelled. The call then
    /// fails with kind [`Cancelled`](crate::ErrorKind::Cancelled). A second token replaces the
    /// first token.
    pub fn cancelled_by(self, token: &'a CancelToken) -> Self {
        Self { cancel: Some(token), ..self }
    }

    pub(crate) fn usual(self) -> Self {
        Self { is_usual: true, ..self }
    }

    /// Whether the wait may sleep at all.
    pub(crate) fn blocks(&self) -> bool {
        !matches!(self.patience, Patience::Once(_))
    }

    pub(crate) fn is_over(&self) -> bool {
        match self.patience {
            Patience::Once(_) => true,
            Patience::Until(deadline) => Instant::now() >= deadline,
            Patience::Forever => false,
        }
    }

    /// Limits the calling thread's requests to this wait, until the returned value is dropped. The
    /// limit is never earlier than `LEAST` from now, so a call whose deadline has passed still
    /// makes one attempt.
    #[inline]
    pub(crate) fn limits(&self, core: &Core) -> Limited {
        if self.is_limited() { self.sets_limit(core) } else { Limit::set(None) }
    }

    fn sets_limit(&self, core: &Core) -> Limited {
        let until = match self.patience {
            Patience::Until(deadline) | Patience::Once(Some(deadline)) => {
                let least = LEAST.max(core.round_trip().saturating_mul(3));
                Instant::now().checked_add(least).map(|least| deadline.max(least))
            }
            Patience::Once(None) | Patience::Forever => None,
        };
        Limit::set(Limit::new(until, self.cancel))
    }

    /// Does the same as [`limits`](Self::limits), for a request that other clients need even after
    /// the end of the wait. Even after a cancellation, the request still gets a short time.
    pub(crate) fn limits_last(&self, core: &Core) -> Limited {
        if self.cancel.is_some_and(CancelToken::is_cancelled) {
            return Wait::until(Instant::now()).limits(core);
        }
        self.limits(core)
    }

    /// Whether the wait may end a request before the response timeout.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        matches!(self.patience, Patience::Until(_) | Patience::Once(Some(_)))
            || self.cancel.is_some()
    }

    /// Returns a wait of one attempt that ends at `until`, or at the end of this wait if that is
    /// earlier.
    pub(crate) fn once(&self, until: Instant) -> Self {
        let until = match self.patience {
            Patience::Until(deadline) | Patience::Once(Some(deadline)) => until.min(deadline),
            Patience::Once(None) | Patience::Forever => until,
        };
        Self { patience: Patience::Once(Some(until)), ..*self }
    }

    /// Returns an error if the wait was cancelled, the client was shut down or the process was
    /// forked.
    pub(crate) fn check(&self, core: &Core, name: &Name) -> Result<(), Error> {
        core.check(name)?;
        self.check_cancelled(name)
    }

    pub(crate) fn check_cancelled(&self, name: &Name) -> Result<(), Error> {
        if self.cancel.is_some_and(CancelToken::is_cancelled) {
            return Err(Error::cancelled(name));
        }
        Ok(())
    }

    /// Returns the time at which a sleep of `sleep` ends, or the end of the wait if that is
    /// earlier.
    pub(crate) fn end_of_sleep(&self, sleep: Duration) -> Option<Instant> {
        let sleep = Instant::now().checked_add(sleep);
        match self.patience {
            Patience::Once(_) => Some(Instant::now()),
            Patience::Until(deadline) => Some(sleep.map_or(deadline, |end| end.min(deadline))),
            Patience::Forever => sleep,
        }
    }
}

/// A thread that acquires, with its need and its wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a, N> {
    pub(crate) thread: &'a Arc<Thread>,
    pub(crate) need: N,
    pub(crate) wait: Wait<'a>,
}

impl<N> Claim<'_, N> {
    pub(crate) fn waker(&self) -> Waker {
        self.thread.waker()
    }

    pub(crate) fn sleeper<'a>(&'a self, core: &'a Core, name: &'a Name) -> Sleeper<'a> {
        Sleeper::new((core, name), self.waker(), &self.wait)
    }
}

/// A thread that waits, and its sleep. One waker wakes the thread for all events: a signal, a
/// message, a confirmed channel, a cancellation, the end of the client. A wake-up is only a hint,
/// so the thread then checks its condition.
pub(crate) struct Sleeper<'a> {
    pub(super) core: &'a Core,
    pub(super) name: &'a Name,
    waker: Waker,
    pub(super) wait: &'a Wait<'a>,
}

impl<'a> Sleeper<'a> {
    /// Returns the calling thread's sleeper. Everything that wakes the thread must have this
    /// `waker`: in a destructor of a thread-local, another call of [`Waker::current`] would return
    /// a waker that does not wake this sleeper.
    pub(crate) fn new(
        (core, name): (&'a Core, &'a Name),
        waker: Waker,
        wait: &'a Wait<'a>,
    ) -> Self {
        Self { core, name, waker, wait }
    }

    /// Makes each event of the channel wake the thread, until the result is dropped.
    pub(crate) fn woken_by<'s>(&self, channel: &'s Subscription) -> Waking<'s> {
        channel.wake(self.waker.clone())
    }

    /// Sleeps until `is_ready` returns true or the time `until` has come. Returns an error if the
    /// wait was cancelled or the client was shut down.
    pub(crate) fn sleep_until(
        &self,
        until: Option<Instant>,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        // The checks come after the registration at the cancel token, because a cancellation before
        // the registration does not wake this thread.
        let token = self.wait.cancel;
        let _registration = token.map(|token| Registration::of(token, self.waker.clone()));
        loop {
            self.wait.check(self.core, self.name)?;
            if is_ready() || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            self.waker.sleep_until(until);
        }
    }

    /// Does the same as [`sleep_until`](Self::sleep_until), but ends at the first wake-up.
    pub(super) fn sleep_once(&self, until: Option<Instant>) -> Result<(), Error> {
        let mut has_slept = false;
        self.sleep_until(until, || std::mem::replace(&mut has_slept, true))
    }

    /// Sleeps for `pause`, or until the end of the wait.
    pub(crate) fn pause(&self, pause: Duration) -> Result<(), Error> {
        self.sleep_until(self.wait.end_of_sleep(pause), || false)
    }
}

/// Returns the maximum sleep of a waiter, which must poll because a message may be lost. The time
/// is random within a range, so that processes do not poll together.
pub(crate) fn slow_poll() -> Duration {
    SLOW_POLL.mul_f64(0.8 + 0.4 * jitter(clock::now()))
}

const SLOW_POLL: Duration = Duration::from_secs(5);

/// Returns the maximum sleep of a waiter that must notice the end of a lease or key. This end comes
/// after `left`, and no message reports it.
pub(crate) fn slow_poll_or(left: Option<Duration>) -> Duration {
    let end = left.map_or(Duration::MAX, |left| left.saturating_add(AFTER_THE_END));
    slow_poll().min(end)
}

/// The time from the end of a lease or key to the waiter's request. Redis removes a key one
/// millisecond after the key's end.
const AFTER_THE_END: Duration = Duration::from_millis(2);

impl From<Duration> for Wait<'_> {
    fn from(wait: Duration) -> Self {
        Self::at_most(wait)
    }
}

impl From<Instant> for Wait<'_> {
    fn from(deadline: Instant) -> Self {
        Self::until(deadline)
    }
}

impl<'a> From<&'a CancelToken> for Wait<'a> {
    fn from(token: &'a CancelToken) -> Self {
        Self::FOREVER.cancelled_by(token)
    }
}
