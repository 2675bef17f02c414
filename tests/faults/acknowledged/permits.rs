//! Permits and replicas.

use super::*;

/// A caller has the permits only when the replica has the change.
#[test]
fn permits_count_when_the_replica_has_them() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().connect().unwrap();
    let semaphore = client.semaphore("permits");
    semaphore.set_permits(3).unwrap();
    let free = |server: &Server| server.connection().get::<_, i64>("permits").unwrap();
    let permit = |permits| {
        let mut taken = None;
        wait_until("the replica keeps up", TIMEOUT, || {
            taken = semaphore.acquire_many(permits).inspect_err(too_few).ok();
            taken.is_some()
        });
        taken.unwrap()
    };
    let first = permit(1);
    assert_eq!((free(&pair.master), free(&pair.replica)), (2, 2));

    pair.cut_off(true);
    too_few(&semaphore.acquire().unwrap_err());
    too_few(&semaphore.try_acquire().unwrap_err());
    too_few(&semaphore.drain_permits().unwrap_err());
    assert_eq!(free(&pair.master), 2, "given back");
    // Nothing was taken, so there is nothing to acknowledge.
    assert!(semaphore.try_acquire_many(3).unwrap().into_option().is_none());
    pair.cut_off(false);
    drop(permit(2));
    drop(first);
    wait_until("all are back", TIMEOUT, || free(&pair.master) == 3);
}

/// Like an acquire, a release waits for the replica. A release without an acknowledgement is valid,
/// too.
#[test]
fn a_release_waits_for_the_replica_and_a_drop_does_not() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().connect().unwrap();
    let semaphore = client.semaphore("returned");
    semaphore.set_permits(4).unwrap();
    let free = |server: &Server| server.connection().get::<_, i64>("returned").unwrap();
    let mut taken = Vec::new();
    wait_until("the replica keeps up", TIMEOUT, || {
        taken.extend(semaphore.acquire().inspect_err(too_few).ok());
        taken.len() == 4
    });
    taken.pop().unwrap().release().unwrap();
    assert_eq!(free(&pair.replica), 1, "it was waited for");
    pair.cut_off(true);
    let permit = taken.pop().unwrap();
    for outcome in [permit.release(), semaphore.release_forgotten_if_exists(1).map(drop)] {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("only 0 of 1 replicas acknowledged"), "{error}");
        assert!(error.contains("given back, do not release them again"), "{error}");
    }
    taken.clear();
    wait_until("all are back, and one more", TIMEOUT, || free(&pair.master) == 5);
    pair.cut_off(false);
    wait_until("the replica hears of it", TIMEOUT, || free(&pair.replica) == 5);
}

#[test]
fn a_lease_of_permits_is_taken_and_renewed_only_if_the_replica_has_it() {
    let pair = Pair::start(Duration::ZERO);
    let lease = TIME_UNIT * 30;
    let client = pair.impatient().watchdog_timeout(lease).connect().unwrap();
    let semaphore = client.expirable_semaphore("leases");
    semaphore.try_set_permits(2).unwrap();
    let out = |server: &Server| server.connection().zcard::<_, u64>("{leases}:timeout").unwrap();
    let mut taken = None;
    wait_until("the replica keeps up", TIMEOUT, || {
        taken = semaphore.acquire().inspect_err(too_few).ok();
        taken.is_some()
    });
    let permit = taken.unwrap();
    assert_eq!((out(&pair.master), out(&pair.replica)), (1, 1));

    pair.cut_off(true);
    too_few(&semaphore.acquire().map(drop).unwrap_err());
    too_few(&semaphore.try_acquire().map(drop).unwrap_err());
    assert_eq!(out(&pair.master), 1, "given back");
    wait_until("a renewal has failed", TIMEOUT, || permit.state() == HoldState::Unconfirmed);
    wait_until("it is lost", TIMEOUT, || !permit.is_held());
    assert_eq!(permit.state(), HoldState::Lost(LostReason::LeaseExpired));
    pair.cut_off(false);
}

/// The second copy of the request finds the permits that the first copy took.
#[test]
fn permits_that_were_asked_for_twice_count_for_the_second_connection() {
    let pair = Pair::start(Duration::ZERO);
    let way = Proxy::before(&pair.master);
    let client = settings(&way.url()).connections(1).connect().unwrap();
    let numbers = client.semaphore("numbers");
    numbers.set_permits(2).unwrap();
    let leases = client.expirable_semaphore("leases");
    leases.try_set_permits(2).unwrap();
    // The server knows the scripts from here on.
    wait_until("the replica keeps up", TIMEOUT, || {
        numbers.acquire().is_ok_and(|it| it.release().is_ok())
    });
    wait_until("the replica keeps up", TIMEOUT, || {
        leases.acquire().is_ok_and(|it| it.release().is_ok())
    });
    pair.cut_off(true);
    let lose = |name: &'static str| {
        let asks = move |bytes: &[u8]| bytes.windows(name.len()).any(|it| it == name.as_bytes());
        way.on(Direction::Request, 1, Action::LoseReply, asks);
    };
    let fired = way.fired();
    let before = Commands::so_far(&pair.master);
    lose("numbers");
    let error = numbers.acquire().map(drop).unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    lose("leases");
    let error = leases.acquire().map(drop).unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(way.fired(), fired + 2);
    // Redis 7.0 would also count writes of other connections: see above.
    let written = |name| Commands::so_far(&pair.master).of(name) - before.of(name);
    assert!(written("set") >= 3, "taken, found, and given back: {}", written("set"));
    assert!(written("decrby") >= 3, "taken by both, and found: {}", written("decrby"));
    let free = |name| pair.master.connection().get::<_, i64>(name).unwrap();
    wait_until("all are back", TIMEOUT, || (free("numbers"), free("leases")) == (2, 2));
    pair.cut_off(false);
}

#[test]
fn a_new_lease_of_a_permit_is_written_even_if_the_old_one_is_longer() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.patient().connect().unwrap();
    let semaphore = client.expirable_semaphore("leases");
    semaphore.try_set_permits(1).unwrap();
    let permit = semaphore.acquire().unwrap();
    for lease in [LONG_LEASE * 2, LONG_LEASE] {
        let before = Commands::so_far(&pair.master).of("zadd");
        semaphore.update_lease_time(&permit.id(), lease).unwrap();
        let written = Commands::so_far(&pair.master).of("zadd") - before;
        assert!(written >= 1, "{lease:?}: {written}");
    }
    assert!(permit.remaining() > LONG_LEASE);
    permit.release().unwrap();
}
