//! A server for tests, inside this process: as much of Redis as subscribers, tracked keys and scripts
//! need. Its keys, and the commands and scripts about them, are the test's own.
//!
//! [`Redis`] is the server alone: a state machine without threads, without a clock (each command
//! comes with the time) and without chance. [`Server`] is the network before it. It answers at once,
//! in the order asked; connections break where a test allows that. A read that no reply will end
//! sleeps for ever, which a model of all interleavings reports.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{PushKind, Value};

use crate::connection::{Dialer, Transport, Way};
use crate::sync::{Condvar, Mutex, clock};

/// The keys of a server.
pub trait Keys: Send + 'static {
    /// Runs a command that is about keys. `now` is the server's time, in ms.
    fn command(&mut self, peers: &mut Peers, now: i64, command: &[Vec<u8>]) -> Value;

    /// Runs the script of this hash, with its keys and arguments.
    fn script(&mut self, peers: &mut Peers, now: i64, sha: &str, arguments: &[Vec<u8>]) -> Value;
}

/// A server, as a state machine.
#[derive(Debug)]
pub struct Redis<K> {
    keys: K,
    /// The hashes of the scripts that it knows.
    scripts: Vec<String>,
    peers: Peers,
    /// The echoed texts, in order.
    echoed: Vec<Vec<u8>>,
}

/// The connections of a server, from its side.
#[derive(Debug, Default)]
pub struct Peers(Vec<Peer>);

#[derive(Debug, Default)]
struct Peer {
    /// The first part of a command whose rest is still to come.
    commands: Vec<u8>,
    /// The replies and messages that the client has not read.
    replies: VecDeque<Vec<u8>>,
    channels: Vec<Vec<u8>>,
    /// The keys it has read since it last heard of a change, if it is told of changes.
    tracked: Option<Vec<Vec<u8>>>,
    broken: bool,
}

impl<K: Keys> Redis<K> {
    /// A server that knows the scripts of these hashes.
    pub fn new(keys: K, scripts: Vec<String>) -> Self {
        Self { keys, scripts, peers: Peers::default(), echoed: Vec::new() }
    }

    /// Opens a connection, and returns its number.
    pub fn open(&mut self) -> usize {
        self.peers.0.push(Peer::default());
        self.peers.0.len() - 1
    }

    /// Runs a command of a connection. A message goes to its listeners; the result is the reply.
    pub fn run(&mut self, peer: usize, now: i64, command: &[Vec<u8>]) -> Value {
        let argument = |at: usize| command.get(at).map_or(&b""[..], Vec::as_slice);
        match argument(0) {
            b"PING" => Value::SimpleString("PONG".to_owned()),
            b"ECHO" => {
                self.echoed.push(argument(1).to_vec());
                Value::BulkString(argument(1).to_vec())
            }
            b"HELLO" => Value::Map(Vec::new()),
            b"INFO" => Value::BulkString(b"run_id:model\r\n".to_vec()),
            b"CLIENT" => {
                if argument(1) == b"TRACKING" {
                    self.peers.0[peer].tracked = Some(Vec::new());
                }
                Value::Okay
            }
            b"PUBLISH" => Value::Int(self.peers.publish(argument(1), argument(2))),
            b"SUBSCRIBE" => {
                self.peers.0[peer].channels.push(argument(1).to_vec());
                pushed("subscribe", argument(1), Value::Int(1))
            }
            b"UNSUBSCRIBE" => {
                self.peers.0[peer].channels.retain(|channel| !command.contains(channel));
                pushed("unsubscribe", argument(1), Value::Int(0))
            }
            b"EVAL" => {
                let script = redis::Script::new(&String::from_utf8_lossy(argument(1)));
                self.scripts.push(script.get_hash().to_owned());
                self.keys.script(&mut self.peers, now, script.get_hash(), &command[3..])
            }
            b"EVALSHA" => {
                let sha = String::from_utf8_lossy(argument(1));
                if !self.scripts.iter().any(|known| *known == *sha) {
                    let unknown = redis::parse_redis_value(b"-NOSCRIPT No matching script.\r\n");
                    return unknown.unwrap_or(Value::Nil);
                }
                self.keys.script(&mut self.peers, now, &sha, &command[3..])
            }
            _ => {
                if let Some(tracked) = &mut self.peers.0[peer].tracked {
                    tracked.push(argument(1).to_vec());
                }
                self.keys.command(&mut self.peers, now, command)
            }
        }
    }
}

impl Peers {
    /// Sends a message, and returns how many connections listen to the channel.
    pub fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let mut heard = 0;
        for peer in self.0.iter_mut().filter(|peer| peer.channels.iter().any(|own| own == channel))
        {
            heard += 1;
            peer.push(&pushed("message", channel, Value::BulkString(message.to_vec())));
        }
        heard
    }

    /// Whether a connection listens to the channel.
    pub fn listen(&self, channel: &[u8]) -> bool {
        self.0.iter().any(|peer| peer.channels.iter().any(|own| own == channel))
    }

    /// The key has changed: connections that have read it are told once.
    pub fn changed(&mut self, key: &[u8]) {
        for peer in &mut self.0 {
            let Some(tracked) = &mut peer.tracked else { continue };
            if tracked.extract_if(.., |read| read == key).count() > 0 {
                let keys = Value::Array(vec![Value::BulkString(key.to_vec())]);
                peer.push(&Value::Push { kind: PushKind::Invalidate, data: vec![keys] });
            }
        }
    }
}

