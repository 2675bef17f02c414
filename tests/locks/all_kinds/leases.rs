//! Leases, and losses.

use super::*;

over_all_kinds! {
    a_lease_ends_and_is_told
    a_watched_hold_outlives_its_lease
    a_longer_lease_extends_a_hold_and_a_shorter_one_does_not_shorten_it
    a_lock_that_the_server_has_lost_is_told
    other_threads_may_ask_a_guard
    a_guard_never_says_held_when_the_next_of_its_process_has_it
}

fn a_lease_ends_and_is_told(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let begun = Instant::now();
    let guard = kind.leased(&client, "leased", LEASE).lock().unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&calls);
    guard.on_lost(move |_| {
        told.fetch_add(1, Ordering::SeqCst);
    });
    let theirs =
        kind.make(&other, "leased").try_lock_for(TIMEOUT).unwrap().into_option().expect("it ends");
    let took = begun.elapsed();
    assert!(took + TIME_UNIT / 5 >= LEASE * 9 / 10, "{took:?}");
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    wait_until("it is told", TIMEOUT, || calls.load(Ordering::SeqCst) == 1);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(theirs.is_held());
    assert!(holder(&mut server.connection(), "leased").is_some());
    theirs.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_watched_hold_outlives_its_lease(kind: Kind) {
    let server = server();
    let client = watched(&server, SHORT_LEASE);
    let lock = kind.make(&client, "watched");
    let guard = lock.lock().unwrap();
    // A fixed time must pass here, because no event shows the end of the wait.
    std::thread::sleep(SHORT_LEASE * 3 / 2);
    assert!(guard.is_held() && lock.is_locked().unwrap());
    let left = pttl(&mut server.connection(), "watched");
    assert!(left > 0 && left <= i64::try_from(SHORT_LEASE.as_millis()).unwrap(), "{left}");
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_longer_lease_extends_a_hold_and_a_shorter_one_does_not_shorten_it(kind: Kind) {
    let server = server();
    let client = client(&server);
    let outer = kind.leased(&client, "longer", LONG_LEASE).lock().unwrap();
    let shorter = kind.leased(&client, "longer", LEASE).lock().unwrap();
    assert!(outer.remaining() > LONG_LEASE / 2);
    let longer = kind.leased(&client, "longer", LONG_LEASE * 3).lock().unwrap();
    assert!(outer.remaining() > LONG_LEASE * 2);
    let left = kind.make(&client, "longer").remaining_lease().unwrap().unwrap();
    assert!(left > LONG_LEASE * 2, "{left:?}");
    drop((longer, shorter));
    outer.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_lock_that_the_server_has_lost_is_told(kind: Kind) {
    let server = server();
    let client = watched(&server, LEASE);
    for way in ["DEL", "FLUSHALL", "restart"] {
        let guard = kind.make(&client, "gone").lock().unwrap();
        match way {
            "DEL" => server.connection().del("gone").unwrap(),
            "FLUSHALL" => redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap(),
            _ => server.restart_empty(),
        }
        wait_until("a renewal finds out", TIMEOUT, || !guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost, "{way}");
        kind.make(&client, "gone").lock().unwrap().unlock().unwrap();
        leaves_nothing(&server);
    }
}

fn other_threads_may_ask_a_guard(kind: Kind) {
    let server = server();
    let client = client(&server);
    let lock = kind.make(&client, "asked");
    let guard = lock.lock().unwrap();
    let calls = AtomicU64::new(0);
    let told = Arc::new(AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert!(guard.is_held() && guard.remaining() > LONG_LEASE / 2);
                assert_eq!((guard.state(), guard.name()), (HoldState::Held, "asked"));
                guard.check(TIME_UNIT).unwrap();
                // These questions do not make the thread a holder.
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
    wait_until("all are told", TIMEOUT, || told.load(Ordering::SeqCst) == 4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(guard.check(TIME_UNIT).unwrap_err().kind(), ErrorKind::LeaseLost);
        });
    });
}

/// The hold is passed to another thread of the process, so only the guard can notice that its own
/// thread no longer has it.
fn a_guard_never_says_held_when_the_next_of_its_process_has_it(kind: Kind) {
    let server = server();
    let client = client(&server);
    let lock = kind.make(&client, "passed");
    // How often a thread took the lock.
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
        std::thread::sleep(TIME_UNIT * 20);
        over.store(true, Ordering::SeqCst);
    });
}
