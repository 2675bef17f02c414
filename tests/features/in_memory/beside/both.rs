//! A real server and an in-memory server, which get the same commands.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::ops::RangeInclusive;

use redis::{Parser, PushKind, Value};
use redlatch_in_memory::{Keys as _, Redis, Scripts};
use redlatch_testkit::Server;

pub(crate) type Parts = Vec<Vec<u8>>;

pub(crate) fn parts(command: &[&str]) -> Parts {
    command.iter().map(|part| part.as_bytes().to_vec()).collect()
}

/// All keys with their types, times to live and values.
const DUMP: &str = "
local all, keys = {}, redis.call('keys', '*')
table.sort(keys)
for _, key in ipairs(keys) do
    local kind, value = redis.call('type', key).ok
    if kind == 'string' then
        value = {redis.call('get', key)}
    elseif kind == 'hash' then
        value = redis.call('hgetall', key)
    elseif kind == 'list' then
        value = redis.call('lrange', key, 0, -1)
    else
        value = redis.call('zrange', key, 0, -1, 'withscores')
    end
    all[#all + 1] = {key, kind, redis.call('pttl', key), value}
end
return all";

/// One connection to the real server.
struct Line {
    stream: BufReader<TcpStream>,
    parser: Parser,
}

impl Line {
    fn open(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), parser: Parser::new() }
    }

    fn send(&mut self, commands: &[&Parts]) {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for part in *command {
                bytes.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
                bytes.extend_from_slice(part);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&bytes).unwrap();
    }

    fn read(&mut self) -> Value {
        self.parser.parse_value(&mut self.stream).unwrap()
    }

    /// Sends a PING, and returns everything that comes before its reply.
    fn read_all(&mut self) -> Vec<Value> {
        self.send(&[&parts(&["PING"])]);
        self.read_to(&Value::SimpleString("PONG".to_owned()))
    }

    /// Returns everything that comes before `end`.
    fn read_to(&mut self, end: &Value) -> Vec<Value> {
        std::iter::from_fn(|| Some(self.read()).filter(|it| it != end)).collect()
    }
}

/// Two connections to each server: the asker and the listener. The listener uses RESP3, and the
/// server reports changes of the keys that the listener has read.
pub(crate) struct Both {
    asker: Line,
    listener: Line,
    pub(crate) memory: Redis<Scripts>,
    peers: [usize; 2],
    time: Parts,
    dump: Parts,
    /// A command that publishes a message, and this message as the listener receives it. The
    /// listener reads until this message.
    end: (Parts, Value),
    /// The keys that the listener has read and whose change was not reported since then.
    tracked: Vec<Vec<u8>>,
    /// Changes a command before the in-memory server runs it.
    pub(crate) planted: fn(&mut Parts),
    /// The number of commands whose effects were all compared.
    pub(crate) compared: usize,
    /// The number of commands that were not compared, because the real server's clock reached the
    /// next millisecond during the command.
    pub(crate) between: usize,
}

/// The real server's answer to a command, and its time before and after the command, in µs.
struct Seen {
    began: i64,
    reply: Option<Value>,
    ended: i64,
    /// The messages that the listener received during the command.
    heard: Vec<Value>,
    /// The server's keys after the command, and the server's time. The time is absent if the next
    /// millisecond began in between.
    keys: (Option<i64>, Value),
}

fn same_millisecond(one: i64, other: i64) -> bool {
    one / 1_000 == other / 1_000
}

/// Whether the command gets a reply. Any other command gets a pushed message.
fn is_question(command: &Parts) -> bool {
    !command[0].ends_with(b"SUBSCRIBE")
}

pub(crate) type Difference = String;

