//! A user's rights.

use super::*;

/// A change that a client requests, with the count before and after it.
struct Change {
    before: Option<i64>,
    after: Option<i64>,
    ask: fn(&CountDownLatch) -> Result<(), Error>,
}

const CHANGES: [Change; 5] = [
    Change { before: None, after: Some(3), ask: |it| it.try_set_count(3).map(drop) },
    Change { before: Some(3), after: Some(2), ask: CountDownLatch::count_down },
    Change { before: Some(1), after: None, ask: CountDownLatch::count_down },
    Change { before: None, after: None, ask: CountDownLatch::count_down },
    Change { before: Some(3), after: None, ask: |it| it.delete().map(drop) },
];

/// The commands of a latch's scripts, which are denied one at a time, and keys that the user may
/// not use.
const DENIED: [&[&str]; 11] = [
    &["-time"],
    &["-get"],
    &["-set"],
    &["-incrby"],
    &["-decr"],
    &["-del"],
    &["-publish"],
    &["resetchannels"],
    &["resetkeys", "~gate"],
    &["resetkeys", "~redlatch_request:*"],
    &["resetkeys", "~redlatch_request:*", "%R~gate"],
];

#[test]
fn a_change_without_a_right_is_made_as_a_whole_or_not_at_all() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    let gate = client.count_down_latch("gate");
    // After this call, the client knows the server's time.
    gate.count_down().unwrap();
    let mut redis = server.connection();
    let mut refused = 0;
    for denied in DENIED {
        for (at, Change { before, after, ask }) in CHANGES.iter().enumerate() {
            let () = redis.del("gate").unwrap();
            if let Some(before) = before {
                let () = redis.set("gate", before).unwrap();
            }
            user.set(denied);
            let outcome = ask(&gate);
            user.set(&["~*", "&*", "+@all"]);
            let now: Option<i64> = redis.get("gate").unwrap();
            match outcome {
                Ok(()) => assert_eq!(now, *after, "{denied:?}, change {at}"),
                Err(error) => {
                    assert_eq!(now, *before, "{denied:?}, change {at}: {error}");
                    is_clear(&error, "gate", "access rights (ACL)");
                    assert!(error.to_string().contains("a latch needs"), "{error}");
                    refused += 1;
                    ask(&gate).unwrap();
                    assert_eq!(redis.get::<_, Option<i64>>("gate").unwrap(), *after);
                }
            }
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn the_rights_that_the_message_names_are_enough() {
    let server = server();
    let mut user = User::new(&server, "me");
    let client = user.client();
    user.set(&["-@all"]);
    let error = client.count_down_latch("rights").count_down().unwrap_err().to_string();
    user.set_as_said(&error, "a latch", "rights");
    woken_by_message(|| {
        let latch = latch(&user.client(), "rights", 2);
        let waiting = user.client().count_down_latch("rights");
        let waiter = spawn(move || waiting.wait().unwrap());
        wait_subscribed(&server, &channel("rights"));
        waiter.wait_asleep();
        latch.count_down().unwrap();
        latch.count_down().unwrap();
        waiter.join();
        assert!(latch.try_set_count(1).unwrap());
        assert!(latch.delete().unwrap());
    });
}
