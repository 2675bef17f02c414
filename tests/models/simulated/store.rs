//! Runs the scripts on a real server at simulated times, and reads the keys after each script.

use std::collections::HashMap;

use redis::{Connection, ToRedisArgs, Value};
use redlatch_testkit::Server;

use super::scripts::{Call, Script, Scripts};
use super::state::{OBSERVE, State};
use super::wire::own_channel;

const SIMULATED: &str = include_str!("simulated.lua");
/// The databases that histories use.
pub(crate) const DATABASES: i64 = 2;

/// Returns a short form of an owner: `ours` or `java`, the client and the number.
pub(crate) fn short(owner: &str) -> String {
    let kind = if is_ours(owner) { "ours" } else { "java" };
    format!("{kind}{}:{}", owner[..8].trim_start_matches('0'), &owner[37..])
}

/// Whether the owner belongs to redlatch, by the same rule as in the scripts.
pub(crate) fn is_ours(owner: &str) -> bool {
    owner.as_bytes().get(14) == Some(&b'8')
}

/// Returns a client's uuid, which depends on its kind and its number. The number must not be 0.
pub(crate) fn uuid(is_ours: bool, number: usize) -> String {
    let version = if is_ours { 8 } else { 4 };
    format!("{number:0>8}-0000-{version}000-8000-000000000000")
}

/// The keys of one lock, in one of the databases.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) database: i64,
    pub(crate) keys: [&'a str; 3],
}

pub(crate) struct Store {
    connections: Vec<Connection>,
    scripts: HashMap<Script, String>,
    held: String,
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
        let held = load(&scripts.held());
        let scripts = scripts.all().map(|script| (script, load(&scripts.text(script)))).collect();
        Self { connections, scripts, held, observe }
    }

    /// Removes all keys. Keeps the scripts.
    pub(crate) fn clear(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connections[0]).unwrap();
    }

    /// Runs a script at the server's time `now`, in µs.
    pub(crate) fn run(&mut self, now: i64, place: Place<'_>, call: &Call) -> (Value, State) {
        let Call { script, keys, args } = call;
        let mut command = redis::cmd("EVALSHA");
        let sha = if call.is_for_held() { &self.held } else { &self.scripts[script] };
        command.arg(sha).arg(keys.len()).arg(keys).arg(args);
        self.observed(now, place, command)
    }

    pub(crate) fn look(&mut self, now: i64, place: Place<'_>) -> State {
        self.observed(now, place, redis::cmd("PING")).1
    }

    /// Sets the remaining time of a key, in ms.
    pub(crate) fn expire(&mut self, now: i64, place: Place<'_>, key: &str, left: i64) -> State {
        let mut command = redis::cmd("HSET");
        command.arg("sim:ends").arg(key).arg(now / 1_000 + left);
        self.observed(now, place, command).1
    }

    /// Evicts or deletes some of the keys.
    pub(crate) fn delete(
        &mut self,
        now: i64,
        place: Place<'_>,
        keys: &[impl ToRedisArgs],
    ) -> State {
        let connection = &mut self.connections[place.database as usize];
        redis::cmd("HDEL").arg("sim:ends").arg(keys).exec(connection).unwrap();
        let mut command = redis::cmd("DEL");
        command.arg(keys);
        self.observed(now, place, command).1
    }

    fn observed(&mut self, now: i64, place: Place<'_>, command: redis::Cmd) -> (Value, State) {
        let mut pipe = redis::pipe();
        pipe.ignore_errors();
        pipe.cmd("SET").arg("sim:now").arg(now).ignore();
        pipe.add_command(command);
        let observe = pipe.cmd("EVALSHA").arg(&self.observe);
        observe.arg(3).arg(&place.keys);
        let connection = &mut self.connections[place.database as usize];
        let mut replies: Vec<Value> = pipe.query(connection).unwrap();
        let state = State::from_reply(replies.pop().unwrap());
        (replies.pop().unwrap(), state)
    }

    /// Sets the number of listeners that the server counts on a channel, in all databases.
    pub(crate) fn set_subscribers(&mut self, channel: &str, count: usize) {
        self.everywhere(redis::cmd("HSET").arg("sim:subscribers").arg(channel).arg(count));
    }

    /// Makes a monitor listen to every channel.
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

/// Whether this is the own channel of the owner's client.
pub(crate) fn is_to(channel: &str, owner: &str) -> bool {
    channel == own_channel(&owner[..36])
}
