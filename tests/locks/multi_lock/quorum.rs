//! Quorums: locks that a majority of servers grants.

use redlatch::Taken;

use super::*;

const FIVE: usize = 5;
/// The lease of a vote, which is longer than any wait in these tests, so that no vote expires
/// unnoticed.
const VOTE: Duration = LONG_LEASE;
/// How long the clients wait for a single reply.
const RESPONSE_TIMEOUT: Duration = TIMEOUT;

fn five() -> Vec<Server> {
    (0..FIVE).map(|_| server()).collect()
}

fn voting(servers: &[Server]) -> MultiLock {
    voting_at(&servers.iter().map(Server::url).collect::<Vec<_>>())
}

/// Returns a quorum whose clients would wait long for a server that does not answer. The quorum
/// itself waits for only 1.2 s, a fiftieth of the lease.
fn voting_at(urls: &[String]) -> MultiLock {
    enduring(urls, Duration::ZERO)
}

/// Like [`voting_at`], with clients that wait for unreachable servers.
fn enduring(urls: &[String], failover_timeout: Duration) -> MultiLock {
    answered(urls, failover_timeout, RESPONSE_TIMEOUT)
}

fn answered(urls: &[String], failover_timeout: Duration, within: Duration) -> MultiLock {
    let locks: Vec<_> = urls
        .iter()
        .map(|url| Client::builder(url).watchdog_timeout(VOTE).response_timeout(within))
        .map(|client| {
            client.failover_timeout(failover_timeout).connect().unwrap().reentrant_lock("vote")
        })
        .collect();
    MultiLock::quorum(&locks).unwrap()
}

/// Returns a quorum of all five servers, for a program that could connect only to these servers.
fn of_five(servers: &[Server]) -> Result<MultiLock, Error> {
    let clients: Vec<_> = servers.iter().map(client).collect();
    let locks: Vec<_> = clients.iter().map(|client| client.reentrant_lock("vote")).collect();
    MultiLock::quorum_of(FIVE, &locks)
}

fn votes(servers: &[Server]) -> usize {
    servers.iter().filter(|server| is_held(server, "vote")).count()
}

/// Takes the lock with the votes of all servers. The call may need several attempts, because a
/// quorum does not wait for a vote that a busy machine delays.
fn lock_at_all(quorum: &MultiLock) -> MultiLockGuard {
    let mut had = None;
    wait_until("all have voted", TIMEOUT, || {
        had = quorum.lock().ok().filter(|guard| guard.names().count() == FIVE);
        had.is_some()
    });
    had.unwrap()
}

#[test]
fn a_non_reentrant_quorum_gives_no_second_level() {
    let servers = five();
    let quorum = voting(&servers).non_reentrant();
    let guard = lock_at_all(&quorum);
    assert_eq!(quorum.try_lock().unwrap_err().kind(), ErrorKind::WouldDeadlock);
    assert_eq!((quorum.hold_count(), votes(&servers)), (1, FIVE));
    guard.unlock().unwrap();
}

#[test]
fn a_majority_is_taken_and_excludes_every_other() {
    let servers = five();
    let (ours, theirs) = (voting(&servers), voting(&servers));
    let guard = lock_at_all(&ours);
    assert!(guard.is_held());
    assert_eq!(votes(&servers), FIVE);
    // Because of clock drift, the quorum's lease is shorter than that of one server.
    let lease = VOTE - VOTE / 100;
    assert!(guard.remaining() < lease && guard.remaining() > VOTE / 2, "{:?}", guard.remaining());
    guard.check(VOTE / 2).unwrap();
    assert_eq!(guard.check(lease).unwrap_err().kind(), ErrorKind::EndsTooSoon);
    assert!(theirs.try_lock().unwrap().into_option().is_none());
    assert!(crate::common::answered(|| theirs.try_lock_for(TIME_UNIT)).into_option().is_none());
    assert!(guard.is_held());
    guard.unlock().unwrap();
    assert_eq!(votes(&servers), 0);
    let guard = theirs.lock().unwrap();
    let waiter = spawn(move || ours.lock().unwrap().unlock().unwrap());
    waiter.wait_asleep();
    drop(guard);
    waiter.join();
}

