//! The lock and its thread.

use super::*;

#[test]
fn guards_release_a_level_each_in_any_order() {
    let server = server();
    let client = client(&server);
    // Two handles of one name are the same lock.
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
    assert!(elsewhere(move || lock.try_lock().unwrap().into_option().is_none()));
    second.unlock().unwrap();
    assert!(!same.is_locked().unwrap());
}

#[test]
fn the_answers_of_a_lock_depend_on_the_asking_thread_and_client() {
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
    assert!(left > LONG_LEASE * 9 / 10 && left <= LONG_LEASE, "{left:?}");
    let same = lock.clone();
    assert_eq!(
        elsewhere(move || (same.is_held_by_current_thread(), same.hold_count())),
        (false, 0)
    );

    guard.unlock().unwrap();
    assert!(!lock.is_held_by_current_thread());
    // A key that does not expire is not a lock, but other data under the lock's name.
    let () = server.connection().hset("told", FOREIGN, 1).unwrap();
    assert_eq!(lock.remaining_lease().unwrap(), None);
    assert_eq!(lock.is_locked().unwrap_err().kind(), ErrorKind::WrongType);
    assert!(lock.try_lock().is_err());
}

/// Data that an application may keep under a lock's name, with the commands that create them.
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
fn a_key_that_is_no_lock_is_an_error_at_once_and_left_as_it_is() {
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
            lock.try_lock_for(TIMEOUT).map(drop).unwrap_err(),
            lock.force_unlock().map(drop).unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.name()), (ErrorKind::WrongType, Some("key")), "{what}");
            assert!(error.to_string().contains("use another name"), "{what}: {error}");
            assert!(!format!("{error:?} {error:#}").contains("precious"), "{what}: {error:?}");
        }
        let left: Vec<u8> = redis::cmd("DUMP").arg("key").query(&mut redis).unwrap();
        assert_eq!(left, dump, "{what}");
        let () = redis.del("key").unwrap();
        lock.lock().unwrap().unlock().unwrap();
    }
}

/// The commands of a lock's scripts and queries. The last entry has two commands that earlier
/// versions needed together.
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
fn a_call_without_a_right_takes_effect_as_a_whole_or_not_at_all() {
    let server = server();
    let mut redis = server.connection();
    let mut set = |rights: &[String]| {
        let () =
            redis::cmd("ACL").arg("SETUSER").arg("user").arg(rights).query(&mut redis).unwrap();
    };
    set(&["on", ">word", "~*", "&*", "+@all"].map(str::to_owned));
    let client = impatient(&server.url().replace("redis://", "redis://user:word@"));
    let client = client.connect().unwrap();
    let mut redis = server.connection();
    let short = TIMEOUT;
    type Act = fn(&ReentrantLock, &mut Option<LockGuard>) -> Result<(), Error>;
    let acts: [(&str, bool, Act); 6] = [
        ("lock", false, |lock, guard| lock.lock().map(|new| *guard = Some(new))),
        ("try_lock", false, |lock, guard| lock.try_lock().map(|new| *guard = new.into_option())),
        ("extend", true, |lock, _| lock.with_lease(LONG_LEASE).lock().map(drop)),
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
            // This makes the client send the script's text.
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
            wait_free(&server, &name, TIMEOUT);
        }
    }
}

#[test]
fn a_renewal_that_may_not_ask_for_the_time_left_shortens_no_lease() {
    let server = server();
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "long", LONG_LEASE);
    let rights = ["SETUSER", "user", "on", ">word", "~*", "+@all", "-pttl"];
    let () = redis::cmd("ACL").arg(&rights).query(&mut redis).unwrap();
    let url = server.url().replace("redis://", "redis://user:word@");
    let mut user = redis::Client::open(url).unwrap().get_connection().unwrap();
    let renew = redis::Script::new(concat!(
        include_str!("../../../lua/lock/cut.lua"),
        include_str!("../../../lua/lock/renew.lua")
    ));
    let replies: Vec<String> =
        renew.key("long").arg(600).arg(0).arg(FOREIGN).invoke(&mut user).unwrap();
    assert!(forbids_a_command(&replies[0]), "{replies:?}");
    assert!(pttl(&mut redis, "long") > 600);
}

