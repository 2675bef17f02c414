//! Replies that are lost or late.

use super::*;

#[test]
fn a_lost_reply_of_an_acquire_is_a_grant_all_the_same() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("acquired");
    let mut redis = server.connection();
    for (round, action) in [Action::LoseReply, Action::LoseRequest].into_iter().enumerate() {
        on_acquire(&proxy, "acquired", 1, action);
        let guard = lock.lock().unwrap();
        assert_eq!(proxy.fired(), round + 1);
        assert!(guard.is_held());
        assert_eq!(holder(&mut redis, "acquired").unwrap().1, "1");
        guard.unlock().unwrap();
        assert_eq!(holder(&mut redis, "acquired"), None);
    }
}

#[test]
fn a_lost_reply_of_a_waiters_acquire_is_a_grant_all_the_same() {
    let server = server();
    let proxy = Proxy::before(&server);
    // The reply is lost and its connection breaks. A busy machine may be slow to open another
    // connection.
    let client = Client::builder(&proxy.url()).connections(1).connect().unwrap();
    warm_up(&client);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "waited", LONG_LEASE);
    let lock = client.reentrant_lock("waited");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    wait_subscribed(&server, &channel("waited"));
    waiter.wait_asleep();
    on_acquire(&proxy, "waited", 1, Action::LoseReply);
    release_as_redisson(&mut redis, "waited", &channel("waited"));
    waiter.join();
    assert_eq!(proxy.fired(), 1);
    assert_eq!(holder(&mut redis, "waited"), None);
}

#[test]
fn an_acquire_whose_replies_are_all_lost_is_an_error_and_leaves_no_hold() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    on_acquire(&proxy, "unknown", 2, Action::LoseReply);
    let error = client.reentrant_lock("unknown").lock().map(drop).unwrap_err();
    assert_eq!(proxy.fired(), 2);
    is_clear(&error, "unknown", "released in the background");
    wait_free(&server, "unknown", TIMEOUT);
}

#[test]
fn an_acquire_whose_reply_is_lost_before_the_way_is_closed_leaves_no_hold() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    for fired in 1.. {
        // The previous round broke the connection.
        let is_open = || client.reentrant_lock("closed").is_locked().is_ok();
        wait_until("the way is open", TIMEOUT, is_open);
        on_acquire(&proxy, "closed", 1, Action::LoseReply);
        // The client cannot send the request again, but the server has run it.
        proxy.refuse();
        let error = client.reentrant_lock("closed").lock().map(drop).unwrap_err();
        assert_eq!(proxy.fired(), fired);
        assert!(error.kind().is_server_trouble(), "{error}");
        // The renewer's own connection is open, so the client releases the lock over that
        // connection at once.
        let was_held = holder(&mut server.connection(), "closed").is_some();
        proxy.accept();
        wait_free(&server, "closed", TIMEOUT);
        if was_held {
            break;
        }
    }
}

/// There are more holds than fit into one packet.
#[test]
fn however_many_holds_are_dropped_in_an_outage_all_of_them_are_released() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let guards: Vec<_> = (0..300)
        .map(|at| client.reentrant_lock(&format!("dropped:{at}")).lock().unwrap())
        .collect();
    // No connection works.
    proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, |_| true);
    proxy.cut_all();
    drop(guards);
    // Meanwhile the client tries repeatedly, in vain.
    proxy.wait_fired(4, TIMEOUT);
    proxy.clear_rules();
    let mut redis = server.connection();
    wait_until("all holds are released", TIMEOUT, || {
        let left: Vec<String> = redis.keys("dropped:*").unwrap();
        left.is_empty()
    });
}

