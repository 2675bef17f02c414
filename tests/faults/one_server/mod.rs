//! Faults of one server and of its network. Each fault ends in a grant, a clear error or a lost
//! guard. No fault causes a hang, two holders, or a hold without a guard.
//!
//! Unless a test says otherwise, the leases do not end during the test. So if a lock is free again,
//! it was released.

mod connections;
mod mid_life;
mod outage;
mod processes;
mod replies;
mod rights;
mod server;

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{Client, ErrorKind, HoldState, Lock, LostReason};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// A lease that is short enough for a test to wait for its end.
const LEASE: Duration = Duration::from_millis(6 * TIME_UNIT.as_millis() as u64);

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let lease = Duration::from_millis(job.arg(2).parse().unwrap());
    let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
    let lock = client.reentrant_lock(job.arg(1));
    match job.role() {
        // The worker holds the lock until the test asks for its state.
        "holder" | "leader" => {
            let own = lock.with_watchdog(SHORT_LEASE);
            let lock = if job.role() == "leader" { own } else { lock };
            let guard = lock.lock().unwrap();
            let calls = Arc::new(AtomicU64::new(0));
            let told = Arc::clone(&calls);
            guard.on_lost(move |_| {
                told.fetch_add(1, Ordering::SeqCst);
            });
            job.say("held");
            let _ = job.wait_line();
            let state = guard.state();
            let check = guard.check(Duration::ZERO).map_err(|error| error.kind());
            let unlocked = guard.unlock().map_err(|error| error.kind());
            job.say(&format!("found {state:?} {check:?} {unlocked:?}"));
            let _ = job.wait_line();
            job.say(&format!("calls {}", calls.load(Ordering::SeqCst)));
        }
        // The worker takes the lock again and again, as others do.
        "waiter" => {
            job.say("waits");
            let guard = lock.lock().unwrap();
            job.say("got it");
            let _ = job.wait_line();
            guard.unlock().unwrap();
            job.say("released");
        }
        role => panic!("no role {role}"),
    }
    let _ = job.wait_line();
}

fn process(role: &str, server: &Server, name: &str, lease: Duration) -> Worker {
    let lease = lease.as_millis().to_string();
    Worker::spawn_test("one_server::worker", role, &[&server.url(), name, &lease])
}

macro_rules! lock_script {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../../../lua/lock/", $file))),+)
    };
}

/// Whether the request calls any of these scripts.
fn calls(bytes: &[u8], scripts: &[&str]) -> bool {
    scripts
        .iter()
        .any(|code| contains(bytes, redis::Script::new(code).get_hash()) || contains(bytes, code))
}

/// Whether the request takes a lock or extends its lease.
fn takes(bytes: &[u8]) -> bool {
    let renew = lock_script!("cut.lua", "renew.lua");
    calls(
        bytes,
        &[
            lock_script!(
                "free.lua",
                "queue_up.lua",
                "../prelude.lua",
                "../hand_off.lua",
                "holder.lua",
                "owner.lua",
                "acquire.lua"
            ),
            lock_script!(
                "queue_up.lua",
                "free.lua",
                "../prelude.lua",
                "../hand_off.lua",
                "holder.lua",
                "owner.lua",
                "acquire.lua"
            ),
            lock_script!(
                "free.lua",
                "../prelude.lua",
                "../hand_off.lua",
                "holder.lua",
                "owner.lua",
                "try.lua"
            ),
            renew,
        ],
    )
}

fn gives_back(bytes: &[u8]) -> bool {
    calls(
        bytes,
        &[
            lock_script!(
                "hand_over.lua",
                "../prelude.lua",
                "../hand_off.lua",
                "holder.lua",
                "release.lua"
            ),
            lock_script!("../prelude.lua", "../hand_off.lua", "holder.lua", "give_up.lua"),
            lock_script!(
                "../prelude.lua",
                "../hand_off.lua",
                "holder.lua",
                "owner.lua",
                "force_unlock.lua"
            ),
        ],
    )
}

fn is_script(bytes: &[u8]) -> bool {
    contains(bytes, "EVAL")
}

/// Applies the action to the next requests that take the lock of this name.
fn on_acquire(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| takes(bytes) && contains(bytes, name));
}

/// Applies the action to the next requests that release the lock of this name.
fn on_release(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        gives_back(bytes) && contains(bytes, &channel(name))
    });
}

/// Returns a client that connects through a proxy. The client's connection is open, and the server
/// has its scripts.
fn behind(proxy: &Proxy) -> Client {
    crate::common::behind(proxy, warm_up)
}

fn warm_up(client: &Client) {
    let lock = client.reentrant_lock("warm");
    // The first call also checks the rights, with another text of the script. So the server knows
    // the script only after the second call.
    lock.lock().unwrap().unlock().unwrap();
    let guards = (lock.lock().unwrap(), lock.with_lease(LONG_LEASE * 2).lock().unwrap());
    guards.0.unlock().unwrap();
    guards.1.unlock().unwrap();
    assert!(!lock.force_unlock().unwrap());
}

fn new_user(server: &Server) -> User {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    User::new(server, &format!("user{}", NUMBER.fetch_add(1, Ordering::SeqCst)))
}

/// Returns a client whose user has only these rights.
fn user(server: &Server, rights: &[&str]) -> Client {
    let mut user = new_user(server);
    user.set(rights);
    user.client()
}

/// Closes all connections of this type, as an administrator would.
fn kill_clients(connection: &mut redis::Connection, kind: &str) {
    let _: u64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", kind, "SKIPME", "yes"])
        .query(connection)
        .unwrap();
}
