//! Barriers under faults.

use redlatch::Waited;

use super::*;

/// Applies the action to the next scripts of this name.
fn on_script(proxy: &Proxy, name: &'static str, action: Action) {
    proxy.on(Direction::Request, 1, action, move |bytes| {
        contains(bytes, "EVAL") && contains(bytes, name)
    });
}

/// Returns a client that connects through a proxy. The client's connection is open, and the server
/// has its scripts.
fn behind(proxy: &Proxy) -> Client {
    crate::common::behind(proxy, |client| {
        let warm = barrier(client, "warm", 1);
        warm.wait().unwrap();
        assert_eq!(warm.with_action(|| ()).wait().unwrap(), 0);
        assert!(warm.reset().unwrap());
        assert!(warm.delete().unwrap());
    })
}

#[test]
fn a_request_that_was_sent_twice_counts_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (shaky, steady) = (behind(&proxy), client(&server));
    for action in [Action::LoseReply, Action::LoseRequest] {
        let barrier = steady.cyclic_barrier("twice");
        let shaky = shaky.cyclic_barrier("twice");
        on_script(&proxy, "twice", action);
        assert!(shaky.try_set_parties(2).unwrap());
        // The fault affects the first arrival of a generation, and the last one.
        on_script(&proxy, "twice", action);
        let first = party(&shaky);
        assert_eq!(barrier.waiting().unwrap(), 1);
        assert_eq!((barrier.wait().unwrap(), first.join().unwrap()), (0, 1));
        let first = party(&barrier);
        on_script(&proxy, "twice", action);
        assert_eq!((shaky.wait().unwrap(), first.join().unwrap()), (0, 1));
        assert_eq!((barrier.waiting().unwrap(), barrier.is_broken().unwrap()), (0, false));
        // If the copy of the reset were applied, too, it would break the next generation.
        on_script(&proxy, "twice", action);
        assert!(shaky.reset().unwrap());
        on_script(&proxy, "twice", action);
        assert!(shaky.delete().unwrap());
    }
    assert_eq!(proxy.fired(), 10);
}

#[test]
fn a_lost_message_costs_a_poll() {
    let server = server();
    let proxy = Proxy::before(&server);
    let deaf = behind(&proxy);
    let barrier = barrier(&client(&server), "deaf", 2);
    let waits = party(&deaf.cyclic_barrier("deaf"));
    wait_subscribed(&server, "redlatch_barrier:{deaf}");
    proxy.on(Direction::Reply, 1, Action::LoseReply, |bytes| {
        contains(bytes, "message") && contains(bytes, "redlatch_barrier:{deaf}")
    });
    assert_eq!((barrier.wait().unwrap(), waits.join().unwrap()), (0, 1));
}

/// The connection for messages is dead, but no error shows this. A party that missed a message
/// notices the trip at its next request.
#[test]
fn a_dead_connection_for_messages_costs_few_polls() {
    let server = server();
    let proxy = Proxy::before(&server);
    let steady = barrier(&client(&server), "dead", 2);
    let deaf = behind(&proxy).cyclic_barrier("dead").with_watchdog(SHORT_LEASE);
    let pass = || {
        let waits = party(&deaf);
        wait_subscribed(&server, "redlatch_barrier:{dead}");
        assert_eq!((steady.wait().unwrap(), waits.join().unwrap()), (0, 1));
    };
    let listeners = || -> Vec<String> {
        let mut list = redis::cmd("CLIENT");
        list.arg("LIST").arg("TYPE").arg("pubsub");
        let list: String = list.query(&mut server.connection()).unwrap();
        list.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
    };
    pass();
    let before = listeners();
    proxy.on(Direction::Reply, 1, Action::Silence, |bytes| {
        contains(bytes, "message") && contains(bytes, "redlatch_barrier:{dead}")
    });
    // This time is shorter than the ten seconds after which a silent connection counts as dead.
    let is_new = (0..5).any(|_| {
        pass();
        listeners().iter().any(|it| !before.contains(it))
    });
    assert!(is_new, "it listens on the dead connection");
}

