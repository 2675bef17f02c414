//! The leases of holds that were granted by a message.

use super::*;

/// Like [`super::handed`], but for a lock of this name, with a client of its own. Waits for `work`.
fn handed<T: Send + 'static>(
    server: &Server,
    proxy: &Proxy,
    name: &str,
    lease: Option<Duration>,
    work: impl FnOnce(LockGuard, Instant) -> T + Send + 'static,
) -> T {
    let lock = behind(server, proxy).reentrant_lock(name);
    let lock = lease.map_or_else(|| lock.clone(), |lease| lock.with_lease(lease));
    super::handed(server, proxy, &lock, work).join()
}

/// A grant by message lasts for two seconds. The client raises the hold after a moment, even if
/// requests or replies are lost.
#[test]
fn a_grant_by_message_is_provisional_and_raised_even_if_requests_and_replies_are_lost() {
    let server = server();
    // If the connection breaks, the client sends the request again.
    for (at, action) in [Action::LoseRequest, Action::LoseReply].into_iter().enumerate() {
        let proxy = Proxy::before(&server);
        let name = ["raised", "raised again"][at];
        on_script(&proxy, RENEW, name, 2, action);
        let mut redis = server.connection();
        handed(&server, &proxy, name, None, move |guard, _| {
            let left = pttl(&mut redis, name);
            // The first request may have reached the server although the client got no reply.
            assert!(at == 1 || left <= millis(PROVISIONAL), "{left}");
            assert!(at == 1 || guard.remaining() <= PROVISIONAL);
            wait_until("it is raised", TIMEOUT, || guard.remaining() > LONG_LEASE / 2);
            assert!(pttl(&mut redis, name) > millis(LONG_LEASE / 2));
            guard.unlock().unwrap();
        });
        assert_eq!(proxy.fired(), 2);
        wait_left(&server, name);
    }
}

#[test]
fn a_fixed_lease_is_raised_once_and_counts_from_the_grant() {
    let server = server();
    // On a busy machine the hold may end before the raise.
    wait_until("it is raised in time", TIMEOUT, || is_raised_once(&server));
}

/// Whether the hold was raised in time.
fn is_raised_once(server: &Server) -> bool {
    let proxy = Proxy::before(server);
    let lease = Duration::from_secs(4);
    // Two attempts of two requests each are lost, so the raise comes late.
    let renewals = count_script(&proxy, RENEW, "fixed");
    on_script(&proxy, RENEW, "fixed", 4, Action::LoseRequest);
    let mut redis = server.connection();
    let in_time = handed(server, &proxy, "fixed", Some(lease), move |guard, entered| {
        let (tell, lost) = mpsc::channel();
        guard.on_lost(move |reason| tell.send((reason, Instant::now())).unwrap());
        wait_until("it is raised", TIMEOUT, || {
            !guard.is_held() || pttl(&mut redis, "fixed") > millis(PROVISIONAL)
        });
        if !guard.is_held() {
            return false;
        }
        let raised = renewals.load(Ordering::SeqCst);
        // The clock is read before the remaining times, so the computed ends are not later than the
        // real ends.
        let now = entered.elapsed();
        let left = Duration::from_millis(pttl(&mut redis, "fixed").unsigned_abs());
        // On a busy machine, time passes between the read of the clock and the request.
        for left in [left, guard.remaining()] {
            assert!(now + left < lease + TIME_UNIT * 7, "it ends {:?} after the grant", now + left);
        }
        let (reason, at) = lost.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(reason, LostReason::LeaseExpired);
        let held = at - entered;
        assert!(held + TIME_UNIT * 7 > lease, "held for {held:?}");
        assert_eq!(renewals.load(Ordering::SeqCst), raised, "it was raised again");
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        true
    });
    wait_left(server, "fixed");
    in_time
}

/// If the client did not shorten the lease, the server would keep the lock for two seconds.
#[test]
fn a_fixed_lease_shorter_than_the_provisional_one_frees_the_lock_at_its_end() {
    let server = server();
    for way in ["asleep", "late"] {
        once_within(PROVISIONAL, || ends_short(&server, way));
    }
}