impl Peer {
    fn push(&mut self, value: &Value) {
        let mut bytes = Vec::new();
        encode(value, &mut bytes);
        self.replies.push_back(bytes);
    }

    fn break_off(&mut self) {
        self.broken = true;
        self.channels.clear();
    }
}

/// A server that connections lead to.
#[derive(Debug)]
pub struct Server<K> {
    state: Mutex<State<K>>,
    /// A reply or a message for some connection, or its end.
    news: Condvar,
    /// Whether a write may find no room. Unwritten bytes are then left to the background thread, if
    /// no other comes, and most models have none.
    has_little_room: AtomicBool,
    /// A number from zero to this one, by chance.
    chance: fn(usize) -> usize,
}

#[derive(Debug)]
struct State<K> {
    redis: Redis<K>,
    /// The server's clock, in ms.
    now: i64,
    /// How often a connection may still break.
    breaks: usize,
}

impl<K: Keys> Server<K> {
    /// Starts one whose connections break at most so many times. Its clock shows `now`, in ms.
    pub fn start(
        redis: Redis<K>,
        now: i64,
        breaks: usize,
        chance: fn(usize) -> usize,
    ) -> Arc<Self> {
        let state = Mutex::new(State { redis, now, breaks });
        let has_little_room = AtomicBool::new(false);
        Arc::new(Self { state, news: Condvar::new(), has_little_room, chance })
    }

    /// Leads all connections of a client to this server.
    pub fn dialer(self: &Arc<Self>) -> Dialer {
        let server = Arc::clone(self);
        Dialer::new(move |_, _| {
            let mut state = server.state.lock();
            if server.breaks(&mut state) {
                return Err(broken());
            }
            let peer = state.redis.open();
            drop(state);
            let read_timeout = AtomicU64::new(u64::MAX);
            Ok(Box::new(Connection { server: Arc::clone(&server), peer, read_timeout }))
        })
    }

    /// Looks at the keys, or changes them as another client does.
    pub fn with<R>(&self, act: impl FnOnce(&mut K, &mut Peers, i64) -> R) -> R {
        let mut state = self.state.lock();
        let now = state.now;
        let Redis { keys, peers, .. } = &mut state.redis;
        let result = act(keys, peers, now);
        drop(state);
        self.news.notify_all();
        result
    }

    /// From here on a write may find no room.
    pub fn has_little_room(&self) {
        self.has_little_room.store(true, Ordering::SeqCst);
    }

    /// The texts sent with `ECHO`, in the order of arrival.
    pub fn echoed(&self) -> Vec<Vec<u8>> {
        self.state.lock().redis.echoed.clone()
    }

    /// `SCRIPT FLUSH`.
    pub fn forget_scripts(&self) {
        self.state.lock().redis.scripts.clear();
    }

    /// Breaks the subscribers' connections.
    pub fn break_subscribers(&self) {
        let mut state = self.state.lock();
        let peers = state.redis.peers.0.iter_mut();
        peers.filter(|peer| !peer.channels.is_empty()).for_each(Peer::break_off);
        drop(state);
        self.news.notify_all();
    }

    fn break_off(&self, peer: usize) {
        self.state.lock().redis.peers.0[peer].break_off();
        self.news.notify_all();
    }

    /// Whether a connection breaks now.
    fn breaks(&self, state: &mut State<K>) -> bool {
        let breaks = state.breaks > 0 && (self.chance)(9) < 3;
        state.breaks -= usize::from(breaks);
        breaks
    }
}

/// A connection to the server.
struct Connection<K: Keys> {
    server: Arc<Server<K>>,
    peer: usize,
    /// In ns.
    read_timeout: AtomicU64,
}

impl<K: Keys> Connection<K> {
    /// Waits until there is something to read, or the connection is broken. `None`: not in time.
    fn with_peer<R>(&self, within: Duration, read: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        let mut state = self.server.state.lock();
        loop {
            let peer = &mut state.redis.peers.0[self.peer];
            if !peer.replies.is_empty() || peer.broken {
                return Some(read(peer));
            }
            if self.server.news.wait_for(&mut state, within).timed_out() {
                return None;
            }
        }
    }
}

