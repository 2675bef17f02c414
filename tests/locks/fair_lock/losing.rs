//! Clients that die or lose the lock.

use super::*;

#[test]
fn a_lease_that_ends_lets_the_next_in() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    // The lease is so long that the waiters are in the queue before it ends.
    let (begun, lease) = (Instant::now(), LEASE * 5);
    let guard = one.fair_lock("lapsed").with_lease(lease).lock().unwrap();
    let mut line = Line::new(&server);
    line.add(&other.fair_lock("lapsed"));
    line.add(&one.fair_lock("lapsed"));
    assert_eq!(line.join(), [0, 1]);
    let took = begun.elapsed();
    assert!(took + TIME_UNIT / 5 >= lease, "{took:?}");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    leaves_nothing(&server, "lapsed");
}

#[test]
fn a_passed_hold_whose_lease_ends_lets_the_next_in() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut passes = 0;
    for _ in 0..5 {
        let lock = one.fair_lock("passed on").with_lease(LEASE);
        let first = one.fair_lock("passed on").with_lease(LEASE);
        let guard = other.fair_lock("passed on").lock().unwrap();
        // The first thread passes the lock to the second thread, which keeps it for longer than the
        // lease.
        let first = spawn(move || {
            drop(first.lock().unwrap());
        });
        wait_queue(&server, "passed on", 1);
        let kept = Arc::new(AtomicBool::new(false));
        let (has, done) = (Arc::new(AtomicBool::new(false)), Arc::clone(&kept));
        let mine = Arc::clone(&has);
        let second = spawn(move || {
            let guard = lock.lock().unwrap();
            mine.store(true, Ordering::SeqCst);
            wait_until("the test goes on", TIMEOUT, || done.load(Ordering::SeqCst));
            assert!(guard.unlock().is_err());
        });
        let mut line = Line::new(&server);
        wait_queue(&server, "passed on", 2);
        line.add(&other.fair_lock("passed on"));
        guard.unlock().unwrap();
        first.join();
        wait_until("the second has it", TIMEOUT, || has.load(Ordering::SeqCst));
        // If the hold was passed, the queue has one entry more until the release.
        passes += usize::from(queue(&server, "passed on").len() == 2);
        assert_eq!(line.join(), [0]);
        kept.store(true, Ordering::SeqCst);
        second.join();
        leaves_nothing(&server, "passed on");
    }
    println!("{passes} passes");
}

#[test]
fn a_passed_hold_that_is_taken_away_lets_the_next_in() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for forces in [&one, &other] {
        woken_by_message(|| {
            let guard = other.fair_lock("forced").lock().unwrap();
            let first = one.fair_lock("forced");
            let first = spawn(move || drop(first.lock().unwrap()));
            wait_queue(&server, "forced", 1);
            let (has, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            let (mine, kept) = (Arc::clone(&has), Arc::clone(&done));
            let lock = one.fair_lock("forced");
            let second = spawn(move || {
                let guard = lock.lock().unwrap();
                mine.store(true, Ordering::SeqCst);
                wait_until("the test goes on", TIMEOUT, || kept.load(Ordering::SeqCst));
                assert!(guard.unlock().is_err());
            });
            wait_queue(&server, "forced", 2);
            let mut line = Line::new(&server);
            line.add(&other.fair_lock("forced"));
            guard.unlock().unwrap();
            first.join();
            wait_until("the second has it", TIMEOUT, || has.load(Ordering::SeqCst));
            assert!(forces.fair_lock("forced").force_unlock().unwrap());
            assert_eq!(line.join(), [0]);
            done.store(true, Ordering::SeqCst);
            second.join();
        });
        leaves_nothing(&server, "forced");
    }
}

#[test]
fn forced_unlocks_at_any_moment_leave_no_hold_without_a_guard() {
    let server = server();
    let (ours, theirs) = (client(&server), client(&server));
    let end = Arc::new(AtomicBool::new(false));
    let grants = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6)
        .map(|_| {
            let (lock, end) = (ours.fair_lock("taken away"), Arc::clone(&end));
            let grants = Arc::clone(&grants);
            spawn(move || {
                while !end.load(Ordering::SeqCst) {
                    // The client reads the grants in a different order than the server made them. A
                    // thread that reads late must not take the seat from a newer hold.
                    let guard =
                        lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("nobody keeps it");
                    assert!(lock.hold_count() <= 1, "nobody was asked");
                    grants.fetch_add(1, Ordering::SeqCst);
                    let _ = guard.unlock();
                    assert!(!lock.is_held_by_current_thread(), "held without a guard");
                }
            })
        })
        .collect();
    let lock = theirs.fair_lock("taken away");
    let mut random = Random::new();
    // The threads contend for this time, and try many interleavings.
    let until = Instant::now() + TIME_UNIT * 30;
    wait_until("it was taken from many", TIMEOUT, || {
        for _ in 0..10 {
            lock.force_unlock().unwrap();
            thread::sleep(Duration::from_micros(random.below(300)));
        }
        grants.load(Ordering::SeqCst) > 100 && Instant::now() > until
    });
    end.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    leaves_nothing(&server, "taken away");
}

