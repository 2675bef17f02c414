//! What the semaphore means: to its threads, to other clients, on the wire, and when things break.
//!
//! Whatever breaks, the sum of the free permits and of those that are out is what was set.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, Error, ErrorKind, Permit, Semaphore};
use redlatch_testkit::{Action, Direction, Job, Proxy, Server, Worker};

/// The channel of a name without braces.
fn channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

fn semaphore(client: &Client, name: &str, permits: u32) -> Semaphore {
    let semaphore = client.semaphore(name);
    assert!(semaphore.try_set_permits(permits).unwrap());
    semaphore
}

/// Waits until so many permits are free on the server.
#[track_caller]
fn wait_permits(server: &Server, name: &str, permits: i64) {
    let mut redis = server.connection();
    let mut free = None;
    let until = Instant::now() + SOON;
    while free != Some(permits) {
        assert!(Instant::now() < until, "{name:?} has {free:?} permits, not {permits}");
        free = redis.get(name).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

/// As [`wait_permits`], and a while later it is still so.
#[track_caller]
fn stays(server: &Server, name: &str, permits: i64) {
    wait_permits(server, name, permits);
    // Time is the subject: what is given twice comes late.
    thread::sleep(UNIT * 2);
    assert_eq!(server.connection().get::<_, i64>(name).unwrap(), permits, "{name:?}, later");
}

/// What `work` has the server publish.
fn messages(server: &Server, pattern: &str, work: impl FnOnce()) -> Vec<(String, String)> {
    let mut connection = server.connection();
    let mut subscriber = connection.as_pubsub();
    subscriber.psubscribe(pattern).unwrap();
    subscriber.subscribe("end").unwrap();
    work();
    let () = server.connection().publish("end", "").unwrap();
    let mut messages = Vec::new();
    loop {
        let message = subscriber.get_message().unwrap();
        if message.get_channel_name() == "end" {
            return messages;
        }
        messages.push((message.get_channel_name().to_owned(), message.get_payload().unwrap()));
    }
}

// What it means.

#[test]
fn permits_are_set_once_added_taken_away_and_drained() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).semaphore("numbers");
    assert_eq!(semaphore.name(), "numbers");
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert_eq!(semaphore.drain_permits().unwrap(), 0);
    assert!(semaphore.try_set_permits(3).unwrap());
    assert!(!semaphore.try_set_permits(7).unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    semaphore.add_permits(4).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 7);
    semaphore.add_permits(-9).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), -2);
    assert!(semaphore.try_acquire().unwrap().is_none());
    assert_eq!(semaphore.drain_permits().unwrap(), -2);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    semaphore.add_permits(5).unwrap();
    assert_eq!(semaphore.drain_permits().unwrap(), 5);
    assert!(!semaphore.try_set_permits(1).unwrap(), "none free is not none there");
    semaphore.add_permits(i64::from(u32::MAX) * 2).unwrap();
    let many = semaphore.acquire_many(u32::MAX).unwrap();
    assert_eq!(many.permits(), u32::MAX);
    many.release().unwrap();
    assert_eq!(semaphore.drain_permits().unwrap(), i64::from(u32::MAX) * 2);
}

#[test]
fn numbers_are_exact_up_to_the_largest() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let semaphore = behind(&proxy).semaphore("large");
    for permits in [(1 << 53) - 1, (1 << 53) + 1, i64::MAX - 1, i64::MAX, -(1 << 53) - 1] {
        for lost in [0, 1] {
            semaphore.add_permits(permits).unwrap();
            assert_eq!(semaphore.available_permits().unwrap(), permits);
            // A copy is answered what was remembered.
            on_acquire(&proxy, "large", lost, Action::LoseReply);
            assert_eq!(semaphore.drain_permits().unwrap(), permits, "{lost} replies lost");
            assert_eq!(semaphore.available_permits().unwrap(), 0);
        }
    }
    semaphore.add_permits(i64::MAX).unwrap();
    let error = semaphore.release().unwrap_err();
    is_clear(&error, "large", "no permit was given back");
    assert_eq!(semaphore.available_permits().unwrap(), i64::MAX);
}

#[test]
fn a_java_service_can_read_how_many_are_free() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    // It takes the lower 32 bits for a number with a sign, and wakes nobody, or fails, if that is
    // not above zero.
    let heard = messages(&server, "redisson_sc:*", || {
        let semaphore = client.semaphore("many");
        assert!(semaphore.try_set_permits(u32::MAX).unwrap());
        semaphore.set_permits(1 << 31).unwrap();
        semaphore.add_permits(1 << 31).unwrap();
        semaphore.add_permits(1 << 60).unwrap();
        semaphore.release().unwrap();
        drop(semaphore.acquire().unwrap());
        semaphore.set_permits(i32::MAX.unsigned_abs() - 1).unwrap();
    });
    let heard: Vec<_> = heard.into_iter().map(|(_, free)| free.parse::<i32>()).collect();
    let most = Ok(i32::MAX);
    let expected = [most.clone(), most.clone(), most.clone(), most.clone(), most.clone(), most];
    assert_eq!(heard[..6], expected);
    assert_eq!(heard[6..], [Ok(i32::MAX - 1)]);
}

#[test]
fn what_was_taken_comes_back_by_release_and_by_drop() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "taken", 5);
    let (one, two) = (semaphore.acquire().unwrap(), semaphore.acquire_many(2).unwrap());
    assert_eq!((one.permits(), two.permits()), (1, 2));
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    assert!(semaphore.try_acquire_many(3).unwrap().is_none());
    assert_eq!(semaphore.available_permits().unwrap(), 2, "none is taken before all are there");
    let rest = semaphore.try_acquire_many(2).unwrap().unwrap();
    assert!(semaphore.try_acquire().unwrap().is_none());
    one.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    // Permits belong to no thread.
    elsewhere(move || drop(two));
    wait_permits(&server, "taken", 3);
    drop(rest);
    // The drop's release is ordered before this.
    assert_eq!(semaphore.available_permits().unwrap(), 5);
}

#[test]
fn permits_are_split_merged_forgotten_and_released_without_one() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let other = semaphore(&client, "other", 1).acquire().unwrap();
    let semaphore = semaphore(&client, "split", 6);
    let mut permit = semaphore.acquire_many(5).unwrap();
    assert!(permit.split(6).is_none());
    assert_eq!(permit.permits(), 5);
    let two = permit.split(2).unwrap();
    assert_eq!((permit.permits(), two.permits()), (3, 2));
    drop(permit.split(1).unwrap());
    wait_permits(&server, "split", 2);
    permit.merge(two).unwrap();
    assert_eq!(permit.permits(), 4);
    let other = permit.merge(other).unwrap_err();
    assert_eq!((permit.permits(), other.permits()), (4, 1));
    // Another client's permit is released by that one.
    let foreign = common::client(&server).semaphore("split").acquire().unwrap();
    drop(permit.merge(foreign).unwrap_err());
    wait_permits(&server, "split", 2);
    permit.forget();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    semaphore.release_many(3).unwrap();
    semaphore.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 6);
    let mut empty = semaphore.acquire().unwrap();
    let all = empty.split(1).unwrap();
    assert_eq!(empty.permits(), 0);
    empty.release().unwrap();
    drop(all);
    assert_eq!(semaphore.available_permits().unwrap(), 6);
}

#[test]
fn a_release_makes_a_semaphore_unless_it_is_only_for_one_that_exists() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).semaphore("absent");
    assert!(!semaphore.release_if_exists(2).unwrap());
    assert!(!server.connection().exists::<_, bool>("absent").unwrap());
    semaphore.release().unwrap();
    assert!(semaphore.release_if_exists(2).unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 3);
}

