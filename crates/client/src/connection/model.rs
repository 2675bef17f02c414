//! A server for the model tests, and a connection to it: as much of Redis as locks need.
//!
//! The server answers at once, in the order asked; connections break where a test allows that. A
//! read that no reply will end is a thread that sleeps for ever, which the model reports.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError};
use std::time::{Duration, Instant};

use redis::{RedisResult, Value};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex, MutexGuard};

/// As its client names the script that these files of `lua/` make.
macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| {
            sha(concat!($(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../lua/", $file))),+))
        })
    };
}

mod read_write;

use read_write::Holders;

// All threads of a model run on one, and each model on a thread of its own.
thread_local! {
    static SERVER: RefCell<Option<Arc<Server>>> = const { RefCell::new(None) };
}

/// The server that connections opened from now on lead to.
pub struct Server {
    state: Mutex<State>,
    /// A push for a subscriber, or the end of its connection.
    news: Condvar,
    /// Whether a write may find no room. Unwritten bytes are then left to the background thread, if
    /// no other comes, and most models have none.
    has_little_room: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Key to owner.
    locks: HashMap<Vec<u8>, Vec<u8>>,
    /// Key to holders, of read-write locks.
    shared: HashMap<Vec<u8>, Holders>,
    /// The queues of their waiters.
    queues: HashMap<Vec<u8>, VecDeque<Vec<u8>>>,
    scripts: Vec<String>,
    connections: Vec<Peer>,
    /// The echoed texts, in order.
    echoed: Vec<Vec<u8>>,
    /// How often a lock was refused.
    refusals: usize,
    /// How often a connection may still break.
    breaks: usize,
}

/// The server's side of a connection.
#[derive(Default)]
struct Peer {
    replies: VecDeque<Value>,
    channels: Vec<Vec<u8>>,
    /// The keys it has read since it last heard of a change, if it is told of changes.
    tracked: Option<Vec<Vec<u8>>>,
    broken: bool,
}

impl Server {
    /// Starts one whose connections break at most so many times. It knows the locks' scripts:
    /// there is no renewer that would read the reply to a release which is to be sent again.
    pub fn start(breaks: usize) -> Arc<Self> {
        let locks = [&*ACQUIRE, &TRY, &RELEASE, &GIVE_UP, &FORCE_UNLOCK, &RENEW];
        let fair = [&*FAIR_ACQUIRE, &FAIR_TRY, &FAIR_RELEASE, &FAIR_GIVE_UP, &FAIR_FORCE_UNLOCK];
        let mut scripts: Vec<_> = locks.into_iter().chain(fair).cloned().collect();
        scripts.extend(read_write::scripts());
        let state = Mutex::new(State { breaks, scripts, ..State::default() });
        let has_little_room = AtomicBool::new(false);
        let server = Arc::new(Self { state, news: Condvar::new(), has_little_room });
        SERVER.set(Some(Arc::clone(&server)));
        server
    }

    pub(crate) fn has_little_room(&self) {
        self.has_little_room.store(true, Ordering::SeqCst);
    }

    /// The texts sent with `ECHO`, in the order of arrival.
    pub(crate) fn echoed(&self) -> Vec<Vec<u8>> {
        self.state().echoed.clone()
    }

    pub fn refusals(&self) -> usize {
        self.state().refusals
    }

    pub fn owner(&self, key: &str) -> Option<Vec<u8>> {
        self.state().locks.get(key.as_bytes()).cloned()
    }

    /// Another client takes the lock, if it is free.
    pub fn take(&self, key: &str, owner: &[u8]) -> bool {
        let mut state = self.state();
        let free = !state.locks.contains_key(key.as_bytes());
        if free {
            state.locks.insert(key.as_bytes().to_vec(), owner.to_vec());
        }
        free
    }

    /// Another client's lock ends: `channel` gets the message.
    pub fn free(&self, key: &str, channel: &str) {
        let mut state = self.state();
        state.locks.remove(key.as_bytes());
        state.publish(channel.as_bytes(), b"0");
        self.news.notify_all();
    }

