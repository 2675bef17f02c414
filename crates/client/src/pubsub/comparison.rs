//! The search for clients of a cluster that use the other kind of channels, sharded or not. Clients
//! of one kind receive no messages from clients of the other kind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;

use super::PubSub;
use super::entry::ChannelKind;
use crate::connection::{Channels, Command, Failure, Node, Outcome};

/// The maximum number of channels in one query.
const MAX_COMPARED: usize = 100;

impl PubSub {
    /// Returns commands that query how many clients listen to the other kind of channels at a
    /// server of a cluster. The replies count all redlatch clients, and the Redisson clients that
    /// listen to channels of this client's names.
    pub fn comparison_commands(&self, node: &Node) -> Vec<Command> {
        if !self.compares.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let state = self.state.lock();
        let shared = state
            .entries
            .values()
            .filter(|entry| entry.home() == node.number() && entry.kind() == ChannelKind::Shared);
        let shared: Vec<_> = shared.map(|it| Arc::clone(it.channel())).take(MAX_COMPARED).collect();
        drop(state);
        let ours: Arc<str> = (self.names.common)(self.channels != Channels::Sharded).into();
        let query = |query: &[u8], channels: &[Arc<str>]| {
            let channels = channels.iter().map(|channel| channel.as_bytes());
            Command::plain(&[b"PUBSUB", query].into_iter().chain(channels).collect::<Vec<_>>())
        };
        match self.channels {
            Channels::Sharded => {
                let channels: Vec<_> = std::iter::once(ours).chain(shared).collect();
                vec![query(b"NUMSUB", &channels)]
            }
            _ if shared.is_empty() => vec![query(b"NUMSUB", &[ours])],
            _ => vec![query(b"NUMSUB", &[ours]), query(b"SHARDNUMSUB", &shared)],
        }
    }

    /// Handles the reply to a command of [`comparison_commands`](Self::comparison_commands).
    /// Returns a message for the log when a reply first shows clients with the other kind of
    /// channels.
    pub fn read_comparison(&self, outcome: &Outcome) -> Option<String> {
        let found = match outcome {
            Ok(Value::Array(counts)) => counts.iter().any(|it| matches!(it, Value::Int(1..))),
            Ok(_) => false,
            // The user may not send this command.
            Err(Failure::Refused(_)) => {
                self.compares.store(false, Ordering::Relaxed);
                false
            }
            Err(_) => false,
        };
        (found && self.compares.swap(false, Ordering::Relaxed)).then(|| {
            let [here, there] = match self.channels {
                Channels::Sharded => [("SPUBLISH", true), ("PUBLISH", false)],
                _ => [("PUBLISH", false), ("SPUBLISH", true)],
            }
            .map(|(command, sharded)| format!("{command} (sharded_channels({sharded}))"));
            format!(
                "other clients of the cluster use {there}, and this one {here}: neither wakes the \
                 other, and waits last seconds longer. Set sharded_channels to the same for all, and \
                 Redisson's shardedSubscriptionMode"
            )
        })
    }
}
