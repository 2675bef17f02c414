//! Uses each synchronizer once, between two clients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use redlatch::status::StatusKind;
use redlatch::{Client, ErrorKind, InMemoryServer, Lock, MultiLock, Script, Value, Waited};

/// A time longer than any test takes. Wrong code would wait for this time.
const LONG_LEASE: Duration = Duration::from_secs(60);

/// Makes each of these functions a test with two clients of an in-memory server.
macro_rules! scenarios {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            let server = InMemoryServer::new().unwrap();
            scenario::$name(&server.client().unwrap(), &server.client().unwrap());
        })+

        /// Runs all functions with two clients of any server.
        pub(crate) fn all(one: &Client, other: &Client) {
            $(scenario::$name(one, other);)+
        }
    };
}

scenarios! {
    each_kind_of_lock_is_handed_to_a_waiting_client
    one_thread_at_a_time_of_all_clients_has_a_lock
    tokens_rise
    a_ticket_takes_a_lock_to_the_other_client
    a_script_runs_only_under_its_owner
    a_waiter_for_a_condition_is_notified_by_another_client
    permits_of_both_kinds_go_to_a_waiting_client
    a_latch_opens_for_a_waiting_client
    the_parties_of_two_clients_meet_at_a_barrier
    the_next_leader_follows_one_that_resigns
    the_status_names_holders_and_their_process
    a_key_that_another_client_deletes_is_lost_at_once
    a_name_of_another_kind_is_refused_with_its_cause
}

/// Waits until `count` threads wait for this name.
fn await_waiters(client: &Client, name: &str, count: usize) {
    while client.status(name).unwrap().queue.len() < count {
        thread::yield_now();
    }
}

/// A thread of another client waits for the lock, and gets it when this client's holder releases
/// it.
fn hands_on(one: &dyn Lock, other: &dyn Lock, client: &Client) {
    let guard = one.lock().unwrap();
    assert!(other.try_lock().unwrap().into_option().is_none());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            other.try_lock_for(LONG_LEASE).unwrap().into_option().unwrap().unlock().unwrap();
        });
        await_waiters(client, one.name(), 1);
        assert!(guard.is_held());
        guard.unlock().unwrap();
        waiter.join().unwrap();
    });
    assert!(!one.is_locked().unwrap());
}

#[test]
fn a_client_of_its_own_has_a_server_of_its_own() {
    let (one, other) = (Client::in_memory().unwrap(), Client::in_memory().unwrap());
    let _guard = one.reentrant_lock("orders").lock().unwrap();
    assert!(other.reentrant_lock("orders").try_lock().unwrap().into_option().is_some());
}

/// The test holds the lock for several times its lease.
#[test]
fn the_watchdog_renews_leases() {
    let server = InMemoryServer::new().unwrap();
    let short = Duration::from_millis(300);
    let one = server.builder().watchdog_timeout(short).connect().unwrap();
    let other = server.client().unwrap();
    let guard = one.reentrant_lock("orders").lock().unwrap();
    assert!(
        other.reentrant_lock("orders").try_lock_for(3 * short).unwrap().into_option().is_none()
    );
    assert!(guard.is_held());
}

mod scenario {
    use super::*;

    pub(super) fn each_kind_of_lock_is_handed_to_a_waiting_client(one: &Client, other: &Client) {
        hands_on(&one.reentrant_lock("a"), &other.reentrant_lock("a"), one);
        hands_on(&one.fenced_lock("b"), &other.fenced_lock("b"), one);
        hands_on(&one.fair_lock("c"), &other.fair_lock("c"), one);
        let locks = (one.read_write_lock("d"), other.read_write_lock("d"));
        hands_on(locks.0.writer(), locks.1.writer(), one);
        hands_on(locks.0.writer(), locks.1.reader(), one);
        hands_on(locks.0.reader(), locks.1.writer(), one);
        let _shared = (
            locks.0.reader().lock().unwrap(),
            locks.1.reader().try_lock().unwrap().into_option().unwrap(),
        );
        let parts = (one.reentrant_lock("e"), one.fair_lock("f"));
        let _all = MultiLock::new([&parts.0 as &dyn Lock, &parts.1]).unwrap().lock().unwrap();
        assert!(other.reentrant_lock("e").try_lock().unwrap().into_option().is_none());
        assert!(other.fair_lock("f").try_lock().unwrap().into_option().is_none());
    }

