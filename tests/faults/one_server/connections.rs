//! Connections that break or fall silent.

use super::*;

#[test]
fn an_acquire_and_a_release_survive_a_killed_connection() {
    let server = server();
    let client = client(&server);
    let lock = client.reentrant_lock("killed");
    let mut redis = server.connection();
    for _ in 0..20 {
        kill_clients(&mut redis, "normal");
        let guard = lock.lock().unwrap();
        assert_eq!(holder(&mut redis, "killed").unwrap().1, "1");
        kill_clients(&mut redis, "normal");
        guard.unlock().unwrap();
        assert_eq!(holder(&mut redis, "killed"), None);
        // The drop writes its release into a dead connection.
        let guard = lock.lock().unwrap();
        kill_clients(&mut redis, "normal");
        drop(guard);
        wait_free(&server, "killed", TIMEOUT);
    }
}

#[test]
fn after_the_command_connections_were_killed_new_channels_are_listened_to_at_once() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    // The subscriber is connected, and sleeps in its read.
    let held = other.reentrant_lock("first").lock().unwrap();
    assert!(
        answered(|| one.reentrant_lock("first").try_lock_for(TIME_UNIT)).into_option().is_none()
    );
    drop(held);
    // Each thread has its own name, so that the threads use different lanes.
    let mut names = (0..).map(|at| format!("later:{at}"));
    for _ in 0..4 {
        woken_by_message(|| {
            let _killed: u64 =
                redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).query(&mut redis).unwrap();
            let name = names.next().unwrap();
            let held = other.reentrant_lock(&name).lock().unwrap();
            let lock = one.reentrant_lock(&name);
            let waiter = spawn(move || lock.lock().map(drop));
            wait_in_line(&server, &name, 1);
            held.unlock().unwrap();
            waiter.join().unwrap();
        });
    }
}

