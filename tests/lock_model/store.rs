//! The scripts on a real server, at simulated times, and what they have made of the keys.

use std::collections::HashMap;

use redis::{Connection, Value};
use redlatch_testkit::Server;

use crate::wire::{Chain, Request, Site, own_channel};

const SIMULATED: &str = include_str!("simulated.lua");
const OBSERVE: &str = include_str!("observe.lua");
/// The databases that histories use.
pub(crate) const DATABASES: i64 = 2;

/// Which text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    /// Stands before the others of ours.
    Queue,
    Acquire,
    Try,
    Release,
    GiveUp,
    Renew,
    ForceUnlock,
    RedissonAcquire,
    /// Of Redisson 3.16.8.
    RedissonUnlock3,
    RedissonUnlock4,
    RedissonForceUnlock,
}

impl Script {
    pub(crate) fn of(request: &Request) -> Self {
        match request {
            Request::Acquire { .. } => Self::Acquire,
            Request::Try { .. } => Self::Try,
            Request::Release { .. } => Self::Release,
            Request::GiveUp { .. } => Self::GiveUp,
            Request::Renew { .. } => Self::Renew,
        }
    }

    /// What stands before the prelude.
    fn shortcut(self) -> &'static str {
        match self {
            Self::Acquire | Self::Try => include_str!("../../lua/lock/free.lua"),
            Self::Release => include_str!("../../lua/lock/unwanted.lua"),
            _ => "",
        }
    }

    fn has_prelude(self) -> bool {
        matches!(self, Self::Acquire | Self::Try | Self::Release | Self::GiveUp | Self::ForceUnlock)
    }
}

/// The texts.
#[derive(Clone, Debug)]
pub(crate) struct Scripts(HashMap<Script, String>);

impl Scripts {
    pub(crate) fn ours() -> Self {
        let texts = [
            (Script::Queue, include_str!("../../lua/lock/queue.lua")),
            (Script::Acquire, include_str!("../../lua/lock/acquire.lua")),
            (Script::Try, include_str!("../../lua/lock/try.lua")),
            (Script::Release, include_str!("../../lua/lock/release.lua")),
            (Script::GiveUp, include_str!("../../lua/lock/give_up.lua")),
            (Script::Renew, include_str!("../../lua/lock/renew.lua")),
            (Script::ForceUnlock, include_str!("../../lua/lock/force_unlock.lua")),
            (Script::RedissonAcquire, include_str!("redisson/acquire.lua")),
            (Script::RedissonUnlock3, include_str!("redisson/unlock_3.lua")),
            (Script::RedissonUnlock4, include_str!("redisson/unlock_4.lua")),
            (Script::RedissonForceUnlock, include_str!("redisson/force_unlock.lua")),
        ];
        Self(texts.map(|(script, text)| (script, text.to_owned())).into())
    }

    /// One text with a part of it replaced, which must occur in it.
    pub(crate) fn broken(script: Script, part: &str, by: &str) -> Self {
        let mut scripts = Self::ours();
        let text = scripts.0[&script].clone();
        assert!(text.contains(part), "{script:?} has no {part:?}");
        scripts.0.insert(script, text.replace(part, by));
        scripts
    }

    /// As the server gets it.
    pub(crate) fn text(&self, script: Script) -> String {
        script.shortcut().to_owned() + &self.rest(script)
    }

    /// The same without its shortcut.
    pub(crate) fn rest(&self, script: Script) -> String {
        let prelude = if script.has_prelude() { &self.0[&Script::Queue] } else { "" };
        format!("{prelude}{}", self.0[&script])
    }
}

/// `KEYS` and `ARGV` of one of ours; of one that has no right to the queue, if it `is_poor`.
pub(crate) fn call(
    site: &Site,
    uuid: &str,
    request: &Request,
    is_poor: bool,
) -> (Vec<String>, Vec<String>) {
    let owner = |number: &u64| format!("{uuid}:{number}");
    let mut args = match request {
        Request::Acquire { number, lease } | Request::Try { number, lease } => {
            vec![lease.to_string(), owner(number)]
        }
        Request::Release { number, chain } | Request::GiveUp { number, chain } => {
            let Chain { since, count } = chain;
            vec![owner(number), since.to_string(), count.to_string(), site.public.clone()]
        }
        Request::Renew { number, lease } => {
            return (vec![site.lock.clone()], vec![lease.to_string(), owner(number)]);
        }
    };
    args.extend((site.database != 0).then(|| site.database.to_string()));
    let mut keys = keys(site);
    if is_poor {
        keys.truncate(1);
    }
    (keys, args)
}

pub(crate) fn keys(site: &Site) -> Vec<String> {
    let keys = [&site.lock, &site.queue, &site.window].into_iter().chain(&site.tokens);
    keys.cloned().collect()
}

/// What there is of one lock, and which messages were sent since the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) holders: Vec<String>,
    /// PTTL, in ms.
    pub(crate) left: i64,
    pub(crate) queue: Vec<String>,
    pub(crate) queue_left: i64,
    pub(crate) window_left: i64,
    /// Channel and text.
    pub(crate) messages: Vec<(String, String)>,
}