#[test]
fn an_acquire_whose_reply_is_lost_before_the_server_refuses_leaves_no_hold() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    // The server becomes a replica between the two requests.
    let mut redis = server.connection();
    let turned = Arc::new(AtomicBool::new(false));
    let turn = Arc::clone(&turned);
    let seen = AtomicBool::new(false);
    let url = server.url();
    proxy.on(Direction::Request, 2, Action::LoseReply, move |bytes| {
        let acquire = takes(bytes) && contains(bytes, "refused");
        if acquire && seen.swap(true, Ordering::SeqCst) {
            // The second request reaches a server that refuses writes. The test shortens the lease,
            // so that the script has to write.
            let mut redis = redis::Client::open(&*url).unwrap().get_connection().unwrap();
            let () = redis.pexpire("refused", 30_000).unwrap();
            let () = redis::cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).query(&mut redis).unwrap();
            turn.store(true, Ordering::SeqCst);
            return false;
        }
        acquire
    });
    let error = client.reentrant_lock("refused").lock().map(drop).unwrap_err();
    is_clear(&error, "refused", "replica");
    assert!(turned.load(Ordering::SeqCst));
    assert!(holder(&mut redis, "refused").is_some(), "the test shows nothing");
    let () = redis::cmd("REPLICAOF").arg(&["NO", "ONE"]).query(&mut redis).unwrap();
    wait_free(&server, "refused", TIMEOUT);
}

#[test]
fn an_acquire_that_is_not_answered_in_time_is_an_error_and_leaves_no_hold() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("unanswered");
    for (round, action) in [Action::HoldReply, Action::Silence].into_iter().enumerate() {
        on_acquire(&proxy, "unanswered", 1, action);
        let begun = Instant::now();
        let error = lock.lock().map(drop).unwrap_err();
        assert_eq!(proxy.fired(), round + 1);
        is_clear(&error, "unanswered", "did not answer in time");
        assert!(begun.elapsed() >= SHORT_TIMEOUT);
        wait_free(&server, "unanswered", TIMEOUT);
        proxy.release();
        // The half-open connection has been replaced.
        lock.lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn an_acquire_that_a_stalled_server_runs_late_leaves_no_hold() {
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let names: Vec<_> = (0..6).map(|at| format!("stalled:{at}")).collect();
    for _ in 0..3 {
        // The connections are open and the server knows the script, so all requests are sent. A
        // connection's first request also checks the rights, with another script.
        for name in names.iter().chain(&names) {
            client.reentrant_lock(name).lock().unwrap().unlock().unwrap();
        }
        let before = Commands::so_far(&server).of("hset");
        server.pause();
        let threads: Vec<_> = names
            .iter()
            .map(|name| {
                let lock = client.reentrant_lock(name);
                spawn(move || lock.lock().map(drop).unwrap_err())
            })
            .collect();
        let errors: Vec<_> = threads.into_iter().map(Running::join).collect();
        assert!(errors.iter().all(|error| error.kind().is_server_trouble()), "{errors:?}");
        let sent = errors.iter().filter(|error| error.outcome_unknown()).count() as u64;
        assert!(sent > 0, "the test shows nothing: {errors:?}");
        server.resume();
        // Redis may read the release from the new connection before the acquire from the old
        // connection.
        wait_until("the acquires have run", TIMEOUT, || {
            Commands::so_far(&server).of("hset") >= before + sent
        });
        for name in &names {
            wait_free(&server, name, TIMEOUT);
        }
    }
}

/// Drops the next request that takes the lock of this name. Returns the bytes of the request for
/// [`deliver`].
fn keep_acquire(proxy: &Proxy, name: &'static str) -> Arc<Mutex<Vec<u8>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&kept);
    proxy.on(Direction::Request, 1, Action::LoseRequest, move |bytes| {
        let acquire = is_script(bytes) && contains(bytes, name);
        if acquire {
            *to.lock().unwrap() = bytes.to_vec();
        }
        acquire
    });
    kept
}

/// Sends the server bytes that a network has kept for some time.
fn deliver(server: &Server, request: &Mutex<Vec<u8>>) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    socket.write_all(&request.lock().unwrap()).unwrap();
    let mut reply = [0; 100];
    let read = socket.read(&mut reply).unwrap();
    reply[..read].to_vec()
}