#[test]
fn no_permits_are_granted_at_once() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).semaphore("zero");
    let before = Commands::so_far(&server).scripts();
    drop(semaphore.acquire_many(0).unwrap());
    semaphore.try_acquire_many(0).unwrap().unwrap().release().unwrap();
    drop(semaphore.try_acquire_many_for(0, LONG).unwrap().unwrap());
    semaphore.release_many(0).unwrap();
    assert_eq!(Commands::so_far(&server).scripts(), before);
    assert!(!server.connection().exists::<_, bool>("zero").unwrap());
}

#[test]
fn a_bounded_wait_ends_at_its_deadline_and_takes_nothing() {
    let _bounded = bounded();
    let server = server();
    let semaphore = semaphore(&client(&server), "bounded", 1);
    let begun = Instant::now();
    assert!(semaphore.try_acquire_many_for(2, UNIT).unwrap().is_none());
    assert!(begun.elapsed() >= UNIT);
    let held = semaphore.try_acquire_for(SOON).unwrap().unwrap();
    let begun = Instant::now();
    assert!(semaphore.try_acquire_for(UNIT).unwrap().is_none());
    assert!(semaphore.try_acquire_until(begun + UNIT * 2).unwrap().is_none());
    let took = begun.elapsed();
    assert!(took >= UNIT * 2 && took < BEFORE_A_POLL, "{took:?}");
    assert!(semaphore.try_acquire_for(Duration::ZERO).unwrap().is_none());
    assert!(semaphore.try_acquire_until(Instant::now()).unwrap().is_none());
    held.release().unwrap();
    assert!(semaphore.try_acquire_for(Duration::MAX).unwrap().is_some());
    stays(&server, "bounded", 1);
}

#[test]
fn a_cancel_ends_the_wait_of_the_first_and_of_those_behind() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).semaphore("cancelled");
    let tokens: Vec<_> = (0..3).map(|_| CancelToken::new()).collect();
    let waiters: Vec<_> = tokens
        .iter()
        .map(|token| {
            let (semaphore, token) = (semaphore.clone(), token.clone());
            let waiter = spawn(move || semaphore.acquire_cancellable(&token).map(drop));
            waiter.wait_asleep();
            waiter
        })
        .collect();
    for at in [1, 0, 2] {
        tokens[at].cancel();
        wait_until("it ends", SOON, || waiters[at].is_finished());
    }
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    let error = semaphore.acquire_cancellable(&tokens[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    semaphore.release().unwrap();
    drop(semaphore.acquire_cancellable(&CancelToken::new()).unwrap());
    stays(&server, "cancelled", 1);
}

#[test]
fn a_shutdown_ends_all_waits() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("shut");
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let semaphore = semaphore.clone();
            let waiter = spawn(move || semaphore.acquire().map(drop));
            waiter.wait_asleep();
            waiter
        })
        .collect();
    client.shutdown();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::ShutDown);
    }
    assert_eq!(semaphore.release().unwrap_err().kind(), ErrorKind::ShutDown);
}

#[test]
fn threads_of_one_process_are_served_in_the_order_they_came() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).semaphore("order");
    let served = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = [3, 1, 1, 2]
        .into_iter()
        .enumerate()
        .map(|(at, need)| {
            let (semaphore, served) = (semaphore.clone(), Arc::clone(&served));
            let waiter = spawn(move || {
                let permit = semaphore.acquire_many(need).unwrap();
                served.lock().unwrap().push(at);
                permit.forget();
            });
            waiter.wait_queued();
            waiter
        })
        .collect();
    // Enough for those behind, not for the first: nobody passes it.
    semaphore.release_many(2).unwrap();
    assert!(semaphore.try_acquire().unwrap().is_none(), "nor does one that does not wait");
    thread::sleep(UNIT);
    assert!(served.lock().unwrap().is_empty());
    for at in 0..5 {
        semaphore.release().unwrap();
        let expected = [1, 2, 3, 3, 4][at];
        wait_until("the next are served", SOON, || served.lock().unwrap().len() == expected);
    }
    waiters.into_iter().for_each(Running::join);
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
    stays(&server, "order", 0);
}

#[test]
fn small_releases_add_up_for_one_that_needs_many() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = one.semaphore("sum");
    for releaser in [&one, &other] {
        let releaser = releaser.semaphore("sum");
        let waiting = semaphore.clone();
        let waiter = spawn(move || waiting.acquire_many(3).unwrap().forget());
        wait_subscribed(&server, &channel("sum"));
        waiter.wait_asleep();
        let begun = Instant::now();
        for _ in 0..3 {
            assert!(!waiter.is_finished());
            releaser.release().unwrap();
        }
        waiter.join();
        assert!(begun.elapsed() < BEFORE_A_POLL);
        assert_eq!(semaphore.available_permits().unwrap(), 0);
    }
}

#[test]
fn two_processes_that_need_many_do_not_keep_parts_from_each_other() {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let first = semaphore(&clients[0], "parts", 3);
    let waiters: Vec<_> = (0..8)
        .map(|at| {
            let semaphore = clients[at % 2].semaphore("parts");
            spawn(move || {
                for round in 0..50 {
                    let need = u32::try_from((at + round) % 3 + 1).unwrap();
                    let mut permit = semaphore.acquire_many(need).unwrap();
                    // Given back one by one.
                    while let Some(part) = permit.split(1) {
                        drop(part);
                    }
                }
            })
        })
        .collect();
    waiters.into_iter().for_each(Running::join);
    wait_permits(&server, "parts", 3);
    assert_eq!(first.available_permits().unwrap(), 3);
}

#[test]
fn a_waiter_asks_once_for_a_message_and_not_in_between() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("quiet");
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let semaphore = semaphore.clone();
            let waiter = spawn(move || semaphore.acquire().unwrap().forget());
            waiter.wait_queued();
            waiter
        })
        .collect();
    let before = Commands::so_far(&server).scripts();
    thread::sleep(UNIT * 3);
    let polled = Commands::so_far(&server).scripts() - before;
    assert!(polled <= 1, "{polled} scripts of sleepers");
    semaphore.release_many(20).unwrap();
    waiters.into_iter().for_each(Running::join);
    stays(&server, "quiet", 0);
}

/// Gives permits back as a Java service does: nobody of this process knows who hears of it.
fn release_as_java(server: &Server, name: &str, permits: i64) {
    let () = redis::pipe()
        .atomic()
        .incr(name, permits)
        .publish(channel(name), permits)
        .query(&mut server.connection())
        .unwrap();
}

/// So many threads that each wait for a permit and keep it, and what cancels each.
fn queue(semaphore: &Semaphore, threads: usize) -> Vec<(Running<Result<(), Error>>, CancelToken)> {
    let waiters = (0..threads).map(|_| {
        let (semaphore, token) = (semaphore.clone(), CancelToken::new());
        let cancel = token.clone();
        let waiter = spawn(move || semaphore.acquire_cancellable(&token).map(Permit::forget));
        waiter.wait_queued();
        (waiter, cancel)
    });
    waiters.collect()
}

#[test]
fn the_first_in_line_asks_for_those_behind_it_too() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let waiters = queue(&client.semaphore("all"), 20);
    wait_subscribed(&server, &channel("all"));
    let before = Commands::so_far(&server).scripts();
    release_as_java(&server, "all", 20);
    for (waiter, _) in waiters {
        waiter.join().unwrap();
    }
    // Half of what is free each time, since another process might wait as well.
    let asked = Commands::so_far(&server).scripts() - before;
    assert!(asked <= 10, "{asked} requests for 20 permits");
    stays(&server, "all", 0);
}

