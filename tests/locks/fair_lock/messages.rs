//! Lost messages and replies.

use redlatch::{NotTaken, Taken};

use super::*;

/// If the subscriber's connection is open but dead, each grant costs a part of its short first
/// lease, until a thread notices this.
#[test]
fn a_subscriber_that_hears_nothing_is_renewed() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (client(&server), behind(&proxy));
    proxy.on_reply("grant ", Action::Silence);
    let mut unheard = 0;
    loop {
        let guard = one.fair_lock("half open").lock().unwrap();
        let mut line = Line::new(&server);
        line.add(&other.fair_lock("half open"));
        let before = Commands::so_far(&server).scripts();
        guard.unlock().unwrap();
        line.join();
        let sent = Commands::so_far(&server).scripts() - before;
        leaves_nothing(&server, "half open");
        // With only two releases, the waiter has not sent a request of its own.
        if sent == 2 {
            break;
        }
        unheard += 1;
        assert!(unheard < 5, "it never hears anything");
    }
    assert!(unheard >= 1, "the message was heard all the same");
}

#[test]
fn lost_replies_of_acquire_and_release_change_nothing() {
    let server = server();
    let mut redis = server.connection();
    for action in [Action::LoseReply, Action::LoseRequest] {
        // Each client has its own proxy, because the last dropped release is sent again.
        let proxy = Proxy::before(&server);
        let lock = behind(&proxy).fair_lock("lost");
        on_script(&proxy, "lost", 1, action);
        let guard = lock.lock().unwrap();
        assert_eq!(holder(&mut redis, "lost").unwrap().1, "1");
        on_script(&proxy, "lost", 1, action);
        // If a copy of the release finds no hold, the hold may also have been lost before.
        let unclear = guard.unlock().is_err_and(|error| error.outcome_unknown());
        assert_eq!(unclear, action == Action::LoseReply);
        assert_eq!(holder(&mut redis, "lost"), None);
        on_script(&proxy, "lost", 1, action);
        let guard = lock.try_lock().unwrap().into_option().unwrap();
        on_script(&proxy, "lost", 1, action);
        drop(guard);
        leaves_nothing(&server, "lost");
        proxy.wait_fired(4, TIMEOUT);
    }
}

/// Returns a client whose requests may take long. The client has already subscribed: otherwise the
/// server would drop its waiter from the head of a free lock's queue. A waiter of a new client
/// subscribes only after the reply to its first request.
fn patient(server: &Server, proxy: &Proxy) -> Client {
    let client = Client::builder(&proxy.url()).connections(1).response_timeout(TIMEOUT);
    let client = client.connect().unwrap();
    let guard = client.fair_lock("warm").lock().unwrap();
    let (waiting, cancel) = waits(&client.fair_lock("warm"));
    let owner = wait_queue(server, "warm", 1).remove(0);
    wait_subscribed(server, &own_channel(&owner));
    cancel.cancel();
    assert_eq!(waiting.join().unwrap_err().kind(), ErrorKind::Cancelled);
    guard.unlock().unwrap();
    client
}