    /// The lock vanishes, without a message.
    pub fn take_away(&self, key: &str) {
        let mut state = self.state();
        state.locks.remove(key.as_bytes());
        state.changed(key.as_bytes());
        self.news.notify_all();
    }

    /// Whether a client has a read-write lock, or waits for it.
    pub fn is_wanted(&self, key: &str) -> bool {
        let mut state = self.state();
        let waits = state.queues.get(key.as_bytes()).is_some_and(|queue| !queue.is_empty());
        waits || !state.holders(key.as_bytes()).is_free()
    }

    /// A read-write lock is deleted, and the first in line have it.
    pub fn delete(&self, key: &str) {
        let mut state = self.state();
        state.holders(key.as_bytes()).delete();
        state.let_in(key.as_bytes(), None);
        self.news.notify_all();
    }

    /// `SCRIPT FLUSH`.
    pub fn forget_scripts(&self) {
        self.state().scripts.clear();
    }

    /// Breaks the subscribers' connections.
    pub fn break_subscribers(&self) {
        let mut state = self.state();
        for peer in state.connections.iter_mut().filter(|peer| !peer.channels.is_empty()) {
            peer.break_off();
        }
        self.news.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    fn break_off(&mut self) {
        self.broken = true;
        self.channels.clear();
    }
}

/// A connection to the model's server, called as the real one is.
pub(crate) struct Connection {
    server: Arc<Server>,
    id: usize,
    unwritten: Vec<u8>,
}

#[expect(clippy::needless_pass_by_ref_mut, reason = "called as the real one")]
impl Connection {
    pub(super) fn open() -> RedisResult<Self> {
        let server = SERVER.with_borrow(Clone::clone).expect("a server");
        let mut state = server.state();
        if state.breaks() {
            return Err(broken());
        }
        let id = state.connections.len();
        state.connections.push(Peer::default());
        drop(state);
        Ok(Self { server, id, unwritten: Vec::new() })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.unwritten.extend_from_slice(bytes);
    }

    /// All of it, or nothing yet: a command that is written in part is not seen by the server.
    pub(super) fn write_in_part(&mut self, _deadline: Instant) -> RedisResult<bool> {
        if self.unwritten.is_empty() {
            return Ok(true);
        }
        if self.server.has_little_room.load(Ordering::SeqCst) && up_to(1) == 0 {
            return Ok(false);
        }
        self.send_packed_command(b"", Instant::now()).map(|()| true)
    }

    /// As on a network, a reply may take its time.
    pub(super) fn receive_in_part(&mut self, _deadline: Instant) -> RedisResult<Value> {
        if up_to(1) == 0 {
            return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
        }
        self.recv_response()
    }

    pub(crate) fn send_packed_command(&mut self, bytes: &[u8], _: Instant) -> RedisResult<()> {
        let bytes = [std::mem::take(&mut self.unwritten), bytes.to_vec()].concat();
        let commands = parse(&bytes);
        let mut state = self.server.state();
        if state.connections[self.id].broken {
            return Err(broken());
        }
        // If it breaks now: some of the commands have run, some of those were answered, and the
        // writer may have noticed.
        let breaks = state.breaks();
        let run = if breaks { up_to(commands.len()) } else { commands.len() };
        let mut answered = if breaks { up_to(run) } else { run };
        for command in &commands[..run] {
            let reply = state.run(self.id, command);
            if answered > 0 {
                answered -= 1;
                state.connections[self.id].replies.extend(reply);
            }
        }
        if breaks {
            state.connections[self.id].break_off();
        }
        drop(state);
        self.server.news.notify_all();
        if breaks && up_to(1) == 0 { Err(broken()) } else { Ok(()) }
    }

    pub(crate) fn recv_response(&mut self) -> RedisResult<Value> {
        let mut state = self.server.state();
        loop {
            let peer = &mut state.connections[self.id];
            if let Some(reply) = peer.replies.pop_front() {
                return Ok(reply);
            }
            if peer.broken {
                return Err(broken());
            }
            state = self.server.news.wait(state).unwrap();
        }
    }

