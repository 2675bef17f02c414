//! Users without some of the access rights.

use super::*;

/// A change that a client requests, with the free permits before and after it.
struct Change {
    before: Option<i64>,
    after: Option<i64>,
    ask: fn(&Semaphore) -> Result<(), Error>,
}

const CHANGES: [Change; 10] = [
    Change { before: None, after: Some(3), ask: |it| it.try_set_permits(3).map(drop) },
    Change { before: Some(5), after: Some(3), ask: |it| it.set_permits(3) },
    Change { before: Some(3), after: Some(-2), ask: |it| it.add_permits(-5) },
    Change { before: Some(3), after: Some(0), ask: |it| it.drain_permits().map(drop) },
    Change { before: Some(-2), after: Some(0), ask: |it| it.drain_permits().map(drop) },
    Change {
        before: Some(3),
        after: Some(1),
        ask: |it| it.try_acquire_many(2).map(|permit| permit.into_option().unwrap().forget()),
    },
    Change { before: Some(3), after: Some(5), ask: |it| it.release_forgotten(2) },
    Change { before: None, after: Some(2), ask: |it| it.release_forgotten(2) },
    Change {
        before: Some(3),
        after: Some(5),
        ask: |it| it.release_forgotten_if_exists(2).map(drop),
    },
    Change { before: Some(3), after: None, ask: |it| it.delete().map(drop) },
];

/// The commands of a semaphore's scripts, which are denied one at a time, and keys that the user
/// may not use.
const DENIED: [&[&str]; 14] = [
    &["-time"],
    &["-get"],
    &["-set"],
    &["-pttl"],
    &["-incrby"],
    &["-decrby"],
    &["-del"],
    &["-publish"],
    &["resetchannels"],
    &["resetkeys", "~pool", "~redlatch_mark:*"],
    &["resetkeys", "~pool", "~redlatch_request:*"],
    &["resetkeys", "~pool", "~redlatch_request:*", "%R~redlatch_mark:*"],
    &["resetkeys", "~redlatch_request:*", "~redlatch_mark:*"],
    &["resetkeys", "~redlatch_request:*", "~redlatch_mark:*", "%R~pool"],
];

const ALL_RIGHTS: [&str; 3] = ["~*", "&*", "+@all"];

#[test]
fn a_change_without_a_right_is_made_as_a_whole_or_not_at_all() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    let pool = client.semaphore("pool");
    // After this call, the client knows the server's time, and the server knows the scripts.
    drop(pool.try_acquire().unwrap());
    let mut redis = server.connection();
    let mut refused = 0;
    for denied in DENIED {
        for (at, Change { before, after, ask }) in CHANGES.iter().enumerate() {
            let () =
                redis::cmd("DEL").arg(&["pool", "redlatch_mark:{pool}"]).query(&mut redis).unwrap();
            if let Some(before) = before {
                let () = redis.set("pool", before).unwrap();
            }
            user.set(denied);
            let outcome = ask(&pool);
            user.set(&ALL_RIGHTS);
            let now: Option<i64> = redis.get("pool").unwrap();
            match outcome {
                Ok(()) => assert_eq!(now, *after, "{denied:?}, change {at}"),
                Err(error) => {
                    assert_eq!(now, *before, "{denied:?}, change {at}: {error}");
                    is_clear(&error, "pool", "access rights (ACL)");
                    assert!(error.to_string().contains("a semaphore needs"), "{error}");
                    refused += 1;
                    ask(&pool).unwrap();
                    assert_eq!(redis.get::<_, Option<i64>>("pool").unwrap(), *after);
                }
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_refused_request_is_refused_again_though_its_reply_is_lost() {
    let server = server();
    let mut user = User::new(&server, "me");
    let proxy = Proxy::before(&server);
    let semaphore = semaphore(&user.client_behind(&proxy), "pool", 5);
    drop(semaphore.acquire().unwrap());
    wait_permits(&server, "pool", 5);
    user.set(&["-decrby"]);
    on_acquire(&proxy, "pool", 1, Action::LoseReply);
    // The client cannot know whether the server has run the request.
    let error = semaphore.acquire().map(drop).unwrap_err();
    is_clear(&error, "pool", "given back in the background");
    assert_eq!(proxy.fired(), 1);
    user.set(&ALL_RIGHTS);
    stays(&server, "pool", 5);
}

#[test]
fn permits_released_without_a_right_come_back_once_when_the_right_is_back() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    let semaphore = semaphore(&client, "pool", 9);
    for denied in DENIED {
        let (dropped, released) = (semaphore.acquire().unwrap(), semaphore.acquire().unwrap());
        user.set(denied);
        drop(dropped);
        let outcome = released.release();
        if let Err(error) = &outcome {
            is_clear(error, "pool", "given back in the background");
        }
        // Meanwhile the client tries repeatedly.
        thread::sleep(TIME_UNIT);
        let free: i64 = server.connection().get("pool").unwrap();
        assert_eq!(free, if outcome.is_ok() { 9 } else { 7 }, "{denied:?}");
        user.set(&ALL_RIGHTS);
        wait_permits(&server, "pool", 9);
    }
    stays(&server, "pool", 9);
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    user.set(&["-@all"]);
    let error = client.semaphore("rights").acquire().map(drop).unwrap_err().to_string();
    user.set_as_said(&error, "a semaphore", "rights");
    let client = user.client();
    let semaphore = semaphore(&client, "rights", 2);
    let all = semaphore.acquire_many(2).unwrap();
    let waiting = user.client().semaphore("rights");
    let waiter = spawn(move || waiting.acquire().unwrap().release().unwrap());
    wait_subscribed(&server, &channel("rights"));
    waiter.wait_asleep();
    drop(all);
    waiter.join();
    semaphore.add_permits(1).unwrap();
    assert!(semaphore.release_forgotten_if_exists(1).unwrap());
    assert_eq!(semaphore.drain_permits().unwrap(), 4);
    semaphore.set_permits(1).unwrap();
    assert!(semaphore.delete().unwrap());
}
