//! The end of a client: its threads end, its holds are released, and no thread is left waiting.
//!
//! The tests count threads, so each test has its own process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{Client, ErrorKind, HoldState, LostReason, OwnedLockGuard};
use redlatch_testkit::{Action, Direction, Job, Proxy, Worker};

fn own_threads() -> Vec<String> {
    thread_names().into_iter().filter(|name| name.starts_with("redlatch-")).collect()
}

fn wait_no_threads() {
    wait_until("the background threads have ended", TIMEOUT, || own_threads().is_empty());
}

/// The entry point of the worker processes, which run this executable with only this test.
#[test]
fn worker() {
    let Some(job) = Job::from_env() else { return };
    let client = Client::connect(job.arg(0)).unwrap();
    match job.role() {
        // Drops everything and ends at once.
        "dropper" => {
            for at in 0..200 {
                let lock = client.reentrant_lock(&format!("{}:{at}", job.arg(1)));
                let guard = lock.lock().unwrap();
                match at % 3 {
                    0 => drop(guard),
                    1 => guard.forget(),
                    // The lock and the guard are dropped later, while the client is still used.
                    _ => drop((lock, guard)),
                }
            }
            drop(client);
            job.say("dropped");
            job.done();
        }
        role => panic!("no role {role}"),
    }
}

#[test]
fn the_drop_of_the_last_handle_ends_the_clients_threads() {
    if !has_own_process() {
        return;
    }
    let server = server();
    wait_no_threads();
    // A thread that waited for a reply would wait for a very long time.
    let builder = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE);
    let client = builder.response_timeout(LONG_LEASE).connect().unwrap();
    // Wait, because a thread sets its own name after its start.
    wait_until("the threads run", TIMEOUT, || {
        own_threads().len() >= 3 || !cfg!(target_os = "linux")
    });
    let lock = client.reentrant_lock("last");
    // Makes the client subscribe as well.
    hold_as_redisson(&mut server.connection(), "last", TIME_UNIT);
    let guard = lock.lock_owned().unwrap();
    let clone = client.clone();
    drop(client);
    drop(lock);
    assert!(guard.is_held());
    drop(clone);
    assert!(!own_threads().is_empty() || !cfg!(target_os = "linux"), "the guard is left");
    // The guard is the last value that keeps the client alive.
    elsewhere(move || drop(guard));
    wait_no_threads();
    assert_eq!(holder(&mut server.connection(), "last"), None);
}

#[test]
fn many_clients_come_and_go_and_leave_no_thread_and_no_connection() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let mut redis = server.connection();
    let mut connections = || {
        let info: String = redis::cmd("INFO").arg("clients").query(&mut redis).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("connected_clients:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = connections();
    for round in 0..30 {
        let client = client(&server);
        let lock = client.reentrant_lock("come and go");
        match round % 4 {
            0 => {}
            1 => drop(lock.lock().unwrap()),
            2 => lock.lock().unwrap().unlock().unwrap(),
            _ => lock.lock().unwrap().forget(),
        }
    }
    wait_no_threads();
    assert_eq!(holder(&mut server.connection(), "come and go"), None);
    wait_until("the connections are closed", TIMEOUT, || connections() == before);
}

#[test]
fn a_client_that_is_dropped_leaves_nothing_held() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = client(&server);
    let names: Vec<_> = (0..50).map(|at| format!("held:{at}")).collect();
    let guards: Vec<_> =
        names.iter().map(|name| client.reentrant_lock(name).lock().unwrap()).collect();
    for (at, guard) in guards.into_iter().enumerate() {
        if at % 2 == 0 { guard.forget() } else { drop(guard) }
    }
    // Check at once: when the drop returns, its work is done.
    drop(client);
    let mut redis = server.connection();
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_process_that_drops_its_client_and_ends_leaves_nothing_held() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let mut workers: Vec<_> = ["a", "b"]
        .map(|name| Worker::spawn_test("end::worker", "dropper", &[&server.url(), name]))
        .into_iter()
        .collect();
    for worker in &mut workers {
        worker.expect_line("dropped", TIMEOUT);
        assert!(worker.wait_exit(TIMEOUT).success());
    }
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_end_of_a_client_waits_for_releases_without_an_answer() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let guards: Vec<_> =
        (0..5).map(|at| client.reentrant_lock(&format!("far:{at}")).lock().unwrap()).collect();
    proxy.set_delay(TIME_UNIT);
    drop(guards);
    drop(client);
    // The release has arrived, although that took some time.
    let left: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.connection()).unwrap();
    assert!(left.is_empty(), "{left:?}");
    wait_no_threads();
}