    pub(crate) fn receive_until(&mut self, _deadline: Instant) -> RedisResult<Value> {
        if !self.unwritten.is_empty() {
            self.send_packed_command(b"", Instant::now())?;
        }
        self.recv_response()
    }

    pub(super) fn is_closed(&self) -> bool {
        false
    }

    pub(crate) fn set_read_timeout(&mut self, _timeout: Duration) {}

    pub(crate) fn closer(&mut self) -> Closer {
        Closer { server: Arc::clone(&self.server), id: self.id }
    }
}

/// Ends a connection from another thread.
pub(crate) struct Closer {
    server: Arc<Server>,
    id: usize,
}

impl Closer {
    pub(crate) fn close(&self) {
        self.server.state().connections[self.id].break_off();
        self.server.news.notify_all();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.server.state().connections[self.id].break_off();
    }
}

impl State {
    /// Whether a connection breaks now.
    fn breaks(&mut self) -> bool {
        let breaks = self.breaks > 0 && thread_rng().gen_bool(0.3);
        self.breaks -= usize::from(breaks);
        breaks
    }

    /// Runs a command. A message goes to its listeners; the result is the reply.
    fn run(&mut self, peer: usize, command: &[Vec<u8>]) -> Option<Value> {
        let argument = |at: usize| command[at].as_slice();
        let reply = match argument(0) {
            b"PING" => Value::SimpleString("PONG".to_owned()),
            b"ECHO" => {
                self.echoed.push(command[1].clone());
                Value::BulkString(command[1].clone())
            }
            b"HELLO" => Value::Map(Vec::new()),
            b"CLIENT" => {
                self.connections[peer].tracked = Some(Vec::new());
                Value::Okay
            }
            b"HEXISTS" => {
                if let Some(tracked) = &mut self.connections[peer].tracked {
                    tracked.push(command[1].clone());
                }
                let is_owner = self.locks.get(argument(1)).is_some_and(|o| o == argument(2));
                let holds = self.holders(argument(1)).know(argument(2));
                Value::Int(i64::from(is_owner || holds))
            }
            b"EXISTS" => Value::Int(i64::from(self.locks.contains_key(argument(1)))),
            b"PUBLISH" => Value::Int(self.publish(argument(1), argument(2))),
            b"SUBSCRIBE" => {
                self.connections[peer].channels.push(command[1].clone());
                pushed("subscribe", argument(1), Value::Int(1))
            }
            b"UNSUBSCRIBE" => {
                self.connections[peer].channels.retain(|channel| !command.contains(channel));
                pushed("unsubscribe", argument(1), Value::Int(0))
            }
            b"EVAL" => {
                let script = redis::Script::new(&String::from_utf8_lossy(argument(1)));
                self.scripts.push(script.get_hash().to_owned());
                self.run_script(script.get_hash(), &command[3..])
            }
            b"EVALSHA" => {
                let sha = String::from_utf8_lossy(argument(1));
                if !self.scripts.iter().any(|known| *known == *sha) {
                    return redis::parse_redis_value(b"-NOSCRIPT No matching script.\r\n").ok();
                }
                self.run_script(&sha, &command[3..])
            }
            other => panic!("the model's server knows no {}", String::from_utf8_lossy(other)),
        };
        Some(reply)
    }

    /// The key has changed: connections that have read it are told once.
    fn changed(&mut self, key: &[u8]) {
        for peer in &mut self.connections {
            let Some(tracked) = &mut peer.tracked else { continue };
            if tracked.extract_if(.., |read| read == key).count() > 0 {
                let keys = Value::Array(vec![Value::BulkString(key.to_vec())]);
                let kind = redis::PushKind::Invalidate;
                peer.replies.push_back(Value::Push { kind, data: vec![keys] });
            }
        }
    }

    fn run_script(&mut self, sha: &str, arguments: &[Vec<u8>]) -> Value {
        let before = self.locks.get(&arguments[0]).cloned();
        let reply = self.evaluate(sha, arguments);
        if self.locks.get(&arguments[0]) != before.as_ref() {
            self.changed(&arguments[0]);
        }
        reply
    }

