//! What every lock does, whatever its kind: each test runs over all of them, through the trait.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{CancelToken, Client, ErrorKind, HoldState, Lock, LostReason, OwnedLockGuard, Wait};
use redlatch_testkit::Server;

/// Short enough to see its end.
const LEASE: Duration = Duration::from_millis(6 * UNIT.as_millis() as u64);

/// How a kind of lock is made.
#[derive(Clone, Copy)]
struct Kind {
    plain: fn(&Client, &str) -> Arc<dyn Lock>,
    leased: fn(&Client, &str, Duration) -> Arc<dyn Lock>,
}

impl Kind {
    fn make(self, client: &Client, name: &str) -> Arc<dyn Lock> {
        (self.plain)(client, name)
    }

    fn leased(self, client: &Client, name: &str, lease: Duration) -> Arc<dyn Lock> {
        (self.leased)(client, name, lease)
    }
}

const REENTRANT: Kind = Kind {
    plain: |client, name| Arc::new(client.reentrant_lock(name)),
    leased: |client, name, lease| Arc::new(client.reentrant_lock(name).with_lease(lease)),
};

const FAIR: Kind = Kind {
    plain: |client, name| Arc::new(client.fair_lock(name)),
    leased: |client, name, lease| Arc::new(client.fair_lock(name).with_lease(lease)),
};

/// The lock of a read-write lock for writers: its hash is another one, and so are its channel and its
/// queue.
const WRITE: Kind = Kind {
    plain: |client, name| Arc::new(client.read_write_lock(name).write().clone()),
    leased: |client, name, lease| Arc::new(client.read_write_lock(name).write().with_lease(lease)),
};

