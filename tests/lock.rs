//! What the re-entrant lock means: to its threads, to other clients, and on the wire.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use redis::Commands as _;
use redlatch::{
    CancelToken, Client, Error, ErrorKind, HoldState, Lock, LockGuard, LostReason, ReentrantLock,
};
use redlatch_testkit::{Action, Direction, Proxy};

// The wire.

#[test]
fn the_hash_the_owner_and_the_lease_are_redissons() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let guard = client.reentrant_lock("wire").lock().unwrap();

    let (owner, count) = holder(&mut redis, "wire").unwrap();
    assert_eq!(count, "1");
    let (uuid, number) = owner.split_once(':').unwrap();
    let groups: Vec<_> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{owner}");
    let hexadecimal = |c: char| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c);
    assert!(uuid.chars().all(hexadecimal), "{owner}");
    assert!(number.parse::<u64>().is_ok() && !number.starts_with('0'), "{owner}");
    let kind: String = redis::cmd("TYPE").arg("wire").query(&mut redis).unwrap();
    assert_eq!(kind, "hash");
    let left = pttl(&mut redis, "wire");
    let lease = i64::try_from(LONG.as_millis()).unwrap();
    assert!(left > lease * 9 / 10 && left <= lease, "{left} ms");

    guard.unlock().unwrap();
    let keys: Vec<String> = redis.keys("*").unwrap();
    assert!(keys.is_empty(), "left behind: {keys:?}");
}

#[test]
fn the_default_lease_is_redissons_thirty_seconds() {
    let _bounded = bounded();
    let server = server();
    let client = Client::connect(&server.url()).unwrap();
    let _guard = client.reentrant_lock("thirty").lock().unwrap();
    let left = pttl(&mut server.connection(), "thirty");
    assert!(left > 25_000 && left <= 30_000, "{left} ms");
}

#[test]
fn each_acquisition_is_an_owner_of_its_own() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut owner_of = |client: &Client| {
        let guard = client.reentrant_lock("owners").lock().unwrap();
        let (owner, _) = holder(&mut redis, "owners").unwrap();
        guard.unlock().unwrap();
        let (uuid, number) = owner.split_once(':').unwrap();
        (uuid.to_owned(), number.parse::<u64>().unwrap())
    };
    let first = owner_of(&one);
    let second = owner_of(&one);
    let foreign = owner_of(&other);
    assert_eq!(first.0, second.0);
    assert_ne!(first.1, second.1);
    assert_ne!(first.0, foreign.0);
}

#[test]
fn a_release_publishes_a_zero_on_redissons_channel() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    for (name, channel) in [
        ("plain", "redisson_lock__channel:{plain}"),
        ("with:colon and space", "redisson_lock__channel:{with:colon and space}"),
        ("a{b}c", "redisson_lock__channel:a{b}c"),
        ("a{b", "redisson_lock__channel:a{b"),
        ("{}a", "redisson_lock__channel:{}a"),
        ("a}b", "redisson_lock__channel:{a}b}"),
        ("größe \u{1F512}", "redisson_lock__channel:{größe \u{1F512}}"),
    ] {
        let mut subscriber = server.connection();
        let mut subscriber = subscriber.as_pubsub();
        subscriber.set_read_timeout(Some(SOON)).unwrap();
        subscriber.psubscribe("*").unwrap();
        let mut messages = || {
            let message = subscriber.get_message().unwrap();
            (message.get_channel_name().to_owned(), message.get_payload_bytes().to_vec())
        };
        let expected = (channel.to_owned(), b"0".to_vec());
        let lock = client.reentrant_lock(name);
        lock.lock().unwrap().unlock().unwrap();
        assert_eq!(messages(), expected, "unlock");
        drop(lock.lock().unwrap());
        assert_eq!(messages(), expected, "drop");
        let _guard = lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert_eq!(messages(), expected, "force_unlock");
        // Nobody held it: nobody is woken for nothing.
        assert!(!lock.force_unlock().unwrap());
        let () = server.connection().publish("end", "").unwrap();
        assert_eq!(messages().0, "end");
    }
}

#[test]
fn an_inner_unlock_says_nothing_to_the_server() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("inner");
    lock.lock().unwrap().unlock().unwrap();
    let mut redis = server.connection();

    let outer = lock.lock().unwrap();
    let before = Commands::so_far(&server).of_locks();
    let inner: Vec<_> = (0..100).map(|_| lock.lock().unwrap()).collect();
    assert_eq!(lock.hold_count(), 101);
    let tried = lock.try_lock().unwrap().unwrap();
    let waited = lock.try_lock_for(SOON).unwrap().unwrap();
    assert_eq!(lock.hold_count(), 103);
    drop(tried);
    waited.unlock().unwrap();
    for (at, guard) in inner.into_iter().enumerate() {
        if at % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
    }
    assert_eq!(lock.hold_count(), 1);
    assert_eq!(Commands::so_far(&server).of_locks(), before);
    assert_eq!(holder(&mut redis, "inner").unwrap().1, "1");
    outer.unlock().unwrap();
    assert_eq!(holder(&mut redis, "inner"), None);
    assert_eq!(lock.hold_count(), 0);
}

// Its thread.

#[test]
fn guards_release_a_level_each_in_any_order() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    // Two handles of one name are one lock.
    let (lock, same) = (client.reentrant_lock("levels"), client.reentrant_lock("levels"));
    let other = client.reentrant_lock("another");
    let first = lock.lock().unwrap();
    let second = same.lock().unwrap();
    let third = lock.lock().unwrap();
    assert_eq!((lock.hold_count(), same.hold_count(), other.hold_count()), (3, 3, 0));
    first.unlock().unwrap();
    assert!(third.is_held() && second.is_held());
    drop(third);
    assert_eq!(lock.hold_count(), 1);
    assert!(lock.is_locked().unwrap());
    assert!(elsewhere(move || lock.try_lock().unwrap().is_none()));
    second.unlock().unwrap();
    assert!(!same.is_locked().unwrap());
}

