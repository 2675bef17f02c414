//! What the semaphore's calls do.

use super::*;

#[test]
fn permits_are_set_once_added_taken_away_and_drained() {
    let server = server();
    let semaphore = client(&server).semaphore("numbers");
    assert_eq!(semaphore.name(), "numbers");
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    assert_eq!(semaphore.drain_permits().unwrap(), 0);
    assert!(semaphore.try_set_permits(3).unwrap());
    assert!(!semaphore.try_set_permits(7).unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 3);
    semaphore.add_permits(4).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 7);
    semaphore.add_permits(-9).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), -2);
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    assert_eq!(semaphore.drain_permits().unwrap(), -2);
    assert_eq!(semaphore.available_permits().unwrap(), 0);
    semaphore.add_permits(5).unwrap();
    assert_eq!(semaphore.drain_permits().unwrap(), 5);
    assert!(!semaphore.try_set_permits(1).unwrap(), "none free is not none there");
    semaphore.add_permits(i64::from(u32::MAX) * 2).unwrap();
    let many = semaphore.acquire_many(u32::MAX).unwrap();
    assert_eq!(many.permits(), u32::MAX);
    many.release().unwrap();
    assert_eq!(semaphore.drain_permits().unwrap(), i64::from(u32::MAX) * 2);
}

#[test]
fn numbers_are_exact_up_to_the_largest() {
    let server = server();
    let proxy = Proxy::before(&server);
    let semaphore = behind(&proxy).semaphore("large");
    for permits in [(1 << 53) - 1, (1 << 53) + 1, i64::MAX - 1, i64::MAX, -(1 << 53) - 1] {
        for lost in [0, 1] {
            semaphore.add_permits(permits).unwrap();
            assert_eq!(semaphore.available_permits().unwrap(), permits);
            // A second copy of the request gets the remembered reply.
            on_acquire(&proxy, "large", lost, Action::LoseReply);
            assert_eq!(semaphore.drain_permits().unwrap(), permits, "{lost} replies lost");
            assert_eq!(semaphore.available_permits().unwrap(), 0);
        }
    }
    semaphore.add_permits(i64::MAX).unwrap();
    let error = semaphore.release_forgotten(1).unwrap_err();
    is_clear(&error, "large", "no permit was given back");
    assert_eq!(semaphore.available_permits().unwrap(), i64::MAX);
}

#[test]
fn a_java_service_can_read_how_many_are_free() {
    let server = server();
    let client = client(&server);
    // Redisson reads the lower 32 bits of the number as a signed number. If this signed number is
    // not above zero, Redisson wakes no thread, or fails.
    let heard = messages(&server, "redisson_sc:*", || {
        let semaphore = client.semaphore("many");
        assert!(semaphore.try_set_permits(u32::MAX).unwrap());
        semaphore.set_permits(1 << 31).unwrap();
        semaphore.add_permits(1 << 31).unwrap();
        semaphore.add_permits(1 << 60).unwrap();
        semaphore.release_forgotten(1).unwrap();
        drop(semaphore.acquire().unwrap());
        semaphore.set_permits(i32::MAX.unsigned_abs() - 1).unwrap();
    });
    let heard: Vec<_> = heard.into_iter().map(|(_, free)| free.parse::<i32>()).collect();
    let most = Ok(i32::MAX);
    let expected = [most.clone(), most.clone(), most.clone(), most.clone(), most.clone(), most];
    assert_eq!(heard[..6], expected);
    assert_eq!(heard[6..], [Ok(i32::MAX - 1)]);
}

#[test]
fn permits_come_back_by_release_and_by_drop() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "taken", 5);
    let (one, two) = (semaphore.acquire().unwrap(), semaphore.acquire_many(2).unwrap());
    assert_eq!((one.permits(), two.permits()), (1, 2));
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    assert!(semaphore.try_acquire_many(3).unwrap().into_option().is_none());
    assert_eq!(semaphore.available_permits().unwrap(), 2, "none is taken before all are there");
    let rest = semaphore.try_acquire_many(2).unwrap().into_option().unwrap();
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    one.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 1);
    // Permits belong to no thread.
    elsewhere(move || drop(two));
    wait_permits(&server, "taken", 3);
    drop(rest);
    // The release of the drop runs before this request.
    assert_eq!(semaphore.available_permits().unwrap(), 5);
}