#[test]
fn an_acquire_that_arrives_after_its_copys_release_leaves_no_hold() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let locks: [(&'static str, Box<dyn Lock>); 2] = [
        ("overtaken", Box::new(client.reentrant_lock("overtaken"))),
        ("overtaken, fair", Box::new(client.fair_lock("overtaken, fair"))),
    ];
    for (name, lock) in &locks {
        // The first call also checks the rights, with another text of the script. So the server
        // knows the script only after the second call.
        lock.lock().unwrap().unlock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
        for dropped in [false, true] {
            let first = keep_acquire(&proxy, name);
            let guard = lock.lock().unwrap();
            match dropped {
                true => drop(guard),
                false => guard.unlock().unwrap(),
            }
            wait_free(&server, name, TIMEOUT);
            let reply = deliver(&server, &first);
            let granted = [":0\r\n", "*3\r\n:1\r\n"];
            let granted = granted.iter().any(|granted| reply.starts_with(granted.as_bytes()));
            assert!(granted, "it is not granted");
            wait_free(&server, name, TIMEOUT);
        }
    }
    assert_eq!(proxy.fired(), 4);
}

#[test]
fn an_acquire_that_arrives_late_cuts_no_longer_lease() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let (plain, fair) = (client.reentrant_lock("longer"), client.fair_lock("longer, fair"));
    let longer = (plain.with_lease(LONG_LEASE * 2), fair.with_lease(LONG_LEASE * 2));
    let locks: [(&'static str, &dyn Lock, &dyn Lock); 2] =
        [("longer", &plain, &longer.0), ("longer, fair", &fair, &longer.1)];
    for (name, lock, longer) in locks {
        lock.lock().unwrap().unlock().unwrap();
        for tries in [false, true] {
            let first = keep_acquire(&proxy, name);
            let guard = if tries {
                lock.try_lock().unwrap().into_option().unwrap()
            } else {
                lock.lock().unwrap()
            };
            let inner = longer.lock().unwrap();
            let _granted = deliver(&server, &first);
            assert!(lock.remaining_lease().unwrap().unwrap() > LONG_LEASE, "{name}");
            drop((inner, guard));
            wait_free(&server, name, TIMEOUT);
        }
    }
    assert_eq!(proxy.fired(), 4);
}

#[test]
fn a_forced_unlock_whose_reply_is_lost_is_an_error_and_takes_one_holders_lock() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("forced");
    let guard = lock.with_lease(LONG_LEASE).lock().unwrap();
    let next = self::client(&server).reentrant_lock("forced");
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let waiter = spawn(move || {
        let guard = next.lock().unwrap();
        tell.send(()).unwrap();
        ended.recv().unwrap();
        guard.unlock().unwrap();
    });
    wait_in_line(&server, "forced", 1);
    waiter.wait_asleep();
    on_release(&proxy, "forced", 1, Action::LoseReply);
    let error = lock.force_unlock().unwrap_err();
    assert_eq!(proxy.fired(), 1);
    is_clear(&error, "forced", "not known");
    // This query must not get the reply to another command.
    assert!(!guard.is_held());
    told.recv_timeout(TIMEOUT).unwrap();
    // A second forced unlock would take the lock from the new holder.
    end.send(()).unwrap();
    waiter.join();
    // A connection that has been dead for some time does no harm.
    let guard = lock.lock().unwrap();
    proxy.cut_all();
    assert!(lock.force_unlock().unwrap());
    assert!(!guard.is_held());
}

#[test]
fn a_connection_that_cannot_be_had_is_waited_for_once() {
    let server = server();
    once_within(SHORT_TIMEOUT * 2, || {
        let proxy = Proxy::before(&server);
        let client = impatient(&proxy.url()).connections(1).connect().unwrap();
        let guards =
            ["cut", "gone", "behind it"].map(|name| client.reentrant_lock(name).lock().unwrap());
        proxy.freeze();
        proxy.cut_all();
        // The second release finds a broken connection. The third release waits for a new
        // connection.
        for guard in guards {
            drop(guard);
            thread::sleep(TIME_UNIT / 20);
        }
        let begun = Instant::now();
        let error = client.reentrant_lock("cut").try_lock().map(drop).unwrap_err();
        let took = begun.elapsed();
        is_clear(&error, "cut", "no connection");
        proxy.thaw();
        took
    });
}

