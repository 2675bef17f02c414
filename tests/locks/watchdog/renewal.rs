//! Which holds are renewed, and when.

use super::*;

#[test]
fn holds_that_are_due_together_are_renewed_together() {
    let server = server();
    let lease = LEASE;
    let client = watched(&server, lease);
    let count = 400;
    let begun = Instant::now();
    let guards: Vec<_> =
        (0..count).map(|at| client.reentrant_lock(&format!("many:{at}")).lock().unwrap()).collect();
    let taking = begun.elapsed();
    let before = Commands::so_far(&server);
    // There are about three renewals of each hold, because a hold is renewed only at each third of
    // its lease.
    let (mut renewals, mut calls) = (0, 0);
    wait_until("they are renewed", TIMEOUT, || {
        let now = Commands::so_far(&server);
        renewals = now.of("pexpire") - before.of("pexpire");
        calls = now.scripts() - before.scripts();
        renewals >= count * 3
    });
    let took = begun.elapsed();
    assert!(guards.iter().all(LockGuard::is_held));
    assert!(took >= lease * 2 / 3, "{renewals} renewals in {took:?}");
    // The longer the test took to take the holds, the more groups of renewals there are.
    let groups = 1 + u64::try_from(taking.as_millis() * 64 / lease.as_millis()).unwrap();
    let bound = renewals / 20 + 10 * groups;
    assert!(calls < bound.min(renewals / 4), "{calls} calls for {renewals} renewals");
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
}

#[test]
fn a_short_hold_is_never_renewed() {
    let server = server();
    let client = watched(&server, LONG_LEASE);
    let lock = client.reentrant_lock("short");
    // After the first round the connections have checked their rights. After the second round the
    // server knows the scripts.
    for _ in 0..2 {
        lock.lock().unwrap().unlock().unwrap();
    }
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
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LEASE).connect().unwrap();
    // The kept hold has the same lease, so each of its renewals shows that the others would have
    // been renewed, too.
    let [kept, dropped, unlocked] =
        ["kept", "dropped", "unlocked"].map(|name| client.reentrant_lock(name).lock().unwrap());
    ["dropped", "unlocked"].iter().for_each(|name| wait_renewed(&server, name));
    drop(dropped);
    unlocked.unlock().unwrap();
    wait_free(&server, "dropped", TIMEOUT);
    // A renewal that was in flight at the release comes before the second of these renewals.
    (0..2).for_each(|_| wait_renewed(&server, "kept"));
    let late = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&late);
    // This rule only counts the requests.
    proxy.on(Direction::Request, 1, Action::LoseRequest, move |bytes| {
        let is_late = ["dropped", "unlocked"].iter().any(|name| contains(bytes, name));
        counts.fetch_add(u64::from(is_late), Ordering::SeqCst);
        false
    });
    (0..2).for_each(|_| wait_renewed(&server, "kept"));
    assert_eq!(late.load(Ordering::SeqCst), 0);
    kept.unlock().unwrap();
}

#[test]
fn a_hold_whose_thread_has_ended_is_not_renewed() {
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
    // A thread of the same client and a thread of another client wait for the lock.
    let waiters: Vec<_> = [lock, other.reentrant_lock("orphan")]
        .into_iter()
        .map(|lock| spawn(move || lock.lock().unwrap().unlock().unwrap()))
        .collect();
    waiters.into_iter().for_each(Running::join);
    // The waiters are granted the lock at the end of the lease, or one renewal later if a renewal
    // was in flight.
    let took = begun.elapsed();
    assert!(took > LEASE / 2, "{took:?}");
    assert_eq!(losses.wait(), LostReason::LeaseExpired);
}