/// All parties of a generation have passed, even a party that gets the message late.
#[test]
fn a_party_that_misses_the_message_before_a_delete_has_passed() {
    let server = server();
    let proxy = Proxy::before(&server);
    let deaf = behind(&proxy);
    let steady = client(&server).cyclic_barrier("deleted");
    for is_made_again in [false, true] {
        assert!(steady.try_set_parties(2).unwrap());
        let waits = party(&deaf.cyclic_barrier("deleted").with_watchdog(SHORT_LEASE));
        wait_subscribed(&server, "redlatch_barrier:{deleted}");
        proxy.on(Direction::Reply, 2, Action::LoseReply, |bytes| {
            contains(bytes, "message") && contains(bytes, "redlatch_barrier:{deleted}")
        });
        assert_eq!(steady.wait().unwrap(), 0);
        assert!(steady.delete().unwrap());
        assert!(!steady.reset().unwrap() && steady.is_broken().unwrap());
        if is_made_again {
            assert!(steady.try_set_parties(2).unwrap());
        }
        assert_eq!(waits.join().unwrap(), 1);
        proxy.clear_rules();
        assert_eq!(steady.delete().unwrap(), is_made_again);
    }
}

/// A waiting thread gets no reply for longer than its lease.
#[test]
fn a_silent_connection_ends_no_lease() {
    let server = server();
    let proxy = Proxy::before(&server);
    let steady = barrier(&client(&server), "silence", 2);
    let builder = Client::builder(&proxy.url()).connections(1).response_timeout(SHORT_LEASE * 2);
    let theirs = builder.connect().unwrap().cyclic_barrier("silence").with_watchdog(SHORT_LEASE);
    let waits = party(&theirs);
    on_script(&proxy, "silence", Action::Silence);
    proxy.wait_fired(1, TIMEOUT);
    thread::sleep(SHORT_LEASE * 4 / 3);
    assert!(!steady.is_broken().unwrap());
    assert_eq!((steady.wait().unwrap(), waits.join().unwrap()), (0, 1));
}

/// Limits a server's memory to this number of bytes. Zero means no limit.
fn limit(server: &Server, bytes: &str) {
    let mut redis = server.connection();
    redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).exec(&mut redis).unwrap();
}

/// Returns the end of the last lease of a party, by the server's clock in ms.
fn last_end(server: &Server, name: &str) -> f64 {
    let key = format!("redlatch_parties:{{{name}}}");
    let last: Vec<(String, f64)> = server.connection().zrange_withscores(key, -1, -1).unwrap();
    last[0].1
}

/// Without memory, the server still renews the leases. The parties pass when the server has memory
/// for another party again.
#[test]
fn a_server_without_memory_breaks_no_barrier() {
    let server = server();
    let barrier = barrier(&client(&server), "full", 2).with_watchdog(SHORT_LEASE);
    let waits = party(&barrier);
    limit(&server, "1");
    let before = last_end(&server, "full");
    wait_until("its lease is renewed", TIMEOUT, || last_end(&server, "full") > before);
    limit(&server, "0");
    assert_eq!((barrier.wait().unwrap(), waits.join().unwrap()), (0, 1));
}

#[test]
fn a_generation_ends_without_memory() {
    let server = Arc::new(server());
    let plain = barrier(&client(&server), "full", 2);
    let full = Arc::clone(&server);
    let acting = plain.with_action(move || limit(&full, "1"));
    let waits = party(&plain);
    assert_eq!((acting.wait().unwrap(), waits.join().unwrap()), (0, 1));
    // Without memory, the server would refuse the new party, and the barrier would break.
    limit(&server, "0");
    let waits = party(&plain);
    let full = Arc::clone(&server);
    let leaves = plain.with_action(move || {
        limit(&full, "1");
        panic!("as the test wants it");
    });
    let leaves = spawn(move || {
        let run = std::panic::AssertUnwindSafe(|| leaves.wait());
        std::panic::catch_unwind(run).is_err()
    });
    assert!(leaves.join());
    is_broken(waits.join());
}