#[test]
fn what_a_lock_says_of_itself_depends_on_who_asks() {
    let _bounded = bounded();
    let server = server();
    let (client, foreign) = (client(&server), client(&server));
    let lock = client.reentrant_lock("told");
    let theirs = foreign.reentrant_lock("told");
    assert_eq!(lock.name(), "told");
    assert!(!lock.is_locked().unwrap());
    assert_eq!(lock.remaining_lease().unwrap(), None);

    let guard = lock.lock().unwrap();
    assert_eq!(guard.name(), "told");
    assert!(lock.is_locked().unwrap() && theirs.is_locked().unwrap());
    assert!(lock.is_held_by_current_thread() && !theirs.is_held_by_current_thread());
    assert_eq!((lock.hold_count(), theirs.hold_count()), (1, 0));
    let left = theirs.remaining_lease().unwrap().unwrap();
    assert!(left > LONG * 9 / 10 && left <= LONG, "{left:?}");
    let same = lock.clone();
    assert_eq!(
        elsewhere(move || (same.is_held_by_current_thread(), same.hold_count())),
        (false, 0)
    );

    guard.unlock().unwrap();
    assert!(!lock.is_held_by_current_thread());
    // Without an end it is no lock, but something under its name.
    let () = server.connection().hset("told", FOREIGN, 1).unwrap();
    assert_eq!(lock.remaining_lease().unwrap(), Some(Duration::MAX));
    assert!(lock.try_lock().is_err());
}

/// What an application may keep under a lock's name, by the commands that put it there.
const NO_LOCKS: [(&str, &[&[&str]]); 9] = [
    ("string", &[&["SET", "key", "precious"]]),
    ("string that ends", &[&["SET", "key", "precious", "PX", "60000"]]),
    ("list", &[&["RPUSH", "key", "precious"]]),
    ("set", &[&["SADD", "key", "precious"]]),
    ("sorted set", &[&["ZADD", "key", "1", "precious"]]),
    ("stream", &[&["XADD", "key", "*", "precious", "1"]]),
    ("hash", &[&["HSET", "key", "precious", "1"]]),
    ("hash of two", &[&["HSET", "key", "precious", "1", "more", "2"]]),
    ("session", &[&["HSET", "key", "precious", "1", "more", "2"], &["PEXPIRE", "key", "60000"]]),
];

#[test]
fn what_is_no_lock_is_an_error_at_once_and_left_as_it_is() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (what, commands) in NO_LOCKS {
        for parts in commands {
            let () = redis::cmd(parts[0]).arg(&parts[1..]).query(&mut redis).unwrap();
        }
        let dump: Vec<u8> = redis::cmd("DUMP").arg("key").query(&mut redis).unwrap();
        let lock = client.reentrant_lock("key");
        for error in [
            lock.lock().map(drop).unwrap_err(),
            lock.try_lock().map(drop).unwrap_err(),
            lock.try_lock_for(SOON).map(drop).unwrap_err(),
            lock.force_unlock().map(drop).unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.name()), (ErrorKind::Redis, Some("key")), "{what}");
            assert!(error.to_string().contains("something else"), "{what}: {error}");
            assert!(!format!("{error:?} {error:#}").contains("precious"), "{what}: {error:?}");
        }
        let left: Vec<u8> = redis::cmd("DUMP").arg("key").query(&mut redis).unwrap();
        assert_eq!(left, dump, "{what}");
        let () = redis.del("key").unwrap();
        lock.lock().unwrap().unlock().unwrap();
    }
}

/// What a lock's scripts and questions call, and two that were once needed both.
const RIGHTS: [&[&str]; 11] = [
    &["evalsha"],
    &["eval"],
    &["exists"],
    &["hexists"],
    &["hlen"],
    &["hset"],
    &["pexpire"],
    &["pttl"],
    &["del"],
    &["publish"],
    &["pexpire", "del"],
];

#[test]
fn whichever_right_is_missing_all_is_done_or_nothing() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    let mut set = |rights: &[String]| {
        let () =
            redis::cmd("ACL").arg("SETUSER").arg("user").arg(rights).query(&mut redis).unwrap();
    };
    set(&["on", ">word", "~*", "&*", "+@all"].map(str::to_owned));
    let client = impatient(&server.url().replace("redis://", "redis://user:word@"));
    let client = client.connect().unwrap();
    let mut redis = server.connection();
    let short = SOON;
    type Act = fn(&ReentrantLock, &mut Option<LockGuard>) -> Result<(), Error>;
    let acts: [(&str, bool, Act); 6] = [
        ("lock", false, |lock, guard| lock.lock().map(|new| *guard = Some(new))),
        ("try_lock", false, |lock, guard| lock.try_lock().map(|new| *guard = new)),
        ("extend", true, |lock, _| lock.with_lease(LONG).lock().map(drop)),
        ("unlock", true, |_, guard| guard.take().unwrap().unlock()),
        ("force_unlock", true, |lock, _| lock.force_unlock().map(drop)),
        ("is_locked", true, |lock, _| lock.is_locked().map(drop)),
    ];
    for denied in RIGHTS {
        for (act, held, run) in acts {
            let name = format!("{act} without {denied:?}");
            let lock = client.reentrant_lock(&name).with_lease(short);
            let mut guard = held.then(|| lock.lock().unwrap());
            let before = holder(&mut redis, &name);
            // So that it is sent whole.
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
            set(&denied.iter().map(|command| format!("-{command}")).collect::<Vec<_>>());
            let outcome = run(&lock, &mut guard);
            let after = holder(&mut redis, &name);
            let left = pttl(&mut redis, &name);
            assert!(left == -2 || left > 0, "{name}: no end");
            if let Err(error) = &outcome {
                assert_eq!(after, before, "{name}");
                assert!(left <= i64::try_from(short.as_millis()).unwrap(), "{name}: {left}");
                let said = error.to_string();
                for command in denied {
                    assert!(said.contains(&command.to_uppercase()), "{name}: {said}");
                }
                assert!(said.contains("ACL"), "{name}: {said}");
            } else {
                let expected = act != "unlock" && act != "force_unlock";
                assert_eq!(after.is_some(), expected, "{name}");
                assert!(act != "extend" || left > i64::try_from(short.as_millis()).unwrap());
            }
            set(&["+@all".to_owned()]);
            drop(guard);
            wait_free(&server, &name, SOON);
        }
    }
}

