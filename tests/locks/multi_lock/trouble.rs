//! Several locks while a server or the network fails.

use super::*;

#[test]
fn the_locks_of_a_killed_process_come_back_when_their_lease_ends() {
    let server = server();
    let lease = SHORT_LEASE;
    let millis = lease.as_millis().to_string();
    let mut dead = Worker::spawn_test("multi_lock::worker", "holder", &[&server.url(), &millis]);
    dead.expect_line("holds", TIMEOUT);
    let all = all_of(&client(&server), &["c", "b", "a"]);
    assert!(all.try_lock().unwrap().into_option().is_none());
    dead.sigkill();
    all.try_lock_for(TIMEOUT).unwrap().into_option().unwrap().unlock().unwrap();
}

#[test]
fn a_lost_part_is_reported_once_and_the_others_are_kept_until_the_end() {
    let server = server();
    let client = watched(&server, SHORT_LEASE);
    let all = all_of(&client, &NAMES);
    let guard = all.lock().unwrap();
    let lost = losses(&guard);
    let () = server.connection().del(&["b", "c"]).unwrap();
    wait_until("it is told", TIMEOUT, || lost.load(Ordering::SeqCst) > 0);
    wait_until("it is lost", TIMEOUT, || !guard.is_held());
    assert!(guard.remaining().is_zero());
    assert!(matches!(guard.state(), HoldState::Lost(_)));
    let error = guard.check(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(["b", "c"].contains(&error.name().unwrap()), "{error}");
    wait_renewed(&server, "a");
    let error = guard.unlock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert!(!is_held(&server, "a"));
    assert_eq!(lost.load(Ordering::SeqCst), 1);
    all.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_server_that_dies_while_it_is_waited_for_is_named_and_the_others_parts_are_given_back() {
    let (here, there) = (server(), server());
    let (ours, theirs) = (impatient(&here.url()), impatient(&there.url()));
    let (ours, theirs) = (ours.connect().unwrap(), theirs.connect().unwrap());
    let _taken = client(&there).reentrant_lock("b").lock().unwrap();
    let (a, b) = (ours.reentrant_lock("a"), theirs.reentrant_lock("b"));
    let c = ours.reentrant_lock("c");
    let all = MultiLock::new(&[&c, &b, &a]).unwrap();
    let waiter = spawn({
        let all = all.clone();
        move || all.lock().unwrap_err()
    });
    wait_in_line(&there, "b", 1);
    assert!(is_held(&here, "a"));
    there.kill();
    for error in [waiter.join(), all.lock().unwrap_err(), all.try_lock().unwrap_err()] {
        let told = error.to_string();
        assert!(error.kind().is_server_trouble(), "{error:?}");
        assert_eq!(error.name(), Some("b"), "{told}");
        assert!(told.contains(&there.port().to_string()), "{told}");
        assert!(told.contains("nothing was taken"), "{told}");
        wait_all_free(&here, &["a", "c"]);
    }
    // While one server is paused, the call fails in the same way.
    there.restart_empty();
    there.pause();
    let error = all.lock().unwrap_err();
    assert!(error.kind().is_server_trouble(), "{error:?}");
    assert_eq!(error.name(), Some("b"), "{error}");
    wait_all_free(&here, &["a", "c"]);
    there.resume();
    all.lock().unwrap().unlock().unwrap();
}

/// If a failed call did not release the locks that it took, locks on servers without a fault would
/// stay taken for an hour.
#[test]
fn trouble_with_one_part_after_a_hand_over_leaves_none_taken() {
    for is_left in [false, true] {
        let (here, there) = (server(), server());
        let proxy = Proxy::before(&there);
        let theirs = client(&there).reentrant_lock("b");
        let (a, b) = (client(&here), impatient(&proxy.url()).connect().unwrap());
        let all = of(&[a.reentrant_lock("a"), b.reentrant_lock("b"), a.reentrant_lock("c")]);
        let until = Instant::now() + TIMEOUT;
        let error = loop {
            let held = theirs.lock().unwrap();
            let (least, leased) = (all.with_hold_at_least(HOUR), all.with_lease(HOUR));
            let waiter = spawn(move || match is_left {
                false => least.lock().map(drop),
                true => leased.lock().and_then(|guard| guard.leave_to_expire()),
            });
            wait_in_line(&there, "b", 1);
            // A release skips a waiter whose client has not subscribed yet.
            wait_subscribed(&there, &own_channel(b.id()));
            waiter.wait_queued();
            after_a_grant(&proxy, usize::MAX, Action::LoseReply);
            held.unlock().unwrap();
            let called = waiter.join();
            proxy.clear_rules();
            match called {
                Err(error) => break error,
                // The call sent its request at the moment of the grant, so a reply granted the full
                // lease.
                Ok(()) => assert!(Instant::now() < until && all.force_unlock().unwrap()),
            }
        };
        assert_eq!((error.outcome_unknown(), error.name()), (true, Some("b")), "{error}");
        wait_all_free(&here, &["a", "c"]);
        wait_free(&there, "b", TIMEOUT);
    }
}

#[test]
fn a_server_that_says_nothing_is_waited_for_once_when_all_are_given_back() {
    let (here, there) = (server(), server());
    let other = client(&here).reentrant_lock("a");
    let silent = impatient(&there.url()).connections(1).connect().unwrap();
    let names: Vec<_> = (0..MANY_THREADS).map(|at| format!("b {at}")).collect();
    let locks = names.iter().map(|name| silent.reentrant_lock(name)).chain([other]);
    let guard = of(&locks.collect::<Vec<_>>()).lock().unwrap();
    there.pause();
    let begun = Instant::now();
    let error = guard.unlock().unwrap_err();
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    assert!(error.kind().is_server_trouble(), "{error}");
    assert!(!is_held(&here, "a"));
    there.resume();
    names.iter().for_each(|name| wait_free(&there, name, TIMEOUT));
}

#[test]
fn a_reply_that_is_lost_leaves_nothing_behind() {
    let server = server();
    // Each case has its own proxy. Otherwise the fault of one case could hit the background work of
    // the case before.
    let connected = || {
        let proxy = Proxy::before(&server);
        // After a fault the client connects again, and the machine may stand still meanwhile.
        let client = impatient(&proxy.url()).connect_timeout(TIMEOUT);
        let all = all_of(&client.connections(2).connect().unwrap(), &NAMES);
        all.lock().unwrap().unlock().unwrap();
        (proxy, all)
    };
    for name in NAMES {
        for action in [Action::LoseReply, Action::LoseRequest] {
            let (proxy, all) = connected();
            proxy.on_request(name_in(name), action);
            let guard = all.lock().unwrap();
            assert!(guard.is_held());
            guard.unlock().unwrap();
            wait_all_free(&server, &NAMES);

            let (proxy, all) = connected();
            let guard = all.lock().unwrap();
            proxy.on_request(name_in(name), action);
            // The lock is released, or the error says that the outcome is unknown.
            if let Err(error) = guard.unlock() {
                assert!(error.outcome_unknown(), "{error}");
            }
            wait_all_free(&server, &NAMES);
            all.lock().unwrap().unlock().unwrap();
        }
        let (proxy, all) = connected();
        proxy.on_request(name_in(name), Action::Silence);
        // If the client sent the request again in time, it got a reply.
        match all.try_lock() {
            Ok(had) => had.into_option().expect("nobody has one").unlock().unwrap(),
            Err(error) => assert!(error.outcome_unknown(), "{error}"),
        }
        wait_all_free(&server, &NAMES);
        all.lock().unwrap().unlock().unwrap();
    }
}

/// Returns the name as it is encoded in a request.
fn name_in(name: &str) -> String {
    format!("\r\n$1\r\n{name}\r\n")
}

#[test]
fn after_the_end_of_a_client_its_parts_are_an_error_and_the_others_free() {
    let (here, there) = (server(), server());
    let (ours, theirs) = (client(&here), client(&there));
    let both = MultiLock::new(&[&ours.reentrant_lock("a"), &theirs.reentrant_lock("b")]).unwrap();
    let guard = both.lock().unwrap();
    let lost = losses(&guard);
    theirs.shutdown();
    wait_until("it is told", TIMEOUT, || lost.load(Ordering::SeqCst) == 1);
    assert!(!guard.is_held());
    drop(guard);
    wait_free(&here, "a", TIMEOUT);
    assert_eq!(both.lock().unwrap_err().kind(), ErrorKind::ShutDown);
    assert!(!is_held(&here, "a"));
}