/// With `TimedOut`, or with an error that says that the outcome is known, the call would claim that
/// no other party passes.
#[test]
fn a_party_whose_time_is_over_says_so_only_if_the_server_does() {
    let server = server();
    let proxy = Proxy::before(&server);
    let steady = client(&server);
    let plain = barrier(&steady, "silent", 2);
    // The client waits for a reply for longer than the party waits, so the party leaves before the
    // client notices the outage.
    let hasty = Client::builder(&proxy.url()).response_timeout(TIME_UNIT * 10);
    let hasty = hasty.connect().unwrap().cyclic_barrier("silent");
    assert_eq!(hasty.parties().unwrap(), 2, "it is connected");
    // In the second round, the request that breaks the barrier is never sent.
    for is_sent in [true, false] {
        let error = loop {
            let is_met = Arc::new(AtomicBool::new(false));
            let meets = Arc::clone(&is_met);
            let action = if is_sent { Action::Silence } else { Action::LoseRequest };
            proxy.on(Direction::Request, usize::MAX, action, move |bytes| {
                // After the reply to its arrival, the party sends no numbered request until it
                // leaves.
                let has_arrived = contains(bytes, "EVAL")
                    && contains(bytes, "silent")
                    && !contains(bytes, "redlatch_request");
                let breaks = bytes.ends_with(b"\r\n$1\r\n0\r\n");
                let is_now = has_arrived && breaks == is_sent;
                meets.fetch_or(is_now, Ordering::SeqCst) || is_now
            });
            let left = hasty.wait_for(TIME_UNIT * 5);
            proxy.clear_rules();
            // Cut the connections, so that the next round begins with new ones.
            proxy.cut_all();
            if is_met.load(Ordering::SeqCst) {
                break left.unwrap_err();
            }
            // On a busy machine the server may reply to the arrival late, or only when the party's
            // time is over.
            match left {
                Ok(left) => assert_eq!(left, Waited::TimedOut),
                Err(error) if error.to_string().contains("it has arrived is not known") => {}
                Err(error) if error.to_string().contains("nothing was changed") => {}
                Err(error) => break error,
            }
            // The same client must reset the barrier: another client's reset could come before the
            // request that takes the arrival back.
            wait_until("it is reset", TIMEOUT, || hasty.reset().is_ok_and(|was_there| was_there));
        };
        assert!(error.outcome_unknown(), "{error:#}");
        is_clear(&error, "silent", "breaks when the lease");
        let is_broken = || plain.is_broken().is_ok_and(|broken| broken);
        wait_until("the barrier breaks", TIMEOUT, is_broken);
        assert!(plain.reset().unwrap());
    }
}

/// A cancelled party must not claim that no other party passes, either.
#[test]
fn a_party_that_is_cancelled_says_whether_the_others_may_pass() {
    let server = server();
    let plain = barrier(&client(&server), "cancelled", 2);
    let hasty = Client::builder(&server.url()).response_timeout(TIMEOUT).connect().unwrap();
    let hasty = hasty.cyclic_barrier("cancelled");
    for is_paused in [false, true] {
        assert!(plain.reset().unwrap());
        let token = CancelToken::new();
        let (its, cancels) = (hasty.clone(), token.clone());
        let leaves = party_that(&plain, move |_| its.wait_cancellable(&cancels));
        if is_paused {
            server.pause();
        }
        token.cancel();
        let error = leaves.join().unwrap_err();
        server.resume();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:#}");
        if is_paused {
            assert!(error.outcome_unknown(), "{error:#}");
        }
        wait_until("it breaks", TIMEOUT, || plain.is_broken().unwrap());
    }
}

/// Starts a party that waits and whose messages are lost.
fn deaf_party(server: &Server, proxy: &Proxy, name: &str) -> Running<Result<u32, Error>> {
    let waits = party(&behind(proxy).cyclic_barrier(name).with_watchdog(SHORT_LEASE));
    wait_subscribed(server, &format!("redlatch_barrier:{{{name}}}"));
    proxy.on(Direction::Reply, usize::MAX, Action::LoseReply, |bytes| contains(bytes, "message"));
    waits
}