/// Runs each of these over each kind.
macro_rules! over_all_kinds {
    ($($test:ident)*) => {
        mod reentrant {
            $(#[test] fn $test() { super::$test(super::REENTRANT) })*
        }
        mod fair {
            $(#[test] fn $test() { super::$test(super::FAIR) })*
        }
    };
}

over_all_kinds! {
    only_one_holds_it
    it_is_taken_again_by_its_thread_and_released_level_by_level
    who_does_not_hold_it_cannot_unlock_it
    a_guard_of_an_earlier_stay_does_nothing_to_the_next
    a_forgotten_guard_keeps_it_until_unlock
    a_panic_releases_it
    a_bounded_wait_ends_at_its_deadline_and_leaves_nothing
    a_cancel_ends_a_wait_and_leaves_nothing
    a_release_wakes_a_waiter_of_another_client_and_of_its_own
    a_lease_ends_and_is_told
    a_watched_hold_outlives_its_lease
    a_longer_lease_extends_a_hold_and_a_shorter_one_does_not_shorten_it
    force_unlock_takes_it_from_anybody
    a_java_services_hold_is_respected
    a_shutdown_ends_waits_and_holds
    names_and_leases_that_cannot_be_are_errors
    every_other_name_works
    a_key_that_is_no_lock_is_an_error_and_left_as_it_is
    of_a_hash_that_is_no_lock_little_is_read_however_large_it_is
    a_frozen_server_is_an_error_in_time_and_leaves_nothing
    a_lock_that_the_server_has_lost_is_told
    a_limit_and_a_token_together_end_a_wait_by_whichever_comes_first
    other_threads_may_ask_a_guard
    a_guard_never_says_held_when_the_next_of_its_process_has_it
    an_owned_guard_is_nobodys_and_everybodys_rival
    an_owned_guard_is_released_by_whatever_thread_drops_it
    owned_guards_and_threads_exclude_and_follow_each_other
    a_lost_owned_guard_is_told_where_it_is
    a_wait_for_an_owned_guard_ends_like_any_other
    a_thread_that_is_ending_may_wait_for_it
}

/// A Java service's hold is tried in `read_write.rs`.
macro_rules! over_writers {
    ($($test:ident)*) => {
        mod write {
            $(#[test] fn $test() { super::$test(super::WRITE) })*
        }
    };
}

over_writers! {
    only_one_holds_it
    it_is_taken_again_by_its_thread_and_released_level_by_level
    who_does_not_hold_it_cannot_unlock_it
    a_guard_of_an_earlier_stay_does_nothing_to_the_next
    a_forgotten_guard_keeps_it_until_unlock
    a_panic_releases_it
    a_bounded_wait_ends_at_its_deadline_and_leaves_nothing
    a_cancel_ends_a_wait_and_leaves_nothing
    a_release_wakes_a_waiter_of_another_client_and_of_its_own
    a_lease_ends_and_is_told
    a_watched_hold_outlives_its_lease
    a_longer_lease_extends_a_hold_and_a_shorter_one_does_not_shorten_it
    force_unlock_takes_it_from_anybody
    a_shutdown_ends_waits_and_holds
    names_and_leases_that_cannot_be_are_errors
    every_other_name_works
    a_key_that_is_no_lock_is_an_error_and_left_as_it_is
    of_a_hash_that_is_no_lock_little_is_read_however_large_it_is
    a_frozen_server_is_an_error_in_time_and_leaves_nothing
    a_lock_that_the_server_has_lost_is_told
    a_limit_and_a_token_together_end_a_wait_by_whichever_comes_first
    other_threads_may_ask_a_guard
    a_guard_never_says_held_when_the_next_of_its_process_has_it
    an_owned_guard_is_nobodys_and_everybodys_rival
    an_owned_guard_is_released_by_whatever_thread_drops_it
    owned_guards_and_threads_exclude_and_follow_each_other
    a_lost_owned_guard_is_told_where_it_is
    a_wait_for_an_owned_guard_ends_like_any_other
    a_thread_that_is_ending_may_wait_for_it
}

/// One more client, where `client` is a name already.
fn another(server: &Server) -> Client {
    client(server)
}

/// Waits until nothing of the lock is left on the server.
#[track_caller]
fn leaves_nothing(server: &Server) {
    let mut redis = server.connection();
    let until = Instant::now() + SOON;
    loop {
        let keys: Vec<String> = redis.keys("*").unwrap();
        if keys.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left behind: {keys:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn only_one_holds_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let mut random = Random::new();
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let lock = kind.make(&clients[at % 2], "one");
            let inside = Arc::clone(&inside);
            let mut random = Random::of(random.next());
            spawn(move || {
                for _ in 0..150 {
                    let guard = match random.below(4) {
                        0 => lock.try_lock().unwrap(),
                        1 => lock.try_lock_for(Duration::from_millis(random.below(5))).unwrap(),
                        _ => Some(lock.lock().unwrap()),
                    };
                    let Some(guard) = guard else { continue };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if random.below(2) == 0 { drop(guard) } else { guard.unlock().unwrap() }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    leaves_nothing(&server);
}

fn it_is_taken_again_by_its_thread_and_released_level_by_level(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let (lock, same) = (kind.make(&client, "levels"), kind.make(&client, "levels"));
    assert_eq!(lock.name(), "levels");
    assert!(!lock.is_locked().unwrap() && !lock.is_held_by_current_thread());
    let first = lock.lock().unwrap();
    let before = Commands::so_far(&server).of_locks();
    let second = same.try_lock().unwrap().unwrap();
    let third = lock.try_lock_for(SOON).unwrap().unwrap();
    assert_eq!((lock.hold_count(), same.hold_count()), (3, 3));
    first.unlock().unwrap();
    drop(third);
    assert_eq!(lock.hold_count(), 1);
    assert!(second.is_held() && lock.is_held_by_current_thread());
    assert_eq!(Commands::so_far(&server).of_locks(), before, "a level is nothing to the server");
    assert_eq!(holder(&mut server.connection(), "levels").unwrap().1, "1");
    let other = Arc::clone(&lock);
    assert!(elsewhere(move || other.try_lock().unwrap().is_none()));
    second.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
    assert_eq!(lock.remaining_lease().unwrap(), None);
    leaves_nothing(&server);
}

fn who_does_not_hold_it_cannot_unlock_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, foreign) = (client(&server), another(&server));
    let (lock, theirs) = (kind.make(&client, "mine"), kind.make(&foreign, "mine"));
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    let guard = lock.lock().unwrap();
    let held = holder(&mut server.connection(), "mine");
    assert_eq!(theirs.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    let same = Arc::clone(&lock);
    assert_eq!(elsewhere(move || same.unlock().unwrap_err().kind()), ErrorKind::NotHeld);
    assert_eq!(holder(&mut server.connection(), "mine"), held);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_guard_of_an_earlier_stay_does_nothing_to_the_next(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = kind.make(&client, "stay");
    let (early, dropped) = (lock.lock().unwrap(), lock.lock().unwrap());
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    let guard = lock.lock().unwrap();
    assert!(!early.is_held() && guard.is_held());
    assert_eq!(early.state(), HoldState::Released);
    assert_eq!(early.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    drop(dropped);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_forgotten_guard_keeps_it_until_unlock(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    kind.make(&client, "forgotten").lock().unwrap().forget();
    let lock = kind.make(&client, "forgotten");
    assert_eq!(lock.hold_count(), 1);
    lock.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_panic_releases_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let (lock, waits) = (kind.make(&client, "panic"), kind.make(&client, "panic"));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock.lock().unwrap();
        panic!("as the test wants it");
    }));
    assert!(panicked.is_err());
    elsewhere(move || drop(waits.try_lock_for(SOON).unwrap().expect("it is free")));
    leaves_nothing(&server);
}

fn a_bounded_wait_ends_at_its_deadline_and_leaves_nothing(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "bounded").lock().unwrap();
    for lock in [kind.make(&client, "bounded"), kind.make(&other, "bounded")] {
        elsewhere(move || {
            at_once(|| {
                let begun = Instant::now();
                assert!(lock.try_lock_for(UNIT).unwrap().is_none());
                assert!(lock.try_lock_until(begun + UNIT * 2).unwrap().is_none());
                assert!(lock.try_lock_for(Duration::ZERO).unwrap().is_none());
                assert!(lock.try_lock_until(begun).unwrap().is_none());
                assert!(begun.elapsed() >= UNIT * 2);
            });
        });
    }
    guard.unlock().unwrap();
    leaves_nothing(&server);
    drop(kind.make(&other, "bounded").try_lock_for(Duration::MAX).unwrap().unwrap());
    leaves_nothing(&server);
}

fn a_cancel_ends_a_wait_and_leaves_nothing(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "cancelled").lock().unwrap();
    for waits in [&client, &other] {
        at_once(|| {
            let (lock, token) = (kind.make(waits, "cancelled"), CancelToken::new());
            let cancel = token.clone();
            let waiter = spawn(move || {
                let first = lock.lock_cancellable(&cancel).map(drop).unwrap_err().kind();
                (first, lock.lock_cancellable(&cancel).map(drop).unwrap_err().kind())
            });
            waiter.wait_asleep();
            token.cancel();
            assert_eq!(waiter.join(), (ErrorKind::Cancelled, ErrorKind::Cancelled));
        });
    }
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_release_wakes_a_waiter_of_another_client_and_of_its_own(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    for round in 0..6 {
        at_once(|| {
            let guard = kind.make(&client, "woken").lock().unwrap();
            let waiters: Vec<_> = [&other, &client, &other]
                .into_iter()
                .map(|client| {
                    let lock = kind.make(client, "woken");
                    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
                    waiter.wait_asleep();
                    waiter
                })
                .collect();
            if round % 2 == 0 {
                drop(guard);
            } else {
                guard.unlock().unwrap();
            }
            waiters.into_iter().for_each(Running::join);
        });
    }
    leaves_nothing(&server);
}

fn a_lease_ends_and_is_told(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.leased(&client, "leased", LEASE).lock().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&calls);
    guard.on_lost(move |_| {
        told.fetch_add(1, Ordering::SeqCst);
    });
    let begun = Instant::now();
    let theirs = kind.make(&other, "leased").try_lock_for(SOON).unwrap().expect("it ends");
    let took = begun.elapsed();
    assert!(took + UNIT / 5 >= LEASE * 9 / 10, "{took:?}");
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    wait_until("it is told", SOON, || calls.load(Ordering::SeqCst) == 1);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(theirs.is_held());
    assert!(holder(&mut server.connection(), "leased").is_some());
    theirs.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_watched_hold_outlives_its_lease(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, RENEWED);
    let lock = kind.make(&client, "watched");
    let guard = lock.lock().unwrap();
    // Time is the subject.
    std::thread::sleep(RENEWED * 2);
    assert!(guard.is_held() && lock.is_locked().unwrap());
    let left = pttl(&mut server.connection(), "watched");
    assert!(left > 0 && left <= i64::try_from(RENEWED.as_millis()).unwrap(), "{left}");
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_longer_lease_extends_a_hold_and_a_shorter_one_does_not_shorten_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let outer = kind.leased(&client, "longer", LONG).lock().unwrap();
    let shorter = kind.leased(&client, "longer", LEASE).lock().unwrap();
    assert!(outer.remaining() > LONG / 2);
    let longer = kind.leased(&client, "longer", LONG * 3).lock().unwrap();
    assert!(outer.remaining() > LONG * 2);
    let left = kind.make(&client, "longer").remaining_lease().unwrap().unwrap();
    assert!(left > LONG * 2, "{left:?}");
    drop((longer, shorter));
    outer.unlock().unwrap();
    leaves_nothing(&server);
}

fn force_unlock_takes_it_from_anybody(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    for forces in [&client, &other] {
        let lock = kind.make(forces, "forced");
        assert!(!lock.force_unlock().unwrap());
        at_once(|| {
            let guard = kind.make(&client, "forced").lock().unwrap();
            let waits = kind.make(&other, "forced");
            let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
            waiter.wait_asleep();
            assert!(lock.force_unlock().unwrap());
            waiter.join();
            assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        });
        leaves_nothing(&server);
    }
}

fn a_java_services_hold_is_respected(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "java", LEASE);
    let lock = kind.make(&client, "java");
    assert!(lock.is_locked().unwrap() && lock.try_lock().unwrap().is_none());
    let begun = Instant::now();
    let guard = lock.try_lock_for(SOON).unwrap().expect("the lease ends");
    let took = begun.elapsed();
    assert!(took + UNIT >= LEASE, "{took:?}");
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_shutdown_ends_waits_and_holds(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let lock = kind.make(&client, "shut");
    let guard = lock.lock().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = Arc::clone(&lock);
            let waiter = spawn(move || lock.lock().map(drop).unwrap_err().kind());
            waiter.wait_asleep();
            waiter
        })
        .collect();
    client.shutdown();
    assert_eq!(guard.state(), HoldState::Lost(LostReason::ShutDown));
    for waiter in waiters {
        assert_eq!(waiter.join(), ErrorKind::ShutDown);
    }
    assert_eq!(lock.lock().map(drop).unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(lock.try_lock().map(drop).unwrap_err().kind(), ErrorKind::ShutDown);
    kind.make(&other, "shut").try_lock_for(SOON).unwrap().expect("it is free").unlock().unwrap();
    leaves_nothing(&server);
}

fn names_and_leases_that_cannot_be_are_errors(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let nameless = kind.make(&client, "");
    let kinds = [
        nameless.lock().map(drop).unwrap_err().kind(),
        nameless.try_lock().map(drop).unwrap_err().kind(),
        nameless.try_lock_for(UNIT).map(drop).unwrap_err().kind(),
        nameless.is_locked().map(drop).unwrap_err().kind(),
        nameless.force_unlock().map(drop).unwrap_err().kind(),
        kind.leased(&client, "none", Duration::ZERO).lock().map(drop).unwrap_err().kind(),
        kind.leased(&client, "ages", Duration::MAX).lock().map(drop).unwrap_err().kind(),
    ];
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Config), "{kinds:?}");
    let longest = Duration::from_millis(1_000_000_000_000_000);
    drop(kind.leased(&client, "longest", longest).lock().unwrap());
    leaves_nothing(&server);
}

fn every_other_name_works(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let long = "x".repeat(65_536);
    for name in
        ["{", "}", "{}", "a{b}c", "a}b", " ", "a\0b", "\n\r", "*", "a?[x]^\\", "größe", &long]
    {
        at_once(|| {
            let guard = kind.make(&client, name).lock().unwrap();
            let waits = kind.make(&other, name);
            let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
            waiter.wait_asleep();
            guard.unlock().unwrap();
            waiter.join();
        });
        leaves_nothing(&server);
    }
}

fn a_key_that_is_no_lock_is_an_error_and_left_as_it_is(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.set("string", "precious").unwrap();
    let lock = kind.make(&client, "string");
    for error in [
        lock.lock().map(drop).unwrap_err(),
        lock.try_lock().map(drop).unwrap_err(),
        lock.try_lock_for(UNIT).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
        assert_eq!(error.name(), Some("string"));
        assert!(error.to_string().contains("something else"), "{error}");
    }
    assert_eq!(redis.get::<_, String>("string").unwrap(), "precious");
    let guard = kind.make(&client, "over").lock().unwrap();
    let () = redis.set("over", "precious").unwrap();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(redis.get::<_, String>("over").unwrap(), "precious");
    let keys: Vec<String> = redis.keys("*").unwrap();
    assert_eq!(keys.len(), 2, "{keys:?}");
}

/// All of it would keep the server from its other clients for seconds.
fn of_a_hash_that_is_no_lock_little_is_read_however_large_it_is(kind: Kind) {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    // What scripts have read lies there until it is collected.
    let mut read_by_scripts = || {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut redis).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory_lua:"));
        line.and_then(|bytes| bytes.trim().parse::<u64>().ok())
    };
    let client = client(&server);
    let use_all = |name: &str| {
        let lock = kind.make(&client, name);
        [
            lock.try_lock().map(drop),
            lock.lock().map(drop),
            lock.try_lock_for(SOON).map(drop),
            lock.force_unlock().map(drop),
        ]
    };
    // The scripts themselves.
    use_all("small").into_iter().for_each(Result::unwrap);
    let Some(before) = read_by_scripts() else {
        eprintln!("left out: this server does not tell what its scripts' memory is");
        return;
    };
    let mut fill = redis::pipe();
    for part in 0..100 {
        let fields: Vec<_> = (0..1_000).map(|at| (format!("field:{part}:{at}"), 1)).collect();
        fill.hset_multiple("large", &fields).ignore();
    }
    let () = fill.query(&mut server.connection()).unwrap();
    for outcome in use_all("large") {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Redis);
        let more = read_by_scripts().unwrap().saturating_sub(before);
        // Ten bytes a field.
        assert!(more < 1_000_000, "{more} bytes");
    }
}

