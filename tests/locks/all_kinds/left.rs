//! Locks that are left to expire. The end of the client does not free these locks.

use super::*;

over_all_kinds! {
    a_lock_left_to_expire_outlives_its_client_and_ends_with_its_lease
    a_thread_that_left_the_lock_to_expire_does_not_hold_it
    threads_that_wait_here_get_it_at_the_end_of_the_lease
    an_inner_level_that_is_left_keeps_it_when_the_outer_one_goes
    a_lock_handed_on_by_another_process_is_left_for_its_whole_lease
    a_lost_lock_is_not_left_to_expire
    an_error_leaves_it_free_though_the_server_has_made_its_lease_longer
    a_short_lease_that_was_handed_on_is_left_for_no_longer
}

fn a_lock_left_to_expire_outlives_its_client_and_ends_with_its_lease(kind: Kind) {
    let server = server();
    let other = another(&server);
    let theirs = kind.make(&other, "left");
    for shuts_down in [true, false] {
        for owned in [true, false] {
            let client = client(&server);
            let lock = kind.leased(&client, "left", HOUR);
            if owned {
                lock.lock_owned().unwrap().leave_to_expire().unwrap();
            } else {
                lock.lock().unwrap().leave_to_expire().unwrap();
            }
            if shuts_down {
                client.shutdown();
            }
            drop((lock, client));
            assert!(theirs.try_lock().unwrap().into_option().is_none(), "{shuts_down} {owned}");
            let left = theirs.remaining_lease().unwrap().unwrap();
            assert!(left > HOUR - LONG_LEASE, "{left:?}");
            assert!(theirs.force_unlock().unwrap());
        }
    }
    let begun = Instant::now();
    kind.leased(&client(&server), "left", LEASE).lock().unwrap().leave_to_expire().unwrap();
    theirs.lock().unwrap().unlock().unwrap();
    let took = begun.elapsed();
    assert!(took >= LEASE * 9 / 10, "{took:?}");
    leaves_nothing(&server);
}

fn a_thread_that_left_the_lock_to_expire_does_not_hold_it(kind: Kind) {
    let server = server();
    let client = client(&server);
    let lock = kind.leased(&client, "nobody's", HOUR);
    let guard = lock.lock().unwrap();
    guard.on_lost(|why| panic!("nothing is lost: {why}"));
    guard.leave_to_expire().unwrap();
    assert_eq!((lock.hold_count(), lock.is_held_by_current_thread()), (0, false));
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(lock.is_locked().unwrap() && lock.try_lock().unwrap().into_option().is_none());
    assert!(answered(|| lock.try_lock_for(TIME_UNIT)).into_option().is_none());
    assert!(lock.force_unlock().unwrap());
    lock.lock().unwrap().unlock().unwrap();
    leaves_nothing(&server);
}

fn threads_that_wait_here_get_it_at_the_end_of_the_lease(kind: Kind) {
    let server = server();
    let client = client(&server);
    let begun = Instant::now();
    let guard = kind.leased(&client, "here", LEASE * 2).lock().unwrap();
    let waiters = [(); 2].map(|()| {
        let lock = kind.leased(&client, "here", LEASE * 2);
        let waiter = spawn(move || {
            let guard = lock.lock().unwrap();
            let since = begun.elapsed();
            guard.unlock().unwrap();
            since
        });
        waiter.wait_asleep();
        waiter
    });
    guard.leave_to_expire().unwrap();
    for waiter in waiters {
        let since = waiter.join();
        assert!(since >= LEASE * 2 * 9 / 10, "{since:?}");
    }
    leaves_nothing(&server);
}