    /// Runs a script of locks.
    fn evaluate(&mut self, sha: &str, arguments: &[Vec<u8>]) -> Value {
        let key = &arguments[0];
        if sha == *RETURN {
            Value::BulkString(key.clone())
        } else if sha == *ACQUIRE {
            self.acquire(key, &arguments[4], true)
        } else if sha == *TRY {
            self.acquire(key, &arguments[4], false)
        } else if sha == *RELEASE {
            self.release(key, &arguments[3], &arguments[4])
        } else if sha == *GIVE_UP {
            self.queues.entry(key.clone()).or_default().retain(|other| *other != arguments[3]);
            self.release(key, &arguments[3], &arguments[4])
        } else if sha == *FORCE_UNLOCK {
            let existed = self.locks.remove(key).is_some();
            if !self.grant_head(key) {
                self.publish(&arguments[3], b"0");
            }
            Value::Int(i64::from(existed))
        } else if sha == *RENEW {
            // The keys, the timeouts of read holds, two leases, the owners.
            let reads = arguments.iter().filter(|it| it.starts_with(b"read ")).count();
            let holds = (arguments.len() - 2 - reads) / 2;
            let owners = &arguments[arguments.len() - holds..];
            let each = arguments.iter().zip(owners).map(|(key, owner)| {
                let owner = owner.strip_prefix(b"read ").unwrap_or(owner);
                let is_owner = self.locks.get(key).is_some_and(|holder| holder == owner);
                i64::from(is_owner || self.holders(key).know(owner))
            });
            numbers(&each.collect::<Vec<_>>())
        } else {
            let replied = self.read_or_write(sha, arguments);
            replied.unwrap_or_else(|| self.evaluate_fair(sha, &arguments[0], &arguments[6..]))
        }
    }

    /// Runs a script of a fair lock: with its own arguments.
    fn evaluate_fair(&mut self, sha: &str, key: &[u8], own: &[Vec<u8>]) -> Value {
        if sha == *FAIR_ACQUIRE {
            self.line_up(key, &own[1], own[2] == b"1", &own[3..])
        } else if sha == *FAIR_TRY {
            let free = !self.locks.contains_key(key) && !self.moves_on(key);
            if free {
                self.locks.insert(key.to_vec(), own[1].clone());
            }
            Value::Int(i64::from(self.locks.get(key) == Some(&own[1])))
        } else if sha == *FAIR_RELEASE || sha == *FAIR_GIVE_UP {
            let gives_up = sha == *FAIR_GIVE_UP;
            let queue = self.queues.entry(key.to_vec()).or_default();
            let before = queue.len();
            let leaving = if gives_up { &own[..1] } else { &own[1..] };
            queue.retain(|waiter| !leaving.contains(waiter));
            let waited = queue.len() < before;
            let held = self.locks.get(key) == Some(&own[0]) && (!gives_up || own[1] != b"1");
            if held {
                self.locks.remove(key);
            }
            let moved = self.moves_on(key);
            match (gives_up, held) {
                (true, true) => Value::Int(2),
                (true, false) => Value::Int(i64::from(waited)),
                (false, true) => Value::Int(i64::from(moved)),
                (false, false) => Value::Nil,
            }
        } else if sha == *FAIR_FORCE_UNLOCK {
            let existed = self.locks.remove(key).is_some();
            self.moves_on(key);
            Value::Int(i64::from(existed))
        } else {
            panic!("a script that the model's server does not know")
        }
    }