/// There are five servers, and each program has lost its connections to two of them.
#[test]
fn programs_that_are_connected_to_different_majorities_exclude_each_other() {
    let servers = five();
    let (ours, theirs) = (of_five(&servers[..3]).unwrap(), of_five(&servers[2..]).unwrap());
    let guard = ours.lock().unwrap();
    assert_eq!((guard.names().count(), votes(&servers)), (3, 3));
    assert!(theirs.try_lock().unwrap().into_option().is_none());
    assert!(guard.is_held());
    // The client sees two votes of five, which is no majority. But the two servers that it cannot
    // reach may have another vote.
    assert_eq!(theirs.is_locked().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(ours.is_locked().unwrap());
    guard.unlock().unwrap();
    theirs.lock().unwrap().unlock().unwrap();
    // Without this server, the quorum has no majority.
    servers[4].kill();
    let error = theirs.try_lock().unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert!(error.to_string().contains("1 of the 3 connected servers of a quorum of 5"), "{error}");
    let error = of_five(&servers[..2]).unwrap_err();
    assert_eq!((error.kind(), error.name()), (ErrorKind::Config, Some("vote")));
    assert!(error.to_string().contains("needs 3 to 5 locks"), "{error}");
}

#[test]
fn a_minority_that_others_hold_does_not_matter_and_a_majority_does() {
    let servers = five();
    let quorum = voting(&servers);
    let others: Vec<_> = servers.iter().map(client).collect();
    let mut taken: Vec<_> =
        others[..2].iter().map(|it| it.reentrant_lock("vote").lock().unwrap()).collect();
    quorum.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
    taken.push(others[2].reentrant_lock("vote").lock().unwrap());
    assert!(quorum.try_lock().unwrap().into_option().is_none());
    for server in &servers[3..] {
        wait_free(server, "vote", TIMEOUT);
    }
    drop(taken);
    quorum.lock().unwrap().unlock().unwrap();
}

#[test]
fn a_quorum_is_taken_with_two_of_five_servers_dead_and_fails_in_time_with_three() {
    let servers = five();
    let (ours, theirs) = (voting(&servers), voting(&servers));
    ours.lock().unwrap().unlock().unwrap();
    servers[0].kill();
    servers[3].pause();
    for _ in 0..3 {
        let guard = ours.lock().unwrap();
        assert!(theirs.try_lock().unwrap().into_option().is_none());
        assert!(guard.is_held());
        guard.unlock().unwrap();
        theirs.lock().unwrap().unlock().unwrap();
    }
    servers[4].pause();
    let begun = Instant::now();
    let error = ours.lock().unwrap_err();
    let took = begun.elapsed();
    // Two of the servers do not answer, and the quorum does not wait for them until their timeout.
    assert!(took < RESPONSE_TIMEOUT, "{took:?}");
    assert!(error.kind().is_server_trouble(), "{error:?}");
    assert_eq!(error.name(), Some("vote"));
    assert!(error.is_transient());
    assert!(error.to_string().contains("3 of the 5"), "{error}");
    assert!(format!("{error:#}").contains(&servers[0].port().to_string()), "{error:#}");
    for server in [&servers[1], &servers[2]] {
        wait_free(server, "vote", TIMEOUT);
    }
    // The client gives late grants back, so it can take the lock again when the servers answer
    // again.
    servers[3].resume();
    servers[4].resume();
    wait_until("it is had again", TIMEOUT, || matches!(ours.try_lock(), Ok(Taken(_))));
    for server in &servers[1..] {
        wait_free(server, "vote", TIMEOUT);
    }
}

#[test]
fn code_over_any_lock_has_a_majority_and_needs_no_more() {
    let servers = five();
    let (ours, theirs) = (voting(&servers), voting(&servers));
    let (ours, theirs): (&dyn Lock, &dyn Lock) = (&ours, &theirs);
    assert_eq!(ours.name(), "vote");
    let one = client(&servers[1]).reentrant_lock("vote");
    one.lock().unwrap().forget();
    assert!(!theirs.is_locked().unwrap() && theirs.remaining_lease().unwrap().is_none());
    one.unlock().unwrap();
    ours.lock().unwrap().forget();
    servers[0].kill();
    servers[3].kill();
    assert!(ours.hold_count() == 1 && ours.is_held_by_current_thread());
    assert!(theirs.is_locked().unwrap() && theirs.remaining_lease().unwrap() <= Some(VOTE));
    assert_eq!(theirs.unlock().unwrap_err().kind(), ErrorKind::NotHeld);
    ours.unlock().unwrap();
    assert!(!theirs.is_locked().unwrap() && ours.hold_count() == 0);
    let guard = ours.lock().unwrap();
    assert!(theirs.force_unlock().unwrap() && !theirs.force_unlock().unwrap());
    wait_until("it is told", TIMEOUT, || !guard.is_held());
    servers[4].kill();
    assert!(theirs.is_locked().unwrap_err().kind().is_server_trouble());
}

/// The servers that answer cannot decide alone, because a server that does not answer may have the
/// missing vote.
#[test]
fn a_lock_that_a_majority_has_is_not_called_free_while_one_of_them_is_away() {
    let servers = five();
    let (ours, theirs) = (voting(&servers), voting(&servers));
    let guard = ours.lock().unwrap();
    for server in &servers[..2] {
        assert!(client(server).reentrant_lock("vote").force_unlock().unwrap());
    }
    assert!(theirs.is_locked().unwrap());
    servers[4].kill();
    assert!(theirs.is_locked().unwrap_err().kind().is_server_trouble());
    assert!(theirs.remaining_lease().unwrap_err().kind().is_server_trouble());
    drop(guard);
}

/// The lock is free, but the call with a cancelled token returns an error.
#[test]
fn a_token_cancelled_before_the_call_ends_a_quorums_wait_too() {
    let servers = [server()];
    let quorum = voting(&servers);
    let token = CancelToken::new();
    token.cancel();
    let error = quorum.lock_cancellable(&token).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    quorum.try_lock().unwrap().into_option().unwrap().unlock().unwrap();
}

/// Some servers do not answer, and their clients would wait for a minute. A vote whose lease could
/// not be extended is released, and the other votes are enough.
#[test]
fn a_majority_of_a_quorum_is_left_to_its_end() {
    let servers = [(); 3].map(|()| server());
    let proxy = Proxy::before(&servers[0]);
    // The thread that waits for the first lock may send a request at the moment of its grant. If
    // so, the request fails or its reply grants the lock with the full lease, and the test tries
    // again. It also tries again if a busy machine delays other replies for too long.
    wait_until("one is not raised", TIMEOUT * 2, || {
        let urls = [proxy.url(), servers[1].url(), servers[2].url()];
        let clients = urls.map(|url| impatient(&url).connect().unwrap());
        let lock = |client: &Client| client.reentrant_lock("vote").with_watchdog(HOUR);
        let locks = clients.each_ref().map(lock);
        let held = client(&servers[0]).reentrant_lock("vote").lock().unwrap();
        let (first, quorum) = (locks[0].clone(), MultiLock::quorum(&locks).unwrap());
        let waiter = spawn(move || {
            // A message grants this lock, and then the quorum re-enters it.
            let _outer = first.lock().ok()?;
            let guard = quorum.try_lock().ok()?.into_option()?;
            Some((guard.names().count(), guard.leave_to_expire()))
        });
        // A release skips a waiter whose client has not subscribed yet. Such a waiter finds the
        // lock free at its next request, and gets the full lease.
        wait_in_line(&servers[0], "vote", 1);
        wait_subscribed(&servers[0], &own_channel(clients[0].id()));
        waiter.wait_queued();
        after_a_grant(&proxy, usize::MAX, Action::LoseReply);
        held.unlock().unwrap();
        let left = waiter.join();
        proxy.clear_rules();
        clients.iter().for_each(Client::shutdown);
        let (votes, is_raised) = (votes(&servers), is_held(&servers[0], "vote"));
        servers.iter().for_each(|server| server.connection().del("vote").unwrap());
        println!("{left:?}, votes: {votes}, the first is raised: {is_raised}");
        let Some((count, Ok(()))) = left else { return false };
        assert!(votes >= 2, "a majority stays taken");
        count == 3 && !is_raised
    });
}

#[test]
fn a_limit_ends_a_quorums_wait() {
    let servers = five();
    let quorum = enduring(&servers.iter().map(Server::url).collect::<Vec<_>>(), LONG_LEASE);
    lock_at_all(&quorum).unlock().unwrap();
    let token = CancelToken::new();
    for still in [&servers[..3], &servers[3..]] {
        still.iter().for_each(Server::pause);
        let begun = Instant::now();
        let error = quorum.try_lock_for(TIME_UNIT * 25).map(drop).unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(begun.elapsed() < RESPONSE_TIMEOUT / 2, "{:?}", begun.elapsed());
    }
    let (waits, cancelled) = (quorum.clone(), token.clone());
    let waiter = spawn(move || waits.lock_cancellable(&cancelled).map(drop).unwrap_err());
    waiter.wait_asleep();
    let begun = Instant::now();
    token.cancel();
    let error = waiter.join();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    assert!(begun.elapsed() < RESPONSE_TIMEOUT / 2, "{:?}", begun.elapsed());
    servers.iter().for_each(Server::resume);
    servers.iter().for_each(|server| wait_free(server, "vote", TIMEOUT));
    lock_at_all(&quorum).unlock().unwrap();
}

#[test]
fn without_threads_to_ask_on_a_quorum_is_an_error_and_nothing_is_held() {
    if !has_own_process() {
        return;
    }
    let servers = five();
    let quorum = voting(&servers);
    let error = without_room_for_threads(|| quorum.lock().map(drop));
    let error = error.unwrap_err();
    assert!(format!("{error:#}").contains("the system gives no thread"), "{error:#}");
    assert!(error.is_transient(), "{error}");
    servers.iter().for_each(|server| wait_free(server, "vote", TIMEOUT));
    lock_at_all(&quorum).unlock().unwrap();
}

/// Each release of a lock of the quorum also needs a thread.
#[test]
fn a_quorum_that_is_given_back_without_threads_is_free_before_its_lease_ends() {
    if !has_own_process() {
        return;
    }
    let servers = five();
    let quorum = voting(&servers);
    for drops in [false, true] {
        let guard = lock_at_all(&quorum);
        let unlocked = without_room_for_threads(|| {
            if drops {
                drop(guard);
                None
            } else {
                Some(guard.unlock())
            }
        });
        if let Some(unlocked) = unlocked {
            let error = unlocked.unwrap_err();
            assert!(format!("{error:#}").contains("the system gives no thread"), "{error:#}");
        }
        servers.iter().for_each(|server| wait_free(server, "vote", TIMEOUT));
    }
}

#[test]
fn a_quorum_is_lost_when_fewer_than_a_majority_are_left_and_not_before() {
    let servers = five();
    let lease = SHORT_LEASE;
    let locks: Vec<_> = servers
        .iter()
        .map(|server| impatient(&server.url()).watchdog_timeout(lease).connect().unwrap())
        .map(|client| client.reentrant_lock("vote"))
        .collect();
    let quorum = MultiLock::quorum(&locks).unwrap();
    let guard = lock_at_all(&quorum);
    let lost = losses(&guard);
    for server in &servers[..2] {
        let () = server.connection().del("vote").unwrap();
    }
    // Two votes are lost, and three are renewed.
    thread::sleep(lease * 3 / 2);
    assert!(guard.is_held());
    assert_eq!(lost.load(Ordering::SeqCst), 0);
    guard.check(Duration::ZERO).unwrap();
    servers[2].kill();
    wait_until("it is lost", TIMEOUT, || !guard.is_held());
    wait_until("it is told", TIMEOUT, || lost.load(Ordering::SeqCst) == 1);
    assert_eq!(guard.check(Duration::ZERO).unwrap_err().kind(), ErrorKind::LeaseLost);
    assert_eq!(guard.unlock().unwrap_err().kind(), ErrorKind::LeaseLost);
    for server in &servers[3..] {
        wait_free(server, "vote", TIMEOUT);
    }
    assert_eq!(lost.load(Ordering::SeqCst), 1);
}

#[test]
fn a_wait_outlasts_a_majority_that_is_away_for_a_while() {
    let servers = five();
    let quorum = enduring(&servers.iter().map(Server::url).collect::<Vec<_>>(), LONG_LEASE);
    quorum.lock().unwrap().unlock().unwrap();
    servers[..3].iter().for_each(Server::kill);
    let error = quorum.try_lock().map(drop).unwrap_err();
    assert!(error.is_transient(), "{error}");
    let waiter = spawn(move || quorum.lock().map(drop));
    waiter.wait_queued();
    servers[..3].iter().for_each(Server::restart_empty);
    waiter.join().unwrap();
}

#[test]
fn no_client_on_the_smaller_side_of_a_partition_has_the_lock() {
    let servers = five();
    let proxies: Vec<_> = servers.iter().map(Proxy::before).collect();
    let cut = voting_at(&proxies.iter().map(Proxy::url).collect::<Vec<_>>());
    let whole = voting(&servers);
    cut.lock().unwrap().unlock().unwrap();
    proxies[..3].iter().for_each(Proxy::freeze);
    let begun = Instant::now();
    let error = cut.lock().unwrap_err();
    let took = begun.elapsed();
    assert!(took < RESPONSE_TIMEOUT, "{took:?}");
    assert!(error.kind().is_server_trouble(), "{error}");
    whole.lock().unwrap().unlock().unwrap();
    proxies[..3].iter().for_each(Proxy::thaw);
    wait_until("it is had again", TIMEOUT, || matches!(cut.try_lock(), Ok(Taken(_))));
    servers.iter().for_each(|server| wait_free(server, "vote", TIMEOUT));
}

#[test]
fn votes_whose_replies_are_lost_are_given_back() {
    votes_are_given_back_after(Action::LoseReply);
}

#[test]
fn votes_whose_requests_are_lost_are_given_back() {
    votes_are_given_back_after(Action::LoseRequest);
}

#[test]
fn votes_on_silent_connections_are_given_back() {
    votes_are_given_back_after(Action::Silence);
}

fn votes_are_given_back_after(action: Action) {
    let servers = five();
    let proxies: Vec<_> = servers.iter().map(Proxy::before).collect();
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    // After this time the client gives up a silent connection.
    let quorum = answered(&urls, Duration::ZERO, TIMEOUT / 5);
    quorum.lock().unwrap().unlock().unwrap();
    for proxy in &proxies[..2] {
        proxy.on_request("\r\n$4\r\nvote\r\n", action);
    }
    let guard = quorum.lock().unwrap();
    assert!(guard.is_held());
    guard.unlock().unwrap();
    proxies.iter().for_each(Proxy::clear_rules);
    servers.iter().for_each(|server| wait_free(server, "vote", TIMEOUT));
}

/// Takes the lock as soon as a majority answers in time, even on a busy machine.
fn had(quorum: &MultiLock) -> MultiLockGuard {
    loop {
        match quorum.lock() {
            Ok(guard) => break guard,
            Err(error) => assert!(error.is_transient(), "{error:#}"),
        }
    }
}

#[test]
fn rivals_that_split_the_votes_try_again_until_each_has_had_the_lock() {
    let servers = five();
    let inside = Arc::new(AtomicUsize::new(0));
    let rivals: Vec<_> = (0..4)
        .map(|_| {
            let (quorum, inside) = (voting(&servers), Arc::clone(&inside));
            spawn(move || {
                for _ in 0..5 {
                    let guard = had(&quorum);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    thread::sleep(Duration::from_millis(1));
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().unwrap();
                }
            })
        })
        .collect();
    rivals.into_iter().for_each(Running::join);
}

/// At any time, only a minority of the servers stands still.
#[test]
fn whichever_servers_stand_still_no_two_have_a_majority_and_all_go_on() {
    let servers = five();
    let inside = Arc::new(AtomicUsize::new(0));
    let rivals: Vec<_> = (0..3)
        .map(|_| {
            let (quorum, inside) = (voting(&servers), Arc::clone(&inside));
            spawn(move || {
                for _ in 0..8 {
                    let guard = had(&quorum);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    thread::sleep(TIME_UNIT / 2);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(guard.is_held());
                    guard.unlock().ok();
                }
            })
        })
        .collect();
    let mut random = Random::new();
    while !rivals.iter().all(Running::is_finished) {
        let first = random.below(FIVE as u64) as usize;
        let still = [&servers[first], &servers[(first + 1) % FIVE]];
        still.iter().for_each(|server| server.pause());
        thread::sleep(TIME_UNIT * 3);
        still.iter().for_each(|server| server.resume());
        thread::sleep(TIME_UNIT);
    }
    rivals.into_iter().for_each(Running::join);
    servers.iter().for_each(|server| wait_free(server, "vote", TIMEOUT));
}

#[test]
fn a_quorum_is_extended_if_a_majority_is() {
    let servers = five();
    let quorum = voting(&servers).with_lease(VOTE);
    let guard = lock_at_all(&quorum);
    servers[0].pause();
    servers[1].pause();
    guard.extend(HOUR).unwrap();
    assert!(guard.is_held() && guard.remaining() > HOUR / 2);
    // A hundredth of the longer lease may be lost by drift.
    assert!(guard.remaining() <= HOUR - HOUR / 100);
    servers[2].pause();
    let error = guard.extend(HOUR * 2).unwrap_err();
    assert!(error.kind().is_server_trouble(), "{error}");
    assert!(guard.is_held() && guard.remaining() <= HOUR);
    servers[..3].iter().for_each(Server::resume);
    guard.unlock().unwrap();
    wait_until("all are free", TIMEOUT, || votes(&servers) == 0);
}