#[test]
fn what_was_asked_for_those_who_left_meanwhile_goes_back_at_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::connect(&proxy.url()).unwrap();
    let waiters = queue(&client.semaphore("left"), 4);
    wait_subscribed(&server, &channel("left"));
    on_acquire(&proxy, "left", 1, Action::HoldReply);
    release_as_java(&server, "left", 8);
    wait_permits(&server, "left", 4);
    for (waiter, cancel) in &waiters[1..] {
        cancel.cancel();
        wait_until("it ends", SOON, || waiter.is_finished());
    }
    proxy.release();
    let outcomes = waiters.into_iter().map(|(waiter, _)| waiter.join().is_ok());
    assert_eq!(outcomes.collect::<Vec<_>>(), [true, false, false, false]);
    wait_permits(&server, "left", 7);
    stays(&server, "left", 7);
}

#[test]
fn a_process_leaves_to_others_what_they_may_wait_for() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (Client::connect(&proxy.url()).unwrap(), client(&server));
    let waiters = queue(&one.semaphore("shares"), 8);
    wait_subscribed(&server, &channel("shares"));
    on_acquire(&proxy, "shares", 1, Action::HoldReply);
    release_as_java(&server, "shares", 8);
    proxy.wait_fired(1, SOON);
    let theirs = other.semaphore("shares").try_acquire_many(4).unwrap();
    assert!(theirs.is_some(), "it took more than its half");
    proxy.release();
    theirs.unwrap().release().unwrap();
    for (waiter, _) in waiters {
        waiter.join().unwrap();
    }
    stays(&server, "shares", 0);
}

#[test]
fn a_request_for_many_threads_takes_once_whatever_is_lost() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = client.semaphore("together");
    for (action, times) in
        [(Action::LoseReply, 1), (Action::LoseRequest, 1), (Action::LoseReply, 2)]
    {
        let fired = proxy.fired();
        let waiters = queue(&semaphore, 4);
        wait_subscribed(&server, &channel("together"));
        on_acquire(&proxy, "together", times, action);
        release_as_java(&server, "together", 8);
        let expected = times == 1;
        for (waiter, _) in waiters {
            match waiter.join() {
                Ok(()) => assert!(expected),
                Err(error) => is_clear(&error, "together", "given back in the background"),
            }
        }
        assert_eq!(proxy.fired(), fired + times);
        wait_permits(&server, "together", if expected { 4 } else { 8 });
        stays(&server, "together", if expected { 4 } else { 8 });
        let () = server.connection().set("together", 0).unwrap();
    }
}

#[test]
fn a_release_wakes_a_waiter_of_another_client_at_once() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "awake", 1);
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let permit = semaphore.acquire().unwrap();
        let waiting = other.semaphore("awake");
        let waiter = spawn(move || {
            let permit = waiting.acquire().unwrap();
            let entered = Instant::now();
            permit.release().unwrap();
            entered
        });
        wait_subscribed(&server, &channel("awake"));
        waiter.wait_asleep();
        let released = Instant::now();
        drop(permit);
        fastest = fastest.min(waiter.join().saturating_duration_since(released));
    }
    assert!(fastest < UNIT, "{fastest:?}");
}

// The wire.

#[test]
fn the_key_and_the_messages_are_redissons() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, channel) in [
        ("wire", "redisson_sc:{wire}"),
        ("a{b}c", "redisson_sc:a{b}c"),
        ("größe \u{1F512}", "redisson_sc:{größe \u{1F512}}"),
    ] {
        let semaphore = client.semaphore(name);
        let heard = messages(&server, "redisson_sc:*", || {
            assert!(semaphore.try_set_permits(2).unwrap());
            let kind: String = redis::cmd("TYPE").arg(name).query(&mut redis).unwrap();
            assert_eq!(kind, "string");
            assert_eq!(redis.get::<_, String>(name).unwrap(), "2");
            assert_eq!(pttl(&mut redis, name), -1);
            let permit = semaphore.acquire().unwrap();
            assert_eq!(redis.get::<_, String>(name).unwrap(), "1");
            permit.release().unwrap();
            drop(semaphore.acquire_many(2).unwrap());
            semaphore.add_permits(3).unwrap();
            assert_eq!(semaphore.drain_permits().unwrap(), 5);
            // Redisson's clients fail on a negative one.
            semaphore.add_permits(-2).unwrap();
            semaphore.release().unwrap();
            semaphore.release_many(3).unwrap();
        });
        let heard: Vec<_> = heard.iter().map(|(at, what)| (at.as_str(), what.as_str())).collect();
        let expected = ["2", "2", "2", "5", "2"].map(|value| (channel, value));
        assert_eq!(heard, expected);
    }
    let keys: Vec<String> = redis.keys("redlatch_request:*").unwrap();
    for key in keys {
        assert!(pttl(&mut redis, &key) > 0, "{key:?} has no end");
    }
}

#[test]
fn a_java_services_release_wakes_a_waiter() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).semaphore("java");
    let waiters: Vec<_> = [1, 2]
        .into_iter()
        .map(|need| {
            let semaphore = semaphore.clone();
            let waiter = spawn(move || semaphore.acquire_many(need).unwrap().forget());
            waiter.wait_asleep();
            waiter
        })
        .collect();
    wait_subscribed(&server, &channel("java"));
    let begun = Instant::now();
    let mut redis = server.connection();
    for _ in 0..3 {
        let () = redis::pipe()
            .atomic()
            .incr("java", 1)
            .publish(channel("java"), "1")
            .query(&mut redis)
            .unwrap();
    }
    waiters.into_iter().for_each(Running::join);
    assert!(begun.elapsed() < BEFORE_A_POLL);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
}

#[test]
fn a_message_without_a_permit_grants_nothing() {
    let _bounded = bounded();
    let server = server();
    let semaphore = client(&server).semaphore("lies");
    let waiter = spawn(move || semaphore.try_acquire_for(UNIT * 5).unwrap().is_some());
    wait_subscribed(&server, &channel("lies"));
    let mut redis = server.connection();
    while !waiter.is_finished() {
        for message in ["1", "0", "-3", "no number", ""] {
            let () = redis.publish(channel("lies"), message).unwrap();
        }
        thread::sleep(UNIT / 10);
    }
    assert!(!waiter.join());
    assert!(!redis.exists::<_, bool>("lies").unwrap());
}

// Never more than there are, and none lost.

/// Takes and gives back permits in all ways for a while; counts in Redis what is out.
struct Contender {
    semaphore: Semaphore,
    count: Count,
    random: Random,
    permits: u32,
}

/// Where the number of permits that are out is counted.
struct Count(redis::Connection);

impl Count {
    fn taken(&mut self, permits: u32, of: u32) {
        let out: i64 = self.0.incr("out", permits).unwrap();
        assert!(out <= i64::from(of), "{out} are out of {of}");
    }

    fn given(&mut self, permits: u32) {
        let () = self.0.decr("out", permits).unwrap();
    }
}