#[test]
fn a_killed_holders_lock_goes_to_the_first_in_line() {
    let server = server();
    let mut holder = process("holder", &server, "killed", 9);
    let (one, other) = (client(&server), client(&server));
    let mut line = Line::new(&server);
    for client in [&one, &other, &one] {
        line.add(&client.fair_lock("killed"));
    }
    holder.sigkill();
    assert_eq!(line.join(), [0, 1, 2]);
    leaves_nothing(&server, "killed");
}

#[test]
fn a_killed_waiter_costs_the_others_nothing() {
    let server = server();
    for (round, dead) in [0, 2, 4].into_iter().enumerate() {
        let name = format!("dead {dead}");
        let clients = [client(&server), client(&server)];
        let guard = clients[0].fair_lock(&name).lock().unwrap();
        let mut line = Line::new(&server);
        let (mut victim, mut owner) = (None, String::new());
        for at in 0..5 {
            if at == dead {
                victim = Some(process("slow", &server, &name, round));
                owner = queue(&server, &name).remove(at);
            } else {
                line.add(&clients[at % 2].fair_lock(&name));
            }
        }
        let mut victim = victim.unwrap();
        wait_subscribed(&server, &own_channel(&owner));
        victim.sigkill();
        // The server notices the death only a moment later, perhaps after the release.
        wait_deaf(&server, &own_channel(&owner));
        let granted = lapses(&server, &name, || {
            guard.unlock().unwrap();
            assert_eq!(line.join(), [0, 1, 2, 3]);
        });
        assert_eq!(granted, 0, "{dead}: it was granted the lock");
        leaves_nothing(&server, &name);
    }
    assert!(served(&server).is_empty());
}

#[test]
fn a_dead_head_costs_the_other_waiters_few_requests() {
    let server = server();
    let client = client(&server);
    let guard = client.fair_lock("rate").lock().unwrap();
    let mut victim = process("slow", &server, "rate", 0);
    let mut line = Line::new(&server);
    for _ in 0..4 {
        line.add(&client.fair_lock("rate"));
    }
    // Each waiter sends another request when its client has subscribed.
    wait_subscribed(&server, &own_channel(&queue(&server, "rate").remove(4)));
    line.threads.iter().for_each(Running::wait_queued);
    victim.sigkill();
    let before = Commands::so_far(&server).scripts();
    let begun = Instant::now();
    guard.unlock().unwrap();
    assert_eq!(line.join(), [0, 1, 2, 3]);
    let took = begun.elapsed();
    let sent = Commands::so_far(&server).scripts() - before;
    println!("{took:?}, {sent} scripts");
    // There are at most two scripts for each of the other waiters, and one keep-alive request.
    assert!(sent <= 4 * 2 + 2, "{sent} scripts in {took:?}");
    leaves_nothing(&server, "rate");
}

#[test]
fn a_stopped_head_costs_the_others_its_provisional_lease() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.fair_lock("stalls").lock().unwrap();
    let mut worker = process("waiter", &server, "stalls", 0);
    let mut line = Line::new(&server);
    line.add(&other.fair_lock("stalls"));
    // Scripts treat a waiter whose client has not subscribed yet as dead.
    wait_subscribed(&server, &own_channel(&queue(&server, "stalls")[0]));
    worker.sigstop();
    let begun = Instant::now();
    guard.unlock().unwrap();
    assert_eq!(line.join(), [0]);
    // The wait took no longer than the short lease of a grant by message. The full lease is a
    // minute.
    let took = begun.elapsed();
    assert!(took >= PROVISIONAL, "{took:?}");
    // The waiter reads its grant only now. The grant has ended, so the waiter does not enter, and
    // gets a new entry in the queue.
    let guard = one.fair_lock("stalls").lock().unwrap();
    worker.sigcont();
    wait_queue(&server, "stalls", 1);
    assert!(guard.is_held());
    assert!(served(&server).is_empty());
    guard.unlock().unwrap();
    worker.expect_line("released", TIMEOUT);
    leaves_nothing(&server, "stalls");
}

