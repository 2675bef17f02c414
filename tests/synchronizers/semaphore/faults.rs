//! Semaphores under faults.

use super::*;

#[test]
fn an_acquire_whose_reply_or_request_is_lost_takes_permits_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "acquired", 5);
    for (round, action) in [Action::LoseReply, Action::LoseRequest].into_iter().enumerate() {
        on_acquire(&proxy, "acquired", 1, action);
        let permit = semaphore.acquire_many(2).unwrap();
        assert_eq!(proxy.fired(), round + 1);
        stays(&server, "acquired", 3);
        permit.release().unwrap();
        stays(&server, "acquired", 5);
    }
}

#[test]
fn a_lost_reply_of_a_refusal_is_a_refusal_and_takes_nothing_later() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "refused", 1);
    on_acquire(&proxy, "refused", 1, Action::LoseReply);
    assert!(semaphore.try_acquire_many(2).unwrap().into_option().is_none());
    assert_eq!(proxy.fired(), 1);
    semaphore.release_forgotten(3).unwrap();
    stays(&server, "refused", 4);
}

#[test]
fn an_acquire_of_unknown_outcome_is_an_error_and_the_permits_come_back() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "unknown", 5);
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 2),
        (Action::LoseRequest, 2),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        on_acquire(&proxy, "unknown", times, action);
        let error = semaphore.acquire_many(3).map(drop).unwrap_err();
        fired += times;
        assert_eq!(proxy.fired(), fired);
        is_clear(&error, "unknown", "given back in the background");
        is_clear(&error, "unknown", "for up to four minutes");
        proxy.release();
        stays(&server, "unknown", 5);
    }
    // The release is lost as well, repeatedly.
    on_acquire(&proxy, "unknown", 2, Action::LoseReply);
    on_release(&proxy, "unknown", 3, Action::LoseReply);
    on_release(&proxy, "unknown", 2, Action::LoseRequest);
    assert!(semaphore.acquire_many(3).is_err());
    proxy.wait_fired(fired + 7, TIMEOUT);
    stays(&server, "unknown", 5);
    drop(semaphore.acquire_many(5).unwrap());
}

#[test]
fn names_that_share_the_record_of_requests_lose_no_permit() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let [plain, braced] = ["shared", "{shared}"].map(|name| semaphore(&client, name, 5));
    drop((plain.acquire().unwrap(), braced.acquire().unwrap()));
    stays(&server, "shared", 5);
    // The permit is taken, but the client does not know that. The request that undoes this is sent
    // after a request for the other name.
    let of_plain = |bytes: &[u8]| contains(bytes, "EVAL") && contains(bytes, "$6\r\nshared\r\n");
    proxy.on(Direction::Request, 1, Action::LoseReply, of_plain);
    proxy.on(Direction::Request, 3, Action::LoseRequest, of_plain);
    assert!(plain.acquire().is_err());
    drop(braced.acquire().unwrap());
    proxy.wait_fired(4, TIMEOUT);
    stays(&server, "shared", 5);
    stays(&server, "{shared}", 5);
}

#[test]
fn permits_are_given_back_once_if_requests_or_replies_are_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "released", 5);
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 1),
        (Action::LoseRequest, 1),
        (Action::LoseReply, 4),
        (Action::LoseRequest, 4),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        for way in ["drop", "release", "without a permit"] {
            let permit = semaphore.acquire_many(2).or_else(|error| {
                // This is the first call on a connection that fell silent during a drop.
                is_clear(&error, "released", "did not answer in time");
                wait_permits(&server, "released", 5);
                semaphore.acquire_many(2)
            });
            let permit = permit.unwrap();
            wait_permits(&server, "released", 3);
            on_release(&proxy, "released", times, action);
            let released = match way {
                "drop" => {
                    drop(permit);
                    Ok(())
                }
                "release" => permit.release(),
                _ => {
                    permit.forget();
                    semaphore.release_forgotten(2)
                }
            };
            if let Err(error) = released {
                is_clear(&error, "released", "given back in the background");
            }
            fired += times;
            proxy.wait_fired(fired, TIMEOUT);
            proxy.release();
            stays(&server, "released", 5);
        }
    }
}

