//! How a client notices a loss early: the server reports changes of a hold's key.
//!
//! The subscriber's connection turns on `CLIENT TRACKING`: the server tracks the keys that this
//! connection reads. Tracking needs RESP3, in which a connection with subscriptions may also send
//! other commands. For each hold that has lasted for a while, the subscriber sends a query whether
//! the hold still exists. The query reads the key, so the server reports the key's next change: a
//! change by a command, the end of the lease, or an eviction. The subscriber then sends the same
//! query again, and the server tracks the key again. If the hold still exists, the change was a
//! renewal, perhaps by this client. If the hold does not exist, or the server refuses the query,
//! the client renews the hold at once. The reply to the renewal shows whether the hold is lost.
//!
//! The server's report and the reply to the query are only hints: a hold that this client has just
//! released does not exist at the server either. Only the reply to a renewal proves a loss.
//!
//! A query follows every reported change, and pushed messages and replies arrive in the order of
//! the server's events. So as long as the connection is open, the subscriber misses no change. On a
//! new connection, the subscriber first queries all keys.
//!
//! In a cluster, the subscriber of the server with the key's slot sends the query. A server that
//! has lost the slot redirects the next query. The key then becomes a new key of the new server's
//! subscriber. If both servers report the key in the meantime, the client queries it twice.
//!
//! A semaphore's key may change all the time. The subscriber queries such a key at most
//! [`MAX_QUERIES`] times in a [`QUERY_PERIOD`]. It queries the key again when it next reads its
//! queue, at the latest at the next heartbeat. The same happens if the server has no memory to
//! track a key, or could not reply to the query.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use redis::{RedisError, Value};

use crate::connection::{Command, reply_code};
use crate::sync::clock;

/// One or more holds under a key.
pub trait Tracked: Send + Sync {
    /// Returns the query to send, or `None` if no hold needs tracking.
    fn hold_query(self: Arc<Self>) -> Option<HoldQuery>;

    /// Makes the holds ask the server at once whether others wait, because the message that says so
    /// may have been missed. Called on a subscriber thread with no mutex held. Must not block.
    fn ask_if_wanted(self: Arc<Self>) {}
}

/// A key, and a hold under it that has lasted for a while.
pub(super) type ToTrack = (Arc<str>, Weak<dyn Tracked>);

/// A query whether holds still exist. The query reads their key.
pub struct HoldQuery {
    /// The command that reads the key.
    pub command: Command,
    /// Gets the reply on the subscriber thread, so it must not block. The reply is `Nil` if the key
    /// has another type.
    pub answered: Box<dyn FnOnce(&Value) + Send>,
}

impl fmt::Debug for HoldQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldQuery({:?})", self.command)
    }
}

/// The message for the log if the server does not track.
pub(super) const NO_TRACKING: &str = "it does not notify the client of changed keys (HELLO 3, \
                                      CLIENT TRACKING or SUBSCRIBE is refused): the client finds a \
                                      loss at the next renewal, or with a fixed lease at unlock";

/// The maximum number of queries of a key in a period, and the period's length.
const MAX_QUERIES: u32 = 10;
const QUERY_PERIOD: u64 = 1_000_000_000;
/// The maximum number of tracked keys. The limit keeps the cost of each renewal small, for the
/// client and the server.
pub(super) const MAX_KEYS: usize = 10_000;
/// If this many connections in a row end before the reply to the first step, the next connection
/// does not track. Such a server seems to close a connection that sends an unknown command.
const MAX_HANG_UPS: u32 = 2;

/// The tracked keys of a subscriber thread. No other thread uses them.
#[derive(Default)]
pub(super) struct Tracking {
    keys: HashMap<Arc<str>, Key>,
    /// The keys that the subscriber has queried too often, or whose query got no reply.
    late: Vec<Arc<str>>,
    state: TrackingState,
    hang_ups: u32,
}

/// The progress of the steps towards tracking on the present connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TrackingState {
    #[default]
    Off,
    Begun,
    On,
}

