//! No guard says "held" after the end of its lease.

use super::*;

#[test]
fn a_guard_never_says_held_when_the_server_says_gone() {
    let server = server();
    let client = watched(&server, LONG_LEASE);
    let mut redis = server.connection();
    for (round, millis) in [3, 5, 10, 20, 50, 120, 200].into_iter().cycle().enumerate().take(28) {
        let lock = client.reentrant_lock("never").with_lease(Duration::from_millis(millis));
        let Ok(guard) = lock.lock() else { continue };
        loop {
            let gone: bool = !redis.exists::<_, bool>("never").unwrap();
            // Call the guard only after the server's reply.
            let held = guard.is_held();
            assert!(!(gone && held), "round {round}, a lease of {millis} ms: {guard:?}");
            if gone {
                break;
            }
        }
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    }
}

/// The deadline may pass between two checks of one call. The thread calls all the time, so that a
/// call is running at the deadline.
#[test]
fn a_call_while_the_deadline_passes_says_held_or_lost_and_nothing_between() {
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("passing").with_lease(TIME_UNIT / 20);
    for _ in 0..100 {
        let guard = match lock.lock() {
            // On a busy machine the lease may be over before the thread gets it.
            Err(error) if error.is_transient() => continue,
            guard => guard.unwrap(),
        };
        // The call asks for less than the lease, so an error may say only "held" or "lost".
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
    let server = server();
    let lock = watched(&server, LONG_LEASE).reentrant_lock("at once");
    let lock = lock.with_lease(TIME_UNIT / 5);
    for round in 0..20 {
        let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
        if lock.hold_count() < 2 {
            // On a busy machine the lease was over, and the second guard may have a separate hold.
            continue;
        }
        // The watchdog may or may not have noticed the end yet.
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
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LONG_LEASE)
        .response_timeout(TIMEOUT)
        .connect()
        .unwrap();
    let lock = client.reentrant_lock("late");
    lock.lock().unwrap().unlock().unwrap();
    let lease = TIME_UNIT * 10;
    let lock = lock.with_lease(lease);

    // The reply comes after more than half of the lease. On a busy machine it may come even later,
    // which the code below handles.
    wait_until("it comes before its end", TIMEOUT, || {
        proxy.on_request("late", Action::DelayReply(lease * 6 / 10));
        let begun = Instant::now();
        let guard = lock.lock().unwrap();
        let in_time = begun.elapsed() < lease;
        assert!(!in_time || guard.remaining() <= lease * 4 / 10, "{guard:?}");
        drop(guard);
        in_time
    });

    // The reply comes after the end of the lease, so it is not a grant. The thread takes the lock
    // again, with a new lease.
    let mut redis = server.connection();
    proxy.on_request("late", Action::DelayReply(lease * 12 / 10));
    let begun = Instant::now();
    let guard = lock.lock().unwrap();
    assert!(begun.elapsed() >= lease);
    assert!(guard.is_held());
    let left = pttl(&mut redis, "late");
    assert!(left > 0, "held by nobody");
    assert!(guard.remaining() <= Duration::from_millis(left.unsigned_abs()) + TIME_UNIT / 10);
    guard.unlock().unwrap();
    assert_eq!(holder(&mut redis, "late"), None);
}

#[test]
fn a_renewals_late_reply_does_not_make_the_deadline_later() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = TIME_UNIT * 45;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connect().unwrap();
    let guard = client.reentrant_lock("slow").lock().unwrap();
    let mut redis = server.connection();
    // The time is longer than two renewals.
    let until = Instant::now() + lease;
    // Every reply is delayed by less time than a renewal waits.
    proxy.set_delay(TIME_UNIT * 3 / 2);
    while Instant::now() < until {
        let looked = Instant::now();
        let remaining = guard.remaining();
        // The server's remaining time is read later than the guard's, so the time in between is
        // added.
        let left = pttl(&mut redis, "slow");
        assert!(left >= 0, "gone");
        let left = Duration::from_millis(left.unsigned_abs()) + looked.elapsed();
        assert!(remaining <= left + TIME_UNIT / 100, "{remaining:?} on {left:?}");
        thread::sleep(TIME_UNIT / 10);
    }
    assert!(guard.is_held());
    proxy.set_delay(Duration::ZERO);
    guard.unlock().unwrap();
}

/// The client waits at least 100 ms for each connection that threads share. The sum is longer than
/// the lease.
#[test]
fn lanes_that_do_not_answer_delay_no_renewal() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LEASE).connections(32).connect();
    let client = client.unwrap();
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let losses = Losses::of(&kept);
    // The renewals go over a separate connection.
    let guards: Vec<_> =
        (0..128).map(|at| client.reentrant_lock(&format!("dead:{at}")).lock().unwrap()).collect();
    proxy.on(Direction::Request, guards.len(), Action::HoldReply, |bytes| contains(bytes, "dead:"));
    drop(guards);
    let until = Instant::now() + LEASE * 2;
    while Instant::now() < until {
        assert!(kept.is_held(), "{:?}", kept.check(Duration::ZERO));
        thread::sleep(TIME_UNIT / 20);
    }
    assert_eq!(losses.so_far(), []);
    proxy.clear_rules();
    proxy.release();
    kept.unlock().unwrap();
}

/// The holds are due at different times, and a separate round trip for each hold would take too
/// long.
#[test]
fn holds_of_many_phases_are_all_kept_at_a_distance() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lease = LEASE;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connections(16).connect();
    let client = client.unwrap();
    proxy.set_delay(TIME_UNIT / 4);
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
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(lease * 2);
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    proxy.set_delay(Duration::ZERO);
    assert_eq!(held, guards.len());
}