#[test]
fn a_renewal_that_may_not_ask_for_the_time_left_shortens_no_lease() {
    let _bounded = bounded();
    let Some(server) = real_server() else { return };
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "long", LONG);
    let rights = ["SETUSER", "user", "on", ">word", "~*", "+@all", "-pttl"];
    let () = redis::cmd("ACL").arg(&rights).query(&mut redis).unwrap();
    let url = server.url().replace("redis://", "redis://user:word@");
    let mut user = redis::Client::open(url).unwrap().get_connection().unwrap();
    let renew = redis::Script::new(include_str!("../lua/lock/renew.lua"));
    let replies: Vec<String> = renew.key("long").arg(600).arg(FOREIGN).invoke(&mut user).unwrap();
    assert!(replies[0].contains("can't run"), "{replies:?}");
    assert!(pttl(&mut redis, "long") > 600);
}

#[test]
fn a_guard_knows_its_state_without_asking() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("state");
    lock.lock().unwrap().unlock().unwrap();
    let guard = lock.lock().unwrap();
    let before = Commands::so_far(&server).of_locks();
    assert!(guard.is_held());
    assert_eq!(guard.state(), HoldState::Held);
    let left = guard.remaining();
    assert!(left > LONG * 9 / 10 && left < LONG, "{left:?}");
    guard.check(Duration::ZERO).unwrap();
    guard.check(LONG / 2).unwrap();
    let error = guard.check(LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EndsTooSoon);
    assert!(error.to_string().contains("\"state\""), "{error}");
    assert!(guard.is_held(), "a check changes nothing");
    let shown = format!("{guard:?}");
    assert!(shown.contains("state") && shown.contains("Held"), "{shown}");
    assert_eq!(Commands::so_far(&server).of_locks(), before);

    lock.unlock().unwrap();
    assert!(!guard.is_held());
    assert_eq!(guard.state(), HoldState::Released);
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::NotHeld);
}

#[test]
fn who_does_not_hold_it_cannot_unlock_it() {
    let _bounded = bounded();
    let server = server();
    let (client, foreign) = (client(&server), client(&server));
    let lock = client.reentrant_lock("mine");
    let theirs = foreign.reentrant_lock("mine");
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    let guard = lock.lock().unwrap();
    let mut redis = server.connection();
    let held = holder(&mut redis, "mine");

    let error = theirs.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert_eq!(error.name(), Some("mine"));
    assert!(error.to_string().contains("\"mine\""), "{error}");
    let same = lock;
    let error = elsewhere(move || same.unlock().unwrap_err());
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert_eq!(holder(&mut redis, "mine"), held);
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn unlocking_twice_is_an_error_and_touches_no_later_hold() {
    let _bounded = bounded();
    let server = server();
    let (client, foreign) = (client(&server), client(&server));
    let lock = client.reentrant_lock("twice");
    let guard = lock.lock().unwrap();
    let dropped = lock.lock().unwrap();
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);

    let theirs = foreign.reentrant_lock("twice").lock().unwrap();
    let mut redis = server.connection();
    let held = holder(&mut redis, "twice");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    drop(dropped);
    assert_eq!(holder(&mut redis, "twice"), held);
    theirs.unlock().unwrap();
}

#[test]
fn a_guard_of_an_earlier_stay_does_nothing_to_the_next() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("stay");
    let (early, dropped) = (lock.lock().unwrap(), lock.lock().unwrap());
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    // The same thread, the same lock, a new hold.
    let guard = lock.lock().unwrap();
    assert!(!early.is_held() && guard.is_held());
    assert_eq!(early.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    drop(dropped);
    assert!(guard.is_held());
    assert_eq!(lock.hold_count(), 1);
    let held = holder(&mut server.connection(), "stay");
    assert!(held.is_some());
    guard.unlock().unwrap();
}

#[test]
fn a_forgotten_guard_keeps_the_lock_until_unlock() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("forgotten");
    lock.lock().unwrap().forget();
    lock.lock().unwrap().forget();
    // Nothing but the hold itself remembers the lock.
    drop(lock);
    let lock = client.reentrant_lock("forgotten");
    assert_eq!(lock.hold_count(), 2);
    let other = lock.clone();
    elsewhere(move || {
        assert!(other.try_lock().unwrap().is_none());
        assert_eq!(other.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    });
    lock.unlock().unwrap();
    assert!(lock.is_locked().unwrap());
    lock.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
}

#[test]
fn with_runs_its_work_under_the_lock() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("with");
    let seen = lock.with(|hold| {
        Ok::<_, Error>((hold.is_held(), lock.hold_count(), lock.is_locked().unwrap()))
    });
    assert_eq!(seen.unwrap(), (true, 1, true));
    assert!(!lock.is_locked().unwrap());

    let panicked =
        catch_unwind(AssertUnwindSafe(|| lock.with::<(), Error>(|_| panic!("the work's own"))));
    assert!(panicked.is_err());
    wait_free(&server, "with", SOON);
}

/// An error of the work's own.
#[derive(Debug)]
enum WorkError {
    Own,
    Lock(Error),
}

impl From<Error> for WorkError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