impl State {
    pub(crate) fn holder(&self) -> Option<&str> {
        self.holders.first().map(String::as_str)
    }

    /// In one line, for the trace.
    pub(crate) fn short(&self) -> String {
        let queue: Vec<_> = self.queue.iter().map(|owner| short(owner)).collect();
        let holders: Vec<_> = self.holders.iter().map(|owner| short(owner)).collect();
        let told: Vec<_> = self.messages.iter().map(|(_, text)| text.as_str()).collect();
        let (left, window) = (self.left, self.window_left);
        format!("held by {holders:?} for {left}, queue {queue:?}, window {window}, told {told:?}")
    }
}

/// `ours` or `java`, the client and the number.
pub(crate) fn short(owner: &str) -> String {
    let kind = if is_ours(owner) { "ours" } else { "java" };
    format!("{kind}{}:{}", owner[..8].trim_start_matches('0'), &owner[37..])
}

/// Whether the owner is one of ours, as the scripts tell it.
pub(crate) fn is_ours(owner: &str) -> bool {
    owner.as_bytes().get(14) == Some(&b'8')
}

/// A client's uuid by its kind and number, which is not 0.
pub(crate) fn uuid(is_ours: bool, number: usize) -> String {
    let version = if is_ours { 8 } else { 4 };
    format!("{number:0>8}-0000-{version}000-8000-000000000000")
}

/// Runs scripts at simulated times.
pub(crate) struct Store {
    connections: Vec<Connection>,
    scripts: HashMap<Script, String>,
    observe: String,
}

impl Store {
    pub(crate) fn new(server: &Server, scripts: &Scripts) -> Self {
        let mut connections: Vec<_> = (0..DATABASES).map(|_| server.connection()).collect();
        for (database, connection) in connections.iter_mut().enumerate() {
            redis::cmd("SELECT").arg(database).exec(connection).unwrap();
        }
        let mut load = |text: &str| -> String {
            let text = format!("{SIMULATED}{text}");
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connections[0]).unwrap()
        };
        let observe = load(OBSERVE);
        let all = scripts.0.keys();
        let scripts = all.map(|script| (*script, load(&scripts.text(*script)))).collect();
        Self { connections, scripts, observe }
    }

    /// Forgets everything but the scripts.
    pub(crate) fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connections[0]).unwrap();
    }

    /// At the server's time `now`, in µs.
    pub(crate) fn run(
        &mut self,
        now: i64,
        site: &Site,
        script: Script,
        (keys, args): (&[String], &[String]),
    ) -> (Value, State) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.scripts[&script]).arg(keys.len()).arg(keys).arg(args);
        self.observed(now, site, command)
    }

    pub(crate) fn look(&mut self, now: i64, site: &Site) -> State {
        self.observed(now, site, redis::cmd("PING")).1
    }

    /// Some of the keys are evicted, or deleted by somebody.
    pub(crate) fn delete(&mut self, now: i64, site: &Site, keys: &[String]) -> State {
        let connection = &mut self.connections[site.database as usize];
        redis::cmd("HDEL").arg("sim:ends").arg(keys).exec(connection).unwrap();
        let mut command = redis::cmd("DEL");
        command.arg(keys);
        self.observed(now, site, command).1
    }

    fn observed(&mut self, now: i64, site: &Site, command: redis::Cmd) -> (Value, State) {
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        pipe.cmd("SET").arg("sim:now").arg(now).ignore();
        pipe.add_command(command);
        let observe = pipe.cmd("EVALSHA").arg(&self.observe);
        observe.arg(3).arg(&site.lock).arg(&site.queue).arg(&site.window);
        let connection = &mut self.connections[site.database as usize];
        let mut replies: Vec<Value> = pipe.query(connection).unwrap();
        let state = State::from_reply(replies.pop().unwrap());
        (replies.pop().unwrap(), state)
    }

    /// How many the server counts on a channel; a channel is that of all databases.
    pub(crate) fn set_subscribers(&mut self, channel: &str, count: usize) {
        self.everywhere(redis::cmd("HSET").arg("sim:subscribers").arg(channel).arg(count));
    }

    /// Somebody listens to every channel.
    pub(crate) fn set_monitored(&mut self) {
        self.everywhere(redis::cmd("SET").arg("sim:patterns").arg(1));
    }

    pub(crate) fn set_full(&mut self, is_full: bool) {
        let command = if is_full { "SET" } else { "DEL" };
        let mut command = redis::cmd(command);
        command.arg("sim:full");
        self.everywhere(if is_full { command.arg(1) } else { &command });
    }

    fn everywhere(&mut self, command: &redis::Cmd) {
        for connection in &mut self.connections {
            command.exec(connection).unwrap();
        }
    }
}

/// Whose a message is to a client's own channel.
pub(crate) fn is_to(channel: &str, owner: &str) -> bool {
    channel == own_channel(&owner[..36])
}

impl State {
    fn from_reply(reply: Value) -> Self {
        type Observed = (Vec<String>, i64, Vec<String>, i64, i64, Vec<String>);
        let (holders, left, queue, queue_left, window_left, messages): Observed =
            redis::from_redis_value(reply).unwrap();
        let messages = messages.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        Self { holders, left, queue, queue_left, window_left, messages }
    }
}