/// Many parties each reset a broken barrier.
#[test]
fn a_party_that_hears_late_has_passed_though_many_generations_broke_since() {
    let server = server();
    let proxy = Proxy::before(&server);
    let steady = barrier(&client(&server), "resets", 2);
    let waits = deaf_party(&server, &proxy, "resets");
    assert_eq!(steady.wait().unwrap(), 0);
    for _ in 0..100 {
        assert!(steady.reset().unwrap());
    }
    assert_eq!(waits.join().unwrap(), 1);
}

/// The other parties have passed, so an error that claims that no party has passed would be wrong.
#[test]
fn a_party_whose_generation_is_forgotten_hears_that_the_others_may_have_passed() {
    let server = server();
    let proxy = Proxy::before(&server);
    let steady = barrier(&client(&server), "old", 2);
    let waits = deaf_party(&server, &proxy, "old");
    // The test writes the numbers of the broken generations itself. Real resets would take so long
    // that the party would send a request in between.
    let mut redis = server.connection();
    let key = "redlatch_barrier:{old}";
    let generation: i64 = redis.hget(key, "generation").unwrap();
    let broken: String = (1..=256).map(|after| format!("{} ", generation + after)).collect();
    let () = redis.hset(key, "broken", format!(" {broken}")).unwrap();
    assert_eq!(steady.wait().unwrap(), 0);
    let error = waits.join().unwrap_err();
    assert!(error.outcome_unknown(), "{error:#}");
    assert!(error.to_string().contains("the others may have passed"), "{error}");
    is_broken::<u32>(Err(error));
}

/// Returns a client that tries for a long time during an outage.
fn enduring(url: &str) -> Client {
    impatient(url).connections(1).failover_timeout(LONG_LEASE).connect().unwrap()
}

#[test]
fn an_arrival_outlasts_an_outage_and_counts_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (shaky, steady) = (enduring(&proxy.url()), client(&server));
    let plain = barrier(&steady, "outage", 3);
    let shaky = shaky.cyclic_barrier("outage");
    assert_eq!(shaky.parties().unwrap(), 3);
    for action in [Action::LoseReply, Action::LoseRequest] {
        let fired = proxy.fired();
        // Each call sends its request twice, so four lost copies make two calls fail.
        let arrives = |proxy: &Proxy| {
            proxy.on(Direction::Request, 4, action, |bytes| {
                contains(bytes, "EVAL") && contains(bytes, "outage")
            });
        };
        arrives(&proxy);
        let its = shaky.clone();
        let waits = [spawn(move || its.wait()), party(&plain)];
        proxy.wait_fired(fired + 4, TIMEOUT);
        wait_until("two have arrived", TIMEOUT, || plain.waiting().unwrap() == 2);
        // The last party also arrives.
        arrives(&proxy);
        assert_eq!(shaky.wait().unwrap(), 0);
        assert_eq!(proxy.fired(), fired + 8);
        let mut indices = waits.map(|party| party.join().unwrap());
        indices.sort_unstable();
        assert_eq!(indices, [1, 2]);
        assert_eq!((plain.waiting().unwrap(), plain.is_broken().unwrap()), (0, false));
    }
}

#[test]
fn parties_outlast_a_restart_of_their_server() {
    bound();
    let server = Server::with_args(&["--appendonly", "yes", "--appendfsync", "always"]).unwrap();
    let client = enduring(&server.url());
    let acting = barrier(&client, "restart", 3);
    let before = party(&acting);
    server.kill();
    let comes = acting.clone();
    let meanwhile = spawn(move || comes.wait());
    // Time must pass here, so that the parties send requests.
    thread::sleep(TIME_UNIT * 10);
    assert!(!meanwhile.is_finished() && !before.is_finished());
    server.restart_empty();
    wait_until("two have arrived", TIMEOUT, || acting.waiting().is_ok_and(|waiting| waiting == 2));
    assert_eq!(acting.wait().unwrap(), 0);
    assert_eq!((before.join().unwrap(), meanwhile.join().unwrap()), (2, 1));
}