#[derive(Default)]
struct Key {
    held: Vec<Interest>,
    /// The beginning of the key's period, and the number of queries in it.
    since: u64,
    asks: u32,
    /// Whether the key is in [`Tracking::late`].
    is_late: bool,
}

struct Interest {
    who: Weak<dyn Tracked>,
    /// Whether the key has a hold that the subscriber has not queried yet.
    has_new: bool,
}

/// A written command without a reply.
pub(super) enum TrackingStep {
    Hello,
    Begin,
    Ask { key: Arc<str>, answered: Box<dyn FnOnce(&Value) + Send> },
}

/// Commands to write, and for each command the step that its reply ends.
pub(super) type TrackingSteps = (Vec<Command>, Vec<TrackingStep>);

/// Whether the server tracks, according to its last reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrackingAnswer {
    Tracks,
    Refuses,
}

impl Tracking {
    /// Begins tracking on a new connection. Returns the steps that the subscriber sends first.
    pub(super) fn begin(&mut self) -> TrackingSteps {
        if self.hang_ups >= MAX_HANG_UPS {
            self.hang_ups = 0;
            return TrackingSteps::default();
        }
        self.state = TrackingState::Begun;
        // `REDIRECT` is not used, because one connection would send the queries and another would
        // get the messages, and each may break alone. `NOLOOP` is not used, because a key's
        // tracking could end without a message.
        let commands = [&[b"HELLO" as &[u8], b"3"][..], &[b"CLIENT", b"TRACKING", b"ON"]];
        (commands.map(Command::plain).into(), vec![TrackingStep::Hello, TrackingStep::Begin])
    }

    /// Notes that the connection has ended.
    pub(super) fn end(&mut self) {
        self.hang_ups += u32::from(self.state == TrackingState::Begun);
        self.state = TrackingState::Off;
    }

    /// Forgets the holds that no longer need tracking. Returns whether any are left.
    pub(super) fn retain_needed(&mut self) -> bool {
        self.keys.retain(|_, key| {
            key.held.retain(|held| held.who.upgrade().and_then(Tracked::hold_query).is_some());
            !key.held.is_empty()
        });
        !self.keys.is_empty()
    }

    /// Forgets the keys that have another home. Returns the holds of these keys.
    pub(super) fn leave(&mut self, is_elsewhere: impl Fn(&str) -> bool) -> Vec<ToTrack> {
        self.late.retain(|key| !is_elsewhere(key));
        let left = self.keys.extract_if(|key, _| is_elsewhere(key));
        left.flat_map(|(key, held)| {
            held.held.into_iter().map(move |held| (Arc::clone(&key), held.who))
        })
        .collect()
    }

    /// Whether this step is a query of a key that is still tracked here.
    pub(super) fn is_query(&self, step: &TrackingStep) -> bool {
        matches!(step, TrackingStep::Ask { key, .. } if self.keys.contains_key(key))
    }

