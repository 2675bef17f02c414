//! How a loss is heard of: the server tells when a key changes under which something is held.
//!
//! The subscriber's connection has the server track what it reads (`CLIENT TRACKING`, in RESP3,
//! where a connection that listens to channels may ask questions, too). Of what is held for a while
//! it asks whether it is still there. That is a read, so the next change of the key is told,
//! whoever makes it: a command, the end of its lease, an eviction. Then the same question is asked
//! again, which makes the server track it again: "still there" was a renewal, of one's own perhaps.
//! For any other answer the hold's renewal is made now, which finds out.
//!
//! Change: what the server tells here is a hint, and so is the answer. Only a renewal's answer is a
//! loss: a hold that is being given back is not there any more, and is not lost.
//!
//! Every change that is told has its question after it, and pushes and replies come in the order in
//! which things happened on the server: so no change is missed while there is a connection. A new
//! one begins with all questions.
//!
//! In a cluster the server that has a key's slot is asked. One that has it no more says so when it
//! is asked again, and the key goes to the thread of the other one: it begins there as what is new.
//! Where two servers tell of it meanwhile, it is asked for twice.
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

/// Something that is held under a key.
pub(crate) trait Tracked: Send + Sync {
    /// How to ask the server for it. `None`: nothing is held any more of what was to be tracked.
    fn question(self: Arc<Self>) -> Option<Question>;
}

/// What is held for a while now, and the key under which it is.
pub(super) type ToTrack = (Arc<str>, Weak<dyn Tracked>);

/// Whether the server has what is held: a read of its key.
pub(crate) struct Question {
    pub(crate) command: Command,
    /// Hears the answer, on the subscriber's thread: must not block. `Nil`: the key holds something
    /// else.
    pub(crate) answered: Box<dyn FnOnce(&Value) + Send>,
}

/// What is said where the server does not.
pub(super) const NO_TRACKING: &str = "it does not tell when a key changes (HELLO 3, CLIENT TRACKING or \
                                      SUBSCRIBE is refused): that a hold is lost is found out at its \
                                      next renewal, with a fixed lease not before unlock";

/// A key is asked for so often in a period at most, and so long is that.
const MOST_ASKS: u32 = 10;
const PERIOD: u64 = 1_000_000_000;
/// So many keys are tracked: what that costs with each renewal should stay small, here and there.
pub(super) const MOST_KEYS: usize = 10_000;
/// Connections that end so often in a row before the first step is answered lead to somebody who
/// hangs up on what he does not know: the next one does without.
const HANG_UPS: u32 = 2;

/// What the subscriber's thread knows of what is tracked. Nobody else has it.
#[derive(Default)]
pub(super) struct Tracking {
    keys: HashMap<Arc<str>, Key>,
    /// Those that were asked for too often, or in vain.
    late: Vec<Arc<str>>,
    state: State,
    hang_ups: u32,
}

/// How far it has come on the connection of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Off,
    Begun,
    On,
}

#[derive(Default)]
struct Key {
    held: Vec<Held>,
    /// When its period began, and how often was asked in it.
    since: u64,
    asks: u32,
    /// It is among those that were asked for too often.
    is_late: bool,
}

struct Held {
    who: Weak<dyn Tracked>,
    /// It holds something that was not asked for yet.
    has_new: bool,
}

/// What was written and is not answered yet.
pub(super) enum Step {
    Hello,
    Begin,
    Ask { key: Arc<str>, answered: Box<dyn FnOnce(&Value) + Send> },
}

/// Commands to write, and what is to be done with their replies, in this order.
pub(super) type Steps = (Vec<Command>, Vec<Step>);

/// Whether the server tracks, as far as it has just said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Tracks,
    Refuses,
}

impl Tracking {
    /// A connection was opened: what to say first on it.
    pub(super) fn begin(&mut self) -> Steps {
        if self.hang_ups >= HANG_UPS {
            self.hang_ups = 0;
            return Steps::default();
        }
        self.state = State::Begun;
        // With `REDIRECT` one connection would ask and another one hear, and each may break alone.
        // `NOLOOP` would end the tracking of a key without a word.
        let commands = [&[b"HELLO" as &[u8], b"3"][..], &[b"CLIENT", b"TRACKING", b"ON"]];
        (commands.map(Command::plain).into(), vec![Step::Hello, Step::Begin])
    }

    /// The connection is gone.
    pub(super) fn end(&mut self) {
        self.hang_ups += u32::from(self.state == State::Begun);
        self.state = State::Off;
    }