#[test]
fn a_waiter_can_give_up_before_the_request_of_another_is_answered() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lock = patient(&server, &proxy).fair_lock("slow");
    let guard = client(&server).fair_lock("slow").lock().unwrap();
    on_script(&proxy, "slow", 2, Action::HoldReply);
    let (first, _) = waits(&lock);
    proxy.wait_fired(1, TIMEOUT);

    // The request of this waiter has not been sent.
    let timed = lock.clone();
    assert!(elsewhere(move || answered(|| timed.try_lock_for(TIME_UNIT / 10))
        .into_option()
        .is_none()));
    let (waiting, cancel) = waits(&lock);
    waiting.wait_asleep();
    cancel.cancel();
    assert_eq!(waiting.join().unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(!first.is_finished(), "they waited for its reply");

    // Another waiter's request has also named this waiter.
    let (second, _) = waits(&lock);
    second.wait_asleep();
    let (third, cancel) = waits(&lock);
    third.wait_asleep();
    proxy.release();
    proxy.wait_fired(2, TIMEOUT);
    wait_queue(&server, "slow", 3);
    cancel.cancel();
    assert_eq!(third.join().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(queue(&server, "slow").len(), 3, "it waited for the reply");
    proxy.release();
    wait_queue(&server, "slow", 2);
    guard.unlock().unwrap();
    first.join().unwrap();
    second.join().unwrap();
    leaves_nothing(&server, "slow");
}

#[test]
fn a_waiter_granted_between_two_copies_of_a_request_has_the_lock_at_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lock = patient(&server, &proxy).fair_lock("copies");
    let other = client(&server).fair_lock("copies");
    let guard = other.lock().unwrap();
    on_script(&proxy, "copies", 1, Action::HoldReply);
    let (first, cancel) = waits(&lock);
    proxy.wait_fired(1, TIMEOUT);
    let ahead = wait_queue(&server, "copies", 1);
    let (leader, _) = waits(&lock);
    leader.wait_asleep();
    let (behind, _) = waits(&lock);
    behind.wait_asleep();
    cancel.cancel();
    // The first waiter may give up before the grant arrives. Then the grant finds no owner.
    let acquires = |bytes: &[u8]| {
        contains(bytes, "EVAL") && contains(bytes, "copies") && contains(bytes, "\n30000\r")
    };
    proxy.on(Direction::Request, 1, Action::Silence, acquires);
    proxy.release();
    assert_eq!(first.join().unwrap_err().kind(), ErrorKind::Cancelled);
    proxy.wait_fired(2, TIMEOUT);
    let mut line = Vec::new();
    wait_until("two more stand in the queue", TIMEOUT, || {
        line = queue(&server, "copies");
        line.retain(|owner| *owner != ahead[0]);
        line.len() == 2
    });

    guard.unlock().unwrap();
    let mut redis = server.connection();
    let mut has = |owner: &String| {
        wait_until("it is handed on", TIMEOUT, || {
            holder(&mut redis, "copies").is_some_and(|(holder, _)| holder == *owner)
        });
    };
    has(&line[0]);
    assert!(other.force_unlock().unwrap());
    has(&line[1]);
    // Waits until the server's clock has advanced by more than 2 ms.
    let mut now = || redis::cmd("TIME").query::<(u64, u64)>(&mut redis).unwrap();
    let granted = now();
    wait_until("the clock goes on", TIMEOUT, || {
        let (seconds, micros) = now();
        (seconds - granted.0) * 1_000_000 + micros > granted.1 + 2_000
    });
    proxy.on(Direction::Request, 1, Action::HoldReply, acquires);
    assert!(proxy.cut_matching("EVAL") > 0);
    proxy.wait_fired(3, TIMEOUT);
    // The reply to a keep-alive request must not make the waiter send a request.
    let sign_of_life = redis::Script::new(concat!(
        include_str!("../../../lua/prelude.lua"),
        include_str!("../../../lua/fair/queue.lua"),
        include_str!("../../../lua/fair/keep_alive.lua")
    ));
    proxy.on(Direction::Request, usize::MAX, Action::LoseRequest, move |bytes| {
        contains(bytes, sign_of_life.get_hash())
    });
    let lapses = lapses(&server, "copies", || {
        proxy.release();
        behind.join().unwrap();
    });
    assert_eq!(lapses, 0, "its grant lapsed");
    leader.join().unwrap();
    proxy.clear_rules();
    leaves_nothing(&server, "copies");
}

#[test]
fn an_acquire_of_unknown_outcome_leaves_neither_a_hold_nor_a_place() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let other = quick(&server);
    let mut fired = 0;
    for held in [false, true] {
        for (action, times) in [
            (Action::LoseReply, 2),
            (Action::LoseRequest, 2),
            (Action::HoldReply, 1),
            (Action::Silence, 1),
            (Action::LoseReply, 2),
            (Action::HoldReply, 1),
        ] {
            // Each round has its own name, because the client repeats this request for the length
            // of a lease.
            let name = format!("unknown {fired}");
            let guard = held.then(|| other.fair_lock(&name).lock().unwrap());
            on_script(&proxy, &name, times, action);
            let lock = client.fair_lock(&name);
            let tried = if fired % 2 == 0 { lock.lock().map(Taken) } else { lock.try_lock() };
            let error = tried.map(drop).unwrap_err();
            is_clear(&error, &name, "given up in the background");
            fired += times;
            proxy.wait_fired(fired, TIMEOUT);
            proxy.release();
            wait_queue(&server, &name, 0);
            drop(guard);
            leaves_nothing(&server, &name);
        }
    }
}

