//! A channel's entry: its subscription, its version and its waiters.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::tracking::Tracked;
use crate::connection::Cause;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, Waker};

/// A channel to which a thread of this process listens, or listened a short while ago.
#[derive(Debug)]
pub(crate) struct ChannelEntry {
    channel: Arc<str>,
    kind: ChannelKind,
    /// The number of the server at which this process subscribes to the channel. This number
    /// changes only under the mutex of all channels.
    home: AtomicUsize,
    state: Mutex<EntryState>,
}

/// The use of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelKind {
    /// The channel of a name. After the last listener leaves, the entry is kept for a while for the
    /// next listener.
    Shared,
    /// The channel of one waiter. No other thread listens to it.
    Single,
    /// The channel to which all clients of a cluster with the same kind of channels listen. Clients
    /// with the other kind of channels count the listeners to this channel.
    Common,
    /// The client's own channel, at one server or for one name. Each message names its owner, and
    /// does not change the channel's version.
    Own,
}

#[derive(Debug)]
struct EntryState {
    confirmation: Confirmation,
    /// The number of messages, confirmations and refusals so far. A waiter reads the version before
    /// it sends a request, and sleeps only while the version is unchanged.
    version: u64,
    /// The last message.
    message: Vec<u8>,
    waiting: Vec<Waker>,
    /// The holds that ask the server after each confirmation, by the numbers of their owners.
    hearers: BTreeMap<u64, Weak<dyn Tracked>>,
    /// The time since which no thread listens.
    idle_since: Option<Instant>,
    listeners: usize,
}

/// Whether the server sends the messages of a channel.
#[derive(Clone, Debug)]
pub enum Confirmation {
    /// The subscription is not yet confirmed. A message that is published now would be lost.
    Pending,
    /// The server sends the channel's messages.
    Confirmed,
    /// The server refuses the subscription.
    Refused(Cause),
}

impl ChannelEntry {
    pub(crate) fn new(channel: Arc<str>, kind: ChannelKind, version: u64, home: usize) -> Self {
        let state = EntryState {
            confirmation: Confirmation::Pending,
            version,
            message: Vec::new(),
            waiting: Vec::new(),
            hearers: BTreeMap::new(),
            idle_since: None,
            listeners: 0,
        };
        Self { channel, kind, home: AtomicUsize::new(home), state: Mutex::new(state) }
    }

    pub(crate) fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    pub(crate) fn kind(&self) -> ChannelKind {
        self.kind
    }

    pub(crate) fn home(&self) -> usize {
        self.home.load(Ordering::Relaxed)
    }

    /// Moves the channel to another home. Returns the number of the old home.
    pub(crate) fn move_to(&self, home: usize) -> usize {
        self.home.swap(home, Ordering::Relaxed)
    }