/// Returns how long the lock stayed taken.
fn ends_short(server: &Server, way: &'static str) -> Duration {
    let proxy = Proxy::before(server);
    let (say, kept) = mpsc::channel();
    handed(server, &proxy, "short", Some(TIME_UNIT * 3), move |guard, entered| {
        say.send(entered).unwrap();
        let (tell, lost) = mpsc::channel();
        guard.on_lost(move |reason| tell.send(reason).unwrap());
        assert!(guard.remaining() <= TIME_UNIT * 3);
        if way == "asleep" {
            assert_eq!(lost.recv_timeout(TIMEOUT), Ok(LostReason::LeaseExpired));
        } else {
            // The thread calls `unlock` as soon as the guard reports the loss.
            while guard.is_held() {
                std::hint::spin_loop();
            }
        }
        assert!(entered.elapsed() + TIME_UNIT > TIME_UNIT * 3);
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    });
    let entered: Instant = kept.recv().unwrap();
    wait_left(server, "short");
    entered.elapsed()
}

/// After a call of `check`, a thread has the full remaining lease, even if the raise was in flight.
#[test]
fn a_check_right_after_a_hand_over_raises_the_hold() {
    let server = server();
    let proxy = Proxy::before(&server);
    handed(&server, &proxy, "checked", None, move |guard, _| {
        guard.check(LONG_LEASE / 6).unwrap();
        assert!(guard.remaining() > LONG_LEASE / 2);
        guard.check(LONG_LEASE / 6).unwrap();
        guard.unlock().unwrap();
    });
    // If the machine stood still until the client sent the raise again, the test runs another
    // round.
    wait_until("its raise is on its way", TIMEOUT, || {
        let held_back = Arc::new(Proxy::before(&server));
        on_script(&held_back, RENEW, "checked late", 1, Action::HoldReply);
        let network = Arc::clone(&held_back);
        let (tell, told) = mpsc::channel();
        handed(&server, &held_back, "checked late", None, move |guard, _| {
            network.wait_fired(1, TIMEOUT);
            tell.send(guard.remaining() <= PROVISIONAL).unwrap();
            guard.check(LONG_LEASE / 6).unwrap();
            assert_eq!(guard.state(), HoldState::Held);
            network.release();
            guard.unlock().unwrap();
        });
        told.recv().unwrap()
    });
    let fixed = Proxy::before(&server);
    handed(&server, &fixed, "checked fixed", Some(LONG_LEASE), move |guard, _| {
        guard.check(LONG_LEASE / 6).unwrap();
        let error = guard.check(LONG_LEASE * 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::EndsTooSoon, "{error}");
        guard.unlock().unwrap();
    });
    for name in ["checked", "checked late", "checked fixed"] {
        wait_left(&server, name);
    }
}

/// If the server's clock is set, a grant may have an impossible time. Such a time never makes a
/// hold longer than the lease of a grant by message.
#[test]
fn a_grant_dated_in_the_future_counts_from_its_receipt() {
    let server = server();
    let mut redis = server.connection();
    let guard = client(&server).reentrant_lock("clock").lock().unwrap();
    let lock = warm(&server).reentrant_lock("clock");
    let waiter = spawn(move || {
        let guard = lock.lock().unwrap();
        let remaining = guard.remaining();
        // The server never made this grant.
        let _ = guard.unlock();
        remaining
    });
    wait_in_line(&server, "clock", 1);
    let place = queue(&mut redis, "clock").remove(0);
    let (own, number) = (own_channel(&place), place.split_once(':').unwrap().1);
    let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let later = (now + 3_600) * 1_000;
    let () = redis.publish(own, format!("grant {number} {later} 2000 lock,0,0,0 0 clock")).unwrap();
    assert!(waiter.join() <= PROVISIONAL);
    drop(guard);
    wait_free(&server, "clock", TIMEOUT);
}
