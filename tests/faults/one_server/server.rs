//! Servers that restart, lose data or stand still.

use super::*;

#[test]
fn waiters_get_the_lock_when_the_servers_data_is_gone() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for way in ["FLUSHALL", "restart"] {
        let guard = one.reentrant_lock("emptied").lock().unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|at| {
                let lock = [&one, &other][at % 2].reentrant_lock("emptied");
                // The thread may find the server out of reach.
                spawn(move || {
                    let guard = loop {
                        match lock.try_lock_for(TIMEOUT) {
                            Ok(guard) => break guard.into_option().expect("it is free"),
                            Err(error) => assert!(error.is_transient(), "{error}"),
                        }
                    };
                    guard.unlock().unwrap();
                })
            })
            .collect();
        waiters.iter().for_each(Running::wait_asleep);
        wait_in_line(&server, "emptied", 1);
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        // The waiters of the other client get the lock at their next poll. The waiters of the
        // guard's client get the lock when the guard ends.
        wait_until("the other client's waiters are in", TIMEOUT, || {
            waiters.iter().skip(1).step_by(2).all(Running::is_finished)
        });
        // Ignore the result: another test checks whether the guard reports the loss.
        let _ = guard.unlock();
        waiters.into_iter().for_each(Running::join);
    }
}

#[test]
fn a_restart_without_data_is_reported_before_the_next_renewal() {
    let server = server();
    // The first renewal is due long after the test.
    let client = watched(&server, 10 * LONG_LEASE);
    let (lock, fair) = (client.reentrant_lock("forgotten"), client.fair_lock("forgotten, fair"));
    // This lease is never renewed.
    let fixed = client.reentrant_lock("forgotten, fixed").with_lease(10 * LONG_LEASE);
    for by in ["the subscriber", "a command"] {
        let guards = [lock.lock().unwrap(), fair.lock().unwrap(), fixed.lock().unwrap()];
        let (tell, told) = mpsc::channel();
        for guard in &guards {
            let tell = tell.clone();
            guard.on_lost(move |reason| tell.send(reason).unwrap());
        }
        let other = client.reentrant_lock("other");
        let waiter = (by == "the subscriber").then(|| {
            let elsewhere = self::client(&server);
            let held = elsewhere.reentrant_lock("other").lock().unwrap();
            // The waiter may find the server out of reach.
            let waiter = spawn(move || drop(other.try_lock_for(TIMEOUT)));
            wait_in_line(&server, "other", 1);
            (waiter, held)
        });
        server.restart_empty();
        if waiter.is_none() {
            assert!(!client.reentrant_lock("other").is_locked().unwrap());
        }
        for _ in &guards {
            assert_eq!(told.recv_timeout(TIMEOUT), Ok(LostReason::Revoked), "told by {by}");
        }
        assert!(!guards.iter().any(|guard| guard.is_held()));
        if let Some((waiter, held)) = waiter {
            let _ = held.unlock();
            waiter.join();
        }
    }
}

#[test]
fn after_a_restart_the_server_is_asked_until_it_answers() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let guard = client.reentrant_lock("asked for").with_lease(LONG_LEASE).lock().unwrap();
    let (tell, told) = mpsc::channel();
    guard.on_lost(move |reason| tell.send(reason).unwrap());
    // The first request is lost on a connection that stays open.
    on_acquire(&proxy, "asked for", 1, Action::Silence);
    server.restart_empty();
    wait_until("it is found again", TIMEOUT, || client.reentrant_lock("other").is_locked().is_ok());
    proxy.wait_fired(1, TIMEOUT);
    assert_eq!(told.recv_timeout(TIMEOUT), Ok(LostReason::Revoked));
    assert!(!guard.is_held());
}

