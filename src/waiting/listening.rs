//! The channels that a leader listens to while it sleeps, and the time at which it sends its next
//! request even if no message has come.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlatch_client::pubsub::{Confirmation, Subscription};
use redlatch_client::sync::clock;

use super::wait::Sleeper;
use crate::error::{Error, ErrorKind};
use crate::runtime::Core;
use crate::scripts::{self, Rights};

/// A leader's channels and its next request. Times are on [`clock`].
#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// The client's own channel, on which scripts send messages to the client's waiters.
    pub(crate) own: Channel,
    /// The public channel of the name.
    pub(crate) public: Channel,
    /// A second channel, on which no message is sent. Every redlatch client that listens to
    /// `public` also listens to this channel, so that scripts can count these clients. This field
    /// is dropped after `public`.
    pub(crate) companion: Option<Subscription>,
    /// The time of the leader's next request. Zero: at once, as a new leader does. A lock's leader
    /// follows the time of its entry's machine (`EntryMachine::ask_at`): a reply sets both times,
    /// and a collected message may make both earlier.
    next_request: u64,
}

/// A channel, and the number of its events at the last request (its version).
#[derive(Debug, Default)]
pub(crate) struct Channel {
    subscription: Option<Subscription>,
    version: Option<u64>,
    /// The time by which the server must confirm the channel. `None` if the server has confirmed
    /// the channel, or if the wait does not need it.
    latest: Option<Instant>,
}

impl Listening {
    /// Returns the time by which the server must confirm a new channel.
    pub(crate) fn latest(core: &Core) -> Option<Instant> {
        Instant::now().checked_add(core.response_timeout().saturating_mul(2))
    }

    /// Whether the leader must send a request: the time of its next request has come, or since the
    /// last request a message came on the public channel or may have been missed.
    pub(super) fn is_due(&self) -> bool {
        self.own.has_news() || self.public.has_news() || self.next_request <= clock::now()
    }

    /// Records that the leader is about to send a request, and marks all messages as read. So if
    /// the request fails, the next leader must send another request at once.
    pub(super) fn catch_up(&mut self) {
        self.own.catch_up();
        self.public.catch_up();
        self.ask_now();
    }

    pub(crate) fn ask_now(&mut self) {
        self.next_request = 0;
    }

    pub(crate) fn ask_after(&mut self, sleep: Duration) {
        self.next_request = clock::now().saturating_add(clock::nanos(sleep));
    }

    /// Makes the leader ask at this time, unless it asks earlier. (A new leader asks at once, even
    /// if its entry would sleep for longer.)
    pub(crate) fn ask_by(&mut self, at: u64) {
        self.next_request = self.next_request.min(at);
    }

    #[cfg(test)]
    pub(crate) fn next_request(&self) -> u64 {
        self.next_request
    }

    /// Sleeps until one of these events: the leader may have to send a request, `may_collect`
    /// returns true, the wait is over, or `at_most` has passed.
    pub(super) fn sleep(
        &mut self,
        sleeper: &Sleeper<'_>,
        at_most: Duration,
        may_collect: impl Fn() -> bool,
    ) -> Result<(), Error> {
        self.check(sleeper)?;
        {
            let channels = [&self.own, &self.public];
            let _waking =
                channels.map(|it| it.subscription.as_ref().map(|it| sleeper.woken_by(it)));
            let rest = Duration::from_nanos(self.next_request.saturating_sub(clock::now()));
            let until = channels.into_iter().map(|channel| channel.latest);
            let until = until.chain([sleeper.wait.end_of_sleep(rest.min(at_most))]);
            let until = until.flatten().min();
            sleeper.sleep_until(until, || {
                may_collect()
                    || channels.iter().any(|channel| channel.has_news() || channel.is_refused())
            })?;
        }
        self.check(sleeper)
    }

    /// Returns an error if the leader cannot listen to a channel that it must listen to.
    fn check(&mut self, sleeper: &Sleeper<'_>) -> Result<(), Error> {
        self.own.check(sleeper)?;
        self.public.check(sleeper)
    }
}