#[test]
fn each_other_change_is_made_once_though_its_reply_is_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = client.semaphore("changed");
    let lose = || {
        proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| {
            contains(bytes, "EVAL") && contains(bytes, "changed")
        });
    };
    semaphore.release_forgotten_if_exists(1).unwrap();
    lose();
    assert!(semaphore.try_set_permits(3).unwrap(), "it was set by this call");
    lose();
    semaphore.add_permits(4).unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 7);
    lose();
    assert!(semaphore.release_forgotten_if_exists(1).unwrap());
    lose();
    assert_eq!(semaphore.drain_permits().unwrap(), 8);
    assert_eq!(proxy.fired(), 4);
    stays(&server, "changed", 0);
}

#[test]
fn a_frozen_server_is_an_error_in_time_and_its_late_changes_are_undone() {
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let semaphore = semaphore(&client, "frozen", 10);
    let (released, dropped) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let mut permits = 10;
    for round in 0..3 {
        server.pause();
        let begun = Instant::now();
        let threads: Vec<_> = (0..MANY_THREADS)
            .map(|_| {
                let semaphore = semaphore.clone();
                spawn(move || semaphore.acquire_many(2).map(drop).unwrap_err())
            })
            .collect();
        for thread in threads {
            is_clear(&thread.join(), "frozen", "the server");
        }
        // Only one thread waits for the server's reply, and all threads get the result.
        assert!(begun.elapsed() < TIMEOUT);
        if round == 0 {
            server.resume();
            stays(&server, "frozen", 8);
            server.pause();
        } else if round == 1 {
            let error = semaphore.release_forgotten(1).unwrap_err();
            is_clear(&error, "frozen", "permit");
            // If the error says so, the client will give the permit back in the background, which
            // adds one permit.
            permits += i64::from(error.to_string().contains("in the background"));
        }
        server.resume();
        if round == 1 {
            thread::sleep(TIME_UNIT);
        }
        wait_until("it answers", TIMEOUT, || semaphore.available_permits().is_ok());
    }
    drop(dropped);
    released.release().unwrap();
    // The permits of the last round's requests may still be on their way back.
    stays(&server, "frozen", permits);
}

/// Closes all connections of this type, as an administrator would.
fn kill(redis: &mut redis::Connection, kind: &str) {
    let () =
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", kind, "SKIPME", "yes"]).query(redis).unwrap();
}

#[test]
fn connections_killed_at_any_moment_lose_no_permit_and_make_none() {
    let server = server();
    // The proxies close connections, but not those with which the test counts.
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let urls = [proxies[0].url(), proxies[1].url()];
    let (grants, errors) = contend(urls, &server, |random| {
        let until = Instant::now() + TIME_UNIT * 30;
        while Instant::now() < until {
            let at = usize::try_from(random.below(2)).unwrap();
            proxies[at].cut_all();
            thread::sleep(Duration::from_micros(random.below(20_000)));
        }
        true
    });
    println!("{grants} grants, {errors} errors");
    stays(&server, "most", 3);
}

#[test]
fn replies_lost_at_any_moment_lose_no_permit_and_make_none() {
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let urls = [proxies[0].url(), proxies[1].url()];
    let fired = || proxies.iter().map(Proxy::fired).sum::<usize>();
    let (salt, seen) = (Random::new().next(), Arc::new(AtomicU64::new(1)));
    let until = Instant::now() + TIME_UNIT * 30;
    let (grants, errors) = contend(urls, &server, |_| {
        proxies.iter().for_each(Proxy::clear_rules);
        for proxy in &proxies {
            for action in [Action::LoseReply, Action::LoseRequest] {
                let seen = Arc::clone(&seen);
                proxy.on(Direction::Request, usize::MAX, action, move |bytes| {
                    let at = seen.fetch_add(1, Ordering::SeqCst) ^ salt;
                    contains(bytes, "EVAL") && at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59 == 0
                });
            }
        }
        thread::sleep(TIME_UNIT * 5);
        proxies.iter().for_each(Proxy::clear_rules);
        Instant::now() > until && fired() > 20
    });
    println!("{grants} grants, {errors} errors, {} lost", fired());
    stays(&server, "most", 3);
}

