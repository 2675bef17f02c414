//! One connection of a subscriber thread: its requests, and the server's replies and messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{RedisError, Value};

use super::entry::{ChannelEntry, ChannelKind, Confirmation};
use super::event::PubSubEvent;
use super::subscriber::Subscriber;
use super::tracking::{Tracking, TrackingStep, TrackingSteps};
use super::{CONTROL, PubSub};
use crate::connection::{Channels, Command, Connection, is_redirect, slot_of};

/// The time for which a subscription is kept after the last listener leaves. Without this delay, a
/// busy lock would subscribe and unsubscribe for every wait.
const KEEP_IDLE_FOR: Duration = Duration::from_secs(10);
/// The silence after which the connection counts as dead.
const MAX_SILENCE: Duration = Duration::from_secs(10);

pub(super) struct Serving<'a> {
    pubsub: &'a PubSub,
    subscriber: &'a Arc<Subscriber>,
    tracking: &'a mut Tracking,
    connection: Connection,
    /// The unanswered requests in their order, which is needed because a refusal does not name its
    /// channel.
    asked: VecDeque<Unanswered>,
}

/// An unanswered request.
enum Unanswered {
    Subscribe(Arc<ChannelEntry>),
    Unsubscribe(Arc<ChannelEntry>),
    /// The PING after an unsubscription.
    Ping(Arc<ChannelEntry>),
    Step(TrackingStep),
}

#[derive(Clone, Copy)]
enum ChannelVerb {
    Subscribe,
    Unsubscribe,
}

impl<'a> Serving<'a> {
    /// Connects. Returns `None` if the client is shut down.
    pub(super) fn begin(
        pubsub: &'a PubSub,
        subscriber: &'a Arc<Subscriber>,
        tracking: &'a mut Tracking,
    ) -> Result<Option<Self>, RedisError> {
        let endpoint = &subscriber.node.endpoint;
        let before = endpoint.incarnation();
        let mut connection = endpoint.open()?;
        connection.set_read_timeout(MAX_SILENCE);
        *subscriber.closer.lock() = Some(connection.closer());
        if pubsub.is_shut_down() {
            return Ok(None);
        }
        // While this thread was connecting, another thread has connected to a new run of the
        // server. That thread could not close this connection, which may lead to the old run. If
        // this connection leads to the new run, the subscriber connects once more than necessary.
        if endpoint.incarnation() != before && endpoint.says_its_run() {
            return Err((redis::ErrorKind::Io, "another run of the server was met").into());
        }
        Ok(Some(Self { pubsub, subscriber, tracking, connection, asked: VecDeque::new() }))
    }

    /// Subscribes to every channel and dispatches messages. Returns an error if the connection
    /// fails, and `Ok` if the client is shut down or the server has left the cluster. Calls `works`
    /// after each confirmation.
    pub(super) fn run(mut self, mut works: impl FnMut()) -> Result<(), RedisError> {
        self.ask_for_all()?;
        loop {
            let event = PubSubEvent::of(self.connection.recv_response()?);
            self.subscriber.received.fetch_add(1, Ordering::Relaxed);
            if self.pubsub.is_shut_down() {
                return Ok(());
            }
            match event {
                PubSubEvent::Subscribed(channel) => {
                    works();
                    self.handle_subscribed(&channel)?;
                }
                PubSubEvent::Unsubscribed(channel) => self.handle_unsubscribed(&channel)?,
                PubSubEvent::Message(channel, message) => {
                    let was_control = self.handle_message(&channel, message)?;
                    if was_control && self.pubsub.end_if_over(self.subscriber, self.tracking) {
                        return Ok(());
                    }
                }
                PubSubEvent::Changed(keys) => {
                    let steps = self.tracking.handle_change(keys.as_deref());
                    self.send_steps(steps)?;
                }
                PubSubEvent::Pong => {
                    self.next_if(|next| matches!(next, Unanswered::Ping(_)));
                }
                PubSubEvent::Reply(reply) => self.handle_reply(&reply)?,
                PubSubEvent::Refused(error) => self.handle_refusal(error)?,
                PubSubEvent::Other => {}
            }
        }
    }

    fn ask_for_all(&mut self) -> Result<(), RedisError> {
        let channels: Vec<Arc<ChannelEntry>> = {
            let mut state = self.pubsub.state.lock();
            let queue = self.pubsub.queue(&mut state, &self.subscriber.node);
            queue.wanted.clear();
            queue.left.clear();
            // After this line, a thread that wants a new channel sends a control message. A control
            // message before the confirmation of the client's own channel is lost, so this thread
            // reads the queue again at the confirmation.
            queue.reading = true;
            // Request refused channels, too: the server may allow them now.
            let entries = state.of_server(self.subscriber);
            entries.iter().for_each(|entry| entry.set_pending());
            entries
        };
        if self.pubsub.may_track {
            let steps = self.tracking.begin();
            if steps.0.is_empty() {
                self.subscriber.record_no_tracking();
            }
            self.send_steps(steps)?;
        }
        self.ask_each(ChannelVerb::Subscribe, channels)
    }

