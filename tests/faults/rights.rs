//! Access rights.

use super::*;

/// A client whose user had all rights when it connected, and has these now.
fn restricted(server: &Server, rights: &[&str]) -> Client {
    let mut user = new_user(server);
    let client = user.client();
    user.set(rights);
    client
}

#[test]
fn without_the_right_to_run_scripts_nothing_is_taken() {
    let _bounded = bounded();
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
    let _bounded = bounded();
    let server = server();
    let client = user(&server, &["-pexpire"]);
    let error = client.reentrant_lock("endless").lock().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Redis, "{error}");
    assert_eq!(pttl(&mut server.connection(), "endless"), -2, "a key has stayed");
}

/// It is tried again in the background: with the right again, the lock is free.
#[test]
fn without_the_right_to_publish_a_release_is_refused_whole() {
    let _bounded = bounded();
    let server = server();
    let mut user = new_user(&server);
    let client = user.client();
    user.set(&["-publish"]);
    for round in 0..2 {
        let name = format!("mute {round}");
        let lock = client.reentrant_lock(&name);
        let guard = lock.lock().unwrap();
        is_clear(&lock.force_unlock().unwrap_err(), &name, "PUBLISH");
        assert!(guard.is_held() && lock.is_locked().unwrap());
        if round == 0 {
            is_clear(&guard.unlock().unwrap_err(), &name, "PUBLISH");
        } else {
            drop(guard);
        }
        assert!(lock.is_locked().unwrap());
    }
    user.set(&["+publish"]);
    for round in 0..2 {
        wait_free(&server, &format!("mute {round}"), SOON);
    }
}

#[test]
fn without_the_right_to_subscribe_waiting_is_an_error() {
    let _bounded = bounded();
    let server = server();
    let client = user(&server, &["-subscribe"]);
    let lock = client.reentrant_lock("deaf");
    lock.lock().unwrap().unlock().unwrap();
    hold_as_redisson(&mut server.connection(), "deaf", LONG);
    assert!(lock.try_lock().unwrap().is_none());
    for _ in 0..2 {
        let error = lock.lock().map(drop).unwrap_err();
        is_clear(&error, "deaf", "SUBSCRIBE");
        let error = lock.try_lock_for(SOON).map(drop).unwrap_err();
        is_clear(&error, "deaf", "SUBSCRIBE");
    }
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let _bounded = bounded();
    let server = server();
    let client = restricted(&server, &["-@all", "+ping"]);
    let error = client.reentrant_lock("rights").lock().map(drop).unwrap_err().to_string();
    let all =
        "EVALSHA EVAL EXISTS HEXISTS HKEYS HLEN HRANDFIELD HSET DEL PEXPIRE PTTL TIME LPOS RPUSH \
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
    at_once(|| {
        let guard = lock.with_lease(LEASE).lock().unwrap();
        let longer = lock.with_lease(LONG).lock().unwrap();
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
fn a_right_withdrawn_while_it_is_held_is_told_and_the_lock_is_freed_later() {
    let _bounded = bounded();
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
    wait_free(&server, "unlocked", SOON);
    wait_free(&server, "dropped", SOON);
}