#[test]
fn killed_connections_in_the_middle_of_contention_cost_no_grant() {
    let server = server();
    let clients = [client(&server), client(&server)];
    let inside = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let rounds: Vec<_> = (0..6).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let threads: Vec<_> = (0..6)
        .map(|at| {
            let lock = clients[at % 2].reentrant_lock("contended");
            let (round, inside, stop) =
                (Arc::clone(&rounds[at]), Arc::clone(&inside), Arc::clone(&stop));
            spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if at < 3 {
                        drop(guard);
                    } else if let Err(error) = guard.unlock() {
                        // The unlock's reply was lost.
                        assert!(error.outcome_unknown(), "{error}");
                    }
                    round.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut random = Random::new();
    let mut redis = server.connection();
    for round in 0..60 {
        // After each kill, all threads must get the lock. No call may be hit by two kills, so each
        // client first sends a command and notices the kill. Without this, its threads could pass
        // the lock to each other for some time without a command.
        for client in &clients {
            client.reentrant_lock("contended").is_locked().unwrap();
        }
        let done = || rounds.iter().map(|round| round.load(Ordering::SeqCst));
        let before: Vec<_> = done().collect();
        wait_until("all are let in", TIMEOUT, || {
            done().zip(&before).all(|(now, then)| now > then + 1)
        });
        let until = Instant::now() + Duration::from_micros(random.below(2_000));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        kill_clients(&mut redis, if round % 3 == 0 { "pubsub" } else { "normal" });
    }
    stop.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    wait_free(&server, "contended", TIMEOUT);
}

#[test]
fn a_waiter_whose_subscription_is_cut_around_the_release_is_woken() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let mut redis = server.connection();
    let mut random = Random::new();
    for round in 0..25 {
        woken_by_message(|| {
            hold_as_redisson(&mut redis, "cut", LONG_LEASE);
            let lock = client.reentrant_lock("cut");
            let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
            wait_subscribed(&server, &channel("cut"));
            if round % 2 == 0 {
                waiter.wait_asleep();
            }
            let mut wait = || {
                let until = Instant::now() + Duration::from_micros(random.below(1_000));
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            };
            if round % 3 == 0 {
                release_as_redisson(&mut redis, "cut", &channel("cut"));
                wait();
                proxy.cut_matching("SUBSCRIBE");
            } else {
                proxy.cut_matching("SUBSCRIBE");
                wait();
                release_as_redisson(&mut redis, "cut", &channel("cut"));
            }
            waiter.join();
        });
    }
}

#[test]
fn a_message_that_comes_while_the_last_try_is_under_way_is_heard() {
    let server = server();
    let mut redis = server.connection();
    // The test tries again if the machine kept a thread from running.
    let heard = (0..5).any(|_| {
        let proxy = Proxy::before(&server);
        // The client waits for the replies that are held back, and uses its second connection for
        // other commands.
        let client = impatient(&proxy.url()).response_timeout(TIMEOUT).connections(2);
        let client = client.connect().unwrap();
        warm_up(&client);
        hold_as_redisson(&mut redis, "between", LONG_LEASE);
        // The second request for the lock is sent after the subscription. Its reply, "busy", is in
        // flight when the message comes.
        let tries = AtomicU64::new(0);
        proxy.on(Direction::Request, 1, Action::HoldReply, move |bytes| {
            let acquire = takes(bytes) && contains(bytes, "between");
            acquire && tries.fetch_add(1, Ordering::SeqCst) == 1
        });
        let before = Commands::so_far(&server).scripts();
        let lock = client.reentrant_lock("between");
        let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
        proxy.wait_fired(1, TIMEOUT);
        wait_until("it is answered", TIMEOUT, || Commands::so_far(&server).scripts() == before + 2);
        wait_subscribed(&server, &channel("between"));
        let place: String = redis.lindex("redlatch_queue:{between}", 0).unwrap();
        proxy.on_reply("message", Action::DelayReply(Duration::ZERO));
        release_as_redisson(&mut redis, "between", &channel("between"));
        proxy.wait_fired(2, TIMEOUT);
        wait_read(&server, &place, || {});
        let answered = Instant::now();
        proxy.release();
        waiter.join();
        answered.elapsed() < MIN_POLL_INTERVAL
    });
    assert!(heard, "it asked later, and did not hear");
}

#[test]
fn a_waiter_whose_subscription_is_dead_and_open_finds_out_by_asking() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "half open", LONG_LEASE);
    let lock = client.reentrant_lock("half open");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    wait_subscribed(&server, &channel("half open"));
    waiter.wait_asleep();
    // The message and all later bytes are lost.
    proxy.on_reply("message", Action::Silence);
    release_as_redisson(&mut redis, "half open", &channel("half open"));
    // The waiter's next request ends the wait. Without this request, the thread would wait for
    // ever.
    waiter.join();
}

#[test]
fn replies_that_come_byte_by_byte_are_whole() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (slow, quick) = (behind(&proxy), client(&server));
    proxy.trickle(true);
    let inside = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = [slow.clone(), slow, quick]
        .into_iter()
        .map(|client| {
            let lock = client.reentrant_lock("bytes");
            let inside = Arc::clone(&inside);
            spawn(move || {
                for round in 0..30 {
                    let guard = lock.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if round % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(Running::join);
    wait_free(&server, "bytes", TIMEOUT);
}

#[test]
fn a_far_server_costs_no_connection_for_each_drop() {
    const DROPS: u64 = 8;
    let server = server();
    let proxy = Proxy::before(&server);
    // This is the delay of a round trip to another continent.
    proxy.set_delay(TIME_UNIT * 9 / 10);
    let client =
        impatient(&proxy.url()).response_timeout(TIMEOUT).connections(1).connect().unwrap();
    warm_up(&client);
    let lock = client.reentrant_lock("far");
    let mut redis = server.connection();
    let mut connections = || {
        let info: String = redis::cmd("INFO").arg("stats").query(&mut redis).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = connections();
    for _ in 0..DROPS {
        drop(lock.lock().unwrap());
        // Time must pass here, so that the reply is in flight and the background thread waits for
        // it. No event shows that this thread has begun to wait. If the machine stands still, the
        // thread may wait too long and open a connection, but not for most of the drops.
        thread::sleep(TIME_UNIT * 3);
    }
    let opened = connections() - before;
    assert!(opened < DROPS / 2, "{opened} connections for {DROPS} drops");
}