#[test]
fn an_acquire_that_a_stalled_server_runs_late_leaves_nothing() {
    let server = server();
    let client = impatient(&server.url()).connect().unwrap();
    let names: Vec<_> = (0..6).map(|at| format!("stalled {at}")).collect();
    for round in 0..3 {
        // The connections are open and the server knows the scripts, so all requests are sent. The
        // first script on a connection also checks the user's rights, so its text differs.
        for name in &names {
            let lock = client.fair_lock(name);
            for _ in 0..2 {
                lock.lock().unwrap().unlock().unwrap();
            }
            lock.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
        }
        let before = Commands::so_far(&server).of("hset");
        server.pause();
        let threads: Vec<_> = names
            .iter()
            .map(|name| {
                let lock = client.fair_lock(name);
                spawn(move || {
                    let tried = if round == 1 { lock.try_lock() } else { lock.lock().map(Taken) };
                    tried.map(drop).unwrap_err()
                })
            })
            .collect();
        let errors: Vec<_> = threads.into_iter().map(Running::join).collect();
        assert!(errors.iter().all(|error| error.kind().is_server_trouble()), "{errors:?}");
        let sent = errors.iter().filter(|error| error.outcome_unknown()).count() as u64;
        assert!(sent > 0, "the test shows nothing: {errors:?}");
        server.resume();
        // Redis may read the commands of the new connection before those of the old connection.
        wait_until("the acquires have run", TIMEOUT, || {
            Commands::so_far(&server).of("hset") >= before + sent
        });
        for name in &names {
            leaves_nothing(&server, name);
        }
    }
}

#[test]
fn calls_that_never_reached_the_server_leave_nothing_to_give_up() {
    let server = server();
    let client = Client::builder(&server.url()).fair_wait_timeout(FAIR_WAIT);
    let client = client.failover_timeout(Duration::ZERO).connect().unwrap();
    let lock = client.fair_lock("away");
    lock.lock().unwrap().unlock().unwrap();
    server.kill();
    for _ in 0..200 {
        assert!(lock.lock().map(drop).unwrap_err().kind().is_server_trouble());
    }
    server.restart_empty();
    wait_until("it is back", TIMEOUT, || lock.lock().is_ok());
    // If the client still had background requests, it would send them in this time.
    thread::sleep(TIME_UNIT * 5);
    let scripts = Commands::so_far(&server).scripts();
    assert!(scripts < 50, "{scripts} scripts");
    leaves_nothing(&server, "away");
}

#[test]
fn a_lost_give_up_is_given_up_again() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&proxy);
    let other = quick(&server);
    let guard = other.fair_lock("left").lock().unwrap();
    for action in [Action::LoseReply, Action::LoseRequest, Action::Silence] {
        let lock = client.fair_lock("left");
        let token = CancelToken::new();
        let cancel = token.clone();
        let waiter = spawn(move || lock.lock_cancellable(&cancel).map(drop).unwrap_err().kind());
        wait_queue(&server, "left", 1);
        waiter.wait_asleep();
        let fired = proxy.fired();
        let times = if action == Action::Silence { 1 } else { 3 };
        on_script(&proxy, "left", times, action);
        token.cancel();
        assert_eq!(waiter.join(), ErrorKind::Cancelled);
        proxy.wait_fired(fired + 1, TIMEOUT);
        wait_queue(&server, "left", 0);
        proxy.clear_rules();
    }
    guard.unlock().unwrap();
    leaves_nothing(&server, "left");
}

