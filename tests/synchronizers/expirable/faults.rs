//! Permits with leases under faults.

use super::*;

/// Whether the request takes permits with the lease of [`impatient`] clients.
fn acquires(bytes: &[u8], name: &str) -> bool {
    contains(bytes, "EVAL") && contains(bytes, &channel(name)) && contains(bytes, "\r\n60000\r\n")
}

fn releases(bytes: &[u8], name: &str) -> bool {
    contains(bytes, "EVAL")
        && contains(bytes, &channel(name))
        && !contains(bytes, "\r\n60000\r\n")
        && !contains(bytes, "redlatch_request")
}

fn on_acquire(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| acquires(bytes, name));
}

fn on_release(proxy: &Proxy, name: &'static str, times: usize, action: Action) {
    proxy.on(Direction::Request, times, action, move |bytes| releases(bytes, name));
}

/// Returns a client that connects through a proxy. The client's connection is open, and the server
/// has its scripts.
fn behind(proxy: &Proxy) -> Client {
    crate::common::behind(proxy, |client| drop(semaphore(client, "warm", 1).acquire().unwrap()))
}

#[test]
fn an_acquire_whose_reply_or_request_is_lost_takes_permits_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "acquired", 5);
    for (round, action) in [Action::LoseReply, Action::LoseRequest].into_iter().enumerate() {
        on_acquire(&proxy, "acquired", 1, action);
        let permits = semaphore.acquire_many(2).unwrap();
        assert_eq!(proxy.fired(), round + 1);
        stays(&server, "acquired", 3, 2);
        assert!(permits.iter().all(ExpirablePermit::is_held));
        permits.into_iter().for_each(|permit| permit.release().unwrap());
        stays(&server, "acquired", 5, 0);
    }
    on_acquire(&proxy, "acquired", 1, Action::LoseReply);
    assert!(semaphore.try_acquire_many(6).unwrap().into_option().is_none());
    semaphore.add_permits(5).unwrap();
    stays(&server, "acquired", 10, 0);
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
        assert!(error.outcome_unknown());
        proxy.release();
        stays(&server, "unknown", 5, 0);
    }
    // The release is lost as well, repeatedly.
    on_acquire(&proxy, "unknown", 2, Action::LoseReply);
    on_release(&proxy, "unknown", 3, Action::LoseReply);
    on_release(&proxy, "unknown", 2, Action::LoseRequest);
    assert!(semaphore.acquire_many(3).is_err());
    proxy.wait_fired(fired + 7, TIMEOUT);
    stays(&server, "unknown", 5, 0);
}

#[test]
fn a_copy_that_arrives_late_takes_nothing_that_stays() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "late", 5);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&seen);
    proxy.on(Direction::Request, 1, Action::LoseRequest, move |bytes| {
        let is = acquires(bytes, "late");
        if is {
            *copy.lock().unwrap() = bytes.to_vec();
        }
        is
    });
    let mut permits = semaphore.acquire_many(3).unwrap();
    let request = seen.lock().unwrap().clone();
    let mut redis = server.connection();
    let mut arrives = || drop(redis.req_packed_command(&request).unwrap());
    // The late request arrives when all permits are free, when some permits are free, and when none
    // are free.
    arrives();
    assert_eq!(stored(&server, "late"), (2, 3));
    permits.pop().unwrap().release().unwrap();
    arrives();
    assert_eq!(stored(&server, "late"), (3, 2), "one was counted twice");
    drop(permits);
    wait_until("they are back", TIMEOUT, || stored(&server, "late") == (5, 0));
    arrives();
    // The request was sent twice, so the client undoes it as long as a copy may arrive.
    stays(&server, "late", 5, 0);
    // The server refuses a request for lack of permits, and a copy of the request arrives when
    // there are enough permits.
    let copy = Arc::clone(&seen);
    proxy.on(Direction::Request, 1, Action::LoseRequest, move |bytes| {
        let is = acquires(bytes, "late");
        if is {
            *copy.lock().unwrap() = bytes.to_vec();
        }
        is
    });
    assert!(semaphore.try_acquire_many(7).unwrap().into_option().is_none());
    let request = seen.lock().unwrap().clone();
    semaphore.add_permits(2).unwrap();
    drop(redis.req_packed_command(&request).unwrap());
    stays(&server, "late", 7, 0);
}

