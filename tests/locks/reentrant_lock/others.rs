//! The lock with several threads and clients.

use super::*;

#[test]
fn two_clients_exclude_each_other_in_one_thread_too() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let (mine, theirs) = (one.reentrant_lock("two"), other.reentrant_lock("two"));
    let guard = mine.lock().unwrap();
    assert!(theirs.try_lock().unwrap().into_option().is_none());
    assert!(answered(|| theirs.try_lock_for(TIME_UNIT)).into_option().is_none());
    guard.unlock().unwrap();
    let guard = theirs.try_lock().unwrap().into_option().unwrap();
    assert!(mine.try_lock().unwrap().into_option().is_none());
    drop(guard);
    drop(mine.lock().unwrap());
}

#[test]
fn try_lock_takes_one_script_or_none() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = one.reentrant_lock("tried");
    let theirs = other.reentrant_lock("tried");
    // After the first round the connections have checked their rights. After the second round the
    // server knows the scripts.
    for _ in 0..2 {
        lock.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
        theirs.lock().unwrap().unlock().unwrap();
    }
    let scripts = || Commands::so_far(&server).scripts();

    let before = scripts();
    let guard = lock.try_lock().unwrap().into_option().unwrap();
    assert_eq!(scripts() - before, 1, "free");
    let before = scripts();
    assert!(theirs.try_lock().unwrap().into_option().is_none());
    assert!(answered(|| theirs.try_lock_for(Duration::ZERO)).into_option().is_none());
    assert_eq!(scripts() - before, 2, "held elsewhere");
    let before = Commands::so_far(&server).of_locks();
    let same = lock.clone();
    elsewhere(move || {
        assert!(same.try_lock().unwrap().into_option().is_none());
        assert!(answered(|| same.try_lock_for(Duration::ZERO)).into_option().is_none());
    });
    assert_eq!(Commands::so_far(&server).of_locks(), before, "held by a thread of this process");
    guard.unlock().unwrap();

    // A thread of this process is first in the queue.
    let guard = theirs.lock().unwrap();
    let same = lock.clone();
    let first = spawn(move || same.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "tried", 1);
    first.wait_asleep();
    // The waiter sends requests at intervals, so commands cannot be counted. Instead the test
    // pauses the server, so that any request would hang.
    server.pause();
    let tried = lock.try_lock();
    server.resume();
    assert!(tried.unwrap().into_option().is_none());
    guard.unlock().unwrap();
    first.join();
}

#[test]
fn a_bounded_wait_ends_at_its_deadline_and_not_before() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.reentrant_lock("bounded").lock().unwrap();
    let wait = TIME_UNIT * 3;
    // The call waits for another client, and then for a thread of the same client.
    for lock in [other.reentrant_lock("bounded"), one.reentrant_lock("bounded")] {
        // If the call had no limit, it would wait until the test unlocks.
        elsewhere(move || {
            let begun = Instant::now();
            assert!(answered(|| lock.try_lock_for(wait)).into_option().is_none());
            assert!(begun.elapsed() >= wait);
            let begun = Instant::now();
            assert!(answered(|| lock.try_lock_until(begun + wait)).into_option().is_none());
            assert!(begun.elapsed() >= wait);
        });
    }
    guard.unlock().unwrap();
    // Even if the deadline has passed, the call tries once.
    let past = Instant::now();
    let guard = other.reentrant_lock("bounded").try_lock_until(past).unwrap();
    guard.into_option().expect("it is free").unlock().unwrap();
}

#[test]
fn a_waiter_that_gave_up_leaves_nothing_behind() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = other.reentrant_lock("given up");
    let guard = one.reentrant_lock("given up").lock().unwrap();
    let waiters: Vec<_> = (1..8)
        .map(|at| {
            let lock = lock.clone();
            spawn(move || {
                assert!(
                    answered(|| lock.try_lock_for(TIME_UNIT / 10 * at)).into_option().is_none()
                );
            })
        })
        .collect();
    waiters.into_iter().for_each(Running::join);
    guard.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
    let guard = lock.try_lock().unwrap().into_option().expect("nobody stands before");
    guard.unlock().unwrap();
}

