//! Users without some of the access rights.

use redlatch::Error;

use super::*;

/// Returns a client whose user had all rights when it connected, and now has only these rights.
fn restricted(server: &Server, rights: &[&str]) -> Client {
    let mut user = new_user(server);
    let client = user.client();
    user.set(rights);
    client
}

/// Makes the first requests of each kind, which take or create something.
fn first_requests(client: &Client, name: &str) -> Vec<(&'static str, Result<(), Error>)> {
    let read_write = client.read_write_lock(name);
    vec![
        ("lock", client.reentrant_lock(name).try_lock().map(drop)),
        ("lock that waits", client.reentrant_lock(name).lock().map(drop)),
        ("fenced lock", client.fenced_lock(name).try_lock().map(drop)),
        ("read lock", read_write.reader().try_lock().map(drop)),
        ("write lock", read_write.writer().try_lock().map(drop)),
        ("fair lock", client.fair_lock(name).try_lock().map(drop)),
        ("permits", client.semaphore(name).try_set_permits(1).map(drop)),
        ("permit", client.semaphore(name).try_acquire().map(drop)),
        ("permits with leases", client.expirable_semaphore(name).try_set_permits(1).map(drop)),
        ("permit with a lease", client.expirable_semaphore(name).try_acquire().map(drop)),
        ("latch", client.count_down_latch(name).try_set_count(1).map(drop)),
        ("barrier", client.cyclic_barrier(name).try_set_parties(1).map(drop)),
    ]
}

/// A new user of Redis may use no channels, so the server would refuse its releases.
#[test]
fn without_channels_nothing_is_granted_and_the_error_names_the_right() {
    let server = server();
    let mut user = new_user(&server);
    user.set(&["resetchannels"]);
    for (what, outcome) in first_requests(&user.client(), "shop") {
        let error = outcome.expect_err(what);
        assert!(error.to_string().contains("PUBLISH red"), "{what}: {error}");
        assert!(error.to_string().contains("missing"), "{what}: {error}");
        assert!(!error.outcome_unknown(), "{what}: {error}");
        let left: Vec<String> = server.connection().keys("*").unwrap();
        assert!(left.is_empty(), "{what} has left {left:?}");
    }
    user.set(&["&*"]);
    // The user may not use the keys that scripts make.
    user.set(&["resetkeys", "~shop", "~redlatch_queue:{shop}", "~redlatch_window:{shop}"]);
    let error = user.client().reentrant_lock("shop").lock().map(drop).unwrap_err();
    assert!(error.to_string().contains("redlatch_asked:{shop}:"), "{error}");
}

#[test]
fn the_documented_rights_are_enough_for_the_first_request_of_each_kind() {
    let server = server();
    let mut user = new_user(&server);
    let text =
        include_str!("../../../docs/operations.md").split("## Access rights").nth(1).unwrap();
    let table = text.split("```").nth(1).unwrap().split([' ', ';', '\n']);
    let rules = table.filter(|it| it.starts_with(['~', '&', '+']));
    let rules = ["-@all", "resetkeys", "resetchannels"].into_iter().chain(rules);
    user.set(&rules.collect::<Vec<_>>());
    for name in ["shop.1", "shop.2"] {
        let client = user.client();
        for (what, outcome) in first_requests(&client, name) {
            outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
            redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
        }
        let lock = client.reentrant_lock(name);
        let guard = lock.lock().unwrap();
        let waited = lock.condition("changed").wait_for(&guard, Duration::from_millis(10));
        assert!(waited.unwrap().timed_out());
    }
}

/// The keys of a condition contain the lock's name and then the condition's name.
#[test]
fn a_user_of_one_condition_alone_may_wait_for_it() {
    let server = server();
    for (name, behind) in [("r", ":{r}"), ("d:{r}", "_tagged:d:{r}")] {
        let key = |what: &str| format!("~redlatch_{what}{behind}");
        let own = |what: &str, name: &str| format!("{}:{name}:{}", key(what), name.len());
        let mut user = new_user(&server);
        let lock = format!("~{name}");
        let more = ["queue", "window", "asked"].map(|it| format!("{}*", key(it)));
        let keys = ["condition", "notified"].map(|it| own(it, "full"));
        let mut rules = vec!["resetkeys", &lock];
        rules.extend(more.iter().chain(&keys).map(String::as_str));
        user.set(&rules);
        let lock = user.client().reentrant_lock(name);
        let guard = lock.lock().unwrap();
        let wait = |name: &str| lock.condition(name).wait_for(&guard, TIME_UNIT);
        assert!(wait("full").unwrap().timed_out(), "{name}");
        is_clear(&wait("empty").unwrap_err(), name, "to one of the keys of this name is missing");
    }
}

