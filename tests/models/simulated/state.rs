//! A lock's state after a step.

use redis::Value;

use super::store::short;

pub(crate) const OBSERVE: &str = include_str!("observe.lua");

/// The state of a lock, and the messages since the last call.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The mode of a read-write lock: `read`, `write`, or nothing.
    pub(crate) mode: String,
    pub(crate) holders: Vec<String>,
    /// The remaining time of each holder's longest timeout.
    pub(crate) timeouts: Vec<i64>,
    pub(crate) left: i64,
    pub(crate) queue: Vec<String>,
    pub(crate) queue_left: i64,
    pub(crate) window_left: i64,
    /// The number of all timeouts on the server.
    pub(crate) strewn: usize,
    /// The scores of a fair lock's waiters.
    pub(crate) scores: Vec<(String, f64)>,
    /// The messages, each with its channel and text.
    pub(crate) messages: Vec<(String, String)>,
}

pub(crate) fn writes(owner: &str) -> bool {
    owner.ends_with(":write")
}

impl State {
    /// Returns the state without any keys.
    pub(crate) fn none() -> Self {
        Self { left: -2, queue_left: -2, window_left: -2, ..Self::default() }
    }

    /// Returns the state `passed` ms later, without any command.
    pub(crate) fn after(mut self, passed: i64) -> Self {
        let all = [&mut self.left, &mut self.queue_left, &mut self.window_left];
        for left in all.into_iter().chain(&mut self.timeouts) {
            *left = if *left >= 0 && *left >= passed { *left - passed } else { (*left).min(-1) };
        }
        if self.left < 0 {
            self.holders.clear();
            self.timeouts.clear();
            self.mode.clear();
        }
        if self.queue_left < 0 {
            self.queue.clear();
        }
        self
    }

    /// Returns the remaining time of a holder's longest timeout, or `None` for another owner.
    pub(crate) fn timeout(&self, owner: &str) -> Option<i64> {
        let at = self.holders.iter().position(|holder| holder == owner)?;
        Some(self.timeouts[at])
    }

    /// Whether the owner holds a read-write lock for reading.
    pub(crate) fn reads(&self, owner: &String) -> bool {
        !self.mode.is_empty() && !writes(owner) && self.holders.contains(owner)
    }

    pub(crate) fn is_free(&self) -> bool {
        self.mode.is_empty() && self.holders.is_empty()
    }

    /// Whether the first owner in the queue could have the lock.
    pub(crate) fn is_open(&self) -> bool {
        let may_read =
            self.mode == "read" && self.queue.first().is_some_and(|first| !writes(first));
        self.is_free() && self.window_left <= 0 || may_read
    }

    /// Whether no key is left.
    pub(crate) fn is_clean(&self) -> bool {
        self.is_free() && self.queue.is_empty() && self.window_left == -2 && self.strewn == 0
    }

    /// Returns the state in one line, for the trace.
    pub(crate) fn short(&self) -> String {
        let queue: Vec<_> = self.queue.iter().map(|owner| short(owner)).collect();
        let holders: Vec<_> = self.holders.iter().map(|owner| short(owner)).collect();
        let told: Vec<_> = self.messages.iter().map(|(_, text)| text.as_str()).collect();
        let Self { mode, left, window_left, timeouts, .. } = self;
        format!(
            "{mode} by {holders:?} for {left} ({timeouts:?}), queue {queue:?}, window {window_left}, \
             told {told:?}"
        )
    }

    pub(crate) fn from_reply(reply: Value) -> Self {
        type Keys = (String, Vec<String>, Vec<i64>, i64, Vec<String>, i64, i64, usize);
        type Lists = (Vec<(String, f64)>, Vec<(String, String)>);
        let Value::Array(mut keys) = reply else { panic!("{reply:?}") };
        let lists: Lists = redis::from_redis_value(Value::Array(keys.split_off(8))).unwrap();
        let keys: Keys = redis::from_redis_value(Value::Array(keys)).unwrap();
        let (mode, holders, timeouts, left, queue, queue_left, window_left, strewn) = keys;
        let (scores, messages) = lists;
        Self {
            mode,
            holders,
            timeouts,
            left,
            queue,
            queue_left,
            window_left,
            strewn,
            scores,
            messages,
        }
    }
}
