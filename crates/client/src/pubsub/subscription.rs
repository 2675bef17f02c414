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
    /// The version, which changes with all news of the channel. A waiter reads it before it asks
    /// the server, and sleeps only while it is the same.
    pub fn version(&self) -> u64 {
        self.entry.version()
    }

    /// Whether the channel is confirmed, and messages may have come or been missed since this
    /// version.
    pub fn has_news_since(&self, version: Option<u64>) -> bool {
        self.entry.has_news_since(version)
    }

    /// The last message since the channel was confirmed, or empty if there was none. Calls may skip
    /// messages, since only the last one is kept.
    pub fn message(&self) -> Vec<u8> {
        self.entry.message()
    }

    /// Whether the server sends messages of the channel.
    pub fn confirmation(&self) -> Confirmation {
        self.entry.confirmation()
    }

    /// Whether the server is known to send them.
    pub fn is_confirmed(&self) -> bool {
        self.entry.is_confirmed()
    }

    /// Makes all news of the channel wake `waker` until the result is dropped.
    pub fn wake(&self, waker: Waker) -> Waking<'_> {
        self.entry.wake(waker.clone());
        Waking { subscription: self, waker }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // In a forked child, a thread of the parent may have left the entry's mutex locked.
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
