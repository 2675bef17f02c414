//! How a hold stays alive, and how its holder learns that it did not.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{Client, ErrorKind, HoldState, LockGuard, LostReason};
use redlatch_testkit::{Action, Direction, Proxy};

/// The lease of locks to be kept.
const LEASE: Duration = RENEWED;
/// The lease of locks to end.
const SHORT: Duration = Duration::from_millis(10 * UNIT.as_millis() as u64);

/// The reasons that a guard's `on_lost` was called with.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<LostReason>>>);

impl Losses {
    fn of(guard: &LockGuard) -> Self {
        let losses = Self::default();
        let told = losses.clone();
        guard.on_lost(move |reason| told.0.lock().unwrap().push(reason));
        losses
    }

    fn so_far(&self) -> Vec<LostReason> {
        self.0.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait(&self) -> LostReason {
        wait_until("on_lost is called", SOON, || !self.so_far().is_empty());
        self.so_far()[0]
    }
}

// The three experiments.

#[test]
fn experiment_1_the_watchdog_keeps_a_lock_that_is_not_released() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (watched(&server, LEASE), client(&server));
    let guard = one.reentrant_lock("redisson:lock").lock().unwrap();
    let losses = Losses::of(&guard);
    let begun = Instant::now();
    // Another client wants it all the time, for longer than a lease.
    assert!(other.reentrant_lock("redisson:lock").try_lock_for(LEASE * 2).unwrap().is_none());
    assert!(begun.elapsed() > LEASE * 2);
    assert!(guard.is_held());
    assert_eq!(guard.state(), HoldState::Held);
    let left = pttl(&mut server.connection(), "redisson:lock");
    assert!(left > 0 && left <= i64::try_from(LEASE.as_millis()).unwrap(), "{left} ms");
    assert_eq!(losses.so_far(), []);
    guard.unlock().unwrap();
}

/// From when the lock was taken the server lets no further connection in, and the lane answers.
/// Once the client's other connection stays, and once it is cut, too.
#[test]
fn a_hold_is_renewed_where_no_further_connection_can_be_had() {
    let _bounded = bounded();
    let ways = [["maxclients", "1"], ["requirepass", "changed"]];
    for (way, is_cut) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let server = server();
        let mut redis = server.connection();
        let client = Client::builder(&server.url()).watchdog_timeout(LEASE).client_tracking(false);
        let client = client.connections(1).connect().unwrap();
        let guard = client.reentrant_lock("kept").lock().unwrap();
        let losses = Losses::of(&guard);
        let () = redis::cmd("CONFIG").arg("SET").arg(&way).query(&mut redis).unwrap();
        if is_cut {
            // A script was the lane's last command.
            let own: u64 = redis::cmd("CLIENT").arg("ID").query(&mut redis).unwrap();
            let own = format!("id={own} ");
            let all: String = redis::cmd("CLIENT").arg("LIST").query(&mut redis).unwrap();
            let renewers = all
                .lines()
                .find(|line| !line.contains("cmd=eval") && !line.starts_with(&own))
                .unwrap();
            let id = renewers.strip_prefix("id=").unwrap().split(' ').next().unwrap();
            let () = redis::cmd("CLIENT").arg(&["KILL", "ID", id]).query(&mut redis).unwrap();
        }
        for _ in 0..2 {
            let mut left = pttl(&mut redis, "kept");
            wait_until("it is renewed", SOON, || {
                assert_eq!(losses.so_far(), [], "{way:?}, cut: {is_cut}");
                let before = std::mem::replace(&mut left, pttl(&mut redis, "kept"));
                left > before
            });
        }
        guard.unlock().unwrap();
    }
}

#[test]
fn experiment_2_a_fixed_lease_ends_and_the_late_unlock_fails() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, SHORT);
    let lock = client.reentrant_lock("redisson:lock").with_lease(SHORT);
    let before = Commands::so_far(&server).of("pexpire");
    let guard = lock.lock().unwrap();
    let losses = Losses::of(&guard);
    // Time is the subject: the work takes longer than the lease.
    thread::sleep(SHORT * 3 / 2);
    assert!(!guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(!lock.is_held_by_current_thread());
    assert_eq!(lock.hold_count(), 0);
    assert!(!lock.is_locked().unwrap());
    assert_eq!(losses.wait(), LostReason::LeaseExpired);
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(error.to_string().contains("\"redisson:lock\""), "{error}");
    assert_eq!(Commands::so_far(&server).of("pexpire") - before, 1, "it was never renewed");
    assert_eq!(losses.so_far().len(), 1);
}