    /// Whether anything is held that is to be tracked. Forgets what is not.
    pub(super) fn is_needed(&mut self) -> bool {
        self.keys.retain(|_, key| {
            key.held.retain(|held| held.who.upgrade().and_then(Tracked::question).is_some());
            !key.held.is_empty()
        });
        !self.keys.is_empty()
    }

    /// Forgets the keys that have another home, and returns what is held under them.
    pub(super) fn leave(&mut self, is_elsewhere: impl Fn(&str) -> bool) -> Vec<ToTrack> {
        self.late.retain(|key| !is_elsewhere(key));
        let left = self.keys.extract_if(|key, _| is_elsewhere(key));
        left.flat_map(|(key, held)| {
            held.held.into_iter().map(move |held| (Arc::clone(&key), held.who))
        })
        .collect()
    }

    /// Whether this step asks for something that is still tracked here.
    pub(super) fn asks(&self, step: &Step) -> bool {
        matches!(step, Step::Ask { key, .. } if self.keys.contains_key(key))
    }

    /// Asks for what is new, and for what was asked for too often before.
    pub(super) fn look(&mut self, new: Vec<ToTrack>) -> Steps {
        let now = clock::now();
        let (mut fresh, mut known, mut steps) = (Vec::new(), Vec::new(), Steps::default());
        for (key, who) in new {
            if self.keys.len() >= MOST_KEYS && !self.keys.contains_key(&key) {
                continue;
            }
            let held = &mut self.keys.entry(Arc::clone(&key)).or_default().held;
            match held.iter_mut().find(|held| held.who.ptr_eq(&who)) {
                // It asks for all that it has: not again for each.
                Some(held) => {
                    held.has_new = true;
                    known.push(key);
                }
                None => {
                    held.push(Held { who, has_new: true });
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
    pub(super) fn changed(&mut self, keys: Option<&[Arc<str>]>) -> Steps {
        let now = clock::now();
        let mut steps = Steps::default();
        match keys {
            Some(keys) => keys.iter().for_each(|key| self.ask_again(key, now, &mut steps)),
            None => {
                let all: Vec<_> = self.keys.keys().cloned().collect();
                all.iter().for_each(|key| self.ask_again(key, now, &mut steps));
            }
        }
        steps
    }

    /// What was answered to a step. If that says whether the server tracks, then what to ask, too.
    pub(super) fn answered(
        &mut self,
        step: Step,
        reply: Result<&Value, &RedisError>,
    ) -> Option<(Told, Steps)> {
        match (step, reply) {
            (Step::Hello, reply) => {
                self.hang_ups = 0;
                // In RESP2 it would track for a connection that is never told.
                if !matches!(reply, Ok(Value::Map(_))) {
                    self.state = State::Off;
                }
                None
            }
            (Step::Begin, Ok(Value::Okay)) if self.state == State::Begun => {
                self.state = State::On;
                let mut steps = Steps::default();
                let all: Vec<_> = self.keys.keys().cloned().collect();
                all.iter().for_each(|key| self.ask(key, &mut steps, |_| true));
                Some((Told::Tracks, steps))
            }
            (Step::Begin, _) => {
                self.state = State::Off;
                Some((Told::Refuses, Steps::default()))
            }
            // Not looked at (a script keeps it busy, say), and so not tracked either.
            (Step::Ask { key, .. }, Err(error)) if reply_code(error) != "WRONGTYPE" => {
                self.is_late(&key);
                None
            }
            (Step::Ask { answered, .. }, reply) => {
                answered(reply.unwrap_or(&Value::Nil));
                None
            }
        }
    }

    /// Asks for a key that has changed, unless that was asked too often.
    fn ask_again(&mut self, key: &Arc<str>, now: u64, steps: &mut Steps) {
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

    /// It is asked for when the subscriber looks at its queue.
    fn is_late(&mut self, key: &Arc<str>) {
        if let Some(entry) = self.keys.get_mut(key)
            && !std::mem::replace(&mut entry.is_late, true)
        {
            self.late.push(Arc::clone(key));
        }
    }

    fn ask(&mut self, key: &Arc<str>, steps: &mut Steps, wants: impl Fn(&Held) -> bool) {
        if self.state != State::On {
            return;
        }
        let Some(entry) = self.keys.get_mut(key) else { return };
        entry.held.retain_mut(|held| {
            if !wants(held) {
                return true;
            }
            let question = held.who.upgrade().and_then(Tracked::question);
            let is_held = question.is_some();
            if let Some(Question { command, answered }) = question {
                held.has_new = false;
                steps.0.push(command);
                steps.1.push(Step::Ask { key: Arc::clone(key), answered });
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
