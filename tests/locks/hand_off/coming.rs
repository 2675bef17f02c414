//! Processes and threads that request the lock for the first time.

use super::*;

/// If an owner finds a free lock with waiters, the lock goes to the first waiter in the queue.
#[test]
fn each_call_that_finds_a_free_lock_grants_it_to_the_first_in_line() {
    let server = server();
    let mut lapses = Lapses::of(&server);
    let mut redis = server.connection();
    let (one, waiting) = (client(&server), [warm(&server), warm(&server)]);
    let lock = one.reentrant_lock("found");
    for by in ["a forced unlock", "one of no lock", "a question", "a release", "the first itself"] {
        let guard = lock.lock().unwrap();
        let first = Guest::in_line(&server, &waiting[0], "found", 1);
        let second = Guest::in_line(&server, &waiting[1], "found", 2);
        let line = queue(&mut redis, "found");
        let mut third = None;
        if by != "a forced unlock" {
            let () = redis.del("found").unwrap();
        }
        match by {
            "a forced unlock" => assert!(lock.force_unlock().unwrap()),
            // The first waiter may have sent a request of its own in the meantime.
            "one of no lock" => drop(lock.force_unlock().unwrap()),
            "a question" => {
                third = Some(Guest::of(&client(&server).reentrant_lock("found")));
                wait_until("it stands in line", TIMEOUT, || {
                    queue(&mut redis, "found").last().is_some_and(|last| !line.contains(last))
                });
            }
            "a release" => drop(guard.unlock().unwrap_err()),
            _ => wait_owner(&mut redis, "found", &line[0]),
        }
        if by != "one of no lock" {
            assert_eq!(owner(&mut redis, "found").as_ref(), Some(&line[0]), "by {by}");
        }
        for guest in [first, second].into_iter().chain(third) {
            guest.wait_in();
            // The result may be an error, because the test may have taken this guest's lock by
            // force.
            let _ = guest.ends();
        }
        wait_left(&server, "found");
    }
    assert_eq!(lapses.so_far(), 0);
}

#[test]
fn a_queue_that_is_gone_is_made_anew() {
    let server = server();
    let mut lapses = Lapses::of(&server);
    let mut redis = server.connection();
    let guard = client(&server).reentrant_lock("evicted").lock().unwrap();
    let guests = [1, 2].map(|places| Guest::in_line(&server, &client(&server), "evicted", places));
    let mut line = queue(&mut redis, "evicted");
    let () = redis.del(queue_key("evicted")).unwrap();
    wait_in_line(&server, "evicted", 2);
    let mut again = queue(&mut redis, "evicted");
    line.sort();
    again.sort();
    assert_eq!(line, again);
    guard.unlock().unwrap();
    // The server may grant the guests the lock in any order.
    let running = guests.map(|Guest { entered, leave, thread }| {
        drop(leave);
        (entered, thread)
    });
    running.into_iter().for_each(|(_entered, thread)| thread.join().unwrap());
    wait_left(&server, "evicted");
    assert_eq!(lapses.so_far(), 0);
}

#[test]
fn locks_that_share_a_channel_share_no_queue() {
    let server = server();
    let mut redis = server.connection();
    let second = format!("{}1", server.url());
    let second = || Client::builder(&second).watchdog_timeout(LONG_LEASE).connect().unwrap();
    // Another name has the same channel, and another database has the same name.
    for (name, twin, apart) in [("x", "{x}", false), ("{x}", "x", false), ("x", "x", true)] {
        let (one, other) = (client(&server), client(&server));
        let twins = if apart { [second(), second()] } else { [one.clone(), other] };
        let guard = one.reentrant_lock(name).lock().unwrap();
        let held = Guest::of(&twins[0].reentrant_lock(twin));
        held.wait_in();
        let guest = Guest::of(&twins[1].reentrant_lock(twin));
        guest.thread.wait_asleep();
        guard.unlock().unwrap();
        assert_eq!(owner(&mut redis, name), None, "{name} has let in the waiter for {twin}");
        guest.thread.wait_asleep();
        assert!(!guest.is_in(), "{name} has let in the waiter for {twin}");
        held.leaves();
        guest.wait_in();
        guest.leaves();
        wait_left(&server, name);
        wait_left(&server, twin);
    }
}

#[test]
fn a_release_that_is_sent_twice_grants_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let mut redis = server.connection();
    let releasing = behind(&server, &proxy);
    let guard = releasing.reentrant_lock("twice").lock().unwrap();
    let guests = [1, 2].map(|places| Guest::in_line(&server, &warm(&server), "twice", places));
    let line = queue(&mut redis, "twice");
    on_script(&proxy, RELEASE, "twice", 1, Action::LoseReply);
    assert!(guard.unlock().unwrap_err().outcome_unknown());
    assert_eq!(proxy.fired(), 1);
    assert_eq!(owner(&mut redis, "twice").as_ref(), Some(&line[0]));
    assert_eq!(queue(&mut redis, "twice"), line[1..]);
    for guest in guests {
        guest.wait_in();
        guest.leaves();
    }
    wait_left(&server, "twice");
}