fn a_frozen_server_is_an_error_in_time_and_leaves_nothing(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let held = kind.make(&client, "held").lock().unwrap();
    server.pause();
    let begun = Instant::now();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let lock = kind.make(&client, "frozen");
            spawn(move || lock.lock().map(drop).unwrap_err().kind())
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join(), ErrorKind::Redis);
    }
    assert!(begun.elapsed() < IMPATIENT * 8, "{:?}", begun.elapsed());
    assert_eq!(held.unlock().unwrap_err().kind(), ErrorKind::Redis);
    server.resume();
    std::thread::sleep(UNIT * 2);
    let mut redis = server.connection();
    wait_until("all is free", SOON, || redis.keys::<_, Vec<String>>("*").unwrap().is_empty());
}

fn a_lock_that_the_server_has_lost_is_told(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    for way in ["DEL", "FLUSHALL", "restart"] {
        let guard = kind.make(&client, "gone").lock().unwrap();
        match way {
            "DEL" => server.connection().del("gone").unwrap(),
            "FLUSHALL" => redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap(),
            _ => server.restart_empty(),
        }
        wait_until("a renewal finds out", SOON, || !guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost, "{way}");
        kind.make(&client, "gone").lock().unwrap().unlock().unwrap();
        leaves_nothing(&server);
    }
}