    fn handle_subscribed(&mut self, channel: &[u8]) -> Result<(), RedisError> {
        self.asked.pop_front();
        if let Some(entry) = self.entry(channel) {
            if Arc::ptr_eq(&entry, &self.subscriber.own) {
                self.read_queue()?;
            }
            entry.record_confirmation(Confirmation::Confirmed);
        }
        Ok(())
    }

    fn handle_unsubscribed(&mut self, channel: &[u8]) -> Result<(), RedisError> {
        match self.asked.front() {
            Some(Unanswered::Unsubscribe(left)) if left.channel().as_bytes() == channel => {
                self.asked.pop_front();
            }
            // The server had ended the subscription itself and had sent a message about its end.
            // This is the second message: the reply to the client's request.
            Some(Unanswered::Ping(left)) if left.channel().as_bytes() == channel => {}
            // The slot has left this server. The reply to the next request for the channel names
            // the server that has the slot.
            _ => {
                if let Some(entry) = self.entry(channel) {
                    entry.record_disconnect();
                    self.ask_each(ChannelVerb::Subscribe, vec![entry])?;
                }
            }
        }
        Ok(())
    }

    /// Handles a message. If this is a control message, reads the subscriber's queue and returns
    /// `true`.
    fn handle_message(&mut self, channel: &[u8], message: Vec<u8>) -> Result<bool, RedisError> {
        let Some(entry) = self.entry(channel) else { return Ok(false) };
        if entry.kind() != ChannelKind::Own {
            entry.record_message(message);
            return Ok(false);
        }
        if message != CONTROL.as_bytes() {
            self.pubsub.host.message(&message);
            return Ok(false);
        }
        self.read_queue()?;
        Ok(true)
    }

    /// Handles a reply. If the next unanswered request is a step towards tracking, the reply
    /// belongs to this step.
    fn handle_reply(&mut self, reply: &Value) -> Result<(), RedisError> {
        let next = self.next_if(|next| matches!(next, Unanswered::Step(_)));
        let Some(Unanswered::Step(step)) = next else { return Ok(()) };
        let steps = self.subscriber.handle_step(self.tracking, step, Ok(reply));
        self.send_steps(steps)
    }

    fn handle_refusal(&mut self, error: RedisError) -> Result<(), RedisError> {
        match self.asked.pop_front() {
            // Without the client's own channel, no control message could wake this thread, so end
            // all waits with the error.
            Some(Unanswered::Subscribe(entry)) if Arc::ptr_eq(&entry, &self.subscriber.own) => {
                self.refuse_all(&error);
                return Err(error);
            }
            Some(Unanswered::Subscribe(entry)) => {
                let cluster = self.pubsub.servers.cluster();
                if cluster.is_none_or(|cluster| !cluster.follow_redirect(&error)) {
                    entry.record_confirmation(self.subscriber.refused(&error));
                    return Ok(());
                }
                // If the channel has no other home now, this thread connects again and subscribes
                // to all channels again.
                self.pubsub.move_channels(&[slot_of(entry.channel().as_bytes())]);
                if entry.home() == self.subscriber.node.number() {
                    return Err(error);
                }
            }
            // The server refused to end the subscription, and still sends the channel's messages.
            // No thread listens to them.
            Some(Unanswered::Unsubscribe(_)) => {}
            // The server had already ended the subscription, so it refuses the request. The reply
            // to the PING comes later.
            Some(left @ Unanswered::Ping(_)) if is_redirect(&error) => {
                self.asked.push_front(left);
            }
            // This refusal is the reply to the PING: the user has no right to send a PING.
            Some(Unanswered::Ping(_)) => {}
            Some(Unanswered::Step(step)) => {
                let cluster =
                    self.pubsub.servers.cluster().filter(|_| self.tracking.is_query(&step));
                let moved = cluster.is_some_and(|cluster| cluster.follow_redirect(&error));
                let steps = self.subscriber.handle_step(self.tracking, step, Err(&error));
                self.send_steps(steps)?;
                if moved {
                    self.pubsub.pass_moved_keys(self.subscriber, self.tracking);
                }
            }
            None => return Err(error),
        }
        Ok(())
    }