#[test]
fn experiment_3_a_leases_end_lets_another_in_and_a_late_unlock_harms_no_hold() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (watched(&server, LEASE), watched(&server, LEASE));
    // Behind a thread of another client, and behind one of the same.
    for next in [other, one.clone()] {
        let lock = one.reentrant_lock("redisson:lock").with_lease(SHORT);
        let begun = Instant::now();
        let guard = lock.lock().unwrap();
        let ours = holder(&mut server.connection(), "redisson:lock");
        let theirs = next.reentrant_lock("redisson:lock");
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let waiter = spawn(move || {
            let guard = theirs.lock().unwrap();
            let entered = Instant::now();
            // Until the late unlock is over.
            let _ = receiver.recv();
            assert!(guard.is_held());
            guard.unlock().unwrap();
            entered
        });
        wait_until("the lease ends", SOON, || !guard.is_held());
        // By the server's count the lease lasts a little longer.
        let mut before = None;
        wait_until("the waiter has it", SOON, || {
            before = holder(&mut server.connection(), "redisson:lock");
            before.is_some() && before != ours
        });
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(holder(&mut server.connection(), "redisson:lock"), before);
        drop(sender);
        let entered = waiter.join() - begun;
        // Redis counts whole milliseconds.
        assert!(entered + Duration::from_millis(2) >= SHORT, "too early: {entered:?}");
    }
}

// Renewal.

#[test]
fn holds_that_are_due_together_are_renewed_together() {
    let _bounded = bounded();
    let server = server();
    let lease = LEASE;
    let client = watched(&server, lease);
    let count = 400;
    let begun = Instant::now();
    let guards: Vec<_> =
        (0..count).map(|at| client.reentrant_lock(&format!("many:{at}")).lock().unwrap()).collect();
    let taking = begun.elapsed();
    let before = Commands::so_far(&server);
    // About three of each: no hold is renewed all the time.
    let (mut renewals, mut calls) = (0, 0);
    wait_until("they are renewed", SOON, || {
        let now = Commands::so_far(&server);
        renewals = now.of("pexpire") - before.of("pexpire");
        calls = now.scripts() - before.scripts();
        renewals >= count * 3
    });
    let took = begun.elapsed();
    assert!(guards.iter().all(LockGuard::is_held));
    assert!(took >= lease * 2 / 3, "{renewals} renewals in {took:?}");
    // Taken over a longer time, they fall due in more groups.
    let groups = 1 + u64::try_from(taking.as_millis() * 64 / lease.as_millis()).unwrap();
    let bound = renewals / 20 + 10 * groups;
    assert!(calls < bound.min(renewals / 4), "{calls} calls for {renewals} renewals");
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
}

#[test]
fn a_short_hold_is_never_renewed() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LONG);
    let lock = client.reentrant_lock("short");
    lock.lock().unwrap().unlock().unwrap();
    let before = Commands::so_far(&server);
    for _ in 0..100 {
        lock.lock().unwrap().unlock().unwrap();
    }
    let after = Commands::so_far(&server);
    assert_eq!(after.scripts() - before.scripts(), 200);
    assert_eq!(after.of("pexpire") - before.of("pexpire"), 100);
}

#[test]
fn no_renewal_follows_a_release() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let (dropped, unlocked) = (client.reentrant_lock("a"), client.reentrant_lock("b"));
    let guards = (dropped.lock().unwrap(), unlocked.lock().unwrap());
    wait_renewed(&server, "a");
    wait_renewed(&server, "b");
    let (first, second) = guards;
    drop(first);
    second.unlock().unwrap();
    wait_free(&server, "a", SOON);
    // A renewal may be on its way at the release.
    thread::sleep(UNIT);
    let before = Commands::so_far(&server).scripts();
    // Another client takes it: the earlier hold's requests do not touch this one.
    hold_as_redisson(&mut server.connection(), "b", LEASE);
    // Time is the subject: the next ones would have come, after a third of it each.
    thread::sleep(LEASE * 3 / 4);
    assert_eq!(Commands::so_far(&server).scripts(), before);
    // The lease ends unrenewed.
    wait_free(&server, "b", LEASE);
}

#[test]
fn a_hold_whose_thread_has_ended_is_not_renewed() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (watched(&server, LEASE), watched(&server, LEASE));
    let lock = one.reentrant_lock("orphan");
    let losses = Losses::default();
    let (same, told) = (lock.clone(), losses.clone());
    let ended = thread::spawn(move || {
        let guard = same.lock().unwrap();
        guard.on_lost(move |reason| told.0.lock().unwrap().push(reason));
        guard.forget();
        same.lock().unwrap().forget();
    });
    ended.join().unwrap_or_else(|panic| resume_unwind(panic));
    let begun = Instant::now();
    // A thread of the same client and one of another wait for it.
    let waiters: Vec<_> = [lock, other.reentrant_lock("orphan")]
        .into_iter()
        .map(|lock| spawn(move || lock.lock().unwrap().unlock().unwrap()))
        .collect();
    waiters.into_iter().for_each(Running::join);
    // At the lease's end, or one renewal later if that was on its way.
    let took = begun.elapsed();
    assert!(took > LEASE / 2, "{took:?}");
    assert_eq!(losses.wait(), LostReason::LeaseExpired);
}

