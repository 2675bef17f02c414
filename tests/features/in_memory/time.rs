//! A clock that the test sets.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::{HoldState, InMemoryServer, LostReason};

const HOUR: Duration = Duration::from_secs(3_600);
const LONG_LEASE: Duration = Duration::from_secs(60);

#[test]
fn a_lease_ends_when_the_test_says_so_and_not_before() {
    let server = InMemoryServer::new().unwrap();
    let (one, other) = (server.client().unwrap(), server.client().unwrap());
    let guard = one.reentrant_lock("orders").with_lease(HOUR).lock().unwrap();
    server.advance(HOUR / 2);
    assert!(guard.is_held());
    assert!(guard.remaining() < HOUR / 2 + LONG_LEASE, "{:?}", guard.remaining());
    assert!(other.reentrant_lock("orders").try_lock().unwrap().into_option().is_none());
    server.advance(HOUR / 2);
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    assert!(other.reentrant_lock("orders").try_lock().unwrap().into_option().is_some());
}

/// Exactly an hour must pass from the grant to the next request, and not a millisecond more.
#[test]
fn a_lease_is_over_when_its_time_has_passed_exactly() {
    let server = InMemoryServer::new().unwrap();
    let (one, other) = (server.client().unwrap(), server.client().unwrap());
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let _guard = one.reentrant_lock(name).with_lease(HOUR).lock().unwrap();
        server.advance(HOUR);
        assert!(other.reentrant_lock(name).try_lock().unwrap().into_option().is_some(), "{name}");
    }
}

/// Each step is shorter than the lease, but both steps together are longer.
#[test]
fn a_watched_lease_is_renewed_while_time_passes_in_steps() {
    let server = InMemoryServer::new().unwrap();
    let one = server.builder().watchdog_timeout(HOUR).connect().unwrap();
    let guard = one.reentrant_lock("orders").lock().unwrap();
    for _ in 0..3 {
        server.advance(HOUR * 3 / 4);
        let began = Instant::now();
        while guard.remaining() < HOUR * 9 / 10 {
            assert!(guard.is_held() && began.elapsed() < LONG_LEASE);
            thread::sleep(Duration::from_millis(1));
        }
    }
    server.advance(HOUR);
    assert!(!guard.is_held());
}

#[test]
fn a_waiting_client_gets_a_lock_whose_lease_has_ended() {
    let server = InMemoryServer::new().unwrap();
    let (one, other) = (server.client().unwrap(), server.client().unwrap());
    let _guard = one.reentrant_lock("orders").with_lease(HOUR).lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            other.reentrant_lock("orders").try_lock_for(LONG_LEASE).unwrap().into_option().is_some()
        });
        while one.status("orders").unwrap().queue.is_empty() {
            thread::yield_now();
        }
        server.advance(HOUR);
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn permits_and_times_to_live_end_with_the_servers_clock() {
    let server = InMemoryServer::new().unwrap();
    let one = server.client().unwrap();
    let semaphore = one.expirable_semaphore("leases").with_lease(HOUR);
    assert!(semaphore.try_set_permits(1).unwrap());
    let permit = semaphore.acquire().unwrap();
    let latch = one.count_down_latch("latch");
    assert!(latch.try_set_count_for(1, HOUR).unwrap());
    server.advance(HOUR - LONG_LEASE);
    assert!(permit.is_held());
    assert_eq!((semaphore.available_permits().unwrap(), latch.count().unwrap()), (0, 1));
    server.advance(2 * LONG_LEASE);
    assert_eq!(permit.state(), HoldState::Lost(LostReason::LeaseExpired));
    assert_eq!((semaphore.available_permits().unwrap(), latch.count().unwrap()), (1, 0));
}

/// Tests run at the same time, so one test's clock must not affect the servers of another.
#[test]
fn other_servers_clients_are_left_alone() {
    let (server, others) = (InMemoryServer::new().unwrap(), InMemoryServer::new().unwrap());
    let client = others.client().unwrap();
    let guard = client.reentrant_lock("orders").with_lease(HOUR).lock().unwrap();
    server.advance(2 * HOUR);
    assert!(guard.is_held());
    assert!(
        others
            .client()
            .unwrap()
            .reentrant_lock("orders")
            .try_lock()
            .unwrap()
            .into_option()
            .is_none()
    );
}