fn a_limit_and_a_token_together_end_a_wait_by_whichever_comes_first(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "both").lock().unwrap();
    for waits in [&client, &other] {
        // The limit first.
        let (lock, never) = (kind.make(waits, "both"), CancelToken::new());
        elsewhere(move || {
            at_once(|| {
                let begun = Instant::now();
                let wait = Wait::at_most(UNIT).cancelled_by(&never);
                assert!(lock.lock_within(wait).unwrap().is_none());
                assert!(begun.elapsed() >= UNIT);
            });
        });
        // The token first, and once it is cancelled at once.
        at_once(|| {
            let (lock, token) = (kind.make(waits, "both"), CancelToken::new());
            let cancel = token.clone();
            let waiter = spawn(move || {
                let wait = Wait::at_most(LONG).cancelled_by(&cancel);
                let first = lock.lock_within(wait).map(drop).unwrap_err().kind();
                (first, lock.lock_within(wait).map(drop).unwrap_err().kind())
            });
            waiter.wait_asleep();
            token.cancel();
            assert_eq!(waiter.join(), (ErrorKind::Cancelled, ErrorKind::Cancelled));
        });
    }
    guard.unlock().unwrap();
    // Neither came.
    let token = CancelToken::new();
    let wait = Wait::at_most(SOON).cancelled_by(&token);
    drop(kind.make(&other, "both").lock_within(wait).unwrap().expect("it is free"));
    leaves_nothing(&server);
}