    fn refuse_all(&self, error: &RedisError) {
        if self.pubsub.may_track {
            // Without the client's own channel, new holds to track could not wake the thread.
            self.subscriber.record_no_tracking();
        }
        let entries = self.pubsub.state.lock().of_server(self.subscriber);
        for entry in entries {
            entry.record_confirmation(self.subscriber.refused(error));
        }
    }

    /// Subscribes to new channels, and begins to track keys. Unsubscribes from channels that had no
    /// listener for a while or have moved to another server.
    fn read_queue(&mut self) -> Result<(), RedisError> {
        let server = self.subscriber.node.number();
        let (wanted, unwanted, to_track, moved) = {
            let mut state = self.pubsub.state.lock();
            let queue = self.pubsub.queue(&mut state, &self.subscriber.node);
            let wanted: Vec<_> = queue.wanted.drain(..).collect();
            let (to_track, moved) = (std::mem::take(&mut queue.to_track), queue.moved);
            let mut unwanted = std::mem::take(&mut queue.left);
            // A moved channel may have come back in the meantime.
            unwanted.retain(|entry| entry.home() != server);
            unwanted.extend(state.sweep(server, KEEP_IDLE_FOR));
            (wanted, unwanted, to_track, moved)
        };
        self.ask_each(ChannelVerb::Unsubscribe, unwanted)?;
        self.ask_each(ChannelVerb::Subscribe, wanted)?;
        if moved {
            self.pubsub.pass_moved_keys(self.subscriber, self.tracking);
        }
        let steps = self.tracking.track_new(to_track);
        self.send_steps(steps)
    }

    /// Removes the oldest unanswered request, if `is_such` accepts it.
    fn next_if(&mut self, is_such: impl FnOnce(&Unanswered) -> bool) -> Option<Unanswered> {
        if self.asked.front().is_some_and(is_such) { self.asked.pop_front() } else { None }
    }

    /// Returns the entry of the channel, or `None` if the channel is unknown or has another home
    /// now, so that no waiter gets a message twice.
    fn entry(&self, channel: &[u8]) -> Option<Arc<ChannelEntry>> {
        if channel == self.subscriber.own.channel().as_bytes() {
            return Some(Arc::clone(&self.subscriber.own));
        }
        let channel = std::str::from_utf8(channel).ok()?;
        let entry = self.pubsub.state.lock().entries.get(channel).cloned();
        entry.filter(|entry| entry.home() == self.subscriber.node.number())
    }

    /// Sends one command for each channel, because the server accepts or refuses each command as a
    /// whole. The client's own channel and the common channel belong to no slot.
    ///
    /// If a slot leaves a server, the server ends the subscriptions of the slot's sharded channels
    /// itself. It sends a message that looks like a reply, and then refuses the client's request to
    /// unsubscribe. So this request may get one reply or two. Therefore a PING follows each
    /// unsubscription of a sharded channel, and only the reply to the PING, or its refusal, shows
    /// that the unsubscription is done.
    fn ask_each(
        &mut self,
        ask: ChannelVerb,
        entries: Vec<Arc<ChannelEntry>>,
    ) -> Result<(), RedisError> {
        let mut bytes = Vec::new();
        for entry in entries {
            let of_a_slot =
                entry.kind() != ChannelKind::Common && !Arc::ptr_eq(&entry, &self.subscriber.own);
            let in_shards = self.pubsub.channels == Channels::Sharded;
            let command: &[u8] = match (ask, in_shards && of_a_slot) {
                (ChannelVerb::Subscribe, false) => b"SUBSCRIBE",
                (ChannelVerb::Subscribe, true) => b"SSUBSCRIBE",
                (ChannelVerb::Unsubscribe, false) => b"UNSUBSCRIBE",
                (ChannelVerb::Unsubscribe, true) => b"SUNSUBSCRIBE",
            };
            let command = Command::plain(&[command, entry.channel().as_bytes()]);
            bytes.extend_from_slice(command.bytes());
            match ask {
                ChannelVerb::Subscribe => self.asked.push_back(Unanswered::Subscribe(entry)),
                ChannelVerb::Unsubscribe => {
                    self.asked.push_back(Unanswered::Unsubscribe(Arc::clone(&entry)));
                    if in_shards {
                        bytes.extend_from_slice(Command::plain(&[b"PING"]).bytes());
                        self.asked.push_back(Unanswered::Ping(entry));
                    }
                }
            }
        }
        self.send(&bytes)
    }

    /// Writes the commands and notes their steps as unanswered.
    fn send_steps(&mut self, (commands, steps): TrackingSteps) -> Result<(), RedisError> {
        let bytes: Vec<u8> = commands.iter().flat_map(Command::bytes).copied().collect();
        self.asked.extend(steps.into_iter().map(Unanswered::Step));
        self.send(&bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), RedisError> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.connection.send_packed_command(bytes, Instant::now())
    }
}