#[test]
fn a_forgotten_guard_is_renewed_while_its_thread_lives() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let lock = client.reentrant_lock("forgotten");
    lock.lock().unwrap().forget();
    drop(lock);
    // Time is the subject.
    thread::sleep(LEASE * 3 / 2);
    let lock = client.reentrant_lock("forgotten");
    assert!(lock.is_held_by_current_thread());
    assert!(lock.is_locked().unwrap());
    lock.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn an_owned_guard_is_renewed_after_its_thread_has_ended() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let lock = client.reentrant_lock("owned");
    for passed in [false, true] {
        // From the server, or from another holder of this process; on a thread that has ended then.
        let before = passed.then(|| lock.lock_owned().unwrap());
        let same = lock.clone();
        let taking = spawn(move || same.lock_owned().unwrap());
        if let Some(before) = before {
            taking.wait_asleep();
            drop(before);
        }
        let guard = taking.join();
        let losses = Losses::default();
        let told = losses.clone();
        guard.on_lost(move |reason| told.0.lock().unwrap().push(reason));
        // Time is the subject.
        thread::sleep(LEASE * 3 / 2);
        assert!(guard.is_held() && losses.0.lock().unwrap().is_empty());
        guard.unlock().unwrap();
        assert!(!lock.is_locked().unwrap());
    }
}

#[test]
fn a_leaked_owned_guard_is_kept_for_max_hold_and_no_longer() {
    let _bounded = bounded();
    let server = server();
    let longest = LEASE * 4 / 3;
    let client =
        Client::builder(&server.url()).watchdog_timeout(LEASE).max_hold(longest).connect().unwrap();
    let lock = client.reentrant_lock("leaked");
    let begun = Instant::now();
    std::mem::forget(lock.lock_owned().unwrap());
    lock.try_lock_for(SOON).unwrap().expect("its lease ends").unlock().unwrap();
    let took = begun.elapsed();
    assert!(took > longest - LEASE / 10, "it was renewed at first: {took:?}");
}

#[test]
fn a_hold_is_not_renewed_past_max_hold() {
    let _bounded = bounded();
    let server = server();
    let longest = LEASE * 4 / 3;
    let client =
        Client::builder(&server.url()).watchdog_timeout(LEASE).max_hold(longest).connect().unwrap();
    let begun = Instant::now();
    let guard = client.reentrant_lock("longest").lock().unwrap();
    let losses = Losses::of(&guard);
    assert_eq!(losses.wait(), LostReason::LeaseExpired);
    let took = begun.elapsed();
    assert!(took > longest - LEASE / 10, "it was renewed at first: {took:?}");
    assert!(!guard.is_held());
    wait_free(&server, "longest", SOON);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    // The next hold has its own time.
    client.reentrant_lock("longest").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_watched_level_in_a_fixed_hold_is_renewed_while_it_is_open() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let lock = client.reentrant_lock("nested");
    let outer = lock.with_lease(LEASE).lock().unwrap();
    let inner = lock.lock().unwrap();
    // Time is the subject.
    thread::sleep(LEASE * 3 / 2);
    assert!(outer.is_held() && inner.is_held());
    inner.unlock().unwrap();
    assert!(outer.is_held());
    wait_until("its own lease ends", LEASE * 3 / 2, || !outer.is_held());
    assert_eq!(outer.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
}

#[test]
fn a_failed_renewal_is_tried_again_until_the_deadline() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE * 3 / 2);
    let guard = client.reentrant_lock("retried").lock().unwrap();
    let losses = Losses::of(&guard);
    let set = |of: &[&str]| -> String {
        redis::cmd("REPLICAOF").arg(of).query(&mut server.connection()).unwrap()
    };
    for _ in 0..2 {
        // A replica without a master refuses writes, renewals with them.
        set(&["127.0.0.1", "1"]);
        wait_until("a renewal has failed", SOON, || guard.state() == HoldState::Unconfirmed);
        assert!(guard.is_held());
        set(&["NO", "ONE"]);
        wait_until("a renewal has succeeded", SOON, || guard.state() != HoldState::Unconfirmed);
        assert_eq!(guard.state(), HoldState::Held);
    }
    assert_eq!(losses.so_far(), []);
    guard.unlock().unwrap();
}

#[test]
fn a_failed_renewal_is_not_left_to_the_next_third() {
    let _bounded = bounded();
    let server = server();
    let lease = LEASE * 5 / 2;
    let client = watched(&server, lease);
    let guard = client.reentrant_lock("soon").lock().unwrap();
    let set = |of: &[&str]| -> String {
        redis::cmd("REPLICAOF").arg(of).query(&mut server.connection()).unwrap()
    };
    set(&["127.0.0.1", "1"]);
    // The second third has gone by as well; the next would be the end.
    wait_until("the lease is nearly over", SOON, || guard.remaining() < lease * 3 / 10);
    set(&["NO", "ONE"]);
    wait_until("it is renewed or lost", SOON, || guard.state() != HoldState::Unconfirmed);
    assert_eq!(guard.state(), HoldState::Held);
    assert!(guard.remaining() > lease / 2);
    guard.unlock().unwrap();
}

