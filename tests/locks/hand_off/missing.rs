//! Users without some right, and servers without memory.

use super::*;

/// Any method may be the first call of a client.
#[test]
fn without_the_right_to_the_queue_every_verb_is_refused_and_changes_nothing() {
    let server = server();
    let mut redis = server.connection();
    hold_as_redisson(&mut redis, "shop:held", LONG_LEASE);
    for (at, keys) in ["~redlatch_window:*", "~redlatch_queue:*"].into_iter().enumerate() {
        let mut user = User::new(&server, &format!("poor{at}"));
        user.set(&["resetkeys", "~shop*", keys]);
        for name in ["shop:free", "shop:held"] {
            let lock = user.client().reentrant_lock(name);
            let errors = [
                lock.lock().unwrap_err(),
                lock.try_lock().unwrap_err(),
                lock.force_unlock().unwrap_err(),
            ];
            for error in errors {
                let said = error.to_string();
                assert!(said.contains("ACL") && said.contains("redlatch_queue"), "{said}");
            }
        }
        let left: Vec<String> = redis.keys("*").unwrap();
        assert_eq!(left, ["shop:held"]);
    }
}

/// The release is refused, so the hold ends with its lease.
#[test]
fn a_release_without_the_right_to_the_queue_is_refused_whole() {
    let server = server();
    let mut user = User::new(&server, "poorer");
    let guard = user.client().reentrant_lock("shop").lock().unwrap();
    user.set(&["resetkeys", "~shop*"]);
    let said = guard.unlock().unwrap_err().to_string();
    assert!(said.contains("redlatch_queue"), "{said}");
    let there = client(&server).reentrant_lock("shop");
    assert!(there.is_locked().unwrap());
    assert!(there.force_unlock().unwrap());
}

/// A client without one of these rights gets an error. The lock and its queue do not change.
#[test]
fn without_a_right_that_a_hand_off_needs_a_release_is_refused_whole() {
    let server = server();
    let mut redis = server.connection();
    let mut user = User::new(&server, "mute");
    let (poor, rich) = (user.client(), client(&server));
    let guard = poor.reentrant_lock("mute").lock().unwrap();
    let guest = Guest::in_line(&server, &rich, "mute", 1);
    let before = (owner(&mut redis, "mute"), queue(&mut redis, "mute"));
    let lock = poor.reentrant_lock("mute");
    for right in ["lpop", "llen", "hset", "publish", "pubsub", "time"] {
        user.set(&[&format!("-{right}")]);
        let error = lock.force_unlock().unwrap_err();
        is_clear(&error, "mute", "ACL");
        if right == "lpop" {
            is_clear(&error, "mute", "LPOP redlatch_queue:{mute} is missing");
        }
        let after = (owner(&mut redis, "mute"), queue(&mut redis, "mute"));
        assert_eq!(after, before, "-{right}: {error}");
        user.set(&["+@all"]);
    }
    // A release sooner than 10 ms after the grants began does not check this right: it frees the
    // lock, and the waiter finds the lock free.
    thread::sleep(Duration::from_millis(10));
    user.set(&["-pubsub"]);
    is_clear(&guard.unlock().unwrap_err(), "mute", "ACL");
    assert!(!guest.is_in());
    // The release is tried again.
    user.set(&["+@all"]);
    guest.wait_in();
    guest.leaves();
    wait_left(&server, "mute");
}

/// If the waiter got no error, it would wait for a free lock for ever.
#[test]
fn a_waiter_without_a_right_to_the_queue_gets_an_error_and_leaves_no_place() {
    let server = server();
    let mut redis = server.connection();
    for (at, right) in ["lpop", "pexpire"].into_iter().enumerate() {
        let mut user = User::new(&server, &format!("stuck{at}"));
        // A holder of redlatch that notices the changes below would grant the lock to the waiter.
        hold_as_redisson(&mut redis, "stuck", LONG_LEASE);
        let guest = Guest::in_line(&server, &user.client(), "stuck", 1);
        user.set(&[&format!("-{right}")]);
        // No client gets a message, so the waiter sends a request.
        let () = redis.del("stuck").unwrap();
        let error = guest.ends().unwrap_err();
        is_clear(&error, "stuck", "ACL");
        wait_left(&server, "stuck");
    }
}

#[test]
fn a_missing_right_of_an_asker_costs_no_other_its_place_or_the_lock() {
    let server = server();
    let mut redis = server.connection();
    let alive = "bbbbbbbb-bbbb-8bbb-bbbb-bbbbbbbbbbbb:2";
    let mut listening = server.connection();
    let mut listening = listening.as_pubsub();
    listening.subscribe(format!("redisson_lock__channel:{{redlatch:{}}}", &alive[..36])).unwrap();
    let mut user = User::new(&server, "poorest");
    let lock = user.client().reentrant_lock("left");
    let () = redis.rpush(queue_key("left"), alive).unwrap();
    let () = redis.pexpire(queue_key("left"), 60_000).unwrap();
    let rights = ["pexpire", "publish", "pubsub", "lpop", "lpos", "rpush", "hset", "time", "llen"];
    for right in rights {
        user.set(&["+@all", &format!("-{right}")]);
        let error = refused(|| lock.try_lock_for(TIME_UNIT));
        is_clear(&error, "left", "ACL");
        assert_eq!(queue(&mut redis, "left"), [alive], "-{right}: {error}");
        assert_eq!(owner(&mut redis, "left"), None, "-{right}: {error}");
    }
}

#[test]
fn something_else_under_the_queues_key_is_an_error() {
    let server = server();
    let mut redis = server.connection();
    let lock = client(&server).reentrant_lock("odd");
    let guard = lock.lock().unwrap();
    let () = redis.set(queue_key("odd"), "mine").unwrap();
    is_clear(&guard.unlock().unwrap_err(), "odd", "other data");
    let there: String = redis.get(queue_key("odd")).unwrap();
    assert_eq!(there, "mine");
    let () = redis.del(queue_key("odd")).unwrap();
    wait_free(&server, "odd", TIMEOUT);
    let () = redis.set(queue_key("odd"), "mine").unwrap();
    is_clear(&lock.lock().map(drop).unwrap_err(), "odd", "other data");
    assert_eq!(owner(&mut redis, "odd"), None);
}

/// A waiter needs no memory on the server.
#[test]
fn without_memory_a_lock_that_is_waited_for_is_handed_on() {
    let server = server();
    let mut redis = server.connection();
    let mut limit = |bytes: &str| {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", bytes]).exec(&mut redis).unwrap();
    };
    let (one, other, another) = (client(&server), warm(&server), warm(&server));
    let guard = one.reentrant_lock("full").lock().unwrap();
    let first = Guest::in_line(&server, &other, "full", 1);
    limit("1");
    let second = Guest::in_line(&server, &another, "full", 2);
    guard.unlock().unwrap();
    first.wait_in();
    first.leaves();
    second.wait_in();
    // The client raises the lease without memory, too.
    wait_until("it is raised", TIMEOUT, || {
        pttl(&mut server.connection(), "full") > millis(PROVISIONAL)
    });
    second.leaves();
    let error = one.reentrant_lock("full").lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
    limit("0");
    one.reentrant_lock("full").lock().unwrap().unlock().unwrap();
    wait_left(&server, "full");
}