impl Contender {
    fn round(&mut self) -> Result<bool, Error> {
        let need = 1 + u32::try_from(self.random.below(u64::from(self.permits))).unwrap();
        let wait = Duration::from_micros(self.random.below(3_000));
        let permit = match self.random.below(6) {
            0 => self.semaphore.try_acquire_many(need)?,
            1 => self.semaphore.try_acquire_many_for(need, wait)?,
            2 => {
                let token = CancelToken::new();
                let cancel = token.clone();
                let canceller = thread::spawn(move || {
                    thread::sleep(wait);
                    cancel.cancel();
                });
                let acquired = self.semaphore.acquire_cancellable(&token);
                canceller.join().unwrap();
                match acquired {
                    Err(error) if error.kind() == ErrorKind::Cancelled => None,
                    acquired => Some(acquired?),
                }
            }
            _ => Some(self.semaphore.acquire_many(need)?),
        };
        let Some(mut permit) = permit else { return Ok(false) };
        let need = permit.permits();
        self.count.taken(need, self.permits);
        if self.random.below(8) == 0 {
            thread::sleep(Duration::from_micros(self.random.below(500)));
        }
        self.count.given(need);
        match self.random.below(4) {
            0 => drop(permit),
            1 => {
                let part = permit.split(need / 2).unwrap();
                drop(permit);
                part.release()?;
            }
            2 => {
                permit.forget();
                // It says whether it is the caller's to repeat.
                while let Err(error) = self.semaphore.release_many(need) {
                    if !error.to_string().contains("no permit was given back") {
                        return Err(error);
                    }
                }
            }
            _ => permit.release()?,
        }
        Ok(true)
    }
}

/// Where this executable's workers begin.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..3)
        .map(|at| {
            let mut contender = Contender {
                semaphore: client.semaphore("most"),
                count: Count(redis::Client::open(job.arg(0)).unwrap().get_connection().unwrap()),
                random: Random::of(job.arg(1).parse::<u64>().unwrap() * 31 + at),
                permits: 3,
            };
            let stop = Arc::clone(&stop);
            spawn(move || {
                let mut grants = 0_u64;
                while !stop.load(Ordering::SeqCst) {
                    grants += u64::from(contender.round().unwrap());
                }
                grants
            })
        })
        .collect();
    job.say("starts");
    let _ = job.wait_line();
    stop.store(true, Ordering::SeqCst);
    let grants: Vec<_> = threads.into_iter().map(Running::join).collect();
    job.say(&format!("grants {grants:?}"));
    drop(client);
    job.say("ended");
    let _ = job.wait_line();
}

#[test]
fn never_are_more_out_than_there_are_and_none_is_lost() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "most", 3);
    let mut random = Random::new();
    let mut workers: Vec<_> = (0..3)
        .map(|_| {
            let seed = (random.next() >> 16).to_string();
            Worker::spawn_test("worker", "contender", &[&server.url(), &seed])
        })
        .collect();
    for worker in &mut workers {
        worker.expect_line("starts", SOON);
    }
    thread::sleep(UNIT * 20);
    for worker in &mut workers {
        worker.send_line("stop");
    }
    for worker in &mut workers {
        let grants = worker.expect_line("grants", SOON);
        println!("{grants}");
        assert!(!grants.contains("[0,") && !grants.contains(" 0"), "somebody starved: {grants}");
        worker.expect_line("ended", SOON);
    }
    stays(&server, "most", 3);
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    assert_eq!(server.connection().get::<_, i64>("out").unwrap(), 0);
}

/// Threads of two clients contend, while `trouble` is made. Errors of the server's are expected.
fn contend(urls: [String; 2], server: &Server, trouble: impl FnOnce(&mut Random)) -> (u64, u64) {
    let mut random = Random::new();
    let clients = urls.map(|url| impatient(&url).connect().unwrap());
    let _kept = semaphore(&clients[0], "most", 3);
    let stop = Arc::new(AtomicBool::new(false));
    let errors = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let mut contender = Contender {
                semaphore: clients[at % 2].semaphore("most"),
                count: Count(server.connection()),
                random: Random::of(random.next()),
                permits: 3,
            };
            let (stop, errors) = (Arc::clone(&stop), Arc::clone(&errors));
            spawn(move || {
                let mut grants = 0_u64;
                while !stop.load(Ordering::SeqCst) {
                    match contender.round() {
                        Ok(granted) => grants += u64::from(granted),
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
                            errors.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
                grants
            })
        })
        .collect();
    trouble(&mut random);
    stop.store(true, Ordering::SeqCst);
    let grants = threads.into_iter().map(Running::join).sum();
    (grants, errors.load(Ordering::SeqCst))
}

#[test]
fn threads_that_release_at_once_all_give_back() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("at once");
    for way in [false, true] {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let semaphore = semaphore.clone();
                spawn(move || {
                    for _ in 0..500 {
                        if way {
                            semaphore.release().unwrap();
                        } else {
                            semaphore.add_permits(1).unwrap();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(Running::join);
        assert_eq!(semaphore.drain_permits().unwrap(), 4_000);
    }
}

#[test]
fn a_process_that_keeps_taking_it_does_not_starve_another() {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let mine = semaphore(&clients[0], "shared", 1);
    let theirs = clients[1].semaphore("shared");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // One thread, which never finds anybody of its own process before it.
    let greedy = spawn(move || {
        while !stopped.load(Ordering::SeqCst) {
            let permit = mine.acquire().unwrap();
            thread::sleep(UNIT / 2);
            drop(permit);
        }
    });
    for round in 0..5 {
        let permit = theirs.try_acquire_for(SOON / 4).unwrap();
        assert!(permit.is_some(), "round {round}");
    }
    stop.store(true, Ordering::SeqCst);
    greedy.join();
}

/// One thread that finds it free again and again, since its release and its next request come one
/// behind the other.
#[test]
fn a_process_that_only_tries_leaves_it_to_one_that_waits() {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let mine = semaphore(&clients[0], "tried", 1);
    let theirs = clients[1].semaphore("tried");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let greedy = spawn(move || {
        let mut taken = 0_u32;
        while !stopped.load(Ordering::SeqCst) {
            let Some(permit) = mine.try_acquire().unwrap() else { continue };
            taken += 1;
            thread::sleep(UNIT / 100);
            drop(permit);
        }
        taken
    });
    let mut longest = Duration::ZERO;
    for _ in 0..800 {
        let begun = Instant::now();
        let permit = theirs.acquire().unwrap();
        longest = longest.max(begun.elapsed());
        thread::sleep(UNIT / 100);
        drop(permit);
    }
    stop.store(true, Ordering::SeqCst);
    assert!(greedy.join() > 0);
    assert!(longest < UNIT * 5, "{longest:?}");
}

#[test]
fn timeouts_and_cancels_that_race_with_grants_lose_no_permit() {
    let _bounded = bounded();
    let server = server();
    let mut random = Random::new();
    let clients = [client(&server), client(&server)];
    let semaphore = semaphore(&clients[0], "races", 1);
    let ended = Arc::new(AtomicU64::new(0));
    let rounds = 2_500;
    let threads: Vec<_> = (0..4_usize)
        .map(|at| {
            let semaphore = clients[at % 2].semaphore("races");
            let ended = Arc::clone(&ended);
            let mut random = Random::of(random.next());
            spawn(move || {
                let mut granted = 0;
                for _ in 0..rounds {
                    let wait = Duration::from_micros(random.below(400));
                    let permit = semaphore.try_acquire_for(wait).unwrap();
                    granted += u64::from(permit.is_some());
                    ended.fetch_add(1, Ordering::SeqCst);
                }
                granted
            })
        })
        .collect();
    // One whose waits are cancelled.
    let token = Arc::new(Mutex::new(CancelToken::new()));
    let (cancelled, waiting) = (Arc::clone(&token), semaphore);
    let total = 4 * rounds;
    let finished = Arc::clone(&ended);
    let waiter = spawn(move || {
        let mut granted = 0;
        while finished.load(Ordering::SeqCst) < total {
            let token = cancelled.lock().unwrap().clone();
            match waiting.acquire_cancellable(&token) {
                Ok(_permit) => granted += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                    *cancelled.lock().unwrap() = CancelToken::new();
                }
            }
        }
        granted
    });
    while !waiter.is_finished() {
        token.lock().unwrap().clone().cancel();
        thread::sleep(Duration::from_micros(random.below(400)));
    }
    let granted: u64 = threads.into_iter().map(Running::join).sum();
    println!("{granted} of {total} granted, {} cancellable", waiter.join());
    stays(&server, "races", 1);
}

// What breaks.

/// Does this to the next requests that take permits of this name.
fn on_acquire(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, name) && !contains(bytes, &channel(name))
    });
}

