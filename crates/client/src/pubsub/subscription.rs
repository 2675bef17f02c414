//! A thread's interest in a channel.

use std::sync::Arc;

use super::entry::{ChannelEntry, Confirmation};
use crate::sync::{Waker, is_forked};

/// A channel that a thread listens to, until this is dropped.
#[derive(Debug)]
pub struct Subscription {
    pub(super) entry: Arc<ChannelEntry>,
}

impl Subscription {
    /// Moves with all news of the channel. A waiter reads it before it asks the server, and sleeps
    /// only while it has not moved.
    pub fn version(&self) -> u64 {
        self.entry.version()
    }

    /// Whether messages may have come, or been missed, since this version, and none is missed from
    /// now on.
    pub fn has_news_since(&self, version: Option<u64>) -> bool {
        self.entry.has_news_since(version)
    }

    /// The last message since the channel was confirmed; empty if there was none. Others
    /// may have come between it and the one before.
    pub fn message(&self) -> Vec<u8> {
        self.entry.message()
    }

    /// Whether the server sends messages of the channel.
    pub fn confirmation(&self) -> Confirmation {
        self.entry.confirmation()
    }

    /// Whether it certainly does.
    pub fn is_confirmed(&self) -> bool {
        self.entry.is_confirmed()
    }

    /// Until the result is dropped, all news of the channel wakes `waker`.
    pub fn wake(&self, waker: Waker) -> Waking<'_> {
        self.entry.wake(waker.clone());
        Waking { subscription: self, waker }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // In a forked child a thread that is not there may have locked the entry's mutex.
        if !is_forked() {
            self.entry.leave();
        }
    }
}

/// A waiter that a channel wakes.
#[derive(Debug)]
pub struct Waking<'a> {
    subscription: &'a Subscription,
    waker: Waker,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.subscription.entry.forget(&self.waker);
    }
}
