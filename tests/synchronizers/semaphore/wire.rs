//! The keys and messages of a semaphore.

use super::*;

#[test]
fn the_key_and_the_messages_are_redissons() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    for (name, channel) in [
        ("wire", "redisson_sc:{wire}"),
        ("a{b}c", "redisson_sc:a{b}c"),
        ("größe \u{1F512}", "redisson_sc:{größe \u{1F512}}"),
    ] {
        let semaphore = client.semaphore(name);
        let heard = messages(&server, "redisson_sc:*", || {
            assert!(semaphore.try_set_permits(2).unwrap());
            let kind: String = redis::cmd("TYPE").arg(name).query(&mut redis).unwrap();
            assert_eq!(kind, "string");
            assert_eq!(redis.get::<_, String>(name).unwrap(), "2");
            assert_eq!(pttl(&mut redis, name), -1);
            let permit = semaphore.acquire().unwrap();
            assert_eq!(redis.get::<_, String>(name).unwrap(), "1");
            permit.release().unwrap();
            drop(semaphore.acquire_many(2).unwrap());
            semaphore.add_permits(3).unwrap();
            assert_eq!(semaphore.drain_permits().unwrap(), 5);
            // Redisson's clients fail on a negative number.
            semaphore.add_permits(-2).unwrap();
            semaphore.release_forgotten(1).unwrap();
            semaphore.release_forgotten(3).unwrap();
        });
        let heard: Vec<_> = heard.iter().map(|(at, what)| (at.as_str(), what.as_str())).collect();
        let expected = ["2", "2", "2", "5", "2"].map(|value| (channel, value));
        assert_eq!(heard, expected);
    }
    let keys: Vec<String> = redis.keys("redlatch_request:*").unwrap();
    for key in keys {
        assert!(pttl(&mut redis, &key) > 0, "{key:?} has no end");
    }
}

#[test]
fn a_java_services_release_wakes_a_waiter() {
    let server = server();
    let semaphore = client(&server).semaphore("java");
    woken_by_message(|| {
        let waiters: Vec<_> = [1, 2]
            .into_iter()
            .map(|need| {
                let semaphore = semaphore.clone();
                let waiter = spawn(move || semaphore.acquire_many(need).unwrap().forget());
                waiter.wait_asleep();
                waiter
            })
            .collect();
        wait_subscribed(&server, &channel("java"));
        let mut redis = server.connection();
        for _ in 0..3 {
            let () = redis::pipe()
                .atomic()
                .incr("java", 1)
                .publish(channel("java"), "1")
                .query(&mut redis)
                .unwrap();
        }
        waiters.into_iter().for_each(Running::join);
    });
    assert_eq!(semaphore.available_permits().unwrap(), 0);
}

#[test]
fn a_message_without_a_permit_grants_nothing() {
    let server = server();
    let semaphore = client(&server).semaphore("lies");
    let waiter = spawn(move || {
        answered(|| semaphore.try_acquire_for(TIME_UNIT * 5)).into_option().is_some()
    });
    wait_subscribed(&server, &channel("lies"));
    let mut redis = server.connection();
    while !waiter.is_finished() {
        for message in ["1", "0", "-3", "no number", ""] {
            let () = redis.publish(channel("lies"), message).unwrap();
        }
        thread::sleep(TIME_UNIT / 10);
    }
    assert!(!waiter.join());
    assert!(!redis.exists::<_, bool>("lies").unwrap());
}