/// Does this to the next requests that give permits of this name back.
fn on_release(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, &channel(name))
    });
}

/// A client behind a network, which has its connection and knows its scripts.
fn behind(proxy: &Proxy) -> Client {
    common::behind(proxy, |client| {
        let semaphore = semaphore(client, "warm", 1);
        drop(semaphore.acquire().unwrap());
        semaphore.release().unwrap();
    })
}

#[test]
fn a_lost_reply_or_request_of_an_acquire_takes_once() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "acquired", 5);
    for (round, action) in [Action::LoseReply, Action::LoseRequest].into_iter().enumerate() {
        on_acquire(&proxy, "acquired", 1, action);
        let permit = semaphore.acquire_many(2).unwrap();
        assert_eq!(proxy.fired(), round + 1);
        stays(&server, "acquired", 3);
        permit.release().unwrap();
        stays(&server, "acquired", 5);
    }
}

#[test]
fn a_lost_reply_of_a_refusal_is_a_refusal_and_takes_nothing_later() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "refused", 1);
    on_acquire(&proxy, "refused", 1, Action::LoseReply);
    assert!(semaphore.try_acquire_many(2).unwrap().is_none());
    assert_eq!(proxy.fired(), 1);
    semaphore.release_many(3).unwrap();
    stays(&server, "refused", 4);
}

#[test]
fn an_acquire_of_unknown_outcome_is_an_error_and_the_permits_come_back() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "unknown", 5);
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 2),
        (Action::LoseRequest, 2),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        on_acquire(&proxy, "unknown", times, action);
        let error = semaphore.acquire_many(3).map(drop).unwrap_err();
        fired += times;
        assert_eq!(proxy.fired(), fired);
        is_clear(&error, "unknown", "given back in the background");
        proxy.release();
        stays(&server, "unknown", 5);
    }
    // What gives it back is lost as well, again and again.
    on_acquire(&proxy, "unknown", 2, Action::LoseReply);
    on_release(&proxy, "unknown", 3, Action::LoseReply);
    on_release(&proxy, "unknown", 2, Action::LoseRequest);
    assert!(semaphore.acquire_many(3).is_err());
    proxy.wait_fired(fired + 7, SOON);
    stays(&server, "unknown", 5);
    drop(semaphore.acquire_many(5).unwrap());
}

#[test]
fn names_that_share_what_is_remembered_of_requests_lose_no_permit() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let [plain, braced] = ["shared", "{shared}"].map(|name| semaphore(&client, name, 5));
    drop((plain.acquire().unwrap(), braced.acquire().unwrap()));
    stays(&server, "shared", 5);
    // Taken, but nobody knows; and what is to undo it comes after a request of the other name.
    let of_plain = |bytes: &[u8]| contains(bytes, "EVAL") && contains(bytes, "$6\r\nshared\r\n");
    proxy.on(Direction::Request, 1, Action::LoseReply, of_plain);
    proxy.on(Direction::Request, 3, Action::LoseRequest, of_plain);
    assert!(plain.acquire().is_err());
    drop(braced.acquire().unwrap());
    proxy.wait_fired(4, SOON);
    stays(&server, "shared", 5);
    stays(&server, "{shared}", 5);
}

#[test]
fn a_release_is_given_back_once_whatever_is_lost() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "released", 5);
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 1),
        (Action::LoseRequest, 1),
        (Action::LoseReply, 4),
        (Action::LoseRequest, 4),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        for way in ["drop", "release", "without a permit"] {
            let permit = semaphore.acquire_many(2).or_else(|error| {
                // The first call on a connection that went silent under a drop.
                is_clear(&error, "released", "did not answer in time");
                wait_permits(&server, "released", 5);
                semaphore.acquire_many(2)
            });
            let permit = permit.unwrap();
            wait_permits(&server, "released", 3);
            on_release(&proxy, "released", times, action);
            let released = match way {
                "drop" => {
                    drop(permit);
                    Ok(())
                }
                "release" => permit.release(),
                _ => {
                    permit.forget();
                    semaphore.release_many(2)
                }
            };
            if let Err(error) = released {
                is_clear(&error, "released", "in the background, once");
            }
            fired += times;
            proxy.wait_fired(fired, SOON);
            proxy.release();
            stays(&server, "released", 5);
        }
    }
}

#[test]
fn each_other_change_is_made_once_though_its_reply_is_lost() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = client.semaphore("changed");
    let lose = || {
        proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| {
            contains(bytes, "EVAL") && contains(bytes, "changed")
        });
    };
    semaphore.release_if_exists(1).unwrap();
    lose();
    assert!(semaphore.try_set_permits(3).unwrap(), "it was set by this call");
    lose();
    semaphore.add_permits(4).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 7);
    lose();
    assert!(semaphore.release_if_exists(1).unwrap());
    lose();
    assert_eq!(semaphore.drain_permits().unwrap(), 8);
    assert_eq!(proxy.fired(), 4);
    stays(&server, "changed", 0);
}

#[test]
fn a_frozen_server_is_an_error_in_time_and_what_it_does_later_is_undone() {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let semaphore = semaphore(&client, "frozen", 10);
    let (released, dropped) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let mut permits = 10;
    for round in 0..3 {
        server.pause();
        let begun = Instant::now();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let semaphore = semaphore.clone();
                spawn(move || semaphore.acquire_many(2).map(drop).unwrap_err())
            })
            .collect();
        for thread in threads {
            is_clear(&thread.join(), "frozen", "the server");
        }
        assert!(begun.elapsed() < IMPATIENT * 6);
        if round == 0 {
            server.resume();
            stays(&server, "frozen", 8);
            server.pause();
        } else if round == 1 {
            let error = semaphore.release().unwrap_err();
            is_clear(&error, "frozen", "permit");
            // It says whether there will be one more.
            permits += i64::from(error.to_string().contains("in the background"));
        }
        server.resume();
        if round == 1 {
            thread::sleep(UNIT);
        }
        wait_until("it answers", SOON, || semaphore.available_permits().is_ok());
    }
    drop(dropped);
    released.release().unwrap();
    // What the last round's requests took may still be on its way back.
    stays(&server, "frozen", permits);
}

/// Ends all connections of this kind, as an administrator would.
fn kill(redis: &mut redis::Connection, kind: &str) {
    let () =
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", kind, "SKIPME", "yes"]).query(redis).unwrap();
}

