//! The channels of a client, and each subscriber's queue of changes to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{ChannelEntry, ChannelKind};
use super::subscriber::Subscriber;
use super::tracking::ToTrack;

pub(super) struct ChannelsState {
    pub(super) entries: HashMap<Arc<str>, Arc<ChannelEntry>>,
    /// The queue for each server with channels, by the server's number.
    pub(super) queues: HashMap<usize, SubscriberQueue>,
    /// The first version of a new entry. This version is higher than all versions of dropped
    /// entries, so that no channel ever has the same version twice.
    pub(super) first_version: u64,
}

/// The work for a subscriber thread.
pub(super) struct SubscriberQueue {
    /// Whether the thread has been started.
    pub(super) runs: bool,
    pub(super) subscriber: Arc<Subscriber>,
    /// Channels to subscribe to.
    pub(super) wanted: Vec<Arc<ChannelEntry>>,
    /// Channels that now have another home.
    pub(super) left: Vec<Arc<ChannelEntry>>,
    /// Holds that have lasted for a while, whose keys must be tracked.
    pub(super) to_track: Vec<ToTrack>,
    /// Whether tracked keys may have moved to another home since the thread last read this flag.
    pub(super) moved: bool,
    /// Whether the thread sleeps in a read, so that only a control message makes it read its queue.
    pub(super) reading: bool,
}

impl ChannelsState {
    /// Returns the entries of one server. The client's own channel comes first.
    pub(super) fn of_server(&self, subscriber: &Subscriber) -> Vec<Arc<ChannelEntry>> {
        let server = subscriber.node.number();
        let others = self.entries.values().filter(|entry| entry.home() == server);
        let always = std::iter::once(&subscriber.own).chain(&subscriber.common);
        always.chain(others).cloned().collect()
    }

    pub(super) fn drop_entries(
        &mut self,
        is_unwanted: impl Fn(&ChannelEntry) -> bool,
    ) -> Vec<Arc<ChannelEntry>> {
        let dropped = self.entries.extract_if(|_, entry| is_unwanted(entry));
        let dropped: Vec<_> = dropped.map(|(_, entry)| entry).collect();
        let versions = dropped.iter().map(|entry| entry.version() + 1);
        self.first_version = versions.fold(self.first_version, u64::max);
        dropped
    }

    /// Removes the channels of a server that have no listener. Returns the channels from which the
    /// subscriber must unsubscribe.
    pub(super) fn sweep(&mut self, server: usize, grace: Duration) -> Vec<Arc<ChannelEntry>> {
        // If the server refused a channel, there is no subscription to end.
        self.drop_entries(|entry| {
            entry.home() == server && entry.idle_since().is_some() && entry.is_refused()
        });
        // Remove only confirmed channels here. The server confirms in the order of the requests, so
        // a later confirmation always belongs to the present entry.
        self.drop_entries(|entry| {
            if entry.home() != server {
                return false;
            }
            let grace = if entry.kind() == ChannelKind::Single { Duration::ZERO } else { grace };
            entry.idle_since().is_some_and(|since| since.elapsed() >= grace) && entry.is_confirmed()
        })
    }
}
