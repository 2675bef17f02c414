//! Several locks that are taken together, and quorums.

mod contention;
mod quorum;
mod together;
mod trouble;
mod waiting;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Error, ErrorKind, HoldState, Lock, MultiLock, MultiLockGuard,
    ReentrantLock, Wait,
};
use redlatch_testkit::{Action, Job, PlainClient, Proxy, Server, Worker};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// A lock of each of these names, listed in this order.
fn all_of(client: &Client, names: &[&str]) -> MultiLock {
    let locks: Vec<_> = names.iter().map(|name| client.reentrant_lock(name)).collect();
    of(&locks)
}

fn of(locks: &[ReentrantLock]) -> MultiLock {
    MultiLock::new(locks).unwrap()
}

fn is_held(server: &Server, name: &str) -> bool {
    holder(&mut server.connection(), name).is_some()
}

fn wait_all_free(server: &Server, names: &[&str]) {
    names.iter().for_each(|name| wait_free(server, name, TIMEOUT));
}

/// A counter of the calls to `on_lost`.
fn losses(guard: &MultiLockGuard) -> Arc<AtomicUsize> {
    let lost = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&lost);
    guard.on_lost(move |_| {
        counts.fetch_add(1, Ordering::SeqCst);
    });
    lost
}

// The following tests leave locks to expire.

#[test]
fn several_locks_left_to_expire_stay_held_after_their_client_has_ended() {
    let server = server();
    for owned in [true, false] {
        let client = client(&server);
        if owned {
            all_of(&client, &NAMES).lock_owned().unwrap().leave_to_expire().unwrap();
        } else {
            all_of(&client, &NAMES).lock().unwrap().leave_to_expire().unwrap();
        }
        client.shutdown();
        assert!(NAMES.iter().all(|name| is_held(&server, name)));
        let () = server.connection().del(&NAMES).unwrap();
    }
    let client = client(&server);
    let guard = all_of(&client, &NAMES).lock().unwrap();
    assert!(client.reentrant_lock("b").force_unlock().unwrap());
    let error = guard.leave_to_expire().unwrap_err();
    assert_eq!((error.kind(), error.name()), (ErrorKind::LeaseLost, Some("b")));
    // If one lock cannot be taken, no other lock stays taken.
    wait_all_free(&server, &NAMES);
}

// The following tests are about the single locks of a multi lock.

#[test]
fn all_parts_are_held_until_the_guard_goes() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let all = all_of(&client, &["c", "a", "b"]);
    assert_eq!(all.names().collect::<Vec<_>>(), NAMES);
    let guard = all.lock().unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(guard.names().collect::<Vec<_>>(), NAMES);
    guard.check(LONG_LEASE / 2).unwrap();
    assert_eq!(guard.check(LONG_LEASE * 2).unwrap_err().kind(), ErrorKind::EndsTooSoon);
    for name in NAMES {
        assert!(other.reentrant_lock(name).try_lock().unwrap().into_option().is_none(), "{name}");
    }
    guard.unlock().unwrap();
    for name in NAMES {
        assert!(!is_held(&server, name), "unlock says so when it is true");
    }
    drop(all.lock().unwrap());
    wait_all_free(&server, &NAMES);
}

#[test]
fn a_multi_lock_keeps_no_part_if_one_of_them_cannot_be_taken() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    for taken in NAMES {
        let all = all_of(&client, &NAMES);
        let guard = other.reentrant_lock(taken).lock().unwrap();
        assert!(all.try_lock().unwrap().into_option().is_none());
        assert!(answered(|| all.try_lock_for(TIME_UNIT)).into_option().is_none());
        for name in NAMES.into_iter().filter(|name| *name != taken) {
            wait_free(&server, name, TIMEOUT);
        }
        guard.unlock().unwrap();
        all.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
    }
}

