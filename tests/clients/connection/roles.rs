//! A server that changes its role.

use super::*;

fn replicate(replica: &Server, master: Option<&Server>) {
    let (host, port) = match master {
        Some(master) => ("127.0.0.1", master.port().to_string()),
        None => ("NO", "ONE".to_owned()),
    };
    let () = redis::cmd("REPLICAOF").arg(host).arg(port).query(&mut replica.connection()).unwrap();
}

/// The old master now refuses writes, and the address leads to the new master.
#[test]
fn a_hold_is_renewed_where_the_address_leads_to_now() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let lease = SHORT_LEASE * 2;
    let client = Client::builder(&proxy.url()).watchdog_timeout(lease).connect().unwrap();
    replicate(&new, Some(&old));
    let guard = client.reentrant_lock("moved").lock().unwrap();
    let lost = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&lost);
    guard.on_lost(move |_| told.store(true, Ordering::SeqCst));
    let owner = holder(&mut old.connection(), "moved");
    wait_until("it is replicated", TIMEOUT, || holder(&mut new.connection(), "moved") == owner);
    replicate(&new, None);
    replicate(&old, Some(&new));
    proxy.lead_to(&new);
    wait_renewed(&new, "moved");
    assert!(guard.is_held() && !lost.load(Ordering::SeqCst));
    // The shared connection still leads to the old master, so the client sends the release again
    // over a connection to the new master.
    drop(guard);
    wait_free(&new, "moved", TIMEOUT);
}

/// The client reads the old server's reply only after it has queried the new server for leftover
/// holds.
#[test]
fn a_release_that_the_old_server_answers_late_is_made_at_the_new_one_too() {
    if !has_own_process() {
        return;
    }
    for dropped in [false, true] {
        let (old, new) = (server(), server());
        let proxy = Proxy::before(&old);
        let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connections(1);
        let client = client.connect().unwrap();
        let lock = client.reentrant_lock("given back");
        // After this, the server knows the scripts.
        lock.lock().unwrap().unlock().unwrap();
        // A client notices a change of the server only if it has a hold.
        let _kept = client.reentrant_lock("kept").lock_owned().unwrap();
        let guard = lock.lock_owned().unwrap();
        let mut redis = old.connection();
        let (owner, _) = holder(&mut redis, "given back").unwrap();
        let held: Vec<u8> = redis::cmd("DUMP").arg("given back").query(&mut redis).unwrap();
        let lease = LONG_LEASE.as_millis() as u64;
        let () = redis::cmd("RESTORE")
            .arg(("given back", lease, held))
            .query(&mut new.connection())
            .unwrap();
        wait_subscribed(&old, &own_channel(&owner));
        proxy.on(Direction::Request, 1, Action::HoldReply, move |command| {
            let has = |text: &str| command.windows(text.len()).any(|it| it == text.as_bytes());
            has("EVAL") && has(&owner)
        });
        let leaver = spawn(move || {
            if dropped {
                drop(guard);
                // This call reads the late reply before its own, as the next caller always does.
                assert!(!lock.is_locked().unwrap());
            } else {
                guard.unlock().unwrap();
            }
        });
        proxy.wait_fired(1, TIMEOUT);
        wait_free(&old, "given back", TIMEOUT);
        proxy.lead_to(&new);
        proxy.cut_matching("SUBSCRIBE");
        // The client checks the hold that it has, and then queries the new server for leftover
        // holds.
        wait_until("the new one is asked", TIMEOUT, || Commands::so_far(&new).of("eval") > 1);
        // The new server has answered, and the client has read the answer.
        wait_idle("redlatch-renew");
        assert!(holder(&mut new.connection(), "given back").is_some(), "the test shows nothing");
        proxy.release();
        leaver.join();
        wait_free(&new, "given back", TIMEOUT);
    }
}

#[test]
fn places_without_a_waiter_are_given_up_at_a_new_server() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connections(1);
    let client = client.connect().unwrap();
    let lock = client.reentrant_lock("stale");
    let guard = lock.lock_owned().unwrap();
    let (owner, _) = holder(&mut old.connection(), "stale").unwrap();
    guard.unlock().unwrap();
    // The client's subscriber notices a change of the server only if the client has a hold.
    let _kept = client.reentrant_lock("kept").lock_owned().unwrap();
    wait_subscribed(&old, &own_channel(&owner));
    let mut redis = new.connection();
    let () = redis::cmd("RPUSH").arg(("redlatch_queue:{stale}", &owner)).query(&mut redis).unwrap();
    let () =
        redis::cmd("RPUSH").arg(("redlatch_queue:{stale}", "other")).query(&mut redis).unwrap();
    proxy.lead_to(&new);
    proxy.cut_matching("SUBSCRIBE");
    wait_until("its place is given up", TIMEOUT, || {
        let places: Vec<String> =
            redis::cmd("LRANGE").arg(("redlatch_queue:{stale}", 0, -1)).query(&mut redis).unwrap();
        !places.contains(&owner)
    });
    drop(lock);
}