#[test]
fn a_server_that_stands_still_for_less_than_a_lease_costs_no_hold() {
    let _bounded = bounded();
    let server = server();
    let lease = LEASE * 3 / 2;
    let client = watched(&server, lease);
    let guards: Vec<_> =
        (0..50).map(|at| client.reentrant_lock(&format!("still:{at}")).lock().unwrap()).collect();
    let losses: Vec<_> = guards.iter().map(Losses::of).collect();
    // Time is the subject: the first renewal falls into the pause.
    server.pause();
    thread::sleep(lease * 11 / 20);
    server.resume();
    wait_until("they are renewed", SOON, || {
        guards.iter().all(|guard| !guard.is_held() || guard.remaining() > lease / 2)
    });
    for (guard, losses) in guards.iter().zip(&losses) {
        assert_eq!(guard.state(), HoldState::Held, "{guard:?}");
        assert_eq!(losses.so_far(), []);
    }
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
}

// A watched lease of its own.

#[test]
fn a_watched_lease_of_its_own_is_renewed_and_never_longer() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let semaphore = client.expirable_semaphore("own:permits");
    assert!(semaphore.try_set_permits(1).unwrap());
    let plain = client.reentrant_lock("own:plain").with_watchdog(LEASE).lock().unwrap();
    let fair = client.fair_lock("own:fair").with_watchdog(LEASE).lock().unwrap();
    let read = client.read_write_lock("own:read").read().with_watchdog(LEASE).lock().unwrap();
    let permit = semaphore.with_watchdog(LEASE).acquire().unwrap();
    let until = Instant::now() + LEASE * 3;
    let mut redis = server.connection();
    while Instant::now() < until {
        for (name, guard) in [("own:plain", &plain), ("own:fair", &fair), ("own:read", &read)] {
            assert!(guard.is_held(), "{name}: {:?}", guard.check(Duration::ZERO));
            let left = pttl(&mut redis, name);
            assert!(left > 0 && left <= millis(LEASE), "{name}: {left} ms");
        }
        assert!(permit.is_held(), "{:?}", permit.check(Duration::ZERO));
        let left = semaphore.remaining_lease(&permit.id()).unwrap();
        assert!(left.is_some_and(|left| left <= LEASE), "{left:?}");
        thread::sleep(UNIT);
    }
    let error = plain.check(LONG).unwrap_err();
    assert!(error.to_string().contains("take a longer watched lease"), "{error}");
    for guard in [plain, fair, read] {
        guard.unlock().unwrap();
    }
    permit.release().unwrap();
}

#[test]
fn of_several_watched_leases_the_longest_is_renewed() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("several");
    let mut redis = server.connection();
    let outer = lock.with_watchdog(LEASE).lock().unwrap();
    let inner = lock.lock().unwrap();
    wait_until("it has the longer one", SOON, || pttl(&mut redis, "several") > millis(LEASE));
    inner.unlock().unwrap();
    outer.unlock().unwrap();
    // The next hold has its own, and a shorter one changes nothing.
    let outer = lock.lock().unwrap();
    let inner = lock.with_watchdog(LEASE).lock().unwrap();
    assert!(pttl(&mut redis, "several") > millis(LEASE));
    assert!(inner.check(LEASE).is_ok());
    inner.unlock().unwrap();
    outer.unlock().unwrap();
    for lease in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
        let error = lock.with_watchdog(lease).try_lock().map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Config, "{error}");
        let permits = client.expirable_semaphore("several:permits").with_watchdog(lease);
        assert_eq!(permits.try_acquire().map(drop).unwrap_err().kind(), ErrorKind::Config);
    }
}

#[test]
fn a_connection_that_hangs_is_given_up_in_time_for_the_shortest_watched_lease() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG).connect().unwrap();
    let short = client.reentrant_lock("short").with_watchdog(LEASE).lock().unwrap();
    let losses = Losses::of(&short);
    proxy.on(Direction::Request, 1, Action::HoldReply, |bytes| {
        contains(bytes, "short") && contains(bytes, "EVALSHA")
    });
    wait_until("it is renewed over another one, or lost", SOON, || {
        short.state() == HoldState::Unconfirmed || !short.is_held()
    });
    wait_until("it is renewed over another one", SOON, || {
        !short.is_held() || short.state() == HoldState::Held
    });
    assert_eq!(losses.so_far(), []);
    proxy.clear_rules();
    proxy.release();
    short.unlock().unwrap();
}

#[test]
fn a_server_that_stands_still_costs_neither_the_short_watched_lease_nor_the_long_one() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE * 2);
    let long = client.reentrant_lock("long").lock().unwrap();
    let short = client.reentrant_lock("short").with_watchdog(LEASE).lock().unwrap();
    // Time is the subject: the first renewal of the short one falls into the pause.
    thread::sleep(LEASE / 6);
    server.pause();
    thread::sleep(LEASE / 3);
    server.resume();
    wait_until("both are renewed", SOON, || {
        [(&long, LEASE * 2), (&short, LEASE)]
            .iter()
            .all(|(guard, lease)| !guard.is_held() || guard.remaining() > *lease * 3 / 4)
    });
    for guard in [long, short] {
        assert_eq!(guard.state(), HoldState::Held, "{guard:?}");
        guard.unlock().unwrap();
    }
}

// Losing.

