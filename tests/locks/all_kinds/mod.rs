//! The behaviour of locks of every kind. Each test runs for all kinds, through the trait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Error, ErrorKind, HoldState, Lock, LostReason, MultiLock, OwnedLockGuard,
    Wait,
};
use redlatch_testkit::{Action, Direction, Proxy, Server};

/// A lease that is short enough for a test to wait for its end.
const LEASE: Duration = Duration::from_millis(6 * TIME_UNIT.as_millis() as u64);

/// A kind of lock, and how to make one.
#[derive(Clone, Copy)]
struct Kind {
    plain: fn(&Client, &str) -> Arc<dyn Lock>,
    leased: fn(&Client, &str, Duration) -> Arc<dyn Lock>,
    flat: fn(&Client, &str) -> Arc<dyn Lock>,
    least: fn(&Client, &str, Duration) -> Arc<dyn Lock>,
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
    flat: |client, name| Arc::new(client.reentrant_lock(name).non_reentrant()),
    least: |client, name, least| Arc::new(client.reentrant_lock(name).with_hold_at_least(least)),
};

const FAIR: Kind = Kind {
    plain: |client, name| Arc::new(client.fair_lock(name)),
    leased: |client, name, lease| Arc::new(client.fair_lock(name).with_lease(lease)),
    flat: |client, name| Arc::new(client.fair_lock(name).non_reentrant()),
    least: |client, name, least| Arc::new(client.fair_lock(name).with_hold_at_least(least)),
};

/// The write lock of a read-write lock. A write lock's hash, channel and queue differ from those of
/// a plain lock.
const WRITE: Kind = Kind {
    plain: |client, name| Arc::new(client.read_write_lock(name).writer().clone()),
    leased: |client, name, lease| Arc::new(client.read_write_lock(name).writer().with_lease(lease)),
    flat: |client, name| Arc::new(client.read_write_lock(name).writer().non_reentrant()),
    least: |client, name, least| {
        Arc::new(client.read_write_lock(name).writer().with_hold_at_least(least))
    },
};

/// A `MultiLock`, which implements all methods of a lock.
const SEVERAL: Kind = Kind {
    plain: |client, name| Arc::new(several(client, name)),
    leased: |client, name, lease| Arc::new(several(client, name).with_lease(lease)),
    flat: |client, name| Arc::new(several(client, name).non_reentrant()),
    least: |client, name, least| Arc::new(several(client, name).with_hold_at_least(least)),
};

fn several(client: &Client, name: &str) -> MultiLock {
    MultiLock::new(&[&client.reentrant_lock(name)]).unwrap()
}

