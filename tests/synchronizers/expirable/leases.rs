//! The leases of permits.

use super::*;

#[test]
fn a_fixed_lease_ends_and_lets_the_waiter_in_without_a_message() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "fixed", 1);
    let permit = semaphore.with_lease(LONG_LEASE).acquire().unwrap();
    assert!(permit.remaining() <= LONG_LEASE && permit.remaining() > LONG_LEASE / 2);
    permit.check(LONG_LEASE / 10).unwrap();
    let error = permit.check(LONG_LEASE * 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EndsTooSoon, "{error}");
    assert!(error.to_string().contains("take a longer lease"), "{error}");
    permit.release().unwrap();
    let taken = Instant::now();
    let permit = semaphore.with_lease(LEASE).acquire().unwrap();
    let lost = on_lost(&permit);
    let waiting = other.expirable_semaphore("fixed");
    let waiter = spawn(move || (waiting.acquire().unwrap(), Instant::now()));
    let (next, entered) = waiter.join();
    let after = entered - taken;
    // The server counts whole milliseconds.
    assert!(after + Duration::from_millis(1) >= LEASE, "{after:?}: before the lease's end");
    // The waiter's next regular request would come after this time.
    assert!(after < Duration::from_secs(4), "{after:?}: it slept past the lease's end");
    assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::LeaseExpired);
    assert!(!permit.is_held() && permit.remaining().is_zero());
    assert_eq!(permit.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::LeaseLost);
    let error = permit.release().unwrap_err();
    assert!(error.kind() == ErrorKind::LeaseLost && error.to_string().contains("fixed"), "{error}");
    assert!(next.is_held());
    assert_eq!(stored(&server, "fixed"), (0, 1), "a late release gave back what is another's");
    for lease in [Duration::ZERO, Duration::from_micros(900), Duration::MAX] {
        let error = semaphore.with_lease(lease).try_acquire().map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
    }
}

#[test]
fn the_watchdog_keeps_a_permit_beyond_its_lease_until_it_is_given_back() {
    let server = server();
    let client = watched(&server, SHORT_LEASE);
    let semaphore = semaphore(&client, "watched", 2);
    let permits = semaphore.acquire_many(2).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < SHORT_LEASE * 3 / 2 {
        assert!(permits.iter().all(|permit| permit.is_held() && !permit.remaining().is_zero()));
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        thread::sleep(TIME_UNIT / 4);
    }
    drop(permits);
    stays(&server, "watched", 2, 0);
    // The client must not renew a permit that was released.
    let before = Commands::so_far(&server).of("zadd");
    thread::sleep(SHORT_LEASE / 2);
    assert_eq!(Commands::so_far(&server).of("zadd"), before);
}

#[test]
fn permits_that_are_due_together_are_renewed_together() {
    let server = server();
    let client = watched(&server, SHORT_LEASE);
    let (one, other) = (semaphore(&client, "one", 60), semaphore(&client, "other", 60));
    let lock = client.reentrant_lock("a lock too");
    let _lock = lock.lock().unwrap();
    let permits = (one.acquire_many(60).unwrap(), other.acquire_many(60).unwrap());
    let before = Commands::so_far(&server);
    let (mut renewed, mut scripts) = (0, 0);
    wait_until("each was renewed three times", TIMEOUT, || {
        let now = Commands::so_far(&server);
        renewed = now.of("zadd") - before.of("zadd");
        scripts = now.scripts() - before.scripts();
        renewed >= 3 * 120
    });
    assert!(permits.0.iter().chain(&permits.1).all(ExpirablePermit::is_held));
    assert!(scripts <= 18, "{scripts} scripts for {renewed} renewals of 120 permits and a lock");
}