    pub(crate) fn confirmation(&self) -> Confirmation {
        self.state.lock().confirmation.clone()
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        matches!(self.state.lock().confirmation, Confirmation::Confirmed)
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.state.lock().confirmation, Confirmation::Refused(_))
    }

    pub(crate) fn version(&self) -> u64 {
        self.state.lock().version
    }

    pub(crate) fn has_news_since(&self, version: Option<u64>) -> bool {
        let state = self.state.lock();
        matches!(state.confirmation, Confirmation::Confirmed) && version != Some(state.version)
    }

    pub(crate) fn message(&self) -> Vec<u8> {
        self.state.lock().message.clone()
    }

    pub(crate) fn listen(&self) {
        let mut state = self.state.lock();
        state.listeners += 1;
        state.idle_since = None;
    }

    /// Makes the hold of this owner ask the server after each confirmation, until the owner
    /// [leaves](Self::leave).
    pub(crate) fn hear(&self, owner: u64, hearer: Weak<dyn Tracked>) {
        self.state.lock().hearers.insert(owner, hearer);
    }

    pub(crate) fn leave(&self, owner: Option<u64>) {
        let mut state = self.state.lock();
        owner.and_then(|owner| state.hearers.remove(&owner));
        state.listeners -= 1;
        if state.listeners == 0 {
            state.idle_since = Some(Instant::now());
        }
    }

    pub(crate) fn is_listened_to(&self) -> bool {
        self.state.lock().listeners > 0
    }

    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.state.lock().idle_since
    }

    /// Makes each event of the channel wake `waker`, until [`forget`](Self::forget).
    pub(crate) fn wake(&self, waker: Waker) {
        self.state.lock().waiting.push(waker);
    }

    pub(crate) fn forget(&self, waker: &Waker) {
        let mut state = self.state.lock();
        if let Some(at) = state.waiting.iter().position(|waiting| waiting.will_wake(waker)) {
            state.waiting.swap_remove(at);
        }
    }

    /// Stores a message that arrived on the channel.
    pub(crate) fn record_message(&self, message: Vec<u8>) {
        let mut state = self.state.lock();
        state.version += 1;
        state.message = message;
        Self::wake_all(state);
    }

    /// Records whether the server sends the channel's messages from now on. Called with no mutex
    /// held.
    pub(crate) fn record_confirmation(&self, confirmation: Confirmation) {
        let mut state = self.state.lock();
        state.confirmation = confirmation;
        // Messages may have been missed until now. Waiters are woken only when their channel is
        // confirmed: a waiter that sent its request earlier could miss the next message. The last
        // message is dropped, because it may be older than the missed messages. The holds that hear
        // on the channel ask the server. (After a refusal they do not: the client subscribes again
        // and again, and each of its attempts would cost one request for each hold.)
        state.version += 1;
        state.message.clear();
        let hearers: Vec<_> = match state.confirmation {
            Confirmation::Confirmed => state.hearers.values().cloned().collect(),
            _ => Vec::new(),
        };
        Self::wake_all(state);
        hearers.iter().filter_map(Weak::upgrade).for_each(Tracked::ask_if_wanted);
    }

    /// Notes that the connection has ended. This wakes no thread: the next confirmation wakes the
    /// waiters.
    pub(crate) fn record_disconnect(&self) {
        let mut state = self.state.lock();
        if let Confirmation::Confirmed = state.confirmation {
            state.confirmation = Confirmation::Pending;
        }
    }

    /// Notes that the subscriber has sent the subscription again.
    pub(crate) fn set_pending(&self) {
        self.state.lock().confirmation = Confirmation::Pending;
    }

    /// Wakes all waiters, although nothing has happened on the channel.
    pub(crate) fn wake_waiters(&self) {
        Self::wake_all(self.state.lock());
    }

    fn wake_all(state: impl std::ops::Deref<Target = EntryState>) {
        match state.waiting.as_slice() {
            [] => {}
            [waker] => {
                let waker = waker.clone();
                drop(state);
                waker.wake();
            }
            wakers => {
                let wakers = wakers.to_vec();
                drop(state);
                wakers.iter().for_each(Waker::wake);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HoldQuery, Subscription};
    use super::*;
    use crate::connection::error_reply;

    #[derive(Default)]
    struct Hearer(AtomicUsize);

    impl Tracked for Hearer {
        fn hold_query(self: Arc<Self>) -> Option<HoldQuery> {
            None
        }

        fn ask_if_wanted(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A client may have a million names and channels, and a thread that walked over all of them at
    /// each confirmation would delay all messages.
    #[test]
    fn a_confirmation_concerns_only_the_holds_that_hear_on_the_channel() {
        let entries = ["one", "other"]
            .map(|name| Arc::new(ChannelEntry::new(name.into(), ChannelKind::Own, 0, 0)));
        let hearers = [(0, 1), (0, 2), (1, 3)].map(|(entry, owner)| {
            let (entry, hearer) = (Arc::clone(&entries[entry]), Arc::<Hearer>::default());
            let tracked: Weak<dyn Tracked> = Arc::<Hearer>::downgrade(&hearer);
            entry.listen();
            entry.hear(owner, tracked);
            (Subscription { entry, hearer: Some(owner) }, hearer)
        });
        let asked = || hearers.each_ref().map(|(_, hearer)| hearer.0.load(Ordering::SeqCst));
        entries[0].record_confirmation(Confirmation::Confirmed);
        assert_eq!(asked(), [1, 1, 0]);
        let refusal = Cause::said(Arc::new(error_reply("ERR no")), "here:1".into());
        entries[0].record_confirmation(Confirmation::Refused(refusal));
        assert_eq!(asked(), [1, 1, 0]);
        entries[1].record_confirmation(Confirmation::Confirmed);
        assert_eq!(asked(), [1, 1, 1]);
        let [ended, lasts, _] = hearers;
        drop(ended.0);
        entries[0].record_confirmation(Confirmation::Confirmed);
        assert_eq!([ended.1, lasts.1].map(|hearer| hearer.0.load(Ordering::SeqCst)), [1, 2]);
    }

    /// After a reconnect, the stored message may be older than messages that were missed.
    #[test]
    fn a_message_from_before_the_connection_broke_is_forgotten() {
        let entry = ChannelEntry::new("latch".into(), ChannelKind::Shared, 0, 0);
        entry.record_confirmation(Confirmation::Confirmed);
        entry.record_message(b"0".to_vec());
        entry.record_disconnect();
        assert_eq!(entry.message(), b"0");
        entry.record_confirmation(Confirmation::Confirmed);
        assert_eq!((entry.message(), entry.version()), (Vec::new(), 3));
    }
}