#[test]
fn parts_are_taken_and_given_back_one_after_the_other() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    // The locks are of two kinds, so each request takes or releases only one.
    let [a, c] = ["a", "c"].map(|name| client.fenced_lock(name));
    let all = MultiLock::new([&c as &dyn Lock, &client.reentrant_lock("b"), &a]).unwrap();
    // The connections are open, and the server knows the scripts.
    for _ in 0..2 {
        all.lock().unwrap().unlock().unwrap();
    }
    proxy.on_request("EVALSHA", Action::HoldReply);
    let taker = spawn(move || all.lock().unwrap().unlock().unwrap());
    // The locks that are held at each held-back reply: the server has run the request, and the
    // client does not know yet.
    let steps = [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]];
    for (at, expected) in (1..).zip(steps) {
        proxy.wait_fired(at, TIMEOUT);
        wait_until("it is carried out", TIMEOUT, || {
            NAMES.map(|name| i32::from(is_held(&server, name))) == expected
        });
        if at < steps.len() {
            proxy.on_request("EVALSHA", Action::HoldReply);
        }
        proxy.release();
    }
    taker.join();
}

#[test]
fn a_lock_that_is_listed_twice_is_taken_once() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let by_name =
        Client::connect(&server.url().replace("127.0.0.1", "localhost")).expect("a hosts file");
    let [a, b, c] = [&one, &two, &by_name].map(|client| client.reentrant_lock("twice"));
    let both = MultiLock::new([&a, &a, &b, &c]).unwrap();
    assert_eq!(both.names().collect::<Vec<_>>(), ["twice"]);
    both.lock().unwrap().unlock().unwrap();
    both.lock_owned().unwrap().unlock().unwrap();
    assert!(!is_held(&server, "twice"));
}

#[test]
fn each_list_of_locks_and_each_list_of_names_is_one() {
    let server = server();
    let client = client(&server);
    let locks = NAMES.map(|name| client.reentrant_lock(name));
    let [a, b, c] = &locks;
    let boxed = || NAMES.map(|name| Box::new(client.fair_lock(name)) as Box<dyn Lock>);
    let kinds: [&dyn Lock; 3] = [a, &client.fair_lock("b"), &client.fenced_lock("c")];
    for all in [
        MultiLock::new(&locks),
        MultiLock::new([a, b, c]),
        MultiLock::new(vec![Arc::new(a.clone()), Arc::new(b.clone()), Arc::new(c.clone())]),
        MultiLock::new(Vec::from(boxed())),
        MultiLock::new(&boxed()),
        MultiLock::new(kinds),
        MultiLock::new(locks.iter().map(|lock| lock.with_lease(LONG_LEASE))),
        client.multi_lock(NAMES),
        client.multi_lock(NAMES.map(str::to_owned)),
    ] {
        let guard = all.unwrap().lock().unwrap();
        assert_eq!(guard.names().collect::<Vec<_>>(), NAMES);
        guard.unlock().unwrap();
    }
    assert_eq!(client.multi_lock([""; 0]).unwrap_err().kind(), ErrorKind::Config);
}

#[test]
fn a_senseless_list_of_locks_is_an_error_at_once() {
    let server = server();
    let (one, two) = (client(&server), client(&server));
    let kind = |lock: Result<MultiLock, Error>| lock.unwrap_err().kind();
    let none: [&dyn Lock; 0] = [];
    assert_eq!(kind(MultiLock::new(none)), ErrorKind::Config);
    assert_eq!(kind(MultiLock::quorum(none)), ErrorKind::Config);
    let (plain, fair) = (one.reentrant_lock("x"), two.fair_lock("x"));
    assert_eq!(kind(MultiLock::new([&plain as &dyn Lock, &fair])), ErrorKind::Config);
    // Both locks are on one server, so they cannot form a quorum.
    let (left, right) = (one.reentrant_lock("x"), two.reentrant_lock("y"));
    let error = MultiLock::quorum(&[&left, &right]).unwrap_err();
    assert!(error.to_string().contains(&server.port().to_string()), "{error}");
    // As for a single lock, the first call checks the names and the lease.
    let error = all_of(&one, &["x", ""]).lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    let error = all_of(&one, &NAMES).with_lease(Duration::ZERO).try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!is_held(&server, "x"));
}

