//! How a client learns of a loss: the server tells when the key of a hold changes.
//!
//! The subscriber's connection has the server track the keys it reads (`CLIENT TRACKING`, in RESP3,
//! where a connection that listens to channels may ask questions, too). It asks whether each hold
//! that has lasted for a while is still there. That is a read, so the server tells of the key's
//! next change, of any cause: a command, the end of its lease, an eviction. Then the subscriber
//! asks the same question again, which makes the server track the key again: "still there" means a
//! renewal, of this client perhaps. At any other answer the client renews the hold now, which finds
//! out.
//!
//! Change: the server's message here is a hint, and so is the answer. Only a renewal's answer is a
//! loss: a hold that is being given back is not there any more, and is not lost.
//!
//! A question follows every change that the server tells, and pushes and replies come in the order
//! of the server's events: so no change is missed while there is a connection. A new connection
//! begins with all questions.
//!
//! In a cluster the subscriber of the server with the key's slot asks. A server that has lost the
//! slot says so at the next question, and the key goes to the thread of the other one, as a new
//! key. If two servers tell of a key meanwhile, it is asked for twice.
//!
//! A key that changes all the time, as a semaphore's does, is asked for [`MOST_ASKS`] times in a
//! [`PERIOD`], and once more when the subscriber looks at its queue after that: at the next sign of
//! life, if not before. So is one that the server has no room to track.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use redis::{RedisError, Value};

use crate::connection::{Command, reply_code};
use crate::sync::clock;

/// A hold under a key, or several.
pub trait Tracked: Send + Sync {
    /// How to ask the server for it. `None`: no hold to be tracked is left.
    fn question(self: Arc<Self>) -> Option<HoldQuestion>;
}

/// A hold that has lasted for a while, and its key.
pub(super) type ToTrack = (Arc<str>, Weak<dyn Tracked>);

/// Whether the server has the hold: a read of its key.
pub struct HoldQuestion {
    /// The read.
    pub command: Command,
    /// Gets the answer, on the subscriber's thread: must not block. `Nil`: the key holds something
    /// else.
    pub answered: Box<dyn FnOnce(&Value) + Send>,
}

impl fmt::Debug for HoldQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldQuestion({:?})", self.command)
    }
}

/// The log's words if the server does not track.
pub(super) const NO_TRACKING: &str = "it does not notify the client of changed keys (HELLO 3, \
                                      CLIENT TRACKING or SUBSCRIBE is refused): the client finds a \
                                      loss at the next renewal, or with a fixed lease at unlock";

/// The most questions for a key in a period, and the period's length.
const MOST_ASKS: u32 = 10;
const PERIOD: u64 = 1_000_000_000;
/// The most tracked keys: their cost at each renewal should stay small, here and on the server.
pub(super) const MOST_KEYS: usize = 10_000;
/// After so many connections in a row that end before the first step's answer, the peer is one that
/// hangs up on unknown commands: the next connection does without tracking.
const HANG_UPS: u32 = 2;

/// The subscriber's thread's view of the tracked keys. No other thread has it.
#[derive(Default)]
pub(super) struct Tracking {
    keys: HashMap<Arc<str>, Key>,
    /// The keys that were asked for too often, or in vain.
    late: Vec<Arc<str>>,
    state: Progress,
    hang_ups: u32,
}

/// The progress of the steps on the present connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    Off,
    Begun,
    On,
}

#[derive(Default)]
struct Key {
    held: Vec<Interest>,
    /// When the key's period began, and the number of questions in it.
    since: u64,
    asks: u32,
    /// The key is among those that were asked for too often.
    is_late: bool,
}

struct Interest {
    who: Weak<dyn Tracked>,
    /// It has a hold that was not asked for yet.
    has_new: bool,
}

/// A written command without an answer yet.
pub(super) enum TrackingStep {
    Hello,
    Begin,
    Ask { key: Arc<str>, answered: Box<dyn FnOnce(&Value) + Send> },
}

/// Commands to write, and the steps that their replies end, in this order.
pub(super) type TrackingSteps = (Vec<Command>, Vec<TrackingStep>);

/// Whether the server tracks, by its last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrackingNews {
    Tracks,
    Refuses,
}

impl Tracking {
    /// A connection was opened. Returns its first steps.
    pub(super) fn begin(&mut self) -> TrackingSteps {
        if self.hang_ups >= HANG_UPS {
            self.hang_ups = 0;
            return TrackingSteps::default();
        }
        self.state = Progress::Begun;
        // With `REDIRECT` one connection would ask and another one would get the messages, and each
        // may break alone. `NOLOOP` would end the tracking of a key without a word.
        let commands = [&[b"HELLO" as &[u8], b"3"][..], &[b"CLIENT", b"TRACKING", b"ON"]];
        (commands.map(Command::plain).into(), vec![TrackingStep::Hello, TrackingStep::Begin])
    }

