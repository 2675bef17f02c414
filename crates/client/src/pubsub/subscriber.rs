//! The thread that listens to one server, and its connection.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use super::entry::{ChannelEntry, ChannelKind, Confirmation};
use super::event::PubSubEvent;
use super::tracking::{NO_TRACKING, Step, Steps, Tracking, TrackingNews};
use super::{ChannelsState, LOOK, PubSub};
use crate::connection::{Cause, Channels, Closer, Command, Connection, Node, is_redirect, slot_of};
use crate::sync::{Condvar, Mutex};

/// A subscription outlives its last listener by this long, so that a busy lock does not subscribe
/// and unsubscribe for every wait.
const GRACE: Duration = Duration::from_secs(10);
/// Without a message for this long the connection counts as dead.
const SILENCE: Duration = Duration::from_secs(10);
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
            let serve = || self.serve(subscriber, &mut retry, &mut tracking);
            let served = catch_unwind(AssertUnwindSafe(serve));
            if matches!(served, Ok(Ok(()))) {
                return;
            }
            tracking.end();
            let mut state = self.state.lock();
            if let Some(queue) = state.queues.get_mut(&server) {
                queue.reading = false;
            }
            for entry in self.all_entries(subscriber, &state) {
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
    fn is_over(&self, subscriber: &Subscriber, tracking: &mut Tracking) -> bool {
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

    /// Connects, subscribes to every channel there is, and dispatches until something breaks
    /// (`Err`), or the client is shut down or the server has left the cluster (`Ok`).
    fn serve(
        &self,
        subscriber: &Arc<Subscriber>,
        retry: &mut Duration,
        tracking: &mut Tracking,
    ) -> Result<(), RedisError> {
        let server = subscriber.node.number();
        let endpoint = &subscriber.node.endpoint;
        let before = endpoint.incarnation();
        let mut connection = endpoint.open()?;
        connection.set_read_timeout(SILENCE);
        *subscriber.closer.lock() = Some(connection.closer());
        if self.is_shut_down() {
            return Ok(());
        }
        // A thread that met another run before that has closed the connection before this one, and
        // this one may still lead to the last run. (Or this connection met it: then it is opened
        // once too often.)
        if endpoint.incarnation() != before && endpoint.says_its_run() {
            return Err((redis::ErrorKind::Io, "another run of the server was met").into());
        }
        let channels: Vec<Arc<ChannelEntry>> = {
            let mut state = self.state.lock();
            let queue = self.queue(&mut state, &subscriber.node);
            queue.wanted.clear();
            queue.left.clear();
            // From here on a thread that wants a new channel sends a control message. A message
            // sent before the client's own channel is confirmed is lost; so this thread looks at
            // the queue again when the confirmation comes.
            queue.reading = true;
            // The refused ones, too: the server may allow them now.
            let entries = self.all_entries(subscriber, &state);
            entries.iter().for_each(|entry| entry.ask_again());
            entries
        };
        // The requests without an answer yet, in order. A refusal does not name its channel.
        let mut asked = VecDeque::new();
        if self.may_track {
            let steps = tracking.begin();
            if steps.0.is_empty() {
                subscriber.does_not_track();
            }
            asked.extend(take_steps(&mut connection, steps)?);
        }
        self.send_each(&mut connection, Ask::Subscribe, subscriber, &channels)?;
        asked.extend(channels.into_iter().map(Unanswered::Subscribe));
        loop {
            let event = PubSubEvent::of(connection.recv_response()?);
            subscriber.heard.fetch_add(1, Ordering::Relaxed);
            if self.is_shut_down() {
                return Ok(());
            }
            match event {
                PubSubEvent::Subscribed(channel) => {
                    *retry = FIRST_RETRY;
                    asked.pop_front();
                    if let Some(entry) = self.entry(subscriber, &channel) {
                        if Arc::ptr_eq(&entry, &subscriber.own) {
                            asked.extend(self.look(subscriber, &mut connection, tracking)?);
                        }
                        entry.answered(Confirmation::Confirmed);
                    }
                }
                PubSubEvent::Unsubscribed(channel) => match asked.front() {
                    Some(Unanswered::Unsubscribe(left)) if left.channel().as_bytes() == channel => {
                        asked.pop_front();
                    }
                    // The server said so by itself before, and now once more as the answer.
                    Some(Unanswered::Barrier(left)) if left.channel().as_bytes() == channel => {}
                    // The slot has left this server. Asked again, the server says which one has it.
                    _ => {
                        if let Some(entry) = self.entry(subscriber, &channel) {
                            entry.disconnected();
                            let entries = [entry];
                            self.send_each(&mut connection, Ask::Subscribe, subscriber, &entries)?;
                            asked.extend(entries.map(Unanswered::Subscribe));
                        }
                    }
                },
                PubSubEvent::Message(channel, message) => {
                    let Some(entry) = self.entry(subscriber, &channel) else { continue };
                    if entry.kind() != ChannelKind::Own {
                        entry.heard(message);
                        continue;
                    }
                    if &*message != LOOK.as_bytes() {
                        self.host.message(&message);
                        continue;
                    }
                    asked.extend(self.look(subscriber, &mut connection, tracking)?);
                    if self.is_over(subscriber, tracking) {
                        return Ok(());
                    }
                }
                PubSubEvent::Changed(keys) => {
                    let steps = tracking.changed(keys.as_deref());
                    asked.extend(take_steps(&mut connection, steps)?);
                }
                PubSubEvent::Pong => {
                    if let Some(Unanswered::Barrier(_)) = asked.front() {
                        asked.pop_front();
                    }
                }
                PubSubEvent::Reply(reply) => {
                    if let Some(step) = pop_step(&mut asked) {
                        let steps = subscriber.step_done(tracking, step, Ok(&reply));
                        asked.extend(take_steps(&mut connection, steps)?);
                    }
                }
                PubSubEvent::Refused(error) => match asked.pop_front() {
                    // Without the own channel nothing would ever make the thread look again, so no
                    // thread can wait.
                    Some(Unanswered::Subscribe(entry)) if Arc::ptr_eq(&entry, &subscriber.own) => {
                        self.refuse_all(subscriber, &error);
                        return Err(error);
                    }
                    Some(Unanswered::Subscribe(entry)) => {
                        if let Some(cluster) = self.servers.cluster()
                            && cluster.sends_elsewhere(&error)
                        {
                            // The channel has another home now, or this thread asks for all once
                            // more.
                            self.moved(&[slot_of(entry.channel().as_bytes())]);
                            if entry.home() == server {
                                return Err(error);
                            }
                            continue;
                        }
                        entry.answered(subscriber.refused(&error));
                    }
                    // Further messages there find no listener.
                    Some(Unanswered::Unsubscribe(_)) => {}
                    // The server ended the subscription by itself before, and refuses to end it
                    // now: the barrier's own answer is still to come.
                    Some(left @ Unanswered::Barrier(_)) if is_redirect(&error) => {
                        asked.push_front(left);
                    }
                    // A user without the right to PING gets this answer to it.
                    Some(Unanswered::Barrier(_)) => {}
                    Some(Unanswered::Step(step)) => {
                        let cluster = self.servers.cluster().filter(|_| tracking.asks(&step));
                        let moved = cluster.is_some_and(|cluster| cluster.sends_elsewhere(&error));
                        let steps = subscriber.step_done(tracking, step, Err(&error));
                        asked.extend(take_steps(&mut connection, steps)?);
                        if moved {
                            self.hand_on(subscriber, tracking);
                        }
                    }
                    None => return Err(error),
                },
                PubSubEvent::Other => {}
            }
        }
    }

    /// Asks for new channels, gives up those that had no listener for a while, or that are another
    /// server's, and asks for keys to be tracked. Returns its requests.
    fn look(
        &self,
        subscriber: &Arc<Subscriber>,
        connection: &mut Connection,
        tracking: &mut Tracking,
    ) -> Result<Vec<Unanswered>, RedisError> {
        let (wanted, unwanted, to_track, moved) = {
            let mut state = self.state.lock();
            let queue = self.queue(&mut state, &subscriber.node);
            let wanted: Vec<_> = queue.wanted.drain(..).collect();
            let (to_track, moved) = (std::mem::take(&mut queue.to_track), queue.moved);
            let mut unwanted = std::mem::take(&mut queue.left);
            // Not a channel that has come back since.
            unwanted.retain(|entry| entry.home() != subscriber.node.number());
            unwanted.extend(state.sweep(subscriber.node.number(), GRACE));
            (wanted, unwanted, to_track, moved)
        };
        self.send_each(connection, Ask::Unsubscribe, subscriber, &unwanted)?;
        self.send_each(connection, Ask::Subscribe, subscriber, &wanted)?;
        if moved {
            self.hand_on(subscriber, tracking);
        }
        let tracked = take_steps(connection, tracking.look(to_track))?;
        let unsubscribed = unwanted.into_iter().flat_map(|entry| {
            let barrier = self.needs_barrier().then(|| Unanswered::Barrier(Arc::clone(&entry)));
            std::iter::once(Unanswered::Unsubscribe(entry)).chain(barrier)
        });
        let subscribed = wanted.into_iter().map(Unanswered::Subscribe);
        Ok(unsubscribed.chain(subscribed).chain(tracked).collect())
    }

    /// The entry that a server's message concerns. `None`: the channel's home is elsewhere by now,
    /// and no waiter gets the message twice.
    fn entry(&self, subscriber: &Subscriber, channel: &[u8]) -> Option<Arc<ChannelEntry>> {
        let channel = std::str::from_utf8(channel).ok()?;
        if channel == &**subscriber.own.channel() {
            return Some(Arc::clone(&subscriber.own));
        }
        let entry = self.state.lock().entries.get(channel).cloned();
        entry.filter(|entry| entry.home() == subscriber.node.number())
    }

    /// The entries of one server, the own one first.
    fn all_entries(
        &self,
        subscriber: &Subscriber,
        state: &ChannelsState,
    ) -> Vec<Arc<ChannelEntry>> {
        let server = subscriber.node.number();
        let others = state.entries.values().filter(|entry| entry.home() == server);
        let always = std::iter::once(&subscriber.own).chain(&subscriber.common);
        always.chain(others).cloned().collect()
    }

    fn refuse_all(&self, subscriber: &Subscriber, error: &RedisError) {
        if self.may_track {
            // And nothing would tell the thread of new holds.
            subscriber.does_not_track();
        }
        let state = self.state.lock();
        let entries = self.all_entries(subscriber, &state);
        drop(state);
        for entry in entries {
            entry.answered(subscriber.refused(error));
        }
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::SeqCst)
    }

    /// Whether a PING stands behind each channel that is given up, and only its answer, or its
    /// refusal, says that this is done. When a slot leaves a server, the server ends the
    /// subscriptions by itself, says so in the words of an answer, and then refuses to end them:
    /// one request would have two answers, or one.
    fn needs_barrier(&self) -> bool {
        self.channels == Channels::Sharded
    }

    /// One command a channel: the server refuses or takes each by itself. The own and the common
    /// channel belong to no slot.
    fn send_each(
        &self,
        connection: &mut Connection,
        ask: Ask,
        subscriber: &Subscriber,
        entries: &[Arc<ChannelEntry>],
    ) -> Result<(), RedisError> {
        let mut bytes = Vec::new();
        for entry in entries {
            let of_a_slot =
                entry.kind() != ChannelKind::Common && !Arc::ptr_eq(entry, &subscriber.own);
            let sharded = self.channels == Channels::Sharded && of_a_slot;
            let command: &[u8] = match (ask, sharded) {
                (Ask::Subscribe, false) => b"SUBSCRIBE",
                (Ask::Subscribe, true) => b"SSUBSCRIBE",
                (Ask::Unsubscribe, false) => b"UNSUBSCRIBE",
                (Ask::Unsubscribe, true) => b"SUNSUBSCRIBE",
            };
            let command = Command::plain(&[command, entry.channel().as_bytes()]);
            bytes.extend_from_slice(command.bytes());
            if matches!(ask, Ask::Unsubscribe) && self.needs_barrier() {
                bytes.extend_from_slice(Command::plain(&[b"PING"]).bytes());
            }
        }
        if bytes.is_empty() {
            return Ok(());
        }
        connection.send_packed_command(&bytes, Instant::now())
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

    fn does_not_track(&self) {
        self.tracks.store(false, Ordering::Relaxed);
        self.node.endpoint.health().does_without(NO_TRACKING);
    }

    /// A step towards tracking was answered. Returns the next steps.
    fn step_done(
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

    fn refused(&self, error: &RedisError) -> Confirmation {
        let address = self.node.endpoint.health().address();
        Confirmation::Refused(Cause::said(Arc::new(error.clone()), address))
    }
}

#[derive(Clone, Copy)]
enum Ask {
    Subscribe,
    Unsubscribe,
}

/// A request without an answer yet.
enum Unanswered {
    Subscribe(Arc<ChannelEntry>),
    Unsubscribe(Arc<ChannelEntry>),
    /// The PING behind an unsubscription.
    Barrier(Arc<ChannelEntry>),
    Step(Step),
}

/// The step that is answered next, if it is one.
fn pop_step(asked: &mut VecDeque<Unanswered>) -> Option<Step> {
    match asked.pop_front() {
        Some(Unanswered::Step(step)) => return Some(step),
        Some(other) => asked.push_front(other),
        None => {}
    }
    None
}

/// Writes the commands of some steps.
fn take_steps(
    connection: &mut Connection,
    (commands, steps): Steps,
) -> Result<impl Iterator<Item = Unanswered> + use<>, RedisError> {
    if !commands.is_empty() {
        let bytes: Vec<u8> = commands.iter().flat_map(Command::bytes).copied().collect();
        connection.send_packed_command(&bytes, Instant::now())?;
    }
    Ok(steps.into_iter().map(Unanswered::Step))
}