#[test]
fn the_question_whether_a_hold_is_known_changes_nothing() {
    let server = server();
    // This user cannot see to which run of the server a connection leads.
    let client = user(&server, &["-info"]);
    let held = ["endless", "deleted"].map(|name| {
        let lock = client.reentrant_lock(name).with_lease(LONG_LEASE);
        lock.lock().unwrap()
    });
    let (tell, told) = mpsc::channel();
    held[1].on_lost(move |reason| tell.send(reason).unwrap());
    let mut redis = server.connection();
    let () = redis.persist("endless").unwrap();
    let () = redis.del("deleted").unwrap();
    kill_clients(&mut redis, "normal");
    // A key that does not expire is not a lock, and the error says so.
    let endless = client.reentrant_lock("endless");
    is_clear(&endless.is_locked().unwrap_err(), "endless", "use another name");
    assert_eq!(told.recv_timeout(TIMEOUT), Ok(LostReason::Revoked));
    assert!(held[0].is_held());
    assert_eq!(pttl(&mut redis, "endless"), -1);
}

#[test]
fn a_restart_that_lost_a_hold_is_noticed_though_the_server_was_met_while_loading() {
    let server = server();
    drop(server);
    let slow = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let Ok(server) = Server::with_args(&slow) else {
        eprintln!("left out: this server cannot load slowly");
        return;
    };
    let mut redis = server.connection();
    let mut fill = redis::pipe();
    for at in 0..1_000 {
        fill.set(format!("filling:{at}"), "some bytes more or less").ignore();
    }
    let () = fill.query(&mut redis).unwrap();
    let () = redis::cmd("SAVE").query(&mut redis).unwrap();
    let client = watched(&server, 10 * LONG_LEASE);
    // The server saved its data before these locks were taken, so it restarts without these holds.
    let guards =
        [client.reentrant_lock("unsaved"), client.reentrant_lock("fixed").with_lease(LONG_LEASE)]
            .map(|lock| lock.lock().unwrap());
    let (tell, told) = mpsc::channel();
    for guard in &guards {
        let tell = tell.clone();
        guard.on_lost(move |reason| tell.send(reason).unwrap());
    }
    let met = thread::scope(|scope| {
        let restarted = scope.spawn(|| server.restart_empty());
        let lock = client.reentrant_lock("other");
        let mut met = false;
        wait_until("it has loaded", TIMEOUT, || match lock.is_locked() {
            Err(error) => {
                met |= error.to_string().contains("loading");
                false
            }
            Ok(_) => restarted.is_finished(),
        });
        met
    });
    if !met {
        eprintln!("left out: it has never said LOADING");
        return;
    }
    // The client closes a connection that was opened while the server loaded its data. This request
    // uses a new connection.
    assert!(!client.reentrant_lock("other").is_locked().unwrap());
    for _ in &guards {
        assert_eq!(told.recv_timeout(TIMEOUT), Ok(LostReason::Revoked));
    }
}

#[test]
fn an_unlock_after_a_restart_without_data_is_no_success() {
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("restarted");
    for others in [false, true] {
        let guard = lock.lock().unwrap();
        server.restart_empty();
        if others {
            // This request already uses the new connection.
            assert!(!client.reentrant_lock("other").is_locked().unwrap());
        }
        // Another client may have had the lock meanwhile.
        let error = guard.unlock().expect_err("the server knows nothing of this hold");
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    }
}

#[test]
fn a_flush_of_the_scripts_is_not_noticed() {
    let server = server();
    let clients = [watched(&server, SHORT_LEASE), watched(&server, SHORT_LEASE)];
    let held = clients[0].reentrant_lock("held").lock().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let inside = Arc::new(AtomicU64::new(0));
    let rounds: [Arc<AtomicU64>; 4] = Default::default();
    let threads: Vec<_> = (0..4)
        .map(|at| {
            let lock = clients[at % 2].reentrant_lock("flushed");
            let (stop, inside) = (Arc::clone(&stop), Arc::clone(&inside));
            let rounds = Arc::clone(&rounds[at]);
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if rounds.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) {
                        drop(guard);
                    } else {
                        guard.unlock().unwrap();
                    }
                }
            })
        })
        .collect();
    let mut redis = server.connection();
    let until = Instant::now() + SHORT_LEASE * 3 / 2;
    wait_until("each has had some rounds", TIMEOUT, || {
        for _ in 0..10 {
            let () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis).unwrap();
        }
        rounds.iter().all(|rounds| rounds.load(Ordering::SeqCst) > 10) && Instant::now() > until
    });
    assert!(held.is_held(), "it was renewed");
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    wait_free(&server, "flushed", TIMEOUT);
    held.unlock().unwrap();
}

