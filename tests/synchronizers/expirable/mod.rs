//! The behaviour of the expirable semaphore for its threads, for other processes, and for
//! Redisson's clients. The tests cover the end of a process, and faults.
//!
//! Under every fault, the free and the taken permits together remain the number that was set.

mod faults;
mod leases;
mod meaning;
mod processes;
mod redisson;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::common::*;
use redis::{Commands as _, ConnectionLike as _, Script};
use redlatch::{
    CancelToken, Client, Error, ErrorKind, ExpirablePermit, ExpirableSemaphore, HoldState,
    LostReason, PermitId, Wait,
};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// A lease whose end a test waits for.
const LEASE: Duration = Duration::from_millis(5 * TIME_UNIT.as_millis() as u64);

/// The channel of a name without braces.
fn channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

fn timeouts(name: &str) -> String {
    format!("{{{name}}}:timeout")
}

fn semaphore(client: &Client, name: &str, permits: u32) -> ExpirableSemaphore {
    let semaphore = client.expirable_semaphore(name);
    assert!(semaphore.try_set_permits(permits).unwrap());
    semaphore
}

/// The numbers of free and taken permits, according to the keys.
fn stored(server: &Server, name: &str) -> (i64, i64) {
    let mut redis = server.connection();
    let mut both = redis::pipe();
    both.atomic().get(name).zcard(timeouts(name));
    let (free, out): (Option<i64>, i64) = both.query(&mut redis).unwrap();
    (free.unwrap_or(0), out)
}

/// Waits until these numbers of permits are free and taken, and asserts that they do not change for
/// some time.
#[track_caller]
fn stays(server: &Server, name: &str, free: i64, out: i64) {
    wait_until(&format!("{free} are free of {name:?}, {out} out"), TIMEOUT, || {
        stored(server, name) == (free, out)
    });
    // Time must pass here: a second release or take would come late.
    thread::sleep(TIME_UNIT * 2);
    assert_eq!(stored(server, name), (free, out), "{name:?}, later");
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// Returns a receiver that gets the reason of the guard's loss.
fn on_lost(permit: &ExpirablePermit) -> mpsc::Receiver<LostReason> {
    let (sender, lost) = mpsc::channel();
    permit.on_lost(move |why| sender.send(why).unwrap());
    lost
}

const TEXT_ID: &str = "00112233445566778899aabbccddeeff";