impl Both {
    /// Starts both servers with these scripts. Each script has a text for the real server and a
    /// text for the in-memory server.
    pub(crate) fn new<'a>(server: &Server, texts: impl Iterator<Item = (&'a str, String)>) -> Self {
        let (mut scripts, mut hashes) = (Scripts::new().unwrap(), Vec::new());
        for (text, own) in texts.chain([(DUMP, DUMP.to_owned())]) {
            let script = redis::Script::new(text);
            script.prepare_invoke().load(&mut server.connection()).unwrap();
            scripts.learn(script.get_hash(), own.as_bytes()).unwrap();
            hashes.push(script.get_hash().to_owned());
        }
        let mut memory = Redis::new(scripts, hashes);
        let peers = [memory.open(), memory.open()];
        let (asker, listener) = (Line::open(server), Line::open(server));
        let dump = redis::Script::new(DUMP);
        let (time, dump) = (parts(&["TIME"]), parts(&["EVALSHA", dump.get_hash(), "0"]));
        let data = ["end", ""].map(|it| Value::BulkString(it.into())).into();
        let message = Value::Push { kind: PushKind::Message, data };
        let mut both = Self {
            asker,
            listener,
            memory,
            peers,
            time,
            dump,
            end: (parts(&["PUBLISH", "end", ""]), message),
            tracked: Vec::new(),
            planted: |_| (),
            compared: 0,
            between: 0,
        };
        let greeting = [&["HELLO", "3"][..], &["CLIENT", "TRACKING", "ON"], &["SUBSCRIBE", "end"]];
        for command in greeting.map(parts) {
            both.listener.send(&[&command]);
            both.listener.read();
            both.own(1, 0, &command);
        }
        both.start_anew();
        both
    }

    /// Removes all keys and subscriptions, and stops all tracking.
    pub(crate) fn start_anew(&mut self) {
        self.listener.send(&[&parts(&["FLUSHALL"])]);
        self.listener.read_all();
        self.tracked.clear();
        self.forget();
    }

    /// Removes the keys of the in-memory server, and its tracking.
    fn forget(&mut self) {
        for command in
            [&["FLUSHALL"][..], &["CLIENT", "TRACKING", "OFF"], &["CLIENT", "TRACKING", "ON"]]
        {
            self.own(1, 0, &parts(command));
        }
    }

    /// The asker runs a command on the real server, and reads the server's keys.
    fn ask(&mut self, command: &Parts) -> Seen {
        let Self { asker, time, dump, .. } = self;
        // Send all commands in one packet, because a round trip takes longer than the commands.
        asker.send(&[time, command, time, dump, time, &self.end.0]);
        let (began, reply) = (micros(&asker.read()), asker.read());
        let ended = micros(&asker.read());
        let (keys, after) = (asker.read(), micros(&asker.read()));
        asker.read();
        let heard = self.listener.read_to(&self.end.1);
        let keys = (same_millisecond(ended, after).then_some(ended), keys);
        Seen { began, reply: Some(reply), ended, heard, keys }
    }

    /// The listener runs a command on the real server. It does not read the server's keys, because
    /// the server would then track them.
    fn listen(&mut self, command: &Parts) -> Seen {
        self.listener.send(&[&self.time, command, &self.time]);
        let mut heard = Vec::new();
        let mut next = || loop {
            match self.listener.read() {
                push @ Value::Push { .. } => heard.push(push),
                reply => return reply,
            }
        };
        let began = micros(&next());
        let reply = is_question(command).then(&mut next);
        let ended = micros(&next());
        heard.extend(self.listener.read_all());
        Seen { began, reply, ended, heard, keys: self.keys() }
    }

    /// Runs the command on both servers. `peer` is 0 for the asker and 1 for the listener.
    pub(crate) fn run(&mut self, peer: usize, command: &Parts) -> Result<(), Difference> {
        let Seen { began, reply, ended, heard, keys } =
            if peer == 0 { self.ask(command) } else { self.listen(command) };
        // A key may expire when it is read. In that case the server reports the change before it
        // tracks the key.
        heard.iter().flat_map(changed).for_each(|key| self.tracked.retain(|it| *it != key));
        if peer == 1 && is_question(command) {
            self.tracked.push(command[1].clone());
        }
        let mut own_command = command.clone();
        (self.planted)(&mut own_command);
        // A script may write its time in µs, or reply with it. Only these texts show the exact
        // time.
        let replied = || reply.as_ref().and_then(replied).filter(|it| (began..=ended).contains(it));
        let at = written(&keys.1, began..=ended).or_else(replied).unwrap_or(began);
        let mut own = self.own(peer, at, &own_command);
        let own_reply = reply.is_some().then(|| own.remove(own.iter().position(is_reply).unwrap()));
        own.extend(self.own(1, began, &parts(&["PING"])).into_iter().filter(|it| !is_reply(it)));
        if !same_millisecond(began, ended) {
            self.between += 1;
            return self.follow();
        }
        if !same(&reply, &own_reply) {
            return Err(format!("the replies differ: {reply:?}, in memory {own_reply:?}"));
        } else if heard != own {
            return Err(format!("the messages differ: {heard:?}, in memory {own:?}"));
        }
        let (Some(now), keys) = keys else { return self.follow() };
        let own_keys = self.own(0, now, &self.dump.clone()).remove(0);
        if keys != own_keys {
            return Err(format!("the keys differ:\n{keys:?}, in memory\n{own_keys:?}"));
        }
        self.compared += 1;
        Ok(())
    }

    /// Copies the keys of the real server to the in-memory server.
    fn follow(&mut self) -> Result<(), Difference> {
        let (now, keys) = loop {
            if let (Some(now), keys) = self.keys() {
                break (now, keys);
            }
        };
        let Value::Array(keys) = keys else { return Err(format!("no keys: {keys:?}")) };
        self.forget();
        for key in keys {
            let Value::Array(fields) = key else { return Err(format!("no key: {key:?}")) };
            let [Value::BulkString(key), Value::BulkString(kind), Value::Int(left), value] =
                &fields[..]
            else {
                return Err(format!("no key: {fields:?}"));
            };
            let Value::Array(value) = value else { return Err(format!("no value: {value:?}")) };
            let mut value: Parts = value.iter().map(text).collect();
            let command = match kind.as_slice() {
                b"string" => "SET",
                b"hash" => "HSET",
                b"list" => "RPUSH",
                _ => {
                    value.chunks_mut(2).for_each(|pair| pair.reverse());
                    "ZADD"
                }
            };
            let head = [command.as_bytes().to_vec(), key.clone()];
            self.own(0, now, &head.into_iter().chain(value).collect());
            if *left >= 0 {
                let time = left.to_string().into_bytes();
                // A key in its last millisecond has a time to live of 0, which cannot be set.
                let (before, time) = if *left == 0 { (1_000, b"1".to_vec()) } else { (0, time) };
                let expire = [b"PEXPIRE".to_vec(), key.clone(), time];
                self.own(0, now - before, &expire.into());
            }
        }
        // An expired key is removed when a command reads it. Then the listener gets the report.
        let exists = |key: Vec<u8>| vec![b"EXISTS".to_vec(), key];
        for key in self.tracked.clone() {
            self.asker.send(&[&exists(key)]);
            self.asker.read();
        }
        let heard = self.listener.read_all();
        heard.iter().flat_map(changed).for_each(|key| self.tracked.retain(|it| *it != key));
        for key in self.tracked.clone() {
            self.own(1, now, &exists(key));
        }
        Ok(())
    }

    /// Returns the real server's keys and its time. The time is absent if the next millisecond
    /// began in between.
    fn keys(&mut self) -> (Option<i64>, Value) {
        let (time, dump) = (self.time.clone(), self.dump.clone());
        self.asker.send(&[&time, &dump, &time]);
        let (began, keys, ended) = (self.asker.read(), self.asker.read(), self.asker.read());
        let (began, ended) = (micros(&began), micros(&ended));
        (same_millisecond(began, ended).then_some(began), keys)
    }

    /// Runs a command on the in-memory server. Returns everything that it sends over the
    /// connection.
    fn own(&mut self, peer: usize, now: i64, command: &Parts) -> Vec<Value> {
        let command: Vec<_> = command.iter().map(Vec::as_slice).collect();
        self.memory.answer(self.peers[peer], now, &command);
        let bytes = self.memory.take_unread(self.peers[peer]);
        let (mut rest, mut parser) = (&bytes[..], Parser::new());
        // The parser keeps bytes that it has read but not parsed.
        std::iter::from_fn(|| parser.parse_value(&mut rest).ok()).collect()
    }
}

