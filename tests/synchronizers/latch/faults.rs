//! Latches under faults.

use super::*;

#[test]
fn a_count_down_counts_once_if_requests_or_replies_are_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let latch = latch(&client, "counted", 7);
    let mut left = 7;
    let mut fired = 0;
    for (action, times) in [
        (Action::LoseReply, 1),
        (Action::LoseRequest, 1),
        (Action::LoseReply, 4),
        (Action::LoseRequest, 4),
        (Action::HoldReply, 1),
        (Action::Silence, 1),
        // This is the last count-down, which opens the latch.
        (Action::LoseReply, 2),
    ] {
        on_script(&proxy, "counted", times, action);
        if let Err(error) = latch.count_down() {
            is_clear(&error, "counted", "repeated in the background");
            is_clear(&error, "counted", "for up to four minutes");
        }
        fired += times;
        left -= 1;
        proxy.wait_fired(fired, TIMEOUT);
        proxy.release();
        stays(&server, "counted", left);
    }
    assert!(!latch.wait_for(TIMEOUT).unwrap().timed_out());
}

#[test]
fn a_late_copy_does_not_count_against_the_next_count() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let latch = latch(&client, "anew", 1);
    // The count-down opened the latch, but its process does not know that.
    on_script(&proxy, "anew", 3, Action::LoseReply);
    assert!(latch.count_down().is_err());
    let other = crate::common::client(&server).count_down_latch("anew");
    assert!(other.try_set_count(2).unwrap());
    proxy.wait_fired(3, TIMEOUT);
    stays(&server, "anew", 2);
}

#[test]
fn a_count_that_was_set_is_set_by_this_call_though_its_reply_is_lost() {
    let server = server();
    let proxy = Proxy::before(&server);
    let latch = behind(&proxy).count_down_latch("set");
    for action in [Action::LoseReply, Action::LoseRequest] {
        on_script(&proxy, "set", 1, action);
        assert!(latch.try_set_count(3).unwrap());
        on_script(&proxy, "set", 1, action);
        let deleted = latch.delete();
        assert!(deleted.is_ok(), "{deleted:?}");
        assert_eq!(latch.count().unwrap(), 0);
    }
    assert_eq!(proxy.fired(), 4);
}

#[test]
fn a_frozen_servers_count_downs_are_counted_once_it_goes_on() {
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let latch = latch(&client, "frozen", 5);
    server.pause();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let latch = latch.clone();
            spawn(move || latch.count_down().unwrap_err())
        })
        .collect();
    // If a count-down was never sent, its error says that it was not counted.
    let errors: Vec<_> = threads.into_iter().map(|thread| thread.join().to_string()).collect();
    let counted =
        errors.iter().filter(|error| error.contains("repeated in the background")).count();
    let not = errors.iter().filter(|error| error.contains("nothing was counted")).count();
    assert_eq!(counted + not, 3, "{errors:?}");
    is_clear(&latch.wait_for(TIME_UNIT).unwrap_err(), "frozen", "the server");
    server.resume();
    stays(&server, "frozen", 5 - i64::try_from(counted).unwrap());
}

#[test]
fn counts_with_connections_cut_at_any_moment_are_exact() {
    let server = server();
    let proxies = [Proxy::before(&server), Proxy::before(&server)];
    let mut random = Random::new();
    let clients: Vec<_> =
        proxies.iter().map(|proxy| impatient(&proxy.url()).connect().unwrap()).collect();
    let quiet = client(&server);
    let total = 1_000_000_u64;
    let latch = latch(&quiet, "cut", total);
    let counted = Arc::new(AtomicU64::new(0));
    let (least, over) = (Instant::now() + TIME_UNIT * 25, Arc::new(AtomicBool::new(false)));
    let threads: Vec<_> = (0..4_usize)
        .map(|at| {
            let latch = clients[at % 2].count_down_latch("cut");
            let (counted, over) = (Arc::clone(&counted), Arc::clone(&over));
            spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    let counts = match latch.count_down() {
                        Ok(()) => true,
                        Err(error) => !error.to_string().contains("nothing was counted"),
                    };
                    counted.fetch_add(u64::from(counts), Ordering::SeqCst);
                }
            })
        })
        .collect();
    wait_until("many are counted", TIMEOUT, || {
        proxies[usize::try_from(random.below(2)).unwrap()].cut_all();
        thread::sleep(Duration::from_micros(random.below(15_000)));
        counted.load(Ordering::SeqCst) > 50 && Instant::now() > least
    });
    over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(Running::join);
    let counted = counted.load(Ordering::SeqCst);
    println!("{counted} counted");
    stays(&server, "cut", i64::try_from(total - counted).unwrap());
    assert!(latch.delete().unwrap());
}

