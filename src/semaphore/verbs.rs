//! The macro that gives both semaphores the verbs that take permits.

/// Gives a semaphore its verbs that take permits. The type has a `name` and
/// `fn take_one(&self, Wait<'_>) -> Result<Option<$one>, Error>` and
/// `fn take(&self, u32, Wait<'_>) -> Result<Option<$many>, Error>`, where `None` is the end of the
/// wait.
macro_rules! permit_verbs {
    ($semaphore:ident, $one:ty, $many:ty) => {
        const _: () = {
            use std::time::Duration;

            use redlatch_client::CancelToken;

            use crate::error::Error;
            #[cfg(doc)]
            use crate::error::ErrorKind;
            use crate::waiting::Wait;

            /// The verbs that take permits.
            impl $semaphore {
                /// Takes one permit, waiting for as long as it takes.
                ///
                /// While permits are free: one round trip. Else the thread queues behind those of
                /// its process that came before it, and sleeps until permits are given back (a
                /// message wakes it, and if that is lost, a slow poll of about 5 s) or a lease ends.
                ///
                /// # Errors
                ///
                /// [`Redis`](ErrorKind::Redis) if the server is in trouble, if a key holds something
                /// else, or if a permit's lease was over before the reply was read;
                /// [`Protocol`](ErrorKind::Protocol) if the server's answer makes no sense: no
                /// permit is taken, and the client gives back in the background any permits the
                /// server may have given. [`Config`](ErrorKind::Config) if the name is empty or the
                /// lease not usable. [`ShutDown`](ErrorKind::ShutDown) after
                /// [`Client::shutdown`](crate::Client::shutdown), which ends waits as well.
                /// [`Forked`](ErrorKind::Forked) in a forked child.
                ///
                /// All verbs that take permits fail in these ways.
                ///
                /// # Blocking
                ///
                /// Until the thread has the permit or an error ends the wait; time does not end it.
                /// In an outage a call may wait behind another thread's wait on the same connection
                /// before its own request fails:
                /// [`response_timeout`](crate::ClientBuilder::response_timeout) says for how long at
                /// most.
                pub fn acquire(&self) -> Result<$one, Error> {
                    self.got(self.take_one(Wait::FOREVER))
                }

                /// Takes one permit if one is free now and no thread of this process waits for one.
                ///
                /// # Errors
                ///
                /// Trouble that a request meets is an error, never `None`.
                ///
                /// # Blocking
                ///
                /// One round trip; none if a thread of this process waits. A process that keeps
                /// taking permits which others want lets those go first now and then: for a
                /// millisecond and two round trips.
                #[must_use = "`None`: none was taken; and a permit that is dropped is given back"]
                pub fn try_acquire(&self) -> Result<Option<$one>, Error> {
                    self.take_one(Wait::NONE)
                }

                /// Takes one permit unless that takes longer than `wait`: returns `None` then.
                ///
                /// # Blocking
                ///
                /// For `wait` at most (the first request has 15 ms in any case, or two round trips
                /// to a server that is further off). The end of `wait` also ends a request that is
                /// on its way: with `None` if the server has answered this call before, otherwise
                /// with an error. The client then gives back in the background any permits the
                /// server may have given.
                #[must_use = "`None`: none was taken; and a permit that is dropped is given back"]
                pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<$one>, Error> {
                    self.take_one(wait.into())
                }

                /// Takes one permit, and gives up when `token` is cancelled.
                ///
                /// # Errors
                ///
                /// [`Cancelled`](ErrorKind::Cancelled), no permit is taken then. Also the errors of
                /// [`acquire`](Self::acquire). A grant that was decided before the cancel wins.
                ///
                /// # Blocking
                ///
                /// Until the thread has the permit, or an error or the cancel ends the wait. The
                /// cancel ends a sleep at once, and a request that is on its way as the end of the
                /// time does in [`try_acquire_for`](Self::try_acquire_for).
                pub fn acquire_cancellable(&self, token: &CancelToken) -> Result<$one, Error> {
                    self.got(self.take_one(token.into()))
                }

                /// Takes one permit unless that takes longer than `wait` allows: `None`. A limit, a
                /// deadline or a cancel token is a wait, too. All the other ways to take one are
                /// short forms of this one.
                ///
                /// # Errors
                ///
                /// [`Cancelled`](ErrorKind::Cancelled) if the token of `wait` was cancelled, no
                /// permit is taken then. Also the errors of [`acquire`](Self::acquire).
                ///
                /// # Blocking
                ///
                /// For as long as `wait` allows, as [`try_acquire_for`](Self::try_acquire_for) and,
                /// with a token, [`acquire_cancellable`](Self::acquire_cancellable) do. A deadline
                /// that has passed leaves one try at most.
                #[must_use = "`None`: none was taken; and a permit that is dropped is given back"]
                pub fn acquire_within<'a>(
                    &self,
                    wait: impl Into<Wait<'a>>,
                ) -> Result<Option<$one>, Error> {
                    self.take_one(wait.into())
                }

                /// Takes `permits` at once, or waits until there are so many: as
                /// [`acquire`](Self::acquire). None is taken before all are there. Zero is granted
                /// at once.
                ///
                /// # Blocking
                ///
                /// Until there are so many; for ever if there never are. Zero does not block.
                pub fn acquire_many(&self, permits: u32) -> Result<$many, Error> {
                    self.got(self.take(permits, Wait::FOREVER))
                }

                /// Takes `permits` at once if so many are free now and no thread of this process
                /// waits for any: as [`try_acquire`](Self::try_acquire).
                #[must_use = "`None`: none was taken; and a permit that is dropped is given back"]
                pub fn try_acquire_many(&self, permits: u32) -> Result<Option<$many>, Error> {
                    self.take(permits, Wait::NONE)
                }

                /// Takes `permits` at once unless that takes longer than `wait`: as
                /// [`try_acquire_for`](Self::try_acquire_for).
                #[must_use = "`None`: none was taken; and a permit that is dropped is given back"]
                pub fn try_acquire_many_for(
                    &self,
                    permits: u32,
                    wait: Duration,
                ) -> Result<Option<$many>, Error> {
                    self.take(permits, wait.into())
                }

                /// Takes `permits` at once, and gives up when `token` is cancelled: as
                /// [`acquire_cancellable`](Self::acquire_cancellable).
                pub fn acquire_many_cancellable(
                    &self,
                    permits: u32,
                    token: &CancelToken,
                ) -> Result<$many, Error> {
                    self.got(self.take(permits, token.into()))
                }

                /// Takes `permits` at once unless that takes longer than `wait` allows: as
                /// [`acquire_within`](Self::acquire_within).
                #[must_use = "`None`: none was taken; and a permit that is dropped is given back"]
                pub fn acquire_many_within<'a>(
                    &self,
                    permits: u32,
                    wait: impl Into<Wait<'a>>,
                ) -> Result<Option<$many>, Error> {
                    self.take(permits, wait.into())
                }

                /// The result of a wait that only an error ends.
                fn got<T>(&self, taken: Result<Option<T>, Error>) -> Result<T, Error> {
                    taken?.ok_or_else(|| Error::shut_down(&self.name().into()))
                }
            }
        };
    };
}

pub(crate) use permit_verbs;