#[test]
fn a_release_is_made_once_if_requests_or_replies_are_lost() {
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
        for way in ["drop", "release", "by id"] {
            let permit = semaphore.acquire().or_else(|error| {
                // This is the first call on a connection that fell silent during a drop.
                is_clear(&error, "released", "did not answer in time");
                wait_until("it is back", TIMEOUT, || stored(&server, "released") == (5, 0));
                semaphore.acquire()
            });
            let permit = permit.unwrap();
            wait_until("it is out", TIMEOUT, || stored(&server, "released") == (4, 1));
            on_release(&proxy, "released", times, action);
            let released = match way {
                "drop" => {
                    drop(permit);
                    Ok(())
                }
                "release" => permit.release(),
                _ => semaphore.release(&permit.into_id()),
            };
            // A release in an earlier round may also be lost, and is repeated in the background.
            if let Err(error) = released {
                assert!(error.outcome_unknown(), "{way} {action:?}: {error}");
            }
            fired += times;
            proxy.wait_fired(fired, TIMEOUT);
            proxy.release();
            stays(&server, "released", 5, 0);
        }
    }
}

#[test]
fn each_change_of_the_number_is_made_once_though_its_reply_is_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "changed", 5);
    let id = semaphore.acquire().unwrap().into_id();
    let on_request = || {
        proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| {
            contains(bytes, "redlatch_request:{changed}")
        });
    };
    on_request();
    semaphore.add_permits(2).unwrap();
    assert_eq!(stored(&server, "changed"), (6, 1));
    on_request();
    semaphore.set_permits(3).unwrap();
    assert_eq!(stored(&server, "changed"), (2, 1));
    on_request();
    semaphore.update_lease_time(&id, LONG_LEASE).unwrap();
    on_request();
    assert!(!semaphore.try_set_permits(9).unwrap());
    on_request();
    assert!(semaphore.delete().unwrap());
    on_request();
    assert!(semaphore.try_set_permits(9).unwrap());
    assert_eq!(proxy.fired(), 6);
    stays(&server, "changed", 9, 0);
}

/// The guard requests a longer lease and never gets the reply. Meanwhile the permit is lost.
#[test]
fn a_permit_whose_longer_lease_is_in_doubt_when_it_is_lost_comes_back() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "doubt", 1);
    let permit = semaphore.with_lease(LEASE).acquire().unwrap();
    proxy.on(Direction::Request, 1, Action::Silence, |bytes| contains(bytes, "{doubt}:timeout"));
    let error = semaphore.update_lease_time(&permit.id(), LONG_LEASE).unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert_eq!(permit.state(), HoldState::Lost(LostReason::LeaseExpired));
    assert_eq!(proxy.fired(), 1);
    stays(&server, "doubt", 1, 0);
}

#[test]
fn a_permit_that_ends_while_its_release_is_on_its_way_comes_back_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let other = crate::common::client(&server).expirable_semaphore("ending");
    let semaphore = semaphore(&client, "ending", 1);
    for found in [false, true] {
        let permit = semaphore.with_lease(LEASE).acquire().unwrap();
        let ends = Instant::now() + LEASE;
        proxy.freeze();
        let release = spawn(move || permit.release().unwrap_err());
        wait_until("the lease ends", TIMEOUT, || Instant::now() > ends);
        let next = found.then(|| other.try_acquire_for(TIMEOUT).unwrap().into_option().unwrap());
        proxy.thaw();
        let error = release.join();
        assert!(
            error.kind() == ErrorKind::LeaseLost || error.outcome_unknown(),
            "{found}: {error}"
        );
        assert!(next.iter().all(ExpirablePermit::is_held));
        assert_eq!(stored(&server, "ending").1, i64::from(found));
        drop(next);
        stays(&server, "ending", 1, 0);
    }
}

/// The error must not say that another client took the permit away, although the server's reply is
/// the same in both cases.
#[test]
fn a_release_that_comes_after_the_lease_says_that_it_ran_out() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).response_timeout(TIMEOUT).connections(1);
    let semaphore = semaphore(&client.connect().unwrap(), "late", 1);
    let permit = semaphore.with_lease(LEASE).acquire().unwrap();
    proxy.on(Direction::Request, 1, Action::DelayReply(Duration::ZERO), |bytes| {
        let is_it = releases(bytes, "late");
        if is_it {
            // A server ends a lease up to a millisecond late.
            thread::sleep(LEASE + TIME_UNIT / 10);
        }
        is_it
    });
    let error = permit.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    assert!(error.to_string().contains("its lease ran out"), "{error}");
    assert_eq!(proxy.fired(), 1);
    stays(&server, "late", 1, 0);
}

