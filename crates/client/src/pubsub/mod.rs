//! The subscriptions whose messages wake this process's threads. Each server has one subscriber
//! thread with one connection, and each channel has one entry.
//!
//! The subscriber thread sleeps in a read of its connection. If thread A puts a channel into the
//! subscriber's queue, A publishes a control message on the client's own channel, which wakes the
//! subscriber. The message works over TCP, TLS and unix sockets alike. A control message every few
//! seconds also shows that the connection is alive. With one server, scripts also use this channel
//! for messages to the client's waiters. In a cluster they use a channel for each name, because one
//! channel would belong to another slot than the names.
//!
//! An entry has a home: the server that has the channel's slot. If the slot moves to another
//! server, the entry moves, too, and is confirmed again, as after a reconnect. Tracked keys move in
//! the same way (`tracking.rs`).

mod channels;
mod comparison;
mod entry;
mod event;
mod listener;
mod serving;
mod subscriber;
mod subscription;
mod tracking;

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use channels::{ChannelsState, SubscriberQueue};
pub(crate) use entry::ChannelEntry;
use entry::ChannelKind;
pub use entry::Confirmation;
pub use subscriber::Subscriber;
pub use subscription::{Subscription, Waking};
pub use tracking::{HoldQuery, Tracked};
use tracking::{MAX_KEYS, Tracking};

use crate::connection::{Channels, Command, Node, Servers, slot_of};
use crate::sync::{Condvar, Mutex};

/// The time between two control messages while there are subscriptions.
pub const HEARTBEAT: Duration = Duration::from_secs(3);
/// The longest time that a message takes to arrive over a connection that works.
const DELIVERY_TIME: Duration = Duration::from_millis(300);

/// The channels to which this process listens.
pub struct PubSub {
    servers: Servers,
    names: Names,
    channels: Channels,
    state: Mutex<ChannelsState>,
    /// Whether the server refuses the control message. The refusal is logged once.
    muted: AtomicBool,
    /// In a cluster, the channel to which all clients with this kind of channels listen.
    common: Option<Arc<str>>,
    /// Whether the client searches for clients with the other kind of channels (sharded or not).
    /// The search ends when the client has logged such a client, or when the server refuses the
    /// query.
    compares: AtomicBool,
    /// Whether the client lets servers track the keys of its holds.
    may_track: bool,
    shut_down: AtomicBool,
    /// The only subscriber, if the client has one server.
    sole: OnceLock<Arc<Subscriber>>,
    host: Box<dyn Host>,
}

/// The control message. A subscriber that receives it reads its queue of new channels. The message
/// also shows that the connection is alive.
const CONTROL: &str = "0";

/// The names of the client's channels.
pub struct Names {
    /// The client's own channel.
    pub control: String,
    /// The client's own channel for a key in a cluster, in the slot of that key.
    pub own: Box<dyn Fn(&str) -> String + Send + Sync>,
    /// The channel of all clients of a cluster with the same kind of channels (sharded or not).
    pub common: fn(sharded: bool) -> String,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names({})", self.control)
    }
}

/// The part of the client that its subscribers need.
pub trait Host: Send + Sync {
    /// Starts the thread of a subscriber. Called with a mutex held. Returns `false` if the system
    /// cannot create a thread.
    fn start(&self, subscriber: Arc<Subscriber>) -> bool;

    /// Wakes the subscriber thread of a server from its read, by a
    /// [`control_message`](PubSub::control_message).
    fn wake_subscriber(&self, node: &Arc<Node>);

    /// Like [`wake_subscriber`](Self::wake_subscriber), but later, on another thread: this call
    /// does no I/O.
    fn wake_subscriber_later(&self, node: Arc<Node>);

    /// Handles a message on the client's own channel that is not a control message. Called on a
    /// subscriber thread with no mutex held.
    fn message(&self, message: &[u8]);
}

impl fmt::Debug for PubSub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PubSub({})", self.names.control)
    }
}

impl PubSub {
    /// Makes the subscriptions of a client. No method of `host` may block. `may_track` says whether
    /// the client lets servers report changes of the keys of its holds.
    pub fn new(servers: Servers, names: Names, may_track: bool, host: impl Host + 'static) -> Self {
        let state =
            ChannelsState { entries: HashMap::new(), queues: HashMap::new(), first_version: 0 };
        let channels = servers.channels();
        let in_cluster = channels != Channels::Server;
        let common = in_cluster.then(|| (names.common)(channels == Channels::Sharded).into());
        Self {
            channels,
            servers,
            names,
            common,
            compares: AtomicBool::new(in_cluster),
            state: Mutex::new(state),
            muted: AtomicBool::new(false),
            may_track,
            shut_down: AtomicBool::new(false),
            sole: OnceLock::new(),
            host: Box::new(host),
        }
    }