impl<K: Keys> Transport for Connection<K> {
    /// One reply at most, so that the reader may leave behind each.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let within = Duration::from_nanos(self.read_timeout.load(Ordering::Relaxed));
        let read = self.with_peer(within, |peer| {
            let reply = peer.replies.front_mut()?;
            let length = reply.len().min(buffer.len());
            buffer[..length].copy_from_slice(&reply[..length]);
            reply.drain(..length);
            if reply.is_empty() {
                peer.replies.pop_front();
            }
            Some(length)
        });
        match read {
            Some(Some(length)) => Ok(length),
            Some(None) => Err(broken()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let server = &self.server;
        let mut state = server.state.lock();
        let peer = &mut state.redis.peers.0[self.peer];
        if peer.broken {
            return Err(broken());
        }
        peer.commands.extend_from_slice(bytes);
        let commands = take_commands(&mut peer.commands);
        // If it breaks now: some of the commands have run, some of those were answered, and the
        // writer may have noticed.
        let breaks = server.breaks(&mut state);
        let run = if breaks { (server.chance)(commands.len()) } else { commands.len() };
        let answered = if breaks { (server.chance)(run) } else { run };
        let now = state.now;
        for (at, command) in commands[..run].iter().enumerate() {
            let reply = state.redis.run(self.peer, now, command);
            if at < answered {
                state.redis.peers.0[self.peer].push(&reply);
            }
        }
        if breaks {
            state.redis.peers.0[self.peer].break_off();
        }
        drop(state);
        server.news.notify_all();
        if breaks && (server.chance)(1) == 0 { Err(broken()) } else { Ok(bytes.len()) }
    }

    fn set_timeout(&self, way: Way, timeout: Duration) -> io::Result<()> {
        if let Way::Read = way {
            self.read_timeout.store(clock::nanos(timeout), Ordering::Relaxed);
        }
        Ok(())
    }

    /// As on a network, a reply may take its time, and so may room to write.
    fn is_ready(&self, way: Way, within: Duration) -> io::Result<bool> {
        let may_be_late = match way {
            Way::Read => true,
            Way::Write => self.server.has_little_room.load(Ordering::SeqCst),
        };
        if may_be_late && (self.server.chance)(1) == 0 {
            return Ok(false);
        }
        match way {
            Way::Read => Ok(self.with_peer(within, |_| ()).is_some()),
            Way::Write => Ok(true),
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        self.server.break_off(self.peer);
        Ok(())
    }

    fn peer(&self) -> Option<SocketAddr> {
        None
    }
}

impl<K: Keys> Drop for Connection<K> {
    fn drop(&mut self) {
        self.server.break_off(self.peer);
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the model broke it")
}

fn pushed(kind: &str, channel: &[u8], last: Value) -> Value {
    let kind = Value::BulkString(kind.as_bytes().to_vec());
    Value::Array(vec![kind, Value::BulkString(channel.to_vec()), last])
}

/// Writes a value as a server does.
fn encode(value: &Value, bytes: &mut Vec<u8>) {
    let head = |bytes: &mut Vec<u8>, kind: char, count: usize| {
        bytes.extend_from_slice(format!("{kind}{count}\r\n").as_bytes());
    };
    match value {
        Value::Nil => bytes.extend_from_slice(b"$-1\r\n"),
        Value::Okay => bytes.extend_from_slice(b"+OK\r\n"),
        Value::Int(number) => bytes.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::SimpleString(text) => bytes.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Value::BulkString(text) => {
            head(bytes, '$', text.len());
            bytes.extend_from_slice(text);
            bytes.extend_from_slice(b"\r\n");
        }
        Value::Array(parts) => {
            head(bytes, '*', parts.len());
            parts.iter().for_each(|part| encode(part, bytes));
        }
        Value::Map(pairs) => {
            head(bytes, '%', pairs.len());
            for (name, value) in pairs {
                encode(name, bytes);
                encode(value, bytes);
            }
        }
        Value::Push { kind, data } => {
            head(bytes, '>', 1 + data.len());
            encode(&Value::BulkString(kind.to_string().into_bytes()), bytes);
            data.iter().for_each(|part| encode(part, bytes));
        }
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            bytes.extend_from_slice(format!("-{code} {details}\r\n").as_bytes());
        }
        other => unreachable!("the model's server has no such reply: {other:?}"),
    }
}

/// Takes the commands that are there as a whole, each in its parts.
fn take_commands(bytes: &mut Vec<u8>) -> Vec<Vec<Vec<u8>>> {
    let mut commands = Vec::new();
    let mut rest = &bytes[..];
    while let Some((command, behind)) = command(rest) {
        commands.push(command);
        rest = behind;
    }
    let taken = bytes.len() - rest.len();
    bytes.drain(..taken);
    commands
}

/// The first command, and the bytes behind it.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, &[u8])> {
    let (parts, mut rest) = number(bytes)?;
    let mut command = Vec::new();
    for _ in 0..parts {
        let (length, text) = number(rest)?;
        command.push(text.get(..length)?.to_vec());
        rest = text.get(length + 2..)?;
    }
    Some((command, rest))
}

/// The number of a line behind its first byte, and the bytes behind the line.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\r')?;
    let number = std::str::from_utf8(bytes.get(1..end)?).ok()?.parse().ok()?;
    Some((number, bytes.get(end + 2..)?))
}