#[test]
fn without_memory_nothing_is_taken_and_all_is_released() {
    let server = server();
    let client = watched(&server, SHORT_LEASE);
    let mut redis = server.connection();
    let guards: Vec<_> = ["unlocked", "dropped", "renewed"]
        .map(|name| client.reentrant_lock(name).lock().unwrap())
        .into_iter()
        .collect();
    let mut limit = |bytes: &str| {
        let () =
            redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).query(&mut redis).unwrap();
    };
    limit("1");
    let lock = client.reentrant_lock("more");
    is_clear(&lock.lock().map(drop).unwrap_err(), "more", "maxmemory");
    is_clear(&lock.try_lock().map(drop).unwrap_err(), "more", "maxmemory");
    is_clear(&refused(|| lock.try_lock_for(TIME_UNIT)), "more", "maxmemory");
    assert!(!lock.is_locked().unwrap());
    let mut guards = guards.into_iter();
    guards.next().unwrap().unlock().unwrap();
    drop(guards.next());
    wait_free(&server, "unlocked", TIMEOUT);
    wait_free(&server, "dropped", TIMEOUT);
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(SHORT_LEASE * 3 / 2);
    let renewed = guards.next().unwrap();
    assert!(renewed.is_held());
    limit("0");
    lock.lock().unwrap().unlock().unwrap();
    renewed.unlock().unwrap();
}

#[test]
fn a_read_only_server_refuses_clearly_and_the_locks_are_free_afterwards() {
    let server = server();
    let client = client(&server);
    let replica_of = |of: [&str; 2]| {
        let () = redis::cmd("REPLICAOF").arg(&of).query(&mut server.connection()).unwrap();
    };
    let unlocked = client.reentrant_lock("unlocked").lock().unwrap();
    let dropped = client.reentrant_lock("dropped").lock().unwrap();
    replica_of(["127.0.0.1", "1"]);
    let error = client.reentrant_lock("more").try_lock().map(drop).unwrap_err();
    is_clear(&error, "more", "replica");
    is_clear(&unlocked.unlock().unwrap_err(), "unlocked", "replica");
    drop(dropped);
    replica_of(["NO", "ONE"]);
    // The locks are free long before their leases end.
    wait_free(&server, "unlocked", TIMEOUT);
    wait_free(&server, "dropped", TIMEOUT);
    client.reentrant_lock("more").lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_that_cannot_save_refuses_clearly() {
    let server = server();
    let client = client(&server);
    let guard = client.reentrant_lock("held").lock().unwrap();
    let mut redis = server.connection();
    let config = |name: &str, value: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", name, value])
            .query(&mut server.connection())
            .unwrap();
    };
    let (_, folder): (String, String) =
        redis::cmd("CONFIG").arg(&["GET", "dir"]).query(&mut redis).unwrap();
    // The server cannot write its file, because a folder has the file's name.
    fs::create_dir(format!("{folder}/dump.rdb")).unwrap();
    config("save", "3600 1");
    let _: Result<(), _> = redis::cmd("BGSAVE").query(&mut redis);
    wait_until("saving has failed", TIMEOUT, || {
        let info: String = redis::cmd("INFO").arg("persistence").query(&mut redis).unwrap();
        info.contains("rdb_last_bgsave_status:err")
    });
    let lock = client.reentrant_lock("more");
    is_clear(&lock.lock().map(drop).unwrap_err(), "more", "cannot save");
    is_clear(&guard.unlock().unwrap_err(), "held", "cannot save");
    config("save", "");
    lock.lock().unwrap().unlock().unwrap();
    wait_free(&server, "held", TIMEOUT);
}