fn other_threads_may_ask_a_guard(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = kind.make(&client, "asked");
    let guard = lock.lock().unwrap();
    let calls = AtomicU64::new(0);
    let told = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert!(guard.is_held() && guard.remaining() > LONG / 2);
                assert_eq!((guard.state(), guard.name()), (HoldState::Held, "asked"));
                guard.check(UNIT).unwrap();
                // To be asked is not to hold.
                assert!(!lock.is_held_by_current_thread() && lock.hold_count() == 0);
                assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
                let told = Arc::clone(&told);
                guard.on_lost(move |_| {
                    told.fetch_add(1, Ordering::SeqCst);
                });
                calls.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    assert_eq!((calls.into_inner(), lock.hold_count()), (4, 1));
    assert!(lock.force_unlock().unwrap());
    wait_until("all are told", SOON, || told.load(Ordering::SeqCst) == 4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(guard.check(UNIT).unwrap_err().kind(), ErrorKind::LeaseLost);
        });
    });
}

/// The hold is passed on within the process, and nobody but the guard says that it was.
fn a_guard_never_says_held_when_the_next_of_its_process_has_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = kind.make(&client, "passed");
    // How often somebody got in.
    let entries = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let take_turns = || {
        while !over.load(Ordering::SeqCst) {
            let guard = lock.lock().unwrap();
            let own = entries.fetch_add(1, Ordering::SeqCst) + 1;
            let asked = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    loop {
                        asked.store(true, Ordering::SeqCst);
                        let others = entries.load(Ordering::SeqCst) != own;
                        if !guard.is_held() {
                            break;
                        }
                        assert!(!others, "two say that they hold it");
                    }
                });
                while !asked.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                lock.unlock().unwrap();
            });
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(take_turns);
        scope.spawn(take_turns);
        std::thread::sleep(UNIT * 20);
        over.store(true, Ordering::SeqCst);
    });
}

