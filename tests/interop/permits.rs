//! Both kinds of semaphores, and latches. Each release wakes as many threads of the other library
//! as can continue.

use super::*;

/// A lease whose end a test waits for.
const LEASE: Duration = Duration::from_millis(6 * TIME_UNIT.as_millis() as u64);
/// The names of the waiting threads of each library.
const WAITERS: [&str; 4] = ["a", "b", "c", "d"];

/// Waits until a Redisson client has subscribed to this semaphore's channel and all its threads
/// have sent another request. The threads then sleep, or are about to sleep.
fn wait_until_redisson_waits(server: &Server, channel: &str, scripts: u64) {
    wait_subscribed(server, channel);
    wait_until("they have asked", TIMEOUT, || {
        Commands::so_far(server).scripts() >= scripts + 2 * WAITERS.len() as u64
    });
}

#[test]
fn a_semaphores_release_wakes_as_many_of_the_others_threads_as_it_has_permits_for() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let semaphore = client.semaphore("pool");
        assert!(java.says("main", "trySetPermits semaphore pool 0"));
        // If the server does not know a script, the script is sent twice.
        assert!(!java.says("main", "tryAcquire semaphore pool"));
        // redlatch returns permits, and Redisson's threads get them.
        let scripts = Commands::so_far(&server).scripts();
        for thread in WAITERS {
            java.tell(thread, "acquire semaphore pool");
        }
        wait_until_redisson_waits(&server, "redisson_sc:{pool}", scripts);
        semaphore.release_forgotten(3).unwrap();
        let mut woken = Vec::new();
        wait_until("three come in", TIMEOUT, || {
            let came = |thread: &&str| java.reply_within(thread, TIME_UNIT / 10).is_some();
            woken.extend(WAITERS.into_iter().filter(came));
            woken.len() == 3
        });
        assert_eq!(semaphore.available_permits().unwrap(), 0);
        let left = WAITERS.into_iter().find(|thread| !woken.contains(thread)).unwrap();
        assert_eq!(java.reply_within(left, TIME_UNIT), None);
        semaphore.release_forgotten(1).unwrap();
        assert_eq!(java.reply(left), "ok");
        // Redisson returns permits, and redlatch's threads get them.
        woken_by_message(|| {
            let (sender, came) = mpsc::channel();
            let waiting: Vec<_> = (0..4)
                .map(|_| {
                    let (semaphore, sender) = (semaphore.clone(), sender.clone());
                    let waits = spawn(move || {
                        semaphore.acquire().unwrap().forget();
                        sender.send(()).unwrap();
                    });
                    waits.wait_queued();
                    waits
                })
                .collect();
            java.run("main", "release semaphore pool 3");
            (0..3).for_each(|_| came.recv_timeout(TIMEOUT).unwrap());
            assert_eq!(semaphore.available_permits().unwrap(), 0);
            assert!(came.try_recv().is_err());
            java.run("main", "release semaphore pool");
            came.recv_timeout(TIMEOUT).unwrap();
            waiting.into_iter().for_each(Running::join);
        });
    });
}

#[test]
fn a_request_for_several_permits_waits_until_the_other_has_given_back_as_many() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let semaphore = client.semaphore("pool");
        assert!(semaphore.try_set_permits(3).unwrap());
        let two = semaphore.acquire_many(2).unwrap();
        assert!(!java.says("a", "tryAcquire semaphore pool 2 200"));
        java.tell("a", "acquire semaphore pool 3");
        wait_subscribed(&server, "redisson_sc:{pool}");
        two.release().unwrap();
        assert_eq!(java.reply("a"), "ok");
        assert!(answered(|| semaphore.try_acquire_for(TIME_UNIT * 2)).into_option().is_none());
        woken_by_message(|| {
            let needs = semaphore.clone();
            let waits = spawn(move || needs.acquire_many(3).unwrap().release().unwrap());
            waits.wait_queued();
            java.run("a", "release semaphore pool");
            assert!(!waits.is_finished());
            java.run("a", "release semaphore pool 2");
            waits.join();
            java.run("a", "acquire semaphore pool 3");
        });
        java.run("a", "release semaphore pool 3");
        assert_eq!(semaphore.available_permits().unwrap(), 3);
    });
}

#[test]
fn a_permit_with_a_lease_comes_back_by_itself_to_the_others_waiter() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let semaphore = client.expirable_semaphore("pool");
        let named = "permitExpirableSemaphore pool";
        assert!(semaphore.try_set_permits(1).unwrap());
        let lease = LEASE.as_millis();
        // A holder in either library dies without a release of its permit, so the permit is free
        // when its lease ends.
        let begun = Instant::now();
        let _id = java.ask("a", &format!("acquire {named} {lease}"));
        let permit = semaphore.acquire().unwrap();
        assert!(begun.elapsed() >= lasts(LEASE), "{:?}", begun.elapsed());
        assert_eq!(java.ask("b", &format!("tryAcquire {named} 200")), "none");
        permit.release().unwrap();
        let begun = Instant::now();
        let permit = semaphore.with_lease(LEASE).acquire().unwrap();
        let id = java.ask("a", &format!("acquire {named} 60000"));
        assert!(begun.elapsed() >= lasts(LEASE), "{:?}", begun.elapsed());
        assert!(!permit.is_held());
        assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::LeaseLost);
        assert!(semaphore.try_acquire().unwrap().into_option().is_none());
        java.run("a", &format!("release {named} {id}"));
        // A renewed permit of redlatch stays taken.
        let renewing = watched(&server, SHORT_LEASE);
        let kept = renewing.expirable_semaphore("pool").acquire().unwrap();
        let wait = (SHORT_LEASE * 3 / 2).as_millis();
        assert_eq!(java.ask("a", &format!("tryAcquire {named} {wait}")), "none");
        kept.check(Duration::ZERO).unwrap();
        kept.release().unwrap();
    });
}

