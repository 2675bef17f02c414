//! The scripts, and the keys after them.

use std::collections::{HashMap, HashSet};

use redis::{Connection, Value};

pub(crate) const LOCK: &str = "orders";
pub(crate) const QUEUE: &str = "redisson_lock_queue:{orders}";
pub(crate) const TIMEOUTS: &str = "redisson_lock_timeout:{orders}";
pub(crate) const ONLY_OURS: &str = "redisson_lock_timeout:{orders}:redlatch";
pub(crate) const DATABASE: &str = "0";
/// The beginning of the waiters' own channels, on which Redisson tells them.
pub(crate) const CHANNEL: &str = "redisson_lock__channel:{orders}:";

const SIMULATED: &str = include_str!("simulated.lua");
const OBSERVE: &str = include_str!("observe.lua");

/// Which script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    Acquire,
    Try,
    GiveUp,
    Release,
    ForceUnlock,
    KeepAlive,
    RedissonAcquire,
    /// As 3.16.8 has it.
    OldRedissonAcquire,
    RedissonGiveUp,
    RedissonUnlock,
}

impl Script {
    pub(crate) fn is_redissons(self) -> bool {
        self.is_redissons_acquire() || matches!(self, Self::RedissonGiveUp | Self::RedissonUnlock)
    }

    pub(crate) fn is_redissons_acquire(self) -> bool {
        matches!(self, Self::RedissonAcquire | Self::OldRedissonAcquire)
    }

    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::KeepAlive => &[LOCK, QUEUE, TIMEOUTS, ONLY_OURS],
            Self::RedissonGiveUp => &[QUEUE, TIMEOUTS],
            _ => &[LOCK, QUEUE, TIMEOUTS],
        }
    }
}

macro_rules! ours {
    ($($file:literal),+) => {
        concat!(
            include_str!("../../../lua/prelude.lua"),
            include_str!("../../../lua/fair/line.lua"),
            $(include_str!(concat!("../../../lua/", $file))),+
        )
    };
}

/// The texts of the scripts.
#[derive(Clone, Debug)]
pub(crate) struct Scripts(HashMap<Script, String>);

impl Scripts {
    pub(crate) fn ours() -> Self {
        let texts = [
            (Script::Acquire, ours!("lock/owner.lua", "fair/acquire.lua")),
            (Script::Try, ours!("lock/owner.lua", "fair/try.lua")),
            (Script::GiveUp, ours!("fair/give_up.lua")),
            (Script::Release, ours!("fair/release.lua")),
            (Script::ForceUnlock, ours!("lock/owner.lua", "fair/force_unlock.lua")),
            (Script::KeepAlive, ours!("fair/keep_alive.lua")),
            (Script::RedissonAcquire, include_str!("redisson/acquire.lua")),
            (Script::OldRedissonAcquire, include_str!("redisson/acquire_3.lua")),
            (Script::RedissonGiveUp, include_str!("redisson/give_up.lua")),
            (Script::RedissonUnlock, include_str!("redisson/unlock.lua")),
        ];
        let mut scripts = Self(texts.map(|(script, text)| (script, text.to_owned())).into());
        // Few wait here, and they are to be many.
        let text = scripts.0[&Script::KeepAlive]
            .replace("local FEW, END = 32, 16", "local FEW, END = 0, 3");
        assert!(text.contains("FEW, END = 0, 3"), "the queue is always read");
        scripts.0.insert(Script::KeepAlive, text);
        scripts
    }

    /// One script with a part of its text replaced, which must occur in it.
    pub(crate) fn broken(script: Script, part: &str, by: &str) -> Self {
        let mut scripts = Self::ours();
        let text = scripts.text(script).to_owned();
        assert!(text.contains(part), "{script:?} has no {part:?}");
        scripts.0.insert(script, text.replace(part, by));
        scripts
    }

    pub(crate) fn text(&self, script: Script) -> &str {
        &self.0[&script]
    }
}

/// The keys' values, and the messages sent since the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) holders: Vec<String>,
    pub(crate) queue: Vec<String>,
    pub(crate) scores: HashMap<String, i64>,
    /// Those whose scores say that their clients will listen soon.
    pub(crate) just_come: HashSet<String>,
    pub(crate) lease_ends: Option<i64>,
    pub(crate) told: Vec<Told>,
}

/// Runs scripts at simulated times.
pub(crate) struct Store {
    connection: Connection,
    scripts: HashMap<Script, String>,
    observe: String,
}

