//! Limits and cancel tokens of waits.

use redlatch::Taken;

use super::*;

over_all_kinds! {
    a_bounded_wait_ends_at_its_deadline_and_leaves_nothing
    a_cancel_ends_a_wait_and_leaves_nothing
    a_release_wakes_a_waiter_of_another_client_and_of_its_own
    a_shutdown_ends_waits_and_holds
    a_limit_and_a_token_together_end_a_wait_by_whichever_comes_first
    a_thread_that_is_ending_may_wait_for_it
}

fn a_bounded_wait_ends_at_its_deadline_and_leaves_nothing(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "bounded").lock().unwrap();
    for lock in [kind.make(&client, "bounded"), kind.make(&other, "bounded")] {
        elsewhere(move || {
            woken_by_message(|| {
                let begun = Instant::now();
                assert!(answered(|| lock.try_lock_for(TIME_UNIT)).into_option().is_none());
                assert!(
                    answered(|| lock.try_lock_until(begun + TIME_UNIT * 2)).into_option().is_none()
                );
                assert!(answered(|| lock.try_lock_for(Duration::ZERO)).into_option().is_none());
                assert!(answered(|| lock.try_lock_until(begun)).into_option().is_none());
                assert!(begun.elapsed() >= TIME_UNIT * 2);
            });
        });
    }
    guard.unlock().unwrap();
    leaves_nothing(&server);
    drop(kind.make(&other, "bounded").try_lock_for(Duration::MAX).unwrap().into_option().unwrap());
    leaves_nothing(&server);
}

fn a_cancel_ends_a_wait_and_leaves_nothing(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "cancelled").lock().unwrap();
    for waits in [&client, &other] {
        woken_by_message(|| {
            let (lock, token) = (kind.make(waits, "cancelled"), CancelToken::new());
            let cancel = token.clone();
            let waiter = spawn(move || {
                let first = lock.lock_cancellable(&cancel).map(drop).unwrap_err().kind();
                (first, lock.lock_cancellable(&cancel).map(drop).unwrap_err().kind())
            });
            waiter.wait_asleep();
            token.cancel();
            assert_eq!(waiter.join(), (ErrorKind::Cancelled, ErrorKind::Cancelled));
        });
    }
    guard.unlock().unwrap();
    leaves_nothing(&server);
}

fn a_release_wakes_a_waiter_of_another_client_and_of_its_own(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    for round in 0..6 {
        woken_by_message(|| {
            let guard = kind.make(&client, "woken").lock().unwrap();
            let waiters: Vec<_> = [&other, &client, &other]
                .into_iter()
                .map(|client| {
                    let lock = kind.make(client, "woken");
                    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
                    waiter.wait_asleep();
                    waiter
                })
                .collect();
            if round % 2 == 0 {
                drop(guard);
            } else {
                guard.unlock().unwrap();
            }
            waiters.into_iter().for_each(Running::join);
        });
    }
    leaves_nothing(&server);
}

fn a_shutdown_ends_waits_and_holds(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let lock = kind.make(&client, "shut");
    let guard = lock.lock().unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = Arc::clone(&lock);
            let waiter = spawn(move || lock.lock().map(drop).unwrap_err().kind());
            waiter.wait_asleep();
            waiter
        })
        .collect();
    client.shutdown();
    assert_eq!(guard.state(), HoldState::Lost(LostReason::ShutDown));
    for waiter in waiters {
        assert_eq!(waiter.join(), ErrorKind::ShutDown);
    }
    assert_eq!(lock.lock().map(drop).unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(lock.try_lock().map(drop).unwrap_err().kind(), ErrorKind::ShutDown);
    kind.make(&other, "shut")
        .try_lock_for(TIMEOUT)
        .unwrap()
        .into_option()
        .expect("it is free")
        .unlock()
        .unwrap();
    leaves_nothing(&server);
}

fn a_limit_and_a_token_together_end_a_wait_by_whichever_comes_first(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "both").lock().unwrap();
    for waits in [&client, &other] {
        // The limit ends the wait.
        let (lock, never) = (kind.make(waits, "both"), CancelToken::new());
        elsewhere(move || {
            woken_by_message(|| {
                let begun = Instant::now();
                let wait = Wait::at_most(TIME_UNIT).cancelled_by(&never);
                assert!(answered(|| lock.lock_within(wait)).into_option().is_none());
                assert!(begun.elapsed() >= TIME_UNIT);
            });
        });
        // The token ends the wait. A call with a cancelled token ends at once.
        woken_by_message(|| {
            let (lock, token) = (kind.make(waits, "both"), CancelToken::new());
            let cancel = token.clone();
            let waiter = spawn(move || {
                let wait = Wait::at_most(LONG_LEASE).cancelled_by(&cancel);
                let first = lock.lock_within(wait).map(drop).unwrap_err().kind();
                (first, lock.lock_within(wait).map(drop).unwrap_err().kind())
            });
            waiter.wait_asleep();
            token.cancel();
            assert_eq!(waiter.join(), (ErrorKind::Cancelled, ErrorKind::Cancelled));
        });
    }
    guard.unlock().unwrap();
    // The lock is granted before the limit is over or the token is cancelled.
    let token = CancelToken::new();
    let wait = Wait::at_most(TIMEOUT).cancelled_by(&token);
    drop(kind.make(&other, "both").lock_within(wait).unwrap().into_option().expect("it is free"));
    leaves_nothing(&server);
}

/// Takes the lock twice while the thread's thread-locals are destroyed. The thread uses this value
/// before the library's thread-locals, so this value is destroyed after them.
struct Late(Option<(Arc<dyn Lock>, std::sync::mpsc::Sender<bool>)>);

impl Drop for Late {
    fn drop(&mut self) {
        if let Some((lock, done)) = self.0.take() {
            let outcome = lock.lock().and_then(|guard| {
                // The thread has the lock, so it re-enters. Otherwise it would wait for itself.
                let again = lock.try_lock()?;
                let is_mine = matches!(again, Taken(_)) && lock.hold_count() == 2;
                drop(again);
                guard.unlock().map(|()| is_mine)
            });
            done.send(outcome.is_ok_and(|is_mine| is_mine)).unwrap();
        }
    }
}

thread_local! {
    static LATE: std::cell::RefCell<Late> = const { std::cell::RefCell::new(Late(None)) };
}

fn a_thread_that_is_ending_may_wait_for_it(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let guard = kind.make(&client, "late").lock().unwrap();
    let lock = kind.make(&other, "late");
    let (done, late) = std::sync::mpsc::channel();
    let (tried, go_on) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let barriers = (Arc::clone(&tried), Arc::clone(&go_on));
    let ending = spawn(move || {
        LATE.with_borrow_mut(|late| late.0 = Some((Arc::clone(&lock), done)));
        // This wait uses the library's thread-locals, so that they are destroyed first.
        assert!(answered(|| lock.try_lock_for(TIME_UNIT)).into_option().is_none());
        barriers.0.wait();
        barriers.1.wait();
    });
    tried.wait();
    let before = Commands::so_far(&server).scripts();
    go_on.wait();
    wait_until("it asks", TIMEOUT, || Commands::so_far(&server).scripts() > before);
    // The thread falls asleep.
    ending.wait_queued_at_its_end();
    guard.unlock().unwrap();
    assert!(late.recv_timeout(TIMEOUT).unwrap());
    ending.join();
    leaves_nothing(&server);
}