#[test]
fn what_the_work_under_the_lock_returns_comes_back_if_the_lock_was_held_to_its_end() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connect().unwrap();
    let lock = client.reentrant_lock("work");
    // Its own error is as it is, and the lock is free.
    let own: Result<(), _> = lock.with(|_| Err(WorkError::Own));
    assert!(matches!(own, Err(WorkError::Own)), "{own:?}");
    wait_free(&server, "work", SOON);
    // An error of the library's passes through the work.
    let within = lock.with(|guard| Ok::<_, WorkError>(guard.check(LONG * 2)?));
    let Err(WorkError::Lock(error)) = within else { panic!("{within:?}") };
    assert_eq!(error.kind(), ErrorKind::EndsTooSoon);
    // Released when nobody knows whether it was: the work was done, and its result counts.
    let release = redis::Script::new(concat!(
        include_str!("../lua/lock/unwanted.lua"),
        include_str!("../lua/hand_off.lua"),
        include_str!("../lua/lock/holder.lua"),
        include_str!("../lua/lock/release.lua")
    ));
    proxy.on(Direction::Request, 2, Action::LoseRequest, move |bytes| {
        bytes.windows(40).any(|part| part == release.get_hash().as_bytes())
    });
    assert_eq!(lock.with(|_| Ok::<_, WorkError>(7)).unwrap(), 7);
    assert_eq!(proxy.fired(), 2);
    wait_free(&server, "work", SOON);
    // Lost before its end, known here or to the server alone: not given out as if all were well.
    for here in [true, false] {
        let lost = lock.with(|_| {
            if here {
                assert!(lock.force_unlock()?);
            } else {
                let () = server.connection().del("work").unwrap();
            }
            Ok::<_, WorkError>(7)
        });
        let Err(WorkError::Lock(error)) = lost else { panic!("{lost:?}") };
        assert_eq!(error.kind(), ErrorKind::LeaseLost);
    }
    // Released by the work itself.
    let twice = lock.with(|_| Ok::<_, WorkError>(lock.unlock()?));
    let Err(WorkError::Lock(error)) = twice else { panic!("{twice:?}") };
    assert_eq!(error.kind(), ErrorKind::NotHeld);
}

/// Says how much time is certain, without nanoseconds, and what to do.
#[track_caller]
fn is_short(error: &Error, advice: &str) {
    let said = error.to_string();
    assert!(said.ends_with(advice), "{said}");
    let certain = said.split_once("certain for ").unwrap().1.split_once(" more").unwrap().0;
    let fraction = certain.split_once('.').map_or("", |(_, fraction)| fraction);
    assert!(fraction.len() <= "999s".len(), "{said}");
}

#[test]
fn a_check_says_lost_only_of_what_is_lost() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("checked");
    let guard = lock.lock().unwrap();
    guard.check(LONG / 2).unwrap();
    let error = guard.check(LONG).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::EndsTooSoon, false), "{error}");
    let error = guard.check(LONG - Duration::from_millis(1)).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::EndsTooSoon, true), "{error}");
    is_short(&error, "raise watchdog_timeout");
    assert!(guard.is_held());
    let fixed = lock.with_lease(SOON).lock().unwrap();
    let error = fixed.check(LONG - UNIT / 2).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::EndsTooSoon, false), "{error}");
    is_short(&error, "take a longer lease");
    drop(fixed);
    assert!(lock.force_unlock().unwrap());
    assert_eq!(guard.check(UNIT).unwrap_err().kind(), ErrorKind::LeaseLost);
    drop(guard);
    let guard = lock.lock().unwrap();
    lock.unlock().unwrap();
    let error = guard.check(UNIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
}

#[test]
fn a_panic_releases_what_was_held() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("panic");
    let same = lock.clone();
    let panicked = thread::spawn(move || {
        let _outer = same.lock().unwrap();
        let _inner = same.lock().unwrap();
        panic!("the thread's own");
    });
    assert!(panicked.join().is_err());
    lock.try_lock_for(SOON).unwrap().expect("free after the panic").unlock().unwrap();
}

#[test]
fn any_lock_may_stand_behind_the_trait() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let locks: Vec<Box<dyn Lock>> = vec![
        Box::new(client.reentrant_lock("any:1")),
        Box::new(client.reentrant_lock("any:2").with_lease(LONG / 2)),
    ];
    let token = CancelToken::new();
    for lock in &locks {
        let guards = [
            lock.lock().unwrap(),
            lock.try_lock().unwrap().unwrap(),
            lock.try_lock_for(UNIT).unwrap().unwrap(),
            lock.try_lock_until(Instant::now()).unwrap().unwrap(),
            lock.lock_cancellable(&token).unwrap(),
        ];
        assert_eq!(lock.hold_count(), 5);
        assert!(lock.is_held_by_current_thread() && lock.is_locked().unwrap());
        assert!(lock.remaining_lease().unwrap().unwrap() <= LONG);
        for guard in guards {
            guard.unlock().unwrap();
        }
        lock.lock().unwrap().forget();
        lock.unlock().unwrap();
        assert!(!lock.force_unlock().unwrap());
    }
    fn guarded(lock: &impl Lock) -> Result<bool, Error> {
        lock.with_lease(UNIT * 10).with(|_| Ok(lock.is_held_by_current_thread()))
    }
    assert!(guarded(&client.reentrant_lock("any:3")).unwrap());
}

#[test]
fn locks_go_where_threads_go_and_a_guard_keeps_its_client() {
    let _bounded = bounded();
    fn travels<T: Clone + Send + Sync + 'static>(_: &T) {}
    let server = server();
    let lease = RENEWED;
    let guard = {
        let client = watched(&server, lease);
        let lock = client.reentrant_lock("kept");
        travels(&client);
        travels(&lock);
        travels(&CancelToken::new());
        lock.lock().unwrap()
    };
    // Time is the subject: without its client nobody would renew it.
    thread::sleep(lease * 3 / 2);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    wait_free(&server, "kept", SOON);
}

