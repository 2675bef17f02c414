//! Long waits, with the holder, the waiters before and deadlocks.

use super::*;

/// Two threads that take two locks in opposite orders wait for ever.
#[test]
fn a_long_wait_of_a_thread_that_holds_another_lock_is_said_once() {
    let Some(server) = server_with_log() else { return };
    let connect = || Client::builder(&server.url()).slow_wait(TIME_UNIT * 3).connect().unwrap();
    let clients = [connect(), connect()];
    for kind in ["plain", "fair"] {
        let lock = |client: &Client, name: &str| -> Box<dyn Lock> {
            let name = format!("{kind} {name}");
            if kind == "fair" {
                Box::new(client.fair_lock(&name))
            } else {
                Box::new(client.reentrant_lock(&name))
            }
        };
        let token = CancelToken::new();
        let barrier = Arc::new(Barrier::new(2));
        let threads: Vec<_> = [("A", "B"), ("B", "A")]
            .into_iter()
            .zip(&clients)
            .map(|((first, second), client)| {
                let (first, second) = (lock(client, first), lock(client, second));
                let (token, barrier) = (token.clone(), Arc::clone(&barrier));
                spawn(move || {
                    let _first = first.lock().unwrap();
                    barrier.wait();
                    second.lock_cancellable(&token).map(drop).unwrap_err().kind()
                })
            })
            .collect();
        let said = |waits: &str, holds: &str| {
            let (waits, holds) = (format!("{kind} {waits}"), format!("{kind} {holds}"));
            LOGGER.lines(&format!(" s for {waits:?} while the thread holds {holds:?}: a deadlock"))
        };
        wait_until("both are warned", TIMEOUT, || {
            !said("B", "A").is_empty() && !said("A", "B").is_empty()
        });
        // The client checks again, and logs no more.
        thread::sleep(TIME_UNIT * 15);
        for lines in [said("A", "B"), said("B", "A")] {
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert_eq!(lines[0].0, Level::Warn);
        }
        token.cancel();
        for thread in threads {
            assert_eq!(thread.join(), ErrorKind::Cancelled);
        }
    }
}

/// Other threads also wait for the name, and one of them queries the reason. The log already has a
/// line about the name.
#[test]
fn a_thread_that_holds_another_lock_is_named_in_a_crowd() {
    let Some(server) = server_with_log() else { return };
    let client = Client::builder(&server.url()).slow_wait(TIME_UNIT).connect().unwrap();
    let held = client.reentrant_lock("B").lock_owned().unwrap();
    let waiter = |holds: bool| {
        let (lock, other) = (client.reentrant_lock("B"), client.reentrant_lock("A"));
        spawn(move || {
            let _guard = holds.then(|| other.lock().unwrap());
            lock.lock().unwrap().unlock().unwrap();
        })
    };
    let mut waiters: Vec<_> = (0..5).map(|_| waiter(false)).collect();
    wait_until("the name has its line", TIMEOUT, || {
        !LOGGER.lines(" s for \"B\", held by").is_empty()
    });
    waiters.push(waiter(true));
    let said = || LOGGER.lines(" s for \"B\" while the thread holds \"A\": a deadlock");
    wait_until("it is said", TIMEOUT, || !said().is_empty());
    held.unlock().unwrap();
    waiters.into_iter().for_each(Running::join);
    assert_eq!(said().len(), 1, "{:?}", said());
}

/// A long wait for a latch is normal, but it is reported if other threads wait for a lock of the
/// waiting thread.
#[test]
fn a_long_wait_for_a_latch_is_said_if_its_thread_holds_a_lock() {
    let Some(server) = server_with_log() else { return };
    let client = Client::builder(&server.url()).slow_wait(TIME_UNIT).connect().unwrap();
    let latches = ["with", "without"].map(|name| client.count_down_latch(name));
    let waits = latches.each_ref().map(|latch| {
        assert!(latch.try_set_count(1).unwrap());
        let (latch, lock) = (latch.clone(), client.reentrant_lock("lock"));
        let holds = latch.name() == "with";
        spawn(move || {
            let _guard = holds.then(|| lock.lock().unwrap());
            latch.wait().unwrap();
        })
    });
    wait_until("it is said", TIMEOUT, || {
        !LOGGER.lines("the thread holds \"lock\": a deadl").is_empty()
    });
    // The client checks again, and logs no more.
    thread::sleep(TIME_UNIT * 15);
    assert_eq!(LOGGER.lines("waited ").len(), 1, "{:?}", LOGGER.lines("waited "));
    latches.iter().for_each(|latch| latch.count_down().unwrap());
    waits.into_iter().for_each(Running::join);
}

