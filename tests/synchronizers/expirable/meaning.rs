//! What the calls of an expirable semaphore do.

use super::*;

#[test]
fn permits_are_set_counted_added_and_removed() {
    let server = server();
    let semaphore = client(&server).expirable_semaphore("numbers");
    let counts = || {
        let free = semaphore.available_permits().unwrap();
        let (out, all) = (semaphore.acquired_permits().unwrap(), semaphore.permits().unwrap());
        (free, out, all)
    };
    assert_eq!(semaphore.name(), "numbers");
    assert_eq!(counts(), (0, 0, 0));
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    assert!(semaphore.try_set_permits(3).unwrap());
    assert!(!semaphore.try_set_permits(7).unwrap());
    let two = semaphore.acquire_many(2).unwrap();
    assert_eq!(counts(), (1, 2, 3));
    semaphore.add_permits(4).unwrap();
    assert_eq!(counts(), (5, 2, 7));
    semaphore.set_permits(1).unwrap();
    assert_eq!(counts(), (-1, 2, 1), "permits that are out stay with their holders");
    assert!(two.iter().all(ExpirablePermit::is_held));
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    drop(two);
    assert_eq!(counts(), (1, 0, 1));
    semaphore.add_permits(-3).unwrap();
    assert_eq!(counts(), (-2, 0, -2));
    semaphore.set_permits(2).unwrap();
    let permit = semaphore.acquire().unwrap();
    assert!(semaphore.delete().unwrap());
    assert!(!semaphore.delete().unwrap());
    assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::LeaseLost);
    assert!(!server.connection().exists::<_, bool>("numbers").unwrap(), "it made it anew");
}

#[test]
fn as_many_permits_as_redis_counts_are_counted() {
    let server = server();
    let semaphore = client(&server).expirable_semaphore("many");
    semaphore.add_permits(i64::MAX - 2).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), i64::MAX - 2);
    let two = semaphore.acquire_many(2).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), i64::MAX - 4);
    assert_eq!(semaphore.permits().unwrap(), i64::MAX - 2);
    let error = semaphore.add_permits(5).unwrap_err();
    assert!(error.to_string().contains("more permits than Redis can count"), "{error}");
    semaphore.set_permits(5).unwrap();
    assert_eq!((semaphore.available_permits().unwrap(), semaphore.permits().unwrap()), (3, 5));
    drop(two);
}

#[test]
fn the_error_of_an_impossible_permit_lease_speaks_of_no_lock() {
    let server = server();
    let semaphore = semaphore(&client(&server), "lease", 1);
    let error = semaphore.with_lease(Duration::ZERO).try_acquire().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(!error.to_string().contains("lock"), "{error}");
}

#[test]
fn permits_come_back_by_release_and_by_drop() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "taken", 5);
    let one = semaphore.acquire().unwrap();
    assert!(one.is_held() && one.state() == HoldState::Held);
    let mut three = semaphore.try_acquire_many(3).unwrap().into_option().unwrap();
    assert_eq!(stored(&server, "taken"), (1, 4));
    assert!(semaphore.try_acquire_many(2).unwrap().into_option().is_none());
    assert_eq!(stored(&server, "taken"), (1, 4), "none is taken before all are there");
    one.release().unwrap();
    // Permits belong to no thread, and each is released separately.
    let last = three.pop().unwrap();
    elsewhere(move || drop(last));
    stays(&server, "taken", 3, 2);
    drop(three);
    assert_eq!(semaphore.available_permits().unwrap(), 5);
    assert!(semaphore.acquire_many(0).unwrap().is_empty());
    let error = semaphore.acquire_many(1_025).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("1024"), "{error}");
    semaphore.add_permits(1_024).unwrap();
    assert_eq!(semaphore.acquire_many(1_024).unwrap().len(), 1_024);
    stays(&server, "taken", 1_029, 0);
}

#[test]
fn a_bounded_or_cancelled_wait_ends_and_takes_nothing() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "bounded", 1);
    let held = semaphore.try_acquire_for(TIMEOUT).unwrap().into_option().unwrap();
    woken_by_message(|| {
        let begun = Instant::now();
        assert!(answered(|| semaphore.try_acquire_for(TIME_UNIT)).into_option().is_none());
        assert!(
            answered(|| semaphore.try_acquire_until(begun + TIME_UNIT * 2)).into_option().is_none()
        );
        assert!(answered(|| semaphore.try_acquire_many_for(1, TIME_UNIT)).into_option().is_none());
        assert!(
            answered(|| semaphore.try_acquire_many_until(1, Instant::now()))
                .into_option()
                .is_none()
        );
        assert!(semaphore.acquire_within(Wait::NONE).unwrap().into_option().is_none());
        assert!(begun.elapsed() >= TIME_UNIT * 3);
    });
    let tokens: Vec<_> = (0..3).map(|_| CancelToken::new()).collect();
    let waiters: Vec<_> = tokens
        .iter()
        .map(|token| {
            let (semaphore, token) = (semaphore.clone(), token.clone());
            let waiter = spawn(move || semaphore.acquire_cancellable(&token).map(drop));
            waiter.wait_asleep();
            waiter
        })
        .collect();
    for at in [1, 0, 2] {
        tokens[at].cancel();
        wait_until("it ends", TIMEOUT, || waiters[at].is_finished());
    }
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    let wait = Wait::at_most(TIMEOUT).cancelled_by(&tokens[0]);
    let error = semaphore.acquire_within(wait).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    held.release().unwrap();
    let permit = semaphore.acquire_within(Wait::at_most(TIMEOUT)).unwrap().into_option().unwrap();
    permit.release().unwrap();
    let several =
        semaphore.acquire_many_within(1, Wait::at_most(TIMEOUT)).unwrap().into_option().unwrap();
    assert_eq!(several.len(), 1);
    drop(several);
    stays(&server, "bounded", 1, 0);
}

