//! Holds that another process handed on: what is peculiar to them.

#![allow(clippy::unwrap_used)]

mod common;

use std::thread;
use std::time::Duration;

use common::{SOON, UNIT, bounded, client, server, spawn, wait_in_line, wait_until};
use redis::Commands as _;
use redlatch_testkit::Server;

/// Waits until so many clients hear what is said to them alone.
fn wait_hearing(server: &Server, clients: usize) {
    let mut redis = server.connection();
    wait_until("they hear", SOON, || {
        let channels: Vec<String> = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .arg("redisson_lock__channel:{redlatch:*")
            .query(&mut redis)
            .unwrap();
        channels.len() >= clients
    });
}

#[test]
fn a_wait_behind_the_longest_lease_is_one_like_any_other() {
    let _bounded = bounded();
    let server = server();
    let (ours, theirs) = (client(&server), client(&server));
    let longest = Duration::from_millis(1_000_000_000_000_000);
    let guard = ours.reentrant_lock("ages").with_lease(longest).lock().unwrap();
    let lock = theirs.reentrant_lock("ages");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "ages", 1);
    waiter.wait_asleep();
    guard.unlock().unwrap();
    waiter.join();
}

#[test]
fn a_grant_of_a_time_that_no_clock_shows_is_no_panic() {
    let _bounded = bounded();
    let server = server();
    let (ours, theirs) = (client(&server), client(&server));
    let guard = ours.reentrant_lock("garbage").lock().unwrap();
    let lock = theirs.reentrant_lock("garbage");
    let waiter = spawn(move || lock.lock().map(drop));
    wait_in_line(&server, "garbage", 1);
    wait_hearing(&server, 1);
    waiter.wait_asleep();
    let mut redis = server.connection();
    let places: Vec<String> = redis.lrange("redlatch_queue:{garbage}", 0, -1).unwrap();
    let (client, number) = places[0].split_once(':').unwrap();
    let channel = format!("redisson_lock__channel:{{redlatch:{client}}}");
    let message = format!("grant {number} {} 1 lock,0,0,0 0 garbage", u64::MAX);
    let () = redis.publish(channel, message).unwrap();
    thread::sleep(UNIT);
    guard.unlock().unwrap();
    waiter.join().unwrap();
}