fn an_inner_level_that_is_left_keeps_it_when_the_outer_one_goes(kind: Kind) {
    let server = server();
    let other = another(&server);
    for way in ["unlock", "drop", "end"] {
        let client = client(&server);
        let lock = kind.make(&client, "levels");
        let outer = lock.lock().unwrap();
        kind.leased(&client, "levels", HOUR).lock().unwrap().leave_to_expire().unwrap();
        assert!(outer.is_held() && lock.hold_count() == 1);
        match way {
            "unlock" => outer.unlock().unwrap(),
            "drop" => drop(outer),
            _ => {
                client.shutdown();
                drop(outer);
            }
        }
        drop((lock, client));
        let theirs = kind.make(&other, "levels");
        assert!(theirs.try_lock().unwrap().into_option().is_none(), "{way}");
        assert!(theirs.force_unlock().unwrap());
    }
    leaves_nothing(&server);
}

/// Until the client raises the lease, the server keeps the lock for only 2 s.
fn a_lock_handed_on_by_another_process_is_left_for_its_whole_lease(kind: Kind) {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let held = kind.make(&other, "handed").lock().unwrap();
    let lock = kind.leased(&client, "handed", HOUR);
    let waiter = spawn(move || lock.lock().unwrap().leave_to_expire().unwrap());
    waiter.wait_queued();
    held.unlock().unwrap();
    waiter.join();
    let left = kind.make(&other, "handed").remaining_lease().unwrap().unwrap();
    assert!(left > HOUR - LONG_LEASE, "{left:?}");
}

fn a_lost_lock_is_not_left_to_expire(kind: Kind) {
    let server = server();
    let client = client(&server);
    let lock = kind.leased(&client, "lost", HOUR);
    let guard = lock.lock().unwrap();
    assert!(lock.force_unlock().unwrap());
    assert_eq!(guard.leave_to_expire().unwrap_err().kind(), ErrorKind::LeaseLost);
    lock.lock().unwrap().unlock().unwrap();
    client.shutdown();
    leaves_nothing(&server);
}

/// The call returns an error, although the server has raised the lease to an hour. The client must
/// release this lock.
fn an_error_leaves_it_free_though_the_server_has_made_its_lease_longer(kind: Kind) {
    let server = server();
    let proxy = Proxy::before(&server);
    let (client, other) = (impatient(&proxy.url()).connect().unwrap(), client(&server));
    let theirs = kind.make(&other, "raised");
    let lock = kind.leased(&client, "raised", HOUR);
    // If the waiter sent a request at the moment of the grant, the reply to that request is lost,
    // and the test tries again.
    let leave = move || lock.lock().map_or(Ok(()), |guard| guard.leave_to_expire());
    let error = error_after_a_grant(&theirs, &proxy, leave);
    assert!(error.outcome_unknown(), "{error}");
    theirs.try_lock_for(TIMEOUT).unwrap().into_option().expect("nobody has it").unlock().unwrap();
    leaves_nothing(&server);
}

/// At first the server keeps the lock for 2 s.
fn a_short_lease_that_was_handed_on_is_left_for_no_longer(kind: Kind) {
    let server = server();
    let (client, other) = (watched(&server, TIME_UNIT * 8), another(&server));
    let theirs = kind.make(&other, "short");
    once_within(TIME_UNIT * 18, || {
        let held = theirs.lock().unwrap();
        let lock = kind.make(&client, "short");
        let waiter = spawn(move || lock.lock().unwrap().leave_to_expire());
        waiter.wait_queued();
        let begun = Instant::now();
        held.unlock().unwrap();
        // On a machine that stood still, the lock may be lost.
        let left = waiter.join().map_err(|error| error.kind());
        assert!(matches!(left, Ok(()) | Err(ErrorKind::LeaseLost)), "{left:?}");
        theirs.lock().unwrap().unlock().unwrap();
        if left.is_ok() { begun.elapsed() } else { TIMEOUT }
    });
    leaves_nothing(&server);
}

