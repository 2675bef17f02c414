//! Messages that are late, lost, or not for a waiter.

use super::*;

#[test]
fn a_grant_that_overtakes_the_reply_counts() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (client(&server), behind_by(&server, &proxy, 2));
    // On a busy machine the waiter may send another request before it has read the message.
    wait_until("it has not to ask once more", TIMEOUT, || {
        let (fired, asked) = (proxy.fired(), count_script(&proxy, ACQUIRE, "overtaken"));
        let guard = one.reentrant_lock("overtaken").lock().unwrap();
        on_script(&proxy, ACQUIRE, "overtaken", 1, Action::HoldReply);
        let guest = Guest::in_line(&server, &other, "overtaken", 1);
        // The reply says "refused", and the network holds it back.
        proxy.wait_fired(fired + 1, TIMEOUT);
        let place = queue(&mut server.connection(), "overtaken").remove(0);
        guard.unlock().unwrap();
        wait_read(&server, &place, || {});
        proxy.release();
        guest.wait_in();
        let asked = asked.load(Ordering::SeqCst);
        guest.leaves();
        wait_left(&server, "overtaken");
        asked == 1
    });
}

/// The waiter behind the paused process waits only for the short lease of a grant by message. The
/// paused process must not use the lock at the same time.
#[test]
fn a_process_that_was_stopped_over_its_grant_does_not_enter() {
    let server = server();
    let mut redis = server.connection();
    let clients: Vec<_> = (0..4).map(|_| warm(&server)).collect();
    let name = "stopped";
    let first = Guest::of(&clients[0].reentrant_lock(name));
    first.wait_in();
    // In the queue, two waiters are before the process, and one waiter is behind it.
    let second = Guest::in_line(&server, &clients[1], name, 1);
    let third = Guest::in_line(&server, &clients[2], name, 2);
    let before = Commands::so_far(&server).scripts();
    let mut stopped = process(&server, name);
    wait_in_line(&server, name, 3);
    let last = Guest::in_line(&server, &clients[3], name, 4);
    let line = queue(&mut redis, name);
    wait_subscribed(&server, &own_channel(&line[2]));
    // The process's waiter sends another request when its client has subscribed. The last waiter
    // has sent one, too.
    wait_until("it has asked again", TIMEOUT, || Commands::so_far(&server).scripts() >= before + 3);
    stopped.sigstop();
    first.leaves();
    second.wait_in();
    second.leaves();
    third.wait_in();
    let before_the_grant = Instant::now();
    third.leaves();
    let took = last.wait_in() - before_the_grant;
    assert!(took >= PROVISIONAL, "it was not granted the lock: {took:?}");
    stopped.sigcont();
    // After it was continued, the process has sent a request, so it has an entry again.
    wait_in_line(&server, name, 1);
    assert_eq!(queue(&mut redis, name), line[2..3]);
    assert_eq!(stopped.try_line(Duration::ZERO), None, "two are inside");
    last.leaves();
    stopped.expect_line("in", TIMEOUT);
    stopped.send_line("leave");
    stopped.expect_line("out", TIMEOUT);
    wait_left(&server, name);
}

/// The connection of the waiter's subscriber breaks at the time of the grant. When the client has
/// subscribed again, the waiter sends a request.
#[test]
fn a_grant_to_a_connection_that_breaks_is_found_when_it_listens_again() {
    let server = server();
    let mut lapses = Lapses::of(&server);
    let proxy = Proxy::before(&server);
    let clients: Vec<_> = (0..3).map(|_| warm(&server)).collect();
    let cut_off = behind(&server, &proxy);
    let mut random = Random::new();
    for round in 0..10 {
        woken_by_message(|| {
            let first = Guest::of(&clients[0].reentrant_lock("broken"));
            first.wait_in();
            let second = Guest::in_line(&server, &clients[1], "broken", 1);
            let third = Guest::in_line(&server, &clients[2], "broken", 2);
            // In the third place of the queue, only a message can wake the waiter.
            let guest = Guest::in_line(&server, &cut_off, "broken", 3);
            first.leaves();
            second.wait_in();
            second.leaves();
            third.wait_in();
            if round % 2 == 0 {
                proxy.cut_matching("SUBSCRIBE");
            }
            let until = Instant::now() + Duration::from_micros(random.below(1_000));
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            third.leaves();
            proxy.cut_matching("SUBSCRIBE");
            guest.wait_in();
            guest.leaves();
            wait_left(&server, "broken");
        });
    }
    assert_eq!(lapses.so_far(), 0, "a lease had to end");
}