#[test]
fn a_replica_is_asked_once_and_then_the_address_anew() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = impatient(&proxy.url()).connections(1).connect().unwrap();
    let lock = client.reentrant_lock("moved");
    replicate(&old, Some(&new));
    proxy.lead_to(&new);
    let error = lock.lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("read-only replica"), "{error}");
    lock.lock().unwrap().unlock().unwrap();
}

/// The old master lives on and closes no connection. The new master knows only its own subscribers,
/// so it would treat a waiter that has subscribed at the old master as dead.
#[test]
fn a_waiter_listens_where_the_address_leads_to_now() {
    let (old, new) = (server(), server());
    let proxy = Proxy::before(&old);
    let client = Client::builder(&proxy.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let lock = client.reentrant_lock("waited for");
    let guard = lock.lock().unwrap();
    let (owner, _) = holder(&mut old.connection(), "waited for").unwrap();
    guard.unlock().unwrap();
    hold_as_redisson(&mut old.connection(), "waited for", LONG_LEASE);
    assert!(answered(|| lock.try_lock_for(TIME_UNIT)).into_option().is_none());
    wait_subscribed(&old, &own_channel(&owner));
    replicate(&new, Some(&old));
    let mut redis = new.connection();
    wait_until("it is replicated", TIMEOUT, || holder(&mut redis, "waited for").is_some());
    replicate(&new, None);
    replicate(&old, Some(&new));
    proxy.lead_to(&new);
    let waiter = spawn(move || {
        // The first request may reach the old master, which refuses it.
        let guard = lock.lock().or_else(|_| lock.lock()).unwrap();
        guard.unlock().unwrap();
    });
    wait_subscribed(&new, &own_channel(&owner));
    release_as_redisson(&mut redis, "waited for", &channel("waited for"));
    waiter.join();
}

#[test]
fn connect_refuses_a_replica_that_is_read_only_and_no_other() {
    let (replica, master) = (server(), server());
    // The replica never gets the data, because its master is gone.
    master.kill();
    replicate(&replica, Some(&master));
    let error = refused(&replica.url(), TIMEOUT);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // The replica may still become the master.
    assert!(error.is_transient());
    let message = error.to_string();
    assert!(message.contains("read-only replica: connect to the master"), "{message}");
    assert!(message.contains(&format!("127.0.0.1:{}", replica.port())), "{message}");
    let mut redis = replica.connection();
    let set = |redis: &mut redis::Connection, value| {
        redis::cmd("CONFIG").arg("SET").arg("replica-read-only").arg(value).exec(redis).unwrap();
    };
    // After an operator's decision, everything works.
    set(&mut redis, "no");
    client(&replica).reentrant_lock("written").lock().unwrap().unlock().unwrap();
    set(&mut redis, "yes");
    let error = refused(&replica.url(), TIMEOUT);
    assert!(error.to_string().contains("read-only replica"), "{error}");
    replicate(&replica, None);
    client(&replica).reentrant_lock("promoted").lock().unwrap().unlock().unwrap();
}

/// A replica takes no writes, and each new connection leads to the same replica.
#[test]
fn a_release_that_a_replica_refuses_opens_few_connections() {
    let (server, master) = (server(), server());
    let client = client(&server);
    let guard = client.reentrant_lock("demoted").lock().unwrap();
    master.kill();
    replicate(&server, Some(&master));
    let before = opened(&server);
    drop(guard);
    // A fixed time must pass here, because no event shows the end of the wait.
    thread::sleep(TIME_UNIT * 20);
    let more = opened(&server) - before;
    assert!(more < 20, "{more} connections");
    replicate(&server, None);
    wait_free(&server, "demoted", TIMEOUT);
}

/// The replica was the master before. The new master may have holds that the replica lacks.
#[test]
fn a_release_of_a_hold_that_a_replica_does_not_know_goes_on_to_the_master() {
    let (server, master) = (server(), server());
    let client = Client::builder(&server.url())
        .watchdog_timeout(LONG_LEASE)
        .client_tracking(false)
        .connect();
    let client = client.unwrap();
    let lock = client.read_write_lock("read or written");
    let locks: [(&str, &dyn Lock); 3] = [
        ("held", &client.reentrant_lock("held")),
        ("read or written", lock.reader()),
        ("read or written", lock.writer()),
    ];
    let mut redis = server.connection();
    master.kill();
    for (name, lock) in locks {
        let guard = lock.lock().unwrap();
        let hold: HashMap<String, String> = redis.hgetall(name).unwrap();
        let () = redis.del(name).unwrap();
        replicate(&server, Some(&master));
        let error = guard.unlock().unwrap_err();
        is_clear(&error, name, "read-only replica");
        replicate(&server, None);
        // The master has the hold.
        let hold: Vec<_> = hold.into_iter().collect();
        let () = redis.hset_multiple(name, &hold).unwrap();
        let () = redis.pexpire(name, LONG_LEASE.as_millis().try_into().unwrap()).unwrap();
        wait_free(&server, name, TIMEOUT);
    }
}
