//! Holds that another process granted by a message.

use super::*;

fn renews(bytes: &[u8]) -> bool {
    let code = lock_script!("cut.lua", "renew.lua");
    contains(bytes, redis::Script::new(code).get_hash()) || contains(bytes, code)
}

#[test]
fn a_wait_behind_the_longest_lease_is_one_like_any_other() {
    let server = server();
    let (ours, theirs) = (client(&server), client(&server));
    let longest = Duration::from_millis(10_000_000_000_000);
    let guard = ours.reentrant_lock("ages").with_lease(longest).lock().unwrap();
    let lock = theirs.reentrant_lock("ages");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "ages", 1);
    waiter.wait_asleep();
    guard.unlock().unwrap();
    waiter.join();
}

#[test]
fn a_grant_of_a_time_that_no_clock_shows_is_no_panic() {
    let server = server();
    let (ours, theirs) = (client(&server), client(&server));
    let guard = ours.reentrant_lock("garbage").lock().unwrap();
    let lock = theirs.reentrant_lock("garbage");
    let waiter = spawn(move || lock.lock().map(drop));
    wait_in_line(&server, "garbage", 1);
    wait_hearing(&server, 1);
    waiter.wait_asleep();
    let mut redis = server.connection();
    let places: Vec<String> = redis.lrange("redlatch_queue:{garbage}", 0, -1).unwrap();
    let (_, number) = places[0].split_once(':').unwrap();
    let message = format!("grant {number} {} 1 lock,0,0,0 0 garbage", u64::MAX);
    let () = redis.publish(own_channel(&places[0]), message).unwrap();
    wait_read(&server, &places[0], || {});
    guard.unlock().unwrap();
    waiter.join().unwrap();
}

#[test]
fn a_fixed_lease_shorter_than_the_provisional_one_ends_at_the_server_too() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lock = behind(&server, &proxy).reentrant_lock("short").with_lease(TIME_UNIT * 3);
    // The wanted lease is shorter than the lease of a grant by message. If the client did nothing
    // at its end, the lock would stay taken until the end of the longer lease.
    once_within(PROVISIONAL, || {
        let (tell, told) = mpsc::channel::<()>();
        let (say, entered) = mpsc::channel();
        let waiter = handed(&server, &proxy, &lock, move |guard, entered| {
            say.send(entered).unwrap();
            // The guard's thread does nothing until the test drops the sender.
            let _ = told.recv();
            assert!(!guard.is_held());
        });
        let entered = entered.recv().unwrap();
        wait_free(&server, "short", TIMEOUT);
        let took = entered.elapsed();
        drop(tell);
        waiter.join();
        took
    });
}

#[test]
fn a_waiter_stopped_over_its_grant_costs_the_others_the_provisional_lease() {
    let server = server();
    let (first, last) = (client(&server), client(&server));
    let mut redis = server.connection();
    let guard = first.reentrant_lock("stopped").lock().unwrap();
    // Three processes that receive messages and do nothing.
    let stopped = "7a1c3f5e-0b2d-8c6e-8f01-23456789abcd";
    let mut listening = server.connection();
    let mut listening = listening.as_pubsub();
    listening.subscribe(format!("redisson_lock__channel:{{redlatch:{stopped}}}")).unwrap();
    for number in 1..=3 {
        let _: i64 =
            redis.rpush("redlatch_queue:{stopped}", format!("{stopped}:{number}")).unwrap();
    }
    let lock = last.reentrant_lock("stopped");
    let waiter = spawn(move || {
        lock.lock().unwrap().unlock().unwrap();
        Instant::now()
    });
    wait_in_line(&server, "stopped", 4);
    wait_hearing(&server, 2);
    waiter.wait_asleep();
    for number in 2..=3 {
        let _: i64 =
            redis.lrem("redlatch_queue:{stopped}", 1, format!("{stopped}:{number}")).unwrap();
    }
    let released = Instant::now();
    guard.unlock().unwrap();
    // The waiter waited only for the short lease of a grant by message. The full lease is a minute.
    let took = waiter.join() - released;
    assert!(took >= PROVISIONAL, "{took:?}");
}

#[test]
fn a_check_while_its_lease_is_being_raised_does_not_wait_for_that() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = behind(&server, &proxy);
    proxy.on(Direction::Request, 1, Action::HoldReply, renews);
    let lock = client.reentrant_lock("raised");
    let mut redis = server.connection();
    let waiter = handed(&server, &proxy, &lock, move |guard, _| {
        wait_until("it is raised", TIMEOUT, || pttl(&mut redis, "raised") > 2_000);
        guard.check(LONG_LEASE / 2).unwrap();
    });
    waiter.join();
    proxy.release();
}

#[test]
fn a_level_of_the_watchdogs_takes_nothing_from_a_fixed_lease_that_is_longer() {
    let server = server();
    let proxy = Proxy::before(&server);
    let client = Client::builder(&proxy.url()).watchdog_timeout(SHORT_LEASE).connect().unwrap();
    let lock = client.reentrant_lock("levels");
    let inner = lock.clone();
    let waiter = handed(&server, &proxy, &lock.with_lease(LONG_LEASE), move |guard, _| {
        let level = inner.lock().unwrap();
        wait_until("it is raised", TIMEOUT, || guard.remaining() > PROVISIONAL);
        drop(level);
        guard.check(LONG_LEASE / 2).unwrap();
    });
    waiter.join();
}