/// If the subscriber's connection is open but dead, a waiter notices each grant only at its next
/// poll, until a thread notices the dead connection.
#[test]
fn a_subscriber_that_hears_nothing_is_renewed() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (one, other) = (client(&server), behind(&server, &proxy));
    let asked = count_script(&proxy, ACQUIRE, "half open");
    proxy.on_reply("grant ", Action::Silence);
    let mut rounds = 0;
    loop {
        let guard = one.reentrant_lock("half open").lock().unwrap();
        let guest = Guest::in_line(&server, &other, "half open", 1);
        let before = asked.load(Ordering::SeqCst);
        guard.unlock().unwrap();
        guest.wait_in();
        let told = asked.load(Ordering::SeqCst) == before;
        guest.leaves();
        wait_left(&server, "half open");
        if told {
            break;
        }
        rounds += 1;
        assert!(rounds < 6, "it never hears anything");
    }
    assert!(rounds >= 1, "the message was heard all the same");
}

/// A message for another lock on a client's channel must not grant this lock to a waiter.
#[test]
fn a_message_for_another_lock_or_database_grants_nothing() {
    let server = server();
    let mut redis = server.connection();
    let guard = client(&server).reentrant_lock("mine").lock().unwrap();
    let guest = Guest::in_line(&server, &warm(&server), "mine", 1);
    let place = queue(&mut redis, "mine").remove(0);
    let (own, number) = (own_channel(&place), place.split_once(':').unwrap().1);
    let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let now = now * 1_000 + 5_000;
    for message in [
        format!("grant {number} {now} 2000 lock,0,0,0 1 mine"),
        format!("grant {number} {now} 2000 lock,0,0,0 0 {{mine}}"),
        format!("grant {number} {now} 2000 lock,0,0,0 0 mine "),
        format!("grant {number} {now} 2000 fair,0,0,0 0 mine"),
        format!("grant {number} {now} 2000 lock,0 0 mine"),
        format!("grant {} {now} 2000 lock,0,0,0 0 mine", u64::MAX),
        format!("granted {number} {now} 2000 lock,0,0,0 0 mine"),
        format!("open {number} 4 1 mine"),
        format!("ask {number} mine"),
        "grant".to_owned(),
    ] {
        let heard: u64 = redis.publish(&own, &message).unwrap();
        assert_eq!(heard, 1);
        wait_read(&server, &place, || {});
        guest.thread.wait_asleep();
        assert!(!guest.is_in(), "{message:?} has let it in");
    }
    assert_eq!(queue(&mut redis, "mine"), [place]);
    guard.unlock().unwrap();
    guest.wait_in();
    guest.leaves();
    wait_left(&server, "mine");
}

/// A queue entry may have no waiter, for example if a request came late. A grant to such an entry
/// goes to the next entry at once.
#[test]
fn a_grant_without_a_waiter_is_given_back_at_once() {
    let server = server();
    let mut lapses = Lapses::of(&server);
    let mut redis = server.connection();
    let (one, other) = (warm(&server), warm(&server));
    for name in ["stray", "str{a}y"] {
        let guard = one.reentrant_lock(name).lock().unwrap();
        let own = owner(&mut redis, name).unwrap();
        let (uuid, _) = own.split_once(':').unwrap();
        let before = lapses.so_far();
        let () = redis.rpush(queue_key(name), format!("{uuid}:777777")).unwrap();
        let () = redis.rpush(queue_key(name), format!("{uuid}:777778")).unwrap();
        let guest = Guest::in_line(&server, &other, name, 3);
        guard.unlock().unwrap();
        guest.wait_in();
        assert_eq!(lapses.so_far(), before, "{name}: a lease had to end");
        guest.leaves();
        wait_left(&server, name);
    }
}

/// The client gives back a grant to an entry without a waiter. The server first refuses the
/// client's command, and the client tries again.
#[test]
fn a_grant_without_a_waiter_is_given_back_though_the_server_refused_first() {
    let server = server();
    let mut redis = server.connection();
    let one = warm(&server);
    let guard = one.reentrant_lock("other").lock().unwrap();
    let uuid = owner(&mut redis, "other").unwrap().split_once(':').unwrap().0.to_owned();
    let stray = format!("{uuid}:777777");
    let () = redis.hset("stray", &stray, 1).unwrap();
    let () = redis.pexpire("stray", millis(LONG_LEASE)).unwrap();
    let replicate = |of: [&str; 2]| {
        redis::cmd("REPLICAOF").arg(&of).exec(&mut server.connection()).unwrap();
    };
    replicate(["127.0.0.1", "1"]);
    let message = "grant 777777 0 2000 lock,0,0,0 0 stray";
    let heard: u64 = redis.publish(own_channel(&stray), message).unwrap();
    assert_eq!(heard, 1);
    wait_until("it was refused", TIMEOUT, || {
        let errors: String = redis::cmd("INFO").arg("errorstats").query(&mut redis).unwrap();
        errors.contains("errorstat_READONLY")
    });
    replicate(["NO", "ONE"]);
    wait_free(&server, "stray", TIMEOUT);
    guard.unlock().unwrap();
}