#[test]
fn permits_are_split_merged_forgotten_and_released_without_one() {
    let server = server();
    let client = client(&server);
    let other = semaphore(&client, "other", 1).acquire().unwrap();
    let semaphore = semaphore(&client, "split", 6);
    let mut permit = semaphore.acquire_many(5).unwrap();
    assert!(permit.split(6).is_none());
    assert_eq!(permit.permits(), 5);
    let two = permit.split(2).unwrap();
    assert_eq!((permit.permits(), two.permits()), (3, 2));
    drop(permit.split(1).unwrap());
    assert_eq!(permit.name(), "split");
    wait_permits(&server, "split", 2);
    permit.merge(two).unwrap();
    assert_eq!(permit.permits(), 4);
    let other = permit.merge(other).unwrap_err();
    assert_eq!((permit.permits(), other.permits()), (4, 1));
    // If another client has a permit, that client releases it.
    let foreign = crate::common::client(&server).semaphore("split").acquire().unwrap();
    drop(permit.merge(foreign).unwrap_err());
    wait_permits(&server, "split", 2);
    permit.forget();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
    semaphore.release_forgotten(3).unwrap();
    semaphore.release_forgotten(1).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 6);
    let mut empty = semaphore.acquire().unwrap();
    let all = empty.split(1).unwrap();
    assert_eq!(empty.permits(), 0);
    empty.release().unwrap();
    drop(all);
    assert_eq!(semaphore.available_permits().unwrap(), 6);
}

/// A permit can be given back twice, because the server does not store the holders. The
/// documentation warns of this.
#[test]
fn a_permit_that_is_given_back_by_hand_and_by_its_guard_is_there_twice() {
    let server = server();
    let semaphore = semaphore(&client(&server), "twice", 1);
    let permit = semaphore.acquire().unwrap();
    semaphore.release_forgotten(1).unwrap();
    permit.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 2);
}

#[test]
fn a_release_makes_a_semaphore_unless_it_is_only_for_one_that_exists() {
    let server = server();
    let semaphore = client(&server).semaphore("absent");
    assert!(!semaphore.release_forgotten_if_exists(2).unwrap());
    assert!(!server.connection().exists::<_, bool>("absent").unwrap());
    semaphore.release_forgotten(1).unwrap();
    assert!(semaphore.release_forgotten_if_exists(2).unwrap());
    assert_eq!(semaphore.available_permits().unwrap(), 3);
}

#[test]
fn no_permits_are_granted_at_once() {
    let server = server();
    let semaphore = client(&server).semaphore("zero");
    let before = Commands::so_far(&server).scripts();
    drop(semaphore.acquire_many(0).unwrap());
    semaphore.try_acquire_many(0).unwrap().into_option().unwrap().release().unwrap();
    drop(semaphore.try_acquire_many_for(0, LONG_LEASE).unwrap().into_option().unwrap());
    semaphore.release_forgotten(0).unwrap();
    assert_eq!(Commands::so_far(&server).scripts(), before);
    assert!(!server.connection().exists::<_, bool>("zero").unwrap());
}

#[test]
fn a_bounded_wait_ends_at_its_deadline_and_takes_nothing() {
    let server = server();
    let semaphore = semaphore(&client(&server), "bounded", 1);
    let begun = Instant::now();
    assert!(answered(|| semaphore.try_acquire_many_for(2, TIME_UNIT)).into_option().is_none());
    assert!(begun.elapsed() >= TIME_UNIT);
    let held = semaphore.try_acquire_for(TIMEOUT).unwrap().into_option().unwrap();
    woken_by_message(|| {
        let begun = Instant::now();
        assert!(answered(|| semaphore.try_acquire_for(TIME_UNIT)).into_option().is_none());
        assert!(
            answered(|| semaphore.acquire_within(begun + TIME_UNIT * 2)).into_option().is_none()
        );
        assert!(begun.elapsed() >= TIME_UNIT * 2);
    });
    assert!(answered(|| semaphore.try_acquire_for(Duration::ZERO)).into_option().is_none());
    assert!(answered(|| semaphore.try_acquire_until(Instant::now())).into_option().is_none());
    let once = || semaphore.try_acquire_many_until(1, Instant::now());
    assert!(answered(once).into_option().is_none());
    held.release().unwrap();
    assert!(semaphore.try_acquire_for(Duration::MAX).unwrap().into_option().is_some());
    stays(&server, "bounded", 1);
}