fn an_owned_guard_is_nobodys_and_everybodys_rival(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = kind.make(&client, "owned");
    let owned = lock.lock_owned().unwrap();
    assert!(owned.is_held() && lock.is_locked().unwrap());
    assert_eq!((owned.name(), owned.state()), ("owned", HoldState::Held));
    owned.check(UNIT).unwrap();
    // Its thread does not hold the lock: it is as any other.
    assert!(!lock.is_held_by_current_thread() && lock.hold_count() == 0);
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(lock.try_lock().unwrap().is_none());
    assert!(lock.try_lock_owned().unwrap().is_none());
    assert!(lock.try_lock_for(UNIT / 2).unwrap().is_none());
    assert!(lock.lock_owned_within(Wait::at_most(UNIT / 2)).unwrap().is_none());
    assert!(owned.is_held());
    owned.unlock().unwrap();
    // And so it is the other way round.
    let guard = lock.lock().unwrap();
    assert!(lock.try_lock_owned().unwrap().is_none());
    assert!(lock.lock_owned_within(Wait::at_most(UNIT / 2)).unwrap().is_none());
    guard.unlock().unwrap();
    drop(lock.try_lock_owned().unwrap().expect("it is free"));
    leaves_nothing(&server);
}

fn an_owned_guard_is_released_by_whatever_thread_drops_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    for drops in [true, false] {
        at_once(|| {
            let lock = kind.make(&client, "sent");
            // Taken on a thread that has ended when it is released on another one.
            let owned = elsewhere(move || lock.lock_owned().unwrap());
            let waits = kind.make(&other, "sent");
            let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
            waiter.wait_asleep();
            assert!(owned.is_held());
            elsewhere(move || if drops { drop(owned) } else { owned.unlock().unwrap() });
            waiter.join();
        });
        leaves_nothing(&server);
    }
    // It keeps its client, too.
    let owned = kind.make(&client, "kept").lock_owned().unwrap();
    drop(client);
    assert!(owned.is_held());
    elsewhere(move || owned.unlock().unwrap());
    leaves_nothing(&server);
}

