//! The thread that listens to one server.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::RedisError;

use super::PubSub;
use super::channels::ChannelsState;
use super::serving::Serving;
use super::subscriber::Subscriber;
use super::tracking::Tracking;

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(1);

impl PubSub {
    /// The body of a subscriber thread.
    pub fn run(&self, subscriber: &Arc<Subscriber>) {
        let mut retry = FIRST_RETRY;
        let mut tracking = Tracking::default();
        let server = subscriber.node.number();
        while self.wait_for_work(subscriber, &mut tracking) {
            // Treat a panic as a broken connection: otherwise waiters would wait on a channel that
            // no thread reads.
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
                entry.record_disconnect();
            }
            // Drop channels without a listener before the thread subscribes again.
            state.drop_entries(|entry| entry.home() == server && entry.idle_since().is_some());
            if !self.is_shut_down() {
                subscriber.work.wait_for(&mut state, retry);
                drop(state);
                retry = (retry * 2).min(LAST_RETRY);
                if let Some(cluster) = self.servers.cluster() {
                    // Another server may have this server's slots now.
                    cluster.refresh();
                    self.pass_moved_keys(subscriber, &mut tracking);
                }
            }
        }
    }

    /// Sleeps until a thread wants a channel, or until a hold must be tracked. Returns `false` if
    /// the client is shut down, or if the server has left the cluster.
    fn wait_for_work(&self, subscriber: &Subscriber, tracking: &mut Tracking) -> bool {
        let is_tracked = tracking.retain_needed();
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

    /// Whether a thread listens to a channel at the server, or a hold must be tracked there.
    fn is_wanted(&self, subscriber: &Subscriber, is_tracked: bool, state: &ChannelsState) -> bool {
        let server = subscriber.node.number();
        let is_to_track =
            || state.queues.get(&server).is_some_and(|queue| !queue.to_track.is_empty());
        state.entries.values().any(|entry| entry.home() == server)
            || subscriber.own.is_listened_to()
            || subscriber.tracks() && (is_tracked || is_to_track())
    }

    /// Whether the server has no slots and no thread needs the subscriber. If so, the subscriber
    /// thread ends, because a server without slots may never come back. If a thread needs the
    /// server later, it finds no queue and starts a new subscriber thread. Both this check and the
    /// search for the queue run under the mutex of all channels.
    fn is_left(&self, subscriber: &Subscriber) -> bool {
        self.servers.cluster().is_some_and(|cluster| !cluster.is_master(&subscriber.node))
    }

    /// Whether the thread's work is over: its server has left the cluster and no thread wants a
    /// channel there. [`wait_for_work`](Self::wait_for_work) makes the same check while there is no
    /// connection.
    pub(super) fn end_if_over(&self, subscriber: &Subscriber, tracking: &mut Tracking) -> bool {
        if !self.is_left(subscriber) {
            return false;
        }
        let is_tracked = tracking.retain_needed();
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