#[test]
fn a_lost_hold_is_told_at_the_deadline_though_the_server_does_not_answer() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, SHORT);
    let guard = client.reentrant_lock("silent").lock().unwrap();
    let second = client.reentrant_lock("silent too").with_lease(SHORT).lock().unwrap();
    let losses = [Losses::of(&guard), Losses::of(&second)];
    server.pause();
    for losses in &losses {
        assert_eq!(losses.wait(), LostReason::LeaseExpired);
    }
    assert!(!guard.is_held() && !second.is_held());
    server.resume();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(second.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    // The server's rests of them do not stay.
    wait_free(&server, "silent", SOON);
    client.reentrant_lock("silent").lock().unwrap().unlock().unwrap();
    assert!(losses.iter().all(|losses| losses.so_far().len() == 1));
}

#[test]
fn a_hold_that_the_server_has_lost_is_told_at_the_next_renewal() {
    let _bounded = bounded();
    let server = server();
    let (lease, other) = (LEASE, client(&server));
    // The server does not tell it before.
    let client = Client::builder(&server.url()).watchdog_timeout(lease).client_tracking(false);
    let client = client.connect().unwrap();
    let ways: [(&str, &dyn Fn()); 4] = [
        ("DEL", &|| server.connection().del("gone").unwrap()),
        ("FLUSHALL", &|| {
            let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
        }),
        ("another's force_unlock", &|| {
            assert!(other.reentrant_lock("gone").force_unlock().unwrap());
        }),
        ("a restart without data", &|| server.restart_empty()),
    ];
    for (way, take_away) in ways {
        let guard = client.reentrant_lock("gone").lock().unwrap();
        let losses = Losses::of(&guard);
        take_away();
        // Another client has it already, and keeps it.
        let theirs = other.reentrant_lock("gone").try_lock_for(SOON).unwrap().unwrap();
        let held = holder(&mut server.connection(), "gone");
        // If no renewal found it, the lease would end.
        assert_eq!(losses.wait(), LostReason::Revoked, "{way}");
        assert_eq!(guard.state(), HoldState::Lost(LostReason::Revoked), "{way}");
        assert!(!guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost, "{way}");
        assert_eq!(losses.so_far().len(), 1, "{way}");
        assert_eq!(holder(&mut server.connection(), "gone"), held, "{way}");
        theirs.unlock().unwrap();
        // New locks work, and are renewed.
        let guard = client.reentrant_lock("gone").lock().unwrap();
        wait_renewed(&server, "gone");
        assert!(guard.is_held(), "{way}");
        guard.unlock().unwrap();
    }
}

#[test]
fn a_loss_that_the_unlock_finds_is_its_error() {
    let _bounded = bounded();
    let server = server();
    // The server does not tell it.
    let client = Client::builder(&server.url()).watchdog_timeout(LONG).client_tracking(false);
    let lock = client.connect().unwrap().reentrant_lock("found");
    let guard = lock.lock().unwrap();
    let () = server.connection().del("found").unwrap();
    hold_as_redisson(&mut server.connection(), "found", LONG);
    assert!(guard.is_held(), "nobody has asked yet");
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert_eq!(holder(&mut server.connection(), "found").unwrap().0, FOREIGN);
    assert!(!lock.is_held_by_current_thread());
}

#[test]
fn another_value_under_the_name_loses_that_hold_and_no_other() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let guards: Vec<_> =
        (0..3).map(|at| client.reentrant_lock(&format!("type:{at}")).lock().unwrap()).collect();
    let losses = Losses::of(&guards[1]);
    let () = server.connection().set("type:1", "no lock").unwrap();
    assert_eq!(losses.wait(), LostReason::Revoked);
    // Time is the subject: the others' leases would be over.
    thread::sleep(LEASE * 3 / 2);
    assert!(guards[0].is_held() && !guards[1].is_held() && guards[2].is_held());
    let value: String = server.connection().get("type:1").unwrap();
    assert_eq!(value, "no lock");
}

#[test]
fn each_callback_of_a_loss_is_called_once() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, SHORT);
    let lock = client.reentrant_lock("callbacks").with_lease(SHORT);
    let guard = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let calls: Vec<_> = (0..5).map(|_| Arc::new(AtomicU64::new(0))).collect();
    for (at, call) in calls.iter().enumerate().take(3) {
        let call = Arc::clone(call);
        let guard = if at == 2 { &inner } else { &guard };
        guard.on_lost(move |_| {
            call.fetch_add(1, Ordering::SeqCst);
            assert!(at != 0, "the callback's own panic");
        });
    }
    let seen = |at: usize| calls[at].load(Ordering::SeqCst);
    wait_until("the callbacks are called", SOON, || (0..3).all(|at| seen(at) == 1));
    // Registered when it is lost already, also by a callback that uses the library.
    let (call, again) = (Arc::clone(&calls[3]), lock.clone());
    guard.on_lost(move |reason| {
        assert_eq!(reason, LostReason::LeaseExpired);
        again.lock().unwrap().unlock().unwrap();
        call.fetch_add(1, Ordering::SeqCst);
    });
    wait_until("the late callback is called", SOON, || seen(3) == 1);
    // Other calls find the loss again.
    assert!(guard.check(Duration::ZERO).is_err());
    assert!(!lock.force_unlock().unwrap());
    assert_eq!(inner.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    drop(guard);
    // A hold that is released is not lost.
    let guard = lock.lock().unwrap();
    let call = Arc::clone(&calls[4]);
    guard.on_lost(move |_| call.store(1, Ordering::SeqCst));
    guard.unlock().unwrap();
    // Time is the subject: the lease would be over.
    thread::sleep(SHORT * 3 / 2);
    assert_eq!((0..5).map(seen).collect::<Vec<_>>(), [1, 1, 1, 1, 0]);
}

