//! The channels of locks and clients.

use std::sync::atomic::{AtomicU64, Ordering};

use redis::Commands as _;
use redlatch_testkit::Server;

use super::keys::hold_as;
use super::{LONG_LEASE, TIMEOUT, wait_until};

/// Returns the channel of a name without braces.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Waits until a client listens to the lock's channel.
#[track_caller]
pub(crate) fn wait_subscribed(server: &Server, channel: &str) {
    let mut connection = server.connection();
    wait_until(&format!("somebody listens to {channel:?}"), TIMEOUT, || {
        let (_, listeners): (String, u64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(&mut connection).unwrap();
        listeners > 0
    });
}

/// Waits until the server has no subscriber of a channel. The server notices the death of a process
/// a moment late.
#[track_caller]
pub(crate) fn wait_deaf(server: &Server, channel: &str) {
    let mut connection = server.connection();
    wait_until(&format!("nobody listens to {channel:?}"), TIMEOUT, || {
        let (_, listeners): (String, u64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg(channel).query(&mut connection).unwrap();
        listeners == 0
    });
}

/// Returns the channel on which scripts send messages to the client of this owner.
pub(crate) fn own_channel(owner: &str) -> String {
    format!("redisson_lock__channel:{{redlatch:{}}}", owner.split(':').next().unwrap())
}

/// Waits until this number of clients have subscribed to their own channels.
#[track_caller]
pub(crate) fn wait_hearing(server: &Server, clients: usize) {
    let mut redis = server.connection();
    wait_until("they hear", TIMEOUT, || {
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("redisson_lock__channel:{redlatch:*")
            .query(&mut redis)
            .unwrap();
        channels.len() >= clients
    });
}

/// Waits until the client of `owner` has read all earlier messages. The function sends grants for
/// unknown owners after these messages, and waits until the client has given them back. It sends
/// several grants, because commands wait on one of the client's two connections if a thread waits
/// for a reply there.
pub(crate) fn wait_read(server: &Server, owner: &str, release: impl FnOnce()) {
    static READ: AtomicU64 = AtomicU64::new(0);
    let number = READ.fetch_add(1, Ordering::Relaxed);
    let mut redis = server.connection();
    let stray = format!("{}:777777", owner.split_once(':').unwrap().0);
    let names: Vec<_> = (0..32).map(|at| format!("stray {number} {at}")).collect();
    for name in &names {
        hold_as(&mut redis, name, &stray, LONG_LEASE);
        let message = format!("grant 777777 0 2000 lock,0,0,0 0 {name}");
        let heard: u64 = redis.publish(own_channel(&stray), message).unwrap();
        assert_eq!(heard, 1);
    }
    release();
    wait_until("it is read", TIMEOUT, || redis.exists::<_, usize>(&names).unwrap() < names.len());
}