#[test]
fn a_release_that_is_lost_right_before_the_end_is_sent_again_before_it() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let proxy = Proxy::before(&server);
    for round in 0..10 {
        let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
        let lock = client.reentrant_lock("lost");
        lock.lock().unwrap().unlock().unwrap();
        let guard = lock.lock().unwrap();
        proxy.on(Direction::Request, 1, Action::LoseRequest, |bytes| {
            contains(bytes, &channel("lost"))
        });
        if round % 2 == 0 {
            drop(guard);
        } else {
            guard.forget();
        }
        drop((lock, client));
        assert_eq!(proxy.fired(), round + 1);
        assert_eq!(holder(&mut server.connection(), "lost"), None, "round {round}");
        wait_no_threads();
    }
}

#[test]
fn the_end_waits_for_no_message_of_others() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = Client::builder(&server.url()).response_timeout(LONG_LEASE).connect().unwrap();
    // The client subscribes to two channels, but no message ever comes.
    for name in ["silent", "silent too"] {
        hold_as_redisson(&mut server.connection(), name, LONG_LEASE);
        assert!(
            answered(|| client.reentrant_lock(name).try_lock_for(TIME_UNIT))
                .into_option()
                .is_none()
        );
    }
    elsewhere(move || drop(client));
    wait_no_threads();
}

#[test]
fn the_last_handle_may_be_dropped_by_an_on_lost_callback() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let lease = TIME_UNIT * 3;
    for round in 0..4 {
        // The drop must not wait for its own thread. Such a wait would take this long.
        let client = Client::builder(&server.url())
            .watchdog_timeout(lease)
            .response_timeout(LONG_LEASE)
            .connect()
            .unwrap();
        let lock = client.reentrant_lock("callback");
        let fixed = lock.with_lease(lease);
        let guard = if round % 2 == 0 { fixed.lock().unwrap() } else { lock.lock().unwrap() };
        let other = client.reentrant_lock("other");
        other.lock().unwrap().forget();
        let called = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&called);
        let last = (client, lock, fixed, other);
        guard.on_lost(move |_| {
            drop(last);
            told.store(true, Ordering::SeqCst);
        });
        if round % 2 == 1 {
            hold_as_redisson(&mut server.connection(), "callback", LONG_LEASE);
            let () = redis::cmd("DEL").arg("callback").query(&mut server.connection()).unwrap();
        }
        // The guard's own handle is dropped after the loss or before it.
        if round < 2 {
            wait_until("it is lost", TIMEOUT, || !guard.is_held());
            drop(guard);
        } else {
            guard.forget();
        }
        wait_until("the callback has run", TIMEOUT, || called.load(Ordering::SeqCst));
        wait_no_threads();
        assert_eq!(holder(&mut server.connection(), "other"), None);
    }
}

#[test]
fn a_callback_that_was_never_called_may_own_the_last_handle() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = client(&server);
    let guard = client.reentrant_lock("unheard").lock().unwrap();
    guard.on_lost(move |_| drop(client));
    // The callback keeps the client alive, and the client keeps the callback alive. The release
    // breaks this cycle.
    guard.unlock().unwrap();
    wait_no_threads();
}