#[test]
fn a_key_that_is_no_lock_is_left_as_it_is() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.set("string", "precious").unwrap();
    let lock = client.reentrant_lock("string");
    is_clear(&lock.lock().map(drop).unwrap_err(), "string", "holds a string");
    is_clear(&lock.try_lock().map(drop).unwrap_err(), "string", "holds a string");
    is_clear(&lock.try_lock_for(TIMEOUT).map(drop).unwrap_err(), "string", "holds a string");
    is_clear(&lock.is_locked().unwrap_err(), "string", "holds a string");
    assert_eq!(lock.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    assert_eq!(redis.get::<_, String>("string").unwrap(), "precious");

    // Another program overwrites the lock's key. The release does not touch the new value.
    let guard = client.reentrant_lock("over").lock().unwrap();
    let () = redis.set("over", "precious").unwrap();
    assert!(guard.unlock().is_err());
    assert_eq!(redis.get::<_, String>("over").unwrap(), "precious");
}

#[test]
fn a_busy_server_refuses_clearly_and_a_hold_survives_it() {
    let server = server();
    let client = watched(&server, SHORT_LEASE * 2);
    let guard = client.reentrant_lock("held").lock().unwrap();
    let mut redis = server.connection();
    let () = redis::cmd("CONFIG").arg(&["SET", "lua-time-limit", "5"]).query(&mut redis).unwrap();
    let mut hog = server.connection();
    let busy = spawn(move || {
        let looped: Result<(), _> =
            redis::cmd("EVAL").arg("while true do end").arg(0).query(&mut hog);
        assert!(looped.is_err());
    });
    wait_until("the server is busy", TIMEOUT, || {
        let pong: Result<String, _> = redis::cmd("PING").query(&mut redis);
        pong.is_err_and(|error| error.code() == Some("BUSY"))
    });
    let lock = client.reentrant_lock("more");
    is_clear(&lock.lock().map(drop).unwrap_err(), "more", "busy");
    wait_until("a renewal has failed", TIMEOUT, || guard.state() == HoldState::Unconfirmed);
    let () = redis::cmd("SCRIPT").arg("KILL").query(&mut redis).unwrap();
    busy.join();
    wait_until("a renewal has succeeded", TIMEOUT, || guard.state() == HoldState::Held);
    lock.lock().unwrap().unlock().unwrap();
    guard.unlock().unwrap();
}