#[test]
fn a_release_in_the_subscribers_absence_wakes_the_waiter() {
    let server = server();
    let (waits, releases) = (client(&server), client(&server).semaphore("absence"));
    let mut redis = server.connection();
    for round in 0..6 {
        woken_by_message(|| {
            let semaphore = waits.semaphore("absence");
            let waiter = spawn(move || semaphore.acquire().unwrap().forget());
            wait_subscribed(&server, &channel("absence"));
            waiter.wait_asleep();
            match round % 3 {
                0 => {
                    kill(&mut redis, "pubsub");
                    releases.release_forgotten(1).unwrap();
                }
                1 => {
                    releases.release_forgotten(1).unwrap();
                    kill(&mut redis, "pubsub");
                }
                // If the KILL is fast enough, the client gets the message and the end of the
                // connection at the same time.
                _ => {
                    let () = redis::pipe()
                        .cmd("CLIENT")
                        .arg(&["KILL", "TYPE", "pubsub"])
                        .ignore()
                        .incr("absence", 1)
                        .ignore()
                        .publish(channel("absence"), "1")
                        .ignore()
                        .query(&mut redis)
                        .unwrap();
                }
            }
            waiter.join();
        });
    }
    stays(&server, "absence", 0);
}

#[test]
fn a_waiter_gets_on_when_the_servers_data_is_gone() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for way in ["FLUSHALL", "restart"] {
        let semaphore = semaphore(&one, "emptied", 2);
        let held = semaphore.acquire_many(2).unwrap();
        let waiters: Vec<_> = (0..4_usize)
            .map(|at| {
                let semaphore = [&one, &other][at % 2].semaphore("emptied");
                let waiter = spawn(move || semaphore.acquire().unwrap().forget());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        wait_subscribed(&server, &channel("emptied"));
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        held.forget();
        // No permit may appear without a release.
        thread::sleep(TIME_UNIT * 2);
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        let again = one.semaphore("emptied");
        again.add_permits(4).unwrap();
        waiters.into_iter().for_each(Running::join);
        stays(&server, "emptied", 0);
        let () = server.connection().del("emptied").unwrap();
    }
}

#[test]
fn a_key_that_is_no_semaphore_is_left_as_it_is() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.hset("hash", "field", "precious").unwrap();
    let () = redis.set("text", "precious").unwrap();
    let () = redis.set("zeroes", "007").unwrap();
    let () = redis.set("sign", "+7").unwrap();
    for name in ["hash", "text", "zeroes", "sign"] {
        let semaphore = client.semaphore(name);
        let errors = [
            semaphore.delete().map(drop).unwrap_err(),
            semaphore.try_set_permits(1).map(drop).unwrap_err(),
            semaphore.set_permits(1).unwrap_err(),
            semaphore.acquire().map(drop).unwrap_err(),
            semaphore.try_acquire().map(drop).unwrap_err(),
            refused(|| semaphore.try_acquire_for(TIME_UNIT)),
            semaphore.add_permits(1).unwrap_err(),
            semaphore.drain_permits().map(drop).unwrap_err(),
            semaphore.release_forgotten(1).unwrap_err(),
            semaphore.release_forgotten_if_exists(1).map(drop).unwrap_err(),
            semaphore.available_permits().map(drop).unwrap_err(),
        ];
        for error in errors {
            is_clear(&error, name, "use another name");
            assert!(!error.to_string().contains("precious"), "{error}");
        }
    }
    assert_eq!(redis.hget::<_, _, String>("hash", "field").unwrap(), "precious");
    assert_eq!(redis.get::<_, String>("text").unwrap(), "precious");
}

#[test]
fn something_else_under_the_requests_key_is_an_error_and_changes_nothing() {
    let server = server();
    let semaphore = semaphore(&client(&server), "requests", 3);
    let mut redis = server.connection();
    let permit = semaphore.acquire().unwrap();
    let keys: Vec<String> = redis.keys("redlatch_request:*").unwrap();
    assert_eq!(keys.len(), 1);
    let () = redis.del(&keys[0]).unwrap();
    let () = redis.rpush(&keys[0], "no string").unwrap();
    assert_eq!(semaphore.acquire().map(drop).unwrap_err().kind(), ErrorKind::WrongType);
    assert!(semaphore.release_forgotten(1).is_err());
    // The client repeats the release until it succeeds.
    drop(permit);
    assert_eq!(redis.get::<_, i64>("requests").unwrap(), 2);
    let () = redis.del(&keys[0]).unwrap();
    stays(&server, "requests", 3);
}