#[test]
fn many_stopped_processes_ahead_cost_no_more_than_one() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = one.fair_lock("many stall").lock().unwrap();
    let mut workers: Vec<_> = (0..6).map(|at| process("slow", &server, "many stall", at)).collect();
    let mut line = Line::new(&server);
    line.add(&other.fair_lock("many stall"));
    for owner in &queue(&server, "many stall")[..6] {
        wait_subscribed(&server, &own_channel(owner));
    }
    workers.iter_mut().for_each(|worker| worker.sigstop());
    // When the first waiter's grant ends, the second waiter may not have been silent for long
    // enough to be skipped.
    let granted = lapses(&server, "many stall", || {
        guard.unlock().unwrap();
        assert_eq!(line.join(), [0]);
    });
    assert!((1..=2).contains(&granted), "{granted} were granted the lock in vain");
    // The waiters come back to the head.
    let guard = one.fair_lock("many stall").lock().unwrap();
    let mut behind = Line::new(&server);
    behind.add(&other.fair_lock("many stall"));
    workers.iter_mut().for_each(|worker| worker.sigcont());
    wait_queue(&server, "many stall", 7);
    assert!(served(&server).is_empty());
    guard.unlock().unwrap();
    for worker in &mut workers {
        worker.expect_line("released", TIMEOUT);
    }
    assert_eq!(behind.join(), [0]);
    leaves_nothing(&server, "many stall");
}

#[test]
fn a_process_that_comes_back_names_its_waiters_once() {
    const THREADS: usize = 150;
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let guard = other.fair_lock("thousands").lock().unwrap();
    let mut line = Line::new(&server);
    for _ in 0..THREADS {
        line.add(&one.fair_lock("thousands"));
    }
    let mut redis = server.connection();
    let order = wait_queue(&server, "thousands", THREADS);
    let own = own_channel(&order[0]);
    for loses_queue in [false, true] {
        let before = received(&mut redis);
        // The count starts here. Some waiters may send a request before the new connection has
        // subscribed.
        let asked = Commands::so_far(&server).scripts();
        if loses_queue {
            let keys = [queue_key("thousands"), timeouts_key("thousands")];
            let () = redis.del(&keys).unwrap();
        } else {
            let () =
                redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec(&mut redis).unwrap();
            wait_subscribed(&server, &own);
        }
        wait_until("all are back", TIMEOUT, || {
            let are_back = redis.llen::<_, usize>(queue_key("thousands")).unwrap() == THREADS;
            let all_asked = Commands::so_far(&server).scripts() - asked >= THREADS as u64;
            are_back && (loses_queue || all_asked)
        });
        let sent = received(&mut redis) - before;
        assert!(sent < THREADS as u64 * 1_500, "{loses_queue}: {sent} bytes");
        assert_eq!(wait_queue(&server, "thousands", THREADS), order);
    }
    guard.unlock().unwrap();
    assert_eq!(line.join(), (0..THREADS).collect::<Vec<_>>());
    leaves_nothing(&server, "thousands");
}

#[test]
fn a_hold_that_was_granted_by_message_lasts() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for lease in [None, Some(LONG_LEASE / 2)] {
        let guard = one.fair_lock("lasts").lock().unwrap();
        let lock = other.fair_lock("lasts");
        let lock = lease.map_or_else(|| lock.clone(), |lease| lock.with_lease(lease));
        let waiter = spawn(move || {
            let guard = lock.lock().unwrap();
            thread::sleep(PROVISIONAL + TIME_UNIT * 3);
            (guard.is_held(), guard.unlock())
        });
        wait_queue(&server, "lasts", 1);
        guard.unlock().unwrap();
        let mut redis = server.connection();
        let raised = lease.unwrap_or(LONG_LEASE) - TIME_UNIT * 10;
        wait_until("it has its lease", TIMEOUT, || {
            let left: i64 = redis.pttl("lasts").unwrap();
            left > i64::try_from(raised.as_millis()).unwrap()
        });
        let (held, unlocked) = waiter.join();
        assert!(held, "{lease:?}");
        unlocked.unwrap();
        leaves_nothing(&server, "lasts");
    }
}

#[test]
fn a_lease_shorter_than_the_provisional_one_ends_in_time() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    once_within(PROVISIONAL, || {
        let guard = one.fair_lock("short").lock().unwrap();
        let lock = other.fair_lock("short").with_lease(TIME_UNIT * 3);
        let done = Arc::new(AtomicBool::new(false));
        let kept = Arc::clone(&done);
        let holder = spawn(move || {
            let guard = lock.lock().unwrap();
            let had = Instant::now();
            wait_until("the test goes on", TIMEOUT, || kept.load(Ordering::SeqCst));
            (had, guard.is_held())
        });
        wait_queue(&server, "short", 1);
        let mut line = Line::new(&server);
        line.add(&one.fair_lock("short"));
        let begun = Instant::now();
        guard.unlock().unwrap();
        assert_eq!(line.join(), [0]);
        let took = begun.elapsed();
        done.store(true, Ordering::SeqCst);
        let (had, is_held) = holder.join();
        // A thread that wakes after the end of its lease gets the lock again after the waiter.
        assert!(!is_held || had >= begun + TIME_UNIT * 3);
        leaves_nothing(&server, "short");
        took
    });
}