#[test]
fn of_a_crowd_one_client_a_second_asks_for_the_holder() {
    let Some(server) = server_with_log() else { return };
    let connect = |slow: Duration| {
        Client::builder(&server.url()).slow_wait(slow).connections(1).connect().unwrap()
    };
    let holder = connect(LONG_LEASE);
    let (lock, pool) = (holder.reentrant_lock("lock"), holder.expirable_semaphore("pool"));
    assert!(pool.try_set_permits(1).unwrap());
    let held = (lock.lock().unwrap(), pool.acquire().unwrap());
    let begun = Instant::now();
    let token = CancelToken::new();
    let crowd: Vec<_> = (0..20)
        .map(|number| {
            let (client, token) = (connect(TIME_UNIT), token.clone());
            spawn(move || match number % 2 {
                0 => client.reentrant_lock("lock").lock_cancellable(&token).map(drop),
                _ => client.expirable_semaphore("pool").acquire_within(&token).map(drop),
            })
        })
        .collect();
    let process = format!(", process {}, ", std::process::id());
    let said = |name: &str| {
        let mut lines = LOGGER.lines(&format!("{name:?}, held by "));
        lines.retain(|(_, line)| line.contains(&process));
        lines
    };
    wait_until("others have their lines later", TIMEOUT, || {
        said("lock").len() > 2 && said("pool").len() > 2
    });
    let lists = Commands::so_far(&server).of("client|list");
    // There is at most one list of waiters a second for each name. The last list may have no line
    // yet.
    let most = 2 * (begun.elapsed().as_secs() + 1);
    let lines = LOGGER.lines("waited ").len() as u64;
    assert!(lists <= most && lists <= lines + 2, "{lists} lists in {:?}", begun.elapsed());
    assert_eq!(said("lock").len() + said("pool").len(), LOGGER.lines("waited ").len());
    token.cancel();
    crowd.into_iter().for_each(|waits| {
        assert_eq!(waits.join().unwrap_err().kind(), ErrorKind::Cancelled);
    });
    drop(held);
}

#[test]
fn a_slow_wait_is_said_once_with_the_holder_and_those_before() {
    let Some(server) = server_with_log() else { return };
    let holder = Client::builder(&server.url()).watchdog_timeout(LONG_LEASE).connect().unwrap();
    let slow = || Client::builder(&server.url()).slow_wait(TIME_UNIT * 3).connect().unwrap();
    let (first, second, token) = (slow(), slow(), CancelToken::new());
    let held = holder.reentrant_lock("orders").lock().unwrap();
    let begun = Instant::now();
    let waiters = [&first, &second].map(|client| {
        let (lock, token) = (client.reentrant_lock("orders"), token.clone());
        let waits = spawn(move || lock.lock_cancellable(&token).map(drop).unwrap_err().kind());
        wait_until("it stands in line", TIMEOUT, || {
            holder
                .status("orders")
                .unwrap()
                .queue
                .iter()
                .any(|it| it.owner.as_str().starts_with(client.id()))
        });
        waits
    });
    // The waits for a latch and an election take equally long, but long waits of these kinds are
    // normal.
    let latch = second.count_down_latch("latch");
    assert!(latch.try_set_count(1).unwrap());
    let (open, leads) = (latch.clone(), second.leader_election("leads"));
    let led = first.leader_election("leads").campaign().unwrap();
    let others = [spawn(move || open.wait().unwrap()), {
        let token = token.clone();
        spawn(move || drop(leads.campaign_within(&token)))
    }];
    let said = |client: &Client| {
        let (_, lines) = LOGGER.lines(client.id()).into_iter().partition::<Vec<_>, _>(|_| false);
        lines.into_iter().filter(|(_, line)| line.starts_with("waited")).collect::<Vec<_>>()
    };
    wait_until("both are said", TIMEOUT, || {
        [&first, &second].iter().all(|client| !said(client).is_empty())
    });
    // The client checks again, and logs no more.
    thread::sleep(TIME_UNIT * 15);
    let process = format!(", process {}, ", std::process::id());
    for (client, before) in [(&first, "; 0 waiters before"), (&second, "; 1 waiter before")] {
        let lines = said(client);
        let [(Level::Warn, line)] = &lines[..] else { panic!("{lines:?}") };
        let waited = line.strip_prefix("waited ").unwrap().split_once(' ').unwrap().0;
        assert!(waited.parse::<f64>().unwrap() <= begun.elapsed().as_secs_f64().round(), "{line}");
        let asked = " s ago by its clock, for ";
        for part in [" s for \"orders\", held by ", &process, "which asked ", asked, before] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
    token.cancel();
    latch.count_down().unwrap();
    others.into_iter().for_each(Running::join);
    waiters.into_iter().for_each(|waits| assert_eq!(waits.join(), ErrorKind::Cancelled));
    drop((held, led));
}