#[test]
fn a_callback_that_blocks_delays_no_renewal() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let lost = client.reentrant_lock("lost").lock().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let entered = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&entered);
    lost.on_lost(move |_| {
        told.store(true, Ordering::SeqCst);
        let _ = receiver.recv();
    });
    assert!(client.reentrant_lock("lost").force_unlock().unwrap());
    wait_until("the callback runs", SOON, || entered.load(Ordering::SeqCst));
    // Time is the subject.
    thread::sleep(LEASE * 3 / 2);
    assert!(kept.is_held());
    drop(sender);
    kept.unlock().unwrap();
}

// Never longer.

#[test]
fn a_guard_never_says_held_when_the_server_says_gone() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LONG);
    let mut redis = server.connection();
    for (round, millis) in [3, 5, 10, 20, 50, 120, 200].into_iter().cycle().enumerate().take(28) {
        let lock = client.reentrant_lock("never").with_lease(Duration::from_millis(millis));
        let Ok(guard) = lock.lock() else { continue };
        loop {
            let gone: bool = !redis.exists::<_, bool>("never").unwrap();
            // After the server's word.
            let held = guard.is_held();
            assert!(!(gone && held), "round {round}, a lease of {millis} ms: {guard:?}");
            if gone {
                break;
            }
        }
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    }
}

/// The deadline may pass between two looks of one call: with calls all the time, some are in the
/// middle then.
#[test]
fn a_call_while_the_deadline_passes_says_held_or_lost_and_nothing_between() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("passing").with_lease(UNIT / 20);
    for _ in 0..100 {
        let guard = match lock.lock() {
            // On a busy machine the lease may be over before the thread knows of it.
            Err(error) if error.is_transient() => continue,
            guard => guard.unwrap(),
        };
        // A hold lasts that long: no answer but "held" and "lost" can be true.
        let error = loop {
            if let Err(error) = guard.check(Duration::from_nanos(1)) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
        drop(guard);
    }
}

#[test]
fn an_unlock_right_after_the_deadline_is_late() {
    let _bounded = bounded();
    let server = server();
    let lock = watched(&server, LONG).reentrant_lock("at once");
    let lock = lock.with_lease(UNIT / 5);
    for round in 0..20 {
        let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
        if lock.hold_count() < 2 {
            // On a busy machine it was over already: the second may be a hold of its own.
            continue;
        }
        // Whether the wheel has seen it yet or not.
        while outer.is_held() {
            std::hint::spin_loop();
        }
        if round % 2 == 0 {
            drop(inner);
        } else {
            assert_eq!(inner.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        }
        assert_eq!(outer.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    }
}

#[test]
fn a_deadline_counts_from_before_the_request_was_sent() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG)
        .response_timeout(SOON)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("late");
    lock.lock().unwrap().unlock().unwrap();
    let lease = UNIT * 10;
    let lock = lock.with_lease(lease);

    // The reply comes after more than half of the lease. (Or still later, on a busy machine: then
    // see below.)
    wait_until("it comes before its end", SOON, || {
        proxy.on_request("late", Action::DelayReply(lease * 6 / 10));
        let begun = Instant::now();
        let guard = lock.lock().unwrap();
        let in_time = begun.elapsed() < lease;
        assert!(!in_time || guard.remaining() <= lease * 4 / 10, "{guard:?}");
        drop(guard);
        in_time
    });

    // The reply comes after the lease's end: that is no grant. The thread takes the lock anew, with
    // a lease of its own.
    let mut redis = server.connection();
    proxy.on_request("late", Action::DelayReply(lease * 12 / 10));
    let begun = Instant::now();
    let guard = lock.lock().unwrap();
    assert!(begun.elapsed() >= lease);
    assert!(guard.is_held());
    let left = pttl(&mut redis, "late");
    assert!(left > 0, "held by nobody");
    assert!(guard.remaining() <= Duration::from_millis(left.unsigned_abs()) + UNIT / 10);
    guard.unlock().unwrap();
    assert_eq!(holder(&mut redis, "late"), None);
}