#[test]
fn replies_lost_at_any_moment_lose_no_permit_and_make_none() {
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let clients = [0, 1].map(|at: usize| impatient(&proxies[at].url()).connect().unwrap());
    let _kept = semaphore(&clients[0], "most", 3);
    let stop = Arc::new(AtomicBool::new(false));
    let errors = Arc::new(AtomicU64::new(0));
    let grants = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..6_usize)
        .map(|at| {
            let semaphore = clients[at % 2].expirable_semaphore("most");
            let (stop, errors, grants) =
                (Arc::clone(&stop), Arc::clone(&errors), Arc::clone(&grants));
            let mut redis = server.connection();
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let need = 1 + u32::try_from(at % 3).unwrap();
                    match semaphore.acquire_many(need) {
                        Ok(permits) => {
                            let inside: i64 = redis.incr("inside", need).unwrap();
                            assert!(inside <= 3, "{inside} are inside");
                            let () = redis.decr("inside", need).unwrap();
                            grants.fetch_add(1, Ordering::SeqCst);
                            drop(permits);
                        }
                        Err(error) => {
                            assert!(error.kind().is_server_trouble(), "{error}");
                            errors.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            })
        })
        .collect();
    let salt = Random::new().next();
    let seen = Arc::new(AtomicU64::new(1));
    for proxy in &proxies {
        for action in [Action::LoseReply, Action::LoseRequest] {
            let seen = Arc::clone(&seen);
            proxy.on(Direction::Request, usize::MAX, action, move |bytes| {
                let at = seen.fetch_add(1, Ordering::SeqCst) ^ salt;
                contains(bytes, "EVAL") && at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59 == 0
            });
        }
    }
    // The threads contend for this time, and try many interleavings.
    thread::sleep(TIME_UNIT * 30);
    let so_far = || {
        let fired: usize = proxies.iter().map(Proxy::fired).sum();
        (grants.load(Ordering::SeqCst), fired)
    };
    wait_until("some were granted, and some lost", TIMEOUT, || so_far().0 > 20 && so_far().1 > 20);
    proxies.iter().for_each(Proxy::clear_rules);
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    println!("{:?} grants and lost, {errors:?} errors", so_far());
    stays(&server, "most", 3, 0);
}

#[test]
fn guards_are_lost_and_waiters_go_on_when_the_servers_data_is_gone() {
    let server = server();
    // The first client notices the loss at its next renewal. The second client notices it when it
    // connects to the restarted server.
    for (round, client) in
        [("flush", watched(&server, SHORT_LEASE * 2)), ("restart", client(&server))]
    {
        let semaphore = semaphore(&client, "gone", 1);
        let permit = semaphore.acquire().unwrap();
        let lost = on_lost(&permit);
        let waiting = semaphore.clone();
        let waiter = spawn(move || {
            loop {
                match waiting.acquire() {
                    Err(error) if error.is_transient() => thread::sleep(TIME_UNIT / 10),
                    permit => return permit.unwrap(),
                }
            }
        });
        waiter.wait_asleep();
        if round == "flush" {
            let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
        } else {
            server.kill();
            server.restart_empty();
        }
        // The client notices the loss long before a third of the longer lease is over.
        assert_eq!(lost.recv_timeout(TIMEOUT / 2).unwrap(), LostReason::Revoked, "{round}");
        assert_eq!(permit.release().unwrap_err().kind(), ErrorKind::LeaseLost, "{round}");
        wait_until("it answers", TIMEOUT, || semaphore.set_permits(1).is_ok());
        let permit = waiter.join();
        assert!(permit.is_held(), "{round}");
        permit.release().unwrap();
        stays(&server, "gone", 1, 0);
        assert!(semaphore.delete().unwrap());
    }
}