#[test]
fn a_cancel_ends_the_wait_of_the_first_and_of_those_behind() {
    let server = server();
    let semaphore = client(&server).semaphore("cancelled");
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
    let error = semaphore.acquire_cancellable(&tokens[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    semaphore.release_forgotten(1).unwrap();
    drop(semaphore.acquire_cancellable(&CancelToken::new()).unwrap());
    stays(&server, "cancelled", 1);
}

#[test]
fn a_shutdown_ends_all_waits() {
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("shut");
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
    assert_eq!(semaphore.release_forgotten(1).unwrap_err().kind(), ErrorKind::ShutDown);
}

#[test]
fn threads_of_one_process_are_served_in_the_order_they_came() {
    let server = server();
    let semaphore = client(&server).semaphore("order");
    let served = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = [3, 1, 1, 2]
        .into_iter()
        .enumerate()
        .map(|(at, need)| {
            let (semaphore, served) = (semaphore.clone(), Arc::clone(&served));
            let waiter = spawn(move || {
                let permit = semaphore.acquire_many(need).unwrap();
                served.lock().unwrap().push(at);
                permit.forget();
            });
            waiter.wait_queued();
            waiter
        })
        .collect();
    // There are enough permits for the threads behind the first thread, but not for the first
    // thread. No thread is served before the first thread.
    semaphore.release_forgotten(2).unwrap();
    assert!(
        semaphore.try_acquire().unwrap().into_option().is_none(),
        "nor does one that does not wait"
    );
    thread::sleep(TIME_UNIT);
    assert!(served.lock().unwrap().is_empty());
    for at in 0..5 {
        semaphore.release_forgotten(1).unwrap();
        let expected = [1, 2, 3, 3, 4][at];
        wait_until("the next are served", TIMEOUT, || served.lock().unwrap().len() == expected);
    }
    waiters.into_iter().for_each(Running::join);
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
    stays(&server, "order", 0);
}

#[test]
fn small_releases_add_up_for_one_that_needs_many() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = one.semaphore("sum");
    for releaser in [&one, &other] {
        let releaser = releaser.semaphore("sum");
        woken_by_message(|| {
            let waiting = semaphore.clone();
            let waiter = spawn(move || waiting.acquire_many(3).unwrap().forget());
            wait_subscribed(&server, &channel("sum"));
            waiter.wait_asleep();
            for _ in 0..3 {
                assert!(!waiter.is_finished());
                releaser.release_forgotten(1).unwrap();
            }
            waiter.join();
        });
        assert_eq!(semaphore.available_permits().unwrap(), 0);
    }
}

#[test]
fn two_processes_that_need_many_do_not_keep_parts_from_each_other() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let first = semaphore(&clients[0], "parts", 3);
    let waiters: Vec<_> = (0..8)
        .map(|at| {
            let semaphore = clients[at % 2].semaphore("parts");
            spawn(move || {
                for round in 0..50 {
                    let need = u32::try_from((at + round) % 3 + 1).unwrap();
                    let mut permit = semaphore.acquire_many(need).unwrap();
                    // The permits are returned one by one.
                    while let Some(part) = permit.split(1) {
                        drop(part);
                    }
                }
            })
        })
        .collect();
    waiters.into_iter().for_each(Running::join);
    wait_permits(&server, "parts", 3);
    assert_eq!(first.available_permits().unwrap(), 3);
}

#[test]
fn a_waiter_asks_once_for_a_message_and_not_in_between() {
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("quiet");
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let semaphore = semaphore.clone();
            let waiter = spawn(move || semaphore.acquire().unwrap().forget());
            waiter.wait_queued();
            waiter
        })
        .collect();
    let before = Commands::so_far(&server).scripts();
    thread::sleep(TIME_UNIT * 3);
    let polled = Commands::so_far(&server).scripts() - before;
    assert!(polled <= 1, "{polled} scripts of sleepers");
    semaphore.release_forgotten(20).unwrap();
    waiters.into_iter().for_each(Running::join);
    stays(&server, "quiet", 0);
}

/// Gives back permits as a Java service does, so that this process gets no reply with the number of
/// subscribers.
fn release_as_java(server: &Server, name: &str, permits: i64) {
    let () = redis::pipe()
        .atomic()
        .incr(name, permits)
        .publish(channel(name), permits)
        .query(&mut server.connection())
        .unwrap();
}

