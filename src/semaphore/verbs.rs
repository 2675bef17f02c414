//! The macro that defines the methods of both semaphores that take permits.

/// Defines the methods of a semaphore that take permits. The type needs a method `name` and these
/// two methods, which return `None` at the end of the wait:
/// `fn take_one(&self, Wait<'_>) -> Result<Option<$one>, Error>` and
/// `fn take(&self, u32, Wait<'_>) -> Result<Option<$many>, Error>`.
macro_rules! permit_verbs {
    ($semaphore:ident, $one:ty, $many:ty) => {
        const _: () = {
            use std::time::{Duration, Instant};

            use redlatch_client::CancelToken;

            use crate::attempt::Attempt;
            #[cfg(doc)]
            use crate::attempt::Attempt::NotTaken;
            use crate::error::Error;
            #[cfg(doc)]
            use crate::error::ErrorKind;
            use crate::waiting::Wait;

            /// The methods that take permits.
            impl $semaphore {
                /// Takes one permit. Blocks until the thread has it.
                ///
                /// If a permit is free, this needs one round trip. Otherwise the thread queues
                /// behind earlier threads of its process, and sleeps until permits are given back
                /// or a lease ends. (A message wakes the thread. If the message is lost, the thread
                /// asks again after about 5 s.)
                ///
                /// # Errors
                ///
                /// After an error the call has taken no permit. If the outcome of a request is
                /// unknown, the client gives back any granted permits in the background.
                ///
                /// - [Server trouble](ErrorKind#server-trouble) if the server refuses or does not
                ///   answer, if the key holds other data, or if a permit's lease had ended before
                ///   the reply was read. [`Protocol`](ErrorKind::Protocol) if the server's reply is
                ///   malformed.
                /// - [`Config`](ErrorKind::Config) if the name is empty, if the lease is out of
                ///   range, or if the call asks for more permits than
                ///   [`with_permits`](Self::with_permits) sets.
                /// - [`ShutDown`](ErrorKind::ShutDown) after
                ///   [`Client::shutdown`](crate::Client::shutdown), which also ends waits.
                ///   [`Forked`](ErrorKind::Forked) in a forked child.
                ///
                /// All methods that take permits can return these errors.
                ///
                /// # Blocking
                ///
                /// Blocks until the thread has the permit, or an error ends the wait. Each request
                /// lasts at most [`response_timeout`](crate::ClientBuilder::response_timeout), even
                /// in an outage.
                pub fn acquire(&self) -> Result<$one, Error> {
                    self.got(self.take_one(Wait::FOREVER))
                }

                /// Takes one permit if a permit is free now and no thread of this process waits for
                /// a permit. If no permit is free or another thread waits, returns [`NotTaken`].
                ///
                /// # Errors
                ///
                /// A failed request is an error, never [`NotTaken`].
                ///
                /// # Blocking
                ///
                /// One round trip; none if another thread of this process waits. If this process
                /// takes permits again and again while other processes want them, the call
                /// sometimes lets the other processes go first. In that case the call blocks for
                /// one more millisecond and two more round trips.
                pub fn try_acquire(&self) -> Result<Attempt<$one>, Error> {
                    self.take_one(Wait::NONE).map(Attempt::of)
                }

                /// Takes one permit, or returns [`NotTaken`] after `wait`.
                ///
                /// # Errors
                ///
                /// The errors of [`acquire`](Self::acquire). After an error no permit is taken.
                ///
                /// # Blocking
                ///
                /// Blocks for at most `wait`: see
                /// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
                pub fn try_acquire_for(&self, wait: Duration) -> Result<Attempt<$one>, Error> {
                    self.take_one(wait.into()).map(Attempt::of)
                }

                /// Takes one permit, or returns [`NotTaken`] at `deadline`. If `deadline` has
                /// passed, the call tries once.
                ///
                /// # Errors
                ///
                /// The errors of [`acquire`](Self::acquire).
                ///
                /// # Blocking
                ///
                /// Blocks at most until `deadline`: see [`try_acquire_for`](Self::try_acquire_for).
                pub fn try_acquire_until(&self, deadline: Instant) -> Result<Attempt<$one>, Error> {
                    self.take_one(deadline.into()).map(Attempt::of)
                }

                /// Takes one permit, or fails when `token` is cancelled.
                ///
                /// # Errors
                ///
                /// [`Cancelled`](ErrorKind::Cancelled) if `token` is cancelled: the call has taken
                /// no permit. If the permit was granted before the cancellation, the call returns
                /// the permit. The other errors are those of [`acquire`](Self::acquire).
                ///
                /// # Blocking
                ///
                /// Blocks until the thread has the permit, or an error or the cancellation ends the
                /// wait. The cancellation ends the wait at once, even during a request.
                pub fn acquire_cancellable(&self, token: &CancelToken) -> Result<$one, Error> {
                    self.got(self.take_one(token.into()))
                }

                /// Takes one permit, or returns [`NotTaken`] at the end of `wait`, which may be a
                /// limit, a deadline or a cancel token. All other methods that take one permit are
                /// short forms of this method.
                ///
                /// # Errors
                ///
                /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled: the
                /// call has taken no permit. The other errors are those of
                /// [`acquire`](Self::acquire).
                ///
                /// # Blocking
                ///
                /// Blocks for as long as `wait` allows: see
                /// [`try_acquire_for`](Self::try_acquire_for) and
                /// [`acquire_cancellable`](Self::acquire_cancellable). If a deadline of `wait` has
                /// already passed, the call tries once.
                pub fn acquire_within<'a>(
                    &self,
                    wait: impl Into<Wait<'a>>,
                ) -> Result<Attempt<$one>, Error> {
                    self.take_one(wait.into()).map(Attempt::of)
                }

                /// Takes `permits` permits together. Blocks until the thread has all of them: see
                /// [`acquire`](Self::acquire).
                ///
                /// # Errors
                ///
                /// The errors of [`acquire`](Self::acquire). After an error no permit is taken.
                ///
                /// # Blocking
                ///
                /// Blocks until `permits` permits are free. If the semaphore has fewer permits, the
                /// call blocks for ever, except that it returns an error if
                /// [`with_permits`](Self::with_permits) sets fewer permits. A call for zero permits
                /// does not block.
                pub fn acquire_many(&self, permits: u32) -> Result<$many, Error> {
                    self.got(self.take(permits, Wait::FOREVER))
                }

                /// Takes `permits` permits together if they are free now and no thread of this
                /// process waits for permits: see [`try_acquire`](Self::try_acquire).
                ///
                /// # Errors
                ///
                /// The errors of [`try_acquire`](Self::try_acquire).
                ///
                /// # Blocking
                ///
                /// Blocks as [`try_acquire`](Self::try_acquire) does. If `permits` is zero, does
                /// not block.
                pub fn try_acquire_many(&self, permits: u32) -> Result<Attempt<$many>, Error> {
                    self.take(permits, Wait::NONE).map(Attempt::of)
                }

                /// Takes `permits` permits together, or returns [`NotTaken`] after `wait`: see
                /// [`try_acquire_for`](Self::try_acquire_for).
                ///
                /// # Errors
                ///
                /// The errors of [`acquire_many`](Self::acquire_many).
                ///
                /// # Blocking
                ///
                /// Blocks for at most `wait`: see [`try_acquire_for`](Self::try_acquire_for).
                pub fn try_acquire_many_for(
                    &self,
                    permits: u32,
                    wait: Duration,
                ) -> Result<Attempt<$many>, Error> {
                    self.take(permits, wait.into()).map(Attempt::of)
                }

                /// Takes `permits` permits together, or returns [`NotTaken`] at `deadline`: see
                /// [`try_acquire_until`](Self::try_acquire_until).
                ///
                /// # Errors
                ///
                /// The errors of [`acquire_many`](Self::acquire_many).
                ///
                /// # Blocking
                ///
                /// Blocks at most until `deadline`: see [`try_acquire_for`](Self::try_acquire_for).
                pub fn try_acquire_many_until(
                    &self,
                    permits: u32,
                    deadline: Instant,
                ) -> Result<Attempt<$many>, Error> {
                    self.take(permits, deadline.into()).map(Attempt::of)
                }

                /// Takes `permits` permits together, or fails when `token` is cancelled: see
                /// [`acquire_cancellable`](Self::acquire_cancellable).
                ///
                /// # Errors
                ///
                /// The errors of [`acquire_cancellable`](Self::acquire_cancellable).
                ///
                /// # Blocking
                ///
                /// Blocks as [`acquire_many`](Self::acquire_many) does, or until the cancellation.
                /// The cancellation ends the wait at once, even during a request.
                pub fn acquire_many_cancellable(
                    &self,
                    permits: u32,
                    token: &CancelToken,
                ) -> Result<$many, Error> {
                    self.got(self.take(permits, token.into()))
                }

                /// Takes `permits` permits together, or returns [`NotTaken`] at the end of `wait`:
                /// see [`acquire_within`](Self::acquire_within).
                ///
                /// # Errors
                ///
                /// The errors of [`acquire_within`](Self::acquire_within).
                ///
                /// # Blocking
                ///
                /// Blocks for as long as `wait` allows: see
                /// [`acquire_within`](Self::acquire_within).
                pub fn acquire_many_within<'a>(
                    &self,
                    permits: u32,
                    wait: impl Into<Wait<'a>>,
                ) -> Result<Attempt<$many>, Error> {
                    self.take(permits, wait.into()).map(Attempt::of)
                }

                /// Converts the result of a wait without a limit. `None`: the client has ended.
                fn got<T>(&self, taken: Result<Option<T>, Error>) -> Result<T, Error> {
                    taken?.ok_or_else(|| Error::shut_down(&self.name().into()))
                }
            }
        };
    };
}

pub(crate) use permit_verbs;