#[test]
fn without_memory_no_permit_is_taken_and_released_ones_come_back_later() {
    let server = server();
    let client = client(&server);
    let semaphore = semaphore(&client, "memory", 5);
    let limit = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    let (dropped, released) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    limit("1");
    is_clear(&semaphore.acquire().map(drop).unwrap_err(), "memory", "maxmemory");
    is_clear(&semaphore.try_acquire().map(drop).unwrap_err(), "memory", "maxmemory");
    is_clear(&semaphore.release_forgotten(1).unwrap_err(), "memory", "no permit was given back");
    drop(dropped);
    is_clear(&released.release().unwrap_err(), "memory", "given back in the background");
    limit("0");
    stays(&server, "memory", 5);
    semaphore.acquire_many(5).unwrap().release().unwrap();
    stays(&server, "memory", 5);
}

#[test]
fn a_release_that_was_passed_in_part_is_not_said_to_be_none() {
    let server = server();
    let (client, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    for round in 0..8 {
        let name = &format!("in part {round}");
        let semaphore = semaphore(&client, name, 3);
        let all = other.semaphore(name).acquire_many(3).unwrap();
        let (first, second) = (semaphore.clone(), semaphore.clone());
        let mut limits = server.connection();
        let mut limit = move |bytes: &str| {
            let () =
                redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).query(&mut limits).unwrap();
        };
        let first = spawn(move || {
            let permit = first.acquire_many(3).unwrap();
            // Sleep for less than a turn of the process. The next thread in the queue notices that
            // there are no permits.
            thread::sleep(Duration::from_millis(2));
            limit("1");
            permit.forget();
            first.release_forgotten(3)
        });
        // The first thread must be in the queue, because a sleeping thread may still wait for the
        // reply to its first request. During that request, the second thread may get a permit
        // before it, and then the first thread cannot get three.
        wait_subscribed(&server, &channel(name));
        let second = spawn(move || second.acquire().map(Permit::forget));
        second.wait_asleep();
        all.release().unwrap();
        let released = first.join();
        let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).query(&mut redis).unwrap();
        if let Err(error) = released
            && error.to_string().contains("no permit was given back")
        {
            semaphore.release_forgotten(3).unwrap();
        }
        // The second thread may have failed because the server had no memory.
        if second.join().is_ok() {
            semaphore.release_forgotten(1).unwrap();
        }
        stays(&server, name, 3);
    }
}

#[test]
fn a_flush_of_the_scripts_is_not_noticed() {
    let server = server();
    let urls = [server.url(), server.url()];
    let (grants, errors) = contend(urls, &server, |_| {
        let mut redis = server.connection();
        let until = Instant::now() + TIME_UNIT * 10;
        while Instant::now() < until {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
            thread::yield_now();
        }
        true
    });
    assert_eq!(errors, 0, "of {grants}");
    stays(&server, "most", 3);
}

#[test]
fn without_the_right_to_publish_permits_come_back_all_the_same() {
    let server = server();
    let mut user = User::new(&server, "mute");
    let semaphore = semaphore(&user.client(), "mute", 2);
    // The user loses this right after the first request. A user who never had this right would get
    // no permit.
    user.set(&["-publish"]);
    semaphore.acquire_many(2).unwrap().release().unwrap();
    drop(semaphore.acquire().unwrap());
    assert!(semaphore.release_forgotten_if_exists(1).unwrap());
    stays(&server, "mute", 3);
}

