//! How a holder detects a loss.

use super::*;

#[test]
fn a_lost_hold_is_reported_at_its_deadline_though_the_server_does_not_answer() {
    let server = server();
    let client = watched(&server, SHORT);
    let guard = client.reentrant_lock("silent").lock().unwrap();
    let second = client.reentrant_lock("silent too").with_lease(SHORT).lock().unwrap();
    let losses = [Losses::of(&guard), Losses::of(&second)];
    server.pause();
    for losses in &losses {
        assert_eq!(losses.wait(), LostReason::LeaseExpired);
    }
    assert!(!guard.is_held() && !second.is_held());
    server.resume();
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(second.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    // The keys of these locks expire at the server.
    wait_free(&server, "silent", TIMEOUT);
    client.reentrant_lock("silent").lock().unwrap().unlock().unwrap();
    assert!(losses.iter().all(|losses| losses.so_far().len() == 1));
}

#[test]
fn a_hold_that_the_server_has_lost_is_reported_at_the_next_renewal() {
    let server = server();
    let (lease, other) = (LEASE, client(&server));
    // Without tracking, the server does not report the loss.
    let client = Client::builder(&server.url()).watchdog_timeout(lease).client_tracking(false);
    let client = client.connect().unwrap();
    let ways: [(&str, &dyn Fn()); 4] = [
        ("DEL", &|| server.connection().del("gone").unwrap()),
        ("FLUSHALL", &|| {
            let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
        }),
        ("another's force_unlock", &|| {
            assert!(other.reentrant_lock("gone").force_unlock().unwrap());
        }),
        ("a restart without data", &|| server.restart_empty()),
    ];
    for (way, take_away) in ways {
        let guard = client.reentrant_lock("gone").lock().unwrap();
        let losses = Losses::of(&guard);
        take_away();
        // Another client already has the lock and keeps it.
        let theirs =
            other.reentrant_lock("gone").try_lock_for(TIMEOUT).unwrap().into_option().unwrap();
        let held = holder(&mut server.connection(), "gone");
        // If no renewal found the loss, the holder would notice only the end of the lease.
        assert_eq!(losses.wait(), LostReason::Revoked, "{way}");
        assert_eq!(guard.state(), HoldState::Lost(LostReason::Revoked), "{way}");
        assert!(!guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost, "{way}");
        assert_eq!(losses.so_far().len(), 1, "{way}");
        assert_eq!(holder(&mut server.connection(), "gone"), held, "{way}");
        theirs.unlock().unwrap();
        // New locks work, and are renewed.
        let guard = client.reentrant_lock("gone").lock().unwrap();
        wait_renewed(&server, "gone");
        assert!(guard.is_held(), "{way}");
        guard.unlock().unwrap();
    }
}

#[test]
fn a_loss_that_the_unlock_finds_is_its_error() {
    let server = server();
    // The server does not report the loss.
    let client = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).client_tracking(false);
    let lock = client.connect().unwrap().reentrant_lock("found");
    let guard = lock.lock().unwrap();
    let () = server.connection().del("found").unwrap();
    hold_as_redisson(&mut server.connection(), "found", LONG_LEASE);
    assert!(guard.is_held(), "nobody has asked yet");
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert_eq!(holder(&mut server.connection(), "found").unwrap().0, FOREIGN);
    assert!(!lock.is_held_by_current_thread());
}

#[test]
fn another_value_under_the_name_loses_that_hold_and_no_other() {
    let server = server();
    let client = watched(&server, LEASE);
    let guards: Vec<_> =
        (0..3).map(|at| client.reentrant_lock(&format!("type:{at}")).lock().unwrap()).collect();
    let losses = Losses::of(&guards[1]);
    let () = server.connection().set("type:1", "no lock").unwrap();
    assert_eq!(losses.wait(), LostReason::Revoked);
    // Time must pass here: without renewals the leases of the other locks would be over.
    thread::sleep(LEASE * 3 / 2);
    assert!(guards[0].is_held() && !guards[1].is_held() && guards[2].is_held());
    let value: String = server.connection().get("type:1").unwrap();
    assert_eq!(value, "no lock");
}

#[test]
fn each_callback_of_a_loss_is_called_once() {
    let server = server();
    let client = watched(&server, SHORT);
    let lock = client.reentrant_lock("callbacks").with_lease(SHORT);
    let guard = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let calls: Vec<_> = (0..5).map(|_| Arc::new(AtomicU64::new(0))).collect();
    for (at, call) in calls.iter().enumerate().take(3) {
        let call = Arc::clone(call);
        let guard = if at == 2 { &inner } else { &guard };
        guard.on_lost(move |_| {
            call.fetch_add(1, Ordering::SeqCst);
            assert!(at != 0, "the callback's own panic");
        });
    }
    let seen = |at: usize| calls[at].load(Ordering::SeqCst);
    wait_until("the callbacks are called", TIMEOUT, || (0..3).all(|at| seen(at) == 1));
    // A callback may be registered after the loss, even by another callback.
    let (call, again) = (Arc::clone(&calls[3]), lock.clone());
    guard.on_lost(move |reason| {
        assert_eq!(reason, LostReason::LeaseExpired);
        again.lock().unwrap().unlock().unwrap();
        call.fetch_add(1, Ordering::SeqCst);
    });
    wait_until("the late callback is called", TIMEOUT, || seen(3) == 1);
    // Other calls of the guard find the loss, too.
    assert!(guard.check(Duration::ZERO).is_err());
    assert!(!lock.force_unlock().unwrap());
    assert_eq!(inner.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    drop(guard);
    // A hold that is released is not lost.
    let guard = lock.lock().unwrap();
    let call = Arc::clone(&calls[4]);
    guard.on_lost(move |_| call.store(1, Ordering::SeqCst));
    guard.unlock().unwrap();
    // Time must pass here: without the release the lease would be over.
    thread::sleep(SHORT * 3 / 2);
    assert_eq!((0..5).map(seen).collect::<Vec<_>>(), [1, 1, 1, 1, 0]);
}

#[test]
fn a_callback_that_blocks_delays_no_renewal() {
    let server = server();
    let client = watched(&server, LEASE);
    let kept = client.reentrant_lock("kept").lock().unwrap();
    let lost = client.reentrant_lock("lost").lock().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let entered = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&entered);
    lost.on_lost(move |_| {
        told.store(true, Ordering::SeqCst);
        let _ = receiver.recv();
    });
    assert!(client.reentrant_lock("lost").force_unlock().unwrap());
    wait_until("the callback runs", TIMEOUT, || entered.load(Ordering::SeqCst));
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(LEASE * 3 / 2);
    assert!(kept.is_held());
    drop(sender);
    kept.unlock().unwrap();
}

#[test]
fn a_loss_is_reported_once_the_system_can_start_threads_again() {
    if !has_own_process() {
        return;
    }
    let server = server();
    let client = client(&server);
    let guard = client.reentrant_lock("short").with_lease(SHORT).lock().unwrap();
    let losses = Losses::of(&guard);
    without_room_for_threads(|| {
        wait_until("it is lost", TIMEOUT, || matches!(guard.state(), HoldState::Lost(_)));
        thread::sleep(TIME_UNIT);
        assert_eq!(losses.so_far(), [], "no thread can be started");
    });
    assert_eq!(losses.wait(), LostReason::LeaseExpired);
}