#[test]
fn parts_that_the_thread_holds_are_taken_once_more() {
    let server = server();
    let client = client(&server);
    let all = all_of(&client, &NAMES);
    let part = client.reentrant_lock("b");
    let outer = part.lock().unwrap();
    let guard = all.lock().unwrap();
    let again = all.try_lock().unwrap().into_option().unwrap();
    assert_eq!(part.hold_count(), 3);
    again.unlock().unwrap();
    guard.unlock().unwrap();
    assert_eq!(part.hold_count(), 1);
    assert!(outer.is_held());
    assert!(is_held(&server, "b") && !is_held(&server, "a") && !is_held(&server, "c"));
    outer.unlock().unwrap();
    // A call for an owned guard waits even if its own thread holds the lock.
    let owned = all.lock_owned().unwrap();
    assert!(all.try_lock().unwrap().into_option().is_none());
    elsewhere(move || {
        assert!(owned.is_held());
        owned.unlock().unwrap();
    });
    all.lock().unwrap().unlock().unwrap();
}

#[test]
fn locks_of_any_kind_go_together() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let (fair, plain) = (client.fair_lock("fair"), client.reentrant_lock("plain"));
    let both = MultiLock::new([&plain as &dyn Lock, &fair]).unwrap();
    let taken = other.fair_lock("fair").lock().unwrap();
    assert!(both.try_lock().unwrap().into_option().is_none());
    let waiter = spawn(move || both.lock().unwrap().unlock().unwrap());
    waiter.wait_asleep();
    taken.unlock().unwrap();
    waiter.join();
    wait_all_free(&server, &["fair", "plain"]);
}

#[test]
fn with_returns_the_result_of_its_work() {
    let server = server();
    let client = client(&server);
    let all = all_of(&client, &NAMES);
    let answer: Result<u32, Error> = all.with(|guard| {
        guard.check(TIME_UNIT)?;
        Ok(42)
    });
    assert_eq!(answer.unwrap(), 42);
    assert!(!NAMES.into_iter().any(|name| is_held(&server, name)));
}

// The following tests use a multi lock in place of one lock.

#[test]
fn code_over_any_lock_takes_counts_and_releases_several() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let all = all_of(&client, &["b", "a", "c"]);
    let all: &dyn Lock = &all;
    assert_eq!(all.name(), "a, b, c");
    assert_eq!((all.is_locked().unwrap(), all.remaining_lease().unwrap()), (false, None));
    let guard = all.lock().unwrap();
    all.try_lock_for(TIMEOUT).unwrap().into_option().unwrap().forget();
    assert_eq!((guard.name(), guard.state()), ("a, b, c", HoldState::Held));
    assert!(all.hold_count() == 2 && all.is_held_by_current_thread());
    assert!(elsewhere({
        let part = other.reentrant_lock("c");
        move || part.try_lock().unwrap().into_option().is_none()
    }));
    all.unlock().unwrap();
    assert!(guard.is_held() && all.hold_count() == 1);
    guard.forget();
    assert!(NAMES.iter().all(|name| is_held(&server, name)));
    all.unlock().unwrap();
    assert!(!NAMES.iter().any(|name| is_held(&server, name)));
    assert!(all.hold_count() == 0 && !all.is_held_by_current_thread());
    let owned = all.lock_owned_cancellable(&CancelToken::new()).unwrap();
    assert!(answered(|| all.try_lock_owned_for(TIME_UNIT)).into_option().is_none());
    elsewhere(move || owned.unlock().unwrap());
    assert!(!all.is_locked().unwrap());
}

