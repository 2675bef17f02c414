//! A server without a network, as a state machine without threads, clock and randomness. Each
//! command has the time as an argument. This file has the parts that do not depend on the keys:
//! greetings, channels, and the scripts by their hashes.

use std::collections::{BTreeSet, HashSet};

use redis::{PushKind, Value};

use crate::peers::{Peer, Peers};
use crate::resp::{refusal, text};

/// The keys of a server. Each call gets the server's time, in µs since 1970.
pub trait Keys: Send + 'static {
    /// Runs a command about keys.
    fn command(&mut self, peers: &mut Peers, now: i64, command: &[&[u8]]) -> Value;

    /// Stores the script with this hash.
    fn learn(&mut self, sha: &str, code: &[u8]) -> Result<(), Value> {
        let _ = (sha, code);
        Ok(())
    }

    /// Runs the script with this hash. The first `keys` arguments are its keys.
    fn script(
        &mut self,
        peers: &mut Peers,
        now: i64,
        sha: &str,
        keys: usize,
        arguments: &[&[u8]],
    ) -> Value;

    /// Returns the time when a key ends, if it is known. At this time the server notifies the
    /// connections that track the key.
    fn ends(&self, key: &[u8]) -> Option<i64> {
        let _ = key;
        None
    }
}

/// A server, as a state machine.
#[derive(Debug)]
pub struct Redis<K> {
    pub(super) keys: K,
    /// The hashes of the scripts that the server knows.
    pub(super) scripts: BTreeSet<String>,
    pub(super) peers: Peers,
    /// The texts of `ECHO` commands, in the order of arrival.
    pub(super) echoed: Vec<Vec<u8>>,
    pub(super) faults: Faults,
}

/// The faults that a test sets.
#[derive(Debug, Default)]
pub struct Faults {
    /// The number of the next scripts that are refused.
    pub refusals: usize,
    /// The number of the next scripts that lose their replies. Each loss breaks the connection.
    pub lost_replies: usize,
    /// The server refuses the scripts with these hashes.
    pub refused: HashSet<String>,
    /// Whether the messages of channels are lost.
    pub loses_messages: bool,
    /// Whether no connection can be opened, and open connections break at their next command.
    pub is_out: bool,
    /// The number of attempts to open a connection that failed.
    pub unopened: u64,
}

impl<K: Keys> Redis<K> {
    /// A server that knows the scripts of these hashes.
    pub fn new(keys: K, scripts: Vec<String>) -> Self {
        let (peers, faults) = (Peers::default(), Faults::default());
        Self { keys, scripts: scripts.into_iter().collect(), peers, echoed: Vec::new(), faults }
    }

    /// Opens a connection, and returns its number.
    pub fn open(&mut self) -> usize {
        let free = self.peers.all.iter().position(Option::is_none);
        let peer = free.unwrap_or(self.peers.all.len());
        if free.is_none() {
            self.peers.all.push(None);
        }
        self.peers.all[peer] = Some(Peer::default());
        peer
    }

    /// Runs a command of a connection and returns the reply. If the command publishes a message,
    /// the channel's listeners get it.
    pub fn run(&mut self, peer: usize, now: i64, command: &[&[u8]]) -> Value {
        let argument = |at: usize| command.get(at).copied().unwrap_or_default();
        match argument(0) {
            b"EVALSHA" => {
                let sha = str::from_utf8(argument(1)).unwrap_or_default();
                if self.faults.refuse(sha) {
                    return refusal("ERR the test lets this request fail");
                }
                if !self.scripts.contains(sha) {
                    return refusal("NOSCRIPT No matching script. Please use EVAL.");
                }
                self.script(now, sha, command)
            }
            b"EVAL" => {
                let script = redis::Script::new(&String::from_utf8_lossy(argument(1)));
                if self.faults.refuse(script.get_hash()) {
                    return refusal("ERR the test lets this request fail");
                }
                match self.learn(script.get_hash(), argument(1)) {
                    Ok(()) => self.script(now, script.get_hash(), command),
                    Err(refused) => refused,
                }
            }
            b"PING" if self.peers.listens_in_resp2(peer) => {
                Value::Array(vec![text(b"pong"), text(argument(1))])
            }
            b"PING" => Value::SimpleString("PONG".to_owned()),
            b"ECHO" => {
                self.echoed.push(argument(1).to_vec());
                text(argument(1))
            }
            b"HELLO" => {
                self.peers.change(peer, |peer| peer.speaks_resp3 = argument(1) == b"3");
                let pairs = [("server", "redis"), ("version", VERSION), ("mode", "standalone")];
                let pair =
                    |(name, value): (&str, &str)| (text(name.as_bytes()), text(value.as_bytes()));
                Value::Map(pairs.map(pair).into())
            }
            b"AUTH" => Value::Okay,
            b"SELECT" if argument(1) == b"0" => Value::Okay,
            b"SELECT" => refusal("ERR DB index is out of range"),
            b"INFO" => text(
                format!(
                    "redis_version:{VERSION}\r\nredis_mode:standalone\r\nrun_id:model\r\n\
                     role:master\r\n"
                )
                .as_bytes(),
            ),
            b"ROLE" => Value::Array(vec![text(b"master"), Value::Int(0), Value::Array(Vec::new())]),
            b"WAIT" => Value::Int(0),
            b"CLIENT" => self.client(peer, command),
            b"SCRIPT" => match argument(1) {
                b"LOAD" => {
                    let script = redis::Script::new(&String::from_utf8_lossy(argument(2)));
                    let learned = self.learn(script.get_hash(), argument(2));
                    learned.map_or_else(|refused| refused, |()| text(script.get_hash().as_bytes()))
                }
                b"FLUSH" => {
                    self.scripts.clear();
                    Value::Okay
                }
                _ => refusal("ERR unknown subcommand"),
            },
            b"PUBLISH" => Value::Int(self.peers.publish(argument(1), argument(2))),
            b"PUBSUB" => self.peers.ask(&command[1..]),
            b"SUBSCRIBE" => {
                let channel = argument(1).to_vec();
                self.peers.change(peer, |peer| {
                    if !peer.channels.contains(&channel) {
                        peer.channels.push(channel.clone());
                    }
                });
                self.peers.confirm(peer, PushKind::Subscribe, channel)
            }
            b"UNSUBSCRIBE" => {
                let channel = argument(1).to_vec();
                self.peers.change(peer, |peer| peer.channels.retain(|own| *own != channel));
                self.peers.confirm(peer, PushKind::Unsubscribe, channel)
            }
            _ => {
                // Run the command before the key is tracked. Otherwise the server would report a
                // change if the command itself finds that the key has ended.
                let reply = self.keys.command(&mut self.peers, now, command);
                self.peers.change(peer, |peer| {
                    if let Some(tracked) = &mut peer.tracked
                        && !tracked.iter().any(|key| key == argument(1))
                    {
                        tracked.push(argument(1).to_vec());
                    }
                });
                reply
            }
        }
    }