#[test]
fn a_shutdown_ends_all_waits_and_gives_everything_back() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "shut", 3);
    let held = semaphore.acquire_many(3).unwrap();
    let lost: Vec<_> = held.iter().map(on_lost).collect();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let semaphore = semaphore.clone();
            let waiter = spawn(move || semaphore.acquire().map(drop));
            waiter.wait_asleep();
            waiter
        })
        .collect();
    client.shutdown();
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::ShutDown);
    }
    for lost in lost {
        assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::ShutDown);
    }
    assert_eq!(stored(&server, "shut"), (3, 0));
    assert_eq!(held[0].state(), HoldState::Lost(LostReason::ShutDown));
    assert_eq!(semaphore.permits().unwrap_err().kind(), ErrorKind::ShutDown);
    drop(held);
    stays(&server, "shut", 3, 0);
}

#[test]
fn threads_of_one_process_are_served_in_the_order_they_came() {
    let server = server();
    let client = client(&server);
    let semaphore = client.expirable_semaphore("order");
    let served = Arc::new(Mutex::new(Vec::new()));
    let (sender, kept) = mpsc::channel();
    let waiters: Vec<_> = [3, 1, 1, 2]
        .into_iter()
        .enumerate()
        .map(|(at, need)| {
            let (semaphore, served, sender) =
                (semaphore.clone(), Arc::clone(&served), sender.clone());
            let waiter = spawn(move || {
                let permits = semaphore.acquire_many(need).unwrap();
                served.lock().unwrap().push(at);
                sender.send(permits).unwrap();
            });
            waiter.wait_queued();
            waiter
        })
        .collect();
    // There are enough permits for the threads behind the first thread, but not for the first
    // thread. No thread is served before the first thread.
    semaphore.add_permits(2).unwrap();
    assert!(
        semaphore.try_acquire().unwrap().into_option().is_none(),
        "nor does one that does not wait"
    );
    thread::sleep(TIME_UNIT);
    assert!(served.lock().unwrap().is_empty());
    for expected in [1, 2, 3, 3, 4] {
        semaphore.add_permits(1).unwrap();
        wait_until("the next are served", TIMEOUT, || served.lock().unwrap().len() == expected);
    }
    waiters.into_iter().for_each(Running::join);
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
    drop(kept);
    stays(&server, "order", 7, 0);
}

#[test]
fn a_release_wakes_a_waiter_of_another_client_at_once() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "awake", 1);
    woken_by_message(|| {
        let permit = semaphore.acquire().unwrap();
        let waiting = other.expirable_semaphore("awake");
        let waiter = spawn(move || waiting.acquire().unwrap().release().unwrap());
        wait_subscribed(&server, &channel("awake"));
        waiter.wait_asleep();
        drop(permit);
        waiter.join();
    });
}

#[test]
fn a_permit_is_passed_within_the_process_unless_its_id_was_read() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "passed", 1);
    let mut redis = server.connection();
    let mut ids = || -> Vec<Vec<u8>> { redis.zrange(timeouts("passed"), 0, -1).unwrap() };
    for is_read in [false, true] {
        // A permit is passed inside the process only during the process's turn. If this thread was
        // too late, the test tries again.
        let begun = Instant::now();
        let goes_on = |tries: &u32| *tries < 20 || !is_read && begun.elapsed() < TIMEOUT;
        let passed = (0..).take_while(goes_on).any(|_| {
            let permit = semaphore.acquire().unwrap();
            let first = ids();
            let waiting = semaphore.clone();
            let waiter = spawn(move || waiting.acquire().unwrap());
            waiter.wait_asleep();
            drop(permit);
            let permit = waiter.join();
            // The turn of the process begins when the server grants permits.
            let waiting = semaphore.clone();
            let next = spawn(move || waiting.acquire().unwrap());
            thread::sleep(Duration::from_micros(500));
            let second = ids();
            if is_read {
                assert_eq!(permit.id().as_bytes().as_slice(), second[0]);
            }
            drop(permit);
            let permit = next.join();
            let third = ids();
            assert_eq!((first.len(), second.len(), third.len()), (1, 1, 1));
            drop(permit);
            second == third
        });
        assert_eq!(passed, !is_read, "id read: {is_read}");
    }
    stays(&server, "passed", 1, 0);
}