#[test]
fn a_permit_with_a_lease_that_is_given_back_wakes_the_others_waiter() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let semaphore = client.expirable_semaphore("pool");
        let named = "permitExpirableSemaphore pool";
        assert!(semaphore.try_set_permits(2).unwrap());
        let held = semaphore.with_lease(LONG_LEASE).acquire_many(2).unwrap();
        assert_eq!(java.ask("main", &format!("tryAcquire {named}")), "none");
        let scripts = Commands::so_far(&server).scripts();
        for thread in WAITERS {
            java.tell(thread, &format!("acquire {named} 60000"));
        }
        wait_until_redisson_waits(&server, "redisson_sc:{pool}", scripts);
        // redlatch returns two permits. Each permit wakes one thread, and these two threads wake
        // the other threads.
        held.into_iter().for_each(|permit| permit.release().unwrap());
        let mut ids = Vec::new();
        wait_until("two come in", TIMEOUT, || {
            let came = |thread| java.reply_within(thread, TIME_UNIT / 10);
            ids.extend(WAITERS.into_iter().filter_map(came));
            ids.len() == 2
        });
        assert_eq!(semaphore.acquired_permits().unwrap(), 2);
        for _ in 0..2 {
            let id = ids.pop().unwrap();
            java.run("main", &format!("release {named} {id}"));
        }
        wait_until("the others come in", TIMEOUT, || {
            let came = |thread| java.reply_within(thread, TIME_UNIT / 10);
            ids.extend(WAITERS.into_iter().filter_map(came));
            ids.len() == 2
        });
        woken_by_message(|| {
            let waiting = semaphore.clone();
            let waits = spawn(move || waiting.acquire().unwrap().release().unwrap());
            waits.wait_queued();
            let id = ids.pop().unwrap();
            java.run("main", &format!("release {named} {id}"));
            waits.join();
            ids.push(java.ask("main", &format!("acquire {named} 60000")));
        });
        // From Redisson 3.17 on, each library can return the other library's permit by its id.
        let id = ids.pop().unwrap();
        if version == Version::New {
            semaphore.release(&id.parse().unwrap()).unwrap();
            assert!(!java.says("main", &format!("tryRelease {named} {id}")));
            let ours = semaphore.acquire().unwrap();
            assert!(java.says("main", &format!("tryRelease {named} {}", ours.id())));
            assert_eq!(ours.release().unwrap_err().kind(), ErrorKind::LeaseLost);
        } else {
            assert!(!semaphore.try_release(&id.parse().unwrap()).unwrap());
            java.run("main", &format!("release {named} {id}"));
        }
    });
}

#[test]
fn a_latch_opens_for_all_waiters_of_both_whoever_counts_last() {
    beside_redisson(|version| {
        let server = server();
        let client = client(&server);
        let mut java = Redisson::of(version, &server);
        let latch = client.count_down_latch("gate");
        for ours_last in [true, false] {
            // The test may run a few rounds: a redlatch waiter sends its own next request only
            // after seconds.
            woken_by_message(|| {
                assert!(java.says("main", "trySetCount latch gate 2"));
                assert!(!latch.try_set_count(5).unwrap());
                let scripts = Commands::so_far(&server).of("get");
                for thread in WAITERS {
                    java.tell(thread, "await latch gate");
                }
                wait_subscribed(&server, "redisson_countdownlatch__channel__{gate}");
                wait_until("they have asked", TIMEOUT, || {
                    Commands::so_far(&server).of("get") >= scripts + 2 * WAITERS.len() as u64
                });
                let here: Vec<_> = (0..3)
                    .map(|_| {
                        let latch = latch.clone();
                        let waits = spawn(move || latch.wait().unwrap());
                        waits.wait_queued();
                        waits
                    })
                    .collect();
                // The first of two count-downs wakes no thread.
                if ours_last {
                    java.run("main", "countDown latch gate");
                } else {
                    latch.count_down().unwrap();
                }
                assert_eq!(java.ask("main", "getCount latch gate"), "1");
                assert!(here.iter().all(|waits| !waits.is_finished()));
                assert_eq!(java.reply_within(WAITERS[0], TIME_UNIT / 10), None);
                if ours_last {
                    latch.count_down().unwrap();
                } else {
                    java.run("main", "countDown latch gate");
                }
                here.into_iter().for_each(Running::join);
                for thread in WAITERS {
                    assert_eq!(java.reply(thread), "ok");
                }
                assert_eq!(latch.count().unwrap(), 0);
            });
        }
        // This wait ends before the latch opens.
        assert!(latch.try_set_count(1).unwrap());
        assert!(!java.says("a", "await latch gate 200"));
        assert!(answered(|| latch.wait_for(TIME_UNIT * 2)).timed_out());
    });
}