#[test]
fn a_renewals_late_reply_does_not_make_the_deadline_later() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = UNIT * 45;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connect().unwrap();
    let guard = client.reentrant_lock("slow").lock().unwrap();
    let mut redis = server.connection();
    // Two renewals and more.
    let until = Instant::now() + lease;
    // Every reply is delayed by less than the renewal's wait.
    proxy.set_delay(UNIT * 3 / 2);
    while Instant::now() < until {
        let looked = Instant::now();
        let remaining = guard.remaining();
        // Asked later, so it is less than the guard's time by the time since.
        let left = pttl(&mut redis, "slow");
        assert!(left >= 0, "gone");
        let left = Duration::from_millis(left.unsigned_abs()) + looked.elapsed();
        assert!(remaining <= left + UNIT / 100, "{remaining:?} on {left:?}");
        thread::sleep(UNIT / 10);
    }
    assert!(guard.is_held());
    proxy.set_delay(Duration::ZERO);
    guard.unlock().unwrap();
}

/// Each is looked at for 100 ms and more, which together is longer than the lease.
#[test]
fn lanes_that_do_not_answer_delay_no_renewal() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LEASE).connections(32).connect();
    let client = client.unwrap();
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let losses = Losses::of(&kept);
    // The renewals go over a connection of their own.
    let guards: Vec<_> =
        (0..128).map(|at| client.reentrant_lock(&format!("dead:{at}")).lock().unwrap()).collect();
    proxy.on(Direction::Request, guards.len(), Action::HoldReply, |bytes| contains(bytes, "dead:"));
    drop(guards);
    let until = Instant::now() + LEASE * 2;
    while Instant::now() < until {
        assert!(kept.is_held(), "{:?}", kept.check(Duration::ZERO));
        thread::sleep(UNIT / 20);
    }
    assert_eq!(losses.so_far(), []);
    proxy.clear_rules();
    proxy.release();
    kept.unlock().unwrap();
}

/// Each hold has a phase of its own: a round trip for each would take too long.
#[test]
fn holds_of_many_phases_are_all_kept_at_a_distance() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = LEASE;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connections(16).connect();
    let client = client.unwrap();
    proxy.set_delay(UNIT / 4);
    let threads: Vec<_> = (0..16_u64)
        .map(|thread| {
            let client = client.clone();
            spawn(move || {
                let take = |at: u64| {
                    thread::sleep(Duration::from_millis((thread * 7 + at * 13) % 40));
                    client.reentrant_lock(&format!("far:{thread}:{at}")).lock_owned().unwrap()
                };
                (0..7).map(take).collect::<Vec<_>>()
            })
        })
        .collect();
    let guards: Vec<_> = threads.into_iter().flat_map(Running::join).collect();
    // Time is the subject.
    thread::sleep(lease * 2);
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    proxy.set_delay(Duration::ZERO);
    assert_eq!(held, guards.len());
}

// The server's clock is set back: every time to live is longer by that. A test cannot set the
// clock, but it can make a time to live longer, which looks the same.

fn in_time(redis: &mut redis::Connection, key: &str, longest: Duration) -> bool {
    let left = pttl(redis, key);
    left > 0 && left <= i64::try_from(longest.as_millis()).unwrap()
}

const SET_BACK: i64 = 3_600_000;

#[test]
fn a_hold_that_a_clock_set_back_made_longer_ends_with_the_lease_again() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let mut redis = server.connection();
    let locks = [
        ("plain", client.reentrant_lock("plain").lock().unwrap()),
        ("fair", client.fair_lock("fair").lock().unwrap()),
        ("fenced", client.fenced_lock("fenced").lock().unwrap().into()),
        ("written", client.read_write_lock("written").write().lock().unwrap()),
        ("read", client.read_write_lock("read").read().lock().unwrap()),
    ];
    let keys: Vec<String> = redis.keys("*rwlock_timeout*").unwrap();
    let names = locks.iter().map(|(name, _)| (*name).to_owned());
    let names: Vec<_> = names.chain(keys).collect();
    assert_eq!(names.len(), 6);
    for name in &names {
        assert!(redis.pexpire::<_, bool>(name, SET_BACK).unwrap());
    }
    for name in &names {
        wait_until("it is cut", SOON, || in_time(&mut redis, name, LEASE));
    }
    for (name, guard) in locks {
        assert!(guard.is_held(), "{name}");
        guard.unlock().unwrap();
    }
}

#[test]
fn a_permits_lease_is_cut_likewise_unless_its_id_was_told() {
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let mut redis = server.connection();
    let semaphore = client.expirable_semaphore("permits");
    semaphore.try_set_permits(2).unwrap();
    let (untold, told) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let id = told.id();
    let ends = |redis: &mut redis::Connection| -> Vec<(Vec<u8>, i64)> {
        redis.zrange_withscores("{permits}:timeout", 0, -1).unwrap()
    };
    for (id, score) in ends(&mut redis) {
        let _: i64 = redis.zadd("{permits}:timeout", id, score + SET_BACK).unwrap();
    }
    let far = |redis: &mut redis::Connection| {
        let (now, _): (i64, i64) = redis::cmd("TIME").query(redis).unwrap();
        let later = (now + SET_BACK / 2_000) * 1_000;
        ends(redis).into_iter().filter(|(_, score)| *score > later).count()
    };
    wait_until("one is cut", SOON, || far(&mut redis) == 1);
    // A reader of the other one's id may have asked for that lease.
    thread::sleep(LEASE);
    assert_eq!(far(&mut redis), 1);
    assert!(semaphore.remaining_lease(&id).unwrap().unwrap() > LEASE * 2);
    assert!(untold.is_held() && told.is_held());
}