#[test]
fn an_opening_in_the_subscribers_absence_is_not_missed() {
    let server = server();
    let (waits, opens) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut kill = || {
        let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut redis).unwrap();
    };
    for round in 0..6 {
        woken_by_message(|| {
            let latch = latch(&opens, "absence", 1);
            let waiters = waiters(&waits.count_down_latch("absence"), 3);
            wait_subscribed(&server, &channel("absence"));
            if round % 2 == 0 {
                kill();
                latch.count_down().unwrap();
            } else {
                latch.count_down().unwrap();
                kill();
            }
            waiters.into_iter().for_each(|waiter| {
                waiter.join();
            });
        });
    }
}

#[test]
fn waiters_go_on_when_the_servers_data_is_gone() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    for way in ["FLUSHALL", "restart"] {
        let first = latch(&one, "emptied", 3);
        let before = Commands::so_far(&server).of("get");
        let waiters: Vec<_> = [&first, &other.count_down_latch("emptied")]
            .into_iter()
            .flat_map(|latch| waiters(latch, 2))
            .collect();
        // A sleeping thread may still wait for a reply, and would then get an error when the server
        // disappears. So the test waits until each process has sent its two requests.
        wait_until("all have asked", TIMEOUT, || Commands::so_far(&server).of("get") >= before + 4);
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        // The waiters continue at their next regular request, because a latch without a key is
        // open.
        waiters.into_iter().for_each(|waiter| {
            waiter.join();
        });
        assert_eq!(first.count().unwrap(), 0);
    }
}

#[test]
fn a_key_that_is_no_latch_is_left_as_it_is() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let () = redis.hset("hash", "field", "precious").unwrap();
    let () = redis.set("text", "precious").unwrap();
    for name in ["hash", "text"] {
        let latch = client.count_down_latch(name);
        let errors = [
            latch.delete().map(drop).unwrap_err(),
            latch.wait().unwrap_err(),
            refused(|| latch.wait_for(TIME_UNIT)),
            latch.count().unwrap_err(),
            latch.count_down().unwrap_err(),
        ];
        for error in errors {
            is_clear(&error, name, "use another name");
            assert!(!error.to_string().contains("precious"), "{error}");
        }
        if let Ok(set) = latch.try_set_count(1) {
            assert!(!set);
        }
    }
    assert_eq!(redis.hget::<_, _, String>("hash", "field").unwrap(), "precious");
    assert_eq!(redis.get::<_, String>("text").unwrap(), "precious");
    // If the latch's key is overwritten while threads wait, all of them get an error.
    let latch = latch(&client, "over", 1);
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let latch = latch.clone();
            let waiter = spawn(move || latch.wait().unwrap_err());
            waiter.wait_queued();
            waiter
        })
        .collect();
    let () = redis.del("over").unwrap();
    let () = redis.rpush("over", "precious").unwrap();
    let () = redis.publish(channel("over"), "1").unwrap();
    for waiter in waits {
        is_clear(&waiter.join(), "over", "waiting has ended");
    }
}

#[test]
fn without_memory_the_last_count_down_fails_clearly_and_opens_the_latch_later() {
    let server = server();
    let latch = latch(&client(&server), "memory", 2);
    let limit = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    limit("1");
    is_clear(&latch.count_down().unwrap_err(), "memory", "nothing was counted");
    assert_eq!(latch.count().unwrap(), 2);
    assert!(answered(|| latch.wait_for(TIME_UNIT)).timed_out());
    limit("0");
    latch.count_down().unwrap();
    latch.count_down().unwrap();
    latch.wait().unwrap();
}