fn text(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(text) => text.clone(),
        other => panic!("no text: {other:?}"),
    }
}

/// Returns a number in this range from the texts of a value, if there is one.
fn written(value: &Value, range: RangeInclusive<i64>) -> Option<i64> {
    match value {
        Value::Array(values) => values.iter().find_map(|value| written(value, range.clone())),
        Value::BulkString(text) => {
            str::from_utf8(text).ok()?.parse().ok().filter(|it| range.contains(it))
        }
        _ => None,
    }
}

/// Returns the time, in µs, of a reply to a request that got a queue entry.
fn replied(reply: &Value) -> Option<i64> {
    let Value::BulkString(text) = reply else { return None };
    let mut numbers = str::from_utf8(text).ok()?.split(' ').map(|it| it.parse::<i64>().ok());
    let (seconds, micros) = (numbers.next()??, numbers.next()??);
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

/// Returns the keys that a message reports as changed.
fn changed(message: &Value) -> Vec<Vec<u8>> {
    match message {
        Value::Push { kind: PushKind::Invalidate, data } => match &data[..] {
            [Value::Array(keys)] => keys.iter().map(text).collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Returns the time of a reply to `TIME`, in µs.
fn micros(time: &Value) -> i64 {
    let Value::Array(parts) = time else { panic!("{time:?}") };
    let number =
        |at: usize| -> i64 { String::from_utf8(text(&parts[at])).unwrap().parse().unwrap() };
    number(0) * 1_000_000 + number(1)
}

fn is_reply(value: &Value) -> bool {
    !matches!(value, Value::Push { .. })
}

/// Compares two replies. Two errors need only the same code, and their texts may differ.
fn same(real: &Option<Value>, own: &Option<Value>) -> bool {
    match (real, own) {
        (Some(Value::ServerError(real)), Some(Value::ServerError(own))) => {
            real.code() == own.code()
        }
        _ => real == own,
    }
}
