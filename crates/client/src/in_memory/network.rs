//! The server's connections, and what is the same for all keys: greetings, channels, the tracking of
//! keys, scripts by their hashes.
//!
//! [`Redis`] is the server alone: a state machine without threads, without a clock (each command
//! comes with the time) and without chance. [`Server`] is the network before it. It answers at once,
//! in the order asked; connections break where a test allows that. In a model a read that no reply
//! will end sleeps for ever, which is reported.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{PushKind, Value};

use crate::connection::{Dialer, Transport, Way, write_decimal};
use crate::sync::{Condvar, Mutex, clock};

/// The keys of a server. Its time comes with each call, in µs since 1970.
pub trait Keys: Send + 'static {
    /// Runs a command that is about keys.
    fn command(&mut self, peers: &mut Peers, now: i64, command: &[&[u8]]) -> Value;

    /// Learns the script of this hash.
    fn learn(&mut self, sha: &str, code: &[u8]) -> Result<(), Value> {
        let _ = (sha, code);
        Ok(())
    }

    /// Runs the script of this hash. The first `keys` arguments are its keys.
    fn script(
        &mut self,
        peers: &mut Peers,
        now: i64,
        sha: &str,
        keys: usize,
        arguments: &[&[u8]],
    ) -> Value;

    /// When a key that a connection has read ends, if that is known: the connection is told then.
    fn ends(&self, key: &[u8]) -> Option<i64> {
        let _ = key;
        None
    }
}

/// A server, as a state machine.
#[derive(Debug)]
pub struct Redis<K> {
    keys: K,
    /// The hashes of the scripts that it knows.
    scripts: BTreeSet<String>,
    peers: Peers,
    /// The echoed texts, in order.
    echoed: Vec<Vec<u8>>,
    faults: Faults,
}

/// The faults that a test asks for.
#[derive(Debug, Default)]
pub struct Faults {
    /// So many of the next scripts are refused.
    pub refusals: usize,
    /// The scripts of these hashes are refused.
    pub refused: HashSet<String>,
    /// Channels' messages get lost.
    pub loses_messages: bool,
    /// No connection opens, and those that are open break at their next command.
    pub is_out: bool,
}