/// If the holder's process is killed, others wait only for the end of the lease that the holder
/// wanted. A busy machine may be late, so only one of several rounds must succeed.
#[test]
fn a_provisional_lease_longer_than_the_wanted_one_is_cut_after_a_moment() {
    let server = server();
    let proxy = Proxy::before(&server);
    let mut redis = server.connection();
    let short = TIME_UNIT * 10;
    let fixed = behind(&server, &proxy).reentrant_lock("cut").with_lease(short);
    let client = Client::builder(&proxy.url()).watchdog_timeout(short).connect().unwrap();
    warm_up(&server, &client);
    for lock in [fixed, client.reentrant_lock("watched")] {
        let name = lock.name().to_owned();
        wait_until("it ends with its lease", TIMEOUT, || {
            let (tell, told) = mpsc::channel::<()>();
            let (say, entered) = mpsc::channel();
            let holder = handed(&server, &proxy, &lock, move |guard, entered| {
                say.send(entered).unwrap();
                let _ = told.recv();
                drop(guard);
            });
            let entered = entered.recv().unwrap();
            wait_until("it lasts for as long as it was asked for", TIMEOUT, || {
                (1..=millis(short)).contains(&pttl(&mut redis, &name))
            });
            let is_cut = entered.elapsed() < short / 2;
            drop(tell);
            holder.join();
            is_cut
        });
    }
}

#[test]
fn a_fixed_lease_outlives_its_thread() {
    let server = server();
    let proxy = Proxy::before(&server);
    let lock = behind(&server, &proxy).reentrant_lock("outlives").with_lease(LONG_LEASE);
    handed(&server, &proxy, &lock, |guard, _| guard.forget()).join();
    let mut redis = server.connection();
    wait_until("it is raised", TIMEOUT, || pttl(&mut redis, "outlives") > 2_000);
}

/// A busy machine may delay replies, so only one of several rounds must succeed.
#[test]
fn many_fixed_leases_are_raised_in_time_at_a_distance() {
    let server = server();
    wait_until("none is lost", TIMEOUT, || lost_at_a_distance(&server) == 0);
}

/// Grants many holds by message at the same time. Returns how many are lost.
fn lost_at_a_distance(server: &Server) -> usize {
    let proxy = Proxy::before(server);
    let client = behind(server, &proxy);
    let first = crate::common::client(server);
    let names: Vec<String> = (0..60).map(|number| format!("far {number}")).collect();
    let guards: Vec<_> =
        names.iter().map(|name| first.reentrant_lock(name).lock().unwrap()).collect();
    let waiters: Vec<_> = names
        .iter()
        .map(|name| {
            let lock = client.reentrant_lock(name).with_lease(LONG_LEASE);
            spawn(move || {
                let guard = lock.lock().unwrap();
                thread::sleep(PROVISIONAL * 2);
                guard.unlock()
            })
        })
        .collect();
    names.iter().for_each(|name| wait_in_line(server, name, 1));
    wait_hearing(server, 1);
    waiters.iter().for_each(Running::wait_asleep);
    proxy.set_delay(TIME_UNIT / 4);
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
    waiters.into_iter().map(Running::join).filter(Result::is_err).count()
}

/// A busy machine may delay a reply, so only one of several rounds must succeed.
#[test]
fn a_raise_whose_reply_is_lost_is_tried_again_in_time() {
    let server = server();
    let begun = Instant::now();
    loop {
        let proxy = Proxy::before(&server);
        let lock = behind(&server, &proxy).reentrant_lock("silent");
        proxy.on(Direction::Request, 1, Action::Silence, renews);
        let waiter = handed(&server, &proxy, &lock, |guard, _| {
            thread::sleep(PROVISIONAL + TIME_UNIT * 5);
            guard.unlock()
        });
        match waiter.join() {
            Ok(()) => break,
            Err(lost) => assert!(begun.elapsed() < TIMEOUT, "{lost}"),
        }
    }
}

/// The server's clock was set back by a second between a refusal and the next grant, so the grant
/// seems to be older. The client may read the two in any order. In each case it sends a request at
/// once, and does not wait for its next poll.
#[test]
fn a_grant_that_a_refusal_makes_void_is_asked_for_at_once() {
    let server = server();
    let proxy = Proxy::before(&server);
    let (first, client) = (client(&server), behind_by(&server, &proxy, 2));
    let mut redis = server.connection();
    for message_first in [true, false] {
        woken_by_message(|| {
            let guard = first.reentrant_lock("void").lock().unwrap();
            if message_first {
                proxy.on_request("redlatch_queue:{void}", Action::HoldReply);
            }
            let refused = proxy.fired() + usize::from(message_first);
            let guest = Guest::in_line(&server, &client, "void", 1);
            proxy.wait_fired(refused, TIMEOUT);
            if !message_first {
                guest.thread.wait_queued();
            }
            let place = queue(&mut redis, "void").remove(0);
            let (_, number) = place.split_once(':').unwrap();
            let (now, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
            // This grants the lock as a release does.
            let () = redis::pipe()
                .atomic()
                .del(&["void", &queue_key("void")])
                .hset("void", &place, 1)
                .pexpire("void", millis(LONG_LEASE))
                .publish(
                    own_channel(&place),
                    format!("grant {number} {}000 2000 lock,0,0,0 0 void", now - 1),
                )
                .query(&mut redis)
                .unwrap();
            if message_first {
                wait_read(&server, &place, || {});
                proxy.release();
            }
            guest.wait_in();
            assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
            guest.leaves();
            wait_left(&server, "void");
        });
    }
}