#[test]
fn max_hold_bounds_a_renewed_permit() {
    let server = server();
    let client = Client::builder(&server.url()).watchdog_timeout(LEASE).max_hold(LEASE);
    let client = client.connect().unwrap();
    let semaphore = semaphore(&client, "longest", 1);
    let permit = semaphore.acquire().unwrap();
    let lost = on_lost(&permit);
    assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::LeaseExpired);
    let error = permit.release().unwrap_err().to_string();
    assert!(error.contains("max_hold"), "{error}");
    // The guard counts its lease from before the request, so the server's lease ends slightly
    // later.
    wait_until("it is back", TIMEOUT, || semaphore.available_permits().unwrap() == 1);
}

#[test]
fn a_lease_is_asked_for_and_made_longer_by_id() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "leases", 3);
    let id = semaphore.with_lease(LONG_LEASE).acquire().unwrap().into_id();
    let left = semaphore.remaining_lease(&id).unwrap().unwrap();
    assert!(left <= LONG_LEASE && left > LONG_LEASE / 2, "{left:?}");
    semaphore.update_lease_time(&id, LONG_LEASE * 2).unwrap();
    assert!(semaphore.remaining_lease(&id).unwrap().unwrap() > LONG_LEASE);
    semaphore.update_lease_time(&id, LEASE).unwrap();
    assert!(semaphore.remaining_lease(&id).unwrap().is_none_or(|left| left <= LEASE));
    wait_until("it ends", TIMEOUT, || semaphore.remaining_lease(&id).unwrap().is_none());
    assert_eq!(
        semaphore.update_lease_time(&id, LONG_LEASE).unwrap_err().kind(),
        ErrorKind::NotHeld,
        "what has ended is not revived"
    );
    assert!(!semaphore.try_release(&id).unwrap());
    // `update_lease_time` never shortens the lease of a guard, and the guard learns of a longer
    // lease.
    let permit = semaphore.with_lease(LONG_LEASE).acquire().unwrap();
    semaphore.update_lease_time(&permit.id(), LONG_LEASE * 2).unwrap();
    permit.check(LONG_LEASE).unwrap();
    semaphore.update_lease_time(&permit.id(), TIME_UNIT).unwrap();
    assert!(semaphore.remaining_lease(&permit.id()).unwrap().unwrap() > LONG_LEASE);
    let error = semaphore.update_lease_time(&id, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    permit.release().unwrap();
    // The call must not revive a lost permit whose guard has not noticed the loss yet.
    let permit = semaphore.acquire().unwrap();
    let id = permit.id();
    let () = server.connection().zadd(timeouts("leases"), id.as_bytes(), 1_000).unwrap();
    assert_eq!(
        semaphore.update_lease_time(&id, LONG_LEASE).unwrap_err().kind(),
        ErrorKind::NotHeld
    );
    assert_eq!(permit.state(), HoldState::Lost(LostReason::Revoked));
    drop(permit);
    drop(semaphore.acquire_many(3).unwrap());
    stays(&server, "leases", 3, 0);
}