/// After the action has run, the barrier must trip.
#[test]
fn a_trip_after_the_action_outlasts_an_outage() {
    let server = server();
    let proxy = Arc::new(Proxy::before(&server));
    let plain = barrier(&client(&server), "trip", 2);
    let shaky = enduring(&proxy.url()).cyclic_barrier("trip");
    assert_eq!(shaky.parties().unwrap(), 2);
    for action in [Action::LoseReply, Action::LoseRequest] {
        let network = Arc::clone(&proxy);
        let acting = shaky.with_action(move || {
            network.on(Direction::Request, 4, action, |bytes| {
                contains(bytes, "EVAL") && contains(bytes, "trip")
            });
        });
        let waits = party(&plain);
        assert_eq!((acting.wait().unwrap(), waits.join().unwrap()), (0, 1));
    }
    assert_eq!(proxy.fired(), 8);
}

/// The last party gets the reply to its arrival too late: the generation is broken by then.
#[test]
fn no_action_runs_for_a_generation_that_is_known_to_be_broken() {
    let server = server();
    let proxy = Proxy::before(&server);
    let plain = barrier(&client(&server), "late", 2);
    let shaky = enduring(&proxy.url()).cyclic_barrier("late");
    assert_eq!(shaky.parties().unwrap(), 2);
    let waits = party(&plain);
    proxy.on(Direction::Request, usize::MAX, Action::LoseReply, |bytes| {
        contains(bytes, "EVAL") && contains(bytes, "late")
    });
    let acts = shaky.with_action(|| panic!("the action runs"));
    let acts = spawn(move || acts.wait());
    wait_until("it has arrived", TIMEOUT, || plain.waiting().unwrap() == 2);
    assert!(plain.reset().unwrap());
    proxy.clear_rules();
    is_broken(acts.join());
    is_broken(waits.join());
    // The next generation is not broken.
    assert!(!plain.is_broken().unwrap());
}

/// Cuts a client off, and waits until the client notices this.
fn cut_off(proxy: &Proxy, its: &CyclicBarrier) {
    proxy.refuse();
    proxy.cut_all();
    wait_until("it is cut off", TIMEOUT, || its.parties().is_err());
}

/// If the barrier did not break, the other parties of the generation would wait for this party for
/// ever.
#[test]
fn a_party_that_cannot_arrive_breaks_the_barrier() {
    let server = server();
    let proxy = Proxy::before(&server);
    let plain = barrier(&client(&server), "fails", 3);
    let shaky = impatient(&proxy.url()).connections(1).connect().unwrap();
    let shaky = shaky.cyclic_barrier("fails");
    for how in ["the server is full", "no request arrives", "no reply arrives"] {
        assert!(shaky.reset().unwrap());
        let waits = party(&plain);
        match how {
            "the server is full" => limit(&server, "1"),
            "no request arrives" => cut_off(&proxy, &shaky),
            _ => proxy.on(Direction::Request, 2, Action::LoseReply, |bytes| {
                contains(bytes, "EVAL") && contains(bytes, "fails")
            }),
        }
        let error = shaky.wait().unwrap_err();
        assert!(error.kind().is_server_trouble(), "{how}: {error:#}");
        if how == "no request arrives" {
            assert!(!error.outcome_unknown(), "{error:#}");
            is_clear(&error, "fails", "it has not arrived; the client breaks the barrier");
            proxy.accept();
        }
        is_broken(waits.join());
        limit(&server, "0");
        assert!(plain.is_broken().unwrap());
    }
}

/// The party gets no reply to its arrival, but gets a reply to the request with which it leaves.
#[test]
fn a_party_that_has_passed_hears_so_when_it_would_leave() {
    let server = server();
    let proxy = Proxy::before(&server);
    let plain = barrier(&client(&server), "passed", 2);
    let shaky = impatient(&proxy.url()).connections(1).connect().unwrap();
    let waits = party(&plain);
    proxy.on(Direction::Request, 2, Action::LoseReply, |bytes| {
        contains(bytes, "EVAL") && contains(bytes, "passed")
    });
    assert_eq!(shaky.cyclic_barrier("passed").wait().unwrap(), 0);
    assert_eq!((proxy.fired(), waits.join().unwrap()), (2, 1));
}