#[test]
fn connections_killed_at_any_moment_lose_no_permit_and_make_none() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    // The proxies end connections, and not those of the test's own counters.
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let urls = [proxies[0].url(), proxies[1].url()];
    let (grants, errors) = contend(urls, &server, |random| {
        let until = Instant::now() + UNIT * 30;
        while Instant::now() < until {
            let at = usize::try_from(random.below(2)).unwrap();
            proxies[at].cut_all();
            thread::sleep(Duration::from_micros(random.below(20_000)));
        }
    });
    println!("{grants} grants, {errors} errors");
    assert!(grants > 20, "{grants}");
    stays(&server, "most", 3);
}

#[test]
fn replies_lost_at_any_moment_lose_no_permit_and_make_none() {
    let _bounded = bounded();
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let urls = [proxies[0].url(), proxies[1].url()];
    let (grants, errors) = contend(urls, &server, |random| {
        let until = Instant::now() + UNIT * 30;
        let seen = AtomicU64::new(1);
        let salt = random.next();
        let seen = Arc::new(seen);
        for proxy in &proxies {
            for action in [Action::LoseReply, Action::LoseRequest] {
                let seen = Arc::clone(&seen);
                proxy.on(Direction::Request, usize::MAX, action, move |bytes| {
                    let at = seen.fetch_add(1, Ordering::SeqCst) ^ salt;
                    contains(bytes, "EVAL") && at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59 == 0
                });
            }
        }
        while Instant::now() < until {
            thread::sleep(UNIT);
        }
        proxies.iter().for_each(Proxy::clear_rules);
    });
    let fired: usize = proxies.iter().map(Proxy::fired).sum();
    println!("{grants} grants, {errors} errors, {fired} lost");
    assert!(grants > 20 && fired > 20, "{grants} {fired}");
    stays(&server, "most", 3);
}

#[test]
fn a_release_in_the_subscribers_absence_wakes_the_waiter() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let (waits, releases) = (client(&server), client(&server).semaphore("absence"));
    let mut redis = server.connection();
    for round in 0..6 {
        let semaphore = waits.semaphore("absence");
        let waiter = spawn(move || semaphore.acquire().unwrap().forget());
        wait_subscribed(&server, &channel("absence"));
        waiter.wait_asleep();
        let begun = Instant::now();
        match round % 3 {
            0 => {
                kill(&mut redis, "pubsub");
                releases.release().unwrap();
            }
            1 => {
                releases.release().unwrap();
                kill(&mut redis, "pubsub");
            }
            // Before the message is read, if it is quick: in one packet.
            _ => {
                let () = redis::pipe()
                    .cmd("CLIENT")
                    .arg(&["KILL", "TYPE", "pubsub"])
                    .ignore()
                    .incr("absence", 1)
                    .ignore()
                    .publish(channel("absence"), "1")
                    .ignore()
                    .query(&mut redis)
                    .unwrap();
            }
        }
        waiter.join();
        assert!(begun.elapsed() < BEFORE_A_POLL, "{round}: {:?}", begun.elapsed());
    }
    stays(&server, "absence", 0);
}

#[test]
fn who_waits_gets_on_when_the_servers_data_is_gone() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for way in ["FLUSHALL", "restart"] {
        let semaphore = semaphore(&one, "emptied", 2);
        let held = semaphore.acquire_many(2).unwrap();
        let waiters: Vec<_> = (0..4_usize)
            .map(|at| {
                let semaphore = [&one, &other][at % 2].semaphore("emptied");
                let waiter = spawn(move || semaphore.acquire().unwrap().forget());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        wait_subscribed(&server, &channel("emptied"));
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        held.forget();
        // None is made of nothing.
        thread::sleep(UNIT * 2);
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        let again = one.semaphore("emptied");
        again.add_permits(4).unwrap();
        waiters.into_iter().for_each(Running::join);
        stays(&server, "emptied", 0);
        let () = server.connection().del("emptied").unwrap();
    }
}

#[test]
fn a_key_that_is_no_semaphore_is_left_as_it_is() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.hset("hash", "field", "precious").unwrap();
    let () = redis.set("text", "precious").unwrap();
    let () = redis.set("zeroes", "007").unwrap();
    let () = redis.set("sign", "+7").unwrap();
    for name in ["hash", "text", "zeroes", "sign"] {
        let semaphore = client.semaphore(name);
        let errors = [
            semaphore.delete().map(drop).unwrap_err(),
            semaphore.try_set_permits(1).map(drop).unwrap_err(),
            semaphore.set_permits(1).unwrap_err(),
            semaphore.acquire().map(drop).unwrap_err(),
            semaphore.try_acquire().map(drop).unwrap_err(),
            semaphore.try_acquire_for(UNIT).map(drop).unwrap_err(),
            semaphore.add_permits(1).unwrap_err(),
            semaphore.drain_permits().map(drop).unwrap_err(),
            semaphore.release().unwrap_err(),
            semaphore.release_if_exists(1).map(drop).unwrap_err(),
            semaphore.available_permits().map(drop).unwrap_err(),
        ];
        for error in errors {
            is_clear(&error, name, "use another name");
            assert!(!error.to_string().contains("precious"), "{error}");
        }
    }
    assert_eq!(redis.hget::<_, _, String>("hash", "field").unwrap(), "precious");
    assert_eq!(redis.get::<_, String>("text").unwrap(), "precious");
}

#[test]
fn something_else_under_the_requests_key_is_an_error_and_changes_nothing() {
    let _bounded = bounded();
    let server = server();
    let semaphore = semaphore(&client(&server), "requests", 3);
    let mut redis = server.connection();
    let permit = semaphore.acquire().unwrap();
    let keys: Vec<String> = redis.keys("redlatch_request:*").unwrap();
    assert_eq!(keys.len(), 1);
    let () = redis.del(&keys[0]).unwrap();
    let () = redis.rpush(&keys[0], "no string").unwrap();
    assert_eq!(semaphore.acquire().map(drop).unwrap_err().kind(), ErrorKind::Redis);
    assert!(semaphore.release().is_err());
    // Tried again until it can be done.
    drop(permit);
    assert_eq!(redis.get::<_, i64>("requests").unwrap(), 2);
    let () = redis.del(&keys[0]).unwrap();
    stays(&server, "requests", 3);
}

#[test]
fn without_memory_nothing_is_taken_and_what_is_given_back_comes_back_later() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let client = client(&server);
    let semaphore = semaphore(&client, "memory", 5);
    let limit = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    let (dropped, released) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    limit("1");
    is_clear(&semaphore.acquire().map(drop).unwrap_err(), "memory", "maxmemory");
    is_clear(&semaphore.try_acquire().map(drop).unwrap_err(), "memory", "maxmemory");
    is_clear(&semaphore.release().unwrap_err(), "memory", "no permit was given back");
    drop(dropped);
    is_clear(&released.release().unwrap_err(), "memory", "in the background, once");
    limit("0");
    stays(&server, "memory", 5);
    semaphore.acquire_many(5).unwrap().release().unwrap();
    stays(&server, "memory", 5);
}

