//! What there is of a lock after a step.

use redis::Value;

use crate::store::short;

pub(crate) const OBSERVE: &str = include_str!("observe.lua");

/// What there is of one lock, and which messages were sent since the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) holders: Vec<String>,
    /// PTTL, in ms.
    pub(crate) left: i64,
    pub(crate) queue: Vec<String>,
    pub(crate) queue_left: i64,
    pub(crate) window_left: i64,
    /// Channel and text.
    pub(crate) messages: Vec<(String, String)>,
}

impl State {
    pub(crate) fn holder(&self) -> Option<&str> {
        self.holders.first().map(String::as_str)
    }

    /// As if nothing had been there.
    pub(crate) fn none() -> Self {
        Self { left: -2, queue_left: -2, window_left: -2, ..Self::default() }
    }

    /// So many ms later, if nobody does anything.
    pub(crate) fn after(mut self, passed: i64) -> Self {
        for left in [&mut self.left, &mut self.queue_left, &mut self.window_left] {
            *left = if *left >= 0 && *left >= passed { *left - passed } else { (*left).min(-1) };
        }
        if self.left < 0 {
            self.holders.clear();
        }
        if self.queue_left < 0 {
            self.queue.clear();
        }
        self
    }

    /// Whether who is first in line could have the lock.
    pub(crate) fn is_open(&self) -> bool {
        self.holders.is_empty() && self.window_left <= 0
    }

    /// Whether nothing is left.
    pub(crate) fn is_clean(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.window_left == -2
    }

    /// In one line, for the trace.
    pub(crate) fn short(&self) -> String {
        let queue: Vec<_> = self.queue.iter().map(|owner| short(owner)).collect();
        let holders: Vec<_> = self.holders.iter().map(|owner| short(owner)).collect();
        let told: Vec<_> = self.messages.iter().map(|(_, text)| text.as_str()).collect();
        let (left, window) = (self.left, self.window_left);
        format!("held by {holders:?} for {left}, queue {queue:?}, window {window}, told {told:?}")
    }
}

impl State {
    pub(crate) fn from_reply(reply: Value) -> Self {
        type Observed = (Vec<String>, i64, Vec<String>, i64, i64, Vec<String>);
        let (holders, left, queue, queue_left, window_left, messages): Observed =
            redis::from_redis_value(reply).unwrap();
        let messages = messages.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        Self { holders, left, queue, queue_left, window_left, messages }
    }
}