#[test]
fn a_guard_knows_its_state_without_asking() {
    let server = server();
    let lock = client(&server).reentrant_lock("state");
    lock.lock().unwrap().unlock().unwrap();
    let guard = lock.lock().unwrap();
    let before = Commands::so_far(&server).of_locks();
    assert!(guard.is_held());
    assert_eq!(guard.state(), HoldState::Held);
    let left = guard.remaining();
    assert!(left > LONG_LEASE * 9 / 10 && left < LONG_LEASE, "{left:?}");
    guard.check(Duration::ZERO).unwrap();
    guard.check(LONG_LEASE / 2).unwrap();
    let error = guard.check(LONG_LEASE).unwrap_err();
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
fn a_thread_without_the_lock_cannot_unlock_it() {
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
    let server = server();
    let lock = client(&server).reentrant_lock("stay");
    let (early, dropped) = (lock.lock().unwrap(), lock.lock().unwrap());
    lock.unlock().unwrap();
    lock.unlock().unwrap();
    // The thread and the lock are the same, but the hold is new.
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
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("forgotten");
    lock.lock().unwrap().forget();
    lock.lock().unwrap().forget();
    // After this drop, only the hold keeps the client's state of this lock alive.
    drop(lock);
    let lock = client.reentrant_lock("forgotten");
    assert_eq!(lock.hold_count(), 2);
    let other = lock.clone();
    elsewhere(move || {
        assert!(other.try_lock().unwrap().into_option().is_none());
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
    wait_free(&server, "with", TIMEOUT);
}

#[test]
fn try_with_runs_its_work_if_the_lock_is_free_and_does_nothing_otherwise() {
    let server = server();
    let lock = client(&server).reentrant_lock("with");
    let other = client(&server).reentrant_lock("with");
    let run = |lock: &ReentrantLock| lock.try_with(|hold| Ok::<_, Error>(hold.is_held()));
    let inner = lock.try_with(|_| run(&other)).unwrap();
    assert_eq!(inner, Some(None), "it is not free");
    assert_eq!(run(&other).unwrap(), Some(true));
    assert!(!lock.is_locked().unwrap());
    // The methods of the trait `Lock` return the same results.
    assert_eq!(
        Lock::try_with(&lock, |_| Lock::try_with(&other, |_| Ok::<_, Error>(1))).unwrap(),
        Some(None)
    );
}

/// An error of the work under the lock.
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
fn the_works_result_comes_back_if_the_lock_was_held_to_its_end() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = impatient(&proxy.url()).connect().unwrap();
    let lock = client.reentrant_lock("work");
    // The work's own error is returned unchanged, and the lock is free.
    let own: Result<(), _> = lock.with(|_| Err(WorkError::Own));
    assert!(matches!(own, Err(WorkError::Own)), "{own:?}");
    wait_free(&server, "work", TIMEOUT);
    // The work may return an error of the library.
    let within = lock.with(|guard| Ok::<_, WorkError>(guard.check(LONG_LEASE * 2)?));
    let Err(WorkError::Lock(error)) = within else { panic!("{within:?}") };
    assert_eq!(error.kind(), ErrorKind::EndsTooSoon);
    // The outcome of the release is unknown. The work was done, so its result is returned.
    let release = redis::Script::new(concat!(
        include_str!("../../../lua/lock/hand_over.lua"),
        include_str!("../../../lua/prelude.lua"),
        include_str!("../../../lua/hand_off.lua"),
        include_str!("../../../lua/lock/holder.lua"),
        include_str!("../../../lua/lock/release.lua")
    ));
    proxy.on(Direction::Request, 2, Action::LoseRequest, move |bytes| {
        contains(bytes, release.get_hash())
    });
    assert_eq!(lock.with(|_| Ok::<_, WorkError>(7)).unwrap(), 7);
    assert_eq!(proxy.fired(), 2);
    wait_free(&server, "work", TIMEOUT);
    // If the lock was lost during the work, the result must not be returned as if all were well. In
    // one case the client knows of the loss, in the other only the server does.
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
    // The work releases the lock itself.
    let twice = lock.with(|_| Ok::<_, WorkError>(lock.unlock()?));
    let Err(WorkError::Lock(error)) = twice else { panic!("{twice:?}") };
    assert_eq!(error.kind(), ErrorKind::NotHeld);
}

/// Asserts that the error shows how much time is certain, without nanoseconds, and gives advice.
#[track_caller]
fn is_short(error: &Error, advice: &str) {
    let said = error.to_string();
    assert!(said.ends_with(advice), "{said}");
    let certain = said.split_once("certainly held for ").unwrap().1.split_once(" more").unwrap().0;
    let fraction = certain.split_once('.').map_or("", |(_, fraction)| fraction);
    assert!(fraction.len() <= "999s".len(), "{said}");
}

#[test]
fn a_check_says_lost_only_of_a_lost_hold() {
    let server = server();
    let lock = client(&server).reentrant_lock("checked");
    let guard = lock.lock().unwrap();
    guard.check(LONG_LEASE / 2).unwrap();
    let error = guard.check(LONG_LEASE).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::EndsTooSoon, false), "{error}");
    let error = guard.check(LONG_LEASE - Duration::from_millis(1)).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::EndsTooSoon, true), "{error}");
    is_short(&error, "raise watchdog_timeout; while the server is away, no renewal succeeds");
    assert!(guard.is_held());
    let fixed = lock.with_lease(TIMEOUT).lock().unwrap();
    let error = fixed.check(LONG_LEASE - TIME_UNIT / 2).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::EndsTooSoon, false), "{error}");
    is_short(&error, "take a longer lease");
    drop(fixed);
    assert!(lock.force_unlock().unwrap());
    assert_eq!(guard.check(TIME_UNIT).unwrap_err().kind(), ErrorKind::LeaseLost);
    drop(guard);
    let guard = lock.lock().unwrap();
    lock.unlock().unwrap();
    let error = guard.check(TIME_UNIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
}