#[test]
fn a_release_that_was_passed_in_part_is_not_said_to_be_none() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let (client, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    for round in 0..8 {
        let name = &format!("in part {round}");
        let semaphore = semaphore(&client, name, 3);
        let all = other.semaphore(name).acquire_many(3).unwrap();
        let (first, second) = (semaphore.clone(), semaphore.clone());
        let mut limits = server.connection();
        let mut limit = move |bytes: &str| {
            let () =
                redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).query(&mut limits).unwrap();
        };
        let first = spawn(move || {
            let permit = first.acquire_many(3).unwrap();
            // The next one in line finds that there are none, before this one's turn is over.
            thread::sleep(Duration::from_millis(2));
            limit("1");
            permit.forget();
            first.release_many(3)
        });
        // Asleep is not enough: while its first request is on its way another one may get before it,
        // and then there are not three for it until that one's is given back.
        wait_subscribed(&server, &channel(name));
        let second = spawn(move || second.acquire().map(Permit::forget));
        second.wait_asleep();
        all.release().unwrap();
        let released = first.join();
        let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).query(&mut redis).unwrap();
        if let Err(error) = released
            && error.to_string().contains("no permit was given back")
        {
            semaphore.release_many(3).unwrap();
        }
        // It may have been told that there is no memory.
        if second.join().is_ok() {
            semaphore.release().unwrap();
        }
        stays(&server, name, 3);
    }
}

#[test]
fn a_flush_of_the_scripts_is_not_noticed() {
    let _bounded = bounded();
    let server = server();
    let urls = [server.url(), server.url()];
    let (grants, errors) = contend(urls, &server, |_| {
        let mut redis = server.connection();
        let until = Instant::now() + UNIT * 10;
        while Instant::now() < until {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
            thread::yield_now();
        }
    });
    assert!(grants > 20 && errors == 0, "{grants} {errors}");
    stays(&server, "most", 3);
}

#[test]
fn without_the_right_to_publish_permits_come_back_all_the_same() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let () = redis::cmd("ACL")
        .arg(&["SETUSER", "mute", "on", ">secret", "~*", "&*", "+@all", "-publish"])
        .query(&mut redis)
        .unwrap();
    let url = format!("redis://mute:secret@127.0.0.1:{}/", server.port());
    let semaphore = semaphore(&Client::connect(&url).unwrap(), "mute", 2);
    semaphore.acquire_many(2).unwrap().release().unwrap();
    drop(semaphore.acquire().unwrap());
    assert!(semaphore.release_if_exists(1).unwrap());
    stays(&server, "mute", 3);
}

#[test]
fn a_process_that_dies_takes_its_permits_with_it_and_no_more() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let first = semaphore(&client, "most", 3);
    let mut worker = Worker::spawn_test("worker", "contender", &[&server.url(), "7"]);
    worker.expect_line("starts", SOON);
    thread::sleep(UNIT);
    worker.sigkill();
    let free = AtomicI64::new(-1);
    wait_until("nothing changes any more", SOON, || {
        let now = first.available_permits().unwrap();
        thread::sleep(UNIT);
        free.swap(now, Ordering::SeqCst) == now
    });
    let free = first.available_permits().unwrap();
    assert!((0..=3).contains(&free), "{free}");
    first.add_permits(3 - free).unwrap();
    drop(first.try_acquire_many_for(3, SOON).unwrap().expect("all are there"));
}

#[test]
fn permits_are_set_anew_and_a_semaphore_is_removed() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("anew");
    assert!(!semaphore.delete().unwrap());
    let heard = messages(&server, "redisson_sc:*", || {
        semaphore.set_permits(4).unwrap();
        let permit = semaphore.acquire().unwrap();
        semaphore.set_permits(1).unwrap();
        assert_eq!(semaphore.available_permits().unwrap(), 1);
        semaphore.set_permits(0).unwrap();
        permit.release().unwrap();
        assert_eq!(semaphore.available_permits().unwrap(), 1, "what was out comes back on top");
    });
    let heard: Vec<_> = heard.iter().map(|(_, free)| free.as_str()).collect();
    assert_eq!(heard, ["4", "1", "1"]);
    let out = semaphore.acquire().unwrap();
    assert!(semaphore.delete().unwrap() && !semaphore.delete().unwrap());
    assert!(!server.connection().exists::<_, bool>("anew").unwrap());
    assert!(semaphore.try_acquire().unwrap().is_none());
    // Whoever waits goes on waiting, until there are permits again.
    let waiting = common::client(&server).semaphore("anew");
    let waiter = spawn(move || waiting.acquire_many(2).unwrap().forget());
    wait_subscribed(&server, &channel("anew"));
    waiter.wait_asleep();
    assert!(!semaphore.delete().unwrap());
    out.release().unwrap();
    let begun = Instant::now();
    semaphore.set_permits(3).unwrap();
    waiter.join();
    assert!(begun.elapsed() < BEFORE_A_POLL);
    stays(&server, "anew", 1);
}

#[test]
fn many_permits_are_waited_for_until_a_deadline_or_a_cancel() {
    let _bounded = bounded();
    let server = server();
    let semaphore = semaphore(&client(&server), "even", 3);
    let permit = semaphore.acquire_many_cancellable(2, &CancelToken::new()).unwrap();
    assert_eq!(permit.permits(), 2);
    let begun = Instant::now();
    assert!(semaphore.try_acquire_many_until(2, begun + UNIT).unwrap().is_none());
    assert!(begun.elapsed() >= UNIT);
    let token = CancelToken::new();
    let (waiting, cancel) = (semaphore.clone(), token.clone());
    let waiter = spawn(move || waiting.acquire_many_cancellable(2, &cancel).map(drop));
    waiter.wait_asleep();
    token.cancel();
    assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::Cancelled);
    drop(permit);
    let late = Instant::now() + SOON;
    assert_eq!(semaphore.try_acquire_many_until(3, late).unwrap().unwrap().permits(), 3);
    stays(&server, "even", 3);
}

#[test]
fn drained_permits_of_unknown_outcome_come_back() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    for (name, permits) in [("drained", 5), ("drained below", -3)] {
        let semaphore = client.semaphore(name);
        semaphore.add_permits(permits).unwrap();
        for action in [Action::LoseReply, Action::Silence] {
            let before = proxy.fired();
            let times = if matches!(action, Action::Silence) { 1 } else { 2 };
            on_acquire(&proxy, name, times, action);
            let error = semaphore.drain_permits().unwrap_err();
            is_clear(&error, name, "given back in the background");
            assert_eq!(proxy.fired(), before + times);
            proxy.cut_all();
            stays(&server, name, permits);
        }
        assert_eq!(semaphore.drain_permits().unwrap(), permits);
    }
}

/// A change that the server is asked for, with the free permits before and after it.
struct Change {
    before: Option<i64>,
    after: Option<i64>,
    ask: fn(&Semaphore) -> Result<(), Error>,
}

const CHANGES: [Change; 10] = [
    Change { before: None, after: Some(3), ask: |it| it.try_set_permits(3).map(drop) },
    Change { before: Some(5), after: Some(3), ask: |it| it.set_permits(3) },
    Change { before: Some(3), after: Some(-2), ask: |it| it.add_permits(-5) },
    Change { before: Some(3), after: Some(0), ask: |it| it.drain_permits().map(drop) },
    Change { before: Some(-2), after: Some(0), ask: |it| it.drain_permits().map(drop) },
    Change {
        before: Some(3),
        after: Some(1),
        ask: |it| it.try_acquire_many(2).map(|permit| permit.unwrap().forget()),
    },
    Change { before: Some(3), after: Some(5), ask: |it| it.release_many(2) },
    Change { before: None, after: Some(2), ask: |it| it.release_many(2) },
    Change { before: Some(3), after: Some(5), ask: |it| it.release_if_exists(2).map(drop) },
    Change { before: Some(3), after: None, ask: |it| it.delete().map(drop) },
];