#[test]
fn shutdown_ends_waits_and_holds_and_all_later_calls() {
    if !has_own_process() {
        return;
    }
    let server = server();
    woken_by_message(|| {
        let client = client(&server);
        let held = client.reentrant_lock("held").lock().unwrap();
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&reasons);
        held.on_lost(move |reason| told.lock().unwrap().push(reason));
        hold_as_redisson(&mut server.connection(), "foreign", LONG_LEASE);
        let waiters: Vec<_> = ["held", "held", "foreign", "foreign"]
            .into_iter()
            .map(|name| {
                let lock = client.reentrant_lock(name);
                let waiter = spawn(move || lock.lock().map(drop).unwrap_err());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        client.shutdown();
        for waiter in waiters {
            let error = waiter.join();
            assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
        }
        assert_eq!(holder(&mut server.connection(), "held"), None);
        assert!(!held.is_held());
        assert_eq!(held.state(), HoldState::Lost(LostReason::ShutDown));
        wait_until("on_lost is called", TIMEOUT, || !reasons.lock().unwrap().is_empty());
        assert_eq!(*reasons.lock().unwrap(), [LostReason::ShutDown]);
        wait_no_threads();

        let lock = client.reentrant_lock("later");
        for error in [
            lock.lock().map(drop).unwrap_err(),
            lock.try_lock().map(drop).unwrap_err(),
            lock.try_lock_for(TIMEOUT).map(drop).unwrap_err(),
            lock.is_locked().map(drop).unwrap_err(),
            lock.force_unlock().map(drop).unwrap_err(),
            lock.remaining_lease().map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
            assert!(error.to_string().contains("\"later\""), "{error}");
        }
        assert!(held.unlock().is_err());
        // A second shutdown and the drop have no effect.
        client.shutdown();
        drop((client, lock));
        assert_eq!(holder(&mut server.connection(), "foreign").unwrap().0, FOREIGN);
    });
}

#[test]
fn a_shutdown_in_the_middle_of_contention_leaves_no_hold_and_no_waiter() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let mut random = Random::new();
    for round in 0..15 {
        let (client, other) = (client(&server), client(&server));
        let threads: Vec<_> = (0..4)
            .map(|at| {
                let lock = client.reentrant_lock(["one", "two"][at % 2]);
                spawn(move || {
                    loop {
                        match lock.lock() {
                            Ok(guard) if at < 2 => drop(guard),
                            // The shutdown may have ended the hold.
                            Ok(guard) => drop(guard.unlock()),
                            Err(error) => break error,
                        }
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_micros(500 + random.below(3_000)));
        client.shutdown();
        for thread in threads {
            let error = thread.join();
            assert_eq!(error.kind(), ErrorKind::ShutDown, "{error}");
        }
        for name in ["one", "two"] {
            let guard = other.reentrant_lock(name).try_lock_for(TIMEOUT).unwrap();
            let holder = holder(&mut server.connection(), name);
            guard
                .into_option()
                .unwrap_or_else(|| panic!("round {round}, {name:?} is held by {holder:?}"))
                .unlock()
                .unwrap();
        }
        drop((client, other));
        wait_no_threads();
    }
}

#[test]
fn a_guard_that_outlives_the_shutdown_is_lost_and_harmless() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let (kept, dropped) =
        (client.reentrant_lock("a").lock().unwrap(), client.reentrant_lock("b").lock().unwrap());
    client.shutdown();
    let theirs =
        (other.reentrant_lock("a").lock().unwrap(), other.reentrant_lock("b").lock().unwrap());
    drop(dropped);
    assert_eq!(kept.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    for name in ["a", "b"] {
        assert!(holder(&mut server.connection(), name).is_some(), "{name} was released");
    }
    theirs.0.unlock().unwrap();
    theirs.1.unlock().unwrap();
}

#[test]
fn the_end_of_a_client_of_a_frozen_or_absent_server_takes_a_bounded_time() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let mut names = 0;
    for (connections, gone) in [(1, false), (MANY_THREADS, false), (MANY_THREADS, true)] {
        let client = impatient(&server.url()).connections(connections).connect().unwrap();
        // There are several holds on each connection.
        let guards: Vec<_> = (0..MANY_THREADS * 4)
            .map(|_| {
                names += 1;
                client.reentrant_lock(&format!("end:{names}")).lock().unwrap()
            })
            .collect();
        // This makes the client subscribe, too.
        let mut redis = server.connection();
        hold_as_redisson(&mut redis, "foreign", LONG_LEASE);
        assert!(
            answered(|| client.reentrant_lock("foreign").try_lock_for(TIME_UNIT / 2))
                .into_option()
                .is_none()
        );
        if gone {
            server.kill();
        } else {
            server.pause();
        }
        drop(guards);
        let begun = Instant::now();
        drop(client);
        let took = begun.elapsed();
        if gone {
            server.restart_empty();
        } else {
            server.resume();
        }
        // The shutdown takes up to one `response_timeout` for all connections together.
        assert!(took < TIMEOUT, "{connections} connections, gone: {gone}: {took:?}");
        wait_no_threads();
    }
}

#[test]
fn a_client_that_could_not_connect_leaves_no_thread() {
    if !has_own_process() {
        return;
    }
    wait_no_threads();
    let server = server();
    let url = server.url();
    server.kill();
    assert!(Client::connect(&url).is_err());
    assert_eq!(own_threads(), [""; 0]);
}

/// The client has not noticed the break yet, so it sends its first command over a broken
/// connection.
#[test]
fn the_end_right_after_the_connections_broke_takes_no_longer_than_any_other() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let mut redis = server.connection();
    for kind in ["normal", "pubsub", "all"] {
        let builder = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE);
        let client = builder.response_timeout(LONG_LEASE).connect().unwrap();
        hold_as_redisson(&mut redis, "foreign", LONG_LEASE);
        assert!(
            answered(|| client.reentrant_lock("foreign").try_lock_for(TIME_UNIT / 2))
                .into_option()
                .is_none()
        );
        let guard = client.reentrant_lock("held").lock().unwrap();
        let kinds = if kind == "all" { vec!["pubsub", "normal"] } else { vec![kind] };
        for kind in kinds {
            let mut kill = redis::cmd("CLIENT");
            let _: u64 = kill.arg("KILL").arg("TYPE").arg(kind).query(&mut redis).unwrap();
        }
        elsewhere(move || client.shutdown());
        wait_no_threads();
        assert_eq!(holder(&mut redis, "held"), None, "{kind}");
        drop(guard);
    }
}

#[test]
fn no_thread_outlives_a_client_of_a_server_that_stays_frozen() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    // The client subscribes, but no message ever comes.
    hold_as_redisson(&mut server.connection(), "foreign", LONG_LEASE);
    assert!(
        answered(|| client.reentrant_lock("foreign").try_lock_for(TIME_UNIT / 2))
            .into_option()
            .is_none()
    );
    let guard = client.reentrant_lock("held").lock().unwrap();
    server.pause();
    drop(guard);
    drop(client);
    // A thread that waited for a reply for ever would not end.
    wait_no_threads();
    server.resume();
}

