//! Holds that another process handed on: what is peculiar to them.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    LONG, Running, SOON, UNIT, bounded, client, contains, pttl, server, spawn, wait_free,
    wait_hearing, wait_in_line, wait_until, watched,
};
use redis::Commands as _;
use redlatch::{Client, LockGuard, ReentrantLock};
use redlatch_testkit::{Action, Direction, Proxy, Server};

/// For how long a lock is handed on at first.
const PROVISIONAL: Duration = Duration::from_secs(2);

/// Hands the lock of `name` to who waits for it: runs `work` with a guard that came by message.
fn handed<T: Send + 'static>(
    server: &Server,
    lock: &ReentrantLock,
    work: impl FnOnce(LockGuard) -> T + Send + 'static,
) -> Running<T> {
    let name = format!("{lock:?}").split('"').nth(1).unwrap().to_owned();
    let first = client(server);
    let guard = first.reentrant_lock(&name).lock().unwrap();
    let waits = lock.clone();
    let mut redis = server.connection();
    let key = name.clone();
    let waiter = spawn(move || {
        let guard = waits.lock().unwrap();
        assert!(pttl(&mut redis, &key) <= 2_000, "granted by message");
        work(guard)
    });
    wait_in_line(server, &name, 1);
    wait_hearing(server, 1);
    waiter.wait_asleep();
    guard.unlock().unwrap();
    waiter
}

fn renews(bytes: &[u8]) -> bool {
    let code = include_str!("../../lua/lock/renew.lua");
    contains(bytes, redis::Script::new(code).get_hash()) || contains(bytes, code)
}

/// A client behind a network, whose server knows the scripts.
fn behind(proxy: &Proxy) -> Client {
    let client =
        Client::builder(&proxy.url()).watchdog_timeout(LONG).connections(1).connect().unwrap();
    let lock = client.reentrant_lock("warm");
    let guards = (lock.lock().unwrap(), lock.with_lease(LONG * 2).lock().unwrap());
    guards.0.unlock().unwrap();
    guards.1.unlock().unwrap();
    client
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

#[test]
fn a_lease_that_is_shorter_than_it_was_handed_on_for_ends_for_others_too() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lease = UNIT * 3;
    let lock = client.reentrant_lock("short").with_lease(lease);
    let begun = Instant::now();
    let waiter = handed(&server, &lock, |guard| {
        thread::park_timeout(PROVISIONAL * 2);
        assert!(!guard.is_held());
    });
    wait_free(&server, "short", SOON);
    let took = begun.elapsed();
    assert!(took < PROVISIONAL, "{took:?}");
    waiter.join();
}

#[test]
fn who_was_told_and_is_stopped_costs_the_others_the_provisional_lease() {
    let _bounded = bounded();
    let server = server();
    let (first, last) = (client(&server), client(&server));
    let mut redis = server.connection();
    let guard = first.reentrant_lock("stopped").lock().unwrap();
    // Three that listen and do nothing.
    let stopped = "7a1c3f5e-0b2d-8c6e-8f01-23456789abcd";
    let mut listening = server.connection();
    let mut listening = listening.as_pubsub();
    listening.subscribe(format!("redisson_lock__channel:{{redlatch:{stopped}}}")).unwrap();
    for number in 1..=3 {
        let _: i64 =
            redis.rpush("redlatch_queue:{stopped}", format!("{stopped}:{number}")).unwrap();
    }
    let lock = last.reentrant_lock("stopped");
    let waiter = spawn(move || {
        lock.lock().unwrap().unlock().unwrap();
        Instant::now()
    });
    wait_in_line(&server, "stopped", 4);
    wait_hearing(&server, 2);
    waiter.wait_asleep();
    for number in 2..=3 {
        let _: i64 =
            redis.lrem("redlatch_queue:{stopped}", 1, format!("{stopped}:{number}")).unwrap();
    }
    let released = Instant::now();
    guard.unlock().unwrap();
    let took = waiter.join() - released;
    assert!(took < PROVISIONAL + UNIT * 12, "{took:?}");
}