#[test]
fn a_lost_reply_of_an_unlock_is_not_taken_for_a_release() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("unlocked");
    let guard = lock.lock().unwrap();
    on_release(&proxy, "unlocked", 1, Action::LoseRequest);
    guard.unlock().unwrap();
    assert_eq!(holder(&mut server.connection(), "unlocked"), None);
    // The second copy finds no hold. The server does not know whether the first copy released the
    // hold, or whether it was lost before.
    for lost in [false, true] {
        let guard = lock.lock().unwrap();
        if lost {
            let () = server.connection().del("unlocked").unwrap();
        }
        on_release(&proxy, "unlocked", 1, Action::LoseReply);
        let error = guard.unlock().unwrap_err();
        is_clear(&error, "unlocked", "may have been lost before");
        assert!(error.outcome_unknown() && !error.is_transient());
        assert_eq!(holder(&mut server.connection(), "unlocked"), None);
        assert_eq!(lock.hold_count(), 0);
    }
    assert_eq!(proxy.fired(), 3);
}

#[test]
fn a_lost_release_is_sent_again_until_it_is_done() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("released");
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 1),
        (Action::LoseRequest, 1),
        (Action::LoseRequest, 5),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
    ] {
        for dropped in [true, false] {
            let guard = lock.lock().unwrap_or_else(|error| {
                // This is the first call on a connection that fell silent during a drop.
                is_clear(&error, "released", "did not answer in time");
                lock.lock().unwrap()
            });
            on_release(&proxy, "released", times, action);
            if dropped {
                drop(guard);
            } else if let Err(error) = guard.unlock() {
                is_clear(&error, "released", "no longer holds it");
            }
            fired += times;
            proxy.wait_fired(fired, TIMEOUT);
            proxy.release();
            wait_free(&server, "released", TIMEOUT);
        }
    }
}

/// The release or its reply is lost, so the client repeats the release while other threads hold the
/// lock.
#[test]
fn a_release_that_comes_late_touches_no_later_hold() {
    for action in [Action::LoseRequest, Action::LoseReply] {
        let server = server();
        let proxy = Proxy::before(&server);
        let (client, other) = (behind(&proxy), client(&server));
        let lock = client.reentrant_lock("later");
        let guard = lock.lock().unwrap();
        // A retry releases the lock. The client retries for a whole lease.
        on_release(&proxy, "later", 3, action);
        assert!(guard.unlock().is_err());
        // The next holder is another client, or the same thread of the same client.
        for lock in [other.reentrant_lock("later"), lock] {
            let guard = lock.try_lock_for(TIMEOUT).unwrap().into_option().expect("it is free");
            let held = holder(&mut server.connection(), "later");
            let before = Commands::so_far(&server).scripts();
            wait_until("another release has come", TIMEOUT, || {
                Commands::so_far(&server).scripts() > before
            });
            assert_eq!(holder(&mut server.connection(), "later"), held, "{action:?}");
            guard.unlock().unwrap();
        }
    }
}

#[test]
fn a_lost_reply_of_a_renewal_is_no_loss() {
    let server = server();
    let proxy = Proxy::before(&server);
    // A renewal without a reply takes a sixth of the lease.
    let lease = SHORT_LEASE * 2;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connect().unwrap();
    let guard = client.reentrant_lock("renewed").lock().unwrap();
    for (round, action) in
        [Action::LoseReply, Action::LoseRequest, Action::Silence, Action::HoldReply]
            .into_iter()
            .enumerate()
    {
        // While the lock is held, the renewal is the only script for this name.
        on_acquire(&proxy, "renewed", 1, action);
        proxy.wait_fired(round + 1, TIMEOUT);
        let renewed = Commands::so_far(&server).of("pexpire");
        wait_until("it is renewed again", TIMEOUT, || {
            assert!(guard.is_held(), "lost after {action:?}");
            Commands::so_far(&server).of("pexpire") > renewed
        });
    }
    assert!(guard.is_held());
    guard.unlock().unwrap();
}

