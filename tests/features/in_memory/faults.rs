//! Faults that the test injects.

use std::thread;
use std::time::{Duration, Instant};

use redlatch::{ErrorKind, HoldState, InMemoryServer, LostReason};

const LONG_LEASE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn exactly_as_many_requests_fail_as_asked() {
    let server = InMemoryServer::new().unwrap();
    let client = server.client().unwrap();
    let lock = client.reentrant_lock("orders");
    server.fail_next(2);
    let error = lock.try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(!error.is_transient(), "{error}");
    // A call that waits also fails in the outage.
    lock.try_lock_for(LONG_LEASE).unwrap_err();
    lock.lock().unwrap().unlock().unwrap();
}

/// The repeated request finds the result of the first request. If the reply to the repeated request
/// is also lost, the client gives back everything that either request may have taken.
#[test]
fn what_is_taken_by_a_request_whose_reply_is_lost_is_taken_once_or_given_back() {
    let server = InMemoryServer::new().unwrap();
    let (client, other) = (server.client().unwrap(), server.client().unwrap());
    let slots = client.semaphore("slots");
    assert!(slots.try_set_permits(3).unwrap());
    let free = || other.semaphore("slots").available_permits().unwrap();
    server.lose_replies(1);
    let permit = slots.try_acquire().unwrap().into_option().unwrap();
    assert_eq!(free(), 2);
    server.lose_replies(2);
    let error = slots.try_acquire().unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    let began = Instant::now();
    while free() != 2 {
        assert!(began.elapsed() < LONG_LEASE);
        thread::sleep(Duration::from_millis(1));
    }
    drop(permit);
}

#[test]
fn an_outcome_is_unknown_if_the_repeated_requests_reply_is_lost_too() {
    let server = InMemoryServer::new().unwrap();
    let (client, other) = (server.client().unwrap(), server.client().unwrap());
    let latch = client.count_down_latch("latch");
    assert!(latch.try_set_count(2).unwrap());
    server.lose_replies(2);
    let error = latch.count_down().unwrap_err();
    assert!(error.outcome_unknown() && error.is_transient(), "{error}");
    // The first request has counted down.
    assert_eq!(other.count_down_latch("latch").count().unwrap(), 1);
}

/// A waiter that gets no message sends its next request after 0.8 s at the earliest.
#[test]
fn a_waiter_whose_message_is_lost_asks_again() {
    let server = InMemoryServer::new().unwrap();
    let (one, other) = (server.client().unwrap(), server.client().unwrap());
    let guard = one.reentrant_lock("orders").lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let got = other
                .reentrant_lock("orders")
                .try_lock_for(LONG_LEASE)
                .unwrap()
                .into_option()
                .is_some();
            (got, Instant::now())
        });
        while one.status("orders").unwrap().queue.is_empty() {
            thread::yield_now();
        }
        server.lose_messages(true);
        let released = Instant::now();
        guard.unlock().unwrap();
        let (got, at) = waiter.join().unwrap();
        assert!(got && at.duration_since(released) < LONG_LEASE / 2);
    });
}

#[test]
fn without_renewals_a_lock_is_lost_and_others_get_it() {
    let server = InMemoryServer::new().unwrap();
    let one = server.builder().watchdog_timeout(HOUR).connect().unwrap();
    let other = server.client().unwrap();
    let guard = one.reentrant_lock("orders").lock().unwrap();
    server.stop_renewals(true);
    // The renewal is due, and the server refuses it.
    server.advance(HOUR * 3 / 4);
    let began = Instant::now();
    while guard.state() == HoldState::Held {
        assert!(began.elapsed() < LONG_LEASE);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(guard.state(), HoldState::Unconfirmed);
    server.advance(HOUR / 4);
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    assert!(other.reentrant_lock("orders").try_lock().unwrap().into_option().is_some());
}

#[test]
fn a_wait_outlasts_an_outage() {
    let server = InMemoryServer::new().unwrap();
    let client = server.client().unwrap();
    server.set_out_of_reach(true);
    assert!(client.reentrant_lock("orders").try_lock().unwrap_err().is_transient());
    let unopened = server.unopened_connections();
    assert!(unopened > 0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            client
                .reentrant_lock("orders")
                .try_lock_for(LONG_LEASE)
                .unwrap()
                .into_option()
                .is_some()
        });
        // Wait until the waiter notices the outage, too.
        while server.unopened_connections() == unopened && !waiter.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        server.set_out_of_reach(false);
        assert!(waiter.join().unwrap());
    });
}