#[test]
fn a_key_that_is_no_semaphore_is_left_as_it_is() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.hset("hash", "field", "precious").unwrap();
    let () = redis.set("text", "precious").unwrap();
    let () = redis.set("set", 3).unwrap();
    let () = redis.sadd(timeouts("set"), "precious").unwrap();
    let id: PermitId = TEXT_ID.parse().unwrap();
    for name in ["hash", "text", "set"] {
        let semaphore = client.expirable_semaphore(name);
        let errors = [
            semaphore.delete().map(drop),
            semaphore.set_permits(1),
            semaphore.acquire().map(drop),
            semaphore.try_acquire().map(drop),
            Err(refused(|| semaphore.try_acquire_for(TIME_UNIT))),
            semaphore.permits().map(drop),
        ];
        for error in errors {
            let error = error.unwrap_err();
            is_clear(&error, name, "use another name");
            assert!(!error.to_string().contains("precious"), "{error}");
        }
        if name == "set" {
            is_clear(&semaphore.release(&id).unwrap_err(), name, "use another name");
            is_clear(
                &semaphore.update_lease_time(&id, LONG_LEASE).unwrap_err(),
                name,
                "another name",
            );
            is_clear(&semaphore.remaining_lease(&id).unwrap_err(), name, "another name");
        } else {
            is_clear(&semaphore.add_permits(1).unwrap_err(), name, "use another name");
            assert_eq!(semaphore.release(&id).unwrap_err().kind(), ErrorKind::NotHeld);
        }
    }
    assert_eq!(redis.hget::<_, _, String>("hash", "field").unwrap(), "precious");
    assert_eq!(redis.get::<_, String>("text").unwrap(), "precious");
    assert_eq!(redis.get::<_, i64>("set").unwrap(), 3);
    assert!(redis.sismember::<_, _, bool>(timeouts("set"), "precious").unwrap());
    let error = client.expirable_semaphore("").acquire().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    // If the key is overwritten while a permit is held, the permit is lost.
    let short = watched(&server, SHORT_LEASE);
    let permit = semaphore(&short, "over", 1).acquire().unwrap();
    let lost = on_lost(&permit);
    let () = redis.set(timeouts("over"), "precious").unwrap();
    assert_eq!(lost.recv_timeout(TIMEOUT).unwrap(), LostReason::Revoked);
    drop(permit);
}

#[test]
fn without_memory_no_permit_is_taken_held_ones_stay_and_released_ones_return() {
    let server = server();
    let client = watched(&server, SHORT_LEASE);
    let semaphore = semaphore(&client, "memory", 5);
    let (kept, back) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
    let limit = |bytes: &str| {
        let mut redis = server.connection();
        let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).query(&mut redis).unwrap();
    };
    limit("1");
    is_clear(&semaphore.acquire().map(drop).unwrap_err(), "memory", "no permit was taken");
    let begun = Instant::now();
    while begun.elapsed() < SHORT_LEASE * 3 / 2 {
        assert!(kept.is_held(), "{:?}", kept.state());
        thread::sleep(TIME_UNIT / 4);
    }
    // Another client releases the permit by its id.
    let known = watched(&server, SHORT_LEASE).expirable_semaphore("memory");
    known.update_lease_time(&back.id(), LONG_LEASE).unwrap();
    back.release().unwrap();
    assert_eq!(semaphore.available_permits().unwrap(), 4);
    limit("0");
    kept.release().unwrap();
    stays(&server, "memory", 5, 0);
}

/// All rights. Each round takes one right away.
const ALL_RIGHTS: [&str; 3] = ["+@all", "~*", "&*"];
const DENIED: [&str; 18] = [
    "-time",
    "-get",
    "-set",
    "-del",
    "-incrby",
    "-decrby",
    "-pttl",
    "-pexpire",
    "-zadd",
    "-zcard",
    "-zcount",
    "-zmscore",
    "-zrange",
    "-zrem",
    "-zremrangebyscore",
    "-zscore",
    "-publish",
    "-evalsha",
];