#[test]
fn a_hold_behind_a_dead_network_is_lost_at_its_deadline() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url())
        .watchdog_timeout(LEASE)
        .response_timeout(TIME_UNIT * 5)
        .connect()
        .unwrap();
    let guard = client.reentrant_lock("cut off").lock().unwrap();
    proxy.freeze();
    wait_until("it is lost", TIMEOUT, || !guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost(LostReason::LeaseExpired));
    // Another client gets the lock, even when the old packets finally arrive.
    let theirs = crate::common::client(&server).reentrant_lock("cut off").try_lock_for(TIMEOUT);
    let theirs = theirs.unwrap().into_option().expect("the lease has ended");
    let held = holder(&mut server.connection(), "cut off");
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    proxy.thaw();
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(LEASE);
    assert_eq!(holder(&mut server.connection(), "cut off"), held);
    theirs.unlock().unwrap();
}

#[test]
fn an_extended_hold_whose_release_is_lost_does_not_stay_for_its_extended_lease() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("extended");
    let outer = lock.with_lease(LEASE).lock().unwrap();
    let inner = lock.with_lease(LONG_LEASE).lock().unwrap();
    inner.unlock().unwrap();
    // The server is out of reach for longer than the first lease.
    on_release(&proxy, "extended", 1, Action::LoseRequest);
    proxy.refuse();
    is_clear(&outer.unlock().unwrap_err(), "extended", "no longer holds it");
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(LEASE * 3 / 2);
    proxy.accept();
    wait_free(&server, "extended", TIMEOUT);
}

#[test]
fn an_extension_that_is_answered_after_the_holds_end_leaves_no_cleanup() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let lock = client.reentrant_lock("straddled");
    // The server knows the scripts.
    let (one, two) = (
        lock.with_lease(LONG_LEASE / 2).lock().unwrap(),
        lock.with_lease(LONG_LEASE).lock().unwrap(),
    );
    drop(one);
    two.unlock().unwrap();
    let outer = lock.with_lease(TIME_UNIT * 4).lock().unwrap();
    let longer = LONG_LEASE * 60;
    let millis = longer.as_millis().to_string();
    proxy.on(Direction::Request, 1, Action::DelayReply(TIME_UNIT * 6), move |bytes| {
        contains(bytes, "straddled") && contains(bytes, &millis)
    });
    // By now the outer hold is lost, so this call gets a new hold or none.
    let inner = lock.with_lease(longer).lock();
    assert!(!outer.is_held());
    drop((inner, outer));
    wait_free(&server, "straddled", TIMEOUT);
}

#[test]
fn an_extension_of_unknown_outcome_does_not_keep_an_unlocked_lock() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("unsure");
    let outer = lock.with_lease(LEASE).lock().unwrap();
    // The server runs the request both times, but no reply comes.
    on_acquire(&proxy, "unsure", 2, Action::LoseReply);
    let error = lock.with_lease(LONG_LEASE).lock().map(drop).unwrap_err();
    is_clear(&error, "unsure", "still holds it as before");
    assert_eq!(proxy.fired(), 2);
    assert_eq!(lock.hold_count(), 1);
    let left = pttl(&mut server.connection(), "unsure");
    assert!(left > i64::try_from((LONG_LEASE / 2).as_millis()).unwrap(), "the test shows nothing");
    // The holder treats its lease as valid until the deadline that it knows.
    wait_until("the first lease ends", TIMEOUT, || !outer.is_held());
    assert!(outer.unlock().is_err());
    wait_free(&server, "unsure", TIMEOUT);
}

#[test]
fn owners_are_never_used_again_if_replies_are_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let lock = client.reentrant_lock("owner");
    let mut redis = server.connection();
    let mut owners = HashSet::new();
    for round in 0..12 {
        match round % 4 {
            0 => on_acquire(&proxy, "owner", 2, Action::LoseReply),
            1 => on_acquire(&proxy, "owner", 1, Action::LoseReply),
            2 => on_release(&proxy, "owner", 1, Action::LoseReply),
            _ => {}
        }
        if let Ok(guard) = lock.lock() {
            let (owner, _) = holder(&mut redis, "owner").unwrap();
            assert!(owners.insert(owner.clone()), "{owner} again");
            drop(guard);
        }
        wait_free(&server, "owner", TIMEOUT);
        proxy.clear_rules();
    }
}
