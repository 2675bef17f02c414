//! Waits for several locks.

use redlatch::NotTaken;

use super::*;

#[test]
fn while_a_part_is_waited_for_those_before_it_are_held_and_renewed() {
    let server = server();
    let lease = SHORT_LEASE;
    let (ours, other) = (watched(&server, lease), client(&server));
    let taken = other.reentrant_lock("b").lock().unwrap();
    let all = all_of(&ours, &["c", "b", "a"]);
    let waiter = spawn(move || {
        let guard = all.lock().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
    });
    wait_in_line(&server, "b", 1);
    waiter.wait_asleep();
    let before = holder(&mut server.connection(), "a");
    assert!(before.is_some(), "the one before is held");
    assert!(!is_held(&server, "c"), "the one behind is not");
    thread::sleep(lease * 3 / 2);
    assert_eq!(holder(&mut server.connection(), "a"), before);
    taken.unlock().unwrap();
    waiter.join();
    wait_all_free(&server, &NAMES);
}

#[test]
fn a_part_granted_by_message_is_kept_while_the_next_is_waited_for() {
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let [a, b] = ["a", "b"].map(|name| other.reentrant_lock(name).lock().unwrap());
    let both = all_of(&ours, &["a", "b"]);
    let waiter = spawn(move || both.lock().unwrap().unlock().unwrap());
    wait_in_line(&server, "a", 1);
    let before = holder(&mut server.connection(), "a");
    waiter.wait_asleep();
    a.unlock().unwrap();
    wait_in_line(&server, "b", 1);
    let handed = holder(&mut server.connection(), "a");
    assert!(handed.is_some() && handed != before);
    // This time is longer than the first lease of a lock that was granted by a message.
    thread::sleep(Duration::from_secs(3));
    assert_eq!(holder(&mut server.connection(), "a"), handed);
    b.unlock().unwrap();
    waiter.join();
}

#[test]
fn a_time_limit_covers_all_parts_together() {
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let taken = ["b", "c"].map(|name| other.reentrant_lock(name).lock().unwrap());
    let all = all_of(&ours, &NAMES);
    let begun = Instant::now();
    assert!(answered(|| all.try_lock_for(TIME_UNIT * 5)).into_option().is_none());
    assert!(
        answered(|| all.try_lock_until(Instant::now() + TIME_UNIT * 5)).into_option().is_none()
    );
    let took = begun.elapsed();
    assert!(took >= TIME_UNIT * 10 && took < TIMEOUT, "{took:?}");
    wait_free(&server, "a", TIMEOUT);
    taken.into_iter().for_each(|guard| guard.unlock().unwrap());
}

/// The clients alone would wait much longer for the server's replies.
#[test]
fn a_limit_ends_a_wait_for_several_where_a_server_says_nothing() {
    let (here, there) = (server(), server());
    let patient = |server: &Server| {
        let builder = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE);
        builder
            .connections(1)
            .response_timeout(LONG_LEASE)
            .connect_timeout(LONG_LEASE)
            .connect()
            .unwrap()
    };
    let (ours, theirs) = (patient(&here), patient(&there));
    let locks = [ours.reentrant_lock("a"), theirs.reentrant_lock("b"), ours.reentrant_lock("c")];
    let all = of(&locks);
    all.lock().unwrap().unlock().unwrap();
    there.pause();
    let token = CancelToken::new();
    let canceller = spawn({
        let (token, here) = (token.clone(), here.url());
        move || {
            let mut redis = redis::Client::open(here).unwrap().get_connection().unwrap();
            wait_until("the first is had", TIMEOUT, || redis.exists("a").unwrap());
            thread::sleep(TIME_UNIT);
            token.cancel();
        }
    });
    let begun = Instant::now();
    let error = all.lock_cancellable(&token).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    canceller.join();
    wait_free(&here, "a", TIMEOUT);
    // Until the client notices the outage, a call that reaches its limit returns "not in time"
    // instead of an error.
    let is_noticed = || all.try_lock_for(TIME_UNIT).map(drop).is_err();
    wait_until("the silence is noticed", TIMEOUT, is_noticed);
    for limited in [
        all.try_lock_for(TIME_UNIT * 5),
        all.try_lock_until(Instant::now() + TIME_UNIT * 5),
        all.lock_within(Wait::at_most(TIME_UNIT * 5).cancelled_by(&CancelToken::new())),
        all.lock_owned_within(Wait::at_most(TIME_UNIT * 5)).map(|_| NotTaken),
    ] {
        let error = limited.unwrap_err();
        assert!(error.kind().is_server_trouble(), "{error:?}");
        assert_eq!(error.name(), Some("b"), "{error}");
        wait_all_free(&here, &["a", "c"]);
    }
    assert!(begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
    there.resume();
    // The client has given a late grant back.
    wait_free(&there, "b", TIMEOUT);
    all.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_cancel_gives_back_the_locks_taken_so_far() {
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let taken = other.reentrant_lock("b").lock().unwrap();
    let all = all_of(&ours, &NAMES);
    let token = CancelToken::new();
    let (cancelled, waits) = (token.clone(), all.clone());
    let waiter = spawn(move || waits.lock_cancellable(&cancelled).unwrap_err());
    wait_in_line(&server, "b", 1);
    waiter.wait_asleep();
    assert!(is_held(&server, "a"));
    token.cancel();
    let error = waiter.join();
    assert_eq!((error.kind(), error.name()), (ErrorKind::Cancelled, Some("b")));
    wait_free(&server, "a", TIMEOUT);
    let wait = Wait::at_most(LONG_LEASE).cancelled_by(&token);
    assert_eq!(all.lock_within(wait).unwrap_err().kind(), ErrorKind::Cancelled);
    taken.unlock().unwrap();
}

#[test]
fn a_lock_lost_while_others_are_waited_for_is_taken_again() {
    let server = server();
    let (ours, other) = (client(&server), client(&server));
    let taken = other.reentrant_lock("b").lock().unwrap();
    let all = all_of(&ours, &["a", "b"]).with_lease(TIME_UNIT * 10);
    let waiter = spawn(move || {
        let guard = all.lock().unwrap();
        assert!(guard.is_held());
        guard.unlock().unwrap();
    });
    wait_in_line(&server, "b", 1);
    wait_free(&server, "a", TIMEOUT);
    taken.unlock().unwrap();
    waiter.join();
}