#[test]
fn a_hand_over_costs_a_request_and_a_release() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    // After this, the server knows the scripts, and the client has subscribed.
    one.fair_lock("requests").lock().unwrap().unlock().unwrap();
    let guard = one.fair_lock("requests").lock().unwrap();
    let waits = other.fair_lock("requests");
    assert!(elsewhere(move || answered(|| waits.try_lock_for(TIME_UNIT)).into_option().is_none()));
    wait_queue(&server, "requests", 0);
    guard.unlock().unwrap();
    // On a busy machine a keep-alive request may come between, or the lease may be raised.
    let sent = (0..10).map(|_| {
        let guard = one.fair_lock("requests").lock().unwrap();
        let before = Commands::so_far(&server).scripts();
        let mut line = Line::new(&server);
        line.add(&other.fair_lock("requests"));
        guard.unlock().unwrap();
        line.join();
        Commands::so_far(&server).scripts() - before
    });
    assert_eq!(sent.min(), Some(3));
    leaves_nothing(&server, "requests");
}

#[test]
fn a_process_that_was_stopped_gets_its_place_back() {
    let server = server();
    let (one, other) = (quick(&server), quick(&server));
    for place in [0, 1] {
        let name = format!("stopped {place}");
        let () = server.connection().del("served").unwrap();
        let guard = one.fair_lock(&name).lock().unwrap();
        let before = (place == 1).then(|| {
            let lock = other.fair_lock(&name);
            let before = spawn(move || lock.lock().unwrap().unlock().unwrap());
            wait_queue(&server, &name, 1);
            before
        });
        let mut worker = process("waiter", &server, &name, 7);
        let lock = other.fair_lock(&name);
        let (has, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (mine, kept) = (Arc::clone(&has), Arc::clone(&done));
        let behind = spawn(move || {
            let guard = lock.lock().unwrap();
            mine.store(true, Ordering::SeqCst);
            wait_until("the test goes on", TIMEOUT, || kept.load(Ordering::SeqCst));
            guard.unlock().unwrap();
        });
        wait_queue(&server, &name, 2 + place);
        let mut line = Line::new(&server);
        line.add(&one.fair_lock(&name));
        let last = queue(&server, &name).pop();
        worker.sigstop();
        thread::sleep(FAIR_WAIT * 3 / 2);
        // While the lock is held, a stopped waiter costs no time and is not dropped.
        assert_eq!(queue(&server, &name).len(), 3 + place);
        guard.unlock().unwrap();
        if let Some(before) = before {
            before.join();
        }
        wait_until("the one behind it has it", TIMEOUT, || has.load(Ordering::SeqCst));
        worker.sigcont();
        // The reply to the keep-alive request tells the dropped waiter of its loss, and the waiter
        // gets an entry before the last waiter.
        wait_until("it is back", TIMEOUT, || queue(&server, &name).len() == 2);
        assert_eq!(queue(&server, &name).pop(), last, "it came earlier");
        assert!(line.served.lock().unwrap().is_empty());
        done.store(true, Ordering::SeqCst);
        behind.join();
        worker.expect_line("released", TIMEOUT);
        assert_eq!(line.join(), [0]);
        assert_eq!(served(&server), [7]);
        leaves_nothing(&server, &name);
    }
}

#[test]
fn a_waiter_keeps_its_place_however_long_it_waits() {
    let server = server();
    let (one, other) = (quick(&server), quick(&server));
    let guard = one.fair_lock("patient").lock().unwrap();
    let mut line = Line::new(&server);
    for client in [&one, &other, &one, &other] {
        line.add(&client.fair_lock("patient"));
    }
    let before = queue(&server, "patient");
    let (scripts, begun) = (Commands::so_far(&server).scripts(), Instant::now());
    thread::sleep(FAIR_WAIT * 3);
    let sent = Commands::so_far(&server).scripts() - scripts;
    // Each of the two clients sends a keep-alive request every third of this time.
    let times = begun.elapsed().as_millis() / FAIR_WAIT.as_millis() + 1;
    assert!(u128::from(sent) <= 2 * times * 3 + 4, "{sent} scripts");
    assert_eq!(wait_queue(&server, "patient", 4), before);
    let mut redis = server.connection();
    wait_until("their time begins anew", TIMEOUT, || {
        let scores: Vec<(String, f64)> =
            redis.zrange_withscores(timeouts_key("patient"), 0, -1).unwrap();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
        let now = (seconds * 1_000 + micros / 1_000) as f64;
        let wait = FAIR_WAIT.as_millis() as f64;
        assert!(scores.iter().all(|(_, score)| *score <= now + wait), "{scores:?}");
        scores.iter().all(|(_, score)| *score > now)
    });
    drop(guard);
    assert_eq!(line.join(), [0, 1, 2, 3]);
    leaves_nothing(&server, "patient");
}
