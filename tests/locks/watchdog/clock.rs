//! If the server's clock is set back, every time to live becomes longer. A test cannot set the
//! clock. The test extends a time to live instead, which has the same effect.

use super::*;

fn in_time(redis: &mut redis::Connection, key: &str, longest: Duration) -> bool {
    let left = pttl(redis, key);
    left > 0 && left <= i64::try_from(longest.as_millis()).unwrap()
}

const SET_BACK: i64 = 3_600_000;

#[test]
fn a_hold_that_a_clock_set_back_made_longer_ends_with_the_lease_again() {
    let server = server();
    let client = watched(&server, LEASE);
    let mut redis = server.connection();
    let locks = [
        ("plain", client.reentrant_lock("plain").lock().unwrap()),
        ("fair", client.fair_lock("fair").lock().unwrap()),
        ("fenced", client.fenced_lock("fenced").lock().unwrap().into()),
        ("written", client.read_write_lock("written").writer().lock().unwrap()),
        ("read", client.read_write_lock("read").reader().lock().unwrap()),
    ];
    let keys: Vec<String> = redis.keys("*rwlock_timeout*").unwrap();
    let names = locks.iter().map(|(name, _)| (*name).to_owned());
    let names: Vec<_> = names.chain(keys).collect();
    assert_eq!(names.len(), 6);
    for name in &names {
        assert!(redis.pexpire::<_, bool>(name, SET_BACK).unwrap());
    }
    for name in &names {
        wait_until("it is cut", TIMEOUT, || in_time(&mut redis, name, LEASE));
    }
    for (name, guard) in locks {
        assert!(guard.is_held(), "{name}");
        guard.unlock().unwrap();
    }
}

#[test]
fn a_permits_longer_lease_is_cut_too_unless_its_id_was_read() {
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
    wait_until("one is cut", TIMEOUT, || far(&mut redis) == 1);
    // The program has read the other permit's id, so any process may have requested the longer
    // lease. The client does not shorten this lease.
    thread::sleep(LEASE);
    assert_eq!(far(&mut redis), 1);
    assert!(semaphore.remaining_lease(&id).unwrap().unwrap() > LEASE * 2);
    assert!(untold.is_held() && told.is_held());
}

#[test]
fn a_longer_lease_that_a_thread_requested_is_not_cut() {
    const LONGER: Duration = Duration::from_millis(3 * LEASE.as_millis() as u64);
    let server = server();
    let client = watched(&server, LEASE);
    let mut redis = server.connection();
    let lock = client.reentrant_lock("levels");
    let (outer, inner) = (lock.lock().unwrap(), lock.with_lease(LONGER).lock().unwrap());
    let lock = client.read_write_lock("read");
    let (shorter, longer) =
        (lock.reader().lock().unwrap(), lock.reader().with_lease(LONGER).lock().unwrap());
    for name in ["levels", "read"] {
        assert!(pttl(&mut redis, name) > millis(LEASE), "{name}");
        assert!(redis.pexpire::<_, bool>(name, SET_BACK).unwrap());
    }
    let timeouts: Vec<String> = redis.keys("*rwlock_timeout*").unwrap();
    assert!(redis.pexpire::<_, bool>(&timeouts[0], SET_BACK).unwrap());
    // Wait until a renewal shortens each time to live to the remaining longer lease.
    for name in ["levels", "read"] {
        wait_until("it is cut", TIMEOUT, || in_time(&mut redis, name, LONGER));
        assert!(pttl(&mut redis, name) > millis(LEASE), "{name}");
    }
    for guard in [outer, inner, shorter, longer] {
        assert!(guard.is_held());
    }
}

/// A request without a reply may still reach the server over an abandoned connection.
#[test]
fn a_longer_lease_counts_only_as_far_as_an_unanswered_cut_would_leave_it() {
    let server = server();
    let proxy = Proxy::before(&server);
    let mut redis = server.connection();
    // The client sends each request once more.
    for (name, copies) in [("one copy", 1), ("both copies", 2)] {
        let client = Client::builder(&proxy.url()).watchdog_timeout(LEASE).connect().unwrap();
        let lock = client.reentrant_lock(name);
        let outer = lock.lock().unwrap();
        let cut = format!("\r\n-{}\r\n", LEASE.as_millis()).into_bytes();
        let is_cut = move |bytes: &[u8]| bytes.windows(cut.len()).any(|part| part == cut);
        proxy.on(Direction::Request, copies, Action::LoseRequest, is_cut);
        assert!(redis.pexpire::<_, bool>(name, SET_BACK).unwrap());
        wait_until("it is cut", TIMEOUT, || in_time(&mut redis, name, LEASE));
        // The server has also replied to the command that shortens the lease.
        let certain = || Instant::now() + outer.remaining();
        let then = certain();
        wait_until("it is renewed", TIMEOUT, || certain() > then + TIME_UNIT);

        let inner = lock.with_watchdog(LONG_LEASE).lock().unwrap();
        let then = certain();
        wait_until("it is renewed again", TIMEOUT, || certain() > then + TIME_UNIT);
        // The test runs the late command that shortens the lease.
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

/// A reader shortens only its own timeout. The lock's time to live never becomes shorter than
/// another reader's timeout.
#[test]
fn a_reader_takes_nothing_from_another_ones_lease() {
    let server = server();
    let (one, other) = (watched(&server, LEASE), client(&server));
    let mut redis = server.connection();
    let guard = one.read_write_lock("readers").reader().lock().unwrap();
    let own: Vec<String> = redis.keys("*rwlock_timeout*").unwrap();
    let longer = other.read_write_lock("readers").reader().with_lease(LONG_LEASE).lock().unwrap();
    for key in [&own[0], "readers"] {
        assert!(redis.pexpire::<_, bool>(key, SET_BACK).unwrap());
    }
    wait_until("it is cut", TIMEOUT, || in_time(&mut redis, &own[0], LEASE));
    wait_until("it is cut", TIMEOUT, || in_time(&mut redis, "readers", LONG_LEASE));
    thread::sleep(LEASE);
    assert!(pttl(&mut redis, "readers") > millis(LONG_LEASE - LEASE * 3));
    assert!(guard.is_held() && longer.is_held());
}