/// Runs each of these tests for each kind.
macro_rules! over_all_kinds {
    ($($test:ident)*) => {
        mod reentrant {
            $(#[test] fn $test() { super::$test(super::REENTRANT) })*
        }
        mod fair {
            $(#[test] fn $test() { super::$test(super::FAIR) })*
        }
        mod write {
            $(#[test] fn $test() { super::$test(super::WRITE) })*
        }
        mod several {
            $(#[test] fn $test() { super::$test(super::SEVERAL) })*
        }
    };
}

mod at_least;
mod extend;
mod keys;
mod leases;
mod left;
mod owned;
mod waiting;

over_all_kinds! {
    only_one_holds_it
    it_is_taken_again_by_its_thread_and_released_level_by_level
    a_non_reentrant_handle_gives_no_second_level
    a_thread_without_the_lock_cannot_unlock_it
    a_guard_of_an_earlier_stay_does_nothing_to_the_next
    a_forgotten_guard_keeps_it_until_unlock
    a_panic_releases_it
    force_unlock_takes_it_from_anybody
    a_frozen_server_is_an_error_in_time_and_leaves_nothing
}

/// Returns another client, for tests in which `client` is already a variable.
fn another(server: &Server) -> Client {
    client(server)
}

/// Returns the error of a call that waits for the lock and is granted it by a message. The call's
/// next request has a lease of an hour. The server runs that request, but its reply is lost.
fn error_after_a_grant(
    theirs: &Arc<dyn Lock>,
    proxy: &Proxy,
    call: impl Fn() -> Result<(), Error> + Clone + Send + 'static,
) -> Error {
    let until = Instant::now() + TIMEOUT;
    loop {
        let held = theirs.lock().unwrap();
        let waiter = spawn(call.clone());
        waiter.wait_queued();
        after_a_grant(proxy, usize::MAX, Action::LoseReply);
        held.unlock().unwrap();
        let called = waiter.join();
        proxy.clear_rules();
        match called {
            Err(error) => return error,
            // The call sent its request at the moment of the grant, so a reply granted the lock
            // with the full lease.
            Ok(()) => {
                assert!(Instant::now() < until);
                theirs.force_unlock().unwrap();
            }
        }
    }
}

/// Waits until the server has no key of the lock.
#[track_caller]
fn leaves_nothing(server: &Server) {
    let mut redis = server.connection();
    let until = Instant::now() + TIMEOUT;
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
                        0 => lock.try_lock().unwrap().into_option(),
                        1 => if_answered(lock.try_lock_for(Duration::from_millis(random.below(5)))),
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
    let server = server();
    let client = client(&server);
    let (lock, same) = (kind.make(&client, "levels"), kind.make(&client, "levels"));
    assert_eq!(lock.name(), "levels");
    assert!(!lock.is_locked().unwrap() && !lock.is_held_by_current_thread());
    let first = lock.lock().unwrap();
    let before = Commands::so_far(&server).of_locks();
    let second = same.try_lock().unwrap().into_option().unwrap();
    let third = lock.try_lock_for(TIMEOUT).unwrap().into_option().unwrap();
    assert_eq!((lock.hold_count(), same.hold_count()), (3, 3));
    first.unlock().unwrap();
    drop(third);
    assert_eq!(lock.hold_count(), 1);
    assert!(second.is_held() && lock.is_held_by_current_thread());
    assert_eq!(Commands::so_far(&server).of_locks(), before, "a level is nothing to the server");
    assert_eq!(holder(&mut server.connection(), "levels").unwrap().1, "1");
    let other = Arc::clone(&lock);
    assert!(elsewhere(move || other.try_lock().unwrap().into_option().is_none()));
    second.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
    assert_eq!(lock.remaining_lease().unwrap(), None);
    leaves_nothing(&server);
}

fn a_non_reentrant_handle_gives_no_second_level(kind: Kind) {
    let server = server();
    let client = client(&server);
    let (lock, flat) = (kind.make(&client, "flat"), (kind.flat)(&client, "flat"));
    for first in [&lock, &flat] {
        let guard = first.lock().unwrap();
        let before = Commands::so_far(&server).of_locks();
        for refused in
            [flat.lock().map(drop), flat.try_lock().map(drop), flat.try_lock_for(TIMEOUT).map(drop)]
        {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::WouldDeadlock);
        }
        assert_eq!(Commands::so_far(&server).of_locks(), before, "nothing was asked");
        assert!(guard.is_held() && lock.hold_count() == 1);
        // The lock is taken for another thread, and also for a call that returns an owned guard.
        let other = Arc::clone(&flat);
        assert!(elsewhere(move || other.try_lock().unwrap().into_option().is_none()));
        assert!(flat.try_lock_owned().unwrap().into_option().is_none());
        // The thread may take the lock through the other handle.
        drop(lock.lock().unwrap());
        guard.unlock().unwrap();
    }
    // A lost hold is not counted.
    let lost = flat.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    flat.lock().unwrap().unlock().unwrap();
    drop(lost);
    leaves_nothing(&server);
}

fn a_thread_without_the_lock_cannot_unlock_it(kind: Kind) {
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
    let server = server();
    let client = client(&server);
    kind.make(&client, "forgotten").lock().unwrap().forget();
    let lock = kind.make(&client, "forgotten");
    assert_eq!(lock.hold_count(), 1);
    lock.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_panic_releases_it(kind: Kind) {
    let server = server();
    let client = client(&server);
    let (lock, waits) = (kind.make(&client, "panic"), kind.make(&client, "panic"));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = lock.lock().unwrap();
        panic!("as the test wants it");
    }));
    assert!(panicked.is_err());
    elsewhere(move || {
        drop(waits.try_lock_for(TIMEOUT).unwrap().into_option().expect("it is free"));
    });
    leaves_nothing(&server);
}

fn force_unlock_takes_it_from_anybody(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    for forces in [&client, &other] {
        let lock = kind.make(forces, "forced");
        assert!(!lock.force_unlock().unwrap());
        woken_by_message(|| {
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

/// For the kind `read_write`, the Java service has the write lock.
#[test]
fn a_java_services_hold_is_respected() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for kind in [REENTRANT, FAIR] {
        let lock = kind.make(&client, "java");
        let begun = Instant::now();
        hold_as_redisson(&mut redis, "java", LEASE);
        assert!(lock.is_locked().unwrap() && lock.try_lock().unwrap().into_option().is_none());
        let guard = lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("the lease ends");
        let took = begun.elapsed();
        assert!(took >= LEASE, "{took:?}");
        guard.unlock().unwrap();
        leaves_nothing(&server);
    }
}

fn a_frozen_server_is_an_error_in_time_and_leaves_nothing(kind: Kind) {
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let held = kind.make(&client, "held").lock().unwrap();
    server.pause();
    let begun = Instant::now();
    let threads: Vec<_> = (0..MANY_THREADS)
        .map(|_| {
            let lock = kind.make(&client, "frozen");
            spawn(move || lock.lock().map(drop).unwrap_err().kind())
        })
        .collect();
    for thread in threads {
        assert!(thread.join().is_server_trouble());
    }
    // All calls together took a few timeouts, and not one timeout for each call.
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    assert!(held.unlock().unwrap_err().kind().is_server_trouble());
    server.resume();
    std::thread::sleep(TIME_UNIT * 2);
    let mut redis = server.connection();
    wait_until("all is free", TIMEOUT, || redis.keys::<_, Vec<String>>("*").unwrap().is_empty());
}