/// What a semaphore's scripts do, each of it denied; and keys that may not be touched.
const DENIED: [&[&str]; 12] = [
    &["-time"],
    &["-get"],
    &["-set"],
    &["-exists"],
    &["-incrby"],
    &["-decrby"],
    &["-del"],
    &["-publish"],
    &["resetchannels"],
    &["resetkeys", "~pool"],
    &["resetkeys", "~redlatch_request:*"],
    &["resetkeys", "~redlatch_request:*", "%R~pool"],
];

const ALL_RIGHTS: [&str; 3] = ["~*", "&*", "+@all"];

#[test]
fn without_a_right_either_all_of_a_change_is_made_or_nothing() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    let pool = client.semaphore("pool");
    // Learns the server's clock and its scripts.
    drop(pool.try_acquire().unwrap());
    let mut redis = server.connection();
    let mut refused = 0;
    for denied in DENIED {
        for (at, Change { before, after, ask }) in CHANGES.iter().enumerate() {
            let () = redis::cmd("DEL").arg("pool").query(&mut redis).unwrap();
            if let Some(before) = before {
                let () = redis.set("pool", before).unwrap();
            }
            user.set(denied);
            let outcome = ask(&pool);
            user.set(&ALL_RIGHTS);
            let now: Option<i64> = redis.get("pool").unwrap();
            match outcome {
                Ok(()) => assert_eq!(now, *after, "{denied:?}, change {at}"),
                Err(error) => {
                    assert_eq!(now, *before, "{denied:?}, change {at}: {error}");
                    is_clear(&error, "pool", "access rights (ACL)");
                    assert!(error.to_string().contains("a semaphore needs"), "{error}");
                    refused += 1;
                    ask(&pool).unwrap();
                    assert_eq!(redis.get::<_, Option<i64>>("pool").unwrap(), *after);
                }
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_refused_request_is_refused_again_though_its_reply_is_lost() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let proxy = Proxy::before(&server);
    let semaphore = semaphore(&user.client_behind(&proxy), "pool", 5);
    drop(semaphore.acquire().unwrap());
    wait_permits(&server, "pool", 5);
    user.set(&["-decrby"]);
    on_acquire(&proxy, "pool", 1, Action::LoseReply);
    // It may have been applied, for all that the client knows.
    let error = semaphore.acquire().map(drop).unwrap_err();
    is_clear(&error, "pool", "given back in the background");
    assert_eq!(proxy.fired(), 1);
    user.set(&ALL_RIGHTS);
    stays(&server, "pool", 5);
}

#[test]
fn what_is_given_back_without_a_right_comes_back_once_when_it_is_there_again() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    let semaphore = semaphore(&client, "pool", 9);
    for denied in DENIED {
        let (dropped, released) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
        user.set(denied);
        drop(dropped);
        let outcome = released.release();
        if let Err(error) = &outcome {
            is_clear(error, "pool", "in the background, once");
        }
        // Tried again and again meanwhile.
        thread::sleep(UNIT);
        let free: i64 = server.connection().get("pool").unwrap();
        assert_eq!(free, if outcome.is_ok() { 9 } else { 7 }, "{denied:?}");
        user.set(&ALL_RIGHTS);
        wait_permits(&server, "pool", 9);
    }
    stays(&server, "pool", 9);
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut user = User::new(&server, "me");
    let client = user.client();
    user.set(&["-@all"]);
    let error = client.semaphore("rights").acquire().map(drop).unwrap_err().to_string();
    user.set_as_said(&error, "a semaphore", "rights");
    let client = user.client();
    let semaphore = semaphore(&client, "rights", 2);
    let all = semaphore.acquire_many(2).unwrap();
    let waiting = user.client().semaphore("rights");
    let waiter = spawn(move || waiting.acquire().unwrap().release().unwrap());
    wait_subscribed(&server, &channel("rights"));
    waiter.wait_asleep();
    drop(all);
    waiter.join();
    semaphore.add_permits(1).unwrap();
    assert!(semaphore.release_if_exists(1).unwrap());
    assert_eq!(semaphore.drain_permits().unwrap(), 4);
    semaphore.set_permits(1).unwrap();
    assert!(semaphore.delete().unwrap());
}

#[test]
fn what_the_server_remembers_of_a_client_does_not_grow_with_its_requests() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "bounded", 100);
    const THREADS: usize = 8;
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let semaphore = semaphore.clone();
            spawn(move || (0..300).for_each(|_| semaphore.acquire().unwrap().release().unwrap()))
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    let mut redis = server.connection();
    let keys: Vec<String> = redis.keys("redlatch_request:*").unwrap();
    assert!(keys.len() <= THREADS, "{keys:?}");
    for key in keys {
        let left = pttl(&mut redis, &key);
        assert!(left > 0 && left <= 300_000, "{key:?}: {left}");
        assert!(redis.strlen::<_, usize>(&key).unwrap() < 40);
    }
}

#[test]
fn who_drops_permits_never_waits_for_the_server() {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).response_timeout(SOON).connect().unwrap();
    let semaphore = semaphore(&client, "many", 2_000);
    let permits: Vec<_> = (0..2_000).map(|_| semaphore.acquire().unwrap()).collect();
    server.pause();
    let begun = Instant::now();
    drop(permits);
    let took = begun.elapsed();
    server.resume();
    assert!(took < SOON / 2, "{took:?}");
    stays(&server, "many", 2_000);
    let keys: Vec<String> = server.connection().keys("redlatch_request:*").unwrap();
    assert!(keys.len() <= 600, "{}", keys.len());
}

#[test]
fn what_was_given_back_in_an_outage_is_there_as_soon_as_a_connection_works() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let (dropped, counted) = (semaphore(&client, "outage", 3), client.count_down_latch("outage-"));
    assert!(counted.try_set_count(2).unwrap());
    let permits = dropped.acquire_many(2).unwrap();
    // Counted, though nobody knows; then nothing is to be had for a while.
    on_release(&proxy, "outage", 1, Action::LoseRequest);
    proxy.on(Direction::Request, 2, Action::LoseRequest, |bytes| {
        contains(bytes, "EVAL") && contains(bytes, "outage-")
    });
    assert!(counted.count_down().is_err());
    proxy.refuse();
    proxy.cut_all();
    drop(permits);
    // What is tried again later and later is now tried again after more than 3 s.
    thread::sleep(UNIT * 34);
    proxy.accept();
    let begun = Instant::now();
    // Anything that needs a connection.
    wait_until("it answers", SOON, || client.semaphore("other").available_permits().is_ok());
    wait_permits(&server, "outage", 3);
    wait_until("it is counted", SOON, || {
        server.connection().get::<_, i64>("outage-").unwrap() == 1
    });
    let took = begun.elapsed();
    assert!(took < UNIT * 15, "{took:?}");
    stays(&server, "outage", 3);
}

/// Each is an orphan of its own, and all are sent again at the same moment.
#[test]
fn hundreds_of_releases_that_are_sent_again_together_are_all_given_back_once() {
    const PERMITS: u32 = 400;
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    let semaphore = client.semaphore("many");
    assert!(semaphore.try_set_permits(PERMITS).unwrap());
    for _ in 0..5 {
        let mut all = semaphore.acquire_many(PERMITS).unwrap();
        let permits: Vec<_> = (0..PERMITS).map(|_| all.split(1).unwrap()).collect();
        proxy.freeze();
        drop(permits);
        // They did not arrive, which nobody here knows.
        proxy.refuse();
        proxy.cut_all();
        proxy.thaw();
        thread::sleep(UNIT * 5);
        proxy.accept();
        wait_until("all are back", SOON, || {
            semaphore.available_permits().is_ok_and(|free| free == i64::from(PERMITS))
        });
    }
}