// Others.

#[test]
fn two_clients_exclude_each_other_in_one_thread_too() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let (mine, theirs) = (one.reentrant_lock("two"), other.reentrant_lock("two"));
    let guard = mine.lock().unwrap();
    assert!(theirs.try_lock().unwrap().is_none());
    assert!(theirs.try_lock_for(UNIT).unwrap().is_none());
    guard.unlock().unwrap();
    let guard = theirs.try_lock().unwrap().unwrap();
    assert!(mine.try_lock().unwrap().is_none());
    drop(guard);
    drop(mine.lock().unwrap());
}

#[test]
fn try_lock_takes_one_script_or_none() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = one.reentrant_lock("tried");
    let theirs = other.reentrant_lock("tried");
    lock.try_lock().unwrap().unwrap().unlock().unwrap();
    theirs.lock().unwrap().unlock().unwrap();
    let scripts = || Commands::so_far(&server).scripts();

    let before = scripts();
    let guard = lock.try_lock().unwrap().unwrap();
    assert_eq!(scripts() - before, 1, "free");
    let before = scripts();
    assert!(theirs.try_lock().unwrap().is_none());
    assert!(theirs.try_lock_for(Duration::ZERO).unwrap().is_none());
    assert_eq!(scripts() - before, 2, "held elsewhere");
    let before = Commands::so_far(&server).of_locks();
    let same = lock.clone();
    elsewhere(move || {
        assert!(same.try_lock().unwrap().is_none());
        assert!(same.try_lock_for(Duration::ZERO).unwrap().is_none());
    });
    assert_eq!(Commands::so_far(&server).of_locks(), before, "held by a thread of this process");
    guard.unlock().unwrap();

    // A thread of this process stands before.
    let guard = theirs.lock().unwrap();
    let same = lock.clone();
    let first = spawn(move || same.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "tried", 1);
    first.wait_asleep();
    // The one that waits asks now and then, so commands cannot be counted. A server that stands
    // still would not answer.
    server.pause();
    let tried = lock.try_lock();
    server.resume();
    assert!(tried.unwrap().is_none());
    guard.unlock().unwrap();
    first.join();
}

#[test]
fn a_bounded_wait_ends_at_its_deadline_and_not_before() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.reentrant_lock("bounded").lock().unwrap();
    let (wait, slack) = (UNIT * 3, SOON);
    // Behind another client, and behind a thread of the same one.
    for lock in [other.reentrant_lock("bounded"), one.reentrant_lock("bounded")] {
        elsewhere(move || {
            let begun = Instant::now();
            assert!(lock.try_lock_for(wait).unwrap().is_none());
            let took = begun.elapsed();
            assert!(took >= wait && took < slack, "{took:?}");
            let begun = Instant::now();
            assert!(lock.try_lock_until(begun + wait).unwrap().is_none());
            let took = begun.elapsed();
            assert!(took >= wait && took < slack, "{took:?}");
        });
    }
    guard.unlock().unwrap();
    // A deadline that has passed leaves one try.
    let past = Instant::now();
    let guard = other.reentrant_lock("bounded").try_lock_until(past).unwrap();
    guard.expect("it is free").unlock().unwrap();
}

#[test]
fn who_gave_up_leaves_nothing_behind() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = other.reentrant_lock("given up");
    let guard = one.reentrant_lock("given up").lock().unwrap();
    let waiters: Vec<_> = (1..8)
        .map(|at| {
            let lock = lock.clone();
            spawn(move || assert!(lock.try_lock_for(UNIT / 10 * at).unwrap().is_none()))
        })
        .collect();
    waiters.into_iter().for_each(Running::join);
    guard.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
    let guard = lock.try_lock().unwrap().expect("nobody stands before");
    guard.unlock().unwrap();
}

#[test]
fn a_release_wakes_a_waiter_of_another_client_at_once() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for (at, name) in ["woken", "wo{k}en", "{woken"].into_iter().enumerate() {
        at_once(|| {
            let guard = one.reentrant_lock(name).lock().unwrap();
            let lock = other.reentrant_lock(name);
            let waiter = spawn(move || {
                lock.lock().unwrap().unlock().unwrap();
                Instant::now()
            });
            wait_in_line(&server, name, 1);
            waiter.wait_asleep();
            let released = Instant::now();
            if at == 1 {
                drop(guard);
            } else {
                guard.unlock().unwrap();
            }
            assert!(waiter.join() >= released);
        });
    }
}

#[test]
fn a_java_services_release_wakes_a_waiter_and_its_hold_is_respected() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, channel) in
        [("java", "redisson_lock__channel:{java}"), ("ja{v}a", "redisson_lock__channel:ja{v}a")]
    {
        let lock = client.reentrant_lock(name);
        at_once(|| {
            hold_as_redisson(&mut redis, name, LONG);
            assert!(lock.try_lock().unwrap().is_none());
            assert!(lock.is_locked().unwrap() && !lock.is_held_by_current_thread());
            assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
            assert_eq!(holder(&mut redis, name).unwrap().0, FOREIGN);
            let waits = lock.clone();
            let waiter = spawn(move || waits.lock().unwrap().unlock().unwrap());
            wait_subscribed(&server, channel);
            waiter.wait_asleep();
            assert_eq!(holder(&mut redis, name).unwrap().0, FOREIGN);
            release_as_redisson(&mut redis, name, channel);
            waiter.join();
        });
    }
}

