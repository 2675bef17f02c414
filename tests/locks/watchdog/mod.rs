//! How a hold is renewed, and how its holder notices its end.

mod clock;
mod losing;
mod never_longer;
mod own_lease;
mod renewal;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::*;
use redis::Commands as _;
use redlatch::{Client, ErrorKind, HoldState, LockGuard, LostReason};
use redlatch_testkit::{Action, Direction, Proxy};

/// The lease of locks that a test keeps.
const LEASE: Duration = SHORT_LEASE;
/// The lease of locks whose end a test waits for.
const SHORT: Duration = Duration::from_millis(10 * TIME_UNIT.as_millis() as u64);

/// The reasons with which a guard's `on_lost` was called.
#[derive(Clone, Default)]
struct Losses(Arc<Mutex<Vec<LostReason>>>);

impl Losses {
    fn of(guard: &LockGuard) -> Self {
        let losses = Self::default();
        let told = losses.clone();
        guard.on_lost(move |reason| told.0.lock().unwrap().push(reason));
        losses
    }

    fn so_far(&self) -> Vec<LostReason> {
        self.0.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait(&self) -> LostReason {
        wait_until("on_lost is called", TIMEOUT, || !self.so_far().is_empty());
        self.so_far()[0]
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

// The following tests keep a lock for longer than its lease.

#[test]
fn the_watchdog_keeps_a_lock_that_is_not_released() {
    let server = server();
    let (one, other) = (watched(&server, LEASE), client(&server));
    let guard = one.reentrant_lock("redisson:lock").lock().unwrap();
    let losses = Losses::of(&guard);
    let begun = Instant::now();
    // Another client tries to take the lock during a time that is longer than a lease.
    assert!(
        other
            .reentrant_lock("redisson:lock")
            .try_lock_for(LEASE * 2)
            .unwrap()
            .into_option()
            .is_none()
    );
    assert!(begun.elapsed() > LEASE * 2);
    assert!(guard.is_held());
    assert_eq!(guard.state(), HoldState::Held);
    let left = pttl(&mut server.connection(), "redisson:lock");
    assert!(left > 0 && left <= i64::try_from(LEASE.as_millis()).unwrap(), "{left} ms");
    assert_eq!(losses.so_far(), []);
    guard.unlock().unwrap();
}

/// After the lock is taken, the server refuses new connections, but the connection of the callers
/// still works. In one round the connection for renewals stays open, and in the other round it is
/// cut.
#[test]
fn a_hold_is_renewed_where_no_further_connection_can_be_had() {
    let ways = [["maxclients", "1"], ["requirepass", "changed"]];
    for (way, is_cut) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let server = server();
        let mut redis = server.connection();
        let client = Client::builder(&server.url()).watchdog_timeout(LEASE).client_tracking(false);
        let client = client.connections(1).connect().unwrap();
        let guard = client.reentrant_lock("kept").lock().unwrap();
        let losses = Losses::of(&guard);
        let () = redis::cmd("CONFIG").arg("SET").arg(&way).query(&mut redis).unwrap();
        if is_cut {
            // The last command of the callers' connection was a script.
            let own: u64 = redis::cmd("CLIENT").arg("ID").query(&mut redis).unwrap();
            let own = format!("id={own} ");
            let all: String = redis::cmd("CLIENT").arg("LIST").query(&mut redis).unwrap();
            let renewers = all
                .lines()
                .find(|line| !line.contains("cmd=eval") && !line.starts_with(&own))
                .unwrap();
            let id = renewers.strip_prefix("id=").unwrap().split(' ').next().unwrap();
            let () = redis::cmd("CLIENT").arg(&["KILL", "ID", id]).query(&mut redis).unwrap();
        }
        for _ in 0..2 {
            let mut left = pttl(&mut redis, "kept");
            wait_until("it is renewed", TIMEOUT, || {
                assert_eq!(losses.so_far(), [], "{way:?}, cut: {is_cut}");
                let before = std::mem::replace(&mut left, pttl(&mut redis, "kept"));
                left > before
            });
        }
        guard.unlock().unwrap();
    }
}

#[test]
fn a_fixed_lease_ends_and_the_late_unlock_fails() {
    let server = server();
    let client = watched(&server, SHORT);
    let lock = client.reentrant_lock("redisson:lock").with_lease(SHORT);
    let before = Commands::so_far(&server).of("pexpire");
    let guard = lock.lock().unwrap();
    let losses = Losses::of(&guard);
    // Time must pass here: the work takes longer than the lease.
    thread::sleep(SHORT * 3 / 2);
    assert!(!guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(!lock.is_held_by_current_thread());
    assert_eq!(lock.hold_count(), 0);
    assert!(!lock.is_locked().unwrap());
    assert_eq!(losses.wait(), LostReason::LeaseExpired);
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(error.to_string().contains("\"redisson:lock\""), "{error}");
    assert_eq!(Commands::so_far(&server).of("pexpire") - before, 1, "it was never renewed");
    assert_eq!(losses.so_far().len(), 1);
}

#[test]
fn a_leases_end_lets_another_in_and_a_late_unlock_harms_no_hold() {
    let server = server();
    let (one, other) = (watched(&server, LEASE), watched(&server, LEASE));
    // The next holder is a thread of another client, and in the second round a thread of the same
    // client.
    for next in [other, one.clone()] {
        let lock = one.reentrant_lock("redisson:lock").with_lease(SHORT);
        let begun = Instant::now();
        let guard = lock.lock().unwrap();
        let ours = holder(&mut server.connection(), "redisson:lock");
        let theirs = next.reentrant_lock("redisson:lock");
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let waiter = spawn(move || {
            let guard = theirs.lock().unwrap();
            let entered = Instant::now();
            // Waits until the late unlock is over.
            let _ = receiver.recv();
            assert!(guard.is_held());
            guard.unlock().unwrap();
            entered
        });
        wait_until("the lease ends", TIMEOUT, || !guard.is_held());
        // On the server's clock the lease lasts a little longer.
        let mut before = None;
        wait_until("the waiter has it", TIMEOUT, || {
            before = holder(&mut server.connection(), "redisson:lock");
            before.is_some() && before != ours
        });
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
        assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
        assert_eq!(holder(&mut server.connection(), "redisson:lock"), before);
        drop(sender);
        let entered = waiter.join() - begun;
        // Redis counts whole milliseconds.
        assert!(entered + Duration::from_millis(2) >= SHORT, "too early: {entered:?}");
    }
}
