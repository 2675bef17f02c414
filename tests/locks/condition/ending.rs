//! The end of a wait.

use redlatch::Waited;

use super::*;

of_all_locks! {
    a_wait_without_a_notification_ends_in_time_and_leaves_nothing
    a_cancel_ends_a_wait_with_the_lock_in_hand
    a_wait_that_ends_in_an_outage_ends_with_the_lock_in_hand
    a_shutdown_ends_a_wait_with_nothing_in_hand
}

fn a_wait_without_a_notification_ends_in_time_and_leaves_nothing(kind: Kind) {
    let server = server();
    let monitor = kind.make(&client(&server), "m");
    let guard = monitor.lock.lock().unwrap();
    let begun = Instant::now();
    assert!(monitor.condition.wait_for(&guard, TIME_UNIT).unwrap().timed_out());
    assert!(begun.elapsed() >= TIME_UNIT);
    assert!(monitor.condition.wait_within(&guard, Instant::now() + TIME_UNIT).unwrap().timed_out());
    assert!(guard.is_held());
    let before = Commands::so_far(&server).scripts();
    for wait in [Duration::ZERO.into(), Instant::now().into(), Wait::NONE] {
        assert!(monitor.condition.wait_within(&guard, wait).unwrap().timed_out());
    }
    assert_eq!(Commands::so_far(&server).scripts(), before, "the lock was not left");
    let limit = Wait::at_most(TIME_UNIT);
    assert!(monitor.condition.wait_while_within(&guard, limit, || true).unwrap().timed_out());
    guard.unlock().unwrap();
    leaves_nothing(&server, "m");
}

fn a_cancel_ends_a_wait_with_the_lock_in_hand(kind: Kind) {
    let server = server();
    let [here, there] = [client(&server), client(&server)].map(|client| kind.make(&client, "m"));
    let token = CancelToken::new();
    let Monitor { lock, condition, .. } = here;
    let cancelled = token.clone();
    let waiter = spawn(move || {
        let outer = lock.lock().unwrap();
        let guard = lock.lock().unwrap();
        let error = condition.wait_cancellable(&guard, &cancelled).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(guard.is_held() && outer.is_held());
        // The second cancel ends the wait at once.
        let error = condition.wait_cancellable(&guard, &cancelled).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(guard.is_held() && outer.is_held());
    });
    wait_waiting(&server, "m", 1);
    let guard = there.lock.lock().unwrap();
    token.cancel();
    wait_waiting(&server, "m", 0);
    assert!(!there.condition.notify_one().unwrap());
    guard.unlock().unwrap();
    waiter.join();
    leaves_nothing(&server, "m");
}

/// The reply to a wait's last request says whether the thread was notified. If the lock survives a
/// fault, the last request must survive the fault, too.
fn a_wait_that_ends_in_an_outage_ends_with_the_lock_in_hand(kind: Kind) {
    let server = server();
    let proxy = Arc::new(Proxy::before(&server));
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let monitor = kind.make(&client, "m");
    let key = waiting_key("m");
    for (times, by_cancel) in [(1, false), (2, true)] {
        // The fault affects both copies of the request that ends the wait.
        let key = key.clone();
        proxy.on(Direction::Request, 2, Action::LoseRequest, move |bytes| {
            let is_about_it = bytes.windows(key.len()).any(|part| part == key.as_bytes());
            is_about_it && bytes.ends_with(b"\r\n$1\r\n1\r\n")
        });
        // The previous wait's entry is removed in the background: its last request got no reply.
        wait_waiting(&server, "m", 0);
        let token = CancelToken::new();
        let (Monitor { lock, condition, .. }, cancelled) = (monitor.clone(), token.clone());
        let network = Arc::clone(&proxy);
        let waiter = spawn(move || {
            let guard = lock.lock().unwrap();
            let ended = if by_cancel {
                condition.wait_cancellable(&guard, &cancelled).map(|()| Waited::InTime(()))
            } else {
                // A wait that is over before its entry exists sends no last request. On a busy
                // machine a wait may have no time for the second copy.
                loop {
                    let ended = condition.wait_for(&guard, TIME_UNIT);
                    if ended.is_err() || network.fired() >= 2 * times {
                        break ended;
                    }
                }
            };
            assert!(guard.is_held());
            guard.unlock().unwrap();
            ended
        });
        if by_cancel {
            wait_waiting(&server, "m", 1);
            // A wait that is cancelled before it knows of its entry sends no last request either.
            waiter.wait_queued();
            token.cancel();
        }
        match waiter.join() {
            Ok(waited) => assert!(waited.timed_out() && !by_cancel),
            Err(error) => assert!(by_cancel && error.kind() == ErrorKind::Cancelled, "{error}"),
        }
        assert_eq!(proxy.fired(), 2 * times);
    }
    leaves_nothing(&server, "m");
}

fn a_shutdown_ends_a_wait_with_nothing_in_hand(kind: Kind) {
    let server = server();
    let (here, other) = (client(&server), client(&server));
    let first = Guest::of(&server, "m", &kind.make(&here, "m"), Wait::FOREVER);
    let second = Guest::of(&server, "m", &kind.make(&other, "m"), Wait::FOREVER);
    here.shutdown();
    let error = first.thread.join().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShutDown);
    assert!(notify(&kind.make(&client(&server), "m")));
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn a_shutdown_of_a_notified_waiter_passes_the_notification_on() {
    let server = server();
    let (here, other) = (client(&server), client(&server));
    let first = Guest::of(&server, "m", &REENTRANT.make(&here, "m"), Wait::FOREVER);
    let second = Guest::of(&server, "m", &REENTRANT.make(&other, "m"), Wait::FOREVER);
    let there = REENTRANT.make(&client(&server), "m");
    let guard = there.lock.lock().unwrap();
    assert!(there.condition.notify_one().unwrap());
    first.thread.wait_asleep();
    here.shutdown();
    assert_eq!(first.thread.join().unwrap_err().kind(), ErrorKind::ShutDown);
    guard.unlock().unwrap();
    second.wait_back();
    assert!(second.leaves());
    leaves_nothing(&server, "m");
}

#[test]
fn no_waiter_is_forgotten_when_a_notification_and_a_time_limit_meet() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let there = REENTRANT.make(&client(&server), "m");
    let mut random = Random::new();
    for round in 0..200 {
        let time = Duration::from_micros(2_000 + random.below(4_000));
        let first =
            Guest::of(&server, "m", &REENTRANT.make(&clients[round % 2], "m"), Wait::FOREVER);
        let first = first.passes();
        let timed = Guest::begin(&there, Wait::at_most(time)).passes();
        thread::sleep(Duration::from_micros(random.below(6_000)));
        // The first copy of the request is certainly lost, and the second copy may be lost.
        let guard = there.lock.lock().unwrap();
        assert!(there.condition.notify_one().unwrap());
        let told = there.condition.notify_one().unwrap();
        guard.unlock().unwrap();
        assert_eq!(leave_all([first, timed]), [true, told], "they say what became of them");
    }
    leaves_nothing(&server, "m");
}
