//! A thread's interest in a channel.

use std::sync::Arc;

use super::entry::{ChannelEntry, Confirmation};
use crate::sync::{Waker, is_forked};

/// Listens to a channel until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    pub(super) entry: Arc<ChannelEntry>,
    /// The owner whose hold asks the server after each confirmation.
    pub(super) hearer: Option<u64>,
}

impl Subscription {
    /// The version of the channel, which changes with each event. A waiter reads the version before
    /// it sends a request, and sleeps only while the version is unchanged.
    pub fn version(&self) -> u64 {
        self.entry.version()
    }

    /// Whether the channel is confirmed and its version has changed, so that messages may have
    /// arrived or been missed.
    pub fn has_news_since(&self, version: Option<u64>) -> bool {
        self.entry.has_news_since(version)
    }

    /// Returns the last message since the channel was confirmed, or an empty message if there was
    /// none. Only the last message is kept, so a caller may miss some messages.
    pub fn message(&self) -> Vec<u8> {
        self.entry.message()
    }

    /// Whether the server sends the channel's messages.
    pub fn confirmation(&self) -> Confirmation {
        self.entry.confirmation()
    }

    /// Whether the server has confirmed the subscription.
    pub fn is_confirmed(&self) -> bool {
        self.entry.is_confirmed()
    }

    /// Wakes `waker` at each event of the channel, until the result is dropped.
    pub fn wake(&self, waker: Waker) -> Waking<'_> {
        self.entry.wake(waker.clone());
        Waking { subscription: self, waker }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // In a forked child, the entry's mutex may be locked for ever.
        if !is_forked() {
            self.entry.leave(self.hearer);
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