/// Returns the number of `EVAL` calls so far. A check of the rights is sent with a script's text.
fn texts(server: &Server) -> u64 {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn a_user_of_all_names_is_asked_once_and_another_one_once_for_each_name() {
    let server = server();
    let mut user = new_user(&server);
    let one_lane = |user: &User| impatient(user.url()).connections(1).connect().unwrap();
    let take = |client: &Client, name: &str| {
        let before = texts(&server);
        client.reentrant_lock(name).lock().map(|guard| guard.unlock().unwrap())?;
        Ok::<_, Error>(texts(&server) - before)
    };
    let client = one_lane(&user);
    for name in ["first", "second"] {
        take(&client, name).unwrap();
    }
    for name in ["third", "{fourth}", "first"] {
        assert_eq!(take(&client, name).unwrap(), 0, "{name}");
    }
    let keys = ["shop", "redlatch_queue:{shop", "redlatch_window:{shop", "redlatch_asked:{shop"];
    let keys: Vec<_> = keys.iter().map(|key| format!("~{key}*")).collect();
    let rules: Vec<_> = ["resetkeys"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    user.set(&rules);
    let client = one_lane(&user);
    for (name, asked) in [("shop.1", 1), ("shop.2", 1), ("shop.1", 0), ("shop.2", 0)] {
        assert_eq!(take(&client, name).unwrap(), asked, "{name}");
    }
    for _ in 0..2 {
        let error = take(&client, "stock").unwrap_err();
        is_clear(&error, "stock", "to one of the keys of this name is missing");
    }
    assert_eq!(holder(&mut server.connection(), "stock"), None);
}

/// Another connection may lead to another server, on which the user has other rights.
#[test]
fn each_connection_asks_anew() {
    let server = server();
    let mut user = new_user(&server);
    let client = user.client();
    let lock = client.reentrant_lock("anew");
    lock.lock().unwrap().unlock().unwrap();
    user.set(&["resetchannels"]);
    let () = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal"])
        .query(&mut server.connection())
        .unwrap();
    let error = lock.lock().map(drop).unwrap_err();
    is_clear(&error, "anew", "PUBLISH");
    assert_eq!(holder(&mut server.connection(), "anew"), None);
}

#[test]
fn without_the_right_to_run_scripts_nothing_is_taken() {
    let server = server();
    for rights in [
        &["-evalsha"] as &[_],
        &["-evalsha", "-eval"],
        &["-@all", "+ping"],
        &["resetkeys", "~other:*"],
    ] {
        let client = restricted(&server, rights);
        for _ in 0..2 {
            let error = client.reentrant_lock("forbidden").lock().map(drop).unwrap_err();
            is_clear(&error, "forbidden", "ACL");
        }
        let error = client.reentrant_lock("forbidden").try_lock().map(drop).unwrap_err();
        is_clear(&error, "forbidden", "ACL");
    }
    assert_eq!(holder(&mut server.connection(), "forbidden"), None);
}

#[test]
fn without_the_right_to_set_an_end_no_lock_stays() {
    let server = server();
    let client = user(&server, &["-pexpire"]);
    let error = client.reentrant_lock("endless").lock().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(pttl(&mut server.connection(), "endless"), -2, "a key has stayed");
}

/// A release succeeds without the public message that the lock is free, and Redisson's clients
/// notice the free lock later. But a message to a redlatch waiter grants the lock, so such a
/// release needs the right to send the message.
#[test]
fn without_the_right_to_publish_a_release_goes_on_unless_a_waiter_must_be_told() {
    let server = server();
    let mut user = new_user(&server);
    let client = user.client();
    let rules: [&[&str]; 2] =
        [&["-publish"], &["resetchannels", "&redisson_lock__channel:{redlatch:*"]];
    for (at, rules) in rules.iter().enumerate() {
        for how in ["unlock", "drop", "force"] {
            let name = format!("mute {at} {how}");
            let lock = client.reentrant_lock(&name);
            // The client has the right at first, because a client without this right gets no grant.
            lock.lock().unwrap().unlock().unwrap();
            user.set(rules);
            let guard = lock.lock().unwrap();
            match how {
                "unlock" => guard.unlock().unwrap(),
                "drop" => drop(guard),
                _ => assert!(lock.force_unlock().unwrap()),
            }
            wait_until("it is free", TIMEOUT, || !lock.is_locked().unwrap());
            user.set(&["+@all", "&*"]);
        }
    }
    let lock = client.reentrant_lock("told");
    let guard = lock.lock().unwrap();
    let waiting = crate::common::client(&server).reentrant_lock("told");
    let waiter = spawn(move || waiting.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "told", 1);
    user.set(&["-publish"]);
    is_clear(&lock.force_unlock().unwrap_err(), "told", "PUBLISH");
    is_clear(&guard.unlock().unwrap_err(), "told", "PUBLISH");
    assert!(lock.is_locked().unwrap());
    // The client tries the release again in the background.
    user.set(&["+publish"]);
    waiter.join();
    wait_free(&server, "told", TIMEOUT);
}

#[test]
fn without_the_right_to_subscribe_waiting_is_an_error() {
    let server = server();
    let client = user(&server, &["-subscribe"]);
    let lock = client.reentrant_lock("deaf");
    lock.lock().unwrap().unlock().unwrap();
    hold_as_redisson(&mut server.connection(), "deaf", LONG_LEASE);
    assert!(lock.try_lock().unwrap().into_option().is_none());
    for _ in 0..2 {
        let error = lock.lock().map(drop).unwrap_err();
        is_clear(&error, "deaf", "SUBSCRIBE");
        let error = lock.try_lock_for(TIMEOUT).map(drop).unwrap_err();
        is_clear(&error, "deaf", "SUBSCRIBE");
    }
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let server = server();
    let client = restricted(&server, &["-@all", "+ping"]);
    let error = client.reentrant_lock("rights").lock().map(drop).unwrap_err().to_string();
    let all =
        "EVALSHA EVAL EXISTS HEXISTS HKEYS HLEN HRANDFIELD HSET HDEL DEL PEXPIRE PTTL TIME LPOS RPUSH \
         LPOP LREM LLEN LINDEX LINSERT GET SET PUBSUB PUBLISH SUBSCRIBE"
            .split(' ');
    let mut rights = vec!["-@all".to_owned()];
    for right in all {
        assert!(error.contains(right), "no {right} in: {error}");
        rights.push(format!("+{}", right.to_lowercase()));
    }
    let rights: Vec<_> = rights.iter().map(String::as_str).collect();
    let client = user(&server, &rights);
    let lock = client.reentrant_lock("rights");
    let waiting = user(&server, &rights).reentrant_lock("rights");
    woken_by_message(|| {
        let guard = lock.with_lease(LEASE).lock().unwrap();
        let longer = lock.with_lease(LONG_LEASE).lock().unwrap();
        let waiting = waiting.clone();
        let waiter = spawn(move || waiting.lock().unwrap().unlock().unwrap());
        wait_in_line(&server, "rights", 1);
        waiter.wait_asleep();
        drop(longer);
        guard.unlock().unwrap();
        waiter.join();
    });
    drop(lock.lock().unwrap());
    assert!(lock.remaining_lease().unwrap().is_none() && !lock.is_locked().unwrap());
    assert!(!lock.force_unlock().unwrap());
}

#[test]
fn a_right_withdrawn_from_a_holder_is_reported_and_the_lock_is_freed_later() {
    let server = server();
    let mut user = new_user(&server);
    let client = user.client();
    let mut set = |right: &str| user.set(&[right]);
    let unlocked = client.reentrant_lock("unlocked").lock().unwrap();
    let dropped = client.reentrant_lock("dropped").lock().unwrap();
    set("-evalsha");
    is_clear(&unlocked.unlock().unwrap_err(), "unlocked", "ACL");
    drop(dropped);
    set("+evalsha");
    wait_free(&server, "unlocked", TIMEOUT);
    wait_free(&server, "dropped", TIMEOUT);
}