    /// Returns the queries of new keys, and of the keys in `late`.
    pub(super) fn track_new(&mut self, new: Vec<ToTrack>) -> TrackingSteps {
        let now = clock::now();
        let (mut fresh, mut known, mut steps) = (Vec::new(), Vec::new(), TrackingSteps::default());
        for (key, who) in new {
            if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&key) {
                continue;
            }
            let held = &mut self.keys.entry(Arc::clone(&key)).or_default().held;
            match held.iter_mut().find(|held| held.who.ptr_eq(&who)) {
                // One query covers all holds of the key.
                Some(held) => {
                    held.has_new = true;
                    known.push(key);
                }
                None => {
                    held.push(Interest { who, has_new: true });
                    fresh.push(key);
                }
            }
        }
        fresh.iter().for_each(|key| self.ask(key, &mut steps, |held| held.has_new));
        known.sort_unstable();
        known.dedup();
        known.iter().for_each(|key| self.ask_again(key, now, &mut steps));
        for key in std::mem::take(&mut self.late) {
            if let Some(key) = self.keys.get_mut(&key) {
                key.is_late = false;
            }
            self.ask_again(&key, now, &mut steps);
        }
        steps
    }

    /// Handles the server's report that these keys have changed, or (`None`) that any key may have
    /// changed.
    pub(super) fn handle_change(&mut self, keys: Option<&[Arc<str>]>) -> TrackingSteps {
        let now = clock::now();
        let mut steps = TrackingSteps::default();
        match keys {
            Some(keys) => keys.iter().for_each(|key| self.ask_again(key, now, &mut steps)),
            None => {
                let all: Vec<_> = self.keys.keys().cloned().collect();
                all.iter().for_each(|key| self.ask_again(key, now, &mut steps));
            }
        }
        steps
    }

    /// Handles the reply to a step. Returns the next steps. If the reply says whether the server
    /// tracks, also returns this.
    pub(super) fn handle_reply(
        &mut self,
        step: TrackingStep,
        reply: Result<&Value, &RedisError>,
    ) -> Option<(TrackingAnswer, TrackingSteps)> {
        match (step, reply) {
            (TrackingStep::Hello, reply) => {
                self.hang_ups = 0;
                // In RESP2 the server would track keys but never report a change.
                if !matches!(reply, Ok(Value::Map(_))) {
                    self.state = TrackingState::Off;
                }
                None
            }
            (TrackingStep::Begin, Ok(Value::Okay)) if self.state == TrackingState::Begun => {
                self.state = TrackingState::On;
                let mut steps = TrackingSteps::default();
                let all: Vec<_> = self.keys.keys().cloned().collect();
                all.iter().for_each(|key| self.ask(key, &mut steps, |_| true));
                Some((TrackingAnswer::Tracks, steps))
            }
            (TrackingStep::Begin, _) => {
                self.state = TrackingState::Off;
                Some((TrackingAnswer::Refuses, TrackingSteps::default()))
            }
            // The server did not read the key, perhaps because a script blocks the server. So it
            // does not track the key.
            (TrackingStep::Ask { key, .. }, Err(error)) if reply_code(error) != "WRONGTYPE" => {
                self.add_late(&key);
                None
            }
            (TrackingStep::Ask { answered, .. }, reply) => {
                answered(reply.unwrap_or(&Value::Nil));
                None
            }
        }
    }

    /// Adds the query of a key that has changed, unless the limit is reached.
    fn ask_again(&mut self, key: &Arc<str>, now: u64, steps: &mut TrackingSteps) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        if now.saturating_sub(entry.since) >= QUERY_PERIOD {
            (entry.since, entry.asks) = (now, 0);
        }
        if entry.asks < MAX_QUERIES {
            entry.asks += 1;
            self.ask(key, steps, |_| true);
        } else {
            self.add_late(key);
        }
    }

    /// Adds the key to `late`, until the subscriber next reads its queue.
    fn add_late(&mut self, key: &Arc<str>) {
        if let Some(entry) = self.keys.get_mut(key)
            && !std::mem::replace(&mut entry.is_late, true)
        {
            self.late.push(Arc::clone(key));
        }
    }

    fn ask(
        &mut self,
        key: &Arc<str>,
        steps: &mut TrackingSteps,
        wants: impl Fn(&Interest) -> bool,
    ) {
        if self.state != TrackingState::On {
            return;
        }
        let Some(entry) = self.keys.get_mut(key) else { return };
        entry.held.retain_mut(|held| {
            if !wants(held) {
                return true;
            }
            let query = held.who.upgrade().and_then(Tracked::hold_query);
            let is_held = query.is_some();
            if let Some(HoldQuery { command, answered }) = query {
                held.has_new = false;
                steps.0.push(command);
                steps.1.push(TrackingStep::Ask { key: Arc::clone(key), answered });
            }
            is_held
        });
        if entry.held.is_empty() {
            self.keys.remove(key);
        }
    }
}

impl fmt::Debug for Tracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracking({:?}, {} keys)", self.state, self.keys.len())
    }
}