/// The connections of a server, from its side.
#[derive(Debug, Default)]
pub struct Peers {
    all: Vec<Option<Peer>>,
    loses_messages: bool,
}

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
    speaks_resp3: bool,
    name: Vec<u8>,
    /// A reply or a message, or the end: the reader may sleep.
    news: Arc<Condvar>,
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

    /// Runs a command of a connection. A message goes to its listeners; the result is the reply.
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
                // Before the key is tracked: its end may be found now, which is no news then.
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

    /// Runs a command of a connection, and sends it the reply.
    pub fn answer(&mut self, peer: usize, now: i64, command: &[&[u8]]) {
        let reply = self.run(peer, now, command);
        self.peers.change(peer, |peer| peer.push(&reply));
    }

    /// Takes the bytes that were sent to a connection and not read.
    pub fn take_unread(&mut self, peer: usize) -> Vec<u8> {
        let unread = self.peers.get(peer).map(|peer| std::mem::take(&mut peer.replies));
        unread.into_iter().flatten().flatten().collect()
    }

    /// Sets the faults from here on.
    pub fn with_faults(&mut self, set: impl FnOnce(&mut Faults)) {
        set(&mut self.faults);
        self.peers.loses_messages = self.faults.loses_messages;
        if self.faults.is_out {
            self.peers.each().for_each(Peer::break_off);
        }
    }

    fn learn(&mut self, sha: &str, code: &[u8]) -> Result<(), Value> {
        if !self.scripts.contains(sha) {
            self.keys.learn(sha, code)?;
            self.scripts.insert(sha.to_owned());
        }
        Ok(())
    }

    /// Runs a script that it knows, with the rest of the command.
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

    /// Tells the connection of its tracked keys that have ended by now. Returns when the next one
    /// does.
    fn expire(&mut self, peer: usize, now: i64) -> Option<i64> {
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

/// As scripts ask for it, and the server says it.
const VERSION: &str = "7.0.15";

impl Faults {
    fn refuse(&mut self, sha: &str) -> bool {
        let refuses = self.refusals > 0;
        self.refusals -= usize::from(refuses);
        refuses || !self.refused.is_empty() && self.refused.contains(sha)
    }
}

impl Peers {
    fn get(&mut self, peer: usize) -> Option<&mut Peer> {
        self.all.get_mut(peer)?.as_mut()
    }

    fn change(&mut self, peer: usize, change: impl FnOnce(&mut Peer)) {
        if let Some(peer) = self.get(peer) {
            change(peer);
        }
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.all.iter_mut().flatten()
    }

    fn listens_in_resp2(&self, peer: usize) -> bool {
        let peer = self.all.get(peer).and_then(Option::as_ref);
        peer.is_some_and(|peer| !peer.speaks_resp3 && !peer.channels.is_empty())
    }

    /// The answer to a subscription or its end.
    fn confirm(&mut self, peer: usize, kind: PushKind, channel: Vec<u8>) -> Value {
        let count = self.get(peer).map_or(0, |peer| peer.channels.len());
        Value::Push { kind, data: vec![Value::BulkString(channel), Value::Int(count as i64)] }
    }

    /// `PUBSUB`, about the channels.
    pub fn ask(&self, question: &[&[u8]]) -> Value {
        let all = || self.all.iter().flatten().flat_map(|peer| &peer.channels);
        match question {
            [kind, channels @ ..] if kind.eq_ignore_ascii_case(b"numsub") => {
                let heard = |channel: &[u8]| all().filter(|own| *own == channel).count() as i64;
                let each = channels.iter().flat_map(|it| [text(it), Value::Int(heard(it))]);
                Value::Array(each.collect())
            }
            [kind, pattern @ ..] if kind.eq_ignore_ascii_case(b"channels") => {
                let pattern = pattern.first().copied().unwrap_or(b"*");
                let mut found: Vec<_> = all().filter(|own| matches(pattern, own)).collect();
                found.sort_unstable();
                found.dedup();
                Value::Array(found.into_iter().map(|it| text(it)).collect())
            }
            _ => refusal("ERR unknown subcommand"),
        }
    }

    /// Sends a message, and returns how many connections listen to the channel.
    pub fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let (mut heard, loses) = (0, self.loses_messages);
        for peer in self.each().filter(|peer| peer.channels.iter().any(|own| own == channel)) {
            heard += 1;
            if !loses {
                let data = vec![text(channel), text(message)];
                peer.push(&Value::Push { kind: PushKind::Message, data });
            }
        }
        heard
    }

    /// Whether a connection listens to the channel.
    pub fn listen(&self, channel: &[u8]) -> bool {
        self.all.iter().flatten().any(|peer| peer.channels.iter().any(|own| own == channel))
    }

    /// The key has changed: connections that have read it are told once.
    pub fn changed(&mut self, key: &[u8]) {
        for peer in self.each() {
            let Some(tracked) = &mut peer.tracked else { continue };
            if tracked.extract_if(.., |read| read == key).count() > 0 {
                let keys = Value::Array(vec![text(key)]);
                peer.push(&Value::Push { kind: PushKind::Invalidate, data: vec![keys] });
            }
        }
    }
}

impl Peer {
    fn push(&mut self, value: &Value) {
        let mut bytes = Vec::with_capacity(64);
        encode(value, self.speaks_resp3, &mut bytes);
        self.replies.push_back(bytes);
        self.news.notify_all();
    }

    fn break_off(&mut self) {
        self.broken = true;
        self.channels.clear();
        self.tracked = None;
        self.news.notify_all();
    }
}

/// A server that connections lead to.
#[derive(Debug)]
pub struct Server<K> {
    state: Mutex<State<K>>,
    /// Whether a write may find no room. Unwritten bytes are then left to the background thread, if
    /// no other comes, and most models have none.
    has_little_room: AtomicBool,
    /// A number from zero to this one, by chance.
    chance: fn(usize) -> usize,
}

#[derive(Debug)]
struct State<K> {
    redis: Redis<K>,
    clock: ServerClock,
    /// How often a connection may still break.
    breaks: usize,
}

/// A server's clock, in µs since 1970.
#[derive(Clone, Copy, Debug)]
enum ServerClock {
    Still(i64),
    /// It showed this then.
    Runs(i64, Instant),
}