#[test]
fn an_unlock_leaves_each_part_once_and_one_that_is_not_held_is_an_error() {
    let server = server();
    let client = client(&server);
    let (all, parts) = (all_of(&client, &NAMES), NAMES.map(|name| client.reentrant_lock(name)));
    let counts = || parts.each_ref().map(|part| part.hold_count());
    assert_eq!(all.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    let outer = parts[0].lock().unwrap();
    assert!(all.is_locked().unwrap() && !all.is_held_by_current_thread());
    all.lock().unwrap().forget();
    assert_eq!((counts(), all.hold_count()), ([2, 1, 1], 1));
    // One lock is lost, so the other locks are released, as at the end of a guard.
    assert!(parts[1].force_unlock().unwrap());
    assert_eq!(all.hold_count(), 0);
    let error = all.unlock().unwrap_err();
    assert_eq!((error.kind(), error.name()), (ErrorKind::NotHeld, Some("b")));
    assert!(error.to_string().contains("other locks of this MultiLock"), "{error}");
    assert_eq!(counts(), [1, 0, 0]);
    assert!(outer.is_held() && !is_held(&server, "c"));
    outer.unlock().unwrap();
}

#[test]
fn the_lease_of_a_multi_lock_is_its_shortest_and_force_unlocks_each_part() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let short = client.reentrant_lock("b").with_lease(LONG_LEASE / 4);
    let (a, c) = (client.reentrant_lock("a"), client.fair_lock("c"));
    let all = MultiLock::new([&a as &dyn Lock, &short, &c]).unwrap();
    let guard = all.lock().unwrap();
    let lost = losses(&guard);
    assert!(all.remaining_lease().unwrap().unwrap() <= LONG_LEASE / 4);
    let longer = all.with_lease(LONG_LEASE / 2).lock().unwrap();
    let left = all.remaining_lease().unwrap().unwrap();
    assert!(left > LONG_LEASE / 4 && left <= LONG_LEASE / 2, "{left:?}");
    let theirs = MultiLock::new([
        &other.reentrant_lock("a") as &dyn Lock,
        &other.reentrant_lock("b"),
        &other.fair_lock("c"),
    ]);
    let theirs = theirs.unwrap();
    assert!(theirs.is_locked().unwrap() && !theirs.is_held_by_current_thread());
    assert!(theirs.force_unlock().unwrap() && !theirs.force_unlock().unwrap());
    assert!(!theirs.is_locked().unwrap());
    wait_until("the holder is told", TIMEOUT, || lost.load(Ordering::SeqCst) == 1);
    drop((longer, guard));
    theirs.try_lock().unwrap().into_option().expect("all are free").unlock().unwrap();
}

#[test]
fn a_multi_lock_in_the_list_of_another_stands_for_its_parts() {
    let server = server();
    let client = client(&server);
    let (inner, b) = (all_of(&client, &["c", "a"]), client.reentrant_lock("b"));
    let all = MultiLock::new([&inner as &dyn Lock, &b, &client.reentrant_lock("a")]).unwrap();
    assert_eq!(all.names().collect::<Vec<_>>(), NAMES);
    let guard = all.lock().unwrap();
    assert!(inner.is_held_by_current_thread());
    let again = inner.lock().unwrap();
    guard.unlock().unwrap();
    assert!(again.is_held() && !is_held(&server, "b"));
    again.unlock().unwrap();
    // The locks may be of different kinds, but a quorum cannot be one of them.
    let fair = MultiLock::new([&inner as &dyn Lock, &client.fair_lock("a")]);
    let quorum = MultiLock::quorum(&[&b]).unwrap();
    let (outer, votes) = (MultiLock::new([&inner, &quorum]), MultiLock::quorum(&[&inner]));
    for wrong in [fair, outer, votes] {
        assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Config);
    }
    assert!(!NAMES.iter().any(|name| is_held(&server, name)));
}

#[test]
fn each_fenced_part_has_a_token_of_its_own() {
    let server = server();
    let client = client(&server);
    let [first, last] = ["first", "last"].map(|name| client.fenced_lock(name));
    let before = first.lock().unwrap().token();
    let all =
        MultiLock::new([&last as &dyn Lock, &client.reentrant_lock("middle"), &first]).unwrap();
    let guard = all.lock().unwrap();
    let tokens: Vec<_> = guard.tokens().collect();
    let own = [&first, &last].map(|part| (part.name(), part.lock().unwrap().token()));
    assert_eq!(tokens, own);
    assert!(tokens[0].1 > before);
    guard.unlock().unwrap();
    let owned = all.lock_owned().unwrap();
    assert!(owned.tokens().zip(own).all(|(now, then)| now.0 == then.0 && now.1 > then.1));
}

// Contention.

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    match job.role() {
        "contender" => {
            let until = Instant::now() + Duration::from_millis(job.arg(2).parse().unwrap());
            job.say("starts");
            let taken = contention::contend(job.arg(0), job.arg(1).parse().unwrap(), until);
            job.say(&format!("taken {taken}"));
        }
        "holder" => {
            let lease = Duration::from_millis(job.arg(1).parse().unwrap());
            let client = Client::builder(job.arg(0)).watchdog_timeout(lease).connect().unwrap();
            let guard = all_of(&client, &NAMES).lock().unwrap();
            job.say("holds");
            let _ = job.wait_line();
            drop(guard);
        }
        role => panic!("no role {role}"),
    }
    job.done();
}