#[test]
fn a_grant_whose_message_comes_after_it_was_found_by_asking_is_not_given_back() {
    let server = server();
    let proxy = Proxy::before(&server);
    let mut redis = server.connection();
    let (one, other) = (client(&server), behind(&server, &proxy));
    let guard = one.reentrant_lock("found").lock().unwrap();
    let guest = Guest::in_line(&server, &other, "found", 1);
    let place = queue(&mut redis, "found").remove(0);
    proxy.on_reply("grant ", Action::HoldReply);
    guard.unlock().unwrap();
    proxy.wait_fired(1, TIMEOUT);
    guest.wait_in();
    wait_read(&server, &place, || proxy.release());
    assert_eq!(owner(&mut redis, "found"), Some(place));
    guest.leaves();
    wait_left(&server, "found");
}

/// A message grants the lock to a waiter. Before the waiter reads the message, it loses this hold
/// and gets another hold by a request. The message does not end the new hold.
#[test]
fn a_hold_got_anew_by_asking_outlasts_an_old_grant_message() {
    let server = server();
    let mut redis = server.connection();
    let other = warm(&server);
    hold_as_redisson(&mut redis, "anew", TIME_UNIT * 5);
    let guest = Guest::in_line(&server, &other, "anew", 1);
    let place = queue(&mut redis, "anew").remove(0);
    guest.wait_in();
    let (_, number) = place.split_once(':').unwrap();
    let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let message = format!("grant {number} {}000 2000 lock,0,0,0 0 anew", now - 1);
    let heard: u64 = redis.publish(own_channel(&place), message).unwrap();
    assert_eq!(heard, 1);
    wait_read(&server, &place, || {});
    assert_eq!(owner(&mut redis, "anew"), Some(place));
    guest.leaves();
    wait_left(&server, "anew");
}

/// A request is sent twice. The first copy adds an entry, to which a message then grants the lock,
/// but no thread reads the message. The second copy gets the lock. The message does not end this
/// hold.
#[test]
fn a_hold_by_a_second_copy_of_a_request_outlasts_the_first_copys_message() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&server, &proxy);
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "twice", LONG_LEASE);
    let (tell, places) = mpsc::channel();
    let (other, copies) = (Mutex::new(server.connection()), AtomicU64::new(0));
    proxy.on(Direction::Request, 2, Action::LoseReply, move |bytes| {
        let copy =
            if runs(bytes, ACQUIRE, "twice") { copies.fetch_add(1, Ordering::SeqCst) } else { 9 };
        if copy == 1 {
            // By now the entry is gone, and its grant has ended.
            let mut redis = other.lock().unwrap();
            tell.send(queue(&mut redis, "twice").remove(0)).unwrap();
            let () = redis.del(&["twice", &queue_key("twice")]).unwrap();
        }
        copy == 0
    });
    let guest = Guest::of(&client.reentrant_lock("twice"));
    let place = places.recv_timeout(TIMEOUT).unwrap();
    guest.wait_in();
    let (_, number) = place.split_once(':').unwrap();
    let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let message = format!("grant {number} {}000 2000 lock,0,0,0 0 twice", now - 1);
    let heard: u64 = redis.publish(own_channel(&place), message).unwrap();
    assert_eq!(heard, 1);
    wait_read(&server, &place, || {});
    assert_eq!(owner(&mut redis, "twice"), Some(place));
    guest.leaves();
    wait_left(&server, "twice");
}

/// A new master may have entries that were given up at the previous master. A release that leaves
/// the lock to Redisson sends a message to the first entry. If that entry had no waiter and stayed,
/// no process would take the lock.
#[test]
fn a_queue_entry_without_a_waiter_is_given_up_when_a_message_names_it() {
    let server = server();
    let client = warm(&server);
    let mut redis = server.connection();
    let guard = client.reentrant_lock("stale").lock().unwrap();
    let owner = owner(&mut redis, "stale").unwrap();
    guard.unlock().unwrap();
    let writer = format!("{owner}:write");
    let places = [
        (queue_key("stale"), &owner),
        ("redlatch_rwlock_queue:{stale}".to_owned(), &owner),
        ("redlatch_rwlock_queue:{stale}".to_owned(), &writer),
    ];
    for (queue, owner) in &places {
        let _: i64 = redis.rpush(queue, owner).unwrap();
    }
    let (_, number) = owner.split_once(':').unwrap();
    let () = redis.publish(own_channel(&owner), format!("open {number} 0 0 stale")).unwrap();
    wait_until("they are given up", TIMEOUT, || {
        places.iter().all(|(queue, _)| redis.llen::<_, u64>(queue).unwrap() == 0)
    });
}