fn owned_guards_and_threads_exclude_and_follow_each_other(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let mut random = Random::new();
    let inside = Arc::new(AtomicU64::new(0));
    // Who takes an owned guard may have another thread drop it.
    let (send, receive) = std::sync::mpsc::channel::<OwnedLockGuard>();
    let entered = Arc::clone(&inside);
    let dropper = spawn(move || {
        for guard in receive {
            assert!(guard.is_held());
            entered.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        }
    });
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let lock = kind.make(&clients[at % 2], "mixed");
            let (inside, send) = (Arc::clone(&inside), send.clone());
            let mut random = Random::of(random.next());
            spawn(move || {
                for _ in 0..100 {
                    if random.below(2) == 0 {
                        let guard = lock.lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        let again = lock.lock().unwrap();
                        assert!(again.is_held() && lock.hold_count() == 2);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop((again, guard));
                    } else {
                        let guard = lock.lock_owned().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(guard.is_held() && lock.hold_count() == 0);
                        send.send(guard).unwrap();
                    }
                }
            })
        })
        .collect();
    drop(send);
    threads.into_iter().for_each(Running::join);
    dropper.join();
    leaves_nothing(&server);
}

fn a_lost_owned_guard_is_told_where_it_is(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let owned = kind.leased(&client, "lost", LEASE).lock_owned().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&calls);
    owned.on_lost(move |_| {
        told.fetch_add(1, Ordering::SeqCst);
    });
    let theirs = kind.make(&other, "lost").lock().unwrap();
    assert_eq!(owned.state(), HoldState::Lost(LostReason::LeaseExpired));
    wait_until("it is told", SOON, || calls.load(Ordering::SeqCst) == 1);
    let error = elsewhere(move || owned.unlock().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(theirs.is_held());
    theirs.unlock().unwrap();
    let owned = kind.make(&client, "lost").lock_owned().unwrap();
    client.shutdown();
    assert_eq!(owned.state(), HoldState::Lost(LostReason::ShutDown));
    leaves_nothing(&server);
}

fn a_wait_for_an_owned_guard_ends_like_any_other(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "wait").lock_owned().unwrap();
    for waits in [&client, &other] {
        let (lock, token) = (kind.make(waits, "wait"), CancelToken::new());
        let cancel = token.clone();
        let waiter = spawn(move || {
            let wait = Wait::FOREVER.cancelled_by(&cancel);
            lock.lock_owned_within(wait).map(drop).unwrap_err().kind()
        });
        waiter.wait_asleep();
        token.cancel();
        assert_eq!(waiter.join(), ErrorKind::Cancelled);
    }
    let lock = kind.make(&other, "wait");
    let waiter = spawn(move || lock.lock_owned().map(drop).unwrap_err().kind());
    waiter.wait_asleep();
    other.shutdown();
    assert_eq!(waiter.join(), ErrorKind::ShutDown);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

/// Locks when its thread's thread-locals are destroyed, after those that were used later.
struct Late(Option<(Arc<dyn Lock>, std::sync::mpsc::Sender<bool>)>);

impl Drop for Late {
    fn drop(&mut self) {
        if let Some((lock, done)) = self.0.take() {
            let outcome = lock.lock().and_then(|guard| guard.unlock());
            done.send(outcome.is_ok()).unwrap();
        }
    }
}

thread_local! {
    static LATE: std::cell::RefCell<Late> = const { std::cell::RefCell::new(Late(None)) };
}

fn a_thread_that_is_ending_may_wait_for_it(kind: Kind) {
    let _bounded = bounded();
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "late").lock().unwrap();
    let lock = kind.make(&other, "late");
    let (done, late) = std::sync::mpsc::channel();
    let (tried, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let barriers = (Arc::clone(&tried), Arc::clone(&go_on));
    let ending = spawn(move || {
        LATE.with_borrow_mut(|late| late.0 = Some((Arc::clone(&lock), done)));
        // All that a wait uses, so that it is destroyed first.
        assert!(lock.try_lock_for(UNIT).unwrap().is_none());
        barriers.0.wait();
        barriers.1.wait();
    });
    tried.wait();
    let before = Commands::so_far(&server).scripts();
    go_on.wait();
    wait_until("it asks", SOON, || Commands::so_far(&server).scripts() > before);
    // And falls asleep.
    std::thread::sleep(UNIT);
    guard.unlock().unwrap();
    assert!(late.recv_timeout(SOON).unwrap());
    ending.join();
    leaves_nothing(&server);
}