    /// Runs a command of a connection, and sends the reply unless a fault loses the reply. A lost
    /// reply breaks the connection: otherwise the client would take the next reply for the lost
    /// reply.
    pub fn answer(&mut self, peer: usize, now: i64, command: &[&[u8]]) {
        let reply = self.run(peer, now, command);
        let is_script = matches!(command.first(), Some(&(b"EVAL" | b"EVALSHA")));
        // A refused script has changed nothing.
        let is_done = is_script && !matches!(reply, Value::ServerError(_));
        let is_lost = is_done && self.faults.lost_replies > 0;
        self.faults.lost_replies -= usize::from(is_lost);
        self.peers.change(peer, |peer| if is_lost { peer.break_off() } else { peer.push(&reply) });
    }

    /// Takes the bytes that were sent to a connection and that the client has not read.
    pub fn take_unread(&mut self, peer: usize) -> Vec<u8> {
        let unread = self.peers.get(peer).map(|peer| std::mem::take(&mut peer.replies));
        unread.into_iter().flatten().flatten().collect()
    }

    /// Sets the faults of the server.
    pub fn with_faults<R>(&mut self, set: impl FnOnce(&mut Faults) -> R) -> R {
        let result = set(&mut self.faults);
        self.peers.loses_messages = self.faults.loses_messages;
        if self.faults.is_out {
            self.peers.each().for_each(Peer::break_off);
        }
        result
    }

    fn learn(&mut self, sha: &str, code: &[u8]) -> Result<(), Value> {
        if !self.scripts.contains(sha) {
            self.keys.learn(sha, code)?;
            self.scripts.insert(sha.to_owned());
        }
        Ok(())
    }

    /// Runs a script that the server knows. `command` is the whole command.
    fn script(&mut self, now: i64, sha: &str, command: &[&[u8]]) -> Value {
        let keys = command.get(2).and_then(|keys| str::from_utf8(keys).ok()?.parse().ok());
        let arguments = command.get(3..).unwrap_or_default();
        match keys.filter(|keys| *keys <= arguments.len()) {
            Some(keys) => self.keys.script(&mut self.peers, now, sha, keys, arguments),
            None => refusal("ERR Number of keys can't be greater than number of args"),
        }
    }

    fn client(&mut self, peer: usize, command: &[&[u8]]) -> Value {
        let argument = |at: usize| command.get(at).copied().unwrap_or_default();
        match argument(1) {
            b"TRACKING" => {
                let tracked = (argument(2) != b"OFF").then(Vec::new);
                self.peers.change(peer, |peer| peer.tracked = tracked);
                Value::Okay
            }
            b"SETNAME" => {
                self.peers.change(peer, |peer| peer.name = argument(2).to_vec());
                Value::Okay
            }
            b"LIST" => {
                let mut list = Vec::new();
                for (id, peer) in self.peers.all.iter().enumerate() {
                    let Some(peer) = peer else { continue };
                    list.extend_from_slice(format!("id={id} addr=in-memory:{id} name=").as_bytes());
                    list.extend_from_slice(&peer.name);
                    list.extend_from_slice(b"\n");
                }
                text(&list)
            }
            b"ID" => Value::Int(peer as i64),
            _ => Value::Okay,
        }
    }

    /// Notifies the connection of the tracked keys that have ended. Returns the time when the next
    /// tracked key ends.
    pub(super) fn expire(&mut self, peer: usize, now: i64) -> Option<i64> {
        let tracked = self.peers.get(peer)?.tracked.as_ref()?;
        let ends = |key: &Vec<u8>| self.keys.ends(key);
        let over: Vec<_> = tracked
            .iter()
            .filter(|key| ends(key).is_some_and(|ends| ends < now))
            .cloned()
            .collect();
        let next = tracked.iter().filter_map(ends).filter(|ends| *ends >= now).min();
        over.iter().for_each(|key| self.peers.changed(key));
        next
    }
}

/// The version that the server reports to clients and to scripts.
const VERSION: &str = "7.0.15";

impl Faults {
    fn refuse(&mut self, sha: &str) -> bool {
        let refuses = self.refusals > 0;
        self.refusals -= usize::from(refuses);
        refuses || !self.refused.is_empty() && self.refused.contains(sha)
    }
}
