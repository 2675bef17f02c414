//! Renewals that wait for replicas.

use super::*;

/// A renewal waits for replicas for a twenty-fourth of the lease. With this lease, even a busy
/// machine acknowledges in time.
const LEASE: Duration = Duration::from_millis(60 * TIME_UNIT.as_millis() as u64);

#[test]
fn a_renewal_that_no_replica_had_is_made_again() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().watchdog_timeout(LEASE).connect().unwrap();
    let guard = taken(&client.reentrant_lock("renewed"));
    pair.replica.pause();
    wait_until("a renewal has failed", TIMEOUT, || guard.state() == HoldState::Unconfirmed);
    pair.replica.resume();
    wait_until("it was renewed", TIMEOUT, || guard.state() == HoldState::Held);
    thread::sleep(LEASE);
    assert!(guard.is_held(), "{:?}", guard.state());
}

#[test]
fn a_renewal_that_no_replica_has_makes_nothing_longer() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().watchdog_timeout(LEASE).connect().unwrap();
    let guard = taken(&client.reentrant_lock("renewed"));
    pair.replica.pause();
    wait_until("a renewal has failed", TIMEOUT, || guard.state() == HoldState::Unconfirmed);
    let mut left = guard.remaining();
    wait_until("it is lost", TIMEOUT, || {
        let before = std::mem::replace(&mut left, guard.remaining());
        assert!(left <= before, "it was made longer");
        !guard.is_held()
    });
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(error.to_string().contains("0 of 1 replicas acknowledged"), "{error}");
    wait_until("the master has it no more", TIMEOUT, || pair.is_free("renewed"));
    pair.replica.resume();
}

#[test]
fn a_loss_is_reported_though_no_replica_acknowledges() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.patient().watchdog_timeout(LEASE).connect().unwrap();
    let guard = client.reentrant_lock("revoked").lock().unwrap();
    pair.replica.pause();
    let () = pair.master.connection().del("revoked").unwrap();
    wait_until("it is lost", TIMEOUT, || !guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost(LostReason::Revoked));
    pair.replica.resume();
}

#[test]
fn a_longer_lease_by_re_entry_counts_when_the_replica_has_it() {
    let pair = Pair::start(TIME_UNIT / 10);
    let client = pair.impatient().connect().unwrap();
    let lock = client.reentrant_lock("deeper");
    let outer = taken(&lock.with_lease(LONG_LEASE));
    let inner = taken(&lock.with_lease(LONG_LEASE * 2));
    assert!(pttl(&mut pair.replica.connection(), "deeper") > LONG_LEASE.as_millis() as i64);
    pair.cut_off(true);
    let error = lock.with_lease(LONG_LEASE * 3).lock().map(drop).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("0 of 1 replicas") && said.contains("still holds it"), "{said}");
    assert_eq!(lock.hold_count(), 2);
    assert!(outer.is_held() && outer.remaining() <= LONG_LEASE * 2, "{:?}", outer.remaining());
    pair.cut_off(false);
    inner.unlock().unwrap();
    outer.unlock().unwrap();
}