#[test]
fn a_process_that_dies_takes_its_permits_with_it_and_no_more() {
    let server = server();
    let client = client(&server);
    let first = semaphore(&client, "most", 3);
    let mut worker =
        Worker::spawn_test("semaphore::contention::worker", "contender", &[&server.url(), "7"]);
    worker.expect_line("starts", TIMEOUT);
    thread::sleep(TIME_UNIT);
    worker.sigkill();
    let free = AtomicI64::new(-1);
    wait_until("nothing changes any more", TIMEOUT, || {
        let now = first.available_permits().unwrap();
        thread::sleep(TIME_UNIT);
        free.swap(now, Ordering::SeqCst) == now
    });
    let free = first.available_permits().unwrap();
    assert!((0..=3).contains(&free), "{free}");
    first.add_permits(3 - free).unwrap();
    drop(first.try_acquire_many_for(3, TIMEOUT).unwrap().into_option().expect("all are there"));
}

#[test]
fn permits_are_set_anew_and_a_semaphore_is_removed() {
    let server = server();
    let client = client(&server);
    let semaphore = client.semaphore("anew");
    assert!(!semaphore.delete().unwrap());
    let heard = messages(&server, "redisson_sc:*", || {
        semaphore.set_permits(4).unwrap();
        let permit = semaphore.acquire().unwrap();
        semaphore.set_permits(1).unwrap();
        assert_eq!(semaphore.available_permits().unwrap(), 1);
        semaphore.set_permits(0).unwrap();
        permit.release().unwrap();
        assert_eq!(semaphore.available_permits().unwrap(), 1, "what was out comes back on top");
    });
    let heard: Vec<_> = heard.iter().map(|(_, free)| free.as_str()).collect();
    assert_eq!(heard, ["4", "1", "1"]);
    let out = semaphore.acquire().unwrap();
    assert!(semaphore.delete().unwrap() && !semaphore.delete().unwrap());
    assert!(!server.connection().exists::<_, bool>("anew").unwrap());
    assert!(semaphore.try_acquire().unwrap().into_option().is_none());
    // Waiters continue to wait until there are permits again.
    let waiting = crate::common::client(&server).semaphore("anew");
    let waiter = spawn(move || waiting.acquire_many(2).unwrap().forget());
    wait_subscribed(&server, &channel("anew"));
    waiter.wait_asleep();
    assert!(!semaphore.delete().unwrap());
    out.release().unwrap();
    semaphore.set_permits(3).unwrap();
    waiter.join();
    stays(&server, "anew", 1);
}

#[test]
fn many_permits_are_waited_for_until_a_deadline_or_a_cancel() {
    let server = server();
    let semaphore = semaphore(&client(&server), "even", 3);
    let permit = semaphore.acquire_many_cancellable(2, &CancelToken::new()).unwrap();
    assert_eq!(permit.permits(), 2);
    let begun = Instant::now();
    assert!(
        answered(|| semaphore.acquire_many_within(2, begun + TIME_UNIT)).into_option().is_none()
    );
    assert!(begun.elapsed() >= TIME_UNIT);
    let token = CancelToken::new();
    let (waiting, cancel) = (semaphore.clone(), token.clone());
    let waiter = spawn(move || waiting.acquire_many_cancellable(2, &cancel).map(drop));
    waiter.wait_asleep();
    token.cancel();
    assert_eq!(waiter.join().unwrap_err().kind(), ErrorKind::Cancelled);
    drop(permit);
    let late = Instant::now() + TIMEOUT;
    assert_eq!(semaphore.acquire_many_within(3, late).unwrap().into_option().unwrap().permits(), 3);
    stays(&server, "even", 3);
}

#[test]
fn drained_permits_of_unknown_outcome_come_back() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    for (name, permits) in [("drained", 5), ("drained below", -3)] {
        let semaphore = client.semaphore(name);
        semaphore.add_permits(permits).unwrap();
        for action in [Action::LoseReply, Action::Silence] {
            let before = proxy.fired();
            let times = if matches!(action, Action::Silence) { 1 } else { 2 };
            on_acquire(&proxy, name, times, action);
            let error = semaphore.drain_permits().unwrap_err();
            is_clear(&error, name, "given back in the background");
            assert_eq!(proxy.fired(), before + times);
            proxy.cut_all();
            stays(&server, name, permits);
        }
        assert_eq!(semaphore.drain_permits().unwrap(), permits);
    }
}