/// When a thread gets a hold from another thread, both the entry of this thread and the entry of
/// the hold's owner leave the queue.
#[test]
fn a_fair_hold_that_was_passed_and_is_left_leaves_no_place_in_line() {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let mut redis = server.connection();
    let queue = "redisson_lock_queue:{line}";
    let passed = AtomicBool::new(false);
    // Threads can pass a hold only within a few milliseconds. If the machine stands still for that
    // time, the test tries again.
    let until = Instant::now() + TIMEOUT;
    while !passed.load(Ordering::SeqCst) && Instant::now() < until {
        let held = other.fair_lock("line").lock().unwrap();
        let owners = Arc::new(std::sync::Mutex::new(Vec::new()));
        let waiters = [(); 3].map(|()| {
            let (lock, owners) = (client.fair_lock("line"), Arc::clone(&owners));
            let waiter = spawn(move || {
                let guard = lock.lock().unwrap();
                let mut owners = owners.lock().unwrap();
                owners.push(());
                if owners.len() == 3 { guard.leave_to_expire() } else { guard.unlock() }.unwrap();
            });
            waiter.wait_queued();
            waiter
        });
        // The grant names only the waiters that are in the queue at that time.
        wait_until("all stand in line", TIMEOUT, || redis.llen::<_, u64>(queue).unwrap() == 3);
        let before = Commands::so_far(&server).of("publish");
        held.unlock().unwrap();
        waiters.into_iter().for_each(Running::join);
        // The other process's release sends one grant. These threads pass the hold to each other
        // without a message.
        let published = Commands::so_far(&server).of("publish") - before;
        passed.store(published <= 1, Ordering::SeqCst);
        wait_until("nobody stands in line", TIMEOUT, || !redis.exists::<_, bool>(queue).unwrap());
        assert!(client.fair_lock("line").force_unlock().unwrap());
    }
    assert!(passed.into_inner(), "no hold was passed");
}

/// The readers of a process share a hold.
#[test]
fn a_read_hold_left_to_expire_keeps_writers_out_when_the_others_have_gone() {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let lock = client.read_write_lock("shared");
    let first = lock.reader().lock_owned().unwrap();
    let second = lock.reader().with_lease(HOUR).lock_owned().unwrap();
    let third = lock.reader().lock_owned().unwrap();
    second.leave_to_expire().unwrap();
    first.unlock().unwrap();
    drop(third);
    assert!(other.read_write_lock("shared").writer().try_lock().unwrap().into_option().is_none());
    client.shutdown();
    assert!(other.read_write_lock("shared").writer().try_lock().unwrap().into_option().is_none());
    assert!(other.read_write_lock("shared").reader().try_lock().unwrap().into_option().is_some());
}

/// A reader leaves its hold to expire. The longer leases of other readers do not extend this hold.
#[test]
fn a_read_hold_left_to_expire_lasts_for_its_own_lease() {
    let server = server();
    let (client, other) = (client(&server), another(&server));
    let lock = client.read_write_lock("own");
    let watched = lock.reader().lock_owned().unwrap();
    let begun = Instant::now();
    lock.reader().with_lease(LEASE).lock_owned().unwrap().leave_to_expire().unwrap();
    watched.unlock().unwrap();
    let writing = other.read_write_lock("own").writer().try_lock_for(TIMEOUT).unwrap();
    let took = begun.elapsed();
    writing.into_option().expect("it has ended").unlock().unwrap();
    assert!(took >= LEASE * 9 / 10, "{took:?}");
}

/// The writer continues to read. Other threads of the writer's process must not read at the same
/// time.
#[test]
fn no_thread_reads_beside_a_writer_that_left_its_lock_and_reads_on() {
    let server = server();
    let client = client(&server);
    let lock = client.read_write_lock("down");
    let writes = lock.writer().with_lease(HOUR).lock().unwrap();
    let reads = lock.reader().lock().unwrap();
    writes.leave_to_expire().unwrap();
    assert!(lock.reader().try_lock().unwrap().into_option().is_some(), "it reads already");
    let others = lock.clone();
    elsewhere(move || {
        assert!(others.reader().try_lock().unwrap().into_option().is_none());
        assert!(answered(|| others.reader().try_lock_for(TIME_UNIT)).into_option().is_none());
        assert!(others.writer().try_lock().unwrap().into_option().is_none());
    });
    reads.unlock().unwrap();
    elsewhere(move || assert!(lock.reader().try_lock().unwrap().into_option().is_none()));
}
