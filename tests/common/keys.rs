//! The keys of locks on a server.

use std::iter;
use std::time::Duration;

use redis::{Commands as _, Connection};
use redlatch_testkit::Server;

use super::{TIMEOUT, wait_until};

/// Returns the owner in the lock's hash, with its count. There must be only one owner.
pub(crate) fn holder(connection: &mut Connection, name: &str) -> Option<(String, String)> {
    let mut fields: Vec<(String, String)> = connection.hgetall(name).unwrap();
    // This field is a read-write lock's mode, and not an owner.
    fields.retain(|(field, _)| field != "mode");
    assert!(fields.len() <= 1, "more than one holder of {name:?}: {fields:?}");
    fields.into_iter().next()
}

/// Returns the key's time to live in ms: -1 if it does not expire, -2 if there is no key.
pub(crate) fn pttl(connection: &mut Connection, name: &str) -> i64 {
    connection.pttl(name).unwrap()
}

/// Waits until the lease of the hold under this name has been extended.
#[track_caller]
pub(crate) fn wait_renewed(server: &Server, name: &str) {
    let mut redis = server.connection();
    let mut left = pttl(&mut redis, name);
    wait_until(&format!("{name:?} is renewed"), TIMEOUT, || {
        let before = std::mem::replace(&mut left, pttl(&mut redis, name));
        assert!(left > 0, "{name:?} is gone");
        left > before
    });
}

/// Like [`wait_renewed`], for the holds under all these names on their servers.
#[track_caller]
pub(crate) fn wait_all_renewed<'a>(held: impl IntoIterator<Item = (&'a Server, String)>) {
    let last = |(server, name): (&'a Server, String)| {
        let mut redis = server.connection();
        let left = pttl(&mut redis, &name);
        (redis, name, left)
    };
    let mut waited_for: Vec<_> = held.into_iter().map(last).collect();
    wait_until("all are renewed", TIMEOUT, || {
        waited_for.retain_mut(|(redis, name, left)| {
            let before = std::mem::replace(left, pttl(redis, name));
            assert!(*left > 0, "{name:?} is gone");
            *left <= before
        });
        waited_for.is_empty()
    });
}

/// Waits until the lock is free on the server.
#[track_caller]
pub(crate) fn wait_free(server: &Server, name: &str, timeout: Duration) {
    let mut connection = server.connection();
    wait_until(&format!("{name:?} is free"), timeout, || {
        !connection.exists::<_, bool>(name).unwrap()
    });
}

/// An owner in the form that a Java service uses.
pub(crate) const FOREIGN: &str = "7a1c3f5e-0b2d-4c6e-8f01-23456789abcd:53";

/// Takes the lock as a Java service would.
pub(crate) fn hold_as_redisson(connection: &mut Connection, name: &str, lease: Duration) {
    hold_as(connection, name, FOREIGN, lease);
}

pub(super) fn hold_as(connection: &mut Connection, name: &str, owner: &str, lease: Duration) {
    let () = redis::pipe()
        .atomic()
        .hset(name, owner, 1)
        .pexpire(name, i64::try_from(lease.as_millis()).unwrap())
        .query(connection)
        .unwrap();
}

/// Releases the lock as a Java service would, with a message on this channel.
pub(crate) fn release_as_redisson(connection: &mut Connection, name: &str, channel: &str) {
    let () = redis::pipe().atomic().del(name).publish(channel, "0").query(connection).unwrap();
}

/// Waits until this number of processes have an entry in the lock's queue.
pub(crate) fn wait_in_line(server: &Server, name: &str, places: u64) {
    let key = if name.contains('{') {
        format!("redlatch_queue_tagged:{name}")
    } else {
        format!("redlatch_queue:{{{name}}}")
    };
    let mut connection = server.connection();
    wait_until(&format!("{places} stand in line for {name:?}"), TIMEOUT, || {
        let length: u64 = redis::cmd("LLEN").arg(&key).query(&mut connection).unwrap();
        length >= places
    });
}

/// Returns how many times the lock of this name expires during `work`. If the lock never expires, a
/// message granted it to the waiter before the end of the lease. Other keys may expire in the
/// meantime, so they are not counted.
pub(crate) fn lapses(server: &Server, name: &str, work: impl FnOnce()) -> usize {
    let (mut redis, mut listener) = (server.connection(), server.connection());
    let set = ["SET", "notify-keyspace-events", "Ex"];
    redis::cmd("CONFIG").arg(&set).exec(&mut redis).unwrap();
    let mut listener = listener.as_pubsub();
    let over = "the work is over";
    listener.subscribe(&["__keyevent@0__:expired", over]).unwrap();
    work();
    let () = redis.publish(over, "").unwrap();
    let messages = iter::repeat_with(|| listener.get_message().unwrap());
    let until_then = messages.take_while(|message| message.get_channel_name() != over);
    until_then.filter(|message| message.get_payload_bytes() == name.as_bytes()).count()
}
