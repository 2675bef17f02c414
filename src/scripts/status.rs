//! The script that looks at any name.

use std::sync::{Arc, LazyLock};

use redis::Value;
use redlatch_client::{Command, Outcome, Route, Script};

use super::trouble::unexpected;
use super::{
    ExpirableKeys, FairKeys, LatchKeys, LockKeys, Mode, Rights, SemaphoreKeys, Trouble, accepted,
    ask,
};

static LOOK: LazyLock<Script> = script!(LIST; "status/look.lua");

/// How many keys the server looks at in one go: 0.1 ms of its time, where 1,000 took 1 ms.
const AT_ONCE: &[u8] = b"100";

/// What is under a name's keys.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The type of the key, in the server's word.
    pub(crate) kind: String,
    /// As `PTTL` has it.
    pub(crate) left: i64,
    /// The server's time, in ms since 1970.
    pub(crate) now: i64,
    /// The content of a text: its beginning, if it is longer than any number.
    pub(crate) value: String,
    pub(crate) token: Option<u64>,
    /// A hash's fields and values, and how long a reader of that name reads.
    pub(crate) fields: Vec<(String, String, i64)>,
    /// The kind of lock that each waits for, `fair`, `lock` or `read-write`; its owner; since when.
    pub(crate) queue: Vec<(String, String, Option<i64>)>,
    /// Ids, and when their leases end, in ms since 1970.
    pub(crate) permits: Vec<(Vec<u8>, f64)>,
    /// How many of Redisson's clients listen for releases of a lock and of a read-write lock, and
    /// how many of all for changes of a semaphore and of a latch.
    pub(crate) listeners: [u64; 4],
}

/// Looks at a name.
pub(crate) fn look(route: &Route, name: &str) -> Result<Found, Trouble> {
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
    let keys: Vec<_> = keys.iter().map(String::as_bytes).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_bytes).collect();
    let command = Command::script(&LOOK, &keys, &arguments);
    ask(route, &command, Rights::Status, |reply| match read(&reply) {
        Some(found) => Ok(found),
        None => Err(unexpected(&reply)),
    })
}

/// The names that a server may have something to say of, in the server's order.
///
/// A lock is a hash, an expirable semaphore with permits out has a sorted set, and processes that
/// wait for a semaphore or a latch listen to its channel.
pub(crate) fn names(
    pattern: &str,
    sharded: bool,
    ask: impl Fn(&Command) -> Outcome,
) -> Result<Vec<String>, Trouble> {
    let mut names = Vec::new();
    let (locks, timeouts) = (pattern.to_owned(), ExpirableKeys::timeouts(pattern));
    for (pattern, kind) in [(locks, "hash"), (timeouts, "zset")] {
        let mut cursor = b"0".to_vec();
        loop {
            let command: [&[u8]; 8] = [
                b"SCAN",
                &cursor,
                b"MATCH",
                pattern.as_bytes(),
                b"COUNT",
                AT_ONCE,
                b"TYPE",
                kind.as_bytes(),
            ];
            let reply = accepted(ask(&Command::plain(&command)), Rights::Status)?;
            let Some([Value::BulkString(next), keys]) = list(&reply) else {
                return Err(unexpected(&reply));
            };
            cursor.clone_from(next);
            names.extend(
                list(keys)
                    .into_iter()
                    .flatten()
                    .filter_map(text)
                    .map(|key| if kind == "zset" { ExpirableKeys::name(&key) } else { key }),
            );
            if cursor == b"0" {
                break;
            }
        }
    }
    let channels: &[u8] = if sharded { b"SHARDCHANNELS" } else { b"CHANNELS" };
    for channel in [SemaphoreKeys::channel as fn(&str) -> String, LatchKeys::channel] {
        let pattern = channel(pattern);
        let command = Command::plain(&[b"PUBSUB", channels, pattern.as_bytes()]);
        let reply = accepted(ask(&command), Rights::Status)?;
        let heard = list(&reply).into_iter().flatten().filter_map(text);
        names.extend(heard.filter_map(|channel| {
            let (_, name) = channel.split_once(['{'])?;
            Some(name.strip_suffix('}')?.to_owned())
        }));
    }
    Ok(names)
}

/// The name of each connection of a server, and its address; none if the server refuses.
///
/// In the reply a connection is a line of `field=value`.
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

fn read(reply: &Value) -> Option<Found> {
    let Value::Array(parts) = reply else { return None };
    let [kind, left, now, value, token, fields, queue, permits, listeners] = &parts[..] else {
        return None;
    };
    let listeners = groups(listeners, |[_channel, count]| number(count))?;
    let heard = |at| u64::try_from(listeners.get(at).copied().unwrap_or(0)).unwrap_or(0);
    Some(Found {
        kind: text(kind)?,
        left: number(left)?,
        now: number(now)?,
        value: text(value)?,
        token: text(token)?.parse().ok(),
        fields: groups(fields, |[name, value, left]| {
            Some((text(name)?, text(value)?, number(left)?))
        })?,
        queue: groups(queue, |[kind, owner, since]| {
            Some((text(kind)?, text(owner)?, text(since)?.parse().ok()))
        })?,
        permits: groups(permits, |[id, ends]| {
            let Value::BulkString(id) = id else { return None };
            Some((id.clone(), text(ends)?.parse().ok()?))
        })?,
        listeners: [
            heard(0).saturating_sub(heard(1)),
            heard(2).saturating_sub(heard(3)),
            heard(4),
            heard(5),
        ],
    })
}

/// What each `N` values of a list mean. `None`: the reply makes no sense.
fn groups<const N: usize, T>(
    value: &Value,
    read: impl Fn(&[Value; N]) -> Option<T>,
) -> Option<Vec<T>> {
    list(value)?.as_chunks().0.iter().map(read).collect()
}

fn list(value: &Value) -> Option<&[Value]> {
    if let Value::Array(parts) = value { Some(parts) } else { None }
}

fn number(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(*number) } else { None }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}
