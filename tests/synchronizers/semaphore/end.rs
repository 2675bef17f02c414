//! A semaphore with a time to live.

use super::*;

#[test]
fn a_semaphore_with_a_time_to_live_ends_as_redissons_does() {
    let server = server();
    let semaphore = client(&server).semaphore("ends");
    let mut redis = server.connection();
    assert_eq!(semaphore.time_to_live().unwrap(), None);
    assert!(!semaphore.expire(LONG_LEASE).unwrap() && !semaphore.expire(Duration::MAX).unwrap());
    let heard = messages(&server, "redisson_sc:*", || {
        assert!(semaphore.try_set_permits_for(3, LONG_LEASE).unwrap());
    });
    assert_eq!(heard, [(channel("ends"), "3".to_owned())]);
    assert!(!semaphore.try_set_permits_for(9, TIME_UNIT).unwrap(), "it has permits");
    // A change of the number of permits does not change the time to live.
    semaphore.acquire().unwrap().release().unwrap();
    semaphore.add_permits(2).unwrap();
    semaphore.set_permits(1).unwrap();
    let left = pttl(&mut redis, "ends");
    assert!(left > 0 && left <= LONG_LEASE.as_millis() as i64, "{left}");
    assert!(semaphore.expire(Duration::MAX).unwrap());
    assert_eq!(semaphore.time_to_live().unwrap(), Some(Duration::MAX));
    assert!(semaphore.expire(TIME_UNIT).unwrap());
    wait_until("it is gone", TIMEOUT, || semaphore.time_to_live().unwrap().is_none());
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    assert!(!semaphore.release_forgotten_if_exists(1).unwrap());
    let error = semaphore.expire(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[test]
fn the_permits_of_an_expirable_semaphore_end_with_it() {
    let server = server();
    let semaphore = client(&server).expirable_semaphore("both");
    let mut redis = server.connection();
    assert!(!semaphore.expire(LONG_LEASE).unwrap());
    assert!(semaphore.try_set_permits(2).unwrap());
    let permit = semaphore.acquire().unwrap();
    assert!(semaphore.expire(LONG_LEASE).unwrap());
    for key in ["both", "{both}:timeout"] {
        assert!(pttl(&mut redis, key) > 0, "{key}");
    }
    assert!(semaphore.expire(Duration::MAX).unwrap());
    for key in ["both", "{both}:timeout"] {
        assert_eq!(pttl(&mut redis, key), -1, "{key}");
    }
    assert!(semaphore.expire(TIME_UNIT).unwrap());
    wait_until("both are gone", TIMEOUT, || {
        !redis.exists::<_, bool>(&["both", "{both}:timeout"]).unwrap()
    });
    assert_eq!(semaphore.time_to_live().unwrap(), None);
    // The permit was lost with the semaphore, and does not go to a later semaphore.
    assert!(permit.release().is_err());
    assert_eq!(semaphore.permits().unwrap(), 0);
}

#[test]
fn an_expirable_semaphore_that_is_made_with_an_end_has_it_with_its_permits() {
    let server = server();
    let semaphore = client(&server).expirable_semaphore("run");
    let mut redis = server.connection();
    let heard = messages(&server, "redisson_sc:*", || {
        assert!(semaphore.try_set_permits_for(2, LONG_LEASE).unwrap());
    });
    assert_eq!(heard, [(channel("run"), "2".to_owned())]);
    assert!(!semaphore.try_set_permits_for(9, TIME_UNIT).unwrap(), "it has permits");
    let _out = semaphore.acquire().unwrap();
    for key in ["run", "{run}:timeout"] {
        let left = pttl(&mut redis, key);
        assert!(left > 0 && left <= LONG_LEASE.as_millis() as i64, "{key}: {left}");
    }
    let error = semaphore.try_set_permits_for(1, Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[test]
fn without_the_right_to_end_the_leases_nothing_is_changed() {
    let server = server();
    let mut user = User::new(&server, "me");
    let semaphore = user.client().expirable_semaphore("half");
    semaphore.set_permits(2).unwrap();
    let _permit = semaphore.acquire().unwrap();
    user.set(&["resetkeys", "~half", "~redlatch_request:*", "%R~{half}:timeout"]);
    assert!(semaphore.expire(LONG_LEASE).is_err());
    user.set(&["~*", "&*", "+@all"]);
    let mut redis = server.connection();
    assert_eq!((pttl(&mut redis, "half"), pttl(&mut redis, "{half}:timeout")), (-1, -1));
}