/// The server hangs while a party gives up. When the call returns, no copy of the party's arrival
/// can arrive later.
#[test]
fn a_party_that_gives_up_at_a_server_that_hangs_breaks_the_barrier_later() {
    let server = server();
    let plain = barrier(&client(&server), "hangs", 3);
    let hasty = Client::builder(&server.url()).connections(1).response_timeout(TIMEOUT);
    let hasty = hasty.connect().unwrap().cyclic_barrier("hangs");
    for ends in ["a limit", "a cancel"] {
        assert!(plain.reset().unwrap());
        assert_eq!(hasty.parties().unwrap(), 3, "it is connected");
        let waits = party(&plain);
        server.pause();
        let token = CancelToken::new();
        let cancels = token.clone();
        let leaves = hasty.clone();
        let leaves = spawn(move || match ends {
            "a limit" => leaves.wait_for(TIME_UNIT).unwrap_err(),
            _ => leaves.wait_cancellable(&token).unwrap_err(),
        });
        if ends == "a cancel" {
            // Time must pass here, so that the cancel comes during the call. A cancel before the
            // call has the same effect.
            thread::sleep(TIME_UNIT);
            cancels.cancel();
        }
        // The call ends long before the client treats the server as unreachable.
        let error = leaves.join();
        let kind =
            if ends == "a limit" { ErrorKind::ResponseTimeout } else { ErrorKind::Cancelled };
        assert_eq!(error.kind(), kind, "{error:#}");
        assert!(error.to_string().contains("the client breaks the barrier"), "{error}");
        server.resume();
        is_broken(waits.join());
        assert!(hasty.reset().unwrap());
        assert_eq!((plain.waiting().unwrap(), plain.is_broken().unwrap()), (0, false));
    }
}

/// If a party leaves, its client breaks the barrier before the client's next reset, and never after
/// it.
#[test]
fn a_reset_comes_after_the_parties_that_have_left_and_is_not_undone_by_them() {
    let server = server();
    let proxy = Proxy::before(&server);
    let plain = barrier(&client(&server), "reset", 2);
    let shaky = impatient(&proxy.url()).connections(1).connect().unwrap();
    let shaky = shaky.cyclic_barrier("reset");
    for _ in 0..10 {
        cut_off(&proxy, &shaky);
        for _ in 0..3 {
            is_clear(&shaky.wait().unwrap_err(), "reset", "it has not arrived");
        }
        proxy.accept();
        wait_until("it is reset", TIMEOUT, || shaky.reset().is_ok_and(|was_there| was_there));
        // This is longer than a cleanup waits before it is repeated.
        thread::sleep(TIME_UNIT);
        assert!(!plain.is_broken().unwrap());
        let waits = party(&plain);
        assert_eq!((shaky.wait().unwrap(), waits.join().unwrap()), (0, 1));
    }
}

#[test]
fn a_loss_of_data_breaks_the_barrier() {
    let server = server();
    let client = client(&server);
    // A party sends a request when a message comes. Here no message comes, so a short lease makes
    // it send one.
    let kept = barrier(&client, "lost", 2).with_watchdog(TIME_UNIT * 3);
    let waits = party(&kept);
    let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
    is_broken(waits.join());
    // The master has the barrier, but not the arrival.
    let kept = barrier(&client, "lost", 2).with_watchdog(TIME_UNIT * 3);
    let waits = party(&kept);
    let () = server.connection().del("redlatch_parties:{lost}").unwrap();
    is_broken(waits.join());
    assert!(kept.is_broken().unwrap());
}