#[test]
fn a_check_while_its_lease_is_being_raised_does_not_wait_for_that() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    proxy.on(Direction::Request, 1, Action::HoldReply, renews);
    let lock = client.reentrant_lock("raised");
    let mut redis = server.connection();
    let waiter = handed(&server, &lock, move |guard| {
        wait_until("it is raised", SOON, || pttl(&mut redis, "raised") > 2_000);
        guard.check(LONG / 2).unwrap();
    });
    waiter.join();
    proxy.release();
}

#[test]
fn a_level_of_the_watchdogs_takes_nothing_from_a_fixed_lease_that_is_longer() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, UNIT * 30);
    let lock = client.reentrant_lock("levels");
    let inner = lock.clone();
    let mut redis = server.connection();
    let waiter = handed(&server, &lock.with_lease(LONG), move |guard| {
        let level = inner.lock().unwrap();
        wait_until("it is raised", SOON, || pttl(&mut redis, "levels") > 2_000);
        thread::sleep(UNIT);
        drop(level);
        guard.check(LONG / 2).unwrap();
    });
    waiter.join();
}

#[test]
fn a_fixed_lease_outlives_its_thread() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("outlives").with_lease(LONG);
    handed(&server, &lock, LockGuard::forget).join();
    let mut redis = server.connection();
    wait_until("it is raised", SOON, || pttl(&mut redis, "outlives") > 2_000);
}

#[test]
fn many_fixed_leases_are_raised_in_time_at_a_distance() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let first = crate::common::client(&server);
    let names: Vec<String> = (0..60).map(|number| format!("far {number}")).collect();
    let guards: Vec<_> =
        names.iter().map(|name| first.reentrant_lock(name).lock().unwrap()).collect();
    let waiters: Vec<_> = names
        .iter()
        .map(|name| {
            let lock = client.reentrant_lock(name).with_lease(LONG);
            spawn(move || {
                let guard = lock.lock().unwrap();
                thread::sleep(PROVISIONAL * 2);
                guard.unlock()
            })
        })
        .collect();
    names.iter().for_each(|name| wait_in_line(&server, name, 1));
    wait_hearing(&server, 1);
    waiters.iter().for_each(Running::wait_asleep);
    proxy.set_delay(UNIT / 4);
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
    let lost = waiters.into_iter().map(Running::join).filter(Result::is_err).count();
    assert_eq!(lost, 0);
}

#[test]
fn a_raise_whose_reply_is_lost_is_tried_again_in_time() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    proxy.on(Direction::Request, 1, Action::Silence, renews);
    let lock = client.reentrant_lock("silent");
    let waiter = handed(&server, &lock, |guard| {
        thread::sleep(PROVISIONAL + UNIT * 5);
        guard.unlock()
    });
    waiter.join().unwrap();
}
/// The server's clock was set back by a second between the two, and the message was faster.
#[test]
fn a_grant_that_an_older_refusal_makes_void_is_asked_for_at_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    // The subscriber has its connection.
    handed(&server, &client.reentrant_lock("before"), LockGuard::unlock).join().unwrap();
    let first = crate::common::client(&server);
    let guard = first.reentrant_lock("void").lock().unwrap();
    proxy.on_request("redlatch_queue:{void}", Action::HoldReply);
    let lock = client.reentrant_lock("void");
    let waiter = spawn(move || {
        let guard = lock.lock().unwrap();
        (Instant::now(), guard.is_held())
    });
    proxy.wait_fired(1, SOON);
    let mut redis = server.connection();
    let places: Vec<String> = redis.lrange("redlatch_queue:{void}", 0, -1).unwrap();
    let (id, number) = places[0].split_once(':').unwrap();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let channel = format!("redisson_lock__channel:{{redlatch:{id}}}");
    let message = format!("grant {number} {}000 2000 lock,0,0,0 0 void", seconds - 1);
    let () = redis.publish(channel, message).unwrap();
    guard.unlock().unwrap();
    // It is read by then.
    thread::sleep(UNIT);
    let released = Instant::now();
    proxy.release();
    let (granted, held) = waiter.join();
    assert!(held && granted - released < UNIT * 10, "{:?}", granted - released);
}