#[test]
fn a_message_without_a_release_grants_nothing() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "hint", LONG);
    let lock = client.reentrant_lock("hint");
    let granted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&granted);
    let waiter = spawn(move || {
        let guard = lock.lock().unwrap();
        told.store(true, Ordering::SeqCst);
        guard.unlock().unwrap();
    });
    wait_subscribed(&server, &channel("hint"));
    for message in ["0", "1", "0", "abc", ""] {
        waiter.wait_asleep();
        let before = Commands::so_far(&server).scripts();
        let () = redis.publish(channel("hint"), message).unwrap();
        wait_until("the waiter asks again", SOON, || Commands::so_far(&server).scripts() > before);
    }
    waiter.wait_asleep();
    assert!(!granted.load(Ordering::SeqCst));
    assert_eq!(holder(&mut redis, "hint").unwrap().0, FOREIGN);
    release_as_redisson(&mut redis, "hint", &channel("hint"));
    waiter.join();
}

#[test]
fn a_lease_that_ends_without_a_message_lets_the_waiter_in() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let lease = UNIT * 3;
    at_once(|| {
        let begun = Instant::now();
        hold_as_redisson(&mut redis, "lapsed", lease);
        let guard = client.reentrant_lock("lapsed").lock().unwrap();
        let took = begun.elapsed();
        // Redis counts whole milliseconds.
        assert!(took + Duration::from_millis(2) >= lease, "{took:?}");
        guard.unlock().unwrap();
    });
}

#[test]
fn one_waiter_after_the_other_is_let_in() {
    let _bounded = bounded();
    let server = server();
    let clients: Vec<_> = (0..4).map(|_| client(&server)).collect();
    at_once(|| {
        let guard = clients[0].reentrant_lock("all").lock().unwrap();
        let inside = Arc::new(AtomicU64::new(0));
        let waiters: Vec<_> = (0..12)
            .map(|at| {
                let lock = clients[at % 4].reentrant_lock("all");
                let inside = Arc::clone(&inside);
                spawn(move || {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if at % 3 == 0 { drop(guard) } else { guard.unlock().unwrap() }
                })
            })
            .collect();
        waiters.iter().for_each(Running::wait_asleep);
        drop(guard);
        waiters.into_iter().for_each(Running::join);
    });
}

#[test]
fn threads_of_one_process_are_served_in_the_order_they_came() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    for held_by_us in [true, false] {
        let lock = client.reentrant_lock("order");
        let mut redis = server.connection();
        let guard = held_by_us.then(|| lock.lock().unwrap());
        if !held_by_us {
            hold_as_redisson(&mut redis, "order", LONG);
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiters: Vec<_> = (0..10)
            .map(|at| {
                let (lock, order) = (lock.clone(), Arc::clone(&order));
                // Not all on the same terms: some are passed the hold, others the baton.
                let lock = if at % 4 == 3 { lock.with_lease(LONG) } else { lock };
                let waiter = spawn(move || {
                    let guard = lock.lock().unwrap();
                    order.lock().unwrap().push(at);
                    if at % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
                });
                waiter.wait_asleep();
                waiter
            })
            .collect();
        match guard {
            Some(guard) => guard.unlock().unwrap(),
            None => release_as_redisson(&mut redis, "order", &channel("order")),
        }
        waiters.into_iter().for_each(Running::join);
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    }
}

