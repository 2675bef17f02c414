//! Servers with Sentinels: how clients find the master, and the effects of a failover on locks.

mod addresses;
mod failover;
mod master;
mod processes;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, ClientBuilder, Error, ErrorKind, Lock, LockGuard, LostReason, MultiLock,
};
use redlatch_testkit::{Action, Job, Proxy, Sentinels, SentinelsBuilder, Server, Worker};

/// A lease whose first renewal, after a third of the lease, comes later than the end of any test.
const LONGER: Duration = Duration::from_secs(4 * LONG_LEASE.as_secs());

fn sentinels() -> Sentinels {
    bound();
    started(Sentinels::builder())
}

fn started(builder: SentinelsBuilder) -> Sentinels {
    builder.start().unwrap()
}

fn client_of(sentinels: &Sentinels) -> Client {
    builder(&sentinels.url()).connect().unwrap()
}

fn builder(url: &str) -> ClientBuilder {
    Client::builder(url).watchdog_timeout(LONG_LEASE)
}

fn refused(url: &str) -> Error {
    builder(url).connect_timeout(TIME_UNIT * 20).connect().map(drop).unwrap_err()
}

/// Returns a receiver that gets the reason of a guard's loss.
fn losses(guard: &LockGuard) -> Receiver<LostReason> {
    let (sender, lost) = mpsc::channel();
    guard.on_lost(move |why| sender.send(why).unwrap());
    lost
}

/// Changes the data of a replica, as if it had received other commands than its master.
fn writing(replica: &mut redis::Connection, change: impl FnOnce(&mut redis::Connection)) {
    let set = |redis: &mut redis::Connection, value: &str| {
        let args = ["SET", "replica-read-only", value];
        redis::cmd("CONFIG").arg(&args).exec(redis).unwrap();
    };
    set(replica, "no");
    change(replica);
    set(replica, "yes");
}

/// Removes the key from the replicas, as if the master had failed before they received it.
fn keep_from_replicas(sentinels: &Sentinels, key: &str) {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        wait_until("it is replicated", TIMEOUT, || redis.exists(key).unwrap());
        let set = |redis: &mut redis::Connection, value: &str| {
            let args = ["SET", "replica-read-only", value];
            redis::cmd("CONFIG").arg(&args).exec(redis).unwrap();
        };
        set(&mut redis, "no");
        let () = redis.del(key).unwrap();
        set(&mut redis, "yes");
    }
}

/// Sets `keys` on the replicas to their earlier values, as if no command had come since then.
fn put_back_on_replicas(sentinels: &Sentinels, keys: &[(String, Vec<u8>)]) {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        let set = |redis: &mut redis::Connection, value: &str| {
            let args = ["SET", "replica-read-only", value];
            redis::cmd("CONFIG").arg(&args).exec(redis).unwrap();
        };
        set(&mut redis, "no");
        for (key, then) in keys {
            wait_until("it has heard of the end", TIMEOUT, || {
                !redis.exists::<_, bool>(key).unwrap()
            });
            let ttl = LONG_LEASE.as_millis() as u64;
            redis::cmd("RESTORE").arg(key).arg(ttl).arg(then).exec(&mut redis).unwrap();
        }
        set(&mut redis, "yes");
    }
}

fn locks(client: &Client, name: &str) -> [Box<dyn Lock>; 5] {
    let of = |kind: &str| format!("{name} {kind}");
    [
        Box::new(client.reentrant_lock(&of("reentrant"))),
        Box::new(client.fenced_lock(&of("fenced"))),
        Box::new(client.fair_lock(&of("fair"))),
        Box::new(client.read_write_lock(&of("read")).reader().clone()),
        Box::new(client.read_write_lock(&of("write")).writer().clone()),
    ]
}

fn wait_replicated(sentinels: &Sentinels, key: &str) {
    for replica in sentinels.replicas() {
        let mut redis = replica.connection();
        wait_until("it is replicated", TIMEOUT, || redis.exists(key).unwrap());
    }
}

// The following code is for locks after a failover.

/// How a master ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Killed,
    Stopped,
    Replaced,
}

impl End {
    /// Ends the master. Returns the time at which this began, and the time at which the Sentinels
    /// have chosen another master.
    fn of(self, sentinels: &Sentinels) -> (Instant, Instant) {
        let old = sentinels.master();
        let begun = Instant::now();
        match self {
            Self::Killed => old.kill(),
            Self::Stopped => old.pause(),
            Self::Replaced => sentinels.fail_over(),
        }
        (begun, sentinels.wait_switched(old))
    }
}