impl Channel {
    /// Listens to the channel, if the leader does not listen to it yet. The leader sends a request
    /// after the server has confirmed the subscription, as earlier messages may be missed.
    pub(crate) fn listen(&mut self, core: &Core, channel: &Arc<str>) {
        self.subscribe(Listening::latest(core), || core.pubsub.listen(channel));
    }

    /// Does the same as [`listen`](Self::listen), but the wait fails if the server has not
    /// confirmed the channel by `latest`. If the channel's version before the last request is
    /// [stored](Self::note_version), only messages after that version count as missed.
    pub(crate) fn subscribe(
        &mut self,
        latest: Option<Instant>,
        listen: impl FnOnce() -> Subscription,
    ) {
        if self.subscription.is_none() {
            self.latest = latest;
            self.subscription = Some(listen());
        }
    }

    /// Stores the channel's version before a request, even if the leader does not listen to the
    /// channel yet. `None`: no thread of the client listens to the channel.
    pub(crate) fn note_version(&mut self, version: Option<u64>) {
        self.version = version;
    }

    /// Whether messages came, or may have been missed, since the last request.
    pub(crate) fn has_news(&self) -> bool {
        self.subscription.as_ref().is_some_and(|it| it.has_news_since(self.version))
    }

    /// Returns the channel's version before the last request. Returns `None` if no thread of the
    /// client listened to the channel at that time.
    pub(crate) fn version(&self) -> Option<u64> {
        self.version
    }

    pub(crate) fn message(&self) -> Vec<u8> {
        self.subscription.as_ref().map(Subscription::message).unwrap_or_default()
    }

    pub(crate) fn catch_up(&mut self) {
        if let Some(subscription) = &self.subscription {
            self.version = Some(subscription.version());
        }
    }

    /// Returns whether there is [news](Self::has_news), and marks it as read.
    pub(crate) fn take_news(&mut self) -> bool {
        let has_news = self.has_news();
        if has_news {
            self.catch_up();
        }
        has_news
    }

    fn is_refused(&self) -> bool {
        self.latest.is_some()
            && self.subscription.as_ref().is_some_and(|subscription| {
                matches!(subscription.confirmation(), Confirmation::Refused(_))
            })
    }

    fn check(&mut self, sleeper: &Sleeper<'_>) -> Result<(), Error> {
        if let (Some(subscription), Some(latest)) = (&self.subscription, self.latest)
            && is_confirmed(subscription, latest, sleeper)
                .map_err(|error| error.now("nothing is held"))?
        {
            self.latest = None;
        }
        Ok(())
    }
}

/// Blocks until the server has confirmed a channel, so that its messages reach the thread. Returns
/// `false` if the wait ended before the confirmation.
pub(crate) fn await_confirmation(
    subscription: &Subscription,
    sleeper: &Sleeper<'_>,
) -> Result<bool, Error> {
    let Some(latest) = Listening::latest(sleeper.core) else { return Ok(true) };
    while !is_confirmed(subscription, latest, sleeper)? {
        if sleeper.wait.is_over() {
            return Ok(false);
        }
        let version = subscription.version();
        let until = sleeper.wait.end_of_sleep(latest.saturating_duration_since(Instant::now()));
        let _waking = sleeper.woken_by(subscription);
        sleeper.sleep_until(until, || {
            subscription.version() != version || subscription.is_confirmed()
        })?;
    }
    Ok(true)
}

/// Returns whether the server has confirmed the channel. Returns an error if the server refused the
/// channel or has not confirmed it in time.
fn is_confirmed(
    subscription: &Subscription,
    latest: Instant,
    Sleeper { core, name, .. }: &Sleeper<'_>,
) -> Result<bool, Error> {
    match subscription.confirmation() {
        Confirmation::Confirmed => Ok(true),
        Confirmation::Refused(cause) => {
            Err(scripts::refused(&cause, Rights::Subscriptions).of(name))
        }
        Confirmation::Pending if Instant::now() >= latest => {
            let message = format!(
                "the server at {} did not confirm a subscription in time, and the wait needs its \
                 messages",
                core.address()
            );
            Err(Error::new(ErrorKind::ResponseTimeout, message).of(name))
        }
        Confirmation::Pending => Ok(false),
    }
}