    /// The connection is gone.
    pub(super) fn end(&mut self) {
        self.hang_ups += u32::from(self.state == Progress::Begun);
        self.state = Progress::Off;
    }

    /// Whether any hold is to be tracked. Forgets the others.
    pub(super) fn is_needed(&mut self) -> bool {
        self.keys.retain(|_, key| {
            key.held.retain(|held| held.who.upgrade().and_then(Tracked::question).is_some());
            !key.held.is_empty()
        });
        !self.keys.is_empty()
    }

    /// Forgets the keys that have another home, and returns the holds under them.
    pub(super) fn leave(&mut self, is_elsewhere: impl Fn(&str) -> bool) -> Vec<ToTrack> {
        self.late.retain(|key| !is_elsewhere(key));
        let left = self.keys.extract_if(|key, _| is_elsewhere(key));
        left.flat_map(|(key, held)| {
            held.held.into_iter().map(move |held| (Arc::clone(&key), held.who))
        })
        .collect()
    }

    /// Whether this step asks for a key that is still tracked here.
    pub(super) fn asks(&self, step: &TrackingStep) -> bool {
        matches!(step, TrackingStep::Ask { key, .. } if self.keys.contains_key(key))
    }

    /// Asks for new keys, and for those that were asked for too often before.
    pub(super) fn look(&mut self, new: Vec<ToTrack>) -> TrackingSteps {
        let now = clock::now();
        let (mut fresh, mut known, mut steps) = (Vec::new(), Vec::new(), TrackingSteps::default());
        for (key, who) in new {
            if self.keys.len() >= MOST_KEYS && !self.keys.contains_key(&key) {
                continue;
            }
            let held = &mut self.keys.entry(Arc::clone(&key)).or_default().held;
            match held.iter_mut().find(|held| held.who.ptr_eq(&who)) {
                // Its question covers all its holds: it is not repeated for each.
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

    /// The server says that these keys have changed; `None`: any may have.
    pub(super) fn changed(&mut self, keys: Option<&[Arc<str>]>) -> TrackingSteps {
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

    /// The answer to a step. Returns the next steps if the answer says whether the server tracks.
    pub(super) fn answered(
        &mut self,
        step: TrackingStep,
        reply: Result<&Value, &RedisError>,
    ) -> Option<(TrackingNews, TrackingSteps)> {
        match (step, reply) {
            (TrackingStep::Hello, reply) => {
                self.hang_ups = 0;
                // In RESP2 the server would track for a connection that it never tells.
                if !matches!(reply, Ok(Value::Map(_))) {
                    self.state = Progress::Off;
                }
                None
            }
            (TrackingStep::Begin, Ok(Value::Okay)) if self.state == Progress::Begun => {
                self.state = Progress::On;
                let mut steps = TrackingSteps::default();
                let all: Vec<_> = self.keys.keys().cloned().collect();
                all.iter().for_each(|key| self.ask(key, &mut steps, |_| true));
                Some((TrackingNews::Tracks, steps))
            }
            (TrackingStep::Begin, _) => {
                self.state = Progress::Off;
                Some((TrackingNews::Refuses, TrackingSteps::default()))
            }
            // The server did not look at the key (a script keeps it busy, say), and so does not
            // track it either.
            (TrackingStep::Ask { key, .. }, Err(error)) if reply_code(error) != "WRONGTYPE" => {
                self.is_late(&key);
                None
            }
            (TrackingStep::Ask { answered, .. }, reply) => {
                answered(reply.unwrap_or(&Value::Nil));
                None
            }
        }
    }

    /// Asks for a key that has changed, unless that was asked too often.
    fn ask_again(&mut self, key: &Arc<str>, now: u64, steps: &mut TrackingSteps) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        if now.saturating_sub(entry.since) >= PERIOD {
            (entry.since, entry.asks) = (now, 0);
        }
        if entry.asks < MOST_ASKS {
            entry.asks += 1;
            self.ask(key, steps, |_| true);
        } else {
            self.is_late(key);
        }
    }

    /// The key is asked for when the subscriber next looks at its queue.
    fn is_late(&mut self, key: &Arc<str>) {
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
        if self.state != Progress::On {
            return;
        }
        let Some(entry) = self.keys.get_mut(key) else { return };
        entry.held.retain_mut(|held| {
            if !wants(held) {
                return true;
            }
            let question = held.who.upgrade().and_then(Tracked::question);
            let is_held = question.is_some();
            if let Some(HoldQuestion { command, answered }) = question {
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