#[test]
fn a_longer_lease_that_a_thread_has_asked_for_is_not_cut() {
    const LONGER: Duration = Duration::from_millis(3 * LEASE.as_millis() as u64);
    let _bounded = bounded();
    let server = server();
    let client = watched(&server, LEASE);
    let mut redis = server.connection();
    let lock = client.reentrant_lock("levels");
    let (outer, inner) = (lock.lock().unwrap(), lock.with_lease(LONGER).lock().unwrap());
    let lock = client.read_write_lock("read");
    let (shorter, longer) =
        (lock.read().lock().unwrap(), lock.read().with_lease(LONGER).lock().unwrap());
    for name in ["levels", "read"] {
        assert!(pttl(&mut redis, name) > millis(LEASE), "{name}");
        assert!(redis.pexpire::<_, bool>(name, SET_BACK).unwrap());
    }
    let timeouts: Vec<String> = redis.keys("*rwlock_timeout*").unwrap();
    assert!(redis.pexpire::<_, bool>(&timeouts[0], SET_BACK).unwrap());
    // Until the renewal that is due when so much of the longer lease is left: it cuts to that, and
    // no less.
    for name in ["levels", "read"] {
        wait_until("it is cut", SOON, || in_time(&mut redis, name, LONGER));
        assert!(pttl(&mut redis, name) > millis(LEASE), "{name}");
    }
    for guard in [outer, inner, shorter, longer] {
        assert!(guard.is_held());
    }
}

/// An unanswered request may reach the server at any time, on a connection that the client has
/// given up.
#[test]
fn no_more_of_a_longer_lease_counts_than_a_cut_leaves_that_was_not_answered() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let mut redis = server.connection();
    // Each is sent once more.
    for (name, copies) in [("one copy", 1), ("both copies", 2)] {
        let client = Client::builder(&proxy.url()).watchdog_timeout(LEASE).connect().unwrap();
        let lock = client.reentrant_lock(name);
        let outer = lock.lock().unwrap();
        let cut = format!("\r\n-{}\r\n", LEASE.as_millis()).into_bytes();
        let is_cut = move |bytes: &[u8]| bytes.windows(cut.len()).any(|part| part == cut);
        proxy.on(Direction::Request, copies, Action::LoseRequest, is_cut);
        assert!(redis.pexpire::<_, bool>(name, SET_BACK).unwrap());
        wait_until("it is cut", SOON, || in_time(&mut redis, name, LEASE));
        // The server answered the cut, too.
        let certain = || Instant::now() + outer.remaining();
        let then = certain();
        wait_until("it is renewed", SOON, || certain() > then + UNIT);

        let inner = lock.with_watchdog(LONG).lock().unwrap();
        let then = certain();
        wait_until("it is renewed again", SOON, || certain() > then + UNIT);
        // The late cut arrives here.
        assert!(redis.pexpire::<_, bool>(name, millis(LEASE)).unwrap());
        let left = outer.remaining();
        assert!(left <= LEASE, "{name}: {left:?}");
        let before = Commands::so_far(&server).scripts();
        thread::sleep(LEASE);
        assert!(outer.is_held() && inner.is_held());
        let sent = Commands::so_far(&server).scripts() - before;
        assert!(sent < 20, "{name}: {sent} renewals");
    }
}

/// A reader cuts its own timeout, and the lock's time to live to no less than another reader's.
#[test]
fn a_reader_takes_nothing_from_another_ones_lease() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (watched(&server, LEASE), client(&server));
    let mut redis = server.connection();
    let guard = one.read_write_lock("readers").read().lock().unwrap();
    let own: Vec<String> = redis.keys("*rwlock_timeout*").unwrap();
    let longer = other.read_write_lock("readers").read().with_lease(LONG).lock().unwrap();
    for key in [&own[0], "readers"] {
        assert!(redis.pexpire::<_, bool>(key, SET_BACK).unwrap());
    }
    wait_until("it is cut", SOON, || in_time(&mut redis, &own[0], LEASE));
    wait_until("it is cut", SOON, || in_time(&mut redis, "readers", LONG));
    thread::sleep(LEASE);
    assert!(pttl(&mut redis, "readers") > millis(LONG - LEASE * 3));
    assert!(guard.is_held() && longer.is_held());
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

#[test]
fn a_loss_is_told_once_the_system_gives_threads_again() {
    if !has_own_process() {
        return;
    }
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let guard = client.reentrant_lock("short").with_lease(SHORT).lock().unwrap();
    let losses = Losses::of(&guard);
    without_room_for_threads(|| {
        wait_until("it is lost", SOON, || matches!(guard.state(), HoldState::Lost(_)));
        thread::sleep(UNIT);
        assert_eq!(losses.so_far(), [], "no thread can be started");
    });
    assert_eq!(losses.wait(), LostReason::LeaseExpired);
}
