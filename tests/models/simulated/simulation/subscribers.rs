//! The subscribers' connections, and the messages that the server sends over them.

use super::{Connection, Event, ForProcess, Ours, Simulation, Who};
use crate::simulated::client::Input;
use crate::simulated::redisson::JavaEvent;
use crate::simulated::rules::Broken;
use crate::simulated::state::State;
use crate::simulated::wire::{Message, own_channel};

impl Simulation<'_> {
    /// Sends the messages to waiters. (The rules check the messages to holders.)
    pub(super) fn send_messages(&mut self, state: &State) {
        let is_for_waiter = |(_, text): &&(String, String)| !text.starts_with("want ");
        for (channel, text) in state.messages.iter().filter(is_for_waiter) {
            for connection in 0..self.connections.len() {
                let latency = self.latency();
                let there = &mut self.connections[connection];
                if there.is_known && !there.is_cut && there.channels.contains(channel) {
                    there.last = (there.last + 1).max(self.now + latency);
                    let (at, channel, text) = (there.last, channel.clone(), text.clone());
                    self.at(at, Event::Deliver { connection, channel, text });
                }
            }
        }
    }

    pub(super) fn deliver(
        &mut self,
        connection: usize,
        channel: &str,
        text: String,
    ) -> Result<(), Broken> {
        let Connection { who, is_cut, .. } = self.connections[connection];
        if is_cut {
            return Ok(());
        }
        let process = match who {
            Who::Ours(process) => process,
            Who::Java(java) => return self.java_event(java, JavaEvent::Message),
        };
        let site = &self.locks[self.ours[process].site].site;
        let input = if channel == site.public {
            Input::Public
        } else {
            let message =
                Message::parse(site.kind, &text).ok_or_else(|| format!("cannot read {text:?}"))?;
            if (message.database, &message.lock) != (site.database, &site.lock) {
                return Err(format!("{text:?} is for another lock than {site:?}"));
            }
            Input::Message(message)
        };
        self.give(process, ForProcess::Input(input))
    }

    /// Returns the number of listeners that the server counts on a channel.
    pub(super) fn listeners(&self, channel: &str) -> usize {
        let hears =
            |there: &&Connection| there.is_known && there.channels.iter().any(|own| own == channel);
        self.connections.iter().filter(hears).count()
    }

    pub(crate) fn connect(&mut self, who: Who, channels: Vec<String>) -> usize {
        self.connections.push(Connection {
            who,
            channels,
            is_cut: false,
            is_known: false,
            last: 0,
        });
        let connection = self.connections.len() - 1;
        self.change(connection, |connection| connection.is_known = true);
        connection
    }

    pub(crate) fn disconnect(&mut self, connection: usize) {
        self.change(connection, |connection| {
            connection.is_cut = true;
            connection.is_known = false;
        });
    }

    pub(super) fn change(&mut self, connection: usize, change: impl FnOnce(&mut Connection)) {
        let mut channels = self.connections[connection].channels.clone();
        change(&mut self.connections[connection]);
        channels.extend(self.connections[connection].channels.clone());
        channels.sort();
        channels.dedup();
        for channel in channels {
            let count = self.listeners(&channel);
            self.store.set_subscribers(&channel, count);
        }
    }

    pub(super) fn subscribe(&mut self, process: usize) {
        let Ours { is_dead, site, listens, ref uuid, connection, .. } = self.ours[process];
        if is_dead {
            return;
        }
        let mut channels = vec![own_channel(uuid)];
        if listens {
            channels.extend(self.public_channels(site));
        }
        if let Some(old) = connection.filter(|old| !self.connections[*old].is_cut) {
            self.disconnect(old);
        }
        let connection = self.connect(Who::Ours(process), channels);
        self.ours[process].connection = Some(connection);
        self.soon(Event::Process(process, ForProcess::Input(Input::Subscribed)));
    }

    pub(super) fn public_channels(&self, lock: usize) -> [String; 2] {
        let site = &self.locks[lock].site;
        [site.public.clone(), site.companion.clone()]
    }

    pub(super) fn listen(&mut self, process: usize) {
        let own = &mut self.ours[process];
        own.listens = true;
        let (lock, connection) = (own.site, own.connection);
        let channels = self.public_channels(lock);
        if let Some(connection) = connection.filter(|there| !self.connections[*there].is_cut) {
            self.change(connection, |connection| {
                connection.channels.truncate(1);
                connection.channels.extend(channels);
            });
            self.soon(Event::Process(process, ForProcess::Input(Input::Listening)));
        }
    }
}