#[test]
fn permits_are_given_back_by_their_ids() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "ids", 6);
    let theirs = other.expirable_semaphore("ids");
    let ids: Vec<PermitId> =
        semaphore.acquire_many(4).unwrap().into_iter().map(ExpirablePermit::into_id).collect();
    assert_eq!(stored(&server, "ids"), (2, 4));
    let read: PermitId = ids[0].to_string().parse().unwrap();
    theirs.release(&read).unwrap();
    assert_eq!(stored(&server, "ids"), (3, 3));
    let error = theirs.release(&ids[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    assert!(!theirs.try_release(&ids[0]).unwrap());
    // The call releases all permits or none.
    let error = theirs.release_many(&[ids[1], ids[0]]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
    assert_eq!(theirs.release_many(&[ids[1], ids[1]]).unwrap_err().kind(), ErrorKind::Config);
    assert_eq!(stored(&server, "ids"), (3, 3));
    theirs.release_many(&ids[1..]).unwrap();
    theirs.release_many(&[]).unwrap();
    assert_eq!(stored(&server, "ids"), (6, 0));
    // If a permit is released by its id, a guard of the same client reports this, and does not
    // return the permit again.
    let permit = semaphore.acquire().unwrap();
    let lost = on_lost(&permit);
    assert!(semaphore.try_release(&permit.id()).unwrap());
    assert_eq!(permit.state(), HoldState::Released);
    assert_eq!(permit.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(lost.recv_timeout(TIMEOUT).is_err(), "released is not lost");
    stays(&server, "ids", 6, 0);
}

#[test]
fn a_permit_that_others_give_back_is_lost_at_the_next_renewal() {
    let server = server();
    let (one, other) = (watched(&server, SHORT_LEASE), client(&server));
    let semaphore = semaphore(&one, "others", 2);
    let (permit, second) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let lost = on_lost(&permit);
    other.expirable_semaphore("others").release(&permit.id()).unwrap();
    assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::Revoked);
    assert!(!permit.is_held() && second.is_held());
    let late = on_lost(&permit);
    assert_eq!(late.recv_timeout(TIMEOUT).unwrap(), LostReason::Revoked);
    assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    drop(second);
    stays(&server, "others", 2, 0);
}

#[test]
fn a_permit_that_is_left_outlives_its_client_and_comes_back_when_its_lease_ends() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "left", 2);
    semaphore.with_lease(LEASE).acquire().unwrap().leave_to_expire().unwrap();
    semaphore.acquire().unwrap().leave_to_expire().unwrap();
    let gone = semaphore.acquire().unwrap();
    semaphore.release(&gone.id()).unwrap();
    assert_eq!(gone.leave_to_expire().unwrap_err().kind(), ErrorKind::NotHeld);
    client.shutdown();
    let other = Client::connect(&server.url()).unwrap().expirable_semaphore("left");
    wait_until("the shorter one is back", TIMEOUT, || other.available_permits().unwrap() == 1);
    stays(&server, "left", 1, 1);
}

#[test]
fn a_waiter_of_another_process_sees_that_a_lease_was_made_shorter() {
    let server = server();
    let [here, there] = [(); 2].map(|()| client(&server));
    let semaphore = semaphore(&here, "shorter", 1);
    // Without a message the waiter would send its next request after four seconds or more.
    once_within(TIME_UNIT * 30, || {
        let id = semaphore.with_lease(LONG_LEASE).acquire().unwrap().into_id();
        let waiting = there.expirable_semaphore("shorter");
        let waiter = spawn(move || waiting.acquire().unwrap().release().unwrap());
        wait_subscribed(&server, &channel("shorter"));
        waiter.wait_asleep();
        let begun = Instant::now();
        semaphore.update_lease_time(&id, TIME_UNIT).unwrap();
        waiter.join();
        begun.elapsed()
    });
    stays(&server, "shorter", 1, 0);
}

/// The server reports the end of the next lease only if it grants nothing. So the waiter behind a
/// granted waiter must send its own request.
#[test]
fn a_waiter_behind_a_granted_one_learns_when_the_next_lease_ends() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "behind", 2);
    // The reply to this release says that the channel has no subscriber.
    semaphore.acquire().unwrap().release().unwrap();
    // If the waiter did not know the end of the lease, it would send its next request after four
    // seconds or more.
    once_within(TIME_UNIT * 30, || {
        let held = semaphore.acquire().unwrap();
        let nobodys = semaphore.with_lease(LEASE * 2).acquire().unwrap().into_id();
        let acquire = || {
            let waiting = semaphore.clone();
            spawn(move || waiting.acquire().unwrap())
        };
        let first = acquire();
        wait_subscribed(&server, &channel("behind"));
        first.wait_asleep();
        let second = acquire();
        second.wait_queued();
        let begun = Instant::now();
        held.release().unwrap();
        let first = first.join();
        let second = second.join();
        let took = begun.elapsed();
        assert!(semaphore.remaining_lease(&nobodys).unwrap().is_none());
        drop((first, second));
        took
    });
    stays(&server, "behind", 2, 0);
}
