//! The thread that listens to one server.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use super::entry::{ChannelEntry, Confirmation};
use super::serving::Serving;
use super::tracking::{NO_TRACKING, Step, Steps, Tracking, TrackingNews};
use super::{ChannelsState, PubSub};
use crate::connection::{Cause, Closer, Node};
use crate::sync::{Condvar, Mutex};

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// The listener to one server.
pub struct Subscriber {
    pub(super) node: Arc<Node>,
    /// The channel of the client's own, listened to as long as there is a connection.
    pub(super) own: Arc<ChannelEntry>,
    /// In a cluster: by this channel clients with the other kind of channels find this one.
    pub(super) common: Option<Arc<ChannelEntry>>,
    /// Wakes the thread for work while it has no connection to read from.
    pub(super) work: Condvar,
    /// Whether the server tracks keys, as far as this client knows.
    pub(super) tracks: AtomicBool,
    /// Ends the thread's connection, and with it its read.
    pub(super) closer: Mutex<Option<Closer>>,
    /// Counts the server's messages and replies.
    pub(super) heard: AtomicU64,
    /// The count of `heard` when a thread missed a message, and when that was.
    pub(super) suspected: Mutex<Option<(u64, Instant)>>,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subscriber({:?})", self.node)
    }
}

impl PubSub {
    /// A subscriber thread's whole life.
    pub fn run(&self, subscriber: &Arc<Subscriber>) {
        let mut retry = FIRST_RETRY;
        let mut tracking = Tracking::default();
        let server = subscriber.node.number();
        while self.wait_for_work(subscriber, &mut tracking) {
            // A panic is an outage: it must not leave waiters with a silent channel.
            let serve = || match Serving::begin(self, subscriber, &mut tracking)? {
                Some(serving) => serving.run(|| retry = FIRST_RETRY),
                None => Ok::<_, RedisError>(()),
            };
            let served = catch_unwind(AssertUnwindSafe(serve));
            if matches!(served, Ok(Ok(()))) {
                return;
            }
            tracking.end();
            let mut state = self.state.lock();
            if let Some(queue) = state.queues.get_mut(&server) {
                queue.reading = false;
            }
            for entry in state.of_server(subscriber) {
                entry.disconnected();
            }
            // Channels without a listener by now need not be subscribed again.
            state.drop_entries(|entry| entry.home() == server && entry.idle_since().is_some());
            if !self.is_shut_down() {
                subscriber.work.wait_for(&mut state, retry);
                drop(state);
                retry = (retry * 2).min(LAST_RETRY);
                if let Some(cluster) = self.servers.cluster() {
                    // Another server may have this one's slots.
                    cluster.look();
                    self.hand_on(subscriber, &mut tracking);
                }
            }
        }
    }

    /// Sleeps until a thread wants a channel, or a hold is to be tracked. `false`: shut down, or
    /// the server has left the cluster.
    fn wait_for_work(&self, subscriber: &Subscriber, tracking: &mut Tracking) -> bool {
        let is_tracked = tracking.is_needed();
        let mut state = self.state.lock();
        while !self.is_wanted(subscriber, is_tracked, &state) && !self.is_shut_down() {
            if self.is_left(subscriber) {
                state.queues.remove(&subscriber.node.number());
                return false;
            }
            subscriber.work.wait(&mut state);
        }
        !self.is_shut_down()
    }

    /// Whether a thread listens to a channel there, or a hold is to be tracked.
    fn is_wanted(&self, subscriber: &Subscriber, is_tracked: bool, state: &ChannelsState) -> bool {
        let server = subscriber.node.number();
        let is_to_track =
            || state.queues.get(&server).is_some_and(|queue| !queue.to_track.is_empty());
        state.entries.values().any(|entry| entry.home() == server)
            || subscriber.own.is_listened_to()
            || subscriber.tracks() && (is_tracked || is_to_track())
    }

    /// Whether the server has no slots any more, and may be gone for good: then the thread ends
    /// unless another wants it. A thread that wants it later finds no queue, and starts another
    /// one: both under the mutex of all channels.
    fn is_left(&self, subscriber: &Subscriber) -> bool {
        self.servers.cluster().is_some_and(|cluster| !cluster.is_master(&subscriber.node))
    }

    /// As [`wait_for_work`](Self::wait_for_work), while there is a connection.
    pub(super) fn is_over(&self, subscriber: &Subscriber, tracking: &mut Tracking) -> bool {
        if !self.is_left(subscriber) {
            return false;
        }
        let is_tracked = tracking.is_needed();
        let mut state = self.state.lock();
        let is_over = !self.is_wanted(subscriber, is_tracked, &state);
        if is_over {
            state.queues.remove(&subscriber.node.number());
        }
        is_over
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }
}

impl Subscriber {
    pub(super) fn tracks(&self) -> bool {
        self.tracks.load(Ordering::Relaxed)
    }

    /// The thread opens the next one.
    pub(super) fn end_connection(&self) {
        if let Some(closer) = &*self.closer.lock() {
            closer.close();
        }
    }

    pub(super) fn does_not_track(&self) {
        self.tracks.store(false, Ordering::Relaxed);
        self.node.endpoint.health().does_without(NO_TRACKING);
    }

    /// A step towards tracking was answered. Returns the next steps.
    pub(super) fn step_done(
        &self,
        tracking: &mut Tracking,
        step: Step,
        reply: Result<&Value, &RedisError>,
    ) -> Steps {
        let Some((told, steps)) = tracking.answered(step, reply) else { return Steps::default() };
        match told {
            TrackingNews::Tracks => self.tracks.store(true, Ordering::Relaxed),
            TrackingNews::Refuses => self.does_not_track(),
        }
        steps
    }

    pub(super) fn refused(&self, error: &RedisError) -> Confirmation {
        let address = self.node.endpoint.health().address();
        Confirmation::Refused(Cause::said(Arc::new(error.clone()), address))
    }
}