#[test]
fn a_panic_releases_the_lock() {
    let server = server();
    let lock = client(&server).reentrant_lock("panic");
    let same = lock.clone();
    let panicked = thread::spawn(move || {
        let _outer = same.lock().unwrap();
        let _inner = same.lock().unwrap();
        panic!("the thread's own");
    });
    assert!(panicked.join().is_err());
    lock.try_lock_for(TIMEOUT)
        .unwrap()
        .into_option()
        .expect("free after the panic")
        .unlock()
        .unwrap();
}

#[test]
fn any_lock_may_stand_behind_the_trait() {
    let server = server();
    let client = client(&server);
    let locks: Vec<Box<dyn Lock>> = vec![
        Box::new(client.reentrant_lock("any:1")),
        Box::new(client.reentrant_lock("any:2").with_lease(LONG_LEASE / 2)),
    ];
    let token = CancelToken::new();
    for lock in &locks {
        let guards = [
            lock.lock().unwrap(),
            lock.try_lock().unwrap().into_option().unwrap(),
            lock.try_lock_for(TIMEOUT).unwrap().into_option().unwrap(),
            answered(|| lock.try_lock_until(Instant::now())).into_option().unwrap(),
            lock.lock_cancellable(&token).unwrap(),
        ];
        assert_eq!(lock.hold_count(), 5);
        assert!(lock.is_held_by_current_thread() && lock.is_locked().unwrap());
        assert!(lock.remaining_lease().unwrap().unwrap() <= LONG_LEASE);
        for guard in guards {
            guard.unlock().unwrap();
        }
        lock.lock().unwrap().forget();
        lock.unlock().unwrap();
        assert!(!lock.force_unlock().unwrap());
    }
    fn guarded(lock: &impl Lock) -> Result<bool, Error> {
        lock.with_lease(TIME_UNIT * 10).with(|_| Ok(lock.is_held_by_current_thread()))
    }
    assert!(guarded(&client.reentrant_lock("any:3")).unwrap());
}

#[test]
fn locks_go_where_threads_go_and_a_guard_keeps_its_client() {
    fn travels<T: Clone + Send + Sync + 'static>(_: &T) {}
    let server = server();
    let lease = SHORT_LEASE;
    let guard = {
        let client = watched(&server, lease);
        let lock = client.reentrant_lock("kept");
        travels(&client);
        travels(&lock);
        travels(&CancelToken::new());
        lock.lock().unwrap()
    };
    // Time must pass here: without its client, no thread would renew the lock.
    thread::sleep(lease * 3 / 2);
    assert!(guard.is_held());
    guard.unlock().unwrap();
    wait_free(&server, "kept", TIMEOUT);
}