/// The generation's other parties have passed, so a thread that arrives would pass alone.
#[test]
fn a_trip_that_a_new_master_does_not_know_breaks_the_barrier() {
    let server = server();
    let barrier = barrier(&client(&server), "forgotten", 2);
    let waits = party(&barrier);
    let mut redis = server.connection();
    let keys = ["redlatch_barrier:{forgotten}", "redlatch_parties:{forgotten}"];
    let known: Vec<(String, String)> = redis.hgetall(keys[0]).unwrap();
    let parties: Vec<(String, f64)> = redis.zrange_withscores(keys[1], 0, -1).unwrap();
    assert_eq!((barrier.wait().unwrap(), waits.join().unwrap(), parties.len()), (0, 1, 1));
    // The new master lacks the later trips, too.
    for _ in 0..3 {
        let waits = party(&barrier);
        assert_eq!((barrier.wait().unwrap(), waits.join().unwrap()), (0, 1));
    }
    let () = redis.hset_multiple(keys[0], &known).unwrap();
    let () = redis.zadd(keys[1], &parties[0].0, parties[0].1).unwrap();
    is_broken(barrier.wait());
    assert!(barrier.is_broken().unwrap());
    assert!(barrier.reset().unwrap());
    let waits = party(&barrier);
    assert_eq!((barrier.wait().unwrap(), waits.join().unwrap()), (0, 1));
}

/// While the party waits, a later barrier begins, whose generations have higher numbers.
#[test]
fn a_generation_that_a_new_master_does_not_know_is_broken() {
    let server = server();
    let ours = barrier(&client(&server), "unknown", 2);
    let mut redis = server.connection();
    let key = "redlatch_barrier:{unknown}";
    let known: Vec<(String, String)> = redis.hgetall(key).unwrap();
    let waits = party(&ours);
    assert_eq!((ours.wait().unwrap(), waits.join().unwrap()), (0, 1));
    let waits = party(&ours);
    wait_subscribed(&server, key);
    let () = redis.hset_multiple(key, &known).unwrap();
    let theirs = client(&server).cyclic_barrier("unknown");
    assert!(theirs.delete().unwrap());
    assert!(theirs.try_set_parties(2).unwrap());
    is_broken(waits.join());
}

#[test]
fn other_data_under_its_key_is_an_error_and_stays() {
    let server = server();
    let barrier = client(&server).cyclic_barrier("foreign");
    let () = server.connection().set("redlatch_barrier:{foreign}", "mine").unwrap();
    is_clear(&barrier.try_set_parties(2).unwrap_err(), "foreign", "use another name");
    is_clear(&barrier.wait().unwrap_err(), "foreign", "use another name");
    is_clear(&barrier.delete().unwrap_err(), "foreign", "use another name");
    let mine: String = server.connection().get("redlatch_barrier:{foreign}").unwrap();
    assert_eq!(mine, "mine");
}

#[test]
fn a_shutdown_ends_a_wait_and_breaks_the_barrier() {
    let server = server();
    let (ends, stays) = (client(&server), client(&server));
    let barrier = barrier(&stays, "ends", 3).with_watchdog(SHORT_LEASE);
    let theirs = ends.cyclic_barrier("ends").with_watchdog(SHORT_LEASE);
    let (waits, leaves) = (party(&barrier), party(&theirs));
    ends.shutdown();
    assert_eq!(leaves.join().unwrap_err().kind(), ErrorKind::ShutDown);
    is_broken(waits.join());
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    user.set(&["-@all"]);
    let error = client.cyclic_barrier("rights").reset().unwrap_err().to_string();
    user.set_as_said(&error, "a barrier", "rights");
    user.set(&["~redlatch_barrier:{rights}", "~redlatch_parties:{rights}"]);
    let barrier = barrier(&user.client(), "rights", 2);
    let other = user.client().cyclic_barrier("rights").with_action(|| ());
    for _ in 0..2 {
        let waits = party(&barrier);
        assert_eq!((other.wait().unwrap(), waits.join().unwrap()), (0, 1));
    }
    left(&barrier, barrier.wait_for(TIME_UNIT / 10));
    assert!(barrier.reset().unwrap());
    assert!(barrier.delete().unwrap());
}