    pub(super) fn one_thread_at_a_time_of_all_clients_has_a_lock(one: &Client, other: &Client) {
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for client in [one, other, one, other] {
                let inside = &inside;
                scope.spawn(move || {
                    let lock = client.reentrant_lock("contended");
                    for _ in 0..200 {
                        let guard = lock.lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.unlock().unwrap();
                    }
                });
            }
        });
    }

    pub(super) fn tokens_rise(one: &Client, other: &Client) {
        let first = one.fenced_lock("tokens").lock().unwrap();
        let token = first.token();
        first.unlock().unwrap();
        assert!(other.fenced_lock("tokens").lock().unwrap().token() > token);
    }

    pub(super) fn a_ticket_takes_a_lock_to_the_other_client(one: &Client, other: &Client) {
        let guard = one.fenced_lock("ticket").lock_owned().unwrap();
        let token = guard.token();
        let ticket = guard.into_ticket(LONG_LEASE).unwrap();
        assert!(other.fenced_lock("ticket").is_locked().unwrap());
        let guard = other.adopt_fenced(&ticket).unwrap();
        assert!(guard.token() > token);
        assert_eq!(one.adopt_fenced(&ticket).unwrap_err().kind(), ErrorKind::NotHeld);
        guard.unlock().unwrap();
        assert!(!one.fenced_lock("ticket").is_locked().unwrap());
    }

    pub(super) fn a_script_runs_only_under_its_owner(one: &Client, other: &Client) {
        let adds = Script::new("return {redis.call('incr', KEYS[1]), #KEYS, #ARGV, ARGV[1]}");
        type Of = fn(&Client) -> Box<dyn Lock>;
        let kinds: [Of; 4] = [
            |client| Box::new(client.reentrant_lock("plain")),
            |client| Box::new(client.fair_lock("fair")),
            |client| Box::new(client.read_write_lock("write").writer().clone()),
            |client| Box::new(client.fenced_lock("fenced")),
        ];
        for (number, kind) in (1..).step_by(2).zip(kinds) {
            let guard = kind(one).lock().unwrap();
            let ran = guard.eval(&adds, &["number"], &[b"one", b"two"]).unwrap();
            let [number, keys, arguments] = [number, 1, 2].map(Value::Int);
            let first = Value::Bytes(b"one".to_vec());
            assert_eq!(ran, Value::List(vec![number, keys, arguments, first]));
            let failed = Script::new("redis.call('incr', KEYS[1]) error({err = 'MINE own'})");
            let error = guard.eval(&failed, &["number"], &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Script, "{error}");
            assert!(error.to_string().contains("MINE own"), "{error}");
            assert!(kind(other).force_unlock().unwrap());
            let present = kind(other).lock().unwrap();
            let error = guard.eval(&adds, &["number"], &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
            assert!(!guard.is_held());
            present.unlock().unwrap();
        }
        let guard = kinds[0](one).lock().unwrap();
        assert_eq!(guard.command("GET", &["number"], &[]).unwrap().as_int(), Some(8));
        guard.command("DEL", &["number"], &[]).unwrap();
        guard.unlock().unwrap();
    }

    pub(super) fn a_waiter_for_a_condition_is_notified_by_another_client(
        one: &Client,
        other: &Client,
    ) {
        let (lock, same) = (one.reentrant_lock("mailbox"), other.reentrant_lock("mailbox"));
        let (condition, its) = (lock.condition("not empty"), same.condition("not empty"));
        thread::scope(|scope| {
            let guard = lock.lock().unwrap();
            scope.spawn(move || {
                // The thread gets the lock once the waiter has an entry.
                let guard = same.lock().unwrap();
                assert!(its.notify_one().unwrap());
                guard.unlock().unwrap();
            });
            assert!(!condition.wait_for(&guard, LONG_LEASE).unwrap().timed_out());
            guard.unlock().unwrap();
        });
    }

    pub(super) fn permits_of_both_kinds_go_to_a_waiting_client(one: &Client, other: &Client) {
        let (semaphore, same) = (one.semaphore("permits"), other.semaphore("permits"));
        assert!(semaphore.try_set_permits(1).unwrap());
        let permit = semaphore.acquire().unwrap();
        assert!(same.try_acquire().unwrap().into_option().is_none());
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| same.try_acquire_for(LONG_LEASE).unwrap().into_option().is_some());
            permit.release().unwrap();
            assert!(waiter.join().unwrap());
        });
        let (semaphore, same) =
            (one.expirable_semaphore("leases"), other.expirable_semaphore("leases"));
        assert!(semaphore.try_set_permits(1).unwrap());
        let permit = semaphore.acquire().unwrap();
        assert!(same.try_acquire().unwrap().into_option().is_none());
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| same.try_acquire_for(LONG_LEASE).unwrap().into_option().is_some());
            permit.release().unwrap();
            assert!(waiter.join().unwrap());
        });
    }

    pub(super) fn a_latch_opens_for_a_waiting_client(one: &Client, other: &Client) {
        assert!(one.count_down_latch("start").try_set_count(2).unwrap());
        thread::scope(|scope| {
            let waiter =
                scope.spawn(|| other.count_down_latch("start").wait_for(LONG_LEASE).unwrap());
            one.count_down_latch("start").count_down().unwrap();
            one.count_down_latch("start").count_down().unwrap();
            assert!(!waiter.join().unwrap().timed_out());
        });
    }

    pub(super) fn the_parties_of_two_clients_meet_at_a_barrier(one: &Client, other: &Client) {
        assert!(one.cyclic_barrier("step").try_set_parties(2).unwrap());
        for _ in 0..3 {
            thread::scope(|scope| {
                let party =
                    scope.spawn(|| other.cyclic_barrier("step").wait_for(LONG_LEASE).unwrap());
                let arrivals = [
                    one.cyclic_barrier("step").wait_for(LONG_LEASE).unwrap(),
                    party.join().unwrap(),
                ];
                assert!(
                    arrivals == [Waited::InTime(0), Waited::InTime(1)]
                        || arrivals == [Waited::InTime(1), Waited::InTime(0)],
                    "{arrivals:?}"
                );
            });
        }
    }

    pub(super) fn the_next_leader_follows_one_that_resigns(one: &Client, other: &Client) {
        let leadership = one.leader_election("jobs").campaign().unwrap();
        let token = leadership.token();
        assert_eq!(other.leader_election("jobs").leader().unwrap().unwrap().token, token);
        assert!(other.leader_election("jobs").try_campaign().unwrap().into_option().is_none());
        leadership.resign().unwrap();
        let next = other
            .leader_election("jobs")
            .try_campaign_for(LONG_LEASE)
            .unwrap()
            .into_option()
            .unwrap();
        assert!(next.token() > token && next.is_leader());
    }

    pub(super) fn the_status_names_holders_and_their_process(one: &Client, other: &Client) {
        let _guard = one.reentrant_lock("orders").lock().unwrap();
        let status = other.status("orders").unwrap();
        assert_eq!(status.kind, StatusKind::Lock);
        let process = status.holders[0].process.as_ref().unwrap();
        assert_eq!(process.pid(), Some(std::process::id()));
        assert_eq!(other.statuses("ord*").unwrap().len(), 1);
        assert!(other.statuses("x*").unwrap().is_empty());
    }

    pub(super) fn a_key_that_another_client_deletes_is_lost_at_once(one: &Client, other: &Client) {
        let guard = one.reentrant_lock("deleted").lock().unwrap();
        let (lost, told) = crossbeam_channel::bounded(1);
        guard.on_lost(move |why| lost.send(why).unwrap());
        // When the hold is 100 ms old, the client makes the server report changes of the key.
        thread::sleep(Duration::from_millis(300));
        assert!(other.reentrant_lock("deleted").force_unlock().unwrap());
        // Without the report, the client would notice the loss at the next renewal, after ten
        // seconds.
        told.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(!guard.is_held());
    }

    pub(super) fn a_name_of_another_kind_is_refused_with_its_cause(one: &Client, other: &Client) {
        assert!(one.semaphore("number").try_set_permits(1).unwrap());
        let error = other.reentrant_lock("number").lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains("string"), "{error}");
    }
}
