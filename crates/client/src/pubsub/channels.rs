//! The channels of a client, and the news of them for each server's listener.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::entry::{ChannelEntry, ChannelKind};
use super::subscriber::Subscriber;
use super::tracking::ToTrack;

pub(super) struct ChannelsState {
    pub(super) entries: HashMap<Arc<str>, Arc<ChannelEntry>>,
    /// For each server with channels, by its number.
    pub(super) queues: HashMap<usize, SubscriberQueue>,
    /// The first version of a new entry: past those of all dropped ones, so that no channel ever
    /// has a version twice.
    pub(super) first_version: u64,
}

/// The news for a subscriber's thread.
pub(super) struct SubscriberQueue {
    /// Whether the thread was started.
    pub(super) runs: bool,
    pub(super) subscriber: Arc<Subscriber>,
    /// Channels to ask the server for.
    pub(super) wanted: Vec<Arc<ChannelEntry>>,
    /// Channels that have another home now.
    pub(super) left: Vec<Arc<ChannelEntry>>,
    /// Holds that have lasted for a while, to be tracked under their keys.
    pub(super) to_track: Vec<ToTrack>,
    /// Tracked keys may have another home since the thread last looked.
    pub(super) moved: bool,
    /// Whether the thread sleeps in a read, where only a control message reaches it.
    pub(super) reading: bool,
}

impl ChannelsState {
    /// The entries of one server, the client's own one first.
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

    /// Gives up the channels of a server that have no listener any more. Returns those of which the
    /// subscriber must tell the server.
    pub(super) fn sweep(&mut self, server: usize, grace: Duration) -> Vec<Arc<ChannelEntry>> {
        // The server knows nothing of a channel that it refused.
        self.drop_entries(|entry| {
            entry.home() == server && entry.idle_since().is_some() && entry.is_refused()
        });
        // Only a confirmed one: then the server's confirmations come in the order of the requests,
        // and a confirmation always means the present entry.
        self.drop_entries(|entry| {
            if entry.home() != server {
                return false;
            }
            let grace = if entry.kind() == ChannelKind::Single { Duration::ZERO } else { grace };
            entry.idle_since().is_some_and(|since| since.elapsed() >= grace) && entry.is_confirmed()
        })
    }
}