#[test]
fn a_loading_server_refuses_clearly() {
    let server = server();
    drop(server);
    let options =
        ["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"];
    let Ok(server) = Server::with_args(&options) else {
        eprintln!("left out: this server has no DEBUG");
        return;
    };
    let client = client(&server);
    let lock = client.reentrant_lock("loading");
    lock.lock().unwrap().unlock().unwrap();
    let mut redis = server.connection();
    let mut fill = redis::pipe();
    for at in 0..2_000 {
        fill.set(format!("filling:{at}"), "some bytes more or less").ignore();
    }
    let () = fill.query(&mut redis).unwrap();
    let slow = redis::cmd("CONFIG").arg(&["SET", "key-load-delay", "500"]).exec(&mut redis);
    if slow.is_err() {
        eprintln!("left out: this server cannot load slowly");
        return;
    }
    // The server answers while it loads. Some servers check for requests only after megabytes.
    let often = ["SET", "loading-process-events-interval-bytes", "1024"];
    redis::cmd("CONFIG").arg(&often).exec(&mut redis).unwrap();
    // The test tries again if this process did not run while the server loaded its data.
    let mut met = None;
    wait_until("it has said LOADING", TIMEOUT, || {
        let mut loader = server.connection();
        let loading = spawn(move || redis::cmd("DEBUG").arg("RELOAD").exec(&mut loader).unwrap());
        while met.is_none() && !loading.is_finished() {
            // `lock` would wait until the server has loaded its data.
            let tried = lock.try_lock();
            met = tried
                .and_then(|guard| guard.into_option().map_or(Ok(()), |guard| guard.unlock()))
                .err();
        }
        loading.join();
        met.is_some()
    });
    is_clear(&met.unwrap(), "loading", "loading");
    // The lock is free after a refused acquire and after a refused release.
    wait_free(&server, "loading", TIMEOUT);
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_frozen_server_is_an_error_in_time_and_found_out_once_for_all_waiters() {
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let held = client.reentrant_lock("held").lock().unwrap();
    server.pause();
    let begun = Instant::now();
    let threads: Vec<_> = (0..MANY_THREADS)
        .map(|_| {
            let lock = client.reentrant_lock("frozen");
            spawn(move || lock.lock().map(drop).unwrap_err())
        })
        .collect();
    for thread in threads {
        // The first thread got no reply, and the later threads got no connection.
        is_clear(&thread.join(), "frozen", "the server");
    }
    // All calls together took a few timeouts, and not one timeout for each call.
    let took = begun.elapsed();
    assert!(took >= SHORT_TIMEOUT && took < TIMEOUT, "{took:?}");
    let error = client.reentrant_lock("short").try_lock_for(TIME_UNIT / 10).map(drop).unwrap_err();
    is_clear(&error, "short", "the server");
    is_clear(&held.unlock().unwrap_err(), "held", "no longer holds it");
    server.resume();
    // When the frozen server continues, it takes and releases these locks. They are free long
    // before the end of their lease.
    for name in ["frozen", "held", "short"] {
        // A busy machine may be too slow for an impatient client.
        let lock = client.reentrant_lock(name);
        wait_until("it is free", TIMEOUT, || {
            lock.try_lock_for(TIME_UNIT)
                .is_ok_and(|guard| guard.into_option().is_some_and(|it| it.unlock().is_ok()))
        });
        wait_free(&server, name, TIMEOUT);
    }
    // The old requests have no later effect.
    thread::sleep(TIME_UNIT * 5);
    for name in ["frozen", "held", "short"] {
        assert!(!client.reentrant_lock(name).is_locked().unwrap(), "{name}");
    }
}

#[test]
fn a_paused_server_is_waited_for() {
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("paused");
    lock.lock().unwrap().unlock().unwrap();
    let pause = TIME_UNIT * 5;
    wait_until("it was asked early in a pause", TIMEOUT, || {
        let () = redis::cmd("CLIENT")
            .arg("PAUSE")
            .arg(u64::try_from(pause.as_millis()).unwrap())
            .query(&mut server.connection())
            .unwrap();
        let begun = Instant::now();
        let guard = lock.lock().unwrap();
        let took = begun.elapsed();
        assert!(guard.remaining() <= LONG_LEASE - took, "counted from the reply: {guard:?}");
        guard.unlock().unwrap();
        took > pause / 2
    });
}

#[test]
fn a_server_that_is_gone_fails_calls_and_waits_and_is_found_again() {
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    hold_as_redisson(&mut server.connection(), "gone", LONG_LEASE);
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = client.reentrant_lock("gone");
            spawn(move || lock.lock().map(drop).unwrap_err())
        })
        .collect();
    wait_subscribed(&server, &channel("gone"));
    waiters.iter().for_each(Running::wait_asleep);
    server.kill();
    let other = client.reentrant_lock("other");
    let error = other.lock().map(drop).unwrap_err();
    assert!(error.kind().is_server_trouble(), "{error}");
    assert!(other.is_locked().unwrap_err().kind().is_server_trouble());
    // Waiters without a message get their grants at their next request.
    for waiter in waiters {
        let error = waiter.join();
        assert!(error.kind().is_server_trouble(), "{error}");
    }
    server.restart_empty();
    other.lock().unwrap().unlock().unwrap();
    client.reentrant_lock("gone").lock().unwrap().unlock().unwrap();
}