    /// Takes a fair lock, or a place in its queue, and places behind it for its company.
    fn line_up(&mut self, key: &[u8], owner: &[u8], was_queued: bool, rest: &[Vec<u8>]) -> Value {
        let company = if was_queued { &[] } else { rest };
        if self.locks.get(key).is_some_and(|holder| holder == owner) {
            let behind = Value::BulkString(b"-".to_vec());
            self.queues.entry(key.to_vec()).or_default().extend(company.iter().cloned());
            return Value::Array(vec![Value::Int(2), behind, Value::Int(NOW)]);
        }
        let queue = self.queues.entry(key.to_vec()).or_default();
        let is_there = queue.iter().any(|waiter| waiter == owner);
        if was_queued && !is_there {
            queue.push_front(owner.to_vec());
        } else if !is_there {
            queue.push_back(owner.to_vec());
        }
        let at = queue.iter().position(|waiter| waiter == owner).unwrap_or_default();
        for (behind, waiter) in company.iter().filter(|_| !is_there).enumerate() {
            queue.insert(at + behind + 1, waiter.clone());
        }
        if !self.locks.contains_key(key) {
            if self.queues[key].front().is_some_and(|head| head == owner) {
                self.queues.entry(key.to_vec()).or_default().pop_front();
                self.locks.insert(key.to_vec(), owner.to_vec());
                let behind = Value::BulkString(self.followers(key, owner).into_bytes());
                return Value::Array(vec![Value::Int(1), behind, Value::Int(NOW)]);
            }
            self.moves_on(key);
        }
        self.refusals += 1;
        numbers(&[0, NOW, -1, 0, i64::from(was_queued && !is_there)])
    }

    /// The numbers of the owners of the same client that stand first.
    fn followers(&self, key: &[u8], owner: &[u8]) -> String {
        let queue = self.queues.get(key).into_iter().flatten();
        let of_client = queue.take_while(|waiter| waiter[..37] == owner[..37]);
        let numbers: Vec<_> =
            of_client.map(|waiter| String::from_utf8_lossy(&waiter[37..]).into_owned()).collect();
        if numbers.is_empty() { "-".to_owned() } else { numbers.join(",") }
    }

    /// Grants a free fair lock to the first in line that listens.
    fn moves_on(&mut self, key: &[u8]) -> bool {
        if self.locks.contains_key(key) {
            return false;
        }
        while let Some(head) = self.queues.get_mut(key).and_then(VecDeque::pop_front) {
            let owner = String::from_utf8_lossy(&head).into_owned();
            let (client, number) = owner.split_once(':').unwrap();
            let channel = format!("redisson_lock__channel:{{redlatch:{client}}}");
            let (name, followers) = (String::from_utf8_lossy(key), self.followers(key, &head));
            let message = format!("grant {number} {NOW} 2000 {followers} 0 {name}");
            if self.publish(channel.as_bytes(), message.as_bytes()) > 0 {
                self.locks.insert(key.to_vec(), head);
                return true;
            }
        }
        false
    }

    fn acquire(&mut self, key: &[u8], owner: &[u8], queues: bool) -> Value {
        let holder = self.locks.get(key);
        let already = holder.is_some_and(|holder| holder == owner);
        let queue = self.queues.entry(key.to_vec()).or_default();
        if already || holder.is_none() && (!queues || queue.is_empty()) {
            self.locks.insert(key.to_vec(), owner.to_vec());
            let places = queue.len() as i64;
            return Value::Int(if already { -1 - places } else { places });
        }
        self.refusals += 1;
        if !queues {
            return Value::Nil;
        }
        let place = queue.iter().position(|other| other == owner);
        if place.is_none() {
            queue.push_back(owner.to_vec());
        }
        let at = place.unwrap_or(queue.len() - 1) as i64;
        // A free lock with waiters: a lease has ended, or no waiter heard the message.
        if !self.locks.contains_key(key) && self.grant_head(key) {
            return self.acquire(key, owner, true);
        }
        numbers(&[NOW, 30_000, at, 0, i64::from(place.is_none())])
    }

    fn release(&mut self, key: &[u8], owner: &[u8], channel: &[u8]) -> Value {
        if self.locks.get(key).is_none_or(|holder| holder != owner) {
            return Value::Nil;
        }
        self.locks.remove(key);
        if self.grant_head(key) {
            return Value::Int(1);
        }
        self.publish(channel, b"0");
        Value::Int(0)
    }