/// Takes the lock `rounds` times in each of so many threads, and returns how many were inside
/// together at most.
fn contend(locks: &[ReentrantLock], rounds: u32) -> u64 {
    let (inside, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let start = Arc::new(Barrier::new(locks.len()));
    let threads: Vec<_> = locks
        .iter()
        .cloned()
        .map(|lock| {
            let (inside, most, start) =
                (Arc::clone(&inside), Arc::clone(&most), Arc::clone(&start));
            spawn(move || {
                start.wait();
                for round in 0..rounds {
                    let guard = lock.lock().unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::hint::spin_loop();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if round % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    most.load(Ordering::SeqCst)
}

#[test]
fn within_a_turn_the_hold_is_passed_without_a_command() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("passed");
    let (threads, rounds) = (6, 300);
    let before = Commands::so_far(&server).scripts();
    assert_eq!(contend(&vec![lock; threads], rounds), 1);
    let sent = Commands::so_far(&server).scripts() - before;
    let grants = threads as u64 * u64::from(rounds);
    assert!(sent < grants / 3, "{sent} scripts for {grants} grants");
    wait_free(&server, "passed", SOON);
}

#[test]
fn a_hold_on_other_terms_is_not_passed() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("terms");
    let rounds = 100;
    // Each its own: watched, and two fixed leases.
    let locks = [lock.clone(), lock.with_lease(LONG), lock.with_lease(LONG / 2)];
    let mut monitor = server.connection();
    let before = Commands::so_far(&server).of("hset");
    assert_eq!(contend(&locks, rounds), 1);
    let granted = Commands::so_far(&server).of("hset") - before;
    // Threads that are alone at an end take it again, also with a new grant.
    assert_eq!(granted, 3 * u64::from(rounds), "each grant is the server's");
    wait_free(&server, "terms", SOON);
    assert_eq!(holder(&mut monitor, "terms"), None);
}

#[test]
fn a_process_that_keeps_taking_it_does_not_starve_another() {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let stop = Arc::new(AtomicBool::new(false));
    let counts: Vec<_> = (0..2).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let threads: Vec<_> = (0..4)
        .map(|at| {
            let lock = clients[at % 2].reentrant_lock("shared");
            let (stop, count) = (Arc::clone(&stop), Arc::clone(&counts[at % 2]));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    drop(lock.lock().unwrap());
                    count.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let taken = |at: usize| counts[at].load(Ordering::SeqCst);
    // Each comes to many turns, of a thousand grants or more each, whatever the other does.
    wait_until("both have had their turns", SOON, || taken(0).min(taken(1)) > 20_000);
    let (one, other) = (taken(0), taken(1));
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    assert!(one < other * 5 && other < one * 5, "{one} against {other}");
}

#[test]
fn a_process_that_only_tries_leaves_it_to_one_that_waits() {
    let _bounded = bounded();
    let server = server();
    let clients = [client(&server), client(&server)];
    let lock = clients[0].reentrant_lock("tried");
    let mut left = 0;
    for _ in 0..20 {
        let guard = lock.try_lock_for(SOON).unwrap().expect("nobody keeps it");
        let theirs = clients[1].reentrant_lock("tried");
        let waits = spawn(move || theirs.lock().unwrap().unlock().unwrap());
        wait_in_line(&server, "tried", 1);
        waits.wait_asleep();
        // Longer than a turn.
        thread::sleep(UNIT / 5);
        // The release and the next request, one behind the other: none can come between them.
        drop(guard);
        left += usize::from(lock.try_lock().unwrap().is_none());
        waits.join();
    }
    assert!(left > 10, "{left} of 20 times");
}

#[test]
fn who_is_alone_is_never_refused_a_free_lock() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("alone");
    for _ in 0..5 {
        let guard = lock.try_lock().unwrap().expect("it is free");
        // Longer than a turn.
        thread::sleep(UNIT / 5);
        drop(guard);
    }
    // Without the right to publish it is not known who listens.
    let Some(server) = real_server() else { return };
    let rights = ["SETUSER", "mute", "on", ">word", "~*", "&*", "+@all", "-publish"];
    let () = redis::cmd("ACL").arg(&rights).query(&mut server.connection()).unwrap();
    let client = impatient(&server.url().replace("redis://", "redis://mute:word@"));
    let lock = client.connect().unwrap().reentrant_lock("alone");
    for _ in 0..5 {
        let guard = lock.try_lock().unwrap().expect("it is free");
        thread::sleep(UNIT / 5);
        drop(guard);
    }
}

#[test]
fn a_drop_posts_its_release_and_does_not_wait() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG)
        .response_timeout(SOON)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("posted");
    lock.lock().unwrap().unlock().unwrap();
    // The only guard's drop: nothing else makes it arrive.
    drop(lock.lock().unwrap());
    wait_free(&server, "posted", SOON);

    let guard = lock.lock().unwrap();
    proxy.on_request(channel("posted"), Action::HoldReply);
    let begun = Instant::now();
    drop(guard);
    let took = begun.elapsed();
    assert!(took < SOON / 2, "{took:?}");
    proxy.wait_fired(1, SOON);
    wait_free(&server, "posted", SOON);
    proxy.release();
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_drop_in_the_middle_of_others_commands_is_written_too() {
    let _bounded = bounded();
    let server = server();
    let proxy = Proxy::before(&server);
    let client =
        Client::builder(&proxy.url()).watchdog_timeout(LONG).connections(1).connect().unwrap();
    let guards: Vec<_> =
        (0..5).map(|at| client.reentrant_lock(&format!("drop:{at}")).lock().unwrap()).collect();
    proxy.set_delay(UNIT);
    // Somebody leads the one lane for two units.
    let lock = client.reentrant_lock("other");
    let busy = spawn(move || lock.is_locked().unwrap());
    busy.wait_asleep();
    drop(guards);
    busy.join();
    proxy.set_delay(Duration::ZERO);
    for at in 0..5 {
        wait_free(&server, &format!("drop:{at}"), SOON);
    }
}

#[test]
fn a_longer_lease_extends_a_hold_and_a_shorter_one_does_not_shorten_it() {
    let _bounded = bounded();
    let server = server();
    let lock = client(&server).reentrant_lock("longer");
    let mut redis = server.connection();
    let outer = lock.with_lease(LONG / 2).lock().unwrap();
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap();
    assert!(pttl(&mut redis, "longer") <= millis(LONG / 2));

    let longer = lock.with_lease(LONG * 3).lock().unwrap();
    assert!(pttl(&mut redis, "longer") > millis(LONG * 2));
    assert!(outer.remaining() > LONG * 2 && longer.remaining() > LONG * 2);
    let before = Commands::so_far(&server).scripts();
    let shorter = lock.with_lease(LONG / 2).lock().unwrap();
    assert_eq!(Commands::so_far(&server).scripts(), before);
    assert!(pttl(&mut redis, "longer") > millis(LONG * 2));
    assert_eq!(lock.hold_count(), 3);
    drop((longer, shorter));
    assert!(outer.remaining() > LONG * 2, "an inner level's end shortens nothing");
    outer.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());

    // An extension raises what the server has, be it longer than this client knows.
    let outer = lock.with_lease(LONG / 4).lock().unwrap();
    let () = redis.pexpire("longer", millis(LONG * 3)).unwrap();
    let longer = lock.with_lease(LONG).lock().unwrap();
    assert!(pttl(&mut redis, "longer") > millis(LONG * 2));
    drop((outer, longer));
}

#[test]
fn force_unlock_takes_it_from_anybody_and_lets_the_next_in() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = one.reentrant_lock("forced");
    assert!(!lock.force_unlock().unwrap());
    hold_as_redisson(&mut server.connection(), "forced", LONG);
    assert!(lock.force_unlock().unwrap());
    assert!(!lock.is_locked().unwrap());

    // A thread of this client has it, another waits, and a third one of another client.
    at_once(|| {
        let guard = lock.lock().unwrap();
        let reason = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&reason);
        guard.on_lost(move |why| told.lock().unwrap().push(why));
        let waiters: Vec<_> = [lock.clone(), other.reentrant_lock("forced")]
            .into_iter()
            .map(|lock| spawn(move || lock.lock().unwrap().unlock().unwrap()))
            .collect();
        waiters.iter().for_each(Running::wait_asleep);
        let same = lock.clone();
        assert!(elsewhere(move || same.force_unlock().unwrap()));
        assert!(!guard.is_held());
        assert_eq!(guard.state(), HoldState::Lost(LostReason::ForceUnlocked));
        assert!(!lock.is_held_by_current_thread());
        waiters.into_iter().for_each(Running::join);
        wait_until("on_lost is called", SOON, || !reason.lock().unwrap().is_empty());
        assert_eq!(*reason.lock().unwrap(), [LostReason::ForceUnlocked]);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    });
}

#[test]
fn force_unlock_reaches_who_was_passed_the_hold_meanwhile() {
    let _bounded = bounded();
    let server = server();
    let proxy = Arc::new(Proxy::before(&server));
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG)
        .response_timeout(SOON)
        .connections(1)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("passed on");
    lock.lock().unwrap().unlock().unwrap();
    assert!(!lock.force_unlock().unwrap());
    // A pass needs a fresh grant, so it may take a few rounds.
    let passed = (0..100).any(|_| {
        let forced = Arc::new(AtomicBool::new(false));
        let go = Arc::new(Barrier::new(2));
        let before = proxy.fired();
        let guard = lock.lock().unwrap();
        let first = {
            let (lock, proxy, go) = (lock.clone(), Arc::clone(&proxy), Arc::clone(&go));
            spawn(move || {
                let guard = lock.lock().unwrap();
                go.wait();
                while proxy.fired() == before {
                    std::hint::spin_loop();
                }
                // The server has deleted it, but nobody here knows.
                let _ = guard.unlock();
            })
        };
        first.wait_asleep();
        let second = {
            let (lock, forced) = (lock.clone(), Arc::clone(&forced));
            spawn(move || {
                let guard = lock.lock().unwrap();
                let granted = Instant::now();
                wait_until("it was forced", SOON, || forced.load(Ordering::SeqCst));
                (granted, guard.is_held())
            })
        };
        second.wait_asleep();
        let force = redis::Script::new(concat!(
            include_str!("../lua/hand_off.lua"),
            include_str!("../lua/lock/holder.lua"),
            include_str!("../lua/lock/force_unlock.lua")
        ));
        proxy.on_request(force.get_hash(), Action::DelayReply(UNIT / 2));
        guard.unlock().unwrap();
        go.wait();
        assert!(lock.force_unlock().unwrap());
        let answered = Instant::now();
        forced.store(true, Ordering::SeqCst);
        first.join();
        let (granted, held) = second.join();
        // No other reply came while this one was under way on the only connection.
        let passed = granted + UNIT / 5 < answered;
        assert!(!(passed && held), "it says held after force_unlock has returned");
        passed
    });
    assert!(passed, "it was never passed on: the test shows nothing");
}

