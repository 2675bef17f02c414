//! The script that reads the state of any name.

use std::sync::{Arc, LazyLock};

use redis::Value;
use redlatch_client::{CachedScript, Command, Failure, Outcome, Route};

use super::{
    ExpirableKeys, FairKeys, KeyOf, LatchKeys, LockKeys, Mode, Rights, SemaphoreKeys, Trouble,
    accepted, name_of, patterns, query, read, slow_wait,
};

static STATE: LazyLock<CachedScript> = script!(LIST; "status/state.lua");

/// The number of keys that the server reads in one step of a scan. Such a step takes 0.1 ms of the
/// server's time (with 1,000 keys, it would take 1 ms).
const SCAN_COUNT: &str = "100";

/// The data under a name's keys. Times are in ms, and below 0 if unknown or without an end.
#[derive(Debug)]
pub(crate) struct KeyData {
    /// The type of the key, as TYPE returns it, or `shared` for a hash with a mode.
    pub(crate) kind: String,
    /// The reply of `PTTL`.
    pub(crate) left: i64,
    /// The value of a string key, or the beginning of a value that is longer than any number.
    pub(crate) value: Vec<u8>,
    /// The last fencing token, or a number below 0 if the name has no token.
    pub(crate) token: i64,
    /// The owners in a hash, or the ids of taken permits. For each: whether it reads, its levels,
    /// and its remaining lease.
    pub(crate) held: Vec<(Vec<u8>, bool, usize, i64)>,
    /// The owners that wait. For each: whether it wants to read, the time for which it has waited,
    /// and the kind of lock: `fair`, `lock` or `read-write`.
    pub(crate) queue: Vec<(Vec<u8>, bool, i64, String)>,
    /// Four numbers of subscribers: Redisson's clients that wait for releases of a lock, those that
    /// wait for releases of a read-write lock, the clients that wait for changes of a semaphore,
    /// and those of a latch.
    pub(crate) listeners: [u64; 4],
}

pub(crate) fn key_data(route: &Route, name: &str) -> Result<KeyData, Trouble> {
    let (lock, read_write) =
        (LockKeys::new(name, Mode::Lock, false), LockKeys::new(name, Mode::Read, false));
    let keys = [
        name.to_owned(),
        FairKeys::new(name).queue,
        lock.queue().to_string(),
        read_write.queue().to_string(),
        ExpirableKeys::timeouts(name),
        lock.tokens().to_string(),
    ];
    let arguments = [
        LockKeys::readers(name),
        lock.public().to_string(),
        lock.companion(),
        read_write.public().to_string(),
        read_write.companion(),
        SemaphoreKeys::channel(name),
        LatchKeys::channel(name),
    ];
    let (keys, arguments) = (keys.each_ref(), arguments.each_ref());
    let command =
        Command::script(&STATE, &keys.map(|it| it.as_bytes()), &arguments.map(|it| it.as_bytes()));
    query(route, &command, Rights::Status, |reply| {
        let (kind, left, value, token, held, queue, listeners) = read(&reply)?;
        Ok(KeyData { kind, left, value, token, held, queue, listeners })
    })
}

/// Whether this client should query why the waiters of a name wait. Only one client a second sends
/// this query: if each of a thousand clients sent it, the server would read the whole queue and
/// list its connections a thousand times. If the server refuses to write the key that selects the
/// client, each client sends the query.
pub(crate) fn claim_slow_wait(route: &Route, name: &str) -> bool {
    let key = slow_wait(name).to_string();
    let set = Command::plain(&[b"SET", key.as_bytes(), b"", b"NX", b"PX", b"1000"]);
    match route.call_once(&set) {
        Ok(reply) => reply != Value::Nil,
        Err(failure) => matches!(failure, Failure::Refused(_)),
    }
}

/// Returns the names for which a server may have data or waiters.
///
/// The names are found in three ways: a lock is a hash, an expirable semaphore with taken permits
/// has a sorted set, and processes that wait for a semaphore or a latch listen to its channel.
pub(crate) fn names(
    pattern: &str,
    sharded: bool,
    ask: impl Fn(&Command) -> Outcome,
) -> Result<Vec<String>, Trouble> {
    let ask = |command: &[&str]| {
        let command: Vec<_> = command.iter().map(|part| part.as_bytes()).collect();
        accepted(ask(&Command::plain(&command)), Rights::Status)
    };
    let mut names = Vec::new();
    let mut add = |found: Vec<Vec<u8>>, key: KeyOf| {
        let found = found.iter().filter_map(|it| str::from_utf8(it).ok());
        names.extend(found.filter_map(|found| name_of(found, key)));
    };
    for (key, kind) in [(str::to_owned as KeyOf, "hash"), (ExpirableKeys::timeouts, "zset")] {
        for pattern in patterns(pattern, key) {
            let mut cursor = "0".to_owned();
            loop {
                let command =
                    ["SCAN", &cursor, "MATCH", &pattern, "COUNT", SCAN_COUNT, "TYPE", kind];
                let (next, found) = read(&ask(&command)?)?;
                add(found, key);
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
    }
    let listed = if sharded { "SHARDCHANNELS" } else { "CHANNELS" };
    for channel in [SemaphoreKeys::channel as KeyOf, LatchKeys::channel] {
        for pattern in patterns(pattern, channel) {
            add(read(&ask(&["PUBSUB", listed, &pattern])?)?, channel);
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Returns the name and address of each connection of a server. Empty if the server refuses the
/// command.
///
/// In the reply, each connection is a line of `field=value` pairs.
pub(crate) fn connections(ask: impl FnOnce(&Command) -> Outcome) -> Vec<(String, Arc<str>)> {
    let list = match ask(&Command::plain(&[b"CLIENT", b"LIST"])) {
        Ok(Value::VerbatimString { text, .. }) => text,
        Ok(Value::BulkString(text)) => String::from_utf8_lossy(&text).into_owned(),
        _ => return Vec::new(),
    };
    let fields = |line: &str| {
        let field = |name| line.split(' ').find_map(|field| field.strip_prefix(name));
        Some((field("name=")?.to_owned(), field("addr=")?.into()))
    };
    list.lines().filter_map(fields).collect()
}