impl ServerClock {
    fn now(self) -> i64 {
        match self {
            Self::Still(now) => now,
            Self::Runs(began, since) => began.saturating_add(micros(since.elapsed())),
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl<K: Keys> Server<K> {
    /// Starts one whose connections break at most so many times. Its clock shows `now`, in ms, and
    /// stands still.
    pub fn start(
        redis: Redis<K>,
        now: i64,
        breaks: usize,
        chance: fn(usize) -> usize,
    ) -> Arc<Self> {
        let clock = ServerClock::Still(now * 1_000);
        let state = Mutex::new(State { redis, clock, breaks });
        Arc::new(Self { state, has_little_room: AtomicBool::new(false), chance })
    }

    /// Starts one that leaves nothing to chance. Its clock shows `now`, in µs, and runs.
    pub fn run(redis: Redis<K>, now: i64) -> Arc<Self> {
        let clock = ServerClock::Runs(now, Instant::now());
        let state = Mutex::new(State { redis, clock, breaks: 0 });
        Arc::new(Self { state, has_little_room: AtomicBool::new(false), chance: |most| most })
    }

    /// Leads all connections of a client to this server.
    pub fn dialer(self: &Arc<Self>) -> Dialer {
        let server = Arc::clone(self);
        Dialer::new(move |_, _| {
            let mut state = server.state.lock();
            if state.redis.faults.is_out || server.breaks(&mut state) {
                return Err(broken());
            }
            let peer = state.redis.open();
            let news = state.redis.peers.get(peer).map(|peer| Arc::clone(&peer.news));
            drop(state);
            let (news, read_timeout) = (news.unwrap_or_default(), AtomicU64::new(u64::MAX));
            Ok(Box::new(Connection { server: Arc::clone(&server), peer, news, read_timeout }))
        })
    }

    /// Looks at the keys, or changes them as another client does.
    pub fn with<R>(&self, act: impl FnOnce(&mut K, &mut Peers, i64) -> R) -> R {
        let mut state = self.state.lock();
        let now = state.clock.now();
        let Redis { keys, peers, .. } = &mut state.redis;
        act(keys, peers, now)
    }

    /// Sets the faults from here on.
    pub fn with_faults(&self, set: impl FnOnce(&mut Faults)) {
        self.state.lock().redis.with_faults(set);
    }

    /// Lets time pass on the server's clock.
    pub fn advance(&self, time: Duration) {
        let mut state = self.state.lock();
        let (ServerClock::Still(now) | ServerClock::Runs(now, _)) = &mut state.clock;
        *now = now.saturating_add(micros(time));
        // Readers look again which of their tracked keys are left.
        for peer in state.redis.peers.each() {
            peer.news.notify_all();
        }
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
        let peers = &mut self.state.lock().redis.peers;
        peers.each().filter(|peer| !peer.channels.is_empty()).for_each(Peer::break_off);
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
    news: Arc<Condvar>,
    /// In ns.
    read_timeout: AtomicU64,
}

impl<K: Keys> Connection<K> {
    /// Waits until there is something to read, or the connection is broken. `None`: not in time.
    fn with_peer<R>(&self, within: Duration, read: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        let mut state = self.server.state.lock();
        // Most replies are there: then no clock is read.
        let mut until = None;
        loop {
            let peer = state.redis.peers.get(self.peer)?;
            if !peer.replies.is_empty() || peer.broken {
                return Some(read(peer));
            }
            let until = *until.get_or_insert_with(|| Instant::now().checked_add(within));
            // A tracked key's end is news, too.
            let now = state.clock.now();
            let ends = state.redis.expire(self.peer, now);
            if state.redis.peers.get(self.peer)?.replies.is_empty() {
                let left =
                    until.map_or(within, |until| until.saturating_duration_since(Instant::now()));
                let pause = ends.and_then(|ends| u64::try_from(ends - now + 1).ok());
                let pause = pause.map_or(left, |pause| left.min(Duration::from_micros(pause)));
                if self.news.wait_for(&mut state, pause).timed_out() && pause >= left {
                    return None;
                }
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
            if length == reply.len() {
                peer.replies.pop_front();
            } else {
                reply.drain(..length);
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
        let peer = state.redis.peers.get(self.peer).ok_or_else(broken)?;
        if peer.broken {
            return Err(broken());
        }
        let all = if peer.commands.is_empty() {
            Cow::Borrowed(bytes)
        } else {
            Cow::Owned([&std::mem::take(&mut peer.commands), bytes].concat())
        };
        let (commands, rest) = split(&all);
        // If it breaks now: some of the commands have run, some of those were answered, and the
        // writer may have noticed.
        let breaks = server.breaks(&mut state);
        let run = if breaks { (server.chance)(commands.len()) } else { commands.len() };
        let answered = if breaks { (server.chance)(run) } else { run };
        let now = state.clock.now();
        for (at, command) in commands[..run].iter().enumerate() {
            if at < answered {
                state.redis.answer(self.peer, now, command);
            } else {
                state.redis.run(self.peer, now, command);
            }
        }
        state.redis.peers.change(self.peer, |peer| {
            peer.commands.extend_from_slice(rest);
            if breaks {
                peer.break_off();
            }
        });
        drop(state);
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
        self.server.state.lock().redis.peers.change(self.peer, Peer::break_off);
        Ok(())
    }

    fn peer(&self) -> Option<SocketAddr> {
        None
    }
}

impl<K: Keys> Drop for Connection<K> {
    fn drop(&mut self) {
        if let Some(peer) = self.server.state.lock().redis.peers.all.get_mut(self.peer) {
            *peer = None;
        }
    }
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the server in this process broke it")
}

fn text(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

/// An error reply: its code, and the details.
pub fn refusal(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).unwrap_or(Value::Nil)
}

/// Whether a name matches a pattern with `*` and `?`. A backslash makes the next byte a plain one.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], _) => name.is_empty(),
        ([b'*', pattern @ ..], _) => (0..=name.len()).any(|at| matches(pattern, &name[at..])),
        ([b'?', pattern @ ..], [_, name @ ..]) => matches(pattern, name),
        ([b'\\', plain, pattern @ ..], [first, name @ ..])
        | ([plain, pattern @ ..], [first, name @ ..]) => plain == first && matches(pattern, name),
        _ => false,
    }
}

/// Writes a value as a server does.
fn encode(value: &Value, in_resp3: bool, bytes: &mut Vec<u8>) {
    let head = |bytes: &mut Vec<u8>, kind: u8, count: usize| {
        let mut digits = [0; 20];
        let at = write_decimal(count as u64, &mut digits);
        bytes.push(kind);
        bytes.extend_from_slice(&digits[at..]);
        bytes.extend_from_slice(b"\r\n");
    };
    match value {
        Value::Nil => bytes.extend_from_slice(if in_resp3 { b"_\r\n" } else { b"$-1\r\n" }),
        Value::Okay => bytes.extend_from_slice(b"+OK\r\n"),
        Value::Int(number) => match usize::try_from(*number) {
            Ok(number) => head(bytes, b':', number),
            Err(_) => bytes.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        },
        Value::Double(number) if in_resp3 => {
            bytes.extend_from_slice(format!(",{number}\r\n").as_bytes());
        }
        Value::Double(number) => {
            encode(&Value::BulkString(format!("{number}").into_bytes()), in_resp3, bytes);
        }
        Value::SimpleString(text) => bytes.extend_from_slice(format!("+{text}\r\n").as_bytes()),
        Value::BulkString(text) => {
            head(bytes, b'$', text.len());
            bytes.extend_from_slice(text);
            bytes.extend_from_slice(b"\r\n");
        }
        Value::Array(parts) => {
            head(bytes, b'*', parts.len());
            parts.iter().for_each(|part| encode(part, in_resp3, bytes));
        }
        Value::Map(pairs) => {
            let (kind, parts) = if in_resp3 { (b'%', 1) } else { (b'*', 2) };
            head(bytes, kind, parts * pairs.len());
            for (name, value) in pairs {
                encode(name, in_resp3, bytes);
                encode(value, in_resp3, bytes);
            }
        }
        Value::Push { kind, data } => {
            head(bytes, if in_resp3 { b'>' } else { b'*' }, 1 + data.len());
            encode(&text(kind.to_string().as_bytes()), in_resp3, bytes);
            data.iter().for_each(|part| encode(part, in_resp3, bytes));
        }
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            bytes.extend_from_slice(format!("-{code} {details}\r\n").as_bytes());
        }
        other => {
            let unknown = refusal(&format!("ERR a reply of an unknown kind: {other:?}"));
            encode(&unknown, in_resp3, bytes);
        }
    }
}

/// The commands that are there as a whole, each in its parts, and the bytes behind them.
fn split(bytes: &[u8]) -> (Vec<Vec<&[u8]>>, &[u8]) {
    let (mut commands, mut rest) = (Vec::new(), bytes);
    while let Some((command, behind)) = command(rest) {
        commands.push(command);
        rest = behind;
    }
    (commands, rest)
}

/// The first command, and the bytes behind it.
fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (parts, mut rest) = number(bytes)?;
    let mut command = Vec::with_capacity(parts.min(1_024));
    for _ in 0..parts {
        let (length, text) = number(rest)?;
        command.push(text.get(..length)?);
        rest = text.get(length + 2..)?;
    }
    Some((command, rest))
}

/// The number of a line behind its first byte, and the bytes behind the line.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_usize;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        match byte {
            b'0'..=b'9' => number = number.saturating_mul(10).saturating_add((byte - b'0').into()),
            _ => return Some((number, bytes.get(at + 2..)?)),
        }
    }
    None
}