    /// The only subscriber of a client that has one server.
    fn sole(&self) -> &Arc<Subscriber> {
        if let Some(sole) = self.sole.get() {
            return sole;
        }
        // Make the subscriber before `get_or_init`, so that no thread waits in `get_or_init` for a
        // mutex.
        let subscriber = self.subscriber(&self.servers.first());
        self.sole.get_or_init(|| subscriber)
    }

    /// The subscriber of a server.
    pub fn subscriber(&self, node: &Arc<Node>) -> Arc<Subscriber> {
        Arc::clone(&self.queue(&mut self.state.lock(), node).subscriber)
    }

    fn queue<'a>(&self, state: &'a mut ChannelsState, node: &Arc<Node>) -> &'a mut SubscriberQueue {
        state.queues.entry(node.number()).or_insert_with(|| {
            let mut own = self.names.control.clone();
            if self.channels != Channels::Server {
                // Every server of a cluster receives a published message, so the channel for a
                // server contains the server's number.
                own = format!("{own}:{}", node.number());
            }
            let subscriber = Arc::new(Subscriber {
                node: Arc::clone(node),
                own: Arc::new(ChannelEntry::new(own.into(), ChannelKind::Own, 0, node.number())),
                common: self.common.as_ref().map(|common| {
                    let common = Arc::clone(common);
                    Arc::new(ChannelEntry::new(common, ChannelKind::Common, 0, node.number()))
                }),
                work: Condvar::new(),
                tracks: AtomicBool::new(self.may_track),
                closer: Mutex::new(None),
                received: AtomicU64::new(0),
                suspected: Mutex::new(None),
            });
            SubscriberQueue {
                runs: self.host.start(Arc::clone(&subscriber)),
                subscriber,
                wanted: Vec::new(),
                left: Vec::new(),
                to_track: Vec::new(),
                moved: false,
                reading: false,
            }
        })
    }

    /// Listens to a channel. Messages arrive after the subscription is confirmed.
    pub fn listen(&self, channel: &Arc<str>) -> Subscription {
        self.listen_to(channel, ChannelKind::Shared, |node| self.host.wake_subscriber(&node))
    }

    /// Like [`listen`](Self::listen), for a channel to which no other thread listens.
    pub fn listen_once(&self, channel: &Arc<str>) -> Subscription {
        self.listen_to(channel, ChannelKind::Single, |node| self.host.wake_subscriber(&node))
    }

    /// `wake` wakes the subscriber thread of a server from its read.
    fn listen_to(
        &self,
        channel: &Arc<str>,
        kind: ChannelKind,
        wake: impl FnOnce(Arc<Node>),
    ) -> Subscription {
        let mut state = self.state.lock();
        // Look the home up under the mutex: if the slot moves after the look-up, `move_channels`
        // finds this entry.
        let home = self.servers.home(channel.as_bytes());
        let first_version = state.first_version;
        let (entry, new) = match state.entries.entry(Arc::clone(channel)) {
            MapEntry::Occupied(entry) => (Arc::clone(entry.get()), false),
            MapEntry::Vacant(vacant) => {
                let entry =
                    ChannelEntry::new(Arc::clone(channel), kind, first_version, home.number());
                (Arc::clone(vacant.insert(Arc::new(entry))), true)
            }
        };
        // The subscriber drops idle entries under the same mutex, so it cannot drop this entry
        // between the look-up and this call.
        entry.listen();
        // If the server refused the channel, request it again: the user may have the right now.
        let again = entry.is_refused();
        if again {
            entry.set_pending();
        }
        let mut reading = None;
        if new || again {
            // If the channel's slot moves in the meantime, the server redirects the subscriber.
            entry.move_to(home.number());
            reading = self.want(&mut state, &home, &entry);
        }
        drop(state);
        reading.map(wake);
        Subscription { entry, hearer: None }
    }

    /// Puts a channel into a server's queue. Returns the server if it needs a control message.
    fn want(
        &self,
        state: &mut ChannelsState,
        home: &Arc<Node>,
        entry: &Arc<ChannelEntry>,
    ) -> Option<Arc<Node>> {
        let queue = self.queue(state, home);
        queue.wanted.push(Arc::clone(entry));
        queue.subscriber.work.notify_one();
        queue.reading.then(|| Arc::clone(home))
    }

    /// Notes that these slots, in ascending order, have another server. Their channels move at
    /// once. Their tracked keys move when the old server's subscriber thread next reads its queue.
    /// This is early enough, because a moved hold is renewed at once.
    pub fn move_channels(&self, slots: &[u16]) {
        let mut state = self.state.lock();
        state.queues.values_mut().for_each(|queue| queue.moved = true);
        let is_moved = |channel: &str| slots.binary_search(&slot_of(channel.as_bytes())).is_ok();
        let moved = |entry: &&Arc<ChannelEntry>| is_moved(entry.channel());
        let moved: Vec<_> = state.entries.values().filter(moved).cloned().collect();
        let mut to_wake: Vec<Arc<Node>> = Vec::new();
        for entry in moved {
            let home = self.servers.home(entry.channel().as_bytes());
            let old = entry.move_to(home.number());
            if old == home.number() {
                continue;
            }
            entry.record_disconnect();
            if let Some(queue) = state.queues.get_mut(&old) {
                queue.wanted.retain(|wanted| !Arc::ptr_eq(wanted, &entry));
                queue.left.push(Arc::clone(&entry));
                let node = &queue.subscriber.node;
                to_wake.extend(queue.reading.then(|| Arc::clone(node)));
            }
            to_wake.extend(self.want(&mut state, &home, &entry));
        }
        drop(state);
        to_wake.sort_by_key(|node| node.number());
        to_wake.dedup_by_key(|node| node.number());
        to_wake.iter().for_each(|node| self.host.wake_subscriber(node));
    }

    /// Listens to the client's own channel, on which scripts send messages to this key's waiters.
    /// The channel's version changes when messages may have been missed.
    pub fn listen_to_own(&self, key: &str) -> Subscription {
        self.listen_to_own_by(key, |node| self.host.wake_subscriber(&node))
    }

    /// Like [`listen_to_own`](Self::listen_to_own), for the hold of an owner, which
    /// [asks](Tracked::ask_if_wanted) the server after each confirmation. Another thread wakes the
    /// subscriber soon: this call does no I/O.
    pub fn hear_own(&self, key: &str, owner: u64, hearer: Weak<dyn Tracked>) -> Subscription {
        let mut own = self.listen_to_own_by(key, |node| self.host.wake_subscriber_later(node));
        own.entry.hear(owner, hearer);
        own.hearer = Some(owner);
        own
    }

    fn listen_to_own_by(&self, key: &str, wake: impl FnOnce(Arc<Node>)) -> Subscription {
        if self.channels == Channels::Server {
            let Subscriber { own, work, .. } = &**self.sole();
            let state = self.state.lock();
            own.listen();
            // A subscriber with a connection has already sent this subscription. After a refusal it
            // has no connection, and sends the subscription again when it connects.
            if own.is_refused() {
                own.set_pending();
            }
            work.notify_one();
            drop(state);
            Subscription { entry: Arc::clone(own), hearer: None }
        } else {
            self.listen_to(&self.own_channel(key).into(), ChannelKind::Own, wake)
        }
    }

    /// The client's own channel for this key in a cluster, in the slot of the key.
    fn own_channel(&self, key: &str) -> String {
        (self.names.own)(key)
    }

    /// Returns the version of the client's own channel for this key, which changes when messages
    /// may have been missed. Returns `None` if no thread listens to the channel.
    pub fn own_version(&self, key: &str) -> Option<u64> {
        if self.channels == Channels::Server {
            return Some(self.sole().own.version());
        }
        let state = self.state.lock();
        state.entries.get(&*self.own_channel(key)).map(|entry| entry.version())
    }

    /// Whether the server has confirmed the subscription to the client's own channel.
    pub fn is_own_confirmed(&self, key: &str) -> bool {
        if self.channels == Channels::Server {
            return self.sole().own.is_confirmed();
        }
        let state = self.state.lock();
        state.entries.get(&*self.own_channel(key)).is_some_and(|entry| entry.is_confirmed())
    }

    /// Whether the server of this key supports tracking, as far as this client knows. Without
    /// tracking, [`track`](Self::track) has no effect.
    pub fn tracks(&self, key: &str) -> bool {
        if !self.may_track || self.channels == Channels::Server {
            return self.may_track && self.sole().tracks();
        }
        let home = self.servers.home(key.as_bytes());
        let state = self.state.lock();
        state.queues.get(&home.number()).is_none_or(|queue| queue.subscriber.tracks())
    }

    /// Makes the subscriber check the holds of `who` at the server after each change of `key`. This
    /// call does no I/O.
    pub fn track(&self, key: &Arc<str>, who: Weak<dyn Tracked>) {
        let mut state = self.state.lock();
        let home = self.servers.home(key.as_bytes());
        let queue = self.queue(&mut state, &home);
        if !queue.subscriber.tracks() || queue.to_track.len() >= MAX_KEYS {
            return;
        }
        // If the queue already has a hold, the thread that added it has woken the subscriber.
        let must_wake = queue.reading && queue.to_track.is_empty();
        queue.to_track.push((Arc::clone(key), who));
        queue.subscriber.work.notify_one();
        drop(state);
        if must_wake {
            self.host.wake_subscriber_later(home);
        }
    }

    /// Gives each tracked key that has a new home to the new home's subscriber.
    fn pass_moved_keys(&self, subscriber: &Subscriber, tracking: &mut Tracking) {
        let here = subscriber.node.number();
        let is_elsewhere = |key: &str| self.servers.home(key.as_bytes()).number() != here;
        // Clear the flag before the search, so that a later move makes the thread search again.
        if let Some(queue) = self.state.lock().queues.get_mut(&here) {
            queue.moved = false;
        }
        let mut left = tracking.leave(is_elsewhere);
        if let Some(queue) = self.state.lock().queues.get_mut(&here) {
            left.extend(queue.to_track.extract_if(.., |(key, _)| is_elsewhere(key)));
        }
        for (key, who) in left {
            self.track(&key, who);
        }
    }

    /// Notes a sign of a missed message: a reply shows a change that no message has reported. The
    /// message may still arrive. If the connection has received nothing since the last such sign,
    /// it is dead without an error. Then this call closes the connection, and the subscriber opens
    /// a new connection.
    pub fn suspect(&self, key: &str) {
        let subscriber = match self.channels {
            Channels::Server => Arc::clone(self.sole()),
            _ => self.subscriber(&self.servers.home(key.as_bytes())),
        };
        let heard = subscriber.received.load(Ordering::Relaxed);
        let now = Instant::now();
        let mut suspected = subscriber.suspected.lock();
        let dead = suspected.is_some_and(|(before, since)| {
            before == heard && now.saturating_duration_since(since) >= DELIVERY_TIME
        });
        if suspected.is_none_or(|(before, _)| before != heard) {
            *suspected = Some((heard, now));
        }
        if dead {
            *suspected = None;
            drop(suspected);
            subscriber.end_connection();
        }
    }

    /// Notes that another connection has reached a new run of this server, or another server. The
    /// subscriber's connection may still lead to the old run or server, which may still be alive.
    /// So this function closes the subscriber's connection, and the subscriber opens a new
    /// connection.
    pub fn close_after_new_run(&self, server: usize) {
        let state = self.state.lock();
        let subscriber = state.queues.get(&server).map(|queue| Arc::clone(&queue.subscriber));
        drop(state);
        // If the server does not report its run, every connection counts as a new run, so close
        // nothing.
        if let Some(subscriber) = subscriber
            && subscriber.node.endpoint.says_its_run()
        {
            subscriber.end_connection();
        }
    }

    /// Makes the subscriber of this server open a new connection, with the new user or password.
    pub fn reconnect(&self, server: usize) {
        let state = self.state.lock();
        let subscriber = state.queues.get(&server).map(|queue| Arc::clone(&queue.subscriber));
        drop(state);
        subscriber.inspect(|subscriber| subscriber.end_connection());
    }

    /// Returns a subscription to the channel, if the channel is confirmed.
    pub fn listening(&self, channel: &Arc<str>) -> Option<Subscription> {
        let state = self.state.lock();
        let entry = state.entries.get(channel).filter(|entry| entry.is_confirmed())?;
        entry.listen();
        Some(Subscription { entry: Arc::clone(entry), hearer: None })
    }

    /// The command that makes the subscriber thread of a server read its queue.
    pub fn control_message(&self, node: &Arc<Node>) -> Command {
        let subscriber = self.subscriber(node);
        Command::plain(&[b"PUBLISH", subscriber.own.channel().as_bytes(), CONTROL.as_bytes()])
    }

    /// Sets whether the client lacks the right to publish. Returns the old value.
    pub fn set_muted(&self, now: bool) -> bool {
        self.muted.swap(now, Ordering::Relaxed)
    }

    /// Returns the servers that need a heartbeat, which shows whether the subscriber's connection
    /// is alive.
    pub fn heartbeats(&self) -> Vec<Arc<Node>> {
        let mut state = self.state.lock();
        for queue in state.queues.values_mut().filter(|queue| !queue.runs) {
            queue.runs = self.host.start(Arc::clone(&queue.subscriber));
        }
        let reading = state.queues.values().filter(|queue| queue.reading);
        reading.map(|queue| Arc::clone(&queue.subscriber.node)).collect()
    }

    /// Notes that a server has left the cluster. If the subscriber thread sleeps without a
    /// connection, it ends. If it sleeps in a read, it ends at its next control message.
    pub fn let_go(&self, node: &Node) {
        if let Some(queue) = self.state.lock().queues.get(&node.number()) {
            queue.subscriber.work.notify_one();
        }
    }

    /// Ends every wait and each subscriber thread. A thread that is connecting ends later.
    pub fn shut_down(&self) {
        // Set the flag before searching for connections: a thread that opens a connection first
        // stores the connection's closer and then reads the flag.
        self.shut_down.store(true, Ordering::SeqCst);
        let state = self.state.lock();
        let queues = state.queues.values();
        let subscribers: Vec<_> = queues.map(|queue| Arc::clone(&queue.subscriber)).collect();
        let entries: Vec<_> = state.entries.values().cloned().collect();
        drop(state);
        for subscriber in subscribers {
            // Close the connection, because a control message might not arrive.
            let closer = subscriber.closer.lock().take();
            if let Some(closer) = closer {
                closer.close();
            }
            let state = self.state.lock();
            subscriber.work.notify_one();
            drop(state);
            subscriber.own.wake_waiters();
        }
        for entry in entries {
            entry.wake_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Cause, Endpoint, Lane, error_reply};

    struct Nobody;

    impl Host for Nobody {
        fn start(&self, _: Arc<Subscriber>) -> bool {
            true
        }
        fn wake_subscriber(&self, _: &Arc<Node>) {}
        fn wake_subscriber_later(&self, _: Arc<Node>) {}
        fn message(&self, _: &[u8]) {}
    }

    #[test]
    fn a_channel_without_listeners_is_given_up() {
        const MINUTE: Duration = Duration::from_secs(60);
        let endpoint = Endpoint::new("redis://localhost", MINUTE, MINUTE).unwrap();
        let lane = Arc::new(Lane::new(Arc::new(endpoint)));
        let servers = Servers::One(Arc::new(Node::new(lane, 1)));
        let names = Names {
            control: "control".to_owned(),
            own: Box::new(str::to_owned),
            common: |sharded| sharded.to_string(),
        };
        let pubsub = PubSub::new(servers, names, true, Nobody);
        let listened = ["confirmed", "refused", "pending"].map(|name| pubsub.listen(&name.into()));
        listened[0].entry.record_confirmation(Confirmation::Confirmed);
        let refusal = Cause::said(Arc::new(error_reply("ERR no")), "here:1".into());
        listened[1].entry.record_confirmation(Confirmation::Refused(refusal));
        let sweep = |grace| pubsub.state.lock().sweep(0, grace).len();
        let left = || pubsub.state.lock().entries.len();
        assert_eq!((sweep(Duration::ZERO), left()), (0, 3), "somebody listens");

        drop(listened);
        assert_eq!(
            (sweep(MINUTE), left()),
            (0, 2),
            "the refused one needs neither time nor a word"
        );
        assert_eq!((sweep(Duration::ZERO), left()), (1, 1), "a pending one waits for its answer");

        let single = pubsub.listen_once(&"single".into());
        single.entry.record_confirmation(Confirmation::Confirmed);
        assert_eq!((sweep(MINUTE), left()), (0, 2), "somebody listens");
        drop(single);
        assert_eq!((sweep(MINUTE), left()), (1, 1), "nobody will again");
    }
}