#[test]
fn a_forgotten_guard_is_renewed_while_its_thread_lives() {
    let server = server();
    let client = watched(&server, LEASE);
    let lock = client.reentrant_lock("forgotten");
    lock.lock().unwrap().forget();
    drop(lock);
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(LEASE * 3 / 2);
    let lock = client.reentrant_lock("forgotten");
    assert!(lock.is_held_by_current_thread());
    assert!(lock.is_locked().unwrap());
    lock.unlock().unwrap();
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn an_owned_guard_is_renewed_after_its_thread_has_ended() {
    let server = server();
    let client = watched(&server, LEASE);
    let lock = client.reentrant_lock("owned");
    for passed in [false, true] {
        // In one case the server grants the lock, and in the other case a thread of this process
        // passes it on. The thread that took the lock ends before the renewal is due.
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
        // A fixed time must pass here, because no event shows the end of the wait.
        thread::sleep(LEASE * 3 / 2);
        assert!(guard.is_held() && losses.0.lock().unwrap().is_empty());
        guard.unlock().unwrap();
        assert!(!lock.is_locked().unwrap());
    }
}

#[test]
fn a_leaked_owned_guard_is_kept_for_max_hold_and_no_longer() {
    let server = server();
    let longest = LEASE * 4 / 3;
    let client =
        Client::builder(&server.url()).watchdog_timeout(LEASE).max_hold(longest).connect().unwrap();
    let lock = client.reentrant_lock("leaked");
    let begun = Instant::now();
    std::mem::forget(lock.lock_owned().unwrap());
    lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("its lease ends").unlock().unwrap();
    let took = begun.elapsed();
    assert!(took > longest - LEASE / 10, "it was renewed at first: {took:?}");
}

#[test]
fn a_hold_is_not_renewed_past_max_hold() {
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
    wait_free(&server, "longest", TIMEOUT);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    // The next hold may again last for the whole `max_hold`.
    client.reentrant_lock("longest").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_watched_level_in_a_fixed_hold_is_renewed_while_it_is_open() {
    let server = server();
    let client = watched(&server, LEASE);
    let lock = client.reentrant_lock("nested");
    let outer = lock.with_lease(LEASE).lock().unwrap();
    let inner = lock.lock().unwrap();
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(LEASE * 3 / 2);
    assert!(outer.is_held() && inner.is_held());
    inner.unlock().unwrap();
    assert!(outer.is_held());
    // A renewal may have been on its way when the inner level ended.
    let (mut left, mut raised) = (outer.remaining(), 0);
    wait_until("its own lease ends", TIMEOUT, || {
        let before = std::mem::replace(&mut left, outer.remaining());
        raised += usize::from(left > before);
        assert!(raised < 2, "it was renewed");
        !outer.is_held()
    });
    assert_eq!(outer.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
}

#[test]
fn a_failed_renewal_is_tried_again_until_the_deadline() {
    let server = server();
    let client = watched(&server, LEASE * 3 / 2);
    let guard = client.reentrant_lock("retried").lock().unwrap();
    let losses = Losses::of(&guard);
    let set = |of: &[&str]| -> String {
        redis::cmd("REPLICAOF").arg(of).query(&mut server.connection()).unwrap()
    };
    for _ in 0..2 {
        // A replica without a master refuses writes, including renewals.
        set(&["127.0.0.1", "1"]);
        wait_until("a renewal has failed", TIMEOUT, || guard.state() == HoldState::Unconfirmed);
        assert!(guard.is_held());
        set(&["NO", "ONE"]);
        wait_until("a renewal has succeeded", TIMEOUT, || guard.state() != HoldState::Unconfirmed);
        assert_eq!(guard.state(), HoldState::Held);
    }
    assert_eq!(losses.so_far(), []);
    guard.unlock().unwrap();
}

#[test]
fn a_failed_renewal_is_tried_again_before_the_next_third_of_the_lease() {
    let server = server();
    let lease = LEASE * 4;
    let client = watched(&server, lease);
    let guard = client.reentrant_lock("soon").lock().unwrap();
    let set = |of: &[&str]| -> String {
        redis::cmd("REPLICAOF").arg(of).query(&mut server.connection()).unwrap()
    };
    set(&["127.0.0.1", "1"]);
    // The second third of the lease has passed, too. At the end of the last third the lease ends.
    wait_until("two thirds are over", TIMEOUT, || guard.remaining() < lease * 8 / 25);
    set(&["NO", "ONE"]);
    wait_until("it is renewed or lost", TIMEOUT, || guard.state() != HoldState::Unconfirmed);
    assert_eq!(guard.state(), HoldState::Held);
    assert!(guard.remaining() > lease / 2);
    guard.unlock().unwrap();
}

#[test]
fn a_server_that_stands_still_for_less_than_a_lease_costs_no_hold() {
    let server = server();
    let lease = LEASE * 5 / 2;
    let client = watched(&server, lease);
    let guards: Vec<_> =
        (0..50).map(|at| client.reentrant_lock(&format!("still:{at}")).lock().unwrap()).collect();
    let losses: Vec<_> = guards.iter().map(Losses::of).collect();
    server.pause();
    wait_until("a renewal has failed", TIMEOUT, || client.snapshot().counts.renewal_failed > 0);
    server.resume();
    wait_until("they are renewed", TIMEOUT, || {
        guards.iter().all(|guard| !guard.is_held() || guard.remaining() > lease * 2 / 3)
    });
    for (guard, losses) in guards.iter().zip(&losses) {
        assert_eq!(guard.state(), HoldState::Held, "{guard:?}");
        assert_eq!(losses.so_far(), []);
    }
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
}