impl Store {
    pub(crate) fn new(mut connection: Connection, scripts: &Scripts) -> Self {
        let mut load = |text: &str| -> String {
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).unwrap()
        };
        let observe = load(OBSERVE);
        let scripts = scripts
            .0
            .iter()
            .map(|(script, text)| (*script, load(&format!("{SIMULATED}{text}"))))
            .collect();
        Self { connection, scripts, observe }
    }

    /// Forgets everything but the scripts.
    pub(crate) fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }

    pub(crate) fn run(&mut self, now: i64, script: Script, args: &[String]) -> (Value, State) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.scripts[&script]);
        command.arg(script.keys().len()).arg(script.keys());
        command.arg(args);
        self.run_command(now, command)
    }

    /// The lock's lease has ended.
    pub(crate) fn lapse(&mut self, now: i64) -> State {
        let mut command = redis::cmd("DEL");
        command.arg(LOCK);
        self.run_command(now, command).1
    }

    /// The holder's watchdog has renewed the lease.
    pub(crate) fn renew(&mut self, now: i64, lease: i64) -> State {
        let mut command = redis::cmd("SET");
        command.arg("sim:ends").arg(now + lease);
        self.run_command(now, command).1
    }

    /// All the keys of the lock are deleted.
    pub(crate) fn delete_keys(&mut self, now: i64) -> State {
        let mut command = redis::cmd("DEL");
        command.arg(&[LOCK, QUEUE, TIMEOUTS]);
        self.run_command(now, command).1
    }

    /// A monitor hears every channel.
    pub(crate) fn monitor(&mut self) {
        redis::cmd("SET").arg("sim:patterns").arg(1).exec(&mut self.connection).unwrap();
    }

    /// Sets whether a channel has a listener.
    pub(crate) fn set_listening(&mut self, channel: &str, listens: bool) {
        redis::cmd(if listens { "SADD" } else { "SREM" })
            .arg("sim:listening")
            .arg(channel)
            .exec(&mut self.connection)
            .unwrap();
    }

    fn run_command(&mut self, now: i64, command: redis::Cmd) -> (Value, State) {
        let mut observe = redis::cmd("EVALSHA");
        observe.arg(&self.observe);
        observe.arg(3).arg(&[LOCK, QUEUE, TIMEOUTS]);
        let mut both = redis::pipe();
        both.ignore_errors();
        both.cmd("SET").arg("sim:now").arg(now).ignore();
        both.add_command(command).add_command(observe);
        let mut replies: Vec<Value> = both.query(&mut self.connection).unwrap();
        let state = replies.pop().unwrap();
        let reply = replies.pop().unwrap();
        (reply, State::from_reply(state))
    }
}

/// Holders, queue, scores, the lease's end, and the channels of the messages.
type Observed = (Vec<String>, Vec<String>, Vec<(String, f64)>, String, Vec<String>);

/// A message to one waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) owner: String,
    pub(crate) what: Message,
}

/// The message to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Message {
    /// The waiter should ask: on its own channel, on which Redisson tells it.
    Alone,
    /// The waiter should ask: on the channel of its client.
    Ask,
    /// The waiter has the lock, on the channel of its client.
    Grant(Grant),
}

/// A grant by message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    /// The server's time.
    pub(crate) now: i64,
    pub(crate) lease: i64,
    /// The owners directly behind.
    pub(crate) followers: Vec<String>,
}

impl Told {
    /// Parses a channel and the message there.
    fn of(message: &str) -> Self {
        let (channel, text) = message.split_once(' ').unwrap();
        let Some(client) = channel.strip_prefix(CLIENT_CHANNEL) else {
            assert_eq!(text, "0");
            let owner = channel.strip_prefix(CHANNEL).unwrap().to_owned();
            return Self { owner, what: Message::Alone };
        };
        let client = client.strip_suffix('}').unwrap();
        let owner = |number: &str| format!("{client}:{number}");
        match *text.split(' ').collect::<Vec<_>>() {
            ["ask", number, LOCK] => Self { owner: owner(number), what: Message::Ask },
            ["grant", number, now, lease, followers, DATABASE, LOCK] => {
                let grant = Grant {
                    now: now.parse().unwrap(),
                    lease: lease.parse().unwrap(),
                    followers: numbers(followers).map(owner).collect(),
                };
                Self { owner: owner(number), what: Message::Grant(grant) }
            }
            _ => panic!("{message:?} is no message"),
        }
    }

    pub(crate) fn is_by_ours(&self) -> bool {
        self.what != Message::Alone
    }
}

/// The numbers of a list in one word.
pub(crate) fn numbers(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|number| *number != "-")
}

/// Where a waiter is told by ours: one of ours at its client, one of Redisson's by itself.
pub(crate) fn channel_of(owner: &str) -> String {
    match owner.split_once(':') {
        Some((client, _)) if is_ours(owner) => format!("{CLIENT_CHANNEL}{client}}}"),
        _ => format!("{CHANNEL}{owner}"),
    }
}

const CLIENT_CHANNEL: &str = "redisson_lock__channel:{redlatch:";

impl State {
    fn from_reply(reply: Value) -> Self {
        let (holders, queue, scores, ends, told): Observed =
            redis::from_redis_value(reply).unwrap();
        Self {
            holders,
            queue,
            just_come: {
                let marked = scores.iter().filter(|(_, score)| score.fract() > 0.0);
                marked.map(|(owner, _)| owner.clone()).collect()
            },
            scores: scores.into_iter().map(|(owner, score)| (owner, score.ceil() as i64)).collect(),
            lease_ends: ends.parse().ok(),
            told: told.iter().map(|message| Told::of(message)).collect(),
        }
    }

    pub(crate) fn head(&self) -> Option<&str> {
        self.queue.first().map(String::as_str)
    }

    pub(crate) fn place(&self, owner: &str) -> Option<usize> {
        self.queue.iter().position(|id| id == owner)
    }

    /// In one line, for the trace.
    pub(crate) fn short(&self, now: i64) -> String {
        let line: Vec<_> = self
            .queue
            .iter()
            .map(|id| format!("{} {:+}", short(id), self.scores.get(id).map_or(-1, |s| s - now)))
            .collect();
        let holders: Vec<_> = self.holders.iter().map(|id| short(id)).collect();
        let told: Vec<_> = self.told.iter().map(|told| short(&told.owner)).collect();
        format!("held by {holders:?}, queue {line:?}, told {told:?}")
    }
}

/// Whether the waiter is one of ours, as the scripts tell it.
pub(crate) fn is_ours(owner: &str) -> bool {
    owner.as_bytes().get(14) == Some(&b'8')
}

/// `8` or `4`, the client and the number.
pub(crate) fn short(owner: &str) -> String {
    let kind = if is_ours(owner) { "ours" } else { "java" };
    format!("{kind}{}:{}", owner[..8].trim_start_matches('0'), &owner[37..])
}
