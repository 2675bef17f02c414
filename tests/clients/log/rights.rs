//! Commands and rights that a server or a user does not have.

use super::*;

#[test]
fn a_server_that_does_not_tell_of_changes_is_one_line() {
    let Some(server) = server_with_log() else { return };
    let mut user = User::new(&server, "untold");
    user.set(&["-client"]);
    let without = |command| Server::with_args(&["--rename-command", command, ""]).unwrap();
    let (no_client, no_hello) = (without("CLIENT"), without("HELLO"));
    let lines = || LOGGER.lines("does not notify the client of changed keys");
    for (url, expected) in
        [(user.url(), 1), (&no_client.url(), 2), (&no_hello.url(), 3), (&server.url(), 3)]
    {
        let client = Client::connect(url).unwrap();
        let held = ["one", "other"].map(|name| client.reentrant_lock(name).lock().unwrap());
        // Time must pass here: enough for all holds to be tracked, and for the line.
        thread::sleep(TIME_UNIT * 5);
        wait_until("it is said", TIMEOUT, || lines().len() >= expected);
        drop(held);
    }
    assert_eq!(lines().iter().map(|(level, _)| *level).collect::<Vec<_>>(), [Level::Info; 3]);
}

#[test]
fn a_right_that_every_wait_needs_is_missed_aloud_once() {
    let Some(server) = server_with_log() else { return };
    let mut user = User::new(&server, "mute");
    let client = user.client();
    let mut names = (0..).map(|at| format!("foreign:{at}"));
    // For each new channel, the client sends a message to its subscriber.
    let mut wait = |times| {
        for name in names.by_ref().take(times) {
            hold_as_redisson(&mut server.connection(), &name, LONG_LEASE);
            let _late = client.reentrant_lock(&name).try_lock_for(TIME_UNIT / 4);
        }
    };
    let refusals = || LOGGER.lines("control message was refused").len();
    // After these waits, each connection has checked its rights.
    wait(12);
    for round in 1..=2 {
        user.set(&["-publish"]);
        wait(5);
        wait_until("it is said", TIMEOUT, || refusals() >= round);
        wait(5);
        assert_eq!(refusals(), round, "{:?}", LOGGER.lines("refused"));
        user.set(&["+publish"]);
        wait(2);
    }
}

#[test]
fn a_release_without_its_message_is_logged_once() {
    let Some(server) = server_with_log() else { return };
    // The second copy of a release finds the permits given back. Its reply does not show whether
    // subscribers got the message of the first copy.
    let proxy = Proxy::before(&server);
    let client = Client::connect(&proxy.url()).unwrap();
    assert!(client.semaphore("semaphore").try_set_permits(1).unwrap());
    // By then the server knows the scripts.
    client.semaphore("semaphore").acquire().unwrap().release().unwrap();
    let permit = client.semaphore("semaphore").acquire().unwrap();
    proxy.on(Direction::Request, 1, Action::LoseReply, |bytes| {
        bytes.windows(4).any(|it| it == b"EVAL")
    });
    permit.release().unwrap();
    assert_eq!(proxy.fired(), 1);
    client.shutdown();
    assert_eq!(LOGGER.lines("find out when they ask"), []);

    let mut user = User::new(&server, "mute");
    for kind in ["semaphore", "expirable", "lock", "read", "write"] {
        let client = user.client();
        let semaphore = client.semaphore("semaphore");
        let expirable = client.expirable_semaphore("expirable");
        let _ = (semaphore.try_set_permits(1).unwrap(), expirable.try_set_permits(1).unwrap());
        let (lock, both) = (client.reentrant_lock("lock"), client.read_write_lock("both"));
        let said = LOGGER.lines("`PUBLISH` is not allowed").len();
        for round in 0..4 {
            match kind {
                "semaphore" => semaphore.acquire().unwrap().release().unwrap(),
                "expirable" => expirable.acquire().unwrap().release().unwrap(),
                "lock" => lock.lock().unwrap().unlock().unwrap(),
                "read" => both.reader().lock().unwrap().unlock().unwrap(),
                _ => both.writer().lock().unwrap().unlock().unwrap(),
            }
            // A client that lacks the right from the beginning gets no grant.
            if round == 0 {
                user.set(&["-publish"]);
            }
        }
        user.set(&["+publish"]);
        // The lines are written by then.
        client.shutdown();
        let lines = LOGGER.lines("`PUBLISH` is not allowed");
        assert_eq!(lines.len(), said + 1, "{kind}: {lines:?}");
        assert!(lines[said].0 == Level::Warn && lines[said].1.contains("PUBLISH"), "{lines:?}");
    }
}

/// A managed service may not have INFO, CLIENT or CONFIG. The client must work without them, and
/// the log must list the missing features.
#[test]
fn a_server_that_says_nothing_of_itself_is_used_and_that_is_said_once() {
    let Some(server) = server_with_log() else { return };
    let mut user = User::new(&server, "managed");
    user.set(&["-info", "-client", "-config", "-command", "-debug", "-wait", "-hello"]);
    let patient = || Client::builder(user.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let (client, other) = (patient(), patient());
    let guard = client.reentrant_lock("managed").lock().unwrap();
    let lock = other.reentrant_lock("managed");
    let waiter = spawn(move || lock.lock().unwrap().unlock().unwrap());
    waiter.wait_asleep();
    guard.unlock().unwrap();
    waiter.join();
    let semaphore = client.semaphore("managed permits");
    semaphore.try_set_permits(1).unwrap();
    semaphore.acquire().unwrap().release().unwrap();
    drop((semaphore, client, other));
    let lines = LOGGER.lines("refuses INFO");
    assert_eq!(lines.len(), 2, "once for each client: {lines:?}");
    assert!(lines.iter().all(|(level, _)| *level == Level::Warn));
    // The subscriber may also have logged that the server does not report changes.
    let mut others = LOGGER.lines("");
    others.retain(|(_, line)| {
        !line.contains("refuses INFO")
            && !line.contains("does not notify the client of changed keys")
    });
    assert!(others.is_empty(), "{others:?}");
}