#[test]
fn a_release_in_the_subscribers_absence_reaches_the_waiter() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut kill = || {
        let () = redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut redis).unwrap();
    };
    for round in 0..6 {
        woken_by_message(|| {
            let guard = one.fair_lock("absence").lock().unwrap();
            let mut line = Line::new(&server);
            line.add(&other.fair_lock("absence"));
            line.add(&other.fair_lock("absence"));
            if round % 2 == 0 {
                kill();
                guard.unlock().unwrap();
            } else {
                guard.unlock().unwrap();
                kill();
            }
            assert_eq!(line.join(), [0, 1]);
        });
    }
    leaves_nothing(&server, "absence");
}

#[test]
fn waiters_get_the_lock_when_the_servers_data_is_gone() {
    let server = server();
    let (one, other) = (quick(&server), quick(&server));
    for way in ["FLUSHALL", "restart"] {
        let guard = one.fair_lock("emptied").lock().unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|at| {
                let lock = [&one, &other][at % 2].fair_lock("emptied");
                let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
                wait_queue(&server, "emptied", at + 1);
                waiter
            })
            .collect();
        match way {
            "FLUSHALL" => {
                let () = redis::cmd("FLUSHALL").query(&mut server.connection()).unwrap();
            }
            _ => server.restart_empty(),
        }
        waiters.into_iter().for_each(Running::join);
        let _ = guard.unlock();
        leaves_nothing(&server, "emptied");
    }
}

#[test]
fn something_else_under_a_key_is_an_error_and_is_left_as_it_is() {
    let server = server();
    let client = quick(&server);
    let mut redis = server.connection();
    let keys = ["typed".to_owned(), queue_key("typed"), timeouts_key("typed")];
    for key in &keys {
        let () = redis.set(key, "precious").unwrap();
        let lock = client.fair_lock("typed");
        let mut took = 0;
        for attempt in [lock.lock().map(Taken), lock.try_lock_for(TIMEOUT), lock.try_lock()] {
            match attempt {
                // This call did not need the overwritten key.
                Ok(Taken(guard)) => {
                    took += 1;
                    guard.unlock().unwrap();
                }
                Ok(NotTaken) => panic!("trouble is no `NotTaken`"),
                Err(error) => assert!(error.kind().is_server_trouble(), "{error}"),
            }
        }
        println!("{key}: took it {took} times");
        assert_eq!(redis.get::<_, String>(key).unwrap(), "precious");
        for other in keys.iter().filter(|other| *other != key) {
            assert!(!redis.exists::<_, bool>(other).unwrap(), "{other} with {key} foreign");
        }
        let () = redis.del(key).unwrap();
        lock.lock().unwrap().unlock().unwrap();
        // The server runs out of memory while there is a holder and a thread wants to wait.
        let guard = lock.lock().unwrap();
        if key != &keys[0] {
            let () = redis.set(key, "precious").unwrap();
            let waits = lock.clone();
            let error = elsewhere(move || waits.lock().map(drop).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
            // The release is done, or it is refused as a whole and tried again.
            let _refused = guard.unlock();
            assert_eq!(redis.get::<_, String>(key).unwrap(), "precious");
            let () = redis.del(key).unwrap();
        } else {
            drop(guard);
        }
        leaves_nothing(&server, "typed");
    }
}

#[test]
fn without_memory_nothing_is_taken_and_all_is_released() {
    let server = server();
    let (one, other) = (quick(&server), quick(&server));
    let limit = |bytes: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .query(&mut server.connection())
            .unwrap();
    };
    let guard = one.fair_lock("memory").lock().unwrap();
    let token = CancelToken::new();
    let (lock, cancel) = (other.fair_lock("memory"), token.clone());
    let waiter = spawn(move || lock.lock_cancellable(&cancel).map(drop));
    wait_queue(&server, "memory", 1);
    limit("1");
    let error = one.fair_lock("more").lock().map(drop).unwrap_err();
    is_clear(&error, "more", "maxmemory");
    is_clear(&one.fair_lock("more").try_lock().map(drop).unwrap_err(), "more", "maxmemory");
    token.cancel();
    // The waiter is cancelled, or its next request fails for lack of memory.
    assert!(waiter.join().is_err());
    wait_queue(&server, "memory", 0);
    guard.unlock().unwrap();
    leaves_nothing(&server, "memory");
    limit("0");
    one.fair_lock("more").lock().unwrap().unlock().unwrap();
    leaves_nothing(&server, "more");
}