/// There are more permits than the client gives back in one round.
#[test]
fn permits_dropped_before_a_frozen_server_come_back_though_the_client_ends() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = Client::builder(&server.url()).connections(1).connect().unwrap();
    let semaphore = client.semaphore("owed");
    assert!(semaphore.try_set_permits(700).unwrap());
    let mut all = semaphore.acquire_many(700).unwrap();
    let permits: Vec<_> = (0..699).map(|_| all.split(1).unwrap()).collect();
    server.pause();
    drop((permits, all));
    thread::sleep(TIME_UNIT);
    let ending = spawn(move || client.shutdown());
    ending.wait_asleep();
    server.resume();
    ending.join();
    drop(semaphore);
    let mut redis = server.connection();
    wait_until("all permits are back", TIMEOUT, || redis.get::<_, i64>("owed").unwrap() == 700);
}

#[test]
fn a_second_shutdown_returns_when_the_first_has_ended() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = impatient(&server.url()).response_timeout(TIMEOUT).connect().unwrap();
    let _held = client.reentrant_lock("held").lock_owned().unwrap();
    server.pause();
    let endings = [client.clone(), client].map(|client| {
        let ending = spawn(move || client.shutdown());
        ending.wait_asleep();
        ending
    });
    assert!(endings.iter().all(|ending| !ending.is_finished()));
    server.resume();
    endings.into_iter().for_each(Running::join);
    wait_no_threads();
}

/// Takes more holds than the maximum number of unanswered commands on a connection.
fn hold_many(client: &Client) -> Vec<OwnedLockGuard> {
    (0..6_000).map(|at| client.reentrant_lock(&at.to_string()).lock_owned().unwrap()).collect()
}

#[test]
fn dropping_many_guards_waits_for_no_server() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client =
        impatient(&server.url()).response_timeout(TIMEOUT).connections(1).connect().unwrap();
    let guards = hold_many(&client);
    server.pause();
    let begun = Instant::now();
    drop(guards);
    let took = begun.elapsed();
    server.resume();
    assert!(took < TIMEOUT / 2, "{took:?}");
    // No release is lost.
    let mut redis = server.connection();
    wait_until("all are free", TIMEOUT, || {
        redis::cmd("DBSIZE").query(&mut redis).unwrap_or(1) == 0
    });
}

#[test]
fn many_releases_are_carried_out_before_the_requests_behind_them() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let patient = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE);
    let client = patient.connections(1).connect().unwrap();
    let mut redis = server.connection();
    let mut opened = || -> u64 {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut redis).unwrap();
        let opened = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        opened.unwrap().parse().unwrap()
    };
    let mut rounds = 0;
    while rounds < 3 {
        let guards = hold_many(&client);
        let before = opened();
        drop(guards);
        let taken = [5_999, 3_000, 0].map(|at| {
            let lock = client.reentrant_lock(&at.to_string());
            lock.try_lock().unwrap().into_option().is_some()
        });
        // If the server sends nothing for a moment, as on a busy machine, the client closes the
        // connection. It then repeats unanswered commands in the background, in any order.
        if opened() == before {
            assert_eq!(taken, [true; 3]);
            rounds += 1;
        }
    }
}

#[test]
fn the_end_of_a_client_that_holds_much_on_a_frozen_server_takes_a_bounded_time() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = impatient(&server.url()).connections(4).connect().unwrap();
    let guards = hold_many(&client);
    server.pause();
    let begun = Instant::now();
    client.shutdown();
    let took = begun.elapsed();
    drop(guards);
    drop(client);
    server.resume();
    assert!(took < TIMEOUT / 2, "{took:?}");
    wait_no_threads();
}