    /// Grants the lock to the first waiter that listens.
    fn grant_head(&mut self, key: &[u8]) -> bool {
        while let Some(head) = self.queues.get_mut(key).and_then(VecDeque::pop_front) {
            let owner = String::from_utf8(head.clone()).unwrap();
            let (client, number) = owner.split_once(':').unwrap();
            let channel = format!("redisson_lock__channel:{{redlatch:{client}}}");
            let name = String::from_utf8_lossy(key);
            let message = format!("grant {number} {NOW} 2000 lock,0,{NOW},1 0 {name}");
            if self.publish(channel.as_bytes(), message.as_bytes()) > 0 {
                self.locks.insert(key.to_vec(), head);
                return true;
            }
        }
        false
    }

    fn publish(&mut self, channel: &[u8], message: &[u8]) -> i64 {
        let mut heard = 0;
        for peer in &mut self.connections {
            if peer.channels.iter().any(|own| own == channel) {
                heard += 1;
                let message = Value::BulkString(message.to_vec());
                peer.replies.push_back(pushed("message", channel, message));
            }
        }
        heard
    }
}

/// A script that the server does not know from the start.
pub(crate) const RETURN_ARGUMENT: &str = "return ARGV[1]";

static RETURN: LazyLock<String> = LazyLock::new(|| sha(RETURN_ARGUMENT));

static ACQUIRE: LazyLock<String> =
    script!("lock/free.lua", "hand_off.lua", "lock/holder.lua", "lock/acquire.lua");
static TRY: LazyLock<String> =
    script!("lock/free.lua", "hand_off.lua", "lock/holder.lua", "lock/try.lua");
static RELEASE: LazyLock<String> =
    script!("lock/unwanted.lua", "hand_off.lua", "lock/holder.lua", "lock/release.lua");
static GIVE_UP: LazyLock<String> = script!("hand_off.lua", "lock/holder.lua", "lock/give_up.lua");
static FORCE_UNLOCK: LazyLock<String> =
    script!("hand_off.lua", "lock/holder.lua", "lock/force_unlock.lua");
static FAIR_ACQUIRE: LazyLock<String> = script!("fair/line.lua", "fair/acquire.lua");
static FAIR_TRY: LazyLock<String> = script!("fair/line.lua", "fair/try.lua");
static FAIR_RELEASE: LazyLock<String> = script!("fair/line.lua", "fair/release.lua");
static FAIR_GIVE_UP: LazyLock<String> = script!("fair/line.lua", "fair/give_up.lua");
static FAIR_FORCE_UNLOCK: LazyLock<String> = script!("fair/line.lua", "fair/force_unlock.lua");
static RENEW: LazyLock<String> = script!("lock/renew.lua");
/// The server's clock, in ms, which stands still.
const NOW: i64 = 1_000_000;

fn sha(code: &str) -> String {
    redis::Script::new(code).get_hash().to_owned()
}

fn numbers(numbers: &[i64]) -> Value {
    Value::Array(numbers.iter().copied().map(Value::Int).collect())
}

fn pushed(kind: &str, channel: &[u8], last: Value) -> Value {
    let kind = Value::BulkString(kind.as_bytes().to_vec());
    Value::Array(vec![kind, Value::BulkString(channel.to_vec()), last])
}

fn broken() -> redis::RedisError {
    io::Error::new(io::ErrorKind::ConnectionReset, "the model broke it").into()
}

fn up_to(most: usize) -> usize {
    thread_rng().gen_range(0..=most)
}

/// The commands of a packet, each in its parts.
fn parse(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        let parts = number(&mut bytes, b'*');
        let part = |_| {
            let length = number(&mut bytes, b'$');
            let (part, rest) = bytes.split_at(length);
            bytes = &rest[2..];
            part.to_vec()
        };
        commands.push((0..parts).map(part).collect());
    }
    commands
}

/// The number of a line that begins with `kind`.
fn number(bytes: &mut &[u8], kind: u8) -> usize {
    let end = bytes.iter().position(|byte| *byte == b'\r').expect("a line");
    let (line, rest) = bytes.split_at(end);
    assert_eq!(line[0], kind);
    *bytes = &rest[2..];
    std::str::from_utf8(&line[1..]).unwrap().parse().unwrap()
}
