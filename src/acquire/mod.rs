//! How a thread waits: the queue of a process, and the loop of semaphores and latches. (A lock's
//! is `hold/place.rs`.)
//!
//! ```text
//! try; done?
//! subscribe; wait for the confirmation
//! repeat: read the channel's version; try; done? ; sleep until the version has moved
//! ```
//!
//! Subscribe first: messages are not stored, so one that comes between a try and the subscription
//! would be lost. Hint: a wake-up promises nothing, only the try's reply grants. Every wait ends:
//! each sleep is bounded by what the try said, the deadline, a cancel, a reconnect of the
//! subscriber, the slow poll, or shutdown.

#[cfg(test)]
#[cfg(shuttle)]
mod model_tests;
mod queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use queue::{Queue, Signal, Waiter, Wake};

use crate::error::{Error, ErrorKind};
use crate::node::Core;
use crate::pubsub::{Standing, Subscription, confirmation_deadline};
use crate::sync::{Thread, clock, jitter};
pub(crate) use crate::wait::Wait;

/// Whatever the server says of the time left (it may be an hour, or no end), a waiter asks again
/// after about this long.
const SLOW_POLL: Duration = Duration::from_secs(5);
/// A holder that has no time left is asked about again after this, and not at once.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// A sleep that ends by itself, jittered so that processes do not poll together.
pub(crate) fn slow_poll() -> Duration {
    SLOW_POLL.mul_f64(0.8 + 0.4 * jitter(clock::now()))
}

/// What a try found.
#[derive(Debug)]
pub(crate) enum Try<T> {
    Granted(T),
    /// Not now, and nothing will change for so long unless a message comes; `None`: for ever.
    Busy(Option<Duration>),
}

/// Who waits for what.
pub(crate) struct Contender<'a> {
    pub(crate) core: &'a Core,
    pub(crate) name: &'a Arc<str>,
    pub(crate) channel: &'a Arc<str>,
    pub(crate) thread: &'a Arc<Thread>,
    pub(crate) wait: Wait<'a>,
    /// Whether there is news besides the channel's, to wake up for.
    pub(crate) news: &'a (dyn Fn() -> bool + 'a),
}

/// How the wait for a subscription ended.
pub(crate) enum Confirmation {
    Confirmed,
    /// The wait was over first.
    Over,
    Refused(Error),
}

/// A contender's next try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    /// How many came before it.
    pub(crate) tries: u32,
    /// What the contender listens to, and its version before the try.
    pub(crate) listening: Option<(&'a Subscription, u64)>,
}

impl Contender<'_> {
    /// Tries until granted, or until the wait is over (`None`). `pause` is asked after each
    /// wake-up how long to stay away from the race, given how long the wait was so far.
    pub(crate) fn acquire<T>(
        &self,
        mut attempt: impl FnMut(Attempt<'_>) -> Result<Try<T>, Error>,
        mut pause: impl FnMut(Duration) -> Duration,
    ) -> Result<Option<T>, Error> {
        self.wait.check(self.core, self.name)?;
        if let Try::Granted(granted) = attempt(Attempt { tries: 0, listening: None })? {
            return Ok(Some(granted));
        }
        if self.wait.is_over() {
            return Ok(None);
        }
        let begun = Instant::now();
        let subscription = self.core.listen(self.channel);
        if !self.await_confirmation(&subscription)? {
            return Ok(None);
        }
        let mut tries: u32 = 0;
        loop {
            tries = tries.saturating_add(1);
            let version = subscription.version();
            let listening = Some((&subscription, version));
            let left = match attempt(Attempt { tries, listening })? {
                Try::Granted(granted) => return Ok(Some(granted)),
                Try::Busy(left) => left,
            };
            let sleep = left.map_or(SLOW_POLL, |left| left.max(SHORTEST_SLEEP));
            let until = self.wait.sleep_until(sleep.min(slow_poll()));
            self.sleep(Some(&subscription), until, |now| now != version)?;
            if self.wait.is_over() {
                return Ok(None);
            }
            let pause = pause(begun.elapsed());
            if !pause.is_zero() {
                // Deaf to messages: whoever published one was heard by faster waiters.
                self.sleep(None, self.wait.sleep_until(pause), |_| false)?;
            }
        }
    }

    /// Sleeps until the channel's version is as `moved` wants it, or until `until`.
    pub(crate) fn sleep(
        &self,
        subscription: Option<&Subscription>,
        until: Option<Instant>,
        moved: impl Fn(u64) -> bool,
    ) -> Result<(), Error> {
        self.wait.wakeable(self.thread, || {
            let _waking = subscription.map(|subscription| subscription.wake(self.thread));
            loop {
                self.wait.check(self.core, self.name)?;
                if (self.news)()
                    || subscription.is_some_and(|subscription| moved(subscription.version()))
                    || until.is_some_and(|until| Instant::now() >= until)
                {
                    return Ok(());
                }
                self.thread.parker().park_until(until);
            }
        })
    }

    /// `false`: the wait was over first.
    fn await_confirmation(&self, subscription: &Subscription) -> Result<bool, Error> {
        match self.confirmation(subscription)? {
            Confirmation::Confirmed => Ok(true),
            Confirmation::Over => Ok(false),
            Confirmation::Refused(error) => Err(error),
        }
    }

    /// Waits until messages reach the thread, or the server refuses them.
    pub(crate) fn confirmation(&self, subscription: &Subscription) -> Result<Confirmation, Error> {
        let Some(latest) = confirmation_deadline(self.core.response_timeout()) else {
            return Ok(Confirmation::Confirmed);
        };
        while !subscription.is_confirmed() {
            // What it waits for may have come another way.
            if (self.news)() {
                return Ok(Confirmation::Confirmed);
            }
            if let Standing::Refused(error) = subscription.standing() {
                return Ok(Confirmation::Refused(error.of(self.name)));
            }
            if self.wait.is_over() {
                return Ok(Confirmation::Over);
            }
            if Instant::now() >= latest {
                let message = format!(
                    "no subscription could be had in time from the server at {}, so what ends the \
                     wait would not be heard; nothing is held",
                    self.core.address()
                );
                let error = Error::new(ErrorKind::Redis, message);
                return Err(error.transient(true).of(self.name));
            }
            let version = subscription.version();
            let rest = latest.saturating_duration_since(Instant::now());
            self.sleep(Some(subscription), self.wait.sleep_until(rest), |now| {
                now != version || subscription.is_confirmed()
            })?;
        }
        Ok(Confirmation::Confirmed)
    }
}
