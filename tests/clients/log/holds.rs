//! Lost holds, and releases and renewals that fail.

use super::*;

/// If each lost hold had its own line, the first thousand such lines would fill the queue of lines.
#[test]
fn ten_thousand_lost_holds_are_logged_as_one_line() {
    const HOLDS: usize = 10_000;
    let Some(server) = server_with_log() else { return };
    let client = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let lost = Arc::new(AtomicUsize::new(0));
    for at in 0..HOLDS {
        let guard = client.reentrant_lock(&format!("name:{at}")).lock().unwrap();
        let lost = Arc::clone(&lost);
        guard.on_lost(move |_| _ = lost.fetch_add(1, Ordering::SeqCst));
        guard.forget();
    }
    server.kill();
    server.restart_empty();
    client.reentrant_lock("again").lock().unwrap().unlock().unwrap();
    wait_until("all are lost", TIMEOUT, || lost.load(Ordering::SeqCst) == HOLDS);
    let lines = || LOGGER.lines(" lost: ");
    wait_until("it is said", TIMEOUT, || !lines().is_empty());
    // Any further lines would come within this time.
    thread::sleep(TIME_UNIT * 5);
    let lines = lines();
    // If the machine stands still in the meantime, there may be up to three lines.
    assert!((1..=3).contains(&lines.len()), "{} lines: {lines:?}", lines.len());
    let (level, line) = &lines[0];
    assert!(*level == Level::Warn && line.contains("the holds of \"name:"), "{line}");
    assert!(line.contains(" more were lost: "), "{line}");
}

#[test]
fn a_lease_that_ran_out_says_why() {
    let Some(server) = server_with_log() else { return };
    let builder = || impatient(&server.url()).watchdog_timeout(SHORT_LEASE);
    let client = builder().connect().unwrap();
    // The hold is over when the first renewal is due.
    let bounded = builder().max_hold(TIME_UNIT).connect().unwrap();
    let said = |name: &str| format!("the hold of {name:?} was lost: its lease ran out");
    let why = |name: &str, why: &str| {
        wait_until("the log says so", TIMEOUT, || !LOGGER.lines(&said(name)).is_empty());
        let lines = LOGGER.lines(&said(name));
        assert!(lines.len() == 1 && lines[0].1.contains(why), "{lines:?}");
    };
    elsewhere({
        let lock = client.reentrant_lock("left");
        move || lock.lock().unwrap().forget()
    });
    let long = bounded.reentrant_lock("long").lock().unwrap();
    let fixed = client.reentrant_lock("fixed").with_lease(TIME_UNIT).lock().unwrap();
    why("fixed", "fixed");
    let error = fixed.unlock().unwrap_err().to_string();
    assert!(error.contains("its lease ran out (it was a fixed one"), "{error}");
    why("left", "the thread that took the lock has ended");
    why("long", "max_hold");
    assert!(long.unlock().unwrap_err().to_string().contains("max_hold"));
    let cut = client.reentrant_lock("cut").lock().unwrap();
    server.kill();
    why("cut", "its renewals failed");
    let error = cut.check(Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("refused") || error.contains("reset"), "{error}");
}

/// An attempt to connect may take longer than the shutdown of the client waits.
#[test]
fn a_release_behind_a_call_that_outlasts_the_end_is_not_forgotten() {
    const NAMES: usize = 20;
    let Some(server) = server_with_log() else { return };
    for connections in [1, 8] {
        let proxy = Proxy::before(&server);
        let client =
            impatient(&proxy.url()).connect_timeout(TIME_UNIT * 20).connections(connections);
        let client = client.connect().unwrap();
        let name = |at| format!("{connections}:{at}.");
        let held: Vec<_> = (0..NAMES)
            .map(|at| {
                let semaphore = client.semaphore(&format!("permits {}", name(at)));
                assert!(semaphore.try_set_permits(1).unwrap());
                let lock = client.reentrant_lock(&format!("lock {}", name(at)));
                (lock.lock().unwrap(), semaphore.acquire().unwrap())
            })
            .collect();
        // The next caller opens a connection, which takes the full connect timeout.
        proxy.freeze();
        proxy.cut_all();
        let calls: Vec<_> = (0..connections * 2)
            .map(|at| {
                let lock = client.reentrant_lock(&format!("called {}", name(at)));
                let call = spawn(move || assert!(lock.is_locked().is_err()));
                call.wait_asleep();
                call
            })
            .collect();
        drop(held);
        client.shutdown();
        assert!(calls.iter().any(|call| !call.is_finished()), "the test shows nothing");
        calls.into_iter().for_each(Running::join);
        for at in 0..NAMES {
            let said = |level, what: String| {
                wait_until(&format!("{what} is said"), TIMEOUT, || {
                    LOGGER.lines(&what).iter().any(|(of, _)| *of == level)
                });
            };
            said(Level::Warn, format!("\"lock {}\": could not be released", name(at)));
            said(Level::Error, format!("\"permits {}\": ", name(at)));
        }
    }
}

/// This happens, for example, if the server takes no writes because its replicas are gone.
#[test]
fn renewals_that_are_refused_are_one_warning_and_their_acceptance_is_one_line() {
    let Some(server) = server_with_log() else { return };
    let mut redis = server.connection();
    let mut needs_replicas = |count: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg(&["SET", "min-replicas-to-write", count]).exec(&mut redis).unwrap();
    };
    let client = Client::builder(&server.url()).watchdog_timeout(SHORT_LEASE).connect().unwrap();
    for name in ["one", "two"] {
        client.reentrant_lock(name).lock().unwrap().forget();
    }
    let lines = || LOGGER.lines("renew");
    for round in 1..=2 {
        needs_replicas("1");
        wait_until("the refusal is logged", TIMEOUT, || lines().len() == 2 * round - 1);
        needs_replicas("0");
        wait_until("the acceptance is logged", TIMEOUT, || lines().len() == 2 * round);
    }
    let lines = lines();
    let levels: Vec<_> = lines.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::Warn, Level::Info, Level::Warn, Level::Info], "{lines:?}");
    assert!(
        lines[0].1.contains("NOREPLICAS") && lines[0].1.contains("the lease ends in "),
        "{lines:?}"
    );
    assert!(lines[1].1.contains("accepts renewals again, after "), "{lines:?}");
    assert!(client.reentrant_lock("one").is_locked().unwrap());
}