// Cancelling.

#[test]
fn a_cancel_ends_a_wait_for_another_client_and_one_for_a_thread() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = other.reentrant_lock("cancel");
    at_once(|| {
        let guard = one.reentrant_lock("cancel").lock().unwrap();
        let token = CancelToken::new();
        // The first waits for the other client, those behind it for the first.
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let (lock, token) = (lock.clone(), token.clone());
                let waiter = spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        let patient_lock = lock.clone();
        let patient = spawn(move || patient_lock.lock().unwrap().unlock().unwrap());
        patient.wait_asleep();
        token.cancel();
        for waiter in waiters {
            let error = waiter.join();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            assert!(error.to_string().contains("\"cancel\""), "{error}");
        }
        // Who was not cancelled still stands in the queue, and is let in.
        assert!(!patient.is_finished());
        guard.unlock().unwrap();
        patient.join();
        // A cancelled token stays so.
        assert_eq!(lock.lock_cancellable(&token).unwrap_err().kind(), ErrorKind::Cancelled);
    });
    // The lock is as good as before.
    assert!(!lock.is_locked().unwrap());
    lock.lock_cancellable(&CancelToken::new()).unwrap().unlock().unwrap();
}

#[test]
fn a_cancel_that_races_with_the_release_loses_no_lock() {
    let _bounded = bounded();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut random = Random::new();
    let (mut granted, mut cancelled) = (0, 0);
    for _ in 0..60 {
        let guard = one.reentrant_lock("race").lock().unwrap();
        let lock = other.reentrant_lock("race");
        let token = CancelToken::new();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let (lock, token) = (lock.clone(), token.clone());
                spawn(move || match lock.lock_cancellable(&token) {
                    Ok(guard) => {
                        assert!(guard.is_held());
                        guard.unlock().unwrap();
                        true
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Cancelled);
                        false
                    }
                })
            })
            .collect();
        wait_in_line(&server, "race", 1);
        guard.unlock().unwrap();
        let until = Instant::now() + Duration::from_micros(random.below(600));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        token.cancel();
        for waiter in waiters {
            if waiter.join() { granted += 1 } else { cancelled += 1 }
        }
        // Neither a hold nor a place in the queue is left.
        lock.try_lock().unwrap().expect("free").unlock().unwrap();
    }
    println!("{granted} granted, {cancelled} cancelled");
}

#[test]
fn a_waiter_of_the_same_process_moves_up_when_those_before_it_give_up() {
    let _bounded = bounded();
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let lock = client.reentrant_lock("move up");
    at_once(|| {
        hold_as_redisson(&mut redis, "move up", LONG);
        // The leader leaves with the baton, one behind it without.
        let leader_lock = lock.clone();
        let token = CancelToken::new();
        let leaders = token.clone();
        let leader = spawn(move || leader_lock.lock_cancellable(&leaders).unwrap_err());
        leader.wait_asleep();
        let impatient_lock = lock.clone();
        let impatient =
            spawn(move || assert!(impatient_lock.try_lock_for(UNIT * 2).unwrap().is_none()));
        impatient.wait_asleep();
        let last_lock = lock.clone();
        let last = spawn(move || last_lock.lock().unwrap().unlock().unwrap());
        last.wait_asleep();
        impatient.join();
        token.cancel();
        assert_eq!(leader.join().kind(), ErrorKind::Cancelled);
        last.wait_asleep();
        release_as_redisson(&mut redis, "move up", &channel("move up"));
        last.join();
    });
}