/// Starts threads that each wait for a permit and keep it. Returns each thread with the token that
/// cancels it.
fn queue(semaphore: &Semaphore, threads: usize) -> Vec<(Running<Result<(), Error>>, CancelToken)> {
    let waiters = (0..threads).map(|_| {
        let (semaphore, token) = (semaphore.clone(), CancelToken::new());
        let cancel = token.clone();
        let waiter = spawn(move || semaphore.acquire_cancellable(&token).map(Permit::forget));
        waiter.wait_queued();
        (waiter, cancel)
    });
    waiters.collect()
}

#[test]
fn the_first_in_line_asks_for_those_behind_it_too() {
    let server = server();
    let client = client(&server);
    let waiters = queue(&client.semaphore("all"), 20);
    wait_subscribed(&server, &channel("all"));
    let before = Commands::so_far(&server).scripts();
    release_as_java(&server, "all", 20);
    for (waiter, _) in waiters {
        waiter.join().unwrap();
    }
    // Each request takes at most half of the free permits for further threads, because another
    // process might wait as well.
    let asked = Commands::so_far(&server).scripts() - before;
    assert!(asked <= 10, "{asked} requests for 20 permits");
    stays(&server, "all", 0);
}

#[test]
fn permits_asked_for_waiters_that_left_meanwhile_go_back_at_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    on_acquire(&proxy, "left", usize::MAX, Action::DelayReply(Duration::ZERO));
    let waiters = queue(&client.semaphore("left"), 4);
    // The waiter sends a request at first, and another when its client has subscribed.
    proxy.wait_fired(2, TIMEOUT);
    proxy.clear_rules();
    on_acquire(&proxy, "left", 1, Action::HoldReply);
    release_as_java(&server, "left", 8);
    wait_permits(&server, "left", 4);
    for (waiter, cancel) in &waiters[1..] {
        cancel.cancel();
        wait_until("it ends", TIMEOUT, || waiter.is_finished());
    }
    proxy.release();
    let outcomes = waiters.into_iter().map(|(waiter, _)| waiter.join().is_ok());
    assert_eq!(outcomes.collect::<Vec<_>>(), [true, false, false, false]);
    wait_permits(&server, "left", 7);
    stays(&server, "left", 7);
}

#[test]
fn a_process_leaves_to_others_the_permits_that_they_may_wait_for() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (Client::connect(&proxy.url()).unwrap(), client(&server));
    let waiters = queue(&one.semaphore("shares"), 8);
    wait_subscribed(&server, &channel("shares"));
    on_acquire(&proxy, "shares", 1, Action::HoldReply);
    release_as_java(&server, "shares", 8);
    proxy.wait_fired(1, TIMEOUT);
    let theirs = other.semaphore("shares").try_acquire_many(4).unwrap();
    let theirs = theirs.into_option().expect("it took more than its half");
    proxy.release();
    theirs.release().unwrap();
    for (waiter, _) in waiters {
        waiter.join().unwrap();
    }
    stays(&server, "shares", 0);
}

#[test]
fn a_request_for_many_threads_takes_once_if_messages_are_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = client.semaphore("together");
    for (action, times) in
        [(Action::LoseReply, 1), (Action::LoseRequest, 1), (Action::LoseReply, 2)]
    {
        let fired = proxy.fired();
        let waiters = queue(&semaphore, 4);
        wait_subscribed(&server, &channel("together"));
        on_acquire(&proxy, "together", times, action);
        release_as_java(&server, "together", 8);
        let expected = times == 1;
        for (waiter, _) in waiters {
            match waiter.join() {
                Ok(()) => assert!(expected),
                Err(error) => is_clear(&error, "together", "given back in the background"),
            }
        }
        assert_eq!(proxy.fired(), fired + times);
        wait_permits(&server, "together", if expected { 4 } else { 8 });
        stays(&server, "together", if expected { 4 } else { 8 });
        let () = server.connection().set("together", 0).unwrap();
    }
}

#[test]
fn a_release_wakes_a_waiter_of_another_client_at_once() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let semaphore = semaphore(&one, "awake", 1);
    woken_by_message(|| {
        let permit = semaphore.acquire().unwrap();
        let waiting = other.semaphore("awake");
        let waiter = spawn(move || waiting.acquire().unwrap().release().unwrap());
        wait_subscribed(&server, &channel("awake"));
        waiter.wait_asleep();
        drop(permit);
        waiter.join();
    });
}