#[test]
fn a_change_without_a_right_is_made_as_a_whole_or_not_at_all() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    let pool = client.expirable_semaphore("pool");
    let mut redis = server.connection();
    let live: PermitId = TEXT_ID.parse().unwrap();
    let lapsed = PermitId::from_bytes([7; 16]);
    // After this call, the client knows the server's time, and the server knows the scripts.
    drop(pool.try_acquire().unwrap());
    pool.set_permits(1).unwrap();
    type Ask = fn(&ExpirableSemaphore, &PermitId) -> Result<(), Error>;
    // The result of each call if three permits are free, one permit is taken, and the lease of a
    // fifth permit has ended.
    let changes: [(Ask, (i64, i64)); 6] = [
        (
            |pool, _| {
                pool.try_acquire_many(4).map(|got| {
                    got.into_option().unwrap().into_iter().for_each(|it| {
                        let _ = it.into_id();
                    });
                })
            },
            (0, 5),
        ),
        (
            |pool, _| pool.try_acquire_many(5).map(|got| assert!(got.into_option().is_none())),
            (4, 1),
        ),
        (|pool, id| pool.release(id), (5, 0)),
        (|pool, id| pool.update_lease_time(id, LONG_LEASE), (3, 2)),
        (|pool, _| pool.set_permits(9), (7, 2)),
        (|pool, _| pool.delete().map(drop), (0, 0)),
    ];
    let mut refused = 0;
    for denied in DENIED {
        for (at, (ask, after)) in changes.iter().enumerate() {
            let () = redis.del(&["pool", &timeouts("pool")]).unwrap();
            let () = redis.set("pool", 3).unwrap();
            let () = redis.zadd(timeouts("pool"), lapsed.as_bytes(), 1_000).unwrap();
            let ends = now() + 60_000;
            let () = redis.zadd(timeouts("pool"), live.as_bytes(), ends).unwrap();
            user.set(&[denied]);
            let outcome = ask(&pool, &live);
            user.set(&ALL_RIGHTS);
            let (free, out) = stored(&server, "pool");
            match outcome {
                Ok(()) => assert_eq!((free, out), *after, "{denied}, change {at}"),
                Err(error) => {
                    is_clear(&error, "pool", "access rights (ACL)");
                    assert!(error.to_string().contains("an expirable semaphore needs"), "{error}");
                    // The refused call may have freed permits whose leases had ended. No permit is
                    // lost by such a change.
                    assert_eq!(free + out, 5, "{denied}, change {at}: {error}");
                    assert!(out == 2 || (free, out) == (4, 1), "{denied}, change {at}: {out}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 25, "{refused}");
}

#[test]
fn permits_released_without_a_right_come_back_once_when_the_right_is_back() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    let semaphore = semaphore(&client, "pool", 9);
    for denied in ["-incrby", "-zrem", "-zmscore", "-evalsha"] {
        let (dropped, released) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
        user.set(&[denied]);
        drop(dropped);
        is_clear(&released.release().unwrap_err(), "pool", "in the background");
        // Meanwhile the client tries repeatedly.
        thread::sleep(TIME_UNIT);
        assert_eq!(stored(&server, "pool"), (7, 2), "{denied}");
        user.set(&ALL_RIGHTS);
        wait_until("they are back", TIMEOUT, || stored(&server, "pool") == (9, 0));
    }
    stays(&server, "pool", 9, 0);
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    user.set(&["-@all"]);
    let error = client.expirable_semaphore("rights").acquire().map(drop).unwrap_err().to_string();
    user.set_as_said(&error, "an expirable semaphore", "rights");
    user.set(&[&format!("~{}", timeouts("rights"))]);
    let client = watched_by(&user, SHORT_LEASE);
    let semaphore = semaphore(&client, "rights", 2);
    let all = semaphore.acquire_many(2).unwrap();
    thread::sleep(SHORT_LEASE * 3 / 2);
    assert!(all.iter().all(ExpirablePermit::is_held));
    let waiting = user.client().expirable_semaphore("rights");
    let waiter = spawn(move || waiting.acquire().unwrap().release().unwrap());
    wait_subscribed(&server, &channel("rights"));
    waiter.wait_asleep();
    drop(all);
    waiter.join();
    semaphore.add_permits(1).unwrap();
    semaphore.set_permits(1).unwrap();
    let id = semaphore.with_lease(LONG_LEASE).acquire().unwrap().into_id();
    semaphore.update_lease_time(&id, TIME_UNIT).unwrap();
    assert!(semaphore.try_acquire_for(TIMEOUT).unwrap().into_option().is_some());
    assert!(semaphore.remaining_lease(&id).unwrap().is_none());
    assert_eq!(semaphore.permits().unwrap(), 1);
    assert!(semaphore.delete().unwrap());
}

fn watched_by(user: &User, lease: Duration) -> Client {
    Client::builder(user.url()).watchdog_timeout(lease).connect().unwrap()
}

#[test]
fn a_permit_whose_reply_comes_after_a_shutdown_goes_back() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let semaphore = semaphore(&client, "crossed", 1);
    on_acquire(&proxy, "crossed", 1, Action::HoldReply);
    let acquirer = {
        let semaphore = semaphore.clone();
        spawn(move || semaphore.acquire().map(drop))
    };
    proxy.wait_fired(1, TIMEOUT);
    let ending = spawn(move || client.shutdown());
    // A call for no permits sends no request.
    wait_until("the client has ended for its callers", TIMEOUT, || {
        semaphore.acquire_many(0).is_err()
    });
    proxy.release();
    assert_eq!(acquirer.join().unwrap_err().kind(), ErrorKind::ShutDown);
    ending.join();
    stays(&server, "crossed", 1, 0);
}
