//! Locks with their own watched lease.

use super::*;

#[test]
fn a_watched_lease_of_its_own_is_renewed_and_never_longer() {
    let server = server();
    let client = client(&server);
    let semaphore = client.expirable_semaphore("own:permits");
    assert!(semaphore.try_set_permits(1).unwrap());
    let plain = client.reentrant_lock("own:plain").with_watchdog(LEASE).lock().unwrap();
    let fair = client.fair_lock("own:fair").with_watchdog(LEASE).lock().unwrap();
    let read = client.read_write_lock("own:read").reader().with_watchdog(LEASE).lock().unwrap();
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
        thread::sleep(TIME_UNIT);
    }
    let error = plain.check(LONG_LEASE).unwrap_err();
    assert!(error.to_string().contains("take a longer watched lease"), "{error}");
    for guard in [plain, fair, read] {
        guard.unlock().unwrap();
    }
    permit.release().unwrap();
}

#[test]
fn of_several_watched_leases_the_longest_is_renewed() {
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("several");
    let mut redis = server.connection();
    let outer = lock.with_watchdog(LEASE).lock().unwrap();
    let inner = lock.lock().unwrap();
    wait_until("it has the longer one", TIMEOUT, || pttl(&mut redis, "several") > millis(LEASE));
    inner.unlock().unwrap();
    outer.unlock().unwrap();
    // The next hold has its own lease. A shorter lease in it changes nothing.
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
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let short = client.reentrant_lock("short").with_watchdog(LEASE).lock().unwrap();
    let losses = Losses::of(&short);
    proxy.on(Direction::Request, 1, Action::HoldReply, |bytes| {
        contains(bytes, "short") && contains(bytes, "EVALSHA")
    });
    // The state may be `Unconfirmed` for too short a time for this test to see it.
    wait_until("a renewal fails, or it is lost", TIMEOUT, || {
        client.snapshot().counts.renewal_failed > 0 || !short.is_held()
    });
    wait_until("it is renewed over another one", TIMEOUT, || {
        !short.is_held() || short.state() == HoldState::Held
    });
    assert_eq!(losses.so_far(), []);
    proxy.clear_rules();
    proxy.release();
    short.unlock().unwrap();
}

#[test]
fn a_server_that_stands_still_costs_neither_the_short_watched_lease_nor_the_long_one() {
    let server = server();
    let leases = [LEASE * 5, LEASE * 5 / 2];
    let client = watched(&server, leases[0]);
    let long = client.reentrant_lock("long").lock().unwrap();
    let short = client.reentrant_lock("short").with_watchdog(leases[1]).lock().unwrap();
    server.pause();
    // After this, half of the short lease is left.
    wait_until("a renewal has failed", TIMEOUT, || client.snapshot().counts.renewal_failed > 0);
    server.resume();
    wait_until("both are renewed", TIMEOUT, || {
        [&long, &short]
            .iter()
            .zip(&leases)
            .all(|(guard, lease)| !guard.is_held() || guard.remaining() > *lease * 3 / 4)
    });
    for guard in [long, short] {
        assert_eq!(guard.state(), HoldState::Held, "{guard:?}");
        guard.unlock().unwrap();
    }
}