#[test]
fn a_change_without_a_right_is_made_as_a_whole_or_not_at_all() {
    let server = server();
    let mut user = User::new(&server, "me");
    let shared = user.client().cyclic_barrier("half");
    assert!(shared.try_set_parties(1).unwrap());
    assert!(shared.reset().unwrap());
    assert_eq!(shared.wait().unwrap(), 0);
    let mut redis = server.connection();
    let mut refused = 0;
    let rights = "hset hget hmget hdel pexpire persist del zadd zcard zcount time get set";
    for denied in rights.split(' ').map(|right| format!("-{right}")) {
        for ask in [
            |it: &CyclicBarrier| it.reset().map(drop),
            |it: &CyclicBarrier| it.wait().map(drop),
            |it: &CyclicBarrier| it.delete().map(drop),
        ] {
            let before: Vec<String> = redis.hgetall("redlatch_barrier:{half}").unwrap();
            user.set(&[&denied]);
            let outcome = ask(&shared);
            user.set(&["~*", "&*", "+@all"]);
            let after: Vec<String> = redis.hgetall("redlatch_barrier:{half}").unwrap();
            match outcome {
                Ok(()) => assert_ne!(after, before, "{denied}"),
                Err(error) => {
                    is_clear(&error, "half", "access rights (ACL)");
                    // If the server refuses the arrival, the party may break the barrier instead.
                    let breaks = error.to_string().contains("the barrier is broken");
                    assert_eq!(after != before, breaks, "{denied}: {error}");
                    assert_eq!(shared.is_broken().unwrap(), breaks, "{denied}: {error}");
                    refused += 1;
                }
            }
            let _ = shared.try_set_parties(1).unwrap();
            assert!(shared.reset().unwrap());
        }
    }
    assert!(refused > 15, "{refused}");
}

/// Messages of one database reach the listeners of all databases.
#[test]
fn a_barrier_of_another_database_is_another_one() {
    let server = server();
    let other = Client::connect(&format!("{}/1", server.url().trim_end_matches('/'))).unwrap();
    let barriers = [client(&server), other].map(|client| barrier(&client, "both", 2));
    // The barriers look as if they had been made in the same millisecond.
    for database in [0, 1] {
        let mut redis = server.connection();
        let () = redis::cmd("SELECT").arg(database).query(&mut redis).unwrap();
        let both = [("generation", 1_000), ("first", 1_000)];
        let () = redis.hset_multiple("redlatch_barrier:{both}", &both).unwrap();
    }
    let waits = barriers.each_ref().map(party);
    assert_eq!(barriers[1].wait().unwrap(), 0);
    let [first, second] = waits;
    assert_eq!(second.join().unwrap(), 1);
    thread::sleep(TIME_UNIT);
    assert!(!first.is_finished());
    assert_eq!((barriers[0].wait().unwrap(), first.join().unwrap()), (0, 1));
}

/// A party that sent a request after the message would need another round trip. The test ends
/// before the next regular request.
#[test]
fn parties_that_hear_the_message_ask_nothing() {
    let server = server();
    let clients = [(); 3].map(|()| client(&server));
    let barriers = clients.each_ref().map(|client| client.cyclic_barrier("heard"));
    assert!(barriers[0].try_set_parties(5).unwrap());
    let scripts = || Commands::so_far(&server).scripts();
    let since = Instant::now();
    for breaks in [false, true] {
        loop {
            assert!(barriers[0].reset().unwrap());
            // Each process has two parties. One party sends its arrival and two more requests, and
            // the other party sends only its arrival.
            let waits = [0, 0, 1, 1].map(|at| party(&barriers[at]));
            wait_subscribed(&server, "redlatch_barrier:{heard}");
            waits.iter().for_each(Running::wait_queued);
            let before = scripts();
            if breaks {
                assert!(barriers[2].reset().unwrap());
            } else {
                assert_eq!(barriers[2].wait().unwrap(), 0);
            }
            for outcome in waits.map(Running::join) {
                assert_eq!(outcome.is_err(), breaks);
            }
            if scripts() - before == 1 {
                break;
            }
            assert!(since.elapsed() < TIMEOUT, "they ask");
        }
    }
}