#[test]
fn a_release_wakes_a_waiter_of_another_client_at_once() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for (at, name) in ["woken", "wo{k}en", "{woken"].into_iter().enumerate() {
        woken_by_message(|| {
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
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, channel) in
        [("java", "redisson_lock__channel:{java}"), ("ja{v}a", "redisson_lock__channel:ja{v}a")]
    {
        let lock = client.reentrant_lock(name);
        woken_by_message(|| {
            hold_as_redisson(&mut redis, name, LONG_LEASE);
            assert!(lock.try_lock().unwrap().into_option().is_none());
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
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "hint", LONG_LEASE);
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
        wait_until("the waiter asks again", TIMEOUT, || {
            Commands::so_far(&server).scripts() > before
        });
    }
    waiter.wait_asleep();
    assert!(!granted.load(Ordering::SeqCst));
    assert_eq!(holder(&mut redis, "hint").unwrap().0, FOREIGN);
    release_as_redisson(&mut redis, "hint", &channel("hint"));
    waiter.join();
}

#[test]
fn a_lease_that_ends_without_a_message_lets_the_waiter_in() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let lease = TIME_UNIT * 3;
    woken_by_message(|| {
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
    let server = server();
    let clients: Vec<_> = (0..4).map(|_| client(&server)).collect();
    woken_by_message(|| {
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
    let server = server();
    let client = client(&server);
    for held_by_us in [true, false] {
        let lock = client.reentrant_lock("order");
        let mut redis = server.connection();
        let guard = held_by_us.then(|| lock.lock().unwrap());
        if !held_by_us {
            hold_as_redisson(&mut redis, "order", LONG_LEASE);
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiters: Vec<_> = (0..10)
            .map(|at| {
                let (lock, order) = (lock.clone(), Arc::clone(&order));
                // The threads have different leases. Some of them get the hold from another thread,
                // and others must send a request.
                let lock = if at % 4 == 3 { lock.with_lease(LONG_LEASE) } else { lock };
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

/// Takes the lock `rounds` times in a thread for each of these handles. Returns the largest number
/// of threads that were inside at the same time.
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
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("passed");
    let scripts = || Commands::so_far(&server).scripts();
    // This must hold in at least one round. On a busy machine a turn may end before all threads
    // have had the lock.
    wait_until("six have it in a turn", TIMEOUT, || {
        let guard = lock.lock().unwrap();
        let waiters: Vec<_> = (0..6)
            .map(|_| {
                let lock = lock.clone();
                let waiter = spawn(move || drop(lock.lock().unwrap()));
                waiter.wait_queued();
                waiter
            })
            .collect();
        let before = scripts();
        guard.unlock().unwrap();
        waiters.into_iter().for_each(Running::join);
        wait_free(&server, "passed", TIMEOUT);
        // The turn of the process is over, so there are three scripts: a release, an acquire by the
        // first thread, and a release by the last thread.
        scripts() - before == 3
    });
    assert_eq!(contend(&vec![lock; 6], 300), 1);
    wait_free(&server, "passed", TIMEOUT);
}

#[test]
fn a_hold_on_other_terms_is_not_passed() {
    let server = server();
    let lock = client(&server).reentrant_lock("terms");
    let rounds = 100;
    // Each handle has a different lease: one watched, and two fixed.
    let locks = [lock.clone(), lock.with_lease(LONG_LEASE), lock.with_lease(LONG_LEASE / 2)];
    let mut monitor = server.connection();
    let before = Commands::so_far(&server).of("hset");
    assert_eq!(contend(&locks, rounds), 1);
    let granted = Commands::so_far(&server).of("hset") - before;
    // At the end some threads run alone and take the lock again, perhaps with a new grant.
    assert_eq!(granted, 3 * u64::from(rounds), "each grant is the server's");
    wait_free(&server, "terms", TIMEOUT);
    assert_eq!(holder(&mut monitor, "terms"), None);
}

/// Each hold is so long that another thread of its process waits again when the hold ends. So a
/// turn of a process ends because of its length, even though another thread waits. The number of
/// grants in a turn is not checked, because it depends on which threads are awake.
#[test]
fn a_process_that_keeps_acquiring_does_not_starve_another() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let stop = Arc::new(AtomicBool::new(false));
    // The process of the last holder, and the number of times that this process changed. The holder
    // writes both.
    let (last, changes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let threads: Vec<_> = (0..8)
        .map(|at| {
            let process = at % 2;
            let lock = clients[process].reentrant_lock("shared");
            let (stop, last, changes) =
                (Arc::clone(&stop), Arc::clone(&last), Arc::clone(&changes));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let _guard = lock.lock().unwrap();
                    thread::sleep(Duration::from_micros(200));
                    if last.swap(process, Ordering::SeqCst) != process {
                        changes.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    wait_until("it went to and fro", TIMEOUT, || changes.load(Ordering::SeqCst) >= 50);
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
}

#[test]
fn a_process_that_only_tries_goes_behind_one_that_waits() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let lock = clients[0].reentrant_lock("tried");
    let mut left = 0;
    for _ in 0..20 {
        let guard = lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("nobody keeps it");
        let theirs = clients[1].reentrant_lock("tried");
        let waits = spawn(move || theirs.lock().unwrap().unlock().unwrap());
        wait_in_line(&server, "tried", 1);
        waits.wait_asleep();
        // This is longer than a turn.
        thread::sleep(TIME_UNIT / 5);
        // The next request directly follows the release, so no other request comes between.
        drop(guard);
        left += usize::from(lock.try_lock().unwrap().into_option().is_none());
        waits.join();
    }
    assert!(left > 10, "{left} of 20 times");
}

#[test]
fn a_lone_client_is_never_refused_a_free_lock() {
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("alone");
    for _ in 0..5 {
        let guard = lock.try_lock().unwrap().into_option().expect("it is free");
        // This is longer than a turn.
        thread::sleep(TIME_UNIT / 5);
        drop(guard);
    }
}

/// After a long hold, a process leaves a free lock to other clients for a moment. Here there are no
/// other clients.
#[test]
fn a_lone_client_has_the_lock_back_by_its_first_request_after_a_long_hold() {
    let server = server();
    let client = Client::builder(&server.url()).client_tracking(false).connect().unwrap();
    let lock = client.reentrant_lock("long alone");
    lock.lock().unwrap().unlock().unwrap();
    for held in [TIME_UNIT / 5, TIME_UNIT * 3 / 2] {
        let guard = lock.lock().unwrap();
        // This time is longer than the time for which a process may pass the lock among its
        // threads.
        thread::sleep(held);
        let before = Commands::so_far(&server).scripts();
        guard.unlock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
        let scripts = Commands::so_far(&server).scripts() - before;
        assert_eq!(scripts, 3, "held for {held:?}: released, taken, released");
    }
}

#[test]
fn a_drop_posts_its_release_and_does_not_wait() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG_LEASE)
        .response_timeout(TIMEOUT)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("posted");
    lock.lock().unwrap().unlock().unwrap();
    // No later call waits for the release, so the drop of the guard alone must make it arrive.
    drop(lock.lock().unwrap());
    wait_free(&server, "posted", TIMEOUT);

    let guard = lock.lock().unwrap();
    proxy.on_request(channel("posted"), Action::HoldReply);
    let begun = Instant::now();
    drop(guard);
    let took = begun.elapsed();
    assert!(took < TIMEOUT / 2, "{took:?}");
    proxy.wait_fired(1, TIMEOUT);
    wait_free(&server, "posted", TIMEOUT);
    proxy.release();
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_drop_in_the_middle_of_others_commands_is_written_too() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG_LEASE)
        .connections(1)
        .connect()
        .unwrap();
    let guards: Vec<_> =
        (0..5).map(|at| client.reentrant_lock(&format!("drop:{at}")).lock().unwrap()).collect();
    proxy.set_delay(TIME_UNIT);
    // A thread keeps the only connection busy for two units.
    let lock = client.reentrant_lock("other");
    let busy = spawn(move || lock.is_locked().unwrap());
    busy.wait_asleep();
    drop(guards);
    busy.join();
    proxy.set_delay(Duration::ZERO);
    for at in 0..5 {
        wait_free(&server, &format!("drop:{at}"), TIMEOUT);
    }
}

#[test]
fn a_longer_lease_extends_a_hold_and_a_shorter_one_does_not_shorten_it() {
    let server = server();
    let lock = client(&server).reentrant_lock("longer");
    let mut redis = server.connection();
    let outer = lock.with_lease(LONG_LEASE / 2).lock().unwrap();
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap();
    assert!(pttl(&mut redis, "longer") <= millis(LONG_LEASE / 2));

    let longer = lock.with_lease(LONG_LEASE * 3).lock().unwrap();
    assert!(pttl(&mut redis, "longer") > millis(LONG_LEASE * 2));
    assert!(outer.remaining() > LONG_LEASE * 2 && longer.remaining() > LONG_LEASE * 2);
    let before = Commands::so_far(&server).scripts();
    let shorter = lock.with_lease(LONG_LEASE / 2).lock().unwrap();
    assert_eq!(Commands::so_far(&server).scripts(), before);
    assert!(pttl(&mut redis, "longer") > millis(LONG_LEASE * 2));
    assert_eq!(lock.hold_count(), 3);
    drop((longer, shorter));
    assert!(outer.remaining() > LONG_LEASE * 2, "an inner level's end shortens nothing");
    outer.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());

    // An extension never shortens the server's lease, even one that this client does not know.
    let outer = lock.with_lease(LONG_LEASE / 4).lock().unwrap();
    let () = redis.pexpire("longer", millis(LONG_LEASE * 3)).unwrap();
    let longer = lock.with_lease(LONG_LEASE).lock().unwrap();
    assert!(pttl(&mut redis, "longer") > millis(LONG_LEASE * 2));
    drop((outer, longer));
}

#[test]
fn force_unlock_takes_the_lock_from_anybody_and_lets_the_next_in() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let lock = one.reentrant_lock("forced");
    assert!(!lock.force_unlock().unwrap());
    hold_as_redisson(&mut server.connection(), "forced", LONG_LEASE);
    assert!(lock.force_unlock().unwrap());
    assert!(!lock.is_locked().unwrap());

    // A thread of this client has the lock. A second thread of this client and a thread of another
    // client wait.
    woken_by_message(|| {
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
        wait_until("on_lost is called", TIMEOUT, || !reason.lock().unwrap().is_empty());
        assert_eq!(*reason.lock().unwrap(), [LostReason::ForceUnlocked]);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    });
}

#[test]
fn force_unlock_reaches_a_thread_to_which_the_hold_was_passed_meanwhile() {
    let server = server();
    let proxy = Arc::new(Proxy::before(&server));
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG_LEASE)
        .response_timeout(TIMEOUT)
        .connections(1)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("passed on");
    lock.lock().unwrap().unlock().unwrap();
    assert!(!lock.force_unlock().unwrap());
    let force = redis::Script::new(concat!(
        include_str!("../../../lua/prelude.lua"),
        include_str!("../../../lua/hand_off.lua"),
        include_str!("../../../lua/lock/holder.lua"),
        include_str!("../../../lua/lock/owner.lua"),
        include_str!("../../../lua/lock/force_unlock.lua")
    ));
    // The hold is passed inside the process only soon after a grant, so this may take a few rounds.
    wait_until("it is passed on meanwhile", TIMEOUT, || {
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
                // The server has deleted the lock, but no thread here knows that.
                let _ = guard.unlock();
            })
        };
        first.wait_asleep();
        let granted = Arc::new(AtomicBool::new(false));
        let second = {
            let (lock, forced) = (lock.clone(), Arc::clone(&forced));
            let granted = Arc::clone(&granted);
            spawn(move || {
                let guard = lock.lock().unwrap();
                granted.store(true, Ordering::SeqCst);
                wait_until("it was forced", TIMEOUT, || forced.load(Ordering::SeqCst));
                guard.is_held()
            })
        };
        second.wait_asleep();
        proxy.on_request(force.get_hash(), Action::HoldReply);
        guard.unlock().unwrap();
        go.wait();
        let forces = lock.clone();
        let forces = spawn(move || forces.force_unlock().unwrap());
        proxy.wait_fired(before + 1, TIMEOUT);
        // The network holds back the reply to the forced unlock. Meanwhile the lock may be passed
        // to the thread that sets `granted`.
        let begun = Instant::now();
        while begun.elapsed() < TIME_UNIT / 2 && !granted.load(Ordering::SeqCst) {
            thread::sleep(TIME_UNIT / 100);
        }
        let passed = granted.load(Ordering::SeqCst);
        proxy.release();
        assert!(forces.join());
        forced.store(true, Ordering::SeqCst);
        first.join();
        assert!(!(second.join() && passed), "it says held after force_unlock has returned");
        passed
    });
}
