//! The keys and messages of the lock.

use super::*;

#[test]
fn the_hash_the_owner_and_the_lease_are_redissons() {
    let server = server();
    let client = client(&server);
    let mut redis = server.connection();
    let guard = client.reentrant_lock("wire").lock().unwrap();

    let (owner, count) = holder(&mut redis, "wire").unwrap();
    assert_eq!(count, "1");
    let (uuid, number) = owner.split_once(':').unwrap();
    let groups: Vec<_> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{owner}");
    let hexadecimal = |c: char| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c);
    assert!(uuid.chars().all(hexadecimal), "{owner}");
    assert!(number.parse::<u64>().is_ok() && !number.starts_with('0'), "{owner}");
    let kind: String = redis::cmd("TYPE").arg("wire").query(&mut redis).unwrap();
    assert_eq!(kind, "hash");
    let left = pttl(&mut redis, "wire");
    let lease = i64::try_from(LONG_LEASE.as_millis()).unwrap();
    assert!(left > lease * 9 / 10 && left <= lease, "{left} ms");

    guard.unlock().unwrap();
    let keys: Vec<String> = redis.keys("*").unwrap();
    assert!(keys.is_empty(), "left behind: {keys:?}");
}

#[test]
fn the_default_lease_is_redissons_thirty_seconds() {
    let server = server();
    let client = Client::connect(&server.url()).unwrap();
    let _guard = client.reentrant_lock("thirty").lock().unwrap();
    let left = pttl(&mut server.connection(), "thirty");
    assert!(left > 25_000 && left <= 30_000, "{left} ms");
}

#[test]
fn each_acquisition_is_an_owner_of_its_own() {
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let mut redis = server.connection();
    let mut owner_of = |client: &Client| {
        let guard = client.reentrant_lock("owners").lock().unwrap();
        let (owner, _) = holder(&mut redis, "owners").unwrap();
        guard.unlock().unwrap();
        let (uuid, number) = owner.split_once(':').unwrap();
        (uuid.to_owned(), number.parse::<u64>().unwrap())
    };
    let first = owner_of(&one);
    let second = owner_of(&one);
    let foreign = owner_of(&other);
    assert_eq!(first.0, second.0);
    assert_ne!(first.1, second.1);
    assert_ne!(first.0, foreign.0);
}

#[test]
fn a_release_publishes_a_zero_on_redissons_channel() {
    let server = server();
    let client = client(&server);
    for (name, channel) in [
        ("plain", "redisson_lock__channel:{plain}"),
        ("with:colon and space", "redisson_lock__channel:{with:colon and space}"),
        ("a{b}c", "redisson_lock__channel:a{b}c"),
        ("a{b", "redisson_lock__channel:a{b"),
        ("{}a", "redisson_lock__channel:{}a"),
        ("a}b", "redisson_lock__channel:{a}b}"),
        ("größe \u{1F512}", "redisson_lock__channel:{größe \u{1F512}}"),
    ] {
        let mut subscriber = server.connection();
        let mut subscriber = subscriber.as_pubsub();
        subscriber.set_read_timeout(Some(TIMEOUT)).unwrap();
        subscriber.psubscribe("*").unwrap();
        let mut messages = || {
            let message = subscriber.get_message().unwrap();
            (message.get_channel_name().to_owned(), message.get_payload_bytes().to_vec())
        };
        let expected = (channel.to_owned(), b"0".to_vec());
        let lock = client.reentrant_lock(name);
        lock.lock().unwrap().unlock().unwrap();
        assert_eq!(messages(), expected, "unlock");
        drop(lock.lock().unwrap());
        assert_eq!(messages(), expected, "drop");
        let _guard = lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert_eq!(messages(), expected, "force_unlock");
        // The lock was free, so no message is sent: it would wake waiters in vain.
        assert!(!lock.force_unlock().unwrap());
        let () = server.connection().publish("end", "").unwrap();
        assert_eq!(messages().0, "end");
    }
}

#[test]
fn an_inner_unlock_says_nothing_to_the_server() {
    let server = server();
    let lock = client(&server).reentrant_lock("inner");
    lock.lock().unwrap().unlock().unwrap();
    let mut redis = server.connection();

    let outer = lock.lock().unwrap();
    let before = Commands::so_far(&server).of_locks();
    let inner: Vec<_> = (0..100).map(|_| lock.lock().unwrap()).collect();
    assert_eq!(lock.hold_count(), 101);
    let tried = lock.try_lock().unwrap().into_option().unwrap();
    let waited = lock.try_lock_for(TIMEOUT).unwrap().into_option().unwrap();
    assert_eq!(lock.hold_count(), 103);
    drop(tried);
    waited.unlock().unwrap();
    for (at, guard) in inner.into_iter().enumerate() {
        if at % 2 == 0 { drop(guard) } else { guard.unlock().unwrap() }
    }
    assert_eq!(lock.hold_count(), 1);
    assert_eq!(Commands::so_far(&server).of_locks(), before);
    assert_eq!(holder(&mut redis, "inner").unwrap().1, "1");
    outer.unlock().unwrap();
    assert_eq!(holder(&mut redis, "inner"), None);
    assert_eq!(lock.hold_count(), 0);
}
