//! Grants that another client's command has written.

use redlatch::Taken;

use super::*;

/// Processes grant each other the lock, so another process's connection writes each grant.
#[test]
fn a_lock_that_is_handed_on_is_on_the_replica_before_it_counts() {
    const CLIENTS: usize = 3;
    const TIMES: usize = 12;
    let pair = Pair::start(TIME_UNIT / 20);
    let pair = Arc::new(pair);
    // Readers have the lock together: another test checks them.
    for kind in KINDS.into_iter().filter(|kind| *kind != "read") {
        let inside = Arc::new(AtomicBool::new(false));
        let client = || pair.patient().connect().unwrap();
        let clients: Vec<_> = (0..CLIENTS).map(|_| client()).collect();
        // Each process has two threads.
        let threads: Vec<_> = clients
            .iter()
            .chain(&clients)
            .map(|client| {
                let (pair, inside) = (Arc::clone(&pair), Arc::clone(&inside));
                let lock = lock_of(client, kind, "handed", None);
                spawn(move || {
                    for _ in 0..TIMES {
                        let guard = lock.lock().unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        assert!(pair.agreed(lock.name()).is_some(), "{kind}");
                        assert!(guard.is_held());
                        inside.store(false, Ordering::SeqCst);
                        guard.unlock().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(Running::join);
    }
}

/// A grant to one reader is also a grant to all readers directly behind it. Each of these readers
/// must wait for the replica itself.
#[test]
fn readers_that_are_let_in_together_are_all_on_the_replica() {
    let pair = Pair::start(TIME_UNIT / 20);
    let pair = Arc::new(pair);
    let client = || pair.patient().connect().unwrap();
    let writer = client();
    for _ in 0..3 {
        let guard = writer.read_write_lock("prices").writer().lock().unwrap();
        let readers: Vec<_> = (1..=3)
            .map(|place| {
                let (at, client) = (Arc::clone(&pair), client());
                let reader = spawn(move || {
                    let guard = client.read_write_lock("prices").reader().lock().unwrap();
                    let fields = |server: &Server| -> Vec<(String, String)> {
                        server.connection().hgetall("prices").unwrap()
                    };
                    let known = fields(&at.replica);
                    let own = |(field, _): &(String, String)| {
                        let timeout = format!("{{prices}}:{field}:rwlock_timeout:1");
                        field != "mode" && at.replica.connection().exists(timeout).unwrap()
                    };
                    assert!(known.contains(&("mode".to_owned(), "read".to_owned())), "{known:?}");
                    assert!(known.iter().any(own), "{known:?}");
                    assert!(guard.is_held());
                    guard.unlock().unwrap();
                });
                wait_behind(&pair, "read", "prices", place, &reader);
                reader
            })
            .collect();
        guard.unlock().unwrap();
        readers.into_iter().for_each(Running::join);
    }
}

#[test]
fn a_grant_by_message_that_no_replica_has_is_none() {
    let pair = Pair::start(Duration::ZERO);
    let client = || pair.impatient().connect().unwrap();
    let (ours, theirs) = (client(), client());
    for kind in KINDS {
        let (first, second) =
            (barrier(&ours, kind, "by message"), lock_of(&theirs, kind, "by message", None));
        let name = first.name().to_owned();
        let guard = taken(&*first);
        let waiter = spawn(move || second.lock().map(drop).unwrap_err());
        wait_behind(&pair, kind, &name, 1, &waiter);
        pair.replica.pause();
        guard.unlock().unwrap();
        too_few(&waiter.join());
        wait_until("nobody has it", TIMEOUT, || pair.is_free(&name));
        pair.replica.resume();
        taken(&*first).unlock().unwrap();
    }
}

/// If too few replicas have a grant, the process gives the lock to the next waiter at once, and
/// does not wait for the end of the lease.
#[test]
fn a_waiter_behind_one_that_replicas_failed_gets_the_lock() {
    let pair = Pair::start(Duration::ZERO);
    let holder = client(&pair.master);
    let impatient = pair.impatient().connect().unwrap();
    let patient = pair.patient().connect().unwrap();
    for kind in KINDS {
        let guard = barrier(&holder, kind, "behind").lock().unwrap();
        let name = guard.name().to_owned();
        let first = lock_of(&impatient, kind, "behind", None);
        let first = spawn(move || first.lock().map(drop).unwrap_err());
        wait_behind(&pair, kind, &name, 1, &first);
        // For a read lock, the second waiter is a writer, because a second reader would get the
        // lock together with the first.
        let second = barrier(&patient, kind, "behind");
        let second = spawn(move || second.lock().unwrap().unlock().unwrap());
        wait_behind(&pair, kind, &name, 2, &second);
        pair.cut_off(true);
        guard.unlock().unwrap();
        too_few(&first.join());
        assert!(!second.is_finished(), "{kind}: no replica has it");
        pair.cut_off(false);
        second.join();
        assert!(pair.is_free(&name), "{kind}");
    }
}

/// After the turn of its process, a reader joins the other readers by a request to the server. A
/// writer that begins to read also sends a request.
#[test]
fn a_reader_that_joins_a_hold_waits_for_the_replica_too() {
    let pair = Pair::start(Duration::ZERO);
    let client = pair.impatient().connect().unwrap();
    let lock = client.read_write_lock("beside");
    let first = taken(lock.reader());
    pair.cut_off(true);
    thread::sleep(TIME_UNIT);
    let beside = lock.clone();
    let error = spawn(move || beside.reader().lock().map(drop).unwrap_err()).join();
    too_few(&error);
    assert!(first.is_held(), "{:?}", first.state());
    pair.cut_off(false);
    let beside = lock.clone();
    spawn(move || taken(beside.reader()).unlock().unwrap()).join();
    first.unlock().unwrap();
    assert!(pair.is_free("beside"));

    let writes = taken(lock.writer());
    pair.cut_off(true);
    let error = lock.reader().lock().map(drop).unwrap_err();
    too_few(&error);
    assert_eq!((lock.reader().hold_count(), lock.writer().hold_count()), (0, 1));
    pair.cut_off(false);
    let reads = taken(lock.reader());
    reads.unlock().unwrap();
    writes.unlock().unwrap();
    assert!(pair.is_free("beside"));
}

/// The second copy of a request is sent over a connection that has written nothing, and finds that
/// the owner already has the lock.
#[test]
fn a_request_that_was_sent_twice_counts_for_the_connection_it_was_answered_on() {
    let pair = Pair::start(Duration::ZERO);
    let way = Proxy::before(&pair.master);
    let client = settings(&way.url()).connections(1).connect().unwrap();
    for (kind, lock) in locks(&client, "twice") {
        taken(&*lock).unlock().unwrap();
        // After this, the server also knows the script of this call.
        let _ = lock.try_lock().map(|guard| guard.into_option().map(LockGuard::unlock));
        pair.cut_off(true);
        for tries in [false, true] {
            let name = lock.name().to_owned();
            let asks =
                move |bytes: &[u8]| bytes.windows(name.len()).any(|part| part == name.as_bytes());
            let fired = way.fired();
            way.on(Direction::Request, 1, Action::LoseReply, asks);
            let outcome = if tries { lock.try_lock() } else { lock.lock().map(Taken) };
            let error = outcome.unwrap_err();
            assert_eq!(way.fired(), fired + 1);
            assert!(error.to_string().contains("0 of 1 replicas"), "{kind}: {error}");
            wait_until("nobody has it", TIMEOUT, || pair.is_free(lock.name()));
        }
        pair.cut_off(false);
        taken(&*lock).unlock().unwrap();
    }
}

/// Up to 7.0, Redis's WAIT also covers writes of other connections that a connection has seen.
/// Redis guarantees only that WAIT covers the connection's own writes.
#[test]
fn a_hold_that_is_found_is_written_anew() {
    let pair = Pair::start(Duration::ZERO);
    let client = || pair.patient().connect().unwrap();
    let (ours, theirs) = (client(), client());
    // The lease is shorter than the first lease of a grant by message, so no renewal makes it
    // longer.
    let lease = TIME_UNIT * 15;
    for kind in KINDS {
        let first = barrier(&ours, kind, "anew");
        let second = lock_of(&theirs, kind, "anew", Some(lease));
        let name = first.name().to_owned();
        let guard = first.lock().unwrap();
        let waiter = spawn(move || second.lock().unwrap().unlock().unwrap());
        wait_behind(&pair, kind, &name, 1, &waiter);
        let before = Commands::so_far(&pair.master).of("pexpire");
        guard.unlock().unwrap();
        waiter.join();
        let written = Commands::so_far(&pair.master).of("pexpire") - before;
        assert!(written >= 2, "{kind}: handed on, and found: {written}");
    }
}
